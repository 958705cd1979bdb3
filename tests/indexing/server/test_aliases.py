"""What an index on a server says of itself in its mapping, as this version and others wrote it."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from boc.atomic_files import file_lock
from boc.errors import ManifestError
from indexing.server.aliases import AliasState, generations, meta
from indexing.server.claim import Claim
from indexing.server.transport import Transport
from tests.oracles import new_manifest

STATE = AliasState(
    "complete",
    "text",
    "binary",
    digits=3,
    blocks=2,
)


def written(**changes: Any) -> Transport:
    """A server with an index whose state has these entries, or lacks those that are None."""
    entry = meta(new_manifest(3, 2), STATE)
    entry["server"] = {
        name: value for name, value in {**entry["server"], **changes}.items() if value is not None
    }
    answer = {
        "photos-boc-0123456789ab-7": {"mappings": {"_meta": entry}, "aliases": {"photos": {}}},
    }
    return cast(
        "Transport",
        SimpleNamespace(request=lambda *_, **__: answer),
    )


def test_state_ignores_unknown_entries():
    for server in (
        written(),
        written(
            packed=True,
            searched=False,
            template=True,
        ),
    ):
        (found,) = generations(server, "photos")
        assert found.state == STATE
        assert (found.number, found.digest, found.live) == (7, "0123456789ab", True)


def test_lock_files_of_dead_processes_are_removed(
    tmp_path: Path,
    monkeypatch,
) -> None:
    """After a day, in which the same load may go on; those of living processes stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, held, recent = (tmp_path / f"boc-load-{name}.lock" for name in ("a", "b", "c"))
    for path in (dead, held, recent):
        path.touch()
    for path in (dead, held):
        os.utime(path, (1e9, 1e9))
    with file_lock(held, "held"):
        Claim(written(), "photos").release()
        assert sorted(tmp_path.iterdir()) == [held, recent]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"field": None}, "written by another version of boc; rebuild the index"),
        (
            {"field": "binary_text"},
            "codes stored as 'binary_text', which this boc does not know; rebuild the index",
        ),
        (
            {"vectors": "unknown"},
            "vectors stored as 'unknown', which this boc does not know; rebuild the index",
        ),
    ],
)
def test_unknown_state_is_refused(
    changes: dict[str, Any],
    words: str,
):
    with pytest.raises(ManifestError, match=words):
        generations(written(**changes), "photos")
