"""The commands as they are meant to be used: what stands on stdout, what on the disk, what is done
twice."""

import json
import os
import re
import shlex
import shutil
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from boc.cli import main
from boc.errors import BocWarning
from boc.evaluate.verify import verify
from boc.inputs.features import FeatureFile
from boc.inputs.file_facts import FACTS
from boc.rerank.storage import store
from boc.search.queries import Query
from boc.search.searcher import Searcher
from boc.types import MODALITIES
from tests.helpers import boc, draw_pictures, parse, run

TRAIN = (
    "--set=epochs=2",
    "--set=batch_size=8",
    "--set=held_out=8",
    "--set=visual_width=16",
    "--set=joint_width=16",
    "--set=feedforward=16",
    "--set=heads=2",
    "--set=text_layers=1",
)
LINE = re.compile(r" *(\d+) +(-?\d\.\d{4})  (\S+)(?:  (.*))?")


def answers(*arguments: object) -> list[dict[str, Any]]:
    """What ``boc search ... --json`` prints, an object a line."""
    result = run("search", *arguments, "--json")
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for what is only remembered of them."""
    found = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".checked"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def at(home: Path) -> str:
    return f"--at=file:{home / 'index'}"


def encoder(home: Path) -> str:
    return f"--encoder=tern:{home / 'model'}"


@pytest.fixture
def home(library: Path, tmp_path: Path) -> Path:
    """A copy of the library, to write in. Its index knows the encoder of the original."""
    shutil.copytree(library, tmp_path / "home")
    return tmp_path / "home"


QUERIES = {
    "sentence": (["a red box at the left"], ["a red box at the left"]),
    "picture": (["--image", "{home}/images/003.png"], ["{home}/images/003.png"]),
    "sentences": (["--queries", "{home}/queries.txt"], ["a blue box", "on the right: ü 猫"]),
}


@pytest.mark.parametrize(
    ("options", "queries"),
    QUERIES.values(),
    ids=QUERIES.keys(),
)
@pytest.mark.parametrize("find", MODALITIES)
def test_search_output(
    library: Path,
    tmp_path: Path,
    options: list[str],
    queries: list[str],
    find: str,
):
    (tmp_path / "queries.txt").write_text("a blue box\n\n  on the right: ü 猫 \n", encoding="utf-8")
    places = {"{home}/queries.txt": str(tmp_path / "queries.txt")}
    given = [
        places.get(
            option,
            option.format(home=library),
        )
        for option in options
    ]
    found = answers(
        "photos",
        *given,
        "--find",
        find,
        "-k",
        7,
        at(library),
    )
    assert [answer["query"] for answer in found] == [
        query.format(home=library) for query in queries
    ]
    for answer in found:
        assert set(answer) - {"id", "plan", "note"} == {"query", "hits"}
        assert answer.get("plan", "all") == "all"  # there are few items
        assert len(answer["hits"]) == 7
        scores = [hit["score"] for hit in answer["hits"]]
        assert scores == sorted(scores, reverse=True)
        for hit in answer["hits"]:
            assert set(hit) - {"fields"} == {"id", "modality", "score", "content"}
            assert ("fields" in hit) == (find == "image")  # those of its file
            assert hit["modality"] == find
    shown = run(
        "search photos",
        *given,
        "--find",
        find,
        "-k",
        7,
        at(library),
    )
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    for answer in found:
        if len(found) > 1:
            assert lines.pop(0) == answer["query"]
        for rank, hit in enumerate(answer["hits"], 1):
            match = LINE.fullmatch(lines.pop(0))
            assert match is not None
            content = hit["content"] if find == "text" else None
            assert match.groups() == (
                str(rank),
                f"{hit['score']:.4f}",
                hit["id"],
                content,
            )
    assert not lines


def test_search_by_feature_file(library: Path):
    """An item of the index asks as its vector does, but is not its own hit."""
    records = answers(
        "photos",
        "--queries",
        library / "photos.h5",
        "--find",
        "image",
        at(library),
    )
    with FeatureFile(library / "photos.h5") as file:
        items = file.items("image") + file.items("text")
    assert [record["query"] for record in records] == [
        i.content if i.modality == "text" else i.id for i in items
    ]
    for number in (0, 39):
        id = items[number].id
        like = answers(
            "photos",
            "--like",
            id,
            "-k",
            9,
            "--find",
            "image",
            at(library),
        )[0]["hits"]
        assert like == [hit for hit in records[number]["hits"] if hit["id"] != id][:9]


@pytest.mark.slow
def test_a_minus_makes_hits_less_like_an_item(library: Path):
    def hits(*options: str) -> list[str]:
        return [
            hit["id"]
            for hit in answers(
                "photos",
                *options,
                "-k",
                40,
                "--find",
                "image",
                at(library),
            )[0]["hits"]
        ]

    hits_of = Searcher.open("photos", f"file:{library / 'index'}").search_query
    query = Query.of(
        "a red box",
        like=["003.png"],
        unlike=["007.png"],
    )
    expected = [hit.item.id for hit in hits_of(query, k=40, find="image")]
    assert hits("a red box", "--like", "003.png", "--like", "-007.png") == expected


def test_queries_may_come_from_a_pipe(library: Path):
    arguments = [
        "search",
        "photos",
        "--queries",
        "-",
        "--json",
        at(library),
    ]
    piped = CliRunner().invoke(main, arguments, input="a red box\nsomething green\n")
    found = [json.loads(line) for line in piped.stdout.splitlines()]
    for answer, text in zip(
        found,
        ("a red box", "something green"),
        strict=True,
    ):
        [alone] = answers("photos", text, at(library))
        assert answer["query"] == text
        assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in alone["hits"]]
        # Sentences that are encoded together are rounded otherwise.
        scores = [hit["score"] for hit in alone["hits"]]
        assert [hit["score"] for hit in answer["hits"]] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "photos", "--queries", "-"],
        ["delete", "photos", "-"],
    ],
)
def test_a_closed_standard_input_is_told(
    library: Path,
    monkeypatch,
    arguments: list[str],
):
    monkeypatch.setattr("boc.cli.options.sys.stdin", None)
    with pytest.raises(
        click.ClickException,
        match="the standard input is closed; redirect a file to the standard input",
    ):
        main.main(
            [*arguments, at(library)],
            standalone_mode=False,
        )


@pytest.mark.slow
def test_html_is_written_beside_what_is_printed(library: Path, tmp_path: Path):
    plain = run(
        f'search photos "a red box" -k 5 {at(library)}',
    )
    page = tmp_path / "new" / "hits.html"
    shown = run(
        f'search photos "a red box" -k 5 --html {page} {at(library)}',
    )
    assert shown.stdout == plain.stdout
    text = page.read_text(encoding="utf-8")
    assert text.count("<img src=") == 5
    assert "a red box" in text


def test_info_shows_the_facts_of_an_index(library: Path):
    facts = json.loads(
        run(
            f"info photos {at(library)} --json",
        ).stdout,
    )
    assert facts["items"] == {"image": 40, "text": 80}
    shown = run(f"info photos {at(library)}").stdout
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert lines["items"] == "40 pictures, 80 captions"
    assert lines["code"] == "dictionary:2/64"
    assert lines["steps"].startswith("Center(), Dictionary(")
    assert lines["encoder"] == facts["encoder"] == f"tern:{library / 'model'}"
    assert lines["weights"].startswith(f"SHA-256 {facts['weights'][:16]}")
    assert lines["postings"].startswith(f"{facts['postings']} (")
    assert lines["vectors"] == "16 x float16"
    index = library / "index" / "photos"
    sizes = {p.name: p.stat().st_size / 120 for p in index.glob("*-*/*")}
    assert lines["bytes"].startswith(f"{sum(sizes.values()):.0f} per item (postings ")
    dense = sum(sizes[f"{name}.npy"] for name in ("vectors", "compact", "compact_scales"))
    assert f"vectors {dense:.0f}, " in lines["bytes"]
    assert lines["re-rank"] == "dot, 10 candidates per hit; all compared: the code took no part"


def test_a_repeated_index_command_changes_no_file(home: Path):
    before = files(home / "index")
    result = run(
        f"index photos {home}/photos.h5 {at(home)}",
    )
    assert result.stdout == "photos is up to date: 40 pictures and 80 captions\n"
    assert "Next: boc search photos " in result.stderr
    assert files(home / "index") == before


def test_another_code_needs_replace(home: Path):
    before = files(home / "index")
    again = (
        "index",
        "photos",
        home / "photos.h5",
        "--code",
        "scalar:3",
        at(home),
    )
    refused = boc(*again)
    assert refused.exit_code == 1
    assert (
        "already has an index 'photos' with other items; rebuild it with --replace"
        in refused.stderr
    )
    assert files(home / "index") == before
    assert run(*again, "--replace").stdout == "photos: 40 pictures and 80 captions\n"
    told = json.loads(run(f"info photos {at(home)} --json").stdout)
    assert 0 < told["postings"] <= 3 * 120
    assert run(*again).stdout.startswith("photos is up to date")


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    ["captions.csv", "images", "regions.h5"],
)
def test_index_equals_extract_and_index(library: Path, tmp_path: Path, source: str):
    place = f"--at=file:{tmp_path / 'index'}"
    run(
        "extract",
        library / source,
        "-o",
        tmp_path / "f.h5",
        encoder(library),
    )
    run(f"index two {tmp_path}/f.h5 {place}")
    result = run(
        "index one",
        library / source,
        encoder(library),
        place,
    )
    captions = 0 if source == "images" else 80
    assert result.stdout == f"one: 40 pictures and {captions} captions\n"
    assert "encoding" in result.stderr
    assert "indexing" in result.stderr
    assert sorted(p.name for p in (tmp_path / "index").iterdir()) == ["one", "two"]
    for find in MODALITIES[: 2 if captions else 1]:
        asked = (
            "--queries",
            library / "photos.h5",
            "--find",
            find,
            "-k",
            100,
            place,
        )
        assert answers("one", *asked) == answers("two", *asked)
    again = boc(
        "index one",
        library / source,
        encoder(library),
        place,
    )
    assert again.exit_code == 1
    assert "boc sync" in again.stderr


def test_an_index_ends_with_the_next_command(library: Path, tmp_path: Path):
    np.save(
        tmp_path / "rows.npy",
        np.eye(16, dtype=np.float32),
    )
    for name, source, query in (
        ("one", library / "photos.h5", ""),
        ("two", tmp_path / "rows.npy", "--like ID"),
    ):
        said = run(
            f"index {name} {source}",
            f"--at=file:{tmp_path / 'new place'}",
        ).stderr.splitlines()[-1]
        match = re.fullmatch(r"Next: (boc search .*), or (boc serve .*)", said)
        assert match is not None
        assert query in said
        search, serve = (shlex.split(command) for command in match.groups())
        assert parse("serve", serve[2:]).params["browse"]
        assert query or search[-1] in (library / "captions.csv").read_text()
        assert len(run(*[word.replace("ID", "3") for word in search[1:]]).stdout.splitlines()) == 10


@pytest.mark.slow
def test_a_place_under_the_home_folder_is_found(
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    run(
        f"index photos {library}/captions.csv",
        encoder(library),
        "--at",
        "file:~/data",
    )
    assert (tmp_path / "user" / "data" / "photos" / "CURRENT").exists()
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.slow
def test_extract_from_regions_equals_from_pictures(library: Path, tmp_path: Path):
    """To the bit where regions are stored as they are; halves of them change little."""
    whole, direct, through = (tmp_path / name for name in ("regions.h5", "direct.h5", "through.h5"))
    run(
        f"extract {library}/captions.csv -o",
        whole,
        "--regions",
        "grid",
        "--set=dtype=float32",
    )
    run(
        f"extract {library}/captions.csv -o",
        direct,
        encoder(library),
    )
    run("extract", whole, "-o", through, encoder(library))
    assert through.read_bytes() == direct.read_bytes()
    run(
        f"extract {library}/regions.h5 -o {tmp_path}/half.h5",
        encoder(library),
    )
    with FeatureFile(direct) as one, FeatureFile(tmp_path / "half.h5") as other:
        assert np.abs(one.vectors("image") - other.vectors("image")).max() <= 0.01
        assert np.array_equal(
            one.vectors("text"),
            other.vectors("text"),
        )


def test_extract_settings(library: Path, tmp_path: Path):
    path = tmp_path / "f.h5"
    run(
        f"extract {library}/regions.h5 -o {path}",
        encoder(library),
        "--set=dtype=float32",
        "--set=concepts=false",
    )
    with FeatureFile(path) as file, FeatureFile(library / "photos.h5") as full:
        assert file.header.dtype == "float32"
        assert file.memory_map("image", "dense/vectors").dtype == np.float32
        assert not file.ragged_arrays("image")
        assert full.ragged_arrays("image") == {"concepts", "boxes"}
        assert file.batch("text", 0, 1).embeddings.words is None
        assert full.batch("text", 0, 1).embeddings.words == [
            ["a", "red", "box", "at", "the", "left"],
        ]


@pytest.mark.usefixtures("left_to_torch")
def test_train_on_a_finished_folder_reports_recall(home: Path):
    before = {name: data for name, data in files(home / "model").items() if name != ".lock"}
    result = run(
        f"train {home}/regions.h5 -o {home}/model",
        *TRAIN,
    )
    assert result.stderr == ""
    history = json.loads((home / "model" / "history.json").read_text())
    best = next(entry for entry in history["history"] if entry["step"] == history["best_step"])
    for line, side in zip(
        result.stdout.splitlines(),
        ("text_to_image", "image_to_text"),
        strict=False,
    ):
        assert (
            f"R@1 {best[side]['r1']:.1f}  R@5 {best[side]['r5']:.1f}  R@10 {best[side]['r10']:.1f}"
            in line
        )
    assert result.stdout.splitlines()[2:] == [
        f"model in {home / 'model'}; use it with --encoder tern:{home / 'model'}",
    ]
    assert {name: data for name, data in files(home / "model").items() if name != ".lock"} == before


@pytest.mark.slow
@pytest.mark.usefixtures("left_to_torch")
def test_train_from_a_table_equals_from_regions(library: Path, tmp_path: Path):
    result = run(
        f"train {library}/captions.csv -o {tmp_path}/model",
        *TRAIN,
    )
    assert [line.partition(":")[0] for line in result.stdout.splitlines()[:2]] == [
        "sentence to picture",
        "picture to sentence",
    ]
    assert len(result.stdout.splitlines()) == 3
    for word in ("cutting regions", "training", "epoch 1:", "epoch 2:"):
        assert word in result.stderr
    trained = files(tmp_path / "model")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= trained.keys()
    assert trained.items() <= files(library / "model").items()


@pytest.mark.slow
def test_moved_model(library: Path, tmp_path: Path):
    shutil.copytree(library / "model", tmp_path / "model")
    place = f"--at=file:{tmp_path / 'index'}"
    run(f"index photos {library}/captions.csv --encoder=tern:{tmp_path}/model {place}")
    before = answers("photos", "a red box", place)
    (tmp_path / "model").rename(tmp_path / "moved")
    lost = boc(f'search photos "a red box" {place}')
    assert lost.exit_code == 1
    assert str(tmp_path / "model") in lost.stderr
    assert (
        answers("photos", "a red box", place, "--encoder", f"tern:{tmp_path / 'moved'}") == before
    )
    again = run(
        f"index photos {library}/captions.csv --encoder=tern:{tmp_path}/moved {place} --replace",
    )
    assert again.stdout.startswith(
        "photos: 40 pictures",
    )  # the manifest names the place of the encoder


METADATA = (
    "id,year:integer,tag,title:text\n000.png,2019,box|red,A "
    "box\n001.png,2020,box,\n002.png#0,2021,,\n"
)


@pytest.fixture
def described(home: Path) -> Path:
    """The library with the index ``described``, whose first three pictures have metadata."""
    (home / "metadata.csv").write_text(METADATA)
    result = run(
        f"index described {home}/photos.h5 --metadata {home}/metadata.csv {at(home)}",
    )
    assert result.stdout == "described: 40 pictures and 80 captions\n"
    return home


@pytest.mark.slow
def test_filters_keep_what_the_table_says(described: Path):
    def found(*conditions: str, find: str = "text") -> dict[str, Any]:
        hits = answers(
            "described",
            "a box",
            "-k",
            200,
            "--find",
            find,
            *[f"--filter={condition}" for condition in conditions],
            at(described),
        )[0]["hits"]
        fields = {hit["id"]: hit.get("fields", {}) for hit in hits}
        return {
            key: {name: value for name, value in each.items() if name not in FACTS}
            for key, each in fields.items()
        }

    first = {
        "year": 2019,
        "tag": ["box", "red"],
        "title": "A box",
    }
    assert found("year<=2019", find="image") == {"000.png": first}
    assert found("tag=box") == {
        f"00{i}.png#{j}": [first, {"year": 2020, "tag": "box"}][i] for i in (0, 1) for j in (0, 1)
    }
    assert found("tag=box", "year>2019", find="image") == {"001.png": {"year": 2020, "tag": "box"}}
    assert found("year=2021") == {"002.png#0": {"year": 2021}}
    assert len(found("tag!=box")) == 76
    assert found("year=1999") == {}
    hits = answers(
        "described",
        "a box",
        "-k",
        40,
        "--find=image",
        "--sort=-year",
        at(described),
    )[0]["hits"]
    assert [hit["id"] for hit in hits[:2]] == ["001.png", "000.png"]
    best = answers(
        "described",
        "a box",
        "-k",
        40,
        "--find=image",
        at(described),
    )[0]["hits"]
    assert hits[2:] == [hit for hit in best if "year" not in hit.get("fields", {})]
    told = run(f"info described {at(described)}").stdout
    assert "tag:keyword, taken:date, " in told


def test_lines_of_no_item_are_noted(home: Path):
    (home / "metadata.csv").write_text("id,year:integer\n000.png,2019\nlost.png,2020\n")
    result = run(
        f"index other {home}/photos.h5 --metadata {home}/metadata.csv {at(home)}",
    )
    assert (
        "note: 1 metadata lines match no item here (for example 'lost.png')"
        in result.stderr.splitlines()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        [],
        ["--code=dictionary"],
        ["--code=soft"],
        ["--concepts=int8"],
    ],
)
def test_add_equals_one_load(home: Path, code: list[str]):
    """Half the pictures are indexed, then the other half is put to them, and some of the first
    again."""
    ids = [f"{i:03d}.png" for i in range(40)]
    for part, chosen in (
        ("first", ids[:20]),
        ("second", ids[15:]),
        ("rest", ids[:15]),
    ):
        (home / f"{part}.txt").write_text("\n".join(chosen))
        run(
            f"extract {home}/regions.h5 --ids",
            home / f"{part}.txt",
            "-o",
            home / f"{part}.h5",
            encoder(home),
        )
    if code == ["--code=soft"]:
        run(
            f"build-codebook {home}/photos.h5 -o {home}/book.npz --clusters 9",
        )
        code = [f"--code=soft(z=2, codebook='{home / 'book.npz'}')"]
    run(
        f"index grown {home}/first.h5",
        *code,
        at(home),
    )
    before = Searcher.open("grown", f"file:{home / 'index'}")
    result = run(
        f"add grown {home}/second.h5 {at(home)}",
    )
    assert result.stdout == "grown: 25 pictures and 50 captions added, replacing 15 items\n"
    grown = Searcher.open("grown", f"file:{home / 'index'}").index
    assert grown.manifest.items == {"image": 40, "text": 80}
    assert grown.manifest.source != before.index.manifest.source
    assert verify(
        grown,
        files=[home / "second.h5", home / "rest.h5"],
    ).right
    if "--concepts=int8" in code:
        with FeatureFile(home / "second.h5") as file:
            batch = file.batch("image", 0, 25)
        sets = store(batch.embeddings.concepts, "int8")
        assert np.array_equal(
            grown.concepts([item.id for item in batch.items]).values,
            sets.values,
        )


@pytest.mark.slow
def test_add_pictures_with_metadata(described: Path, tmp_path: Path):
    draw_pictures(tmp_path / "new", 3)
    for path in (tmp_path / "new" / "images").iterdir():
        path.rename(path.with_name(f"new-{path.name}"))
    (tmp_path / "metadata.csv").write_text("id,year:integer\nnew-000.png,2030\n")
    appended = (
        "add",
        "described",
        tmp_path / "new" / "images",
        at(described),
    )
    result = run(*appended, "--metadata", tmp_path / "metadata.csv")
    assert result.stdout == "described: 3 pictures and 0 captions added\n"
    hits = answers(
        "described",
        "a box",
        "--filter=year>=2020",
        at(described),
    )[0]["hits"]
    assert {hit["id"]: hit["fields"]["year"] for hit in hits} == {
        "001.png": 2020,
        "new-000.png": 2030,
    }
    assert (
        run(f"info described {at(described)}")
        .stdout.splitlines()[0]
        .endswith("43 pictures, 80 captions")
    )


def test_deleting_takes_items_away(home: Path):
    result = run(
        f'delete photos 000.png "000.png#0" 000.png {at(home)}',
    )
    assert result.stdout == "photos: 2 items deleted\n"
    result = CliRunner().invoke(
        main,
        ["delete", "photos", "-", at(home)],
        input="001.png\n\nnope\n002.png\nnor this\n",
    )
    assert result.exit_code == 0
    assert result.stdout == "photos: 2 items deleted\n"
    assert result.stderr.splitlines() == ["no item nope in photos", "no item nor this in photos"]
    found = {
        hit["id"]
        for hit in answers(
            "photos",
            "a box",
            "-k",
            200,
            at(home),
        )[0]["hits"]
    }
    assert found == {f"{i:03d}.png" for i in range(3, 40)}
    assert (
        run(f"info photos {at(home)}").stdout.splitlines()[0].endswith("37 pictures, 79 captions")
    )
    before = files(home / "index")
    assert boc(f"delete photos nope {at(home)}").stdout == "photos: 0 items deleted\n"
    assert files(home / "index") == before
    assert run(
        f"index photos {home}/photos.h5 --replace {at(home)}",
    ).stdout.startswith(
        "photos: 40",
    )


def test_deleting_all_removes_the_index(home: Path):
    run(f"index other {home}/photos.h5 {at(home)}")
    assert (
        run(f"delete photos --all {at(home)}").stdout
        == "photos: 120 items deleted, index removed\n"
    )
    assert run(f"info {at(home)}").stdout.splitlines()[-1].split() == ["indexes", "other"]
    next((home / "index" / "other").glob("segment-*/rows.npy")).unlink()
    assert (
        run(f"delete other --all {at(home)}").stdout == "other: everything deleted, index removed\n"
    )
    assert run(f"info {at(home)}").stdout.splitlines()[-1].split() == ["indexes", "none"]


def test_info_tells_what_a_place_is(library: Path):
    told = json.loads(run(f"info --json {at(library)}").stdout)
    assert told["indexes"] == ["photos"]
    assert told["engine"].startswith("embedded")
    lines = run(f"info {at(library)}").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(told)


def test_warnings_are_notes(monkeypatch):
    def warn() -> None:
        warnings.warn(BocWarning("cut\nshort"), stacklevel=2)
        with pytest.warns(UserWarning, match="stranger"):
            warnings.warn("a stranger", UserWarning, stacklevel=2)

    monkeypatch.setitem(
        main.commands,
        "warn",
        click.Command("warn", callback=warn),
    )
    for _ in range(2):
        assert run("warn").stderr == "note: cut short\n"


def test_omp_wait_policy(monkeypatch):
    for given, kept in ((None, "passive"), ("active", "active")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if given:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        assert boc("info --at file:nowhere").exit_code in (0, 1)
        assert os.environ["OMP_WAIT_POLICY"] == kept
