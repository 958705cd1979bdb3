"""Options of a search: what is refused, and that keyword arguments are these fields."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from boc.errors import BocError
from boc.search.options import SearchKeywords, SearchOptions


def test_the_keyword_arguments_are_the_fields() -> None:
    assert {field.name: field.type for field in fields(SearchOptions)} == {
        name: kind.__forward_arg__ for name, kind in SearchKeywords.__annotations__.items()
    }


def test_keyword_arguments_go_before_given_options() -> None:
    some = SearchOptions(k=3, rm=2)
    assert SearchOptions.of(some) is some
    assert SearchOptions.of(some, k=5) == SearchOptions(k=5, rm=2)
    assert SearchOptions.of(None, find="text") == SearchOptions(find="text")
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        SearchOptions.of(None, depth=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0; ask for one"),
        ({"rm": 0.5}, r"rm must be at least 1 \(candidates per hit\), got 0.5; leave it out"),
        ({"rm": float("nan")}, "rm must be at least 1 .* got nan"),
        ({"query_z": 0}, r"query_z must be at least 1 \(terms kept of a query\), got 0; leave it out"),
        ({"rerank": "max"}, "no re-rank metric 'max'; known: dot, mrsw"),
        ({"hybrid": "both"}, "no hybrid search 'both'; known: rrf, sum"),
        ({"words_weight": 1.0}, "is for the hybrid search sum; add hybrid sum"),
    ],
)
def test_values_out_of_range_are_told_with_the_rule_and_the_next_step(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BocError, match=message):
        SearchOptions(**options)
    with pytest.raises(BocError, match=message):
        SearchOptions.of(SearchOptions(), **options)


def test_names_load_no_other_module_of_ours_and_no_numpy() -> None:
    code = "import sys, boc.names; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] in {"boc", "numpy"}}
    assert loaded == {"boc", "boc.names"}
