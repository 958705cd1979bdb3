"""Define the interfaces of plug-ins (encoders, region sources, back ends), and load plug-ins by
name.

Plug-ins are loaded on first use. Only this module knows the folders of plug-ins."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol

from boc import models
from boc.errors import BackendError, BocError, EncoderError, needing
from boc.paths import forms
from boc.types import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

    from boc.manifest import Manifest
    from boc.plan import Costs, Statistics
    from boc.types import (
        Embeddings,
        Filter,
        Hit,
        Identity,
        ImageRef,
        Item,
        Modality,
        Regions,
        Rows,
        SearchRequest,
        Stages,
        StoredConcepts,
        TermMatrix,
    )
    from boc.vectors import Array, Doubles, Ints
    from indexing.server.attach import ServerAttachment

ROOT = Path(__file__).resolve().parent.parent


def backend(url: str) -> Backend:
    """Return the back end at a URL. ``file:DIR`` selects the embedded engine."""
    scheme, colon, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    if not colon:
        raise BackendError(
            f"{url!r} is not an address; use file:DIR, for example file:{url or 'boc-data'}",
        )
    place: Backend = _module("indexing", scheme.partition("+")[0]).connect(url)
    return place


def encoder(spec: str, device: str = "auto", runtime: Runtime | None = None) -> Encoder:
    """Load an encoder from ``KIND:ARGUMENT``, from its model folder (``models/photos``), or by its
    short name (``clip``).

    ``runtime`` replaces ``device``."""
    if not isinstance(spec, (str, Path)):
        raise BocError(
            "an encoder must be a name such as 'clip' or a model folder, got "
            f"{type(spec).__name__}",
        )
    spec = models.spec(str(spec))
    kind, colon, argument = spec.partition(":")
    # A model folder declares its own kind.
    held = models.kind(Path((argument or spec).partition("?")[0]))
    if held and not colon:
        kind = held
        argument = spec
    if held and held != kind and kind in models.ENCODERS:
        raise EncoderError(f"{argument}: contains a {held}, not a {kind}; write {held}:{argument}")
    if not argument:
        names = ", ".join(models.CATALOGUE)
        raise EncoderError(
            f"{spec!r} is not an encoder; use a model folder, KIND:ARGUMENT, or one of {names}",
        )
    loaded: Encoder = _module("encoders", kind).load(argument, runtime or Runtime(device))
    return loaded


def region_source(spec: str) -> RegionSource:
    """Load the region source ``KIND`` or ``KIND:ARGUMENT``, for example ``grid`` or
    ``files:DIR``."""
    source: RegionSource = _package("encoders.regions").load(spec)
    return source


TOOLS = {
    "train": ("encoders.training", "training"),
    "learned_terms": ("encoders.training", "training"),
    "convert": ("encoders.conversion", "a conversion"),
    "onnx_export": ("encoders.runtime", "this step"),
}
"""Modules that create encoders and learned terms, each with its folder and the task that needs
it."""


def tool(name: str) -> ModuleType:
    """Import a module of ``TOOLS``."""
    folder, what = TOOLS[name]
    return _module(folder, name, what)


def _package(folder: str) -> ModuleType:
    """Import the package ``folder`` of boc. Raises BocError if another package has the same
    name."""
    package = import_module(folder)
    place = Path(next(iter(package.__path__))).resolve()
    if place != ROOT / folder.replace(".", "/"):
        raise BocError(
            f"the package {folder!r} was loaded from {place} instead of boc; rename or "
            "remove the other package",
        )
    return package


def _module(folder: str, name: str, what: str = "") -> ModuleType:
    """Import a module from the package ``folder`` of boc. Raises BocError if the module, or a
    package that the module needs, is missing."""
    known = sorted(
        m.name
        for m in iter_modules(_package(folder).__path__)
        if not (m.ispkg or m.name.startswith("_"))
    )
    if name not in known:
        raise BocError(f"no {name!r} in {folder}; known: {', '.join(known)}")
    with needing(what or name, name if folder == "indexing" else "encoders"):
        return import_module(f"{folder}.{name}")


NAME = re.compile(r"(?!boc-on-)[a-z0-9][a-z0-9_-]{0,99}")


def find_item(index: Engine, id: str) -> Item:
    """Return the item with the given id, whichever Unicode form the index uses. Raises KeyError for
    an unknown id."""
    for form in forms(id):
        try:
            return index.find([form])[0]
        except KeyError:
            continue
    raise KeyError(id)


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid index name in every engine. Otherwise, raise a BackendError
    that states the rule."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        such = re.sub("[^a-z0-9_]+", "-", Path(str(name)).name.lower()).strip("-_")
        rule = (
            "use lower-case letters, digits, - and _, starting with a letter or digit but not with "
            "boc-on-"
        )
        raise BackendError(
            f"{name!r} is not a valid index name; "
            f"{rule}{f', such as {such}' if NAME.fullmatch(such) else ''}",
        )
    return name


class RegionSource(Protocol):
    """Source of picture regions. A source must return the same regions for a picture on every call,
    and must be picklable for worker processes."""

    identity: Identity

    def __call__(self, image: ImageRef) -> Regions:
        """Return the regions of a picture; the set may be empty. Raises ImageError if the picture
        cannot be used."""


class Encoder(Protocol):
    """Encoder that maps pictures and sentences to unit vectors in a common space of dimension
    ``identity.dim``.

    An encoder may have a ``vocabulary`` of whole words, which is used for spelling suggestions.
    """

    identity: Identity

    @property
    def preparer(self) -> Callable[[ImageRef], Any]:
        """Return the function behind ``prepare``. The function can be pickled for worker processes
        and does not include the network."""

    def prepare(self, image: ImageRef) -> Any:
        """Decode and preprocess one picture on the CPU. Raises ImageError if the picture cannot be
        used."""

    def encode_images(self, prepared: Sequence[Any]) -> Embeddings:
        """Return embeddings of prepared pictures, one row per picture."""

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Return embeddings of sentences, one row per sentence."""


class Engine(Protocol):
    """Open index. The object keeps its contents even if a new index replaces the index; in engines
    that edit in place, edits are visible immediately."""

    manifest: Manifest
    costs: Costs

    @property
    def exact_vectors(self) -> bool:
        """Return whether ``vectors`` returns exactly the vectors that were added, in the
        ``vector_dtype`` of the manifest."""

    @property
    def searches_words(self) -> bool:
        """Return whether ``match`` searches the words of boc's own items rather than the documents
        of another program."""

    @property
    def is_unfinished(self) -> bool:
        """Return whether an edit is running or was interrupted, in which case the edit may be
        partly visible."""

    def arrays(self) -> Mapping[str, Array]:
        """Return the learned arrays of the codec, which are stored with the index."""

    def search(
        self,
        request: SearchRequest,
        stages: Stages | None = None,
    ) -> Sequence[Sequence[Hit]]:
        """Return at most ``request.k`` hits per query, scored by the dot product of term
        frequencies and ordered by (-score, id).

        Every hit shares a term with the query, unless the plan compares all items. The number of
        candidates and the plan are added to ``stages``. An engine may defer reading an item until
        the hit is accessed. Raises BackendError for options that the engine does not support.
        """

    def statistics(self, modality: Modality | None, filters: Sequence[Filter] = ()) -> Statistics:
        """Return the statistics that a plan needs, for the items of a modality that pass all
        filters."""

    def rank(self, request: SearchRequest) -> tuple[NDArray[np.object_], Doubles]:
        """Return the ids (n, m) and scores (n, m) of the hits that ``search`` would return. Rows
        with fewer hits are padded with None and -inf.

        The engine reads the contents of hits only if necessary.
        """

    def request(self, search: SearchRequest) -> str:
        """Return the JSON body of an HTTP request that runs ``search`` for a single query.

        Raises BackendError if the engine has no HTTP interface or cannot re-rank.
        """

    def match(
        self,
        texts: Sequence[str],
        k: int,
        modality: Modality | None = None,
        filters: Sequence[Filter] = (),
    ) -> list[list[Hit]]:
        """Return at most k hits per sentence, ranked by their full-text score (BM25) for captions
        and text fields.

        Raises BackendError if the index format has no full-text index.
        """

    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        """Return the stored vectors (len(ids), d) in the order of ``ids``, with the type
        ``manifest.vector_floats``.

        Raises KeyError for an unknown id.
        """

    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        """Return the stored concept sets of items, in the order of ``ids``.

        Raises KeyError for an unknown id, and BackendError if the index stores no concept sets.
        """

    def items(self) -> Iterator[Item]:
        """Yield all items, ordered by id."""

    def find(self, ids: Sequence[str]) -> list[Item]:
        """Return items by id, in the order of ``ids``. Raises KeyError for an unknown id."""

    def sample(self, count: int, modality: Modality) -> list[str]:
        """Return the ids of ``count`` random items of one modality, without repeats, or all ids if
        the modality has fewer items.

        As long as the index does not change, every call returns the same ids.
        """

    # An engine may define ``passing(modality, filters, most)``, which returns ids of items that
    # pass all filters, including at least the first ``most`` ids. The page can then list pictures
    # without reading items.

    def used_fields(self) -> set[str]:
        """Return the metadata fields, except text fields, for which at least one item has a
        value."""

    def sizes(self) -> dict[str, int]:
        """Return the size of each part of the index in bytes: ``postings``, ``vectors``,
        ``concepts`` and ``other``."""

    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        """Return the stored term frequencies of items, in the order of ``ids``. Raises KeyError for
        an unknown id.

        With ``among``, the matrix contains only these terms, which is faster. Searches do not call
        this method.
        """

    def document_frequencies(self) -> Ints:
        """Return the number of items that contain each term (V,), as counted by the engine. Only
        checks call this method."""

    def damaged_files(self) -> list[str]:
        """Return the files whose bytes have changed. The list is empty if the engine checks its own
        files."""


class IndexWriter(Protocol):
    """Writer for a new index. ``commit`` publishes the index. If a ``with`` block ends without a
    commit, no index is created.

    If a load is killed, an engine may keep the acknowledged rows, so that the next load of the same
    contents can resume from there.
    """

    def has(self, ids: Sequence[str]) -> bool:
        """Return whether an earlier load of the same contents has already added all of these
        ids."""

    def add(self, rows: Rows) -> None:
        """Add rows. Raises BackendError for an id that was already added."""

    def commit(self) -> None:
        """Publish all rows at once. An existing index with the same name is replaced."""

    def __enter__(self) -> IndexWriter: ...

    def __exit__(self, *exc: object) -> None: ...


class IndexEditor(Protocol):
    """Editor for an existing index. The edit is complete once ``commit`` returns. A killed edit can
    be run again."""

    def put(self, rows: Rows) -> None:
        """Add items as ``IndexWriter.add`` does, but replace existing items with the same ids."""

    def delete(self, ids: Sequence[str]) -> int:
        """Delete items, and return how many of them existed."""

    def commit(self, source: str, **changed: Any) -> None:
        """Publish the changes. ``source`` and ``changed`` are new values for manifest entries."""

    def __enter__(self) -> IndexEditor: ...

    def __exit__(self, *exc: object) -> None: ...


class Backend(Protocol):
    """Place where indexes are stored, such as a folder or a cluster."""

    def exists(self, name: str) -> bool: ...

    def create(
        self,
        name: str,
        manifest: Manifest,
        arrays: Mapping[str, Array],
        part: str | None = None,
    ) -> IndexWriter:
        """Create an index, or load part ``I/N`` of its items. N processes load the parts in
        parallel, and the last process publishes the index.

        Raises SourceError if ``part`` is not I/N, and BackendError if this back end allows only one
        process to load an index.
        """

    def learn_once(
        self,
        name: str,
        key: str,
        learn: Callable[[], tuple[dict[str, Any], Mapping[str, Array]]],
    ) -> tuple[dict[str, Any], Mapping[str, Array]]:
        """Return the result of ``learn``, the configuration and arrays of a code, for an index that
        several processes load. The first process learns the code, and the others reuse its result.
        ``key`` consists of 12 hex digits and identifies the result."""

    def open(self, name: str) -> Engine:
        """Open an index. If the index does not exist, raises a BackendError that lists the existing
        indexes."""

    def edit(self, name: str) -> IndexEditor:
        """Open an index for editing. Raises BackendError as ``open`` does."""

    def attach(self, name: str) -> ServerAttachment:
        """Open ``name``, an index of another program, for attaching a code. The code may not exist
        yet."""

    def compact(self, name: str) -> None:
        """Merge an index into a single segment without deleted rows. Raises BackendError as
        ``open`` does."""

    def names(self) -> list[str]:
        """Return the sorted names of the indexes."""

    def remove(self, name: str) -> None:
        """Remove a whole index. Raises BackendError as ``open`` does."""

    def about(self) -> dict[str, str]:
        """Return a description of the back end for users: engine, version, and supported
        features."""
