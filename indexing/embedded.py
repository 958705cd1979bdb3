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
    fields                            the same, if the manifest declares metadata: JSON of each item's
    codec/*.npy      learned arrays of the codec
    files.json       size of each file, checked on opening
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError, ManifestError
from boc.files import sole_writer, sync
from boc.manifest import FORMAT, Manifest
from boc.metadata import holds
from boc.rerank import dot
from boc.types import MODALITIES, Filter, Hit, Item, Modality, Rescore, StoredConcepts, TermMatrix, Words

from ._rows import check_rows, not_unique

_Rows: TypeAlias = tuple[list[Item], TermMatrix, NDArray[np.floating[Any]], StoredConcepts | None]

BLOCK = 16384  # rows copied at a time
FILTERS = 16  # sets of filters whose items are remembered
WORDLESS = "the embedded index does not search by words; leave out --hybrid, or index on a server (--at elastic+URL)"
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

    def edit(self, name: str) -> EmbeddedEditor:
        self._check(name)
        return EmbeddedEditor(self.folder / name, lambda: self.open(name))

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob("*/CURRENT"))

    def remove(self, name: str) -> None:
        self._check(name)
        with sole_writer(self.folder / name):
            (self.folder / name / "CURRENT").unlink()
            sync(self.folder / name)
            shutil.rmtree(self.folder / name)

    def about(self) -> dict[str, str]:
        return {
            "engine": "embedded: memory-mapped arrays",
            "place": f"file:{self.folder}",
            "scores": "exact up to 2^53",
            "words": "not searched",
        }

    def open(self, name: str) -> EmbeddedIndex:
        self._check(name)
        while True:
            current = self._current(name)
            try:
                return EmbeddedIndex(current)
            except (ManifestError, OSError):
                if current == self._current(name):
                    raise  # damaged; otherwise it was replaced while being opened

    def _check(self, name: str) -> None:
        if not self.exists(name):
            known = self.names()
            there = f"it holds: {', '.join(known)}" if known else "it holds none"
            raise BackendError(
                f"no index {name!r} in file:{self.folder} ({there}); make it with boc index {name} SOURCE"
            )

    def _current(self, name: str) -> Path:
        return self.folder / name / (self.folder / name / "CURRENT").read_text(encoding="utf-8").strip()


class EmbeddedIndex:
    """One generation of an index, memory-mapped."""

    exact_vectors = True

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
        self._fields = _Strings(folder, "fields") if self.manifest.fields else None
        self._mask = lru_cache(FILTERS)(self._masked)
        self._arrays = {path.stem: _load(path) for path in sorted((folder / "codec").glob("*.npy"))}

    def __len__(self) -> int:
        return len(self._modality)

    def __contains__(self, key: str) -> bool:
        try:
            self._ids.find(key)
        except KeyError:
            return False
        return True

    @property
    def concept_dim(self) -> int:
        """Components of a stored concept; 0 without any."""
        return 0 if self._concepts is None else self._concepts.values.shape[1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Codec arrays; ManifestError if they are not those the index was made with."""
        self.manifest.check_arrays(self._arrays, where=str(self.folder))
        return self._arrays

    def search(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None = None,
        *,
        filters: Sequence[Filter] = (),
        rescore: Rescore | None = None,
        words: Words | None = None,
    ) -> list[list[Hit]]:
        if words is not None:
            raise BackendError(WORDLESS)
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        if queries.shape[1] != len(self._indptr) - 1:
            raise BackendError(f"queries have {queries.shape[1]} terms, the index has {len(self._indptr) - 1}")
        wanted = self._mask(modality, tuple(filters))
        found = []
        for i in range(queries.shape[0]):
            best = self._candidates(queries, i, k, wanted)
            if rescore is not None and len(best[0]):
                best = self._rescored(best[0], rescore.vectors[i], rescore.k)
            found.append([Hit(self._item(row), float(score)) for row, score in zip(*best, strict=True)])
        return found

    def match(
        self, texts: Sequence[str], k: int, modality: Modality | None = None, filters: Sequence[Filter] = ()
    ) -> list[list[Hit]]:
        raise BackendError(WORDLESS)

    def _candidates(
        self, queries: TermMatrix, i: int, k: int, wanted: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
        """Rows of the k best items for query number i, and their scores."""
        span = slice(queries.indptr[i], queries.indptr[i + 1])
        query = queries.indices[span], queries.data[span]
        scores = accumulate(self._indptr, self._rows, self._frequencies, query, len(self))
        if wanted is not None:
            scores *= wanted
        rows = top_k(scores, k)
        return rows, scores[rows]

    def _rescored(
        self, rows: NDArray[np.int64], query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
        """The k of ``rows`` whose vectors have the largest dot product with ``query``; rows are ordered as ids are."""
        scores = dot(query, self._vectors[rows])
        order = np.lexsort((rows, -scores))[:k]
        return rows[order], scores[order]

    def _masked(self, modality: Modality | None, filters: tuple[Filter, ...]) -> NDArray[np.bool_] | None:
        """Which items (n,) are of this modality and pass all filters; None if nothing is asked."""
        mask = None if modality is None else self._modality == MODALITIES.index(modality)
        if filters:
            passed = [all(holds(condition, self._fields_of(row)) for condition in filters) for row in range(len(self))]
            mask = np.array(passed, dtype=np.bool_) & (True if mask is None else mask)
        return mask

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
        return self._concepts_of(stored, self._find(ids))

    def _concepts_of(self, stored: StoredConcepts, chosen: NDArray[np.int64]) -> StoredConcepts:
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

    def find(self, ids: Sequence[str]) -> list[Item]:
        return [self._item(row) for row in self._find(ids)]

    def rows_but(self, left_out: Container[str]) -> Iterator[_Rows]:
        """All rows, in blocks, as a generation stores them; without those of some ids."""
        terms, keys = self._all_terms(), (self._ids[row] for row in range(len(self)))
        kept = np.array([row for row, key in enumerate(keys) if key not in left_out], dtype=np.int64)
        for start in range(0, len(kept), BLOCK):
            chosen = kept[start : start + BLOCK]
            items = [self._item(row) for row in chosen]
            sets = None if self._concepts is None else self._concepts_of(self._concepts, chosen)
            yield items, terms[chosen], self._vectors[chosen], sets

    def sizes(self) -> dict[str, int]:
        found = dict.fromkeys(("postings", "vectors", "concepts", "other"), 0)
        for path in self.folder.rglob("*"):
            if path.is_file():
                found[PARTS.get(path.stem.partition("_")[0], "other")] += path.stat().st_size
        return found

    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        chosen = self._find(ids)
        found = self._all_terms()[chosen] if among is None else self._terms_among(chosen, among)
        found.sort_indices()
        return found

    def document_frequencies(self) -> NDArray[np.int64]:
        return np.diff(self._indptr)

    def _all_terms(self) -> TermMatrix:
        """Reads every posting."""
        postings = sparse.csc_array(
            (self._frequencies.astype(np.int32), self._rows, self._indptr), shape=(len(self), len(self._indptr) - 1)
        )
        return postings.tocsr()

    def _terms_among(self, chosen: NDArray[np.int64], among: Sequence[int]) -> TermMatrix:
        """Looks the ``chosen`` rows up in the posting lists of the terms ``among``."""
        parts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        for term in sorted(set(among)):
            span = slice(self._indptr[term], self._indptr[term + 1])
            listed, places = self._rows[span], np.searchsorted(self._rows[span], chosen)
            inside = np.flatnonzero(places < len(listed))
            inside = inside[listed[places[inside]] == chosen[inside]]
            parts.append((self._frequencies[span][places[inside]], inside, np.full(len(inside), term)))
        shape = len(chosen), len(self._indptr) - 1
        if not parts:
            return sparse.csr_array(shape, dtype=np.int32)
        data, rows, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
        return sparse.csr_array((data.astype(np.int32), (rows, columns)), shape=shape)

    def _find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._ids.find(key) for key in ids], dtype=np.int64)

    def _item(self, row: int) -> Item:
        modality = MODALITIES[self._modality[row]]
        return Item(self._ids[row], modality, self._content[row], self._group[row], self._fields_of(row))

    def _fields_of(self, row: int) -> dict[str, Any]:
        fields: dict[str, Any] = {} if self._fields is None else json.loads(self._fields[row])
        return fields

    def _map_concepts(self) -> StoredConcepts | None:
        if self.manifest.concept_dtype is None:
            return None
        scales = self._map("concept_scales") if self.manifest.concept_dtype == "int8" else None
        return StoredConcepts(self._map("concepts"), self._map("concept_offsets"), scales)

    def _map(self, name: str) -> NDArray[Any]:
        return _load(self.folder / f"{name}.npy")


class _Generation:
    """A generation being written. Term frequencies wait in memory, vectors and concepts on the disk."""

    def __init__(self, folder: Path, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._home = folder
        self._manifest = manifest
        self._arrays = arrays
        self._items: list[Item] = []
        self._place: dict[str, int] = {}  # of the row of each id; other rows do not count
        self._terms: list[sparse.csr_array] = []
        self._lengths: list[NDArray[np.int64]] = []  # of concept sets
        self._concept_dim = 0
        self._stage = folder / f"building-{uuid.uuid4().hex[:12]}"

    def _begin(self) -> None:
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

    def __exit__(self, *exc: object) -> None:
        self._close_spools()
        shutil.rmtree(self._stage, ignore_errors=True)
        self._lock.__exit__(None, None, None)

    def _check(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None,
    ) -> None:
        check_rows(self._manifest, items, terms, vectors, concepts, self._concept_dim or None)

    def _store(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.floating[Any]],
        concepts: StoredConcepts | None,
    ) -> None:
        self._place.update((item.id, row) for row, item in enumerate(items, len(self._items)))
        self._items += items
        self._terms.append(terms)
        vectors.astype(self._manifest.vector_dtype).tofile(self._spools["vectors"])
        if concepts is not None:
            self._concept_dim = concepts.values.shape[1]
            self._lengths.append(np.diff(concepts.offsets))
            concepts.values.tofile(self._spools["concepts"])
            if concepts.scales is not None:
                concepts.scales.tofile(self._spools["concept_scales"])

    def _write(self) -> None:
        """Everything that counts, as a new generation."""
        order = np.array([self._place[key] for key in sorted(self._place)], dtype=np.int64)
        items = [self._items[i] for i in order]
        postings = self._write_postings(order)
        self._close_spools()
        self._write_vectors(order)
        self._write_concepts(order)
        self._write_items(items)
        for name, array in self._arrays.items():
            np.save(self._stage / "codec" / f"{name}.npy", array, allow_pickle=False)
        counts: dict[str, int] = {m: sum(item.modality == m for item in items) for m in MODALITIES}
        manifest = replace(self._manifest, items=counts, postings=postings, format=FORMAT)
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
        flat = self._spooled("vectors", dtype, (len(self._items), dim))
        out = self._saving("vectors", dtype, (len(order), dim))
        for i in range(0, len(order), BLOCK):
            out[i : i + BLOCK] = flat[order[i : i + BLOCK]]
        out.flush()

    def _write_concepts(self, order: NDArray[np.int64]) -> None:
        if self._manifest.concept_dtype is not None:
            lengths = np.concatenate(self._lengths)
            offsets, dtype, n = _offsets(lengths), np.dtype(self._manifest.concept_dtype), int(lengths[order].sum())
            shape = int(offsets[-1]), self._concept_dim
            out = self._saving("concepts", dtype, (n, self._concept_dim))
            self._save("concept_offsets", gather(self._spooled("concepts", dtype, shape), offsets, order, out))
            out.flush()
            if dtype == np.int8:
                scales = np.empty(n, np.float32)
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
        columns = {
            "ids": [item.id for item in items],
            "content": [item.content for item in items],
            "group": [item.group for item in items],
        }
        if self._manifest.fields:
            columns["fields"] = [json.dumps(dict(item.fields), ensure_ascii=False) for item in items]
        for name, values in columns.items():
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


class EmbeddedWriter(_Generation):
    """Writes a generation of what is added."""

    def __enter__(self) -> EmbeddedWriter:
        self._begin()
        return self

    def has(self, ids: Sequence[str]) -> bool:
        """Never: a killed load leaves nothing."""
        return False

    def add(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        self._check(items, terms, vectors, concepts)
        known = next((item.id for item in items if item.id in self._place), None)
        if known is not None:
            raise not_unique(known)
        self._store(items, terms, vectors, concepts)

    def commit(self) -> None:
        if not self._place:
            raise BackendError(f"nothing was added to {self._home}; an index needs at least one item")
        self._write()


class EmbeddedEditor(_Generation):
    """Writes a generation of what is put, and of what the present one holds beside it and nobody deletes."""

    def __init__(self, folder: Path, open_index: Callable[[], EmbeddedIndex]) -> None:
        index = open_index()
        super().__init__(folder, index.manifest, index.arrays())
        self._open = open_index
        self._index = index
        self._deleted: set[str] = set()

    def __enter__(self) -> EmbeddedEditor:
        self._begin()
        with ExitStack() as stack:
            stack.push(self.__exit__)
            self._index = self._open()  # anew: nobody can replace it from here on
            self._manifest, self._arrays = self._index.manifest, self._index.arrays()
            self._concept_dim = self._index.concept_dim
            stack.pop_all()
        return self

    def put(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        self._check(items, terms, vectors, concepts)
        self._store(items, terms, vectors, concepts)

    def delete(self, ids: Sequence[str]) -> int:
        there = {key for key in ids if key in self._place or (key not in self._deleted and key in self._index)}
        for key in there:
            self._place.pop(key, None)
        self._deleted |= there
        return len(there)

    def commit(self, source: str) -> None:
        self._keep_others()
        if not self._place:
            name = self._home.name
            raise BackendError(f"nothing would be left in {name}; to remove all of it: boc delete {name} --all")
        self._manifest = replace(self._manifest, source=source)
        self._write()

    def _keep_others(self) -> None:
        """Store the rows of the present generation that are neither replaced nor deleted."""
        for rows in self._index.rows_but(self._place.keys() | self._deleted):
            self._store(*rows)


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
