"""The files below folders: names, in an order that does not depend on the disk, and the ids of the pictures there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from boc.errors import SourceError


@dataclass
class Listing:
    """Everything below a folder, as paths relative to it: files, linked folders, and folders that cannot be listed.

    Files are in the order of their paths part by part.
    """

    files: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def listing(folder: Path) -> Listing:
    """List ``folder``. SourceError if it cannot be listed itself."""
    found, waiting = Listing(), [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    name = below + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
                    elif entry.is_symlink() and Path(entry.path).is_dir():
                        found.links.append(name)
                    else:
                        found.files.append(name)
        except OSError as error:
            if not below:
                raise SourceError(f"{folder}: cannot be listed ({error.strerror}); check its permissions") from error
            found.closed.append(below)
    found.files.sort(key=lambda name: name.split("/"))
    found.links.sort()
    found.closed.sort()
    return found


def beginnings(folders: Sequence[Path]) -> list[str]:
    """What the ids of the pictures of each folder begin with: nothing for a single folder, else its name and /.

    So files of the same name in two folders stay two. SourceError if two folders have one name, or if one lies in
    another.
    """
    if len(folders) == 1:
        return [""]
    roots = [folder.resolve() for folder in folders]
    names: dict[str, Path] = {}
    for folder, root in zip(folders, roots, strict=True):
        if root.name in names:
            raise SourceError(
                f"{folder} and {names[root.name]} are both called {root.name!r}, with which the ids of their pictures "
                "begin; rename one, or give the folder that holds both"
            )
        names[root.name] = folder
        outer = next((other for other in roots if other in root.parents), None)
        if outer is not None:
            raise SourceError(f"{folder} lies in {outer}, which is given too; leave it out")
    return [f"{root.name}/" for root in roots]
