"""Codebooks: what is sampled, which words are taken, and the file."""

import io
import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray

from bench.paper.codebooks import dictionary, sampled, sentences
from boc.cli import CommandGroup
from boc.cli.commands.build_codebook import command
from boc.clustering.codebook import Codebook
from boc.clustering.kmeans import rescaling
from boc.clustering.make_codebook import check_files, cluster, sample_concepts
from boc.codecs import concept_code
from boc.errors import BocError, FeatureFileError
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Batch, Embeddings, Identity, Item, Modality, Ragged
from boc.vectors import Floats, unit_rows
from tests.oracles import write_features

DIM = 2
IDENTITY = Identity(
    "tern:somewhere",
    "ab" * 32,
    DIM,
)


def write(
    path: Path,
    pictures: list[list[list[float]]],
    captions: list[tuple[list[str], list[list[float]]]],
    identity: Identity = IDENTITY,
    *,
    concepts: bool = True,
    words: bool = True,
) -> Path:
    """An embeddings file of the given concept vectors; captions come with their word-pieces."""
    sets = {
        "image": pictures,
        "text": [vectors for _, vectors in captions],
    }
    batches = []
    for modality, values in sets.items():
        items = [
            Item(
                f"{modality}{i}",
                modality,
                "",
                "image0",
            )
            for i in range(len(values))
        ]
        ragged = {"concepts": Ragged.from_sets(values, DIM)} if concepts else {}
        pieces = [p for p, _ in captions] if modality == "text" and words and concepts else None
        vectors = np.ones((len(values), DIM), np.float32)
        batches.append(
            Batch(
                items,
                Embeddings(
                    modality,
                    vectors,
                    words=pieces,
                    **ragged,
                ),
            ),
        )
    return write_features(
        path,
        *[rows for rows in batches if rows.items],
        spec=identity.spec,
        digest=identity.digest,
    )


def numbered(modality: Modality, count: int, start: int = 0) -> list[list[float]]:
    """Concepts that say what they are: 0 or 1 for the modality, and a number."""
    return [[float(modality == "text"), float(start + i)] for i in range(count)]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Any:
    """Two files with 6 + 3 regions and 4 + 2 words, of which "the" and "is" are stop-words."""
    place = tmp_path_factory.mktemp("two")
    one = write(
        place / "one.h5",
        [
            numbered("image", 4),
            [],
            numbered(
                "image",
                2,
                4,
            ),
        ],
        [
            (
                [
                    "the",
                    "dog",
                    "is",
                    "wet",
                ],
                numbered("text", 4),
            ),
        ],
    )
    other = write(
        place / "other.h5",
        [
            numbered(
                "image",
                3,
                6,
            ),
        ],
        [
            ([], []),
            (
                ["snow", "##board"],
                numbered(
                    "text",
                    2,
                    4,
                ),
            ),
        ],
    )
    with ExitStack() as stack:
        yield [stack.enter_context(FeatureFile(path)) for path in (one, other)]


def names(sample: Floats) -> list[tuple[int, int]]:
    """(0 or 1, number) of sampled concepts."""
    return [(int(a), int(b)) for a, b in sample]


ALL = [(0, i) for i in range(9)] + [(1, i) for i in range(6)]


@settings(max_examples=40)
@given(
    size=st.integers(1, 20),
    seed=st.integers(0, 99),
    balanced=st.booleans(),
)
def test_sample_is_of_union_without_repetition(
    two: Any,
    size: int,
    seed: int,
    balanced: bool,
):
    sample = names(
        sample_concepts(
            two,
            size,
            seed=seed,
            balanced=balanced,
        ),
    )
    assert len(sample) == len(set(sample)) == min(size, len(ALL))
    assert set(sample) <= set(ALL)
    assert sample == names(
        sample_concepts(
            two,
            size,
            seed=seed,
            balanced=balanced,
        ),
    )
    if (
        balanced
    ):  # of 9 regions and 6 words; the larger group has the odd one, and what the smaller one lacks
        assert sum(kind for kind, _ in sample) == min(size // 2, 6)


def test_sample_is_uniform(two: Any):
    times = 200
    counts = Counter(
        name
        for seed in range(times)
        for name in names(
            sample_concepts(
                two,
                5,
                seed=seed,
            ),
        )
    )
    expected = times / 3
    deviation = np.sqrt(times / 3 * 2 / 3)
    assert set(counts) == set(ALL)
    assert max(abs(count - expected) for count in counts.values()) < 4 * deviation


def test_centered_codebook(two: Any):
    made = cluster(
        two,
        15,
        space="centered",
    )
    of = {
        m: np.array([row for row in ALL if row[0] == n], np.float32)
        for n, m in enumerate(MODALITIES)
    }
    assert made.means is not None
    assert np.allclose(made.means, [of[m].mean(axis=0) for m in MODALITIES])
    sample = sample_concepts(
        two,
        balanced=True,
        means=made.means,
    )
    centred = np.concatenate([of[m] - of[m].mean(axis=0) for m in MODALITIES])
    assert np.allclose(sorted(map(tuple, sample)), sorted(map(tuple, centred)))
    expected = unit_rows(sample)
    assert {*map(tuple, made.centroids.round(4).tolist())} == {
        *map(tuple, expected.round(4).tolist()),
    }


def test_rescaled_codebook(two: Any):
    rng = default_rng(0)
    points = (
        rng.standard_normal((5000, 5))
        * [
            1,
            1,
            0.5,
            0.2,
            0.1,
        ]
        @ np.linalg.qr(rng.standard_normal((5, 5)))[0]
    ).astype(np.float32)
    axes = rescaling(points)
    assert np.allclose(
        axes,
        axes.T,
        atol=1e-5,
    )
    rows = points / np.linalg.norm(
        points,
        axis=1,
        keepdims=True,
    )
    before, after = (np.linalg.eigvalsh(each.T @ each / len(each)) for each in (rows, rows @ axes))
    assert np.allclose(
        np.sort(after),
        np.sort(before**0.3 * before.max() ** 0.7),
        rtol=1e-3,
    )
    assert np.isfinite(rescaling(np.zeros((3, 2), np.float32))).all()

    made = cluster(
        two,
        15,
        space="rescaled",
    )
    assert made.means is not None
    assert made.axes is not None
    sample = sample_concepts(
        two,
        99,
        balanced=True,
        means=made.means,
    )
    assert np.allclose(
        made.axes,
        rescaling(sample),
        atol=1e-4,
    )
    assert np.allclose(
        np.sort(made.centroids, axis=0),
        np.sort(unit_rows(sample @ made.axes), axis=0),
        atol=1e-4,
    )


def test_bench_codebook_without_stop_words(two: Any):
    made = sampled(two[0], 99, 0, stops=False)
    assert sorted(names(made.centroids)) == [*ALL[:6], (1, 1), (1, 3)]


def test_unknown_space(two: Any):
    with pytest.raises(
        BocError,
        match="unknown space 'round'; known: plain, centered, rescaled",
    ):
        cluster(two, space="round")


def test_empty_sample(tmp_path: Path, two: Any):
    with pytest.raises(BocError, match="at least 1 concept, got 0"):
        sample_concepts(two, 0)
    with (
        FeatureFile(
            write(
                tmp_path / "none.h5",
                [[]],
                [],
            ),
        ) as file,
        pytest.raises(FeatureFileError, match="contains no concepts"),
    ):
        sample_concepts([file])


CAPTIONS = [
    (
        [
            "the",
            "dog",
            "jump",
            "##s",
        ],
        [
            [9, 9],
            [1, 0],
            [2, 2],
            [4, 4],
        ],
    ),
    (
        [
            "dog",
            "dog",
            "xq",
            "##zv",
            "is",
        ],
        [
            [3, 0],
            [2, 0],
            [7, 7],
            [7, 7],
            [9, 9],
        ],
    ),
    (
        [
            "jump",
            "a",
            "jump",
            "##s",
            "cat",
        ],
        [
            [5, 5],
            [9, 9],
            [0, 0],
            [2, 2],
            [6, 1],
        ],
    ),
]


@pytest.mark.slow
def test_dictionary_of_frequent_english_words(tmp_path: Path):
    pytest.importorskip("spellchecker")
    captions = [(pieces, [[float(x) for x in v] for v in vectors]) for pieces, vectors in CAPTIONS]
    with FeatureFile(
        write(
            tmp_path / "a.h5",
            [],
            captions,
        ),
    ) as file:
        book = dictionary(file, 10)
        assert book.words == ("dog", "jumps", "cat", "jump")
        assert book.centroids.tolist() == [
            [2, 0],
            [2, 2],
            [6, 1],
            [5, 5],
        ]
        assert book.concepts == 3 + 4 + 1 + 1
        assert dictionary(file, 2).words == ("dog", "jumps")
    odd = write(
        tmp_path / "odd.h5",
        [],
        [(["xqq", "the"], numbered("text", 2))],
    )
    with FeatureFile(odd) as file, pytest.raises(click.UsageError, match="no English words"):
        dictionary(file)


def test_captions_without_words(tmp_path: Path):
    odd = write(
        tmp_path / "b.h5",
        [],
        [(["dog"], numbered("text", 1))],
        words=False,
    )
    with FeatureFile(odd) as file, pytest.raises(click.UsageError, match="words of its concepts"):
        list(sentences(file))


def test_check_files(tmp_path: Path, library: Path):
    bare = write(
        tmp_path / "bare.h5",
        [[]],
        [],
        concepts=False,
    )
    mine = write(
        tmp_path / "mine.h5",
        [numbered("image", 1)],
        [],
    )
    other = write(
        tmp_path / "other.h5",
        [numbered("image", 1)],
        [],
        replace(
            IDENTITY,
            spec="tern:b",
            digest="cd" * 32,
        ),
    )
    with (
        pytest.raises(FeatureFileError, match="contains regions"),
        FeatureFile(library / "regions.h5") as file,
    ):
        check_files([file])
    with (
        pytest.raises(FeatureFileError, match="no vectors of regions or words"),
        FeatureFile(bare) as file,
    ):
        check_files([file])
    with FeatureFile(mine) as one, FeatureFile(other) as another:
        assert check_files([one]) == IDENTITY
        with pytest.raises(FeatureFileError, match=r"tern:b, but .*mine\.h5 by tern:somewhere"):
            cluster([one, another])
    with pytest.raises(FeatureFileError, match="at least one feature file"):
        check_files([])


def made(words: tuple[str, ...] | None = None) -> Codebook:
    return Codebook(
        default_rng(0).standard_normal((3, DIM)).astype(np.float32),
        IDENTITY,
        ("cd", "ef"),
        {"seed": 3, "spherical": True},
        17,
        words,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"words": ("dog", "naïve", "日本")},
        {"means": np.ones((2, DIM), np.float32), "axes": np.eye(DIM, dtype=np.float32)},
        {"origin": np.ones(DIM, np.float32)},
        {"thresholds": np.ones((2, 2, 3), np.float32)},
    ],
)
def test_file_round_trip(tmp_path: Path, fields: dict[str, Any]):
    book = replace(made(), **fields)
    path = tmp_path / "deep" / "book.npz"
    book.save(path)
    loaded = Codebook.load(path)
    for name, value in vars(book).items():
        assert np.array_equal(getattr(loaded, name), value), name
    assert loaded.spherical
    assert len(loaded) == 3
    assert {"boc", "numpy"} <= set(loaded.versions)
    assert [p.name for p in path.parent.iterdir()] == ["book.npz"]


def archive(path: Path, **entries: NDArray[Any]) -> Path:
    made(("a", "b", "c")).save(path)
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files} | entries
    with path.open("wb") as handle:
        np.savez(handle, **{name: array for name, array in arrays.items() if array is not MISSING})
    return path


MISSING = np.empty(0)


def about(**changes: Any) -> NDArray[np.uint8]:
    """The JSON of a codebook with entries changed, or left out where the change is MISSING."""
    entries = {
        "kind": "codebook",
        "format": 2,
        "identity": {"spec": "tern:x", "digest": "0", "dim": DIM},
        "sources": [],
        "options": {},
        "concepts": 1,
        "versions": {},
    } | changes
    present = {key: value for key, value in entries.items() if value is not MISSING}
    return np.frombuffer(json.dumps(present).encode(), np.uint8)


HOSTILE: dict[str, dict[str, NDArray[Any]]] = {
    "no-about": {"about": MISSING},
    "no-centroids": {"centroids": MISSING},
    "about-is-no-json": {"about": np.frombuffer(b"{", np.uint8)},
    "about-is-a-list": {"about": np.frombuffer(b"[1]", np.uint8)},
    "another-kind": {"about": about(kind="regions")},
    "entry-unknown": {"about": about(extra=1)},
    "concepts-are-text": {"about": about(concepts="many")},
    "pickle": {"centroids": np.array([object()], dtype=object)},
    "another-width": {"centroids": np.ones((3, DIM + 1), np.float32)},
    "empty": {"centroids": np.ones((0, DIM), np.float32), "words": MISSING},
    "not-finite": {
        "centroids": np.full(
            (3, DIM),
            np.nan,
            np.float32,
        ),
    },
    "unknown-array": {"more": np.zeros(3)},
    "huge": {
        "centroids": np.full(
            (3, DIM),
            3e38,
            np.float32,
        ),
    },
    "infinite-axes": {
        "means": np.zeros((2, DIM), np.float32),
        "axes": np.full(
            (DIM, DIM),
            np.inf,
            np.float32,
        ),
    },
    "nested": {"about": np.frombuffer(b"[" * 100_000, np.uint8)},
    "nested-options": {"about": about(options={"a": json.loads("[" * 200 + "]" * 200)})},
    "words-too-few": {"words": np.array(["a", "b"])},
    "thresholds-of-another-size": {"thresholds": np.zeros((2, 2, 2), np.float32)},
    "axes-of-another-size": {
        "means": np.zeros((2, DIM), np.float32),
        "axes": np.zeros((DIM, 1), np.float32),
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_load_invalid_entries(tmp_path: Path, name: str):
    path = archive(tmp_path / "book.npz", **HOSTILE[name])
    with pytest.raises(BocError, match=r"book\.npz: .*boc build-codebook"):
        Codebook.load(path)


def test_load_damaged_file(tmp_path: Path):
    whole = tmp_path / "whole.npz"
    made().save(whole)
    data = whole.read_bytes()
    stored = data.index(made().centroids.tobytes())
    flipped = bytearray(data)
    flipped[stored] ^= 1
    array = io.BytesIO()
    np.save(
        array,
        np.ones(3),
        allow_pickle=False,
    )
    for content in (
        b"",
        b"PK\x03\x04",
        b"hello",
        data[:-30],
        data[: len(data) // 2],
        bytes(flipped),
        array.getvalue(),
    ):
        path = tmp_path / "book.npz"
        path.write_bytes(content)
        with pytest.raises(BocError, match="not a codebook of boc, or damaged"):
            Codebook.load(path)
    with pytest.raises(BocError, match="not a codebook of boc"):
        Codebook.load(tmp_path)
    with pytest.raises(BocError, match="codebook file does not exist; build one"):
        Codebook.load(tmp_path / "none.npz")


def test_load_other_formats(tmp_path: Path):
    older = Codebook.load(archive(tmp_path / "book.npz", about=about(format=1, spread=0.5)))
    assert np.array_equal(older.centroids, made().centroids)
    path = archive(tmp_path / "book.npz", about=about(format=3, novelty="x"))
    with pytest.raises(
        BocError,
        match="format 3, but this version of boc supports formats up to 2; upgrade boc",
    ):
        Codebook.load(path)


def test_check_accepts_variants_of_encoder():
    plain = made()
    alone = replace(
        plain,
        identity=Identity(
            "tern:somewhere?alone",
            f"alone:{IDENTITY.digest}",
            DIM,
        ),
    )
    for book in (plain, alone):
        for identity in (plain.identity, alone.identity):
            book.check(identity)
        with pytest.raises(
            BocError,
            match=r"the concepts are from tern:b, which has different weights",
        ):
            book.check(
                Identity(
                    "tern:b",
                    "cd" * 32,
                    DIM,
                ),
            )


def run(*arguments: object) -> Result:
    """The command, under the group that turns errors into lines."""
    group = CommandGroup("boc", commands={"build-codebook": command})
    assert isinstance(group, click.Group)
    return CliRunner().invoke(group, ["build-codebook", *map(str, arguments)])


@pytest.mark.parametrize("kind", ["plain", "centered", "rescaled"])
def test_build_codebook_command(library: Path, tmp_path: Path, kind: str):
    features = library / "photos.h5"
    output = tmp_path / "book.npz"
    result = run(
        features,
        "-o",
        output,
        "--clusters",
        12,
        "--kind",
        kind,
    )
    assert result.exit_code == 0, result.output
    book = Codebook.load(output)
    assert f"12 centroids of {book.concepts} concepts" in result.stdout
    assert "clustering" in result.stderr
    again = tmp_path / "again.npz"
    run(
        features,
        "-o",
        again,
        "--clusters",
        12,
        "--kind",
        kind,
    )
    assert again.read_bytes() == output.read_bytes()
    with FeatureFile(features) as file:
        book.check(file.header.identity)
        assert book.sources == (file.header.source,)
        items = file.batch(
            "text",
            0,
            5,
        ).embeddings
        terms = concept_code(book, z=3).fit(items).encode_documents(items)
    assert terms.shape == (5, 12)
    assert (np.diff(terms.indptr) > 0).all()
