"""Tables of bottom-up attention: what is written is read, by the id of the picture, and damage
costs one picture."""

import base64
import csv
import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from boc import plugins
from boc.errors import BocError, EncoderError, ImageError
from boc.types import ImageRef

Row = tuple[str, int, int, NDArray[np.float32], NDArray[np.float32]]
DIM = 5


def text(array: NDArray[Any]) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def write_tsv(
    path: Path,
    rows: Iterable[Row],
    wide: bool = False,
) -> str:
    """A table as its makers write it; rows are (id, width, height, boxes in pixels (n, 4), features
    (n, d))."""
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle, delimiter="\t")
        for name, width, height, boxes, features in rows:
            n = len(boxes)
            extra = [text(np.zeros(n))] * 4
            cells = [name, height, width, *extra] if wide else [name, width, height]
            writer.writerow([*cells, n, text(boxes), text(features)])
    return f"tsv:{path}"


def row(
    name: str,
    n: int,
    seed: int = 0,
    size: tuple[int, int] = (40, 30),
) -> Row:
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.random((n, 2, 2)), axis=1) * size
    boxes = corners.reshape(n, 4).astype(np.float32)
    return name, *size, boxes, rng.random((n, DIM), dtype=np.float32)


def ref(name: str) -> ImageRef:
    return ImageRef(name, Path("nowhere") / name)


@pytest.mark.slow
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any),
    wide=st.booleans(),
    size=st.tuples(st.integers(1, 2000), st.integers(1, 2000)),
)
def test_table_round_trip(
    counts: list[int],
    wide: bool,
    size: tuple[int, int],
) -> None:
    rows = [row(f"picture {i}", n, i, size) for i, n in enumerate(counts)]
    with tempfile.TemporaryDirectory() as folder:
        source = plugins.region_source(write_tsv(Path(folder) / "t.tsv", rows, wide))
        for name, width, height, boxes, features in reversed(rows):
            regions = source(ref(f"some/where/{name}.jpg"))
            assert np.array_equal(regions.features, features)
            sides = [width, height, width, height]
            for mine, theirs in zip(regions.boxes, boxes, strict=True):
                fractions = [corner / side for corner, side in zip(theirs, sides, strict=True)]
                assert mine == pytest.approx(fractions, abs=1e-6)


def test_coco_names(tmp_path: Path) -> None:
    table = write_tsv(
        tmp_path / "t.tsv",
        [row("391895", 1, 1), row("COCO_val2014_000000000009", 2, 2), row("9", 3, 3)],
    )
    source = plugins.region_source(table)
    for name, n in (
        ("val2014/COCO_val2014_000000391895.jpg", 1),
        ("000000391895.jpg", 1),
        ("391895.jpg", 1),
        ("COCO_val2014_000000000009.jpg", 2),
        ("COCO_train2014_000000000009.jpg", 3),
    ):
        assert len(source(ref(name))) == n
    for name in (
        "0391895.jpg",
        "x_000000391895.jpg",
        "391895_1.jpg",
        "COCO_val2014_391895.jpg",
        "000000391896.jpg",
    ):
        with pytest.raises(ImageError, match="no row for") as caught:
            source(ref(name))
        assert name in str(caught.value)


DAMAGES: list[tuple[int, Callable[[str], str], str]] = [
    (5, lambda cell: "*" + cell[1:], "base64"),
    (5, lambda cell: cell[:-3], "base64"),
    (5, lambda cell: text(np.zeros(DIM + 1)), "6 numbers for features of 2 boxes"),
    (5, lambda cell: text(np.full((2, DIM), np.nan)), "finite"),
    (4, lambda cell: text(np.zeros(3)), "3 numbers for boxes"),
    (3, lambda cell: "many", "many"),
    (1, lambda cell: "0", "on 0 x 30 pixels"),
    (0, lambda cell: f"{cell}\t", "7 columns"),
]
"""The number of a cell, what becomes of it, and words of the error."""


@pytest.mark.parametrize(("place", "change", "words"), DAMAGES)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_damaged_row_costs_one_picture(
    tmp_path: Path,
    place: int,
    change: Callable[[str], str],
    words: str,
    at: int,
) -> None:
    path = tmp_path / "t.tsv"
    write_tsv(path, [row(name, 2, i) for i, name in enumerate("abc")])
    lines = path.read_text().splitlines()
    cells = lines[at].split("\t")
    cells[place] = change(cells[place])
    lines[at] = "\t".join(cells)
    path.write_text("\n".join(lines) + "\n")
    source = plugins.region_source(f"tsv:{path}")
    for i, name in enumerate("abc"):
        if i != at:
            assert len(source(ref(name))) == 2
            continue
        with pytest.raises(ImageError, match=f"damaged row {name} at byte") as caught:
            source(ref(name))
        assert words in str(caught.value)


def test_truncated_table(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    write_tsv(path, [row("a", 2), row("b", 2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    assert len(plugins.region_source(f"tsv:{path}")(ref("b"))) == 2, (
        "only the end of the line is missing"
    )
    second = whole.index(b"\nb") + 1
    for length in range(second, len(whole) - 3, 7):
        path.write_bytes(whole[:length])
        source = plugins.region_source(f"tsv:{path}")
        assert len(source(ref("a"))) == 2
        with pytest.raises(ImageError, match=r"damaged row b|no row for b"):
            source(ref("b"))


def test_table_skips_headers_and_repeats(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    write_tsv(path, [row("a", 1), row("a", 2), row("b", 3)])
    path.write_bytes(
        b"image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\r\n\r\n" + path.read_bytes(),
    )
    source = plugins.region_source(f"tsv:{path}")
    assert [len(source(ref(name))) for name in "ab"] == [1, 3]


def test_table_index_is_cached(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from encoders.regions import precomputed as tsv

    path = tmp_path / "t.tsv"
    spec = write_tsv(path, [row("a", 1), row("b", 2)])
    first = plugins.region_source(spec)
    assert first.identity.digest == hashlib.sha256(path.read_bytes()).hexdigest()

    with monkeypatch.context() as patch:
        patch.setattr(
            tsv,
            "_index_table",
            lambda path: pytest.fail("scanned again"),
        )
        second = plugins.region_source(spec)
        copy = pickle.loads(pickle.dumps(first))  # noqa: S301
    for source in (second, copy):
        assert source.identity == first.identity
        assert np.array_equal(source(ref("b")).features, first(ref("b")).features)

    (tmp_path / ".t.tsv.index.npz").write_bytes(b"PK\x03\x04rubbish")
    assert plugins.region_source(spec).identity == first.identity

    write_tsv(path, [row("c", 3), row("b", 2)])
    os.utime(path, ns=(1, 1))
    changed = plugins.region_source(spec)
    assert changed.identity.digest != first.identity.digest
    assert len(changed(ref("c"))) == 3
    with pytest.raises(ImageError, match="damaged row a"):
        first(ref("a"))


def test_read_only_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from encoders.regions import precomputed as tsv

    def refuse(path: Path) -> None:
        raise BocError(f"{path}: not writable")

    monkeypatch.setattr(tsv, "replacing", refuse)
    source = plugins.region_source(write_tsv(tmp_path / "t.tsv", [row("a", 1)]))
    assert len(source(ref("a"))) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["t.tsv"]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"image,caption\na.jpg,hello\n", b"a\tb\nc\td\n", b"\x00\xff\t\x00"],
)
def test_what_is_no_table_of_regions_is_refused(
    tmp_path: Path,
    content: bytes,
) -> None:
    (tmp_path / "t.tsv").write_bytes(content)
    with pytest.raises(EncoderError, match="no table of regions"):
        plugins.region_source(f"tsv:{tmp_path / 't.tsv'}")
    with pytest.raises(EncoderError, match="no such table"):
        plugins.region_source(f"tsv:{tmp_path / 'none.tsv'}")


def test_a_line_without_an_end_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from encoders.regions import precomputed as tsv

    monkeypatch.setattr(tsv, "LONGEST", 100)
    (tmp_path / "t.tsv").write_bytes(b"a\t" + b"x" * 200)
    with pytest.raises(EncoderError, match="a line longer than 100 bytes"):
        plugins.region_source(f"tsv:{tmp_path / 't.tsv'}")
