"""What an index on a server says of itself in its mapping, as this version and others wrote it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from boc.errors import ManifestError
from indexing.server.aliases import AliasState, generations, meta
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


def test_state_ignores_unknown_entries() -> None:
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"field": None}, "written by another version of boc; make the index again"),
        (
            {"field": "binary_text"},
            "codes stored as 'binary_text', which this boc does not know; make the index again",
        ),
        (
            {"vectors": "unknown"},
            "vectors stored as 'unknown', which this boc does not know; make the index again",
        ),
    ],
)
def test_unknown_state_is_refused(
    changes: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(ManifestError, match=words):
        generations(written(**changes), "photos")
