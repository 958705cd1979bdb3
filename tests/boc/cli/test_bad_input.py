"""What a newcomer can get wrong: one line on stderr that names what to do, status 1 or 2, nothing
damaged."""

import hashlib
import json
import shutil
from pathlib import Path

import h5py
import pytest

from tests.helpers import boc, run


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below a folder by its path: another file there, or a write, has another number,
    size or time."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", ".checked")
    ]
    return {
        str(path): (
            path.stat().st_ino,
            path.stat().st_size,
            path.stat().st_mtime_ns,
        )
        for path in files
    }


@pytest.fixture(scope="module")
def home(library: Path, tmp_path_factory) -> Path:
    """A copy of the library with some broken things beside it."""
    home = tmp_path_factory.mktemp("bad") / "home"
    shutil.copytree(library, home)
    (home / "empty").mkdir()
    (home / "notes.txt").write_text("no pictures here")
    (home / "elsewhere.csv").write_text("image,caption\nnowhere.png,hello\n")
    (home / "ids.txt").write_text("no-such-picture\n")
    (home / "wrong.h5").write_text("not HDF5")
    shutil.copy(home / "photos.h5", home / "stranger.h5")
    with h5py.File(home / "stranger.h5", "a") as file:
        file.attrs["digest"] = "0" * 64
    (home / "strange.csv").write_text("id,year:integer\nx.png,2020\n")
    (home / "fine.csv").write_text("id,year:integer,tag,title:text\n000.png,2020,box,A box\n")
    (home / "one.csv").write_text("image,caption\n000.png,a box\n000.png,the box\n")
    at = f"--at=file:{home / 'index'}"
    encoder = f"--encoder=tern:{home / 'model'}"
    run(
        "index",
        "described",
        home / "photos.h5",
        "--metadata",
        home / "fine.csv",
        at,
    )
    run("index", "tiny", home / "one.csv", encoder, at)
    for name in ("odd", "short"):
        shutil.copytree(home / "index" / "photos", home / "index" / name)
    odd = home / "index" / "odd"
    commit = (
        (odd / (odd / "CURRENT").read_text())
        .read_text()
        .replace(
            "Dictionary",
            "SecretDictionary",
        )
    )
    renamed = f"commit-{hashlib.sha256(commit.encode()).hexdigest()[:16]}.json"
    (odd / renamed).write_text(commit)
    (odd / "CURRENT").write_text(renamed)
    rows = next((home / "index" / "short").glob("segment-*/rows.npy"))
    rows.write_bytes(rows.read_bytes()[:-4])
    shutil.copytree(home / "model", home / "other-model")
    config = json.loads((home / "other-model" / "config.json").read_text())
    (home / "other-model" / "config.json").write_text(json.dumps(config))
    shutil.copytree(home / "model", home / "broken-model")
    weights = home / "broken-model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (home / "images" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    return home


AT = "--at file:{home}/index"
ENCODER = "--encoder tern:{home}/model"
# Arguments ({home} is filled in), and words that the answer must hold.
CASES = [
    ("search photos", ["TEXT", "'photos' is interpreted as the name of an index"]),
    (f"search nosuch hello {AT}", ["no index 'nosuch'", "photos", "boc index"]),
    (f"search Photos hello {AT}", ["'Photos'", "lower-case", "such as photos"]),
    (f"search photos hello -n 5 {AT}", ["no such option -n", "put TEXT in quotes: 'hello -n 5'"]),
    (f"search photos ' ' {AT}", ["sentence is empty"]),
    (f"search photos hello --queries {{home}}/notes.txt {AT}", ["give TEXT", "--queries FILE"]),
    (f"search photos -- -snow {AT}", ["put TEXT in quotes"]),
    (f"search photos --image {{home}}/none.png {AT}", ["none.png", "No such file"]),
    (f"search photos --image {{home}}/images/broken.png {AT}", ["broken.png"]),
    (f"search photos --queries {{home}}/none.h5 {AT}", ["none.h5", "boc extract"]),
    (f"search photos --queries {{home}}/stranger.h5 {AT}", ["stranger.h5", "use the same encoder"]),
    (f"search photos hello --html /proc/hits.html {AT}", ["/proc"]),
    (f"search odd hello {AT}", ["SecretDictionary", "upgrade boc"]),
    (f"search short hello {AT}", ["rows.npy", "cut short"]),
    (f"search photos hello {AT} --encoder tern:{{home}}/none", ["none", "boc train"]),
    (
        f"search photos hello {AT} --encoder tern:{{home}}/other-model",
        ["differ from the weights", "--encoder"],
    ),
    (f"search photos hello {AT} --encoder tern:{{home}}/broken-model", ["damaged model"]),
    (
        f"search photos hello {AT} --encoder teran:{{home}}/model",
        ["contains a tern, not a teran; write tern:"],
    ),
    (
        f"index photos {{home}}/none {AT} {ENCODER}",
        ["no such file or folder", "folder of pictures"],
    ),
    (f"index photos {{home}}/elsewhere.csv {AT} {ENCODER}", ["nowhere.png", "--images"]),
    (
        f"extract {{home}}/captions.csv --ids {{home}}/ids.txt -o {{home}}/new.h5 {ENCODER}",
        ["no-such-picture"],
    ),
    (f"index photos {{home}}/captions.csv {AT}", ["boc sync", "boc add", "--replace"]),
    (f"index other {{home}}/photos.h5 --code nosuch {AT}", ["unknown code 'nosuch'", "dictionary"]),
    (f"index other {{home}}/photos.h5 --code scalar:33 {AT}", ["z must be between 1 and 32", "33"]),
    ("build-codebook {home}/regions.h5 -o {home}/new.npz", ["regions", "boc extract"]),
    (
        "build-codebook {home}/photos.h5 -o {home}/new.npz --kind hard",
        ["'hard' is not one of", "learned"],
    ),
    (
        "convert {home}/notes.txt -o {home}/model --tokens {home}/notes.txt --regions grid",
        ["delete this one first"],
    ),
    (
        f"search photos hello --sort colour {AT}",
        ["sorted by 'colour'", "it has: camera, cut, folder"],
    ),
    (f"search photos hello --hybrid sum {AT}", ["'rrf', 'words'"]),
    (f"search photos hello --like 000.png --hybrid words {AT}", ["omit --image and --like"]),
    (f"search photos hello --hybrid words --collapse {AT}", ["omit collapse"]),
    (f"search photos --queries {{home}}/photos.h5 --hybrid words {AT}", ["needs sentences"]),
    (f"search photos hello --request {AT}", ["has no HTTP interface", "boc copy photos"]),
    (f"search photos hello --request --hybrid words {AT}", ["omit --queries, --hybrid"]),
    (
        f"search photos hello --request --json {AT}",
        ["--json, --paths and --request cannot be combined"],
    ),
    (
        f"add photos {{home}}/photos.h5 --metadata {{home}}/fine.csv {AT}",
        ["year:integer", "it declares: camera:keyword"],
    ),
    (f"delete photos {AT}", ["ids", "--all"]),
    (f"delete photos - {AT}", ["no ids"]),
    (f"delete tiny 000.png 000.png#0 000.png#1 {AT}", ["boc delete tiny --all"]),
    ("extract {home}/captions.csv -o {home}/new.h5", ["--encoder", "--regions"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --regions magic", ["magic", "grid"]),
    ("extract {home}/photos.h5 -o {home}/new.h5 --regions grid", ["photos.h5", "regions"]),
    (f"extract {{home}}/photos.h5 -o {{home}}/new.h5 {ENCODER}", ["embeddings"]),
    ("extract {home}/captions.csv --regions grid", ["-o"]),
    (
        "extract {home}/captions.csv -o {home}/new.h5 --set speed=9",
        ["unknown setting 'speed'", "known: precision"],
    ),
    ("train {home}/captions.csv -o {home}/new --set lr", ["NAME=VALUE"]),
    (
        "train {home}/regions.h5 -o {home}/new --set joint_width=30 --set held_out=4 --set "
        "batch_size=4",
        ["joint_width", "multiple"],
    ),
    (
        "train {home}/photos.h5 -o {home}/new --set held_out=4 --set batch_size=4",
        ["training needs regions"],
    ),
    (
        "train {home}/regions.h5 -o {home}/model --set epochs=9 --set held_out=4 --set "
        "batch_size=4",
        ["another recipe"],
    ),
]


@pytest.mark.parametrize(
    ("line", "words"),
    CASES,
    ids=[line for line, _ in CASES],
)
def test_the_error_says_what_to_do(home: Path, line: str, words: list[str]):
    before = contents(home)
    arguments = [
        part.strip("'").format(home=home) for part in line.replace("' '", "'\u00a0'").split(" ")
    ]
    result = boc(*[" " if part == "\u00a0" else part for part in arguments])
    assert result.exit_code in (1, 2), result.output
    assert result.stdout == ""
    message = result.stderr.splitlines()[-1]
    assert message.startswith("Error: ")
    for word in words:
        assert word in message
    assert contents(home) == before


@pytest.mark.slow
def test_extract_names_an_unreadable_picture(home: Path, tmp_path: Path):
    result = run(
        "extract",
        home / "images",
        "-o",
        tmp_path / "out.h5",
        "--regions",
        "grid",
    )
    assert "40 pictures" in result.stdout
    assert result.stderr.count("broken.png") == 1
    assert "1 item could not be used; 40 are done." in result.stderr
