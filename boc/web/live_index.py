"""The index of the server, reopened after it was replaced or unreachable, and a cache of encoded
queries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError, BocError, ImageError, ManifestError
from boc.explain.score import TermLabels
from boc.inputs.file_facts import visible_fields
from boc.inputs.metadata import holds, values_of
from boc.paths import nfc
from boc.plugins import Encoder, find_item
from boc.search.options import check_sentence, parse_filters
from boc.search.queries import QueryPart
from boc.search.searcher import Searcher
from boc.search.spelling import Spelling
from boc.types import Embeddings, FieldType, ImageRef, Item, TermMatrix
from boc.web.http.responses import ProblemError, unknown
from boc.web.microbatch import Batcher
from boc.web.pictures.content import open_content
from boc.web.pictures.decoding import PixelBudget
from boc.web.pictures.uploads import Upload
from boc.web.settings import Settings

T = TypeVar("T")

AGAIN = 1.0  # seconds after which an index that could not be opened is opened again
SENTENCES = 1024  # encoded sentences in the cache
PICTURES = 64
BEGIN = 1000  # first items of the index, from which examples are taken
EXAMPLES = 6
# items that a library without a search shows at most, and orders that are kept
BROWSED = 200_000
ORDERS = 8
SHORT = 60  # characters of an example at most
AWAY = (BackendError, ManifestError, OSError)
"""Errors of an index that was removed, or whose server does not answer."""


class Recent(Generic[T]):
    """A cache of the ``size`` values used last. Thread-safe; a value may be made twice."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of ``key``, made if it is not in the cache."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value


@dataclass(frozen=True)
class LibrarySnapshot:
    """A snapshot of the index. ``frequencies`` int64 (V,) are the numbers of items with each
    term."""

    searcher: Searcher
    frequencies: NDArray[np.int64]
    labels: TermLabels
    _by_date: dict[tuple[str, ...], list[str]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, searcher: Searcher) -> LibrarySnapshot:
        return cls(searcher, searcher.index.document_frequencies(), TermLabels(searcher))

    @cached_property
    def begin(self) -> list[Item]:
        """The first items of the index."""
        return list(islice(self.searcher.index.items(), BEGIN))

    @cached_property
    def fields(self) -> dict[str, FieldType]:
        """The fields that a page offers: those of text, and those of which an item has a value."""
        used = self.searcher.index.used_fields()
        fields = visible_fields(self.searcher.index.manifest.fields)
        return {name: kind for name, kind in fields.items() if kind == "text" or name in used}

    @cached_property
    def examples(self) -> list[str]:
        """Some short sentences from the beginning of the index, as examples of queries."""
        short = [
            item.content
            for item in self.begin
            if item.modality == "text" and len(item.content) <= SHORT
        ]
        return list(dict.fromkeys(short[:: max(1, len(short) // EXAMPLES)]))[:EXAMPLES]

    @cached_property
    def spelling(self) -> Spelling:
        """The words that the index and its encoder have."""
        return Spelling(self.searcher)

    def by_date(self, filters: tuple[str, ...] = ()) -> list[str]:
        """Return the ids of the pictures that pass, the newest first, by the date taken, else that
        of the file; of a library of more than ``BROWSED`` items those among the first of these."""
        if filters not in self._by_date:
            index = self.searcher.index
            conditions = parse_filters(filters, index.manifest.fields)
            pictures = (item for item in islice(index.items(), BROWSED) if item.modality == "image")
            chosen = [
                item for item in pictures if all(holds(each, item.fields) for each in conditions)
            ]
            dates = [str(next(iter(_dates(item.fields)), "")) for item in chosen]
            order = sorted(range(len(chosen)), key=dates.__getitem__, reverse=True)
            if len(self._by_date) >= ORDERS:
                self._by_date.clear()
            self._by_date[filters] = [chosen[i].id for i in order]
        return self._by_date[filters]

    def postings(self, terms: TermMatrix) -> int:
        """Return the total length of the posting lists of ``terms``."""
        return int(self.frequencies[terms.indices].sum())


def _dates(fields: Mapping[str, Any]) -> Iterator[Any]:
    return (value for name in ("taken", "modified") for value in values_of(fields, name))


class Library:
    """The current index of the server and its encoder. Thread-safe.

    A replaced index is noticed within seconds. Until it is open, the old one answers.
    """

    def __init__(
        self,
        searcher: Searcher,
        settings: Settings,
        budget: PixelBudget,
        batching: dict[str, Batcher] | None = None,
    ) -> None:
        """``batching`` holds, by the digest of an encoder, what several libraries that use it
        share."""
        self._settings = settings
        self._budget = budget
        self._snapshot = LibrarySnapshot.of(searcher)
        self._away: str | None = None
        self._looked = monotonic()
        self._looking = threading.Lock()
        self._batching = {} if batching is None else batching
        self._sentences: Recent[Embeddings] = Recent(SENTENCES)
        self._pictures: Recent[Embeddings] = Recent(PICTURES)

    @property
    def snapshot(self) -> LibrarySnapshot:
        """The index as it was opened last."""
        return self._snapshot

    def do(self, work: Callable[[LibrarySnapshot], T]) -> T:
        """Run ``work`` on the current index. ProblemError 503 if the index is and stays
        unreachable."""
        snapshot = self._current()
        try:
            return work(snapshot)
        except AWAY:
            snapshot = self._reopen()
        try:
            return work(snapshot)
        except AWAY as error:
            raise ProblemError(503, str(error), {"Retry-After": "1"}) from error

    def sentence(self, snapshot: LibrarySnapshot, text: str) -> Embeddings:
        """Return the embedding of a sentence, from the cache if possible."""
        check_sentence(text)
        encoder = snapshot.searcher.encoder
        text = nfc(text)

        key = encoder.identity.digest, text
        return self._sentences.get(key, lambda: self._together(encoder)(encoder.encode_texts, text))

    def picture(
        self,
        snapshot: LibrarySnapshot,
        path: Path,
        name: str,
        key: Hashable,
    ) -> Embeddings:
        """Return the embedding of a picture, from the cache if possible; ``key`` changes with its
        contents."""
        encoder = snapshot.searcher.encoder

        def make() -> Embeddings:
            try:
                with self._budget.of(path):
                    prepared = encoder.prepare(ImageRef(name, path))
            except ImageError as error:  # the answer must not reveal paths of this disk
                raise ImageError(str(error).replace(str(path), name)) from error
            with self._together(encoder).alone():
                return encoder.encode_images([prepared])

        return self._pictures.get((encoder.identity.digest, key), make)

    def _together(self, encoder: Encoder) -> Batcher:
        return self._batching.setdefault(encoder.identity.digest, Batcher())

    def upload(self, snapshot: LibrarySnapshot, sent: Upload) -> Embeddings:
        """Return the embedding of an uploaded picture, from the cache if possible."""
        return self.picture(snapshot, sent.path, sent.name, sent.key)

    def part(
        self,
        snapshot: LibrarySnapshot,
        part: QueryPart,
        sent: Upload | None = None,
    ) -> Embeddings:
        """Return the embedding of a part of a question; its picture, if it has one, is the one that
        was ``sent``."""
        if part.kind == "text":
            return self.sentence(snapshot, str(part.value))
        if part.kind == "image":
            assert sent is not None
            return self.upload(snapshot, sent)
        try:
            return self.stored_embeddings(
                snapshot,
                find_item(snapshot.searcher.index, str(part.value)),
            )
        except KeyError:
            raise unknown(str(part.value)) from None

    def item(self, snapshot: LibrarySnapshot, item: Item) -> Embeddings:
        """Return an item of the index, encoded again to get the regions or words that the index
        does not store."""
        if item.modality == "text":
            return self.sentence(snapshot, item.content)
        with open_content(item) as content:
            key = item.content, content.status.st_size, content.status.st_mtime_ns
            return self.picture(snapshot, content.path, item.group or content.name, key)

    def stored_embeddings(self, snapshot: LibrarySnapshot, item: Item) -> Embeddings:
        """Return an item as the index stores it; if the code reads regions or words, it is also
        encoded again."""
        embeddings = snapshot.searcher.embeddings(item.id)
        return (
            replace(self.item(snapshot, item), vectors=embeddings.vectors)
            if snapshot.searcher.codec.reads_concepts
            else embeddings
        )

    def embeddings_with_parts(self, snapshot: LibrarySnapshot, item: Item) -> Embeddings:
        """Return the stored vector of an item with its regions or words; without these if its
        picture is missing."""
        embeddings = snapshot.searcher.embeddings(item.id)
        try:
            return replace(self.item(snapshot, item), vectors=embeddings.vectors)
        except ImageError:
            return embeddings

    def _current(self) -> LibrarySnapshot:
        if self._away is not None:
            if monotonic() - self._looked < AGAIN:
                raise ProblemError(503, self._away, {"Retry-After": "1"})
            return self._reopen()
        if monotonic() - self._looked > self._settings.look_every and self._looking.acquire(
            blocking=False,
        ):
            self._looked = monotonic()
            threading.Thread(target=self._look, daemon=True).start()
        return self._snapshot

    def _look(self) -> None:
        """Reopen the index if it was replaced; record if it is gone."""
        try:
            self._take(self._snapshot.searcher.renew())
        except (BocError, OSError) as error:
            self._away = str(error)
            self._looked = monotonic()
        finally:
            self._looking.release()

    def _reopen(self) -> LibrarySnapshot:
        """Open the index now. ProblemError 503 if that fails.

        Requests that wait meanwhile share what comes of it: while a server starts, each try takes
        as long as a search.
        """
        begun = monotonic()
        with self._looking:
            if self._looked >= begun:
                if self._away is not None:
                    raise ProblemError(503, self._away, {"Retry-After": "1"})
                return self._snapshot
            try:
                self._take(self._snapshot.searcher.renew(force=True))
            except (BocError, OSError) as error:
                self._away = str(error)
                raise ProblemError(503, self._away, {"Retry-After": "1"}) from error
            finally:
                self._looked = monotonic()
        return self._snapshot

    def _take(self, searcher: Searcher) -> None:
        if searcher is not self._snapshot.searcher:
            if "encoder" in vars(self._snapshot.searcher):
                _ = (
                    searcher.encoder
                )  # another one is loaded here, while the old index still answers
            fresh = LibrarySnapshot.of(searcher)
            if () in self._snapshot._by_date:
                fresh.by_date()
            self._snapshot = fresh
        self._away = None
