"""Open one index as an object: search it, add and delete items, and sync it with its pictures."""

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
        KIND:PATH of the index's encoder, if it has moved. The encoder is loaded when a query first
        needs it.
    device : str, default="auto"
        Device on which the encoder runs: cpu, cuda, or auto.

    Raises BackendError if the index does not exist.

    >>> index = boc.open("photos")
    >>> index
    <boc.Index 'photos' at 'file:boc-data': 40 pictures, 80 captions>
    >>> [hit.id for hit in index.search("a red box", k=1)] == [index.search("a red box")[0].id]
    True
    """
    return Index(name, at, encoder=encoder, device=device)


class Index:
    """Search and edit one index of pictures and captions.

    Searches use the index as it was when it was opened, or last changed through this object;
    ``refresh`` loads changes made by other processes. Threads may share one object.

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
        """The searcher behind ``search``, which also takes batches of sentences and vectors,
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

        A query is a sentence, a picture, ids of items that hits should be ``like`` or ``unlike``
        (one or several), or any combination of these. It can instead be a ``vector`` (d,) in the
        encoder's space, such as the vector of a sentence. A picture is a path, a PIL image, a uint8
        array (height, width, 3), bytes, or a binary file.

        The ``options`` are the fields of ``boc.SearchOptions``: ``filters`` (one condition as on
        the command line, ``"width>=1000"``, or a list of conditions), ``find``, ``sort``,
        ``collapse``, ``rm``, ``rerank``, ``query_z`` and ``hybrid``. Each hit has ``id``,
        ``score``, ``path`` and ``fields``; the returned list has ``to_pandas``, and a notebook
        displays it as pictures.

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
        """Search for several sentences in one batch, which is faster; return the hits of each
        sentence.

        >>> photos = boc.open("photos")
        >>> [len(hits) for hits in photos.search_many(["a red box", "a house"], k=3)]
        [3, 3]
        """
        return self.searcher.search_texts(texts, SearchOptions(k, **options))

    def warm(self) -> None:
        """Load the encoder now, so that the first search does not wait for it. Call this when a
        service starts."""
        self.searcher.warm()

    def get(self, id: str) -> Item:
        """Return the item with an id: its ``content`` (a sentence, or the path of a picture) and
        its ``fields``.

        Raises BocError if the index does not contain the item.

        >>> boc.open("photos").get("003.png").modality
        'image'
        """
        try:
            return find_item(self.searcher.index, _text("id", id))
        except KeyError:
            raise BocError(
                f"the index {self.name} has no item {id!r}; hits have the ids that it knows",
            ) from None

    __getitem__ = get

    def __contains__(self, id: str) -> bool:
        with suppress(KeyError):
            return bool(find_item(self.searcher.index, _text("id", id)))
        return False

    def __iter__(self) -> Iterator[Item]:
        """Yield all items in the order of their ids, reading them in batches."""
        return self.searcher.index.items()

    def explain(
        self,
        text: str | None = None,
        id: str | None = None,
        *,
        image: Picture | None = None,
    ) -> Explanation:
        """Explain an item's score for a sentence or a picture: ``matches`` lists the terms that the
        query and the item share.

        >>> explanation = boc.open("photos").explain("a yellow box", "003.png")
        >>> explanation.score == sum(match.product for match in explanation.matches)
        True
        """
        from boc.explain.score import explain

        if id is None or (text is not None and id not in self and text in self):
            raise BocError(
                "explain takes a sentence and then the id of an item: explain('a dog', hit.id), or "
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
        """Add pictures, or everything in ``source``, to the index, encoded with the index's own
        code; items with the same ids are replaced.

        ``source`` is one picture or several: paths, or PIL images, uint8 arrays (height, width, 3),
        bytes or binary files, which are stored without a path. ``id`` or ``ids`` sets their ids, by
        default the file names; ``fields`` sets metadata values for all of them. ``source`` can also
        be a folder of pictures, a CSV of image,caption, or feature files, with the options of
        ``boc.build_index``. The report lists unreadable pictures in ``failed``; SourceError is
        raised if every picture fails.
        """
        single = is_picture(source) or isinstance(source, str) or not isinstance(source, Iterable)
        parts: list[Any] = [source] if single else list(source)  # type: ignore[arg-type]
        if parts and all(map(is_picture, parts)):
            if None not in (id, ids) or None not in (fields, metadata):
                raise BocError("give id= or ids=, and fields= or metadata=, not both")
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
                "id, ids and fields apply only to single pictures; give metadata= for others",
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
        """Update the index to match its source pictures; only new and changed pictures are encoded.

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
        """Delete one item or several. The captions of a picture are separate items.

        Raises BackendError if no items would remain.
        """
        report = delete_items(self.name, _several(ids), at=self.at)
        self.refresh()
        return report

    def compact(self) -> CompactReport:
        """Merge the index into one segment without deleted rows, which makes it smallest and
        fastest; hits stay the same."""
        report = compact_index(self.name, at=self.at)
        self.refresh()
        return report

    def verify(self, features: Path | str | Sequence[Path | str] = ()) -> Verification:
        """Check that the index is complete and exact; ``right`` in the report gives the result.

        Frequencies are recomputed from the stored vectors, or from ``features``, the feature files
        from which the index was built.

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
        """Return the groups of duplicate and near-duplicate pictures, or sentences.

        ``threshold`` is the minimum cosine similarity of near-duplicates; few random pairs reach
        the default. The first item of a group is the best one to keep; nothing is deleted.
        """
        from boc.manage.duplicates import find_duplicates

        return find_duplicates(
            self.searcher,
            threshold,
            find=find,
            progress=progress_of(progress),
        )

    def info(self) -> dict[str, Any]:
        """Return the index's contents and build settings as a dictionary for programs.

        >>> facts = boc.open("photos").info()
        >>> facts["items"], facts["dimensions"]
        ({'image': 40, 'text': 80}, 16)
        """
        return index_facts(self.searcher.index)

    def refresh(self) -> None:
        """Load the current state of the index, which other processes may have changed. The encoder
        is kept."""
        self.searcher = self.searcher.renew()


def _several(ids: str | Iterable[str]) -> list[str]:
    if not isinstance(ids, Iterable):
        raise BocError(f"ids must be one id or several, got {ids!r}; give the id of a hit")
    return [ids] if isinstance(ids, str) else [_text("id", id) for id in ids]


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise BocError(
            f"{argument} must be text, got {value!r}; give the id of an item, such as a hit's id",
        )
    return value
