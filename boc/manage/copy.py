"""Copy an index to another name or back end, convert it to another code, or copy it to a file.

All data are read from the stored index in batches. Neither the encoder nor the pictures are needed.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace as replace_in
from pathlib import Path

from boc import plugins
from boc.codecs import Code, SurrogateCodec, parse_code
from boc.errors import BocError
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import SUFFIXES, Header, is_feature_file
from boc.manage.budgets import choose_budgets, promise
from boc.manage.build import PLACE
from boc.manage.index_zip import SUFFIX, is_copy, pack
from boc.manage.learn import fit_code
from boc.manage.load import BATCH, write_items
from boc.manage.stored import StoredItems, stored_manifest
from boc.names import MODALITIES, Metric
from boc.outputs import check_output
from boc.plugins import check_name
from boc.progress import Progress, progress_of


@dataclass(frozen=True)
class CopyReport:
    """Result of a copy: the numbers of copied pictures and captions. ``up_to_date`` is True if the
    same copy already existed."""

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
    """Copy the index ``name`` at ``at`` to the index ``new`` at ``to``.

    Without ``code``, the code with its arrays and all term frequencies are copied unchanged, so
    hits and scores stay the same. With ``code``, a new code is learned from the stored vectors. The
    copy becomes visible only once it is complete, and ``boc.evaluate.verify`` checks the copy. If
    the copy has the same name and address as its source, it replaces the source at the end. From a
    copy in a file, ``build_index`` recreates the index on any machine. If the process is killed,
    the same call resumes the copy.

    Parameters
    ----------
    name, new : str
        Names of the source and the copy; by default, the copy has the same name.
    at, to : str
        Addresses of the source and the copy; by default, the copy has the same address. ``to`` can
        also be the path of a file: FILE.zip for a copy of the index, or FILE.h5 for a feature file
        with the items and their vectors.
    code : str or Code, optional
        New code for the vectors, such as "dictionary:2/64".
    rm : float, optional
        Number of candidates per hit that searches of the copy re-rank; default: as in the source.
    recall : float, optional
        As in ``build_index``; allowed only if ``code`` is a dictionary.
    rerank : str, optional
        Metric by which candidates are re-ranked, one of ``boc.names.METRICS``; default: as in the
        source.
    replace : bool, default=False
        Replace an existing file, or an existing index with other contents, instead of raising an
        error.
    progress : bool or callable, default=False
        True shows progress bars, also in notebooks; a callable is called as
        ``progress(stage, done, total)`` after each batch.

    Raises BocError if the code needs concept sets, or if the source changes during the copy.
    """
    new = check_name(new or name)
    show = progress_of(progress)
    place = str(to or at)
    path = None
    if to is not None and not (isinstance(to, str) and re.match(r"[a-z][a-z+]+:", to)):
        path = Path(to)
    if path is not None and path.suffix.lower() in {SUFFIX, *SUFFIXES}:
        is_ours = is_copy if path.suffix.lower() == SUFFIX else is_feature_file
        if path.exists() and not replace and is_ours(path):
            raise BocError(f"{path} already exists", "add <--replace>, or choose another name")
        check_output(path, is_ours)
        if is_ours is is_copy:
            # The folder is packed once it is complete. Only boc creates folders with such names.
            folder = path.with_name(f".{path.name}.boc-copy")
            copied = copy_index(
                name,
                new,
                at=at,
                to=f"file:{folder}",
                code=code,
                rm=rm,
                recall=recall,
                rerank=rerank,
                replace=True,
                progress=show,
            )
            pack(folder / new, path)
            shutil.rmtree(folder)
            return copied
    elif (name, at) == (new, place) and (code, rm, rerank) == (None, None, None):
        raise BocError(
            f"{name} would be copied onto itself",
            "give another name, another place (<--to>) or a <--code>",
        )
    source = StoredItems(plugins.backend(at), name)
    copied = CopyReport(source.count("image"), source.count("text"))
    total = copied.images + copied.texts
    if path is not None and path.suffix.lower() in SUFFIXES:
        _write_features(source, path, show)
        return copied
    chosen = parse_code(code) if isinstance(code, str) else code
    codec = _codec(source, chosen, show)
    manifest, arrays = stored_manifest(source, codec, rm=rm, rerank=rerank)
    if recall is not None and chosen is None:
        raise BocError(
            "a target recall can be set only for a new dictionary",
            "add <--code dictionary>",
        )
    if chosen is not None and codec is not None and manifest.rerank == "dot":
        manifest = replace_in(manifest, recall=promise(recall, chosen, rm, codec))
    target = plugins.backend(place)
    if not replace and target.exists(new):
        existing = target.open(new).manifest
        if not existing.same_contents(manifest) or existing.items != source.manifest.items:
            raise BocError(
                f"{place} already has an index {new!r} with other contents",
                "add <--replace>, or choose another name",
            )
        return replace_in(copied, up_to_date=True)
    with target.create(new, manifest, arrays) as writer:
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
    if manifest.recall and "items" not in manifest.recall:
        if (name, at) == (new, place):
            source = StoredItems(target, new)
        choose_budgets(new, place, source)
    return copied


def _codec(source: StoredItems, code: Code | None, progress: Progress) -> SurrogateCodec | None:
    """Return the codec that computes the terms: the new code after fitting, or the code of the
    index if its vectors were rounded after encoding. Return None if the stored terms can be
    copied."""
    if code is None:
        if source.index.exact_vectors:
            return None
        own = SurrogateCodec.restore(source.manifest.codec, source.index.arrays())
        return None if own.reads_concepts else own
    if code.reads_concepts:
        raise BocError(
            f"code {code} needs the encoder's concept sets, but {source.path} stores only rounded "
            "sets of unit length, if any; rebuild the index from a feature file, or choose a code "
            "for vectors: scalar, bits, permutation, dictionary, words",
        )
    return fit_code(source, code.codec(source.manifest.identity.dim), progress)


def _write_features(source: StoredItems, path: Path, progress: Progress) -> None:
    """Write the items of an index with their vectors to a feature file."""
    manifest = source.manifest
    kinds = (manifest.vector_floats, manifest.concept_dtype)
    dtype = "float32" if "float32" in kinds or "int8" in kinds else "float16"
    header = Header.of(manifest.identity, dtype, manifest.source, manifest.fields)
    total = sum(manifest.items.values())
    done = 0
    with FeatureWriter(path, header) as writer:
        for modality in MODALITIES:
            for count, _, read in source.lazy_batches(modality, BATCH, sets=True):
                done += count
                if done > writer.done:
                    writer.append(count, [read()])
                progress("copying", done, total)
        source.check_unchanged()
        writer.finish()
