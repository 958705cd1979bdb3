"""Single pictures that come into an index: by the command line, and by clients of a server whose
owner keeps them."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from boc import Searcher, build_index, plugins
from boc.errors import BackendError
from boc.manage.sync import sync_index
from tests.boc.web.test_api import client_of
from tests.helpers import DEMO_MODEL, boc, draw_pictures, run

pytest.importorskip("onnxruntime", reason="networks in ONNX need the extra search")
routes = pytest.importorskip("boc.web.routes", reason="the page needs the extra web")

TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of six pictures, which are the index ``photos``; six others beside it."""
    folder = draw_pictures(tmp_path / "more", 12).parent / "images"
    (tmp_path / "pictures").mkdir()
    for number in range(6):
        shutil.move(folder / f"{number:03d}.png", tmp_path / "pictures")
    at = f"file:{tmp_path / 'at'}"
    build_index("photos", tmp_path / "pictures", encoder=str(DEMO_MODEL), at=at)
    return tmp_path / "pictures"


def held(at: str) -> set[str]:
    return {item.id for item in plugins.backend(at).open("photos").items()}


def test_pictures_are_added_by_the_command_line(pictures: Path, tmp_path: Path):
    at = f"file:{tmp_path / 'at'}"
    others = sorted((tmp_path / "more" / "images").iterdir())
    added = run("add photos", *others[:2], "--at", at)
    assert added.stdout == "photos: 2 pictures and 0 captions added\n"
    assert {path.name for path in others[:2]} < held(at)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    assert "no picture can be used" in boc(f"add photos {tmp_path}/bad.png --at {at}").stderr


def test_pictures_of_clients_are_kept(pictures: Path, tmp_path: Path):
    at = f"file:{tmp_path / 'at'}"
    data = (tmp_path / "more" / "images" / "007.png").read_bytes()
    sent = {"image": ("../a b/Neu\u00e9.png", data)}
    searcher = Searcher.open("photos", at)
    closed = client_of(searcher, tmp_path, at=at, token="secret")
    assert closed.post("/api/library", files=sent, headers=TOKEN).status_code == 403
    client = client_of(searcher, tmp_path, at=at, token="secret", keep=pictures)
    assert client.post("/api/library", files=sent).status_code == 401
    bad = {"image": ("x.png", b"no picture")}
    assert client.post("/api/library", files=bad, headers=TOKEN).status_code == 415
    kept = client.post("/api/library", files=sent, headers=TOKEN).json()
    assert (pictures / kept["id"]).read_bytes() == data
    assert kept["id"] in held(at)
    assert not kept["replaced"]
    assert client.post("/api/library", files=sent, headers=TOKEN).json() == {
        **kept,
        "replaced": True,
    }
    report = sync_index("photos", pictures, at=at)
    assert (report.encoded, report.same + report.changed) == (0, 7)


def test_a_picture_that_cannot_be_encoded_is_not_kept(
    pictures: Path,
    tmp_path: Path,
    monkeypatch,
):
    at = f"file:{tmp_path / 'at'}"
    client = client_of(Searcher.open("photos", at), tmp_path, at=at, token="secret", keep=pictures)
    there = {path.name: path.read_bytes() for path in pictures.iterdir()}
    sent = {"image": ("x.png", (tmp_path / "more" / "images" / "007.png").read_bytes())}
    for error in (BackendError("no room"), MemoryError()):
        with monkeypatch.context() as patch:
            patch.setattr(routes, "add_pictures", Mock(side_effect=error))
            assert client.post("/api/library", files=sent, headers=TOKEN).status_code >= 400
        assert {path.name: path.read_bytes() for path in pictures.iterdir()} == there
    kept = client.post("/api/library", files=sent, headers=TOKEN).json()["id"]
    with monkeypatch.context() as patch:
        patch.setattr(routes, "add_pictures", Mock(side_effect=BackendError("no room")))
        assert client.post("/api/library", files=sent, headers=TOKEN).status_code >= 400
    assert (pictures / kept).exists()  # of the time before


def test_a_server_without_token_keeps_nothing(pictures: Path, tmp_path: Path):
    refused = boc(f"serve photos --at file:{tmp_path}/at --keep {pictures}")
    assert refused.exit_code == 1
    assert "set BOC_TOKEN" in refused.stderr
