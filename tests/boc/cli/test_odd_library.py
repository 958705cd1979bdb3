"""A library of 200 pictures with forty odd entries among them, through every command that reads
it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from boc.search.searcher import Searcher
from tests.boc.web.test_api import client_of
from tests.helpers import draw_pictures, run

PICTURES = 200
ODD_NAMES = (
    b"No\xebl",
    b"caf\xe9/\xff\xfe",
    rb"\x41",
    rb"sub\xc3\x5c",
    b"a\nb",
    b"tab\there",
    b"-snow",
    b"-rf *",
    b"#1?q=2",
    b"'\"%&<b>",
    "Mu\u0308ller".encode(),
    "Ma\u0301laga/u\u0308".encode(),
    "日本 🐈".encode(),
    "नमस्ते".encode(),
    b"n" * 251,
    b"/".join([b"d" * 200] * 4),
)
UNWANTED = (
    "@eaDir/1",
    ".hidden",
    "sub/._1",
    "#recycle/1",
    "__MACOSX/1",
    "$RECYCLE.BIN/1",
    ".Trash/files/1",
    ".t/1",
)
TIMES = {
    "before": -(10**18),
    "beyond": 2**63 - 10**15,
    "zero": 0,
    "future": 5 * 10**18,
}
"""Times of files, in ns since 1970."""


def shorten(path: Path) -> None:
    os.truncate(path, 60)


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "empty too": lambda path: path.write_bytes(b""),
    "cut": shorten,
    "sub/cut": shorten,
    "text": lambda path: path.write_text("no picture"),
    "page": lambda path: path.write_text("<html>404</html>"),
    "round": lambda path: (path.unlink(), path.symlink_to(path.name)),
    "sub/round": lambda path: (
        path.unlink(),
        path.symlink_to("../sub/round.png"),
    ),
    "dangling": lambda path: (
        path.unlink(),
        path.symlink_to("nowhere.png"),
    ),
    "gone": lambda path: (
        path.unlink(),
        path.symlink_to("/nowhere/at/all.png"),
    ),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "endless": lambda path: (
        path.unlink(),
        path.symlink_to("/dev/zero"),
    ),
}
"""What makes a picture one that nobody can read, by its name."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::boc.errors.BocWarning")
def test_odd_entries_stop_nothing(library: Path, tmp_path: Path):
    pytest.importorskip("fastapi", reason="the page needs the extra web")
    folder = tmp_path / "p"
    at = f"--at=file:{tmp_path / 'at'}"
    draw_pictures(folder, PICTURES)
    picture = folder / "images" / "000.png"

    def put(name):
        path = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(name) + b".png"))
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(picture, path))

    assert len(ODD_NAMES) + len(UNWANTED) + len(TIMES) + len(UNREADABLE) == 40
    odd = [put(name) for name in ODD_NAMES]
    for name, moment in TIMES.items():
        odd.append(put(name))
        os.utime(odd[-1], ns=(moment, moment))
    for name in UNWANTED:
        put(name)
    for name, spoil in UNREADABLE.items():
        spoil(put(name))
    good = {f"images/{number:03d}.png" for number in range(PICTURES)}

    told = run(
        "index",
        "x",
        folder,
        "--encoder",
        f"tern:{library / 'model'}",
        "--verbose",
        at,
    )
    assert told.stdout == f"x: {PICTURES + len(odd)} pictures and 0 captions\n"
    reasons = [line for line in told.stderr.splitlines() if line.startswith("left out: ")]
    assert len(reasons) == len(UNREADABLE)
    for name in UNREADABLE:
        assert any(f"/{name}.png: " in reason and ";" in reason for reason in reasons), name
    searcher = Searcher.open(
        "x",
        at.removeprefix("--at="),
        device="cpu",
    )
    assert f"left out {len(UNWANTED)} hidden or unwanted names" in told.stderr

    def pictures(name):
        hits = Searcher.open(
            name,
            at.removeprefix("--at="),
            device="cpu",
        ).search(
            "a red box",
            k=1000,
        )
        return {hit.id: Path(str(hit.path)) for hit in hits}

    hits = pictures("x")
    assert {*hits.values()} == {
        path.resolve() for path in (*odd, *(folder / name for name in good))
    }
    assert good < hits.keys()
    told = run("sync", "x", folder, at)
    assert told.stdout == f"x is up to date: {len(hits)} unchanged\n"
    assert f"{len(UNREADABLE)} pictures are not in the index" in told.stderr
    client = client_of(searcher, tmp_path / "cache")
    for route in ("thumb", "picture"):
        assert [
            id for id in hits if client.get(f"/api/{route}/{quote(id, safe='')}").status_code != 200
        ] == []
    run(
        "copy",
        "x",
        "y",
        "--at",
        at.removeprefix("--at="),
        at,
    )
    assert pictures("y") == hits
    run(
        "delete",
        "x",
        at,
        "--",
        *(hits.keys() - good),
    )
    assert pictures("x").keys() == good
    assert run("sync", "x", folder, at).stdout == f"x: {len(odd)} added, {PICTURES} unchanged\n"
    assert pictures("x") == hits
