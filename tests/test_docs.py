"""What the documents say is so: commands, options and targets exist, links lead somewhere, snippets
run.

Python blocks of a page run in order, in one namespace and in a folder with an index ``photos``.
Comments in a page say the rest: ``<!-- run -->`` before a block of shell lines runs those too;
``<!-- other data -->`` before an output says that it comes from other pictures, so that only the
number of its lines can be held against what is printed here.
"""

import doctest
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import urlopen

import pytest
from PIL import Image

import boc
from boc.cli import main
from tests.helpers import boc as run_boc, parse
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COMMANDS = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
FIRST_SEARCH = DOCS / "tutorial" / "first-search.md"
TRAIN = DOCS / "tutorial" / "train-your-own.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md")])
GENERATED = re.compile(r"<!-- rows: .*?<!-- end -->", re.S)
BLOCK = re.compile(r"^(?:<!-- (run|other data) -->\n+)?```(\w+)\n(.*?)^```$", re.S | re.M)
FENCED = re.compile(r"^```.*?^```$|`[^`\n]+`", re.S | re.M)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Mark, kind and body of the fenced blocks of a page."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


SHELL = [
    line
    for page in PAGES
    for _, kind, body in blocks(page)
    if kind == "sh"
    for line in body.replace("\\\n", "").splitlines()
]


def test_every_command_is_in_the_table_and_no_other():
    named = set(re.findall(r"^\| `boc ([\w-]+)", COMMANDS, re.M))
    assert named == set(main.commands)


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("boc ")])
def test_shell_lines_parse(line: str):
    _, name, *arguments = shlex.split(line, comments=True)
    if name.startswith("-"):
        return
    context = parse(name, arguments)
    assert not context.args


def test_modules_that_are_run_exist():
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    names = {
        name
        for text in texts
        for name in re.findall(r"python -m ((?:bench|demo|tests)[\w.]*)", text)
    }
    assert len(names) > 5
    assert not [name for name in names if importlib.util.find_spec(name) is None]


def words(page: Path) -> int:
    """Return the number of words of a page that were written by hand."""
    return sum(
        bool(re.search(r"\w", word))
        for word in GENERATED.sub("", page.read_text(encoding="utf-8")).split()
    )


@pytest.mark.parametrize(
    "page",
    sorted(DOCS.glob("**/*.md")),
    ids=lambda page: page.name,
)
def test_pages_are_short(page: Path):
    assert words(page) <= (600 if page.parent.name == "howto" else 1000)


def test_all_pages_together_are_short():
    assert sum(map(words, (ROOT / "README.md", *DOCS.glob("**/*.md")))) <= 20_000


NUMBER = r"(?<![\w.-])\d[\d.,]*"
UNIT = r"(?:(?:ms|milliseconds?|[kMG]B|KB|s|seconds?|minutes?|hours?|points?|times)\b|%)"
SETTINGS = {  # page: figures with a unit that no rows have: downloads, settings, limits, rules
    "explanation/embedded-engine.md": ["about 48 MB"],
    "explanation/servers.md": ["at most 8 MB"],
    "howto/size-a-cluster.md": ["one shard per 30 GB", "20 to 40 GB", "heap of 1 GB, plus 1 GB"],
    "reference/servers.md": ["up to 63 times"],
    "results/encoders.md": ["10 to 25 minutes"],
    "results/servers.md": ["a heap of 2 GB"],
    "howto/install.md": ["5.2 GB with CUDA"],
    "tutorial/first-search.md": ["1.2 GB of disk space, half of it"],
}


def by_hand(page: Path) -> str:
    """Return what of a page is neither made of rows, nor code, nor the target of a link."""
    text = re.sub(
        r"^```.*?^```$",
        "",
        GENERATED.sub("", page.read_text(encoding="utf-8")),
        flags=re.S | re.M,
    )
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "", text))


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))],
    ids=lambda page: page.name,
)
def test_figures_are_made_of_rows(page: Path):
    text = " ".join(
        re.sub(
            r"^\|.*$",
            "",
            by_hand(page),
            flags=re.M,
        ).split(),
    )
    for setting in SETTINGS.get(
        page.name if page.parent == ROOT else page.relative_to(DOCS).as_posix(),
        (),
    ):
        assert setting in text
        text = text.replace(setting, "")
    assert not re.findall(rf".{{30}}{NUMBER} {UNIT}.{{20}}", text)
    if page.parent.name == "results":
        assert not re.findall(rf"^\|.*{NUMBER}.*$", by_hand(page), re.M)


def test_the_formats_that_are_read_are_named():
    upgrade = (DOCS / "howto" / "upgrade.md").read_text(encoding="utf-8")
    newest = {
        row[0]: int(row[1])
        for row in re.findall(r"^\| ([\w ,]+) \| (?:\d, )*(\d) \|", upgrade, re.M)
    }
    names = (
        "boc.manifest",
        "boc.inputs.features",
        "boc.clustering.codebook",
        "encoders.runtime.model_config",
        "boc.models",
    )
    assert [*newest.values()] == [importlib.import_module(name).FORMAT for name in names]


def test_make_targets_exist():
    targets = set(
        re.findall(
            r"^([\w-]+):",
            (ROOT / "Makefile").read_text(encoding="utf-8"),
            re.M,
        ),
    )
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    lines = [*SHELL, *(ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()]
    lines += [said for text in texts for said in re.findall(r"`(make [^`]+)`", text)]
    asked = [line.partition("#")[0].split()[1:] for line in lines if line.startswith("make ")]
    assert len(asked) > 5
    assert {word for words in asked for word in words if "=" not in word} <= targets


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    found = []
    prose = re.sub(
        r"^```.*?^```$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.S | re.M,
    )
    for heading in re.findall(r"^#{1,6} (.+)$", prose, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(
        r"\]\(<?([^)\s>]*)>?\)",
        FENCED.sub("", page.read_text(encoding="utf-8")),
    ):
        parts = urlsplit(target)
        if parts.scheme:
            assert re.fullmatch(r"https?://[\w.-]+(:\d+)?(/\S*)?", target), target
            continue
        place = page.parent / unquote(parts.path) if parts.path else page
        assert place.exists(), target
        assert not parts.fragment or parts.fragment in slugs(place), target


def test_the_stills_of_the_readme_are_light_and_dark():
    stills = sorted((DOCS / "stills").iterdir())
    named = re.findall(r'src(?:set)?="(.*?)"', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert sorted(named) == [f"docs/stills/{path.name}" for path in stills]
    for path in stills:
        with Image.open(path) as picture:
            assert (picture.getpixel((0, 0)) < (99, 99, 99)) == ("dark" in path.name)


class Marks(HTMLParser):
    """What a page of the site points to, what it loads, and what can be pointed to in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.ids.add(value or "")
            elif name in ("href", "src"):
                (self.links if tag == "a" else self.loads).add(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Marks]:
    """The pages of the site, which is built without a warning."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "--keep-going", ROOT / "docs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return {page: Marks(page) for page in folder.rglob("*.html")}


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: dict[Path, Marks]):
    for page, marks in site.items():
        for target in marks.links | marks.loads:
            parts = urlsplit(target)
            place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not parts.scheme:
                assert place.is_file(), f"{page.name}: {target}"
                assert not parts.fragment or parts.fragment in site[place].ids, (
                    f"{page.name}: {target}"
                )


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: dict[Path, Marks]):
    assert not [
        target for marks in site.values() for target in marks.loads if urlsplit(target).netloc
    ]


@pytest.mark.slow
def test_the_reference_tells_every_command(site: dict[Path, Marks]):
    (ids,) = [marks.ids for page, marks in site.items() if page.name == "commands.html"]
    assert {f"boc-{name}" for name in main.commands} <= ids


@pytest.fixture
def home(library: Path, tmp_path: Path, monkeypatch) -> Path:
    """A folder as the tutorial leaves it, with other pictures, which becomes the working
    directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(library / "index", "boc-data")
    shutil.copytree(library / "model", "model")
    shutil.copytree(library / "images", "album/images")
    shutil.copy(library / "captions.csv", "album")
    with Image.open(library / "images" / "007.png") as picture:
        picture.save("album/images/00007.jpg")
    return tmp_path


def run_page(page: Path, command: Callable[[list[str]], str]) -> int:
    """Run the blocks of a page in the working directory, and compare what they print; how many did.

    ``command`` runs a line of the shell that begins with boc or python.
    """
    namespace = {"__name__": page.stem}
    printed = ""
    compared = 0
    for mark, kind, body in blocks(page):
        if kind == "python":
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(body, page.name, "exec"), namespace)
            printed = output.getvalue()
        elif kind == "sh" and mark == "run":
            lines = [shlex.split(line, comments=True) for line in body.splitlines()]
            printed = "".join(command(line) for line in lines if line[:1] in (["boc"], ["python"]))
        elif kind == "text" and printed:
            if mark == "other data":
                assert len(printed.splitlines()) == len(body.splitlines()), printed
            else:
                assert printed == body
            printed = ""
            compared = compared + 1
        else:
            printed = ""
    return compared


def prints(line: list[str]) -> str:
    """Run a line of the shell; what it prints."""
    if line[0] == "python":
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, *line[1:]],
            env=environment,
            check=True,
            capture_output=True,
        ).stdout.decode()
    result = run_boc(*line[1:])
    assert result.exit_code == 0, result.output
    return result.stdout


def with_python(page: Path) -> bool:
    return any(kind == "python" for _, kind, _ in blocks(page))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if with_python(page)],
    ids=lambda page: page.name,
)
def test_python_snippets_run(page: Path, home: Path):
    assert run_page(page, prints) == sum(kind == "text" for _, kind, _ in blocks(page))


SMALLER = {"500": "60", "2000": "60", "100": "20"}  # pictures of the tutorial
TINY = (
    "--set=epochs=2 --set=batch_size=8 --set=held_out=8 --set=visual_width=16 --set=joint_width=16 "
)
TINY += "--set=feedforward=16 --set=heads=2 --set=text_layers=1"


@pytest.mark.slow
def test_the_tutorials_go_through(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    served = []

    def command(line):
        if line[1] == "serve":
            served.extend(line)
            with serving(line[2]) as address:
                question = urlencode({"q": "a house in the snow", "k": 3})
                with urlopen(f"{address}/api/search?{question}") as answer:
                    assert len(json.load(answer)["hits"]) == 3
            return ""
        if line[0] == "python":
            line = [SMALLER.get(word, word) for word in line]
        return prints([*line, *(TINY.split() if line[1] == "train" else ())])

    assert run_page(TRAIN, command) == 1
    assert run_page(FIRST_SEARCH, command) == 1
    assert served
    assert {"hits.html", "alike.html"} <= {path.name for path in tmp_path.iterdir()}


@contextmanager
def serving(name: str) -> Iterator[str]:
    """``boc serve NAME`` in a process of its own, once it answers."""
    port = free_port()
    words = [
        sys.executable,
        "-c",
        "from boc.cli import main; main()",
        "serve",
        name,
        "--port",
        str(port),
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(process, f"{address}/api/info")
            yield address
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[str], url: str) -> None:
    while True:
        try:
            with urlopen(url):
                return
        except URLError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.1)


@pytest.mark.slow
def test_docstring_examples_run(
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boc-data").symlink_to(library / "index")
    names = [m.name for m in pkgutil.walk_packages(boc.__path__, "boc.")]
    results = [
        doctest.testmod(importlib.import_module(name), extraglobs={"boc": boc}) for name in names
    ]
    assert sum(r.attempted for r in results) >= 5
    assert sum(r.failed for r in results) == 0


def test_traps_of_servers_are_handled_and_tested():
    """The modules and the tests that the table names are there."""
    page = (
        (DOCS / "explanation" / "servers.md")
        .read_text(encoding="utf-8")
        .partition("## Pitfalls")[2]
    )
    rows = [row.split("|")[1:-1] for row in page.splitlines() if row.startswith("| ")][1:]
    folders = (ROOT / "tests" / "indexing" / "server", ROOT / "tests" / "contract")
    tests = "".join(
        path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("test_*.py")
    )
    assert len(rows) > 10
    for _, modules, names in rows:
        assert all(
            (ROOT / "indexing" / "server" / f"{each}.py").exists()
            for each in re.findall(r"`(\w+)`", modules)
        )
        assert all(f"def {each}(" in tests for each in re.findall(r"`(\w+)`", names)), names
