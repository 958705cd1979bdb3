"""The embedded index: immutable arrays in a folder, memory-mapped.

``DIR/NAME/CURRENT`` names the generation folder that is the index; everything in it was complete and on the disk
before CURRENT pointed at it. A generation holds ``manifest.json`` and, over n items sorted by id and V terms::

    indptr.npy       int64 (V + 1,)   posting list j is rows[indptr[j]:indptr[j + 1]]
    rows.npy         int32            item of each posting, ascending in a list
    frequencies.npy  smallest of uint8, uint16, int32 that holds the largest term frequency
    vectors.npy      (n, d)           the dense vectors, for re-ranking
    concepts.npy     (N, d)           concept sets, if the index holds them: float16 or int8 rows of all items,
    concept_offsets.npy  int64 (n + 1,)  where those of each item begin,
    concept_scales.npy   float32 (N,)    and what int8 rows are to be multiplied by
    modality.npy     uint8 (n,)       0 picture, 1 sentence
    ids, content, group               each .bin (UTF-8) and .npy (int64 offsets (n + 1,))
    codec/*.npy      learned arrays of the codec
    files.json       size of each file, checked on opening
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError, ManifestError
from boc.files import sole_writer, sync
from boc.manifest import Manifest
from boc.types import MODALITIES, Hit, Item, Modality, StoredConcepts, TermMatrix

BLOCK = 16384  # rows copied at a time
PARTS = {  # of the size of an index, by the first word of a file's name
    "indptr": "postings",
    "rows": "postings",
    "frequencies": "postings",
    "vectors": "vectors",
    "concepts": "concepts",
    "concept": "concepts",
}


def connect(url: str) -> EmbeddedBackend:
    """Back end for ``file:DIR``. The folder is made when the first index is."""
    folder = url.partition(":")[2]
    if not folder:
        raise BackendError(f"{url!r} names no folder; write file:DIR, for example file:boc-data")
    return EmbeddedBackend(Path(folder).expanduser())


def accumulate(
    indptr: NDArray[np.int64],
    rows: NDArray[np.int32],
    frequencies: NDArray[Any],
    query: tuple[NDArray[np.int32], NDArray[np.int32]],
    n: int,
) -> NDArray[np.float64]:
    """Scores (n,) of all items: for each term of the query, its weight times the frequencies in its posting list.

    Whole numbers in float64, hence exact up to 2**53.
    """
    terms, weights = query
    lists = [slice(indptr[j], indptr[j + 1]) for j in terms]
    lengths = [s.stop - s.start for s in lists]
    if not sum(lengths):
        return np.zeros(n)
    products = np.concatenate([frequencies[s] for s in lists]).astype(np.float64)
    products *= np.repeat(weights.astype(np.float64), lengths)
    return np.bincount(np.concatenate([rows[s] for s in lists]), products, n).astype(np.float64, copy=False)


def top_k(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Rows of the at most k largest positive scores, best first, ties to the lower row."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        threshold = np.partition(scores[found], -k)[-k]
        found = found[scores[found] >= threshold]
    return found[np.lexsort((found, -scores[found]))][:k]


def gather(
    rows: NDArray[Any], offsets: NDArray[np.int64], chosen: NDArray[np.int64], out: NDArray[Any]
) -> NDArray[np.int64]:
    """Copy the sets ``chosen`` of ``rows`` into ``out``, side by side in that order; their offsets there.

    They are read in the order of the file.
    """
    places = _offsets(np.diff(offsets)[chosen])
    for i in np.argsort(chosen, kind="stable").tolist():
        out[places[i] : places[i + 1]] = rows[offsets[chosen[i]] : offsets[chosen[i] + 1]]
    return places


class EmbeddedBackend:
    """A folder of embedded indexes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self, name: str) -> bool:
        return (self.folder / name / "CURRENT").is_file()

    def create(self, name: str, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> EmbeddedWriter:
        return EmbeddedWriter(self.folder / name, manifest, arrays)

    def open(self, name: str) -> EmbeddedIndex:
        if not self.exists(name):
            known = sorted(p.parent.name for p in self.folder.glob("*/CURRENT"))
            there = f"it holds: {', '.join(known)}" if known else "it holds none"
            raise BackendError(
                f"no index {name!r} in file:{self.folder} ({there}); make it with boc index {name} SOURCE"
            )
        while True:
            current = self._current(name)
            try:
                return EmbeddedIndex(current)
            except (ManifestError, OSError):
                if current == self._current(name):
                    raise  # damaged; otherwise it was replaced while being opened

    def _current(self, name: str) -> Path:
        return self.folder / name / (self.folder / name / "CURRENT").read_text(encoding="utf-8").strip()


class EmbeddedIndex:
    """One generation of an index, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _check_files(folder)
        self.manifest = Manifest.from_json((folder / "manifest.json").read_text(encoding="utf-8"), where=str(folder))
        self._indptr = self._map("indptr")
        self._rows = self._map("rows")
        self._frequencies = self._map("frequencies")
        self._vectors = self._map("vectors")
        self._concepts = self._map_concepts()
        self._modality = self._map("modality")
        self._ids = _Strings(folder, "ids")
        self._content = _Strings(folder, "content")
        self._group = _Strings(folder, "group")
        self._arrays = {path.stem: _load(path) for path in sorted((folder / "codec").glob("*.npy"))}

    def __len__(self) -> int:
        return len(self._modality)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Codec arrays; ManifestError if they are not those the index was made with."""
        self.manifest.check_arrays(self._arrays, where=str(self.folder))
        return self._arrays

    def search(self, queries: TermMatrix, k: int, modality: Modality | None = None) -> list[list[Hit]]:
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        if queries.shape[1] != len(self._indptr) - 1:
            raise BackendError(f"queries have {queries.shape[1]} terms, the index has {len(self._indptr) - 1}")
        return [self._search_one(queries, i, k, modality) for i in range(queries.shape[0])]

    def _search_one(self, queries: TermMatrix, i: int, k: int, modality: Modality | None) -> list[Hit]:
        span = slice(queries.indptr[i], queries.indptr[i + 1])
        query = queries.indices[span], queries.data[span]
        scores = accumulate(self._indptr, self._rows, self._frequencies, query, len(self))
        if modality is not None:
            scores *= self._modality == MODALITIES.index(modality)
        return [Hit(self._item(row), float(scores[row])) for row in top_k(scores, k)]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        found: NDArray[np.floating[Any]] = self._vectors[self._find(ids)]
        return found

    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        stored = self._concepts
        if stored is None:
            raise BackendError(
                f"the index in {self.folder.parent} holds no concept sets; make it anew with boc index --concepts "
                "float16, or re-rank by dot"
            )
        chosen = self._find(ids)
        n = int((stored.offsets[chosen + 1] - stored.offsets[chosen]).sum())
        values = np.empty((n, stored.values.shape[1]), stored.values.dtype)
        offsets = gather(stored.values, stored.offsets, chosen, values)
        if stored.scales is None:
            return StoredConcepts(values, offsets)
        scales = np.empty(n, np.float32)
        gather(stored.scales, stored.offsets, chosen, scales)
        return StoredConcepts(values, offsets, scales)

    def items(self) -> Iterator[Item]:
        return (self._item(row) for row in range(len(self)))

    def sizes(self) -> dict[str, int]:
        found = dict.fromkeys(("postings", "vectors", "concepts", "other"), 0)
        for path in self.folder.rglob("*"):
            if path.is_file():
                found[PARTS.get(path.stem.partition("_")[0], "other")] += path.stat().st_size
        return found

    def terms(self, ids: Sequence[str]) -> TermMatrix:
        """Reads every posting: for checks and explanations, not for queries."""
        postings = sparse.csc_array(
            (self._frequencies.astype(np.int32), self._rows, self._indptr), shape=(len(self), len(self._indptr) - 1)
        )
        chosen = postings.tocsr()[self._find(ids)]
        chosen.sort_indices()
        return chosen

    def _find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._ids.find(key) for key in ids], dtype=np.int64)

    def _item(self, row: int) -> Item:
        modality = MODALITIES[self._modality[row]]
        return Item(self._ids[row], modality, self._content[row], self._group[row])

    def _map_concepts(self) -> StoredConcepts | None:
        if self.manifest.concept_dtype is None:
            return None
        scales = self._map("concept_scales") if self.manifest.concept_dtype == "int8" else None
        return StoredConcepts(self._map("concepts"), self._map("concept_offsets"), scales)

    def _map(self, name: str) -> NDArray[Any]:
        return _load(self.folder / f"{name}.npy")


class EmbeddedWriter:
    """Collects rows, then writes one generation. Term frequencies wait in memory, vectors and concepts on the disk."""

    def __init__(self, folder: Path, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._home = folder
        self._manifest = manifest
        self._arrays = arrays
        self._items: list[Item] = []
        self._ids: set[str] = set()
        self._terms: list[sparse.csr_array] = []
        self._lengths: list[NDArray[np.int64]] = []  # of concept sets
        self._concept_dim = 0
        self._stage = folder / f"building-{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> EmbeddedWriter:
        try:
            self._lock = sole_writer(self._home)
            self._lock.__enter__()
            for stale in self._home.glob("building-*"):
                shutil.rmtree(stale)  # left by a killed process: the lock says that nobody writes
            (self._stage / "codec").mkdir(parents=True)
            self._spools = {
                name: (self._stage / f"{name}.spool").open("wb") for name in ("vectors", "concepts", "concept_scales")
            }
        except OSError as error:
            raise BackendError(
                f"{self._home}: cannot be written ({error.strerror or error}); choose another place with --at"
            ) from error
        return self

    def __exit__(self, *exc: object) -> None:
        self._close_spools()
        shutil.rmtree(self._stage, ignore_errors=True)
        self._lock.__exit__(None, None, None)

    def add(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        if not len(items) == terms.shape[0] == len(vectors):
            raise BackendError(f"{len(items)} items, {terms.shape[0]} term rows, {len(vectors)} vectors: must be equal")
        found = terms.shape[1], vectors.shape[1]
        wanted = self._manifest.codec["n_terms"], self._manifest.identity.dim
        if found != wanted:
            raise BackendError(f"(terms, dimension) of the rows are {found}, those of the index {wanted}")
        self._check_concepts(items, concepts)
        counts = Counter(item.id for item in items)
        repeated = next((key for key, count in counts.items() if count > 1 or key in self._ids), None)
        if repeated is not None:
            raise BackendError(f"the id {repeated!r} occurs more than once; make ids unique")
        self._ids.update(counts)
        self._items += items
        self._terms.append(terms)
        vectors.astype(self._manifest.vector_dtype).tofile(self._spools["vectors"])
        if concepts is not None:
            self._concept_dim = concepts.values.shape[1]
            self._lengths.append(np.diff(concepts.offsets))
            concepts.values.tofile(self._spools["concepts"])
            if concepts.scales is not None:
                concepts.scales.tofile(self._spools["concept_scales"])

    def _check_concepts(self, items: Sequence[Item], concepts: StoredConcepts | None) -> None:
        wanted = self._manifest.concept_dtype
        found = None if concepts is None else concepts.values.dtype.name
        if found != wanted:
            raise BackendError(f"concept sets of type {found}, those of the index are of type {wanted}")
        if concepts is None:
            return
        if len(concepts) != len(items):
            raise BackendError(f"{len(items)} items, {len(concepts)} concept sets: must be equal")
        if self._lengths and concepts.values.shape[1] != self._concept_dim:
            raise BackendError(f"concepts of {concepts.values.shape[1]} components after some of {self._concept_dim}")

    def commit(self) -> None:
        if not self._items:
            raise BackendError(f"nothing was added to {self._home}; an index needs at least one item")
        order = np.array(sorted(range(len(self._items)), key=lambda i: self._items[i].id), dtype=np.int64)
        items = [self._items[i] for i in order]
        postings = self._write_postings(order)
        self._close_spools()
        self._write_vectors(order)
        self._write_concepts(order)
        self._write_items(items)
        for name, array in self._arrays.items():
            np.save(self._stage / "codec" / f"{name}.npy", array, allow_pickle=False)
        counts: dict[str, int] = {m: sum(item.modality == m for item in items) for m in MODALITIES}
        manifest = replace(self._manifest, items=counts, postings=postings)
        (self._stage / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
        self._publish()

    def _write_postings(self, order: NDArray[np.int64]) -> int:
        terms = sparse.vstack(self._terms, format="csr")[order].tocsc()
        terms.sort_indices()
        largest = int(terms.data.max(initial=0))
        dtype = next(t for t in (np.uint8, np.uint16, np.int32) if largest <= np.iinfo(t).max)
        self._save("indptr", terms.indptr.astype(np.int64))
        self._save("rows", terms.indices.astype(np.int32))
        self._save("frequencies", terms.data.astype(dtype))
        return int(terms.nnz)

    def _write_vectors(self, order: NDArray[np.int64]) -> None:
        dtype, dim = np.dtype(self._manifest.vector_dtype), self._manifest.identity.dim
        flat = self._spooled("vectors", dtype, (len(order), dim))
        out = self._saving("vectors", dtype, (len(order), dim))
        for i in range(0, len(order), BLOCK):
            out[i : i + BLOCK] = flat[order[i : i + BLOCK]]
        out.flush()

    def _write_concepts(self, order: NDArray[np.int64]) -> None:
        if self._manifest.concept_dtype is not None:
            offsets = _offsets(np.concatenate(self._lengths))
            shape, dtype = (int(offsets[-1]), self._concept_dim), np.dtype(self._manifest.concept_dtype)
            out = self._saving("concepts", dtype, shape)
            self._save("concept_offsets", gather(self._spooled("concepts", dtype, shape), offsets, order, out))
            out.flush()
            if dtype == np.int8:
                scales = np.empty(shape[0], np.float32)
                gather(self._spooled("concept_scales", np.dtype(np.float32), shape[:1]), offsets, order, scales)
                self._save("concept_scales", scales)
        for spool in self._stage.glob("*.spool"):
            spool.unlink()

    def _close_spools(self) -> None:
        for spool in self._spools.values():
            spool.close()

    def _spooled(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if 0 in shape:
            return np.empty(shape, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(self._stage / f"{name}.spool", dtype=dtype, mode="r", shape=shape))

    def _saving(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, Any]:
        return np.lib.format.open_memmap(self._stage / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)

    def _write_items(self, items: Sequence[Item]) -> None:
        self._save("modality", np.array([MODALITIES.index(item.modality) for item in items], dtype=np.uint8))
        for name, values in (
            ("ids", [item.id for item in items]),
            ("content", [item.content for item in items]),
            ("group", [item.group for item in items]),
        ):
            encoded = [value.encode("utf-8") for value in values]
            (self._stage / f"{name}.bin").write_bytes(b"".join(encoded))
            self._save(name, np.cumsum([0, *map(len, encoded)], dtype=np.int64))

    def _save(self, name: str, array: NDArray[Any]) -> None:
        np.save(self._stage / f"{name}.npy", array, allow_pickle=False)

    def _publish(self) -> None:
        """Everything to the disk, then the one rename that makes it the index, then the old generation away."""
        files = [path for path in sorted(self._stage.rglob("*")) if path.is_file()]
        sizes = {path.relative_to(self._stage).as_posix(): path.stat().st_size for path in files}
        (self._stage / "files.json").write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        for path in [*files, self._stage / "files.json"]:
            sync(path)
        sync(self._stage / "codec")
        sync(self._stage)
        generation = self._home / self._stage.name.replace("building-", "generation-")
        self._stage.rename(generation)
        sync(self._home)
        note = self._home / ".CURRENT.tmp"
        note.write_text(generation.name, encoding="utf-8")
        sync(note)
        note.replace(self._home / "CURRENT")
        sync(self._home)
        for old in self._home.glob("generation-*"):
            if old != generation:
                shutil.rmtree(old, ignore_errors=True)


class _Strings:
    """n UTF-8 strings in one file, found by number, or by value if they are sorted."""

    def __init__(self, folder: Path, name: str) -> None:
        self._offsets = _load(folder / f"{name}.npy")
        path = folder / f"{name}.bin"
        # Views, not memory maps: slicing a numpy.memmap costs ten times the slice.
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r").data if path.stat().st_size else memoryview(b"")
        self._ends = self._offsets.data

    def __getitem__(self, i: int) -> str:
        return str(self._bytes[self._ends[i] : self._ends[i + 1]], "utf-8")

    def find(self, value: str) -> int:
        low, high = 0, len(self._offsets) - 1
        while low < high:
            middle = (low + high) // 2
            if self[middle] < value:
                low = middle + 1
            else:
                high = middle
        if low == len(self._offsets) - 1 or self[low] != value:
            raise KeyError(value)
        return low


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _load(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}); make the index anew with boc index") from error
    return array


def _check_files(folder: Path) -> None:
    """ManifestError unless every file of the generation is there with its size."""
    try:
        sizes = json.loads((folder / "files.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ManifestError(f"{folder}: its list of files cannot be read ({error}); make the index anew") from error
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise ManifestError(f"{path}: missing or cut short; make the index anew with boc index")
