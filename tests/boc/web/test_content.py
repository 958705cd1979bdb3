"""Only pictures of the folder that was indexed leave the server, by whatever route, whatever an
index calls one."""

from __future__ import annotations

import io
import logging
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import pytest
from PIL import Image

from boc.errors import ImageError
from boc.search.searcher import Searcher
from boc.types import Item
from tests.boc.web.test_api import client_of
from tests.helpers import run

pytest.importorskip("fastapi", reason="the page needs the extra web")

from boc.web.pictures.content import open_content

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

SECRET = b"root:x:0:0 a line that nobody may read"


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def folder_link(path: Path) -> None:
    """The folder of the picture is a link to one with a picture of the same name."""
    path.parent.rmdir()
    path.parent.symlink_to("../private")


REPLACED: dict[str, Callable[[Path], Any]] = {
    "secret.png": lambda path: path.write_bytes(SECRET),
    "link.png": link("../private/secret"),
    "other.png": link("../private/picture.png"),
    "zero.png": link("/dev/zero"),
    "round.png": link("round.png"),
    "pipe.png": os.mkfifo,
    "folder.png": os.mkdir,
    "gone.png": lambda _: None,
    "empty.png": lambda path: path.touch(),
    "large.png": lambda path: Image.new("1", (20_000, 5_001)).save(path),
    "in/a.png": folder_link,
}
"""What happens to pictures after they were indexed."""
FORGED = ("/etc/passwd", "/dev/zero", "{}/private/secret", "{}/p/../private/picture.png", "")
"""What a feature file from a stranger calls its pictures."""


@pytest.fixture(scope="module")
def home(library: Path, tmp_path_factory) -> Path:
    """A library p, whose pictures were replaced, a folder private beside it, and the server's index
    of p."""
    home = tmp_path_factory.mktemp("content")
    forged = [f"forged{number}.png" for number in range(len(FORGED))]
    for name in (*REPLACED, *forged, "good.png"):
        path = home / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 30), "teal").save(path)
    (home / "private").mkdir()
    (home / "private" / "secret").write_bytes(SECRET)
    for name in ("picture.png", "a.png"):
        Image.new("RGB", (30, 30), "red").save(home / "private" / name)
    (home / "p" / "linked.png").symlink_to(
        "../private/picture.png",
    )  # the user's own: content is where it led
    run(
        f"extract {home}/p -o {home}/f.h5 --encoder tern:{library}/model",
    )
    with h5py.File(home / "f.h5", "r+") as file:
        ids = file["image/ids"].asstr()[:].tolist()
        for name, called in zip(forged, FORGED, strict=True):
            file["image/content"][ids.index(name)] = called.format(home)
    run(f"index photos {home}/f.h5 --at file:{home}/index")
    for name, replace in REPLACED.items():
        (home / "p" / name).unlink()
        replace(home / "p" / name)
    return home


@pytest.fixture
def client(home: Path, tmp_path: Path) -> TestClient:
    return client_of(
        Searcher.open("photos", f"file:{home / 'index'}", device="cpu"),
        tmp_path / "cache",
    )


@pytest.mark.parametrize(
    "id",
    [
        *REPLACED,
        *(f"forged{number}.png" for number in range(len(FORGED))),
    ],
)
def test_what_is_no_picture_of_the_library_is_refused(
    client: TestClient,
    home: Path,
    id: str,
    caplog,
) -> None:
    with caplog.at_level(logging.WARNING, "boc.web.pictures.content"):
        answers = [client.get(f"/api/{route}/{id}") for route in ("thumb", "picture")]
    for answer in answers:
        assert answer.status_code == 404, answer.text
        assert str(home) not in answer.text
    assert client.get(
        f"/api/explain/{id}",
        params={"q": "teal"},
    ).json()["missing"]
    # Under PYTHONDEVMODE asyncio reports calls that take 0.1 s.
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("boc.")]
    assert len(lines) == (0 if id == "gone.png" else 3)
    for line in lines:
        assert line.startswith("a picture was rejected: ")
        assert Path(id).name not in line
        assert "root:" not in line


def test_pictures_of_the_library_are_sent(client: TestClient, home: Path) -> None:
    for name in ("good.png", "linked.png"):
        answer = client.get(f"/api/picture/{name}")
        assert answer.content == (home / "p" / name).read_bytes()
        assert answer.headers["content-length"] == str(len(answer.content))
        assert client.get(f"/api/thumb/{name}").status_code == 200


def test_pictures_are_sent_as_one_archive(client: TestClient, home: Path) -> None:
    names = ["good.png", "linked.png", "good.png"]
    answer = client.get("/api/picture", params={"id": names})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        sent = {name: archive.read(name) for name in archive.namelist()}
    assert sent == {name: (home / "p" / name).read_bytes() for name in names}
    for name in ("link.png", "forged0.png", "nosuch.png"):
        refused = client.get("/api/picture", params={"id": ["good.png", name]})
        assert (refused.status_code, SECRET in refused.content) == (404, False)
    assert client.get("/api/picture", params={"id": ["good.png"] * 101}).status_code == 400


def test_a_picture_replaced_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("L", (20, 20)).save(path)
    before = path.read_bytes()
    with open_content(Item("a.png", "image", str(path))) as picture:
        path.unlink()
        path.symlink_to("/etc/passwd")
        assert picture.path.read_bytes() == before


def test_a_picture_in_an_archive(tmp_path: Path) -> None:
    Image.new("L", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "secret").write_bytes(SECRET)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "a.png", "in/a.png")
        tar.add(tmp_path / "secret", "secret.png")
    for id, root in (
        ("in/a.png", "x.tar/"),
        ("x.tar/in/a.png", ""),
        ("p/x.tar/in/a.png", ""),
    ):
        content = f"{tmp_path}/{root}{id.removeprefix('p/')}"
        with open_content(Item(id, "image", content)) as picture:
            assert (
                b"".join(picture.read())
                == picture.path.read_bytes()
                == (tmp_path / "a.png").read_bytes()
            )
    for name in (
        "x.tar/secret.png",
        "x.tar/gone.png",
        "x.tar/in",
        "x.tar",
        "a.png/a.png",
        "x.tar/../a.png",
    ):
        with pytest.raises(ImageError), open_content(Item(name, "image", f"{tmp_path}/{name}")):
            pass
