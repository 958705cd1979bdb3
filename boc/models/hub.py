"""Download models from the Hugging Face Hub, or from another server with the same protocol
(``HF_ENDPOINT``)."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from boc import models
from boc.atomic_files import check_writable, feed, sha256
from boc.errors import ADVICE, BocError

CARDS = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.md")


@dataclass(frozen=True)
class Part:
    """Names of the files to download from ``repository`` at the commit ``revision`` to ``folder``
    in the folder of the model."""

    repository: str
    revision: str
    folder: str
    names: list[str]


@dataclass(frozen=True)
class Offer:
    """Files of a model that boc reads, with their descriptions from the server, and the ``parts``
    that contain the files. ``revision`` contains one or two commits. ``pair`` contains the ONNX
    networks, or None for weights that need PyTorch."""

    repository: str
    revision: str
    licence: str
    files: Mapping[str, Any]
    parts: list[Part]
    pair: models.Pair | None

    @property
    def size(self) -> int:
        """Return the total size of all files in bytes."""
        return sum(file.size for file in self.files.values())


def look(
    repository: str,
    revision: str = "",
    digests: Mapping[str, str] = MappingProxyType({}),
    precision: str | None = None,
) -> Offer:
    """Query the server for the files of ``repository`` at ``revision`` (a commit, branch or tag; if
    empty, the newest commit). The files are two ONNX networks with the given ``precision``, by
    default the highest precision available, or Transformers weights if there are no such networks.
    If the name ends with -text or -vision, both repositories are used.

    Raises BocError if the model does not exist, its conditions have not been accepted, the server
    does not respond, packages are missing, or a digest differs from ``digests``.
    """
    stem, dash, last = repository.rpartition("-")
    both = bool(dash) and last in ("text", "vision")
    if both:
        # The revision consists of the commits of both repositories.
        revisions = [*revision.split("+"), ""]
        parts, licence, files = _ask(f"{stem}-text", revisions[0], "text/")
        more, _, others = _ask(f"{stem}-vision", revisions[1], "vision/")
        parts += more
        files |= others
    else:
        parts, licence, files = _ask(repository, revision)
    pair = models.find_pair(files.__contains__, precision)
    if pair is not None:
        chosen = {*pair.weights, *pair.settings, *CARDS}
    elif precision is not None or both:
        networks = [name for name in sorted(files) if name.endswith(".onnx")]
        raise BocError(
            f"{repository}: lacks ONNX networks for text and pictures (precision: "
            f"{precision or 'any'}), their tokenizer or preprocessor; networks: "
            f"{', '.join(networks) or 'none'}",
            "use another <--precision> or another model",
        )
    else:
        first = next((name for name in models.WEIGHTS if name in files), None)
        if first is None:
            raise BocError(
                f"{repository}: contains no weights that boc can read (onnx/text_model.onnx and "
                "onnx/vision_model.onnx with tokenizer.json and preprocessor_config.json, or "
                "model.safetensors); use another model or revision",
            )
        chosen = {first, *models.SETTINGS, *CARDS}
        if first.endswith(".index.json"):
            stem = re.escape(first.removesuffix(".index.json"))
            numbered = re.compile(stem.replace(r"\.", r"-\d+-of-\d+\.", 1))
            chosen |= set(filter(numbered.fullmatch, files))
    files = {name: files[name] for name in sorted(files) if name in chosen}
    for name in files.keys() & digests.keys():
        if _sha256(files[name]) not in (None, digests[name]):
            raise BocError(
                f"{repository}: {name} does not have the expected SHA-256 digest {digests[name]}",
                "ask the operator of the server, or accept the file with <--revision main>",
            )
    for part in parts:
        start = len(part.folder)
        part.names[:] = [name[start:] for name in files if name.startswith(part.folder)]
    return Offer(repository, "+".join(part.revision for part in parts), licence, files, parts, pair)


def _ask(
    repository: str,
    revision: str,
    folder: str = "",
) -> tuple[list[Part], str, dict[str, Any]]:
    """Query a repository and return it as part of a model, with its licence and its files, keyed by
    their names in the model."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi

    with _translate_errors(repository, revision):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        info = api.model_info(repository, revision=revision or None, files_metadata=True)
    licence = info.card_data.get("license") if info.card_data else None
    files = {f"{folder}{each.rfilename}": each for each in info.siblings or []}
    return [Part(repository, str(info.sha), folder, [])], str(licence or ""), files


def download(offer: Offer) -> models.Model:
    """Download the files of ``offer`` to the folder of the model. Files from an earlier call are
    not downloaded again.

    The record is written last, and a folder without a record is not a model. Raises BocError if
    there is not enough disk space, if the connection fails (the next call resumes the download), or
    if a file does not match the digest that the server reports.
    """
    from huggingface_hub import snapshot_download

    folder = models.place(offer.repository)
    check_writable(folder / models.RECORD)
    left = sum(file.size for name, file in offer.files.items() if not (folder / name).is_file())
    free = shutil.disk_usage(folder).free
    if left > free:
        raise BocError(
            f"{folder}: {free / 1e6:.0f} MB are free, but {left / 1e6:.0f} MB are needed",
            "set BOC_MODELS to a folder on another disk",
        )
    (folder / models.RECORD).unlink(missing_ok=True)
    for part in offer.parts:
        with _translate_errors(part.repository, part.revision):
            snapshot_download(
                part.repository,
                revision=part.revision,
                allow_patterns=part.names,
                local_dir=folder / part.folder,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
    for name, file in offer.files.items():
        if not _complete(folder / name, file):
            (folder / name).unlink(missing_ok=True)
            raise BocError(
                f"{offer.repository}: {name} does not match the digest that the server reports "
                "and was deleted; run the command again, and if this does not help, ask the "
                "operator of the server or the proxy",
            )
    for path in sorted(
        folder.rglob("*"),
        reverse=True,
    ):  # files from another revision and temporary files
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in offer.files:
            path.unlink()
    digests = {name: sha256(folder / name) for name in offer.files}
    contents = models.contents(folder, models.weights(folder))
    model = models.Model(offer.repository, offer.revision, offer.licence, digests, contents, folder)
    models.write(model)
    return model


def _sha256(file: Any) -> str | None:
    """Return the SHA-256 digest that the server reports, or None for a small file, which has only a
    Git digest."""
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
    """Convert exceptions of huggingface_hub to BocError with a next step."""
    from huggingface_hub import errors

    server = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        yield
    except errors.GatedRepoError:
        todo = f"accept the conditions at {server}/{repository}, and set HF_TOKEN to your token"
        raise BocError(
            f"{repository}: the authors require that you accept their conditions; {todo}",
        ) from None
    except errors.RevisionNotFoundError:
        raise BocError(
            f"{repository}: has no revision {revision!r}; omit the revision to get the newest",
        ) from None
    except errors.RepositoryNotFoundError:
        todo = "check the name, or set HF_TOKEN to your token if the model is private"
        raise BocError(f"{server} has no model {repository}; {todo}") from None
    except (errors.HTTPError, OSError) as error:
        if getattr(error, "errno", None) in ADVICE:
            raise  # an error of the disk
        pinned = f" --revision {revision}" if revision else ""
        raise BocError(
            f"{repository}: cannot be downloaded from {server} "
            f"({next(iter(str(error).splitlines()), '')})",
            "run the command again; complete files are kept. If this machine has no internet "
            f"access, run this on another machine: hf download {repository}{pinned} --local-dir "
            "model. Copy the folder here and use it: <--encoder clip:model>",
        ) from error
