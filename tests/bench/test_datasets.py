"""Published files become tables and feature files; broken ones are refused with the place and the
next step."""

import csv
import gzip
import json
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result

from bench.datasets import make
from boc.inputs.features import FeatureFile
from boc.inputs.sources import open_source


def convert(arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(make.main, arguments)
    assert result.exit_code == status, result.output
    return result


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        (folder / name).write_bytes(b"")


def table(out: Path) -> list[tuple[str, str]]:
    rows = list(
        csv.reader(
            StringIO(
                (out / "captions.csv").read_text(
                    encoding="utf-8",
                ),
            ),
        ),
    )
    assert rows[0] == ["image", "caption"]
    return [(image, caption) for image, caption in rows[1:]]


def ids(out: Path, split: str) -> list[str]:
    return (
        (out / f"{split}.ids.txt")
        .read_text(
            encoding="utf-8",
        )
        .split()
    )


def coco(name: str, first: int) -> dict[str, Any]:
    names = {key: f"COCO_{name}_{key:012d}.jpg" for key in (first, first + 1)}
    return {
        "images": [
            {
                "id": key,
                "file_name": file,
                "license": 3,
            }
            for key, file in names.items()
        ],
        "annotations": [
            {
                "image_id": first + 1,
                "id": 2,
                "caption": "A bicycle, a clock \n",
            },
            {
                "image_id": first,
                "id": 1,
                "caption": 'A "room" with blue walls',
            },
            {
                "image_id": first + 1,
                "id": 3,
                "caption": "  ",
            },
        ],
    }


def test_coco_annotations(tmp_path: Path):
    (tmp_path / "annotations").mkdir()
    for name, first in (("train2014", 10), ("val2014", 20)):
        (tmp_path / "annotations" / f"captions_{name}.json").write_text(
            json.dumps(coco(name, first)),
        )
    pictures = [
        f"{n}/COCO_{n}_{i:012d}.jpg"
        for n, i in (
            ("train2014", 10),
            ("train2014", 11),
            ("val2014", 21),
        )
    ]
    touch(tmp_path, *pictures)  # that of 20 is missing
    out = tmp_path / "out"
    done = convert(f"coco {tmp_path} -o {out}")
    assert table(out) == [
        (pictures[1], "A bicycle, a clock"),
        (pictures[0], 'A "room" with blue walls'),
        (pictures[2], "A bicycle, a clock"),
    ]
    assert set(ids(out, "train2014")) == set(pictures[:2])
    assert ids(out, "val2014") == [pictures[2]]
    assert (out / "missing.txt").read_text() == "val2014/COCO_val2014_000000000020.jpg\n"
    assert "1 pictures are missing, such as val2014/COCO_val2014_000000000020.jpg" in done.stderr
    assert "2 captions without a word" in done.stderr
    source = open_source(
        out / "captions.csv",
        out / "train2014.ids.txt",
        tmp_path,
    )
    assert [item.content for item in source.items if item.modality == "text"] == [
        "A bicycle, a clock",
        'A "room" with blue walls',
    ]


def karpathy(*images: tuple[str, str, list[str]], folder: str = "") -> dict[str, Any]:
    where = {"filepath": folder} if folder else {}
    listed = [
        {
            "filename": name,
            "split": split,
            "sentences": [{"raw": raw, "tokens": raw.split()} for raw in raws],
            **where,
        }
        for name, split, raws in images
    ]
    return {"images": listed}


@pytest.mark.parametrize(
    ("corpus", "file", "folder"),
    [
        ("coco", "dataset_coco.json", "val2014"),
        ("flickr30k", "dataset_flickr30k.json", ""),
    ],
)
def test_karpathy_splits_and_first_five(
    corpus: str,
    file: str,
    folder: str,
    tmp_path: Path,
):
    seven = [f"sentence {i}" for i in range(7)]
    out = tmp_path / "out"
    splits = {
        "train": ["a.jpg"],
        "restval": ["b.jpg"],
        "val": ["c.jpg"],
        "test": [],
    }
    splits = {
        split: [f"{folder}/{name}".lstrip("/") for name in names] for split, names in splits.items()
    }
    touch(
        tmp_path / "flickr30k-images" if corpus == "flickr30k" else tmp_path,
        *(name for names in splits.values() for name in names),
    )
    images = [
        ("a.jpg", "train", seven),
        ("b.jpg", "restval", ["a cat"]),
        ("c.jpg", "val", ["sea"]),
    ]
    (tmp_path / file).write_text(
        json.dumps(
            karpathy(
                *images,
                ("d.jpg", "test", ["gone"]),
                folder=folder,
            ),
        ),
    )
    done = convert(f"{corpus} {tmp_path} -o {out}")
    assert "2 sentences after the first five" in done.stderr
    (a,), (b,), (c,), _ = splits.values()
    assert table(out) == [
        *((a, sentence) for sentence in seven[:5]),
        (b, "a cat"),
        (c, "sea"),
    ]
    assert {split: ids(out, split) for split in splits} == splits
    convert(f"{corpus} {tmp_path} -o {tmp_path}/joined --restval")
    assert ids(tmp_path / "joined", "train") == [a, b]
    assert not (tmp_path / "joined" / "restval.ids.txt").exists()


def test_token_files(tmp_path: Path):
    (tmp_path / "results_20130124.token").write_text(
        "1.jpg#0\tTwo men #1 talk .\n1.jpg#1\tMen .\n2.jpg#0\tA dog .\n",
    )
    convert(f"flickr30k {tmp_path} -o {tmp_path}/out --no-images")
    assert table(tmp_path / "out") == [
        ("1.jpg", "Two men #1 talk ."),
        ("1.jpg", "Men ."),
        ("2.jpg", "A dog ."),
    ]
    eight = tmp_path / "eight"
    touch(eight, "Flicker8k_Dataset/1.jpg", "Flicker8k_Dataset/2.jpg")
    (eight / "Flickr8k.token.txt").write_text(
        "1.jpg#0\tA child\n2.jpg#0\tA girl\n3.jpg.1#0\tNobody has this\n",
    )
    (eight / "Flickr_8k.trainImages.txt").write_text("1.jpg\n9.jpg\n")
    (eight / "Flickr_8k.devImages.txt").write_text("2.jpg\r\n")
    convert(f"flickr8k {eight} -o {eight}/out")
    assert (
        ids(eight / "out", "train"),
        ids(eight / "out", "dev"),
    ) == (["1.jpg"], ["2.jpg"])
    assert (eight / "out" / "missing.txt").read_text().split() == ["3.jpg.1", "9.jpg"]


def test_multi30k(tmp_path: Path):
    with gzip.open(
        tmp_path / "captions.en.tsv.gz",
        "wt",
        encoding="utf-8",
    ) as file:
        file.write("1.jpg\t0\tTwo young guys\n1.jpg\t1\tMen\n")
    convert(f"multi30k {tmp_path} -o {tmp_path}/out --no-images")
    assert table(tmp_path / "out") == [
        ("1.jpg", "Two young guys"),
        ("1.jpg", "Men"),
    ]
    task = tmp_path / "task2"
    (task / "raw").mkdir(parents=True)
    (task / "image_splits").mkdir()
    (task / "image_splits" / "val_images.txt").write_text("1.jpg\n2.jpg#3\n")
    for number, lines in ((1, "a\nb\n"), (2, "c\nd\n")):
        with gzip.open(
            task / "raw" / f"val.{number}.en.gz",
            "wt",
        ) as file:
            file.write(lines)
    convert(f"multi30k {task} -o {task}/out --no-images")
    assert table(task / "out") == [
        ("1.jpg", "a"),
        ("1.jpg", "c"),
        ("2.jpg", "b"),
        ("2.jpg", "d"),
    ]
    assert ids(task / "out", "val") == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "captions_val2014.json",
            '{"images": [{"id": 1, "file_name": "a.jpg"}, {"id"',
            "broken JSON",
        ),
        (
            "captions_val2014.json",
            '{"images": [], "annotations": []}',
            "no images or no annotations",
        ),
        (
            "captions_val2014.json",
            '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 2, '
            '"caption": "b"}]}',
            "a caption belongs to image 2, which the file does not list",
        ),
        (
            "results_20130124.token",
            "1.jpg#0\tfine\n1.jpg 1 no tab\n",
            "line 2: not IMAGE#NUMBER<TAB>CAPTION",
        ),
        ("captions.csv", "picture,text\na,b\n", "must contain the column names image,caption"),
        ("captions.csv", "image,caption\na.jpg\n", "line 2: image or caption is missing"),
        ("captions.en.tsv.gz", "not gzipped", "not a readable UTF-8 text"),
        ("strange.bin", "", "not a known name"),
    ],
)
def test_broken_captions(tmp_path: Path, name: str, text: str, message: str):
    path = tmp_path / name
    path.write_text(text)
    done = convert(f"coco {path} -o {tmp_path}/out --no-images", 1)
    assert str(path) in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_missing_captions_and_pictures(tmp_path: Path):
    done = convert(f"coco {tmp_path} -o {tmp_path}/out", 1)
    assert "dataset_coco.json, captions_*.json are missing" in done.stderr
    (tmp_path / "dataset_coco.json").write_text(json.dumps(karpathy(("a.jpg", "val", ["sea"]))))
    done = convert(f"coco {tmp_path} -o {tmp_path}/out", 1)
    assert "the picture a.jpg is not in" in done.stderr
    assert "--no-images" in done.stderr


def ann(
    path: Path,
    distance: str = "angular",
    n: int = 400,
    **arrays: Any,
) -> dict[str, np.ndarray[Any, Any]]:
    """Write a file in the layout of ann-benchmarks; return its arrays, the neighbours by a plain
    sort."""
    rng = np.random.default_rng(0)
    train, test = (rng.standard_normal((rows, 12)).astype(np.float32) for rows in (n, 20))
    train *= rng.uniform(0.5, 3, (n, 1)).astype(np.float32)
    lengths = np.linalg.norm(train, axis=1) if distance == "angular" else np.ones(n)
    near = test.astype(np.float64) @ train.T.astype(np.float64) / lengths
    order = np.argsort(-near, axis=1)[:, :30]
    content = {
        "train": train,
        "test": test,
        "neighbors": order.astype(np.int32),
    }
    content |= {"distances": (1 - np.take_along_axis(near, order, 1)).astype(np.float32)} | arrays
    with h5py.File(path, "w") as file:
        file.attrs["distance"] = distance
        for name, array in content.items():
            if array is not None:
                file[name] = array
    return content


@pytest.mark.slow
@pytest.mark.parametrize(
    "distance",
    ["angular", "dot"],
)
def test_ann_benchmarks(tmp_path: Path, distance: str):
    arrays = ann(tmp_path / "some.hdf5", distance)
    out = tmp_path / "out"
    for _ in range(2):  # what is there is left
        done = convert(f"ann {tmp_path}/some.hdf5 -o {out}")
        assert done.stdout.split() == [
            str(out / name) for name in ("gallery.h5", "queries.h5", "truth.npy")
        ]
    lengths = (
        np.linalg.norm(
            arrays["train"],
            axis=1,
            keepdims=True,
        )
        if distance == "angular"
        else 1
    )
    with FeatureFile(out / "gallery.h5") as file:
        np.testing.assert_allclose(
            file.vectors("image"),
            arrays["train"] / lengths,
            rtol=1e-6,
        )
    with FeatureFile(out / "queries.h5") as file:
        assert file.count("image") == 20
    np.testing.assert_array_equal(
        np.load(out / "truth.npy"),
        arrays["neighbors"][:, :10],
    )
    ann(
        tmp_path / "bare.hdf5",
        neighbors=None,
        distances=None,
    )
    convert(f"ann {tmp_path}/bare.hdf5 -o {tmp_path}/bare")
    assert not (tmp_path / "bare" / "truth.npy").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"distance": "euclidean"},
            "its distance is 'euclidean'; only angular, cosine, dot, ip are inner products",
        ),
        (
            {"train": None},
            "no matrix of numbers 'train'",
        ),
        (
            {"test": np.zeros((20, 5), np.float32)},
            "train has 12 components and test 5",
        ),
        (
            {"test": np.zeros((20, 12), np.float32)},
            "row 0 of test is zero or not finite",
        ),
        (
            {"distances": np.zeros((20, 3))},
            "distances is (20, 3), neighbors (20, 30)",
        ),
        (
            {"neighbors": np.full((20, 30), 400)},
            "rows that are not in train",
        ),
        (
            {"neighbors": np.tile(np.arange(30), (20, 1))},
            "neighbors of query 0 are not the nearest",
        ),
    ],
)
def test_broken_ann_benchmarks(
    tmp_path: Path,
    arrays: dict[str, Any],
    message: str,
):
    ann(tmp_path / "some.hdf5", **arrays)
    done = convert(f"ann {tmp_path}/some.hdf5 -o {tmp_path}/out", 1)
    assert message in done.stderr
