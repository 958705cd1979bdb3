"""Facts of files: values of the declared types, the same for the same bytes and times, other ones
for others."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from boc.inputs.file_facts import (
    FIELDS,
    STATE,
    content_hash,
    file_facts,
    is_unchanged,
    settled_state,
    state_of,
)
from boc.inputs.metadata import parse_filter, well_typed


def look(path: Path) -> dict[str, Any]:
    return file_facts(
        settled_state(str(path)),
        content_hash(path),
    )


def test_file_facts(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"abc")
    os.utime(
        tmp_path / "a.jpg",
        ns=(1, 1_600_000_000_123_456_789),
    )
    facts = look(tmp_path / "a.jpg")
    assert list(facts) == list(FIELDS)
    assert facts == {
        "size": 3,
        "modified": "2020-09-13T12:26:40",
        "modified_ns": 1_600_000_000_123_456_789,
        "changed_ns": (tmp_path / "a.jpg").stat().st_ctime_ns,
        "inode": (tmp_path / "a.jpg").stat().st_ino,
        "device_number": (tmp_path / "a.jpg").stat().st_dev,
        "content_hash": "ba7816bf8f01cfea414140de5dae2223",  # FIPS 180-2, appendix B.1
    }
    for name, value in facts.items():
        assert parse_filter(f"{name}={value}", FIELDS).value == value
    assert set(STATE) <= set(FIELDS)


def test_a_state_sees_every_change(tmp_path: Path):
    path = tmp_path / "a"
    for number in range(20):  # as quickly as can be, of equal size and modification time
        path.write_text(f"{number:02d}")
        os.utime(path, (5, 5))
        facts = look(path)
        assert is_unchanged(state_of(str(path)), facts)
        path.write_text("xx")
        os.utime(path, (5, 5))
        assert not is_unchanged(state_of(str(path)), facts)


def test_a_settled_state_is_older_than_a_tick_of_any_clock(tmp_path: Path):
    (tmp_path / "a").touch()
    changed = settled_state(tmp_path / "a")[2]
    assert time.time_ns() - changed >= 2 * 10**9 / 100  # two ticks at the coarsest, of 100 Hz


@pytest.mark.parametrize(
    "seconds",
    [-1, 2**33, 2**34, 10**12],
)
def test_odd_times_are_facts_too(tmp_path: Path, seconds: int):
    (tmp_path / "a").touch()
    state = (0, min(seconds * 10**9, 2**63 - 1), 1, 1, 1)
    with suppress(OSError):
        os.utime(
            tmp_path / "a",
            (seconds, seconds),
        )
        state = state_of(str(tmp_path / "a"))
    facts = file_facts(state, "ab")
    assert well_typed(facts, FIELDS)
    assert (
        parse_filter(
            f"modified={facts['modified']}",
            FIELDS,
        ).value
        == facts["modified"]
    )


def test_a_file_that_is_not_there_has_no_state(tmp_path: Path):
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    for name in (
        "gone.jpg",
        "link.jpg",
        "loop.jpg",
        "x" * 5000,
        "\0",
    ):
        assert state_of(f"{tmp_path}/{name}") == ()
