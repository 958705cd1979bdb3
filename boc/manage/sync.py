"""Bring an index in line with the pictures and captions from which it was made.

New and changed items are encoded, moved items keep their vectors, and missing items are removed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boc import plugins
from boc.atomic_files import json_sha256
from boc.errors import BocError, SourceError, note
from boc.inputs import ocr as words
from boc.inputs.features import FeatureFile
from boc.inputs.file_facts import FACTS, STATE
from boc.inputs.metadata import Metadata
from boc.inputs.sources import Source, open_sources
from boc.manage.budgets import renew_measurements
from boc.manage.build import PLACE
from boc.manage.compare import Changes, Reuse, compare
from boc.manage.index_sources import clear, encoded, paths_of, still_unreadable
from boc.manage.load import check_fields, facts_among, write_items
from boc.manage.removed import RemovedPictures
from boc.manage.stored import stored_batches
from boc.progress import Progress, progress_of
from boc.search.searcher import Searcher
from boc.types import MODALITIES, Item, Rows

if TYPE_CHECKING:
    from boc.plugins import Engine, IndexEditor

# Items encoded per commit. If a sync is killed, at most this many items are encoded again.
CHUNK = 4096
DELETED = 1000  # items deleted at a time


@dataclass(frozen=True)
class SyncReport:
    """Result of a sync: the numbers of items added, changed, moved, removed and left unchanged.

    ``encoded`` is the number of encoded items. ``missing`` is the number of items that are not in
    the source but were kept, either by ``keep_missing`` or because their folders are away.
    ``failed`` lists pairs (id, reason) of pictures that could not be read now. ``unreadable`` lists
    the ids of pictures without a file, and of pictures that could not be read earlier and have not
    changed since. ``away`` maps each folder that is gone or empty as a whole to the number of
    pictures kept from it.
    """

    added: int = 0
    changed: int = 0
    moved: int = 0
    removed: int = 0
    same: int = 0
    missing: int = 0
    encoded: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    away: Mapping[str, int] = field(default_factory=dict)

    @property
    def up_to_date(self) -> bool:
        """Return whether the sync changed nothing."""
        return not (self.added or self.changed or self.moved or self.removed)


def sync_index(
    name: str,
    source: Path | str | Sequence[Path | str],
    *,
    at: str = PLACE,
    encoder: str | None = None,
    metadata: Metadata | Path | str | None = None,
    images: Path | None = None,
    exclude: Sequence[str] | None = None,
    keep_missing: bool | None = None,
    remove_many: bool = False,
    ocr: bool = False,
    device: str = "auto",
    chunk: int = CHUNK,
    searcher: Searcher | None = None,
    progress: bool | Progress = False,
) -> SyncReport:
    """Bring the index ``name`` in line with ``source``. If the process is killed, the same call
    continues.

    Files are compared by size and modification time, and by a hash of their contents if these
    differ. Pictures that could not be read are skipped until they change. The encoder and the code
    of the index are used.

    Parameters
    ----------
    name : str
        Name of an index of pictures that stores the facts of their files.
    source : path, or a sequence of paths
        Sources of the index: folders or archives of pictures, or a table of captions.
    at : str, default="file:boc-data"
        Address of the back end.
    encoder : str, optional
        Encoder of the index, if it has moved; loaded only if there are items to encode.
    metadata : Metadata or path of a CSV, optional
        Metadata of the items; default: their metadata in the index.
    images : path, optional
        As in ``build_index``.
    exclude : sequence of str, optional
        As in ``build_index``; default: the patterns of the index.
    keep_missing : bool, optional
        True: keep items whose pictures or captions are not in the source; some of several folders
        may be gone. False: remove them. Default: remove them, but keep the pictures of folders that
        are gone or empty as a whole, or that contain no file on the device of these pictures: a
        disk may not be mounted.
    remove_many : bool, default=False
        Remove missing items of all folders, instead of raising an error if they are more than half
        of the pictures or captions of the index, or of one of several folders.
    ocr : bool, default=False
        Read the words inside new and changed pictures, and inside pictures whose words the index
        does not hold yet; the latter count as changed.
    device : str, default="auto"
        Device that the encoder runs on: cpu, cuda, or auto.
    chunk : int, default=4096
        Number of items encoded per commit; a killed sync loses at most one commit.
    searcher : Searcher, optional
        Searcher that has the index open; its encoder is reused.
    progress : bool or callable, default=False
        True shows progress bars, also in notebooks; a callable is called as
        ``progress(stage, done, total)`` after each batch.

    Raises SourceError if the source is missing or empty, so that nothing is removed when a disk is
    not mounted.
    """
    paths = paths_of(source)
    table = Metadata.of_option(metadata)
    if searcher is None:
        searcher = Searcher.open(name, at, encoder=encoder, device=device)
        if encoder is not None and encoder != searcher.index.manifest.identity.spec:
            _ = searcher.encoder  # raises EncoderError for another encoder
    manifest = searcher.index.manifest
    patterns = [*(manifest.exclude if exclude is None else exclude)]
    items = open_sources(paths, images, patterns, detachable=bool(keep_missing))
    if items.file is not None:
        raise SourceError(
            f"{paths[0]} is a feature file; give the picture folders or the CSV from which it was "
            "made",
        )
    if any(manifest.fields.get(fact) != FACTS[fact] for fact in STATE):
        raise BocError(
            f"{name} lacks the file sizes, times and hashes that sync compares",
            f"rebuild it: <boc index {name} SOURCE --replace>",
        )
    check_fields(manifest, table)
    check_fields(manifest, Metadata({**items.types}, {}))
    if table is not None and len(strange := table.strangers(items.items)) == len(table.rows):
        raise BocError(
            f"no id of the metadata matches an item (such as {strange[0]!r}); give ids of {name}",
        )
    if ocr:
        words.check_installed()
        if manifest.fields.get("ocr") != words.FIELDS["ocr"] or "ocr" in manifest.table_facts:
            raise BocError(
                f"{name} has no field for the words inside pictures",
                f"rebuild it: <boc index {name} SOURCE --replace> with <--ocr>",
            )
    removed = RemovedPictures(name, at, searcher.index)
    changes = compare(searcher.index, items, table, removed.items, ocr=ocr)
    if changes.kept:
        note(
            f"{len(changes.kept)} pictures cannot be read now (such as {changes.kept[0]}); their "
            f"entries in {name} are kept",
            level=3,
        )
    # Pictures in folders that cannot be listed now may still exist.
    away = changes.away if keep_missing is None and not remove_many else {}
    gone = [key for key in changes.missing if key not in away and not key.startswith(items.closed)]
    if keep_missing:
        gone = []

    # Pictures and captions are counted separately, since the captions in a table stay when a disk
    # is gone. Several folders are also counted separately.
    def part(key: str) -> tuple[str, str]:
        what = {"image": "pictures", "text": "captions"}[changes.stored[key].modality]
        return what, key.partition("/")[0] if paths[1:] else name

    totals = Counter(map(part, changes.stored))
    for place, count in Counter(map(part, gone)).items():
        if 2 * count > totals[place] and not remove_many:
            some = next(key for key in gone if part(key) == place)
            raise BocError(
                f"{count} of the {totals[place]} {' of '.join(place)} are missing (such as "
                f"{some!r})",
                "is a disk not mounted, or the folder wrong? Add <--missing remove-many> to "
                "remove them, or <--missing keep> to keep them",
            )
    notes = {
        "unreadable": {item.id: manifest.unreadable[item.id] for item in changes.unreadable},
        "table_facts": manifest.table_facts if table is None else facts_among(table),
        "exclude": patterns,
    }
    show = progress_of(progress)
    concepts = searcher.codec.reads_concepts or manifest.concept_dtype is not None

    def encode(some: list[Item]) -> AbstractContextManager[Path]:
        source = Source(some, types=items.types)
        return encoded(name, at, source, searcher.encoder, show, concepts=concepts, ocr=ocr)

    removed.add([changes.stored[key] for key in gone])
    report = _apply(name, at, searcher, removed.rows, changes, gone, notes, encode, show, chunk)
    if report.encoded:
        renew_measurements(name, at)
    return replace(report, away=Counter(away.values()))


def _apply(
    name: str,
    at: str,
    searcher: Searcher,
    removed: Engine,
    changes: Changes,
    gone: Sequence[str],
    notes: dict[str, Any],
    encode: Callable[[list[Item]], AbstractContextManager[Path]],
    progress: Progress,
    chunk: int,
) -> SyncReport:
    """Commit the changes of an index, in as many commits as there are chunks to encode.

    ``removed`` holds the vectors of pictures that come back. ``gone`` are the ids of the items to
    remove, ``notes`` the manifest entries that a sync writes. ``encode`` makes a feature file from
    items, as ``encoded`` does.
    """
    backend = plugins.backend(at)
    index = searcher.index
    rewritten = changes.rewritten
    failed: list[tuple[str, str]] = []
    count = -len(changes.vacated)
    if not changes.new:
        clear(name, at)
    for start in range(0, max(1, len(changes.new)), chunk):
        stop = min(start + chunk, len(changes.new))
        leaving = []
        if start == 0:
            leaving += changes.vacated
        if stop == len(changes.new):
            leaving += gone
        # An index with all items may still need a commit.
        outdated = any(getattr(index.manifest, key) != value for key, value in notes.items())
        if not (start < stop or rewritten or leaving or outdated or index.is_unfinished):
            break
        with ExitStack() as stack:
            file = None
            if start < stop:
                path = stack.enter_context(encode(changes.new[start:stop]))
                file = stack.enter_context(FeatureFile(path))
            editor = stack.enter_context(backend.edit(name))
            if backend.open(name).manifest != index.manifest:
                raise BocError(
                    f"{name} was changed by another process meanwhile; repeat the command",
                )
            done = [reuse.item.id for reuse in rewritten]
            _rewrite(editor, index, removed, rewritten, changes, progress)
            if file is not None:
                done += [key for modality in MODALITIES for key in file.ids(modality)]
                failed += file.failures
                some = changes.new[start:stop]
                bad = still_unreadable(some, file.failures, changes.states, searcher.encoder)
                notes["unreadable"] |= bad
                leaving += [key for key in bad if key in changes.stored]
                table = changes.metadata.table
                deque(write_items(editor.put, file, searcher.codec, index.manifest, table), 0)
            for begin in range(0, len(leaving), DELETED):
                editor.delete(leaving[begin : begin + DELETED])
            editor.commit(json_sha256([index.manifest.source, done, leaving]), **notes)
            index = backend.open(name)
            rewritten = []
            count += len(leaving)
    counts = Counter[str](reuse.change for reuse in changes.reuses)
    unusable = dict(failed).keys()
    counts.update(
        "changed" if item.id in changes.stored else "added"
        for item in changes.new
        if item.id not in unusable
    )
    return SyncReport(
        counts["added"],
        counts["changed"],
        counts["moved"],
        count,
        counts["same"],
        len(changes.missing) - len(gone),
        len(changes.new) - len(failed),
        failed,
        sorted({*(item.id for item in changes.lost), *notes["unreadable"]} - unusable),
    )


def _rewrite(
    editor: IndexEditor,
    index: Engine,
    removed: Engine,
    rewritten: Sequence[Reuse],
    changes: Changes,
    progress: Progress,
) -> None:
    """Write items whose vectors are known, with their new ids, paths and metadata. The vectors of
    donors that the index does not hold come from ``removed``.

    A back end that edits in place must not overwrite a vector that is still needed. So rows of
    items that are themselves replaced are read first, all at once.
    """
    replaced = {reuse.item.id for reuse in rewritten}
    first: list[Reuse] = []
    later: list[Reuse] = []
    returned: list[Reuse] = []
    for reuse in rewritten:
        if reuse.donor.id not in changes.stored:
            returned.append(reuse)
        elif reuse.donor.id != reuse.item.id and reuse.donor.id in replaced:
            first.append(reuse)
        else:
            later.append(reuse)

    def read(reuses: Sequence[Reuse], source: Engine) -> Iterator[Rows]:
        left = iter(reuses)
        for rows in stored_batches(source, [reuse.donor for reuse in reuses]):
            some = islice(left, len(rows.items))
            yield rows._replace(items=list(map(changes.metadata.item, some)))

    done = 0
    for rows in chain(list(read(first, index)), read(later, index), read(returned, removed)):
        editor.put(rows)
        done += len(rows.items)
        progress("moving", done, len(rewritten))
