"""Whatever bytes a user's file has, and whatever an address or a filter says: it is taken, or
refused as a BocError.

``make fuzz`` tries hundreds of times as many; ``FOUND`` are cases that were once answered in
another way.
"""

import json
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, strategies as st

from boc.cli import main
from boc.cli.settings import defaults
from boc.codecs import parse_code
from boc.errors import BocError
from boc.inputs.file_facts import STATE
from boc.inputs.metadata import Metadata, parse_filter
from boc.inputs.sources import open_source
from boc.manage.compare import Changes, compare_pictures
from boc.manifest import Manifest
from boc.search.queries import parse_text
from boc.types import Item
from tests.boc.inputs.test_hdf5_check import drain
from tests.fuzz.mutations import JSON, damages, replaced_leaf
from tests.oracles import new_manifest

HERE = [Item("a.jpg", "image", __file__, "a.jpg")]
TYPES: Any = {
    "year": "integer",
    "tag": "keyword",
    "taken": "date",
    "size": "float",
    "kept": "boolean",
    "title": "text",
}
TABLE = (
    b"id,year:integer,tag:keyword,taken:date,size:float,kept:boolean\n"
    b"a.jpg,1999,dog|cat,2020-02-29,1.5,true\n"
)
SETTINGS = (
    b'at = "file:photos"\n[index]\ncode = "dictionary"\nreplicas = 1\n[search]\nk = '
    b'20\nfilter = ["year>2000"]\n'
)
CAPTIONS = b'image,caption\na.jpg,"a dog, and a cat"\nb.jpg,two birds\n'


def check(data: bytes, read: Callable[[Path], object], name: str) -> None:
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / name
        path.write_bytes(data)
        with suppress(BocError):
            read(path)


@given(
    damages(CAPTIONS)
    | st.text().map(
        lambda text: f"image,caption\n{text}".encode(
            errors="replace",
        ),
    ),
)
@example(b"image,caption\n\x00.jpg,a\n")
@example(b"image,caption\na.jpg," + b"x" * 140_000)
def test_captions(data: bytes):
    check(data, open_source, "captions.csv")


@given(
    damages(TABLE)
    | st.text().map(
        lambda text: f"id,tag:keyword\n{text}".encode(
            errors="replace",
        ),
    ),
)
@example(b"id,year:integer\na,9223372036854775808\n")
def test_metadata(data: bytes):
    check(data, Metadata.read, "m.csv")


OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


@given(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(sorted(TYPES)) | st.text(max_size=5),
        OPERATORS,
        st.text(),
    )
    | st.text(),
)
def test_filters(text: str):
    with suppress(BocError):
        parse_filter(text, TYPES)


@given(
    st.text()
    | st.text(
        alphabet="scalrbit:/0123456789(),=-. \"'",
    ),
)
@example("scalar:" + "9" * 5000)
def test_codes_and_sentences(text: str):
    with suppress(BocError):
        parse_code(text)
    with suppress(BocError):
        parse_text(text)


@pytest.fixture(scope="module")
def features(library: Path) -> bytes:
    return (library / "photos.h5").read_bytes()


@pytest.mark.slow
@given(data=st.data())
def test_feature_files(features: bytes, data: st.DataObject):
    check(
        data.draw(damages(features)),
        drain,
        "f.h5",
    )


@given(st.data(), JSON)
def test_manifests(data: st.DataObject, value: object):
    sound = replace(
        new_manifest(5, 3),
        unreadable={"a.jpg": [1, 2, 3]},
    )
    raw = replaced_leaf(data, json.loads(sound.to_json()), value)
    with suppress(BocError):
        compare_pictures(
            HERE,
            {},
            Manifest.from_dict(raw, where="m").unreadable,
            Changes(),
            {},
        )


@given(
    st.dictionaries(
        st.sampled_from([*STATE, "x"]),
        JSON,
    ),
)
def test_stored_facts_of_files(facts: dict[str, Any]):
    stored = {
        name: Item(
            name,
            "image",
            f"/{name}",
            name,
            facts,
        )
        for name in ("a.jpg", "b.jpg")
    }
    changes = Changes()
    compare_pictures(HERE, stored, {}, changes, {})
    assert len(changes.reuses) + len(changes.new) == 1


@given(
    st.text()
    | st.text(
        alphabet="elastic+htps:/@?=&[]%0123456789.-",
    ),
)
@example("elastic+http://[")
@example("elastic+http://h:99999999")
@example("elastic+http://h?shards=\u0664")
def test_addresses(address: str):
    from indexing.server.address import parse

    for text in (
        address,
        f"http://{address}",
        f"http://h?{address}",
    ):
        with suppress(BocError):
            parse(text, {})


@given(damages(SETTINGS) | st.text().map(lambda text: f"at = {text}".encode(errors="replace")))
@example(b"at = " + b"[" * 5000)
@example(b"a." * 5000 + b"b = 1")
@example(b"index = 1\nsearch = [1]")
@example(b"[index]\ncode = 1979-05-27\nrecall = nan\n")
def test_settings(data: bytes):
    def search(path):
        with patch.dict(
            os.environ,
            {"BOC_CONFIG": str(path)},
        ):
            defaults(main)

    check(data, search, "boc.toml")
