"""Compare the items of a source with the items of an index by id, file facts, content and metadata,
without encoding any item."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, product
from pathlib import PurePosixPath

from boc.inputs.archives import FileState
from boc.inputs.file_facts import (
    DECODED,
    FACTS,
    content_hash,
    facts_of,
    is_unchanged,
    look,
    settled_state,
)
from boc.inputs.metadata import Metadata
from boc.inputs.sources import Source
from boc.manifest import Manifest
from boc.paths import system_path
from boc.plugins import Engine
from boc.types import MODALITIES, ImageRef, Item


@dataclass(frozen=True)
class Reuse:
    """Source ``item`` that can reuse the stored vector of ``donor``. ``change`` is "added",
    "changed", "moved" or "same".

    ``state`` is the state of the file, read before the content; the state is empty for a sentence,
    and for a file whose state cannot currently be read. ``digest`` is the ``content_hash`` of the
    file, or None if the state of the file was enough for the comparison.
    """

    item: Item
    donor: Item
    change: str
    digest: str | None = None
    state: FileState = ()


@dataclass(frozen=True)
class SyncedFields:
    """Metadata of the items in a sync: the file facts that the index declares (``types``),
    overridden by the values in a ``table``.

    ``own`` lists the fields of the index that are not file facts. ``of_table`` is True if the
    values in the table may differ from the values in the index.
    """

    types: frozenset[str] = frozenset()
    own: Sequence[str] = ()
    of_table: bool = False
    table: Metadata = field(default_factory=lambda: Metadata({}, {}))

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        source: Source,
        table: Metadata | None,
        changes: Changes,
    ) -> SyncedFields:
        """Collect the metadata for a sync from ``table`` or, without a table, from the index, with
        moved items under their new ids. Values in ``source`` override values from the index, but
        not values from a table."""
        types = frozenset(fact for fact in FACTS if manifest.fields.get(fact) == FACTS[fact])
        own = [name for name in manifest.fields if name not in types] + manifest.table_facts
        values = table
        if values is None:
            rows = {}
            for key, item in changes.stored.items():
                row = {
                    name: item.fields[name]
                    for name in own
                    if name in item.fields and name not in source.types
                }
                if row:
                    rows[key] = row
            moved = {
                reuse.item.id: rows[reuse.donor.id]
                for reuse in changes.reuses
                if reuse.change == "moved" and reuse.donor.id in rows
            }
            values = Metadata({}, rows | moved)
        if source.types:
            rows = {item.id: {**item.fields, **values.of(item)} for item in source.items}
            values = Metadata({}, rows)
        return cls(types, own, table is not None or bool(source.types), values)

    def differs(self, reuse: Reuse) -> bool:
        """Return whether the row of an item must be rewritten. File times are facts, so the row of
        a file with changed times must be rewritten as well."""
        item = reuse.item
        donor = reuse.donor
        if (item.id, item.content, item.group) != (donor.id, donor.content, donor.group):
            return True
        if item.modality == "image" and reuse.digest is not None:
            return True
        if not self.of_table:
            return False
        row = self.table.of(item)
        if any(donor.fields.get(name) != value for name, value in row.items()):
            return True
        # The other values come from an earlier table, or from the file.
        rest = {name for name in self.own if name in donor.fields and name not in row}
        return bool(rest) and (not rest <= self.types or self.item(reuse).fields != donor.fields)

    def item(self, reuse: Reuse) -> Item:
        """Return the item with its metadata: the file details and the values from the table."""
        item = reuse.item
        facts = {}
        if item.modality == "image":
            digest = reuse.digest or stored_hash(reuse.donor)
            facts = dict(reuse.donor.fields)
            if reuse.state and digest is not None:
                inside = {name: facts[name] for name in DECODED if name in facts}
                facts = facts_of(ImageRef(item.id, item.path), reuse.state, digest) | inside
            facts = {name: value for name, value in facts.items() if name in self.types}
        return replace(item, fields={**facts, **self.table.of(item)})


@dataclass(frozen=True)
class Changes:
    """Result of a comparison: ``reuses``, ``new`` items (which must be encoded), ``lost`` items
    (new pictures whose files do not exist) and ``unreadable`` items (whose files could not be read
    earlier and have not changed since).

    ``rewritten`` lists the reuses whose rows must be rewritten. ``stored`` maps ids to the items of
    the index. ``kept`` lists the ids of pictures whose files or file states cannot currently be
    read. ``missing`` lists the ids in the index that have no item in the source, except
    ``vacated``, the old ids of moved items. ``away`` maps the ids of missing pictures to the
    outermost folder of the source that has disappeared, or that contains no file on the device of
    the picture. ``states`` maps the ids of new pictures to file states. ``metadata`` is the
    metadata that the index should contain.
    """

    stored: dict[str, Item] = field(default_factory=dict)
    metadata: SyncedFields = field(default_factory=SyncedFields)
    reuses: list[Reuse] = field(default_factory=list)
    rewritten: list[Reuse] = field(default_factory=list)
    new: list[Item] = field(default_factory=list)
    lost: list[Item] = field(default_factory=list)
    unreadable: list[Item] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    vacated: list[str] = field(default_factory=list)
    away: dict[str, str] = field(default_factory=dict)
    states: dict[str, FileState] = field(default_factory=dict)

    def keep(self, item: Item) -> None:
        """Keep a stored item unchanged."""
        self.kept.append(item.id)
        self.reuses.append(Reuse(item, item, "same"))


def compare(
    index: Engine,
    source: Source,
    table: Metadata | None,
    removed: Mapping[str, Item],
    *,
    ocr: bool,
) -> Changes:
    """Compare a source, and a ``table`` of metadata, with the contents of an index.

    ``removed`` maps content hashes to removed pictures whose vectors are still stored. With
    ``ocr``, pictures whose text has not been recognised yet count as new.
    """
    manifest = index.manifest
    stored: dict[str, dict[str, Item]] = {modality: {} for modality in MODALITIES}
    for item in index.items():
        stored[item.modality][item.id] = item
    changes = Changes(stored["image"] | stored["text"])
    compare_pictures(
        [item for item in source.items if item.modality == "image"],
        stored["image"],
        manifest.unreadable,
        changes,
        removed,
    )
    sentences = [item for item in source.items if item.modality == "text"]
    donors = _Donors(
        stored["text"],
        lambda item: item.content,
        stored["text"].keys() - {item.id for item in sentences},
    )
    for item in sentences:
        donors.take(item.content, item, changes)
    changes.missing.extend(donors.missing_ids)
    metadata = SyncedFields.of(manifest, source, table, changes)
    unread = []
    reuses = []
    for reuse in changes.reuses:
        if ocr and reuse.state and "ocr" not in reuse.donor.fields:
            unread.append(reuse.item)
            changes.states[reuse.item.id] = reuse.state
        else:
            reuses.append(reuse)
    return replace(
        changes,
        metadata=metadata,
        reuses=reuses,
        new=unread + changes.new,
        rewritten=[reuse for reuse in reuses if metadata.differs(reuse)],
    )


def compare_pictures(
    items: Sequence[Item],
    stored: Mapping[str, Item],
    unreadable: Mapping[str, Sequence[int]],
    changes: Changes,
    removed: Mapping[str, Item],
) -> None:
    """Compare the pictures of a source with the ``stored`` pictures, and with the recorded states
    of ``unreadable`` files.

    The content of a file is read only if its size or times have changed, or if the file is new and
    has the same size as a stored or removed picture.
    """
    states = {item.id: look(system_path(item.content)) for item in items}
    known = {**stored, **removed}
    donors = _Donors(known, stored_hash, [key for key in stored if states.get(key, ()) == ()])
    sizes = {size for item in known.values() if isinstance(size := item.fields.get("size"), int)}
    for item in items:
        state = states[item.id]
        old = stored.get(item.id)
        if state is None and old is not None:
            changes.keep(old)
        elif not state:
            if old is None:
                changes.lost.append(item)
        elif old is None and state == tuple(unreadable.get(item.id, ())):
            changes.unreadable.append(item)
        elif old is not None and is_unchanged(state, old.fields):
            change = "same" if item.content == old.content else "moved"
            changes.reuses.append(Reuse(item, old, change, state=state))
        else:
            digest = None
            try:
                state = settled_state(item.path)
                if old is not None or {*state[:1]} & sizes:
                    digest = content_hash(item.path)
            except OSError:
                # For a new picture, the error is reported when the picture is encoded.
                if old is not None:
                    changes.keep(old)
                    continue
            if not donors.take(digest, item, changes, state):
                changes.states[item.id] = state
    changes.missing.extend(donors.missing_ids)
    if not 0 < len(donors.missing_ids) < len(stored):
        return  # no picture is missing, or the whole source is different
    # The mount point of a disk that is not mounted is an empty folder, or is on another device.
    seen = set[tuple[str, object]]()
    for item in items:
        state = states[item.id]
        if state != ():
            old = stored.get(item.id, item)
            device = old.fields.get("device_number", state and state[-1])
            # Indexes from earlier versions do not record devices, so None matches every device.
            seen.update(product(_folders(item.id), (device, None)))
    for key in donors.missing_ids:
        old = stored[key]
        *outer, folder = _folders(key)
        hidden = (folder, old.fields.get("device_number")) not in seen
        # A file that still exists was excluded from the source.
        if folder and hidden and not look(system_path(old.content)):
            changes.away[key] = next((each for each in outer if (each, None) not in seen), folder)


def _folders(key: str) -> list[str]:
    """Return the folders that contain a picture in its source, outermost first. The outermost
    folder has an empty name."""
    return [*accumulate(["", *key.split("/")[:-1]], "{}{}/".format)]


def stored_hash(item: Item) -> str | None:
    """Return the content hash of a stored item, or None if the item has no hash or has other
    metadata in a field of this name."""
    fact = item.fields.get("content_hash")
    return fact if isinstance(fact, str) else None


class _Donors:
    """Stored and removed items by content, whose vectors can be reused for items with the same
    content.

    The first item that reuses the vector of a ``missing`` item counts as moved, and the old id is
    removed from ``missing_ids``.
    """

    def __init__(
        self,
        stored: Mapping[str, Item],
        content: Callable[[Item], str | None],
        missing: Collection[str],
    ) -> None:
        self._stored = stored
        self._donors: defaultdict[str | None, dict[str, Item]] = defaultdict(dict)
        self.missing_ids = dict.fromkeys(key for key in stored if key in missing)
        # Among items with equal content, missing items come first.
        for key in dict.fromkeys((*self.missing_ids, *stored)):
            self._donors[content(stored[key])][key] = stored[key]
        # Items with unknown content cannot be donors.
        self._donors[None] = {}

    def take(
        self,
        content: str | None,
        item: Item,
        changes: Changes,
        state: FileState = (),
    ) -> bool:
        """Add ``item`` to ``changes``. Return False if the item is new because no stored item has
        the same content.

        The donor is the stored item with the same id if its content is the same, otherwise a
        missing item, preferably with the same file name, and otherwise any item with the same
        content.
        """
        donors = self._donors[content]
        # At most 64 items with equal content are examined.
        some = list(islice(donors.values(), 64))
        missing = [one for one in some if one.id in self.missing_ids]
        if not donors:
            changes.new.append(item)
            return False
        if item.id in donors:
            donor = donors[item.id]
            change = "same"
        elif missing:
            name = PurePosixPath(item.id).name
            donor = next((one for one in missing if PurePosixPath(one.id).name == name), missing[0])
            del self.missing_ids[donor.id]
            donors[donor.id] = donors.pop(donor.id)
            changes.vacated.append(donor.id)
            change = "moved"
        else:
            donor = some[0]
            change = "changed" if item.id in self._stored else "added"
        changes.reuses.append(Reuse(item, donor, change, content, state))
        return True
