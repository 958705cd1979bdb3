"""Add codes to the documents in another program's index, and remove these codes.

boc adds a single object named ``boc`` to each document. The object has the same layout as boc's own
documents, with an additional field ``boc.row``, which is a digest of the code and the item's data.
Documents with the correct digest need no update. Therefore, a killed attachment can be resumed, and
a newer feature file can be applied. Updates are scripts that set or remove only this object. The
server runs a script again if another program has written the document in the meantime.

The manifest and the arrays of the code are stored in a separate small index,
``boc-on-NAME-boc-DIGEST-N``. It gets the alias ``NAME-boc`` when the attachment is complete.
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
from boc.vectors import batches

from .address import Address
from .aliases import (
    APART,
    THEIRS,
    AliasState,
    Generation,
    attached_alias,
    attachment_behind,
    check_own,
    digest_of,
    drop,
    generations,
    indices_of,
    meta,
    publish,
    remember,
    theirs_of,
)
from .bulk import Bulk, Ledger
from .claim import Claim, check_first, check_unclaimed, in_use
from .creation import create_index
from .engine import ServerEngine
from .force_merge import refresh
from .requests import ALL, ATTACHED, OBJECT, WINDOW, code_body, documents, object_mapping
from .score_check import lack_of
from .searches import SCAN, WHOLE, scan
from .term_fields import STRATEGIES
from .transport import Json, RefusedError, Transport
from .writer import counts, put_arrays

KEYS = 500
"""Number of document keys to look up at a time."""
ROW = ATTACHED.own("row")
# The alias may be moved to another index whose mapping does not contain the field.
ORDER = {ATTACHED.own("id"): {"order": "asc", "unmapped_type": "keyword"}}
WRITTEN = {"query": {"exists": {"field": ROW}}, "sort": [ORDER], "_source": False}


KEEP_THEIRS = (
    f"def b = ctx._source.{OBJECT}; if (b != null && !(b instanceof Map && b.row instanceof String "
    "&& b.row.length() == 24 && b.containsKey('modality'))) {ctx.op = 'none'; return}"
)
"""Start of each script. It ignores objects written by other programs."""


def is_ours(there: Any) -> bool:
    """Return whether the object in a document was written by an attachment."""
    return isinstance(there, dict) and "modality" in there and len(str(there.get("row"))) == 24


def uncoded(transport: Transport, index: str) -> int:
    """Return the number of documents without a code."""
    query = {"bool": {"must_not": {"exists": {"field": ROW}}}}
    return int(transport.search(f"/{index}/_count", {"query": query})["count"])


def lost_codes(transport: Transport, generation: Generation, items: int) -> int:
    """Return the number of documents that have lost their code since it was attached, given that
    ``items`` documents have a code now. Removed documents are not counted."""
    missing = sum(generation.manifest.items.values()) - items
    if not generation.state.attached or generation.is_part or missing <= 0:
        return 0
    fresh = uncoded(transport, generation.target) - (generation.state.uncoded or 0)
    return max(0, min(missing, fresh))


class ServerAttachment:
    """Code attached, or to be attached, to the documents of the index ``name``. Raises BackendError
    if codes cannot be attached to this index.

    ``index`` is an existing attachment, possibly unfinished, whose code continues to be used. If
    there is no attachment, ``begin`` creates it. Then ``put`` adds items to documents and
    ``finish`` publishes the attachment. ``detach`` removes the attachment.
    """

    def __init__(self, transport: Transport, address: Address, name: str) -> None:
        indices = theirs_of(indices_of(transport, name))
        if any("data_stream" in entry for entry in indices.values()):
            raise BackendError(
                f"{name} is a data stream, whose documents cannot change; attach to a _reindex of "
                "it",
            )
        self._transport = transport
        self._address = address
        self.name = name
        self._indices = indices
        self._physical, entry = next(iter(indices.items()), ("", Json()))
        self._mapping: Json = entry.get("mappings", {})
        if "boc" in self._mapping.get("_meta", {}):
            raise BackendError(
                f"{name} is an index made by boc",
                f"add to it with <boc add {name} FEATURES>",
            )
        self._generation = next((g for g in self._attachments()[::-1] if g.state.blocks), None)
        self._bulk = Bulk(transport, self._physical, patience=address.patience, max_rows=1000)
        self._ledger = Ledger()
        self._claim = Claim(transport, name)

    def _attachments(self) -> list[Generation]:
        return [each for each in generations(self._transport, self.name) if each.state.attached]

    def _check_single(self) -> None:
        """Raise BackendError unless the name refers to exactly one index."""
        if not self._indices:
            raise BackendError(
                f"no index {self.name!r} at {self._transport.label}",
                "<boc attach> needs an existing index",
            )
        if len(self._indices) > 1:
            coded = self._generation.state.targets if self._generation is not None else ()
            told = f"; {', '.join(coded)} has the code" if coded else ""
            raise BackendError(
                f"{self.name!r} is a name of {len(self._indices)} indexes{told}",
                f"name one: {', '.join(sorted(self._indices)[:10])}",
            )

    def _settings(self, name: str, default: int) -> int:
        """Return a limit that is set for the index, or the server's default."""
        settings = self._indices[self._physical].get("settings", {}).get("index", {})
        return int(settings.get(name, default))

    @property
    def index(self) -> ServerEngine | None:
        return None if self._generation is None else ServerEngine(self._transport, self._generation)

    def change(self, manifest: Manifest) -> Json:
        """Return the change that ``begin`` will make to the mapping, or an empty mapping if no
        change is needed. Raises BackendError if codes cannot be added to the index because of the
        server or a field."""
        self._check_single()
        for limit in ("max_result_window", "max_rescore_window"):
            if self._settings(limit, WINDOW) < WINDOW:
                raise BackendError(
                    f"{self._physical} has index.{limit} {self._settings(limit, WINDOW)}, and "
                    f"searches rank up to {WINDOW} documents",
                    f"raise it (PUT /{self._physical}/_settings), then run the command again",
                )
        # If searches are not allowed, this search fails before anything is changed.
        self._transport.search(f"/{self.name}/_search", {"size": 0})
        generation = self._generation
        self._field = generation.state.field if generation else self._choose_field()
        # After a refresh, searches also find documents that have just been written.
        refresh(self._transport, self._physical)
        present = self._mapping.get("properties", {}).get(OBJECT)
        if taken := theirs_of(indices_of(self._transport, attached_alias(self.name))):
            raise BackendError(
                f"{attached_alias(self.name)}, the alias of a code of {self.name}, is a name of "
                f"{', '.join(taken)}",
                "give the documents another alias (POST /_aliases), and attach to this alias",
            )
        if generation is None:
            check_own(attachment_behind(self._transport, self._indices, self.name))
        mapping = object_mapping(STRATEGIES[self._field], manifest.identity.dim)
        if present is None:
            return {"properties": {OBJECT: mapping}}
        kinds = {each: entry.get("type") for each, entry in present.get("properties", {}).items()}
        if kinds != {each: entry["type"] for each, entry in mapping["properties"].items()}:
            raise BackendError(
                f"{self.name} has a field {OBJECT!r} of another kind; fields of an earlier "
                "attachment stay in the mapping until the index is rebuilt (_reindex); "
                "attach to the new index",
            )
        return {}

    def _choose_field(self) -> str:
        """Check that the server runs update scripts, and return the best field type that can store
        codes without index settings."""
        source = self._mapping.get("_source", {})
        if any(source.get(key, default) not in (default, ["*"]) for key, default in ALL.items()):
            raise BackendError(
                f"{self.name} stores only a part of its documents in _source, so an update would "
                "lose the rest; rebuild it with a complete _source",
            )
        # This test script does not write anything.
        script = {"source": "ctx.op = 'none'", "lang": "painless"}
        test = {"script": script, "scripted_upsert": True, "upsert": {}}
        path = f"/{self._physical}/_update/boc:test"
        self._transport.request("POST", path, test, routing="boc")
        lacking = []
        for field in ("sparse_vector", "rank_features"):
            lack = lack_of(self._transport, field)
            if lack is None:
                return field
            lacking.append(f"{field} ({lack})")
        raise BackendError(
            f"{self._transport.label} cannot store codes in an existing index: "
            f"{'; '.join(lacking)}",
        )

    def begin(self, manifest: Manifest, arrays: Mapping[str, NDArray[Any]], change: Json) -> None:
        """Store the code and change the mapping, unless this has already been done."""
        attached = self._attachments()
        check_unclaimed(self._transport, attached)
        generation = self._generation
        if generation is None:
            # Indexes left by a killed attachment do not contain a code yet.
            if any(each.state.blocks for each in attached):
                raise in_use(self._transport, self.name)
            drop(self._transport, attached)
            self._store(manifest, arrays)
        else:
            alias = generation.alias if generation.live else generation.loading_alias
            self._claim.take(generation.physical, alias)
        if change:
            try:
                self._transport.request("PUT", f"/{self._physical}/_mapping", change)
            except BackendError:
                if generation is None:
                    drop(self._transport, self._attachments())
                raise
        refresh(self._transport, self._physical)
        assert self._generation is not None
        state = self._generation.state
        # Store the target before its rows, so that ``detach`` can remove them.
        if self._physical not in state.targets:
            state = replace(state, targets=(*state.targets, self._physical))
            self._remember(replace(self._generation, state=state))

    def _store(self, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Create the index that stores the code."""
        digest = digest_of(manifest, ["attached", self._field])
        state = AliasState(
            "loading",
            self._field,
            "binary",
            attached=True,
            targets=(self._physical,),
            by=self._claim.key,
        )
        physical = f"{APART}{self.name}-boc-{digest}-1"
        fresh = Generation(physical, self.name, digest, 1, False, manifest, state)
        alias = fresh.loading_alias
        body = code_body(meta(manifest, state), alias, self._address.replicas)
        body["aliases"] = {alias: {"is_hidden": True}}
        body["settings"]["hidden"] = True
        try:
            create_index(self._transport, physical, body)
        except RefusedError as error:
            if error.kind != "resource_already_exists_exception":
                raise
            raise in_use(self._transport, self.name) from None
        self._claim.take(physical, alias)
        check_first(self._transport, fresh, self._attachments())
        patience = self._address.patience
        with Bulk(self._transport, alias, require_alias=True, patience=patience) as bulk:
            blocks = put_arrays(bulk, arrays)
        refresh(self._transport, physical)
        self._remember(replace(fresh, state=replace(state, blocks=blocks)))

    def find(
        self,
        items: Sequence[Item],
        key: str | None,
    ) -> dict[str, list[tuple[str, str | None, str]]]:
        """Return (_id, routing, ``boc.row`` or "") of the documents, keyed by item id. ``key`` is
        the field that contains the item's id, or None if the _id is the item's id."""
        places: dict[str, list[tuple[str, str | None, str]]] = {
            item.id: [] for item in items if item.id
        }
        if key is not None:
            self._check_key(key)
        path = f"/{self.name}/_search"
        for part in batches(list(places), min(KEYS, self._settings("max_terms_count", KEYS))):
            body = {
                "query": {"terms": {key or "_id": part}},
                "size": WINDOW,
                "_source": [OBJECT],
                "docvalue_fields": [*filter(None, (ROW, key))],
                "track_total_hits": True,
            }
            hits = self._transport.search(path, body, **WHOLE)["hits"]
            if hits["total"]["value"] > WINDOW:
                raise BackendError(
                    f"more than {WINDOW} documents have {KEYS} values of {key}; choose a rarer key",
                )
            for hit in hits["hits"]:
                fields = hit.get("fields", {})
                there = hit.get("_source", {}).get(OBJECT)
                if there is not None and not is_ours(there):
                    raise BackendError(
                        f"the document {hit['_id']!r} of {self.name} already has a field "
                        f"{OBJECT!r}, which the code would replace",
                        "take another name for that field, in a _reindex",
                    )
                place = (hit["_id"], hit.get("_routing"), fields.get(ROW, [""])[0])
                for value in [hit["_id"]] if key is None else fields.get(key, []):
                    if str(value) in places:
                        places[str(value)].append(place)
        return places

    def _check_key(self, key: str) -> None:
        """Raise BackendError unless documents can be found by the values of the field ``key``."""
        entry: Json = {}
        properties = self._mapping.get("properties", {})
        for part in key.split("."):
            entry = properties.get(part, {})
            properties = entry.get("properties", entry.get("fields", {}))
        kind = entry.get("type", "object" if properties else "no field")
        if THEIRS.get(kind) not in ("keyword", "integer") or entry.get("index") is False:
            raise BackendError(
                f"{key} of {self.name} is {kind}, so documents cannot be found by it",
                "name a keyword or number field that is indexed: <--id-field>",
            )
        if int(entry.get("ignore_above", 1 << 15)) < 32:
            raise BackendError(
                f"{key} of {self.name} leaves out values of more than {entry['ignore_above']} "
                "characters (ignore_above)",
                "name another field: <--id-field>",
            )

    def row(self, item: Item, vector: NDArray[np.float32]) -> str:
        """Return the ``boc.row`` for an item."""
        assert self._generation is not None
        parts = (self._generation.digest, item.modality, item.content, item.group)
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=12)
        digest.update(vector.astype(self._generation.manifest.vector_dtype).tobytes())
        return digest.hexdigest()

    def has(self, ids: Sequence[str]) -> None:
        """Record documents that already have their rows, so that ``finish`` includes them in its
        count."""
        self._ledger.add(ids)

    def put(
        self,
        places: Sequence[tuple[str, str | None]],
        rows: Sequence[str],
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
    ) -> None:
        """Add items, with their ``rows``, to the documents at ``places``, which are pairs (_id,
        routing)."""
        assert self._generation is not None
        state = self._generation.state
        strategy = STRATEGIES[state.field]
        digits = max(state.digits, strategy.digits(int(terms.data.max(initial=0))))
        state = replace(state, digits=digits)
        # Store the state before the rows that depend on it.
        if state != self._generation.state:
            self._remember(replace(self._generation, state=state))
        self._ledger.add([id for id, _ in places])
        ours = [replace(item, id=id) for (id, _), item in zip(places, items, strict=True)]
        stored = vectors.astype(self._generation.manifest.vector_dtype)
        contents = documents(strategy, self._generation.vectors, ours, terms, stored)
        source = f"{KEEP_THEIRS} ctx._source.{OBJECT} = params.{OBJECT}"
        for (id, routing), row, document in zip(places, rows, contents, strict=True):
            params = {OBJECT: {**document, "row": row}}
            script = {"source": source, "lang": "painless", "params": params}
            self._bulk.update(id, orjson.dumps({"script": script}), routing)

    def finish(self, source: str) -> tuple[int, list[str]]:
        """Publish the attachment. Return the number of documents with a code, including earlier
        attachments, and the first ten ids of documents that another program has removed or replaced
        in the meantime."""
        assert self._generation is not None
        self._bulk.flush()
        refresh(self._transport, self.name)
        written = scan(self._transport, self.name, WRITTEN)
        lost = self._ledger.missing(hit["sort"][0] for hit in written)
        items, postings, _ = counts(self._transport, self.name, ATTACHED)
        manifest = replace(self._generation.manifest, items=items, postings=postings, source=source)
        state = replace(
            self._generation.state,
            state="complete",
            uncoded=uncoded(self._transport, self.name),
            by="",
        )
        final = replace(self._generation, manifest=manifest, state=state)
        self._claim.withdraw()
        self._remember(final)
        publish(self._transport, final, [])
        return sum(items.values()), lost

    def detach(self) -> Iterator[int]:
        """Remove the codes from this index and from earlier targets of an alias with this name.
        Only the fields in the mapping remain, because servers cannot remove them. Yields the number
        of documents processed so far.

        Raises BackendError if other programs write documents with codes faster than the codes can
        be removed.
        """
        nothing = BackendError(
            f"nothing is attached to {self.name} at {self._transport.label}",
            "<boc info> lists what is",
        )
        attached = self._attachments()
        check_unclaimed(self._transport, attached)
        if not attached:
            self._check_single()
            if OBJECT not in self._mapping.get("properties", {}):
                raise nothing
        indices = dict.fromkeys(self._indices)
        for each in attached:
            indices |= dict.fromkeys(each.state.targets)
        count = 0
        for index in indices:
            for _ in self._remove_codes(index):
                count += 1
                yield count
        if not attached and not count:
            raise nothing
        drop(self._transport, attached)

    def _remove_codes(self, index: str) -> Iterator[None]:
        source = f"{KEEP_THEIRS} ctx._source.remove('{OBJECT}')"
        script = orjson.dumps({"script": {"source": source, "lang": "painless"}})
        patience = self._address.patience
        entry = indices_of(self._transport, index).get(index, {})
        if OBJECT not in entry.get("mappings", {}).get("properties", {}):
            return
        window = int(entry.get("settings", {}).get("index", {}).get("max_result_window", SCAN))
        # Other programs may write documents in the meantime.
        for _ in range(5):
            refresh(self._transport, index)
            left = False
            with Bulk(self._transport, index, patience=patience, max_rows=1000) as bulk:
                for hit in scan(self._transport, index, WRITTEN, size=min(SCAN, window)):
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

    def __exit__(self, *raised: object) -> None:
        try:
            self._bulk.__exit__(*raised)
        finally:
            self._claim.release()
            self._ledger.close()

    def _remember(self, generation: Generation) -> None:
        self._generation = generation
        remember(self._transport, generation)
