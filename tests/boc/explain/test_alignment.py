"""Alignment and attention maps against slow loops, and the figure that shows them: its size, its boxes, its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image

from boc import plugins
from boc.errors import BocError
from boc.explain.alignment import Alignment, align, attention_scores, show
from boc.explain.figure import PALETTE, draw_figure, save_figure
from boc.inputs.images import read_image
from boc.types import Embeddings, ImageRef, Ragged
from tests.helpers import boc

GREY = (128, 128, 128)
PLACES = st.floats(-0.25, 1.25, width=32)
SMALL = st.integers(-2, 2)


def cells(n: int) -> NDArray[np.float32]:
    """Boxes of an n x n grid."""
    return np.array([(x / n, y / n, (x + 1) / n, (y + 1) / n) for y in range(n) for x in range(n)], dtype=np.float32)


def aligned(words: Sequence[str], best: Sequence[int], boxes: NDArray[np.float32]) -> Alignment:
    """Each word at the region named for it."""
    cosines = np.full((len(words), len(boxes)), -0.25, dtype=np.float32)
    cosines[range(len(words)), best] = 0.75
    return Alignment(list(words), boxes, cosines, np.arange(len(boxes), dtype=np.int64))


def embedded(
    regions: NDArray[np.float32], pieces: NDArray[np.float32], words: list[str], vector: NDArray[np.float32]
) -> tuple[Embeddings, Embeddings]:
    boxes = np.zeros((len(regions), 4), dtype=np.float32)
    vectors = vector[None].astype(np.float32)
    images = Embeddings("image", vectors, Ragged.from_sets([regions], 3), boxes=Ragged.from_sets([boxes], 4))
    return images, Embeddings("text", vectors, Ragged.from_sets([pieces], 3), words=[words])


@pytest.mark.slow
@given(st.data(), st.integers(0, 5), st.integers(1, 9), st.integers(1, 9))
def test_maps_equal_those_counted_pixel_by_pixel(data: st.DataObject, n: int, width: int, height: int) -> None:
    boxes = data.draw(arrays(np.float32, (n, 4), elements=PLACES))
    scores = data.draw(arrays(np.int64, n, elements=st.integers(0, 10**9)))
    cosines = data.draw(arrays(np.float32, (1, n), elements=st.floats(-1, 1, width=32)))
    found = Alignment(["dog"], boxes, cosines, scores)
    attention, heat = found.attention(width, height), found.heat(0, width, height)
    assert attention.shape == heat.shape == (height, width)
    for y in range(height):
        for x in range(width):
            u, v = (x + 0.5) / width, (y + 0.5) / height
            over = [i for i, (x1, y1, x2, y2) in enumerate(boxes.tolist()) if x1 <= u < x2 and y1 <= v < y2]
            assert attention[y, x] == sum(scores[i] for i in over)
            if over:
                assert heat[y, x] == pytest.approx(sum(float(cosines[0, i]) for i in over) / len(over), abs=1e-12)
            else:
                assert np.isnan(heat[y, x])


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_a_pixel_lies_in_one_cell_of_a_grid(n: int, width: int, height: int) -> None:
    boxes = cells(n)
    found = Alignment(["dog"], boxes, np.zeros((1, n * n), np.float32), np.ones(n * n, np.int64))
    assert (found.attention(width, height) == 1).all()


@given(st.integers(1, 8).flatmap(lambda k: st.tuples(arrays(np.int8, (k, 3), elements=SMALL), st.just(k))))
def test_scores_fall_with_the_square_of_the_rank(drawn: tuple[NDArray[np.int8], int]) -> None:
    regions, k = drawn[0].astype(np.float32), drawn[1]
    vector = np.array([1, 2, -1], dtype=np.float32)
    scores = attention_scores(regions, vector)
    order = sorted(range(k), key=lambda i: (-float(regions[i] @ vector), i))
    for rank, region in enumerate(order, 1):
        assert scores[region] == 50 * (k - rank) ** 2


@pytest.mark.slow
@given(arrays(np.int8, (4, 3), elements=SMALL), arrays(np.int8, (5, 3), elements=SMALL))
def test_a_word_has_the_largest_cosine_of_its_pieces(region_rows: NDArray[np.int8], rows: NDArray[np.int8]) -> None:
    regions, pieces = region_rows.astype(np.float32), rows.astype(np.float32)
    found = align(*embedded(regions, pieces, ["snow", "##board", "##ing", "dogs", "."], np.ones(3)))
    assert found.words == ["snowboarding", "dogs", "."]
    for word, of in enumerate(([0, 1, 2], [3], [4])):
        for region in range(4):
            products = [
                float(pieces[i] @ regions[region])
                / ((np.linalg.norm(pieces[i]) * np.linalg.norm(regions[region])) or 1.0)
                for i in of
            ]
            assert found.cosines[word, region] == pytest.approx(max(products), abs=1e-6)
        row = found.cosines[word].tolist()
        assert found.best[word] == row.index(max(row))
    assert found.scores.tolist() == attention_scores(regions, np.ones(3, dtype=np.float32)).tolist()


def test_what_is_missing_is_named() -> None:
    rows, words = np.ones((2, 3), np.float32), ["two", "dogs"]
    images, texts = embedded(rows, rows, words, np.ones(3))
    vectors = images.vectors
    with pytest.raises(BocError, match="whole pictures"):
        align(Embeddings("image", vectors), texts)
    with pytest.raises(BocError, match="where regions lie"):
        align(Embeddings("image", vectors, images.concepts), texts)
    with pytest.raises(BocError, match="which words"):
        align(images, Embeddings("text", vectors, texts.concepts))
    with pytest.raises(BocError, match="no region"):
        align(embedded(rows[:0], rows, words, np.ones(3))[0], texts)
    with pytest.raises(BocError, match="no word"):
        align(images, embedded(rows, rows[:0], [], np.ones(3))[1])


@pytest.mark.slow
def test_the_figure_follows_from_its_input() -> None:
    photo = Image.new("RGB", (90, 60), GREY)
    found = aligned(["a", "dog", "runs"], [3, 0, 2], cells(2))
    figure = draw_figure(photo, found)
    assert figure.mode == "RGB"
    assert figure.width == 2100
    assert figure.tobytes() == draw_figure(photo, found).tobytes()
    assert figure.tobytes() != draw_figure(photo, aligned(["a", "cat", "runs"], [3, 0, 2], cells(2))).tobytes()
    assert figure.tobytes() != draw_figure(photo, aligned(["a", "dog", "runs"], [3, 1, 2], cells(2))).tobytes()
    assert figure.tobytes() != draw_figure(photo, found, all_words=True).tobytes()


def sides(figure: Image.Image, colour: tuple[int, int, int]) -> set[int]:
    """Those quarters of the left panel of a photo 3:2 that show ``colour``."""
    panel = np.asarray(figure)[25 : 25 + 670, 25 : 25 + 1004]
    shown = (panel == colour).all(axis=2)
    halves = np.array_split(shown, 2)
    quarters = [quarter for half in halves for quarter in np.array_split(half, 2, axis=1)]
    return {i for i, quarter in enumerate(quarters) if quarter.sum() > 5000}  # more than a word on its ground


@pytest.mark.slow
def test_each_word_marks_its_region_in_its_colour() -> None:
    photo = Image.new("RGB", (90, 60), GREY)
    found = aligned(["the", "dog", "runs"], [1, 0, 3], cells(2))
    figure = draw_figure(photo, found)
    assert [sides(figure, colour) for colour in PALETTE[:3]] == [{0}, {3}, set()]
    figure = draw_figure(photo, found, all_words=True)
    assert [sides(figure, colour) for colour in PALETTE[:3]] == [{1}, {0}, {3}]
    figure = draw_figure(photo, aligned(["of", "the"], [1, 2], cells(2)))
    assert [sides(figure, colour) for colour in PALETTE[:3]] == [{1}, {2}, set()]


@pytest.mark.slow
def test_boxes_of_one_region_do_not_hide_each_other() -> None:
    photo = Image.new("RGB", (90, 60), GREY)
    words = ["dogs", "run", "jump", "play", "bark", "sleep", "eat"]
    figure = draw_figure(photo, aligned(words, [1] * len(words), cells(2)))
    assert all(1 in sides(figure, colour) for colour in PALETTE)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (2000, 40), (40, 2000), (64, 64), (1200, 900)])
@pytest.mark.parametrize(
    "words", [["dog"], ["."], ["café", "犬", "[unk]"], [*("dog runs on " * 25).split(), "x" * 400]]
)
def test_any_photo_and_sentence_fits(size: tuple[int, int], words: list[str]) -> None:
    boxes = np.array([(-0.1, -0.1, 1.1, 1.1), (0.5, 0.5, 0.5, 0.5), (0.9, 0.2, 0.3, 0.4), (1, 1, 1.2, 1.2)], np.float32)
    figure = draw_figure(Image.new("RGB", size, GREY), aligned(words, np.arange(len(words)) % 4, boxes))
    assert figure.width == 2100
    rim = np.asarray(figure).copy()
    rim[25:-25, 25:-25] = 255
    assert (rim == 255).all()


@pytest.mark.slow
def test_files_are_at_the_size_for_print(tmp_path: Path) -> None:
    figure = draw_figure(Image.new("RGB", (90, 60), GREY), aligned(["dog"], [0], cells(2)))
    for name in ("figure.png", "figure.jpg", "figure.PDF"):
        save_figure(tmp_path / name, figure)
        first = (tmp_path / name).read_bytes()
        save_figure(tmp_path / name, figure)
        assert (tmp_path / name).read_bytes() == first
    with Image.open(tmp_path / "figure.png") as png, Image.open(tmp_path / "figure.jpg") as jpeg:
        assert png.tobytes() == figure.tobytes()
        assert jpeg.size == figure.size
        assert [round(float(dots)) for dots in (*png.info["dpi"], *jpeg.info["dpi"])] == [300] * 4
    assert first.startswith(b"%PDF")
    assert f"[ 0 0 504.0 {figure.height * 72 / 300}".encode() in first
    with pytest.raises(BocError, match="figures are written as"):
        save_figure(tmp_path / "figure.bmp", figure)


@pytest.mark.slow
def test_the_command_tells_what_the_figure_shows(library: Path, tmp_path: Path) -> None:
    image, spec, sentence = library / "images" / "003.png", f"tern:{library / 'model'}", "a yellow box at the left"
    figure = tmp_path / "figure.png"
    command = ("show-alignment", image, sentence, "--encoder", spec, "--device", "cpu", "-o", figure)
    told = boc(*command, "--json")
    assert told.exit_code == 0, told.output
    record = json.loads(told.stdout)
    found = show(plugins.encoder(spec, "cpu"), ImageRef("003.png", image), sentence)
    assert [row["word"] for row in record["words"]] == sentence.split() == found.words
    for row, cosines in zip(record["words"], found.cosines, strict=True):
        assert row["cosine"] == pytest.approx(float(cosines.max()), abs=1e-6)
        assert row["box"] == record["regions"][row["region"] - 1]["box"] == found.boxes[row["region"] - 1].tolist()
    assert [row["attention"] for row in record["regions"]] == found.scores.tolist()
    with Image.open(figure) as written:
        assert written.tobytes() == draw_figure(read_image(image), found).tobytes()
    printed = boc(*command)
    assert [line.split()[0] for line in printed.stdout.splitlines()] == found.words


@pytest.mark.slow
def test_a_turned_photo_is_shown_upright(library: Path, tmp_path: Path) -> None:
    with Image.open(library / "images" / "003.png") as image:
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned a quarter to the right
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
        image.save(tmp_path / "upright.png")
    for name in ("turned", "upright"):
        command = ("show-alignment", tmp_path / f"{name}.png", "a yellow box", "--encoder", f"tern:{library / 'model'}")
        assert boc(*command, "-o", tmp_path / f"{name}-figure.png").exit_code == 0
    assert (tmp_path / "turned-figure.png").read_bytes() == (tmp_path / "upright-figure.png").read_bytes()


@pytest.mark.slow
def test_the_figure_is_named_after_the_photo(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = boc("show-alignment", library / "images" / "003.png", "a box", "--encoder", f"tern:{library / 'model'}")
    assert told.exit_code == 0, told.output
    assert [path.name for path in tmp_path.iterdir()] == ["003-alignment.png"]


@pytest.mark.parametrize(
    ("image", "text", "output", "reason"),
    [
        ("nothing.png", "a box", "figure.png", "nothing.png: cannot be read"),
        ("broken.png", "a box", "figure.png", "broken.png: not a picture"),
        ("photo.png", " ", "figure.png", "the sentence is empty"),
        ("photo.png", "a box", "figure.bmp", "figures are written as"),
        ("photo.png", "a box", "figure", "figures are written as"),
        ("photo.png", "a box", "photo.png", "is an input of this command"),
        ("photo.png", "a box", "broken.png/figure.png", "cannot be created"),
    ],
)
def test_bad_input_is_one_line(library: Path, tmp_path: Path, image: str, text: str, output: str, reason: str) -> None:
    photo = Image.new("RGB", (40, 30), GREY)
    photo.save(tmp_path / "photo.png")
    (tmp_path / "broken.png").write_text("no picture", encoding="utf-8")
    before = (tmp_path / "photo.png").read_bytes()
    spec = f"tern:{library / 'model'}"
    told = boc("show-alignment", tmp_path / image, text, "--encoder", spec, "-o", tmp_path / output)
    assert told.exit_code == 1
    assert reason in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert not told.stdout
    assert (tmp_path / "photo.png").read_bytes() == before
    assert not list(tmp_path.glob("figure*"))


def test_an_encoder_must_be_named(tmp_path: Path) -> None:
    told = boc("show-alignment", tmp_path / "photo.png", "a box")
    assert told.exit_code == 2
    assert "--encoder" in told.stderr
