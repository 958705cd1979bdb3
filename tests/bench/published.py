"""Small files of exactly the layout and the names that the authors published, with random weights and features.

| layout | described in |
|---|---|
| ``dataset_NAME.json`` | Karpathy and Fei-Fei, CVPR 2015, caption_datasets.zip |
| ``features_36/cocobu_att/ID.npz`` (``feat``), ``cocobu_box/ID.npy``; ``bu_att``, ``bu_box`` by place | TERN, TERAN: README and data.py |
| ``relevances/NAME-test-spice.npy``, float32 without a header | TERN, TERAN: README; TERAN: evaluate_utils/dcg.py |
| ``model_best_ndcg.pth``, ``teran/*.pth``: ``model``, ``config``, ``epoch`` | TERN, TERAN: README, test.py and configs |
| ``NAME_precomp/SPLIT_ims.npy``, ``SPLIT_caps.txt`` | SCAN: README |
| ``pretrain_model/*/model_*.pth.tar``: two sets of tensors, ``opt`` | VSRN: README and evaluation_models.py |
| ``vocab/NAME_precomp_vocab.pkl``: pickle of Python 2 | VSRN: repository |

The authors of TERN and TERAN read COCO's splits from ``annotations/coco_SPLIT_ids.npy``, which list the first five
sentences of each picture of Karpathy's file.
"""  # noqa: E501

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BertConfig, BertModel

from tests.encoders.conversion.test_convert import JOINT, PIECES, REGION, WORDS, tern_file, vsrn_file
from tests.encoders.networks.test_vsrn import python2_pickle

SPLITS = ("train",) * 8 + ("restval",) * 4 + ("val",) * 4 + ("test",) * 12
REGIONS, SIZE = 5, (24, 16)
ENGLISH = (
    "the", "a", "of", "on", "dog", "cat", "horse", "boat", "train", "bird", "ball", "tree", "house", "beach", "river",
    "car", "bike", "chair", "table", "snow", "street", "child", "bottle", "bench", "red", "blue", "green", "man",
    "woman", "water", "grass", "road", "small", "big", "white",
)  # fmt: skip
SENTENCES = [" ".join(np.random.default_rng(i).choice(ENGLISH, 5)) + " ." for i in range(200)]


def karpathy(path: Path, names: list[str], folder: str = "") -> None:
    """A Karpathy file; the first picture has six sentences. Splits of Flickr30k have no restval."""
    images: list[dict[str, Any]] = []
    for number, (name, split) in enumerate(zip(names, SPLITS, strict=True)):
        raws = SENTENCES[5 * number : 5 * number + (5 if number else 6)]
        part = split if folder else split.replace("restval", "train")
        image = {"filename": name, "split": part, "sentences": [{"raw": raw, "tokens": raw.split()} for raw in raws]}
        images.append({**image, "filepath": folder} if folder else image)
    path.write_text(json.dumps({"images": images, "dataset": path.stem}))


def features(folder: Path, prefix: str, ids: list[str], rng: np.random.Generator) -> None:
    for part in ("att", "box"):
        (folder / f"{prefix}_{part}").mkdir(parents=True)
    for name in ids:
        np.savez(folder / f"{prefix}_att" / f"{name}.npz", feat=np.float32(rng.random((REGIONS, REGION))))
        corners = np.sort(rng.random((REGIONS, 2, 2)), axis=1).reshape(REGIONS, 4) * (SIZE * 2)
        np.save(folder / f"{prefix}_box" / f"{name}.npy", np.float32(corners))


def write_coco(data: Path) -> None:
    """Pictures, features, captions and SPICE of COCO; the ids are those of val2014."""
    rng, numbers = np.random.default_rng(0), [391895 + 7 * i for i in range(len(SPLITS))]
    names = [f"COCO_val2014_{number:012d}.jpg" for number in numbers]
    (data / "coco" / "val2014").mkdir(parents=True)
    for name in names:
        Image.new("RGB", SIZE).save(data / "coco" / "val2014" / name)
    karpathy(data / "coco" / "dataset_coco.json", names, "val2014")
    features(data / "coco" / "features_36", "cocobu", [str(number) for number in numbers], rng)
    relevance(data / "coco" / "relevances" / "coco-test-spice.npy")


def write_f30k(data: Path) -> None:
    """The same of Flickr30k, with features by the place of a picture in the list."""
    rng, names = np.random.default_rng(1), [f"{1000092795 + 31 * i}.jpg" for i in range(len(SPLITS))]
    (data / "f30k" / "flickr30k-images").mkdir(parents=True)
    for name in names:
        Image.new("RGB", SIZE).save(data / "f30k" / "flickr30k-images" / name)
    karpathy(data / "f30k" / "dataset_flickr30k.json", names)
    features(data / "f30k" / "features_36", "bu", [str(place) for place in range(len(names))], rng)
    relevance(data / "f30k" / "relevances" / "f30k-test-spice.npy")


def relevance(path: Path) -> None:
    path.parent.mkdir()
    count = SPLITS.count("test")
    np.random.default_rng(2).random((5 * count, count), dtype=np.float32).tofile(path)


def write_bert(data: Path) -> None:
    """A folder of a BERT with its vocabulary, whose length is that of the checkpoints."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *ENGLISH][:PIECES]
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32}
    BertModel(BertConfig(vocab_size=PIECES, num_hidden_layers=1, **sizes)).save_pretrained(data / "bert")
    assert len(pieces) == PIECES
    (data / "bert" / "vocab.txt").write_text("\n".join(pieces) + "\n")


def write_tern(data: Path) -> None:
    torch.save(tern_file(), data / "model_best_ndcg.pth")


def write_teran(data: Path) -> None:
    (data / "teran").mkdir()
    for name in ("coco", "f30k"):
        torch.save(tern_file(2, training={"alignment_mode": "MrSw"}), data / "teran" / f"{name}.pth")


def write_vsrn(data: Path) -> None:
    """Arrays of SCAN, vocabularies, and two checkpoints of each data set; those of Flickr30k have their own layer."""
    words = ["<pad>", "<start>", "<end>", "<unk>", *ENGLISH][:WORDS]
    rng = np.random.default_rng(3)
    for name, split, folder, model in (("coco", "testall", "coco", "coco"), ("f30k", "test", "flickr", "fliker")):
        for place in (f"{name}_precomp", f"pretrain_model/{folder}", "vocab"):
            (data / place).mkdir(parents=True, exist_ok=True)
        count = SPLITS.count("test")
        np.save(data / f"{name}_precomp" / f"{split}_ims.npy", rng.random((count, REGIONS, REGION), dtype=np.float32))
        (data / f"{name}_precomp" / f"{split}_caps.txt").write_text("\n".join(SENTENCES[: 5 * count]) + "\n")
        (data / "vocab" / f"{name}_precomp_vocab.pkl").write_bytes(python2_pickle(words))
        for number in (1, 2):
            file = vsrn_file()
            file["opt"].data_name = f"{name}_precomp"
            for tensor in file["model"][1].values():
                tensor += 0.1 * number
            if name == "f30k":
                file["model"][0] |= {f"bn.{key}": t for key, t in torch.nn.BatchNorm1d(JOINT).state_dict().items()}
            torch.save(file, data / "pretrain_model" / folder / f"model_{model}_{number}.pth.tar")
