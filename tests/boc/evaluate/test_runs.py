"""What the items of feature files score with each other: models alone and together, by vectors and
by alignment."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from boc import plugins
from boc.codecs import Code, SurrogateCodec
from boc.errors import BocError, FeatureFileError
from boc.evaluate.metrics import Recall, evaluate_ndcg
from boc.evaluate.runs import Gallery
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.manage.build import build_index
from boc.names import METRICS, Metric
from boc.plugins import Engine
from boc.rerank.alignment import align
from boc.types import Batch, Embeddings, Item, Ragged, StoredConcepts
from boc.vectors import Floats, unit_rows
from tests.helpers import boc

ALIGNMENTS = METRICS[1:]
IMAGES = 5
TEXTS = 11


def items_of(images: int = IMAGES, texts: int = TEXTS) -> tuple[list[Item], list[Item]]:
    pictures = [Item(f"p{i}", "image", f"{i}.jpg", f"p{i}") for i in range(images)]
    owned = [f"p{j % images}" for j in range(texts)]
    return pictures, [
        Item(
            f"{group}#{j}",
            "text",
            f"sentence {j}",
            group,
        )
        for j, group in enumerate(owned)
    ]


def write(
    path: Path,
    items: tuple[Sequence[Item], Sequence[Item]],
    seed: int = 0,
    dim: int = 6,
    *,
    concepts: bool = True,
    dtype: str = "float32",
    least: int = 0,
) -> Path:
    """An embeddings file of random vectors, and of random sets of ``least`` to 4 of them."""
    rng = default_rng(seed)

    def batch(some):
        vectors = unit_rows(
            rng.standard_normal(
                (len(some), dim),
                dtype=np.float32,
            ),
        )
        sets = [rng.standard_normal((rng.integers(least, 5), dim)) for _ in some]
        modality = some[0].modality if some else "image"
        return Batch(
            list(some),
            Embeddings(
                modality,
                vectors,
                Ragged.from_sets(sets, dim) if concepts else None,
            ),
        )

    with FeatureWriter(
        path,
        Header("embeddings", f"random:{seed}", f"{seed}", dim, dtype, "items"),
    ) as writer:
        writer.append(
            sum(map(len, items)),
            [batch(some) for some in items if some],
        )
        writer.finish()
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    """Files of the same items by two encoders, of other widths."""
    home = tmp_path_factory.mktemp("models")
    return [
        write(
            home / f"{seed}.h5",
            items_of(),
            seed,
            dim,
        )
        for seed, dim in ((1, 6), (2, 9))
    ]


def slow_scores(path: Path, metric: str) -> Floats:
    """Pair by pair."""
    with FeatureFile(path) as file:
        texts, images = (file.batch(modality, 0, 1000) for modality in ("text", "image"))
    if metric == "dot":
        words = texts.embeddings.vectors
        regions = images.embeddings.vectors
        return np.array(
            [[sum(a * b for a, b in zip(w, r, strict=True)) for r in regions] for w in words],
        )
    words = texts.embeddings.concepts
    regions = images.embeddings.concepts
    stored = StoredConcepts(unit_rows(regions.values), regions.offsets)
    return np.stack(
        [
            align(
                words[j],
                stored,
                metric,
                asks_by_words=True,
            )
            for j in range(len(words))
        ],
    )


@pytest.mark.parametrize("metric", METRICS)
def test_scores_equal_pairs(models: list[Path], metric: str) -> None:
    done = []
    scores = Gallery.of(models[0]).scores(
        metric,
        block=4,
        tick=done.append,
    )
    assert (scores.shape, scores.dtype) == ((TEXTS, IMAGES), np.float32)
    np.testing.assert_allclose(
        scores,
        slow_scores(models[0], metric),
        rtol=1e-5,
        atol=1e-6,
    )
    assert done == [4, 4, 3]
    with pytest.raises(ValueError, match="read-only"):
        scores[0, 0] = 1


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["dot", "mrsw"])
def test_evaluate_index_equals_evaluate_features(tmp_path: Path, metric: Metric) -> None:
    path = write(
        tmp_path / "f.h5",
        items_of(12, 60),
        dim=8,
        least=1,
    )
    at = f"file:{tmp_path / 'index'}"
    shared = {
        "code": Code("scalar"),
        "rm": 60,
        "rerank": metric,
    }
    build_index(
        "all",
        path,
        at=at,
        concepts="float16",
        **shared,
    )
    np.float32(default_rng(0).random((60, 12))).tofile(tmp_path / "r.f32")
    options = ("--ndcg", tmp_path / "r.f32", "--json")
    dense = json.loads(
        boc(
            f"evaluate {path} --score",
            metric,
            *options,
        ).stdout,
    )
    found = json.loads(
        boc(
            f"evaluate {path} --name all --at {at}",
            *options,
        ).stdout,
    )
    (whole,) = dense.values()
    for side in ("text_to_image", "image_to_text"):
        for measure in ("r1", "r5", "r10", "ndcg"):
            # Concepts are stored in float16.
            near = 1e-3 if (metric, measure) == ("mrsw", "ndcg") else 1e-6
            assert found["index"][side][measure] == pytest.approx(
                whole[side][measure],
                abs=near,
            ), (side, measure)
    refused = boc(
        f"evaluate {path} --name all --at {at} --fold 5",
    )
    assert "--fold cannot be used with an index" in refused.stderr
    refused = boc(
        "evaluate",
        write(
            tmp_path / "h.h5",
            items_of(13, 60),
            dim=8,
        ),
        "--name",
        "all",
        "--at",
        at,
    )
    assert refused.exit_code == 1
    assert (
        "contains 13 pictures and 60 captions, but the index 'all' contains 12 and 60; evaluate"
        in refused.stderr
    )


def slow_code_ranks(path: Path, index: Engine, find: str) -> list[int]:
    """Rank (from 0) of the first right item of each query by the products of its terms, below
    100."""
    codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    asking = "text" if find == "image" else "image"
    with FeatureFile(path) as file:
        queries = file.batch(asking, 0, 1000)
        items = sorted(file.items(find), key=lambda item: item.id)
    codes = codec.encode_queries(queries.embeddings).toarray()
    rows = index.terms([item.id for item in items]).toarray()
    ranks = []
    for query, code in zip(queries.items, codes, strict=True):
        scores = [int(sum(int(a) * int(b) for a, b in zip(code, row, strict=True))) for row in rows]
        order = sorted(range(len(items)), key=lambda i: -scores[i])
        right = [
            place
            for place, i in enumerate(order)
            if items[i].group == query.group and scores[i] > 0
        ]
        ranks.append(min([*right, 100]))
    return ranks


@pytest.mark.parametrize("code", ["scalar:2", "bits:3", "permutation:2"])
def test_a_code_is_measured_beside_what_a_user_gets(tmp_path: Path, code: str) -> None:
    path = write(
        tmp_path / "f.h5",
        items_of(30, 60),
        dim=8,
        least=1,
    )
    at = f"file:{tmp_path / 'index'}"
    build_index("all", path, at=at, code=code)
    options = ("--name", "all", "--at", at)
    dense = json.loads(boc(f"evaluate {path} --json").stdout)["all 30 pictures"]
    found = json.loads(boc(f"evaluate {path}", *options, "--json").stdout)
    assert list(found) == ["index", "code", "code alone"]
    assert found["index"] == dense
    index = plugins.backend(at).open("all")
    for find, side in (("image", "text_to_image"), ("text", "image_to_text")):
        alone = Recall.of(np.array(slow_code_ranks(path, index, find)))
        assert found["code alone"][side] == pytest.approx(asdict(alone))
        code_side = found["code"][side]
        assert code_side["r10"] >= alone.r10
        for k, bound in ((1, "r1"), (5, "r5"), (10, "r10")):
            assert (code_side[bound] < 50) <= (code_side["median_rank"] > k)
    shown = boc(f"evaluate {path}", *options).stdout.splitlines()
    assert shown[0] == "index, as a search; all compared: the code took no part"
    assert shown[6] == "code alone, ranked by its terms"
    by_hand = boc(f"evaluate {path}", *options, "--rm", 1, "--json")
    assert json.loads(by_hand.stdout) == {"index": found["code alone"]}


@pytest.mark.parametrize("metric", METRICS)
def test_ensemble_averages_scores(models: list[Path], metric: str) -> None:
    one, other = (Gallery.of(path).scores(metric).astype(np.float64) for path in models)
    together = Gallery.of(*models).scores(metric)
    np.testing.assert_allclose(
        together,
        (one + other) / 2,
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_array_equal(
        Gallery.of(*reversed(models)).scores(metric),
        together,
    )


@pytest.mark.parametrize("metric", ["dot", "symm"])
def test_evaluate_command(models: list[Path], metric: str) -> None:
    options = ("--score", metric, "--ndcg", "rouge-l", "--json")
    alone = boc("evaluate", models[0], *options).stdout
    assert (
        boc(
            "evaluate",
            models[0],
            models[0],
            *options,
        ).stdout
        == alone
    )
    gallery = Gallery.of(*models)
    expected = evaluate_ndcg(
        gallery.scores(metric),
        gallery.owners,
        gallery.relevance(),
    )
    found = json.loads(boc("evaluate", *models, *options).stdout)["all 5 pictures"]
    assert found["image_to_text"]["ndcg"] == pytest.approx(expected.image_to_text)


def changed(which: int, row: int, **changes: str) -> tuple[list[Item], list[Item]]:
    items = items_of()
    items[which][row] = replace(items[which][row], **changes)
    return items


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (items_of(texts=10), "contains None where .*1.h5 contains .'p0#10'"),
        (changed(0, 3, id="q"), "contains .'q', .* where .*1.h5 contains .'p3'"),
        (changed(1, 2, group="p0"), "contains .'p2#2', 'p0'"),
        (changed(1, 4, content="a dog"), "contains .'p4#4', 'p4', 'a dog'. where"),
    ],
)
def test_files_of_other_items_are_refused(
    models: list[Path],
    items: tuple[list[Item], list[Item]],
    message: str,
    tmp_path: Path,
) -> None:
    other = write(tmp_path / "other.h5", items)
    with pytest.raises(FeatureFileError, match=rf"other.h5: {message}"):
        Gallery.of(models[0], other)


def test_ensemble_of_moved_pictures(models: list[Path], tmp_path: Path) -> None:
    elsewhere = write(
        tmp_path / "moved.h5",
        changed(0, 1, content="/elsewhere/1.jpg"),
        3,
        2,
        dtype="float16",
    )
    assert Gallery.of(models[0], elsewhere).images == IMAGES


def test_files_without_vectors_or_concepts_cannot_be_scored(
    models: list[Path],
    library: Path,
    tmp_path: Path,
) -> None:
    bare = write(tmp_path / "bare.h5", items_of(), concepts=False)
    assert Gallery.of(models[0], bare).scores().shape == (TEXTS, IMAGES)
    with pytest.raises(
        FeatureFileError,
        match=r"bare.h5: contains no concept sets for its image items, which mrsw",
    ):
        Gallery.of(models[0], bare).scores("mrsw")
    with pytest.raises(BocError, match="unknown metric 'cosine'"):
        Gallery.of(bare).scores("cosine")
    with pytest.raises(FeatureFileError, match="contains regions, not vectors"):
        Gallery.of(models[0], library / "regions.h5")
    with pytest.raises(FeatureFileError, match=r"empty\.h5: contains no pictures"):
        Gallery.of(write(tmp_path / "empty.h5", ([], [])))


def test_relevance_of_other_pictures_is_refused(models: list[Path], tmp_path: Path) -> None:
    gallery = Gallery.of(models[0])
    gallery.relevance()[:, :-1].tofile(tmp_path / "other.f32")
    with pytest.raises(
        BocError,
        match="for 11 captions and 4 pictures, but there are 11 captions and 5 pictures",
    ):
        gallery.relevance(tmp_path / "other.f32")
