"""Dual encoders of the transformers library: against the library itself, on tiny models of random
weights."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from boc import plugins
from boc.errors import EncoderError, ImageError
from boc.types import ImageRef, Runtime
from encoders.clip import ClipEncoder
from tests.helpers import Bomb, refuse_connections

Folders = Callable[[str], Path]
TEXTS = [
    "a red box at the left",
    "box",
    "",
    " ",
    "?!",
    "\U0001f408 日本語",
    "A RED BOX, reddish boxes",
    "word" * 200,
]
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
PICTURE = {"image_size": 32, "patch_size": 8}


def clip_tokenizer(folder: Path) -> dict[str, Any]:
    """Bytes and a few merges, in the files that CLIP has."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["b o", "bo x</w>", "r e", "re d</w>"]
    pieces = [
        *letters,
        *(f"{letter}</w>" for letter in letters),
        *(merge.replace(" ", "") for merge in merges),
    ]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    transformers.CLIPTokenizerFast(*files, model_max_length=128).save_pretrained(folder)
    end = vocabulary["<|endoftext|>"]
    ids = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    return {"vocab_size": len(vocabulary), "max_position_embeddings": 128} | ids


def word_pieces(folder: Path) -> dict[str, Any]:
    """Letters and a few words, as BERT has them."""
    letters = "abcdefghijklmnopqrstuvwxyz?!:,"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *letters,
        *(f"##{letter}" for letter in letters),
        "red",
        "box",
        "##es",
    ]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=10**30,
        **names,
    )
    fast.save_pretrained(folder)
    return {"vocab_size": len(vocabulary), "max_position_embeddings": 24, "pad_token_id": 0}


def unigram(folder: Path) -> dict[str, Any]:
    """Letters and a few words, in the manner of sentencepiece; no mask, and texts of 12 ids, as
    SigLIP has them."""
    scores = {"<unk>": 0.0, "</s>": 0.0, "▁": -4.0, "▁red": -1.0, "▁box": -1.0, "es": -2.0}
    pieces = list((scores | dict.fromkeys("abcdefghijklmnopqrstuvwxyz?!:,", -9.0)).items())
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>",
        special_tokens=[("</s>", 1)],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=12,
        unk_token="<unk>",
        pad_token="</s>",
        eos_token="</s>",
        model_input_names=["input_ids"],
    ).save_pretrained(folder)
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    return {"vocab_size": len(pieces), "max_position_embeddings": 12} | ids


def save(
    folder: Path,
    config: Any,
    kind: str,
    processor: Any,
) -> None:
    """A network of random weights, and how it wants its pictures."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        # The initial ones are so small that not everything matters.
        for tensor in model.parameters():
            tensor.add_(0.2 * torch.randn(tensor.shape))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def pillow(name: str, **settings: Any) -> Any:
    """The image processor of that name which works with Pillow alone."""
    found = getattr(
        transformers,
        f"{name}Pil",
        None,
    ) or getattr(transformers, name)
    return found(**settings)


def crop(**settings: Any) -> Any:
    sides = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return pillow("CLIPImageProcessor", **sides | settings)


def square(name: str = "SiglipImageProcessor", **settings: Any) -> Any:
    return pillow(name, size={"height": 32, "width": 32}, **settings)


def nested(config: Any, text: dict[str, Any], vision: dict[str, Any], **more: Any) -> Any:
    return config(
        text_config=SIZES | text,
        vision_config=SIZES | PICTURE | vision,
        **more,
    )


def tiny_clip(folder: Path, kind: str = "CLIP", **text: Any) -> None:
    """Also those that are built alike."""
    config = getattr(transformers, f"{kind}Config")
    texts = clip_tokenizer(folder) | text
    save(
        folder,
        nested(config, texts, {}, projection_dim=12),
        f"{kind}Model",
        crop(),
    )


def tiny_siglip(folder: Path) -> None:
    texts = unigram(folder) | {"projection_size": 16}
    save(
        folder,
        nested(transformers.SiglipConfig, texts, {}),
        "SiglipModel",
        square(),
    )


def tiny_siglip2(folder: Path) -> None:
    texts = unigram(folder) | {"projection_size": 16}
    config = transformers.Siglip2Config(
        text_config=SIZES | texts,
        vision_config=SIZES | {"num_patches": 16, "patch_size": 8},
    )
    processor = pillow(
        "Siglip2ImageProcessor",
        patch_size=8,
        max_num_patches=16,
    )
    save(folder, config, "Siglip2Model", processor)


def tiny_chinese(folder: Path) -> None:
    config = nested(
        transformers.ChineseCLIPConfig,
        word_pieces(folder),
        {},
        projection_dim=12,
    )
    save(folder, config, "ChineseCLIPModel", crop())


def tiny_alt(folder: Path) -> None:
    """Its RoBERTa counts positions from 1 on."""
    sizes = {"project_dim": 10, "type_vocab_size": 1, "max_position_embeddings": 514}
    texts = word_pieces(folder) | sizes
    config = nested(
        transformers.AltCLIPConfig,
        texts,
        {},
        projection_dim=12,
    )
    save(folder, config, "AltCLIPModel", crop())


def tiny_pair(folder: Path) -> None:
    """A ViT and a BERT, whose poolers go before the projections."""
    vision = transformers.ViTConfig(**SIZES, **PICTURE)
    text = transformers.BertConfig(**SIZES, **word_pieces(folder))
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        vision,
        text,
        projection_dim=12,
    )
    save(
        folder,
        config,
        "VisionTextDualEncoderModel",
        square("ViTImageProcessor"),
    )


def tiny_align(folder: Path) -> None:
    """Pictures through an EfficientNet: the 8 x 8 cells of its last map."""
    vision = {
        "in_channels": [32, 16],
        "out_channels": [16, 16],
        "hidden_dim": 16,
        "kernel_sizes": [3, 3],
        "strides": [2, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
        "image_size": 64,
        "width_coefficient": 1.0,
        "depth_coefficient": 0.2,
        "depthwise_padding": [],
    }
    config = transformers.AlignConfig(
        text_config=SIZES | word_pieces(folder),
        vision_config=vision,
        projection_dim=16,
    )
    processor = pillow("EfficientNetImageProcessor", size={"height": 64, "width": 64})
    save(folder, config, "AlignModel", processor)


KINDS: dict[str, Callable[[Path], None]] = {
    "clip": tiny_clip,
    "clip of before, whose end is the largest id": lambda folder: tiny_clip(folder, eos_token_id=2),
    "clipseg": lambda folder: tiny_clip(folder, "CLIPSeg"),
    "siglip": tiny_siglip,
    **({"siglip2": tiny_siglip2} if hasattr(transformers, "Siglip2Model") else {}),
    "chinese_clip": tiny_chinese,
    "altclip": tiny_alt,
    "align": tiny_align,
    "vision-text-dual-encoder": tiny_pair,
} | (
    {"metaclip_2": lambda folder: tiny_clip(folder, "MetaClip2")}
    if hasattr(transformers, "MetaClip2Model")
    else {}
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[ImageRef]:
    """Wide, high, square, tiny; one of a single row, whose height could pass for a number of
    channels."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for i, (width, height) in enumerate(
        [
            (90, 50),
            (33, 80),
            (32, 32),
            (5, 3),
            (7, 1),
        ],
    ):
        pixels = random.integers(
            0,
            256,
            (height, width, 3),
            dtype=np.uint8,
        )
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return [ImageRef(path.name, path) for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Folders:
    """Folders of the tiny models, each made when first asked for."""
    home = tmp_path_factory.mktemp("models")

    def folder(kind):
        place = home / kind.replace(" ", "-")
        if not place.exists():
            KINDS[kind](place)
        return place

    return folder


@pytest.fixture
def folder(
    folders: Folders,
    tmp_path: Path,
) -> Path:
    """A copy of the tiny CLIP, to be changed."""
    return shutil.copytree(folders("clip"), tmp_path / "model")


@pytest.fixture
def offline(monkeypatch) -> None:
    refuse_connections(monkeypatch)


def open_encoder(folder: Path, **runtime: Any) -> ClipEncoder:
    encoder = plugins.encoder(f"clip:{folder}", runtime=Runtime("cpu", **runtime))
    assert isinstance(encoder, ClipEncoder)
    return encoder


def library_inputs(
    folder: Path,
    pictures: list[ImageRef],
) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """The network, and what it reads of ``pictures`` and ``TEXTS``, without a line of ours."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    long = "max_length" if "siglip" in model.config.model_type else True
    limit = {"siglip": 12, "siglip2": 12, "altclip": 512, "align": 24, "chinese_clip": 24}
    most = limit.get(model.config.model_type, 24 if "dual" in model.config.model_type else 128)
    texts = tokenizer(
        TEXTS,
        padding=long,
        truncation=True,
        max_length=most,
        return_tensors="pt",
    )
    images = [Image.open(each.path) for each in pictures]
    return (
        model,
        dict(
            processor(
                images,
                return_tensors="pt",
                input_data_format="channels_last",
            ),
        ),
        dict(texts),
    )


def unit(found: Any) -> Any:
    vectors = found if isinstance(found, Tensor) else found.pooler_output
    return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_vectors_are_those_of_the_library(
    kind: str,
    folders: Folders,
    pictures: list[ImageRef],
    offline: None,
):
    """Whatever the batches."""
    encoder = open_encoder(folders(kind))
    model, images, texts = library_inputs(folders(kind), pictures)
    prepared = [encoder.prepare(each) for each in pictures]
    seen = encoder.encode_images(prepared)
    said = encoder.encode_texts(TEXTS)
    assert np.abs(seen.vectors - unit(model.get_image_features(**images))).max() <= 1e-6
    assert np.abs(said.vectors - unit(model.get_text_features(**texts))).max() <= 1e-6
    assert encoder.identity.dim == seen.vectors.shape[1] == said.vectors.shape[1]
    for embeddings in (seen, said):
        assert embeddings.vectors.dtype == np.float32
        assert np.abs(np.linalg.norm(embeddings.vectors, axis=1) - 1).max() <= 1e-6
        assert embeddings.concepts is embeddings.words is embeddings.boxes is None
    assert len(encoder.encode_images([])) == len(encoder.encode_texts([])) == 0
    for encode, inputs, together in (
        (encoder.encode_images, prepared, seen),
        (encoder.encode_texts, TEXTS, said),
    ):
        backwards = encode(inputs[::-1])
        for i, each in enumerate(inputs):
            for rows, row in ((encode([each]), 0), (backwards, len(inputs) - 1 - i)):
                assert np.abs(rows.vectors[row] - together.vectors[i]).max() <= 1e-5


def test_siglip_tokenizer_settings(
    folders: Folders,
    tmp_path: Path,
):
    """Its successor is published with the tokenizer of another network, which does neither."""
    folder = tmp_path / "model"
    shutil.copytree(folders("siglip"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer["normalizer"] == {"type": "Lowercase"}
    change_json(folder / "tokenizer.json", "normalizer", None)
    names = ["input_ids", "attention_mask"]
    change_json(folder / "tokenizer_config.json", "model_input_names", names)
    expected = open_encoder(folders("siglip")).encode_texts(TEXTS)
    embeddings = open_encoder(folder).encode_texts(TEXTS)
    assert np.array_equal(embeddings.vectors, expected.vectors)


@pytest.mark.slow
def test_a_preparer_goes_to_other_processes(
    folders: Folders,
    pictures: list[ImageRef],
):
    for kind in KINDS:
        preparer = open_encoder(folders(kind)).preparer
        packed = pickle.dumps(preparer)
        assert len(packed) < 10_000  # without the network
        for picture in pictures:
            one = preparer(picture)
            prepared = pickle.loads(packed)(picture)  # noqa: S301
            other = pickle.loads(pickle.dumps(prepared))  # noqa: S301
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[name], other[name]) for name in one)
            assert one["pixel_values"].dtype == np.float32


def test_thin_pictures_are_refused(
    folders: Folders,
    tmp_path: Path,
):
    Image.new("RGB", (3001, 30)).save(tmp_path / "b.png")
    with pytest.raises(ImageError, match=r"b\.png"):
        open_encoder(folders("clip")).prepare(ImageRef("b.png", tmp_path / "b.png"))


def test_digest_of_a_model(
    folders: Folders,
    folder: Path,
):
    before = open_encoder(folders("clip")).identity
    (folder / "README.md").write_text("about it")
    same = open_encoder(folder).identity
    assert same == replace(before, spec=f"clip:{folder.resolve()}")
    changes = [
        lambda: change_json(
            folder / "preprocessor_config.json",
            "image_mean",
            [0.5, 0.5, 0.5],
        ),
        lambda: change_json(folder / "config.json", "logit_scale_init_value", 1.0),
        lambda: change_weights(folder / "model.safetensors"),
    ]
    digests = [same.digest]
    for change in changes:
        change()
        digests.append(open_encoder(folder).identity.digest)
    assert len(set(digests)) == len(digests)


def change_json(
    path: Path,
    name: str,
    value: Any,
) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


def change_weights(
    path: Path,
    leave_out: str = "",
) -> None:
    tensors = load_file(path)
    tensors["visual_projection.weight"].view(-1)[0] += 1e-3
    tensors.pop(leave_out, None)
    save_file(tensors, path, {"format": "pt"})


def test_sharded_weights(
    folders: Folders,
    folder: Path,
):
    transformers.AutoModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    parts = sorted(folder.glob("model-*.safetensors"))
    assert len(parts) > 1
    one = open_encoder(folders("clip"))
    other = open_encoder(folder)
    assert np.array_equal(one.encode_texts(TEXTS).vectors, other.encode_texts(TEXTS).vectors)
    part = next(part for part in parts if "visual_projection.weight" in load_file(part))
    change_weights(part)
    assert open_encoder(folder).identity.digest != other.identity.digest


def test_a_name_is_looked_for_on_this_machine_only(
    folders: Folders,
    tmp_path: Path,
    monkeypatch,
    offline: None,
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        EncoderError,
        match="download it with boc model get someone/tiny-clip, then",
    ):
        plugins.encoder("clip:someone/tiny-clip", "cpu")
    place = tmp_path / "models--someone--tiny-clip"
    shutil.copytree(folders("clip"), place / "snapshots" / "0123")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    encoder = plugins.encoder("clip:someone/tiny-clip", "cpu")
    assert encoder.identity.spec == "clip:someone/tiny-clip"
    assert encoder.identity.digest == open_encoder(folders("clip")).identity.digest
    for name in ("no/such/folder", "../elsewhere", str(tmp_path / "nowhere")):
        with pytest.raises(EncoderError, match="folder does not exist"):
            plugins.encoder(f"clip:{name}", "cpu")


def test_torch_files_are_read_for_weights_only(
    folders: Folders,
    folder: Path,
    tmp_path: Path,
    offline: None,
):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    one = open_encoder(folders("clip"))
    other = open_encoder(folder)
    assert np.array_equal(one.encode_texts(TEXTS).vectors, other.encode_texts(TEXTS).vectors)
    assert one.identity.digest != other.identity.digest
    torch.save(
        {**weights, "logit_scale": Bomb(os.mkdir, str(tmp_path / "harm"))},
        folder / "pytorch_model.bin",
    )
    with pytest.raises(EncoderError, match="not a usable dual encoder") as caught:
        open_encoder(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "harm").exists()


def test_code_in_a_folder_is_not_run(
    folder: Path,
    tmp_path: Path,
):
    classes = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}
    change_json(folder / "config.json", "model_type", "of_my_own")
    change_json(folder / "config.json", "auto_map", classes)
    (folder / "mine.py").write_text(f"import os; os.mkdir({str(tmp_path / 'harm')!r})")
    with pytest.raises(EncoderError, match="not a usable dual encoder"):
        open_encoder(folder)
    assert not (tmp_path / "harm").exists()


def damage(
    name: str,
    text: str | None,
) -> Callable[[Path], object]:
    return lambda folder: (
        (folder / name).unlink() if text is None else (folder / name).write_text(text)
    )


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (damage("config.json", None), r"config\.json"),
    "no weights": (damage("model.safetensors", None), "no weights"),
    "damaged weights": (damage("model.safetensors", "none"), "cannot|not a usable"),
    "a weight left out": (
        lambda folder: change_weights(folder / "model.safetensors", "text_projection.weight"),
        r"1 weights are missing, such as text_projection\.weight",
    ),
    "no image processor": (damage("preprocessor_config.json", None), "not a usable"),
    "damaged configuration": (damage("config.json", "{"), "not a usable"),
}


@pytest.mark.parametrize(("harm", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_folder_is_named_in_one_line(
    harm: Callable[[Path], object],
    message: str,
    folder: Path,
):
    harm(folder)
    with pytest.raises(EncoderError, match=message) as caught:
        open_encoder(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_other_model_type_is_refused(tmp_path: Path):
    word_pieces(tmp_path)
    transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=70)).save_pretrained(
        tmp_path,
    )
    with pytest.raises(EncoderError, match=r"type 'bert'.*CLIP, SigLIP"):
        open_encoder(tmp_path)


@pytest.mark.parametrize("kind", ["clip", "siglip", "chinese_clip"])
def test_words_of_the_vocabulary_are_one_piece(
    kind: str,
    folders: Folders,
):
    encoder = open_encoder(folders(kind))
    # Other bytes stand for parts of letters.
    known = sorted(word for word in encoder.vocabulary if word.isascii())
    assert known
    ids = [each.special_tokens_mask.count(0) for each in encoder.tokens.encode(known)]
    assert ids == [1] * len(known)
