"""Codes added to the documents of an index that another program made on a server, and taken away
again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boc import plugins
from boc.codecs import Code, SurrogateCodec
from boc.errors import BocError
from boc.inputs.features import FeatureFiles
from boc.manage.build import codec_maker
from boc.manage.index_sources import paths_of
from boc.manage.learn import fit_code
from boc.manage.load import check_same_encoder, item_batches, new_manifest, source_digest
from boc.names import MODALITIES
from boc.plugins import check_name
from boc.progress import Progress, progress_of

if TYPE_CHECKING:
    from boc.types import Batch
    from indexing.server.attach import ServerAttachment

LOOKED_UP = 10_000  # items at a time
LISTED = 10  # ids of a list in a report
RM = 30.0  # so many candidates make up for the few postings of a dictionary


@dataclass(frozen=True)
class AttachReport:
    """The result of an attachment.

    ``documents`` have a code now, earlier calls included. This call wrote ``written`` of them and
    left ``unchanged``, which had the same. ``without`` is the number of items that have no
    document, and ``missing`` the first ten. ``lost`` are up to ten ids of documents that another
    program removed, or wrote without a code, in the meantime; the same call again adds the code to
    the documents that exist.
    """

    documents: int
    written: int
    unchanged: int
    without: int = 0
    missing: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def attach_index(
    name: str,
    source: Path | str | Sequence[Path | str],
    *,
    at: str,
    key: str | None = None,
    code: str | Code | SurrogateCodec = "dictionary",
    confirm: Callable[[dict[str, Any]], bool] = lambda change: True,
    progress: bool | Progress = False,
) -> AttachReport | None:
    """Add the code of the items of feature files to the documents of the index ``name`` of another
    program.

    After a kill the same call continues. Further files add items under its code, and changed items
    replace theirs.

    Parameters
    ----------
    name : str
        One index, or an alias of one.
    source : path, or a sequence of paths
        Feature files by one encoder.
    at : str
        Address of the server: elastic+URL or opensearch+URL.
    key : str, optional
        Field of documents with the id of an item, default _id. All documents of an item get its
        code.
    code : str, Code or SurrogateCodec, default="dictionary"
        How vectors become term frequencies, for the first attachment. The default reads few
        postings per query, where each term of "scalar" is in a large part of all documents.
    confirm : callable, optional
        Called with the addition to the mapping, before anything is changed; if it returns False,
        nothing is changed.
    progress : bool or callable, default=False
        True draws bars; a callable is called as ``progress(stage, done, total)`` after each batch.

    Returns None if ``confirm`` returned False. EncoderError for another encoder than the encoder of
    an earlier attachment; BackendError if the index is not there, is boc's, or cannot hold codes.
    """
    show = progress_of(progress)
    with (
        FeatureFiles(paths_of(source)) as file,
        plugins.backend(at).attach(check_name(name)) as place,
    ):
        index = place.index
        if index is not None:
            manifest = index.manifest
            codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
            check_same_encoder(file, manifest)
        else:
            codec = fit_code(file, codec_maker(code)(file.header.identity), show)
            if codec.words:
                raise BocError(
                    "the code words writes a text for each picture, and other programs' "
                    "documents have no field for it",
                    "take another code, or make an index with <boc index>",
                )
            manifest = new_manifest(file, codec, RM)
        change = place.change(manifest)
        if index is None:
            _check_documents(place, file, key)
        if change and not confirm(change):
            return None
        place.begin(manifest, codec.arrays(), change)
        done = 0
        written = 0
        unchanged = 0
        missing: list[str] = []
        without = 0
        total = file.count("image") + file.count("text")
        for *_, read in item_batches(file, codec, manifest):
            batch = read()
            added, same, unknown = _add_batch(place, batch, codec, key)
            written += added
            unchanged += same
            without += len(unknown)
            missing += unknown[: LISTED - len(missing)]
            done += len(batch)
            show("attaching", done, total)
        documents, lost = place.finish(source_digest(file))
        return AttachReport(documents, written, unchanged, without, missing, lost)


def detach_index(name: str, *, at: str) -> int:
    """Remove the attached codes from the documents of the index ``name``; return how many had it.

    The fields stay in its mapping. After a kill the same call continues. BackendError if nothing is
    attached.
    """
    with plugins.backend(at).attach(check_name(name)) as place:
        return max(place.detach(), default=0)


def _check_documents(place: ServerAttachment, file: FeatureFiles, key: str | None) -> None:
    """Raise BocError unless an item has a document, before anything is changed."""
    first = ""
    for modality in MODALITIES:
        items = file.items(modality)
        while some := list(islice(items, LOOKED_UP)):
            if any(place.find(some, key).values()):
                return
            first = first or some[0].id
    raise BocError(
        f"no item has a document, such as {first!r}",
        "name the field of the documents that holds these ids: <--id-field>",
    )


def _add_batch(
    place: ServerAttachment,
    batch: Batch,
    codec: SurrogateCodec,
    key: str | None,
) -> tuple[int, int, list[str]]:
    """Add a batch of items: the numbers of documents written and unchanged, and the items without a
    document."""
    documents = place.find(batch.items, key)
    changed = []
    same = []
    for i, (item, vector) in enumerate(zip(batch.items, batch.embeddings.vectors, strict=True)):
        row = place.row(item, vector)
        for id, routing, row_there in documents.get(item.id, []):
            if row_there == row:
                same.append(id)
            else:
                changed.append((i, id, routing, row))
    place.has(same)
    if changed:
        numbers = [i for i, *_ in changed]
        rows, places = np.unique(numbers, return_inverse=True)
        terms = codec.encode_documents(batch.embeddings.take(rows.tolist()))
        place.put(
            [(id, routing) for _, id, routing, _ in changed],
            [row for *_, row in changed],
            [batch.items[i] for i in numbers],
            terms[places],
            batch.embeddings.vectors[numbers],
        )
    return len(changed), len(same), [item.id for item in batch.items if not documents.get(item.id)]
