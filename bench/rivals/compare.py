"""Compare codes by other authors with the codes of boc, at equal postings and at equal bytes.

    python -m bench.rivals.compare dev.h5 --fit train.h5 --validation held.h5 --words words.npz
    --learned terms.npz

Captions are queries for the pictures in their file. Codes are learned only from --fit. Limits apply
to the postings read per query, as a fraction of the number of pictures, and to the bytes of
postings per picture (without list headers, which matter less in a larger gallery). For each limit,
each code uses the setting within the limit that is best on --validation, and is measured on
FEATURES with each seed. A code without random choices therefore has the same row for each seed.

A row contains the code, the kind of limit, the limit, the setting and the seed; the postings per
query and picture; the bytes per picture; ``near``, the fraction of the exact top 10 by MrSw in the
first tenth of the ranking, by which settings are chosen; and R@10 of the caption's own picture in
percent, without re-ranking. The last row is ``mrsw`` itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import FILE
from bench.paper.ranking import K, document_frequencies, first, postings_read
from bench.report.rows import Writer
from bench.rivals.base import Code, Largest
from bench.rivals.cells import CellRanks, CellScalar
from bench.rivals.fixed import FixedEncoding
from bench.rivals.heads import Autoencoder, Pairs, WordPieces
from bench.rivals.pursuit import WordSum
from boc.clustering.codebook import Codebook
from boc.codecs.parse import parse_code
from boc.evaluate.metrics import owners_of
from boc.inputs.features import FeatureFile
from boc.rerank.alignment import alignments
from boc.topk import topk
from indexing.embedded.postings import Postings

LIMITS = {"postings": (0.1, 0.3, 1.0, 3.0, 10.0), "bytes": (16, 32, 64, 128, 256)}
FEW = (4, 8, 16, 32, 64)
COLUMNS = ("code", "kind", "limit", "setting", "seed", "postings", "bytes", "near", "R@10")


@dataclass(frozen=True)
class Figures:
    """Costs and recall of a code."""

    postings: float
    bytes: float
    near: float
    right: float


@dataclass(frozen=True)
class Family:
    """Settings of a code that share the learned part. ``make`` learns this part with a seed, and
    ``budgets`` contains pairs (z, query z)."""

    code: str
    setting: str
    make: Callable[..., Any]
    budgets: Sequence[tuple[Any, Any]]

    def codes(self, seed: int, wanted: Callable[[str, str], bool]) -> Iterator[tuple[str, Code]]:
        """Yield the ``wanted`` settings and their codes. A code is learned only if one of its
        settings is wanted."""
        base = None
        for z, query_z in self.budgets:
            name = f"{self.setting} {z or 'all'}/{query_z or 'all'}".strip()
            if wanted(self.code, name):
                base = base or self.make(seed=seed)
                yield name, at(base, z, query_z)


def at(base: Any, z: int | None, query_z: int | None) -> Code:
    """Return a code with other budgets and the same learned part."""
    code = copy(base)
    if isinstance(base, Largest):
        code.chain = [copy(step) for step in base.chain]
        width = base.chain[0].n_features_in_
        code.chain[0].set_params(z=z and min(z, width), query_z=query_z and min(query_z, width))
    elif hasattr(base, "steps"):
        code.steps = [copy(step) for step in base.steps]
        for step in code.steps:
            if "query_z" in step.get_params():
                step.set_params(z=z, query_z=query_z)
    else:
        code.z = z
        code.query_z = query_z
    return code  # type: ignore[no-any-return]


class Scenes:
    """Pictures and at most ``queries`` captions from a file, with the exact MrSw scores of all
    pairs."""

    def __init__(self, path: Path, queries: int | None = None) -> None:
        with FeatureFile(path) as file:
            images, texts = (file.batch(m, 0, file.count(m)).embeddings for m in ("image", "text"))
            owners = owners_of(
                [item.id for item in file.items("image")],
                [item.group for item in file.items("text")],
            )
        step = 1
        if queries is not None:
            step = max(1, len(texts) // queries)
        chosen = list(range(0, len(texts), step))
        self.pairs = Pairs(images, texts.take(chosen), owners[chosen])
        if queries is not None:
            assert images.concepts is not None
            assert self.pairs.text.concepts is not None
            exact = alignments(self.pairs.text.concepts, images.concepts, "mrsw")
            self.top = topk(exact, min(K, exact.shape[1]))

    def measure(self, code: Code) -> Figures:
        """Measure a fitted code."""
        documents = code.encode_documents(self.pairs.image)
        queries = code.encode_queries(self.pairs.text)
        index = Postings.from_matrix(documents)
        hits = first(index, queries, max(K, index.n // 10))
        near = self.top[:, :, None] == hits[:, None, :]
        found = near.any(axis=2)
        postings = postings_read(document_frequencies(documents), queries) / index.n
        size = (index.rows.nbytes + index.frequencies.nbytes) / index.n
        return Figures(postings, size, float(found.mean()), self.right(hits))

    def right(self, hits: NDArray[np.int64]) -> float:
        """Return R@10 of the caption's own picture, in percent."""
        own = hits[:, :K] == self.pairs.owners[:, None]
        found = own.any(axis=1)
        return 100 * float(found.mean())


def ours(spec: str, sample: Sequence[Any], seed: int) -> Code:
    """Return a code of boc, learned with a seed."""
    codec = parse_code(spec).codec(sample[0].vectors.shape[1])
    for step in codec.steps:
        if "seed" in step.get_params() and not step.frozen:
            step.set_params(seed=seed)
    return codec.fit(*sample)


def families(
    pairs: Pairs,
    words: Path | None,
    learned: Path | None,
    small: bool,
) -> Iterator[Family]:
    """Yield families of settings to try."""
    budgets: Sequence[tuple[Any, Any]]
    sample = [pairs.image, pairs.text]
    dim = pairs.image.vectors.shape[1]
    few: Sequence[int] = FEW
    epochs = 20
    width = 512
    dictionaries: Sequence[int] = (256, 1024)
    late: Sequence[tuple[int, int]] = (
        (64, 5),
        (64, 20),
        (256, 5),
        (256, 20),
        (1024, 20),
    )
    encodings: Sequence[tuple[int, int, int]] = ((3, 10, 16), (4, 10, 16))
    if small:
        few = FEW[:2]
        epochs = 2
        width = 32
        dictionaries = few
        late = [(9, 50)]
        encodings = [(2, 4, 8)]
    equal = [(z, z) for z in few]
    doubled = [(z, q) for z in few for q in (z, 2 * z)]
    yield Family("scalar", "", partial(ours, "scalar:8/8", sample), doubled)
    for terms in dictionaries:
        spec = f"dictionary:2/64(terms={terms})"
        yield Family(
            "dictionary",
            f"of {terms},",
            partial(ours, spec, sample),
            list(product((1, 2, 4, 8), few)),
        )
    for terms, density in late:
        spec = f"late(terms={terms}, density={density})"
        yield Family(
            "late",
            f"of {terms}, {density} %",
            partial(ours, spec, sample),
            [(None, None)],
        )
    if learned:
        yield Family("learned", "", partial(ours, f"learned(codebook={learned})", sample), doubled)
    if words:
        book = Codebook.load(words)
        yield Family("words", "", partial(ours, f"words(codebook={words})", sample), doubled)
        for penalty in (0.02, 0.05, 0.1, 0.2):
            make: Callable[..., Any] = partial(WordSum, book, penalty, sample)
            yield Family("SpLiCE pursuit", f"penalty {penalty},", make, equal)
    for centred in (False, True):
        how = ", centred" * centred
        for cells, probes in ((1, 1), *product((4, 16), (1, 2, 4))):
            make = partial(CellScalar, sample, cells, probes, centred=centred)
            yield Family(f"IVF x SQ{how}", f"{probes} of {cells} cells,", make, doubled)
        for cells, pieces in product((1, 4, 16), (8, min(32, dim))):
            make = partial(CellRanks, sample, cells, pieces, centred=centred)
            budgets = [(1, 1), (1, 2), (2, 2), (4, 4)]
            yield Family(f"SPQR{how}", f"{cells} cells, {pieces} pieces,", make, [*budgets, (2, 4)])
    for name, weight in (("top-k autoencoder", 0.0), ("CSR, contrastive", 1.0)):
        for trained_z in (8, 32):
            make = partial(Autoencoder, pairs, width, trained_z, weight, epochs=epochs)
            yield Family(name, f"trained with {trained_z},", make, doubled)
    for flops in (0.0, 0.1, 1.0):
        make = partial(WordPieces, pairs, None, None, flops, epochs=epochs)
        yield Family("word-pieces, D2S", f"penalty {flops},", make, doubled)
    for bits, repetitions, projected in encodings:
        make = partial(FixedEncoding, dim, bits, repetitions, min(projected, dim))
        budgets = [
            (16, 64),
            (64, 64),
            (64, 256),
            (256, 256),
            (None, None),
        ]
        yield Family("MUVERA", f"{bits} bits x {repetitions},", make, budgets)


def choose(measured: Iterable[tuple[str, str, Figures]]) -> dict[tuple[str, str, float], str]:
    """Return, for each code, kind of limit and limit, the best setting within the limit. Settings
    are compared by the fraction of the exact top 10 in the first tenth of the ranking, and then by
    R@10."""
    best: dict[tuple[str, str, float], tuple[float, float]] = {}
    settings: dict[tuple[str, str, float], str] = {}
    for code, setting, figures in measured:
        value = (figures.near, figures.right)
        for kind, limits in LIMITS.items():
            for limit in limits:
                key = (code, kind, limit)
                within = getattr(figures, kind) <= limit
                if within and (key not in best or value > best[key]):
                    best[key] = value
                    settings[key] = setting
    return settings


@click.command()
@click.argument("features", type=FILE)
@click.option("--fit", required=True, type=FILE, help="Feature file to learn from.")
@click.option("--validation", required=True, type=FILE, help="Feature file for choosing settings.")
@click.option("--words", type=FILE, help="Codebook from boc build-codebook --kind words.")
@click.option("--learned", type=FILE, help="Codebook from boc build-codebook --kind learned.")
@click.option(
    "--queries",
    default=500,
    show_default=True,
    help="Approximate maximum number of captions used as queries.",
)
@click.option(
    "--seeds",
    default=3,
    show_default=True,
    help="Number of seeds, from 0; settings are chosen with seed 0.",
)
@click.option(
    "--small",
    is_flag=True,
    help="Run a quick trial with few settings and little training.",
)
def main(
    features: Path,
    fit: Path,
    validation: Path,
    words: Path | None,
    learned: Path | None,
    queries: int,
    seeds: int,
    small: bool,
) -> None:
    """Compare codes by other authors with codes of boc on FEATURES."""
    settings = click.get_current_context().params
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=["torch", "scikit-learn"]) as out:
        pairs = Scenes(fit).pairs
        tried = list(families(pairs, words, learned, small))
        held_out = Scenes(validation, queries)
        scenes = Scenes(features, queries)
        measured = []
        for family in tried:
            click.echo(f"{family.code} {family.setting}", err=True)
            measured += [
                (family.code, name, held_out.measure(code))
                for name, code in family.codes(0, lambda *_: True)
            ]
        chosen = choose(measured)
        wanted = {(code, setting) for (code, *_), setting in chosen.items()}
        for seed in range(seeds):
            figures = {
                (family.code, name): scenes.measure(code)
                for family in tried
                for name, code in family.codes(seed, lambda *key: key in wanted)
            }
            for (code, kind, limit), setting in chosen.items():
                f = figures[code, setting]
                cells = (f"{f.postings:.3f}", f"{f.bytes:.1f}", f"{f.near:.4f}", f"{f.right:.2f}")
                out.write(code, kind, f"{limit:g}", setting, seed, *cells)
        out.write(
            "exact MrSw",
            None,
            None,
            None,
            0,
            None,
            None,
            1,
            f"{scenes.right(scenes.top):.2f}",
        )


if __name__ == "__main__":
    main()
