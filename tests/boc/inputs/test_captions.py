"""Pictures with captions and metadata as people have them: shards and tables."""

import io
import json
import tarfile
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from PIL import Image

from boc.errors import BocError, LeftOut, SourceError
from boc.inputs.archives import opener
from boc.inputs.file_facts import content_hash, state_of
from boc.inputs.images import read_image
from boc.inputs.sources import Source, open_folders, open_source
from boc.manage.sync import sync_index
from tests.boc.manage.collections_of_files import Counting, held, new


def png(colour: str = "teal") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(
        buffer,
        "PNG",
    )
    return buffer.getvalue()


def shard(
    path: Path,
    members: Iterable[tuple[str, bytes]],
    kind: int = tarfile.USTAR_FORMAT,
) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def opened(
    open: Callable[[], Source],
) -> tuple[dict[str, list[str]], dict[str, dict[str, Any]], list[str]]:
    """Captions and metadata by picture, and the reasons of what was left out."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        source = open()
    pictures = [item for item in source.items if item.modality == "image"]
    assert source.items[: len(pictures)] == pictures
    captions = {item.id: [] for item in pictures}
    for item in source.items[len(pictures) :]:
        captions[item.group].append(item.content)
    reasons = [
        reason
        for each in notes
        if isinstance(each.message, LeftOut)
        for reason in each.message.reasons
    ]
    assert {name for item in pictures for name in item.fields} <= source.types.keys()
    return captions, {item.id: dict(item.fields) for item in pictures}, reasons


IMG2DATASET = [
    ("000000000.jpg", png("red")),
    ("000000000.txt", "a réd box".encode()),
    (
        "000000000.json",
        json.dumps(
            {
                "caption": "a réd box",
                "url": "http://x/1",
                "width": 8,
                "nsfw": 0.5,
            },
        ).encode(),
    ),
    ("000000001.txt", b"of a picture that was not fetched"),
    ("000000002.jpg", png("blue")),
    ("000000002.json", b"{damaged"),
]


def test_shards_of_img2dataset(tmp_path: Path):
    captions, fields, reasons = opened(
        lambda: open_source(shard(tmp_path / "00000.tar", IMG2DATASET)),
    )
    assert captions == {
        "000000000.jpg": ["a réd box"],
        "000000002.jpg": [],
    }
    assert fields == {
        "000000000.jpg": {"url": "http://x/1", "nsfw": 0.5},
        "000000002.jpg": {},
    }
    assert len(reasons) == 2
    assert "00000.tar/000000001.txt: no picture belongs to it" in reasons[0]
    assert "00000.tar/000000002.json: cannot be read" in reasons[1]


def test_several_shards_of_webdataset(tmp_path: Path):
    one = [
        ("./a/0.input.png", png()),
        ("./a/0.seg.png", png("red")),
        ("./a/0.cls", b"7"),
        ("./a/._0.png", b""),
    ]
    two = [
        ("a/0.png", png("blue")),
        ("a/0.json", b'{"n": 1, "captions": ["one", "two"]}'),
        ("a/0.txt", b"\xff"),
    ]
    paths = [
        shard(tmp_path / "0.tar", one),
        shard(
            tmp_path / "1.tar",
            two,
            tarfile.PAX_FORMAT,
        ),
    ]
    (tmp_path / "2.tar").write_bytes(b"")
    captions, fields, reasons = opened(lambda: open_folders([*paths, tmp_path / "2.tar"]))
    assert captions == {
        "0.tar/a/0.input.png": [],
        "0.tar/a/0.seg.png": [],
        "1.tar/a/0.png": ["one", "two"],
    }
    assert [*fields.values()] == [{"cls": "7"}, {}, {"n": 1}]
    assert len(reasons) == 1
    assert "1.tar/a/0.txt: cannot be read" in reasons[0]


def test_a_member_is_read_as_a_file(tmp_path: Path):
    path = shard(
        tmp_path / "x.tar",
        [
            ("in/a.png", png("red")),
            ("empty.png", b""),
        ],
    )
    (tmp_path / "a.png").write_bytes(png("red"))
    member = path / "in" / "a.png"
    assert read_image(member).getpixel((0, 0)) == (255, 0, 0)
    assert content_hash(member) == content_hash(tmp_path / "a.png")
    assert state_of(member) == (len(png("red")), *state_of(path)[1:])
    for absent in (
        path / "b.png",
        path / "in",
        tmp_path / "a.png" / "b.png",
    ):
        assert state_of(absent) == ()
        with pytest.raises(OSError, match=r"b\.png|in"):
            opener(absent)
    shard(path, [("in/a.png", png("blue"))])
    assert read_image(member).getpixel((0, 0)) == (0, 0, 255)


@given(st.data())
def test_damage_of_an_archive_costs_what_is_damaged(
    tmp_path_factory,
    data: Any,
):
    """Whatever block is overwritten, or wherever the file ends, all other members are read with
    their bytes."""
    contents = {f"{number}.png": bytes([number]) * 600 for number in range(6)}
    path = shard(
        tmp_path_factory.mktemp("damage") / "x.tar",
        contents.items(),
    )
    archive = bytearray(path.read_bytes()[: 6 * 1536])
    block = data.draw(st.integers(0, len(archive) // 512 - 1))
    if data.draw(st.booleans()):
        del archive[block * 512 :]
        kept = list(contents)[: block // 3]
        whole = {*contents}
    else:
        archive[block * 512 : (block + 1) * 512] = data.draw(
            st.binary(min_size=512, max_size=512).filter(any),
        )
        kept = [name for name in contents if block != 3 * int(name[0])]
        whole = {*contents} - {f"{block // 3}.png"}
    path.write_bytes(archive)
    if not kept:
        with pytest.raises(SourceError):
            open_source(path)
        return
    found, _, reasons = opened(lambda: open_source(path))
    assert [*found] == kept
    assert len(reasons) == (len(kept) < 6 and 3 * len(kept) != block)
    for name in whole & set(kept):
        with open(path / name, "rb", opener=opener) as file:
            assert file.read() == contents[name]


def test_odd_members_are_left_out(tmp_path: Path):
    path = shard(
        tmp_path / "x.tar",
        [
            ("a.png", png()),
            ("a.png", png("red")),
            ("../b.png", png()),
            ("/c.png", png()),
        ],
    )
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("d.png")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        tar.addfile(link)
        for name in ("e\0.png", "f\0"):
            member = tarfile.TarInfo("x")
            member.pax_headers["path"] = name
            tar.addfile(member)
    captions, _, reasons = opened(lambda: open_source(path))
    assert [*captions] == ["a.png", "c.png"]
    assert read_image(path / "a.png").getpixel((0, 0)) == (0, 128, 128)
    assert len(reasons) == 5
    for packed in ("x.tar.gz", "y.tar"):
        with tarfile.open(tmp_path / packed, "w:gz"):
            pass
        with pytest.raises(SourceError, match=r"\.tar"):
            open_source(tmp_path / packed)


ROWS: list[Any] = [
    {
        "path": "a.png",
        "caption": "one",
        "year": 2020,
        "score": 1,
        "tags": ["x", "y"],
        "taken:date": "2020-05-01",
    },
    {"path": "a.png", "caption": "two"},
    {
        "path": "b.png",
        "caption": None,
        "year": None,
        "score": 0.5,
        "Original Width": True,
        "width": 7,
        "exif": {},
    },
    {"caption": "of nothing", "year": 1},
    {"path": "c.png", "caption": 7},
    {
        "path": "c.png",
        "captions": ["three"],
        "taken:date": "soon",
    },
]
CAPTIONS = {
    "a.png": ["one", "two"],
    "b.png": [],
    "c.png": ["three"],
}
FIELDS = {
    "a.png": {
        "year": 2020,
        "score": 1.0,
        "tags": ["x", "y"],
        "taken": "2020-05-01T00:00:00",
    },
    "b.png": {"score": 0.5, "original_width": True},
    "c.png": {},
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(png())
    return tmp_path


def test_json_lines(pictures: Path):
    # The fact ``taken`` of cameras is their own.
    fields = {name: {k: v for k, v in row.items() if k != "taken"} for name, row in FIELDS.items()}
    lines = [json.dumps(row) for row in ROWS]
    (pictures / "x.jsonl").write_bytes(
        "\n".join(["{broken", *lines, "", "[1]"]).encode() + b"\n\xff\n",
    )
    captions, rows, reasons = opened(lambda: open_source(pictures / "x.jsonl"))
    assert (captions, rows) == (CAPTIONS, fields)
    assert sorted(reason.split(":")[0] for reason in reasons) == [
        "line 1",
        "line 10",
        "line 5",
        "line 6",
        "line 9",
    ]


def test_parquet(pictures: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "image": ["a.png", "a.png", "b.png", None],
        "text": ["one", "two", None, "x"],
        "made": [
            datetime(2020, 5, 1, 12),
            None,
            None,
            None,
        ],
        "n": [3, None, 4, 5],
        "nothing": [None] * 4,
    }
    path = pictures / "x.parquet"
    parquet.write_table(
        pyarrow.table(columns),
        path,
    )
    captions, rows, reasons = opened(lambda: open_source(path))
    assert captions == {"a.png": ["one", "two"], "b.png": []}
    assert rows == {
        "a.png": {"made": "2020-05-01T12:00:00", "n": 3},
        "b.png": {"n": 4},
    }
    assert [reason.split(":")[0] for reason in reasons] == ["row 4"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(
        SourceError,
        match="not a readable Parquet file",
    ):
        open_source(path)


def test_a_sync_follows_the_metadata_of_its_source(
    pictures: Path,
    monkeypatch,
):
    Counting.installed(monkeypatch)
    path = pictures / "x.jsonl"
    at = f"file:{pictures / 'at'}"
    rows = [
        {
            "path": "a.png",
            "caption": "one",
            "year": 1,
            "tag": "x",
        },
        {"path": "b.png", "year": 2},
    ]

    def own():
        names = ("year", "tag", "mine")
        return {
            id: {n: row[3][n] for n in names if n in row[3]} for id, row in held("x", at).items()
        }

    def write():
        path.write_text("\n".join(map(json.dumps, rows)))

    write()
    (pictures / "m.csv").write_text("id,mine\nb.png,kept\n")
    new(
        "x",
        path,
        at,
        metadata=pictures / "m.csv",
    )
    first = {"year": 1, "tag": "x"}
    assert own() == {
        "a.png": first,
        "a.png#0": first,
        "b.png": {"year": 2, "mine": "kept"},
    }
    assert sync_index("x", path, at=at).up_to_date
    rows[1] = {"path": "b.png", "year": 3}
    rows[0] = {
        "path": "a.png",
        "caption": "one",
        "year": 1,
    }
    rows.append({"path": "c.png", "tag": "y"})
    write()
    sync_index("x", path, at=at)
    changed = {
        "a.png": {"year": 1},
        "a.png#0": {"year": 1},
        "b.png": {"year": 3, "mine": "kept"},
        "c.png": {"tag": "y"},
    }
    assert own() == changed
    assert sync_index("x", path, at=at).up_to_date
    rows[2]["year"] = "of another type"
    write()
    with pytest.raises(
        BocError,
        match="year:keyword",
    ):
        sync_index("x", path, at=at)
    assert own() == changed
