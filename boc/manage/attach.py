"""Add codes to the documents of another program's index on a server, and remove these codes."""

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

LOOKED_UP = 10_000  # items looked up at a time
LISTED = 10  # largest number of ids in each list of a report
RM = 30.0  # candidates per hit, enough to make up for the few postings of a dictionary


@dataclass(frozen=True)
class AttachReport:
    """Result of an attachment.

    ``documents`` is the number of documents that have a code now, including earlier calls. This
    call wrote ``written`` documents and left ``unchanged`` documents that already had the same
    code. ``without`` is the number of items without a document, and ``missing`` lists the ids of
    the first ten. ``lost`` lists up to ten ids of documents that another program removed, or wrote
    without a code, in the meantime; the same call again adds the code to the documents that still
    exist.
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
    """Add the codes of the items in feature files to the documents of another program's index
    ``name``.

    If the process is killed, the same call continues. Calls with further files add items under the
    same code; changed items replace their old codes.

    Parameters
    ----------
    name : str
        Name of one index, or an alias of one index.
    source : path, or a sequence of paths
        Feature files by one encoder.
    at : str
        Address of the server: elastic+URL or opensearch+URL.
    key : str, optional
        Document field that contains the id of an item; default: _id. All documents of an item get
        its code.
    code : str, Code or SurrogateCodec, default="dictionary"
        Code that turns vectors into term frequencies, for the first attachment. The default reads
        few postings per query, whereas each term of "scalar" occurs in a large part of all
        documents.
    confirm : callable, optional
        Called with the addition to the mapping, before anything is changed; if it returns False,
        nothing is changed.
    progress : bool or callable, default=False
        True shows progress bars; a callable is called as ``progress(stage, done, total)`` after
        each batch.

    Returns None if ``confirm`` returned False. Raises EncoderError if an earlier attachment used
    another encoder, and BackendError if the index does not exist, was made by boc, or cannot store
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
                    "the code words writes a text per picture, for which other programs' documents "
                    "have no field",
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
    """Remove the attached codes from the documents of the index ``name``, and return the number of
    documents that had a code.

    The fields stay in the mapping of the index. If the process is killed, the same call continues.
    Raises BackendError if no codes are attached.
    """
    with plugins.backend(at).attach(check_name(name)) as place:
        return max(place.detach(), default=0)


def _check_documents(place: ServerAttachment, file: FeatureFiles, key: str | None) -> None:
    """Raise BocError if no item has a document. This is checked before anything is changed."""
    first = ""
    for modality in MODALITIES:
        items = file.items(modality)
        while some := list(islice(items, LOOKED_UP)):
            if any(place.find(some, key).values()):
                return
            first = first or some[0].id
    raise BocError(
        f"no item has a document, such as {first!r}",
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
