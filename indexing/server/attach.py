"""Codes added to the documents of an index that another program made, and taken away again.

All of ours is one object of a document, ``boc``, laid out as in boc's own documents, with one field
more: ``boc.row``, a digest of the code and of what the item was made of. A document that has it
needs no update, which is how an attachment continues after a kill, and how it follows a newer
feature file. Updates are scripts that set or remove this object alone; the server runs one again if
another program wrote the document meanwhile.

The manifest and the arrays of the code are in a small index beside theirs, ``NAME-boc-DIGEST-N``,
with the alias ``NAME-boc`` once the attachment is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import Manifest
from boc.types import Item, TermMatrix

from .address import Address
from .aliases import (
    AliasState,
    Generation,
    digest_of,
    drop,
    generations,
    indices_of,
    meta,
    publish,
    remember,
)
from .bulk import Bulk, Ledger
from .engine import ServerEngine
from .force_merge import refresh
from .requests import ALL, ATTACHED, OBJECT, WINDOW, code_body, documents, object_mapping
from .score_check import EXACT, clear_of_templates, tried_field
from .searches import scan
from .term_fields import STRATEGIES
from .transport import Json, Transport
from .vector_fields import is_unit
from .writer import counts, put_arrays

FIELDS = ("sparse_vector", "rank_features")
"""How codes can be stored without settings of the index, best first."""
KEYS = 500  # keys of documents looked up at a time
PASSES = 5  # attempts to detach from documents that others write meanwhile
SET = f"ctx._source.{OBJECT} = params.{OBJECT}"
REMOVE = f"ctx._source.remove('{OBJECT}')"
ROW = ATTACHED.own("row")
ORDER = {
    ATTACHED.own("id"): {"order": "asc", "unmapped_type": "keyword"},
}  # an alias may move to another index
WRITTEN = {"query": {"exists": {"field": ROW}}, "sort": [ORDER], "_source": False}


class ServerAttachment:
    """A code that is, or will be, in the documents of the index ``name``. BackendError if it is no
    such index.

    ``index`` is the attachment that is there already, perhaps unfinished, whose code continues.
    Else ``begin`` starts one. Then ``put`` adds items to documents, ``finish`` publishes, and
    ``detach`` takes all away.
    """

    def __init__(self, transport: Transport, address: Address, name: str) -> None:
        self._transport = transport
        self._address = address
        self.name = name
        self._physical, self._mapping = _theirs(transport, name)
        there = [each for each in generations(transport, name) if each.state.attached]
        self._generation: Generation | None = there[-1] if there else None
        self._bulk = Bulk(transport, name, patience=address.patience, max_rows=1000)
        self._ledger = Ledger()

    @property
    def index(self) -> ServerEngine | None:
        return None if self._generation is None else ServerEngine(self._transport, self._generation)

    def change(self, manifest: Manifest) -> Json:
        """Return the change of the mapping that ``begin`` makes; empty if it is there. BackendError
        if the server can add no codes, or a field is in the way."""
        if self._generation is not None:
            field = self._generation.state.field
        else:
            source = self._mapping.get("_source", {})
            if any(
                source.get(key, default) not in (default, ["*"]) for key, default in ALL.items()
            ):
                raise BackendError(
                    f"{self.name} keeps a part of its documents in _source, so that an update "
                    "would lose the rest; "
                    "make it again with a whole _source",
                )
            test = {
                "script": {"source": "ctx.op = 'none'", "lang": "painless"},
                "scripted_upsert": True,
                "upsert": {},
            }
            self._transport.request(
                "POST",
                f"/{self.name}/_update/boc:test",
                test,
                routing="boc",
            )  # writes nothing
            results = {field: tried_field(self._transport, field) for field in FIELDS}
            field = next((each for each, result in results.items() if result == EXACT), "")
            if not field:
                reasons = "; ".join(f"{each} {result}" for each, result in results.items())
                raise BackendError(
                    f"{self._transport.label} can add no codes to an index: {reasons}",
                )
        self._field = field
        strategy = STRATEGIES[field]
        there = self._mapping.get("properties", {}).get(OBJECT)
        mapping = object_mapping(strategy, manifest.identity.dim)
        if there is None:
            return {"properties": {OBJECT: mapping}}
        kinds = {each: entry.get("type") for each, entry in there.get("properties", {}).items()}
        if kinds != {each: entry["type"] for each, entry in mapping["properties"].items()}:
            raise BackendError(
                f"{self.name} has a field {OBJECT!r} of another kind; what an earlier attachment "
                "left in the mapping "
                "stays until the index is made again (_reindex); attach to the new one",
            )
        return {}

    def begin(self, manifest: Manifest, arrays: Mapping[str, NDArray[Any]], change: Json) -> None:
        """Change the mapping, and store the code, unless it is there."""
        if change:
            self._transport.request("PUT", f"/{self.name}/_mapping", change)
        refresh(self._transport, self.name)
        if self._generation is not None:
            state = self._generation.state
            if (
                self._physical not in state.targets
            ):  # before the rows that are to be removed from there
                state = replace(state, targets=(*state.targets, self._physical))
                self._remember(replace(self._generation, state=state))
            return
        digest = digest_of(manifest, ["attached", self._field])
        state = AliasState(
            "loading",
            self._field,
            "binary",
            attached=True,
            targets=(self._physical,),
        )
        fresh = Generation(
            f"{self.name}-boc-{digest}-1",
            self.name,
            digest,
            1,
            False,
            manifest,
            state,
        )
        body = code_body(meta(manifest, state), fresh.loading_alias, self._address.replicas)
        self._transport.request("PUT", f"/{fresh.physical}", body)
        clear_of_templates(self._transport, fresh.physical, body["mappings"])
        with Bulk(
            self._transport,
            fresh.loading_alias,
            require_alias=True,
            patience=self._address.patience,
        ) as bulk:
            blocks = put_arrays(bulk, arrays)
        refresh(self._transport, fresh.physical)
        self._remember(replace(fresh, state=replace(state, blocks=blocks)))

    def find(
        self,
        items: Sequence[Item],
        key: str | None,
    ) -> dict[str, list[tuple[str, str | None, str]]]:
        """Return the documents of items by their ids: (_id, routing, ``boc.row`` or ""). ``key``
        names the field with the id of an item; None: it is the _id."""
        places: dict[str, list[tuple[str, str | None, str]]] = {
            item.id: [] for item in items if item.id
        }
        ids = list(places)
        for start in range(0, len(ids), KEYS):
            part = ids[start : start + KEYS]
            body: Json = {
                "query": {"ids": {"values": part}} if key is None else {"terms": {key: part}},
            }
            body |= {"size": WINDOW, "_source": False, "track_total_hits": True}
            body["docvalue_fields"] = [ROW] if key is None else [ROW, key]
            params = {"allow_partial_search_results": "false"}
            hits = self._transport.search(f"/{self.name}/_search", body, **params)["hits"]
            if hits["total"]["value"] > WINDOW:
                raise BackendError(
                    f"more than {WINDOW} documents have {KEYS} values of {key}; choose a rarer key",
                )
            for hit in hits["hits"]:
                fields = hit.get("fields", {})
                place = (hit["_id"], hit.get("_routing"), fields.get(ROW, [""])[0])
                for value in [hit["_id"]] if key is None else fields.get(key, []):
                    if str(value) in places:
                        places[str(value)].append(place)
        return places

    def row(self, item: Item, vector: NDArray[np.float32]) -> str:
        """Read ``boc.row`` of an item."""
        assert self._generation is not None
        parts = (self._generation.digest, item.modality, item.content, item.group)
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=12)
        digest.update(vector.astype(self._generation.manifest.vector_dtype).tobytes())
        return digest.hexdigest()

    def has(self, ids: Sequence[str]) -> None:
        """Record documents that have their row already, so that ``finish`` counts them too."""
        self._ledger.add(ids)

    def put(
        self,
        places: Sequence[tuple[str, str | None]],
        rows: Sequence[str],
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
    ) -> None:
        """Add items to the documents at ``places``, (_id, routing), with their ``rows``."""
        assert self._generation is not None
        state = self._generation.state
        strategy = STRATEGIES[state.field]
        digits = max(state.digits, strategy.digits(int(terms.data.max(initial=0))))
        next_state = replace(state, digits=digits, unit=state.unit and is_unit(vectors))
        if next_state != state:  # before the rows that it is about
            self._remember(replace(self._generation, state=next_state))
        self._ledger.add([id for id, _ in places])
        ours = [replace(item, id=id) for (id, _), item in zip(places, items, strict=True)]
        stored = vectors.astype(self._generation.manifest.vector_dtype)
        contents = documents(strategy, self._generation.vectors, ours, terms, stored)
        for (id, routing), row, document in zip(places, rows, contents, strict=True):
            script = {
                "source": SET,
                "lang": "painless",
                "params": {OBJECT: {**document, "row": row}},
            }
            self._bulk.update(id, orjson.dumps({"script": script}), routing)

    def finish(self, source: str) -> tuple[int, list[str], list[str]]:
        """Publish. The number of documents with a code, of this attachment and earlier ones; the
        ids of those that were removed meanwhile, and the first ten of those that another program
        replaced, so that they have none."""
        assert self._generation is not None
        self._bulk.flush()
        refresh(self._transport, self.name)
        lost = self._ledger.missing(
            hit["sort"][0] for hit in scan(self._transport, self.name, WRITTEN)
        )
        items, postings, _ = counts(self._transport, self.name, ATTACHED)
        gone = self._bulk.missing
        manifest = replace(self._generation.manifest, items=items, postings=postings, source=source)
        final = replace(
            self._generation,
            manifest=manifest,
            state=replace(self._generation.state, state="complete"),
        )
        self._remember(final)
        if not final.live:
            publish(self._transport, final, [])
        return sum(items.values()), gone, [id for id in lost if id not in set(gone)]

    def detach(self) -> Iterator[int]:
        """Remove all but the fields of the mapping, which a server cannot remove, from this index
        and from those that an alias of this name stood for earlier. Yields numbers of documents.

        BackendError if other programs write documents with a code faster than it is removed.
        """
        if self._generation is None and OBJECT not in self._mapping.get("properties", {}):
            raise self._nothing()
        earlier = () if self._generation is None else self._generation.state.targets
        there = [
            each
            for each in earlier
            if each != self._physical and each in indices_of(self._transport, each)
        ]
        count = 0
        for index in (self.name, *there):
            for _ in self._remove_codes(index):
                count += 1
                yield count
        if self._generation is None and not count:
            raise self._nothing()
        drop(
            self._transport,
            [g for g in generations(self._transport, self.name) if g.state.attached],
        )

    def _nothing(self) -> BackendError:
        return BackendError(
            f"nothing is attached to {self.name} at {self._transport.label}",
            "<boc info> lists what is",
        )

    def _remove_codes(self, index: str) -> Iterator[None]:
        script = orjson.dumps({"script": {"source": REMOVE, "lang": "painless"}})
        for _ in range(PASSES):
            refresh(self._transport, index)
            left = False
            with Bulk(
                self._transport,
                index,
                patience=self._address.patience,
                max_rows=1000,
            ) as bulk:
                for hit in scan(self._transport, index, WRITTEN):
                    bulk.update(hit["_id"], script, hit.get("_routing"))
                    left = True
                    yield
            if not left:
                return
        raise BackendError(
            f"other programs keep writing the field {OBJECT!r} into {index}; stop them, and "
            "repeat this",
        )

    def __enter__(self) -> ServerAttachment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        try:
            self._bulk.__exit__(kind, error, trace)
        finally:
            self._ledger.close()

    def _remember(self, generation: Generation) -> None:
        self._generation = generation
        remember(self._transport, generation)


def _theirs(transport: Transport, name: str) -> tuple[str, Json]:
    """Return the one index ``name`` of another program, and its mapping."""
    there = indices_of(transport, name)
    if not there:
        raise BackendError(
            f"no index {name!r} at {transport.label}",
            "<boc attach> adds to one that is there",
        )
    if any("data_stream" in entry for entry in there.values()):
        raise BackendError(
            f"{name} is a data stream, whose documents stay as they are; attach to a _reindex "
            "of it",
        )
    if len(there) > 1:
        raise BackendError(
            f"{name!r} stands for {len(there)} indexes; name one: {', '.join(sorted(there)[:10])}",
        )
    ((physical, entry),) = there.items()
    mapping: Json = entry.get("mappings", {})
    if "boc" in mapping.get("_meta", {}):
        raise BackendError(
            f"{name} is an index of boc",
            f"add to it with <boc add {name} FEATURES>",
        )
    return physical, mapping
