"""``boc model`` against a server that speaks the hub's protocol: what is downloaded, and what
remains after faults."""

import hashlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from boc import models, plugins
from boc.errors import BocError, EncoderError
from tests.encoders.layouts import LAYOUTS, arrange
from tests.encoders.test_clip import tiny_clip
from tests.helpers import boc, draw_pictures, run
from tests.hub import Hub, running

ROOT = Path(__file__).resolve().parents[3]
OLD = "a" * 40
NEW = "b" * 40
WEIGHT = bytes(range(256)) * 12_288  # 3 MB
FILES = {
    "config.json": b'{"model_type": "clip"}',
    "model.safetensors": WEIGHT,
    "README.md": b"# tiny\n",
}
COMMAND = [sys.executable, "-c", "from boc.cli import main; main()", "model", "get", "me/tiny"]
GET = ("model", "get", "me/tiny", "--yes")


@pytest.fixture
def hub(monkeypatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub with a model of two revisions, and an empty folder of models."""
    server = Hub(
        {
            "me/tiny": {
                OLD: {
                    **FILES,
                    "config.json": b"{}",
                    "vocab.txt": b"a",
                },
                NEW: FILES,
            },
        },
    )
    with running(server):
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("BOC_MODELS", str(tmp_path / "models"))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "models" / "me--tiny"


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != models.RECORD
    }


@pytest.mark.slow
def test_get_downloads_model_files_only(hub: Hub, place: Path):
    hub.repositories["me/tiny"][NEW] = FILES | {
        "model.py": b"import os",
        "onnx/model.onnx": b"0",
        "tf_model.h5": b"0",
    }
    hub.extra = ["../config.json", "sub/tokenizer.json"]
    done = subprocess.run(
        [*COMMAND, "--yes"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert files_of(place) == FILES
    assert [path.name for path in place.parent.iterdir()] == ["me--tiny"]
    files = {path.rpartition("/")[2] for path in hub.paths("/me/")}
    assert files == set(FILES) - {"model.safetensors"}
    assert hub.paths("/stored/") == {f"/stored/{hashlib.sha256(WEIGHT).hexdigest()}"}
    for request in hub.asked:
        assert "torch" not in request.headers["user-agent"]
        assert "authorization" not in request.headers
    assert "licence   mit" in done.stderr
    assert f"{sum(map(len, FILES.values())) / 1e6:.1f} MB in 3 files" in done.stderr
    assert (
        done.stdout.splitlines()[-1]
        == "To use it: boc index photos ~/Pictures --encoder clip:me/tiny"
    )
    record = json.loads((place / models.RECORD).read_text())
    assert (
        record["repository"],
        record["revision"],
        record["licence"],
    ) == ("me/tiny", NEW, "mit")
    assert record["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }


def test_get_again_and_other_revision(hub: Hub, place: Path):
    assert boc(*GET, "--revision", OLD).exit_code == 0
    assert files_of(place) == hub.repositories["me/tiny"][OLD]
    hub.asked.clear()
    assert "is already downloaded" in boc(*GET).stdout
    assert not hub.asked
    assert boc(*GET, "--revision", "main").exit_code == 0
    assert files_of(place) == FILES
    model = models.find("me/tiny")
    assert model is not None
    assert model.revision == NEW
    (place / "config.json").write_bytes(b"changed")
    assert boc(*GET).exit_code == 0
    assert files_of(place) == FILES


@pytest.mark.slow
def test_get_resumes_cut_connection(hub: Hub, place: Path):
    hub.cut = 2_000_000
    assert boc(*GET).exit_code == 0
    assert files_of(place) == FILES
    shutil.rmtree(place)
    hub.sent.clear()
    hub.cut = 2_000_000
    hub.dies = True
    failed = boc(*GET)
    assert failed.exit_code == 1
    assert "run the command again; complete files are kept" in failed.stderr
    assert models.find("me/tiny") is None
    hub.dead = False
    hub.dies = False
    hub.asked.clear()
    assert boc(*GET).exit_code == 0
    assert files_of(place) == FILES
    assert not hub.paths("/me/")  # of the small files


@pytest.mark.slow
def test_get_after_kill(hub: Hub, place: Path):
    hub.stall = 2_500_000
    process = subprocess.Popen([*COMMAND, "--yes"], stderr=subprocess.DEVNULL)
    while not hub.paths("/stored/"):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert not list(models.models())
    hub.stall = None
    assert boc(*GET).exit_code == 0
    assert files_of(place) == FILES


def test_get_wrong_bytes(hub: Hub, place: Path):
    hub.damage = True
    failed = boc(*GET)
    assert failed.exit_code == 1
    assert "model.safetensors does not match the digest that the server reports" in failed.stderr
    assert models.find("me/tiny") is None
    assert not (place / "model.safetensors").exists()
    hub.damage = False
    assert boc(*GET).exit_code == 0


def pair(ending: str = "", weight: bytes = WEIGHT) -> dict[str, bytes]:
    """The files of two networks in ONNX as Xenova has them."""
    return {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "preprocessor_config.json": b"{}",
        f"onnx/text_model{ending}.onnx": weight + b"t",
        f"onnx/vision_model{ending}.onnx": weight + b"v",
    }


def test_get_pinned_networks(
    hub: Hub,
    place: Path,
    monkeypatch,
):
    digests = {"onnx/text_model.onnx": "0" * 64}
    entry = models.ModelEntry("me/tiny", NEW, digests, "mit", 1, "")
    monkeypatch.setitem(models.CATALOGUE, "tiny", entry)
    hub.repositories["me/tiny"][NEW] = pair()
    failed = boc("model get tiny --yes")
    assert failed.exit_code == 1
    assert (
        f"onnx/text_model.onnx does not have the expected SHA-256 digest {'0' * 64}"
        in failed.stderr
    )
    assert not hub.paths("/me/")
    digests["onnx/text_model.onnx"] = hashlib.sha256(WEIGHT + b"t").hexdigest()
    assert boc("model get tiny --yes").exit_code == 0
    assert files_of(place) == pair()


def test_digests_of_the_first_download_hold(hub: Hub, place: Path):
    hub.repositories["me/tiny"][NEW] = pair()
    assert boc(*GET).exit_code == 0
    (place / "onnx" / "text_model.onnx").write_bytes(b"changed")
    hub.repositories["me/tiny"][NEW] = pair(weight=WEIGHT[::-1])
    assert "does not have the expected SHA-256 digest" in boc(*GET).stderr
    hub.repositories["me/tiny"][NEW] = pair()
    assert boc(*GET).exit_code == 0
    assert files_of(place) == pair()


def test_get_precision(hub: Hub, place: Path):
    hub.repositories["me/tiny"][NEW] = pair() | pair("_fp16") | FILES
    assert boc(*GET).exit_code == 0
    kept = pair() | FILES
    del kept["model.safetensors"]
    assert files_of(place) == kept
    assert boc(*GET, "--precision", "half").exit_code == 0
    assert {path.name for path in (place / "onnx").iterdir()} == {
        "text_model_fp16.onnx",
        "vision_model_fp16.onnx",
    }
    assert "is already downloaded" in boc(*GET, "--precision", "half").stdout
    refused = boc(*GET, "--precision", "8bit").stderr
    assert "lacks ONNX networks for text and pictures (precision: 8bit)" in refused


def test_what_is_missing_is_told_first(
    hub: Hub,
    place: Path,
    monkeypatch,
):
    monkeypatch.setattr("boc.cli.commands.model.find_spec", lambda name: None)
    told = boc("model get me/tiny").stderr
    assert "missing   torch, transformers; to use the model: pip install 'boc[encoders]'" in told
    hub.repositories["me/tiny"][NEW] = pair()
    told = boc("model get me/tiny").stderr
    assert "missing   onnxruntime, tokenizers; to use the model: pip install 'boc[search]'" in told
    usage = shutil.disk_usage(place.parents[1])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5_000_000))
    full = boc(*GET)
    assert full.exit_code == 1
    assert "5 MB are free, but 6 MB are needed; set BOC_MODELS" in full.stderr
    assert not hub.paths("/me/")
    del hub.repositories["me/tiny"][NEW]["preprocessor_config.json"]
    assert "contains no weights that boc can read" in boc(*GET).stderr


def test_two_repositories_are_one_model(hub: Hub, tmp_path: Path):
    halves = {
        "text": {"model.onnx": WEIGHT + b"t", "tokenizer.json": b"{}", "config.json": b"{}"},
        "vision": {"model.onnx": WEIGHT + b"v", "preprocessor_config.json": b"{}"},
    }
    hub.repositories |= {f"me/b-{name}": {NEW: files} for name, files in halves.items()}
    for name in halves:
        assert boc(f"model get me/b-{name} --yes").exit_code == 0
        assert files_of(tmp_path / "models" / f"me--b-{name}") == {
            f"{half}/{file}": data for half, files in halves.items() for file, data in files.items()
        }
    del hub.repositories["me/b-vision"]
    shutil.rmtree(tmp_path / "models" / "me--b-text")
    assert "has no model me/b-vision" in boc("model get me/b-text --yes").stderr


def test_get_weights_in_parts(hub: Hub, place: Path):
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = json.dumps({"weight_map": {"a": parts[0], "b": parts[1]}}).encode()
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": index,
        **dict.fromkeys(parts, b"0"),
    }
    hub.repositories["me/tiny"][NEW] = files | {
        "pytorch_model-00001-of-00001.bin": b"0",
        "x/model.safetensors": b"0",
    }
    assert boc(*GET).exit_code == 0
    assert files_of(place) == files
    assert models.weights(place) == ["model.safetensors.index.json", *parts]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n\n", "y\n"])
def test_get_asks_for_licence(hub: Hub, place: Path, answer: str):
    master, slave = pty.openpty()
    process = subprocess.Popen(COMMAND, stdin=slave, stderr=subprocess.PIPE, text=True)
    os.write(master, answer.encode())
    _, printed = process.communicate(timeout=300)
    os.close(master)
    os.close(slave)
    assert "licence   mit" in printed
    if answer == "y\n":
        assert process.returncode == 0
        assert files_of(place) == FILES
    else:
        assert "nothing was downloaded" in printed
        assert process.returncode == 1
        assert not hub.paths("/me/")


def test_get_errors(hub: Hub, monkeypatch):
    assert "has no model me/nothing" in boc("model get me/nothing --yes").stderr
    assert "has no revision 'v9'" in boc(*GET, "--revision", "v9").stderr
    alone = boc("model get me/tiny").stderr
    assert "licence   mit" in alone
    assert "add --yes" in alone
    hub.gated = True
    assert "accept the conditions" in boc(*GET).stderr
    hub.gated = False
    hub.repositories["me/tiny"][NEW] = {"config.json": b"{}", "model.onnx": b"0"}
    assert "contains no weights that boc can read" in boc(*GET).stderr
    for name in ("tiny", "../../etc", "a/..", "a/b/c", "", "me/tiny?x", "."):
        refused = boc("model get", name, "--yes")
        assert refused.exit_code == 1
        assert "unknown model" in refused.stderr
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    failed = boc(*GET, "--revision", NEW).stderr
    assert f"hf download me/tiny --revision {NEW} --local-dir model" in failed
    assert "--encoder clip:model" in failed


def test_list(hub: Hub, place: Path):
    assert json.loads(boc("model list --json").stdout) == []
    boc(*GET)
    [listed] = json.loads(boc("model list --json").stdout)
    expected = {
        "repository": "me/tiny",
        "revision": NEW,
        "licence": "mit",
        "size": sum(map(len, FILES.values())),
        "folder": str(place),
    }
    assert listed == expected
    assert "me/tiny" in boc("model list").stdout


def test_get_restores_damaged_files(hub: Hub, place: Path):
    boc(*GET)
    (place / "README.md").unlink()
    (place / "model.safetensors").write_bytes(WEIGHT[:-1] + b"x")
    assert boc(*GET).exit_code == 0
    assert files_of(place) == FILES


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"format": 2}', '{"format": 1, "repository": "x"}', "\0"],
)
def test_damaged_record(hub: Hub, place: Path, text: str):
    place.mkdir(parents=True)
    (place / models.RECORD).write_text(text)
    with pytest.raises(BocError, match="not a model record"):
        models.find("me/tiny")


def test_index_without_encoder(tmp_path: Path, monkeypatch, hub: Hub):
    monkeypatch.chdir(tmp_path)
    failed = boc("index photos", draw_pictures(tmp_path / "pictures", 2))
    assert failed.exit_code == 1
    assert (
        "get an encoder with boc model get clip, then try again with --encoder clip"
        in failed.stderr
    )
    with pytest.raises(EncoderError, match="boc model get someone/else, then try again"):
        plugins.encoder("clip:someone/else")
    with pytest.raises(EncoderError, match="or one of clip, siglip2, multilingual"):
        plugins.encoder("klip")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_downloaded_model_searches(
    hub: Hub,
    tmp_path: Path,
    monkeypatch,
    layout: str,
):
    tiny_clip(tmp_path / "tiny")
    made = arrange(tmp_path / "tiny", layout, "clip", tmp_path / "made")
    names = {"me/clip": made}
    if layout == "Qdrant":
        names = {"me/clip-text": made / "text", "me/clip-vision": made / "vision"}
    for name, folder in names.items():
        hub.repositories[name] = {NEW: files_of(folder)}
    name = min(names)
    monkeypatch.chdir(tmp_path)
    assert boc(f"model get {name} --yes").exit_code == 0
    assert f"models: {name}\n" in boc("doctor").stdout
    run("index", "photos", draw_pictures(tmp_path / "p", 5), "--encoder", f"clip:{name}")
    found = run("search", "photos", "a red box", "-k", "3", "--json")
    assert len(json.loads(found.stdout)["hits"]) == 3
    hub.asked.clear()
    identity = plugins.encoder(f"clip:{name}", "cpu").identity
    assert identity.spec == f"clip:{name}"
    assert not hub.asked
    config = next(models.place(name).rglob("config.json"))
    config.write_bytes(config.read_bytes() + b" ")
    with pytest.raises(
        EncoderError,
        match=r"files differ from the download \(.*config.json\); get it again: boc model get",
    ):
        plugins.encoder(f"clip:{name}", "cpu")
