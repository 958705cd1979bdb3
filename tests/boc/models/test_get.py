"""``boc model`` against a server that speaks the hub's protocol: what is asked for, and what remains after faults."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from boc.models.files import CARDS, SETTINGS, WEIGHTS, first_weights, is_wanted, wanted
from boc.models.store import place as place_of
from hypothesis import given
from hypothesis import strategies as st

from boc import models, plugins
from boc.errors import BocError, EncoderError
from boc.models import hub as hub_client
from tests.encoders.test_clip import tiny_clip
from tests.helpers import boc, draw_pictures
from tests.hub import Hub, running

ROOT = Path(__file__).resolve().parents[3]
OLD, NEW = "a" * 40, "b" * 40
WEIGHT = bytes(range(256)) * 12_288  # 3 MB: three writes of the client
FILES = {"config.json": b'{"model_type": "clip"}', "model.safetensors": WEIGHT, "README.md": b"# tiny\n"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub with a model of two revisions, and an empty folder of models."""
    made = Hub({"me/tiny": {OLD: {**FILES, "config.json": b"{}"}, NEW: FILES}})
    with running(made):
        monkeypatch.setenv("BOC_MODELS", str(tmp_path / "models"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", made.address)
        template = made.address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in ("constants", "file_download"):  # before 1.0 the second has its own
            monkeypatch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        yield made


def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """For a process of its own."""
    return os.environ | {"HF_ENDPOINT": hub.address, "BOC_MODELS": str(tmp_path / "models"), "PYTHONPATH": str(ROOT)}


COMMAND = [sys.executable, "-c", "from boc.cli import main; main()", "model", "get", "me/tiny"]


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "boc-model.json"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "models" / "me--tiny"


@pytest.mark.slow
def test_a_process_gets_a_model_and_asks_for_nothing_else(hub: Hub, place: Path, tmp_path: Path) -> None:
    hub.repositories["me/tiny"][NEW] = FILES | {"model.py": b"import os", "onnx/model.onnx": b"0", "tf_model.h5": b"0"}
    hub.extra = ["../config.json", "/etc/passwd", "sub/tokenizer.json"]
    told = subprocess.run(
        [*COMMAND, "--yes"], env=environment(hub, tmp_path), capture_output=True, text=True, check=True
    )
    assert held(place) == FILES
    assert [path.name for path in place.parent.iterdir()] == ["me--tiny"]
    stored = [path for path in hub.paths() if path.startswith("/stored/")]
    assert len(stored) == 1
    assert sorted(hub.paths()) == sorted(
        ["/api/models/me/tiny?blobs=true", *(f"/me/tiny/resolve/{NEW}/{name}" for name in FILES), *stored]
    )
    for asked in hub.asked:
        assert "torch" not in asked.headers["user-agent"]
        assert "agent/" not in asked.headers["user-agent"]
        assert "authorization" not in asked.headers
    assert "licence   mit" in told.stderr
    assert f"{sum(map(len, FILES.values())) / 1e6:.1f} MB in 3 files" in told.stderr
    assert told.stdout.splitlines()[-1] == "Use it: boc index photos ~/Pictures --encoder clip:me/tiny"
    record = json.loads((place / "boc-model.json").read_text())
    assert (record["repository"], record["revision"], record["licence"]) == ("me/tiny", NEW, "mit")
    assert set(record["files"]) == set(FILES)


def test_what_is_there_is_not_asked_for_again(hub: Hub, place: Path) -> None:
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    hub.asked.clear()
    again = boc("model", "get", "me/tiny", "--yes")
    assert "is there already" in again.stdout
    assert not hub.asked
    (place / "config.json").write_bytes(b"changed")
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    assert held(place) == FILES


def test_another_revision_takes_the_place(hub: Hub, place: Path) -> None:
    assert boc("model", "get", "me/tiny", "--yes", "--revision", OLD).exit_code == 0
    assert held(place)["config.json"] == b"{}"
    assert boc("model", "get", "me/tiny", "--yes", "--revision", "main").exit_code == 0
    assert held(place) == FILES
    found = models.find("me/tiny")
    assert found is not None
    assert found.revision == NEW


@pytest.mark.slow
def test_a_cut_connection_is_taken_up_again(hub: Hub, place: Path) -> None:
    hub.cut = 2_000_000
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    assert held(place) == FILES
    starts = [asked.start for asked in hub.asked if asked.path.startswith("/stored/")]
    assert starts[0] == 0
    assert starts[1:] == [1 << 20]  # what was written in whole


@pytest.mark.slow
def test_a_later_call_continues_a_download_that_failed(hub: Hub, place: Path) -> None:
    hub.cut, hub.dies = 1_500_000, True
    failed = boc("model", "get", "me/tiny", "--yes")
    assert failed.exit_code == 1
    assert "repeat the command to continue" in failed.stderr
    assert not place.exists()
    hub.dead = False
    hub.asked.clear()
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    assert held(place) == FILES
    assert [asked.start for asked in hub.asked if asked.path.startswith("/stored/")] == [1 << 20]
    assert not [path for path in hub.paths() if path.endswith(("README.md", "config.json"))]


@pytest.mark.slow
def test_a_killed_download_continues_where_it_was(hub: Hub, place: Path, tmp_path: Path) -> None:
    hub.stall = 2_500_000
    process = subprocess.Popen([*COMMAND, "--yes"], env=environment(hub, tmp_path), stderr=subprocess.DEVNULL)
    unfinished = place.with_name("me--tiny.part") / "model.safetensors.unfinished"
    until = time.monotonic() + 300
    while not (unfinished.exists() and unfinished.stat().st_size >= 2 << 20) and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not place.exists()
    assert not list(models.models())
    size = unfinished.stat().st_size
    assert size >= 2 << 20
    hub.stall = None
    hub.asked.clear()
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    assert held(place) == FILES
    assert [asked.start for asked in hub.asked if asked.path.startswith("/stored/")] == [size]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("left", [b"", WEIGHT[:1], WEIGHT[:-1], WEIGHT, WEIGHT + b"x", b"other" * 1000])
def test_whatever_was_left_the_result_is_right_or_thrown_away(hub: Hub, place: Path, left: bytes, ranges: bool) -> None:
    hub.ranges = ranges
    part = place.with_name("me--tiny.part")
    part.mkdir(parents=True)
    (part / "revision").write_text(NEW)
    (part / "model.safetensors.unfinished").write_bytes(left)
    first = boc("model", "get", "me/tiny", "--yes")
    if WEIGHT.startswith(left) or len(left) > len(WEIGHT) or not ranges:
        assert first.exit_code == 0
    else:
        assert first.exit_code == 1
        assert "other bytes than announced" in first.stderr
        assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    assert held(place) == FILES


def test_wrong_bytes_are_thrown_away(hub: Hub, place: Path) -> None:
    hub.damage = True
    failed = boc("model", "get", "me/tiny", "--yes")
    assert failed.exit_code == 1
    assert "model.safetensors arrived with other bytes than announced" in failed.stderr
    assert not place.exists()
    assert not list(place.parent.glob("*/model.safetensors*"))
    hub.damage = False
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0


def test_weights_of_another_digest_are_not_downloaded(hub: Hub, place: Path) -> None:
    failed = boc("model", "get", "me/tiny", "--yes", "--sha256", "0" * 64)
    assert failed.exit_code == 1
    assert f"no weights there have the SHA-256 {'0' * 64}" in failed.stderr
    assert hub.paths("/me/") == []
    digest = hashlib.sha256(WEIGHT).hexdigest()
    assert boc("model", "get", "me/tiny", "--yes", "--sha256", digest.upper()).exit_code == 0


def test_a_digest_chooses_among_several_weights(hub: Hub, place: Path) -> None:
    other = b"\1" * 2000
    hub.repositories["me/tiny"][NEW] = FILES | {"open_clip_model.safetensors": other}
    told = {file.name: file.sha256 for file in hub_client.look("me/tiny").files}
    assert set(told) == set(FILES)
    chosen = hub_client.look("me/tiny", sha256=hashlib.sha256(other).hexdigest())
    assert {file.name for file in chosen.files} == set(FILES) - {"model.safetensors"} | {"open_clip_model.safetensors"}


def test_without_a_server_the_two_lines_to_do_by_hand_are_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    failed = boc("model", "get", "me/tiny", "--yes", "--revision", NEW)
    assert failed.exit_code == 1
    assert f"hf download me/tiny --revision {NEW} --local-dir model" in failed.stderr
    assert "--encoder clip:model" in failed.stderr
    assert not place.exists()


def test_nobody_is_asked_without_a_terminal(hub: Hub, place: Path) -> None:
    failed = boc("model", "get", "me/tiny")
    assert failed.exit_code == 1
    assert "licence   mit" in failed.stderr
    assert "add --yes" in failed.stderr
    assert hub.paths("/me/") == []


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n\n", "y\n"])
def test_a_licence_can_be_refused(hub: Hub, place: Path, tmp_path: Path, answer: str) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(COMMAND, env=environment(hub, tmp_path), stdin=slave, stderr=subprocess.PIPE, text=True)
    os.write(master, answer.encode())
    _, told = process.communicate(timeout=300)
    os.close(master)
    os.close(slave)
    assert "licence   mit" in told
    if answer == "n\n":
        assert "nothing was downloaded" in told
        assert process.returncode == 1
        assert hub.paths("/me/") == []
        assert not place.exists()
    else:
        assert process.returncode == 0
        assert held(place) == FILES


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_download_continues(hub: Hub, place: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_200_000, resource.RLIM_INFINITY))

    failed = subprocess.run(
        [*COMMAND, "--yes"], env=environment(hub, tmp_path), capture_output=True, text=True, preexec_fn=limit
    )
    assert failed.returncode == 1
    assert "cannot be written" in failed.stderr
    assert "repeat the command: it continues" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not place.exists()
    hub.asked.clear()
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 0
    assert held(place) == FILES
    [start] = [asked.start for asked in hub.asked if asked.path.startswith("/stored/")]
    assert start >= 2 << 20


def test_too_little_room_is_told_before_anything_is_downloaded(hub: Hub, place: Path) -> None:
    hub.announced = {"model.safetensors": 10**17}
    failed = boc("model", "get", "me/tiny", "--yes")
    assert failed.exit_code == 1
    assert "are free; make room, or name another folder in BOC_MODELS" in failed.stderr
    assert hub.paths("/me/") == []


def test_a_server_that_sends_more_than_it_announced_is_left(hub: Hub, place: Path) -> None:
    hub.announced = {"config.json": 2}
    assert boc("model", "get", "me/tiny", "--yes").exit_code == 1
    assert not place.exists()


def test_refusals_of_the_server_are_told(hub: Hub) -> None:
    missing = boc("model", "get", "me/nothing", "--yes")
    assert "has no model me/nothing" in missing.stderr
    assert "has no revision 'v9'" in boc("model", "get", "me/tiny", "--yes", "--revision", "v9").stderr
    hub.gated = True
    assert "accept their conditions" in boc("model", "get", "me/tiny", "--yes").stderr
    hub.gated = False
    hub.repositories["me/tiny"][NEW] = {"config.json": b"{}", "model.onnx": b"0"}
    assert "has no weights that boc reads" in boc("model", "get", "me/tiny", "--yes").stderr
    for name in ("tiny", "../../etc", "a/..", "a/b/c", "", "me/tiny?x", "."):
        told = boc("model", "get", name, "--yes")
        assert told.exit_code == 1
        assert "no model" in told.stderr


def test_models_are_listed_verified_and_removed(hub: Hub, place: Path) -> None:
    assert json.loads(boc("model", "list", "--json").stdout) == []
    assert boc("model", "verify").exit_code == 0
    boc("model", "get", "me/tiny", "--yes")
    [told] = json.loads(boc("model", "list", "--json").stdout)
    assert told == {
        "repository": "me/tiny", "revision": NEW, "licence": "mit", "size": sum(map(len, FILES.values())),
        "folder": str(place),
    }  # fmt: skip
    assert "me/tiny" in boc("model", "list").stdout
    assert boc("model", "verify", "me/tiny").stdout == "me/tiny: unchanged\n"
    (place / "README.md").unlink()
    (place / "model.safetensors").write_bytes(WEIGHT[:-1] + b"x")
    changed = boc("model", "verify")
    assert changed.exit_code == 1
    assert "changed: README.md, model.safetensors; get it again" in changed.stdout
    assert boc("model", "remove", "me/tiny").exit_code == 0
    assert not place.exists()
    assert "no model me/tiny" in boc("model", "remove", "me/tiny").stderr
    assert "is not there" in boc("model", "verify", "clip").stderr


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "repository": "x"}', "\0"])
def test_a_damaged_record_is_told(hub: Hub, place: Path, text: str) -> None:
    place.mkdir(parents=True)
    (place / "boc-model.json").write_text(text)
    with pytest.raises(BocError, match="is no record of a model"):
        models.find("me/tiny")


@given(st.lists(st.sampled_from([*SETTINGS, *WEIGHTS, *CARDS, "model-00001-of-00002.safetensors", "a.py", "x/y.json",
                                 "pytorch_model-00001-of-00001.bin", "../config.json"]), unique=True))  # fmt: skip
def test_one_set_of_weights_is_wanted_and_nothing_strange(names: list[str]) -> None:
    chosen = wanted(names)
    assert set(chosen) <= set(names)
    assert not [name for name in chosen if "/" in name or name.endswith(".py")]
    assert all(map(is_wanted, chosen))
    assert [name for name in chosen if name in WEIGHTS] == [name for name in [first_weights(names)] if name]
    assert wanted(chosen) == chosen


def test_without_an_encoder_the_next_step_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.chdir(tmp_path)
    failed = boc("index", "photos", draw_pictures(tmp_path / "pictures", 2))
    assert failed.exit_code == 1
    assert "get one: boc model get clip, then repeat the command with --encoder clip" in failed.stderr
    with pytest.raises(EncoderError, match="boc model get someone/else, then repeat"):
        plugins.encoder("clip:someone/else")
    with pytest.raises(EncoderError, match="or one of clip, siglip2, multilingual"):
        plugins.encoder("klip")


@pytest.mark.slow
def test_a_downloaded_model_indexes_and_searches(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_clip(tmp_path / "tiny")
    hub.repositories["me/clip"] = {NEW: {path.name: path.read_bytes() for path in (tmp_path / "tiny").iterdir()}}
    monkeypatch.chdir(tmp_path)
    assert boc("model", "get", "me/clip", "--yes").exit_code == 0
    assert "model me/clip: " in boc("doctor", "--at", "file:none").stdout
    assert boc("index", "photos", draw_pictures(tmp_path / "p", 5), "--encoder", "clip:me/clip").exit_code == 0
    assert len(json.loads(boc("search", "photos", "a red box", "-k", "3", "--json").stdout)["hits"]) == 3
    hub.dead = True  # and nothing more is asked for
    hub.asked.clear()
    here = plugins.encoder("clip:me/clip", "cpu").identity
    assert here.spec == "clip:me/clip"
    assert here.digest == plugins.encoder(f"clip:{tmp_path / 'tiny'}", "cpu").identity.digest
    assert not hub.asked
    config = place_of("me/clip") / "config.json"
    config.write_bytes(config.read_bytes() + b" ")
    with pytest.raises(EncoderError, match=r"not as it was downloaded \(config.json\); get it again: boc model get"):
        plugins.encoder("clip:me/clip", "cpu")
    (place_of("me/clip") / "model.safetensors").unlink()
    lacking = boc("doctor", "--at", "file:none")
    assert "lacks model.safetensors" in lacking.stdout
    assert lacking.exit_code == 1
