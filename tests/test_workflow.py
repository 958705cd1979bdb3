"""The library as a program uses it: pictures to regions, a model, vectors, an index, and hits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import draw_pictures
from numpy.typing import NDArray

from boc import pipeline, registry
from boc.codecs import global_code
from boc.errors import BocError, EncoderError
from boc.extraction import Extraction
from boc.features import FeatureFile
from boc.pipeline import Searcher, build_index, fit_code, new_manifest
from boc.sources import open_source
from boc.types import MODALITIES, Embeddings, Hit, ImageRef, Modality


@pytest.fixture(scope="module")
def searcher(library: Path) -> Searcher:
    return Searcher.open("photos", f"file:{library / 'index'}", device="cpu")


@pytest.fixture(scope="module")
def stored(library: Path) -> dict[Modality, tuple[list[str], NDArray[np.float32]]]:
    """Ids and vectors of the feature file behind the index."""
    with FeatureFile(library / "photos.h5") as file:
        return {m: ([item.id for item in file.items(m)], file.vectors(m)) for m in MODALITIES}


def assert_ranked_by(hits: list[Hit], query: NDArray[np.float32], ids: list[str], vectors: NDArray[np.float32]) -> None:
    """All hits carry their dot product with the query, and are the best of all items."""
    scores = dict(zip(ids, (vectors @ query).tolist(), strict=True))
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.item.id], abs=1e-6)
    best = sorted(scores.values(), reverse=True)[: len(hits)]
    assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("find", MODALITIES)
def test_scores_are_dot_products_of_the_stored_vectors(
    searcher: Searcher, stored: dict[Modality, tuple[list[str], NDArray[np.float32]]], library: Path, find: Modality
) -> None:
    path = library / "images" / "011.png"
    text, image = "a green box at the top", searcher.encoder.prepare(ImageRef(path.name, path))
    for hits, queries in (
        (searcher.search(text, k=8, rm=20, find=find), searcher.encoder.encode_texts([text])),
        (searcher.search(image=path, k=8, rm=20, find=find), searcher.encoder.encode_images([image])),
    ):
        assert len(hits) == 8
        assert {hit.item.modality for hit in hits} == {find}
        assert_ranked_by(hits, queries.vectors[0], *stored[find])


def test_pictures_are_found_unless_sentences_are_asked_for(searcher: Searcher) -> None:
    assert searcher.search("a red box") == searcher.search("a red box", find="image", k=10)


def test_a_picture_finds_itself_first(searcher: Searcher, library: Path) -> None:
    for path in sorted((library / "images").iterdir()):
        first = searcher.search(image=path, k=1)[0]
        assert first.item.id == path.name
        assert first.score == pytest.approx(1, abs=2e-3)


def test_a_batch_equals_its_queries_one_by_one(
    searcher: Searcher, stored: dict[Modality, tuple[list[str], NDArray[np.float32]]]
) -> None:
    for modality, (_, vectors) in stored.items():
        for find in MODALITIES:
            batch = searcher.search_vectors(Embeddings(modality, vectors), k=5, find=find)
            alone = [searcher.search_vectors(Embeddings(modality, row[None]), k=5, find=find)[0] for row in vectors]
            assert batch == alone
    assert searcher.search_vectors(Embeddings("text", np.empty((0, 16), np.float32))) == []


def test_without_spare_candidates_the_engine_chooses_and_the_vectors_order(
    searcher: Searcher, stored: dict[Modality, tuple[list[str], NDArray[np.float32]]]
) -> None:
    queries = Embeddings("text", stored["text"][1])
    engine = searcher.index.search(searcher.codec.encode_queries(queries), 5, "image")
    for hits, chosen, query in zip(searcher.search_vectors(queries, k=5, rm=1), engine, queries.vectors, strict=True):
        assert {hit.item.id for hit in hits} == {hit.item.id for hit in chosen}
        exact = searcher.index.vectors([hit.item.id for hit in hits]) @ query
        assert [hit.score for hit in hits] == pytest.approx(exact.tolist(), abs=1e-6)
        assert sorted(exact, reverse=True) == exact.tolist()


def test_more_candidates_never_find_worse(
    searcher: Searcher, stored: dict[Modality, tuple[list[str], NDArray[np.float32]]]
) -> None:
    queries = Embeddings("text", stored["text"][1])
    sums = [
        [sum(hit.score for hit in hits) for hits in searcher.search_vectors(queries, k=5, rm=rm)] for rm in (1, 2, 8)
    ]
    for few, some, all_ in zip(*sums, strict=True):
        assert few <= some + 1e-6
        assert some <= all_ + 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "either"), ({"text": "a", "image": "a.png"}, "either"), ({"text": "a", "k": 0}, "k must be at least 1"),
     ({"text": "a", "rm": float("nan")}, "rm"), ({"text": "a", "rm": float("inf")}, "rm"), ({"text": "\n"}, "empty")],
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(searcher: Searcher, options: dict[str, object], words: str) -> None:
    with pytest.raises(BocError, match=words):
        searcher.search(**options)  # type: ignore[arg-type]


def test_vectors_of_another_width_are_refused(searcher: Searcher) -> None:
    with pytest.raises(BocError, match="dimension 8 for a code of dimension 16"):
        searcher.search_vectors(Embeddings("text", np.ones((1, 8), np.float32)))


def test_what_to_extract_must_be_named(library: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="name what to extract"):
        Extraction(open_source(library / "captions.csv"), tmp_path / "f.h5")


def test_the_sample_a_code_is_fitted_on_is_bounded_and_spread(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pipeline, "FIT_SAMPLE", 25)
    seen: list[Embeddings] = []
    codec = global_code(z=4)
    monkeypatch.setattr(codec, "fit", lambda *samples: seen.extend(samples) or codec)
    with FeatureFile(library / "photos.h5") as file:
        fit_code(file, codec)
        assert [len(sample) for sample in seen] == [20, 20]
        assert np.array_equal(seen[1].vectors, file.vectors("text")[::4])


def test_regions_from_files_make_a_model_and_an_index_even_where_a_picture_has_none(tmp_path: Path) -> None:
    table = draw_pictures(tmp_path / "made", 12)
    rng = np.random.default_rng(0)
    for name in ("bu_att", "bu_box"):
        (tmp_path / "features" / name).mkdir(parents=True)
    for i in range(12):
        n = i % 4  # pictures 0, 4 and 8 have no region
        corners = np.sort(rng.random((n, 2, 2)), axis=1) * 64
        np.savez(tmp_path / "features" / "bu_att" / f"{i:03d}.npz", feat=rng.random((n, 6), dtype=np.float32))
        np.save(tmp_path / "features" / "bu_box" / f"{i:03d}.npy", corners.reshape(n, 4))
    regions = registry.region_source(f"files:{tmp_path / 'features'}")
    source = open_source(table)
    assert list(Extraction(source, tmp_path / "regions.h5", regions=regions).run()) == [0, 36]

    trainer = registry.trainer()
    sizes = {"visual_width": 8, "joint_width": 8, "feedforward": 8, "heads": 2, "text_layers": 1}
    plan = {"epochs": 1, "batch_size": 4, "held_out": 4}
    recipe = trainer.Recipe.of("small", {name: str(value) for name, value in (sizes | plan).items()})
    run = trainer.describe(recipe, source.digest, regions)
    folder = tmp_path / "model"
    assert not trainer.finished(folder, run)
    training = trainer.Training(folder, tmp_path / "regions.h5", regions, recipe, run, ids=None, device="cpu")
    assert list(training.prepare())[-1] == training.captions == 24
    assert [now.step for now in training.run()] == [1, 2, 2]
    assert trainer.finished(folder, run)

    encoder = registry.encoder(f"tern:{folder}", "cpu")
    assert list(Extraction(source, tmp_path / "f.h5", encoder=encoder, dtype="float32").run()) == [0, 36]
    at = f"file:{tmp_path / 'index'}"
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.failed == []
        assert [len(file.rows("image", i, i + 1).ragged["concepts"][0]) for i in range(5)] == [0, 1, 2, 3, 0]
        codec = fit_code(file, global_code(z=16))
        assert list(build_index(file, at, "files", codec, new_manifest(file, codec))) == [12, 36]
        vectors = file.vectors("image")
    found = Searcher.open("files", at, device="cpu").search(image=tmp_path / "made" / "images" / "004.png", k=12)
    bare = {"000.png", "004.png", "008.png"}  # alike: none has anything to tell it by
    assert {hit.item.id for hit in found[:3]} == bare
    assert np.array_equal(vectors[0], vectors[4])
    assert [hit.item.id for hit in found[:3]] == sorted(bare)
