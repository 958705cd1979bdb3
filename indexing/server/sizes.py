"""Bytes of an index on a server, by part."""

from __future__ import annotations

from .aliases import Generation
from .transport import RefusedError, Transport

PARTS = {"terms": "postings", "vector": "vectors", "concepts": "concepts"}  # by field
POSTING_FILES = {"doc", "pos", "psm", "tim", "tip", "tmd"}  # suffixes of Lucene's files of posting lists


def sizes(transport: Transport, generation: Generation) -> dict[str, int]:
    """Bytes of ``PARTS`` and of ``other`` things; of an attached code, of its own fields alone."""
    found = dict.fromkeys((*PARTS.values(), "other"), 0) | _by_part(transport, generation)
    if generation.layout.prefix:
        return found
    # Not from _stats, which servers cache for some seconds.
    told = transport.request("GET", f"/{generation.physical}/_segments")
    copies = [copy for shard in told["indices"][generation.physical]["shards"].values() for copy in shard]
    segments = [s for copy in copies if copy["routing"]["primary"] for s in copy["segments"].values()]
    stored = sum(int(segment["size_in_bytes"]) for segment in segments if segment["search"])
    return found | {"other": max(0, stored - sum(found.values()))}


def _by_part(transport: Transport, generation: Generation) -> dict[str, int]:
    """From the server's analysis of its fields, or else from its files."""
    index, prefix, manifest = generation.target, generation.layout.prefix, generation.manifest
    try:
        # OpenSearch has no such analysis, and a user may lack the right to it.
        answer = transport.request("POST", f"/{index}/_disk_usage", run_expensive_tasks="true", timeout=600)
    except RefusedError:
        answer = transport.request("GET", f"/{index}/_stats/segments", include_segment_file_sizes="true")
        files = answer["_all"]["primaries"]["segments"]["file_sizes"]
        mine = {} if prefix else files  # not told apart from those of other fields
        postings = sum(int(entry["size_in_bytes"]) for kind, entry in mine.items() if kind in POSTING_FILES)
        row = generation.vectors.bytes(manifest.identity.dim)
        return {"postings": postings, "vectors": row * sum(manifest.items.values())}
    found = dict.fromkeys(PARTS.values(), 0)
    (told,) = (entry["fields"] for name, entry in answer.items() if name != "_shards")
    for path, entry in told.items():
        part = PARTS.get(path.removeprefix(prefix).partition(".")[0])
        if path.startswith(prefix) and part is not None:
            found[part] += int(entry["total_in_bytes"])
    return found
