"""Nothing leaves the server but the pictures of the folder that was indexed, whatever an index says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from boc.inputs.images import MAX_PIXELS
from boc.search.searcher import Searcher
from boc.types import Item
from boc.web.pictures import archive
from tests.boc.web.test_api import client_of

SECRET = "root:x:0:0: nobody else's"


def _above_the_limit(path: Path) -> None:
    Image.new("1", (10_001, MAX_PIXELS // 10_000)).save(path)


def _outer_picture(path: Path) -> None:
    Image.new("L", (8, 8)).save(path.parents[1] / "private.png")
    path.symlink_to(path.parents[1] / "private.png")


ODD: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text(SECRET),
    "link": lambda path: path.symlink_to(path.parents[1] / "secret"),
    "link-to-picture": _outer_picture,
    "link-to-itself": lambda path: path.symlink_to(path),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda path: None,
    "empty": Path.touch,
    "large": _above_the_limit,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    place = tmp_path / "pictures"
    place.mkdir()
    return place


@pytest.fixture
def forged(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the item 003.png of the index name another file, as whoever wrote the index could have done."""
    honest = searcher.index.find

    def forge(content: str) -> None:
        def find(ids: list[str]) -> list[Item]:
            return [Item(i.id, i.modality, content, i.group) if i.id == "003.png" else i for i in honest(ids)]

        monkeypatch.setattr(searcher.index, "find", find)

    return forge


@pytest.mark.parametrize("kind", ODD)
def test_only_pictures_are_sent(
    searcher: Searcher, tmp_path: Path, folder: Path, forged: Callable[[str], None], kind: str
) -> None:
    ODD[kind](folder / "003.png")
    forged(str(folder / "003.png"))
    _refused_everywhere(searcher, tmp_path)


@pytest.mark.parametrize(
    "content", ["{}/secret", "{}/pictures/../secret", "/etc/passwd", "/dev/zero", "", "/", "\0", "a\nb", "{}/\udcff"]
)
def test_a_forged_path_is_not_sent(
    searcher: Searcher, tmp_path: Path, folder: Path, forged: Callable[[str], None], content: str
) -> None:
    forged(content.format(tmp_path))
    _refused_everywhere(searcher, tmp_path)


def _refused_everywhere(searcher: Searcher, tmp_path: Path) -> None:
    client = client_of(searcher, tmp_path / "cache")
    answers = [
        client.post("/api/zip", json={"ids": ["007.png", "003.png"]}),
        client.get("/api/thumb/003.png"),
        client.get("/api/thumb/003.png%230"),
        client.get("/api/explain/007.png", params={"like": "003.png"}),
    ]
    assert [answer.status_code for answer in answers[:3]] == [404, 404, 404]
    for answer in answers:
        assert answer.status_code < 500
        assert SECRET not in answer.text
        assert str(tmp_path) not in answer.text


def test_a_picture_replaced_while_it_is_sent(folder: Path) -> None:
    item = Item("a.png", "image", str(folder / "a.png"), "a.png")
    Image.new("L", (8, 8)).save(folder / "a.png")
    chosen = archive.files([item])
    assert b"IHDR" in b"".join(archive.stream(chosen))
    (folder / "a.png").unlink()
    (folder / "a.png").symlink_to(folder.parent / "secret")
    with pytest.raises(Exception, match=r"a\.png: not a picture file in the folder"):
        b"".join(archive.stream(chosen))


def test_a_link_within_the_folder_is_followed(folder: Path) -> None:
    Image.new("L", (8, 8)).save(folder / "a.png")
    (folder / "b.png").symlink_to("a.png")
    assert archive.files([Item("b.png", "image", str(folder / "b.png"), "b.png")])
