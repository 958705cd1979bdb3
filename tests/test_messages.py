"""Messages name values and rules; each door words their hints for itself."""

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import boc
from boc.cli import main
from boc.errors import MARK, PYTHON, BocError, note
from boc.search.queries import Query
from boc.web.http.responses import answer_problems
from tests.helpers import boc as command, run
from tests.test_architecture import FILES, ROOT, parsed


def options(each: click.Command) -> set[str]:
    own = {name for p in each.params for name in (*p.opts, *p.secondary_opts)}
    inner = each.commands.values() if isinstance(each, click.Group) else ()
    return own.union({"--help"}, *map(options, inner))


NAMED = re.compile(
    rf"(?:{'|'.join(name for name in options(main) if name[:2] == '--')})\b"
    rf"|\bboc (?:{'|'.join(main.commands)})\b",
)
OTHERS = {  # a help text, and an option of another program
    "file written by boc build-codebook; required",
    " --revision {}",
}


def test_a_text_is_one_line():
    """File names may contain line breaks."""
    assert str(BocError("no file a\nb\u2028c", "try <boc info a\rb>")).splitlines()[1:] == []


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module, with {} for values. Docstrings are left out, and the messages of
    the HTTP server and of boc doctor, which have one door."""
    skipped = set()
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Expr(ast.Constant(str())):
                skipped.add(id(node.value))
            case ast.Call(ast.Name("ProblemError" | "Finding")):
                skipped.update(map(id, ast.walk(node)))
            case ast.Constant(str(text)) if id(node) not in skipped:
                yield text
            case ast.JoinedStr(parts) if id(node) not in skipped:
                skipped.update(map(id, parts))
                yield "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)


OURS = [
    (f"{path.relative_to(ROOT)}: {text}", text)
    for path in FILES
    if "cli" not in path.parts and path.name not in {"doctor.py", "errors.py"}
    for text in texts(path)
    if text not in OTHERS
]


def test_commands_and_options_are_marked():
    assert not [where for where, text in OURS if NAMED.search(MARK.sub("", text))]


def test_marks_name_commands_and_options():
    marks = [(where, mark) for where, text in OURS for mark in MARK.findall(text)]
    marks += [(mark, mark) for mark in PYTHON]
    assert len(marks) > 80
    unknown = []
    for where, mark in marks:
        words = mark.split()
        named = main.commands.get(words[1]) if words[0] == "boc" else main
        if named is None or not {word for word in words if word[0] == "-"} <= options(named):
            unknown.append(where)
    assert not unknown


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The index ``own`` of eight vectors, with a text field, in a folder ``data``."""
    place = tmp_path_factory.mktemp("messages")
    np.save(place / "rows.npy", np.random.default_rng(0).normal(size=(8, 4)))
    (place / "titles.csv").write_text("id,title:text\n0,a dog\n", encoding="utf-8")
    (place / "pictures").mkdir()
    (place / "pictures" / "0.png").touch()
    run(f"index own {place}/rows.npy --metadata {place}/titles.csv --at={at(place)}")
    return place


def at(place: Path) -> str:
    return f"file:{place / 'data'}"


SAME: list[tuple[Callable[[Path], object], str, str, str]] = [
    (
        lambda place: boc.open("own", at(place)).search("a dog"),
        "search by an item: index.searcher.search_query(Query.of(like=[ID]))",
        "search by an item: --like ID",
        "search by an item: like=ID",
    ),
    (
        lambda place: boc.open("own", at(place)).searcher.target("text"),
        "omit find=, or index a CSV",
        "omit --find, or index a CSV",
        "omit find=, or index a CSV",
    ),
    (
        lambda place: boc.open("own", at(place)).searcher.search_query(
            Query.of(like=["0"]),
            filters="title=dog",
        ),
        "search its words with hybrid=",
        "search its words with --hybrid",
        "search its words with hybrid=",
    ),
    (
        lambda place: boc.build_index(
            "own",
            place / "pictures",
            at=at(place),
            encoder="clip",
        ),
        "with index.sync(), add other pictures with index.add(), or rebuild it with replace=True",
        "with boc sync, add other pictures with boc add, or rebuild it with --replace",
        "with boc sync, add other pictures with boc add, or rebuild it with --replace",
    ),
    (
        lambda place: boc.copy_index("own", at=at(place)),
        "another place (to=) or a code=",
        "another place (--to) or a --code",
        "another place (--to) or a --code",
    ),
    (
        lambda place: boc.open("absent", at(place)),
        "make it with boc.build_index(...)",
        "make it with boc index absent SOURCE",
        "make it with boc index absent SOURCE",
    ),
]


@pytest.mark.parametrize(("call", "python", "typed", "parameter"), SAME)
def test_hint_in_words_of_each_door(
    place: Path,
    monkeypatch,
    call: Callable[[Path], object],
    python: str,
    typed: str,
    parameter: str,
):
    with pytest.raises(BocError) as raised:
        call(place)
    assert python in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # noqa: S301
    each = click.Command("call", callback=lambda: call(place))
    monkeypatch.setitem(main.commands, "call", each)
    assert typed in command("call").stderr
    app = FastAPI()
    answer_problems(app)
    app.get("/call")(lambda: call(place))
    assert parameter in TestClient(app).get("/call").json()["error"]


def test_notes_have_hints(monkeypatch):
    def tell():
        note("own has grown", "<boc copy own --code dictionary --replace>")

    with pytest.warns(match=r"grown; boc\.copy_index\(\.\.\., code='dictionary', replace=True\)"):
        tell()
    monkeypatch.setitem(main.commands, "tell", click.Command("tell", callback=tell))
    told = command("tell").stderr
    assert told == "note: own has grown; boc copy own --code dictionary --replace\n"
