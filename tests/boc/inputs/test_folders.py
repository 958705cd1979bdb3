"""What lies below folders is listed as pathlib lists it, and several folders give distinct ids."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.errors import BocWarning, SourceError
from boc.inputs.sources import beginnings, listing, open_folders, open_source

NAME = st.text("ab.-_é ", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
TREE = st.lists(st.lists(NAME, min_size=1, max_size=3), max_size=12)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@given(tree=TREE)
def test_files_are_those_of_pathlib_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, tree: list[list[str]]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for parts in tree:
        path = root.joinpath(*parts)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    wanted = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]
    assert listing(root).files == wanted


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "closed/b.png")
    (tmp_path / "closed").chmod(0)
    try:
        with pytest.warns(BocWarning, match="1 folders that cannot be listed"):
            source = open_source(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert [item.id for item in source.items] == ["a.png"]
    assert source.closed == (f"{tmp_path.resolve()}/closed/",)


def test_listing_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot be listed"):
        listing(tmp_path / "file")


def test_ids_of_several_folders(tmp_path: Path) -> None:
    touch(tmp_path, "2023/1.png", "2024/1.png", "2024/sub/2.png")
    items = open_folders([tmp_path / "2023", tmp_path / "2024"]).items
    assert [item.id for item in items] == ["2023/1.png", "2024/1.png", "2024/sub/2.png"]
    assert [Path(item.content) for item in items] == [tmp_path.resolve() / item.id for item in items]
    assert beginnings([tmp_path / "2023"]) == [""]
    (tmp_path / "chosen.txt").write_text("2024/1.png\n")
    chosen = open_folders([tmp_path / "2023", tmp_path / "2024"], tmp_path / "chosen.txt")
    assert [item.id for item in chosen.items] == ["2024/1.png"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("a/x", "b/x"), "both called 'x'"),
        (("a/x", "a/x/sub"), "which is given too"),
        (("a/x/sub", "a/x"), "which is given too"),
        (("a/x", "gone"), "no such folder"),
        (("a/x", "a/x/1.png"), "is no folder"),
        (("a/x", "empty"), "no pictures in this folder"),
    ],
)
def test_folders_that_overlap(tmp_path: Path, names: tuple[str, str], told: str) -> None:
    touch(tmp_path, "a/x/1.png", "b/x/1.png", "a/x/sub/2.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=told):
        open_folders([tmp_path / name for name in names])
