"""Encode a source on its way to an index, by a feature file beside it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from boc.atomic_files import check_writable, file_lock, json_sha256
from boc.errors import BocError
from boc.inputs.extraction import Extraction
from boc.inputs.sources import Source
from boc.manage.foreign_vectors import write_features

if TYPE_CHECKING:
    from boc.inputs.images import Picture
    from boc.plugins import Encoder
    from boc.progress import Progress

LEFT = (
    ".{}." + "[0-9a-f]" * 12 + ".features.h5*"
)  # feature files beside an index, and the folders of their parts


@contextmanager
def encoded(
    name: str,
    at: str,
    source: Source,
    network: Encoder,
    progress: Progress,
    *,
    concepts: bool,
    ocr: bool,
    pictures: Mapping[str, Picture] | None = None,
) -> Iterator[Path]:
    """Encode a source on its way to the index ``name``; yield the feature file, which goes when the
    block succeeds.

    After a kill, or an error, the same call continues it, unless ``pictures`` in memory are given,
    by id; a call for other contents removes it. BocError if another process encodes for this index.
    """
    contents = [source.digest, source.stamp, network.identity.digest, str(concepts), str(ocr)]
    if pictures:
        contents.append(str(uuid4()))
    with _beside(name, at, contents) as path:
        extraction = Extraction(
            source,
            path,
            encoder=network,
            concepts=concepts,
            workers=0 if pictures else None,
            ocr=ocr,
            pictures=pictures,
        )
        if not path.exists():
            for step in extraction.steps("encoding"):
                progress(*step)
        yield path


@contextmanager
def converted(name: str, at: str, sources: Sequence[Path]) -> Iterator[Path]:
    """Yield the vectors in files of others as a feature file beside the index ``name``, as
    ``encoded`` does."""
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    with _beside(name, at, facts) as path:
        if not path.exists():
            write_features(sources, path)
        yield path


@contextmanager
def _beside(name: str, at: str, contents: object) -> Iterator[Path]:
    """Yield the path of a feature file beside the index, which goes when the block succeeds."""
    place = _place(at)
    path = place / f".{name}.{json_sha256(contents)[:12]}.features.h5"
    check_writable(path)
    with file_lock(place / f".{name}.lock", f"{name} is"):
        for left in place.glob(LEFT.format(name)):
            if left.is_dir() and (path.exists() or not left.name.startswith(path.name)):
                shutil.rmtree(left)
            elif left != path and left.suffix == ".h5":
                left.unlink()
        yield path
        path.unlink()


def clear(name: str, at: str) -> None:
    """Remove what killed commands encoded for the index ``name``, unless another process encodes
    for it now."""
    if any(_place(at).glob(LEFT.format(name))):
        with suppress(BocError), _beside(name, at, None) as path:
            path.touch()


def _place(at: str) -> Path:
    return Path(at.partition(":")[2]).expanduser() if at.startswith("file:") else Path()
