"""Labels of codebooks against slow loops over all concepts."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from boc import labels
from boc.clustering.codebook import Codebook
from boc.clustering.codebook_labels import codebook_labels
from boc.inputs.features import FeatureFile
from boc.labels import Box, Example, Label, content_words, distinctive, pack_labels, whole_words
from boc.types import Batch, Embeddings, Identity, Item, Ragged
from boc.vectors import Floats
from tests.oracles import write_features


def book(centroids: Floats, spherical: bool = False) -> Codebook:
    return Codebook(
        centroids,
        Identity(
            "x:y",
            "0",
            3,
        ),
        (),
        {"spherical": spherical},
        9,
    )


WORDS = [
    [
        "a",
        "dog",
        "run",
        "##s",
    ],
    [
        "the",
        "snow",
        "##board",
        ".",
    ],
    ["dog"],
    [
        "cat",
        "run",
        "##s",
        "cat",
    ],
]


def write(path: Path, start: int, seed: int, *, boxes: bool = True, words: bool = True) -> None:
    """Seven pictures of 0 to 6 regions, and the sentences WORDS three times, all concepts
    random."""
    rng = default_rng(seed)
    sizes = [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    pictures = [
        Item(
            f"p{start + i}",
            "image",
            f"/p{start + i}.jpg",
        )
        for i in range(7)
    ]
    ragged = {"concepts": Ragged.from_sets([rng.standard_normal((n, 3)) for n in sizes], 3)}
    if boxes:
        ragged["boxes"] = Ragged.from_sets([rng.random((n, 4)) for n in sizes], 4)
    sentences = WORDS * 3
    texts = [
        Item(
            f"c{start + i}",
            "text",
            " ".join(s),
        )
        for i, s in enumerate(sentences)
    ]
    write_features(
        path,
        Batch(
            pictures,
            Embeddings(
                "image",
                np.ones((7, 3), np.float32),
                **ragged,
            ),
        ),
        Batch(
            texts,
            Embeddings(
                "text",
                np.ones((12, 3), np.float32),
                Ragged.from_sets([rng.standard_normal((len(s), 3)) for s in sentences], 3),
                words=sentences if words else None,
            ),
        ),
        source=f"{seed}",
    )


def slow_labels(
    centroids: Floats,
    paths: Sequence[Path],
    spherical: bool,
) -> list[Label]:
    """The same one concept at a time."""
    inside = [Counter() for _ in centroids]
    near = [{} for _ in centroids]

    def assign(x):
        x = x / np.linalg.norm(x) if spherical else x
        distances = [float(((x.astype(np.float64) - c) ** 2).sum()) for c in centroids]
        return int(np.argmin(distances)), min(distances)

    for path in paths:
        with FeatureFile(path) as file:
            texts = file.batch(
                "text",
                0,
                99,
            )
            images = file.batch(
                "image",
                0,
                99,
            )
        for i, pieces in enumerate(texts.embeddings.words or []):
            words, of = whole_words(pieces)
            pairs = {
                (assign(x)[0], number)
                for x, number in zip(
                    texts.embeddings.concepts[i],
                    of,
                    strict=True,
                )
            }
            for codeword, number in pairs:
                if content_words(words[number]):
                    inside[codeword][words[number]] += 1
        for i, item in enumerate(images.items):
            for x, box in zip(
                images.embeddings.concepts[i],
                images.embeddings.boxes[i],
                strict=True,
            ):
                codeword, distance = assign(x)
                example = Example(
                    item.id,
                    item.content,
                    Box(*(round(float(v), 4) for v in box)),
                )
                if item.id not in near[codeword] or distance < near[codeword][item.id][0]:
                    near[codeword][item.id] = distance, example
    general = sum(inside, Counter())
    return [
        Label(
            tuple(
                distinctive(
                    counts,
                    counts.total(),
                    general,
                    general.total(),
                )[:5],
            ),
            tuple(example for _, example in sorted(best.values(), key=lambda entry: entry[0])[:3]),
        )
        for counts, best in zip(
            inside,
            near,
            strict=True,
        )
    ]


@pytest.mark.parametrize("spherical", [False, True])
def test_labels_equal_loop(
    tmp_path: Path,
    monkeypatch,
    spherical: bool,
):
    monkeypatch.setattr(
        labels,
        "SIGNIFICANT",
        0.3,
    )
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    write(
        paths[0],
        0,
        1,
    )
    write(
        paths[1],
        100,
        2,
    )
    centroids = default_rng(3).standard_normal((6, 3)).astype(np.float32)
    if spherical:
        centroids /= np.linalg.norm(
            centroids,
            axis=1,
            keepdims=True,
        )
    expected = slow_labels(
        centroids,
        paths,
        spherical,
    )
    assert sum(bool(label.words) for label in expected) >= 2
    assert sum(len(label.examples) == 3 for label in expected) >= 2
    for size in (1024, 2):
        with FeatureFile(paths[0]) as a, FeatureFile(paths[1]) as b:
            assert (
                codebook_labels(
                    book(centroids, spherical),
                    [a, b],
                    size,
                )
                == expected
            )


def test_names_come_first(tmp_path: Path):
    write(
        tmp_path / "a.h5",
        0,
        1,
        boxes=False,
        words=False,
    )
    centroids = np.eye(3, dtype=np.float32)
    with FeatureFile(tmp_path / "a.h5") as file:
        labels_of = codebook_labels(replace(book(centroids), words=("dog", "cat", "snow")), [file])
    assert [label.words for label in labels_of] == [("dog",), ("cat",), ("snow",)]
    assert {example.box for label in labels_of for example in label.examples} == {None}
    assert json.loads(pack_labels(labels_of).tobytes())[0]["words"] == ["dog"]
