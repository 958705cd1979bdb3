"""Sync of a forged index, or with forged files that an earlier sync left: done, or refused as a
BocError.

A tenth of BOC_FORGED (default 100) of each kind are tried.
"""

import json
import random
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import pytest

from boc.inputs.file_facts import FIELDS
from boc.manage.sync import sync_index
from boc.types import Rows
from indexing.embedded.backend import EmbeddedBackend
from tests.boc.manage.collections_of_files import Counting, Files, new
from tests.fuzz.mutations import FORGED, damaged, forge_array, forge_header, verdict
from tests.fuzz.test_fuzz_indexes import ODD, forge

VALUES = {
    "integer": (-1, 0, 2**63 - 1),
    "keyword": ("", "x", "\0"),
    "date": ("2020-01-01", "9999-12-31T23:59:59"),
}


@pytest.fixture
def encoder(monkeypatch) -> Counting:
    return Counting.installed(monkeypatch)


def check_sync(folder: Path, at: str) -> None:
    sync_index(
        "x",
        folder,
        at=at,
        remove_many=True,
    )
    assert sync_index("x", folder, at=at).up_to_date


def forge_facts(home: Path, rng: random.Random) -> str:
    """Put an item with other facts, or without some, as a back end would write it; and another list
    of unreadable files."""
    backend = EmbeddedBackend(home.parent)
    index = backend.open(home.name)
    item = rng.choice(list(index.items()))
    name = rng.choice(list(FIELDS))
    fields = dict(item.fields)
    fields.pop(name)
    if rng.random() < 0.6:
        fields[name] = rng.choice(VALUES[FIELDS[name]])
    content = rng.choice(
        [
            item.content,
            "",
            "/",
            "\0",
            f"{item.content}/x",
            "x" * 5000,
        ],
    )
    unreadable = {
        rng.choice([item.id, "new.png"]): [
            rng.choice((-1, 0, 10**30)) for _ in range(rng.randrange(4))
        ],
    }
    with backend.edit(home.name) as editor:
        forged = replace(
            item,
            fields=fields,
            content=content,
        )
        editor.put(
            Rows(
                [forged],
                index.terms([item.id]),
                index.vectors([item.id]),
                None,
            ),
        )
        editor.commit(
            "ab" * 32,
            unreadable=unreadable,
            table_facts=rng.choice([[], ["size"], ["x"]]),
        )
    return (
        f"{name} of {item.id} = {fields.get(name)!r}, content {content[:20]!r}, unreadable "
        f"{unreadable}"
    )


def forge_left(place: Path, rng: random.Random) -> str:
    """Change the features that a sync left behind, or the note or a part of an unfinished run."""
    files = sorted(path for path in place.glob(".x.*") if path.is_file())
    parts = sorted(
        path
        for folder in place.glob(".x.*.parts")
        for path in folder.iterdir()
        if path.name != ".lock"
    )
    path = rng.choice(files + parts)
    if path.suffix == ".json":
        raw = json.loads(path.read_text())
        raw[rng.choice(list(raw))] = rng.choice(ODD)
        texts = [
            "",
            "[]",
            "{}",
            "{",
            "\xff",
            "[" * 100_000,
            json.dumps(raw),
        ]
        data = rng.choice(texts).encode("latin-1")
        path.write_bytes(data)
        return f"{path.name} = {data[:60]!r}"
    what = rng.random()
    if what < 0.2 and parts:
        path.rename(
            path.with_name(
                rng.choice(
                    [
                        "0-1.h5",
                        "1x-2y.h5",
                        "1-2-3.h5",
                        f"{0:012d}-{10**6:012d}.h5",
                    ],
                ),
            ),
        )
        return f"{path.name} renamed"
    if what < 0.4:
        path.write_bytes(damaged(path.read_bytes(), rng))
        return f"{path.name} damaged"
    with h5py.File(path, "r+") as file:
        return forge_array(file, rng) if rng.random() < 0.7 else forge_header(file, rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["index", "facts", "complete", "parts"],
)
def test_a_sync_of_forged_files_is_refused_or_done(
    encoder: Counting,
    tmp_path: Path,
    kind: str,
):
    place = tmp_path / "at"
    folder = tmp_path / "pictures"
    at = f"file:{place}"
    files = Files(folder)
    for i in range(8):
        files.write(
            folder / f"{i}.png",
            f"picture {i}" if i else "bad",
        )
    new("x", folder, at)
    files.write(folder / "1.png", "other")
    files.write(folder / "2.png", "bad")
    files.do(("rename", "3.png", "sub/3.png"))
    files.do(("touch", "4.png"))
    files.write(folder / "new.png", "new")
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        if kind == "complete":
            patch.setattr("boc.manage.sync.write_items", interrupt)
            sync_index("x", folder, at=at)
        elif kind == "parts":
            patch.setattr("boc.inputs.feature_writer.FeatureWriter.finish", interrupt)
            sync_index("x", folder, at=at)
    shutil.copytree(place, tmp_path / "sound")
    wrong = []
    for number in range(FORGED // 10):
        rng = random.Random(number)
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "sound", place)
        if kind in ("complete", "parts"):
            told = forge_left(place, rng)
        else:
            told = forge(place / "x", rng) if kind == "index" else forge_facts(place / "x", rng)
        became = verdict(
            partial(check_sync, folder, at),
            "done",
        )
        if became not in ("refused", "done"):
            wrong.append(f"{number}: {told}: {became}")
    assert not wrong, "\n".join(wrong)


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
