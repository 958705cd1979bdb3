"""Send searches to an index on a server, repeat a search if a node has stopped, and check the
responses."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.vectors import batches

from .binary import from_base64
from .requests import WINDOW, Layout, dumps
from .transport import AWAY, Json, RefusedError, Transport, refusal

PAGE = 1000
"""Number of documents per request if vectors or concepts are included."""
SCAN = 5000
"""Number of documents per request if vectors and concepts are not included."""
GONE = AWAY | {"search_context_missing_exception"}
"""Errors of a search if a node stops after ranking the hits and before returning their fields."""
PAUSES = (0.0, 0.2, 1.0)
"""Seconds to wait before repeating a search after such an error, while the cluster switches to
another copy of the shard."""
WHOLE = {"allow_partial_search_results": "false"}
"""Search parameters that make a request fail if a shard does not respond, instead of returning
incomplete hits."""


@dataclass
class Searches:
    """Searches of ``target``, which is an index or an alias, with documents in ``layout``. If
    ``physical`` is given, hits from another index raise BackendError. ``only`` lists additional
    conditions for all searches. Thread-safe."""

    transport: Transport
    target: str
    layout: Layout
    physical: str | None = None
    pauses: Sequence[float] = PAUSES
    only: Sequence[Json] = ()

    def narrow(self, body: Json) -> Json:
        """Add the conditions in ``only`` to a search, to exclude items that have lost their
        code."""
        if not self.only or "knn" in body:
            return body
        query = {"bool": {"must": [body.get("query", {"match_all": {}})], "filter": [*self.only]}}
        return {**body, "query": query}

    def ask(self, body: Json, **params: Any) -> Json:
        """Send a search and return the response. ``params`` are additional URL parameters."""
        path = f"/{self.target}/_search"
        return self._check(self.transport.search(path, self.narrow(body), **WHOLE, **params))

    def pages(self, bodies: Sequence[Json], k: int, **params: Any) -> list[tuple[list[Json], int]]:
        """Return up to k hits for each body, and the number of matching documents (for k above
        ``WINDOW``, the number of hits). The request is repeated if a node stops during the
        search."""
        for pause in self.pauses:
            try:
                return self._pages(bodies, k, **params)
            except RefusedError as error:
                if error.kind not in GONE:
                    raise
            sleep(pause)
        return self._pages(bodies, k, **params)

    def _pages(self, bodies: Sequence[Json], k: int, **params: Any) -> list[tuple[list[Json], int]]:
        if k > WINDOW:
            narrow = map(self.narrow, bodies)
            scans = [list(scan(self.transport, self.target, body, k)) for body in narrow]
            return [(hits, len(hits)) for hits in scans]
        if len(bodies) == 1:
            return [_page(self.ask(bodies[0], **params))]
        head = orjson.dumps(WHOLE | params)
        lines = b"".join(head + b"\n" + dumps(self.narrow(body)) + b"\n" for body in bodies)
        answer = self.transport.search(f"/{self.target}/_msearch", lines)
        return [_page(self._check(each)) for each in answer["responses"]]

    def hits_of(self, ids: Sequence[str], fields: Json) -> list[Json]:
        """Return hits with ``fields`` for the items with these ``ids``, in the same order. Raises
        KeyError for an unknown id."""
        hits = {}
        for part in batches(list(dict.fromkeys(ids)), PAGE):
            keys = [key for key in map(self.layout.key, part) if key]
            query = {"ids": {"values": keys}}
            body = {
                "query": query,
                "size": len(keys),
                "sort": [self.layout.order],
                **fields,
            }
            for hit in self.ask(body)["hits"]["hits"]:
                hits[hit["sort"][0]] = hit
        return [hits[key] for key in ids]

    def _check(self, answer: Json) -> Json:
        """Return the response unchanged. Raises BackendError if a search failed or timed out."""
        if "error" in answer:
            raise refusal(self.transport.label, answer["status"], answer)
        if answer.get("timed_out"):
            raise BackendError(
                f"{self.transport.label} took too long; allow more time with "
                "?request_timeout=SECONDS",
            )
        hits = answer["hits"]["hits"]
        if self.physical and any(hit["_index"] != self.physical for hit in hits):
            raise BackendError(
                f"{self.target} at {self.transport.label} is now another index; open it again",
            )
        return answer


def _page(answer: Json) -> tuple[list[Json], int]:
    return answer["hits"]["hits"], answer["hits"]["total"]["value"]


def stored_arrays(
    transport: Transport,
    physical: str,
    blocks: int,
    described: Mapping[str, Json],
) -> dict[str, NDArray[Any]]:
    """Return the arrays stored as blocks in the index ``physical``, except arrays that do not match
    ``described``."""
    searches = Searches(transport, physical, Layout())
    data = {name: bytearray() for name in described}
    for number in range(blocks):
        query = {"ids": {"values": [f"boc:block:{number}"]}}
        body = {"query": query, "_source": ["array"], "docvalue_fields": ["block"]}
        answer = searches.ask(body)
        for hit in answer["hits"]["hits"]:
            if (name := hit["_source"].get("array")) in data:
                data[name] += from_base64(hit["fields"]["block"][0])
    arrays = {}
    for name, entry in described.items():
        flat = np.frombuffer(data[name], entry["dtype"])
        if flat.size == np.prod(entry["shape"], dtype=np.int64):
            arrays[name] = flat.reshape(entry["shape"])
    return arrays


def scan(
    transport: Transport,
    index: str,
    body: Json,
    k: int | None = None,
    size: int = SCAN,
) -> Iterator[Json]:
    """Return all hits of ``body``, or the first k, in the order that ``body`` specifies. The hits
    are read from a single point in time, in pages of up to ``size`` hits."""
    left = sys.maxsize if k is None else k
    # Clusters can limit this time (search.max_keep_alive).
    keep = "1m"
    pit = transport.open_pit(index, keep)
    path = "/_search"
    page: Json = {
        **body,
        "track_total_hits": False,
        "pit": {"id": pit, "keep_alive": keep},
    }
    try:
        while left > 0:
            page["size"] = min(size, left)
            try:
                answer = transport.request("POST", path, page, **WHOLE)
            except RefusedError as error:
                if error.status != 403 or "search_after" in page or "pit" not in page:
                    raise
                # Privileges on an alias are not sufficient to open a point in time.
                path = f"/{index}/_search"
                del page["pit"]
                continue
            hits = answer["hits"]["hits"]
            yield from hits
            if len(hits) < page["size"]:
                return
            pit = answer.get("pit_id", pit)
            if "pit" in page:
                page["pit"] = {"id": pit, "keep_alive": keep}
            page["search_after"] = hits[-1]["sort"]
            left -= len(hits)
    finally:
        transport.close_pit(pit)
