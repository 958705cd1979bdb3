"""Making an index on a server, and changing one that is there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import Manifest
from boc.types import MODALITIES, Item, StoredConcepts, TermMatrix

from . import _bodies
from ._address import Address
from ._bulk import Bulk, Ledger
from ._generations import (
    Generation,
    State,
    digest_of,
    drop,
    generations,
    meta,
    publish,
    published,
    remember,
)
from ._reading import scan
from ._rows import check_rows
from ._selftest import self_test
from ._transport import Json, RefusedError, Transport, UnreachableError

RELEASE = 35.0  # seconds
BLOCK = 3 << 20  # bytes of a codec array in one document
MERGE_TIMEOUT = 24 * 3600.0
EVERYTHING = {"query": {"exists": {"field": "modality"}}, "sort": [{"id": "asc"}], "_source": False}


class ServerWriter:
    """Loads a generation that nobody sees, then points the name to it.

    What is acknowledged stays if this process, or its connection, dies; a load of the same contents goes on from there.
    Left by an error of the caller, nothing stays.
    """

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
        self._begun = time.monotonic()

    def __enter__(self) -> ServerWriter:
        digest = digest_of(self._manifest, self._address.layout)
        there = generations(self._transport, self._name)
        if not any(g.live for g in there):
            self._check_free()
        live = max((g.number for g in there if g.live), default=0)
        left = [g for g in there if g.digest == digest and g.number > live]
        drop(self._transport, [g for g in there if g.number != live and g not in left[-1:]])
        self._before = [g for g in there if g.live]
        self._ledger = Ledger()
        if left:
            self._generation = left[-1]
            self._resume()
        else:
            number = max((g.number for g in there), default=0) + 1
            self._generation = self._create(f"{self._name}-boc-{digest}-{number}", digest, number)
        self._rows = _Rows(self._transport, self._generation, self._generation.loading_alias, self._address.patience)
        return self

    def has(self, ids: Sequence[str]) -> bool:
        return self._ledger.has(ids)

    def add(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        self._rows.check(items, terms, vectors, concepts)
        self._ledger.add([item.id for item in items])
        state = self._generation.state
        if concepts is not None:
            state = replace(state, concept_dim=concepts.values.shape[1])
        if state.unit and not _unit(vectors):
            state = replace(state, unit=False)
        if state != self._generation.state:
            self._generation = replace(self._generation, state=state)
            remember(self._transport, self._generation)  # at once: a load that goes on may have nothing left to add
        self._rows.put(items, terms, vectors, concepts)

    def commit(self) -> None:
        if not len(self._ledger):
            raise BackendError(f"nothing was added to {self._name}; an index needs at least one item")
        for stray in self._ledger.strays():
            self._rows.bulk.delete(_bodies.document_id(stray))
        blocks = self._rows.put_arrays(self._arrays)
        self._rows.bulk.flush()
        physical = self._generation.physical
        self._transport.request("POST", f"/{physical}/_refresh", timeout=MERGE_TIMEOUT)
        counts, postings, digits = _counts(self._transport, physical)
        self._audit(sum(counts.values()))
        self._merge()
        settings = {"refresh_interval": None, "number_of_replicas": self._address.replicas}
        self._transport.request("PUT", f"/{physical}/_settings", {"index": settings})
        self._generation = replace(
            self._generation,
            manifest=replace(self._manifest, items=counts, postings=postings),
            state=replace(self._generation.state, state="complete", digits=digits, blocks=blocks),
        )
        remember(self._transport, self._generation)
        publish(self._transport, self._generation, self._before)
        self._committed = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        resumable = isinstance(error, (KeyboardInterrupt, UnreachableError, BackendError)) and len(self._ledger) > 0
        try:
            self._rows.bulk.__exit__(kind or GeneratorExit, error, trace)
            if not self._committed and not resumable:
                drop(self._transport, [self._generation])
        finally:
            self._ledger.close()

    def _check_free(self) -> None:
        try:
            published(self._transport, self._name)
        except BackendError as error:
            if "was not made by boc" in str(error):
                raise

    def _create(self, physical: str, digest: str, number: int) -> Generation:
        """An empty generation under the first strategy that the server has; refused if it scores wrongly."""
        lacking = []
        for field in self._order:
            strategy = _bodies.STRATEGIES[field]
            state = State("loading", field, self._address.vectors)
            generation = Generation(physical, self._name, digest, number, False, self._manifest, state)
            body = _bodies.index_body(
                strategy, self._manifest, state.vectors, meta(self._manifest, state), shards=self._address.shards
            )
            body["aliases"] = {generation.loading_alias: {}}
            try:
                self._transport.request("PUT", f"/{physical}", body)
            except RefusedError as error:
                if error.status != 400 or error.kind == "resource_already_exists_exception":
                    raise
                lacking.append(f"{field} ({error.reason or error.kind})")
                continue
            try:
                lack = self_test(self._transport, physical, strategy)
            except BackendError:
                drop(self._transport, [generation])
                raise
            if lack is None:
                return generation
            drop(self._transport, [generation])
            lacking.append(f"{field} ({lack})")
        raise BackendError(
            f"{self._transport.shown} can hold no codes: {'; '.join(lacking)}; boc needs sparse_vector, rank_features, "
            "or text with a scripted similarity"
        )

    def _resume(self) -> None:
        physical = self._generation.physical
        self._transport.request("POST", f"/{physical}/_refresh", timeout=MERGE_TIMEOUT)
        self._ledger.found(hit["sort"][0] for hit in scan(self._transport, physical, EVERYTHING))

    def _audit(self, found: int) -> None:
        """All that was acknowledged is there, and nothing else. BackendError tells what is not."""
        wanted = len(self._ledger)
        if found != wanted:
            there = (hit["sort"][0] for hit in scan(self._transport, self._generation.physical, EVERYTHING))
            missing = self._ledger.missing(there)
            raise BackendError(
                f"{self._transport.shown} holds {found} documents of {wanted} that it acknowledged"
                + (f", without {', '.join(map(repr, missing))}" if missing else "")
                + "; repeat the command to load what is missing"
            )

    def _merge(self) -> None:
        """One segment a shard, twice: the copies of the documents that a server keeps for recovery, two thirds of
        the bytes, leave in a merge that has something to rewrite after the rows are safe. The segments before stay on
        the disk until nothing searches them and no commit names them."""
        physical = self._generation.physical
        self._forcemerge()
        dummy = f"/{physical}/_doc/boc:dummy"
        self._transport.request("PUT", dummy, {})
        self._transport.request("POST", f"/{physical}/_flush", timeout=MERGE_TIMEOUT)
        self._await_release()
        self._transport.request("DELETE", dummy)
        self._forcemerge()
        self._transport.request("POST", f"/{physical}/_refresh", timeout=MERGE_TIMEOUT)
        self._transport.request("POST", f"/{physical}/_flush", force="true", timeout=MERGE_TIMEOUT)

    def _await_release(self) -> None:
        """Wait until no shard retains operations for recovery, which servers look at every 30 seconds; but not longer
        than the load took, since small indexes need not be smaller."""
        deadline = time.monotonic() + min(RELEASE, time.monotonic() - self._begun)
        path = f"/{self._generation.physical}/_stats"
        while time.monotonic() < deadline:
            told = self._transport.request("GET", path, level="shards", filter_path="**.seq_no,**.leases")
            [index] = told["indices"].values()
            shards = [shard for copies in index["shards"].values() for shard in copies]
            if all(
                lease["retaining_seq_no"] > shard["seq_no"]["max_seq_no"]
                for shard in shards
                for lease in shard["retention_leases"]["leases"]
            ):
                return
            time.sleep(1)

    def _forcemerge(self) -> None:
        path = f"/{self._generation.physical}"
        self._transport.request("POST", f"{path}/_refresh", timeout=MERGE_TIMEOUT)
        self._transport.request("POST", f"{path}/_forcemerge", max_num_segments=1, timeout=MERGE_TIMEOUT)


class ServerEditor:
    """Changes the published generation in place. Searches see rows as the server takes them."""

    def __init__(self, transport: Transport, address: Address, name: str) -> None:
        self._transport = transport
        self._patience = address.patience
        self._generation = published(transport, name)

    def __enter__(self) -> ServerEditor:
        self._rows = _Rows(self._transport, self._generation, self._generation.name, self._patience)
        return self

    def put(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        self._rows.check(items, terms, vectors, concepts)
        digits = self._generation.strategy.digits(int(terms.data.max(initial=0)))
        if digits > self._generation.state.digits:
            raise BackendError(
                f"a term frequency of {terms.data.max()} is more than {self._generation.name} was made for; make it "
                "anew with boc index --replace"
            )
        if self._generation.state.unit and not _unit(vectors):
            raise BackendError(f"vectors longer than 1, those of {self._generation.name} are not; make it anew")
        self._begin()
        self._rows.put(items, terms, vectors, concepts)

    def delete(self, ids: Sequence[str]) -> int:
        unwanted = list(dict.fromkeys(map(_bodies.document_id, ids)))
        self._rows.bulk.flush()
        self._check_left(unwanted)
        self._begin()
        for key in unwanted:
            self._rows.bulk.delete(key)
        return self._rows.bulk.flush()

    def _begin(self) -> None:
        """Note on the server that the counts of the manifest do not hold until ``commit``."""
        if self._generation.state.state != "editing":
            self._remember(replace(self._generation.state, state="editing"))

    def _check_left(self, unwanted: list[str]) -> None:
        """BackendError, before anything is deleted, if nothing would be left."""
        index, name = self._generation.physical, self._generation.name
        self._transport.request("POST", f"/{index}/_refresh", timeout=MERGE_TIMEOUT)
        total = sum(_counts(self._transport, index)[0].values())
        if len(unwanted) >= total:
            there = (hit["sort"][0] for hit in scan(self._transport, index, EVERYTHING))
            if {_bodies.document_id(key) for key in there} <= set(unwanted):
                raise BackendError(f"nothing would be left in {name}; to remove all of it: boc delete {name} --all")

    def commit(self, source: str) -> None:
        self._rows.bulk.flush()
        physical = self._generation.physical
        self._transport.request("POST", f"/{physical}/_refresh", timeout=MERGE_TIMEOUT)
        counts, postings, _ = _counts(self._transport, physical)
        manifest = replace(self._generation.manifest, items=counts, postings=postings, source=source)
        self._remember(replace(self._generation.state, state="complete"), manifest)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._rows.bulk.__exit__(kind or GeneratorExit, error, trace)

    def _remember(self, state: State, manifest: Manifest | None = None) -> None:
        self._generation = replace(self._generation, state=state, manifest=manifest or self._generation.manifest)
        remember(self._transport, self._generation)


class _Rows:
    """Items with their arrays as documents on their way to the server."""

    def __init__(self, transport: Transport, generation: Generation, target: str, patience: float) -> None:
        self.bulk = Bulk(transport, target, require_alias=True, patience=patience)
        self._strategy = generation.strategy
        self._layout = generation.state.vectors
        self._manifest = generation.manifest
        self._concept_dim = generation.state.concept_dim
        self._texts = [name for name, kind in generation.manifest.fields.items() if kind == "text"]

    def check(
        self, items: Sequence[Item], terms: TermMatrix, vectors: NDArray[np.float32], concepts: StoredConcepts | None
    ) -> None:
        check_rows(self._manifest, items, terms, vectors, concepts, self._concept_dim)
        if concepts is not None:
            self._concept_dim = concepts.values.shape[1]

    def put(
        self, items: Sequence[Item], terms: TermMatrix, vectors: NDArray[np.float32], concepts: StoredConcepts | None
    ) -> None:
        stored = vectors.astype(self._manifest.vector_dtype)
        if self._layout != "binary":
            stored = stored.astype(">f4")  # the byte order that a dense_vector is read in
        sizes = np.diff(terms.indptr).tolist()
        largest = np.maximum.reduceat(np.append(terms.data, 0), terms.indptr[:-1]) * (np.diff(terms.indptr) > 0)
        documents = self._strategy.documents(terms)
        for i, (item, features) in enumerate(zip(items, documents, strict=True)):
            document: Json = {
                "id": item.id,
                "modality": item.modality,
                "content": item.content,
                "group": item.group,
                "size": sizes[i],
                "digits": self._strategy.digits(int(largest[i])),
                "vector": _bodies.encoded(_bodies.raw(stored[i])),
            }
            if features:
                document["terms"] = self._strategy.field(features)
            if concepts is not None:
                document["concepts"] = _concepts(concepts, i)
            if item.fields:
                document["meta"] = dict(item.fields)
            if item.modality == "text":
                document["words"] = item.content
            self.bulk.index(_bodies.document_id(item.id), orjson.dumps(document))

    def put_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Store the arrays as documents of their own; how many."""
        numbers = count()
        for name, array in arrays.items():
            data = _bodies.raw(array)
            for start in range(0, max(1, len(data)), BLOCK):
                block = {"array": name, "data": _bodies.encoded(data[start : start + BLOCK])}
                self.bulk.index(f"boc:block:{next(numbers)}", orjson.dumps({"block": block}))
        return next(numbers)


def _unit(vectors: NDArray[np.float32]) -> bool:
    """Whether no vector is longer than 1, roundings apart."""
    return bool((np.einsum("ij,ij->i", vectors, vectors) < (1 + _bodies.SLACK) / 2).all())


def _concepts(concepts: StoredConcepts, i: int) -> str:
    rows = slice(concepts.offsets[i], concepts.offsets[i + 1])
    scales = b"" if concepts.scales is None else _bodies.raw(concepts.scales[rows])
    return _bodies.encoded(scales + _bodies.raw(concepts.values[rows]))


def _counts(transport: Transport, physical: str) -> tuple[dict[str, int], int, int]:
    """Items by modality, postings, and digits of the largest frequency, as the server counts them."""
    body = {
        "size": 0,
        "aggs": {
            "modality": {"terms": {"field": "modality"}},
            "postings": {"sum": {"field": "size"}},
            "digits": {"max": {"field": "digits"}},
        },
    }
    found = transport.request("POST", f"/{physical}/_search", body, allow_partial_search_results="false")
    told = found["aggregations"]
    counts = {bucket["key"]: int(bucket["doc_count"]) for bucket in told["modality"]["buckets"]}
    return {m: counts.get(m, 0) for m in MODALITIES}, int(told["postings"]["value"]), int(told["digits"]["value"] or 1)
