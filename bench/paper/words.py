"""How well pictures are written in words: what keywords find without an encoder, and how many words are true.

    python -m bench.paper.words FEATURES --fit TRAIN [--gallery GALLERY] [--server elastic+http://localhost:9200]

The vocabulary is of the captions of TRAIN, the index of the pictures in FEATURES, their captions are the queries. A
row has the arguments of the code, a measure, its value, and what chance or the vectors themselves have where that is
known:

- R@10 of the described picture, by keywords (BM25 over the words of pictures, without an encoder), by the code (the
  sentence encoded, its terms alone); reference: all pictures that share a term, re-ranked by the vectors.
- With --server the same by a plain ``match`` query over HTTP, as any program can send it, to an index that is made
  there and deleted again.
- Of the ten heaviest words of a picture, the share that are in its own captions; the share of pictures where that is
  at least .8. Chance: with the captions of another picture. What people reach: the same for the words of a caption,
  in the other captions of its picture. With --synonyms, the folder ``dict`` of WordNet, the same again where an
  inflection or a synonym (in any sense) counts too.
- With GALLERY, a folder of ``demo.gallery``: for each family of sentences (bench/datasets/gallery_truth.py)
  its measures, by keywords.

``--show N`` prints on stderr the words of N pictures, [those] that their captions do not have, (those) that they have a
synonym of, and a caption.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.datasets.gallery_truth import DEPTH, FAMILIES, judge, queries, read_gallery
from bench.datasets.wordnet import Synonyms
from bench.report.rows import Writer
from boc import plugins
from boc.clustering.term_labels import content_words
from boc.clustering.vocabulary import vocabulary
from boc.indexes.build import build_index
from boc.inputs.features import FeatureFile
from boc.search.searcher import Searcher

COLUMNS = ("code", "measure", "value", "reference", "count")
CODES = ("z=16", "z=32", "z=64")
HEAVIEST = 10
TRUE = 0.8  # share of the heaviest words from which a picture counts as written truly
FAMILY_QUERIES = 300
BLOCK = 500  # queries at a time
Meanings = Callable[[str], frozenset[str]]
"""Of a word; two words are the same, or synonyms, if their meanings overlap."""


def heaviest(searcher: Searcher) -> dict[str, list[str]]:
    """The heaviest words of each picture, most frequent first."""
    texts = {i.id: str(i.fields.get("words", "")) for i in searcher.index.items() if i.modality == "image"}
    return {id: [word for word, _ in Counter(text.split()).most_common(HEAVIEST)] for id, text in texts.items()}


def itself(word: str) -> frozenset[str]:
    """The meanings of a word where only the same word counts."""
    return frozenset([word])


def meant(words: Iterable[str], meanings: Meanings) -> frozenset[str]:
    """All meanings of some words."""
    return frozenset().union(*map(meanings, words))


def true_words(
    words: dict[str, list[str]], captions: dict[str, set[str]], meanings: Meanings, told: str
) -> Iterator[tuple[str, float, float, int]]:
    """How many of the heaviest words are in the captions of the picture, and in those of the next one."""
    ids = [id for id in words if words[id]]
    said = {id: meant(captions[id], meanings) for id in ids}
    shares = []
    for away in (0, 1):
        of = {id: said[ids[(n + away) % len(ids)]] for n, id in enumerate(ids)}
        shares.append(np.array([np.mean([not meanings(word).isdisjoint(of[id]) for word in words[id]]) for id in ids]))
    yield f"words in own captions{told}", float(shares[0].mean()), float(shares[1].mean()), len(ids)
    many = [float((share >= TRUE).mean()) for share in shares]
    yield f"pictures with .8 of them{told}", many[0], many[1], len(ids)


def shown(words: Sequence[str], captions: set[str], meanings: Meanings) -> str:
    """The words, [those] that no caption has, (those) that one has a synonym of."""
    said = meant(captions, meanings)
    marked = (w if w in captions else f"({w})" if not meanings(w).isdisjoint(said) else f"[{w}]" for w in words)
    return " ".join(marked)


def agreement(
    captions: Mapping[str, Sequence[str]], meanings: Meanings, told: str
) -> Iterator[tuple[str, float, float, int]]:
    """How many words of a caption are in the other captions of its picture, and in those of the next one."""
    sets = [[set(content_words(caption)) for caption in of] for of in captions.values()]
    shares: list[NDArray[np.float64]] = []
    for away in (0, 1):
        rows = []
        for n, own in enumerate(sets):
            of = own if away == 0 else sets[(n + away) % len(sets)]
            for i, caption in enumerate(own):
                others = meant(set().union(*(other for j, other in enumerate(of) if j != i)), meanings)
                rows += [np.mean([not meanings(word).isdisjoint(others) for word in caption])] if caption else []
        shares.append(np.array(rows))
    yield f"words of a caption in the others{told}", float(shares[0].mean()), float(shares[1].mean()), len(shares[0])
    many = [float((share >= TRUE).mean()) for share in shares]
    yield f"captions with .8 of them{told}", many[0], many[1], len(shares[0])


def recalls(searcher: Searcher, file: FeatureFile) -> Iterator[tuple[str, float, float, int]]:
    """R@10 of the described picture, by keywords and by the code."""
    found = {"keywords": 0, "code": 0, "vectors": 0}
    total = file.count("text")
    for start in range(0, total, BLOCK):
        batch = file.batch("text", start, min(start + BLOCK, total))
        for by, answers in (
            ("keywords", searcher.search_words([item.content for item in batch.items], find="image")),
            ("code", searcher.index.search(searcher.codec.encode_queries(batch.embeddings), DEPTH, "image")),
            ("vectors", searcher.search_vectors(batch.embeddings, find="image", rm=file.count("image"))),
        ):
            found[by] += sum(
                any(hit.item.id == item.group for hit in hits) for item, hits in zip(batch.items, answers, strict=True)
            )
    for by in ("keywords", "code"):
        yield f"R@10 by {by}", found[by] / total, found["vectors"] / total, total


def matched(server: str, name: str, texts: Sequence[str]) -> list[list[str]]:
    """The ids of the pictures that a server finds by plain ``match`` queries over the words of pictures."""
    picture = {"term": {"modality": "image"}}
    lines = []
    for text in texts:
        query = {"bool": {"must": {"match": {"words": text}}, "filter": picture}}
        lines += [{}, {"query": query, "size": DEPTH, "_source": False}]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    address = f"{server.partition('+')[2]}/{name}/_msearch"
    request = urllib.request.Request(address, body, {"Content-Type": "application/x-ndjson"})
    with urllib.request.urlopen(request) as answer:  # an address of the command line
        return [[hit["_id"] for hit in each["hits"]["hits"]] for each in json.load(answer)["responses"]]


def on_server(features: Path, code: str, server: str, file: FeatureFile) -> tuple[str, float, float, int]:
    """R@10 of the described picture by plain ``match`` queries."""
    name = "bench-words"
    build_index(name, features, code=code, at=server)
    try:
        items = file.items("text")
        found = 0
        for start in range(0, len(items), BLOCK):
            asked = items[start : start + BLOCK]
            answers = matched(server, name, [item.content for item in asked])
            found += sum(item.group in ids for item, ids in zip(asked, answers, strict=True))
    finally:
        plugins.backend(server).remove(name)
    return "R@10 by match on a server", found / len(items), float("nan"), len(items)


def families(searcher: Searcher, gallery: Path, file: FeatureFile) -> Iterator[tuple[str, float, float, int]]:
    """What keywords find of the families of sentences."""
    painted = read_gallery(gallery / "scenes.json")
    numbers = {id: n for n, id in enumerate(file.ids("image"))}
    asked = queries([painted[int(Path(id).stem)] for id in numbers], FAMILY_QUERIES)
    hits = searcher.search_words([query.asked.text for query in asked], find="image", k=DEPTH)
    rankings = [[numbers[hit.item.id] for hit in row] for row in hits]
    for family in FAMILIES:
        mine = [n for n, query in enumerate(asked) if query.family == family]
        if mine:
            measures = judge([asked[n] for n in mine], [rankings[n] for n in mine])
            for name, measure in measures.items():
                yield f"{family}, {name}", measure.value, measure.chance, measure.count


@click.command()
@click.argument("features", type=click.Path(path_type=Path))
@click.option("--fit", "train", required=True, type=click.Path(path_type=Path), help="Captions of the vocabulary.")
@click.option("--gallery", type=click.Path(path_type=Path), help="The painted scenes in FEATURES.")
@click.option("--server", metavar="ADDRESS", help="A server to search by plain match queries, too.")
@click.option("--clusters", default=1000, show_default=True, help="Words of the vocabulary.")
@click.option("--code", "codes", multiple=True, default=CODES, show_default=True, help="Arguments of the code words.")
@click.option("--synonyms", type=click.Path(path_type=Path), help="The folder dict of WordNet, to count synonyms too.")
@click.option("--show", default=0, help="Print the words of so many pictures on stderr.")
def main(
    features: Path,
    train: Path,
    gallery: Path | None,
    server: str | None,
    clusters: int,
    codes: tuple[str, ...],
    synonyms: Path | None,
    show: int,
) -> None:
    """Measure the code words on the pictures in FEATURES."""
    counted: dict[str, Meanings] = {"": itself}
    if synonyms is not None:
        counted[" or synonyms"] = Synonyms(synonyms).meanings
    with FeatureFile(features) as file, FeatureFile(train) as fit, tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "words.npz"
        vocabulary([fit], clusters).save(book)
        captions: dict[str, set[str]] = defaultdict(set)
        every: dict[str, list[str]] = defaultdict(list)
        for item in file.items("text"):
            captions[item.group].update(content_words(item.content))
            every[item.group].append(item.content)
        parameters = {
            "features": features,
            "fit": train,
            "gallery": gallery,
            "clusters": clusters,
            "synonyms": synonyms,
        }
        with Writer(sys.stdout, __file__, parameters, COLUMNS) as out:
            for told, meanings in counted.items():
                for name, value, reference, count in agreement(every, meanings, told):
                    out.write("captions", name, f"{value:.4f}", f"{reference:.4f}", count)
            for number, code in enumerate(codes):
                place = f"file:{folder}/{number}"
                build_index("words", features, code=f"words(codebook='{book}', {code})", at=place)
                searcher = Searcher.open("words", place)
                words = heaviest(searcher)
                for id in [*words][:: max(1, len(words) // show)][:show] if show else []:
                    click.echo(f"{id}: {shown(words[id], captions[id], meanings)}  |  {every[id][0]}", err=True)
                rows = [*recalls(searcher, file)]
                for told, meanings in counted.items():
                    rows += true_words(words, captions, meanings, told)
                mean = float(np.mean([len(each) for each in words.values()]))
                rows.append(("words counted per picture", mean, float("nan"), len(words)))
                if server is not None:
                    rows.append(on_server(features, f"words(codebook='{book}', {code})", server, file))
                rows += families(searcher, gallery, file) if gallery is not None else []
                for name, value, reference, count in rows:
                    out.write(code, name, f"{value:.4f}", None if np.isnan(reference) else f"{reference:.4f}", count)


if __name__ == "__main__":
    main()
