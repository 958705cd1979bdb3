"""Sources of an index: feature files, vectors from other programs, a copy of an index, or pictures
and sentences, which an encoder turns into vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal
from uuid import uuid4

from boc import plugins
from boc.atomic_files import check_writable, file_lock, json_sha256, remove
from boc.errors import BocError, ImageError, SourceError
from boc.inputs.archives import FileState
from boc.inputs.extraction import Extraction
from boc.inputs.features import SUFFIXES, FeatureFiles, is_embeddings
from boc.inputs.file_facts import look, settled_state
from boc.inputs.images import Picture
from boc.inputs.sources import Source, open_sources
from boc.inputs.vector_files import has_vectors
from boc.manage.index_zip import SUFFIX, unpacked
from boc.manage.load import VectorSource
from boc.manage.vector_items import VectorItems
from boc.names import MODALITIES
from boc.paths import system_path
from boc.plugins import Encoder
from boc.progress import Progress
from boc.types import ImageRef, Item


@dataclass
class IndexSources:
    """Sources of an index. ``unreadable`` maps the ids of pictures that could not be encoded to the
    states of their files."""

    paths: list[Path]
    images: Path | None = None
    exclude: Sequence[str] = ()
    unreadable: dict[str, list[int]] = field(default_factory=dict)

    @cached_property
    def form(self) -> Literal["copy", "features", "vectors", "items"]:
        """Return the kind of the sources. Only ``items`` need an encoder; the other kinds already
        contain vectors."""
        first = self.paths[0]
        if len(self.paths) == 1 and first.suffix.lower() == SUFFIX and not first.is_dir():
            return "copy"
        if all(map(has_vectors, self.paths)):
            return "vectors"
        if all(
            path.suffix.lower() in SUFFIXES and path.is_file() and is_embeddings(path)
            for path in self.paths
        ):
            return "features"
        return "items"

    @cached_property
    def items(self) -> Source:
        """Return the pictures and sentences in the sources."""
        return open_sources(self.paths, self.images, self.exclude)

    def encoder(self, spec: str | None, device: str) -> Encoder | None:
        """Load the encoder for pictures and sentences, or return None if the sources already
        contain vectors. Raises BocError if an encoder is needed and ``spec`` is None."""
        if self.form != "items":
            return None
        # Report errors in the source before errors in the encoder.
        _ = self.items
        if spec is not None:
            return plugins.encoder(spec, device)
        raise BocError(
            f"{self.paths[0]} contains no vectors, and no encoder was specified to compute them",
            "get an encoder with <boc model get clip>, then try again with <--encoder clip> (or "
            "with your own encoder: <--encoder KIND:FOLDER>)",
        )

    @contextmanager
    def vectors(
        self,
        name: str,
        at: str,
        network: Encoder | None,
        progress: Progress,
        *,
        concepts: bool,
        ocr: bool,
    ) -> Iterator[VectorSource]:
        """Open the vectors for the index ``name``. If the sources are items, ``network`` encodes
        them first (see ``encoded``). Raises SourceError if there are no usable items."""
        if ocr and network is None:
            raise SourceError(
                f"{self.paths[0]}: contains no pictures, so no text can be recognised",
                "leave out <--ocr>",
            )
        if self.form == "features":
            with FeatureFiles(self.paths) as file:
                yield file
        elif self.form == "copy":
            with beside(name, at, None) as path, unpacked(self.paths[0], path) as items:
                yield items
        elif network is None:
            yield self._usable(VectorItems(self.paths))
        else:
            pictures = [
                item
                for item in self.items.items
                if self.items.file is None and item.modality == "image"
            ]
            states = {
                item.id: look(system_path(item.content), settled_state) or () for item in pictures
            }
            making = encoded(name, at, self.items, network, progress, concepts=concepts, ocr=ocr)
            with making as path, FeatureFiles([path]) as file:
                self.unreadable = still_unreadable(pictures, file.failures, states, network)
                yield self._usable(file)

    def _usable(self, file: VectorSource) -> VectorSource:
        if not any(map(file.count, MODALITIES)):
            reasons = [reason for _, reason in file.failures]
            raise SourceError(
                f"{self.paths[0]}: no usable items ({'; '.join(reasons[:3])})",
            )
        return file


def still_unreadable(
    pictures: Iterable[Item],
    failures: Sequence[tuple[str, str]],
    states: Mapping[str, FileState],
    network: Encoder,
) -> dict[str, list[int]]:
    """Return the file states, by id, of failed pictures that still cannot be read and whose files
    have not changed since ``states`` were recorded.

    The next sync retries all other failed pictures, because their disk may have been unmounted.
    """
    failed = {key for key, _ in failures}
    result = {}
    for item in pictures:
        state = states.get(item.id)
        if item.id in failed and state:
            with suppress(ImageError):
                network.prepare(ImageRef(item.id, item.path))
                continue
            if look(item.path) == state:
                result[item.id] = list(state)
    return result


def paths_of(source: Path | str | Sequence[Path | str]) -> list[Path]:
    """Return one or several sources as a list of paths, with ~ replaced by the home folder. Raises
    BocError for other types and for an empty list."""
    sources = [source] if isinstance(source, (Path, str)) else source
    if (
        not isinstance(sources, Sequence)
        or not sources
        or not all(isinstance(path, (Path, str)) for path in sources)
    ):
        got = " ".join(repr(source).split())[:60]
        raise BocError(
            f"a source must be a path or a list of paths, got {got}; save arrays with numpy.save",
        )
    return [Path(path).expanduser() for path in sources]


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
    """Encode a source for the index ``name``, and yield the path of the feature file. The file is
    removed if the block succeeds.

    If the process is killed or an error occurs, the same call resumes the encoding, unless
    ``pictures`` maps ids to pictures in memory. A call with other contents removes the unfinished
    file. Raises BocError if another process is encoding items for this index.
    """
    contents = [source.digest, source.stamp, network.identity.digest, str(concepts), str(ocr)]
    if pictures:
        contents.append(str(uuid4()))
    with beside(name, at, contents) as path:
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
def beside(name: str, at: str, contents: object) -> Iterator[Path]:
    """Yield a path next to the index ``name`` for a temporary file that depends on ``contents``.
    Files left behind by earlier calls with other contents are removed first, and the file itself is
    removed if the block succeeds."""
    place = place_of(at)
    path = place / f".{name}.{json_sha256(contents)[:12]}.features.h5"
    lock = place / f".{name}.lock"
    check_writable(lock)
    with file_lock(lock, f"{name} is"):
        for left in place.glob(_LEFT.format(name)):
            # The parts of a feature file are needed until the file is complete.
            if not left.name.startswith(path.name) or (left != path and path.exists()):
                remove(left)
        yield path
        remove(path)


_LEFT = ".{}." + "[0-9a-f]" * 12 + ".features.h5*"


def clear(name: str, at: str) -> None:
    """Remove the temporary files that killed commands left behind for the index ``name``, unless
    another process is encoding items for this index."""
    if any(place_of(at).glob(_LEFT.format(name))):
        with suppress(BocError), beside(name, at, None) as path:
            path.touch()


def place_of(at: str) -> Path:
    """Return the folder for temporary files of an index: the folder of its back end, or the current
    folder if the index is on a server."""
    return Path(at.partition(":")[2]).expanduser() if at.startswith("file:") else Path()
