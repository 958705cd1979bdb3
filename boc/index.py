"""Object for a single index, which can search, add and delete items, and sync with a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boc import plugins
from boc.errors import BocError
from boc.inputs.images import Picture, is_picture, picture_file
from boc.manage.build import PLACE, add_items, delete_items
from boc.manage.facts import index_facts
from boc.manage.index_sources import paths_of
from boc.manage.pictures import add_pictures
from boc.manage.sync import sync_index
from boc.manage.whole_index import compact_index
from boc.plugins import find_item
from boc.progress import Progress, progress_of
from boc.search.options import MoreKeywords, SearchOptions
from boc.search.searcher import Searcher

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from boc import (
        CompactReport,
        DeleteReport,
        DuplicateGroup,
        Explanation,
        Hits,
        Item,
        LoadReport,
        SyncReport,
        Verification,
    )
    from boc.inputs.metadata import Metadata
    from boc.names import Modality


def open(name: str, at: str = PLACE, *, encoder: str | None = None, device: str = "auto") -> Index:
    """Open an existing index; ``boc.build_index`` creates one.

    Parameters
    ----------
    name : str
        Name of the index.
    at : str, default="file:boc-data"
        Address of the back end: file:DIR, elastic+URL or opensearch+URL.
    encoder : str, optional
        Location of the index's encoder as KIND:PATH, if the encoder has moved. The encoder is
        loaded when a query first needs it.
    device : str, default="auto"
        Device on which the encoder runs: cpu, cuda or auto.

    Raises BackendError if the index does not exist.

    >>> index = boc.open("photos")
    >>> index
    <boc.Index 'photos' at 'file:boc-data': 40 pictures, 80 captions>
    >>> [hit.id for hit in index.search("a red box", k=1)] == [index.search("a red box")[0].id]
    True
    """
    return Index(name, at, encoder=encoder, device=device)


class Index:
    """Index of pictures and captions, for searching and editing.

    Searches see the index as it was when it was opened or last changed through this object. Call
    ``refresh`` to load changes made by other processes. Several threads can share one object.

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
        self.searcher = Searcher.open(name, at, encoder=encoder, device=device)
        """The searcher behind ``search``. It also accepts batches of sentences and vectors,
        combines several query parts, and reports facts about the stages of a search."""

    def __repr__(self) -> str:
        counts = self.searcher.index.manifest.items
        return (
            f"<boc.Index {self.name!r} at {self.at!r}: {counts['image']} pictures, "
            f"{counts['text']} captions>"
        )

    def __len__(self) -> int:
        return sum(self.searcher.index.manifest.items.values())

    def search(
        self,
        text: str | None = None,
        k: int = 10,
        *,
        image: Picture | None = None,
        vector: ArrayLike | None = None,
        like: str | Iterable[str] = (),
        unlike: str | Iterable[str] = (),
        **options: Unpack[MoreKeywords],
    ) -> Hits:
        """Return the k best items for a query, best first.

        A query is a sentence, a picture, one or more ids of items that hits should be ``like`` or
        ``unlike``, or any combination of these. Instead, a query can be a ``vector`` (d,) in the
        encoder's space, such as the vector of a sentence. A picture is a path, a PIL image, a uint8
        array (height, width, 3), bytes, or a binary file.

        The ``options`` are the fields of ``boc.SearchOptions``: ``filters`` (a condition such as
        ``"width>=1000"``, or a list of conditions), ``find``, ``sort``, ``collapse``, ``rm``,
        ``rerank``, ``query_z`` and ``hybrid``. Each hit has the attributes ``id``, ``score``,
        ``path`` and ``fields``. The returned list has a method ``to_pandas``, and notebooks display
        the list as pictures.

        Raises BocError for invalid values, and ImageError for an unreadable picture.

        >>> index = boc.open("photos")
        >>> hits = index.search("a red box", k=3, filters="width>=64")
        >>> len(hits), hits[0].fields["width"]
        (3, 64)
        >>> hits[0].id in index.search(like=hits[0].id)
        False
        """
        return self.searcher.search(
            text,
            image=image,
            vector=vector,
            like=_several(like),
            unlike=_several(unlike),
            k=k,
            **options,
        )

    def search_many(
        self,
        texts: Sequence[str],
        k: int = 10,
        **options: Unpack[MoreKeywords],
    ) -> list[Hits]:
        """Search for several sentences in one batch, and return a list of hits for each sentence. A
        batch is faster than separate searches.

        >>> photos = boc.open("photos")
        >>> [len(hits) for hits in photos.search_many(["a red box", "a house"], k=3)]
        [3, 3]
        """
        return self.searcher.search_texts(texts, SearchOptions(k, **options))

    def warm(self) -> None:
        """Load the encoder now, for example when a service starts, so that the first search is as
        fast as later searches."""
        self.searcher.warm()

    def get(self, id: str) -> Item:
        """Return the item with the given id. Its ``content`` is a sentence or the path of a
        picture, and its ``fields`` are the metadata.

        Raises BocError if the index does not contain the item.

        >>> boc.open("photos").get("003.png").modality
        'image'
        """
        try:
            return find_item(self.searcher.index, _text("id", id))
        except KeyError:
            raise BocError(
                f"the index {self.name} has no item {id!r}; use an id from a search result",
            ) from None

    __getitem__ = get

    def __contains__(self, id: str) -> bool:
        with suppress(KeyError):
            return bool(find_item(self.searcher.index, _text("id", id)))
        return False

    def __iter__(self) -> Iterator[Item]:
        """Yield all items in order of their ids. Items are read in batches."""
        return self.searcher.index.items()

    def explain(
        self,
        text: str | None = None,
        id: str | None = None,
        *,
        image: Picture | None = None,
    ) -> Explanation:
        """Explain the score of an item for a sentence or a picture. In the result, ``matches``
        lists the terms that the query and the item share.

        >>> explanation = boc.open("photos").explain("a yellow box", "003.png")
        >>> explanation.score == sum(match.product for match in explanation.matches)
        True
        """
        from boc.explain.score import explain

        if id is None or (text is not None and id not in self and text in self):
            raise BocError(
                "explain expects a sentence, then the id of an item: explain('a dog', hit.id), or "
                "explain(image='dog.jpg', id=hit.id)",
            )
        with nullcontext() if image is None else picture_file(image) as path:
            return explain(self.searcher, _text("id", id), text, path)

    def add(
        self,
        source: Picture | Iterable[Picture],
        *,
        id: str | None = None,
        ids: Sequence[str] | None = None,
        fields: Mapping[str, Any] | None = None,
        metadata: Metadata | Path | str | None = None,
        images: Path | None = None,
        ocr: bool = False,
        progress: bool | Progress = False,
    ) -> LoadReport:
        """Encode pictures, or everything in ``source``, and add them to the index. Existing items
        with the same ids are replaced.

        ``source`` is one or more pictures: paths, PIL images, uint8 arrays (height, width, 3),
        bytes or binary files. Pictures in memory are stored without a path. ``id`` or ``ids`` sets
        the ids of the pictures, which default to the file names; ``fields`` sets the same metadata
        values for all of them. ``source`` can also be a folder of pictures, a CSV of image,caption,
        or feature files, with the same options as in ``boc.build_index``. The report lists
        unreadable pictures in ``failed``. Raises SourceError if no picture can be read.
        """
        single = is_picture(source) or isinstance(source, str) or not isinstance(source, Iterable)
        parts: list[Any] = [source] if single else list(source)  # type: ignore[arg-type]
        if parts and all(map(is_picture, parts)):
            if None not in (id, ids) or None not in (fields, metadata):
                raise BocError("pass either id= or ids=, and either fields= or metadata=")
            report = add_pictures(
                self.searcher,
                self.name,
                self.at,
                parts,
                ids=ids if id is None else [id],
                fields=fields,
                metadata=metadata,
                ocr=ocr,
                progress=progress_of(progress),
            )
        elif (id, ids, fields) != (None, None, None):
            raise BocError(
                "id, ids and fields apply only to pictures; pass metadata= for other sources",
            )
        else:
            report = add_items(
                self.name,
                parts,
                at=self.at,
                encoder=self._encoder,
                device=self._device,
                metadata=metadata,
                images=images,
                ocr=ocr,
                progress=progress,
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
        keep_missing: bool | None = None,
        remove_many: bool = False,
        ocr: bool = False,
        progress: bool | Progress = False,
    ) -> SyncReport:
        """Update the index to match its source, encoding only new and changed pictures.

        The options are the same as in ``boc.manage.sync.sync_index``.
        """
        report = sync_index(
            self.name,
            source,
            at=self.at,
            searcher=self.searcher,
            metadata=metadata,
            images=images,
            exclude=exclude,
            keep_missing=keep_missing,
            remove_many=remove_many,
            ocr=ocr,
            progress=progress,
        )
        self.refresh()
        return report

    def delete(self, ids: str | Iterable[str]) -> DeleteReport:
        """Delete one or more items. The captions of a picture are separate items.

        Raises BackendError if no items would remain.
        """
        report = delete_items(self.name, _several(ids), at=self.at)
        self.refresh()
        return report

    def compact(self) -> CompactReport:
        """Merge the index into a single segment without deleted rows, for minimum size and maximum
        speed. Search results do not change."""
        report = compact_index(self.name, at=self.at)
        self.refresh()
        return report

    def verify(self, features: Path | str | Sequence[Path | str] = ()) -> Verification:
        """Check that the index is complete and exact. ``right`` in the report is True if it is.

        The check recomputes all term frequencies from the stored vectors, or from ``features``, the
        feature files from which the index was built.

        >>> boc.open("photos").verify().right
        True
        """
        from boc.evaluate.verify import verify

        return verify(
            plugins.backend(self.at).open(self.name),
            files=paths_of(features) if features else (),
        )

    def duplicates(
        self,
        threshold: float | None = None,
        *,
        find: Modality | None = None,
        progress: bool | Progress = False,
    ) -> list[DuplicateGroup]:
        """Return groups of duplicate and near-duplicate pictures or sentences.

        ``threshold`` is the minimum cosine similarity of near-duplicates. Few unrelated pictures
        reach the default threshold. The first item in a group is the best item to keep. No items
        are deleted.
        """
        from boc.manage.duplicates import find_duplicates

        return find_duplicates(
            self.searcher,
            threshold,
            find=find,
            progress=progress_of(progress),
        )

    def info(self) -> dict[str, Any]:
        """Return the contents and build settings of the index as a dictionary.

        >>> facts = boc.open("photos").info()
        >>> facts["items"], facts["dimensions"]
        ({'image': 40, 'text': 80}, 16)
        """
        return index_facts(self.searcher.index)

    def refresh(self) -> None:
        """Load the current state of the index, including changes made by other processes. The
        encoder is not loaded again."""
        self.searcher = self.searcher.renew()


def _several(ids: str | Iterable[str]) -> list[str]:
    if not isinstance(ids, Iterable):
        raise BocError(f"ids must be one or more ids, got {ids!r}; pass the id of a hit")
    return [ids] if isinstance(ids, str) else [_text("id", id) for id in ids]


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise BocError(
            f"{argument} must be a string, got {value!r}; pass the id of an item, such as hit.id",
        )
    return value
