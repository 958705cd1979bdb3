"""Damaged and forged files of other programs: vectors, archives, tables, queries, judgements,
arrays of regions.

Each is read, or refused as a BocError, with no more memory than its bytes hold. BOC_FORGED sets how
many are tried.
"""

import io
import json
import os
import random
import resource
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from boc import Searcher
from boc.clustering.codebook import Codebook
from boc.errors import BocError
from boc.inputs.scan_arrays import read_scan
from boc.inputs.sources import open_source
from boc.inputs.text_lines import read_ids
from boc.inputs.vector_files import read_vectors
from boc.plugins import encoder
from boc.search.queries import parse_text
from encoders.regions.precomputed import ScanRegions, load_files
from tests.boc.inputs.test_vector_files import FORMS
from tests.fuzz.mutations import FORGED, damaged, verdict
from tests.helpers import DEMO_MODEL

pytestmark = pytest.mark.slow
Use = Callable[[Path], object]
HUGE = (
    0,
    -1,
    2**31 - 1,
    2**32 - 1,
    10**12,
    2**62,
)
OBJECTS = [
    {
        "image": "a.png",
        "caption": "a dog",
        "year": 2020,
    },
    {"image": "b.png", "captions": ["a cat"]},
]
ODD_JSON = (
    "1" * 5000,
    "1e999",
    "NaN",
    '"\\ud800"',
    "[" * 5000,
    '{"image": 1, "image": 2}',
    "-0.0",
    '"\\u0000"',
    "[[]]",
)


def parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet as file

    file.write_table(
        pyarrow.Table.from_pylist([{"image": "a.png", "caption": "a dog"}] * 20),
        path,
    )


def archive(path: Path) -> None:
    with tarfile.open(
        path,
        "w",
        format=tarfile.PAX_FORMAT,
    ) as tar:
        for name, data in (
            ("a.png", b"a"),
            ("a.txt", b"a dog"),
            ("a.json", b'{"caption": "x"}'),
            ("n" * 120, b""),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.pax_headers = {"comment": "x" * 40}
            tar.addfile(info, io.BytesIO(data))


def regions(path: Path) -> None:
    for folder in ("bu_att", "bu_box"):
        (path.parent / folder).mkdir(exist_ok=True)
    np.savez_compressed(
        path.parent / "bu_att" / "a.npz",
        feat=np.ones((3, 5), np.float32),
    )
    np.save(
        path.parent / "bu_box" / "a.npy",
        np.ones((3, 4), np.float32),
    )
    path.write_bytes((path.parent / "bu_att" / "a.npz").read_bytes())


def ask_regions(path: Path) -> None:
    (path.parent / "bu_att" / "a.npz").write_bytes(path.read_bytes())
    Image.new("L", (9, 9)).save(path.parent / "a.png")
    load_files(str(path.parent))


def scan(path: Path) -> None:
    np.save(
        path,
        np.ones((2, 3, 4), np.float32),
    )
    path.with_name("x_caps.txt").write_text("a dog\n" * 10)


KINDS: dict[str, tuple[Callable[[Path], object], Use]] = {
    **{
        name: (
            partial(
                lambda form, path: form(
                    path,
                    np.eye(5, 4, dtype=np.float32) + 1,
                ),
                form,
            ),
            read_vectors,
        )
        for name, form in FORMS.items()
    },
    "x.tar": (archive, open_source),
    "c.jsonl": (
        lambda path: path.write_text("".join(json.dumps(each) + "\n" for each in OBJECTS)),
        open_source,
    ),
    "c.parquet": (parquet, open_source),
    "q.txt": (
        lambda path: path.write_text("a dog\n-cat 'x'\n"),
        lambda path: list(map(parse_text, read_ids(path))),
    ),
    "x_ims.npy": (
        scan,
        lambda path: (
            read_scan(path),
            ScanRegions(str(path.parent)),
        ),
    ),
    "r.npz": (regions, ask_regions),
    "book.npz": (
        lambda path: np.savez(path, centroids=np.ones((3, 4))),
        Codebook.load,
    ),
}
"""How a sound file is written, and read."""


def forge(data: bytes, rng: random.Random) -> bytes:
    """Put a huge number, or odd JSON, where a small one was; or damage some bytes."""
    if rng.random() < 0.5:
        return damaged(data, rng) if data else data
    place = rng.choice((0, 4, 8, 16, rng.randrange(len(data) + 1)))
    form = rng.choice(("<i", "<I", "<q"))
    value = rng.choice(HUGE)
    size = struct.calcsize(form)
    number = (value % 2 ** (8 * size)).to_bytes(
        size,
        "little",
    )
    new = rng.choice(
        (
            number,
            number,
            rng.choice(ODD_JSON).encode(),
        ),
    )
    return data[:place] + new + data[place + len(new) :]


@pytest.mark.parametrize("name", KINDS)
def test_a_forged_file_is_refused_or_read(tmp_path: Path, name: str):
    write, use = KINDS[name]
    path = tmp_path / name
    write(path)
    for picture in ("a.png", "b.png"):
        (tmp_path / picture).write_bytes(b"picture")
    sound = path.read_bytes()
    wrong = {}
    for number in range(FORGED):
        path.write_bytes(forge(sound, random.Random(number)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "warnings.warn",
                lambda *_, **__: None,
            )
            became = verdict(partial(use, path), "read")
        if became not in ("refused", "read"):
            wrong[number] = became
    assert not wrong, "\n".join(map(str, wrong.items()))


def packed(path: Path, member: str, claimed: int | None = None) -> None:
    """Write 300 MB of zeros as an archive of numpy, which may claim another size."""
    rows = 300 << 20
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {
            "descr": "|u1",
            "fortran_order": False,
            "shape": (rows // 4, 4),
        },
    )
    with zipfile.ZipFile(
        path,
        "w",
        zipfile.ZIP_DEFLATED,
    ) as file:
        file.writestr(
            member,
            header.getvalue() + bytes(rows),
        )
    if claimed is not None:
        data = bytearray(path.read_bytes())
        struct.pack_into(
            "<I",
            data,
            data.rfind(b"PK\1\2") + 24,
            claimed,
        )
        path.write_bytes(data)


def unwritten(path: Path, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "train",
            (10**9, 100),
            "f4",
            chunks=(1000, 100) if not options else None,
            **options,
        )


def linked(path: Path) -> None:
    unwritten(path.with_name("other.h5"))
    with h5py.File(path, "w") as file:
        file["train"] = h5py.ExternalLink(
            path.with_name("other.h5"),
            "train",
        )


def header(path: Path, kind: bytes, size: int) -> None:
    """Write an archive whose first header claims a size."""
    info = tarfile.TarInfo("a.png")
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (size + (256**12 if size < 0 else 128 << 88)).to_bytes(
        12,
        "big",
    )
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    archive(path)
    path.write_bytes(block + path.read_bytes())


BOMBS: dict[str, tuple[str, Callable[[Path], object], Use]] = {
    "packed zeros": (
        "x.npz",
        lambda path: packed(path, "a.npy"),
        read_vectors,
    ),
    "packed zeros that claim little": (
        "x.npz",
        lambda path: packed(path, "a.npy", 1000),
        read_vectors,
    ),
    "regions": (
        "bu_att/a.npz",
        lambda path: packed(path, "feat.npy"),
        lambda path: load_files(str(path.parents[1])),
    ),
    "codebook": (
        "x.npz",
        lambda path: packed(path, "centroids.npy", 1000),
        Codebook.load,
    ),
    "numbers that were never written": ("x.hdf5", unwritten, read_vectors),
    "numbers of another file": (
        "x.hdf5",
        partial(
            unwritten,
            external=[("/etc/passwd", 0, 4 * 10**11)],
        ),
        read_vectors,
    ),
    "a link to another file": ("x.hdf5", linked, read_vectors),
    "names of terms": (
        "x.csr",
        lambda path: path.write_bytes(struct.pack("<6q", 2, 10**12, 0, 0, 0, 0)),
        read_vectors,
    ),
    **{
        f"a header {kind!r} of {size}": (
            "x.tar",
            partial(header, kind=kind, size=size),
            open_source,
        )
        for kind in (
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        for size in (10**9, 2**62, 2**87, -(10**6))
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_little_memory(tmp_path: Path, name: str):
    file, write, use = BOMBS[name]
    path = tmp_path / file
    for folder in ("bu_att", "bu_box"):
        (tmp_path / folder).mkdir()
    write(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BocError):
        use(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize(
    "other",
    ["pipe", "device"],
)
def test_a_model_or_index_of_pipes_and_devices_is_refused(
    library: Path,
    tmp_path: Path,
    other: str,
):
    """Nobody may ever write to a pipe, and a device may never end."""
    shutil.copytree(
        DEMO_MODEL,
        tmp_path / "model",
    )
    shutil.copytree(
        library / "index" / "photos",
        tmp_path / "index" / "photos",
    )
    files = [
        *(tmp_path / "model").iterdir(),
        *(tmp_path / "index").rglob("*"),
    ]
    for path in filter(Path.is_file, files):
        sound = path.read_bytes()
        path.unlink()
        os.mkfifo(path) if other == "pipe" else path.symlink_to("/dev/zero")
        if path.parent.name == "model":
            became = verdict(
                lambda: encoder(
                    f"teran:{tmp_path / 'model'}",
                    "cpu",
                ).encode_texts(["a dog"]),
                "read",
            )
        else:
            became = verdict(
                lambda: list(
                    Searcher.open(
                        "photos",
                        f"file:{tmp_path / 'index'}",
                    ).index.items(),
                ),
                "read",
            )
        assert became in ("refused", "read"), (path, became)
        path.unlink()
        path.write_bytes(sound)
