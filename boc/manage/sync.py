"""Update an index to match the pictures and captions that it was built from.

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
    the source but were kept, either because of ``keep_missing`` or because their folders are not
    available. ``failed`` contains pairs (id, reason) for pictures that could not be read in this
    sync. ``unreadable`` contains the ids of pictures without a file, and of pictures that could not
    be read earlier and have not changed since. ``away`` maps each folder that is missing or
    completely empty to the number of pictures kept from this folder.
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
        """Return whether the index was already up to date."""
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
    """Update the index ``name`` to match ``source``. If the process is killed, the same call
    resumes the sync.

    Files are compared by size and modification time and, if these differ, by a hash of their
    contents. Pictures that could not be read are skipped until their files change. The encoder and
    the code of the index are used.

    Parameters
    ----------
    name : str
        Name of a picture index that stores the sizes, times and hashes of its files.
    source : path, or a sequence of paths
        Sources of the index, which are folders or archives of pictures, or a table of captions.
    at : str, default="file:boc-data"
        Address of the back end.
    encoder : str, optional
        Encoder of the index, if the encoder has moved. It is loaded only if there are items to
        encode.
    metadata : Metadata or path of a CSV, optional
        Metadata of the items. By default, the metadata in the index are kept.
    images : path, optional
        As in ``build_index``.
    exclude : sequence of str, optional
        As in ``build_index``. By default, the patterns stored in the index are used.
    keep_missing : bool, optional
        If True, keep items whose pictures or captions are not in the source; if there are several
        folders, some of them may be missing. If False, remove these items. By default, remove them,
        but keep the pictures from folders that are missing or completely empty, or that contain no
        files on the device of these pictures, because a disk may not be mounted.
    remove_many : bool, default=False
        Remove all missing items. By default, an error is raised if more than half of the pictures
        or captions in the index, or in one of several folders, are missing.
    ocr : bool, default=False
        Read words in new and changed pictures, and in pictures whose words are not in the index
        yet. Such pictures count as changed.
    device : str, default="auto"
        Device on which the encoder runs: cpu, cuda or auto.
    chunk : int, default=4096
        Number of items to encode per commit. If a sync is killed, at most this many encoded items
        are lost.
    searcher : Searcher, optional
        Searcher that has opened the index. Its encoder is reused.
    progress : bool or callable, default=False
        If True, show progress bars, also in notebooks. A callable is called after each batch as
        ``progress(stage, done, total)``.

    Raises SourceError if the source is missing or empty, so that no items are removed when a disk
    is not mounted.
    """
    paths = paths_of(source)
    table = Metadata.of_option(metadata)
    if searcher is None:
        searcher = Searcher.open(name, at, encoder=encoder, device=device)
        if encoder is not None and encoder != searcher.index.manifest.identity.spec:
            _ = searcher.encoder  # raises EncoderError if the encoder is a different one
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

    # Count pictures and captions separately, because the captions in a table remain when a disk is
    # not mounted. Also count each of several folders separately.
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
    """Commit the changes to an index, with one commit for each chunk of items to encode.

    ``removed`` contains the vectors of pictures that were removed earlier and have reappeared.
    ``gone`` contains the ids of the items to remove, and ``notes`` contains the manifest entries
    that the sync writes. ``encode`` creates a feature file from items, like ``encoded``.
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
        # Even if all items are up to date, the manifest may need a commit.
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
    """Write items with known vectors, and their new ids, paths and metadata. Vectors of donors that
    are not in the index are read from ``removed``.

    A back end that edits in place must not overwrite a vector that is still needed. Therefore, the
    rows of all items that will be replaced are read first.
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
