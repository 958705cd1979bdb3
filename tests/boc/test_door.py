"""``from boc import ...``: the names are there, and load nothing before they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import boc
from boc import Searcher, add_items, build_index, delete
from boc.codecs import global_code
from boc.errors import BocError


def loaded_by(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"import sys, boc; {code}; print(*sys.modules)"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return {name.partition(".")[0] for name in done.stdout.split()} | set(done.stdout.split())


def test_import_is_lazy() -> None:
    loaded = loaded_by("dir(boc)")
    assert loaded.isdisjoint(
        {"numpy", "scipy", "torch", "click", "boc.types", "boc.search.searcher", "boc.indexes.build"}
    )
    assert {"numpy", "boc.types"} <= loaded_by("boc.Item")


def test_every_public_name_is_there_and_listed() -> None:
    assert set(boc.__all__) == set(boc._MODULES) <= set(dir(boc))
    for name in boc.__all__:
        assert getattr(boc, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'boc' has no attribute 'serach'"):
        boc.serach  # type: ignore[attr-defined]  # noqa: B018


@pytest.fixture
def at(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'indexes'}"


def test_build_add_and_delete(library: Path, at: str) -> None:
    code = global_code("dictionary", terms=8)
    ticks: list[tuple[str, int, int]] = []
    report = build_index("photos", str(library / "photos.h5"), at=at, code=code, rm=3,
                         progress=lambda *tick: ticks.append(tick))  # fmt: skip
    assert (report.images, report.texts, report.failed, report.up_to_date) == (40, 80, [], False)
    assert ticks[-1] == ("indexing", 120, 120)
    before = Searcher.open("photos", at)
    assert (before.index.manifest.rm, before.codec.n_terms) == (3, 8)
    assert delete("photos", ["003.png", "nobody.png"], at=at) == (1, ["nobody.png"])
    assert add_items("photos", [library / "photos.h5"], at=at).texts == 80
    assert Searcher.open("photos", at).index.find(["003.png"]) == before.index.find(["003.png"])


def test_build_index_refuses(library: Path, tmp_path: Path, at: str) -> None:
    with pytest.raises(BocError, match="holds no vectors yet, and there is no encoder"):
        build_index("photos", library / "images", at=at)
    with pytest.raises(BocError, match="several sources must all be folders of pictures, or feature files"):
        build_index("photos", [library / "photos.h5", library / "images"], at=at)
    with pytest.raises(BocError, match="no code 'magic'; known: scalar"):
        build_index("photos", library / "photos.h5", at=at, code="magic")
    build_index("photos", library / "photos.h5", at=at)
    with pytest.raises(BocError, match="has an index 'photos' of something else; make it again with --replace"):
        build_index("photos", library / "photos.h5", at=at, code="dictionary")
    assert not build_index("photos", library / "photos.h5", at=at, code="dictionary", replace=True).up_to_date
