"""A command never destroys what it did not make: its inputs, foreign files under the wanted name,
folders of others."""

from pathlib import Path

import pytest

from boc.errors import BocError
from boc.outputs import begins, check_folder, check_output
from tests.helpers import boc, contents

OURS = begins(b"ours")


@pytest.mark.parametrize("data", [b"", b"ours, of an earlier run"])
def test_own_output_is_replaced(tmp_path: Path, data: bytes):
    (tmp_path / "out").write_bytes(data)
    check_output(tmp_path / "out", OURS, tmp_path / "in", None)


@pytest.mark.parametrize(
    "data",
    [b"o", b"my only copy", b"an ours"],
)
def test_a_foreign_file_may_not(tmp_path: Path, data: bytes):
    (tmp_path / "out").write_bytes(data)
    with pytest.raises(BocError, match="another kind of file"):
        check_output(tmp_path / "out", OURS)


@pytest.mark.parametrize(
    "name",
    ["in", "../here/in", "link", "hard"],
)
def test_input_as_output_is_refused(tmp_path: Path, name: str):
    (tmp_path / "here").mkdir()
    source = tmp_path / "here" / "in"
    source.write_bytes(b"ours")
    (tmp_path / "here" / "link").symlink_to(source)
    (tmp_path / "here" / "hard").hardlink_to(source)
    with pytest.raises(BocError, match="input to this command"):
        check_output(tmp_path / "here" / name, OURS, source)


def test_check_folder(tmp_path: Path):
    check_folder(tmp_path, ["config.json"], lambda folder: False)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BocError, match=r"config\.json"):
        check_folder(tmp_path, ["tokens", "config.json"], lambda folder: False)
    check_folder(tmp_path, ["config.json"], lambda folder: True)
    (tmp_path / ".lock").touch()
    check_folder(tmp_path, ["config.json"], lambda folder: False)


# An output that must stay as it is, and a command that would write it.
WRITERS = [
    ("captions.csv", "extract {out} -o {out} --encoder tern:{home}/model"),
    ("images/000.png", "extract {home}/captions.csv -o {out} --encoder tern:{home}/model"),
    ("regions.h5", "extract {out} -o {out} --encoder tern:{home}/model"),
    ("photos.h5", "build-codebook {out} -o {out} --clusters 3"),
    ("captions.csv", "build-codebook {home}/photos.h5 -o {out} --clusters 3"),
    ("captions.csv", "search photos hello --html {out} --at file:{home}/index"),
    ("captions.csv", "search photos --queries {out} --html {out} --at file:{home}/index"),
    ("images/000.png", "search photos --image {out} --html {out} --at file:{home}/index"),
]


@pytest.mark.parametrize(("name", "command"), WRITERS)
def test_commands_replace_no_input_and_no_foreign_file(
    library: Path,
    name: str,
    command: str,
):
    out = library / name
    before = out.read_bytes()
    result = boc(*command.format(out=out, home=library).split())
    assert result.exit_code == 1, result.output
    assert str(out) in result.stderr
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "model.safetensors", "training/notes.txt"],
)
def test_model_replaces_no_foreign_file(library: Path, tmp_path: Path, name: str):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    result = boc(f"train {library}/regions.h5 -o {tmp_path} --set=held_out=8")
    assert result.exit_code == 1
    assert "boc did not create" in result.stderr
    assert contents(tmp_path) == {name: b"mine"}
