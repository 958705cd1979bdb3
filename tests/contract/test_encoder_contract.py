"""What every encoder must do. A new one is one more entry of ``ENCODERS``."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from boc import plugins
from boc.errors import EncoderError, ImageError
from boc.plugins import Encoder
from boc.types import Embeddings, ImageRef, Regions, Runtime
from boc.vectors import Floats
from tests.encoders.test_clip import tiny_clip
from tests.helpers import DEMO_MODEL, leave_to_torch, run
from tests.once import once


def train(library: Path, folder: Path, kind: str, *settings: str) -> None:
    """Train a small network of ``kind`` for a moment on the library of ``conftest``."""
    sizes = {"vsrn": ("width=16",)}.get(
        kind[:4],
        ("visual_width=16", "joint_width=16", "feedforward=16", "heads=2"),
    )
    sets = [
        f"--set={s}" for s in (*sizes, f"kind={kind}", "text_layers=1", "held_out=8", *settings)
    ]
    recipe = (
        "--recipe",
        "photos-vsrn" if kind[:4] == "vsrn" else "small",
        "--set=epochs=1",
        "--set=batch_size=8",
    )
    with pytest.MonkeyPatch.context() as patch:
        leave_to_torch(patch)
        run(
            f"train {library}/regions.h5 -o {folder}",
            *recipe,
            *sets,
        )


ENCODERS: dict[str, Callable[[Path, Path], object]] = {
    "tern": lambda library, folder: shutil.copytree(library / "model", folder),
    "teran": lambda library, folder: train(
        library,
        folder,
        "teran",
        "objective=alignment",
    ),
    "teran in ONNX": lambda _, folder: shutil.copytree(DEMO_MODEL, folder),
    "vsrn": lambda library, folder: train(
        library,
        folder,
        "vsrn",
        "text=words",
    ),
    "vsrnpp": lambda library, folder: train(
        library,
        folder,
        "vsrnpp",
        "text=small",
    ),
    "clip": lambda _, folder: tiny_clip(folder),
}
"""Kind of an encoder, and where it runs if not in torch -> what makes a small one in a folder, from
the library of ``conftest``."""

COUNTS = (0, 1, 65)  # batches have 64
TEXTS = [
    "a red box at the left",
    "box",
    "top: something blue",
    "",
    " ",
    "\u00a0",
    "?!",
    "\U0001f408 日本語",
    "e\u0301é",
    "A RED BOX",
    "zzz\tqqq\nxxx",
    "\u200b",
    "word" * 200,
]


SLOW = [
    pytest.param(kind, marks=pytest.mark.slow) if kind in ("teran", "vsrn") else kind
    for kind in ENCODERS
]
"""What takes seconds to train, and has the network of another for the most part, is left out of
make check."""


@pytest.fixture(scope="module", params=SLOW)
def place(
    request,
    library: Path,
    tmp_path_factory,
) -> tuple[str, Path]:
    """Kind and folder."""
    name = request.param

    def make(folder):
        ENCODERS[name](library, folder)

    return name.partition(" ")[0], once(tmp_path_factory, f"model-{name}", make)


@pytest.fixture(scope="module")
def encoder(place: tuple[str, Path]) -> Any:
    return plugins.encoder(f"{place[0]}:{place[1]}", "cpu")


@pytest.fixture(scope="module")
def pictures(encoder: Encoder, library: Path) -> list[Any]:
    """Prepared pictures."""
    paths = sorted((library / "images").iterdir())
    return [encoder.prepare(ImageRef(path.name, path)) for path in paths]


def alike(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and float(np.abs(one - other).max(initial=0)) <= 1e-5


def assert_sound(found: Embeddings, count: int, dim: int) -> None:
    assert len(found) == count
    assert found.vectors.dtype == np.float32
    assert found.vectors.shape == (count, dim)
    assert np.abs(np.linalg.norm(found.vectors, axis=1) - 1).max(initial=0) <= 1e-5
    if found.concepts is None:
        return
    assert len(found.concepts) == count
    assert found.concepts.values.dtype == np.float32
    assert found.concepts.values.shape[1] == dim
    assert np.isfinite(found.concepts.values).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_output_shapes_and_norms(encoder: Encoder, pictures: list[Any], count: int):
    images = encoder.encode_images([pictures[i % len(pictures)] for i in range(count)])
    texts = encoder.encode_texts([TEXTS[i % len(TEXTS)] for i in range(count)])
    assert (images.modality, texts.modality) == ("image", "text")
    for found in (images, texts):
        assert_sound(found, count, encoder.identity.dim)


@pytest.mark.slow
def test_batch_invariance(encoder: Encoder, pictures: list[Any]):
    for encode, inputs in ((encoder.encode_images, pictures), (encoder.encode_texts, TEXTS)):
        together = encode(inputs)
        backwards = encode(inputs[::-1])
        for i, each in enumerate(inputs):
            alone = encode([each])
            for found, row in ((alone, 0), (backwards, len(inputs) - 1 - i)):
                assert alike(found.vectors[row], together.vectors[i])
                if together.concepts is not None:
                    assert alike(found.concepts[row], together.concepts[i])


def test_a_picture_of_fewer_regions_is_not_disturbed_by_padding(
    encoder: Encoder,
    pictures: list[Any],
):
    """Also one without any region."""
    whole = pictures[0]
    if not isinstance(whole, Regions):
        pytest.skip("this encoder reads pixels")
    cut = [type(whole)(whole.features[:n], whole.boxes[:n]) for n in (0, 1, 7, len(whole))]
    together = encoder.encode_images(cut)
    assert_sound(together, 4, encoder.identity.dim)
    assert [len(together.concepts[i]) for i in range(4)] == [0, 1, 7, len(whole)]
    for i, each in enumerate(cut):
        assert alike(encoder.encode_images([each]).vectors[0], together.vectors[i])


def test_one_concept_per_region_and_word_piece(encoder: Any, pictures: list[Any]):
    images = encoder.encode_images(pictures)
    if images.concepts is None:
        pytest.skip("this encoder has no concepts")
    texts = encoder.encode_texts(TEXTS)
    assert [len(images.concepts[i]) for i in range(len(pictures))] == [
        len(each) for each in pictures
    ]
    assert [len(texts.concepts[i]) for i in range(len(TEXTS))] == [
        len(words) for words in texts.words
    ]
    # The sentence, or what a model with stop words knows by its letters.
    assert max(len(texts.concepts[i]) for i in (0, 2)) >= 5
    assert len(texts.concepts[TEXTS.index("")]) == 0


def test_a_text_that_is_too_long_is_cut(encoder: Encoder):
    embeddings = encoder.encode_texts(["red box " * 1000, "red box " * 3000, "red box"])
    assert_sound(embeddings, 3, encoder.identity.dim)
    if embeddings.concepts is not None:
        assert len(embeddings.concepts[0]) == len(embeddings.concepts[1]) > 100
    assert alike(embeddings.vectors[0], embeddings.vectors[1])
    assert not alike(embeddings.vectors[0], embeddings.vectors[2])


def test_capitals_do_not_matter_but_words_do(encoder: Encoder):
    small, capital, other = encoder.encode_texts(["a red box", "A RED Box", "a blue box"]).vectors
    assert alike(small, capital)
    assert not alike(small, other)


def test_unreadable_picture(encoder: Encoder, tmp_path: Path):
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(ImageError, match=r"a\.png"):
        encoder.prepare(ImageRef("a.png", tmp_path / "a.png"))


def test_a_folder_may_be_moved(
    place: tuple[str, Path],
    encoder: Encoder,
    pictures: list[Any],
    tmp_path: Path,
    monkeypatch,
):
    shutil.copytree(place[1], tmp_path / "else where" / "model")
    monkeypatch.chdir(tmp_path)
    moved = plugins.encoder(f"{place[0]}:else where/model", "cpu")
    assert moved.identity.digest == encoder.identity.digest
    assert moved.identity.dim == encoder.identity.dim
    assert moved.identity.spec == f"{place[0]}:{tmp_path.resolve() / 'else where' / 'model'}"
    assert np.array_equal(
        moved.encode_images(pictures).vectors,
        encoder.encode_images(pictures).vectors,
    )
    assert np.array_equal(moved.encode_texts(TEXTS).vectors, encoder.encode_texts(TEXTS).vectors)


def test_other_weights_have_another_digest(
    place: tuple[str, Path],
    encoder: Encoder,
    tmp_path: Path,
):
    shutil.copytree(place[1], tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    assert (
        plugins.encoder(f"{place[0]}:{tmp_path / 'model'}", "cpu").identity.digest
        == encoder.identity.digest
    )
    name = next(name for name, tensor in sorted(tensors.items()) if tensor.is_floating_point())
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, weights)
    assert (
        plugins.encoder(f"{place[0]}:{tmp_path / 'model'}", "cpu").identity.digest
        != encoder.identity.digest
    )


def test_a_device_that_is_not_there_is_refused(place: tuple[str, Path]):
    for device in ("tpu", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(EncoderError, match="device"):
            plugins.encoder(f"{place[0]}:{place[1]}", device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
)  # torch's own import
def test_a_gpu_gives_what_a_cpu_gives(
    place: tuple[str, Path],
    encoder: Encoder,
    pictures: list[Any],
):
    spec = f"{place[0]}:{place[1]}"
    exact = plugins.encoder(spec, runtime=Runtime("cuda"))
    rounded = plugins.encoder(spec, runtime=Runtime("cuda", "bfloat16"))
    for name, inputs in (("encode_images", pictures), ("encode_texts", TEXTS)):
        expected, found, rough = (getattr(each, name)(inputs) for each in (encoder, exact, rounded))
        assert np.abs(found.vectors - expected.vectors).max() <= 1e-4
        assert 0 < np.abs(rough.vectors - expected.vectors).max() <= 0.05
        if found.concepts is None:
            continue
        assert np.array_equal(found.concepts.offsets, expected.concepts.offsets)
        assert np.abs(found.concepts.values - expected.concepts.values).max() <= 1e-3
