"""Freshness is content: whatever has changed about pictures or vectors is seen, and nobody's own
files are touched."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from boc.errors import FeatureFileError
from boc.inputs.extraction import Extraction
from boc.inputs.features import FeatureFile
from boc.inputs.sources import open_source
from boc.manage.build import build_index
from boc.search.searcher import Searcher
from tests.helpers import boc, run


@pytest.fixture
def pictures(library: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(6):
        shutil.copy(library / "images" / f"{i:03d}.png", folder)
    return folder


def vectors(name: str, at: str) -> dict[str, list[float]]:
    index = Searcher.open(name, at).index
    ids = [item.id for item in index.items()]
    return dict(
        zip(
            ids,
            index.vectors(ids).astype(float).tolist(),
            strict=True,
        ),
    )


def change(picture: Path) -> None:
    Image.new("RGB", (64, 64), "orange").save(picture)


@pytest.mark.slow
@pytest.mark.parametrize(
    "again",
    [["index", "--replace"], ["add"], ["sync"]],
)
def test_run_after_a_refused_one_is_fresh(
    library: Path,
    pictures: Path,
    tmp_path: Path,
    again: list[str],
):
    at = f"file:{tmp_path / 'at'}"
    encoder = f"tern:{library / 'model'}"
    common = ["--encoder", encoder, "--at", at]
    assert (
        boc(
            f"index x {pictures}",
            *common,
            "--code",
            "scalar(plain=true)",
        ).exit_code
        == 0
    )
    change(pictures / "000.png")
    refused = boc(f"index x {pictures}", *common)
    assert refused.exit_code == 1
    for step in ("boc sync", "boc add", "--replace"):
        assert step in refused.stderr
    change(pictures / "001.png")
    command, *more = again
    assert boc(command, "x", pictures, *common, *more).exit_code == 0
    assert boc(f"index fresh {pictures}", *common).exit_code == 0
    assert vectors("x", at) == vectors("fresh", at)


@pytest.mark.slow
def test_files_of_the_user_stay(library: Path, pictures: Path, tmp_path: Path):
    place = tmp_path / "at"
    place.mkdir()
    mine = [
        "x.features.h5",
        "x.concepts.h5",
        ".x.features.h5",
        ".x.index.features.h5",
        "x.features.h5.parts",
    ]
    for name in mine[:-1]:
        shutil.copy(library / "photos.h5", place / name)
    (place / mine[-1]).mkdir()
    common = ["--encoder", f"tern:{library / 'model'}", "--at", f"file:{place}"]
    for command, *more in (
        ["index"],
        ["index", "--replace"],
        ["add"],
        ["index", "--replace", "--concepts", "int8"],
    ):
        assert boc(command, "x", pictures, *common, *more).exit_code == 0
    assert sorted(path.name for path in place.iterdir()) == sorted([*mine, "x"])
    for name in mine[:-1]:
        assert (place / name).read_bytes() == (library / "photos.h5").read_bytes()


@pytest.mark.slow
def test_leftovers_of_earlier_runs_are_removed(
    library: Path,
    pictures: Path,
    tmp_path: Path,
):
    at = f"file:{tmp_path / 'at'}"
    encoder = f"tern:{library / 'model'}"
    build_index("x", pictures, encoder=encoder, at=at)
    (tmp_path / "at" / ".x.0123456789ab.features.h5.parts").mkdir()
    (tmp_path / "at" / ".x.ba9876543210.features.h5").touch()
    build_index(
        "x",
        pictures,
        encoder=encoder,
        at=at,
        replace=True,
    )
    assert [path.name for path in (tmp_path / "at").iterdir()] == ["x"]


def test_parts_of_changed_pictures_are_refused(
    library: Path,
    pictures: Path,
    tmp_path: Path,
):
    from boc import plugins

    source = plugins.region_source("grid")
    run = Extraction(
        open_source(pictures),
        tmp_path / "r.h5",
        regions=source,
    ).run()
    next(run)
    run.close()
    change(pictures / "000.png")
    with pytest.raises(FeatureFileError, match="state of the pictures"):
        list(
            Extraction(
                open_source(pictures),
                tmp_path / "r.h5",
                regions=source,
            ).run(),
        )


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("equal", [True, False])
def test_small_collections_are_searchable_or_refused(
    library: Path,
    tmp_path: Path,
    count: int,
    *,
    equal: bool,
):
    """Under each code every item finds itself, or the index is not made."""
    path = tmp_path / "f.h5"
    at = f"--at=file:{tmp_path / 'at'}"
    for i in range(count):
        Image.new(
            "RGB",
            (64, 64),
            "red" if equal else (40 * i, 255 - 40 * i, 90),
        ).save(
            tmp_path / f"{i}.png",
        )
    run(
        f"extract {tmp_path} -o {path} --encoder tern:{library}/model --set=concepts=false",
    )
    with FeatureFile(path) as file:
        ids = file.ids("image")
    for number, code in enumerate(
        ("scalar", "bits", "permutation", "dictionary", "scalar(plain=true)"),
    ):
        result = boc(f"index x{number} {path} {at} --code", code)
        assert result.exit_code < 2, result.output
        if result.exit_code:
            assert result.stderr.splitlines()[-1].startswith("Error: ")
            continue
        hits = run(
            f"search x{number} --queries {path} {at} -k {count} --json",
        )
        for id, line in zip(
            ids,
            hits.stdout.splitlines(),
            strict=True,
        ):
            assert id in [hit["id"] for hit in json.loads(line)["hits"]], (code, line)


@pytest.mark.slow
@pytest.mark.usefixtures("left_to_torch")
def test_renewed_searcher_takes_the_new_encoder(
    library: Path,
    pictures: Path,
    tmp_path: Path,
):
    at = f"file:{tmp_path / 'at'}"
    tiny = [
        f"--set={s}"
        for s in ("visual_width=16", "joint_width=16", "feedforward=16", "heads=2", "text_layers=1")
    ]
    trained = ("--set=epochs=1", "--set=batch_size=8", "--set=seed=5", "--set=held_out=8", *tiny)
    assert (
        boc(
            f"train {library}/regions.h5 -o {tmp_path}/other",
            *trained,
        ).exit_code
        == 0
    )
    for name in (None, f"tern:{library / 'model'}"):
        build_index(
            "x",
            pictures,
            encoder=f"tern:{library / 'model'}",
            at=at,
            replace=True,
        )
        searcher = Searcher.open(
            "x",
            at,
            encoder=name,
            device="cpu",
        )
        before = searcher.encoder.identity.digest
        build_index(
            "x",
            pictures,
            encoder=f"tern:{tmp_path / 'other'}",
            at=at,
            replace=True,
        )
        renewed = searcher.renew()
        assert renewed.encoder.identity.digest != before
        assert renewed.search("a red box", k=3)
        build_index(
            "x",
            pictures,
            encoder=f"tern:{library / 'model'}",
            at=at,
            replace=True,
        )
        assert renewed.renew().encoder.identity.digest == before


def test_contents_digest_covers_vectors(library: Path, tmp_path: Path):
    shutil.copy(library / "photos.h5", tmp_path / "f.h5")
    with FeatureFile(library / "photos.h5") as one, FeatureFile(tmp_path / "f.h5") as other:
        assert one.contents(sets=True) == other.contents(sets=True) != one.contents(sets=False)
    for name in (
        "image/dense/vectors",
        "text/dense/vectors",
        "image/ragged/concepts",
        "text/ragged/concepts",
    ):
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file[name][-1] = np.float16(0.25)
        with FeatureFile(library / "photos.h5") as one, FeatureFile(tmp_path / "f.h5") as other:
            assert one.contents(sets=True) != other.contents(sets=True)
            assert ("ragged" not in name) <= (
                one.contents(sets=False) != other.contents(sets=False)
            )
        shutil.copy(library / "photos.h5", tmp_path / "f.h5")
