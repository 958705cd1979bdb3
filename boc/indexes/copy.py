"""Copy an index: from a folder to a cluster and back, between clusters, or to another code.

Everything is read from the stored index, in batches: items with their metadata, vectors, concept sets and term
frequencies. Neither the encoder nor the pictures are needed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.codecs import Code, SurrogateCodec, parse_code
from boc.codecs.surrogate_text import with_words, word_fields
from boc.errors import BackendError, BocError
from boc.indexes.build import PLACE, Progress
from boc.indexes.learn import fit_code
from boc.indexes.load import BATCH, CONCEPT_BATCH
from boc.manifest import Manifest
from boc.names import Metric
from boc.plugins import Index, check_name
from boc.prefetch import ahead
from boc.rerank import check_metric
from boc.types import MODALITIES, Embeddings, Item, Modality, StoredConcepts, TermMatrix

CHECKED = 1000  # items whose rows are compared after a copy


@dataclass(frozen=True)
class CopyReport:
    """The result of a copy: numbers of pictures, captions and postings, and of the items that were ``compared`` with
    the source row by row. ``up_to_date``: the same copy existed already, and nothing was written."""

    images: int
    texts: int
    postings: int
    compared: int
    up_to_date: bool = False


@dataclass(frozen=True)
class Rows:
    """Items of an index with what is stored of them: vectors float32 (n, d), concept sets, term frequencies (n, V)."""

    items: list[Item]
    vectors: NDArray[np.float32]
    concepts: StoredConcepts | None
    terms: TermMatrix


def copy_index(
    name: str,
    new: str | None = None,
    *,
    at: str = PLACE,
    to: str | None = None,
    code: str | Code | None = None,
    rm: float | None = None,
    rerank: Metric | None = None,
    replace: bool = False,
    progress: Progress = lambda label, done, total: None,
) -> CopyReport:
    """Copy the index ``name`` at ``at`` as ``new`` to ``to``. After a kill the same call continues where it stopped.

    Without ``code`` the code with its arrays and all term frequencies are copied as they are, so hits and scores are
    the same. With ``code`` a new code is learned from the stored vectors. The copy appears as a whole at the end, then
    it is compared with its source. An index can be copied onto itself, which replaces it at the end.

    Parameters
    ----------
    name, new : str
        Names of the source and of the copy; the same by default.
    at, to : str
        Addresses of the source and of the copy; the same by default.
    code : str or Code, optional
        Another code over vectors, such as "dictionary:2/64".
    rm : float, optional
        Candidates per hit that a search of the copy re-ranks; default: as the source.
    rerank : str, optional
        How candidates are re-ranked, one of ``boc.names.METRICS``; default: as the source.
    replace : bool, default=False
        Replace an existing index with other contents, which is an error otherwise.
    progress : callable, optional
        Called as ``progress(label, done, total)`` after each batch.

    BocError if the code needs concept sets, or if the source changes meanwhile.
    """
    new, to = check_name(new or name), to or at
    source, target = plugins.backend(at), plugins.backend(to)
    _check_changes(name, new, at, to, changed=(code, rm, rerank) != (None, None, None))
    other = parse_code(code) if isinstance(code, str) else code
    index = source.open(check_name(name))
    existed = target.exists(new)
    codec = _codec(index, other, name, progress)
    manifest, arrays = manifest_of(index, codec, rm, rerank)
    if existed and not replace:
        existing = target.open(new).manifest
        if not existing.same_contents(manifest) or existing.items != index.manifest.items:
            raise BocError(f"{to} has an index {new!r} of something else; add --replace, or choose another name")
        return CopyReport(existing.items["image"], existing.items["text"], existing.postings, 0, up_to_date=True)
    total = sum(index.manifest.items.values())
    with target.create(new, manifest, arrays) as writer:
        done = 0
        for count, rows in _reading(index, codec, writer.has):
            if rows is not None:
                writer.add(rows.items, rows.terms, rows.vectors, rows.concepts)
            done += count
            progress("copying", done, total)
        if source.open(name).manifest != index.manifest:
            raise BocError(f"{name} changed while it was copied; copy it when nobody edits it")
        writer.commit()
    return _compared(index, target.open(new), codec, name)


def copy_items(name: str, ids: Sequence[str], *, at: str, to: str) -> None:
    """Copy some items of the index ``name`` at ``at``, as they are stored, to an index of the same name at ``to``.

    BackendError if the index lacks one of them.
    """
    index = plugins.backend(at).open(check_name(name))
    manifest, arrays = manifest_of(index, None)
    size = CONCEPT_BATCH if manifest.concept_dtype is not None else BATCH
    with plugins.backend(to).create(name, manifest, arrays) as writer:
        for start in range(0, len(ids), size):
            try:
                items = index.find(ids[start : start + size])
            except KeyError as error:
                raise BackendError(f"{name} has no item {error.args[0]!r}; give the file it was made of") from None
            rows = stored_rows(index, items)
            writer.add(rows.items, rows.terms, rows.vectors, rows.concepts)
        writer.commit()


def stored_batches(index: Index) -> Iterator[list[Item]]:
    """All items of an index in batches, ordered by id."""
    size = CONCEPT_BATCH if index.manifest.concept_dtype is not None else BATCH
    items = index.items()
    while batch := list(islice(items, size)):
        yield batch


def stored_rows(index: Index, items: Sequence[Item], codec: SurrogateCodec | None = None) -> Rows:
    """What an index stores of ``items``; with ``codec`` the terms are those that it gives the stored vectors.

    BocError if an item was deleted meanwhile.
    """
    ids = [item.id for item in items]
    try:
        vectors = index.vectors(ids).astype(np.float32)
        concepts = index.concepts(ids) if index.manifest.concept_dtype is not None else None
        terms = index.terms(ids) if codec is None else encoded(codec, items, vectors)
        kept = list(items) if codec is None else with_words(items, terms, codec.words)
    except KeyError as error:
        raise BocError(f"item {error.args[0]!r} went away meanwhile; copy an index when nobody edits it") from None
    return Rows(kept, vectors, concepts, terms)


def encoded(codec: SurrogateCodec, items: Sequence[Item], vectors: NDArray[np.float32]) -> TermMatrix:
    """The term frequencies of items of both modalities, in their order."""
    parts, rows = [sparse.csr_array((0, codec.n_terms), dtype=np.int32)], []
    for modality in MODALITIES:
        of = [row for row, item in enumerate(items) if item.modality == modality]
        parts.append(codec.encode_documents(Embeddings(modality, vectors[of])))
        rows += of
    return sparse.vstack(parts, format="csr", dtype=np.int32)[np.argsort(rows)]


class StoredVectors:
    """The vectors of an index as a source of samples, to learn a code from."""

    def __init__(self, index: Index, path: str) -> None:
        self._index = index
        self.path = path

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return self._index.manifest.identity.dim

    def count(self, modality: Modality) -> int:
        """Number of items of one modality."""
        return self._index.manifest.items[modality]

    def sample(self, modality: Modality, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """The vectors of the items of one modality with the numbers ``rows`` by id, in blocks, float32 (n, d)."""
        of = (item.id for item in self._index.items() if item.modality == modality)
        wanted = set(rows.tolist())
        ids = (key for number, key in enumerate(of) if number in wanted)
        while some := list(islice(ids, BATCH)):
            yield self._index.vectors(some).astype(np.float32)


def _reading(
    index: Index, codec: SurrogateCodec | None, known: Callable[[list[str]], bool]
) -> Iterator[tuple[int, Rows | None]]:
    """Yield for each batch of items their number, and their rows; None for items that are ``known``."""

    def read(task: tuple[list[Item], bool]) -> tuple[int, Rows | None]:
        items, there = task
        return len(items), None if there else stored_rows(index, items, codec)

    yield from ahead(read, ((items, known([item.id for item in items])) for items in stored_batches(index)))


def _check_changes(name: str, new: str, at: str, to: str, *, changed: bool) -> None:
    if (name, at) == (new, to) and not changed:
        raise BocError(f"{name} would be copied onto itself; give another name, another place (--to) or a --code")


def _codec(index: Index, code: Code | None, name: str, progress: Progress) -> SurrogateCodec | None:
    """The code that terms are made with: the new one, fitted; that of the index if its vectors were rounded after they
    were encoded; None if the stored terms are copied."""
    if code is None:
        return own_codec(index)
    if code.reads_concepts:
        raise BocError(
            f"code {code} reads the concept sets of the encoder, and {name} stores at most rounded ones of length 1; "
            "make the index again from a feature file, or take a code of vectors: "
            "scalar, bits, permutation, dictionary, words"
        )
    return fit_code(StoredVectors(index, name), code.codec(index.manifest.identity.dim), progress)


def own_codec(index: Index) -> SurrogateCodec | None:
    """The code of an index whose vectors were rounded after they were encoded, to encode them again; else None."""
    if index.exact_vectors:
        return None
    own = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    return None if own.reads_concepts else own


def manifest_of(
    index: Index, codec: SurrogateCodec | None, rm: float | None = None, rerank: Metric | None = None
) -> tuple[Manifest, dict[str, NDArray[Any]]]:
    """The manifest of a copy, still without items, and the arrays of its code."""
    old = index.manifest
    if rerank is not None and check_metric(rerank) != "dot" and old.concept_dtype is None:
        raise BocError(f"the index holds no concept sets, which {rerank} compares; leave out --rerank")
    rounded = [] if index.exact_vectors else ["rounded"]
    arrays = dict(index.arrays()) if codec is None else codec.arrays()
    manifest = Manifest.new(
        old.identity,
        old.codec if codec is None else codec.config(),
        arrays,
        rm=old.rm if rm is None else rm,
        dtype=old.vector_dtype,
        source=hashlib.sha256("".join([old.source, *rounded]).encode()).hexdigest() if rounded else old.source,
        rerank=rerank or old.rerank,
        concept_dtype=old.concept_dtype,
        fields=old.fields | ({} if codec is None else word_fields(codec.words)),
        unreadable=old.unreadable,
        table_facts=old.table_facts,
    )
    return manifest, arrays


def _compared(index: Index, copy: Index, codec: SurrogateCodec | None, name: str) -> CopyReport:
    """Compare a finished copy with its source: numbers of items and postings, items per term, and a sample of rows.

    BackendError names what differs.
    """
    expected, actual = index.manifest, copy.manifest
    wrong = [f"{actual.items[m]} items of modality {m}, not {expected.items[m]}" for m in MODALITIES
             if actual.items[m] != expected.items[m]]  # fmt: skip
    frequencies = copy.document_frequencies()
    if frequencies.sum() != actual.postings:
        wrong.append(f"{frequencies.sum()} postings, not {actual.postings}")
    if codec is None and not np.array_equal(frequencies, index.document_frequencies()):
        wrong.append("other numbers of items per term")
    compared = sample(index, CHECKED)
    if not wrong and (odd := _differing(index, copy, compared, codec)) is not None:
        wrong.append(f"other rows of {odd!r}")
    if wrong:
        raise BackendError(f"the copy of {name} differs from it: {'; '.join(wrong)}; copy it again with --replace")
    return CopyReport(actual.items["image"], actual.items["text"], actual.postings, len(compared))


def sample(index: Index, count: int) -> list[Item]:
    """``count`` items drawn evenly at random, or all."""
    chance, drawn = random.Random(0), list[Item]()
    for n, item in enumerate(index.items()):
        if n < count:
            drawn.append(item)
        elif (place := chance.randrange(n + 1)) < count:
            drawn[place] = item
    return drawn


def _differing(index: Index, copy: Index, items: Sequence[Item], codec: SurrogateCodec | None) -> str | None:
    """The id of the first of ``items`` whose rows in the copy differ, or None; under another ``codec``, other
    frequencies are no difference.

    Vectors are not compared where the copy rounds them.
    """
    ids = [item.id for item in items]
    ours, theirs = stored_rows(index, items, codec), stored_rows(copy, copy.find(ids))
    same = [
        [a == b for a, b in zip(ours.items, theirs.items, strict=True)],
        (ours.vectors == theirs.vectors).all(axis=1) | (not copy.exact_vectors),
        _sets_equal(ours.concepts, theirs.concepts, len(ids)),
    ]
    if codec is None:
        same.append(np.diff(sparse.csr_array(ours.terms != theirs.terms).indptr) == 0)
    odd = np.flatnonzero(~np.all(same, axis=0))
    return ids[int(odd[0])] if len(odd) else None


def _sets_equal(ours: StoredConcepts | None, theirs: StoredConcepts | None, n: int) -> list[bool]:
    if ours is None or theirs is None:
        return [ours is theirs] * n
    mine, others = ours.ragged(), theirs.ragged()
    return [np.array_equal(mine[i], others[i]) for i in range(n)]
