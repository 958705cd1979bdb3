"""Downloads from the Hugging Face hub, or another server that speaks its protocol (``HF_ENDPOINT``).

Only the files of the model are requested: one request lists them, and each file is one request, or several that
continue one another. No telemetry is sent.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from boc.atomic_files import check_writable, feed, sha256, sole_writer, sync
from boc.errors import ADVICE, BocError, advice

from . import store
from .files import WEIGHTS, contents, first_weights, is_wanted, wanted, weights
from .store import Model

UNFINISHED = ".unfinished"
NOTE = "revision"
"""A file beside those of an unfinished download, with the commit they are of."""
CHUNK = 1 << 20  # bytes written at a time, and lost at most by a kill
SPARE = 64 << 20  # bytes that stay free on the disk

Progress = Callable[[int, int], None]
"""A callback that gets the number of bytes that are there, and their total."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its size in bytes, and SHA-256, or else the digest that git has of it."""

    name: str
    size: int
    sha256: str
    git: str

    def is_in(self, path: Path) -> bool:
        """Whether ``path`` has exactly these bytes."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256:
            return sha256(path) == self.sha256
        digest = hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
        feed(digest, path)
        return digest.hexdigest() == self.git


@dataclass(frozen=True)
class Offer:
    """What a server has of a repository: ``revision`` is the commit, ``files`` those that would be downloaded."""

    repository: str
    revision: str
    licence: str
    files: list[RemoteFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def look(repository: str, revision: str = "", sha256: str = "") -> Offer:
    """Ask for the files of ``repository`` at ``revision`` (a commit, branch or tag; the newest if empty).

    BocError if there is no such model, its conditions were not accepted, nothing answers, it has no weights, or their
    digest is not ``sha256`` (if given).
    """
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub

    _quiet()
    api = HfApi()
    try:
        info = api.model_info(repository, revision=revision or None, files_metadata=True)
    except hub.GatedRepoError:
        raise BocError(
            f"{repository}: its authors ask to accept their conditions first, at {api.endpoint}/{repository}; do so, "
            "and put your token into HF_TOKEN"
        ) from None
    except hub.RevisionNotFoundError:
        raise BocError(f"{repository}: has no revision {revision!r}; leave it out for the newest") from None
    except hub.RepositoryNotFoundError:
        raise BocError(
            f"{api.endpoint} has no model {repository}; check the name, or put your token into HF_TOKEN if it is "
            "private"
        ) from None
    except _failures() as error:
        raise _unreachable(repository, revision, error) from error
    named = {each.rfilename: _remote(repository, each) for each in info.siblings or [] if is_wanted(each.rfilename)}
    if first_weights(named) is None:
        raise BocError(f"{repository}: has no weights that boc reads (model.safetensors); take another model")
    if sha256:
        others = [name for name in named if name in WEIGHTS and named[name].sha256 != sha256.lower()]
        if first_weights(named.keys() - set(others)) is None:
            digests = ", ".join(f"{name} {named[name].sha256 or '(none)'}" for name in others)
            raise BocError(
                f"{repository}: no weights there have the SHA-256 {sha256}, but {digests}; do not use them, or give "
                "the right one with --sha256"
            )
        named = {name: file for name, file in named.items() if name not in others}
    files = [named[name] for name in wanted(list(named))]
    return Offer(repository, str(info.sha or revision), _licence(info.card_data), files)


def download(offer: Offer, progress: Progress = lambda done, total: None) -> Model:
    """Download the files of ``offer`` to the folder of models; what an earlier call got of them is not asked for again.

    The model is published as a whole at the end, and replaces another revision. BocError if the connection fails (the
    next call continues), the disk is full, or a file has other bytes than the server announced.
    """
    part = store.partial(offer.repository)
    check_writable(part / "any")
    with sole_writer(part):
        _clear(part, offer)
        _check_space(part, offer)
        done = 0
        for file in offer.files:
            _fetch(offer, file, part, done, progress)
            done += file.size
            progress(done, offer.size)
        return _publish(offer, part)


def _fetch(offer: Offer, file: RemoteFile, part: Path, before: int, progress: Progress) -> None:
    """Download one file, or the rest of it; ``before`` is the number of bytes of earlier files."""
    target, unfinished = part / file.name, part / f"{file.name}{UNFINISHED}"
    if file.is_in(target):
        return
    if unfinished.exists() and unfinished.stat().st_size > file.size:
        unfinished.unlink()
    try:
        with unfinished.open("ab") as handle:
            if handle.tell() < file.size:
                _request(offer, file, _Counting(handle, file.size, lambda here: progress(before + here, offer.size)))
    except _failures() as error:
        if isinstance(error, OSError) and error.errno in ADVICE:
            raise BocError(
                f"{unfinished}: cannot be written ({error.strerror}); {advice(error)}, then repeat the command: it "
                "continues"
            ) from error
        raise _unreachable(offer.repository, offer.revision, error) from error
    if not file.is_in(unfinished):
        unfinished.unlink()
        raise BocError(
            f"{offer.repository}: {file.name} arrived with other bytes than announced, and was thrown away; repeat the "
            "command, and if that does not help, ask who runs the server or the proxy"
        )
    sync(unfinished)
    unfinished.replace(target)


def _request(offer: Offer, file: RemoteFile, handle: _Counting) -> None:
    """Append what is missing of a file to ``handle``. The library repeats what fails for a moment."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get

    utils = _quiet()
    writing: Any = handle
    http_get(
        hf_hub_url(offer.repository, file.name, revision=offer.revision),
        writing,
        resume_size=handle.tell(),
        headers=utils.build_hf_headers(),
        expected_size=file.size,
    )


class _Counting:
    """A file opened for appending that reports its size, and refuses to become larger than ``limit`` bytes."""

    def __init__(self, handle: IO[bytes], limit: int, progress: Callable[[int], None]) -> None:
        self._handle = handle
        self._limit = limit
        self._progress = progress

    def write(self, data: bytes) -> int:
        written = self._handle.write(data)
        self._progress(self._handle.tell())
        if self._handle.tell() > self._limit:
            raise BocError(f"{self._handle.name}: the server sends more bytes than it announced; do not use it")
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def _publish(offer: Offer, part: Path) -> Model:
    files = {file.name: sha256(part / file.name) for file in offer.files}
    digest = contents(part, weights(part))
    store.write(Model(offer.repository, offer.revision, offer.licence, files, digest, part))
    folder = store.place(offer.repository)
    if folder.exists():
        shutil.rmtree(folder)
    part.replace(folder)
    for name in (NOTE, ".lock"):
        (folder / name).unlink(missing_ok=True)
    sync(folder.parent)
    previous = store.read(folder)
    if previous is None:
        raise BocError(f"{folder}: was removed while it was made; repeat the command")
    return previous


def _clear(part: Path, offer: Offer) -> None:
    """Remove what is there of another revision."""
    noted = part / NOTE
    known = {name for file in offer.files for name in (file.name, f"{file.name}{UNFINISHED}")}
    same = noted.is_file() and noted.read_text(encoding="utf-8") == offer.revision
    for path in part.iterdir():
        if path.name != ".lock" and not (same and path.name in known):
            path.unlink()
    noted.write_text(offer.revision, encoding="utf-8")


def _check_space(part: Path, offer: Offer) -> None:
    there = sum(path.stat().st_size for path in part.iterdir())
    missing, free = offer.size - there, shutil.disk_usage(part).free
    if missing + SPARE > free:
        raise BocError(
            f"{part.parent}: {missing / 1e6:.0f} MB are to be downloaded, {free / 1e6:.0f} MB are free; make room, or "
            "name another folder in BOC_MODELS"
        )


def _remote(repository: str, sibling: Any) -> RemoteFile:
    digest = "" if sibling.lfs is None else str(sibling.lfs["sha256"])
    if sibling.size is None or not (digest or sibling.blob_id):
        raise BocError(f"{repository}: the server tells no digest of {sibling.rfilename}; take one that does")
    return RemoteFile(sibling.rfilename, int(sibling.size), digest, str(sibling.blob_id or ""))


def _licence(card: Any) -> str:
    """What the card of a model says of its licence, empty if nothing."""
    if card is None:
        return ""
    licence = card.get("license_name") or card.get("license") or ""
    return ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence)


def _quiet() -> Any:
    """The library's utilities, after telemetry, messages and progress bars beside ours are switched off."""
    from huggingface_hub import constants

    utils: Any = import_module("huggingface_hub.utils")
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()
    return utils


def _failures() -> tuple[type[Exception], ...]:
    """What the library raises if the connection fails: errors of its HTTP client, which differs between versions."""
    from huggingface_hub.errors import HfHubHTTPError

    return (*(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)), OSError)


def _unreachable(repository: str, revision: str, error: Exception) -> BocError:
    from huggingface_hub import constants

    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    pinned = f" --revision {revision}" if revision else ""
    return BocError(
        f"{repository}: cannot be downloaded from {constants.ENDPOINT} ({reason}); repeat the command to continue. "
        f"Without internet, on another machine: hf download {repository}{pinned} --local-dir model. "
        "Copy that folder here, and use it: --encoder clip:model"
    )
