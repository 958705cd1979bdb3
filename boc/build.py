"""Make an index from pictures, captions or feature files, add to it, and delete from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from boc import plugins
from boc.codecs import SurrogateCodec, global_code
from boc.codecs.presets import budgets
from boc.errors import BocError
from boc.inputs.extraction import Extraction
from boc.inputs.features import FeatureFile, FeatureFiles, is_embeddings
from boc.inputs.metadata import Metadata
from boc.inputs.sources import open_source
from boc.load import DEFAULT_RM, append_items, delete_items, fit_code, load_index, new_manifest
from boc.names import SIGNED_CODES, ConceptDtype, Metric
from boc.plugins import check_name
from boc.search import Searcher

if TYPE_CHECKING:
    from boc.types import Identity

PLACE = "file:boc-data"
NARROWED = "ids narrow an extraction (--ids); give them to boc extract, or index the pictures"

Code: TypeAlias = "str | SurrogateCodec | Callable[[Identity], SurrogateCodec]"
"""A code: its name, a ``SurrogateCodec``, or a function that makes one for an encoder."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback that gets the name of the stage, the number of finished items, and their total."""


@dataclass(frozen=True)
class LoadReport:
    """The result of a load: numbers of pictures and captions, and (id, reason) of items that could not be used.

    ``up_to_date`` means that the index held all of them already, and nothing was done.
    """

    images: int
    texts: int
    failed: list[tuple[str, str]] = field(default_factory=list)
    up_to_date: bool = False


def build_index(
    name: str,
    source: Path | str | Sequence[Path | str],
    *,
    encoder: str | None = None,
    at: str = PLACE,
    code: Code = "scalar",
    rm: float = DEFAULT_RM,
    rerank: Metric = "dot",
    concepts: ConceptDtype | None = None,
    metadata: Metadata | Path | str | None = None,
    ids: Path | None = None,
    images: Path | None = None,
    replace: bool = False,
    device: str = "auto",
    progress: Progress = lambda label, done, total: None,
) -> LoadReport:
    """Make the index ``name`` from everything in ``source``. After a kill the same call continues where it stopped.

    The index is published as a whole at the end. An index with the same contents is left unchanged.

    Parameters
    ----------
    name : str
        Lower-case letters, digits, - and _.
    source : path, or a sequence of paths
        A folder of pictures, a CSV with the columns image,caption, or a regions file, which need an ``encoder``; a
        feature file with vectors, or several made by one encoder.
    encoder : str, optional
        KIND:PATH, for example "tern:models/photos".
    at : str, default="file:boc-data"
        Address of the back end: file:DIR, elastic+URL or opensearch+URL.
    code : default="scalar"
        How vectors become term frequencies: a name of ``boc.names.GLOBAL_CODES``, or a ``SurrogateCodec``.
    rm : float, default=10
        Candidates per hit that a search re-ranks.
    rerank : str, default="dot"
        How candidates are re-ranked, one of ``boc.names.METRICS``.
    concepts : "float16" or "int8", optional
        Store concept sets with this type; default: "float16" if ``rerank`` needs them.
    metadata : Metadata or path of a CSV, optional
        Metadata to filter by and to show.
    ids : path, optional
        Only the pictures listed in this file, one id per line, and their captions.
    images : path, optional
        Folder of the pictures of a CSV; default: the folder of the CSV, or ``images`` in it.
    replace : bool, default=False
        Replace an existing index with other contents, which is an error otherwise.
    device : str, default="auto"
        Device that the encoder runs on: cpu, cuda, or auto.
    progress : callable, optional
        Called as ``progress(label, done, total)`` after each batch.
    """
    table = Metadata.read(Path(metadata)) if isinstance(metadata, (Path, str)) else metadata
    backend = plugins.backend(at)
    existed = backend.exists(check_name(name))
    make = _codec_maker(code)

    def keeps_concepts(identity: Identity) -> bool:
        return rerank != "dot" or concepts is not None or make(identity).reads_concepts

    paths, made = _feature_files(name, _paths(source), ids, images, at, encoder, device, keeps_concepts, progress)
    with FeatureFiles(paths) as file:
        codec = fit_code(file, make(file.header.identity))
        manifest = new_manifest(file, codec, rm, rerank=rerank, concepts=concepts, metadata=table)
        same = existed and not replace and backend.open(name).manifest.same_contents(manifest)
        if existed and not replace and not same:
            raise BocError(f"{at} has an index {name!r} of something else; add --replace, or choose another name")
        if not same:
            total = file.count("image") + file.count("text")
            for done in load_index(file, at, name, codec, manifest, table):
                progress("indexing", done, total)
        report = LoadReport(file.count("image"), file.count("text"), file.failed, up_to_date=same)
    if made is not None:
        made.unlink()
    return report


def append(
    name: str,
    source: Path | str | Sequence[Path | str],
    *,
    encoder: str | None = None,
    at: str = PLACE,
    metadata: Metadata | Path | str | None = None,
    ids: Path | None = None,
    images: Path | None = None,
    device: str = "auto",
    progress: Progress = lambda label, done, total: None,
) -> LoadReport:
    """Add everything in ``source`` to the index ``name`` with its code, replacing items with the same ids.

    The parameters are those of ``build_index``; ``encoder`` names the encoder of the index if it has moved.
    EncoderError if a feature file is by another encoder; BocError for metadata fields that the index does not declare.
    """
    table = Metadata.read(Path(metadata)) if isinstance(metadata, (Path, str)) else metadata
    searcher = Searcher.open(name, at)
    manifest = searcher.index.manifest
    keep = searcher.codec.reads_concepts or manifest.concept_dtype is not None
    spec = encoder or manifest.identity.spec
    paths, made = _feature_files(name, _paths(source), ids, images, at, spec, device, lambda _: keep, progress)
    with FeatureFiles(paths) as file:
        total = file.count("image") + file.count("text")
        for done in append_items(file, at, name, table):
            progress("indexing", done, total)
        report = LoadReport(file.count("image"), file.count("text"), file.failed)
    if made is not None:
        made.unlink()
    return report


def delete(name: str, ids: Sequence[str], *, at: str = PLACE) -> tuple[int, list[str]]:
    """Delete items from the index ``name``; return how many were deleted, and the unknown ids.

    BackendError if the index would be empty.
    """
    return delete_items(at, name, ids)


def _paths(source: Path | str | Sequence[Path | str]) -> list[Path]:
    return [Path(source)] if isinstance(source, (Path, str)) else [Path(path) for path in source]


def _codec_maker(code: Code) -> Callable[[Identity], SurrogateCodec]:
    """A function that makes the unfitted chains of a code for an encoder."""
    if isinstance(code, SurrogateCodec):
        return lambda _: code
    if not isinstance(code, str):
        return code

    def named(identity: Identity) -> SurrogateCodec:
        z, query_z = budgets(identity.dim, None, None) if code in SIGNED_CODES else (None, None)
        return global_code(code, z=z, query_z=query_z)

    return named


def _feature_files(
    name: str,
    sources: Sequence[Path],
    ids: Path | None,
    images: Path | None,
    at: str,
    encoder: str | None,
    device: str,
    keeps_concepts: Callable[[Identity], bool],
    progress: Progress,
) -> tuple[list[Path], Path | None]:
    """The embeddings files of the sources, and the temporary one that was made here."""
    if len(sources) > 1:
        odd = next((path for path in sources if path.is_dir() or not is_embeddings(path)), None)
        if odd is not None:
            raise BocError(f"{odd} holds no vectors; several sources must all be files of boc extract --encoder")
    found = open_source(sources[0], None if len(sources) > 1 else ids, images)
    if len(sources) > 1 or (found.file is not None and is_embeddings(found.file)):
        if ids is not None:
            raise BocError(NARROWED)
        return list(sources), None
    if encoder is None:
        raise BocError(f"{sources[0]} holds no vectors yet; name the encoder to make them: --encoder tern:FOLDER")
    network = plugins.encoder(encoder, device)
    concepts = keeps_concepts(network.identity)
    place = Path(at.partition(":")[2]).expanduser() if at.startswith("file:") else Path()
    path = place / (f"{name}.concepts.h5" if concepts else f"{name}.features.h5")
    extraction = Extraction(found, path, encoder=network, concepts=concepts, workers=None)
    if not (path.exists() and _same(path, extraction)):
        path.unlink(missing_ok=True)
        for done in extraction.run():
            progress("encoding", done, extraction.total)
    return [path], path


def _same(path: Path, extraction: Extraction) -> bool:
    """Whether a file left by a run that was killed before loading is from the same extraction."""
    with FeatureFile(path) as file:
        return file.header == extraction.header
