"""The manifest is read strictly, and notices arrays that are not its own."""

import json
from dataclasses import asdict, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from boc.errors import ManifestError
from boc.manifest import FORMAT, OPTIONAL, Manifest, describe
from boc.types import FieldType, Identity
from tests.oracles import TEXT, new_manifest

FIELDS = st.dictionaries(
    TEXT,
    st.sampled_from(get_args(FieldType)),
    max_size=3,
)
ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(
        2,
        3,
    ),
    "b": np.array(["image", "text"]),
}


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([{"name": "Dictionary", "params": {"query_z": 64}}], 64),
        ([{"name": "Dictionary", "params": {"query_z": 0}}], None),
        ([{"name": "Dictionary", "params": {"query_z": [1]}}], None),
        ([{"name": "Dictionary", "params": {}}], None),
        ([{"name": "SoftAssignment", "params": {"query_z": 64}}], None),
        ([], None),
    ],
)
def test_terms_of_a_query_are_counted_under_a_dictionary(
    steps: list[Any],
    count: int | None,
) -> None:
    manifest = new_manifest(3, 2)
    assert replace(manifest, codec={"steps": steps, "n_terms": 3}).n_query_terms == count


@given(
    spec=TEXT,
    dim=st.integers(1, 2**24 - 1),
    rm=st.floats(1, 1e6),
    source=TEXT,
    fields=FIELDS,
)
def test_json_round_trips(
    spec: str,
    dim: int,
    rm: float,
    source: str,
    fields: dict[str, FieldType],
) -> None:
    identity = Identity(spec, "ab" * 32, dim)
    written = Manifest.new(
        identity,
        {"steps": [], "n_terms": 3},
        ARRAYS,
        rm=rm,
        dtype="float16",
        source=source,
        fields=fields,
    )
    read = Manifest.from_dict(json.loads(written.to_json()), where="here")
    assert read == written
    assert read.identity == identity
    assert (read.items, read.postings, read.format) == ({}, 0, FORMAT)
    assert (
        read.rerank,
        read.concept_dtype,
        read.fields,
    ) == ("dot", None, fields)


@pytest.mark.parametrize("raw", [[], None, 3, {}, {"format": "1"}, {"format": None}])
def test_other_values_are_refused(raw: Any) -> None:
    with pytest.raises(ManifestError, match="here: not a boc manifest"):
        Manifest.from_dict(raw, where="here")


def test_newer_format_is_refused() -> None:
    raw = asdict(new_manifest(3, 2)) | {"format": FORMAT + 1, "invention": True}
    with pytest.raises(
        ManifestError,
        match=f"index format {FORMAT + 1}, but this version of boc reads format {FORMAT}; upgrade",
    ):
        Manifest.from_dict(raw, where="here")


@pytest.mark.parametrize(
    "entry",
    sorted(set(asdict(new_manifest(3, 2))) - {"format", *OPTIONAL}),
)
def test_a_missing_entry_is_named(entry: str) -> None:
    raw = asdict(new_manifest(3, 2))
    del raw[entry]
    with pytest.raises(ManifestError, match=rf"missing or unknown manifest entries \({entry}\)"):
        Manifest.from_dict(raw, where="here")


def test_unknown_entries_are_named() -> None:
    raw = asdict(new_manifest(3, 2)) | {"zeal": 1, "ardour": 2}
    with pytest.raises(
        ManifestError,
        match=r"missing or unknown manifest entries \(ardour, zeal\)",
    ):
        Manifest.from_dict(raw, where="here")


@pytest.mark.parametrize("number", range(FORMAT))
def test_an_older_format_is_refused(number: int) -> None:
    message = (
        f"here: index format {number}, but this version of boc reads format {FORMAT}; "
        "rebuild the index "
        r"with boc\.build_index\(\.\.\., replace=True\)"
    )
    with pytest.raises(ManifestError, match=message):
        Manifest.from_dict(asdict(new_manifest(3, 2)) | {"format": number}, where="here")


def test_optional_entries() -> None:
    plain = new_manifest(3, 2)
    assert not OPTIONAL.keys() & plain.entries().keys()
    told = replace(
        plain,
        unreadable={"a.jpg": [3, 10**18, 10**18]},
        table_facts=["taken"],
        recall={"target": 0.9},
        usual={"image": 0.1, "items": 9},
        exclude=["raw"],
    )
    assert told.entries().keys() - plain.entries().keys() == OPTIONAL.keys()
    for manifest in (plain, told):
        assert Manifest.from_dict(json.loads(manifest.to_json()), where="here") == manifest


@pytest.mark.parametrize(
    "odd",
    [
        [],
        3,
        {"a.jpg": 3},
        {"a.jpg": ["3"]},
        {"a.jpg": [True]},
        {"a.jpg": {}},
    ],
)
def test_invalid_unreadable_is_refused(odd: Any) -> None:
    raw = asdict(new_manifest(3, 2)) | {"unreadable": odd}
    with pytest.raises(ManifestError, match="here: manifest entry unreadable is "):
        Manifest.from_dict(raw, where="here")


@pytest.mark.parametrize(
    "odd",
    [
        float("inf"),
        float("nan"),
        10**400,
        "3",
        None,
        [1],
    ],
)
@pytest.mark.parametrize(
    "entry",
    ["rm", "postings", "items", "recall"],
)
def test_numbers_beyond_all_bounds_are_refused(entry: str, odd: Any) -> None:
    sound = asdict(
        replace(
            new_manifest(3, 2),
            recall={"target": 0.9, "measured": 0.9},
        ),
    )
    Manifest.from_dict(sound, where="here")
    values = {
        "items": {"image": odd, "text": 0},
        "recall": {"target": 0.9, "measured": odd},
    }
    with pytest.raises(ManifestError, match=f"manifest entry {entry} is "):
        Manifest.from_dict(sound | {entry: values.get(entry, odd)}, where="here")


DTYPES = st.sampled_from(["<f4", "<f8", "<i8", "<i4", "|u1", "<U5"])


@given(
    array=DTYPES.flatmap(
        lambda d: arrays(
            d,
            array_shapes(max_dims=3, max_side=3),
        ),
    ),
    data=st.data(),
)
def test_any_changed_bit_is_noticed(array: NDArray[Any], data: st.DataObject) -> None:
    if array.dtype.kind == "U":
        array = np.full(array.shape, "image")
    manifest = new_manifest(3, 2, {"x": array})
    manifest.check_arrays(
        {"x": array.copy()},
        where="here",
    )
    flipped = bytearray(array.tobytes())
    place = data.draw(st.integers(0, 8 * len(flipped) - 1))
    flipped[place // 8] ^= 1 << place % 8
    others = [
        np.frombuffer(bytes(flipped), array.dtype).reshape(array.shape),
        array.reshape(1, *array.shape),
        np.repeat(array, 2, axis=0),
    ]
    for other in others:
        with pytest.raises(
            ManifestError,
            match="here: codec array x is missing or changed; rebuild the index",
        ):
            manifest.check_arrays({"x": other}, where="here")


def test_missing_or_retyped_array_is_refused() -> None:
    manifest = new_manifest(3, 2, ARRAYS)
    manifest.check_arrays(ARRAYS, where="here")
    with pytest.raises(ManifestError, match="codec array b is missing"):
        manifest.check_arrays(
            {"a": ARRAYS["a"]},
            where="here",
        )
    same_bytes = {**ARRAYS, "a": ARRAYS["a"].view(np.int32)}
    with pytest.raises(ManifestError, match="codec array a is missing or changed"):
        manifest.check_arrays(same_bytes, where="here")


def test_describe_ignores_memory_order() -> None:
    assert describe(np.asfortranarray(ARRAYS["a"])) == describe(ARRAYS["a"])
    assert describe(ARRAYS["a"].T) != describe(ARRAYS["a"])


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": Identity("other", "ab", 2)},
        {"codec": {"steps": [], "n_terms": 4}},
        {"arrays": {}},
        {"vector_dtype": "float16"},
        {"source": "other"},
        {"rm": 11.0},
        {"rerank": "mrsw"},
        {"concept_dtype": "int8"},
        {"fields": {"year": "integer"}},
    ],
)
def test_same_contents(change: dict[str, Any]) -> None:
    one = new_manifest(3, 2, ARRAYS)
    later = replace(
        one,
        created="2031-01-01T00:00:00+00:00",
        maker="boc 9",
        items={"image": 3},
        postings=7,
    )
    assert one.same_contents(later)
    assert later.same_contents(one)
    assert not one.same_contents(replace(later, **change))
