"""`boc search --paths`: the bytes that other programs and terminals get."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from boc.cli import settings
from boc.cli.commands import search
from boc.paths import path_text
from boc.types import Batch, Embeddings, Item
from tests.helpers import boc, run
from tests.oracles import random_units, write_features

NAMES = [
    b"plain.png",
    b"No\xebl.png",
    b"new\nline.png",
    b"two  spaces.png",
    "Grüße 猫.png".encode(),
    b"\\xeb.png",
]


def paths_in(folder: Path) -> list[bytes]:
    return [os.fsencode(folder) + b"/" + name for name in (*NAMES, b"gone.png")]


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> Path:
    """An index of pictures with odd names, two sentences, and a picture that is gone."""
    folder = tmp_path_factory.mktemp("odd")
    for path in paths_in(folder)[:-1]:
        Image.new("RGB", (40, 30), "red").save(
            os.fsdecode(path),
            "PNG",
        )
    items = [
        Item(f"p{i}", "image", path_text(os.fsdecode(path)))
        for i, path in enumerate(paths_in(folder))
    ]
    texts = [Item(f"t{i}", "text", "a red box") for i in range(2)]
    batches = [
        Batch(
            part,
            Embeddings(
                part[0].modality,
                random_units(7, len(part), 16),
            ),
        )
        for part in (items, texts)
    ]
    write_features(folder / "f.h5", *batches)
    run("index", "odd", folder / "f.h5", f"--at=file:{folder / 'at'}")
    return folder


def printed(odd: Path, *options: str) -> tuple[bytes, str]:
    result = run(
        "search",
        "odd",
        "--like",
        "t0",
        "-k",
        20,
        f"--at=file:{odd / 'at'}",
        *options,
    )
    return result.stdout_bytes, result.stderr


def test_a_line_is_a_path_or_named_as_none(odd: Path):
    lines, said = printed(odd, "--paths")
    order = map(int, re.findall(r"p(\d)", printed(odd)[0].decode()))
    paths = [paths_in(odd)[number] for number in order]
    assert lines == b"".join(path + b"\n" for path in paths if b"\n" not in path)
    assert sum(Path(os.fsdecode(path)).exists() for path in paths) == len(NAMES)
    assert "left out 1" in said
    assert "--json" in said


def test_what_has_no_path_is_named(odd: Path):
    output, said = printed(odd, "--paths", "--find", "text")
    assert output == b""
    assert "t1 has no path" in said


@pytest.mark.parametrize(
    "options",
    [("--json", "--paths"), ("--paths", "--request")],
)
def test_one_way_to_print(odd: Path, options: tuple[str, ...]):
    result = boc(
        "search",
        "odd",
        "--like",
        "t0",
        *options,
        f"--at=file:{odd / 'at'}",
    )
    assert result.exit_code == 2
    assert "--json, --paths and --request cannot be combined" in result.stderr


def test_an_option_has_priority_over_a_setting(odd: Path, monkeypatch):
    (odd / "json.toml").write_text("[search]\njson = true\n")
    monkeypatch.setenv("BOC_CONFIG", str(odd / "json.toml"))
    assert printed(odd)[0].startswith(b'{"query"')
    assert not printed(odd, "--paths")[0].startswith(b"{")


def test_no_setting_gives_another_program_other_lines():
    assert "paths" not in settings.settable(search.command)


@pytest.mark.slow
def test_a_terminal_gets_nothing_to_obey(odd: Path):
    master, slave = pty.openpty()
    code = "from boc.cli import main; main()"
    words = [
        "search",
        "odd",
        "--like",
        "t0",
        "--paths",
        "-k",
        "20",
        f"--at=file:{odd / 'at'}",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=slave,
    ) as process:
        os.close(slave)
        output = b""
        with suppress(OSError):  # the other end is closed
            while True:
                output += os.read(master, 65_536)
    os.close(master)
    assert process.returncode == 0
    lines = output.decode().split("\r\n")
    assert len(lines) == len(NAMES) + 2
    assert all(char.isprintable() for line in lines for char in line)
