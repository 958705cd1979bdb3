"""What the items of a SOURCE are, and how a bad one is refused."""

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

from boc.errors import BocWarning, ImageError, LeftOut, SourceError
from boc.inputs import images
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.inputs.sources import ADVICE, Source, beginnings, listing, open_folders, open_source
from boc.types import MODALITIES, Batch, Embeddings, Item
from tests.oracles import TEXT


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        (folder / name).touch()


def refusal(path: Path, **options: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(path, **options)
    return str(caught.value)


def test_folder_source(tmp_path: Path):
    touch(
        tmp_path,
        "b.JPG",
        "a.png",
        "notes.txt",
        "sub/deep er/ü.WebP",
        "sub/a.jpeg",
        "README",
        "c.jpg~",
        "sub/x.gif",
    )
    (tmp_path / "folder.jpg").mkdir()
    items = open_source(tmp_path).items
    assert [item.id for item in items] == [
        "a.png",
        "b.JPG",
        "sub/a.jpeg",
        "sub/deep er/ü.WebP",
        "sub/x.gif",
    ]
    for item in items:
        assert item == Item(
            item.id,
            "image",
            str(tmp_path.resolve() / item.id),
            item.id,
        )
    assert open_source(tmp_path).file is None


@given(
    st.lists(
        st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & {*name}),
        unique=True,
    ),
)
@example(
    [
        b"caf\xe9",
        "café".encode(),
        rb"caf\xe9",
        rb"caf\x5cxe9",
        b"\xff",
        rb"\x41",
    ],
)
def test_any_name_is_an_id(names: list[bytes]):
    with TemporaryDirectory() as place:
        for name in names:
            Path(os.fsdecode(os.fsencode(place) + b"/x" + name + b".jpg")).write_bytes(name)
        items = open_source(Path(place)).items if names else []
        assert {item.path.read_bytes() for item in items} == set(names)
        assert len({item.id for item in items}) == len(names)
        for item in items:
            assert item.id.encode().decode() == item.id
            assert item.content.endswith(f"/{item.id}")


def table(folder: Path, text: str, name: str = "captions.csv", encoding: str = "utf-8") -> Path:
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


ROWS = (
    'image,caption\nb.png,"a dog, running"\na.png,"she says '
    '""hi"""\nb.png,two\nlines.png,"one\ntwo"\n'
)


def test_table_source(tmp_path: Path):
    touch(tmp_path, "b.png")
    items = open_source(table(tmp_path, ROWS)).items
    root = tmp_path.resolve()
    assert items == [
        Item(
            "b.png",
            "image",
            f"{root}/b.png",
            "b.png",
        ),
        Item(
            "a.png",
            "image",
            f"{root}/a.png",
            "a.png",
        ),
        Item(
            "lines.png",
            "image",
            f"{root}/lines.png",
            "lines.png",
        ),
        Item(
            "b.png#0",
            "text",
            "a dog, running",
            "b.png",
        ),
        Item("b.png#1", "text", "two", "b.png"),
        Item(
            "a.png#0",
            "text",
            'she says "hi"',
            "a.png",
        ),
        Item(
            "lines.png#0",
            "text",
            "one\ntwo",
            "lines.png",
        ),
    ]


@pytest.mark.parametrize(
    "start",
    ["", "\ufeff"],
)
@pytest.mark.parametrize(
    "end",
    ["\n", "\r\n"],
)
def test_the_marks_of_windows_do_not_matter(tmp_path: Path, start: str, end: str):
    touch(tmp_path, "a.png")
    text = start + end.join(["image,caption", "a.png,é one", "a.png,two"])
    assert [item.content for item in open_source(table(tmp_path, text)).items[1:]] == [
        "é one",
        "two",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the first line must name the columns image,caption; found []"),
        (
            "file,text\na.png,hello\n",
            "the first line must name the columns image,caption; found ['file', 'text']",
        ),
        ("image,caption\n", "no rows"),
        ("image,caption\na.png\n", "line 2: both image and caption are required"),
        ("image,caption\n,hello\n", "line 2: both image and caption are required"),
        ("image,caption\na.png,a dog, running\n", "line 2: more cells"),
        ("image,caption\na.png,a \0 dog\n", "line 2: a NUL character, which cannot be stored"),
        (
            "image,caption\na\0.png,one\n",
            "line 2: a NUL character, which cannot be stored; remove it",
        ),
        ('image,caption\na.png,"open\n', "not a CSV file"),
        ('image,caption\na.png,"a" b\n', "not a CSV file"),
    ],
)
def test_a_bad_table_is_refused_with_the_place(tmp_path: Path, text: str, words: str):
    touch(tmp_path, "a.png")
    message = refusal(table(tmp_path, text))
    assert str(tmp_path / "captions.csv") in message
    assert words in message


def test_a_table_in_another_encoding_is_refused(tmp_path: Path):
    touch(tmp_path, "a.png")
    message = refusal(
        table(
            tmp_path,
            "image,caption\na.png,café\n",
            encoding="latin-1",
        ),
    )
    assert "not UTF-8" in message
    assert ADVICE in message


def test_bad_lines_cost_themselves(tmp_path: Path):
    touch(tmp_path, "b.png")
    path = table(
        tmp_path,
        'image,caption\na.png,one\na.png\nb.png,"two\nb.png,thr\0e\nb.png,a, b\nb.png,four\n',
    )
    path.write_bytes(path.read_bytes() + "b.png,café\nb.png,five\n".encode("latin-1"))
    with pytest.warns(LeftOut) as told:
        items = open_source(path).items
    assert [item.content for item in items if item.modality == "text"] == ["one", "four", "five"]
    assert isinstance(told[0].message, LeftOut)
    assert [reason.split(":")[0] for reason in told[0].message.reasons] == [
        f"line {n}" for n in (3, 4, 5, 6, 8)
    ]


@pytest.mark.parametrize(
    "place",
    ["", "images", "elsewhere/deep"],
)
def test_picture_folder_of_a_table(tmp_path: Path, place: str):
    touch(
        tmp_path,
        f"{place}/sub/a.png" if place else "sub/a.png",
    )
    path = table(tmp_path, "image,caption\nsub/a.png,hello\n")
    options = {"images": tmp_path / place} if place.startswith("elsewhere") else {}
    if options:
        assert "name the folder with images=" in refusal(path)
    picture = open_source(path, **options).items[0]
    assert picture.content == str((tmp_path / place / "sub/a.png").resolve())
    assert picture.id == "sub/a.png"


def test_missing_pictures_of_a_table(tmp_path: Path):
    path = table(tmp_path, "image,caption\nx.png,hello\n")
    message = refusal(path)
    assert (
        f"its 1 pictures (x.png, ...) are not in {tmp_path} or {tmp_path / 'images'}; "
        "name the folder" in message
    )
    assert str(tmp_path / "other") in refusal(path, images=tmp_path / "other")


def ids_file(folder: Path, text: str) -> Path:
    (folder / "ids.txt").write_bytes(text.encode())
    return folder / "ids.txt"


@pytest.mark.parametrize(
    "text",
    ["b.png\na.png", "\ufeffa.png\r\n\r\nb.png\r\n", "a.png\nb.png\na.png\n"],
)
def test_ids_narrow_a_source(tmp_path: Path, text: str):
    touch(tmp_path, "c.png")
    path = table(tmp_path, "image,caption\nc.png,x\nb.png,y\na.png,z\nb.png,w\n")
    whole = open_source(path).items
    kept = open_source(path, ids_file(tmp_path, text)).items
    assert kept == [item for item in whole if item.group in {"a.png", "b.png"}]
    assert [item.id for item in kept] == ["b.png", "a.png", "b.png#0", "b.png#1", "a.png#0"]


def test_feature_file_source(tmp_path: Path):
    pictures = [Item(key, "image", f"/x/{key}", key) for key in ("b", "a")]
    captions = [
        Item("b#0", "text", "hello", "b"),
        Item("alone", "text", "hello", ""),
    ]
    path = tmp_path / "f.h5"
    with FeatureWriter(
        path,
        Header(
            "embeddings",
            "tern:x",
            "d",
            2,
            "float32",
            "s",
        ),
    ) as writer:
        batches = [
            Batch(
                items,
                Embeddings(
                    items[0].modality,
                    np.zeros((2, 2), np.float32),
                ),
            )
            for items in (captions, pictures)
        ]
        writer.append(4, batches)
        writer.finish()
    assert open_source(path) == Source(pictures + captions, file=path)
    assert open_source(
        path,
        ids_file(tmp_path, "b\nalone"),
    ) == Source(
        [pictures[0], *captions],
        file=path,
    )


def test_a_feature_file_of_nothing_is_refused(tmp_path: Path):
    with FeatureWriter(
        tmp_path / "f.h5",
        Header(
            "embeddings",
            "tern:x",
            "d",
            2,
            "float32",
            "s",
        ),
    ) as writer:
        writer.append(1, [], [("a", "a: damaged")])
        writer.finish()
    assert f"f.h5: contains no items; {ADVICE}" in refusal(tmp_path / "f.h5")


def test_unknown_source(tmp_path: Path):
    touch(tmp_path, "notes.txt")
    assert (
        refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: no such file or folder; {ADVICE}"
    )
    assert f"unknown kind of source '.txt'; {ADVICE}" in refusal(tmp_path / "notes.txt")


ITEMS = st.lists(
    st.builds(
        Item,
        TEXT,
        st.sampled_from(MODALITIES),
        TEXT,
        TEXT,
    ),
    max_size=4,
)


@given(one=ITEMS, other=ITEMS)
def test_source_digest(one: list[Item], other: list[Item]):
    assert Source(one).digest == Source(list(one), file=Path("x")).digest
    assert (Source(one).digest == Source(other).digest) == (one == other)


def test_dangling_links_are_listed(tmp_path: Path):
    (tmp_path / "lost.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "round.jpg").symlink_to(tmp_path / "round.jpg")
    touch(tmp_path, "a.jpg", "there/b.png")
    (tmp_path / "linked.png").symlink_to(tmp_path / "there" / "b.png")
    (tmp_path / "folder.png").symlink_to(tmp_path / "there")
    with pytest.warns(
        BocWarning,
        match=r"folder\.png",
    ):
        items = {item.id: item.content for item in open_source(tmp_path).items}
    root = tmp_path.resolve()
    assert items == {
        "a.jpg": f"{root}/a.jpg",
        "lost.jpg": f"{root}/lost.jpg",
        "round.jpg": f"{root}/round.jpg",
        "there/b.png": f"{root}/there/b.png",
        "linked.png": f"{root}/there/b.png",
    }


@given(items=ITEMS, parts=st.integers(1, 5))
def test_shards_are_the_source_once_in_its_order(items: list[Item], parts: int):
    source = Source(items)
    pieces = [source.part(f"{i}/{parts}") for i in range(1, parts + 1)]
    places = [
        [i for i, item in enumerate(items) if any(item is kept for kept in piece.items)]
        for piece in pieces
    ]
    for piece, kept in zip(pieces, places, strict=True):
        assert piece.items == [items[i] for i in kept]
    assert sorted(i for kept in places for i in kept) == list(range(len(items)))
    for item in items:
        assert sum(item in piece.items for piece in pieces) == 1
    assert len({piece.digest for piece in pieces} | {source.digest}) == (
        parts + 1 if parts > 1 else 1
    )


@given(
    items=ITEMS.filter(bool),
    parts=st.integers(2, 5),
    data=st.data(),
)
def test_shard_of_a_picture(items: list[Item], parts: int, data: st.DataObject):
    """Not on the other items nor their order; and captions go with their picture."""
    item = data.draw(st.sampled_from(items))
    shard = next(
        f"{i}/{parts}"
        for i in range(1, parts + 1)
        if item in Source(items).part(f"{i}/{parts}").items
    )
    name = item.group or item.id
    assume(name)
    alone = [
        replace(item, content="other"),
        Item(name, "image", "x.jpg", name),
        Item(f"{name}#7", "text", "", name),
    ]
    for others in ([], items[::-1]):
        assert set(alone) <= set(Source(alone + others).part(shard).items)


def test_left_out_files_are_named(tmp_path: Path):
    folder = tmp_path / "phone"
    other = tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    for name in ("a.jpg", "b.jfif", "c.NEF", "d.nef", "e.jxl", "g.avif", "h.jpe"):
        (folder / name).touch()
    for name in ("notes.txt", "a.jpg.xmp", "i.svg", "j.mov", "k.PEF", "l.srw", "m.3gp"):
        (folder / name).touch()
    (folder / "scan").write_bytes(b"\xff\xd8\xff")
    (folder / "LICENSE").touch()
    (other / "f.jpg").touch()
    (folder / "linked").symlink_to(other)
    with pytest.warns(BocWarning) as told:
        source = open_source(folder)
    assert [item.id for item in source.items] == ["a.jpg", "b.jfif", "g.avif", "h.jpe"]
    others = "1 .3gp, 1 .jxl, 1 .mov, 2 .nef, 1 .pef, 1 .srw, 1 .svg"
    assert f"1 JPEG without suffix, {others}; convert" in str(told[0].message)
    assert "'linked'" in str(told[1].message)
    assert len(told) == 2


def test_what_disks_and_programs_keep_is_left_out(tmp_path: Path):
    hidden = [
        "@eaDir/a.jpg/T.jpg",
        ".thumbnails/1.jpg",
        "#Recycle/a.jpg",
        ".Trash-1000/files/a.jpg",
        "b/._a.jpg",
    ]
    hidden += [
        "$recycle.bin/a.jpg",
        "b/__MACOSX/a.jpg",
        "x.photoslibrary/resources/a.jpg",
        "x.lrdata/a.jpg",
    ]
    touch(
        tmp_path,
        *hidden,
        "b/a.jpg",
        "x.photoslibrary/originals/a.jpg",
        "resources/a.jpg",
        "raw/a.jpg",
        "a.PNG",
    )
    with pytest.warns(
        BocWarning,
        match="left out 11 hidden or unwanted names",
    ):
        source = open_source(
            tmp_path,
            exclude=["RAW/", "*.png"],
        )
    assert [item.id for item in source.items] == [
        "b/a.jpg",
        "resources/a.jpg",
        "x.photoslibrary/originals/a.jpg",
    ]


def test_heic_with_and_without_reader(tmp_path: Path, monkeypatch):
    for name in ("a.jpg", "b.HEIC", "c.heif"):
        (tmp_path / name).touch()
    monkeypatch.setattr(
        images,
        "find_spec",
        lambda name: object(),
    )
    assert [item.id for item in open_source(tmp_path).items] == ["a.jpg", "b.HEIC", "c.heif"]
    monkeypatch.setattr(
        images,
        "find_spec",
        lambda name: None,
    )
    with pytest.warns(
        BocWarning,
        match=r"left out 1 \.heic, 1 \.heif; install their decoder: .*boc\[heic\]",
    ):
        assert [item.id for item in open_source(tmp_path).items] == ["a.jpg"]
    with pytest.raises(
        ImageError,
        match=r"b\.HEIC: empty file",
    ):
        images.image_size(tmp_path / "b.HEIC")
    (tmp_path / "b.HEIC").write_bytes(b"what only the extra reads")
    with pytest.raises(
        ImageError,
        match=r"b\.HEIC: not a picture in a supported format; .*boc\[heic\]",
    ):
        images.image_size(tmp_path / "b.HEIC")


NAME = st.text("ab.-_é ", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
TREE = st.lists(
    st.lists(NAME, min_size=1, max_size=3),
    max_size=12,
)


@given(tree=TREE)
def test_files_are_those_of_pathlib_in_its_order(
    tmp_path_factory,
    tree: list[list[str]],
):
    root = tmp_path_factory.mktemp("tree")
    for parts in tree:
        path = root.joinpath(*parts)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            path.touch()
    wanted = [
        path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()
    ]
    assert listing(root, ()).files == wanted
    shown = [name for name in wanted if not any(part.startswith(".") for part in name.split("/"))]
    assert listing(root).files == shown
    assert listing(root, ("*b", "a/")).files == [
        name
        for name in wanted
        if not any(part == "a" or part.endswith("b") for part in name.split("/"))
    ]


@pytest.mark.skipif(
    os.geteuid() == 0,
    reason="root may list every folder",
)
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path):
    touch(tmp_path, "a.png", "closed/b.png")
    (tmp_path / "closed").chmod(0)
    try:
        with pytest.warns(
            BocWarning,
            match="1 folders that cannot be listed",
        ):
            source = open_source(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert [item.id for item in source.items] == ["a.png"]
    assert source.closed == ("closed/",)


def test_ids_of_several_folders(tmp_path: Path):
    touch(
        tmp_path,
        "2023/1.png",
        "2024/1.png",
        "2024/sub/2.png",
    )
    items = open_folders([tmp_path / "2023", tmp_path / "2024"]).items
    assert [item.id for item in items] == ["2023/1.png", "2024/1.png", "2024/sub/2.png"]
    assert [Path(item.content) for item in items] == [
        tmp_path.resolve() / item.id for item in items
    ]
    assert beginnings([tmp_path / "2023"]) == [""]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("a/x", "b/x"), "have the same name 'x'"),
        (("a/x", "a/x/sub"), "which is also a source"),
        (("a/x/sub", "a/x"), "which is also a source"),
        (("a/x", "gone"), "no such folder"),
        (("a/x", "a/x/1.png"), "not a folder"),
        (
            ("a/x", "empty"),
            "no pictures in this folder",
        ),
    ],
)
def test_folders_that_overlap(tmp_path: Path, names: tuple[str, str], told: str):
    touch(
        tmp_path,
        "a/x/1.png",
        "b/x/1.png",
        "a/x/sub/2.png",
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=told):
        open_folders([tmp_path / name for name in names])
