"""Odd options and values of a search: every back end answers them alike, or refuses them with the
same words."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boc import Searcher, build_index
from boc.errors import BocError
from boc.manage.build import add_items
from boc.search.queries import Query
from boc.types import Batch, Embeddings, Filter, Item
from tests.oracles import random_units, write_features

DIM = 8
COUNT = 30
COLUMNS = "id,year:integer,size:float,tag,kept:boolean,taken:date,title:text"
ROWS = [
    f"{i:02}.jpg,{2000 + i},{i / 10},{('Ürsel', 'dog|cat')[i % 2]},"
    f"{i % 3 == 0},2020-0{1 + i % 9}-1{i % 10},a red {i}"
    for i in range(COUNT)
]
Options = Mapping[str, Any]


def filtered(*arguments: Any) -> Options:
    return {"filters": [Filter(*arguments)]}


ODD: list[tuple[Options, str]] = [
    ({"k": 0}, "k must be at least 1, got 0; request at least one"),
    ({"k": 2**31}, "k must be less than 2,147,483,648"),
    ({"k": 2.0}, "k must be a whole number"),
    ({"k": True}, "k must be a whole number"),
    ({"k": np.int64(3)}, ""),
    ({"k": 5000}, ""),
    ({"rm": 0.5}, "rm must be at least 1 (candidates per hit), got 0.5; leave it out"),
    ({"rm": "2"}, "rm must be a number, such as 5"),
    ({"rm": 1e9, "k": 3}, ""),
    ({"find": "video"}, "find must be image or text, got 'video'"),
    ({"find": "text"}, "the index contains only pictures"),
    ({"rerank": "cosine"}, "unknown metric 'cosine' for re-ranking; known: dot, mrsw"),
    ({"rerank": "symm"}, "has no concept sets"),
    ({"query_z": 0}, "query_z must be at least 1 (query terms to keep), got 0; leave it out"),
    ({"query_z": 2**40}, ""),
    ({"hybrid": "both"}, "unknown hybrid search 'both'; known: rrf"),
    ({"hybrid": "rrf"}, "needs the words of a sentence"),
    ({"sort": "nothing"}, "sorted by 'nothing'"),
    ({"sort": "title"}, "which is of type text"),
    ({"sort": "-year", "k": 4}, ""),
    ({"filters": None}, ""),
    ({"filters": "year"}, "is not a filter"),
    ({"filters": "colour=red"}, "no metadata field 'colour'"),
    ({"filters": "title=red"}, "title is of type text"),
    ({"filters": "year=2020.5"}, "a 64-bit integer"),
    ({"filters": ["year>2010", "year<2012"]}, ""),
    ({"filters": "tag=u\u0308rsel"}, ""),
    ({"filters": "taken=2020-05"}, ""),
    (filtered("year", "=", 2**63), "a 64-bit integer"),
    (filtered("year", "=", True), "a 64-bit integer"),
    (filtered("year", "~", 2000), "cannot be compared with '~'"),
    (filtered("size", "<", math.inf), "a finite number"),
    (filtered("size", ">", -1e308), ""),
    (filtered("size", "!=", -0.0), ""),
    (filtered("tag", "=", "a\0b"), "at most 32766 bytes"),
    (filtered("tag", "=", "x" * 40_000), "at most 32766 bytes"),
    (filtered("tag", "=", ""), ""),
    (filtered("kept", "<", True), "cannot be compared with '<'"),
    (filtered("kept", "=", 1), "true or false"),
    (filtered("taken", ">", "zzz"), "ISO 8601"),
    (
        filtered(
            "taken",
            "=",
            "2020-01-01",
            "zzz",
        ),
        "ISO 8601",
    ),
    (
        filtered(
            "tag",
            "<",
            "dog",
            "cat",
        ),
        "cannot have a last value",
    ),
]
"""Options of a search, and what its error says; nothing for those that are answered."""


def features(folder: Path) -> Path:
    items = [
        Item(
            f"{i:02}.jpg",
            "image",
            f"/p/{i:02}.jpg",
            f"{i:02}.jpg",
        )
        for i in range(COUNT)
    ]
    (folder / "m.csv").write_text("\n".join([COLUMNS, *ROWS]) + "\n", encoding="utf-8")
    return write_features(
        folder / "f.h5",
        Batch(items, Embeddings("image", random_units(0, COUNT, DIM))),
    )


def outcome(searcher: Searcher, options: Options) -> object:
    query = np.linspace(
        -1,
        1,
        DIM,
        dtype=np.float64,
    )[None]
    try:
        hits = searcher.search_vectors(Embeddings("text", query), **options)[0]
    except BocError as error:
        return str(error)
    return [hit.id for hit in hits]


def test_odd_options_have_the_same_outcome(address: str, name: str, tmp_path: Path):
    path = features(tmp_path)
    here = f"file:{tmp_path / 'here'}"
    searchers = []
    for at in (address, here):
        build_index(
            name,
            path,
            at=at,
            metadata=tmp_path / "m.csv",
            code="scalar(plain=true)",
        )
        searchers.append(Searcher.open(name, at))
    different = {}
    for options, said in ODD:
        one, other = (outcome(searcher, options) for searcher in searchers)
        named = isinstance(one, str) and bool(said) and said in one
        answered = isinstance(one, list) and not said and one == other
        if not (named or answered):
            different[str(options)] = one, other, said
    assert not different, "\n".join(map(str, different.items()))


@pytest.mark.parametrize("like", [["nobody.jpg"], ["\ud800"], [""], ["a\0b"]])
def test_unknown_items_are_named(address: str, name: str, tmp_path: Path, like: list[str]):
    build_index(
        name,
        features(tmp_path),
        at=address,
        code="scalar(plain=true)",
    )
    with pytest.raises(BocError, match="the index has no item"):
        Searcher.open(name, address).search_query(Query.of(like=like))


def test_near_duplicates_are_those_of_a_folder(address: str, name: str, tmp_path: Path) -> None:
    """Of an index that has grown too: its threshold is that of an index loaded at once."""
    vectors = random_units(1, 1500, DIM)
    items = [Item(f"{i:04}", "image", "", f"{i:04}") for i in range(len(vectors))]

    def part(rows: slice) -> Path:
        batch = Batch(items[rows], Embeddings("image", vectors[rows]))
        return write_features(tmp_path / f"{rows.start}-{rows.stop}.h5", batch)

    here = f"file:{tmp_path / 'here'}"
    build_index(name, part(slice(0, 1500)), at=here, code="scalar(plain=true)")
    build_index(name, part(slice(700, 1500)), at=address, code="scalar(plain=true)")
    add_items(name, part(slice(0, 700)), at=address)
    queries = Embeddings("image", random_units(2, 40, DIM))
    one, other = (
        Searcher.open(name, at).search_vectors(queries, k=10, collapse=True)
        for at in (address, here)
    )
    pages = [[(hit.id, hit.duplicates) for hit in hits] for hits in one]
    assert any(ids for page in pages for _, ids in page)
    assert pages == [[(hit.id, hit.duplicates) for hit in hits] for hits in other]
