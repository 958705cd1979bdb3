"""One index as an object: search it, add and delete items, keep it in line with its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from boc.errors import BocError
from boc.inputs.images import picture_file
from boc.manage.build import PLACE, add_items, delete
from boc.manage.facts import index_facts
from boc.manage.sync import sync_index
from boc.plugins import find_item
from boc.search.options import SearchOptions
from boc.search.searcher import Searcher

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from boc.explain.score import Explanation
    from boc.inputs.images import Picture
    from boc.inputs.metadata import Metadata
    from boc.manage.build import LoadReport
    from boc.manage.sync import SyncReport
    from boc.names import Hybrid, Metric, Modality
    from boc.progress import Progress
    from boc.search.hits import Hits
    from boc.search.options import Filters
    from boc.types import Item


class DeleteReport(NamedTuple):
    """The number of items that were deleted, and the ids that the index did not hold."""

    deleted: int
    unknown: list[str]


def open(name: str, at: str = PLACE, *, encoder: str | None = None, device: str = "auto") -> Index:
    """Open the index ``name``; it must exist (``boc.build_index`` makes one).

    Parameters
    ----------
    name : str
        Name of the index.
    at : str, default="file:boc-data"
        Address of the back end: file:DIR, elastic+URL or opensearch+URL.
    encoder : str, optional
        KIND:PATH of the encoder of the index, if it has moved. It is loaded when the first query
        needs it.
    device : str, default="auto"
        Device that the encoder runs on: cpu, cuda, or auto.

    BackendError if there is no such index.

    >>> index = boc.open("photos")
    >>> index
    <boc.Index 'photos' at 'file:boc-data': 40 pictures, 80 captions>
    >>> [hit.id for hit in index.search("a red box", k=1)] == [index.search("a red box")[0].id]
    True
    """
    return Index(name, at, encoder=encoder, device=device)


class Index:
    """An index of pictures and captions at a back end.

    Searches see the index as it was when it was opened, or last changed through this object;
    ``refresh`` shows what other processes have changed. One object may be shared by threads.

    >>> index = boc.open("photos")
    >>> for hit in index.search("a red box at the left", k=2):
    ...     print(hit.id.endswith(".png"), hit.path.endswith(hit.id), 0 < hit.score <= 1)
    True True True
    True True True
    """

    def __init__(
        self,
        name: str,
        at: str = PLACE,
        *,
        encoder: str | None = None,
        device: str = "auto",
    ) -> None:
        self.name = name
        self.at = at
        self._encoder = encoder
        self._device = device
        self._searcher = Searcher.open(name, at, encoder=encoder, device=device)

    def __repr__(self) -> str:
        counts = self._searcher.index.manifest.items
        return (
            f"<boc.Index {self.name!r} at {self.at!r}: {counts['image']} pictures, "
            f"{counts['text']} captions>"
        )

    def __len__(self) -> int:
        return sum(self._searcher.index.manifest.items.values())

    @property
    def searcher(self) -> Searcher:
        """The searcher behind ``search``: batches of sentences, vectors, several parts, stages and
        times."""
        return self._searcher

    def search(
        self,
        text: str | None = None,
        k: int = 10,
        *,
        image: Picture | None = None,
        vector: ArrayLike | None = None,
        filters: Filters = (),
        find: Modality | None = None,
        min_confidence: float | None = None,
        sort: str | None = None,
        collapse: bool = False,
        rm: float | None = None,
        rerank: Metric | None = None,
        hybrid: Hybrid | None = None,
        words_weight: float | None = None,
        query_z: int | None = None,
    ) -> Hits:
        """Return the k best items for a sentence, a picture, or a vector of the encoder, best
        first.

        A picture is a path, a PIL image, bytes or a binary file; a vector is (d,), that of a
        sentence. ``filters`` are as on the command line, ``"width>=1000"``, or a list of these; the
        others are fields of ``boc.SearchOptions``. A hit has ``id``, ``score``, ``path`` and
        ``fields``; all have ``to_pandas``, and are pictures in a notebook.

        BocError for invalid values; ImageError for an unreadable picture.

        >>> index = boc.open("photos")
        >>> hits = index.search("a red box", k=3, filters="width>=64")
        >>> len(hits), hits[0].fields["width"]
        (3, 64)
        """
        options = SearchOptions(
            k,
            rm,
            find,
            rerank,
            filters,
            hybrid,
            words_weight,
            query_z,
            sort,
            min_confidence,
            collapse,
        )
        return self._searcher.search(text, image=image, vector=vector, options=options)

    @wraps(search)
    async def asearch(self, *args: Any, **keywords: Any) -> Hits:
        from asyncio import to_thread

        return await to_thread(self.search, *args, **keywords)

    def warm(self) -> None:
        """Load the encoder now, so that the first search waits for nothing. Call it where a service
        starts."""
        self._searcher.warm()

    def get(self, id: str) -> Item:
        """Return the item with an id: its ``content`` (a sentence, or the path of a picture) and
        its ``fields``.

        BocError if the index does not hold it.

        >>> boc.open("photos").get("003.png").modality
        'image'
        """
        try:
            return find_item(self._searcher.index, _text("id", id))
        except KeyError:
            raise BocError(
                f"the index {self.name} has no item {id!r}; hits have the ids that it knows",
            ) from None

    __getitem__ = get
    __iter__ = None

    def __contains__(self, id: str) -> bool:
        with suppress(KeyError):
            return bool(find_item(self._searcher.index, _text("id", id)))
        return False

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        """Close nothing: the index can still be used."""

    def explain(
        self,
        id: str,
        text: str | None = None,
        *,
        image: Picture | None = None,
    ) -> Explanation:
        """Explain the score of an item for a sentence or a picture: ``matches`` are the terms that
        they share.

        >>> explanation = boc.open("photos").explain("003.png", "a yellow box")
        >>> explanation.score == sum(match.product for match in explanation.matches)
        True
        """
        from boc.explain.score import explain

        with nullcontext() if image is None else picture_file(image) as path:
            return explain(self._searcher, _text("id", id), text, path)

    def add(
        self,
        source: Path | str | Sequence[Path | str],
        *,
        metadata: Metadata | Path | str | None = None,
        images: Path | None = None,
        ocr: bool = False,
        progress: bool | Progress = False,
    ) -> LoadReport:
        """Add everything in ``source`` to the index, under its code; items with the same ids are
        replaced.

        ``source`` is a folder of pictures, a CSV of image,caption, or feature files. The options
        are those of ``boc.build_index``.
        """
        where: dict[str, Any] = {"at": self.at, "encoder": self._encoder, "device": self._device}
        report = add_items(
            self.name,
            source,
            metadata=metadata,
            images=images,
            ocr=ocr,
            progress=progress,
            **where,
        )
        self.refresh()
        return report

    def sync(
        self,
        source: Path | str | Sequence[Path | str],
        *,
        metadata: Metadata | Path | str | None = None,
        images: Path | None = None,
        exclude: Sequence[str] | None = None,
        keep_missing: bool = False,
        remove_many: bool = False,
        ocr: bool = False,
        progress: bool | Progress = False,
    ) -> SyncReport:
        """Bring the index in line with the pictures that it was made from: only new and changed
        ones are encoded.

        The options are those of ``boc.manage.sync.sync_index``.
        """
        more: dict[str, Any] = {
            "at": self.at,
            "searcher": self._searcher,
            "exclude": exclude,
            "progress": progress,
        }
        more |= {"keep_missing": keep_missing, "remove_many": remove_many}
        report = sync_index(self.name, source, metadata=metadata, images=images, ocr=ocr, **more)
        self.refresh()
        return report

    def delete(self, ids: str | Iterable[str]) -> DeleteReport:
        """Delete one item, or several; the captions of a picture are items of their own.

        BackendError if the index would be empty.
        """
        if not isinstance(ids, (str, Iterable)):
            raise BocError(f"ids must be one id or several, got {ids!r}; give the id of a hit")
        chosen = [ids] if isinstance(ids, str) else [_text("id", id) for id in ids]
        report = DeleteReport(*delete(self.name, chosen, at=self.at))
        self.refresh()
        return report

    def info(self) -> dict[str, Any]:
        """Return what the index holds and how it was made, as values for programs.

        >>> facts = boc.open("photos").info()
        >>> facts["items"], facts["dimensions"]
        ({'image': 40, 'text': 80}, 16)
        """
        return index_facts(self._searcher.index)

    def refresh(self) -> None:
        """Show the current state of the index, which other processes may have changed. The encoder
        is kept."""
        self._searcher = self._searcher.renew()


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise BocError(
            f"{argument} must be text, got {value!r}; give the id of one item, as a hit has it",
        )
    return value
