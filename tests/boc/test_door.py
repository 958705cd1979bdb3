"""``import boc``: the public names, and the index as an object."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import boc
from boc import build_index
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
    index = boc.open("photos", at)
    assert (index.info()["rm"], index.info()["terms"], len(index)) == (3, 8, 120)
    item = index.get("003.png")
    assert index.delete(["003.png", "nobody.png"]) == (1, ["nobody.png"])
    assert len(index) == 119
    with pytest.raises(BocError, match=r"has no item '003\.png'"):
        index.get("003.png")
    assert index.delete("004.png") == (1, [])  # one id, not its characters
    assert index.add([library / "photos.h5"]).texts == 80
    assert (len(index), index.get("003.png")) == (120, item)


@pytest.mark.slow
def test_an_index_follows_its_pictures_and_other_processes(library: Path, tmp_path: Path, at: str) -> None:
    pictures = tmp_path / "pictures"
    shutil.copytree(library / "images", pictures)
    build_index("photos", pictures, encoder=f"tern:{library / 'model'}", at=at, device="cpu")
    index, other = boc.open("photos", at), boc.open("photos", at)
    (pictures / "000.png").unlink()
    assert index.sync(pictures).removed == 1
    assert (len(index), len(other)) == (39, 40)
    other.refresh()
    assert len(other) == 39
    assert "000.png" not in [hit.id for hit in index.search("a red box", k=40)]
    shutil.copy(library / "images" / "000.png", pictures)
    assert index.sync(pictures).added == 1
    assert index.search(image=pictures / "000.png", k=1)[0].id == "000.png"


@pytest.fixture(scope="module")
def pets(library: Path) -> boc.Index:
    return boc.open("photos", f"file:{library / 'index'}")


WRONG: list[tuple[Callable[[boc.Index], object], str]] = [
    (lambda index: boc.open(5), "5 cannot name an index; use lower-case letters"),
    (lambda index: boc.open("no such"), "'no such' cannot name an index"),
    (lambda index: boc.open("photos", 5), "5 is no address; write file:DIR"),
    (lambda index: boc.open("nothing", index.at), "no index 'nothing'"),
    (lambda index: build_index("x", 5), "a source must be a path or a list of paths, got 5"),
    (lambda index: build_index("x", []), r"got \[\]"),
    (lambda index: build_index("x", "photos.h5", code=5), "code must be text such as 'dictionary:2/64'"),
    (lambda index: index.search(), "give either a sentence or a picture"),
    (lambda index: index.search("a dog", image="dog.jpg"), "give either a sentence or a picture"),
    (lambda index: index.search(["a dog", "a cat"]), "search_texts"),
    (lambda index: index.search(""), "write what the picture shows"),
    (lambda index: index.search("a dog", k="3"), "k must be a whole number"),
    (lambda index: index.search("a dog", k=0), "k must be at least 1"),
    (lambda index: index.search("a dog", kk=3), "no search option 'kk'; known: k, rm"),
    (lambda index: index.search("a dog", filters={"width": 3}), "filters must be texts such as 'width>10'"),
    (lambda index: index.search("a dog", filters="colour=red"), "the index has no metadata field 'colour'"),
    (lambda index: index.search("a dog", find="video"), "find must be image or text"),
    (lambda index: index.search(image=5), "image must be the path of a picture"),
    (lambda index: index.get(5), "id must be text, got 5"),
    (lambda index: index.get("nobody.png"), "has no item 'nobody.png'"),
    (lambda index: index.explain("a dog", "nobody.png"), "no item 'a dog' in the index"),
    (lambda index: index.explain("003.png"), "give either a sentence or a picture"),
    (lambda index: index.delete([5]), "id must be text, got 5"),
    (lambda index: index.delete(5), "ids must be one id or several, got 5"),
    (lambda index: index.add(5), "a source must be a path or a list of paths, got 5"),
    (lambda index: index.sync(None), "a source must be a path or a list of paths, got None"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_call_is_answered_with_the_right_one(
    pets: boc.Index, call: Callable[[boc.Index], object], message: str
) -> None:
    with pytest.raises(BocError, match=message):
        call(pets)


def test_build_index_refuses(library: Path, tmp_path: Path, at: str) -> None:
    with pytest.raises(BocError, match="holds no vectors yet, and there is no encoder"):
        build_index("photos", library / "images", at=at)
    with pytest.raises(BocError, match="several sources must all be folders or tar archives, or feature files"):
        build_index("photos", [library / "photos.h5", library / "images"], at=at)
    with pytest.raises(BocError, match="no code 'magic'; known: scalar"):
        build_index("photos", library / "photos.h5", at=at, code="magic")
    build_index("photos", library / "photos.h5", at=at)
    with pytest.raises(BocError, match="has an index 'photos' of something else; make it again with --replace"):
        build_index("photos", library / "photos.h5", at=at, code="scalar")
    assert not build_index("photos", library / "photos.h5", at=at, code="scalar", replace=True).up_to_date
