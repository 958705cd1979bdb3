"""Facts of files: values of the declared types, the same for the same bytes and times, other ones for others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from boc.inputs.file_facts import FIELDS, STATE, file_facts
from boc.inputs.metadata import parse_filter


def test_file_facts(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"abc")
    os.utime(tmp_path / "a.jpg", ns=(1, 1_600_000_000_123_456_789))
    facts = file_facts(tmp_path / "a.jpg")
    assert list(facts) == list(FIELDS)
    assert facts == {
        "size": 3,
        "modified": "2020-09-13T12:26:40",
        "modified_ns": 1_600_000_000_123_456_789,
        "content_hash": "ba7816bf8f01cfea414140de5dae2223",  # FIPS 180-2, appendix B.1
    }
    for name, value in facts.items():
        assert parse_filter(f"{name}={value}", FIELDS).value == value
    assert set(STATE) <= set(FIELDS)


def test_facts_of_equal_files(tmp_path: Path) -> None:
    for name, content in (("a", b"abc"), ("b", b"abc"), ("c", b"abd")):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (5, 5))
    one, same, other = (file_facts(tmp_path / name) for name in "abc")
    assert one == same
    assert {name for name in FIELDS if one[name] != other[name]} == {"content_hash"}
    os.utime(tmp_path / "b", ns=(0, 5 * 10**9 + 1))
    assert {name for name in FIELDS if one[name] != file_facts(tmp_path / "b")[name]} == {"modified_ns"}


def test_a_known_hash_saves_reading(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_facts(tmp_path / "a", "known")["content_hash"] == "known"


@pytest.mark.parametrize("seconds", [-1, 2**33])
def test_odd_times_are_facts_too(tmp_path: Path, seconds: int) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (seconds, seconds))
    if (tmp_path / "a").stat().st_mtime != seconds:
        pytest.skip("the file system keeps no such times")
    facts = file_facts(tmp_path / "a")
    assert facts["modified_ns"] == seconds * 10**9
    assert parse_filter(f"modified={facts['modified']}", FIELDS).value == facts["modified"]


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert file_facts(tmp_path / "gone.jpg") == {}
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    assert file_facts(tmp_path / "link.jpg") == {}
