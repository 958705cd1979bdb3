"""Lists of ids and queries are taken as they stand: exact, in UTF-8, or refused with the line."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, strategies as st

from boc.errors import LeftOut, SourceError
from boc.inputs.text_lines import check_text, read_ids, text_lines

IDS = st.text(min_size=1).filter(
    lambda key: "\n" not in key and not key.endswith("\r") and _whole(key),
)


def _whole(key: str) -> bool:
    return key.encode(errors="ignore").decode() == key


@given(
    ids=st.lists(IDS, min_size=1),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
)
@example(
    ids=[" a.jpg", "a.jpg ", "a\u2028b", "a\x85b", "a\x0bb", "a\x1cb", "\t"],
    end="\n",
    mark=False,
)
def test_any_ids_are_read_as_they_were_written(ids: list[str], end: str, mark: bool):
    data = ("\ufeff" if mark or ids[0].startswith("\ufeff") else "") + end.join(ids) + end
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ids.txt"
        path.write_bytes(data.encode())
        assert read_ids(path) == ids


@given(text=st.text(st.sampled_from("aé猫\0\ud83d\ude00\U0001f600"), max_size=6))
@example("a\ud83d")
@example("a\0é")
def test_text_is_stored_if_it_is_utf8_without_nul(text: str):
    fault = check_text(text) or ""
    assert ("NUL" in fault) == ("\0" in text)
    assert bool(fault) == ("\0" in text or not _whole(text))


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path):
    data = "tea\ncaf\xe9\n".encode("latin-1")
    with pytest.raises(
        SourceError,
        match=r"q\.txt, line 2: not UTF-8 .*byte 4",
    ):
        text_lines(data, "q.txt")
    path = tmp_path / "q.txt"
    path.write_bytes(data)
    with pytest.warns(
        LeftOut,
        match=r"q\.txt: left out 1 \(line 2: not UTF-8 .*byte 4",
    ):
        assert read_ids(path) == ["tea"]
    path.write_bytes(data[4:])
    with pytest.raises(
        SourceError,
        match="line 1: not UTF-8",
    ):
        read_ids(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\r\n", b"\xef\xbb\xbf", None],
)
def test_empty_or_missing_lists_are_refused(tmp_path: Path, data: bytes | None):
    if data is not None:
        (tmp_path / "ids.txt").write_bytes(data)
    with pytest.raises(
        SourceError,
        match="No such file" if data is None else "contains no ids",
    ):
        read_ids(tmp_path / "ids.txt")
