"""One order of hits: however many are wanted, a shorter list is the beginning of a longer one."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boc.manage.build import build_index
from boc.search.near_duplicates import select_distinct
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Hit, Item, Modality, Ragged
from tests.oracles import random_units, write_features

ITEMS = 600
LENGTHS = (1, 3, 10, 40, 41, 400)
WORDS = ("red", "green", "box", "kite", "dog")


def some(modality: Modality, count: int, seed: int) -> Embeddings:
    """Vectors near a few centres, some of them nearly equal, and sets of three concepts each."""
    rng = np.random.default_rng(seed)
    vectors = random_units(0, 30, 16)[rng.integers(0, 30, count)]
    vectors = vectors + rng.choice([0.01, 0.3], (count, 1)) * rng.standard_normal((count, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Embeddings(
        modality,
        vectors.astype(np.float32),
        Ragged.from_sets([vector + 0.3 * rng.standard_normal((3, 16)) for vector in vectors], 16),
    )


def made(home: Path, items: int, **options: Any) -> Searcher:
    """A searcher of an index that is made of so many items with a number and a word."""
    pictures = [Item(f"p{i:04d}", "image", f"/p{i}.jpg") for i in range(items)]
    write_features(home / "f.h5", Batch(pictures, some("image", items, 1)))
    lines = [f"p{i:04d},{i % 7},{WORDS[i % 5]}" for i in range(items)]
    table = home / "fields.csv"
    table.write_text("\n".join(["id,width:integer,title:text", *lines]))
    at = f"file:{home / 'index'}"
    build_index("order", home / "f.h5", at=at, metadata=table, **options)
    return Searcher.open("order", at)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory) -> Searcher:
    """A searcher of an index of which it compares candidates only, as of a large one."""
    found = made(tmp_path_factory.mktemp("order"), ITEMS, concepts="float16")
    found.index.costs = found.index.costs._replace(quick=0, begin=0, row=1e9)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rerank": "mrsw"},
        {"hybrid": "rrf"},
        {"filters": "width<5"},
        {"filters": "width=3", "rerank": "symm"},
        {"collapse": True},
    ],
    ids=str,
)
def test_a_shorter_list_is_the_beginning_of_a_longer_one(
    searcher: Searcher,
    options: dict[str, Any],
) -> None:
    queries = some("text", 12, 2)
    texts = [f"a {WORDS[i % 5]}" for i in range(12)]
    lists = [
        searcher.search_vectors(
            queries,
            k=k,
            texts=texts,
            **options,
        )
        for k in LENGTHS
    ]
    for shorter, longer, k in zip(lists, lists[1:], LENGTHS, strict=False):
        for few, many in zip(shorter, longer, strict=True):
            # Of more than a page, deeper searches may put more near-duplicates under a hit.
            assert longer is lists[-1] or longer is lists[-2] or few == many[:k]
            assert [(hit.id, hit.score) for hit in few] == [(hit.id, hit.score) for hit in many[:k]]
    for hits in lists[-1]:
        assert len({hit.id for hit in hits}) == len(hits)
    if not options:
        assert [len(hits) for hits in lists[-1]] == [400] * 12
        ids, scores = searcher.rank_vectors(queries, k=400)
        assert ids.tolist() == [[hit.id for hit in hits] for hits in lists[-1]]
        assert scores.tolist() == [[hit.score for hit in hits] for hits in lists[-1]]


@pytest.mark.parametrize("options", [{}, {"hybrid": "rrf"}, {"rm": 2}], ids=str)
def test_near_duplicates_are_those_of_lists_asked_anew(
    searcher: Searcher,
    options: dict[str, Any],
    monkeypatch,
) -> None:
    queries = some("text", 1, 2)
    monkeypatch.setattr(searcher.background("image"), "near", 0.3)
    asked: list[int] = []

    def ask(k: int) -> Sequence[Hit]:
        return searcher.search_vectors(queries, k=k, texts=["a box"], **options)[0]

    expected = select_distinct(ask, searcher.index, 41, 0.3)
    search: Any = searcher.index.search

    def counted(request: Any, *more: Any) -> Any:
        asked.append(request.rescore.k)
        return search(request, *more)

    monkeypatch.setattr(searcher.index, "search", counted)
    hits = searcher.search_vectors(queries, k=41, texts=["a box"], collapse=True, **options)[0]
    assert hits == expected
    assert options or asked == [40, 80, 160, 320, 640, 1280]


def test_a_fused_list_goes_on_where_longer_ones_fuse_more_candidates(tmp_path: Path) -> None:
    """A page fuses 600 candidates, 80 hits and more 2,000."""
    searcher = made(tmp_path, 2500, code="scalar", rm=60)
    searcher.index.costs = searcher.index.costs._replace(quick=0)
    queries = some("text", 12, 2)
    texts = [f"a {WORDS[i % 5]}" for i in range(12)]
    lists = [
        [
            [hit.id for hit in hits]
            for hits in searcher.search_vectors(queries, k=k, texts=texts, hybrid="rrf")
        ]
        for k in (40, 80, 200, 320)
    ]
    for shorter, longer in pairwise(lists):
        assert shorter == [hits[: len(few)] for hits, few in zip(longer, shorter, strict=True)]
