"""An odd or damaged feature file is refused by name: no traceback, no end of time, no look into
other files."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from boc.errors import FeatureFileError
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.types import MODALITIES, Batch, Embeddings, Item, Ragged

COUNT = 40
DIM = 5


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("sound") / "f.h5"
    with FeatureWriter(
        path,
        Header(
            "embeddings",
            "own:f",
            "ab" * 32,
            DIM,
            "float32",
            "cd" * 32,
        ),
    ) as writer:
        for modality in MODALITIES:
            items = [
                Item(
                    f"{modality}-{i}",
                    modality,
                    "GCOL content é",
                    "g",
                )
                for i in range(COUNT)
            ]
            vectors = rng.standard_normal((COUNT, DIM)).astype(np.float32)
            sets = Ragged.from_sets(
                [vectors[: i % 3] for i in range(COUNT)],
                DIM,
            )
            words = [["w"] * (i % 3) for i in range(COUNT)] if modality == "text" else None
            writer.append(
                COUNT,
                [
                    Batch(
                        items,
                        Embeddings(modality, vectors, sets, words=words),
                    ),
                ],
            )
        writer.finish()
    return path


def drain(path: Path) -> None:
    """Read all that there is."""
    with FeatureFile(path) as file:
        assert isinstance(file.failures, list)
        for modality in MODALITIES:
            file.ids(modality)
            for rows in file.batches(modality, 7):
                assert rows.embeddings.vectors.shape == (len(rows.items), file.header.dim)
            file.vectors(modality)
            list(
                file.sample(
                    modality,
                    np.arange(0, file.count(modality), 3),
                ),
            )


def put(name: str, value: object, **options: object) -> Callable[[h5py.File], None]:
    """An edit that replaces an array."""

    def edit(file):
        del file[name]
        file.create_dataset(
            name,
            data=value,
            **options,
        )

    return edit


def linked(name: str, link: object) -> Callable[[h5py.File], None]:
    def edit(file):
        del file[name]
        file[name] = link

    return edit


def external(file: h5py.File) -> None:
    del file["image/dense/vectors"]
    file.create_dataset(
        "image/dense/vectors",
        (COUNT, DIM),
        "f4",
        external=[("/etc/passwd", 0, 4 * COUNT * DIM)],
    )


def virtual(file: h5py.File) -> None:
    del file["image/dense/vectors"]
    layout = h5py.VirtualLayout((COUNT, DIM), "f4")
    layout[:] = h5py.VirtualSource(
        "other.h5",
        "v",
        (COUNT, DIM),
    )
    file.create_virtual_dataset("image/dense/vectors", layout)


def spoil(name: str, value: float) -> Callable[[h5py.File], None]:
    def edit(file):
        file[name][3, 2] = value

    return edit


def attribute(name: str, value: object) -> Callable[[h5py.File], None]:
    def edit(file):
        file.attrs[name] = value

    return edit


def drop(name: str) -> Callable[[h5py.File], None]:
    def edit(file):
        del file[name]

    return edit


TEXT = h5py.string_dtype()
VECTORS = np.ones((COUNT, DIM), np.float32)
EDITS: dict[str, Callable[[h5py.File], None]] = {
    "external link to vectors": linked(
        "image/dense/vectors",
        h5py.ExternalLink("other.h5", "v"),
    ),
    "external link to content": linked(
        "image/content",
        h5py.ExternalLink("other.h5", "s"),
    ),
    "soft link": linked(
        "image/content",
        h5py.SoftLink("/image/ids"),
    ),
    "external storage": external,
    "virtual": virtual,
    "compressed": put(
        "image/dense/vectors",
        VECTORS,
        compression="gzip",
    ),
    "chunked": put(
        "image/dense/vectors",
        VECTORS,
        chunks=(4, DIM),
    ),
    "one dimension": put("image/dense/vectors", VECTORS[:, 0]),
    "integers": put(
        "image/dense/vectors",
        VECTORS.astype(int),
    ),
    "strings": put(
        "image/dense/vectors",
        ["a"] * COUNT,
        dtype=TEXT,
    ),
    "another width": put("image/dense/vectors", VECTORS[:, :4]),
    "too few vectors": put("image/dense/vectors", VECTORS[:9]),
    "too few words": put("text/words", ["a"] * 9, dtype=TEXT),
    "a group for vectors": lambda file: (
        drop("image/dense/vectors")(file),
        file.create_group("image/dense/vectors"),
    )[0],
    "an array for a group": linked("image", VECTORS),
    "short ids": put("image/ids", ["a"] * 9, dtype=TEXT),
    "ids of numbers": put("image/ids", np.arange(COUNT)),
    "ids not UTF-8": put(
        "image/ids",
        [b"\xff"] * COUNT,
        dtype=TEXT,
    ),
    "no ids": drop("image/ids"),
    "no offsets": drop("image/offsets"),
    "no failed": drop("failed"),
    "failed in one dimension": put("failed", ["a"] * 2, dtype=TEXT),
    "too little content": put("image/content", ["a"] * 9, dtype=TEXT),
    "failed of numbers": put("failed", np.zeros((2, 2))),
    "falling offsets": put(
        "image/offsets",
        np.arange(COUNT + 1)[::-1].copy(),
    ),
    "offsets from 1": put(
        "image/offsets",
        np.arange(1, COUNT + 2),
    ),
    "offsets beyond": put(
        "image/offsets",
        np.arange(COUNT + 1) * 10**15,
    ),
    "not a number": spoil("image/dense/vectors", np.nan),
    "infinite": spoil("text/dense/vectors", np.inf),
    "format as text": attribute("format", "1"),
    "dim as text": attribute("dim", "5"),
    "dim of 0": attribute("dim", 0),
    "spec as number": attribute("spec", 3),
    "unknown dtype": attribute("dtype", "int64"),
    "kind as list": attribute("kind", ["embeddings"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_odd_files_are_refused(sound: Path, tmp_path: Path, edit: str):
    path = tmp_path / "f.h5"
    shutil.copy(sound, path)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["v"] = VECTORS
        other.create_dataset(
            "s",
            data=["secret"] * COUNT,
            dtype=TEXT,
        )
    with h5py.File(path, "a") as file:
        EDITS[edit](file)
    with pytest.raises(
        FeatureFileError,
        match=r"f\.h5",
    ):
        drain(path)


def test_a_string_whose_type_became_a_list_is_refused(sound: Path, tmp_path: Path):
    """HDF5 crashes if it reads such an attribute."""
    damaged = tmp_path / "f.h5"
    kind = b"kind\0\0\0\0\x19"
    damaged.write_bytes(sound.read_bytes().replace(kind + b"\1", kind + b"\x08"))
    with pytest.raises(FeatureFileError, match="kind is not a string"):
        drain(damaged)


def test_a_sound_file_is_taken(sound: Path):
    drain(sound)


WALK = """
import sys
from pathlib import Path
from tests.boc.inputs.test_hdf5_check import drain
from boc.errors import FeatureFileError
data, path, refused = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), 0
for start in range(int(sys.argv[3]), len(data), int(sys.argv[4])):
    print(start, flush=True)
    length = int(sys.argv[5])
    damaged = bytearray(data)
    damaged[start:start + length] = bytes([int(sys.argv[6])]) * len(damaged[start:start + length])
    path.write_bytes(damaged)
    try:
        drain(path)
    except FeatureFileError:
        refused += 1
print("refused", refused)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "length", "value"),
    [
        (0, 200, 0),
        (136, 200, 0),
        (3, 1, 255),
        (64, 8, 0),
        (50, 2, 7),
    ],
)
def test_damaged_bytes_terminate(
    sound: Path,
    tmp_path: Path,
    first: int,
    length: int,
    value: int,
):
    step = 331 if length < 100 else 200
    command = [
        sys.executable,
        "-c",
        WALK,
        sound,
        tmp_path / "f.h5",
        first,
        step,
        length,
        value,
    ]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-2000:]
    assert "refused" in done.stdout
    assert done.stdout.split()[-1] != "0" or length < 3


@pytest.mark.parametrize("hidden_by", ["its mark", "an array"])
def test_a_hidden_heap_without_an_end_is_refused(sound: Path, tmp_path: Path, hidden_by: str):
    """HDF5 never ends in such a heap, and ignores three bytes of the mark."""
    data = bytearray(sound.read_bytes())
    with h5py.File(sound) as file:
        ids = file["image/ids"].id.get_offset()
        array = file["image/dense/vectors"].id.get_offset().to_bytes(8, "little")
    heap = int(np.frombuffer(data, "<u8", 1, ids + 4)[0])
    data[heap + 16 : heap + 32] = bytes(16)  # its first string
    if hidden_by == "its mark":
        data[heap + 7] = 15
    else:
        data = data.replace(array, (heap - 8).to_bytes(8, "little"))
    damaged = tmp_path / "f.h5"
    damaged.write_bytes(data)
    with pytest.raises(FeatureFileError, match="damaged"):
        drain(damaged)


def test_a_small_file_stays_small_in_memory(sound: Path, tmp_path: Path):
    """Strings and arrays are not found in several places."""
    strings = tmp_path / "strings.h5"
    arrays = tmp_path / "arrays.h5"
    for path in (strings, arrays):
        shutil.copy(sound, path)
    with h5py.File(strings, "r+") as file:
        file["image/content"][0] = "x" * 30_000
        place = file["image/content"].id.get_offset()
    drain(strings)
    references = np.memmap(
        strings,
        "V16",
        "r+",
        place,
        COUNT,
    )
    references[:] = references[0]
    references.flush()
    with h5py.File(arrays, "r+") as file:
        for number in range(100):
            file[f"image/dense/{number}"] = file["image/dense/vectors"]
    for path in (strings, arrays):
        with pytest.raises(
            FeatureFileError,
            match=r"arrays have [0-9,]+ bytes, the file only",
        ):
            drain(path)
