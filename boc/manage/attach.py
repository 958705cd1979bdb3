"""Add codes to documents that another program has indexed on a server, and remove these codes."""

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

LOOKED_UP = 10_000  # items per lookup
LISTED = 10  # maximum number of ids in each list of a report
RM = 30.0  # candidates per hit; a dictionary needs more, because it has few postings


@dataclass(frozen=True)
class AttachReport:
    """Result of attaching codes to an index.

    ``documents`` is the total number of documents with a code, including documents from earlier
    calls. ``written`` is the number of documents that this call wrote, and ``unchanged`` is the
    number of documents that already had the same code. ``without`` is the number of items without a
    document, and ``missing`` lists the first ten ids of such items. ``lost`` lists up to ten ids of
    documents that another program removed or overwrote during the call; running the same call again
    adds the code to the documents that still exist.
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
    """Add codes for the items in feature files to the documents of ``name``, an index that another
    program created.

    If the process is killed, the same call resumes the work. Calls with further files add items
    with the same code, and update the codes of items that have changed.

    Parameters
    ----------
    name : str
        Name of one index, or an alias of one index.
    source : path, or a sequence of paths
        Feature files by one encoder.
    at : str
        Address of the server: elastic+URL or opensearch+URL.
    key : str, optional
        Document field that contains item ids; default: _id. If several documents have the same item
        id, each of them gets the code.
    code : str, Code or SurrogateCodec, default="dictionary"
        Code that turns vectors into term frequencies; only the first call for an index uses this
        parameter. A query with the default code reads few postings, whereas each term of the code
        "scalar" occurs in a large fraction of all documents.
    confirm : callable, optional
        Called with the planned addition to the mapping, before any change is made. If ``confirm``
        returns False, the index stays unchanged.
    progress : bool or callable, default=False
        True shows progress bars; a callable is called as ``progress(stage, done, total)`` after
        each batch.

    Returns None if ``confirm`` returned False. Raises EncoderError if an earlier call used another
    encoder, and BackendError if the index does not exist, was created by boc, or cannot store
    codes.
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
                    "the code words writes text for each picture, but documents of other programs "
                    "have no field for this text",
                    "choose another code, or build an index with <boc index>",
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
    """Remove the attached codes from the documents of the index ``name``, and return the number of
    documents that had a code.

    The fields stay in the mapping of the index. If the process is killed, the same call resumes the
    work. Raises BackendError if no codes are attached.
    """
    with plugins.backend(at).attach(check_name(name)) as place:
        return max(place.detach(), default=0)


def _check_documents(place: ServerAttachment, file: FeatureFiles, key: str | None) -> None:
    """Raise BocError if no item has a document. This check runs before any document is changed."""
    first = ""
    for modality in MODALITIES:
        items = file.items(modality)
        while some := list(islice(items, LOOKED_UP)):
            if any(place.find(some, key).values()):
                return
            first = first or some[0].id
    raise BocError(
        f"no item (for example {first!r}) has a document",
        "name the document field that contains these ids: <--id-field>",
    )


def _add_batch(
    place: ServerAttachment,
    batch: Batch,
    codec: SurrogateCodec,
    key: str | None,
) -> tuple[int, int, list[str]]:
    """Add the codes of a batch of items. Return the numbers of documents written and unchanged, and
    the ids of items without a document."""
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
        place.put(
            [(id, routing) for _, id, routing, _ in changed],
            [row for *_, row in changed],
            [batch.items[i] for i in numbers],
            codec.encode_documents(batch.embeddings.take(rows.tolist()))[places],
            batch.embeddings.vectors[numbers],
        )
    return len(changed), len(same), [item.id for item in batch.items if not documents.get(item.id)]
