"""Shared by all tests: where real data lies, and a tiny library of pictures made once."""

import gc
import os
import re
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from boc.search.searcher import Searcher
from tests.helpers import SHARED, draw_pictures, leave_to_torch, run
from tests.once import once
from tests.servers.fixtures import own, secure, server, shared_server  # noqa: F401

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)  # the same examples each time, so more of them find nothing new; make fuzz draws others
settings.register_profile(
    "quick",
    settings.get_profile("ci"),
    max_examples=10,
    phases=(Phase.explicit, Phase.generate),
)  # of make check: a law that fails is not shrunk, which takes minutes
settings.register_profile(
    "fuzz",
    settings.get_profile("ci"),
    max_examples=50_000,
    derandomize=False,
    print_blob=True,
)  # of make fuzz
settings.load_profile("ci")

os.environ["BOC_CONFIG"] = os.devnull  # no settings of whoever runs the tests


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without garbage collection, which would then look through all of torch again
    and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip the files of tests that need torch, where only the extra search is installed."""
    report = yield
    if (
        report.failed
        and find_spec("torch") is None
        and (missing := NEEDED.search(str(report.longrepr)))
    ):
        report.outcome = "skipped"
        report.longrepr = (
            str(collector.path),
            0,
            f"Skipped: needs the extra encoders ({missing[1]})",
        )
    return report


# What is missing, or a file of tests that was left half imported for it.
NEEDED = re.compile(
    r"(?:No module named|cannot import name .* from) "
    r"'(torch|safetensors|onnx|transformers|tests\.encoders)\b",
)
SERVER_SECONDS = 1800  # of a test that asks or starts servers


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config,
    items: list[pytest.Item],
) -> Iterator[None]:
    """Put tests into groups: those that share a server, which is started once, and else those of a
    file.

    ``--dist loadgroup`` runs a group in one process, those that take long first. A single process
    runs the tests of servers last, one server after the other.
    """
    seconds = Counter()
    group_of = {}  # by id(): xdist changes the hash of an item
    for item in items:
        shared = shared_server(item)
        slow = item.get_closest_marker("slow") is not None
        servers = shared is not None or item.get_closest_marker("servers") is not None
        group_of[id(item)] = group = shared or item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
        if servers:
            item.add_marker(pytest.mark.timeout(SERVER_SECONDS))
        seconds[group] += 100 if servers else 10 if slow else 1
    result = yield
    if config.getoption("loadgroup", False):  # in a process of xdist
        if items and not items[0].nodeid.endswith(f"@{group_of[id(items[0])]}"):
            raise pytest.UsageError(
                "pytest-xdist 3.8 does not group tests under pytest 9.2; install pytest<9.2",
            )
        items.sort(key=lambda item: (-seconds[group_of[id(item)]], group_of[id(item)]))
    else:
        items.sort(key=lambda item: shared_server(item) or "")
    return result


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else the libraries report at exit, as leaks, what is never collected


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """An empty current folder, ``here`` in ``tmp_path``, and a user whose settings would be in
    ``user`` beside it."""
    for name in os.environ:
        if name.startswith("BOC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def left_to_torch(monkeypatch) -> None:
    leave_to_torch(monkeypatch)


@pytest.fixture(scope="session")
def photos() -> Path:
    """Folder of real photographs: BOC_PHOTOS, or the one beside the project."""
    folder = Path(os.environ.get("BOC_PHOTOS", SHARED / "data" / "flickr8k"))
    if not folder.is_dir():
        pytest.skip(
            f"no photographs in {folder}; name a folder with captions.csv and images/ with "
            "BOC_PHOTOS",
        )
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """A folder with captions.csv, images/, regions.h5, model/, photos.h5 and the index ``photos``
    in index/.

    All workers read the same one: tests write elsewhere.
    """
    pytest.importorskip(
        "torch",
        reason="the library needs a model, whose training needs the extra encoders",
    )
    return once(tmp_path_factory, "library", make_library)


@pytest.fixture(scope="module")
def searcher(library: Path) -> Searcher:
    """A searcher of the index ``photos`` of the library."""
    return Searcher.open("photos", f"file:{library / 'index'}", device="cpu")


def make_library(home: Path) -> None:
    """Draw 40 pictures, train a small network on them for a moment, and index them."""
    table = draw_pictures(home, 40)
    sizes = (
        "visual_width=16",
        "joint_width=16",
        "feedforward=16",
        "heads=2",
        "text_layers=1",
        "held_out=8",
    )
    train = (
        "train",
        home / "regions.h5",
        "-o",
        home / "model",
        "--set=epochs=2",
        "--set=batch_size=8",
    )
    with pytest.MonkeyPatch.context() as patch:
        leave_to_torch(patch)
        for command in (
            ("extract", table, "-o", home / "regions.h5", "--regions", "grid"),
            (*train, *(f"--set={size}" for size in sizes)),
            ("extract", table, "-o", home / "photos.h5", "--encoder", f"tern:{home / 'model'}"),
            ("index", "photos", home / "photos.h5", "--at", f"file:{home / 'index'}"),
        ):
            run(*command)
