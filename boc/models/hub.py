"""Downloads from the Hugging Face hub, or another server that speaks its protocol
(``HF_ENDPOINT``)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boc import models
from boc.atomic_files import check_writable, feed, sha256
from boc.errors import ADVICE, BocError

CARDS = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.md")


@dataclass(frozen=True)
class Offer:
    """The files of a repository that boc reads, by name, as a server describes them; ``revision``
    is the commit."""

    repository: str
    revision: str
    licence: str
    files: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def look(repository: str, revision: str = "", sha256: str = "") -> Offer:
    """Ask for the files of ``repository`` at ``revision`` (a commit, branch or tag; the newest if
    empty).

    BocError for no such model, conditions not accepted, no answer, no weights, or a digest other
    than ``sha256``.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi

    with _translate_errors(repository, revision):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        info = api.model_info(repository, revision=revision or None, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or []}
    first = next(
        (
            name
            for name in models.WEIGHTS
            if name in files and (not sha256 or _sha256(files[name]) == sha256)
        ),
        None,
    )
    if first is None:
        which = f"with the SHA-256 {sha256}" if sha256 else "that boc reads (model.safetensors)"
        raise BocError(f"{repository}: has no weights {which}; take another model or revision")
    part = re.compile(
        re.escape(first.removesuffix(".index.json")).replace(r"\.", r"-\d+-of-\d+\.", 1),
    )
    chosen = [name for name in files if name in {first, *models.SETTINGS, *CARDS}]
    chosen += [name for name in files if first.endswith(".index.json") and part.fullmatch(name)]
    licence = info.card_data.get("license") if info.card_data else None
    return Offer(
        repository,
        str(info.sha),
        str(licence or ""),
        {name: files[name] for name in sorted(chosen)},
    )


def download(offer: Offer) -> models.Model:
    """Download the files of ``offer`` into the folder of models; what an earlier call got of them
    stays.

    The record is written at the end: without it there is no model. BocError if the connection fails
    (the next call continues), or if a file has other bytes than the server announced.
    """
    from huggingface_hub import snapshot_download

    folder = models.place(offer.repository)
    check_writable(folder / models.RECORD)
    (folder / models.RECORD).unlink(missing_ok=True)
    with _translate_errors(offer.repository, offer.revision):
        snapshot_download(
            offer.repository,
            revision=offer.revision,
            allow_patterns=list(offer.files),
            local_dir=folder,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    for name, file in offer.files.items():
        if not _complete(folder / name, file):
            (folder / name).unlink(missing_ok=True)
            raise BocError(
                f"{offer.repository}: {name} arrived with other bytes than announced, and was "
                "thrown away; repeat the "
                "command, and if that does not help, ask who runs the server or the proxy",
            )
    for path in folder.iterdir():  # of another revision, and notes of the download
        if path.name not in offer.files:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    digests = {name: sha256(folder / name) for name in offer.files}
    contents = models.contents(folder, models.weights(folder))
    model = models.Model(offer.repository, offer.revision, offer.licence, digests, contents, folder)
    models.write(model)
    return model


def _sha256(file: Any) -> str | None:
    """Return the SHA-256 that a server announces, None for a small file, of which it has the digest
    of git."""
    return file.lfs.sha256 if file.lfs else None


def _complete(path: Path, file: Any) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.lfs:
        return bool(sha256(path) == _sha256(file))
    digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    feed(digest, path)
    return bool(digest.hexdigest() == file.blob_id)


@contextmanager
def _translate_errors(repository: str, revision: str) -> Iterator[None]:
    """Turn what the library raises into a BocError with the next step."""
    from huggingface_hub import errors

    server = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        yield
    except errors.GatedRepoError:
        todo = f"accept its conditions at {server}/{repository}, and put your token into HF_TOKEN"
        raise BocError(
            f"{repository}: its authors ask to accept their conditions first; {todo}",
        ) from None
    except errors.RevisionNotFoundError:
        raise BocError(
            f"{repository}: has no revision {revision!r}; leave it out for the newest",
        ) from None
    except errors.RepositoryNotFoundError:
        todo = "check the name, or put your token into HF_TOKEN if it is private"
        raise BocError(f"{server} has no model {repository}; {todo}") from None
    except (errors.HTTPError, OSError) as error:
        if getattr(error, "errno", None) in ADVICE:
            raise  # of the disk
        pinned = f" --revision {revision}" if revision else ""
        raise BocError(
            f"{repository}: cannot be downloaded from {server} "
            f"({next(iter(str(error).splitlines()), '')})",
            "repeat the command, complete files stay. Without internet, on another machine: hf "
            f"download {repository}{pinned} --local-dir model. Copy that folder here, and use it: "
            "<--encoder clip:model>",
        ) from error
