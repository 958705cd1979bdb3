"""The library as a program uses it: pictures to regions, a model, vectors, an index, and hits."""

from pathlib import Path

import numpy as np
import pytest

from boc import plugins
from boc.codecs import global_code
from boc.inputs.extraction import Extraction
from boc.inputs.features import FeatureFile
from boc.inputs.sources import open_source
from boc.manage.learn import fit_code
from boc.manage.load import load_index, new_manifest
from boc.search.searcher import Searcher
from tests.helpers import draw_pictures, run


@pytest.mark.slow
def test_a_picture_finds_itself_first(searcher: Searcher, library: Path):
    for path in sorted((library / "images").iterdir()):
        first = searcher.search(image=path, k=1)[0]
        assert first.item.id == path.name
        assert first.score == pytest.approx(1, abs=2e-3)


@pytest.fixture(scope="module")
def aligned(library: Path, tmp_path_factory) -> Searcher:
    """An index that is re-ranked by mrsw."""
    at = f"file:{tmp_path_factory.mktemp('aligned')}"
    run(
        f"index photos {library}/photos.h5 --at {at} --rerank mrsw --rm 20",
    )
    return Searcher.open("photos", at, device="cpu")


def test_rerank_default_is_of_the_index(aligned: Searcher, library: Path):
    assert (
        aligned.index.manifest.rerank,
        aligned.index.manifest.concept_dtype,
    ) == (
        "mrsw",
        "float16",
    )
    text = "a green box at the top"
    assert (
        aligned.search(text)
        == aligned.search(text, rerank="mrsw")
        != aligned.search(text, rerank="dot")
    )
    path = library / "images" / "011.png"
    assert aligned.search(image=path) == aligned.search(image=path, rerank="mrsw")
    asked = aligned.encoder.encode_texts([text])
    assert aligned.search_vectors(asked, find="text")[0] == aligned.search(text, find="text")


@pytest.mark.slow
def test_workflow_from_region_files(tmp_path: Path):
    table = draw_pictures(tmp_path / "made", 12)
    rng = np.random.default_rng(0)
    for name in ("bu_att", "bu_box"):
        (tmp_path / "features" / name).mkdir(parents=True)
    for i in range(12):
        n = i % 4  # pictures 0, 4 and 8 have no region
        corners = np.sort(rng.random((n, 2, 2)), axis=1) * 64
        np.savez(
            tmp_path / "features" / "bu_att" / f"{i:03d}.npz",
            feat=rng.random((n, 6), dtype=np.float32),
        )
        np.save(
            tmp_path / "features" / "bu_box" / f"{i:03d}.npy",
            corners.reshape(n, 4),
        )
    regions = plugins.region_source(f"files:{tmp_path / 'features'}")
    source = open_source(table)
    assert list(
        Extraction(
            source,
            tmp_path / "regions.h5",
            regions=regions,
        ).run(),
    ) == [0, 36]

    trainer = plugins.tool("train")
    sizes = {
        "visual_width": 8,
        "joint_width": 8,
        "feedforward": 8,
        "heads": 2,
        "text_layers": 1,
    }
    plan = {"epochs": 1, "batch_size": 4, "held_out": 4}
    recipe = trainer.Recipe.of(
        "small",
        {name: str(value) for name, value in (sizes | plan).items()},
    )
    run = trainer.describe(recipe, source.digest, regions)
    folder = tmp_path / "model"
    assert not trainer.is_finished(folder, run)
    training = trainer.Training(
        folder,
        tmp_path / "regions.h5",
        regions,
        recipe,
        run,
        ids=None,
        device="cpu",
    )
    assert [now.step for now in training.run()] == [1, 2, 2]
    assert trainer.is_finished(folder, run)

    encoder = plugins.encoder(f"tern:{folder}", "cpu")
    assert list(
        Extraction(
            source,
            tmp_path / "f.h5",
            encoder=encoder,
            dtype="float32",
        ).run(),
    ) == [
        0,
        36,
    ]
    at = f"file:{tmp_path / 'index'}"
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.failures == []
        assert [len(file.batch("image", i, i + 1).embeddings.concepts[0]) for i in range(5)] == [
            0,
            1,
            2,
            3,
            0,
        ]
        codec = fit_code(file, global_code(z=16))
        assert list(
            load_index(
                file,
                at,
                "files",
                codec,
                new_manifest(file, codec),
            ),
        ) == [12, 36]
        vectors = file.vectors("image")
    found = Searcher.open("files", at, device="cpu").search(
        image=tmp_path / "made" / "images" / "004.png",
        k=12,
    )
    bare = {"000.png", "004.png", "008.png"}  # alike: none has anything to tell it by
    assert {hit.item.id for hit in found[:3]} == bare
    assert np.array_equal(vectors[0], vectors[4])
    assert [hit.item.id for hit in found[:3]] == sorted(bare)
