"""Options of a search: what is refused, and that keyword arguments are these fields."""

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from boc.errors import BocError
from boc.search.options import SearchKeywords, SearchOptions, parse_filters
from boc.types import FieldType, Filter


def test_the_keyword_arguments_are_the_fields() -> None:
    assert {field.name: field.type for field in fields(SearchOptions)} == {
        name: kind.__forward_arg__ for name, kind in SearchKeywords.__annotations__.items()
    }


def test_keyword_arguments_go_before_given_options() -> None:
    some = SearchOptions(k=3, rm=2)
    assert SearchOptions.of(some) is some
    assert SearchOptions.of(some, k=5) == SearchOptions(k=5, rm=2)
    assert SearchOptions.of(None, find="text") == SearchOptions(find="text")
    with pytest.raises(TypeError, match="depth"):
        SearchOptions.of(None, depth=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0; request at least one"),
        ({"rm": 0.5}, r"rm must be at least 1 \(candidates per hit\), got 0.5; leave it out"),
        ({"k": "3"}, "k must be a whole number, such as 10, got '3'"),
        ({"collapse": 1}, "collapse must be True or False"),
    ],
)
def test_values_out_of_range_are_told_with_the_rule_and_the_next_step(
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(BocError, match=message):
        SearchOptions(**options)
    with pytest.raises(BocError, match=message):
        SearchOptions.of(SearchOptions(), **options)


FIELDS: dict[str, FieldType] = {"width": "integer", "tag": "keyword"}


def test_filters_are_texts_or_values() -> None:
    wide = Filter("width", ">", 10)
    tagged = Filter("tag", "=", "sea")
    for filters in ("width>10", wide, ["width>10"], (wide,)):
        assert parse_filters(filters, FIELDS) == (wide,)
    assert parse_filters(
        ["width > 10", tagged],
        FIELDS,
    ) == (wide, tagged)
    assert parse_filters((), FIELDS) == ()


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (
            {"width": 10},
            r"filters must be strings such as 'width>10', or boc.Filter values, got \{'width'",
        ),
        (
            [("width", ">", 10)],
            "a filter must be a string such as 'width>10', or a boc.Filter, got",
        ),
        ("width", "is not a filter; write FIELD=VALUE"),
        (Filter("height", ">", 10), "width"),
        ("width>wide", "64-bit integer"),
    ],
)
def test_other_filters_are_refused_with_the_right_form(filters: Any, message: str) -> None:
    with pytest.raises(BocError, match=message):
        parse_filters(filters, FIELDS)


def test_names_load_no_other_module_of_ours_and_no_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, boc.names; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] in {"boc", "numpy"}}
    assert loaded == {"boc", "boc.names"}
