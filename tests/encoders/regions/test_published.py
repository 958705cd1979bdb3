"""Published features find the pictures of COCO and Flickr30k, and SCAN's arrays are a source of
their own."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from boc import plugins
from boc.errors import EncoderError, ImageError, SourceError
from boc.inputs.sources import open_source
from boc.types import ImageRef
from boc.vectors import Floats

WIDTH = 6
REGIONS = 4
SIZE = (40, 30)
COCO_ID = "val2014/COCO_val2014_000000391895.jpg"


def write_files(folder: Path, *names: str, layout: str = "cocobu", suffix: str = "npz") -> Path:
    """Features and boxes of pictures by their published names; the features of the i-th are all i +
    1."""
    for part in ("att", "box"):
        (folder / f"{layout}_{part}").mkdir(parents=True, exist_ok=True)
    boxes = np.tile(np.array([0, 0, *SIZE], np.float32), (REGIONS, 1))
    for number, name in enumerate(names, 1):
        path = folder / f"{layout}_att" / f"{name}.{suffix}"
        write_array(path, np.full((REGIONS, WIDTH), number, np.float32))
        np.save(folder / f"{layout}_box" / f"{name}.npy", boxes)
    return folder


def write_array(
    path: Path,
    features: Floats,
) -> None:
    """Write features in either published form."""
    if path.suffix == ".npz":
        np.savez(path, feat=features)
    else:
        np.save(path, features)


def picture(
    folder: Path,
    image_id: str,
) -> ImageRef:
    path = folder / image_id
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE).save(path)
    return ImageRef(image_id, path)


def write_scan(
    folder: Path,
    split: str,
    count: int,
    ids: list[str] | None = None,
) -> Path:
    """Arrays of SCAN, the regions of picture i all i; the path of the array."""
    folder.mkdir(parents=True, exist_ok=True)
    array = folder / f"{split}_ims.npy"
    values = np.arange(count, dtype=np.float32)[:, None, None]
    np.save(array, np.broadcast_to(values, (count, REGIONS, WIDTH)))
    lines = [f"picture {i} caption {j} .\n" for i in range(count) for j in range(5)]
    (folder / f"{split}_caps.txt").write_text("".join(lines))
    if ids is not None:
        (folder / f"{split}_ids.txt").write_text("".join(f"{name}\n" for name in ids))
    return array


@pytest.mark.parametrize("suffix", ["npz", "npy"])
@pytest.mark.parametrize("image_id", [COCO_ID, "000000391895.jpg", "391895.jpg"])
def test_coco_features(
    tmp_path: Path,
    suffix: str,
    image_id: str,
):
    source = plugins.region_source(f"files:{write_files(tmp_path, '7', '391895', suffix=suffix)}")
    regions = source(picture(tmp_path, image_id))
    assert (regions.features == 2).all()
    assert (regions.boxes == [0, 0, 1, 1]).all()
    with pytest.raises(ImageError, match=r"12\.npy: no region features"):
        source(picture(tmp_path, "COCO_val2014_000000000012.jpg"))


def test_flickr30k_features(tmp_path: Path):
    listed = [{"filename": "1000092795.jpg", "split": "test"}, {"filename": "10002456.jpg"}]
    index = tmp_path / "dataset_flickr30k.json"
    index.write_text(json.dumps({"images": listed}))
    folder = write_files(
        tmp_path,
        "0",
        "1",
        "10002456",
        layout="bu",
    )
    source = plugins.region_source(f"files:{folder}?index={index}")
    for place, entry in enumerate(listed, 1):
        assert (source(picture(tmp_path, entry["filename"])).features == place).all()
    with pytest.raises(ImageError, match="does not list this picture"):
        source(picture(tmp_path, "other.jpg"))
    again = plugins.region_source(source.identity.spec)
    assert again.identity == source.identity
    assert plugins.region_source(f"files:{folder}").identity.digest != source.identity.digest
    index.write_text(json.dumps({"images": listed[::-1]}))
    assert plugins.region_source(source.identity.spec).identity.digest != source.identity.digest


@pytest.mark.parametrize(
    "text",
    [None, "no json", '{"annotations": []}', '{"images": [{"id": 1}]}'],
)
def test_a_wrong_index_is_refused(
    tmp_path: Path,
    text: str | None,
):
    index = tmp_path / "index.json"
    if text is not None:
        index.write_text(text)
    words = r"index.json: not a list of images .*give Karpathy's dataset_flickr30k.json"
    with pytest.raises(EncoderError, match=words):
        plugins.region_source(f"files:{write_files(tmp_path, '0')}?index={index}")


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (None, ["0", "1", "2"]),
        (["391895", "60623", "5"], ["391895", "60623", "5"]),
        ([name for name in ("391895", "60623", "5") for _ in range(5)], ["391895", "60623", "5"]),
        (["1", "1", "2"], ["0", "1", "2"]),
        (["1"], ["0", "1", "2"]),
    ],
)
def test_an_array_of_scan_is_a_source(
    tmp_path: Path,
    ids: list[str] | None,
    names: list[str],
):
    array = write_scan(tmp_path, "testall", 3, ids)
    write_scan(tmp_path, "dev", 2)
    items = open_source(array).items
    assert [item.id for item in items[:3]] == [f"testall/{name}" for name in names]
    assert len(items) == 3 + 15
    source = plugins.region_source(f"scan:{tmp_path}")
    for row, item in enumerate(items[:3]):
        assert (source(ImageRef(item.id, Path(item.content))).features == row).all()
    for number, item in enumerate(items[3:]):
        assert item.group == items[number // 5].id
        assert item.content == f"picture {number // 5} caption {number % 5} ."


def test_wrong_scan_arrays(tmp_path: Path):
    array = write_scan(tmp_path / "a", "test", 3)
    (tmp_path / "a" / "test_caps.txt").write_text("only one\n")
    words = r"1 captions for the 3 pictures of test_ims.npy, but 5 are needed per picture; use"
    with pytest.raises(SourceError, match=words):
        open_source(array)
    (tmp_path / "a" / "test_caps.txt").unlink()
    words = r"test_caps.txt: cannot be read .*; put the file beside the array"
    with pytest.raises(SourceError, match=words):
        open_source(array)
    array.write_bytes(b"rubbish")
    words = "not a NumPy array; download it again"
    with pytest.raises(SourceError, match=words):
        open_source(array)
    with pytest.raises(EncoderError, match=words):
        plugins.region_source(f"scan:{tmp_path / 'a'}")
    np.save(array, np.zeros((3, 4)))
    words = r"has shape \(3, 4\), not \(pictures, regions, numbers\)"
    with pytest.raises(SourceError, match=words):
        open_source(array)
    with pytest.raises(EncoderError, match="no SCAN arrays"):
        plugins.region_source(f"scan:{tmp_path}")
    write_scan(tmp_path / "b", "test", 3)
    source = plugins.region_source(f"scan:{tmp_path / 'b'}")
    for path, message in (
        ("photo.jpg", "not a picture in a SCAN array"),
        ("test_ims.npy#3", "no regions in row 3"),
    ):
        with pytest.raises(ImageError, match=message):
            source(ImageRef("x", tmp_path / "b" / path))
