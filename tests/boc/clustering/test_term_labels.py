"""Labels: against slow loops over all concepts, on captions whose topic is known, and as bytes and back."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from boc.clustering import term_labels
from boc.errors import ManifestError
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.labels import (
    Box,
    Example,
    IndexLabels,
    Label,
    codebook_labels,
    content_words,
    distinctive,
    pack_labels,
    unpack_labels,
    whole_words,
)
from boc.plugins import Index
from boc.types import Batch, Embeddings, Item, Ragged
from indexing.embedded.backend import EmbeddedBackend
from tests.oracles import new_manifest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
BOXES = st.builds(Box, *(st.floats(0, 1) for _ in range(4)))
LABELS = st.builds(
    Label,
    st.lists(TEXT, max_size=3).map(tuple),
    st.lists(st.builds(Example, TEXT, TEXT, st.none() | BOXES), max_size=3).map(tuple),
)


@given(st.lists(LABELS, max_size=4))
def test_packed_labels_come_back(given_labels: list[Label]) -> None:
    packed = pack_labels(given_labels)
    assert packed.dtype == np.uint8
    assert unpack_labels(packed) == given_labels


def test_no_bytes_are_no_labels_and_foreign_bytes_are_refused() -> None:
    assert unpack_labels(np.empty(0, np.uint8)) == []
    for text in (b"\xff\xfe", b"[", b"3", b'[{"words": ["a"]}]', b'[{"words": ["a"], "examples": [["x"]]}]'):
        with pytest.raises(ManifestError, match="stored labels"):
            unpack_labels(np.frombuffer(text, np.uint8))


@given(st.lists(st.sampled_from(["snow", "##board", "##ing", "dog", "##", "."]), max_size=8))
def test_whole_words_equal_a_loop(pieces: list[str]) -> None:
    expected: list[str] = []
    numbers = []
    for piece in pieces:
        if expected and piece in {"##board", "##ing"}:
            expected[-1] += piece[2:]
        else:
            expected.append(piece)
        numbers.append(len(expected) - 1)
    words, of = whole_words(pieces)
    assert words == expected
    assert of.tolist() == numbers


def test_content_words_leave_out_what_says_nothing() -> None:
    assert content_words("The DOG's ball isn't on 3 of a snow-covered hill 's 2nd x [UNK] .") == [
        "dog's", "ball", "isn't", "snow-covered", "hill",
    ]  # fmt: skip
    assert content_words("") == []


COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), max_size=6)


@given(found=COUNTS, general=COUNTS, size=st.integers(20, 40), total=st.integers(20, 200))
def test_distinctive_equals_the_formula(found: dict[str, int], general: dict[str, int], size: int, total: int) -> None:
    """Monroe et al., eqs. 16 and 22, term by term."""
    scores = {}
    for word, y in found.items():
        b = general.get(word, 0)
        a = 10 * (b + 0.5) / (total + 1)
        delta = math.log((y + a) / (size + 10 - y - a)) - math.log((b + a) / (total + 10 - b - a))
        scores[word] = delta / math.sqrt(1 / (y + a) + 1 / (b + a))
    expected = sorted((w for w in scores if scores[w] > 1.64), key=lambda w: (-scores[w], w))
    assert distinctive(found, size, general, total) == expected


def test_a_word_as_frequent_as_everywhere_is_no_label() -> None:
    general = {"man": 500, "zebra": 5}
    assert distinctive({"man": 25, "zebra": 4}, 50, general, 1000) == ["zebra"]
    assert distinctive({}, 0, general, 1000) == []


def index_of(folder: Path, items: Sequence[Item], terms: NDArray[np.int32]) -> Index:
    """An embedded index of items with the given term frequencies."""
    n = len(items)
    backend = EmbeddedBackend(folder)
    with backend.create("i", new_manifest(terms.shape[1], 2), {}) as writer:
        writer.add(items, sparse.csr_array(terms), np.ones((n, 2), np.float32))
        writer.commit()
    return backend.open("i")


def test_the_index_says_what_a_term_is_of(tmp_path: Path) -> None:
    """Term 0 is of the captions with zebras and of three pictures, term 1 of every caption, term 2 of nothing."""
    topics = ["a zebra on grass", "two zebras eat grass", "a red car", "a man in a car", "a man sleeps"] * 30
    captions = [Item(f"c{i:03d}", "text", text) for i, text in enumerate(topics)]
    pictures = [Item(f"p{i}", "image", f"/p{i}.jpg") for i in range(5)]
    terms = np.zeros((len(captions) + 5, 3), np.int32)
    terms[: len(captions), 0] = ["zebra" in text for text in topics]
    terms[: len(captions), 1] = 1
    terms[len(captions) :, 0] = [3, 9, 0, 7, 5]
    found = IndexLabels(index_of(tmp_path, [*captions, *pictures], terms), 3)
    label = found[0]
    assert set(label.words) == {"zebra", "zebras", "grass", "eat"}
    assert label.words[0] == "grass"
    assert label.examples == tuple(Example(f"p{i}", f"/p{i}.jpg") for i in (1, 3, 4))
    assert found[1] == Label()  # its first fifty captions are as mixed as all
    assert found[2] == Label()
    counts, size = found.background
    assert size == len(captions)
    assert counts == Counter(word for text in topics for word in set(content_words(text)))


def test_an_index_of_pictures_gives_pictures(tmp_path: Path) -> None:
    items = [Item(f"p{i}", "image", f"/p{i}.jpg") for i in range(5)]
    found = IndexLabels(index_of(tmp_path, items, np.arange(1, 6, dtype=np.int32)[:, None]), 1)
    assert found[0] == Label((), tuple(Example(f"p{i}", f"/p{i}.jpg") for i in (4, 3, 2)))


def test_the_background_is_a_sample_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(f"c{i:03d}", "text", f"word{'x' * i}") for i in range(100)]
    monkeypatch.setattr(term_labels, "BACKGROUND", 30)
    counts, size = IndexLabels(index_of(tmp_path, items, np.ones((100, 1), np.int32)), 1).background
    assert size == counts.total() == 25  # every fourth


@pytest.mark.slow
def test_terms_that_are_words_are_labelled_by_them(photos: Path, tmp_path: Path) -> None:
    """Of real captions: a term that all sentences with a word have gets that word as its first."""
    with (photos / "captions.csv").open(newline="", encoding="utf-8") as handle:
        captions = [row["caption"] for row in csv.DictReader(handle)][:3000]
    topics = ["snow", "dog", "beach", "bike", "guitar"]
    terms = np.array([[word in content_words(text) for word in topics] for text in captions], dtype=np.int32)
    items = [Item(f"{i:05d}", "text", text) for i, text in enumerate(captions)]
    found = IndexLabels(index_of(tmp_path, items, terms), len(topics))
    assert [found[i].words[0] for i in range(len(topics))] == topics


WORDS = [["a", "dog", "run", "##s"], ["the", "snow", "##board", "."], ["dog"], ["cat", "run", "##s", "cat"]]


def write_features(path: Path, start: int, seed: int, *, boxes: bool = True, words: bool = True) -> None:
    """Seven pictures of 0 to 6 regions, and the sentences WORDS three times, all concepts random."""
    rng = np.random.default_rng(seed)
    sizes = [0, 1, 2, 3, 4, 5, 6]
    pictures = [Item(f"p{start + i}", "image", f"/p{start + i}.jpg") for i in range(7)]
    regions = Ragged.from_sets([rng.standard_normal((n, 3)) for n in sizes], 3)
    ragged = {"concepts": regions}
    if boxes:
        ragged["boxes"] = Ragged.from_sets([rng.random((n, 4)) for n in sizes], 4)
    sentences = WORDS * 3
    texts = [Item(f"c{start + i}", "text", " ".join(s)) for i, s in enumerate(sentences)]
    spoken = Ragged.from_sets([rng.standard_normal((len(s), 3)) for s in sentences], 3)
    with FeatureWriter(path, Header("embeddings", "x:y", "0", 3, "float32", f"{seed}")) as writer:
        batches = [
            Batch(pictures, Embeddings("image", np.ones((7, 3), np.float32), **ragged)),
            Batch(texts, Embeddings("text", np.ones((12, 3), np.float32), spoken, words=sentences if words else None)),
        ]
        writer.append(19, batches)
        writer.finish()


def slow_labels(centroids: NDArray[np.float32], paths: Sequence[Path], spherical: bool) -> list[Label]:
    """The same one concept at a time."""
    inside: list[Counter[str]] = [Counter() for _ in centroids]
    near: list[dict[str, tuple[float, Example]]] = [{} for _ in centroids]

    def assign(x: NDArray[np.float32]) -> tuple[int, float]:
        x = x / np.linalg.norm(x) if spherical else x
        distances = [float(((x.astype(np.float64) - c) ** 2).sum()) for c in centroids]
        return int(np.argmin(distances)), min(distances)

    for path in paths:
        with FeatureFile(path) as file:
            texts, images = file.batch("text", 0, 99), file.batch("image", 0, 99)
        for i, pieces in enumerate(texts.embeddings.words or []):
            words, of = whole_words(pieces)
            pairs = {(assign(x)[0], number) for x, number in zip(texts.embeddings.concepts[i], of, strict=True)}
            for codeword, number in pairs:
                if content_words(words[number]):
                    inside[codeword][words[number]] += 1
        for i, item in enumerate(images.items):
            for x, box in zip(images.embeddings.concepts[i], images.embeddings.boxes[i], strict=True):
                codeword, distance = assign(x)
                example = Example(item.id, item.content, Box(*(round(float(v), 4) for v in box)))
                if item.id not in near[codeword] or distance < near[codeword][item.id][0]:
                    near[codeword][item.id] = distance, example
    general = sum(inside, Counter())
    return [
        Label(
            tuple(distinctive(counts, counts.total(), general, general.total())[:5]),
            tuple(example for _, example in sorted(best.values(), key=lambda entry: entry[0])[:3]),
        )
        for counts, best in zip(inside, near, strict=True)
    ]


@pytest.mark.parametrize("spherical", [False, True])
def test_codebook_labels_equal_a_loop_whatever_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spherical: bool
) -> None:
    monkeypatch.setattr(term_labels, "SIGNIFICANT", 0.3)
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    write_features(paths[0], 0, 1)
    write_features(paths[1], 100, 2)
    centroids = np.random.default_rng(3).standard_normal((6, 3)).astype(np.float32)
    if spherical:
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    expected = slow_labels(centroids, paths, spherical)
    assert sum(bool(label.words) for label in expected) >= 2
    assert sum(len(label.examples) == 3 for label in expected) >= 2
    for size in (1024, 2):
        monkeypatch.setattr(term_labels, "BATCH", size)
        with FeatureFile(paths[0]) as a, FeatureFile(paths[1]) as b:
            assert codebook_labels(centroids, [a, b], spherical=spherical) == expected


def test_names_of_centroids_come_first_and_missing_parts_are_left_out(tmp_path: Path) -> None:
    write_features(tmp_path / "a.h5", 0, 1, boxes=False, words=False)
    centroids = np.eye(3, dtype=np.float32)
    with FeatureFile(tmp_path / "a.h5") as file:
        found = codebook_labels(centroids, [file], names=["dog", "cat", "snow"])
    assert [label.words for label in found] == [("dog",), ("cat",), ("snow",)]
    assert {example.box for label in found for example in label.examples} == {None}
    assert json.loads(pack_labels(found).tobytes())[0]["words"] == ["dog"]
