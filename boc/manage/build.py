"""Build an index from pictures, captions or feature files, and add or delete items."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace as replace_in
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boc import plugins
from boc.atomic_files import json_sha256
from boc.codecs import Code, SurrogateCodec, parse_code
from boc.errors import BocError
from boc.inputs.features import SUFFIXES
from boc.inputs.metadata import Metadata
from boc.inputs.sources import shard_of
from boc.manage.budgets import choose_budgets, promise, renew_measurements
from boc.manage.index_sources import IndexSources, paths_of
from boc.manage.learn import fit_code
from boc.manage.load import DEFAULT_RM, VectorSource, add_features, load_index, new_manifest
from boc.manage.stored import StoredItems, stored_manifest
from boc.names import ConceptDtype, Metric, VectorDtype
from boc.plugins import Backend, check_name
from boc.progress import Progress, progress_of
from boc.search.options import SearchOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from boc.types import Identity

PLACE = "file:boc-data"
LOOKED_UP = 1000  # ids per lookup or deletion


@dataclass(frozen=True)
class LoadReport:
    """Result of a load: the numbers of pictures and captions, and an (id, reason) pair for each
    unusable item.

    ``up_to_date`` is True if the index already contained all items, so that no work was needed.
    ``replaced`` is the number of items that replaced older items with the same ids. ``published``
    is False while other processes are still loading their parts.
    """

    images: int
    texts: int
    failed: list[tuple[str, str]] = field(default_factory=list)
    up_to_date: bool = False
    replaced: int = 0
    published: bool = True


@dataclass(frozen=True)
class DeleteReport:
    """Result of a deletion: the number of deleted items, and the ids that were not in the index."""

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
    """Build the index ``name`` from everything in ``source``.

    The index becomes visible to searches only once it is complete. If the process is killed, the
    same call resumes the build. An existing index with the same contents is left unchanged. Raises
    BocError if an index with other contents already has this name.

    Parameters
    ----------
    name : str
        Name of the index: lower-case letters, digits, - and _.
    source : path, or a sequence of paths
        One or more folders or tar archives of pictures, a table of captions
        (``boc.inputs.captions``) or a region file, all of which need an ``encoder``; or feature
        files from a single encoder. With several folders, each id begins with the name of its
        folder.
    encoder : str, optional
        Encoder as KIND:PATH, for example "tern:models/photos".
    at : str, default="file:boc-data"
        Address of the back end: file:DIR, elastic+URL or opensearch+URL.
    code : str, Code or SurrogateCodec, optional
        Code that turns vectors into term frequencies: a string such as "dictionary:2/64" (see
        ``boc.codecs.parse_code``) or a codec. The default is "dictionary", except that a copy of an
        index keeps its own code and terms.
    rm : float, optional
        Number of candidates per hit that a search re-ranks; default: the value of a copied index,
        otherwise 10.
    recall : float, optional
        Fraction of the exact ten nearest items that searches with a dictionary must find; default:
        0.98. After loading, boc chooses the cheapest budgets that reach this recall, unless ``rm``
        is given or the code includes budgets.
    rerank : str, optional
        Metric by which candidates are re-ranked, one of ``boc.names.METRICS``; default: the metric
        of a copied index, otherwise "dot".
    vectors : "float16" or "int8", optional
        Type to which vectors are rounded; int8 needs half the space of float16. Default: the type
        in the file, but float16 for files of other programs that do not contain int8.
    concepts : "float16" or "int8", optional
        Type in which concept sets are stored. By default, they are stored as "float16", and only if
        ``rerank`` needs them.
    metadata : Metadata or path of a CSV, optional
        Metadata for filters and for display.
    images : path, optional
        Folder with the pictures listed in a CSV file; default: the folder of the CSV file, or its
        subfolder ``images``.
    exclude : sequence of str, optional
        Names of files and folders to exclude, now and in later syncs, such as "raw" or
        "copy-?.jpg". Names that begin with a dot, thumbnails and trash are always excluded.
    replace : bool, default=False
        Replace an existing index that has other contents, instead of raising an error.
    ocr : bool, default=False
        Also recognise text in the pictures and store this text in the field ``ocr``, which hybrid
        search uses.
    shard : str, optional
        Part ``I/N`` of the feature files that this process loads into an index on a server. The
        last of the N processes to finish publishes the index.
    device : str, default="auto"
        Device on which the encoder runs: cpu, cuda or auto.
    progress : bool or callable, default=False
        True shows progress bars, also in notebooks; a callable is called as
        ``progress(stage, done, total)`` after each batch.
    """
    if shard is not None:
        shard_of(shard)
    # Reject invalid values before reading the sources.
    SearchOptions(rm=rm)
    table = Metadata.of_option(metadata)
    backend = plugins.backend(at)
    show = progress_of(progress)
    check_name(name)
    code_of = parse_code(code or "dictionary") if code is None or isinstance(code, str) else code
    make = codec_maker(code_of)
    sources = IndexSources(paths_of(source), images, exclude)
    if shard is not None and not all(path.suffix.lower() in SUFFIXES for path in sources.paths):
        raise BocError(
            f"shard {shard}: only feature files can be loaded in parts",
            "encode the pictures first, with <boc extract --shard>",
        )
    if sources.form == "items" and not replace and backend.exists(name):
        # Report errors in the source first.
        _ = sources.items
        raise BocError(
            f"{at} already has an index {name!r}",
            "update it with <boc sync>, add other pictures with <boc add>, or rebuild it with "
            "<--replace>",
        )
    network = sources.encoder(encoder, device)
    sets = network is not None and (
        (rerank or "dot") != "dot" or concepts is not None or make(network.identity).reads_concepts
    )
    with sources.vectors(name, at, network, show, concepts=sets, ocr=ocr) as file:
        # A copy of an index is recreated with its own code, unless the settings differ.
        learned: SurrogateCodec | Mapping[str, NDArray[Any]]
        as_stored = (code, vectors, concepts) == (None, None, None)
        if as_stored and isinstance(file, StoredItems):
            manifest, learned = stored_manifest(file, rm=rm, rerank=rerank, metadata=table)
        else:
            codec = make(file.header.identity)
            if shard is None:
                fit_code(file, codec, show)
            else:
                codec = _shared_code(backend, name, file, codec, show)
            manifest = new_manifest(
                file,
                codec,
                rm or DEFAULT_RM,
                rerank=rerank or "dot",
                vectors=vectors or getattr(file, "stored_as", None),
                concepts=concepts,
                metadata=table,
            )
            if manifest.rerank == "dot":
                manifest = replace_in(manifest, recall=promise(recall, code_of, rm, codec))
            manifest = replace_in(
                manifest,
                unreadable=sources.unreadable,
                exclude=[*exclude],
            )
            learned = codec

        def is_complete() -> bool:
            return backend.exists(name) and backend.open(name).manifest.same_contents(manifest)

        # Load the index unless it is complete. With a shard, the index may be complete even with
        # ``replace``, because another process may have published it in the meantime.
        report = LoadReport(file.count("image"), file.count("text"), file.failures)
        if (not replace or shard is not None) and is_complete():
            report = replace_in(report, up_to_date=True)
        elif backend.exists(name) and not replace:
            raise BocError(
                f"{at} already has an index {name!r} with other items",
                "rebuild it with <--replace>, add these items with <boc add>, or use another name",
            )
        else:
            for done in load_index(file, at, name, learned, manifest, table, part=shard):
                show("indexing", done, report.images + report.texts)
            if shard is not None and not is_complete():
                return replace_in(report, published=False)

        # Choose budgets, unless an earlier call has already chosen them.
        promised = backend.open(name).manifest.recall
        if promised and "items" not in promised:
            choose_budgets(name, at, file, None if network is None else lambda: network)
        return report


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
    """Add everything in ``source`` to the index ``name``, using its code, and replace items that
    have the same ids.

    The parameters are the same as in ``build_index``. ``encoder`` is needed only if the encoder of
    the index has moved. Raises EncoderError if a feature file comes from another encoder, and
    BocError for metadata fields that the index does not declare.
    """
    table = Metadata.of_option(metadata)
    backend = plugins.backend(at)
    show = progress_of(progress)
    index = backend.open(check_name(name))
    manifest = index.manifest
    sources = IndexSources(paths_of(source), images, manifest.exclude)
    network = sources.encoder(encoder or manifest.identity.spec, device)
    codec = SurrogateCodec.restore(manifest.codec, index.arrays())
    sets = codec.reads_concepts or manifest.concept_dtype is not None
    with sources.vectors(name, at, network, show, concepts=sets, ocr=ocr) as file:
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
    renew_measurements(name, at)
    return report


def delete_items(name: str, ids: Sequence[str], *, at: str = PLACE) -> DeleteReport:
    """Delete items from the index ``name``.

    Raises BackendError if the index would be empty afterwards.
    """
    backend = plugins.backend(at)
    index = backend.open(check_name(name))
    distinct = list(dict.fromkeys(ids))
    known: dict[str, None] = {}
    unknown = []
    for start in range(0, len(distinct), LOOKED_UP):
        left = distinct[start : start + LOOKED_UP]
        while left:
            try:
                known |= dict.fromkeys(item.id for item in index.find(left))
                break
            except KeyError as error:
                left.remove(error.args[0])
                # The index may contain this id in another Unicode normal form.
                try:
                    known[plugins.find_item(index, error.args[0]).id] = None
                except KeyError:
                    unknown.append(error.args[0])
    if known:
        with backend.edit(name) as editor:
            for start in range(0, len(known), LOOKED_UP):
                editor.delete([*known][start : start + LOOKED_UP])
            editor.commit(json_sha256([index.manifest.source, "without", *sorted(known)]))
    return DeleteReport(len(known), unknown)


def codec_maker(code: str | Code | SurrogateCodec) -> Callable[[Identity], SurrogateCodec]:
    """Return a function that creates the unfitted codec of a code for the vectors of an encoder.

    A codebook is read immediately, before any other work, and checked once the encoder is known.
    Raises BocError for an invalid code, and for a codebook that is missing or belongs to another
    encoder.
    """
    if isinstance(code, SurrogateCodec):
        return lambda _: code
    if not isinstance(code, (str, Code)):
        raise BocError(
            "code must be a string such as 'dictionary:2/64', a Code or a SurrogateCodec, got "
            f"{code!r}",
        )
    parsed = parse_code(code) if isinstance(code, str) else code
    book = parsed.load_codebook()

    def make(identity: Identity) -> SurrogateCodec:
        if book is not None:
            book.check(identity)
        return parsed.codec(identity.dim, book)

    return make


def _shared_code(
    backend: Backend,
    name: str,
    file: VectorSource,
    codec: SurrogateCodec,
    progress: Progress,
) -> SurrogateCodec:
    """Return the code of an index that several processes load together. Only one of the processes
    learns the code."""

    def learn() -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        fit_code(file, codec, progress)
        return codec.config(), codec.arrays()

    steps = [(type(step).__name__, step.get_params(deep=False)) for step in codec.steps]
    # The text must contain every element of an array.
    with np.printoptions(threshold=sys.maxsize, precision=17):
        text = repr([steps, file.contents(sets=codec.reads_concepts)])
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return SurrogateCodec.restore(*backend.learn_once(name, key, learn))
