"""Pictures that were removed and come back are as they were, and are not encoded again."""

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st

from boc import Searcher, delete_index, plugins
from boc.errors import BocWarning
from boc.manage import removed
from boc.manage.sync import sync_index
from tests.boc.manage.collections_of_files import NAMES, Counting, Files, held, new
from tests.servers.fixtures import address, kinds


@pytest.fixture(autouse=True)
def encoder(monkeypatch) -> Counting:
    return Counting.installed(monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files.six(tmp_path / "pictures")
    found.index()
    return found


@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
@given(
    steps=st.lists(
        st.dictionaries(
            st.sampled_from(NAMES),
            st.sampled_from(["one", "two", "three"]),
            max_size=3,
        ),
        max_size=6,
    ),
)
def test_no_sync_encodes_what_an_earlier_sync_did(steps: list[dict[str, str]]) -> None:
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        encoder = Counting.installed(patch)
        files = Files(Path(place) / "pictures")
        files.write(files.folder / "always.png", "always")
        files.index()
        for step in steps:
            known = len(encoder.seen)
            for name, content in step.items():
                path = files.folder / name
                if path.exists():
                    path.unlink()
                else:
                    files.write(path, content)
            files.sync(remove_many=True)
            assert not {*encoder.seen[:known]} & {*encoder.seen[known:]}
        seen = len(encoder.seen)
        again = files.held()
        files.index()
        assert files.held() == again
        assert len(encoder.seen) - seen == len(again)


def there_and_back(name: str, files: Files, at: str) -> int:
    """Remove two pictures and bring them back under other names and times; return how many were
    encoded."""
    query = Counting().encode_texts(["any"])
    hits = Searcher.open(name, at).search_vectors(query, k=6)
    for i in range(2):
        (files.folder / f"{i}.png").unlink()
    assert sync_index(name, files.folder, at=at).removed == 2
    assert held(name, at).keys() == {f"{i}.png" for i in range(2, 6)}
    for i in range(2):
        files.write(files.folder / f"{i}.png", f"picture {i}")
    report = sync_index(name, files.folder, at=at)
    assert report.added == 2
    assert repr(Searcher.open(name, at).search_vectors(query, k=6)) == repr(hits)
    return report.encoded


def test_hits_are_as_before(files: Files) -> None:
    assert there_and_back("x", files, files.at) == 0


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_so_it_is_on_servers(
    server: Any,
    files: Files,
    monkeypatch,
) -> None:
    monkeypatch.chdir(files.folder.parent)
    name = f"boc-test-{uuid.uuid4().hex[:12]}"
    new(name, files.folder, address(server))
    try:
        assert there_and_back(name, files, address(server)) == 0
    finally:
        delete_index(name, at=address(server))
    assert not list(Path(".removed").iterdir())


def test_they_go_after_thirty_days_and_with_the_index(
    files: Files,
    monkeypatch,
) -> None:
    assert there_and_back("x", files, files.at) == 0
    place = plugins.backend(f"{files.at}/.removed")
    assert len(list(place.open("x").items())) == 2
    monkeypatch.setattr(removed, "DAYS", -1)
    assert files.sync().up_to_date
    assert place.names() == []
    assert there_and_back("x", files, files.at) == 2
    delete_index("x", at=files.at)
    assert place.names() == []


def test_another_code_and_damage_are_no_obstacle(files: Files) -> None:
    files.do(("delete", "0.png"))
    files.sync()
    new("x", files.folder, files.at, rm=3)
    files.write(files.folder / "0.png", "picture 0")
    assert files.sync().encoded == 1
    assert there_and_back("x", files, files.at) == 0
    current = Path(files.at.partition(":")[2]) / ".removed" / "x" / "CURRENT"
    current.write_text("damaged")
    assert there_and_back("x", files, files.at) == 0


def test_a_folder_that_takes_no_files_is_told(files: Files) -> None:
    Path(files.at.partition(":")[2], ".removed").write_text("no folder")
    files.do(("delete", "0.png"))
    with pytest.warns(BocWarning, match="encoded again if they reappear"):
        assert files.sync().removed == 1
