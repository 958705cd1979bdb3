"""Two pictures of one size and time that change names are noticed by all that looks at files."""

import io
import os
import random
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from boc import Searcher, plugins
from boc.errors import FeatureFileError
from boc.inputs.extraction import Extraction
from boc.inputs.features import FeatureFile
from boc.inputs.sources import open_source
from boc.manage.sync import sync_index
from tests.boc.manage.collections_of_files import Counting, Files, new

pytestmark = pytest.mark.slow

PART = 8
COUNT = 20
PAIRS = random.Random(0).sample([*combinations(range(COUNT), 2)], 60)
"""Pairs of pictures: both before the kill, one of them, or none."""


@pytest.fixture
def encoder(monkeypatch) -> Counting:
    monkeypatch.setattr("boc.inputs.extraction.worker_count", lambda _: 0)
    monkeypatch.setattr("boc.inputs.extraction.PART", PART)
    return Counting.installed(monkeypatch)


def fill(folder: Path, count: int) -> Files:
    files = Files(folder)
    folder.mkdir()
    for number in range(count):
        path = folder / f"{number:03d}.png"
        path.write_bytes(b"picture %03d" % number)
        os.utime(path, (9, 9))
    return files


def swap(files: Files, one: int, other: int) -> None:
    files.do(
        (
            "swap",
            f"{one:03d}.png",
            f"{other:03d}.png",
        ),
    )


def wrong(items: Any, vectors: Any) -> list[str]:
    """The ids of pictures whose vector is that of other bytes."""
    fresh = Counting().encode_images([item.path.read_bytes() for item in items]).vectors
    apart = np.abs(np.asarray(vectors, np.float32) - fresh).max(
        axis=1,
    )
    return [item.id for item, each in zip(items, apart, strict=True) if each > 1e-2]


def wrong_of_index(at: str) -> list[str]:
    index = plugins.backend(at).open("x")
    items = list(index.items())
    return wrong(
        items,
        index.vectors([item.id for item in items]),
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_killed_index_and_sync_of_swapped_pictures(
    encoder: Counting,
    tmp_path: Path,
    pair: tuple[int, int],
):
    folder = tmp_path / "p"
    at = f"file:{tmp_path / 'at'}"
    files = fill(folder, COUNT)
    encoder.breaks_at = PART
    with suppress(KeyboardInterrupt):
        new("x", folder, at)
    swap(files, *pair)
    new("x", folder, at)
    assert wrong_of_index(at) == []
    swap(files, *pair)
    for number in range(COUNT):
        (folder / f"new {number}.png").write_bytes(b"another %03d" % number)
        os.utime(
            folder / f"new {number}.png",
            (9, 9),
        )
    encoder.seen.clear()
    encoder.breaks_at = PART
    with suppress(KeyboardInterrupt):
        sync_index("x", folder, at=at)
    files.do(("swap", *(f"new {number}.png" for number in pair)))
    sync_index("x", folder, at=at)
    assert wrong_of_index(at) == []
    swap(files, *pair)
    encoder.seen.clear()
    assert sync_index("x", folder, at=at).changed == 2
    assert encoder.seen == []
    assert wrong_of_index(at) == []


@pytest.mark.parametrize("pair", PAIRS)
def test_killed_extract_of_swapped_pictures(
    encoder: Counting,
    tmp_path: Path,
    pair: tuple[int, int],
):
    folder = tmp_path / "p"
    path = tmp_path / "f.h5"
    files = fill(folder, COUNT)
    encoder.breaks_at = PART
    with suppress(KeyboardInterrupt):
        list(
            Extraction(
                open_source(folder),
                path,
                encoder=encoder,
            ).run(),
        )
    swap(files, *pair)
    with pytest.raises(
        FeatureFileError,
        match="state of the pictures",
    ):
        list(
            Extraction(
                open_source(folder),
                path,
                encoder=encoder,
            ).run(),
        )
    swap(files, *pair)
    fresh = tmp_path / "again.h5"
    list(
        Extraction(
            open_source(folder),
            fresh,
            encoder=encoder,
        ).run(),
    )
    with FeatureFile(fresh) as file:
        assert (
            wrong(
                file.items("image"),
                file.vectors("image"),
            )
            == []
        )


@pytest.mark.parametrize(
    "kind",
    ["bmp", "tar"],
)
def test_thumbnails_of_swapped_pictures(
    encoder: Counting,
    tmp_path: Path,
    kind: str,
):
    pytest.importorskip(
        "fastapi",
        reason="the page needs the extra web",
    )
    from tests.boc.inputs.test_captions import shard
    from tests.boc.web.test_api import client_of

    def bitmap(number):
        buffer = io.BytesIO()
        Image.new("RGB", (40, 30), (20 * number, 90, 200 - 10 * number)).save(
            buffer,
            "BMP",
        )
        return buffer.getvalue()

    def write(numbers):
        pictures = {f"{name}.bmp": bitmap(number) for name, number in enumerate(numbers)}
        if kind == "tar":
            shard(source, pictures.items())
        else:
            source.mkdir()
            for name, data in pictures.items():
                (source / name).write_bytes(data)
                os.utime(source / name, (9, 9))

    source = tmp_path / ("p.tar" if kind == "tar" else "p")
    at = f"file:{tmp_path / 'at'}"
    order = list(range(6))
    write(order)
    new("x", source, at)
    client = client_of(
        Searcher.open("x", at),
        tmp_path / "cache",
    )

    def thumbnails():
        shown = []
        for number in range(6):
            answer = client.get(f"/api/thumb/{number}.bmp")
            picture = Image.open(io.BytesIO(answer.content)).convert("RGB")
            shown.append((answer.headers["etag"], picture.getpixel((20, 15))))
        return shown

    before = thumbnails()
    first = [pixel for _, pixel in before]
    assert thumbnails() == before
    for one, other in random.Random(0).choices([*combinations(range(6), 2)], k=60):
        order[one], order[other] = order[other], order[one]
        if kind == "tar":
            write(order)
        else:
            Files(source).do(("swap", f"{one}.bmp", f"{other}.bmp"))
        after = thumbnails()
        assert [pixel for _, pixel in after] == [first[number] for number in order]
        for number in (one, other):
            assert after[number][0] != before[number][0]
            told = client.get(
                f"/api/thumb/{number}.bmp",
                headers={"If-None-Match": before[number][0]},
            )
            assert told.status_code == 200
        before = after
