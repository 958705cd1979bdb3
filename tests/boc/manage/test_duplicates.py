"""Duplicates are those that a loop over all pairs finds; no chain joins what is far apart."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from boc import Searcher, plugins
from boc.codecs import global_code
from boc.errors import BocError
from boc.manage.duplicates import DEPTH, DuplicateGroup, find_duplicates
from boc.manifest import Manifest
from boc.types import Embeddings, Identity, Item, Rows
from boc.vectors import Floats
from tests.helpers import boc, run
from tests.oracles import picture, sentence

IDENTITY = Identity("tern:somewhere", "ab" * 32, 16)


def build(folder: Path, items: list[Item], vectors: Floats) -> Searcher:
    """A searcher whose posting lists bring every item that shares a term, since the code keeps all
    terms."""
    codec = global_code("scalar", z=32, query_z=32).fit(
        Embeddings("image", vectors),
    )
    fields = {"content_hash": "keyword"} if any(item.fields for item in items) else {}
    manifest = Manifest.new(
        IDENTITY,
        codec.config(),
        codec.arrays(),
        rm=1000,
        dtype="float32",
        source="ab" * 32,
        fields=fields,
    )  # type: ignore[arg-type]
    at = f"file:{folder}"
    with plugins.backend(at).create("photos", manifest, codec.arrays()) as writer:
        writer.add(Rows(items, codec.encode_documents(Embeddings("image", vectors)), vectors))
        writer.commit()
    return Searcher.open("photos", at)


def crowded(n: int, seed: int) -> Floats:
    """Unit vectors (n, 16) around a few centres, some of them equal."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((6, 16))[
        rng.integers(
            0,
            6,
            n,
        )
    ] + rng.choice(
        [0, 0.1, 0.3],
        (n, 1),
    ) * (rng.standard_normal((n, 16)))
    return (
        vectors
        / np.linalg.norm(
            vectors,
            axis=1,
            keepdims=True,
        )
    ).astype(
        np.float32,
    )


def slow_groups(vectors: Floats, least: float) -> dict[int, list[int]]:
    """The rows that go under each kept row, by a loop over all pairs."""
    groups = {}
    taken = set()
    for i in range(len(vectors)):
        if i not in taken:
            later = range(i + 1, len(vectors))
            groups[i] = [
                j for j in later if j not in taken and float(vectors[i] @ vectors[j]) >= least
            ]
            taken.update(groups[i])
    return {i: group for i, group in groups.items() if group}


def members(groups: list[DuplicateGroup]) -> dict[str, set[str]]:
    return {group.item.id: {one.item.id for one in group.duplicates} for group in groups}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_duplicates_equal_a_slow_loop(tmp_path: Path, seed: int) -> None:
    n = 4 * DEPTH * 3
    items = [picture(f"{i:03d}.jpg") for i in range(n)]
    vectors = crowded(n, seed)
    # Of one file, encoded at other times.
    for i in (3, 77, 140):
        items[i] = replace(items[i], fields={"content_hash": "same"})
        vectors[i] = vectors[3] + np.float32(i * 1e-8)
    cosines = np.sort(np.unique(vectors @ vectors.T))
    cosines = cosines[(cosines > 0.8) & (cosines < 0.9999)]
    gap = int(np.argmax(np.diff(cosines)))  # no pair lies at the threshold
    least = float(cosines[gap : gap + 2].mean())
    groups = find_duplicates(build(tmp_path, items, vectors), least)
    assert members(groups) == {
        items[i].id: {items[j].id for j in others}
        for i, others in slow_groups(vectors, least).items()
    }
    assert groups
    place = {item.id: row for row, item in enumerate(items)}
    for group in groups:
        i = place[group.item.id]
        for one in group.duplicates:
            j = place[one.item.id]
            one_file = {i, j} <= {3, 77, 140}
            assert one.exact == (one_file or np.array_equal(vectors[i], vectors[j]))
            assert one.score == pytest.approx(float(vectors[i] @ vectors[j]), abs=1e-5)


def test_equal_pictures_are_searched_deeply_by_once(
    tmp_path: Path,
    monkeypatch,
) -> None:
    vectors = np.concatenate([np.tile(crowded(1, 0), (200, 1)), crowded(3, 1)])
    searcher = build(tmp_path, [picture(f"{i:03d}.jpg") for i in range(203)], vectors)
    asked = []
    search = searcher.rank_vectors
    monkeypatch.setattr(
        searcher,
        "rank_vectors",
        lambda q, **o: asked.append(len(q)) or search(q, **o),
    )
    groups = find_duplicates(searcher, 0.99999)
    assert len(members(groups)["000.jpg"]) == 199
    assert all(one.exact for one in groups[0].duplicates)
    assert sum(asked) < 210


def test_default_threshold(tmp_path: Path) -> None:
    searcher = build(tmp_path, [picture(f"{i:03d}.jpg") for i in range(60)], crowded(60, 0))
    assert 0.6 < searcher.background("image").near < 1
    for threshold in (0, 1.2):
        with pytest.raises(BocError, match="threshold must be a cosine above 0"):
            find_duplicates(searcher, threshold)


def test_sentences_are_compared_with_sentences(tmp_path: Path) -> None:
    vectors = np.tile(crowded(1, 0), (4, 1))
    items = [picture("a"), picture("b"), sentence("a#0"), sentence("b#0")]
    searcher = build(tmp_path, items, vectors)
    assert members(find_duplicates(searcher)) == {"a": {"b"}}
    assert members(find_duplicates(searcher, find="text")) == {"a#0": {"b#0"}}


def test_the_command_lists_groups(tmp_path: Path) -> None:
    vectors = crowded(5, 0)
    vectors[4] = vectors[1]
    build(tmp_path / "here", [picture(f"{i}.jpg") for i in range(5)], vectors)
    at = f"file:{tmp_path / 'here'}"
    done = run(f"duplicates photos --at {at} --threshold 0.99999")
    assert done.stdout == "1.jpg\n    equal  4.jpg\n"
    assert "1 groups with 1 duplicates" in done.stderr
    (row,) = json.loads(
        boc(f"duplicates photos --at {at} --threshold 0.99999 --json").stdout,
    )
    assert row["kept"] == "1.jpg"
    assert [(one["id"], one["exact"]) for one in row["duplicates"]] == [("4.jpg", True)]
