"""What a load stores beside its rows, and what an index takes of its arrays, without a server."""

from typing import Any

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


class Memory:
    """A server with an index that an earlier load left, with one row, and the array ``stored``."""

    engine = "elasticsearch"
    label = "SERVER"

    def __init__(self, stored: Any = ARRAY) -> None:
        self.block = to_base64(stored.tobytes())
        self.states: list[Json] = []

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Json:
        if path == "/photos-boc-*":
            state = AliasState("loading", "sparse_vector", "binary")
            return {PHYSICAL: {"mappings": {"_meta": meta(MANIFEST, state)}}}
        if path == "/_search?allow_partial_search_results=false":
            return {"hits": {"hits": [{"sort": ["earlier.jpg"]}]}}
        if path == f"/{PHYSICAL}/_mapping":
            self.states.append(body["_meta"]["server"])
        return {}

    def search(self, path: str, body: Json, **params: Any) -> Json:
        fields = {"block": [self.block]}
        return {"hits": {"hits": [{"_source": {"array": "mean"}, "fields": fields}]}}

    def open_pit(self, index: str, keep_alive: str) -> str:
        return index

    def close_pit(self, pit: str) -> None: ...


@pytest.mark.parametrize("longest", [1.0, 1.5])
def test_state_of_a_load_tells_of_long_vectors(longest: float) -> None:
    server: Any = Memory()
    terms = sparse.csr_array(np.ones((2, 3), np.int32))
    rows = Rows([picture("0.jpg"), picture("1.jpg")], terms, np.diag([0.5, longest, 0])[:2])
    with ServerWriter(server, ADDRESS, ["sparse_vector"], "photos", MANIFEST, {}) as writer:
        writer.add(rows._replace(vectors=rows.vectors.astype(np.float32)))
    assert [state["unit"] for state in server.states] == [False] * (longest > 1)


@pytest.mark.parametrize("stored", [ARRAY + 1, ARRAY[:1]])
def test_changed_array_is_refused(stored: Any) -> None:
    state = AliasState("complete", "sparse_vector", "binary", blocks=1)
    generation = Generation(PHYSICAL, "photos", DIGEST, 1, True, MANIFEST, state)
    whole: Any = Memory()
    assert np.array_equal(Contents(whole, generation).arrays()["mean"], ARRAY)
    damaged: Any = Memory(stored)
    with pytest.raises(ManifestError, match=f"SERVER: {PHYSICAL}"):
        Contents(damaged, generation).arrays()
