"""Indexes of the vectors of others: dense ones are found as by a loop, sparse ones have exactly
their dot products."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boc import Searcher, build_index
from boc.errors import BocError, LeftOut, SourceError
from boc.evaluate.verify import verify
from boc.explain.score import explain
from boc.search.queries import Query
from tests.helpers import boc
from tests.servers import Server
from tests.servers.fixtures import address, kinds

Vector = dict[str, float]


def splade_like(n: int, terms: int, each: int, seed: int) -> list[Vector]:
    """Random vectors in the statistics of SPLADE: few frequent terms, many rare ones, weights of a
    few at most."""
    rng = np.random.default_rng(seed)
    usual = 1 / (1 + np.arange(terms)) ** 0.8
    vectors = []
    for _ in range(n):
        columns = rng.choice(terms, each, replace=False, p=usual / usual.sum())
        weights = np.clip(rng.exponential(0.6, each), 0.02, 3.2)
        vectors.append(
            {
                f"##w{j}": round(float(w), 3)
                for j, w in zip(
                    columns,
                    weights,
                    strict=True,
                )
            },
        )
    return vectors


def write(path: Path, vectors: list[Vector], letter: str) -> Path:
    lines = (
        json.dumps({"id": f"{letter}{i}", "vector": vector}) for i, vector in enumerate(vectors)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def products(query: Vector, documents: list[Vector]) -> dict[str, int]:
    """Integer dot products with all documents, by a slow loop."""
    scaled = {name: round(100 * weight) for name, weight in query.items()}
    return {
        f"d{i}": sum(
            scaled[name] * round(100 * weight) for name, weight in each.items() if name in scaled
        )
        for i, each in enumerate(documents)
    }


def check(at: str, documents: list[Vector], queries: list[Vector], k: int = 10) -> None:
    """Hits, scores, explanations and verification of the index ``splade`` are right."""
    searcher = Searcher.open("splade", at)
    answers = searcher.search_texts([json.dumps(query) for query in queries], k=k)
    for query, hits in zip(queries, answers, strict=True):
        exact = products(query, documents)
        best = sorted((key for key in exact if exact[key]), key=lambda key: (-exact[key], key))[:k]
        assert [(hit.id, hit.score) for hit in hits] == [(key, exact[key]) for key in best]
    assert (
        explain(
            searcher,
            answers[0][0].id,
            json.dumps(queries[0]),
        ).score
        == answers[0][0].score
    )
    assert verify(searcher.index).right
    like = searcher.search_query(Query.of(like=["d3"]), k=3)
    exact = products(documents[3], documents)
    assert [hit.score for hit in like] == sorted(
        (exact[key] for key in exact if key != "d3"),
        reverse=True,
    )[:3]


def test_sparse_vectors_have_their_dot_products(tmp_path: Path) -> None:
    documents = splade_like(300, 3000, 120, 0)
    queries = splade_like(30, 3000, 30, 1)
    build_index("splade", write(tmp_path / "d.jsonl", documents, "d"), at=f"file:{tmp_path}")
    check(f"file:{tmp_path}", documents, queries)
    assert [path.name for path in tmp_path.glob(".splade*features*")] == []


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_a_server_gives_the_same_dot_products(server: Server, tmp_path: Path) -> None:
    documents = splade_like(500, 30_000, 120, 0)
    queries = splade_like(20, 30_000, 30, 1)
    build_index(
        "splade",
        write(tmp_path / "d.jsonl", documents, "d"),
        at=address(server),
        replace=True,
    )
    check(address(server), documents, queries)


def test_a_run_of_sparse_queries_has_their_ids(tmp_path: Path) -> None:
    documents = splade_like(40, 300, 20, 0)
    queries = splade_like(5, 300, 10, 1)
    path = write(tmp_path / "d.jsonl", documents, "d")
    topics = write(tmp_path / "q.jsonl", queries, "q")
    at = f"file:{tmp_path}"
    assert boc("index", "splade", path, "--at", at).stdout == "splade: 40 pictures and 0 captions\n"
    result = boc(
        "search",
        "splade",
        "--at",
        at,
        "--queries",
        topics,
        "-k",
        3,
        "--run",
        tmp_path / "a.run",
    )
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in (tmp_path / "a.run").read_text().splitlines()]
    assert {line[0] for line in lines} == {f"q{i}" for i in range(5)}
    assert float(lines[0][4]) == max(products(queries[0], documents).values())


def test_sparse_captions_find_their_pictures(tmp_path: Path) -> None:
    pictures = splade_like(20, 300, 20, 0)
    lines = [
        {"id": f"c{i}", "image": f"d{i}", "text": "a dog", "vector": vector}
        for i, vector in enumerate(pictures)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    at = f"file:{tmp_path}"
    build_index(
        "both",
        [write(tmp_path / "d.jsonl", pictures, "d"), tmp_path / "c.jsonl"],
        at=at,
    )
    searcher = Searcher.open("both", at)
    for line in lines:
        hit = searcher.search(
            json.dumps(line["vector"]),
            k=1,
            find="image",
        )[0]
        assert hit.item.id == line["image"]
    assert (
        "holds terms of another system"
        in boc("copy", "both", "--at", at, "--to", tmp_path / "both.h5").stderr
    )
    assert boc("copy", "both", "--at", at, "--to", tmp_path / "both.zip").exit_code == 0
    assert build_index("again", tmp_path / "both.zip", at=at).texts == 20


def test_what_needs_vectors_is_refused(tmp_path: Path) -> None:
    build_index(
        "splade",
        write(tmp_path / "d.jsonl", splade_like(9, 30, 5, 0), "d"),
        at=f"file:{tmp_path}",
    )
    searcher = Searcher.open("splade", f"file:{tmp_path}")
    for call, message in (
        (lambda: searcher.search("a dog"), "are no terms"),
        (lambda: searcher.search('{"a": -1, "##w0": -2}'), "give weights from 0"),
        (lambda: searcher.search('{"##w0": 1}', collapse=True), "leave out collapse"),
    ):
        with pytest.raises(BocError, match=message):
            call()


def pairs(
    folder: Path,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    images = rng.standard_normal((12, 8), dtype=np.float32)
    captions = np.repeat(
        images,
        2,
        axis=0,
    ) + 0.05 * rng.standard_normal((24, 8), dtype=np.float32)
    np.save(folder / "images.npy", 3 * images)
    np.save(folder / "captions.npy", captions)
    (folder / "captions.txt").write_text("".join(f"sentence {i}\n" for i in range(24)))
    return images, captions


def test_two_arrays_and_a_list_of_captions_are_an_index(tmp_path: Path) -> None:
    images, captions = pairs(tmp_path, np.random.default_rng(0))
    at = f"file:{tmp_path / 'index'}"
    result = boc("index", "mine", tmp_path / "images.npy", tmp_path / "captions.npy", "--at", at)
    assert (result.exit_code, result.stdout) == (0, "mine: 12 pictures and 24 captions\n"), (
        result.output
    )
    searcher = Searcher.open("mine", at)
    items = {item.id: item for item in searcher.index.items()}
    assert (items["3#1"].content, items["3#1"].group) == ("sentence 7", "3")
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    query = captions[7] / np.linalg.norm(captions[7])
    best = sorted(range(12), key=lambda row: -float(unit[row] @ query))[:5]
    hits = searcher.search_vectors(searcher.embeddings("3#1"), k=5, find="image")[0]
    assert [hit.id for hit in hits] == [str(row) for row in best]
    with pytest.raises(BocError, match=r"search by an item: .*like=\[ID\]"):
        searcher.search("a dog")
    again = boc("index", "mine", tmp_path / "images.npy", tmp_path / "captions.npy", "--at", at)
    assert again.stdout.startswith("mine is up to date")


def test_sentences_of_no_known_picture_and_ids_that_occur_twice_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "captions.npy", np.eye(4, dtype=np.float32)[:3])
    (tmp_path / "captions.txt").write_text("a\nb\nc\n")
    with pytest.raises(SourceError, match="3 sentences of 4 pictures"):
        build_index(
            "mine",
            [tmp_path / "images.npy", tmp_path / "captions.npy"],
            at=f"file:{tmp_path}",
        )
    (tmp_path / "captions.txt").unlink()
    with pytest.raises(SourceError, match=r"have the id '[0-2]'; write ids beside"):
        build_index(
            "mine",
            [tmp_path / "images.npy", tmp_path / "captions.npy"],
            at=f"file:{tmp_path}",
        )
    np.save(tmp_path / "images.npy", np.zeros((4, 4), np.float32))
    with pytest.raises(
        SourceError,
        match=r"none of its items can be used \(row 0 of .* is zero or not finite",
    ):
        build_index("mine", tmp_path / "images.npy", at=f"file:{tmp_path}")


def test_rows_and_lines_that_cannot_be_used_cost_themselves(tmp_path: Path) -> None:
    """Also the first ones, by which a file is known."""
    vectors = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    vectors[0] = 0
    vectors[5] = np.nan
    np.save(tmp_path / "images.npy", vectors)
    report = build_index("dense", tmp_path / "images.npy", at=f"file:{tmp_path}")
    assert report.images == 7
    assert [id for id, _ in report.failed] == ["0", "5"]
    lines = [
        "{",
        '{"id": "a", "vector": {"dog": 2}}',
        '{"id": "b", "vector": {"dog": "x"}}',
        "[]",
        '{"id": "c", "vector": {"cat": NaN}}',
        '{"vector": {"cat": 3}}',
        "\ufeff",
    ]
    (tmp_path / "sparse.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.warns(LeftOut, match=r"left out 4 \(line 1: no JSON in UTF-8"):
        build_index("sparse", tmp_path / "sparse.jsonl", at=f"file:{tmp_path}")
    searcher = Searcher.open("sparse", f"file:{tmp_path}")
    assert [hit.id for hit in searcher.search('{"dog": 1, "cat": 1}')] == ["6", "a"]


def test_texts_of_beir_are_a_source(tmp_path: Path) -> None:
    from boc.inputs.sources import open_source

    records = [
        {"_id": "a1", "title": "Dogs", "text": "They bark."},
        {"_id": "b2", "title": "", "text": "A cat."},
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, records)))
    items = open_source(tmp_path / "corpus.jsonl").items
    assert [(item.id, item.modality, item.content) for item in items] == [
        ("a1", "text", "Dogs They bark."),
        ("b2", "text", "A cat."),
    ]
