# pyright: basic, reportUnnecessaryTypeIgnoreComment=true
"""What a new user of ``boc`` tries first: it works, or one error says what is right.

pyright knows, too, which calls are wrong.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import boc

BOX = "a red box"
WHITE = np.full((8, 8, 3), 255, np.uint8)


@pytest.fixture
def index(library: Path, tmp_path: Path, monkeypatch) -> boc.Index:
    """An index of its own, in a folder with pictures a.png to c.png and a damaged one."""
    shutil.copytree(library / "index", tmp_path / "boc-data")
    shutil.copy(library / "photos.h5", tmp_path)
    for name in "abc":
        shutil.copy(library / "images" / "007.png", tmp_path / f"{name}.png")
    (tmp_path / "damaged.png").write_bytes(b"no picture")
    monkeypatch.chdir(tmp_path)
    return boc.open("photos", device="cpu")


RIGHT: list[Callable[[boc.Index], Any]] = [
    lambda index: boc.index_names() == ["photos"],
    lambda index: len(index) == len(list(index)) == 120,
    lambda index: {item.modality for item in index} == {"image", "text"},
    lambda index: index.search(text=BOX)[0] == index.search(BOX, 1)[0],
    lambda index: (
        len(
            index.search(
                BOX,
                3,
                filters=["width>=64"],
                find="image",
                sort="-width",
            ),
        )
        == 3
    ),
    lambda index: index.search(image="a.png", k=1)[0].id == "007.png",
    lambda index: (
        index.search(
            image=Image.open("a.png"),
            k=1,
        )[0].id
        == "007.png"
    ),
    lambda index: index.search(image=WHITE),
    lambda index: "003.png" not in [hit.id for hit in index.search(like="003.png", k=40)],
    lambda index: (
        len(
            index.search(
                like=["003.png"],
                unlike=["004.png"],
            ),
        )
        == 10
    ),
    lambda index: index.search(
        BOX,
        image="a.png",
        like=["003.png"],
    ),
    lambda index: index.search(BOX, image="a.png") != index.search(image="a.png"),
    lambda index: (
        [hit.id for hit in index.search_many([BOX, "a house"], 3)[0]]
        == [hit.id for hit in index.search(BOX, 3)]
    ),
    lambda index: index.search_many(texts=[BOX], find="text")[0][0].path is None,
    lambda index: index["003.png"] == index.get(id="003.png"),
    lambda index: index.explain(BOX, index.search(BOX)[0].id).score > 0,
    lambda index: index.explain(image=WHITE, id="003.png").item.id == "003.png",
    lambda index: index.info()["items"] == {"image": 40, "text": 80},
    lambda index: index.verify().right and index.verify("photos.h5").against == "features",
    lambda index: isinstance(index.duplicates(0.9999), list),
    lambda index: (
        boc.copy_index("photos", "other").images == 40 and boc.delete_index("other") == 120
    ),
    lambda index: index.compact().after > 0,
    lambda index: index.add("a.png").images == 1 and index["a.png"].path == Path("a.png").resolve(),
    lambda index: index.add(Path("a.png"), id="x") and index["x"].fields["width"] == 64,
    lambda index: index.add(path for path in Path().glob("[abc].png")).images == 3,
    lambda index: index.add(["a.png", "damaged.png"]).failed[0][0] == "damaged.png",
    lambda index: (
        index.add(
            [Path("a.png").read_bytes(), b"no"],
            ids=["x", "y"],
        ).images
        == 1
    ),
    lambda index: index.add(Image.open("a.png"), id="x") and index.search(image="a.png")[1].id,
    lambda index: (
        index.add(
            WHITE,
            id="x",
            fields={"taken": "2024-05-01"},
        ).images
        == 1
    ),
    lambda index: index.add("photos.h5").replaced == 120,
    lambda index: index.delete("003.png") == boc.DeleteReport(1, []),
    lambda index: index.delete(["003.png", "z"]).unknown == ["z"] and "003.png" not in index,
]

WRONG: list[tuple[Callable[[boc.Index], Any], type[Exception], str]] = [
    (
        lambda index: boc.open("photo"),
        boc.BocError,
        "no index 'photo'.*photos",
    ),
    (
        lambda index: boc.build_index("x", "a.png", encodr="clip"),  # type: ignore
        TypeError,
        "unexpected keyword argument 'encodr'",
    ),
    (
        lambda index: index.search(BOX, top_k=5),  # type: ignore
        TypeError,
        "unexpected keyword argument 'top_k'",
    ),
    (
        lambda index: index.search([BOX, "a house"]),  # type: ignore
        boc.BocError,
        r"search_many\(\[...\]\) for several",
    ),
    (
        lambda index: index.search(Path("a.png")),  # type: ignore
        boc.BocError,
        "image= for a picture",
    ),
    (
        lambda index: index.search_many(BOX),
        boc.BocError,
        r"must be a list, .* write \['a red box",
    ),
    (
        lambda index: index.search(like="nobody"),
        boc.BocError,
        "the index has no item 'nobody'",
    ),
    (
        lambda index: index.search(
            BOX,
            image="a.png",
            vector=[1.0],
        ),
        boc.BocError,
        "a vector is a complete query",
    ),
    (
        lambda index: index.explain("003.png", BOX),
        boc.BocError,
        r"explain\('a dog', hit.id\)",
    ),
    (
        lambda index: index.add(WHITE),
        boc.BocError,
        "got None; give id= for one picture",
    ),
    (
        lambda index: index.add(WHITE / 2, id="x"),
        boc.BocError,
        "float64 is not a picture; pass",
    ),
    (
        lambda index: index.add(["a.png", WHITE], id="x"),
        boc.BocError,
        "2 pictures need the same number of ids",
    ),
    (
        lambda index: index.add([WHITE, WHITE], ids=["x", "x"]),
        boc.BocError,
        "2 pictures have the id",
    ),
    (
        lambda index: index.add("photos.h5", id="x"),
        boc.BocError,
        "pass metadata= for other sources",
    ),
    (
        lambda index: index.add("damaged.png"),
        boc.BocError,
        "no picture can be used",
    ),
    (
        lambda index: index.add("a.png", fields={"year": 1}),
        boc.BocError,
        "does not declare the metadata fields year:keyword",
    ),
    (
        lambda index: index.add(
            "a.png",
            fields={"width": "wide"},
        ),
        boc.BocError,
        "width is of type integer, but 'wide' is not; use a 64-bit integer",
    ),
    (
        lambda index: index.delete(3),  # type: ignore
        boc.BocError,
        "ids must be one or more ids, got 3",
    ),
]


@pytest.mark.parametrize(
    "number",
    range(len(RIGHT)),
)
def test_right_tries_work(index: boc.Index, number: int):
    assert RIGHT[number](index)


@pytest.mark.parametrize(
    "number",
    range(len(WRONG)),
)
def test_wrong_tries_name_what_is_right(index: boc.Index, number: int):
    call, kind, message = WRONG[number]
    count = len(index)
    with pytest.raises(kind, match=message):
        call(index)
    assert len(boc.open("photos")) == count


def test_pictures_in_memory_have_no_path(index: boc.Index):
    index.add(
        [
            Image.open("a.png"),
            np.asarray(Image.open("b.png").convert("RGB")),
        ],
        ids=["x", "y"],
    )
    hits = {hit.id: hit for hit in index.search(image="a.png", k=3)}
    assert [hits[id].path for id in "xy"] == [None, None]
    assert hits["x"].score == pytest.approx(hits["007.png"].score)
    assert "path" not in repr(hits["x"])
    assert index.delete("x").deleted == 1


def test_fields_are_taken_as_they_are(index: boc.Index):
    """A bar parts the values of a table's cell alone, and None is no value, as in JSON."""
    fields = {"camera": "a|b", "lens": None, "keywords": ("red", None, "e\u0301")}
    index.add(WHITE, id="x", fields=fields)
    held = next(item.fields for item in index if item.id == "x")
    assert [held.get(name) for name in fields] == ["a|b", None, ["red", "\u00e9"]]


def test_vectors_have_no_path(tmp_path: Path):
    np.save(
        tmp_path / "rows.npy",
        np.eye(16, dtype=np.float32),
    )
    boc.build_index("rows", tmp_path / "rows.npy", at=f"file:{tmp_path}")
    hit = boc.open("rows", f"file:{tmp_path}").search(
        vector=np.eye(16)[5],
        k=1,
    )[0]
    assert (hit.id, hit.path) == ("5", None)
