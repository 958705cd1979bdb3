"""For tests of sync: collections of files that change, an encoder that counts what it sees, back
ends that break."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from boc import build_index, plugins
from boc.errors import ImageError
from boc.inputs.archives import opener
from boc.manage.sync import SyncReport, sync_index
from boc.types import Embeddings, Identity, ImageRef, Modality

NAMES = (
    "a.png",
    "b.png",
    "c.png",
    "ä b.png",
    "sub/a.png",
    "sub/deep/b.png",
)  # of files that change
CONTENTS = ("always", "one", "two", "three", "bad: not a picture", "bad: damaged")
CODE = "scalar(plain=true)"


def prepare(image: ImageRef) -> bytes:
    """The bytes of a file; ImageError if they begin with "bad"."""
    try:
        with open(image.path, "rb", opener=opener) as file:
            content = file.read()
    except OSError as error:
        raise ImageError(f"{image.id}: {error.strerror}") from error
    if content.startswith(b"bad"):
        raise ImageError(f"{image.id}: not a picture")
    return content


@dataclass
class Counting:
    """An encoder of any bytes as vectors, equal ones for equal bytes only. It breaks before picture
    ``breaks_at``, and calls one of ``meanwhile`` before and after it reads a file."""

    seen: list[bytes] = field(default_factory=list)
    breaks_at: int | None = None
    meanwhile: list[Callable[[], None]] = field(default_factory=list)
    identity: ClassVar[Identity] = Identity("test:counting", "ab" * 32, 16)

    def prepare(self, image: ImageRef) -> bytes:
        """As ``prepare``, while something changes files."""
        for _ in self.meanwhile[:1]:
            self.meanwhile.pop()()
        try:
            return prepare(image)
        finally:
            for _ in self.meanwhile[:1]:
                self.meanwhile.pop()()

    preparer = property(lambda self: self.prepare)

    @classmethod
    def installed(cls, monkeypatch) -> Counting:
        """One that stands for every encoder that is named."""
        found = cls()
        monkeypatch.setattr(plugins, "encoder", lambda *spec: found)
        return found

    def encode_images(self, prepared: Sequence[bytes]) -> Embeddings:
        return self._encoded("image", prepared)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        return self._encoded("text", [text.encode() for text in texts])

    def _encoded(self, modality: Modality, contents: Sequence[bytes]) -> Embeddings:
        if self.breaks_at is not None and len(self.seen) + len(contents) > self.breaks_at:
            self.breaks_at = None
            raise KeyboardInterrupt
        self.seen += contents
        rows = [
            np.random.default_rng(int(hashlib.sha256(each).hexdigest()[:15], 16))
            for each in contents
        ]
        vectors = np.array([row.standard_normal(self.identity.dim) for row in rows], np.float32)
        return Embeddings(modality, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class Breaking:
    """A back end whose editor breaks at its ``left``-th call."""

    def __init__(self, backend: Any, left: int) -> None:
        self._backend = backend
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def edit(self, name: str) -> Any:
        return _BreakingEditor(self._backend.edit(name), self)

    def tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


class _BreakingEditor:
    def __init__(self, editor: Any, owner: Breaking) -> None:
        self._editor = editor
        self._owner = owner

    def __enter__(self) -> _BreakingEditor:
        self._editor.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._editor.__exit__(*exc)

    def put(self, rows: Any) -> None:
        self._owner.tick()
        self._editor.put(rows)

    def delete(self, ids: Sequence[str]) -> int:
        self._owner.tick()
        return int(self._editor.delete(ids))

    def commit(self, source: str, **changed: Any) -> None:
        self._owner.tick()
        self._editor.commit(source, **changed)


@dataclass
class Files:
    """A folder in which each operation takes place at another time."""

    folder: Path
    clock: int = 10**18

    @property
    def at(self) -> str:
        """The address of its index, beside it."""
        return f"file:{self.folder.parent / 'at'}"

    @classmethod
    def six(cls, folder: Path) -> Files:
        """Return a folder of six pictures."""
        files = cls(folder)
        for i in range(6):
            files.write(folder / f"{i}.png", f"picture {i}")
        return files

    def index(self, **options: Any) -> None:
        """Make the index ``x`` of the folder."""
        new("x", self.folder, self.at, **options)

    def sync(self, **options: Any) -> SyncReport:
        """Sync the index ``x`` with the folder."""
        return sync_index("x", self.folder, at=self.at, **options)

    def held(self) -> dict[str, tuple[Any, ...]]:
        """All that the index ``x`` holds."""
        return held("x", self.at)

    def do(self, operation: tuple[str, ...]) -> None:
        """Do one of ``OPERATIONS``, or nothing where there is no such file."""
        kind, *names = operation
        path = self.folder / names[0]
        if kind == "write":
            self.write(path, names[1])
        elif not path.exists():
            pass
        elif kind == "delete":
            path.unlink()
        elif kind == "touch":
            self._stamp(path)
        elif kind == "edit":  # with the time that it had
            before = path.stat()
            path.write_text(names[1])
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif kind == "copy":
            (self.folder / names[1]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, self.folder / names[1])
        elif kind == "rename":
            (self.folder / names[1]).parent.mkdir(parents=True, exist_ok=True)
            path.replace(self.folder / names[1])
        elif kind == "swap" and (self.folder / names[1]).exists():
            path.rename(self.folder / "held")
            (self.folder / names[1]).rename(path)
            (self.folder / "held").rename(self.folder / names[1])

    def write(self, path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self._stamp(path)

    def _stamp(self, path: Path) -> None:
        self.clock += 1
        os.utime(path, ns=(self.clock, self.clock))


_NAME = st.sampled_from(NAMES)
OPERATIONS = st.one_of(
    st.tuples(
        st.sampled_from(["write", "edit"]),
        _NAME,
        st.sampled_from(CONTENTS),
    ),
    st.tuples(st.sampled_from(["rename", "swap", "copy"]), _NAME, _NAME).filter(
        lambda each: each[1] != each[2],
    ),
    st.tuples(st.sampled_from(["delete", "touch"]), _NAME),
)


def held(name: str, at: str) -> dict[str, tuple[Any, ...]]:
    """All that an index holds of its items, by id."""
    index = plugins.backend(at).open(name)
    items = list(index.items())
    ids = [item.id for item in items]
    terms = index.terms(ids).toarray()
    rows = zip(
        items,
        terms.tolist(),
        index.vectors(ids).astype(float).tolist(),
        strict=True,
    )
    found = {
        item.id: (
            item.modality,
            item.content,
            item.group,
            dict(item.fields),
            *row,
        )
        for item, *row in rows
    }
    assert sum(index.manifest.items.values()) == len(found)
    assert index.manifest.postings == np.count_nonzero(terms)
    return found


def new(name: str, source: Path | Sequence[Path], at: str, **options: Any) -> None:
    """Make an index with a code that learns nothing, so that it is the same for the same items."""
    build_index(
        name,
        source,
        encoder="test:counting",
        at=at,
        code=CODE,
        replace=True,
        **options,
    )
