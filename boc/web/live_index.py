"""Keep the index of the server open, reopen it when it was replaced or unreachable, and cache
encoded queries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from boc.errors import BackendError, BocError, ManifestError, worded
from boc.explain.score import TermLabels
from boc.inputs.file_facts import visible_fields
from boc.inputs.metadata import holds, values_of
from boc.paths import nfc
from boc.plugins import find_item
from boc.search.options import check_sentence
from boc.search.queries import QueryPart
from boc.search.searcher import Searcher
from boc.search.spelling import Spelling
from boc.types import ID, Embeddings, FieldType, ImageRef, Item
from boc.web.http.responses import ProblemError, parameter_words, unknown
from boc.web.microbatch import Batcher
from boc.web.pictures.content import open_content
from boc.web.pictures.decoding import PixelBudget
from boc.web.pictures.uploads import Upload
from boc.web.settings import Settings

T = TypeVar("T")

BROWSED = 200_000  # maximum number of items that are listed by date without a search
AWAY = (BackendError, ManifestError, OSError)
"""Errors that are raised if an index was removed or its server does not respond."""


class Recent(Generic[T]):
    """Cache of the ``size`` most recently used values. Thread-safe, but two threads may compute the
    same value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value for ``key``. If it is not in the cache, compute it with ``make``."""
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


class LibrarySnapshot:
    """State of the index at the time when it was opened."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.labels = TermLabels(searcher)
        self.orders: dict[tuple[str, ...], list[str]] = {}

    @cached_property
    def begin(self) -> list[Item]:
        """Return the first items of the index, which are the source of example queries."""
        return list(islice(self.searcher.index.items(), 1000))

    @cached_property
    def fields(self) -> dict[str, FieldType]:
        """Return the fields that the page offers: text fields, and fields for which at least one
        item has a value."""
        used = self.searcher.index.used_fields()
        fields = visible_fields(self.searcher.index.manifest.fields)
        return {name: kind for name, kind in fields.items() if kind == "text" or name in used}

    @cached_property
    def examples(self) -> list[str]:
        """Return example queries: short sentences from the first items of the index."""
        sentences = [item.content for item in self.begin if item.modality == "text"]
        return list(dict.fromkeys(text for text in sentences if len(text) <= 60))[:6]

    @cached_property
    def spelling(self) -> Spelling:
        """Return the known words of the index and its encoder."""
        return Spelling(self.searcher)

    def warm(self) -> None:
        """Load the data for which the first requests would otherwise wait."""
        _ = self.spelling.by_length, self.fields, self.examples

    def newest(self, filters: tuple[str, ...], span: slice) -> tuple[int, list[Item]]:
        """Return the number of pictures that pass the filters, and the given ``span`` of these
        pictures, newest first. Raises ProblemError 404 if a picture has just been deleted."""
        ids = self.by_date(filters)
        try:
            return len(ids), self.searcher.index.find(ids[span])
        except KeyError as error:
            raise unknown(error.args[0]) from None

    def by_date(self, filters: tuple[str, ...] = ()) -> list[str]:
        """Return the ids of the pictures that pass the filters, newest first by the date when they
        were taken or, if this is unknown, by the file date. If the library has more than
        ``BROWSED`` items, only pictures among the first ``BROWSED`` items are listed."""
        order = self.orders.get(filters)
        if order is not None:
            return order
        index = self.searcher.index
        conditions = self.searcher.parse_filters(filters)
        passing = getattr(index, "passing", None)
        if filters and passing is not None:
            chosen = passing("image", conditions, BROWSED)
            return list(filter(chosen.__contains__, self.by_date()))
        dated = []
        for item in islice(index.items(), BROWSED):
            if item.modality == "image" and all(
                holds(c, {ID: item.id, **item.fields}) for c in conditions
            ):
                dates = *values_of(item.fields, "taken"), *values_of(item.fields, "modified"), ""
                dated.append((str(dates[0]), item.id))
        dated.sort(key=itemgetter(0), reverse=True)
        if len(self.orders) >= 8:
            self.orders.clear()
        order = self.orders[filters] = [id for _, id in dated]
        return order


class Library:
    """Current index of the server, with its encoder. Thread-safe.

    ``snapshot`` is the most recently opened state of the index. A replaced index is detected within
    seconds. Until the new index is open, the old index continues to answer requests.
    """

    def __init__(
        self,
        searcher: Searcher,
        settings: Settings,
        budget: PixelBudget,
    ) -> None:
        self._settings = settings
        self._budget = budget
        self.snapshot = LibrarySnapshot(searcher)
        self._away: str | None = None
        self._looked = monotonic()
        self._looking = threading.Lock()
        self._batcher = Batcher()
        self._sentences: Recent[Embeddings] = Recent(1024)
        self._pictures: Recent[Embeddings] = Recent(64)

    def do(self, work: Callable[[LibrarySnapshot], T]) -> T:
        """Run ``work`` on the current index. Raises ProblemError 503 if the index cannot be
        reached, even after it is reopened."""
        try:
            return work(self._current())
        except AWAY:
            snapshot = self._reopen()
        try:
            return work(snapshot)
        except AWAY as error:
            raise away(worded(error, parameter_words)) from error

    def sentence(self, snapshot: LibrarySnapshot, text: str) -> Embeddings:
        """Return the embedding of a sentence, from the cache if possible."""
        check_sentence(text)
        encoder = snapshot.searcher.encoder
        text = nfc(text)
        return self._sentences.get(
            (encoder.identity.digest, text),
            lambda: self._batcher(encoder.encode_texts, text),
        )

    def picture(
        self,
        snapshot: LibrarySnapshot,
        path: Path,
        name: str,
        key: Hashable,
    ) -> Embeddings:
        """Return the embedding of a picture, from the cache if possible. ``key`` must change
        whenever the contents of the picture change."""
        encoder = snapshot.searcher.encoder

        def make() -> Embeddings:
            with self._budget.of(path, name):
                prepared = encoder.prepare(ImageRef(name, path))
            with self._batcher.encoding:
                return encoder.encode_images([prepared])

        return self._pictures.get((encoder.identity.digest, key), make)

    def part(
        self,
        snapshot: LibrarySnapshot,
        part: QueryPart,
        sent: Upload | None = None,
    ) -> Embeddings:
        """Return the embedding of a query part. ``sent`` is the uploaded picture if the part is a
        picture."""
        if part.kind == "text":
            return self.sentence(snapshot, str(part.value))
        if part.kind == "image":
            assert sent is not None
            return self.picture(snapshot, sent.path, sent.name, sent.key)
        try:
            item = find_item(snapshot.searcher.index, str(part.value))
            # An index does not store the regions or words that some codes need.
            if snapshot.searcher.codec.reads_concepts:
                return self.whole_item(snapshot, item)
            return snapshot.searcher.embeddings(item.id)
        except KeyError:
            raise unknown(str(part.value)) from None

    def item(self, snapshot: LibrarySnapshot, item: Item) -> Embeddings:
        """Encode an item again, and return its embedding with the regions or words, which the index
        does not store."""
        if item.modality == "text":
            return self.sentence(snapshot, item.content)
        with open_content(item) as content:
            key = item.content, *content.state
            return self.picture(snapshot, content.path, item.group or content.name, key)

    def whole_item(self, snapshot: LibrarySnapshot, item: Item) -> Embeddings:
        """Return the stored vector of an item together with its regions or words."""
        vectors = snapshot.searcher.embeddings(item.id).vectors
        return replace(self.item(snapshot, item), vectors=vectors)

    def _current(self) -> LibrarySnapshot:
        since = monotonic() - self._looked
        # Try to open the index at most once a second.
        if self._away is not None:
            if since < 1.0:
                raise away(self._away)
            return self._reopen()
        if since > self._settings.look_every and self._looking.acquire(blocking=False):
            self._looked = monotonic()
            threading.Thread(target=self._look, daemon=True).start()
        return self.snapshot

    def _look(self) -> None:
        """Reopen the index if it was replaced. If the index no longer exists, record that it is
        unavailable."""
        try:
            self._take(self.snapshot.searcher.renew())
        except (BocError, OSError) as error:
            self._away = worded(error, parameter_words)
            self._looked = monotonic()
        finally:
            self._looking.release()

    def _reopen(self) -> LibrarySnapshot:
        """Open the index now. Raises ProblemError 503 if the index cannot be opened.

        Requests that arrive in the meantime wait for this attempt and share its result, because
        while a server is starting, each attempt takes as long as a search.
        """
        begun = monotonic()
        with self._looking:
            if self._looked < begun:
                try:
                    self._take(self.snapshot.searcher.renew(force=True))
                except (BocError, OSError) as error:
                    self._away = worded(error, parameter_words)
                finally:
                    self._looked = monotonic()
            if self._away is not None:
                raise away(self._away)
            return self.snapshot

    def _take(self, searcher: Searcher) -> None:
        old = self.snapshot
        if searcher is not old.searcher:
            # If the encoder has changed, load it now, while the old index still answers requests.
            if "encoder" in vars(old.searcher):
                _ = searcher.encoder
            fresh = LibrarySnapshot(searcher)
            if () in old.orders:
                fresh.by_date()
            self.snapshot = fresh
        self._away = None


def away(message: str) -> ProblemError:
    """Return the 503 error for an unreachable index."""
    return ProblemError(503, message, {"Retry-After": "1"})
