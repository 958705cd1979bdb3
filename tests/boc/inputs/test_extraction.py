"""From a source to a feature file: in this process or others, of all pictures that can be used,
whatever happens.

BOC_DAMAGED sets the number of damaged files in the folder that holds twenty times as many (default
20).
"""

import io
import os
import signal
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from PIL import Image, ImageDraw

from boc import plugins
from boc.errors import BocError, EncoderError, ImageError, SourceError
from boc.inputs import prepare_pool
from boc.inputs.extraction import Extraction
from boc.inputs.features import FeatureFile
from boc.inputs.prepare_pool import preparing, worker_count
from boc.inputs.sources import open_source
from boc.types import ImageRef
from tests.boc.inputs.test_images import png
from tests.helpers import boc, draw_pictures

DAMAGED = int(os.environ.get("BOC_DAMAGED", "20"))


def image_of(i: int) -> Image.Image:
    """A picture of its own for every number, of enough detail that its file is some kilobytes
    long."""
    pixels = default_rng(i).integers(
        0,
        256,
        (40, 48, 3),
        dtype=np.uint8,
    )
    picture = Image.fromarray(pixels).resize(
        (96, 80),
        Image.Resampling.BICUBIC,
    )
    ImageDraw.Draw(picture).rectangle(
        (10, 10, 60, 50),
        fill=(i % 256, i // 256, 90),
    )
    return picture


def stored(i: int, kind: str) -> bytes:
    buffer = io.BytesIO()
    image_of(i).save(buffer, kind)
    return buffer.getvalue()


def cut(i: int, kind: str) -> bytes:
    """The beginning of the file, without pixels."""
    return stored(i, kind)[:40]


def broken_png(i: int) -> bytes:
    """Pixels that do not inflate."""
    whole = bytearray(stored(i, "PNG"))
    start = whole.index(b"IDAT") + 4
    whole[start + 200 : start + 260] = bytes(60)
    return bytes(whole)


def archive(i: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(
            "picture.jpg",
            stored(i, "JPEG"),
        )
    return buffer.getvalue()


def bomb(i: int) -> bytes:
    """A PNG of 60,000 x 60,000 pixels, in its header."""
    return png(
        60_000,
        60_000,
        zlib.compress(bytes(i)),
    )


@dataclass(frozen=True)
class Damage:
    """A way to be damaged: the suffix of the file, its bytes (none: a link to nowhere), and words
    of the reason."""

    suffix: str
    make: Callable[[int], bytes] | None
    words: str


DAMAGES = {
    "empty": Damage(".jpg", lambda i: b"", "empty file"),
    "jpeg-cut": Damage(
        ".jpg",
        lambda i: cut(i, "JPEG"),
        "",
    ),
    "png-cut": Damage(
        ".png",
        lambda i: cut(i, "PNG"),
        "",
    ),
    "png-broken": Damage(
        ".png",
        broken_png,
        "cannot be read (",
    ),
    "gif-cut": Damage(
        ".gif",
        lambda i: stored(i, "GIF")[:9],
        "not a picture in a supported format",
    ),
    "text": Damage(
        ".jpg",
        lambda i: b"once upon a time\n" * 40,
        "not a picture in a supported format",
    ),
    "web-page": Damage(
        ".jpeg",
        lambda i: b"<!DOCTYPE html><h1>404 Not Found</h1>",
        "not a picture in a supported format",
    ),
    "archive": Damage(
        ".webp",
        archive,
        "not a picture in a supported format",
    ),
    "noise": Damage(
        ".jpg",
        lambda i: b"\xff\xd8\xff\xe0" + default_rng(i).bytes(999),
        "",
    ),
    "bomb": Damage(
        ".png",
        bomb,
        "60000 x 60000 pixels, but the limit is 100,000,000",
    ),
    "lost": Damage(
        ".tif",
        None,
        "cannot be read (No such file or directory)",
    ),
}


def damaged_folder(folder: Path, count: int, damaged: int) -> tuple[set[str], dict[str, Damage]]:
    """``count`` files, ``damaged`` of them in every way in turn, spread evenly; the good names and
    the bad ones."""
    folder.mkdir(parents=True)
    good = set()
    bad = {}
    for i in range(count):
        if i % (count // damaged) == 3 and len(bad) < damaged:
            way = list(DAMAGES)[len(bad) % len(DAMAGES)]
            damage = DAMAGES[way]
            name = f"{i:05d}-{way}{damage.suffix}"
            if damage.make is None:
                (folder / name).symlink_to(folder / "moved" / name)
            else:
                (folder / name).write_bytes(damage.make(i))
            bad[name] = damage
        else:
            name = f"{i:05d}.{'jpg' if i % 2 else 'png'}"
            (folder / name).write_bytes(stored(i, "JPEG" if i % 2 else "PNG"))
            good.add(name)
    return good, bad


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 2])
def test_damaged_pictures_are_named_once(tmp_path: Path, count: int):
    photos = tmp_path / "photos"
    output = tmp_path / "f.h5"
    good, bad = damaged_folder(
        photos,
        20 * DAMAGED,
        DAMAGED,
    )
    assert len(bad) == DAMAGED
    result = boc(
        f"extract {photos} -o {output} --regions grid --set=workers={count} --verbose",
    )
    assert result.exit_code == 0
    assert result.stdout == f"{len(good)} pictures and 0 captions in {output}\n"
    told = [line for line in result.stderr.splitlines() if line.startswith("left out: ")]
    assert (
        result.stderr.splitlines()[-1]
        == f"{len(bad)} items could not be used; {len(good)} are done."
    )
    assert len(told) == len(bad)
    for line, name in zip(told, sorted(bad), strict=True):
        assert line.startswith(f"left out: {photos / name}: ")
        assert bad[name].words in line
    with FeatureFile(output) as file:
        assert [item.id for item in file.items("image")] == sorted(good)
        assert [key for key, _ in file.failures] == sorted(bad)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 2])
def test_a_picture_without_its_end_is_read_and_noted(tmp_path: Path, count: int):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(6):
        data = stored(i, "PNG")
        (photos / f"{i}.png").write_bytes(data[: len(data) // 2] if i == 3 else data)
    output = tmp_path / "f.h5"
    result = boc(
        *("extract", photos, "-o", output, "--regions", "grid", f"--set=workers={count}"),
    )
    assert result.exit_code == 0, result.output
    assert "truncated pictures: 1 (such as '3.png'); only their readable" in result.stderr
    with FeatureFile(output) as file:
        assert [item.fields.get("cut") for item in file.items("image")] == [None] * 3 + [
            True,
            None,
            None,
        ]


# What follows is given to worker processes, which import this file for it.


@dataclass(frozen=True)
class Prepare:
    """Gives the id of a picture and the process that prepared it, slower for some; trouble by the
    name of the path."""

    pause: float = 0.0
    marks: Path | None = None

    def __call__(self, image: ImageRef) -> tuple[str, int]:
        number = int(image.id)
        if self.marks is not None:
            (self.marks / image.id).touch()
        time.sleep(self.pause * (number % 3))
        match image.path.name:
            case "bad":
                raise ImageError(f"{image.id}: bad")
            case "refused":
                raise EncoderError(f"{image.id}: refused")
            case "fatal":
                os.kill(os.getpid(), signal.SIGKILL)
            case "faulty":
                raise ZeroDivisionError
        return image.id, os.getpid()


@dataclass(frozen=True)
class Threads:
    """Gives the numbers of threads that libraries would use, and the signals held back."""

    def __call__(self, image: ImageRef) -> tuple[list[int], bool]:
        import sklearn.cluster  # noqa: F401  # brings OpenMP, and BLAS through SciPy
        from threadpoolctl import threadpool_info

        held = signal.SIGINT in signal.pthread_sigmask(
            signal.SIG_BLOCK,
            (),
        )
        return [int(library["num_threads"]) for library in threadpool_info()], held


class Broken:
    """Cannot be made again in a worker, for a reason the user can act on."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return refuse, ()

    def __call__(self, image: ImageRef) -> None: ...


def refuse() -> None:
    raise EncoderError("regions.tsv: no such table")


def refs(count: int, **names: int) -> list[ImageRef]:
    """Pictures by number; ``names`` says which of them makes which trouble."""
    trouble = {number: name for name, number in names.items()}
    return [
        ImageRef(
            str(i),
            Path(trouble.get(i, "good")),
        )
        for i in range(count)
    ]


@pytest.fixture(autouse=True)
def workers() -> Iterator[Callable[[], int]]:
    """The number of processes that the test has started and that are alive: none after it."""
    before = set(active_children())

    def alive():
        return len(set(active_children()) - before)

    yield alive
    assert not alive()


@pytest.mark.parametrize(
    "count",
    [
        0,
        *(
            pytest.param(
                workers,
                marks=pytest.mark.slow,
            )
            for workers in (1, 3)
        ),
    ],
)
@pytest.mark.parametrize(
    "images",
    [0, 2, 50],
)
def test_prepared_order(count: int, images: int):
    with preparing(
        Prepare(0.002),
        refs(images, bad=1),
        count,
    ) as prepared:
        values = list(prepared)
    assert len(values) == images
    for i, value in enumerate(values):
        if i == 1:
            assert isinstance(value, ImageError)
            assert str(value) == "1: bad"
        else:
            assert value[0] == str(i)
            assert (value[1] == os.getpid()) == (count == 0)
    if images == 50:
        assert len({value[1] for i, value in enumerate(values) if i != 1}) == max(count, 1)


@pytest.mark.slow
def test_prepared_ahead(tmp_path: Path):
    with preparing(
        Prepare(marks=tmp_path),
        refs(60),
        2,
        ahead=5,
    ) as prepared:
        for taken in range(1, 41):
            next(prepared)
            if taken in (1, 20, 40):
                time.sleep(0.3)
            assert len(list(tmp_path.iterdir())) <= taken + 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "count", "error", "message"),
    [
        ("refused", 0, EncoderError, "7: refused"),
        ("refused", 2, EncoderError, "7: refused"),
        (
            "fatal",
            2,
            BocError,
            "a worker process died at fatal, .*; run the command again",
        ),
        ("faulty", 2, ZeroDivisionError, None),
    ],
)
def test_errors_of_no_single_picture_end_the_run(
    trouble: str,
    count: int,
    error: type[Exception],
    message: str | None,
):
    with preparing(
        Prepare(),
        refs(30, **{trouble: 7}),
        count,
    ) as prepared:
        assert [next(prepared)[0] for _ in range(7)] == [str(i) for i in range(7)]
        with pytest.raises(error, match=message):
            next(prepared)


@pytest.mark.slow
def test_a_worker_that_cannot_begin_says_why():
    with (
        preparing(Broken(), refs(3), 2) as prepared,
        pytest.raises(
            EncoderError,
            match="no such table",
        ),
    ):
        next(prepared)


@pytest.mark.slow
def test_worker_threads_and_signals(monkeypatch):
    for name in prepare_pool.THREADS:
        monkeypatch.setenv(name, "2")
    with preparing(Threads(), refs(2), 1) as prepared:
        threads, held = next(prepared)
    assert held
    assert threads
    assert set(threads) == {1}
    assert signal.SIGINT not in signal.pthread_sigmask(
        signal.SIG_BLOCK,
        (),
    )


@pytest.mark.slow
def test_abandoned_run(workers: Callable[[], int]):
    with preparing(Prepare(0.01), refs(1000), 2) as prepared:
        next(prepared)
        assert workers() == 2


def test_few_pictures_need_no_workers():
    assert worker_count(0) == worker_count(prepare_pool.FEW - 1) == 0
    assert worker_count(prepare_pool.FEW) == len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """300 pictures with captions; three of them cannot be used."""
    path = draw_pictures(
        tmp_path_factory.mktemp("many"),
        300,
    )
    for name in ("005.png", "150.png", "299.png"):
        (path.parent / "images" / name).write_bytes(b"")
    return path


@pytest.mark.slow
def test_workers_do_not_change_a_byte(library: Path, table: Path, tmp_path: Path):
    for what in (f"--encoder=tern:{library / 'model'}", "--regions=grid"):
        for count in (0, 2):
            assert (
                boc(
                    f"extract {table} -o {tmp_path}/{count}.h5",
                    what,
                    f"--set=workers={count}",
                ).exit_code
                == 0
            )
        assert (tmp_path / "0.h5").read_bytes() == (tmp_path / "2.h5").read_bytes()


def shards(source: Path, folder: Path, parts: int, *arguments: object) -> list[Path]:
    """Feature files of all shards of a source."""
    paths = [folder / f"{i}-{parts}.h5" for i in range(1, parts + 1)]
    for i, path in enumerate(paths, 1):
        assert (
            boc(
                f"extract {source} -o {path} --shard",
                f"{i}/{parts}",
                *arguments,
            ).exit_code
            == 0
        )
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("parts", [3, 45])
def test_index_of_shards(library: Path, tmp_path: Path, parts: int):
    """Of forty-five parts of forty pictures some hold nothing at all."""
    paths = shards(
        library / "captions.csv",
        tmp_path,
        parts,
        f"--encoder=tern:{library / 'model'}",
    )
    at = f"--at=file:{tmp_path / 'index'}"
    headers = []
    for i, path in enumerate(paths, 1):
        with FeatureFile(path) as file:
            headers.append(file.header)
            assert file.header.shard == f"{i}/{parts}"
    assert len({header.source for header in headers}) == parts
    for code in (
        ("--code", "bits"),
        ("--rerank", "mrsw", "--code", "scalar"),
    ):
        name = code[1]
        result = boc(f"index {name}", *paths[::-1], *code, at)
        assert result.stdout == f"{name}: 40 pictures and 80 captions\n", result.output
        assert (
            boc(
                f"index {name}-whole {library}/photos.h5",
                *code,
                at,
            ).exit_code
            == 0
        )
        assert boc(f"index {name}", *paths, *code, at).stdout.startswith(f"{name} is up to date")
        home = tmp_path / "index"
        one, whole = (
            plugins.backend(f"file:{home}").open(each) for each in (name, f"{name}-whole")
        )
        ids = sorted(item.id for item in whole.items())
        assert sorted(item.id for item in one.items()) == ids
        assert (
            np.abs(one.vectors(ids) - whole.vectors(ids)).max() < 1e-3
        )  # float16, from batches of other sizes
        assert abs(one.terms(ids) - whole.terms(ids)).max() <= 1


@pytest.mark.slow
def test_index_refuses_mixed_files(library: Path, tmp_path: Path):
    one = library / "photos.h5"
    for files, words in (
        ((one, one), f"{one} and {one} both contain"),
        (
            (one, library / "regions.h5"),
            f"{library / 'regions.h5'} contains no vectors",
        ),
        (
            (one, library / "images"),
            "multiple sources must either all be folders or tar archives",
        ),
        (
            (one, tmp_path / "missing.h5"),
            "missing.h5: file does not exist",
        ),
    ):
        result = boc(
            "index photos",
            *files,
            f"--at=file:{tmp_path / 'index'}",
        )
        assert result.exit_code in (1, 2)
        assert words in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "index" / "photos").exists()


@pytest.mark.parametrize(
    "shard",
    ["0/16", "17/16", "a/b", "3", "1/0", "-1/4", "1/2/3", "1.0/2", "", "²/3"],
)
def test_wrong_shard(library: Path, tmp_path: Path, shard: str):
    result = boc(
        f"extract {library}/captions.csv -o {tmp_path}/f.h5 --regions=grid --shard",
        shard,
    )
    assert result.exit_code == 1
    assert f"{shard!r} is not a shard; write I/N with I from 1 to N, such as 3/16" in result.stderr
    assert not list(tmp_path.iterdir())
    with pytest.raises(SourceError):
        open_source(library / "captions.csv").part(shard)


@pytest.mark.slow
def test_facts_become_metadata(library: Path, tmp_path: Path):

    from boc.inputs.file_facts import FACTS, content_hash, facts_of, state_of
    from boc.types import ImageRef

    encoder = plugins.encoder(f"tern:{library / 'model'}")
    source = open_source(
        library / "captions.csv",
        images=library / "images",
    )
    list(
        Extraction(
            source,
            tmp_path / "f.h5",
            encoder=encoder,
        ).run(),
    )
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.header.types == FACTS
        for item in file.items("image"):
            path = Path(item.content)
            assert item.fields == facts_of(
                ImageRef(item.id, path),
                state_of(item.content),
                content_hash(path),
            )
        assert all(item.fields == {} for item in file.items("text"))
