"""The index behind the server: opened anew when it was replaced or had been out of reach."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError, BocError, ImageError, ManifestError
from boc.explain.score import TermLabels
from boc.search import Searcher
from boc.types import Embeddings, ImageRef, Item, TermMatrix
from boc.web.errors import ProblemError
from boc.web.microbatch import Together
from boc.web.settings import Settings
from boc.web.uploads import Upload

T = TypeVar("T")

AGAIN = 1.0  # seconds until an index that could not be opened is tried again
SENTENCES = 1024  # encoded, that are remembered
PICTURES = 64
BEGIN = 1000  # items that examples are taken from
EXAMPLES = 6
SHORT = 60  # characters
AWAY = (BackendError, ManifestError, OSError)
"""What an index says that has gone, or whose server does not answer."""


class Recent(Generic[T]):
    """The ``size`` values that were asked for last. Thread-safe; a value may be made twice."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made now if it is not there."""
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
class Opened:
    """An index as it was at a moment. ``frequencies`` int64 (V,): how many items have each term."""

    searcher: Searcher
    frequencies: NDArray[np.int64]
    labels: TermLabels

    @classmethod
    def of(cls, searcher: Searcher) -> Opened:
        return cls(searcher, searcher.index.document_frequencies(), TermLabels(searcher))

    @cached_property
    def examples(self) -> list[str]:
        """Some short sentences of the index, spread over its beginning."""
        begin = islice(self.searcher.index.items(), BEGIN)
        short = [item.content for item in begin if item.modality == "text" and len(item.content) <= SHORT]
        return list(dict.fromkeys(short[:: max(1, len(short) // EXAMPLES)]))[:EXAMPLES]

    def postings(self, terms: TermMatrix) -> int:
        """How long the posting lists of some terms are, all together."""
        return int(self.frequencies[terms.indices].sum())


class Library:
    """The index that requests are answered from, and its encoder. Thread-safe.

    An index that is replaced is seen within seconds; until then, and while it is opened, the old one answers.
    """

    def __init__(self, searcher: Searcher, settings: Settings) -> None:
        self._settings = settings
        self._opened = Opened.of(searcher)
        self._away: str | None = None
        self._looked = monotonic()
        self._looking = threading.Lock()
        self._together = Together()
        self._sentences: Recent[Embeddings] = Recent(SENTENCES)
        self._pictures: Recent[Embeddings] = Recent(PICTURES)

    def do(self, work: Callable[[Opened], T]) -> T:
        """What ``work`` gives for the index. ProblemError 503 if it is out of reach, and stays so."""
        opened = self._current()
        try:
            return work(opened)
        except AWAY:
            opened = self._renewed()
        try:
            return work(opened)
        except AWAY as error:
            raise ProblemError(503, str(error), {"Retry-After": "1"}) from error

    def sentence(self, opened: Opened, text: str) -> Embeddings:
        """A sentence, encoded now or lately."""
        if not text.strip():
            raise BocError("the sentence is empty; write what the picture shows")
        encoder = opened.searcher.encoder
        key = (encoder.identity.digest, text)
        return self._sentences.get(key, lambda: self._together(encoder.encode_texts, text))

    def picture(self, opened: Opened, path: Path, name: str, key: Hashable) -> Embeddings:
        """The picture in the file ``path``, encoded now or lately; ``key`` changes when its contents do."""
        encoder = opened.searcher.encoder

        def make() -> Embeddings:
            try:
                prepared = encoder.prepare(ImageRef(name, path))
            except ImageError as error:  # where pictures lie on this disk is nobody's business
                raise ImageError(str(error).replace(str(path), name)) from error
            with self._together.alone():
                return encoder.encode_images([prepared])

        return self._pictures.get((encoder.identity.digest, key), make)

    def upload(self, opened: Opened, sent: Upload) -> Embeddings:
        """A picture that was sent, encoded now or lately."""
        return self.picture(opened, sent.path, sent.name, sent.key)

    def item(self, opened: Opened, item: Item) -> Embeddings:
        """An item of the index, encoded anew: with the regions or words that the index does not hold."""
        if item.modality == "text":
            return self.sentence(opened, item.content)
        path = Path(item.content)
        return self.picture(opened, path, item.group or path.name, (item.content, *_stamp(path)))

    def stored(self, opened: Opened, item: Item) -> Embeddings:
        """An item as the index holds it; encoded anew, beside its vector, if the code reads regions or words."""
        found = opened.searcher.stored(item.id)
        return (
            replace(self.item(opened, item), vectors=found.vectors) if opened.searcher.codec.reads_concepts else found
        )

    def shown(self, opened: Opened, item: Item) -> Embeddings:
        """The stored vector of an item with all that there is to show of it; without, if its picture has gone."""
        found = opened.searcher.stored(item.id)
        try:
            return replace(self.item(opened, item), vectors=found.vectors)
        except ImageError:
            return found

    def _current(self) -> Opened:
        if self._away is not None:
            if monotonic() - self._looked < AGAIN:
                raise ProblemError(503, self._away, {"Retry-After": "1"})
            return self._renewed()
        if monotonic() - self._looked > self._settings.look_every and self._looking.acquire(blocking=False):
            self._looked = monotonic()
            threading.Thread(target=self._look, daemon=True).start()
        return self._opened

    def _look(self) -> None:
        """Open the index anew if it was replaced; note if it has gone."""
        try:
            self._take(self._opened.searcher.renewed())
        except (BocError, OSError) as error:
            self._away, self._looked = str(error), monotonic()
        finally:
            self._looking.release()

    def _renewed(self) -> Opened:
        """The index opened now. ProblemError 503 if it cannot be."""
        with self._looking:
            try:
                self._take(self._opened.searcher.renewed(force=True))
            except (BocError, OSError) as error:
                self._away = str(error)
                raise ProblemError(503, self._away, {"Retry-After": "1"}) from error
            finally:
                self._looked = monotonic()
        return self._opened

    def _take(self, searcher: Searcher) -> None:
        if searcher is not self._opened.searcher:
            self._opened = Opened.of(searcher)
        self._away = None


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file does; nothing for one that is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns
