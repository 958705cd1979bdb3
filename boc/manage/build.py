"""Make an index from pictures, captions or feature files, add to it, and delete from it."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_in
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boc import models, plugins
from boc.atomic_files import json_sha256
from boc.codecs import Code, SurrogateCodec, parse_code
from boc.errors import BocError, SourceError, note
from boc.inputs.archives import is_archive
from boc.inputs.features import SUFFIXES, FeatureFiles, is_embeddings
from boc.inputs.file_facts import FileState, look, settled_state
from boc.inputs.metadata import Metadata
from boc.inputs.sources import Source, open_folders, open_source, shard_of
from boc.inputs.vector_files import has_vectors
from boc.manage.budgets import choose_budgets, promise, renew_budgets
from boc.manage.encode import converted, encoded
from boc.manage.learn import fit_code
from boc.manage.load import DEFAULT_RM, add_features, load_index, new_manifest
from boc.manage.shared_terms import term_faults
from boc.manage.stored import stored_manifest
from boc.names import MODALITIES, ConceptDtype, Metric, VectorDtype
from boc.paths import system_path
from boc.plugins import check_name
from boc.progress import Progress, progress_of
from boc.search.options import SearchOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from boc.plugins import Backend, Engine
    from boc.types import Identity

PLACE = "file:boc-data"
LOOKED_UP = 1000  # ids looked up or deleted at a time


@dataclass(frozen=True)
class LoadReport:
    """The result of a load: numbers of pictures and captions, and (id, reason) of items that could
    not be used.

    ``up_to_date`` means that the index held all of them already, and nothing was done; ``replaced``
    is the number of items that replaced others with the same ids. ``published`` is False while
    other processes load parts.
    """

    images: int
    texts: int
    failed: list[tuple[str, str]] = field(default_factory=list)
    up_to_date: bool = False
    replaced: int = 0
    published: bool = True


@dataclass(frozen=True)
class DeleteReport:
    """The number of items that were deleted, and the ids that the index did not hold."""

    deleted: int
    unknown: list[str]


def build_index(
    name: str,
    source: Path | str | Sequence[Path | str],
    *,
    encoder: str | None = None,
    at: str = PLACE,
    code: str | Code | SurrogateCodec | None = None,
    rm: float | None = None,
    recall: float | None = None,
    rerank: Metric | None = None,
    vectors: VectorDtype | None = None,
    concepts: ConceptDtype | None = None,
    metadata: Metadata | Path | str | None = None,
    images: Path | None = None,
    exclude: Sequence[str] = (),
    replace: bool = False,
    ocr: bool = False,
    shard: str | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
) -> LoadReport:
    """Make the index ``name`` from everything in ``source``. After a kill the same call continues
    where it stopped.

    It is published as a whole. One of the same feature files is left unchanged; BocError for
    another of this name.

    Parameters
    ----------
    name : str
        Lower-case letters, digits, - and _.
    source : path, or a sequence of paths
        A folder or tar archive of pictures or several, a table of captions
        (``boc.inputs.captions``), or a regions file, which need an ``encoder``; feature files of
        one encoder. Ids of several folders begin with their names.
    encoder : str, optional
        KIND:PATH, for example "tern:models/photos".
    at : str, default="file:boc-data"
        Address of the back end: file:DIR, elastic+URL or opensearch+URL.
    code : str, Code or SurrogateCodec, optional
        How vectors become term frequencies: text such as "dictionary:2/64", see
        ``boc.codecs.parse_code``, or a codec. Default: that of a copy of an index, of which all is
        taken as it was; else "dictionary".
    rm : float, optional
        Candidates per hit that a search re-ranks; default: as copied, else 10.
    recall : float, optional
        Share of the exact nearest ten that searches find under a dictionary; default: 0.98. The
        cheapest budgets that reach it are chosen at the end, unless ``rm`` or those of the code are
        given.
    rerank : str, optional
        How candidates are re-ranked, one of ``boc.names.METRICS``; default: as copied, else "dot".
    vectors : "float16" or "int8", optional
        Round vectors to this type; int8 takes half the bytes of float16. Default: as the feature
        file has them.
    concepts : "float16" or "int8", optional
        Store concept sets with this type; default: "float16" if ``rerank`` needs them.
    metadata : Metadata or path of a CSV, optional
        Metadata to filter by and to show.
    images : path, optional
        Folder of the pictures of a CSV; default: the folder of the CSV, or ``images`` in it.
    exclude : sequence of str, optional
        Names of files and folders, such as "raw" or "copy-?.jpg", that folders are read without,
        also by later syncs; besides those that begin with a dot, and thumbnails and trash.
    replace : bool, default=False
        Replace an existing index with other contents, which is an error otherwise.
    ocr : bool, default=False
        Read the words inside pictures, too, into the text field ``ocr``, which hybrid search
        searches.
    shard : str, optional
        ``I/N``: load this part of feature files into an index on a server; the last of N processes
        publishes it.
    device : str, default="auto"
        Device that the encoder runs on: cpu, cuda, or auto.
    progress : bool or callable, default=False
        True draws bars, in notebooks too; a callable is called as ``progress(stage, done, total)``
        after each batch.
    """
    if shard is not None:
        shard_of(shard)
    SearchOptions(rm=rm)  # refuses odd ones before anything is read
    table = Metadata.read(Path(metadata)) if isinstance(metadata, (Path, str)) else metadata
    backend = plugins.backend(at)
    show = progress_of(progress)
    existed = backend.exists(check_name(name))
    code_of = parse_code(code or "dictionary") if code is None or isinstance(code, str) else code
    make = codec_maker(code_of)

    def keeps_concepts(identity: Identity) -> bool:
        return (rerank or "dot") != "dot" or concepts is not None or make(identity).reads_concepts

    sources = paths_of(source)
    if shard is not None and not all(path.suffix.lower() in SUFFIXES for path in sources):
        raise BocError(
            f"shard {shard}: only feature files are loaded in parts",
            "encode the pictures first, with <boc extract --shard>",
        )
    if existed and not replace and not (_are_features(sources) or all(map(has_vectors, sources))):
        open_sources(sources, images, exclude)  # an error of the source comes first
        raise BocError(
            f"{at} has an index {name!r}",
            "bring it in line with its pictures by <boc sync>, add others by <boc add>, or make "
            "it again with <--replace>",
        )
    opening = partial(open_sources, sources, images, exclude)
    with _embeddings(
        name,
        sources,
        opening,
        at,
        encoder,
        device,
        keeps_concepts,
        show,
        ocr=ocr,
    ) as (file, states):
        copied = file.index_file if (code, vectors, concepts) == (None, None, None) else None
        learned: SurrogateCodec | Mapping[str, NDArray[Any]]
        if copied is not None:
            manifest, learned = stored_manifest(copied, rm=rm, rerank=rerank, metadata=table)
        else:
            codec = make(file.header.identity)
            if shard is None:
                fit_code(file, codec, show)
            else:
                codec = _shared_code(backend, name, file, codec, show)
            manifest = new_manifest(
                file,
                codec,
                DEFAULT_RM if rm is None else rm,
                rerank=rerank or "dot",
                vectors=vectors,
                concepts=concepts,
                metadata=table,
            )
            unreadable = {
                key: list(states[key]) for key, _ in file.failures if states and states.get(key)
            }
            promised = promise(recall, code_of, rm, codec) if manifest.rerank == "dot" else {}
            manifest = replace_in(
                manifest,
                unreadable=unreadable,
                recall=promised,
                exclude=[*exclude],
            )
            learned = codec
        # A part of an index that another process has published meanwhile is complete, also with
        # ``replace``.
        may_be_complete = existed and (not replace or shard is not None)
        same = may_be_complete and backend.open(name).manifest.same_contents(manifest)
        if existed and not replace and not same:
            raise BocError(
                f"{at} has an index {name!r} of something else",
                "make it again with <--replace>, add these items by <boc add>, or choose another "
                "name",
            )
        if not same:
            total = file.count("image") + file.count("text")
            for done in load_index(file, at, name, learned, manifest, table, part=shard):
                show("indexing", done, total)
        published = shard is None or (
            backend.exists(name) and backend.open(name).manifest.same_contents(manifest)
        )
        if published and not same:
            for fault in term_faults(backend.open(name)):
                note(f"{name}: {fault}")
        if published:
            loaded = backend.open(name).manifest
            if loaded.recall and "items" not in loaded.recall:
                encoding = (
                    None
                    if states is None or encoder is None
                    else partial(plugins.encoder, encoder, device)
                )
                choose_budgets(name, at, file, encoding)
        return LoadReport(
            file.count("image"),
            file.count("text"),
            file.failures,
            up_to_date=same,
            published=published,
        )


def add_items(
    name: str,
    source: Path | str | Sequence[Path | str],
    *,
    encoder: str | None = None,
    at: str = PLACE,
    metadata: Metadata | Path | str | None = None,
    images: Path | None = None,
    ocr: bool = False,
    device: str = "auto",
    progress: bool | Progress = False,
) -> LoadReport:
    """Add everything in ``source`` to the index ``name`` with its code, replacing items with the
    same ids.

    The parameters are those of ``build_index``; ``encoder`` names the encoder of the index if it
    has moved. EncoderError if a feature file is by another encoder; BocError for metadata fields
    that the index does not declare.
    """
    table = Metadata.read(Path(metadata)) if isinstance(metadata, (Path, str)) else metadata
    backend = plugins.backend(at)
    show = progress_of(progress)
    index = backend.open(check_name(name))
    manifest = index.manifest

    def keeps_concepts(identity: Identity) -> bool:
        codec = SurrogateCodec.restore(manifest.codec, index.arrays())
        return codec.reads_concepts or manifest.concept_dtype is not None

    spec = encoder or manifest.identity.spec
    sources = paths_of(source)
    opening = partial(open_sources, sources, images, manifest.exclude)
    with _embeddings(name, sources, opening, at, spec, device, keeps_concepts, show, ocr=ocr) as (
        file,
        _,
    ):
        total = file.count("image") + file.count("text")
        for done in add_features(file, at, name, table):
            show("indexing", done, total)
        grown = sum(backend.open(name).manifest.items.values()) - sum(manifest.items.values())
        report = LoadReport(
            file.count("image"),
            file.count("text"),
            file.failures,
            replaced=max(0, total - grown),
        )
    renew_budgets(name, at)
    return report


def delete_items(name: str, ids: Sequence[str], *, at: str = PLACE) -> DeleteReport:
    """Delete items from the index ``name``.

    BackendError if the index would be empty.
    """
    backend = plugins.backend(at)
    index = backend.open(check_name(name))
    distinct = list(dict.fromkeys(ids))
    unknown = dict.fromkeys(_unknown(index, distinct))
    known = [key for key in distinct if key not in unknown]
    for key in list(unknown):
        with suppress(KeyError):
            known.append(plugins.find_item(index, key).id)
            del unknown[key]
    known = list(dict.fromkeys(known))
    if known:
        with backend.edit(name) as editor:
            for start in range(0, len(known), LOOKED_UP):
                editor.delete(known[start : start + LOOKED_UP])
            editor.commit(json_sha256([index.manifest.source, "without", *sorted(known)]))
    return DeleteReport(len(known), [key for key in distinct if key in unknown])


def __getattr__(name: str) -> object:
    """Return ``delete_items`` by its old name ``delete``, for one version."""
    if name != "delete":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("delete is called delete_items", DeprecationWarning, stacklevel=2)
    return delete_items


def _unknown(index: Engine, ids: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(ids), LOOKED_UP):
        left = list(ids[start : start + LOOKED_UP])
        while left:
            try:
                index.find(left)
                break
            except KeyError as error:
                left.remove(error.args[0])
                yield error.args[0]


def paths_of(source: Path | str | Sequence[Path | str]) -> list[Path]:
    """Return one source or several as paths; ~ is the home of the user. BocError for another type,
    or none."""
    sources = [source] if isinstance(source, (Path, str)) else source
    if (
        not isinstance(sources, Sequence)
        or not sources
        or not all(isinstance(path, (Path, str)) for path in sources)
    ):
        got = " ".join(repr(source).split())[:60]
        raise BocError(
            f"a source must be a path or a list of paths, got {got}; save arrays by numpy.save",
        )
    return [Path(path).expanduser() for path in sources]


def _are_features(sources: Sequence[Path]) -> bool:
    return all(
        path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not has_vectors(path)
        and is_embeddings(path)
        for path in sources
    )


def codec_maker(code: str | Code | SurrogateCodec) -> Callable[[Identity], SurrogateCodec]:
    """Return a function that makes the codec of a code, not fitted yet, for vectors of an encoder.

    A codebook is read here, before any work, and checked when the encoder is known. BocError for
    text that is no code, or a codebook that is missing or of another encoder.
    """
    if isinstance(code, SurrogateCodec):
        return lambda _: code
    if not isinstance(code, (str, Code)):
        raise BocError(
            "code must be text such as 'dictionary:2/64', a Code or a SurrogateCodec, got "
            f"{code!r}",
        )
    parsed = parse_code(code) if isinstance(code, str) else code
    book = parsed.load_codebook()

    def make(identity: Identity) -> SurrogateCodec:
        if book is not None:
            book.check(identity)
        return parsed.codec(identity.dim, book)

    return make


@contextmanager
def _embeddings(
    name: str,
    sources: Sequence[Path],
    opening: Callable[[], Source | None],
    at: str,
    encoder: str | None,
    device: str,
    keeps_concepts: Callable[[Identity], bool],
    progress: Progress,
    *,
    ocr: bool,
) -> Iterator[tuple[FeatureFiles, dict[str, FileState] | None]]:
    """Yield the embeddings of the sources; and, if made here, the states of the files before they
    were read."""
    if _are_features(sources):
        if ocr:
            raise SourceError(
                f"{sources[0]} holds no pictures to read the words of",
                "leave out <--ocr>",
            )
        with FeatureFiles(sources) as file:
            yield file, None
        return
    states: dict[str, FileState] | None = None
    if all(map(has_vectors, sources)):
        features = converted(name, at, sources)
    else:
        items = opening()
        assert items is not None  # several files would all be of vectors
        if encoder is None:
            raise BocError(f"{sources[0]} holds no vectors yet", _encoder_hint())
        network = plugins.encoder(encoder, device)
        concepts = keeps_concepts(network.identity)
        pictures = [item for item in items.items if items.file is None and item.modality == "image"]
        states = {
            item.id: look(system_path(item.content), settled_state) or () for item in pictures
        }
        features = encoded(name, at, items, network, progress, concepts=concepts, ocr=ocr)
    with features as path, FeatureFiles([path]) as file:
        if not any(map(file.count, MODALITIES)):
            reasons = [reason for _, reason in file.failures]
            raise SourceError(
                f"{sources[0]}: none of its items can be used ({'; '.join(reasons[:3])})",
            )
        yield file, states


def _shared_code(
    backend: Backend,
    name: str,
    file: FeatureFiles,
    codec: SurrogateCodec,
    progress: Progress,
) -> SurrogateCodec:
    """Return the code of an index that several processes load, which one of them learns."""

    def learn() -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        fit_code(file, codec, progress)
        return codec.config(), codec.arrays()

    def text_of(value: object) -> str:
        return (
            hashlib.sha256(value.tobytes()).hexdigest()
            if isinstance(value, np.ndarray)
            else repr(value)
        )

    steps = [(type(step).__name__, step.get_params(deep=False)) for step in codec.steps]
    parts = [steps, file.contents(sets=codec.reads_concepts)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=text_of).encode()).hexdigest()[
        :12
    ]
    return SurrogateCodec.restore(*backend.learn_once(name, key, learn))


def open_sources(
    sources: Sequence[Path],
    images: Path | None,
    exclude: Sequence[str] = (),
    *,
    detachable: bool = False,
) -> Source | None:
    """Open one source, or several folders; return None for several feature files.

    ``exclude`` and ``detachable`` are as in ``open_folders``.
    """
    if len(sources) == 1:
        return open_source(sources[0], None, images, exclude)
    if any(path.is_dir() or is_archive(path) for path in sources) or not any(
        path.exists() for path in sources
    ):
        return open_folders(sources, exclude, detachable=detachable)
    odd = next((path for path in sources if path.is_dir() or not is_embeddings(path)), None)
    if odd is not None:
        raise BocError(
            f"{odd} holds no vectors; several sources must all be folders or tar archives, or "
            "feature files",
        )
    return None


def _encoder_hint() -> str:
    """Return the next step for pictures without an encoder."""
    there = next(
        (name for name, entry in models.CATALOGUE.items() if models.find(entry.repository)),
        None,
    )
    if there is not None:
        return f"name an encoder to make them: add <--encoder {there}>"
    return (
        "there is no encoder to make them; get one: <boc model get clip>, then repeat the command "
        "with <--encoder clip> (or with your own: <--encoder KIND:FOLDER>)"
    )
