"""How the items of a source differ from those of an index, by ids, file facts and contents; nothing is encoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from boc.inputs.file_facts import content_hash
from boc.types import Item

NEAR = 64  # missing items of equal content that are looked at for one of the same file name

State: TypeAlias = tuple[int, ...]
"""Size and modification time (ns) of a file; empty if there is none."""


@dataclass(frozen=True)
class Known:
    """An ``item`` of the source, and the item of the index whose content, and so whose vector, it has.

    ``digest`` is the ``content_hash`` of its file if size or time did not tell that already.
    """

    item: Item
    donor: Item
    digest: str | None = None


@dataclass
class Differences:
    """The items of a source, as ``known`` or ``new``, and the ids of the index that are ``missing`` in it.

    ``vacated`` are the ids from which items moved. ``lost`` are pictures without a file, and ``unreadable`` those whose
    files are still as they were when they could not be read. ``states`` are those of the files of new pictures.
    """

    known: list[Known] = field(default_factory=list)
    new: list[Item] = field(default_factory=list)
    vacated: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    lost: list[Item] = field(default_factory=list)
    unreadable: list[Item] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)


def state_of(path: Path | str) -> State:
    """The state of a file."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return found.st_size, found.st_mtime_ns


def compare_pictures(
    items: Sequence[Item], stored: Mapping[str, Item], unreadable: Mapping[str, Sequence[int]]
) -> Differences:
    """Compare the pictures of a source with the ``stored`` ones.

    The content of a file is read only if size or time have changed, or if it is new and as large as a stored one.
    """
    found = Differences()
    states = {item.id: state_of(item.content) for item in items}
    found.missing = [key for key in stored if not states.get(key)]
    donors = _Donors(stored.values(), lambda item: item.fields.get("content_hash"), found.missing)
    sizes = {item.fields.get("size") for item in stored.values()}
    for item in items:
        state, old = states[item.id], stored.get(item.id)
        if not state or (old is None and state == tuple(unreadable.get(item.id, ()))):
            (found.unreadable if item.id in unreadable and state == tuple(unreadable[item.id]) else found.lost).append(
                item
            )
        elif old is not None and state == (old.fields.get("size"), old.fields.get("modified_ns")):
            found.known.append(Known(item, old))
        else:
            digest = _digest(item) if old is not None or state[0] in sizes else None
            donor = donors.take(digest, item)
            if donor is None:
                found.new.append(item)
                found.states[item.id] = state
            else:
                found.known.append(Known(item, donor, digest))
    found.missing, found.vacated = donors.left()
    return found


def compare_sentences(items: Sequence[Item], stored: Mapping[str, Item]) -> Differences:
    """Compare the captions of a source with the ``stored`` ones."""
    found = Differences()
    here = {item.id for item in items}
    found.missing = [key for key in stored if key not in here]
    donors = _Donors(stored.values(), lambda item: item.content, found.missing)
    for item in items:
        donor = donors.take(item.content, item)
        if donor is None:
            found.new.append(item)
        else:
            found.known.append(Known(item, donor))
    found.missing, found.vacated = donors.left()
    return found


class _Donors:
    """Stored items by their content, each with a vector that other items of this content can have.

    The first item that takes that of a ``missing`` one has moved from there.
    """

    def __init__(self, stored: Iterable[Item], content: Callable[[Item], str | None], missing: Iterable[str]) -> None:
        self._by_content: defaultdict[str, dict[str, Item]] = defaultdict(dict)
        self._missing: defaultdict[str, dict[str, Item]] = defaultdict(dict)
        self._left = dict.fromkeys(missing)
        self._vacated: list[str] = []
        for item in stored:
            found = content(item)
            if found is not None:
                (self._missing if item.id in self._left else self._by_content)[found][item.id] = item

    def take(self, content: str | None, item: Item) -> Item | None:
        """The stored item of this content for ``item``: itself if it has it, else one that moved, else any; None if
        there is no item of this content."""
        if content is None:
            return None
        there, missing = self._by_content.get(content, {}), self._missing.get(content)
        if item.id in there:
            return there[item.id]
        if missing:
            name = PurePosixPath(item.id).name
            first = list(islice(missing.values(), NEAR))
            chosen = next((one for one in first if PurePosixPath(one.id).name == name), first[0])
            there = self._by_content[content]
            there[chosen.id] = missing.pop(chosen.id)
            del self._left[chosen.id]
            self._vacated.append(chosen.id)
            return chosen
        return next(iter(there.values()), None)

    def left(self) -> tuple[list[str], list[str]]:
        """The missing ids from which no item moved, and those from which one did."""
        return list(self._left), self._vacated


def _digest(item: Item) -> str | None:
    try:
        return content_hash(Path(item.content))
    except OSError:  # whoever reads the picture says what is wrong
        return None
