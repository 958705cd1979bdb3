"""Bring an index in line with the pictures and captions that it was made from.

New and changed items are encoded, moved ones keep their vectors, missing ones are removed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boc import plugins
from boc.atomic_files import json_sha256
from boc.errors import BocError, SourceError, note
from boc.inputs import ocr as words
from boc.inputs.features import FeatureFile
from boc.inputs.file_facts import FACTS, STATE, facts_of
from boc.inputs.metadata import Metadata
from boc.inputs.sources import Source
from boc.manage.budgets import renew_budgets
from boc.manage.build import PLACE, open_sources, paths_of
from boc.manage.compare import Reuse, compare_pictures, compare_sentences, text_fact
from boc.manage.encode import clear, encoded
from boc.manage.load import BATCH, CONCEPT_BATCH, check_fields, facts_among, write_items
from boc.manage.stored import stored_rows
from boc.progress import Progress, progress_of
from boc.search.searcher import Searcher
from boc.types import MODALITIES, FieldType, ImageRef, Item, Rows

if TYPE_CHECKING:
    from boc.plugins import Engine, IndexEditor

# items encoded per commit; a kill costs at most the part of one that differs when it is repeated
CHUNK = 4096
DELETED = 1000  # items deleted at a time


@dataclass(frozen=True)
class SyncReport:
    """The result of a sync: numbers of items added, changed, moved, removed, and left as they were.

    ``encoded`` counts those that the encoder saw, ``missing`` those that the source lacks and
    ``keep_missing`` kept. ``failed`` are (id, reason) of pictures that could not be read now,
    ``unreadable`` the ids of those without a file, or that could not be read earlier and have not
    changed since.
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

    @property
    def up_to_date(self) -> bool:
        """True if nothing was done."""
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
    keep_missing: bool = False,
    remove_many: bool = False,
    ocr: bool = False,
    device: str = "auto",
    chunk: int = CHUNK,
    searcher: Searcher | None = None,
    progress: bool | Progress = False,
) -> SyncReport:
    """Bring the index ``name`` in line with ``source``. After a kill the same call continues.

    Files are compared by size and modification time, and by a hash of their contents where these
    differ. Pictures that could not be read are not tried again until they change. Encoder and code
    are those of the index.

    Parameters
    ----------
    name : str
        An index of pictures, with the facts of their files.
    source : path, or a sequence of paths
        What the index was made from: folders or archives of pictures, or a table of captions.
    at : str, default="file:boc-data"
        Address of the back end.
    encoder : str, optional
        The encoder of the index if it has moved; loaded only if there is something to encode.
    metadata : Metadata or path of a CSV, optional
        Metadata of the items; default: that which they have in the index.
    images : path, optional
        As in ``build_index``.
    exclude : sequence of str, optional
        As in ``build_index``; default: that of the index.
    keep_missing : bool, default=False
        Keep items whose pictures or captions are not in the source; of several folders some may be
        gone.
    remove_many : bool, default=False
        Remove missing items even if they are more than half of the index, which is an error
        otherwise.
    ocr : bool, default=False
        Read the words inside new and changed pictures, and those of which the index does not hold
        them yet; these count as changed.
    device : str, default="auto"
        Device that the encoder runs on: cpu, cuda, or auto.
    chunk : int, default=4096
        Items encoded per commit, the most that a kill can lose.
    searcher : Searcher, optional
        The open index, whose encoder is used again.
    progress : bool or callable, default=False
        True draws bars, in notebooks too; a callable is called as ``progress(stage, done, total)``
        after each batch.

    SourceError if the source is missing or empty, so that a disk that is not mounted removes
    nothing.
    """
    paths = paths_of(source)
    table = Metadata.read(Path(metadata)) if isinstance(metadata, (Path, str)) else metadata
    if searcher is None:
        searcher = Searcher.open(name, at, encoder=encoder, device=device)
        if encoder is not None and encoder != searcher.index.manifest.identity.spec:
            _ = searcher.encoder  # EncoderError if it is another one
    manifest = searcher.index.manifest
    patterns = manifest.exclude if exclude is None else [*exclude]
    items = open_sources(paths, images, patterns, detachable=keep_missing)
    if items is None or items.file is not None:
        raise SourceError(
            f"{paths[0]} is a feature file; give the folders of pictures, or the CSV, that it "
            "was made from",
        )
    if any(manifest.fields.get(fact) != FACTS[fact] for fact in STATE):
        raise BocError(
            f"{name} does not hold the facts of files that a sync compares; make it again with "
            "--replace",
        )
    check_fields(manifest, table)
    check_fields(manifest, Metadata({**items.types}, {}))
    if table is not None and len(strange := table.strangers(items.items)) == len(table.rows):
        raise BocError(
            f"no id of the metadata is that of an item (such as {strange[0]!r}); give ids of "
            f"{name}",
        )
    if ocr:
        words.check_installed()
        if manifest.fields.get("ocr") != words.FIELDS["ocr"] or "ocr" in manifest.table_facts:
            raise BocError(
                f"{name} has no field for the words inside pictures; make it again with "
                "--replace --ocr",
            )
    work = _Sync(name, at, searcher, items, table, patterns, ocr=ocr, chunk=chunk)
    work.check_removal(keep_missing=keep_missing, remove_many=remove_many)
    report = work.run(progress_of(progress))
    if report.encoded:
        renew_budgets(name, at)
    return report


class _Sync:
    """One sync: compare, then commit the changes."""

    def __init__(
        self,
        name: str,
        at: str,
        searcher: Searcher,
        source: Source,
        table: Metadata | None,
        exclude: list[str],
        *,
        ocr: bool,
        chunk: int,
    ) -> None:
        self._name = name
        self._at = at
        self._searcher = searcher
        self._ocr = ocr
        self._source_types = source.types
        self._chunk = chunk
        self._index: Engine = searcher.index
        self._backend = plugins.backend(at)
        manifest = self._index.manifest
        self._types = {
            fact: kind for fact, kind in FACTS.items() if manifest.fields.get(fact) == kind
        }
        self._table_facts = manifest.table_facts if table is None else facts_among(table)
        self._exclude = exclude
        own = [name for name in manifest.fields if name not in self._types]
        self._own_names = [*own, *manifest.table_facts]
        stored: dict[str, dict[str, Item]] = {modality: {} for modality in MODALITIES}
        for item in self._index.items():
            stored[item.modality][item.id] = item
        self._stored = stored["image"] | stored["text"]
        items = {
            modality: [item for item in source.items if item.modality == modality]
            for modality in MODALITIES
        }
        pictures = compare_pictures(items["image"], stored["image"], manifest.unreadable)
        sentences = compare_sentences(items["text"], stored["text"])
        self._reuses = pictures.reuses + sentences.reuses
        self._new = pictures.new + sentences.new
        self._states = pictures.states
        self._lost = [item.id for item in pictures.lost]
        self._unreadable = {item.id: manifest.unreadable[item.id] for item in pictures.unreadable}
        self._vacated = pictures.vacated + sentences.vacated
        if kept := pictures.kept:
            note(
                f"{len(kept)} pictures cannot be read now (such as {kept[0]}); what {name} has "
                "of them is kept",
                4,
            )
        missing = pictures.missing + sentences.missing
        # What lies in folders that cannot be listed now may still be there.
        self._gone = [key for key in missing if not key.startswith(source.closed)]
        self._n_missing = len(missing) - len(self._gone)
        self._table = table or self._index_metadata()
        if source.types:  # over what the index has of these fields, and under a table
            rows = {
                item.id: self._with_own(item, source.types, over=table is not None)
                for item in source.items
            }
            self._table = Metadata({}, rows)
        of_table = table is not None or bool(source.types)
        unread = {
            r.item.id: r for r in pictures.reuses if ocr and r.state and "ocr" not in r.donor.fields
        }
        self._reuses = [reuse for reuse in self._reuses if reuse.item.id not in unread]
        self._new = [reuse.item for reuse in unread.values()] + self._new
        self._states |= {key: reuse.state for key, reuse in unread.items()}
        self._rewritten = [
            reuse for reuse in self._reuses if self._differs(reuse, of_table=of_table)
        ]

    def check_removal(self, *, keep_missing: bool, remove_many: bool) -> None:
        """Keep missing items, or check that those to be removed are few: BocError if they are most
        of the index."""
        if keep_missing:
            self._n_missing += len(self._gone)
            self._gone = []
        elif 2 * len(self._gone) > len(self._stored) and not remove_many:
            raise BocError(
                f"{len(self._gone)} of the {len(self._stored)} items of {self._name} are missing "
                "(such as "
                f"{self._gone[0]!r}); is a disk not mounted, or this another folder? Add "
                "--missing remove-many to "
                "remove them, or --missing keep to keep them",
            )

    def run(self, progress: Progress) -> SyncReport:
        """Do it, in as many commits as there are chunks to encode."""
        failed: list[tuple[str, str]] = []
        if not self._new:
            clear(self._name, self._at)
        chunks = [
            self._new[start : start + self._chunk]
            for start in range(0, len(self._new), self._chunk)
        ]
        for number, chunk in enumerate(chunks or [[]]):
            leaving = [
                *(self._vacated if number == 0 else []),
                *(self._gone if number + 1 >= len(chunks) else []),
            ]
            if not (chunk or self._rewritten or leaving or self._is_outdated()):
                break
            with (
                self._encode(chunk, number * self._chunk, progress) as path,
                self._editor() as editor,
            ):
                done = [reuse.item.id for reuse in self._rewritten]
                self._rewrite(editor, progress)
                if path is not None:
                    with FeatureFile(path) as file:
                        done += [key for modality in MODALITIES for key in file.ids(modality)]
                        failed += file.failures
                        leaving += [key for key, _ in file.failures if key in self._stored]
                        self._unreadable |= {
                            key: list(self._states[key])
                            for key, _ in file.failures
                            if key in self._states
                        }
                        codec = self._searcher.codec
                        manifest = self._index.manifest
                        deque(write_items(editor.put, file, codec, manifest, self._table), 0)
                for start in range(0, len(leaving), DELETED):
                    editor.delete(leaving[start : start + DELETED])
                self._commit(editor, [done, leaving])
                self._rewritten = []
        return self._report(failed)

    @contextmanager
    def _editor(self) -> Iterator[IndexEditor]:
        with self._backend.edit(self._name) as editor:
            if self._backend.open(self._name).manifest != self._index.manifest:
                raise BocError(
                    f"{self._name} was changed by somebody else meanwhile; repeat the command",
                )
            yield editor

    def _commit(self, editor: IndexEditor, done: Sequence[Sequence[str]]) -> None:
        editor.commit(json_sha256([self._index.manifest.source, *done]), **self._notes())
        self._index = self._backend.open(self._name)

    @contextmanager
    def _encode(
        self,
        chunk: Sequence[Item],
        before: int,
        progress: Progress,
    ) -> Iterator[Path | None]:
        """Encode new items to a feature file, which goes when the block succeeds; None if there are
        none."""
        if not chunk:
            yield None
            return
        concepts = (
            self._searcher.codec.reads_concepts or self._index.manifest.concept_dtype is not None
        )

        earlier, new = (
            Counter[str](item.modality for item in items)
            for items in (self._new[:before], self._new)
        )

        def show(label: str, done: int, total: int) -> None:
            kind = "text" if label.endswith("sentences") else "image"
            progress(label, earlier[kind] + done, new[kind])

        network = self._searcher.encoder
        source = Source(list(chunk), types=self._source_types)
        with encoded(
            self._name,
            self._at,
            source,
            network,
            show,
            concepts=concepts,
            ocr=self._ocr,
        ) as path:
            with FeatureFile(path) as file:
                contents = {item.id: item.content for item in chunk}
                in_file = {
                    item.id: item.content
                    for modality in MODALITIES
                    for item in file.items(modality)
                }
                in_file |= {key: contents.get(key, "") for key, _ in file.failures}
                if file.header.digest != network.identity.digest or in_file != contents:
                    raise BocError(
                        f"{path} does not hold what was encoded for {self._name}; delete it, and "
                        "repeat the command",
                    )
            yield path

    def _rewrite(self, editor: IndexEditor, progress: Progress) -> None:
        """Put items whose vectors are in the index, with their new ids, paths and metadata.

        A back end that edits in place must not lose a vector before its reader came: rows of items
        that are replaced themselves are read first, all at once.
        """
        replaced = {reuse.item.id for reuse in self._rewritten}
        first = [k for k in self._rewritten if k.donor.id != k.item.id and k.donor.id in replaced]
        early = {k.item.id for k in first}
        later = [k for k in self._rewritten if k.item.id not in early]
        size = CONCEPT_BATCH if self._index.manifest.concept_dtype is not None else BATCH

        def rows(batch: Sequence[Reuse]) -> Rows:
            return stored_rows(self._index, [reuse.donor for reuse in batch])

        read = [(batch, rows(batch)) for batch in _batches(first, size)]
        done = 0
        for batch, stored in chain(read, ((batch, rows(batch)) for batch in _batches(later, size))):
            editor.put(stored._replace(items=[self._with_fields(reuse) for reuse in batch]))
            done += len(batch)
            progress("moving", done, len(self._rewritten))

    def _differs(self, reuse: Reuse, *, of_table: bool) -> bool:
        """Return whether the row of an item has to be written again; a file with other times
        differs in its facts."""
        item = reuse.item
        donor = reuse.donor
        if (item.id, item.content, item.group) != (donor.id, donor.content, donor.group):
            return True
        if item.modality == "image" and reuse.digest is not None:
            return True
        if not of_table:
            return False
        row = self._table.of(item)
        if any(donor.fields.get(name) != value for name, value in row.items()):
            return True
        rest = [name for name in self._own_names if name in donor.fields and name not in row]
        if any(name not in self._types for name in rest):
            return True
        return (
            bool(rest) and self._with_fields(reuse).fields != donor.fields
        )  # of an earlier table, or of the file

    def _with_fields(self, reuse: Reuse) -> Item:
        """Return the item with its metadata: the facts of its file, and the values of the table."""
        item = reuse.item
        facts = {}
        if item.modality == "image":
            digest = reuse.digest or text_fact(reuse.donor, "content_hash")
            of_file: Mapping[str, Any] = reuse.donor.fields
            if reuse.state and digest is not None:
                of_file = facts_of(ImageRef(item.id, item.path), reuse.state, digest)
            inside = {
                name: reuse.donor.fields[name]
                for name in words.FIELDS
                if name in reuse.donor.fields
            }
            facts = {
                fact: value for fact, value in {**of_file, **inside}.items() if fact in self._types
            }
        return replace(item, fields={**facts, **self._table.of(item)})

    def _own(self, item: Item) -> dict[str, Any]:
        """Return the metadata of a stored item that is not of its file."""
        return {name: item.fields[name] for name in self._own_names if name in item.fields}

    def _with_own(
        self,
        item: Item,
        types: Mapping[str, FieldType],
        *,
        over: bool,
    ) -> dict[str, Any]:
        """Return the values of the table, with those that the item has of fields of ``types``
        itself."""
        row = self._table.of(item)
        if over:
            return {**item.fields, **row}
        return {**{name: value for name, value in row.items() if name not in types}, **item.fields}

    def _index_metadata(self) -> Metadata:
        """Return the metadata that the index holds of its items, and of those that moved by their
        new ids."""
        if not self._own_names:
            return Metadata({}, {})
        rows = {key: own for key, item in self._stored.items() if (own := self._own(item))}
        moved = {
            k.item.id: rows[k.donor.id]
            for k in self._reuses
            if k.change == "moved" and k.donor.id in rows
        }
        return Metadata({}, rows | moved)

    def _is_outdated(self) -> bool:
        """Return whether the index lacks no item, but a commit."""
        manifest = self._index.manifest
        return self._index.is_unfinished or any(
            getattr(manifest, k) != v for k, v in self._notes().items()
        )

    def _notes(self) -> dict[str, Any]:
        """Return the entries of the manifest that a sync writes."""
        return {
            "unreadable": self._unreadable,
            "table_facts": self._table_facts,
            "exclude": self._exclude,
        }

    def _report(self, failed: list[tuple[str, str]]) -> SyncReport:
        counts = Counter(reuse.change for reuse in self._reuses)
        bad = {key for key, _ in failed}
        for item in self._new:
            if item.id not in bad:
                counts["changed" if item.id in self._stored else "added"] += 1
        broken = sum(key in self._stored for key in bad)
        return SyncReport(
            counts["added"],
            counts["changed"],
            counts["moved"],
            len(self._gone) + broken,
            counts["same"],
            self._n_missing,
            len(self._new) - len(failed),
            failed,
            sorted({*self._lost, *self._unreadable} - bad),
        )


def _batches(reuses: Sequence[Reuse], size: int) -> Iterator[Sequence[Reuse]]:
    return (reuses[start : start + size] for start in range(0, len(reuses), size))
