"""What tests of many modules use: the command line in this process, little pictures, where real
data lies."""

import json
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
from click.testing import CliRunner, Result
from PIL import Image, ImageDraw

from boc.cli import main

SHARED = Path(__file__).resolve().parents[2] / "shared"
DEMO_MODEL = Path(__file__).resolve().parents[1] / "demo" / "model"
"""A small TERAN with its eyes, in ONNX."""


def draw_pictures(folder: Path, count: int) -> Path:
    """``count`` little pictures of one coloured box each, two captions a picture; the path of their
    CSV."""
    colours = ("red", "green", "blue", "yellow", "purple")
    places = ("left", "right", "top", "bottom")
    corners = {
        "left": (4, 20),
        "right": (36, 20),
        "top": (20, 4),
        "bottom": (20, 36),
    }
    lines = ["image,caption"]
    (folder / "images").mkdir(parents=True)
    for i in range(count):
        colour = colours[i % 5]
        place = places[i // 5 % 4]
        x, y = corners[place]
        picture = Image.new(
            "RGB",
            (64, 64),
            (230, 230 - i % 50, 220),
        )
        ImageDraw.Draw(picture).rectangle(
            (
                x,
                y,
                x + 22,
                y + 22,
            ),
            fill=colour,
        )
        picture.save(folder / "images" / f"{i:03d}.png")
        lines += [
            f"{i:03d}.png,a {colour} box at the {place}",
            f"{i:03d}.png,{place}: something {colour}",
        ]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "captions.csv"


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files in ``folder``, by their paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refuse_connections(monkeypatch) -> None:
    """Fail a test that tries to open a connection or to look up a host."""

    def refuse(*arguments, **named):
        raise AssertionError(f"a connection was tried: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def leave_to_torch(monkeypatch) -> None:
    """Let commands write no networks in ONNX, which takes half a minute: tests/encoders/runtime/ is
    about those."""
    monkeypatch.setattr("boc.cli.options.write_onnx", lambda folder, **_: None)


def parse(name: str, arguments: list[str]) -> click.Context:
    """What a command, or a command of a group such as ``boc model get``, makes of its arguments."""
    command = main.commands[name]
    if isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        command = command.commands[name]
    return command.make_context(name, arguments)


def boc(command: str = "", *arguments: object) -> Result:
    """Run the command line in this process: the words of ``command``, as a shell splits them, then
    ``arguments`` as they are. An exception that is no exit fails the test."""
    result = CliRunner().invoke(main, [*shlex.split(command), *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run(command: str, *arguments: object) -> Result:
    """Run a command that is to succeed."""
    result = boc(command, *arguments)
    assert result.exit_code == 0, result.output
    return result


class Bomb:
    """Calls ``function`` where it is read from a pickle that is trusted."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class Handler(BaseHTTPRequestHandler):
    """Answers over connections that stay open, and writes no log."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(handler: type[Handler], **facts: Any) -> Iterator[Any]:
    """A server on a free port of this machine that handlers know by ``facts``, until the block
    ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.__dict__.update(facts)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send_json(handler: BaseHTTPRequestHandler, answer: Any, headers: Mapping[str, str]) -> None:
    """Answer a request with 200, an object and ``headers``."""
    data = json.dumps(answer).encode()
    handler.send_response(200)
    for name, value in {
        **headers,
        "content-type": "application/json",
        "content-length": str(len(data)),
    }.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
