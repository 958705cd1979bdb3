"""What a load stores beside its rows, and what an index takes of its arrays, without a server."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse

from boc.errors import ManifestError
from boc.types import Rows
from indexing.server.address import Address
from indexing.server.aliases import AliasState, Generation, digest_of, meta
from indexing.server.binary import to_base64
from indexing.server.contents import Contents
from indexing.server.transport import Json
from indexing.server.writer import ServerWriter
from tests.oracles import new_manifest, picture

ADDRESS = Address(("http://memory:9200",))
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
MANIFEST = new_manifest(3, 3, {"mean": ARRAY})
DIGEST = digest_of(MANIFEST, ADDRESS.layout)
PHYSICAL = f"photos-boc-{DIGEST}-1"


def memory(stored: Any = ARRAY) -> Any:
    """A server with an index that an earlier load left, with one row, and the array ``stored``."""
    state = AliasState("loading", "sparse_vector", "binary")
    answers = {
        "/photos-boc-*": {PHYSICAL: {"mappings": {"_meta": meta(MANIFEST, state)}}},
        "/_search?allow_partial_search_results=false": found({"sort": ["earlier.jpg"]}),
    }
    fields = {"block": [to_base64(stored.tobytes())]}
    server = Mock(engine="elasticsearch", label="SERVER")
    server.request.side_effect = lambda method, path, *_, **__: answers.get(path, {})
    server.search.return_value = found({"_source": {"array": "mean"}, "fields": fields})
    return server


def found(hit: Json) -> Json:
    return {"hits": {"hits": [hit]}}


@pytest.mark.parametrize("longest", [1.0, 1.5])
def test_state_of_a_load_tells_of_long_vectors(longest: float) -> None:
    server = memory()
    terms = sparse.csr_array(np.ones((2, 3), np.int32))
    rows = Rows([picture("0.jpg"), picture("1.jpg")], terms, np.diag([0.5, longest, 0])[:2])
    with ServerWriter(server, ADDRESS, ["sparse_vector"], "photos", MANIFEST, {}) as writer:
        writer.add(rows._replace(vectors=rows.vectors.astype(np.float32)))
    calls = [call.args for call in server.request.call_args_list]
    states = [call[2]["_meta"]["server"] for call in calls if call[1].endswith("/_mapping")]
    assert [state["unit"] for state in states] == [False] * (longest > 1)


@pytest.mark.parametrize("stored", [ARRAY + 1, ARRAY[:1]])
def test_changed_array_is_refused(stored: Any) -> None:
    state = AliasState("complete", "sparse_vector", "binary", blocks=1)
    generation = Generation(PHYSICAL, "photos", DIGEST, 1, True, MANIFEST, state)
    assert np.array_equal(Contents(memory(), generation).arrays()["mean"], ARRAY)
    with pytest.raises(ManifestError, match=f"SERVER: {PHYSICAL}"):
        Contents(memory(stored), generation).arrays()
