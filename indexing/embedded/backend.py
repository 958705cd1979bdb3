"""List, create, edit and remove the indexes in a folder."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from boc.atomic_files import sole_writer, sync
from boc.errors import BackendError, ManifestError, advice
from boc.manifest import Manifest
from boc.vectors import Array

from . import commits
from .engine import EmbeddedEngine
from .writer import EmbeddedEditor, EmbeddedWriter


class EmbeddedBackend:
    """Manage the indexes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self, name: str) -> bool:
        return (self.folder / name / "CURRENT").is_file()

    def create(
        self,
        name: str,
        manifest: Manifest,
        arrays: Mapping[str, Array],
        part: str | None = None,
    ) -> EmbeddedWriter:
        return EmbeddedWriter(self.folder / name, manifest, arrays)

    def edit(self, name: str) -> EmbeddedEditor:
        self._check(name)
        return EmbeddedEditor(self.folder / name)

    def learn_once(self, *given: Any) -> NoReturn:
        raise BackendError(
            f"only one process can load an index of file:{self.folder}",
            "leave out <--shard>, or load into a server",
        )

    def attach(self, name: str) -> NoReturn:
        raise BackendError(
            f"file:{self.folder} contains only indexes built by boc",
            "attach to a server's with <--at elastic+URL>",
        )

    def compact(self, name: str) -> None:
        with self.edit(name) as editor:
            editor.compact()

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob("*/CURRENT"))

    def remove(self, name: str) -> None:
        self._check(name)
        with sole_writer(self.folder / name):
            (self.folder / name / "CURRENT").unlink()
            sync(self.folder / name)
            shutil.rmtree(self.folder / name)

    def about(self) -> dict[str, str]:
        return {
            "engine": "embedded: memory-mapped posting lists",
            "place": f"file:{self.folder}",
            "scores": "exact up to 2^53",
            "words": "BM25",
        }

    def open(self, name: str) -> EmbeddedEngine:
        home = self.folder / name
        while True:
            self._check(name)
            current = self._current(home)
            try:
                return EmbeddedEngine(home)
            except (ManifestError, OSError):
                if self.exists(name) and current == self._current(home):
                    raise  # the index is damaged and was not replaced while it was being opened

    def _current(self, home: Path) -> str | None:
        """Return the name of the current commit in ``home``, or None if the index has just been
        removed."""
        try:
            return commits.current(home)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendError(
                f"{home / 'CURRENT'}: cannot be read ({error.strerror or error}); {advice(error)}",
            ) from error

    def _check(self, name: str) -> None:
        if not self.exists(name):
            known = self.names()
            there = f"it has: {', '.join(known)}" if known else "it has none"
            raise BackendError(
                f"no index {name!r} in file:{self.folder} ({there})",
                f"make it with <boc index {name} SOURCE>",
            )
