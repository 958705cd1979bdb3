"""Terms for other engines: they are read by the tools of the formats, and score 200 queries as the
index does."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.random import default_rng

from bench.datasets.terms import main, write_terms
from bench.paper import curves
from boc import Searcher, build_index
from boc.codecs.surrogate_text import to_counts
from boc.errors import BocError
from boc.types import SearchRequest

N = 60
QUERIES = 200
K = 10


@pytest.fixture(scope="module")
def at(tmp_path_factory) -> str:
    """A place with an index ``mine`` of N pictures and 200 captions of random vectors, under a
    scalar code."""
    home = tmp_path_factory.mktemp("mine")
    rng = default_rng(0)
    images = rng.standard_normal(
        (N, 32),
        dtype=np.float32,
    )
    np.save(home / "images.npy", images)
    np.save(
        home / "captions.npy",
        images[np.arange(QUERIES) % N] + rng.standard_normal((QUERIES, 32)) / 2,
    )
    (home / "captions.txt").write_text(
        "\n".join([f"{i % N}\tsentence {i}, \u00e4 \u732b" for i in range(QUERIES)]),
        encoding="utf-8",
    )
    (home / "captions.ids.txt").write_text("\n".join([f"c{i}" for i in range(QUERIES)]))
    build_index(
        "mine",
        [
            home / "images.npy",
            home / "captions.npy",
        ],
        at=f"file:{home}",
        code="scalar:16/32",
    )
    return f"file:{home}"


def hits_of(at: str) -> dict[str, list[tuple[str, int]]]:
    """Ids and integer scores of the pictures for each caption by the code alone, all of them."""
    searcher = Searcher.open("mine", at)
    answers = {}
    for i in range(QUERIES):
        request = SearchRequest(
            searcher.codec.encode_queries(searcher.embeddings(f"c{i}")),
            N,
            "image",
        )
        answers[f"c{i}"] = [(hit.id, int(hit.score)) for hit in searcher.index.search(request)[0]]
    return answers


def records(path: Path) -> dict[str, dict[str, int]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(set(line) == {"id", "contents", "vector"} for line in lines)
    return {line["id"]: line["vector"] for line in lines}


def ranked(scores: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(
        ((key, score) for key, score in scores.items() if score),
        key=lambda pair: (-pair[1], pair[0]),
    )


def test_lines_of_json_are_the_terms_and_score_as_the_index(at: str, tmp_path: Path):
    result = CliRunner().invoke(
        main,
        f"mine --at {at} -o {tmp_path}/mine.jsonl",
    )
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 4
    images, queries = (
        records(tmp_path / f"mine.{name}.jsonl") for name in ("image", "text.queries")
    )
    index = Searcher.open("mine", at).index
    assert to_counts(index.terms(["7"])) == [images["7"]]
    for key, hits in hits_of(at).items():
        query = queries[key]
        scores = {
            doc: sum(query.get(t, 0) * f for t, f in row.items()) for doc, row in images.items()
        }
        assert ranked(scores) == hits


def test_seismic_gives_our_integer_scores(at: str, tmp_path: Path):
    seismic = pytest.importorskip(
        "seismic",
        reason="pyseismic-lsr is not installed",
    )
    write_terms(
        Searcher.open("mine", at).index,
        tmp_path / "mine.jsonl",
    )
    index = seismic.SeismicIndex.build(
        str(tmp_path / "mine.image.jsonl"),
        n_postings=N,
        centroid_fraction=1.0,
        summary_energy=1.0,
        max_fraction=9.0,
    )
    queries = records(tmp_path / "mine.text.queries.jsonl")
    kind = seismic.get_seismic_string()
    for key, hits in hits_of(at).items():
        terms = np.array(list(queries[key]), dtype=kind)
        weights = np.array(
            list(queries[key].values()),
            dtype=np.float32,
        )
        answer = index.search(
            query_id=key,
            query_components=terms,
            query_values=weights,
            k=K,
            query_cut=99,
            heap_factor=1.0,
        )
        ours = dict(hits)
        assert sorted(
            (int(score) for _, score, _ in answer),
            reverse=True,
        ) == [score for _, score in hits[:K]]
        assert all(ours[doc] == score for _, score, doc in answer)


def test_ciff_is_read_by_its_toolkit_and_gives_our_integer_scores(at: str, tmp_path: Path):
    read = pytest.importorskip(
        "ciff_toolkit.read",
        reason="ciff-toolkit is not installed",
    )
    write_terms(
        Searcher.open("mine", at).index,
        tmp_path / "mine.ciff",
    )
    scores = {}
    queries = records(tmp_path / "mine.text.queries.jsonl")
    with read.CiffReader(tmp_path / "mine.image.ciff") as reader:
        header = reader.read_header()
        lists = {each.term: each for each in reader.read_postings_lists()}
        documents = list(reader.read_documents())
    assert list(lists) == sorted(lists)
    assert (
        header.version,
        header.num_docs,
        header.num_postings_lists,
    ) == (1, N, len(lists))
    assert [each.docid for each in documents] == list(range(N))
    terms = Searcher.open("mine", at).index.terms([each.collection_docid for each in documents])
    assert [each.doclength for each in documents] == terms.sum(axis=1).tolist()
    assert (
        header.total_terms_in_collection
        == terms.sum()
        == pytest.approx(header.average_doclength * N)
    )
    for name, each in lists.items():
        scores[name] = np.zeros(N, np.int64)
        scores[name][np.cumsum([posting.docid for posting in each.postings])] = [
            post.tf for post in each.postings
        ]
        assert (each.df, each.cf) == (
            np.count_nonzero(scores[name]),
            scores[name].sum(),
        )
    for key, hits in hits_of(at).items():
        query = queries[key]
        total = sum(
            (f * scores[t] for t, f in query.items() if t in scores),
            np.zeros(N, np.int64),
        )
        assert ranked({doc.collection_docid: int(total[doc.docid]) for doc in documents}) == hits


def test_other_files_are_not_overwritten(at: str, tmp_path: Path):
    (tmp_path / "mine.image.jsonl").write_text("dear diary")
    with pytest.raises(
        BocError,
        match="another kind of file",
    ):
        write_terms(
            Searcher.open("mine", at).index,
            tmp_path / "mine.jsonl",
        )
    write_terms(
        Searcher.open("mine", at).index,
        tmp_path / "mine.ciff",
    )
    write_terms(
        Searcher.open("mine", at).index,
        tmp_path / "mine.ciff",
    )
    (tmp_path / "mine.text.ciff").write_text("dear diary")
    with pytest.raises(
        BocError,
        match="another kind of file",
    ):
        write_terms(
            Searcher.open("mine", at).index,
            tmp_path / "mine.ciff",
        )


@pytest.mark.slow
def test_curves_of_two_arrays_are_a_table_and_a_plot(tmp_path: Path):
    images = default_rng(0).standard_normal(
        (30, 16),
        dtype=np.float32,
    )
    np.save(tmp_path / "images.npy", images)
    np.save(
        tmp_path / "captions.npy",
        np.repeat(images, 2, axis=0),
    )
    (tmp_path / "captions.txt").write_text("".join(f"sentence {i}\n" for i in range(60)))
    out = tmp_path / "out"
    result = CliRunner().invoke(
        curves.main,
        f"{tmp_path}/images.npy {tmp_path}/captions.npy -o {out} --terms 32 --sparsity 0.5",
    )
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ") for line in (out / "table.md").read_text().splitlines()]
    assert {row[0].strip("| ") for row in rows[2:]} == {"scalar", "permutation", "dictionary"}
    assert all(float(row[9]) == 100 for row in rows[2:] if "scalar" in row[0])
    assert (out / "plot.pdf").read_bytes().startswith(b"%PDF")
    assert "\\begin{tabular}" in (out / "table.tex").read_text()
