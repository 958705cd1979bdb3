"""Write an embedded index. Rows are buffered, flushed to segments, and published by a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from boc.atomic_files import sole_writer
from boc.errors import BackendError, ManifestError, UnreachableError
from boc.manifest import FORMAT, Manifest
from boc.rerank.compact import CompactCode
from boc.rerank.storage import store_rows
from boc.types import MODALITIES, Item, Rows, StoredConcepts, TermMatrix
from boc.vectors import Array

from .._validate import check_rows, not_unique
from . import commits, fs
from .commits import LOADING, Commit
from .live_segments import LiveSegment, list_entries, open_current, open_parts
from .merge import Merger
from .npy_files import Files
from .segment import Segment, gather_segment, side_by_side

# Size of a full buffer in bytes. A flush takes twice as much memory while the next buffer fills.
WAITING = 48 << 20


class _Buffer:
    """Buffer for rows in memory. If an id occurs several times, only the last row is kept."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._items: list[Item] = []
        self._terms: list[TermMatrix] = []
        self._vectors: list[Array] = []
        self._concepts: list[StoredConcepts] = []
        self.place: dict[str, int] = {}
        self.size = 0

    def add(self, rows: Rows) -> None:
        items, terms, vectors, concepts = rows
        self.place.update(zip([item.id for item in items], count(len(self._items)), strict=False))
        self._items += items
        self._terms.append(terms)
        stored = store_rows(vectors, self._manifest.vector_dtype)
        self._vectors.append(stored.copy() if stored is vectors else stored)
        if concepts is not None:
            self._concepts.append(concepts)
            self.size += concepts.values.nbytes
        self.size += 8 * terms.nnz + self._vectors[-1].nbytes + 100 * len(items)
        self.size += sum([len(item.content) for item in items])

    def segment(self) -> Segment:
        terms = sparse.vstack(self._terms, format="csr")
        concepts = side_by_side(self._concepts) if self._concepts else None
        self._terms.clear()  # freed now, otherwise memory would hold all rows three times
        self._concepts.clear()
        return gather_segment(
            self._items,
            terms,
            self._vectors,
            concepts,
            self._manifest.fields,
            self.place.values(),
        )


class _Writing:
    """Base class for writers. Manages the lock, the buffer, the segments and the final commit."""

    _manifest: Manifest
    _arrays: Mapping[str, Array]
    _codec: tuple[str, Files] | None = None
    """Folder that contains the learned arrays, and its files, once they have been stored."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._held = ExitStack()

    def _begin(self) -> None:
        """Lock the folder, and open the existing segments."""
        try:
            self._held.enter_context(sole_writer(self._home))
        except OSError as error:
            raise BackendError(
                f"{self._home}: cannot be written ({error.strerror or error})",
                "choose another place with <--at>",
            ) from error
        with ExitStack() as held:
            held.enter_context(self._held)
            self._held.callback(self._remove_if_empty)
            parts = self._first_parts()
            self._buffer = _Buffer(self._manifest)
            self._merger = Merger(
                self._home,
                self._manifest,
                parts,
                CompactCode.of(self._manifest.codec, self._arrays, self._manifest.identity.dim),
            )
            sets = next((part.segment.concepts for part in parts), None)
            self._concept_dim = None if sets is None else sets.values.shape[1]
            held.pop_all()

    def _remove_if_empty(self) -> None:
        """Remove the folder if it contains only the lock, because no index existed and no index was
        created."""
        if {path.name for path in self._home.iterdir()} <= {".lock"}:
            fs.remove(self._home)

    def _first_parts(self) -> list[LiveSegment]:
        raise NotImplementedError

    def _store(self, rows: Rows) -> None:
        self._buffer.add(rows)
        if self._buffer.size >= WAITING:
            self._flush()

    def _check(self, rows: Rows) -> None:
        check_rows(self._manifest, rows, self._concept_dim)
        if rows.concepts is not None:
            self._concept_dim = rows.concepts.values.shape[1]

    def _flush(self) -> None:
        if self._buffer.place:
            self._merger.add(self._buffer.segment())
        self._buffer = _Buffer(self._manifest)

    def _commit(self) -> Commit:
        """Write the tombstone files for the current segments, and return a commit that contains
        these segments."""
        parts = self._merger.parts
        if self._codec is None:
            self._codec = commits.keep_codec(self._home, self._arrays)
        codec, files = self._codec
        entries, named = list_entries(self._home, parts)
        counts = [part.segment.counts(part.live) for part in parts]
        items: dict[str, int] = {m: sum(each[m] for each in counts) for m in MODALITIES}
        manifest = replace(
            self._manifest,
            items=items,
            postings=sum(int(part.segment.count(part.live).sum()) for part in parts),
            format=FORMAT,
        )
        return Commit(
            manifest,
            codec,
            entries,
            files | named,
        )

    def _publish(self) -> None:
        commits.publish(self._home, self._commit())
        _sweep(self._home)


class EmbeddedWriter(_Writing):
    """Write a new index, which replaces any existing index.

    If the process is killed, loading the same contents again reuses the flushed segments.
    """

    def __init__(self, home: Path, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        super().__init__(home)
        self._manifest = manifest
        self._arrays = arrays
        self._hashes = np.empty(0, np.int64)  # sorted hashes of the ids in segments
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._left: Future[None] | None = None  # the flush in progress
        self._goes_on = False  # whether this load resumes an earlier load
        self._committed = False

    def __enter__(self) -> EmbeddedWriter:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        with self._held:
            self._pool.shutdown()
            later = kind is not None and (
                issubclass(kind, UnreachableError) or not issubclass(kind, Exception)
            )
            if self._committed or not later:  # otherwise the load can be resumed
                fs.remove(self._home / LOADING)
                _sweep(self._home)

    def has(self, ids: Sequence[str]) -> bool:
        return self._goes_on and len(self._known_ids(ids)) == len(ids)

    def add(self, rows: Rows) -> None:
        self._check(rows)
        for known in self._known_ids([item.id for item in rows.items]):
            raise not_unique(known)
        self._store(rows)

    def commit(self) -> None:
        self._wait()
        super()._flush()
        self._merger.compact()
        if not self._merger.parts:
            raise BackendError(
                f"no items were added to {self._home}; an index needs at least one item",
            )
        self._publish()
        self._committed = True

    def _first_parts(self) -> list[LiveSegment]:
        load = commits.broken_load(self._home)
        parts = []
        if load is not None and load.manifest.same_contents(self._manifest):
            self._manifest = load.manifest
            parts = open_parts(self._home, load)
            self._goes_on = True
            for part in parts:
                self._remember(part.segment.texts["ids"][row] for row in range(len(part.segment)))
        else:
            fs.remove(self._home / LOADING)
        _sweep(self._home)
        return parts

    def _flush(self) -> None:
        self._wait()
        self._remember(self._buffer.place)
        leaving = self._buffer
        self._buffer = _Buffer(self._manifest)
        self._left = self._pool.submit(self._leave, leaving)

    def _leave(self, rows: _Buffer) -> None:
        self._merger.add(rows.segment())
        commits.note_load(self._home, self._commit())

    def _wait(self) -> None:
        if self._left is not None:
            self._left.result()
            self._left = None

    def _remember(self, ids: Iterable[str]) -> None:
        self._hashes = np.sort(
            np.concatenate([self._hashes, [hash(key) for key in ids]]).astype(np.int64),
        )

    def _known_ids(self, ids: Sequence[str]) -> list[str]:
        asked = np.array([hash(key) for key in ids], np.int64)
        places = np.searchsorted(self._hashes, asked)
        near = places < len(self._hashes)
        near[near] = self._hashes[places[near]] == asked[near]
        if not near.any() and self._buffer.place.keys().isdisjoint(ids):
            return []
        self._wait()
        parts = self._merger.parts
        return [
            key
            for key, maybe in zip(ids, near.tolist(), strict=True)
            if key in self._buffer.place
            or (maybe and any(part.find(key) is not None for part in parts))
        ]


class EmbeddedEditor(_Writing):
    """Edit an index by adding segments and marking rows in other segments as deleted."""

    def __enter__(self) -> EmbeddedEditor:
        self._begin()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._held:
            _sweep(self._home)

    def put(self, rows: Rows) -> None:
        self._check(rows)
        for item in rows.items:
            self._remove(item.id)
        self._store(rows)

    def delete(self, ids: Sequence[str]) -> int:
        return sum(self._remove(key) for key in dict.fromkeys(ids))

    def commit(self, source: str, **changed: Any) -> None:
        self._flush()
        self._merger.settle()
        self._manifest = replace(self._manifest, **changed)
        self._finish(source)

    def compact(self) -> None:
        """Merge all segments into a single segment without tombstones."""
        self._merger.compact()
        self._finish(self._manifest.source)

    def _finish(self, source: str) -> None:
        if not self._merger.parts:
            name = self._home.name
            raise BackendError(
                f"no items would be left in {name}",
                f"to remove all of it: <boc delete {name} --all>",
            )
        self._manifest = replace(self._manifest, source=source)
        self._publish()

    def _first_parts(self) -> list[LiveSegment]:
        opened = open_current(self._home)
        self._manifest = opened.manifest
        self._arrays = opened.arrays
        self._codec = opened.commit.codec, opened.commit.inside(opened.commit.codec)
        commits.forget_done_load(self._home, opened.manifest)
        _sweep(self._home)
        return opened.parts

    def _remove(self, key: str) -> bool:
        waiting = self._buffer.place.pop(key, None) is not None
        return waiting or any(part.remove(key) for part in self._merger.parts)


def _sweep(home: Path) -> None:
    """Remove files that are not needed by the current commit or by an unfinished load."""
    names = {"CURRENT", LOADING}
    kept = []
    try:
        if (home / "CURRENT").is_file():
            names.add(commits.current(home))
        if any(name.startswith("commit-") for name in names):
            kept.append(commits.read_current(home)[1])
        if (home / LOADING).is_file():
            kept.append(commits.read(home / LOADING))
    except ManifestError:
        return  # it is not known which files a damaged index needs
    commits.sweep(home, kept, names)
