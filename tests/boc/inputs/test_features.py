"""Feature files: what is written is read, whatever the batches and interruptions, and strangers are
refused."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng

from boc.errors import BocError, FeatureFileError
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FORMAT, FeatureFile, FeatureFiles, Header, is_embeddings
from boc.types import MODALITIES, Batch, Embeddings, Identity, Item, Modality, Ragged, RegionBatch

HEADER = Header(
    "embeddings",
    "tern:somewhere",
    "ab" * 32,
    3,
    "float32",
    "cd" * 32,
)


def make_rows(
    sizes: Sequence[int],
    modality: Modality = "image",
    *,
    start: int = 0,
    dim: int = 3,
    concepts: bool = True,
) -> Batch:
    """One item for each size: a vector, and a set of as many concepts; values that float16 does not
    hold exactly."""
    rng = default_rng(
        [
            start,
            len(sizes),
            MODALITIES.index(modality),
        ],
    )
    items = [
        Item(
            f"{modality}-{start + i}",
            modality,
            f"content {i} é",
            f"g{i % 3}",
        )
        for i in range(len(sizes))
    ]
    sets = [rng.standard_normal((size, dim)).astype(np.float32) for size in sizes]
    return Batch(
        items,
        Embeddings(
            modality,
            rng.standard_normal((len(sizes), dim)).astype(np.float32),
            Ragged.from_sets(sets, dim) if concepts else None,
        ),
    )


def write(
    path: Path,
    header: Header,
    parts: Sequence[Sequence[Batch | RegionBatch]],
    failed: Sequence[tuple[str, str]] = (),
) -> Path:
    with FeatureWriter(path, header) as writer:
        for number, batches in enumerate(parts):
            writer.append(
                sum(len(rows.items) for rows in batches),
                batches,
                failed if number == 0 else (),
            )
        writer.finish()
    return path


def assert_rows(found: Batch, expected: Sequence[Batch], dtype: str) -> None:
    """``found`` is all of ``expected``, one after another, rounded to ``dtype``."""
    assert found.items == [item for rows in expected for item in rows.items]
    rounded = (
        np.concatenate([rows.embeddings.vectors for rows in expected])
        .astype(dtype)
        .astype(np.float32)
    )
    assert found.embeddings.vectors.dtype == np.float32
    assert np.array_equal(
        found.embeddings.vectors,
        rounded,
    )
    sets = [rows.embeddings.concepts[i] for rows in expected for i in range(len(rows.items))]
    assert len(found.embeddings.concepts) == len(sets)
    for i, values in enumerate(sets):
        assert np.array_equal(
            found.embeddings.concepts[i],
            values.astype(dtype).astype(np.float32),
        )


SIZES = st.lists(
    st.integers(0, 4),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    parts=st.lists(
        st.tuples(SIZES, SIZES),
        min_size=1,
        max_size=3,
    ),
    dtype=st.sampled_from(["float16", "float32"]),
    batch=st.integers(1, 6),
)
def test_feature_file_round_trip(
    parts: list[tuple[list[int], list[int]]],
    dtype: str,
    batch: int,
) -> None:
    batches = [
        [
            make_rows(a, "image", start=10 * i),
            make_rows(b, "text", start=10 * i),
        ]
        for i, (a, b) in enumerate(parts)
    ]
    with TemporaryDirectory() as folder:
        path = write(
            Path(folder) / "f.h5",
            replace(HEADER, dtype=dtype),
            batches,
        )
        with FeatureFile(path) as file:
            for position, modality in enumerate(MODALITIES):
                expected = [pair[position] for pair in batches]
                count = sum(len(rows.items) for rows in expected)
                whole = file.batch(modality, 0, count)
                assert file.count(modality) == count
                assert file.items(modality) == whole.items
                assert_rows(whole, expected, dtype)
                pieces = list(file.batches(modality, batch))
                assert [len(piece.items) for piece in pieces[:-1]] == [batch] * (len(pieces) - 1)
                assert_rows(whole, pieces, dtype)
                assert np.array_equal(
                    file.vectors(modality),
                    whole.embeddings.vectors,
                )
                for name, values in (
                    ("dense/vectors", whole.embeddings.vectors),
                    (
                        "ragged/concepts",
                        whole.embeddings.concepts.values,
                    ),
                ):
                    mapped = file.memory_map(modality, name)
                    assert mapped.dtype == dtype
                    assert np.array_equal(
                        mapped.astype(np.float32),
                        values,
                    )
                    assert not mapped.flags.writeable or mapped.size == 0
                assert np.array_equal(
                    file.memory_map(modality, "offsets"),
                    whole.embeddings.concepts.offsets,
                )
        assert [entry.name for entry in Path(folder).iterdir()] == ["f.h5"]


def test_the_header_and_the_views_of_a_batch(tmp_path: Path) -> None:
    rows = make_rows([2, 0, 1])
    with FeatureFile(write(tmp_path / "f.h5", HEADER, [[rows]])) as file:
        assert file.header == HEADER
        assert file.header.identity == Identity("tern:somewhere", "ab" * 32, 3)
        found = file.batch("image", 1, 3).embeddings
        assert [len(found.concepts[i]) for i in range(2)] == [0, 1]
        assert np.array_equal(
            found.vectors,
            rows.embeddings.vectors[1:],
        )
        assert file.count("text") == 0
        assert file.items("text") == []
        assert file.vectors("text").shape == (0, 3)
        assert list(file.batches("text")) == []
        assert file.batch("image", 3, 9).items == []
    assert is_embeddings(tmp_path / "f.h5")


def test_region_batches(tmp_path: Path) -> None:
    rng = default_rng(0)
    sets = [
        (
            rng.random((n, 5), np.float32),
            rng.random((n, 4), np.float32),
        )
        for n in (3, 0, 2)
    ]
    ragged = {
        "features": Ragged.from_sets([f for f, _ in sets], 5),
        "boxes": Ragged.from_sets([b for _, b in sets], 4),
    }
    pictures = [Item(f"{i}", "image", f"{i}.jpg", f"{i}") for i in range(3)]
    captions = RegionBatch([Item("0#0", "text", "a caption", "0")])
    header = replace(
        HEADER,
        kind="regions",
        dtype="float16",
        dim=5,
    )
    path = write(
        tmp_path / "r.h5",
        header,
        [[RegionBatch(pictures, **ragged), captions]],
    )
    with FeatureFile(path) as file:
        found = file.region_batch("image", 0, 3).regions()
        with pytest.raises(
            FeatureFileError,
            match=r"r.h5: contains regions, not vectors; encode the regions first",
        ):
            file.batch("image", 0, 3)
        for one, (features, boxes) in zip(found, sets, strict=True):
            assert np.array_equal(
                one.features,
                features.astype(np.float16).astype(np.float32),
            )
            assert np.array_equal(one.boxes, boxes)
        assert file.items("text") == captions.items
    assert not is_embeddings(path)


PARTS = [
    [make_rows([1, 0, 3], start=0)],
    [make_rows([0, 0], start=3)],
    [make_rows([2], "text", start=5)],
]


def extend(writer: FeatureWriter, parts: Sequence[Sequence[Batch]]) -> None:
    for batches in parts:
        writer.append(
            len(batches[0].items),
            batches,
        )


@pytest.mark.parametrize("before", range(4))
def test_resumed_file_is_identical(tmp_path: Path, before: int) -> None:
    whole = write(tmp_path / "whole.h5", HEADER, PARTS)
    path = tmp_path / "resumed.h5"
    with FeatureWriter(path, HEADER) as writer:
        extend(writer, PARTS[:before])
    with pytest.raises(
        FeatureFileError,
        match="incomplete; run the same boc extract command again",
    ):
        FeatureFile(path)
    (tmp_path / "resumed.h5.parts" / ".000000000000-000000000003.h5.tmp").write_bytes(
        b"half a part",
    )
    with FeatureWriter(path, HEADER) as writer:
        assert writer.done == [0, 3, 5, 6][before]
        extend(writer, PARTS[before:])
        writer.finish()
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["resumed.h5", "whole.h5"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_kill_while_parts_are_removed(tmp_path: Path, lost: int) -> None:
    whole = write(tmp_path / "whole.h5", HEADER, PARTS)
    path = tmp_path / "f.h5"
    with FeatureWriter(path, HEADER) as writer:
        extend(writer, PARTS)
    shutil.copy(whole, path)
    sorted((tmp_path / "f.h5.parts").glob("[0-9]*.h5"))[lost].unlink()
    with FeatureWriter(path, HEADER) as writer:
        assert writer.done == [0, 3, 5][lost]
        extend(writer, PARTS[lost:])
        writer.finish()
    assert path.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"source": "other"}, "source"),
        ({"digest": "other"}, "digest"),
        ({"dtype": "float16"}, "dtype"),
        ({"precision": "bfloat16"}, "precision"),
        ({"shard": "1/2"}, "shard"),
        (
            {"spec": "tern:b", "dim": 4},
            "spec and dim",
        ),
    ],
)
def test_parts_of_another_run(tmp_path: Path, change: dict[str, str], named: str) -> None:
    path = tmp_path / "f.h5"
    with FeatureWriter(path, HEADER) as writer:
        writer.append(3, PARTS[0])
    with pytest.raises(
        FeatureFileError,
        match=f"different {named}; run the same command again to finish it, or delete the folder",
    ):
        FeatureWriter(
            path,
            replace(HEADER, **change),
        )
    with FeatureWriter(path, HEADER) as writer:
        assert writer.done == 3


def test_arrays_of_two_widths_are_not_mixed(tmp_path: Path) -> None:
    with FeatureWriter(tmp_path / "f.h5", HEADER) as writer:
        writer.append(2, [make_rows([1], dim=3)])
        writer.append(
            2,
            [make_rows([1], dim=4, start=1)],
        )
        with pytest.raises(
            FeatureFileError,
            match="not 3 wide",
        ):
            writer.finish()
    assert not (tmp_path / "f.h5").exists()


def test_the_second_writer_is_refused(tmp_path: Path) -> None:
    with FeatureWriter(tmp_path / "f.h5", HEADER) as writer:
        with pytest.raises(
            BocError,
            match="is being written by another process",
        ):
            FeatureWriter(tmp_path / "f.h5", HEADER)
        writer.append(3, PARTS[0])
    with FeatureWriter(tmp_path / "f.h5", HEADER) as writer:
        assert writer.done == 3


def refusal(path: Path) -> str:
    with pytest.raises(FeatureFileError) as caught:
        FeatureFile(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_no_feature_file(tmp_path: Path) -> None:
    assert "file does not exist; create it with boc extract" in refusal(tmp_path / "missing.h5")
    (tmp_path / "notes.h5").write_text("not HDF5")
    (tmp_path / "empty.h5").touch()
    for name in ("notes.h5", "empty.h5", "."):
        assert "not a readable HDF5 file; create it with boc extract" in refusal(tmp_path / name)
    whole = write(tmp_path / "whole.h5", HEADER, PARTS).read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    assert "not a readable HDF5 file" in refusal(tmp_path / "cut.h5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["data"] = [1, 2, 3]
    assert "not a boc feature file; create it with boc extract" in refusal(
        tmp_path / "foreign.h5",
    )


def test_a_newer_or_incomplete_header_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "f.h5", HEADER, PARTS)
    with h5py.File(path, "a") as file:
        file.attrs["format"] = FORMAT + 1
    assert (
        f"format {FORMAT + 1}, but this version of boc reads up to {FORMAT}; upgrade boc"
        in refusal(path)
    )
    with h5py.File(path, "a") as file:
        file.attrs["format"] = 1
        del file.attrs["digest"]
    assert "incomplete header; create it with boc extract" in refusal(path)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    parts=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=4,
    ),
    step=st.integers(1, 5),
    size=st.integers(1, 6),
    order=st.randoms(),
)
def test_several_files_are_read_as_one(
    parts: list[tuple[int, int]],
    step: int,
    size: int,
    order: Random,
) -> None:
    with TemporaryDirectory() as folder:
        paths = [
            write(
                Path(folder) / f"{i}.h5",
                replace(
                    HEADER,
                    source=f"{i}",
                    shard=f"{i + 1}/9",
                ),
                [
                    [
                        make_rows([2] * n, m, start=10 * i)
                        for m, n in zip(MODALITIES, counts, strict=True)
                    ],
                ],
                [(f"bad {i}", "torn")],
            )
            for i, counts in enumerate(parts)
        ]
        given_in = order.sample(paths, len(paths))
        with FeatureFiles(given_in) as files:
            assert files.failures == [(f"bad {i}", "torn") for i in range(len(parts))]
            assert files.header.identity == HEADER.identity
            assert (files.header.shard == "") == (len(parts) > 1)
            for position, modality in enumerate(MODALITIES):
                counts = [pair[position] for pair in parts]
                expected = [
                    make_rows([2] * n, modality, start=10 * i) for i, n in enumerate(counts) if n
                ]
                assert files.count(modality) == sum(counts)
                vectors = np.concatenate(
                    [
                        np.empty((0, 3)),
                        *(rows.embeddings.vectors for rows in expected),
                    ],
                )
                rows = np.arange(0, len(vectors), step)
                sampled = [
                    np.empty((0, 3)),
                    *files.sample(modality, rows),
                ]
                assert np.array_equal(
                    np.concatenate(sampled),
                    vectors[rows],
                )
                found = [
                    read()
                    for *_, read in files.lazy_batches(
                        modality,
                        size,
                        sets=True,
                    )
                ]
                assert all(len(rows.items) <= size for rows in found)
                assert [i for rows in found for i in rows.items] == [
                    i for rows in expected for i in rows.items
                ]
                assert np.array_equal(
                    np.concatenate(
                        [
                            np.empty((0, 3)),
                            *(rows.embeddings.concepts.values for rows in found),
                        ],
                    ),
                    np.concatenate(
                        [
                            np.empty((0, 3)),
                            *(rows.embeddings.concepts.values for rows in expected),
                        ],
                    ),
                )
        with FeatureFiles(paths) as again:
            assert again.header.source == files_source(given_in)


def files_source(paths: Sequence[Path]) -> str:
    with FeatureFiles(paths) as files:
        return files.header.source


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"kind": "regions"},
            "their kind is regions and embeddings",
        ),
        (
            {"digest": "other"},
            "their digest is other and ",
        ),
        (
            {"dtype": "float16"},
            "their dtype is float16 and float32",
        ),
        (
            {"precision": "bfloat16"},
            "their precision is bfloat16 and float32",
        ),
        ({}, "both contain 'image-0'"),
        (
            {"source": "zz"},
            "only one of them contains concept sets",
        ),
    ],
)
def test_mixed_files_are_refused(tmp_path: Path, change: dict[str, str], words: str) -> None:
    one = write(
        tmp_path / "1.h5",
        HEADER,
        [[make_rows([1, 2])]],
    )
    rows = make_rows(
        [3],
        concepts="concept sets" not in words,
    )
    if "kind" in change:
        rows = RegionBatch(
            rows.items,
            rows.embeddings.concepts,
            Ragged.from_sets([np.ones((3, 4))], 4),
        )
    two = write(
        tmp_path / "2.h5",
        replace(
            HEADER,
            **({"source": "z"} | change),
        ),
        [[rows]],
    )
    with pytest.raises(FeatureFileError) as caught:
        FeatureFiles([one, two])
    for part in (str(one), str(two), words):
        assert part in str(caught.value)
