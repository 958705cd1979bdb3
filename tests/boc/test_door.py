"""``import boc``: the public names, and the index as an object."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import UploadFile
from PIL import Image

import boc
from boc import build_index, plugins
from boc.codecs import global_code
from boc.errors import BocError
from boc.progress import Bars
from tests.helpers import draw_pictures


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, boc; {code}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()} | set(done.stdout.split())


def test_import_is_lazy():
    loaded = loaded_by("dir(boc)")
    assert loaded.isdisjoint(
        {
            "numpy",
            "scipy",
            "torch",
            "click",
            "boc.types",
            "boc.search.searcher",
            "boc.manage.build",
        },
    )
    assert {"numpy", "boc.types"} <= loaded_by("boc.Item")


def test_every_public_name_is_there_and_listed():
    assert set(boc.__all__) == set(boc._MODULES) <= set(dir(boc))
    for name in boc.__all__:
        assert getattr(boc, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'boc' has no attribute 'serach'"):
        boc.serach  # type: ignore[attr-defined]  # noqa: B018


def run_apart(coroutine: Any) -> Any:
    """Run a coroutine in a thread of its own: this one may have the event loop of a browser."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@pytest.fixture
def at(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'indexes'}"


def test_build_add_and_delete(library: Path, at: str):
    code = global_code("dictionary", terms=8)
    ticks = []
    report = build_index(
        "photos",
        str(library / "photos.h5"),
        at=at,
        code=code,
        rm=3,
        progress=lambda *tick: ticks.append(tick),
    )
    assert (
        report.images,
        report.texts,
        report.failed,
        report.up_to_date,
    ) == (40, 80, [], False)
    assert ticks[-1] == ("indexing", 120, 120)
    index = boc.open("photos", at)
    assert (
        index.info()["rm"],
        index.info()["terms"],
        len(index),
    ) == (3, 8, 120)
    item = index.get("003.png")
    assert index.delete(["003.png", "nobody.png"]) == boc.DeleteReport(1, ["nobody.png"])
    assert len(index) == 119
    with pytest.raises(BocError, match=r"has no item '003\.png'"):
        index.get("003.png")
    assert index.delete("004.png").deleted == 1  # one id, not its characters
    assert index.add([library / "photos.h5"]).texts == 80
    assert (len(index), index.get("003.png")) == (120, item)


@pytest.mark.slow
def test_an_index_follows_its_pictures_and_other_processes(
    library: Path,
    tmp_path: Path,
    at: str,
):
    pictures = tmp_path / "pictures"
    shutil.copytree(library / "images", pictures)
    build_index(
        "photos",
        pictures,
        encoder=f"tern:{library / 'model'}",
        at=at,
        device="cpu",
    )
    index = boc.open("photos", at)
    other = boc.open("photos", at)
    (pictures / "000.png").unlink()
    assert index.sync(pictures).removed == 1
    assert (len(index), len(other)) == (39, 40)
    other.refresh()
    assert len(other) == 39
    assert "000.png" not in [hit.id for hit in index.search("a red box", k=40)]
    shutil.copy(library / "images" / "000.png", pictures)
    assert index.sync(pictures).added == 1
    assert (
        index.search(
            image=pictures / "000.png",
            k=1,
        )[0].id
        == "000.png"
    )


@pytest.fixture(scope="module")
def pets(library: Path) -> boc.Index:
    return boc.open("photos", f"file:{library / 'index'}")


WRONG: list[tuple[Callable[[boc.Index], object], str]] = [
    (lambda index: boc.open(5), "5 is not a valid index name; use lower-case letters"),
    (
        lambda index: boc.open("photos", "/tmp/data"),
        "'/tmp/data' is not an address; use file:DIR, for example file:/tmp/data",
    ),
    (
        lambda index: index.search(
            image=io.TextIOWrapper(io.BytesIO(b"\xff")),
        ),
        "opened with 'rb', got TextIOWrapper",
    ),
    (
        lambda index: boc.open("nothing", index.at),
        "no index 'nothing'",
    ),
    (lambda index: build_index("x", 5), "a source must be a path or a list of paths, got 5"),
    (
        lambda index: build_index("x", "photos.h5", code=5),
        "code must be a string such as 'dictionary:2/64'",
    ),
    (lambda index: index.search(), "the query has no wanted part"),
    (
        lambda index: index.search(np.zeros(16)),
        "got ndarray; .* vector= for numbers",
    ),
    (
        lambda index: index.search(vector=np.zeros((2, 16))),
        r"must have shape \(d,\), got \(2, 16\)",
    ),
    (
        lambda index: index.search(vector=[1.0, 2.0]),
        r"have shape \(1, 2\); pass an array of shape \(n, 16\)",
    ),
    (
        lambda index: index.search(
            vector=[1.0] * 16,
            hybrid="rrf",
        ),
        "search by sentences, or leave hybrid out",
    ),
    (
        lambda index: index.search(image=io.StringIO("x")),
        "a file opened with 'rb', got StringIO",
    ),
    (
        lambda index: index.search(
            image=UploadFile(io.BytesIO()),
        ),
        r"got UploadFile; for an upload, pass upload\.file",
    ),
    (lambda index: index.search(image=b""), r"the picture: empty file \(0 bytes\)"),
    (lambda index: index.search("a dog", k=0), "k must be at least 1, got 0"),
    (lambda index: index.search(image=5), "image must be a path, a PIL image, an array, bytes"),
    (
        lambda index: build_index("x", "photos.h5", rm="3"),
        "rm must be a number, such as 5, got '3'",
    ),
    (lambda index: index.explain("a dog", "nobody.png"), "no item 'nobody.png' in the index"),
    (lambda index: index.explain(id="003.png"), "give either a sentence or a picture"),
    (lambda index: index["nobody.png"], "has no item 'nobody.png'"),
    (
        lambda index: index.get(index.search("a red box")[0]),
        "pass the id of an item, such as hit.id",
    ),
    (lambda index: index.search(image="."), "Is a directory.*; check its name and folder"),
    (
        lambda index: build_index("x", np.zeros((2, 2))),
        r"got array\(\[\[0\., .*; save arrays with numpy\.save",
    ),
    (lambda index: plugins.encoder(object()), "an encoder must be a name .* got object"),
    (lambda index: index.sync(None), "a source must be a path or a list of paths, got None"),
]


@pytest.mark.parametrize(
    ("call", "message"),
    WRONG,
    ids=[message for _, message in WRONG],
)
def test_a_wrong_call_is_answered_with_the_right_one(
    pets: boc.Index,
    call: Callable[[boc.Index], object],
    message: str,
):
    with pytest.raises(BocError, match=message):
        call(pets)


@pytest.mark.parametrize(
    "picture",
    [
        str,
        Path.read_bytes,
        lambda path: io.BytesIO(path.read_bytes()),
        Image.open,
        lambda path: Image.open(path).convert("CMYK"),
        lambda path: np.asarray(Image.open(path).convert("RGB")),
    ],
)
def test_a_picture_in_any_form_finds_the_same(
    pets: boc.Index,
    library: Path,
    picture: Callable[[Path], Any],
):
    path = library / "images" / "007.png"
    assert pets.search(image=picture(path)) == pets.search(image=path)


def test_a_picture_in_memory_is_turned_as_its_file(
    pets: boc.Index,
    library: Path,
    tmp_path: Path,
):
    turned = Image.Exif()
    turned[0x0112] = 6
    with Image.open(library / "images" / "007.png") as picture:
        picture.resize((64, 32)).save(
            tmp_path / "turned.png",
            exif=turned,
        )
    with Image.open(tmp_path / "turned.png") as picture:
        assert pets.search(image=picture) == pets.search(image=tmp_path / "turned.png")


def test_a_vector_finds_what_its_sentence_finds(pets: boc.Index):
    vector = pets.searcher.encoder.encode_texts(["a red box"]).vectors[0]
    hits = pets.search(
        "a red box",
        5,
        filters=None,
        sort="width",
    )
    for same in (
        vector,
        vector.astype(np.float64),
        vector.tolist(),
    ):
        assert pets.search(vector=same, k=5, sort="width") == hits


def test_an_index_holds_items_by_id(pets: boc.Index):
    assert ("003.png" in pets, "nobody.png" in pets) == (True, False)
    assert pets["003.png"] == pets.get("003.png")
    assert [item.id for item in pets] == sorted(item.id for item in pets)
    assert len(list(pets)) == len(pets)
    assert pets.search("a red box", 3) == pets.search("a red box", k=np.int64(3))
    assert pets.search(
        np.str_("a red box"),
        filters=("width>10", "height<99"),
    ) == pets.search(
        "a red box",
    )


@pytest.mark.slow
def test_a_model_folder_may_be_a_path_and_bars_show_the_progress(
    library: Path,
    tmp_path: Path,
    at: str,
    capsys,
):
    pictures = tmp_path / "pictures"
    shutil.copytree(library / "images", pictures)
    build_index(
        "photos",
        pictures,
        encoder=library / "model",
        at=at,
        device="cpu",
        progress=True,
    )
    said = capsys.readouterr().err
    assert [
        (
            re.findall(
                rf"{stage}: +100%.* (\d+/\d+) ",
                said,
            )
            or [""]
        )[-1]
        for stage in ("encoding", "indexing")
    ] == [
        "40/40",
        "40/40",
    ]
    (pictures / "000.png").unlink()
    draw_pictures(tmp_path / "more", 41)
    shutil.copy(tmp_path / "more/images/040.png", pictures)
    index = boc.open("photos", at, device="cpu")
    assert index.sync(pictures).removed == 1
    assert capsys.readouterr().err == ""
    ticks = []
    index.add(
        tmp_path / "more/images",
        progress=lambda *tick: ticks.append(tick),
    )
    assert ticks[-1] == ("indexing", 41, 41)
    boc.copy_index("photos", "other", at=at, progress=True)
    assert "copying: 100%" in capsys.readouterr().err


def test_bars_follow_each_other(capsys):
    bars = Bars(mininterval=0)
    for stage, done, total in [
        ("one", 0, 4),
        ("one", 2, 4),
        ("two", 1, 2),
        ("two", 2, 2),
        ("none", 0, 0),
    ]:
        bars(stage, done, total)
    tick = bars.ticks("three", 5)
    tick(2)
    tick(3)
    bars.close()
    bars.close()
    ends = [
        line.rpartition("\r")[2].split() for line in capsys.readouterr().err.split("\n") if line
    ]
    assert [(words[0], words[1].partition("%")[0]) for words in ends if "%" in words[1]] == [
        ("one:", "50"),
        ("two:", "100"),
        ("three:", "100"),
    ]


def test_warm_loads_the_encoder_where_there_is_one(library: Path, tmp_path: Path, at: str):
    warm = boc.open("photos", f"file:{library / 'index'}", device="cpu")
    assert "encoder" not in vars(warm.searcher)
    warm.warm()
    assert "encoder" in vars(warm.searcher)
    np.save(
        tmp_path / "rows.npy",
        np.eye(16, dtype=np.float32),
    )
    build_index("rows", tmp_path / "rows.npy", at=at)
    boc.open("rows", at).warm()


def test_hits_are_values_a_table_and_pictures(
    pets: boc.Index,
    monkeypatch,
):
    hits = pets.search("a red box", k=3, collapse=True)
    assert json.loads(json.dumps([hit.to_dict() for hit in hits])) == [
        {
            "id": hit.id,
            "modality": "image",
            "score": hit.score,
            "content": hit.path,
            **({"duplicates": list(hit.duplicates)} if hit.duplicates else {}),
            "fields": dict(hit.fields),
        }
        for hit in hits
    ]
    html = pets.search("a red box", k=61, find="text")._repr_html_()
    assert (
        html.count("<figure>"),
        "and 1 more" in html,
        "data:image" in html,
    ) == (60, True, False)
    assert hits._repr_html_().count('<img src="data:image/jpeg') == 3
    pytest.importorskip("pandas")
    table = hits.to_pandas()
    assert table["id"].tolist() == [hit.id for hit in hits]
    assert table["width"].tolist() == [hit.fields["width"] for hit in hits]
    assert {"fields", "content_hash"}.isdisjoint(table)
    assert [
        *pets.search(
            "a red box",
            filters="width>9999",
        ).to_pandas(),
    ] == [
        "id",
        "modality",
        "score",
        "content",
    ]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BocError, match="install it with: pip install pandas"):
        hits.to_pandas()


@pytest.mark.slow
def test_completion_offers_the_options():
    import jedi

    offered = {
        each.name
        for each in jedi.Script('import boc\nboc.open("photos").search("a dog", ').complete()
    }
    assert {"k=", "image=", "vector=", "like="} <= offered
    offered = {
        each.name for each in jedi.Script('import boc\nboc.build_index("photos", ').complete()
    }
    assert {"encoder=", "code=", "progress="} <= offered
    offered = {
        each.name for each in jedi.Script('import boc\nboc.open("photos").add("more", ').complete()
    }
    assert {"id=", "fields=", "metadata=", "images=", "ocr=", "progress="} <= offered
    offered = {
        each.name
        for each in jedi.Script('import boc\nboc.open("photos").sync("photos", ').complete()
    }
    assert {"metadata=", "exclude=", "keep_missing=", "remove_many=", "progress="} <= offered


def test_a_service_of_ones_own_answers_32_clients_at_once(pets: boc.Index, library: Path):
    page = (Path(__file__).parents[2] / "docs/howto/from-python.md").read_text(
        encoding="utf-8",
    )
    own = {"boc": boc, "index": pets}
    for code in page.partition("## In your own web service")[2].split("```python\n")[1:]:
        exec(code.partition("```")[0], own)
    sentences = [f"a {colour} box" for colour in ("red", "blue", "green", "yellow")] * 8
    found = {sentence: [hit.id for hit in pets.search(sentence)] for sentence in sentences[:4]}
    assert any(one != other for one, other in pairwise(found.values()))
    picture = (library / "images" / "007.png").read_bytes()

    async def ask(app):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url="http://here",
        ) as client:
            good = [
                client.get(
                    "/search",
                    params={"q": sentence},
                )
                for sentence in sentences
            ]
            odd = [
                client.get("/search", params=asked)
                for asked in ({"q": ""}, {"q": "a", "filters": "x"})
            ]
            odd += [
                client.post(
                    "/like",
                    files={"picture": data},
                )
                for data in (b"hello", picture)
            ]
            answers = await asyncio.gather(*good, *odd)
            return answers[:32], answers[32:]

    answers, odd = run_apart(ask(own["app"]))
    assert [answer.json() for answer in answers] == [found[sentence] for sentence in sentences]
    assert [answer.status_code for answer in odd] == [400, 400, 400, 200]
    assert "describe the picture" in odd[0].json()["error"]
    assert "'x' is not a filter" in odd[1].json()["error"]
    assert odd[3].json()[0] == "007.png"
    answers, odd = run_apart(ask(own["service"]))
    assert [answer.json() for answer in answers] == [found[sentence] for sentence in sentences]
    assert odd[0].status_code == 400
