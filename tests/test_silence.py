"""Commands on a CPU send nothing, look up no host, leave nothing with other programs' names, and
import no torch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.helpers import DEMO_MODEL, draw_pictures

pytest.importorskip("onnxruntime", reason="networks in ONNX need the extra search")

pytestmark = pytest.mark.slow

TRACING = ["strace", "-f", "-I", "2", "-e", "trace=connect,sendto,sendmsg,sendmmsg,openat"]
HEAVY = {"torch", "transformers", "huggingface_hub", "nltk", "torchvision"}
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "howto" / "upgrade.md").read_text(
    encoding="utf-8",
)
PLACES = [
    place
    for row in PAGE.splitlines()
    if row.startswith("| ")
    for place in re.findall(r"`~/([^`]+)`", row)
]
"""What the page on uninstalling names below the home folder."""
CODE = "import sys; from boc.cli import main; main()"


class Watched:
    """Commands of a new user, each in a process whose calls and imports are written down, if strace
    is here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.said = folder / "said"
        self.home = folder / "home"
        self.home.mkdir()

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        tracing = (
            [
                *TRACING,
                "-o",
                str(self.calls),
            ]
            if shutil.which("strace")
            else []
        )
        keep = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "ORT_", "HF_"))
        }
        environment = {
            **keep,
            "HOME": str(self.home),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPROFILEIMPORTTIME": "1",
        }
        command = [*tracing, sys.executable, "-c", CODE, *map(str, arguments)]
        with self.said.open("wb") as said:
            return subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=environment,
            )

    def check(self, *expected: str) -> None:
        """Fail if the last command, which has imported ``expected``, was not silent."""
        lines = [line.rpartition("|") for line in self.said.read_text().splitlines()]
        modules = {name.strip().partition(".")[0] for _, bar, name in lines if bar}
        assert HEAVY.isdisjoint(modules)
        assert modules >= {"boc", *expected}
        if self.calls.exists():
            calls = self.calls.read_text().splitlines()
            assert leaving(calls) == []
        places = [self.home / place for place in PLACES]
        for path in self.home.rglob("*"):
            assert any(path.is_relative_to(each) or each.is_relative_to(path) for each in places)


def leaving(calls: Sequence[str]) -> list[str]:
    """Return the calls that look up a host or reach another machine."""
    names = re.compile(r'"/etc/(?:resolv\.conf|hosts)"|nscd/socket')
    away = re.compile(r'AF_INET6?\b(?!.*(?:"127\.0\.0\.1"|"::1"))')
    return [line for line in calls if names.search(line) or away.search(line)]


def test_what_leaves_a_machine_is_seen():
    local = (
        'connect(3, {sa_family=AF_INET, sin_port=htons(9), sin_addr=inet_addr("127.0.0.1")}, '
        "16) = 0"
    )
    assert leaving([local, 'openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3']) == []
    for call in (
        local.replace("127.0.0.1", "10.1.2.3"),
        'openat(AT_FDCWD, "/etc/resolv.conf", O_RDONLY|O_CLOEXEC) = 3',
        'sendto(5, "...", 40, 0, {sa_family=AF_INET6, sin6_port=htons(53)}, 28) = 40',
    ):
        assert leaving([local, call]) == [call]


def test_commands_are_silent(tmp_path: Path):
    """index with a model that is only named by its folder, the words inside pictures, search, sync,
    extract, serve."""
    pictures = draw_pictures(tmp_path, 6).parent / "images"
    watched = Watched(tmp_path)
    at = ("--at", f"file:{tmp_path / 'index'}")
    reading = ["--ocr"] if find_spec("rapidocr") else []
    more = draw_pictures(tmp_path / "more", 12).parent / "images"  # six of them are new
    for words, network in (
        (("index", "t", pictures, "--encoder", DEMO_MODEL, *reading, *at), ["onnxruntime"]),
        (("search", "t", "a dog", *at), ["onnxruntime"]),
        (("sync", "t", more, *at), ["onnxruntime"]),
        (
            ("extract", pictures, "-o", tmp_path / "vectors.h5", "--encoder", DEMO_MODEL),
            ["onnxruntime"],
        ),
    ):
        assert watched.start(*words).wait() == 0, watched.said.read_text()
        watched.check(*network)
    process = watched.start("serve", "t", "--port", 0, *at)
    try:
        while not (there := re.search(r"is at (http://\S+)", watched.said.read_text())):
            assert process.poll() is None, watched.said.read_text()
            time.sleep(0.1)
        assert urlopen(f"{there[1]}api/search?q=a%20dog").status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    watched.check("onnxruntime", "fastapi")
