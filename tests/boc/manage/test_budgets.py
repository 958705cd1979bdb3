"""Budgets chosen for a recall: what they promise holds for other queries; those given by hand are
obeyed."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.random import default_rng

from boc import plugins
from boc.codecs import parse_code
from boc.errors import BocError
from boc.manage import budgets
from boc.manage.budgets import EASIER, promise
from boc.manage.build import build_index
from boc.manage.facts import index_facts
from boc.manifest import Manifest
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Item
from boc.vectors import unit_rows
from tests.oracles import sentence, write_features

# More items than a folder compares with each query.
DIM = 216
PICTURES = 6_000


def rows(n: int, seed: int, offset: float) -> np.ndarray:
    rng = default_rng(seed)
    centres = default_rng(0).normal(size=(60, DIM))
    made = centres[rng.integers(60, size=n)] + 0.7 * rng.normal(size=(n, DIM)) + offset
    return unit_rows(made.astype(np.float32))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Pictures and 300 captions, which lie elsewhere."""
    path = tmp_path_factory.mktemp("budgets") / "made.h5"
    pictures = [Item(f"i{i}", "image", "") for i in range(PICTURES)]
    return write_features(
        path,
        Batch(pictures, Embeddings("image", rows(PICTURES, 1, 0.3))),
        Batch([sentence(f"t{i}") for i in range(300)], Embeddings("text", rows(300, 2, -0.3))),
    )


@pytest.mark.parametrize(
    "recall",
    [
        -1.0,
        0.0,
        1.0,
        2.0,
        float("nan"),
    ],
)
def test_recall_lies_between_0_and_1(recall: float):
    code = parse_code("dictionary")
    with pytest.raises(BocError, match=r"recall must be between 0 and 1, got .*0\.98"):
        promise(recall, code, None, code.codec(8))


@pytest.mark.parametrize("recall", [None, 0.001, 0.98, 0.999])
def test_recall_is_promised_where_no_budget_is_given(recall: float | None):
    code = parse_code("dictionary")
    assert promise(recall, code, None, code.codec(8)) == {"target": recall or 0.98}


@pytest.mark.slow
def test_other_queries_find_what_was_promised(source: Path, tmp_path: Path):
    place = f"file:{tmp_path}"
    queries = rows(400, 3, -0.3)
    best = np.argsort(
        -(
            queries
            @ rows(
                PICTURES,
                1,
                0.3,
            ).T
        ),
        axis=1,
    )[:, :10]
    costs = []
    for target in (0.8, 0.95):
        build_index("made", source, at=place, code="dictionary", recall=target, replace=True)
        searcher = Searcher.open("made", place)
        manifest = searcher.index.manifest
        budget = searcher.codec.query_budget
        assert manifest.recall["target"] == target
        assert manifest.recall["low"] >= 1 - (1 - target) / EASIER
        assert manifest.recall["source"] == "captions"
        assert Manifest.from_dict(json.loads(manifest.to_json()), where="here") == manifest
        ids, _ = searcher.rank_vectors(
            Embeddings("text", queries),
            k=10,
            rm=manifest.rm,
            find="image",
        )
        pairs = zip(ids, best, strict=True)
        recall = np.mean(
            [len({f"i{row}" for row in mine} & set(hits)) / 10 for hits, mine in pairs],
        )
        assert (
            recall >= manifest.recall["low"] - 0.02
        )  # an interval of other queries adds to that of these
        assert build_index("made", source, at=place, code="dictionary", recall=target).up_to_date
        assert budget is not None
        costs.append(budget * 2 * 6_300 / searcher.codec.n_terms + 100 * manifest.rm)
    assert costs[0] < costs[1]


@pytest.mark.slow
def test_other_pictures_find_captions_as_was_promised(tmp_path: Path):
    pictures = [Item(f"i{i}", "image", "") for i in range(300)]
    captions = [sentence(f"t{i}") for i in range(PICTURES)]
    texts = rows(PICTURES, 2, -0.3)
    path = write_features(
        tmp_path / "made.h5",
        Batch(pictures, Embeddings("image", rows(300, 1, 0.3))),
        Batch(captions, Embeddings("text", texts)),
    )
    place = f"file:{tmp_path}"
    build_index("made", path, at=place)
    searcher = Searcher.open("made", place)
    queries = rows(200, 3, 0.3)
    best = np.argsort(-(queries @ texts.T), axis=1)[:, :10]
    answers = searcher.search_vectors(Embeddings("image", queries), k=10, find="text")
    pairs = zip(answers, best, strict=True)
    recall = np.mean(
        [len({f"t{row}" for row in mine} & {hit.id for hit in hits}) / 10 for hits, mine in pairs],
    )
    assert recall >= 0.96
    assert searcher.index.manifest.recall["texts"]["measured"] >= 0.98


def write_more(path: Path, vectors: np.ndarray) -> Path:
    items = [Item(f"{path.stem}{i}", "image", "") for i in range(len(vectors))]
    return write_features(path, Batch(items, Embeddings("image", vectors)))


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "shared"), [(3, 0), (20, 0), (3, 0.4)])
def test_pictures_alone_choose_by_moved_pictures(copies: int, shared: float, tmp_path: Path):
    """``shared`` is added to all components, as if all vectors had a direction in common."""
    place = f"file:{tmp_path}"
    pictures = rows(PICTURES, 1, 0.3)
    pictures = np.repeat(pictures[: PICTURES // copies], copies, axis=0)
    pictures = unit_rows(pictures + shared + 0.01 * default_rng(1).normal(size=pictures.shape))
    build_index("made", write_more(tmp_path / "alone.h5", pictures), at=place)
    queries = unit_rows(rows(400, 3, -0.3) + shared)
    best = np.argsort(-(queries @ pictures.T), axis=1)[:, :10]
    searcher = Searcher.open("made", place)
    told = searcher.index.manifest.recall
    ids, _ = searcher.rank_vectors(Embeddings("text", queries), k=10, find="image")
    pairs = zip(ids, best, strict=True)
    recall = np.mean([len({f"alone{i}" for i in top} & set(hits)) / 10 for hits, top in pairs])
    assert told["source"] == "moved items"
    assert 0.95 < told["low"] < told["measured"] < told["high"] <= 1
    assert told.get("read", 0) == (10 * copies if copies > 10 else 0)
    assert recall >= told["low"]


@pytest.mark.slow
def test_all_are_compared_where_terms_cannot_hold_the_promise(tmp_path: Path):
    place = f"file:{tmp_path}"
    uniform = unit_rows(default_rng(7).normal(size=(25_000, 128)))
    build_index("made", write_more(tmp_path / "uniform.h5", uniform), at=place)
    facts = index_facts(plugins.backend(place).open("made"))
    assert facts["plan"] == "all"
    assert facts["recall"]["high"] < facts["recall"]["target"]


@pytest.mark.slow
def test_budgets_by_hand_are_obeyed(source: Path, tmp_path: Path):
    build_index("made", source, at=f"file:{tmp_path}", code="dictionary:2/16", rm=7.0)
    searcher = Searcher.open("made", f"file:{tmp_path}")
    assert (
        searcher.codec.query_budget,
        searcher.index.manifest.rm,
        searcher.index.manifest.recall,
    ) == (16, 7.0, {})
    with pytest.raises(BocError, match="leave out"):
        build_index("other", source, at=f"file:{tmp_path}", code="dictionary", rm=7.0, recall=0.9)


class Measured(budgets._Tuner):
    """Searches of recalls that are given by terms of a query."""

    bound = "measured"

    def __init__(self, recalls: list[float]) -> None:
        self.budgets = list(range(1, 1 + len(recalls)))
        self.recalls = recalls

    def measure(self, query_z: int, candidates: int) -> dict[str, float]:
        return {"measured": self.recalls[query_z - 1]}


@given(
    recalls=st.lists(st.floats(0, 1), min_size=1, max_size=9).map(sorted),
    target=st.floats(0.5, 0.99),
)
def test_fewest_terms_that_hold_the_promise(recalls: list[float], target: float):
    query_z, _, figures = Measured(recalls).choose_terms(target)
    wanted = min(target, recalls[-1] - budgets.LAST)
    assert figures == {"measured": recalls[query_z - 1]}
    assert recalls[query_z - 1] >= wanted
    assert all(recall < wanted for recall in recalls[: query_z - 1])
