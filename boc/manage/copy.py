"""Copy an index: to another name, to another backend, to a file and back, or to another code.

Everything is read from the stored index, in batches; neither the encoder nor the pictures are
needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from boc import plugins
from boc.codecs import Code, SurrogateCodec, parse_code
from boc.errors import BocError, FeatureFileError
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import SUFFIXES, is_feature_file
from boc.manage.budgets import choose_budgets, promise
from boc.manage.build import PLACE
from boc.manage.learn import fit_code
from boc.manage.load import write_items
from boc.manage.stored import StoredItems, header_of, stored_manifest
from boc.manifest import Manifest
from boc.names import Metric
from boc.outputs import check_output
from boc.plugins import IndexWriter, check_name
from boc.progress import Progress, progress_of
from boc.types import Batch, Embeddings, Rows, StoredRows


@dataclass(frozen=True)
class CopyReport:
    """Numbers of copied pictures and captions. ``up_to_date``: the same copy was there, and nothing
    was written."""

    images: int
    texts: int
    up_to_date: bool = False


def copy_index(
    name: str,
    new: str | None = None,
    *,
    at: str = PLACE,
    to: str | Path | None = None,
    code: str | Code | None = None,
    rm: float | None = None,
    recall: float | None = None,
    rerank: Metric | None = None,
    replace: bool = False,
    progress: bool | Progress = False,
) -> CopyReport:
    """Copy the index ``name`` at ``at`` as ``new`` to ``to``. After a kill the same call continues
    where it stopped.

    Without ``code`` the code with its arrays and all term frequencies are copied as they are, so
    hits and scores are the same. With ``code`` a new code is learned from the stored vectors. The
    copy appears as a whole at the end; ``boc.evaluate.verify`` checks it. An index can be copied
    onto itself, which replaces it at the end. Of a copy in a file ``build_index`` makes the same
    index again, anywhere.

    Parameters
    ----------
    name, new : str
        Names of the source and of the copy; the same by default.
    at, to : str
        Addresses of the source and of the copy, the same by default; ``to`` can be the path of a
        file, FILE.h5.
    code : str or Code, optional
        Another code over vectors, such as "dictionary:2/64".
    rm : float, optional
        Candidates per hit that a search of the copy re-ranks; default: as the source.
    recall : float, optional
        As in ``build_index``, of a dictionary.
    rerank : str, optional
        How candidates are re-ranked, one of ``boc.names.METRICS``; default: as the source.
    replace : bool, default=False
        Replace an existing index with other contents, or a feature file, which is an error
        otherwise.
    progress : bool or callable, default=False
        True draws bars, in notebooks too; a callable is called as ``progress(stage, done, total)``
        after each batch.

    BocError if the code needs concept sets, or if the source changes meanwhile.
    """
    path = _path(to)
    place = str(to or at)
    new = check_name(new or name)
    if path is not None:
        if path.exists() and not replace and is_feature_file(path):
            raise BocError(f"{path} is there already; add --replace, or choose another name")
        check_output(path, is_feature_file)
    elif (name, at) == (new, place) and (code, rm, rerank) == (None, None, None):
        raise BocError(
            f"{name} would be copied onto itself; give another name, another place (--to) or a "
            "--code",
        )
    source = StoredItems(plugins.backend(at), name)
    show = progress_of(progress)
    codec = _codec(source, parse_code(code) if isinstance(code, str) else code, show)
    manifest, arrays = stored_manifest(source, codec, rm=rm, rerank=rerank)
    if recall is not None and code is None:
        raise BocError(
            "a recall is reached by the budgets of a new dictionary; add --code dictionary",
        )
    if code is not None and codec is not None and manifest.rerank == "dot":
        promised = promise(recall, parse_code(code) if isinstance(code, str) else code, rm, codec)
        manifest = replace_in(manifest, recall=promised)
    total = sum(source.manifest.items.values())
    copied = CopyReport(source.count("image"), source.count("text"))

    def write(writer: IndexWriter) -> None:
        for done in write_items(
            writer.add,
            source,
            codec,
            manifest,
            select=lambda _, ids: not writer.has(ids()),
        ):
            show("copying", done, total)
        source.check_unchanged()
        writer.commit()

    if path is not None:
        with _FileWriter(
            path,
            replace_in(manifest, created=source.manifest.created),
            arrays,
        ) as file:
            write(file)
        return copied
    target = plugins.backend(place)
    if not replace and target.exists(new):
        existing = target.open(new).manifest
        if not existing.same_contents(manifest) or existing.items != source.manifest.items:
            raise BocError(
                f"{place} has an index {new!r} of something else; add --replace, or choose "
                "another name",
            )
        return replace_in(copied, up_to_date=True)
    with target.create(new, manifest, arrays) as writer:
        write(writer)
    if manifest.recall and "items" not in manifest.recall:
        choose_budgets(
            new,
            place,
            source if (name, at) != (new, place) else StoredItems(target, new),
        )
    return copied


def _path(to: str | Path | None) -> Path | None:
    """Return the path of a feature file, if ``to`` is no address of a backend."""
    if to is None or (isinstance(to, str) and re.match(r"[a-z][a-z+]+:", to)):
        return None
    return Path(to) if Path(to).suffix.lower() in SUFFIXES else None


def _codec(source: StoredItems, code: Code | None, progress: Progress) -> SurrogateCodec | None:
    """Return the code that terms are made with: the new one, fitted; that of the index if its
    vectors were rounded after they were encoded; None if the stored terms are copied."""
    if code is None:
        if source.index.exact_vectors:
            return None
        own = SurrogateCodec.restore(source.manifest.codec, source.index.arrays())
        return None if own.reads_concepts else own
    if code.reads_concepts:
        raise BocError(
            f"code {code} reads the concept sets of the encoder, and {source.path} stores at "
            "most rounded ones of "
            "length 1; make the index again from a feature file, or take a code of vectors: "
            "scalar, bits, permutation, dictionary, words",
        )
    return fit_code(source, code.codec(source.dim), progress)


class _FileWriter:
    """Writes a copy of an index to a feature file; ``commit`` puts it in its place."""

    def __init__(self, path: Path, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
        wide = "float32" in (
            manifest.vector_floats,
            {"int8": "float32"}.get(str(manifest.concept_dtype)),
        )
        self._file = FeatureWriter(
            path,
            header_of(manifest, "float32" if wide else "float16"),
            arrays=arrays,
        )
        self._seen = 0

    def has(self, ids: Sequence[str]) -> bool:
        """Return whether an earlier call has written this batch; batches come in the same order
        each time."""
        before = self._seen
        self._seen = self._seen + len(ids)
        if before < self._file.done < self._seen:
            raise FeatureFileError(
                f"{self._file.folder} was begun in another way; delete it to start again",
            )
        return self._seen <= self._file.done

    def add(self, rows: Rows) -> None:
        items, terms, vectors, concepts = rows
        embeddings = Embeddings(
            items[0].modality,
            vectors,
            None if concepts is None else concepts.to_ragged(),
        )
        self._file.append(len(items), [Batch(list(items), embeddings, StoredRows(terms, concepts))])

    def commit(self) -> None:
        self._file.finish()

    def __enter__(self) -> _FileWriter:
        self._file.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._file.__exit__(*exc)
