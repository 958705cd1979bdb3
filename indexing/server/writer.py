"""Write indexes on a server. One writer loads a new index, and the other edits an existing
index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import orjson
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import Manifest
from boc.rerank.storage import round_trip
from boc.types import MODALITIES, Rows

from .._validate import check_rows
from . import requests
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
    newest_whole,
    publish,
    remember,
)
from .binary import to_base64
from .bulk import Bulk, Ledger, await_shards
from .claim import Claim, check_first, check_unclaimed, in_use
from .creation import create_index, name_apart
from .force_merge import compact, refresh, reopen
from .score_check import self_test, takes_vectors
from .searches import WHOLE, scan
from .term_fields import STRATEGIES
from .transport import RefusedError, Transport, UnfinishedError, UnreachableError
from .vector_fields import VECTOR_FIELDS, Binary, fields_for

ITEMS = [{"exists": {"field": name}} for name in ("modality", "id")]
BLOCK = 3 << 20
"""Number of bytes of a codec array per document."""
EVERYTHING = {"query": {"bool": {"filter": ITEMS}}, "sort": [{"id": "asc"}], "_source": False}


class LackingError(BackendError):
    """Raised when the server does not support a vector field."""


@dataclass
class ServerWriter:
    """Load a new generation that is not visible to searches, then point the index name to it.

    If the process is killed or loses its connection, acknowledged rows are kept, and loading the
    same contents again resumes the load. If the context is left with any other error, all rows are
    removed.
    """

    transport: Transport
    address: Address
    order: Sequence[str]
    name: str
    manifest: Manifest
    arrays: Mapping[str, NDArray[Any]]
    generation: Generation = field(init=False, repr=False)
    first_state = "loading"
    number = 1
    count = 1

    def __post_init__(self) -> None:
        self._begun = False
        self._committed = False
        self._concept_dim: int | None = None
        self._ledger = Ledger()
        self._hold = Claim(self.transport, self.name, self.number)

    def __enter__(self) -> ServerWriter:
        with ExitStack() as held:
            # The context has not been entered yet, so ``__exit__`` would not release the claim.
            held.callback(self._hold.release)
            self._enter()
            held.pop_all()
        return self

    def _enter(self) -> None:
        """Remove unwanted generations, and resume an earlier load of the same contents."""
        self._digest = digest_of(self.manifest, self.address.layout)
        present = self._generations()
        kept = newest_whole(present)
        left = self._continued(present)
        others = [g for g in present if g.number != kept]
        check_unclaimed(self.transport, others)
        drop(self.transport, [g for g in others if g is not left])
        if left is not None:
            self._begin(left)
            # If there are no rows, the earlier load may have been killed during the score check.
            if next(self._ledger.strays(), None) is None:
                self._hold.withdraw()
                drop(self.transport, [left])
                self._begun = False

    def _generations(self) -> list[Generation]:
        """Return the generations with this name. Raises BackendError if the index was not created
        by boc."""
        present = generations(self.transport, self.name)
        own = {g.physical for g in present if not g.state.attached}
        # A template may have assigned the name to a generation that was not completely loaded.
        if not own.issuperset(indices_of(self.transport, self.name)):
            check_own(generation_behind(self.transport, self.name))
        return present

    def _continued(self, present: Sequence[Generation]) -> Generation | None:
        """Return the generation in ``present`` that this load resumes, if any, and choose the
        number for a new generation."""
        live = max((g.number for g in present if g.live), default=0)
        self._next = 1 + max((g.number for g in present), default=0)
        same = [
            g for g in present if g.digest == self._digest and g.number > live and not g.shadowed
        ]
        return same[-1] if same else None

    def _begin(self, generation: Generation) -> None:
        """Prepare to load into ``generation``. An earlier load may have been killed while the index
        was closed for merging."""
        reopen(self.transport, generation.physical)
        # Published generations no longer have this alias.
        add = {"index": generation.physical, "alias": generation.loading_alias}
        self.transport.request("POST", "/_aliases", {"actions": [{"add": add}]})
        self._hold.take(generation.physical, generation.loading_alias)
        refresh(self.transport, generation.physical)
        self._ledger.add_earlier(stored_ids(self.transport, generation.physical))
        self._load_into(generation)

    def _load_into(self, generation: Generation) -> None:
        self._begun = True
        self._concept_dim = generation.state.concept_dim
        self.generation = generation
        self._bulk = Bulk(
            self.transport,
            generation.loading_alias,
            require_alias=True,
            patience=self.address.patience,
        )

    def has(self, ids: Sequence[str]) -> bool:
        return self._ledger.has(ids)

    def add(self, rows: Rows) -> None:
        check_rows(self.manifest, rows, self._concept_dim)
        self._ledger.add([item.id for item in rows.items])
        if not self._begun:
            generation = self._create(int(rows.terms.data.max(initial=0)))
            self._hold.take(generation.physical, generation.loading_alias)
            check_first(self.transport, generation, generations(self.transport, self.name))
            self._load_into(generation)
        self.generation.vectors.check(rows.vectors)
        state = self.generation.state
        if rows.concepts is not None:
            self._concept_dim = rows.concepts.values.shape[1]
            state = replace(state, concept_dim=self._concept_dim)
        # Store the state before sending the rows that change it.
        if state != self.generation.state:
            self.generation = replace(self.generation, state=state)
            remember(self.transport, self.generation)
        put_rows(self._bulk, self.generation, rows)

    def commit(self) -> None:
        if not (self._begun and len(self._ledger)):
            raise BackendError(
                f"no items were added to {self.name}; an index needs at least one item",
            )
        for stray in self._ledger.strays():
            self._bulk.delete(requests.document_id(stray))
        self._publish(len(self._ledger))

    def _publish(self, expected: int) -> None:
        """Merge the loaded rows, and point the index name to this generation. Raises
        UnfinishedError unless the index has ``expected`` items."""
        physical = self.generation.physical
        blocks = put_arrays(self._bulk, self.arrays)
        self._bulk.flush()
        await_shards(self.transport, physical, self.address.patience)
        refresh(self.transport, physical)
        items, postings, digits = counts(self.transport, physical)
        self._audit(physical, sum(items.values()), expected)
        self._hold.withdraw()
        compact(self.transport, physical, self.generation.loading_alias)
        settings = {"refresh_interval": None, "number_of_replicas": self.address.replicas}
        self.transport.request("PUT", f"/{physical}/_settings", {"index": settings})
        state = replace(
            self.generation.state,
            state="complete",
            digits=digits,
            blocks=blocks,
            by="",
        )
        manifest = replace(self.manifest, items=items, postings=postings)
        loaded = replace(self.generation, manifest=manifest, state=state)
        remember(self.transport, loaded)
        try:
            present = self._generations()
        except BackendError as error:
            # Another program may have taken the name in the meantime. Keep the rows.
            raise UnfinishedError(str(error)) from None
        publish(self.transport, loaded, present)
        self._committed = True

    def __exit__(self, *raised: object) -> None:
        # After these errors, the load can be resumed later.
        for_now = (KeyboardInterrupt, UnreachableError, RefusedError, UnfinishedError)
        resumable = isinstance(raised[1], for_now) and len(self._ledger) > 0
        try:
            if self._begun:
                self._bulk.stop(raised[1])
                if not self._committed and not resumable:
                    mine = self.generation.physical
                    present = generations(self.transport, self.name)
                    # Another load of the same contents may have published the generation in the
                    # meantime.
                    drop(self.transport, [g for g in present if g.physical == mine and not g.live])
        finally:
            self._hold.release()
            self._ledger.close()

    def _create(self, largest: int) -> Generation:
        """Create an empty generation with the first field types that the server supports. Raises
        BackendError if its scores are wrong."""
        *others, last = fields_for(self.address.vectors, self.transport.engine)
        for vectors in others:
            with suppress(LackingError):
                return self._create_with(vectors, largest)
        return self._create_with(last, largest)

    def _create_with(self, vectors: str, largest: int) -> Generation:
        lacking = dict[str, str]()
        physical = name_apart(
            self.transport,
            f"{self.name}-boc-{self._digest}-{self._next}",
        )
        chosen = [self.address.field] if self.address.field is not None else self.order
        # Try the field types that need the fewest digits first.
        for kind in sorted(chosen, key=lambda each: STRATEGIES[each].digits(largest)):
            generation = Generation(
                physical,
                self.name,
                self._digest,
                self._next,
                False,
                self.manifest,
                AliasState(
                    self.first_state,
                    kind,
                    vectors,
                    by=self._hold.key,
                    parts=self.count,
                ),
            )
            body = requests.index_body(
                generation.strategy,
                self.manifest,
                generation.vectors,
                meta(self.manifest, generation.state),
                shards=self.address.shards,
                replicas=self.address.replicas_while_loading,
                # With a dictionary, searches read the candidates term by term.
                by_term=bool(self.manifest.n_query_terms),
            )
            body["aliases"] = {generation.loading_alias: {}}
            try:
                created = create_index(self.transport, physical, body)
                if not created.get("shards_acknowledged", True):
                    reason = "the server tells this user no reason"
                    with suppress(BackendError, KeyError):
                        shard = {"index": physical, "shard": 0, "primary": True}
                        answer = self.transport.search("/_cluster/allocation/explain", shard)
                        decider = answer["node_allocation_decisions"][0]["deciders"][0]
                        reason = decider["explanation"][:400]
                    drop(self.transport, [generation])
                    raise BackendError(
                        f"{self.transport.label}: no node accepts the shards of {physical} "
                        f"({reason}); free disk space, or change the node requirements in a "
                        "template of the cluster (index.routing.allocation), then run the command "
                        "again",
                    )
            except RefusedError as error:
                exists = error.kind == "resource_already_exists_exception"
                if exists and self.count == 1:
                    raise in_use(self.transport, self.name) from None
                if exists or error.status != 400:
                    raise
                # The error mentions the field ``vector`` if the server does not support its type.
                if re.search(r"\[vector\]|dense_vector|element_type|knn", error.reason):
                    self._refuse_vectors(vectors)
                lacking[kind] = error.reason or error.kind
                continue
            try:
                lack = self_test(self.transport, physical, generation.strategy)
                dim = self.manifest.identity.dim
                if lack is None and not takes_vectors(
                    self.transport,
                    physical,
                    generation.vectors,
                    dim,
                ):
                    self._refuse_vectors(vectors)
                    lack = "it compares no vectors by scripts: see script.allowed_types"
            except BackendError:
                drop(self.transport, [generation])
                raise
            if lack is None:
                return generation
            drop(self.transport, [generation])
            lacking[kind] = lack
        reasons = [f"{kind} ({lack})" for kind, lack in lacking.items()]
        refusal = f"can hold no codes: {'; '.join(reasons)}"
        advice = "boc needs sparse_vector, rank_features, or text with a scripted similarity"
        distinct = dict.fromkeys(lacking.values())
        # If several field types have the same reason, the reason is not specific to the field type.
        if len(distinct) < len(lacking):
            refusal = f"refused {physical}: {'; '.join(distinct)}"
            advice = (
                "change what a template (GET /_index_template) or a limit of the cluster sets, "
                "then run the command again"
            )
        raise BackendError(f"{self.transport.label} {refusal}; {advice}")

    def _refuse_vectors(self, field: str) -> None:
        """Raise LackingError, unless the vector field is the binary field, which all servers
        support."""
        name = VECTOR_FIELDS[field].name
        if name != Binary.name:
            raise LackingError(
                f"{self.transport.label} does not store vectors as {name}; leave out ?vectors= in "
                "the address",
            )

    def _audit(self, physical: str, count: int, expected: int) -> None:
        """Compare the number of documents with the number of acknowledged rows. Raises
        UnfinishedError, with a list of missing ids, if documents are missing."""
        if count != expected:
            missing = self._ledger.missing(stored_ids(self.transport, physical))
            without = f", without {', '.join(map(repr, missing))}" if missing else ""
            raise UnfinishedError(
                f"{self.transport.label} has {count} of {expected} acknowledged "
                f"documents{without}; run the command again to load the missing documents",
            )


class ServerEditor:
    """Edit the published generation in place. The rows are written through an alias that the
    generation keeps even if another command replaces it. Rows are visible to searches as soon as
    the server accepts them."""

    def __init__(self, transport: Transport, address: Address, name: str) -> None:
        self._transport = transport
        self._generation = live_generation(transport, name)
        check_own(self._generation)
        if blocks := self._generation.blocks:
            raise BackendError(
                f"{self._generation.physical} is write-protected (index.blocks.{blocks[0]})",
                "free disk space if it is short, remove this block, then run the command again",
            )
        if names := self._generation.pipelines:
            raise BackendError(
                f"{self._generation.physical} has a {' and a '.join(names)}, which may change "
                "written documents; "
                f'remove it (PUT /{self._generation.physical}/_settings {{"index.{names[0]}": '
                f'"_none"}})',
            )
        self._bulk = Bulk(
            transport,
            self._generation.loading_alias,
            require_alias=True,
            patience=address.patience,
        )
        self._begun = False

    def __enter__(self) -> ServerEditor:
        return self

    def put(self, rows: Rows) -> None:
        state = self._generation.state
        check_rows(self._generation.manifest, rows, state.concept_dim)
        largest = int(rows.terms.data.max(initial=0))
        if self._generation.strategy.digits(largest) > state.digits:
            raise BackendError(
                f"a term frequency of {largest} exceeds the limit of {self._generation.name}",
                "rebuild it with <boc index --replace>",
            )
        self._generation.vectors.check(rows.vectors)
        self._begin()
        put_rows(self._bulk, self._generation, rows)

    def delete(self, ids: Sequence[str]) -> int:
        unwanted = dict.fromkeys(map(requests.document_id, ids))
        self._bulk.flush()
        self._check_left({*unwanted})
        self._begin()
        for key in unwanted:
            self._bulk.delete(key)
        return self._bulk.flush()

    def _begin(self) -> None:
        """Record on the server that the counts in the manifest are outdated until ``commit`` is
        called."""
        if not self._begun:
            generation = self._generation
            add = {"index": generation.physical, "alias": generation.loading_alias}
            self._transport.request("POST", "/_aliases", {"actions": [{"add": add}]})
            self._begun = True
        if self._generation.state.state != "editing":
            self._remember("editing")

    def _check_left(self, unwanted: set[str]) -> None:
        """Raise BackendError, before any row is deleted, if the deletion would leave the index
        empty."""
        index = self._generation.physical
        name = self._generation.name
        refresh(self._transport, index)
        items, _, _ = counts(self._transport, index)
        if len(unwanted) >= sum(items.values()):
            present = map(requests.document_id, stored_ids(self._transport, index))
            if unwanted.issuperset(present):
                raise BackendError(
                    f"no items would be left in {name}",
                    f"to remove all of it: <boc delete {name} --all>",
                )

    def commit(self, source: str, **changed: Any) -> None:
        self._bulk.flush()
        physical = self._generation.physical
        name = self._generation.name
        refresh(self._transport, physical)
        items, postings, _ = counts(self._transport, physical)
        if physical not in indices_of(self._transport, name):
            raise BackendError(
                f"another command has replaced {name} and lost this command's changes; repeat this "
                "command",
            )
        self._remember("complete", items=items, postings=postings, source=source, **changed)

    def __exit__(self, *raised: object) -> None:
        self._bulk.stop(raised[1])

    def _remember(self, state: str, **changed: Any) -> None:
        """Store the state and the changed manifest entries."""
        self._generation = replace(
            self._generation,
            state=replace(self._generation.state, state=state),
            manifest=replace(self._generation.manifest, **changed),
        )
        remember(self._transport, self._generation)


def put_rows(bulk: Bulk, generation: Generation, rows: Rows) -> None:
    """Send items and their arrays to the server as documents."""
    items, terms, vectors, concepts = rows
    stored = round_trip(vectors, generation.manifest.vector_dtype)
    firsts = requests.first_terms(terms)
    documents = requests.documents(generation.strategy, generation.vectors, items, terms, stored)
    for i, (item, document) in enumerate(zip(items, documents, strict=True)):
        document["first"] = firsts[i]
        if concepts is not None:
            document["concepts"] = requests.concepts_of(concepts, i)
        if item.fields:
            document["meta"] = dict(item.fields)
        if item.modality == "text":
            document["words"] = item.content
        document["item"] = requests.pack_item(item)
        bulk.index(requests.document_id(item.id), requests.dumps(document))


def stored_ids(transport: Transport, index: str) -> Iterator[str]:
    """Return the sorted ids of all items."""
    return (hit["sort"][0] for hit in scan(transport, index, EVERYTHING))


def put_arrays(bulk: Bulk, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Store the arrays of the codec in separate documents, and return the number of documents."""
    numbers = count()
    for name, array in arrays.items():
        data = array.tobytes()
        # An empty array is also stored as a document.
        for start in range(0, max(1, len(data)), BLOCK):
            block = {"array": name, "block": to_base64(data[start : start + BLOCK])}
            bulk.index(f"boc:block:{next(numbers)}", orjson.dumps(block))
    return next(numbers)


def counts(
    transport: Transport,
    index: str,
    layout: requests.Layout = requests.OWN,
) -> tuple[dict[str, int], int, int]:
    """Count on the server, and return the number of items for each modality, the number of
    postings, and the number of digits in the largest frequency."""
    aggregations = {
        "modality": {"terms": {"field": layout.own("modality")}},
        "postings": {"sum": {"field": layout.own("size")}},
        "digits": {"max": {"field": layout.own("digits")}},
    }
    body = {"size": 0, "aggs": aggregations}
    sums = transport.request("POST", f"/{index}/_search", body, **WHOLE)["aggregations"]
    sizes = {bucket["key"]: int(bucket["doc_count"]) for bucket in sums["modality"]["buckets"]}
    items: dict[str, int] = {modality: sizes.get(modality, 0) for modality in MODALITIES}
    return items, int(sums["postings"]["value"]), int(sums["digits"]["value"] or 1)
