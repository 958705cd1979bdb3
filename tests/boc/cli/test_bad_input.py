"""What a newcomer can get wrong: one line on stderr that names what to do, status 1 or 2, nothing damaged."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from boc.manifest import FORMAT
from tests.helpers import boc


def digest(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".lock", ".checked")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def home(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the library with some broken things beside it."""
    home = tmp_path_factory.mktemp("bad") / "home"
    shutil.copytree(library, home)
    (home / "empty").mkdir()
    (home / "notes.txt").write_text("no pictures here")
    (home / "columns.csv").write_text("file,text\na.png,hello\n")
    (home / "rows.csv").write_text("image,caption\n")
    (home / "elsewhere.csv").write_text("image,caption\nnowhere.png,hello\n")
    (home / "latin.csv").write_bytes("image,caption\na.png,caf\xe9\n".encode("latin-1"))
    (home / "ids.txt").write_text("no-such-picture\n")
    (home / "wrong.h5").write_text("not HDF5")
    with h5py.File(home / "foreign.h5", "w") as file:
        file["data"] = [1, 2, 3]
    shutil.copy(home / "photos.h5", home / "newer.h5")
    with h5py.File(home / "newer.h5", "a") as file:
        file.attrs["format"] = 99
    shutil.copy(home / "photos.h5", home / "stranger.h5")
    with h5py.File(home / "stranger.h5", "a") as file:
        file.attrs["digest"] = "0" * 64
    for name in ("photos", "stranger"):
        made = boc("build-codebook", home / f"{name}.h5", "-o", home / f"{name}.npz", "--clusters", 9)
        assert made.exit_code == 0, made.output
    (home / "years.csv").write_text("id,year:integer\n000.png,2020\n001.png,soon\n")
    (home / "strange.csv").write_text("id,year:integer\nx.png,2020\n")
    (home / "fine.csv").write_text("id,year:integer,tag,title:text\n000.png,2020,box,A box\n")
    (home / "one.csv").write_text("image,caption\n000.png,a box\n000.png,the box\n")
    at, encoder = f"--at=file:{home / 'index'}", f"--encoder=tern:{home / 'model'}"
    described = boc("index", "described", home / "photos.h5", "--metadata", home / "fine.csv", at)
    assert described.exit_code == 0, described.output
    tiny = boc("index", "tiny", home / "one.csv", encoder, at)
    assert tiny.exit_code == 0, tiny.output
    for name in ("newer", "odd", "short"):
        shutil.copytree(home / "index" / "photos", home / "index" / name)
    change_manifest(home, "newer", lambda text: text.replace(f'"format": {FORMAT}', '"format": 99'))
    change_manifest(home, "odd", lambda text: text.replace("RandomRotation", "SecretRotation"))
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


def change_manifest(home: Path, name: str, change: Callable[[str], str]) -> None:
    index = home / "index" / name
    commit = change((index / (index / "CURRENT").read_text()).read_text())
    renamed = f"commit-{hashlib.sha256(commit.encode()).hexdigest()[:16]}.json"
    (index / renamed).write_text(commit)
    (index / "CURRENT").write_text(renamed)


AT = "--at file:{home}/index"
ENCODER = "--encoder tern:{home}/model"
# Arguments ({home} is filled in), and words that the answer must hold.
CASES = [
    ("search photos", ["TEXT"]),
    (f"search nosuch hello {AT}", ["no index 'nosuch'", "photos", "boc index"]),
    (f"search Photos hello {AT}", ["'Photos'", "lower-case"]),
    (f"search ../photos hello {AT}", ["'../photos'", "cannot name"]),
    (f"search photos hello there {AT}", ["unexpected extra argument"]),
    (f"search photos ' ' {AT}", ["sentence is empty"]),
    (f"search photos hello -k 0 {AT}", ["k must be at least 1", "0"]),
    (f"search photos hello -k -3 {AT}", ["k must be at least 1", "-3"]),
    (f"search photos hello -k many {AT}", ["many", "integer"]),
    (f"search photos hello --rm 0 {AT}", ["rm must be at least 1"]),
    (f"search photos hello --find video {AT}", ["video", "image", "text"]),
    (f"search photos hello --queries {{home}}/notes.txt {AT}", ["give TEXT", "--queries FILE"]),
    (f"search photos --like nobody.png {AT}", ["nobody.png", "boc search prints"]),
    (f"search photos -- -snow {AT}", ["unexpected extra argument"]),
    (f"search photos {AT} -- -snow", ["nothing to look for", "add a sentence"]),
    (f"search photos --image {{home}}/none.png {AT}", ["none.png", "No such file"]),
    (f"search photos --image {{home}}/notes.txt {AT}", ["notes.txt", "not a picture"]),
    (f"search photos --image {{home}}/images/broken.png {AT}", ["broken.png"]),
    (f"search photos --queries {{home}}/none.h5 {AT}", ["none.h5", "boc extract"]),
    (f"search photos --queries {{home}}/foreign.h5 {AT}", ["foreign.h5", "not a feature file"]),
    (f"search photos --queries {{home}}/stranger.h5 {AT}", ["stranger.h5", "same encoder"]),
    (f"search photos --queries {{home}}/regions.h5 {AT}", ["regions", "boc extract"]),
    (f"search photos --queries {{home}}/none.txt {AT}", ["none.txt"]),
    (f"search photos hello --html {{home}}/empty {AT}", ["is a folder"]),
    (f"search photos hello --html /proc/hits.html {AT}", ["/proc"]),
    (f"search newer hello {AT}", ["format 99", "upgrade boc"]),
    (f"search odd hello {AT}", ["SecretRotation", "upgrade boc"]),
    (f"search short hello {AT}", ["rows.npy", "cut short"]),
    ("search photos hello --at nowhere", ["nowhere", "file:DIR"]),
    ("search photos hello --at file:", ["names no folder"]),
    ("search photos hello --at ftp://host", ["ftp", "known:", "file"]),
    (f"search photos hello {AT} --encoder tern:{{home}}/none", ["none", "boc train"]),
    (f"search photos hello {AT} --encoder tern:{{home}}/other-model", ["other weights", "--encoder"]),
    (f"search photos hello {AT} --encoder tern:{{home}}/broken-model", ["damaged model"]),
    (f"search photos hello {AT} --encoder magic:{{home}}/model", ["magic", "tern"]),
    (f"search photos hello {AT} --encoder tern", ["KIND:ARGUMENT"]),
    (f"index photos {{home}}/none {AT} {ENCODER}", ["no such file or folder", "folder of pictures"]),
    (f"index photos {{home}}/empty {AT} {ENCODER}", ["no pictures"]),
    (f"index photos {{home}}/notes.txt {AT} {ENCODER}", ["unknown kind of source", ".txt"]),
    (f"index photos {{home}}/columns.csv {AT} {ENCODER}", ["image,caption"]),
    (f"index photos {{home}}/rows.csv {AT} {ENCODER}", ["no rows"]),
    (f"index photos {{home}}/elsewhere.csv {AT} {ENCODER}", ["nowhere.png", "--images"]),
    (f"index photos {{home}}/latin.csv {AT} {ENCODER}", ["UTF-8"]),
    (f"extract {{home}}/captions.csv --ids {{home}}/ids.txt -o {{home}}/new.h5 {ENCODER}", ["no-such-picture"]),
    (f"index absent {{home}}/captions.csv {AT}", ["--encoder"]),
    (f"index photos {{home}}/captions.csv {AT}", ["boc sync", "boc add", "--replace"]),
    (f"sync absent {{home}}/captions.csv {AT}", ["no index 'absent'", "boc index"]),
    (f"sync photos {{home}}/photos.h5 {AT}", ["photos.h5 is a feature file", "folders of pictures"]),
    (f"sync photos {{home}}/nothing {AT}", ["no such file or folder"]),
    (f"index photos {{home}}/wrong.h5 {AT}", ["wrong.h5", "HDF5"]),
    (f"index photos {{home}}/foreign.h5 {AT}", ["foreign.h5", "not a feature file"]),
    (f"index photos {{home}}/newer.h5 {AT}", ["format 99", "upgrade boc"]),
    (f"index photos {{home}}/photos.h5 --code scalar:0 {AT}", ["z", "at least 1", "got 0"]),
    (f"index other {{home}}/photos.h5 --code scalar:33 {AT}", ["z must be between 1 and 32", "33"]),
    (f"index other {{home}}/photos.h5 --code scalar/99 {AT}", ["query_z must be between 1 and 32", "99"]),
    (f"index other {{home}}/photos.h5 --code 'bits(bits=77)' {AT}", ["from 1 to 15", "77"]),
    (
        f"index other {{home}}/photos.h5 --code dictionry {AT}",
        ["'dictionry'", "did you mean dictionary?", "known: scalar"],
    ),
    (f"index other {{home}}/photos.h5 --code 'soft(z=3' {AT}", ["'soft(z=3'", ") is missing", "write NAME"]),
    (f"index photos {{home}}/photos.h5 --code scalar:7 {AT}", ["--replace"]),
    ("index photos {home}/photos.h5 --at file:/proc/boc", ["/proc/boc"]),
    (f"index Photos! {{home}}/photos.h5 {AT}", ["lower-case"]),
    (f"index other {{home}}/photos.h5 --code soft {AT}", ["soft(codebook=FILE)", "boc build-codebook"]),
    (f"index other {{home}}/photos.h5 --code 'scalar(codebook=a.npz)' {AT}", ["'codebook'", "it is for hard"]),
    (f"index other {{home}}/photos.h5 --code 'hard(codebook={{home}}/none.npz)' {AT}", ["none.npz", "build-codebook"]),
    (f"index other {{home}}/photos.h5 --code 'hard(codebook={{home}}/photos.h5)' {AT}", ["not a codebook"]),
    (f"index other {{home}}/photos.h5 --code 'soft(codebook={{home}}/stranger.npz)' {AT}", ["other weights"]),
    (f"index other {{home}}/photos.h5 --code dictionary:17 {AT}", ["from 1 to 16", "17"]),
    (f"index other {{home}}/photos.h5 --code 'dictionary(terms=999999)' {AT}", ["from 1 to 262144", "999999"]),
    (f"index other {{home}}/photos.h5 --code 'dictionary(plain=true)' {AT}", ["'plain'", "it is for scalar"]),
    (f"index other {{home}}/photos.h5 --code 'hard:3(codebook={{home}}/photos.npz)' {AT}", ["hard", "'z'"]),
    (f"index other {{home}}/photos.h5 --code 'soft(plain=true)' {AT}", ["'plain'", "soft takes"]),
    (f"index other {{home}}/photos.h5 --code 'scalar(terms=4)' {AT}", ["'terms'", "it is for dictionary"]),
    (f"tune nosuch {AT}", ["no index 'nosuch'"]),
    (f"tune photos --target-recall 0 {AT}", ["between 0 and 1", "0"]),
    (f"tune photos -k 999 {AT}", ["k must be between 1", "999"]),
    (f"tune photos --queries {{home}}/stranger.h5 {AT}", ["same encoder"]),
    (f"explain photos hello nosuch.png {AT}", ["nosuch.png"]),
    (f"explain photos hello {AT}", ["ID"]),
    (f"explain photos ' ' 000.png {AT}", ["sentence is empty"]),
    (f"explain photos --image {{home}}/none.png 000.png {AT}", ["none.png"]),
    ("build-codebook {home}/regions.h5 -o {home}/new.npz", ["regions", "boc extract"]),
    ("build-codebook {home}/none.h5 -o {home}/new.npz", ["none.h5"]),
    ("build-codebook {home}/photos.h5 {home}/stranger.h5 -o {home}/new.npz", ["one encoder"]),
    ("build-codebook {home}/photos.h5 -o /proc/new.npz", ["/proc"]),
    ("build-codebook {home}/photos.h5 -o {home}/new.npz --kind hard", ["'hard' is not one of", "learned"]),
    ("convert {home}/notes.txt -o {home}/model --tokens {home}/notes.txt --regions grid", ["delete this one first"]),
    ("evaluate {home}/photos.h5 --ndcg {home}/notes.txt", ["notes.txt"]),
    (f"info nosuch {AT}", ["no index 'nosuch'"]),
    (f"search photos hello --filter year {AT}", ["'year' is no filter", "year>=2020"]),
    (f"search photos hello --filter year>2020 {AT}", ["no metadata field 'year'", "it has: camera, content_hash"]),
    (f"search described hello --filter yaer>2020 {AT}", ["no metadata field 'yaer'", "tag, taken, title, width, year"]),
    (f"search described hello --filter year>soon {AT}", ["'soon'", "whole number", "year", "integer"]),
    (f"search photos hello --sort colour {AT}", ["sorted by 'colour'", "it has: camera, content_hash"]),
    (f"search described hello --sort -yaer {AT}", ["sorted by 'yaer'", "tag, taken, title, width, year"]),
    (f"search described hello --sort title {AT}", ["sorted by title", "of type text"]),
    (f"search described hello --filter title=a {AT}", ["title is of type text", "--hybrid"]),
    (f"search photos hello --hybrid sum {AT}", ["rrf, sum:WEIGHT and words"]),
    (f"search photos hello --hybrid sum:0 {AT}", ["words_weight above 0"]),
    (f"search photos hello --hybrid sum:many {AT}", ["'many' is not a valid float"]),
    (f"search photos hello --like 000.png --hybrid words {AT}", ["leave pictures and items out"]),
    (f"search photos hello --hybrid words --collapse {AT}", ["leave out collapse"]),
    (f"search photos --queries {{home}}/photos.h5 --hybrid words {AT}", ["needs sentences"]),
    (f"search photos --like -000.png {AT}", ["nothing to look for"]),
    (f"search photos hello --request body {AT}", ["answers no HTTP requests", "boc copy photos"]),
    (f"search photos hello --request body --hybrid words {AT}", ["leave out --queries, --hybrid"]),
    (f"search photos hello --request body --json {AT}", ["leave out --queries, --hybrid, --html and --json"]),
    (f"search photos hello --hybrid both {AT}", ["both", "rrf"]),
    (f"search photos --image {{home}}/images/000.png --hybrid rrf {AT}", ["sentence"]),
    (f"index other {{home}}/photos.h5 --metadata {{home}}/none.csv {AT}", ["none.csv", "id,year:integer"]),
    (f"index other {{home}}/photos.h5 --metadata {{home}}/columns.csv {AT}", ["columns.csv, line 1", "must be id"]),
    (f"index other {{home}}/photos.h5 --metadata {{home}}/years.csv {AT}", ["years.csv, line 3", "year", "'soon'"]),
    (f"index other {{home}}/photos.h5 --metadata {{home}}/strange.csv {AT}", ["no id of the metadata", "'x.png'"]),
    (f"add nosuch {{home}}/photos.h5 {AT}", ["no index 'nosuch'"]),
    (f"add photos {{home}}/stranger.h5 {AT}", ["stranger.h5", "same encoder"]),
    (
        f"add photos {{home}}/photos.h5 --metadata {{home}}/fine.csv {AT}",
        ["year:integer", "it has: camera:keyword"],
    ),
    (f"delete nosuch 000.png {AT}", ["no index 'nosuch'", "photos"]),
    (f"delete nosuch --all {AT}", ["no index 'nosuch'", "photos"]),
    (f"delete photos {AT}", ["one of ID"]),
    (f"delete photos 000.png --all {AT}", ["one of ID"]),
    (f"delete photos - {AT}", ["no ids"]),
    (f"delete tiny 000.png 000.png#0 000.png#1 {AT}", ["boc delete tiny --all"]),
    ("extract {home}/captions.csv -o {home}/new.h5", ["--encoder", "--regions"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --regions magic", ["magic", "grid"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --regions tsv:{home}/none", ["no such table"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --regions tsv:{home}/notes.txt", ["notes.txt", "no table"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --regions files:{home}", ["bottom-up"]),
    ("extract {home}/captions.csv -o /proc/new.h5 --regions grid", ["/proc"]),
    ("extract {home}/captions.csv -o {home}/empty --regions grid", ["is a folder"]),
    ("extract {home}/photos.h5 -o {home}/new.h5 --regions grid", ["photos.h5", "regions"]),
    (f"extract {{home}}/photos.h5 -o {{home}}/new.h5 {ENCODER}", ["embeddings"]),
    ("extract {home}/captions.csv --regions grid", ["-o"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --set speed=9", ["no setting 'speed'", "known: precision"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --set workers=-1", ["-1 is not in the range"]),
    ("extract {home}/captions.csv -o {home}/new.h5 --set workers", ["NAME=VALUE"]),
    ("train {home}/captions.csv -o {home}/new --set depth=3", ["'depth'", "known"]),
    ("train {home}/captions.csv -o {home}/new --set lr=fast", ["lr must be a number", "fast"]),
    ("train {home}/captions.csv -o {home}/new --set lr", ["NAME=VALUE"]),
    ("train {home}/regions.h5 -o {home}/new --set batch_size=39 --set held_out=8", ["batch", "39"]),
    (
        "train {home}/regions.h5 -o {home}/new --set joint_width=30 --set held_out=4 --set batch_size=4",
        ["joint_width", "multiple"],
    ),
    (
        "train {home}/regions.h5 -o {home}/new --set text={home}/empty --set held_out=4 --set batch_size=4",
        ["no BERT folder"],
    ),
    ("train {home}/regions.h5 -o {home}/new --regions files:{home}", ["bottom-up"]),
    ("train {home}/photos.h5 -o {home}/new --set held_out=4 --set batch_size=4", ["training needs regions"]),
    ("train {home}/regions.h5 -o {home}/new --set held_out=40", ["held_out"]),
    ("train {home}/images -o {home}/new", ["image,caption"]),
    ("train {home}/regions.h5 -o {home}/model --set epochs=9 --set held_out=4 --set batch_size=4", ["another recipe"]),
    ("train {home}/regions.h5 -o {home}/new --device tpu", ["tpu"]),
    ("evaluate {home}/regions.h5", ["regions", "boc extract"]),
    ("evaluate {home}/none.h5", ["none.h5"]),
    ("find photos", ["find"]),
]


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line for line, _ in CASES])
def test_the_error_says_what_to_do(home: Path, line: str, words: list[str]) -> None:
    before = digest(home)
    arguments = [part.strip("'").format(home=home) for part in line.replace("' '", "'\u00a0'").split(" ")]
    result = boc(*[" " if part == "\u00a0" else part for part in arguments])
    assert result.exit_code in (1, 2), result.output
    assert result.stdout == ""
    message = result.stderr.splitlines()[-1]
    assert message.startswith("Error: ")
    for word in words:
        assert word in message
    assert digest(home) == before


@pytest.mark.slow
def test_a_picture_that_cannot_be_read_is_named_and_the_rest_is_done(home: Path, tmp_path: Path) -> None:
    result = boc("extract", home / "images", "-o", tmp_path / "out.h5", "--regions", "grid")
    assert result.exit_code == 1
    assert "40 pictures" in result.stdout
    assert result.stderr.count("broken.png") == 1
    assert "1 items could not be used; all others are done." in result.stderr
