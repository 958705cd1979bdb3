"""Copies: another code on the way, the place of the source, kills and lost connections, faults that are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boc import Searcher, build_index, copy_index, delete, plugins
from boc.errors import BocError, UnreachableError
from boc.evaluate.verify import verify
from indexing.embedded.index import EmbeddedIndex
from indexing.embedded.writer import EmbeddedWriter
from tests.helpers import boc


@pytest.fixture
def at(library: Path, tmp_path: Path) -> str:
    """A place with a copy of the index of the library."""
    place = f"file:{tmp_path / 'indexes'}"
    copy_index("photos", at=f"file:{library / 'index'}", to=place)
    return place


@pytest.mark.parametrize("code", ["dictionary:1/4(terms=8)", "bits:8", "permutation:6"])
def test_another_code_on_the_way_is_what_indexing_with_it_gives(library: Path, at: str, code: str) -> None:
    copy_index("photos", "coded", at=at, code=code, rm=7)
    build_index("indexed", library / "photos.h5", at=at, code=code, rm=7)
    ours, theirs = Searcher.open("coded", at), Searcher.open("indexed", at)
    assert ours.index.manifest.codec == theirs.index.manifest.codec
    assert ours.index.manifest.rm == 7
    assert verify(ours.index).right
    ids = [item.id for item in ours.index.items()]
    assert ids == [item.id for item in theirs.index.items()]
    apart = ours.index.terms(ids) != theirs.index.terms(ids)  # the order of the items differs, and so the last bits
    assert code.startswith("dictionary") or apart.nnz <= 2


def test_an_index_is_copied_onto_itself_under_another_code(at: str) -> None:
    before = Searcher.open("photos", at)
    ids = [item.id for item in before.index.items()]
    vectors = before.index.vectors(ids)
    copy_index("photos", at=at, code="bits:8", replace=True)
    after = plugins.backend(at).open("photos")
    assert after.manifest.codec != before.index.manifest.codec
    assert np.array_equal(after.vectors(ids), vectors)
    assert verify(after).right
    assert before.renew().index.manifest == after.manifest


def test_deleted_items_are_not_copied(at: str) -> None:
    delete("photos", ["003.png", "004.png"], at=at)
    assert copy_index("photos", "fewer", at=at).images == 38
    index = plugins.backend(at).open("fewer")
    assert verify(index).right
    with pytest.raises(KeyError):
        index.find(["003.png"])


def failing_after(calls: int, error: BaseException, method: Callable[..., Any]) -> Callable[..., Any]:
    left = [calls]

    def called(*arguments: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return method(*arguments, **keywords)

    return called


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UnreachableError("the source is away")])
def test_it_goes_on_after_a_kill_and_after_the_source_was_away(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr("boc.indexes.load.BATCH", 10)
    monkeypatch.setattr("indexing.embedded.writer.WAITING", 100)
    to = f"file:{tmp_path / 'other'}"
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedIndex, "vectors", failing_after(7, error, EmbeddedIndex.vectors))
        with pytest.raises(type(error)):
            copy_index("photos", at=at, to=to)
    added: list[int] = []
    add = EmbeddedWriter.add

    def counted(self: EmbeddedWriter, items: Sequence[Any], *rest: Any) -> None:
        added.append(len(items))
        add(self, items, *rest)

    monkeypatch.setattr(EmbeddedWriter, "add", counted)
    ticks: list[tuple[str, int, int]] = []
    report = copy_index("photos", at=at, to=to, progress=lambda *tick: ticks.append(tick))
    assert (report.images, report.texts, report.compared) == (40, 80, 120)
    assert 0 < sum(added) < 120
    assert ticks[-1] == ("copying", 120, 120)
    assert verify(plugins.backend(to).open("photos")).right


def test_a_source_that_changes_meanwhile_is_refused_and_leaves_nothing(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"file:{tmp_path / 'other'}"
    done: list[int] = []

    def interfere(label: str, count: int, total: int) -> None:
        if not done:
            done.append(delete("photos", ["003.png"], at=at)[0])

    with pytest.raises(BocError, match="photos changed while it was copied"):
        copy_index("photos", at=at, to=to, progress=interfere)
    assert not plugins.backend(to).exists("photos")


def test_a_copy_with_other_rows_is_told(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = EmbeddedWriter.add

    def damaging(self: EmbeddedWriter, items: Any, terms: Any, vectors: Any, *rest: Any) -> None:
        add(self, items, terms, -vectors, *rest)

    monkeypatch.setattr(EmbeddedWriter, "add", damaging)
    with pytest.raises(BocError, match=r"the copy differs from its source: other rows of '000\.png"):
        copy_index("photos", "bad", at=at)


def test_codes_and_metrics_of_concepts_are_refused(at: str) -> None:
    with pytest.raises(BocError, match=r"reads the concept sets .* take a code of vectors"):
        copy_index("photos", "coded", at=at, code="soft(codebook=book.npz)")
    with pytest.raises(BocError, match="holds no concept sets"):
        copy_index("photos", "coded", at=at, rerank="mrsw")
    assert plugins.backend(at).names() == ["photos"]


def test_the_commands_say_what_they_did(at: str, tmp_path: Path) -> None:
    to = f"file:{tmp_path / 'there'}"
    done = boc("copy", "photos", "--from", at, "--to", to)
    assert done.exit_code == 0, done.output
    assert "40 pictures and 80 captions" in done.stdout
    assert "120 items compared without a difference" in done.stdout
    assert "up to date" in boc("copy", "photos", "--from", at, "--to", to).stdout
    assert "two: 40 pictures" in boc("copy", "photos", "two", "--at", at).stdout
    assert "copied onto itself" in boc("copy", "photos", "--at", at).stderr


@pytest.mark.slow
def test_the_advice_of_tune_is_applied_in_place(at: str) -> None:
    tune = ("tune", "photos", "--at", at, "-k", 2, "--target-recall", 0.5)
    assert boc(*tune, "--target-recall", 0.6, "--apply").exit_code == 2
    done = boc(*tune, "--apply")
    assert done.exit_code == 0, done.output
    code = done.stdout.partition('--code "')[2].partition('"')[0]
    assert f'boc copy photos --code "{code}"' in done.stdout
    assert code in boc("info", "photos", "--at", at).stdout
    assert verify(plugins.backend(at).open("photos")).right
