"""Store a segment, which contains some items of an index, with all their data, as immutable arrays.

For n rows sorted by id, V terms and d components, the folder of a segment contains::

    starts, rows, frequencies  the posting lists, see ``postings.py``
    vectors                    (n, d), for re-ranking; int8: uint8 (n, d + 4) with the scales
    concepts                   (N, d), concept sets, if the index stores them: float16 or int8
    concept_offsets            int64 (n + 1,), the offsets of each item in ``concepts``
    concept_scales             float32 (N,), the scales of int8 rows
    compact                    uint8 (n, d / 4), codes of the vectors, which order candidates
    compact_scales             float32 (n,)
    modality                   uint8 (n,), 0 for a picture, 1 for a sentence
    ids, content, group        bytes in UTF-8 (.bin), and their offsets, int64 (n + 1,)
    fields                     the same, if the manifest declares metadata: JSON of each item
    words.sqlite               the text and metadata index, see ``text_store.py``

Arrays are ``.npy`` files. A segment has compact codes if the code of the index stores a mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boc.atomic_files import sha256
from boc.errors import BackendError, ManifestError
from boc.manifest import Manifest
from boc.rerank.compact import CompactCode, CompactRows
from boc.types import MODALITIES, FieldType, Item, StoredConcepts, TermMatrix
from boc.vectors import Array, Ints

from . import fs, text_store_writer
from .kernel import BLOCK as ROWS
from .npy_files import (
    DAMAGED,
    Files,
    Output,
    load_array,
    load_strings,
    offsets_of,
    release,
    rows_of,
    spans,
    write_header,
)
from .postings import Postings
from .string_column import Strings
from .text_store import TextStore

BLOCK = 4096  # number of rows copied at a time
POSTINGS = 1 << 22  # number of postings merged at a time
TERM = 32  # number of low bits of a key, which contain the row
MOST_POSTINGS = 1 << 32  # maximum number of postings per segment, because offsets are uint32
TEXTS = ("ids", "content", "group", "fields")


@dataclass(frozen=True)
class Segment:
    """Arrays that store some items of an index, either in memory or memory-mapped. Rows are sorted
    by id."""

    postings: Postings
    vectors: Array
    concepts: StoredConcepts | None
    modality: NDArray[np.uint8]
    texts: Mapping[str, Strings]
    words: TextStore | None = None
    compact: CompactRows | None = None
    held: Sequence[Item] | None = None
    """The items of all rows, if the segment has just been built from them."""

    def __len__(self) -> int:
        return len(self.modality)

    def counts(self, live: NDArray[np.uint8] | None = None) -> dict[str, int]:
        """Return the number of rows, or of ``live`` rows, for each modality."""
        totals = np.bincount(self.modality, live, len(MODALITIES))
        return dict(zip(MODALITIES, totals.astype(int).tolist(), strict=True))

    def find(self, key: str) -> int | None:
        """Return the row with an id, or None."""
        return self.texts["ids"].find(key)

    def ids(self, rows: Ints) -> list[str]:
        """Return the ids for ``rows``, in the same order."""
        return self.texts["ids"].take(rows)

    def items(self, rows: Ints) -> list[Item]:
        """Return the items for ``rows``, in the same order."""
        ids, content, group, *metadata = [column.take(rows) for column in self.texts.values()]
        return list(
            map(
                Item,
                ids,
                [MODALITIES[number] for number in self.modality[rows].tolist()],
                content,
                group,
                *map(_objects, metadata),
            ),
        )

    def all_items(self, live: NDArray[np.uint8] | None = None) -> Iterator[Item]:
        """Return the items of all rows, or of the ``live`` rows. Items that are not in memory are
        read block by block."""
        if self.held is not None and live is None:
            return iter(self.held)
        rows = rows_of(live, len(self))
        blocks = (rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK))
        return (item for block in blocks for item in self.items(block))

    def count(self, live: NDArray[np.uint8] | None) -> Ints:
        """Return the number of live rows that contain each term (V,)."""
        if live is None:
            return self.postings.document_frequencies()
        parts = [np.zeros(0, np.int64)]
        for first, last in spans(self.postings.document_frequencies(), POSTINGS):
            indptr, rows, _ = self.postings.lists(first, last)
            sums = np.concatenate([[0], np.cumsum(live[rows], dtype=np.int64)])
            parts.append(sums[indptr[1:]] - sums[indptr[:-1]])
        return np.concatenate(parts)


def _objects(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Parse the metadata of items. Raises ValueError unless each text is a JSON object."""
    objects: list[Any] = orjson.loads(f"[{','.join(texts)}]")
    if len(objects) != len(texts) or not all(isinstance(each, dict) for each in objects):
        raise ValueError(
            f"metadata of {len(texts)} items has {len(objects)} values, but each must be a JSON "
            "object",
        )
    return objects


def gather_segment(
    items: Sequence[Item],
    terms: TermMatrix,
    vectors: list[Array],
    concepts: StoredConcepts | None,
    types: Mapping[str, FieldType],
    rows: Iterable[int],
) -> Segment:
    """Build a segment in memory from ``rows`` of the other arguments. ``vectors`` are blocks of
    rows, which are freed in the process."""
    ordered = sorted(rows, key=[item.id for item in items].__getitem__)
    order = np.array(ordered, np.int64)
    chosen = [items[row] for row in ordered]
    texts = {
        "ids": Strings.of([item.id for item in chosen]),
        "content": Strings.of([item.content for item in chosen]),
        "group": Strings.of([item.group for item in chosen]),
    }
    if types:
        texts["fields"] = Strings.of(
            json.dumps(dict(item.fields), ensure_ascii=False) for item in chosen
        )
    modality = np.array([MODALITIES.index(item.modality) for item in chosen], np.uint8)
    sets = None if concepts is None else concepts.take(order)
    return Segment(
        Postings.from_matrix(terms[order]),
        _pick_rows(vectors, order),
        sets,
        modality,
        texts,
        held=chosen,
    )


def _pick_rows(blocks: list[Array], order: Ints) -> Array:
    """Return the rows of the stacked blocks in the given ``order``. Each block is freed after it
    has been copied."""
    picked = np.empty((len(order), blocks[0].shape[1]), blocks[0].dtype)
    places = np.argsort(order, kind="stable")
    first = 0
    while blocks:
        block = blocks.pop(0)
        begin, end = np.searchsorted(order, [first, first + len(block)], sorter=places)
        picked[places[begin:end]] = block[order[places[begin:end]] - first]
        first += len(block)
    return picked


def side_by_side(parts: Sequence[StoredConcepts]) -> StoredConcepts:
    """Concatenate the concept sets of all parts."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    scales = [part.scales for part in parts if part.scales is not None]
    values = np.concatenate([part.values for part in parts])
    return StoredConcepts(values, offsets_of(lengths), np.concatenate(scales) if scales else None)


def load(folder: Path, manifest: Manifest, *, scattered: bool = False) -> Segment:
    """Memory-map the segment in ``folder``. Raises ManifestError with the name of the file if a
    file is damaged.

    ``scattered`` tells the operating system to expect random access to vectors and concepts.
    """

    def map_array(name: str) -> Array:
        return load_array(
            folder / f"{name}.npy",
            scattered=scattered and name in ("vectors", "concepts"),
        )

    modality = map_array("modality")
    if (
        modality.dtype != np.uint8
        or modality.ndim != 1
        or modality.max(initial=0) >= len(MODALITIES)
    ):
        raise ManifestError(f"{folder / 'modality.npy'}: damaged (invalid modalities)", DAMAGED)
    n = len(modality)
    try:
        postings = Postings(
            map_array("starts"),
            map_array("rows"),
            map_array("frequencies"),
            n,
            manifest.codec["n_terms"],
        )
    except ValueError as error:
        raise ManifestError(f"{folder / 'starts.npy'}: damaged ({error})", DAMAGED) from error
    concepts = None
    if manifest.concept_dtype is not None:
        scales = map_array("concept_scales") if manifest.concept_dtype == "int8" else None
        concepts = StoredConcepts(map_array("concepts"), map_array("concept_offsets"), scales)
        if concepts.offsets.dtype != np.int64 or concepts.offsets.ndim != 1:
            raise ManifestError(
                f"{folder / 'concept_offsets.npy'}: damaged (invalid offsets)",
                DAMAGED,
            )
    names = TEXTS if manifest.fields else TEXTS[:-1]
    texts = {name: load_strings(folder, name) for name in names}
    words = folder / "words.sqlite"
    searched = TextStore(words, n) if words.exists() else None
    coded = (folder / "compact.npy").exists()
    compact = CompactRows(map_array("compact"), map_array("compact_scales")) if coded else None
    return Segment(
        postings,
        map_array("vectors"),
        concepts,
        modality,
        texts,
        searched,
        compact,
    )


def merge(
    folder: Path,
    parts: Sequence[Segment],
    live: Sequence[NDArray[np.uint8] | None],
    types: Mapping[str, FieldType],
    code: CompactCode | None,
) -> Files:
    """Write the live rows of ``parts`` as a single segment to the empty ``folder``, with compact
    codes if ``code`` is given, and return its files. Only the ids and individual blocks are kept in
    memory.
    """
    merged = _MergeOrder(parts, live)
    out = _SegmentOutput(folder)
    # Write two files at a time, because most of the time is spent on writing, hashing and sorting.
    with ThreadPoolExecutor(2) as pool:
        for done in (
            pool.submit(out.words, merged, parts, types),
            pool.submit(out.postings, merged, parts, live),
            pool.submit(out.rows, merged, parts[0], code),
        ):
            done.result()
    fs.sync(folder)
    return out.files


class _MergeOrder:
    """Order of the live rows of several segments, sorted by id."""

    def __init__(self, parts: Sequence[Segment], live: Sequence[NDArray[np.uint8] | None]) -> None:
        self._parts = parts
        kept = [rows_of(alive, len(part)) for part, alive in zip(parts, live, strict=True)]
        keys = [
            key
            for part, rows in zip(parts, kept, strict=True)
            for key in part.texts["ids"].take(rows)
        ]
        # Python's sort is fast for concatenated sorted runs.
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
        self._part = np.repeat(np.arange(len(parts)), [len(rows) for rows in kept])[order]
        self._row = np.concatenate(kept)[order]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.moved = [np.full(len(part), -1, np.int64) for part in parts]
        starts = offsets_of([len(rows) for rows in kept]).tolist()
        for moved, rows, start in zip(
            self.moved,
            kept,
            starts,
            strict=False,
        ):
            moved[rows] = place[start : start + len(rows)]

    def __len__(self) -> int:
        return len(self._row)

    def blocks(self) -> Iterator[tuple[list[tuple[Segment, Ints]], NDArray[np.intp]]]:
        """For each block of rows, yield the parts with their rows, and the order in which to
        arrange the concatenated rows."""
        for start in range(0, len(self), BLOCK):
            part = self._part[start : start + BLOCK]
            row = self._row[start : start + BLOCK]
            chosen = [(each, row[part == i]) for i, each in enumerate(self._parts)]
            order = np.argsort(np.argsort(part, kind="stable"))
            yield [(each, rows) for each, rows in chosen if len(rows)], order

    def column(self, of: Callable[[Segment], Array]) -> Iterator[Array]:
        """Yield blocks of an array with one entry per row."""
        for block, order in self.blocks():
            values = np.concatenate([of(part)[_run(rows)] for part, rows in block])
            for part, _ in block:
                release(of(part))
            yield values[order]

    def concepts(self) -> Iterator[StoredConcepts]:
        """Yield blocks of concept sets."""
        for block, order in self.blocks():
            sets = side_by_side([_concepts(part).take(rows) for part, rows in block])
            for part, _ in block:
                release(_concepts(part).values)
            yield sets.take(order)

    def strings(self, name: str) -> Iterator[Strings]:
        """Yield blocks of a string column."""
        for block, order in self.blocks():
            texts = [text for part, rows in block for text in part.texts[name].take(rows)]
            yield Strings.of(texts[place] for place in order)

    def postings(self, counts: Ints) -> Iterator[tuple[int, int, Ints, NDArray[np.int32]]]:
        """Yield all postings for one range of terms at a time, as the first term, the end of the
        range, ascending keys ``term << TERM | row``, and frequencies."""
        for first, last in spans(counts, POSTINGS):
            keys = []
            frequencies = []
            for part, moved in zip(self._parts, self.moved, strict=True):
                indptr, rows, weights = part.postings.lists(first, last)
                key = moved[rows]
                kept = key >= 0
                key += np.repeat(np.arange(first, last) << TERM, np.diff(indptr))
                keys.append(key[kept])
                frequencies.append(weights[kept])
            key = np.concatenate(keys)
            order = np.argsort(key, kind="stable")  # a stable sort is fast for ascending runs
            yield first, last, key[order], np.concatenate(frequencies)[order]


class _SegmentOutput(Output):
    def rows(self, merged: _MergeOrder, like: Segment, code: CompactCode | None) -> None:
        """Write all files except the postings and the text index."""
        n = len(merged)
        if code is not None:
            self.compact(merged, code)
        self.array(
            "modality",
            np.uint8,
            (n,),
            merged.column(lambda part: part.modality),
        )
        self.array(
            "vectors",
            like.vectors.dtype,
            (n, like.vectors.shape[1]),
            merged.column(lambda part: part.vectors),
        )
        for name in like.texts:
            self.strings(name, merged.strings(name))
        if like.concepts is not None:
            self.concepts(like.concepts, merged)

    def compact(self, merged: _MergeOrder, code: CompactCode) -> None:
        n = len(merged)
        scales = [np.empty(0, np.float32)]

        def encode_blocks() -> Iterator[NDArray[np.uint8]]:
            vectors = merged.column(lambda part: part.vectors)
            modalities = merged.column(lambda part: part.modality)
            for block, modality in zip(vectors, modalities, strict=True):
                rows = code.encode(block, modality)
                scales.append(rows.scales)
                yield rows.codes

        self.array(
            "compact",
            np.uint8,
            (n, code.width),
            encode_blocks(),
        )
        self.array(
            "compact_scales",
            np.float32,
            (n,),
            scales,
        )

    def concepts(self, first: StoredConcepts, merged: _MergeOrder) -> None:
        lengths = merged.column(lambda part: np.diff(_concepts(part).offsets))
        offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *lengths]))
        self.array(
            "concept_offsets",
            np.int64,
            offsets.shape,
            [offsets],
        )
        scales = [np.zeros(0, np.float32)]

        def values() -> Iterator[Array]:
            for block in merged.concepts():
                if block.scales is not None:
                    scales.append(block.scales)
                yield block.values

        total = int(offsets[-1])
        self.array(
            "concepts",
            first.values.dtype,
            (total, first.values.shape[1]),
            values(),
        )
        if first.scales is not None:
            self.array(
                "concept_scales",
                np.float32,
                (total,),
                scales,
            )

    def postings(
        self,
        merged: _MergeOrder,
        parts: Sequence[Segment],
        live: Sequence[NDArray[np.uint8] | None],
    ) -> None:
        counts = np.sum(
            [part.count(alive) for part, alive in zip(parts, live, strict=True)],
            axis=0,
        )
        widest = max(
            (part.postings.frequencies for part in parts),
            key=lambda each: each.itemsize * bool(len(each)),
        )
        # An empty array means that all frequencies are 1.
        dtype = widest.dtype if len(widest) else None
        total = int(counts.sum())
        blocks = max(1, -(-len(merged) // ROWS))
        lengths = np.zeros(len(counts) * blocks, np.int64)
        if total >= MOST_POSTINGS:
            raise BackendError(
                f"{total} postings are too many for a segment, which can store {MOST_POSTINGS}; "
                "keep fewer",
            )
        with self.file("rows.npy") as rows, self.file("frequencies.npy") as frequencies:
            write_header(rows, np.dtype(np.uint16), (total,))
            write_header(frequencies, dtype or np.dtype(np.uint8), (total if dtype else 0,))
            for first, last, keys, weights in merged.postings(counts):
                lists = np.arange(first, last)[:, None] << TERM | np.arange(blocks) * ROWS
                begins = np.searchsorted(keys, lists.ravel())
                lengths[first * blocks : last * blocks] = np.diff(begins, append=len(keys))
                # A bit mask gives the row number within a block, because block sizes are powers of
                # 2.
                rows.write((keys & (ROWS - 1)).astype(np.uint16).data)
                if dtype:
                    frequencies.write(weights.astype(dtype).data)
        starts = offsets_of(lengths).astype(np.uint32)
        self.array(
            "starts",
            np.uint32,
            starts.shape,
            [starts],
        )

    def words(
        self,
        merged: _MergeOrder,
        parts: Sequence[Segment],
        types: Mapping[str, FieldType],
    ) -> None:
        path = self.folder / "words.sqlite"
        sources: list[TextStore | text_store_writer.ItemWords | None] = []
        for part in parts:
            words = part.words
            sources.append(words)
            if not (words and words.folded) and (types or part.counts()["text"]):
                sources[-1] = text_store_writer.ItemWords(part.all_items(), types)
        if text_store_writer.merge(
            path,
            sources,
            merged.moved,
            len(merged),
            types,
        ):
            fs.adopt(path)
            self.files[path.name] = (path.stat().st_size, sha256(path))


def _concepts(part: Segment) -> StoredConcepts:
    # If one segment of an index has concept sets, all segments have them.
    assert part.concepts is not None
    return part.concepts


def _run(rows: Array) -> Array | slice:
    """Return ascending rows as a slice if they are consecutive, because copying a slice is several
    times as fast."""
    first = int(rows[0])
    last = int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
