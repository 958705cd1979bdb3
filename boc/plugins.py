"""What plug-ins must have (encoders, region sources, back ends), and how a name finds one.

Plug-ins are loaded when asked for. This is the only module that knows their folders."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol

from boc.errors import BackendError, BocError, EncoderError
from boc.types import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

    from boc.manifest import Manifest
    from boc.types import (
        Embeddings,
        Filter,
        Hit,
        Identity,
        ImageRef,
        Item,
        Modality,
        Regions,
        Rescore,
        Stages,
        StoredConcepts,
        TermMatrix,
        Words,
    )

ROOT = Path(__file__).resolve().parent.parent


def backend(url: str) -> Backend:
    """The back end behind a URL: ``file:DIR`` for the embedded index."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise BackendError(f"{url!r} is no address; write file:DIR, for example file:boc-data")
    found: Backend = _module("indexing", scheme.partition("+")[0]).connect(url)
    return found


def encoder(spec: str, device: str = "auto", runtime: Runtime | None = None) -> Encoder:
    """The encoder ``KIND:ARGUMENT``, for example ``tern:models/flickr8k``; ``runtime`` says more than ``device``."""
    kind, argument = _split(spec, "encoder", "tern:FOLDER")
    found: Encoder = _module("encoders", kind).load(argument, runtime or Runtime(device))
    return found


def region_source(spec: str) -> RegionSource:
    """The region source ``KIND`` or ``KIND:ARGUMENT``, for example ``grid`` or ``tflite:FILE``."""
    found: RegionSource = _package("encoders.regions").load(spec)
    return found


def trainer() -> ModuleType:
    """The module that trains encoders: Recipe, Training, describe, finished, best."""
    return _module("encoders.training", "train")


def converter() -> ModuleType:
    """The module that turns published checkpoints into model folders: convert."""
    return _module("encoders.conversion", "convert")


def _split(spec: str, what: str, example: str) -> tuple[str, str]:
    kind, colon, argument = spec.partition(":")
    if not colon or not argument:
        raise EncoderError(f"{spec!r} is no {what}; write KIND:ARGUMENT, for example {example}")
    return kind, argument


def _package(folder: str) -> ModuleType:
    """Our own package ``folder``; a stranger's of that name is refused."""
    package = import_module(folder)
    place = Path(next(iter(package.__path__))).resolve()
    if place != ROOT / folder.replace(".", "/"):
        raise BocError(f"the package {folder!r} was loaded from {place}, not from boc; rename or remove that one")
    return package


def _module(folder: str, name: str) -> ModuleType:
    known = sorted(m.name for m in iter_modules(_package(folder).__path__) if not (m.ispkg or m.name.startswith("_")))
    if name not in known:
        raise BocError(f"no {name!r} in {folder}; known: {', '.join(known)}")
    try:
        return import_module(f"{folder}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"boc", "encoders", "indexing"}:
            raise
        extra = name if folder == "indexing" else "encoders"
        what = {"encoders.training": "training", "encoders.conversion": "boc convert"}.get(folder, name)
        raise BocError(f"{what} needs the package {error.name}; install it with: pip install 'boc[{extra}]'") from error


NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def check_name(name: str) -> str:
    """``name`` if every engine takes it as the name of an index; BackendError tells the rule."""
    if not NAME.fullmatch(name):
        raise BackendError(
            f"{name!r} cannot name an index; use lower-case letters, digits, - and _, a letter or digit first"
        )
    return name


class RegionSource(Protocol):
    """Turns one picture into regions. The same picture always gives the same regions. Can be pickled: worker processes
    get it."""

    identity: Identity

    def __call__(self, image: ImageRef) -> Regions:
        """Raises ImageError where the picture cannot be used. No region at all is a valid answer."""


class Encoder(Protocol):
    """Turns pictures and sentences into unit vectors of one space, ``identity.dim`` wide."""

    identity: Identity

    @property
    def preparer(self) -> Callable[[ImageRef], Any]:
        """What ``prepare`` calls: an object without the network that can be pickled, for worker processes."""

    def prepare(self, image: ImageRef) -> Any:
        """Decode and preprocess one picture, on the CPU. Raises ImageError where it cannot be used."""

    def encode_images(self, prepared: Sequence[Any]) -> Embeddings:
        """Embeddings as long as the input, which came from ``prepare``."""

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Embeddings as long as the input."""


class Index(Protocol):
    """An opened index. Replacing it leaves what is open unchanged; engines that edit in place show edits at once."""

    manifest: Manifest

    @property
    def exact_vectors(self) -> bool:
        """Whether ``vectors`` are what was added, in the manifest's ``vector_dtype``; otherwise they were rounded."""

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The learned arrays of the codec, as stored with the index."""

    def search(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None = None,
        *,
        filters: Sequence[Filter] = (),
        rescore: Rescore | None = None,
        words: Words | None = None,
        stages: Stages | None = None,
    ) -> list[list[Hit]]:
        """At most k hits a query by dot product of frequencies, ordered by (-score, id).

        Only items that share a term with the query are found. ``modality`` restricts to pictures or sentences,
        ``filters`` to items for which all of them hold. With ``rescore`` the k hits are candidates, scored anew where
        the vectors are; with ``words`` the score also counts words. ``stages`` is told what that took: postings,
        re-ranking and content, and the number of candidates. BackendError for what the engine cannot do.
        """

    def match(
        self, texts: Sequence[str], k: int, modality: Modality | None = None, filters: Sequence[Filter] = ()
    ) -> list[list[Hit]]:
        """At most k hits a sentence by the engine's own full-text score (BM25) over sentences and text fields.

        BackendError if the index is of a format without.
        """

    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        """(len(ids), d) in the order asked, as stored (float16 or float32); KeyError for an unknown id."""

    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        """The concept sets of some items, in the order asked, as stored.

        KeyError for an unknown id; BackendError if the index holds no concept sets.
        """

    def items(self) -> Iterator[Item]:
        """All items, ordered by id."""

    def find(self, ids: Sequence[str]) -> list[Item]:
        """Some items, in the order asked; KeyError for an unknown id."""

    def sizes(self) -> dict[str, int]:
        """Bytes that the index takes: of ``postings``, ``vectors``, ``concepts``, and all ``other``."""

    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        """The stored term frequencies of some items, in the order asked; KeyError for an unknown id.

        Only those of the terms ``among``, where it is given: the fewer, the faster. Not for queries.
        """

    def document_frequencies(self) -> NDArray[np.int64]:
        """How many items have each term (V,), counted by the engine. For checks."""

    def damaged(self) -> list[str]:
        """The files whose bytes are not those that were written; none where an engine sees to that itself."""


class IndexWriter(Protocol):
    """An index being made. Nobody sees it before ``commit``; leaving without commit leaves nothing behind.

    An engine may keep what it acknowledged of a load that was killed, or lost its connection, for the next load of the
    same contents to go on.
    """

    def has(self, ids: Sequence[str]) -> bool:
        """Whether an earlier load of the same contents has left all of these, so that they need not be added."""

    def add(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        """Store rows; BackendError for an id that was added before.

        ``concepts`` are of the manifest's ``concept_dtype``, or None where that is.
        """

    def commit(self) -> None:
        """Publish all rows at once, in place of an older index of that name."""

    def __enter__(self) -> IndexWriter: ...

    def __exit__(self, *exc: object) -> None: ...


class IndexEditor(Protocol):
    """Changes of an index that is there, done when ``commit`` returns. Interrupted, the same can be repeated."""

    def put(
        self,
        items: Sequence[Item],
        terms: TermMatrix,
        vectors: NDArray[np.float32],
        concepts: StoredConcepts | None = None,
    ) -> None:
        """Add items, in place of those of the same ids; otherwise like ``IndexWriter.add``."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many of them were there."""

    def commit(self, source: str) -> None:
        """Make the changes last; ``source`` is the manifest's from now on."""

    def __enter__(self) -> IndexEditor: ...

    def __exit__(self, *exc: object) -> None: ...


class Backend(Protocol):
    """A place where indexes live."""

    def exists(self, name: str) -> bool: ...

    def create(self, name: str, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> IndexWriter: ...

    def open(self, name: str) -> Index:
        """BackendError naming what is there if there is no such index."""

    def edit(self, name: str) -> IndexEditor:
        """BackendError like ``open``."""

    def compact(self, name: str) -> None:
        """Make an index as small and fast as it gets, with the same answers; BackendError like ``open``."""

    def names(self) -> list[str]:
        """The indexes that are here, sorted."""

    def remove(self, name: str) -> None:
        """Remove a whole index; BackendError like ``open``."""

    def about(self) -> dict[str, str]:
        """What this place is, for people: engine, version, what it can do."""
