"""How the items of a source differ from those of an index, by ids, file facts and contents; nothing
is encoded."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from boc.inputs.file_facts import FileState, content_hash, is_unchanged, look, settled_state
from boc.paths import system_path
from boc.types import Item

NEAR = 64  # missing items of equal content that are looked at for one of the same file name

Change: TypeAlias = Literal["added", "changed", "moved", "same"]


@dataclass(frozen=True)
class Reuse:
    """An ``item`` of the source whose vector the index holds, as that of ``donor``.

    ``state`` is that of its file, read before its content; empty for a sentence, and for a file
    that cannot be looked at now. ``digest`` is the ``content_hash`` of the file if the state did
    not tell that already.
    """

    item: Item
    donor: Item
    change: Change
    digest: str | None = None
    state: FileState = ()


@dataclass
class Differences:
    """The items of a source, as ``reuses``, as ``new`` (to be encoded), as ``lost`` (pictures
    without a file) or as ``unreadable`` (their files are as they were when they could not be read).

    ``kept`` are the ids of pictures whose files cannot be looked at or read now. ``missing`` are
    the ids without an item in the source, but for ``vacated``, whose items moved. ``states`` are
    those of the files of new pictures.
    """

    reuses: list[Reuse] = field(default_factory=list)
    new: list[Item] = field(default_factory=list)
    lost: list[Item] = field(default_factory=list)
    unreadable: list[Item] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    vacated: list[str] = field(default_factory=list)
    states: dict[str, FileState] = field(default_factory=dict)

    def keep(self, item: Item) -> None:
        """Leave a stored item as it is."""
        self.kept.append(item.id)
        self.reuses.append(Reuse(item, item, "same"))


def compare_pictures(
    items: Sequence[Item],
    stored: Mapping[str, Item],
    unreadable: Mapping[str, Sequence[int]],
) -> Differences:
    """Compare the pictures of a source with the ``stored`` ones, and with the states of
    ``unreadable`` files.

    The content of a file is read only if size or times have changed, or if it is new and as large
    as a stored one.
    """
    differences = Differences()
    states = {item.id: look(system_path(item.content)) for item in items}
    donors = _Donors(
        stored,
        lambda item: text_fact(item, "content_hash"),
        [key for key in stored if states.get(key, ()) == ()],
    )
    sizes = {size for item in stored.values() if isinstance(size := item.fields.get("size"), int)}
    for item in items:
        state = states[item.id]
        old = stored.get(item.id)
        if state is None and old is not None:
            differences.keep(old)
        elif not state:
            differences.lost.append(item)
        elif old is None and state == tuple(unreadable.get(item.id, ())):
            differences.unreadable.append(item)
        elif old is not None and is_unchanged(state, old.fields):
            change: Change = "same" if item.content == old.content else "moved"
            differences.reuses.append(Reuse(item, old, change, state=state))
        else:
            try:
                state = settled_state(item.path)
                digest = (
                    content_hash(item.path) if old is not None or {*state[:1]} & sizes else None
                )
            except OSError:
                if old is not None:
                    differences.keep(old)
                    continue
                digest = None  # the reader of the picture reports the error
            if not donors.take(digest, item, differences, state):
                differences.states[item.id] = state
    differences.missing = list(donors.missing_ids)
    return differences


def text_fact(item: Item, name: str) -> str | None:
    """Return a fact of a stored item; None if it has none, or metadata of that name that are
    something else."""
    fact = item.fields.get(name)
    return fact if isinstance(fact, str) else None


def compare_sentences(items: Sequence[Item], stored: Mapping[str, Item]) -> Differences:
    """Compare the captions of a source with the ``stored`` ones."""
    differences = Differences()
    here = {item.id for item in items}
    donors = _Donors(stored, lambda item: item.content, [key for key in stored if key not in here])
    for item in items:
        donors.take(item.content, item, differences)
    differences.missing = list(donors.missing_ids)
    return differences


class _Donors:
    """Stored items by their content, each with a vector that other items of this content can have.

    The first item that takes that of a ``missing`` one has moved from there, and its id is no
    longer in ``missing_ids``.
    """

    def __init__(
        self,
        stored: Mapping[str, Item],
        content: Callable[[Item], str | None],
        missing: Iterable[str],
    ) -> None:
        self._stored = stored
        self._by_content: defaultdict[str, dict[str, Item]] = defaultdict(dict)
        self._missing: defaultdict[str, dict[str, Item]] = defaultdict(dict)
        self.missing_ids = dict.fromkeys(missing)
        for item in stored.values():
            key = content(item)
            if key is not None:
                (self._missing if item.id in self.missing_ids else self._by_content)[key][
                    item.id
                ] = item

    def take(
        self,
        content: str | None,
        item: Item,
        differences: Differences,
        state: FileState = (),
    ) -> bool:
        """Add ``item`` to ``differences``; return False if no stored item has its content, so that
        it is new.

        The donor is the stored item of its own id if that has its content, else one that moved,
        else any.
        """
        there = self._by_content.get(content, {}) if content is not None else {}
        missing = self._missing.get(content) if content is not None else None
        if item.id in there:
            differences.reuses.append(Reuse(item, there[item.id], "same", content, state))
        elif missing:
            donor = self._nearest(missing, item)
            del missing[donor.id], self.missing_ids[donor.id]
            self._by_content[str(content)][donor.id] = donor
            differences.vacated.append(donor.id)
            differences.reuses.append(Reuse(item, donor, "moved", content, state))
        elif there:
            change: Change = "changed" if item.id in self._stored else "added"
            differences.reuses.append(
                Reuse(item, next(iter(there.values())), change, content, state),
            )
        else:
            differences.new.append(item)
            return False
        return True

    def _nearest(self, missing: Mapping[str, Item], item: Item) -> Item:
        """Return one of the same file name, if there is one near the first."""
        name = PurePosixPath(item.id).name
        first = list(islice(missing.values(), NEAR))
        return next((one for one in first if PurePosixPath(one.id).name == name), first[0])
