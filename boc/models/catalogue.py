"""Short names of models that are known to work: ``--encoder clip`` is ``--encoder clip:ORG/NAME``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from boc.errors import BocError


@dataclass(frozen=True)
class Entry:
    """A model with a short name.

    ``revision`` is the commit of the repository to download, ``sha256`` the digest of its weights, empty if not pinned.
    ``licence`` and ``size`` (bytes, about) are what the authors publish, for those who decide without a connection.
    """

    repository: str
    revision: str
    sha256: str
    licence: str
    size: int
    about: str


CATALOGUE = {
    "clip": Entry(
        "laion/CLIP-ViT-B-32-256x256-DataComp-s34B-b86K",
        "4afec35ffe57a943d569ff7ee888061830164da8",
        "92c26d60d3200ed5ed040dff31a8d19f8140648da8007216c25744c478deef27",
        "mit",
        608_000_000,
        "small, for a CPU; English",
    ),
    "siglip2": Entry(
        "google/siglip2-base-patch16-256",
        "3f9f96cb90da5dbc758b01813f2f6f1aee24c1ab",
        "6125cacc01fa93bdc98a0c5101cefcd69b2ed1f8ab4f38d86f4ad5984f5dc863",
        "apache-2.0",
        1_540_000_000,
        "better, four times the work per picture; many languages",
    ),
    "multilingual": Entry(
        "google/siglip2-base-patch32-256",
        "9e7ee68506177b546b2d5dc578f54afdc5e425f1",
        "",
        "apache-2.0",
        1_550_000_000,
        "as quick per picture as clip; many languages",
    ),
}

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def repository(name: str) -> str:
    """The repository of a short name, or of ``ORG/NAME``. BocError for anything else."""
    entry = CATALOGUE.get(name)
    if entry is not None:
        return entry.repository
    if not REPOSITORY.fullmatch(name) or any(part.strip(".") == "" for part in name.split("/")):
        raise BocError(f"no model {name!r}; take one of {', '.join(CATALOGUE)}, or ORG/NAME of the hub")
    return name


def entry(repository: str) -> Entry | None:
    """The entry of a repository that has a short name."""
    return next((each for each in CATALOGUE.values() if each.repository == repository), None)


def spec(encoder: str) -> str:
    """The full name of an encoder: a short name becomes ``clip:ORG/NAME``, any other text stays."""
    entry = CATALOGUE.get(encoder)
    return encoder if entry is None else f"clip:{entry.repository}"
