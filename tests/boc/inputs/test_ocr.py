"""Words inside pictures: painted signs are read, kept by syncs, and found by hybrid search."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from boc import Searcher, build_index, plugins
from boc.errors import BocError, BocWarning
from boc.inputs import ocr
from boc.manage.sync import sync_index
from boc.types import ImageRef
from tests.boc.manage.collections_of_files import Counting
from tests.helpers import boc, refuse_connections

installed = pytest.mark.skipif(
    find_spec("rapidocr") is None or find_spec("onnxruntime") is None,
    reason="reading words needs the extra ocr",
)


def paint(path: Path, text: str, turn: int = 0) -> Path:
    image = Image.new(
        "RGB",
        (400, 200),
        (250, 240, 220),
    )
    ImageDraw.Draw(image).text(
        (40, 70),
        text,
        fill=(20, 30, 90),
        font=ImageFont.load_default(44),
    )
    exif = Image.Exif()
    if turn:
        exif[0x0112] = turn
        image = image.rotate(
            {6: 90, 8: 270}[turn],
            expand=True,
        )
    path.parent.mkdir(exist_ok=True)
    image.save(path, exif=exif)
    return path


def read(path: Path) -> str:
    return ocr.words_inside(ImageRef(path.name, path))["ocr"]


@pytest.fixture
def encoder(monkeypatch) -> Counting:
    return Counting.installed(monkeypatch)


@pytest.fixture
def pretended(monkeypatch) -> list[str]:
    """In place of the networks a reader that tells the name of a picture; the list of those
    read."""
    seen = []

    def words(image):
        seen.append(image.id)
        return {"ocr": "" if "empty" in image.id else f"sign of {Path(image.id).stem}"}

    monkeypatch.setattr(
        ocr,
        "words_inside",
        words,
    )
    monkeypatch.setattr(
        ocr,
        "check_installed",
        lambda: None,
    )
    return seen


def noise(path: Path, seed: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(
        np.random.default_rng(seed).integers(
            0,
            255,
            (8, 8, 3),
            np.uint8,
        ),
    ).save(path)
    return path


def held(at: str) -> dict[str, Any]:
    return {item.id: item.fields.get("ocr") for item in plugins.backend(at).open("x").items()}


@installed
@pytest.mark.slow
def test_ocr_of_painted_words(tmp_path: Path, monkeypatch):
    refuse_connections(monkeypatch)
    ocr._engine.cache_clear()
    assert read(paint(tmp_path / "a.png", "Open 24 hours")).lower() == "open 24 hours"
    assert read(paint(tmp_path / "b.jpg", "EXIT", turn=6)) == "EXIT"
    Image.new("RGB", (64, 64), "white").save(tmp_path / "plain.png")
    assert read(tmp_path / "plain.png") == ""


@pytest.mark.parametrize("left", [0, 1])
def test_ocr_of_an_unreadable_picture(
    tmp_path: Path,
    monkeypatch,
    left: int,
):
    class Engine:
        def __call__(self, pixels: Any) -> NoReturn:
            raise RuntimeError("a tensor of no size")

    monkeypatch.setattr(ocr, "_engine", Engine)
    path = noise(tmp_path / "a.png", 0)
    if left:
        path.write_bytes(b"no picture")
    with pytest.warns(
        BocWarning,
        match=r"text in a picture was not recognised: .*a\.png",
    ):
        assert read(path) == ""


def test_ocr_without_the_extra(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(
        ocr,
        "find_spec",
        lambda name: None,
    )
    noise(tmp_path / "pictures" / "a.png", 0)
    result = boc(
        f"extract {tmp_path}/pictures -o {tmp_path}/f.h5 --regions grid --set=ocr=true",
    )
    assert result.exit_code == 1
    assert (
        "pictures needs the package rapidocr; install it with: pip install 'boc[ocr]'"
        in result.stderr
    )
    assert not (tmp_path / "f.h5").exists()


def test_ocr_follows_syncs(encoder: Counting, pretended: list[str], tmp_path: Path):
    folder = tmp_path / "pictures"
    at = f"file:{tmp_path / 'at'}"
    for i, name in enumerate(("a.png", "b.png", "empty.png")):
        noise(folder / name, i)
    build_index(
        "x",
        folder,
        encoder="any",
        at=at,
    )
    assert (held(at), pretended) == (
        dict.fromkeys(("a.png", "b.png", "empty.png")),
        [],
    )
    noise(folder / "new.png", 9)
    assert sync_index("x", folder, at=at).added == 1
    encoder.seen.clear()
    report = sync_index(
        "x",
        folder,
        at=at,
        ocr=True,
        chunk=2,
    )
    assert (
        report.changed,
        report.same,
        report.up_to_date,
    ) == (4, 0, False)
    wanted = {
        "a.png": "sign of a",
        "b.png": "sign of b",
        "empty.png": "",
        "new.png": "sign of new",
    }
    assert held(at) == wanted
    assert sync_index("x", folder, at=at, ocr=True).up_to_date
    (folder / "a.png").rename(folder / "c.png")
    noise(folder / "b.png", 7)
    pretended.clear()
    sync_index("x", folder, at=at, ocr=True)
    assert pretended == ["b.png"]
    assert held(at) == {
        "b.png": "sign of b",
        "c.png": "sign of a",
        "empty.png": "",
        "new.png": "sign of new",
    }
    hits = (
        plugins.backend(at)
        .open("x")
        .match(
            ["sign"],
            9,
        )[0]
    )
    assert {hit.item.id for hit in hits} == {"b.png", "c.png", "new.png"}


def test_kill_while_reading_words(
    encoder: Counting,
    pretended: list[str],
    tmp_path: Path,
    monkeypatch,
):
    folder = tmp_path / "pictures"
    at = f"file:{tmp_path / 'at'}"
    for i in range(7):
        noise(folder / f"{i}.png", i)
    build_index(
        "x",
        folder,
        encoder="any",
        at=at,
    )
    whole = ocr.words_inside

    def killed(image):
        if len(pretended) == 5:
            raise KeyboardInterrupt
        return whole(image)

    monkeypatch.setattr(
        ocr,
        "words_inside",
        killed,
    )
    with pytest.raises(KeyboardInterrupt):
        sync_index(
            "x",
            folder,
            at=at,
            ocr=True,
            chunk=2,
        )
    assert sum(words is not None for words in held(at).values()) == 4
    pretended.clear()
    monkeypatch.setattr(
        ocr,
        "words_inside",
        whole,
    )
    assert sync_index("x", folder, at=at, ocr=True).changed == len(pretended) == 3
    assert held(at) == {f"{i}.png": f"sign of {i}" for i in range(7)}


def test_ocr_field_of_a_table(encoder: Counting, pretended: list[str], tmp_path: Path):
    folder = tmp_path / "pictures"
    at = f"file:{tmp_path / 'at'}"
    noise(folder / "a.png", 0)
    (tmp_path / "own.csv").write_text(
        "id,ocr:text\na.png,by hand\n",
        encoding="utf-8",
    )
    build_index(
        "x",
        folder,
        encoder="any",
        at=at,
        metadata=tmp_path / "own.csv",
    )
    with pytest.raises(
        BocError,
        match="no field for the words inside pictures",
    ):
        sync_index("x", folder, at=at, ocr=True)
    assert (held(at), pretended) == ({"a.png": "by hand"}, [])
    assert Searcher.open("x", at).index.manifest.table_facts == ["ocr"]


def test_ocr_without_pictures(library: Path, tmp_path: Path):
    result = boc(
        f"index x {library}/photos.h5 --ocr --at file:{tmp_path}",
    )
    assert result.exit_code == 1
    assert (
        "photos.h5: contains no pictures, so no text can be recognised; leave out --ocr"
        in result.stderr
    )
