"""Writers of an index on a server: one loads a new index, one edits an existing index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn

import orjson
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import Manifest
from boc.rerank.storage import round_trip
from boc.types import MODALITIES, Rows

from .._validate import check_rows
from . import requests, term_fields
from .address import Address
from .aliases import (
    AliasState,
    Generation,
    check_own,
    digest_of,
    drop,
    generation_behind,
    generations,
    indices_of,
    live_generation,
    meta,
    publish,
    remember,
)
from .binary import raw, to_base64
from .bulk import Bulk, Ledger, Shards
from .force_merge import compact, refresh, reopen
from .score_check import clear_of_templates, self_test, takes_vectors
from .searches import scan
from .transport import RefusedError, Transport, UnfinishedError, UnreachableError
from .vector_fields import BYTE_NEEDS, Binary, chosen_field, is_unit

BLOCK = 3 << 20  # bytes of a codec array per document
ITEMS = [{"exists": {"field": name}} for name in ("modality", "id")]
EVERYTHING = {"query": {"bool": {"filter": ITEMS}}, "sort": [{"id": "asc"}], "_source": False}


OF_VECTORS = ("[vector]", "dense_vector", "element_type", "knn")
"""Words in the error of a server that does not know the mapping of the field ``vector``."""
NEEDS = "boc needs sparse_vector, rank_features, or text with a scripted similarity"
REFUSES = (
    "change what a template (GET /_index_template) or a limit of the cluster sets, then "
    "repeat the command"
)
FOR_NOW = (UnreachableError, RefusedError, UnfinishedError)
"""Errors after which a load can be continued later."""


class ServerWriter:
    """Loads a generation that no search sees, then points the name to it.

    Acknowledged rows stay if the process or its connection dies; a load of the same contents
    continues from there. If the caller leaves the context by another error, nothing stays.
    """

    first_state = "loading"

    def __init__(
        self,
        transport: Transport,
        address: Address,
        order: Sequence[str],
        name: str,
        manifest: Manifest,
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        self._transport = transport
        self._address = address
        self._order = [address.field] if address.field is not None else order
        self._name = name
        self._manifest = manifest
        self._arrays = arrays
        self._committed = False
        self._ledger = Ledger()
        self._load: Load | None = None

    def __enter__(self) -> ServerWriter:
        self._digest = digest_of(self._manifest, self._address.layout)
        there = self._generations()
        live = max((g.number for g in there if g.live), default=0)
        left = [
            g for g in there if g.digest == self._digest and g.number > live and not g.shadowed
        ][-1:]
        drop(self._transport, [g for g in there if g.number != live and g not in left])
        self._before = [g for g in there if g.live]
        self._number = max((g.number for g in there), default=0) + 1
        for generation in left:
            self._begin(generation)
        # no row: the earlier load may have died during the score check
        if left and next(self._ledger.strays(), None) is None:
            drop(self._transport, left)
            self._load = None
        return self

    def _generations(self) -> list[Generation]:
        """Return the generations of this name. BackendError if it is an index that boc did not
        make."""
        there = generations(self._transport, self._name)
        if not any(g.live and not g.state.attached for g in there):
            check_own(generation_behind(self._transport, self._name))
        return there

    def _begin(self, generation: Generation) -> None:
        """Continue what is in ``generation``; an earlier load may have died while it was closed for
        merging."""
        reopen(self._transport, generation.physical)
        refresh(self._transport, generation.physical)
        self._ledger.add_earlier(
            hit["sort"][0] for hit in scan(self._transport, generation.physical, EVERYTHING)
        )
        self._load = Load(self._transport, generation, self._address.patience)

    def has(self, ids: Sequence[str]) -> bool:
        return self._ledger.has(ids)

    def add(self, rows: Rows) -> None:
        known = None if self._load is None else self._load.generation.state.concept_dim
        check_rows(self._manifest, rows, known)
        self._ledger.add([item.id for item in rows.items])
        if self._load is None:
            generation = self._create(int(rows.terms.data.max(initial=0)))
            self._load = Load(self._transport, generation, self._address.patience)
        self._load.put(rows)

    def commit(self) -> None:
        if self._load is None or not len(self._ledger):
            raise BackendError(
                f"nothing was added to {self._name}; an index needs at least one item",
            )
        for stray in self._ledger.strays():
            self._load.rows.bulk.delete(requests.document_id(stray))
        self._publish(len(self._ledger))

    def _publish(self, expected: int) -> None:
        """Merge what is loaded, and point the name to it. UnfinishedError unless it has
        ``expected`` items."""
        assert self._load is not None
        bulk = self._load.rows.bulk
        physical = self._load.generation.physical
        blocks = put_arrays(bulk, self._arrays)
        bulk.flush()
        self._load.shards.wait(self._address.patience)
        refresh(self._transport, physical)
        items, postings, digits = counts(self._transport, physical)
        self._audit(physical, sum(items.values()), expected)
        compact(self._transport, physical, self._load.generation.loading_alias)
        settings = {"refresh_interval": None, "number_of_replicas": self._address.replicas}
        self._transport.request("PUT", f"/{physical}/_settings", {"index": settings})
        loaded = replace(
            self._load.generation,
            manifest=replace(self._manifest, items=items, postings=postings),
            state=replace(
                self._load.generation.state,
                state="complete",
                digits=digits,
                blocks=blocks,
            ),
        )
        remember(self._transport, loaded)
        publish(self._transport, loaded, self._before)
        self._committed = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        resumable = isinstance(error, (KeyboardInterrupt, *FOR_NOW)) and len(self._ledger) > 0
        try:
            if self._load is not None:
                self._load.rows.bulk.__exit__(kind or GeneratorExit, error, trace)
                if not self._committed and not resumable:
                    mine = self._load.generation.physical
                    there = generations(self._transport, self._name)
                    # not what another load of the same contents has published meanwhile
                    drop(self._transport, [g for g in there if g.physical == mine and not g.live])
        finally:
            self._ledger.close()

    def _create(self, largest: int) -> Generation:
        """Create an empty generation with the first supported field type. BackendError if it scores
        wrongly."""
        lacking = dict[str, str]()
        vectors = chosen_field(self._address.vectors, self._transport.engine)
        physical = f"{self._name}-boc-{self._digest}-{self._number}"
        for field in term_fields.by_digits(self._order, largest):
            state = AliasState(self.first_state, field, vectors)
            generation = Generation(
                physical,
                self._name,
                self._digest,
                self._number,
                False,
                self._manifest,
                state,
            )
            own = meta(self._manifest, state)
            body = requests.index_body(
                generation.strategy,
                self._manifest,
                generation.vectors,
                own,
                shards=self._address.shards,
                replicas=self._address.replicas_while_loading,
                order=self._address.order,
            )
            body["aliases"] = {generation.loading_alias: {}}
            try:
                created = self._transport.request("PUT", f"/{physical}", body)
                if not created.get("shards_acknowledged", True):
                    self._refuse_shards(generation)
            except RefusedError as error:
                if error.status != 400 or error.kind == "resource_already_exists_exception":
                    raise
                self._check_layout(not any(word in error.reason for word in OF_VECTORS))
                lacking[field] = error.reason or error.kind
                continue
            try:
                clear_of_templates(self._transport, physical, body["mappings"])
                lack = self_test(self._transport, physical, generation.strategy)
                stored = lack is not None or vectors == Binary.name
                dim = self._manifest.identity.dim
                self._check_layout(
                    stored or takes_vectors(self._transport, physical, generation.vectors, dim),
                )
            except BackendError:
                drop(self._transport, [generation])
                raise
            if lack is None:
                return generation
            drop(self._transport, [generation])
            lacking[field] = lack
        what = "can hold no codes"
        advice = NEEDS
        reasons = [f"{field} ({lack})" for field, lack in lacking.items()]
        if len(set(lacking.values())) < len(lacking):  # no matter of the field
            what = f"refused {physical}"
            advice = REFUSES
            reasons = list(dict.fromkeys(lacking.values()))
        raise BackendError(f"{self._transport.label} {what}: {'; '.join(reasons)}; {advice}")

    def _refuse_shards(self, generation: Generation) -> NoReturn:
        """Remove an index whose shards no node takes. BackendError with the reason, if the server
        tells it."""
        reason = "its reason is in GET /_cluster/allocation/explain"
        with suppress(BackendError):
            shard = {"index": generation.physical, "shard": 0, "primary": True}
            answer = self._transport.search("/_cluster/allocation/explain", shard)
            nodes = [
                each
                for node in answer["node_allocation_decisions"]
                for each in node.get("deciders", ())
            ]
            reason = "; ".join(dict.fromkeys(each["explanation"] for each in nodes)) or reason
        drop(self._transport, [generation])
        raise BackendError(
            f"{self._transport.label}: no node takes the shards of {generation.physical} "
            f"({reason[:400]}); free disk "
            "space, or change what a template of the cluster requires of nodes, then repeat the "
            "command",
        )

    def _check_layout(self, fine: bool) -> None:
        name = self._address.vectors
        if not fine and name != Binary.name:
            raise BackendError(
                f"{self._transport.label} does not store vectors as {name}, which {BYTE_NEEDS} "
                "does; "
                "leave out ?vectors= in the address",
            )

    def _audit(self, physical: str, count: int, expected: int) -> None:
        """Compare the number of documents with the number acknowledged. UnfinishedError lists
        missing ids."""
        if count != expected:
            missing = self._ledger.missing(
                hit["sort"][0] for hit in scan(self._transport, physical, EVERYTHING)
            )
            raise UnfinishedError(
                f"{self._transport.label} holds {count} documents of {expected} that it "
                "acknowledged"
                + (f", without {', '.join(map(repr, missing))}" if missing else "")
                + "; repeat the command to load what is missing",
            )


class Load:
    """A generation that is being loaded. Its state is stored before the rows that change it are
    sent."""

    def __init__(self, transport: Transport, generation: Generation, patience: float) -> None:
        self._transport = transport
        self.generation = generation
        self.shards = Shards(transport, generation.physical)
        self.rows = _DocumentSender(
            transport, generation, generation.loading_alias, patience, self.shards
        )

    def put(self, rows: Rows) -> None:
        state = self.generation.state
        self.generation.vectors.check(rows.vectors)
        if rows.concepts is not None:
            state = replace(state, concept_dim=rows.concepts.values.shape[1])
        if state.unit and not is_unit(rows.vectors):
            state = replace(state, unit=False)
        if state != self.generation.state:
            self.generation = replace(self.generation, state=state)
            remember(self._transport, self.generation)
        self.rows.put(rows)


class ServerEditor:
    """Edits the published generation in place, through an alias that stays its own if another
    command replaces it. Searches see rows as soon as the server accepts them."""

    def __init__(self, transport: Transport, address: Address, name: str) -> None:
        self._transport = transport
        self._patience = address.patience
        self._generation = live_generation(transport, name)
        check_own(self._generation)
        if names := self._generation.pipelines:
            raise BackendError(
                f"{self._generation.physical} has a {' and a '.join(names)}, which may change "
                "what is written into it; "
                f'take it away (PUT /{self._generation.physical}/_settings {{"index.{names[0]}": '
                f'"_none"}})',
            )

    def __enter__(self) -> ServerEditor:
        self._rows = _DocumentSender(
            self._transport,
            self._generation,
            self._generation.loading_alias,
            self._patience,
        )
        self._begun = False
        return self

    def put(self, rows: Rows) -> None:
        state = self._generation.state
        check_rows(self._generation.manifest, rows, state.concept_dim)
        terms = rows.terms
        vectors = rows.vectors
        digits = self._generation.strategy.digits(int(terms.data.max(initial=0)))
        if digits > state.digits:
            raise BackendError(
                f"a term frequency of {terms.data.max()} is more than {self._generation.name} "
                "was made for; make it "
                "again with boc index --replace",
            )
        if state.unit and not is_unit(vectors):
            raise BackendError(
                f"vectors longer than 1, those of {self._generation.name} are not; make it again",
            )
        self._generation.vectors.check(vectors)
        self._begin()
        self._rows.put(rows)

    def delete(self, ids: Sequence[str]) -> int:
        unwanted = list(dict.fromkeys(map(requests.document_id, ids)))
        self._rows.bulk.flush()
        self._check_left(unwanted)
        self._begin()
        for key in unwanted:
            self._rows.bulk.delete(key)
        return self._rows.bulk.flush()

    def _begin(self) -> None:
        """Record on the server that the counts of the manifest are outdated until ``commit``."""
        if not self._begun:
            add = {
                "add": {
                    "index": self._generation.physical,
                    "alias": self._generation.loading_alias,
                },
            }
            self._transport.request("POST", "/_aliases", {"actions": [add]})
            self._begun = True
        if self._generation.state.state != "editing":
            self._remember(replace(self._generation.state, state="editing"))

    def _check_left(self, unwanted: list[str]) -> None:
        """Raise BackendError if the deletion would leave an empty index; nothing is deleted
        before."""
        index = self._generation.physical
        name = self._generation.name
        refresh(self._transport, index)
        total = sum(counts(self._transport, index)[0].values())
        if len(unwanted) >= total:
            there = (hit["sort"][0] for hit in scan(self._transport, index, EVERYTHING))
            if {requests.document_id(key) for key in there} <= set(unwanted):
                raise BackendError(
                    f"nothing would be left in {name}; to remove all of it: boc delete {name} "
                    "--all",
                )

    def commit(self, source: str, **changed: Any) -> None:
        self._rows.bulk.flush()
        physical = self._generation.physical
        refresh(self._transport, physical)
        items, postings, _ = counts(self._transport, physical)
        manifest = replace(
            self._generation.manifest,
            items=items,
            postings=postings,
            source=source,
            **changed,
        )
        name = self._generation.name
        if physical not in indices_of(self._transport, name):
            raise BackendError(
                f"another command has replaced {name} without what this one changed; repeat it",
            )
        self._remember(replace(self._generation.state, state="complete"), manifest)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        self._rows.bulk.__exit__(kind or GeneratorExit, error, trace)

    def _remember(self, state: AliasState, manifest: Manifest | None = None) -> None:
        self._generation = replace(
            self._generation,
            state=state,
            manifest=manifest or self._generation.manifest,
        )
        remember(self._transport, self._generation)


class _DocumentSender:
    """Sends items and their arrays to the server as documents."""

    def __init__(
        self,
        transport: Transport,
        generation: Generation,
        target: str,
        patience: float,
        shards: Shards | None = None,
    ) -> None:
        self.bulk = Bulk(transport, target, require_alias=True, patience=patience, shards=shards)
        self._strategy = generation.strategy
        self._vectors = generation.vectors
        self._manifest = generation.manifest
        self._texts = [name for name, kind in generation.manifest.fields.items() if kind == "text"]

    def put(self, rows: Rows) -> None:
        items, terms, vectors, concepts = rows
        stored = round_trip(vectors, self._manifest.vector_dtype)
        firsts = requests.first_terms(terms)
        documents = requests.documents(self._strategy, self._vectors, items, terms, stored)
        for i, (item, document) in enumerate(zip(items, documents, strict=True)):
            document["first"] = firsts[i]
            if concepts is not None:
                document["concepts"] = requests.concepts_of(concepts, i)
            if item.fields:
                document["meta"] = dict(item.fields)
            if item.modality == "text":
                document["words"] = item.content
            document["item"] = requests.pack_item(item)
            self.bulk.index(requests.document_id(item.id), requests.dumps(document))


def put_arrays(bulk: Bulk, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Store the arrays of a codec as documents of their own; how many."""
    numbers = count()
    for name, array in arrays.items():
        data = raw(array)
        for start in range(0, max(1, len(data)), BLOCK):
            block = {"array": name, "block": to_base64(data[start : start + BLOCK])}
            bulk.index(f"boc:block:{next(numbers)}", orjson.dumps(block))
    return next(numbers)


def counts(
    transport: Transport,
    index: str,
    layout: requests.Layout = requests.OWN,
) -> tuple[dict[str, int], int, int]:
    """Items by modality, postings, and digits of the largest frequency, as the server counts
    them."""
    body = {
        "size": 0,
        "aggs": {
            "modality": {"terms": {"field": layout.own("modality")}},
            "postings": {"sum": {"field": layout.own("size")}},
            "digits": {"max": {"field": layout.own("digits")}},
        },
    }
    answer = transport.request(
        "POST",
        f"/{index}/_search",
        body,
        allow_partial_search_results="false",
    )
    sums = answer["aggregations"]
    there = {bucket["key"]: int(bucket["doc_count"]) for bucket in sums["modality"]["buckets"]}
    return (
        {m: there.get(m, 0) for m in MODALITIES},
        int(sums["postings"]["value"]),
        int(sums["digits"]["value"] or 1),
    )
