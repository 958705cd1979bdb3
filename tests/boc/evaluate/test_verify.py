"""Verification finds what is wrong, by id, and nothing where nothing is."""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from boc import plugins
from boc.codecs import SurrogateCodec, global_code
from boc.errors import BocError, EncoderError
from boc.evaluate import verify as module
from boc.evaluate.verify import verify
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.manifest import Manifest
from boc.names import GLOBAL_CODES
from boc.plugins import Backend, Engine
from boc.types import Batch, Embeddings, Hit, Identity, Item, Rows
from boc.vectors import Floats
from indexing.embedded import npy_files
from indexing.server.requests import documents, pack_item
from tests.helpers import boc
from tests.oracles import picture, sentence
from tests.servers.fixtures import address

IDENTITY = Identity("tern:somewhere", "ab" * 32, 16)
N = 60
ITEMS = [picture(f"{i:03d}.jpg") if i % 3 else sentence(f"{i:03d}#0") for i in range(N)]


def unit(n: int = N, seed: int = 0) -> Floats:
    """Vectors of two kinds, so that some pairs share no term."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((n, 16)) + 4 * np.eye(16)[rng.integers(0, 16, n)]
    return (
        vectors
        / np.linalg.norm(
            vectors,
            axis=1,
            keepdims=True,
        )
    ).astype(np.float32)


def fitted(code: str = "scalar", **options: Any) -> SurrogateCodec:
    options = {"terms": 12} if code == "dictionary" else {"z": 8, "query_z": 12, **options}
    return global_code(code, **options).fit(*embedded(ITEMS, unit()))


def embedded(items: Sequence[Item], vectors: Floats) -> list[Embeddings]:
    kinds = [
        [i for i, item in enumerate(items) if item.modality == kind] for kind in ("image", "text")
    ]
    return [
        Embeddings("image", vectors[kinds[0]]),
        Embeddings("text", vectors[kinds[1]]),
    ]


def coded(
    codec: SurrogateCodec,
    items: Sequence[Item],
    vectors: Floats,
) -> sparse.csr_array:
    rows = [
        i for kind in ("image", "text") for i, item in enumerate(items) if item.modality == kind
    ]
    parts = [codec.encode_documents(some) for some in embedded(items, vectors)]
    return sparse.vstack(parts, format="csr")[np.argsort(rows)]


def build(
    backend: Backend,
    name: str,
    codec: SurrogateCodec,
    change: Callable[[sparse.csr_array], sparse.csr_array] = lambda terms: terms,
    vectors: Floats | None = None,
    dtype: str = "float32",
) -> Engine:
    vectors = unit() if vectors is None else vectors
    arrays = codec.arrays()
    manifest = Manifest.new(
        IDENTITY,
        codec.config(),
        arrays,
        rm=10.0,
        dtype=dtype,
        source="cd" * 32,
    )
    with backend.create(name, manifest, arrays) as writer:
        writer.add(
            Rows(
                ITEMS,
                change(coded(codec, ITEMS, vectors)),
                vectors,
            ),
        )
        writer.commit()
    return backend.open(name)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'indexes'}"


@pytest.fixture
def index(place: str) -> Engine:
    return build(plugins.backend(place), "photos", fitted())


def tampered(
    index: Engine,
    search: Callable[[list[Hit]], list[Hit]],
    monkeypatch,
) -> Engine:
    """An index whose lists of hits are changed by ``search``."""
    right = index.search
    monkeypatch.setattr(
        index,
        "search",
        lambda request: [search(hits) for hits in right(request)],
    )
    return index


@pytest.mark.parametrize("code", GLOBAL_CODES)
@pytest.mark.parametrize(
    "pairs",
    [1, 70, 1000, 100_000],
)
def test_what_is_right_is_found_right(place: str, code: str, pairs: int) -> None:
    report = verify(
        build(
            plugins.backend(place),
            "photos",
            fitted(code),
        ),
        pairs=pairs,
    )
    assert report.right
    assert report.mismatches == []
    assert report.rounded == []
    assert report.against == "vectors"
    assert min(pairs, N * module.PER_QUERY) <= report.pairs < pairs + module.PER_QUERY
    assert report.counts["image"] == (40, 40)
    assert report.counts["text"] == (20, 20)
    assert report.counts["postings"][0] == report.counts["postings"][1] > 0


def test_verify_depends_on_the_seed(index: Engine, monkeypatch) -> None:
    asked = []
    search = index.search
    monkeypatch.setattr(
        index,
        "search",
        lambda request: (
            asked.append(request.queries.toarray()),
            search(request),
        )[1],
    )
    runs = []
    for seed in (0, 0, 1):
        verify(index, pairs=100, seed=seed)
        runs.append(np.concatenate(asked))
        asked.clear()
    assert len(runs[0]) == 2
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def raised(item: int, by: int) -> Callable[[sparse.csr_array], sparse.csr_array]:
    def change(terms):
        changed = terms.copy()
        changed.data[changed.indptr[item]] += by
        return changed

    return change


def on_edges(codec: SurrogateCodec, seed: int) -> Floats:
    """Vectors between two that have other terms, as near as float32 allows to where the terms
    change."""
    low = unit(seed=seed)
    high = unit(seed=seed + 1)
    for _ in range(40):
        middle = (low + high) / 2
        same = abs(coded(codec, ITEMS, middle) - coded(codec, ITEMS, low)).sum(axis=1) == 0
        low = np.where(same[:, None], middle, low)
        high = np.where(same[:, None], high, middle)
    return low


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("seed", range(3))
def test_terms_that_rounding_changes_are_right(
    tmp_path: Path,
    seed: int,
    dtype: str,
) -> None:
    """Terms of vectors before they are rounded, where two centroids tie; but not those of another
    item."""
    codec = fitted("dictionary")
    vectors = on_edges(codec, seed)
    backend = plugins.backend(f"file:{tmp_path}")
    report = verify(build(backend, "edges", codec, vectors=vectors, dtype=dtype), pairs=N * N)
    assert report.right
    assert len(report.rounded) > 5

    def change(terms):
        return terms[[3, *range(1, N)]]

    report = verify(build(backend, "wrong", codec, change, vectors, dtype), pairs=N * N)
    assert {mismatch.item for mismatch in report.mismatches} == {ITEMS[0].id}


@pytest.mark.parametrize(
    ("by", "rounded"),
    [(0, []), (1, ["007.jpg"])],
)
def test_wrong_scores(
    place: str,
    monkeypatch,
    by: int,
    rounded: list[str],
) -> None:
    """Also of an item whose frequencies are one rounding away from its code."""
    index = build(
        plugins.backend(place),
        "photos",
        fitted(),
        raised(7, by),
    )
    wrong = {"004.jpg", "006#0", "007.jpg"}

    def add(hits):
        return [Hit(hit.item, hit.score + 5) if hit.item.id in wrong else hit for hit in hits]

    report = verify(
        tampered(index, add, monkeypatch),
        pairs=N * N,
    )
    assert not report.right
    assert report.rounded == rounded
    assert {mismatch.item for mismatch in report.mismatches} == wrong
    assert all(mismatch.found == mismatch.expected + 5 for mismatch in report.mismatches)
    assert all(a == b for a, b in report.counts.values())


@pytest.mark.parametrize("limit", [1000, 10])
def test_lost_hits_are_reported(index: Engine, monkeypatch, limit: int) -> None:
    """With all hits there, and where only the first 10 of them are."""
    monkeypatch.setattr(module, "HITS", limit)
    assert verify(index, pairs=N * N).right
    report = verify(
        tampered(index, lambda hits: hits[1:], monkeypatch),
        pairs=N * N,
    )
    assert len(report.mismatches) > 20
    assert all(mismatch.found == 0 < mismatch.expected for mismatch in report.mismatches)


@given(
    scores=st.lists(
        st.integers(0, 4),
        min_size=1,
        max_size=8,
    ),
    k=st.integers(1, 9),
    asked=st.integers(0, 7),
    claimed=st.integers(0, 5),
)
def test_trial_agrees(scores: list[int], k: int, asked: int, claimed: int) -> None:
    def ranked(scores):
        order = sorted(
            (i for i, score in enumerate(scores) if score),
            key=lambda i: (-scores[i], i),
        )
        return [Hit(picture(f"{i}"), float(scores[i])) for i in order[:k]]

    asked %= len(scores)
    hits = ranked(scores)
    one = module._Trial(
        "query",
        sparse.csr_array((1, 1)),
        hits,
        [],
    )
    changed = [claimed if i == asked else score for i, score in enumerate(scores)]
    with patch.object(module, "HITS", k):
        assert one.agrees(f"{asked}", claimed) == (ranked(changed) == hits)


def test_changed_file_is_reported(
    place: str,
    tmp_path: Path,
    monkeypatch,
) -> None:
    monkeypatch.setattr(npy_files, "SMALL", 0)
    index = build(
        plugins.backend(place),
        "photos",
        fitted(),
    )
    file = next(tmp_path.rglob("frequencies.npy"))
    data = bytearray(file.read_bytes())
    data[-1] += 40
    rows = np.load(next(tmp_path.rglob("rows.npy")))
    file.write_bytes(
        data,
    )  # of what is mapped already: an index that is opened now would be refused
    report = verify(index, pairs=N * N)
    assert (
        report.right,
        report.damaged,
        report.pairs,
    ) == (False, [str(file)], 0)
    monkeypatch.setattr(index, "damaged_files", list)
    report = verify(index, pairs=N * N)
    assert {mismatch.item for mismatch in report.mismatches} == {
        sorted(item.id for item in ITEMS)[rows[-1]],
    }


def test_wrong_counts_are_reported(index: Engine) -> None:
    postings = index.manifest.postings
    index.manifest = replace(
        index.manifest,
        items={"image": 41, "text": 20},
        postings=postings - 2,
    )
    report = verify(index)
    assert not report.right
    assert report.counts == {
        "image": (40, 41),
        "text": (20, 20),
        "postings": (postings, postings - 2),
    }


def test_deleted_item_is_named(index: Engine, monkeypatch) -> None:
    monkeypatch.setattr(
        index,
        "items",
        lambda: iter([*ITEMS, picture("gone.jpg")]),
    )
    with pytest.raises(BocError, match=r"item 'gone\.jpg' was deleted meanwhile"):
        verify(index, pairs=N * N)


def test_ids_that_occur_twice_are_reported(index: Engine, monkeypatch) -> None:
    items = sorted(
        [*ITEMS, ITEMS[3]],
        key=lambda item: item.id,
    )
    monkeypatch.setattr(index, "items", lambda: iter(items))
    report = verify(index)
    assert report.repeated == [ITEMS[3].id]
    assert not report.right


@pytest.mark.slow
def test_features_are_an_outside_witness(
    index: Engine,
    tmp_path: Path,
    monkeypatch,
) -> None:
    """Vectors and codes that were both replaced agree with each other, not with the file."""
    report = verify(index, files=[write(tmp_path / "photos.h5", ITEMS, unit())], pairs=N * N)
    assert report.right
    assert report.against == "features"
    other = unit()
    other[7] = -other[7]
    report = verify(
        index,
        files=[write(tmp_path / "other.h5", ITEMS, other)],
        pairs=N * N,
    )
    assert {mismatch.item for mismatch in report.mismatches if mismatch.query != "007.jpg"} == {
        "007.jpg",
    }


def write(
    path: Path,
    items: Sequence[Item],
    vectors: Floats,
    digest: str = IDENTITY.digest,
) -> Path:
    rows = [
        Batch(
            [item for item in items if item.modality == part.modality],
            part,
        )
        for part in embedded(items, vectors)
    ]
    with FeatureWriter(
        path,
        Header(
            "embeddings",
            IDENTITY.spec,
            digest,
            16,
            "float32",
            path.name,
        ),
    ) as writer:
        writer.append(len(items), rows)
        writer.finish()
    return path


def test_other_features_are_refused(index: Engine, tmp_path: Path) -> None:
    with pytest.raises(BocError, match=r"lacks the item '.*' of the index"):
        verify(
            index,
            files=[
                write(
                    tmp_path / "part.h5",
                    ITEMS[:10],
                    unit(10),
                ),
            ],
        )
    with pytest.raises(EncoderError, match="use one encoder"):
        verify(
            index,
            files=[
                write(
                    tmp_path / "other.h5",
                    ITEMS,
                    unit(),
                    "cd" * 32,
                ),
            ],
        )


@pytest.mark.slow
def test_verify_concept_codes(library: Path, tmp_path: Path) -> None:
    at = f"file:{tmp_path}"
    assert (
        boc(
            f"build-codebook {library}/photos.h5 -o {tmp_path}/book.npz --clusters 9",
        ).exit_code
        == 0
    )
    code = ("--code", f"soft(z=2, codebook='{tmp_path / 'book.npz'}')")
    assert (
        boc(
            f"index photos {library}/photos.h5 --at {at}",
            *code,
        ).exit_code
        == 0
    )
    index = plugins.backend(at).open("photos")
    for files, against in (
        ([], "terms"),
        ([library / "photos.h5"], "features"),
    ):
        report = verify(index, files=files)
        assert report.right, report
        assert report.against == against


@pytest.mark.slow
def test_verify_command(place: str, library: Path) -> None:
    build(plugins.backend(place), "right", fitted())
    build(
        plugins.backend(place),
        "wrong",
        fitted(),
        raised(7, 3),
    )
    result = boc(f"verify right --at {place}")
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "right: 1000 pairs of 20 queries against the codes of the stored vectors, 0 wrong",
    )
    assert result.stdout.endswith(" postings, which agree with the manifest\n")
    result = boc(f"verify wrong --at {place}")
    assert result.exit_code == 1
    *lines, summary = result.stdout.splitlines()
    assert lines
    assert all("  item 007.jpg  found " in line and "  expected " in line for line in lines)
    assert f", {len(lines)} wrong; 40 pictures, 20 captions, " in summary
    result = boc(f"verify wrong --at {place} --json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["right"] is False
    assert len(told["mismatches"]) == len(lines)
    assert set(told["mismatches"][0]) == {"query", "item", "found", "expected"}
    assert told["counts"]["image"] == {"found": 40, "manifest": 40}
    file = library / "photos.h5"
    result = boc(
        f"verify photos --at file:{library}/index --features {file} --json",
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout)["against"] == "features"


@pytest.fixture
def backend(server: Any) -> Backend:
    return plugins.backend(address(server))


@pytest.fixture
def name(backend: Backend) -> Iterator[str]:
    found = f"boc-test-{uuid.uuid4().hex[:12]}"
    yield found
    if backend.exists(found):
        backend.remove(found)


def test_changes_on_a_server_are_reported(backend: Any, name: str) -> None:
    index = build(backend, name, fitted())
    assert verify(index, pairs=N * N).right
    path = index.generation.physical
    request = backend.transport.request
    strategy = index.generation.strategy
    field = index.generation.vectors
    (shown,) = index.find(["007.jpg"])
    before = index.terms(["007.jpg"])
    vector = index.vectors(["007.jpg"])
    other = before.copy()
    other.data += 3

    def put(key, terms, id="007.jpg"):
        item = replace(shown, id=id)
        (document,) = documents(
            strategy,
            field,
            [item],
            terms,
            vector,
        )
        request(
            "PUT",
            f"/{path}/_doc/{key}",
            {**document, "item": pack_item(item)},
            refresh="true",
        )

    put("007.jpg", other)
    report = verify(backend.open(name), pairs=N * N)
    assert {mismatch.item for mismatch in report.mismatches} == {"007.jpg"}
    assert all(a == b for a, b in report.counts.values())

    put("007.jpg", before)
    assert verify(backend.open(name), pairs=N * N).right
    request("DELETE", f"/{path}/_doc/006%230", refresh="true")
    report = verify(backend.open(name), pairs=N * N)
    assert report.counts["text"] == (19, 20)
    assert report.counts["postings"][0] < report.counts["postings"][1]
    assert report.mismatches == []

    put("added", before, id="added")
    put("again", before)
    report = verify(backend.open(name), pairs=N * N)
    assert report.counts["image"] == (42, 40)
    assert report.repeated == ["007.jpg"]
    assert not report.right
