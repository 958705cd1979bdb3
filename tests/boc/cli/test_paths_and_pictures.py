"""`boc search --paths`, `-0` and `--show`: the bytes that other programs and terminals get."""

import base64
import io
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.Image import Image as Picture

from boc.cli import settings, terminal_pictures
from boc.cli.commands import search
from boc.errors import BocWarning
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
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of pictures with odd names, two sentences, and a picture that is gone."""
    folder = tmp_path_factory.mktemp("odd")
    for path in paths_in(folder)[:-1]:
        Image.new("RGB", (40, 30), "red").save(os.fsdecode(path), "PNG")
    items = [
        Item(f"p{i}", "image", path_text(os.fsdecode(path)))
        for i, path in enumerate(paths_in(folder))
    ]
    texts = [Item(f"t{i}", "text", "a red box") for i in range(2)]
    batches = [
        Batch(part, Embeddings(part[0].modality, random_units(7, len(part), 16)))
        for part in (items, texts)
    ]
    write_features(folder / "f.h5", *batches)
    run("index", "odd", folder / "f.h5", f"--at=file:{folder / 'at'}")
    return folder


def printed(odd: Path, *options: str) -> tuple[bytes, str]:
    result = run("search", "odd", "--like", "t0", "-k", 20, f"--at=file:{odd / 'at'}", *options)
    return result.stdout_bytes, result.stderr


def test_a_zero_byte_ends_each_path_whatever_its_name(odd: Path) -> None:
    output, said = printed(odd, "-0")
    assert said == ""
    *paths, end = output.split(b"\0")
    assert end == b""
    order = re.findall(r"p(\d)", printed(odd)[0].decode())
    assert paths == [paths_in(odd)[int(number)] for number in order]
    assert sum(Path(os.fsdecode(path)).exists() for path in paths) == len(NAMES)


def test_a_line_is_a_path_or_named_as_none(odd: Path) -> None:
    lines, said = printed(odd, "--paths")
    whole = [path for path in printed(odd, "-0")[0].split(b"\0") if b"\n" not in path]
    assert lines == b"".join(path + b"\n" for path in whole if path)
    assert "left out 1" in said
    assert "-0" in said
    for path in whole:
        assert not path or path in lines.splitlines()


def test_what_has_no_path_is_named(odd: Path) -> None:
    output, said = printed(odd, "--paths", "--find", "text")
    assert output == b""
    assert "t1 has no path" in said
    result = boc(
        "search",
        "odd",
        "--like",
        "t0",
        "--paths",
        "--min-confidence",
        "1",
        f"--at=file:{odd / 'at'}",
    )
    assert (result.stdout, "smaller --min-confidence" in result.stderr) == ("", True)


@pytest.mark.parametrize(
    "options",
    [("--json", "-0"), ("--paths", "--show"), ("--show", "--request", "body")],
)
def test_one_way_to_print(odd: Path, options: tuple[str, ...]) -> None:
    result = boc("search", "odd", "--like", "t0", *options, f"--at=file:{odd / 'at'}")
    assert result.exit_code == 2
    assert "give one of --json, --paths, -0, --show and --request" in result.stderr


def test_an_option_has_priority_over_a_setting(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOC_SEARCH_JSON", "1")
    assert printed(odd)[0].startswith(b'{"query"')
    assert printed(odd, "-0")[0].endswith(b"\0")
    monkeypatch.setenv("BOC_SEARCH_JSON", "0")
    monkeypatch.setenv("BOC_SEARCH_SHOW", "1")
    output, said = printed(odd, "--json")
    assert (output[:8], said) == (b'{"query"', "")


def test_a_minus_zero_is_no_word_of_the_sentence(library: Path) -> None:
    at = f"--at=file:{library / 'index'}"
    assert run("search", "photos", "-0", "a red box", at).stdout.count("\0") == 10
    assert run("search", "photos", "a red box", "-0", "-k2", at).stdout.count("\0") == 2


def test_no_setting_gives_another_program_other_lines() -> None:
    assert "paths" not in settings.settable(search.command)
    assert "show" in settings.settable(search.command)


def picture(seed: int, width: int, height: int) -> Picture:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8),
    )


def of_kitty(text: str) -> Picture:
    """Read what kitty would: keys, chunks of at most 4,096 bytes, all but the last marked by
    m=1."""
    parts = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", text)
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in parts) == text
    assert parts[0][0].startswith("a=T,f=100,q=2,")
    more = [keys.rpartition(",")[2] for keys, _ in parts]
    assert more == ["m=1"] * (len(parts) - 1) + ["m=0"]
    assert all(len(data) == 4096 for _, data in parts[:-1])
    assert 0 < len(parts[-1][1]) <= 4096
    return Image.open(
        io.BytesIO(base64.b64decode("".join(data for _, data in parts), validate=True)),
    )


def of_iterm(text: str) -> Picture:
    match = re.fullmatch(r"\x1b]1337;File=inline=1:([A-Za-z0-9+/=]+)\x07", text)
    assert match is not None
    return Image.open(io.BytesIO(base64.b64decode(match[1], validate=True)))


def of_sixel(text: str) -> np.ndarray:
    """Draw sixels as a terminal does; the numbers of the colours, -1 where nothing was drawn."""
    match = re.fullmatch(r'\x1bPq"1;1;(\d+);(\d+)(.*)\x1b\\', text, re.S)
    assert match is not None
    width = int(match[1])
    height = int(match[2])
    body = match[3]
    canvas = np.full((-(-height // 6) * 6, width), -1)
    top = 0
    x = 0
    colour = 0
    for token in re.finditer(r"#(\d+);2;\d+;\d+;\d+|#(\d+)|!(\d+)([?-~])|([?-~])|(\$)|(-)", body):
        if token[2]:
            colour = int(token[2])
        elif token[6]:
            x = 0
        elif token[7]:
            top = top + 6
            x = 0
        elif not token[1]:
            times = int(token[3] or 1)
            bits = ord(token[4] or token[5]) - 63
            for row in range(6):
                if bits >> row & 1:
                    assert (canvas[top + row, x : x + times] == -1).all()
                    canvas[top + row, x : x + times] = colour
            x += times
            assert x <= width
    assert (canvas[height:] == -1).all()
    return canvas[:height]


@given(st.integers(0, 99), st.integers(1, 70), st.integers(1, 70))
def test_a_terminal_draws_the_picture(seed: int, width: int, height: int) -> None:
    image = picture(seed, width, height)
    for read, write in ((of_kitty, terminal_pictures.kitty), (of_iterm, terminal_pictures.iterm)):
        assert np.array_equal(read(write(image)), image)
    text = terminal_pictures.sixel(image)
    assert np.array_equal(of_sixel(text), image.quantize(64))
    levels = [
        int(level) for each in re.findall(r"#\d+;2;(\d+);(\d+);(\d+)", text) for level in each
    ]
    assert all(0 <= level <= 100 for level in levels)


@pytest.mark.parametrize(
    ("variables", "form"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"KONSOLE_VERSION": "230804"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "foot-extra"}, "sixel"),
        ({"WT_SESSION": "a-b"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
        ({"TERM": "screen", "LC_TERMINAL": "iTerm2"}, None),
        ({"TERM": "tmux-256color", "WT_SESSION": "a-b"}, None),
    ],
)
def test_terminals_by_their_variables(
    variables: dict[str, str],
    form: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    if form is None:
        with pytest.warns(BocWarning, match="--html FILE writes them"):
            assert terminal_pictures.find_terminal(variables) is None
    else:
        assert terminal_pictures.find_terminal(variables) is getattr(terminal_pictures, form)


def in_a_terminal(folder: Path, term: str, *options: str) -> tuple[str, str]:
    """What a search writes to a terminal of its own, and to stderr."""
    master, slave = pty.openpty()
    code = "from boc.cli import main; main()"
    words = [
        sys.executable,
        "-c",
        code,
        "search",
        "odd",
        "--like",
        "t0",
        *options,
        f"--at=file:{folder / 'at'}",
    ]
    keep = {
        name: value for name, value in os.environ.items() if name not in terminal_pictures.NAMES
    }
    with subprocess.Popen(
        words,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**keep, "TERM": term},
    ) as process:
        os.close(slave)
        output = b""
        with suppress(OSError):  # the other end is closed
            while True:
                output += os.read(master, 65_536)
        _, said = process.communicate()
    os.close(master)
    assert process.returncode == 0
    return output.decode(), said.decode()


@pytest.mark.slow
def test_pictures_stand_below_their_lines_in_a_terminal(odd: Path) -> None:
    output, said = in_a_terminal(odd, "xterm-kitty", "--show", "-k", "20")
    lines = output.split("\r\n")
    assert lines.pop() == ""
    drawn = [of_kitty(below) for _, below in pairwise(lines) if below.startswith("\x1b")]
    assert len(drawn) == len(NAMES)
    assert all(shown.size == (40, 30) and shown.getpixel((0, 0)) == (255, 0, 0) for shown in drawn)
    assert "gone.png: cannot be read" in said
    assert sum(line.lstrip()[:1].isdigit() for line in lines) == len(NAMES) + 1


@pytest.mark.slow
def test_a_terminal_gets_nothing_to_obey(odd: Path) -> None:
    output, said = in_a_terminal(odd, "xterm", "--show", "-k", "2")
    assert "\x1b" not in output
    assert len(output.splitlines()) == 2
    assert said.count("\n") == 1
    assert "no terminal that shows pictures" in said
    output, _ = in_a_terminal(odd, "xterm-kitty", "--paths", "-k", "20")
    assert all(char.isprintable() or char in "\r\n" for char in output)
    assert len(output.splitlines()) == len(NAMES) + 1


def test_elsewhere_the_hits_are_printed_and_a_line_tells_why(odd: Path) -> None:
    output, said = printed(odd, "--show")
    assert output == printed(odd)[0]
    assert said.startswith("note: this is no terminal that shows pictures")
