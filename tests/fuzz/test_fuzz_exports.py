"""Forged copies of indexes in a file, and forged feature files.

What ``boc index`` makes of such a copy is the same index, or it is refused as a BocError.
BOC_FORGED sets how many are tried (default 100).
"""

import random
import shutil
import zipfile
from functools import partial
from pathlib import Path

import h5py
import pytest

from boc import Searcher, build_index
from boc.evaluate.verify import verify
from boc.manage.copy import copy_index
from tests.fuzz.mutations import FORGED, forge_array, forge_header, verdict

pytestmark = pytest.mark.slow


def forge(files: dict[str, bytes], rng: random.Random) -> str:
    """Change one of the files, or what they are called."""
    name = rng.choice(sorted(files))
    what = rng.choice(["byte", "byte", "cut", "gone", "swapped", "renamed", "more", "nothing"])
    data = files[name]
    if what == "byte" and data:
        place = rng.randrange(len(data))
        files[name] = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    elif what == "cut":
        files[name] = data[: len(data) // 2]
    elif what == "gone":
        del files[name]
    elif what == "swapped":
        other = rng.choice(sorted(files))
        files[name] = files[other]
        files[other] = data
    elif what == "renamed":
        files[name.replace("/", rng.choice(["/../", "//", "/x/", "\\"]), 1)] = files.pop(name)
    elif what == "more":
        files[rng.choice(["../x", "/x", "plain/x", "plain/.checked", "other/CURRENT"])] = b"{}"
    return f"{what} of {name}"


def use(path: Path, at: str) -> None:
    """Index a forged copy, and ask the index."""
    build_index(
        "forged",
        path,
        at=at,
        replace=True,
    )
    searcher = Searcher.open("forged", at)
    assert sum(searcher.index.manifest.items.values()) == 120
    for item in list(searcher.index.items())[:3]:
        searcher.search_vectors(
            searcher.embeddings(item.id),
            k=5,
        )
    assert verify(searcher.index).right


def check(verdicts: dict[str, str]) -> None:
    wrong = {what: each for what, each in verdicts.items() if each not in ("refused", "answered")}
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert set(verdicts.values()) == {"refused", "answered"}


@pytest.mark.filterwarnings("ignore")
def test_forged_features_are_refused_or_answered(library: Path, tmp_path: Path):
    path = tmp_path / "forged.h5"
    verdicts = {}
    for number in range(FORGED):
        rng = random.Random(number)
        shutil.copy(library / "photos.h5", path)
        with h5py.File(path, "r+") as file:
            told = (forge_header if rng.random() < 0.4 else forge_array)(
                file,
                rng,
            )
        verdicts[f"{number}: {told}"] = verdict(
            partial(
                build_index,
                "forged",
                path,
                at=f"file:{tmp_path}",
                replace=True,
            ),
            "answered",
        )
    check(verdicts)


@pytest.mark.filterwarnings("ignore")
def test_forged_export_is_refused_or_answered(library: Path, tmp_path: Path):
    at = f"file:{tmp_path / 'at'}"
    (tmp_path / "table.csv").write_text("id,year:integer,tag\n000.png,2019,a|b\n")
    build_index(
        "plain",
        library / "photos.h5",
        at=at,
        metadata=tmp_path / "table.csv",
        code="dictionary:1/4",
        concepts="int8",
    )
    copy_index(
        "plain",
        at=at,
        to=tmp_path / "plain.zip",
    )
    with zipfile.ZipFile(tmp_path / "plain.zip") as archive:
        sound = {name: archive.read(name) for name in archive.namelist()}
    verdicts = {}
    for number in range(FORGED):
        files = dict(sound)
        told = forge(files, random.Random(number))
        with zipfile.ZipFile(
            tmp_path / "forged.zip",
            "w",
        ) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        verdicts[f"{number}: {told}"] = verdict(
            partial(use, tmp_path / "forged.zip", at),
            "answered",
        )
    check(verdicts)
