"""Labels of terms: on captions whose topic is known, as bytes and back; words and word-pieces
against loops."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from scipy import sparse

from bench.paper.codebooks import carries_content
from boc.errors import ManifestError
from boc.labels import (
    Box,
    Example,
    IndexLabels,
    Label,
    content_words,
    distinctive,
    pack_labels,
    stop_words,
    unpack_labels,
    whole_words,
)
from boc.plugins import Engine
from boc.types import Item, Rows
from indexing.embedded.backend import EmbeddedBackend
from tests.oracles import new_manifest

TEXT = st.text(
    st.characters(exclude_categories=["Cs"]),
    max_size=5,
)
BOXES = st.builds(
    Box,
    *(st.floats(0, 1) for _ in range(4)),
)
LABELS = st.builds(
    Label,
    st.lists(TEXT, max_size=3).map(tuple),
    st.lists(
        st.builds(
            Example,
            TEXT,
            TEXT,
            st.none() | BOXES,
        ),
        max_size=3,
    ).map(tuple),
)


@given(st.lists(LABELS, max_size=4))
def test_pack_round_trip(labels: list[Label]) -> None:
    packed = pack_labels(labels)
    assert packed.dtype == np.uint8
    assert unpack_labels(packed) == labels


def test_unpack_foreign_bytes() -> None:
    assert unpack_labels(np.empty(0, np.uint8)) == []
    for text in (
        b"\xff\xfe",
        b"[",
        b"3",
        b'[{"words": ["a"]}]',
        b'[{"words": ["a"], "examples": [["x"]]}]',
    ):
        with pytest.raises(ManifestError, match="stored labels"):
            unpack_labels(np.frombuffer(text, np.uint8))


@given(
    words=st.lists(
        st.lists(
            st.text("abcXYZ", min_size=1, max_size=3),
            min_size=1,
            max_size=4,
        ),
        max_size=6,
    ),
)
def test_whole_words_joins_pieces(words: list[list[str]]) -> None:
    pieces = [piece if i == 0 else f"##{piece}" for word in words for i, piece in enumerate(word)]
    whole, of = whole_words(pieces)
    assert whole == ["".join(word).lower() for word in words]
    assert of.tolist() == [number for number, word in enumerate(words) for _ in word]


def test_whole_words_of_stray_pieces() -> None:
    words, of = whole_words(["##s", "##", "#", "[UNK]", "##ed"])
    assert (words, of.tolist()) == (
        ["##s", "##", "#", "[unk]ed"],
        [0, 1, 2, 3, 3],
    )


def test_carries_content() -> None:
    assert {"a", "the", "is", "with"} <= stop_words()
    assert carries_content(["The", "dog", "is", "in", "##side", "a", "##corn"]) == [
        False,
        True,
        False,
        *[True] * 4,
    ]
    assert carries_content([]) == []


def test_content_words() -> None:
    assert content_words("The DOG's ball isn't on 3 of a snow-covered hill 's 2nd x [UNK] .") == [
        "dog's",
        "ball",
        "isn't",
        "snow-covered",
        "hill",
    ]
    assert content_words("") == []


COUNTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.integers(1, 20),
    max_size=6,
)


@given(
    inside=COUNTS,
    general=COUNTS,
    size=st.integers(20, 40),
    total=st.integers(20, 200),
)
def test_distinctive_follows_formula(
    inside: dict[str, int],
    general: dict[str, int],
    size: int,
    total: int,
) -> None:
    """Monroe et al., eqs. 16 and 22, term by term."""
    scores = {}
    for word, y in inside.items():
        b = general.get(word, 0)
        a = 10 * (b + 0.5) / (total + 1)
        delta = math.log((y + a) / (size + 10 - y - a)) - math.log((b + a) / (total + 10 - b - a))
        scores[word] = delta / math.sqrt(1 / (y + a) + 1 / (b + a))
    expected = sorted(
        (w for w in scores if scores[w] > 1.64),
        key=lambda w: (-scores[w], w),
    )
    assert distinctive(inside, size, general, total) == expected


def index_of(folder: Path, items: Sequence[Item], terms: NDArray[np.int32]) -> Engine:
    """An embedded index of items with the given term frequencies."""
    n = len(items)
    backend = EmbeddedBackend(folder)
    with backend.create(
        "i",
        new_manifest(terms.shape[1], 2),
        {},
    ) as writer:
        writer.add(
            Rows(
                items,
                sparse.csr_array(terms),
                np.ones((n, 2), np.float32),
            ),
        )
        writer.commit()
    return backend.open("i")


def test_index_labels(tmp_path: Path) -> None:
    """Term 0 is of the captions with zebras and of three pictures, term 1 of every caption, term 2
    of nothing."""
    topics = [
        "a zebra on grass",
        "two zebras eat grass",
        "a red car",
        "a man in a car",
        "a man sleeps",
    ] * 30
    captions = [Item(f"c{i:03d}", "text", text) for i, text in enumerate(topics)]
    pictures = [Item(f"p{i}", "image", f"/p{i}.jpg") for i in range(5)]
    terms = np.zeros((len(captions) + 5, 3), np.int32)
    terms[: len(captions), 0] = ["zebra" in text for text in topics]
    terms[: len(captions), 1] = 1
    terms[len(captions) :, 0] = [3, 9, 0, 7, 5]
    labels = IndexLabels(
        index_of(tmp_path, [*captions, *pictures], terms),
        3,
    )
    label = labels[0]
    assert set(label.words) == {"zebra", "zebras", "grass", "eat"}
    assert label.words[0] == "grass"
    assert label.examples == tuple(Example(f"p{i}", f"/p{i}.jpg") for i in (1, 3, 4))
    assert labels[1] == Label()  # its first fifty captions are as mixed as all
    assert labels[2] == Label()
    counts, size = labels.background
    assert size == len(captions)
    assert counts == Counter(word for text in topics for word in set(content_words(text)))


def test_index_labels_without_captions(tmp_path: Path) -> None:
    labels = IndexLabels(
        index_of(
            tmp_path,
            [Item(f"p{i}", "image", f"/p{i}.jpg") for i in range(5)],
            np.arange(1, 6, dtype=np.int32)[:, None],
        ),
        1,
    )
    assert labels[0] == Label(
        (),
        tuple(Example(f"p{i}", f"/p{i}.jpg") for i in (4, 3, 2)),
    )


def test_background_size(tmp_path: Path) -> None:
    counts, size = IndexLabels(
        index_of(
            tmp_path,
            [Item(f"c{i:03d}", "text", f"word{'x' * i}") for i in range(100)],
            np.ones((100, 1), np.int32),
        ),
        1,
        sample=30,
    ).background
    assert size == counts.total() == 25  # every fourth
