"""Small files of exactly the layout and the names that the authors published, with random weights
and features.

- ``dataset_NAME.json``: Karpathy and Fei-Fei, CVPR 2015, caption_datasets.zip
- ``features_36/cocobu_att/ID.npz`` (``feat``), ``cocobu_box/ID.npy``; ``bu_att``, ``bu_box`` by
  place: TERN, TERAN: README and data.py
- ``relevances/NAME-test-spice.npy``, float32 without a header: TERN, TERAN: README; TERAN:
  evaluate_utils/dcg.py
- ``model_best_ndcg.pth``, ``teran/*.pth``: ``model``, ``config``, ``epoch``: TERN, TERAN: README,
  test.py and configs
- ``NAME_precomp/SPLIT_ims.npy``, ``SPLIT_caps.txt``: SCAN: README
- ``pretrain_model/*/model_*.pth.tar``: two sets of tensors, ``opt``: VSRN: README and
  evaluation_models.py
- ``vocab/NAME_precomp_vocab.pkl``, a pickle of Python 2: VSRN: repository

The authors of TERN and TERAN read COCO's splits from ``annotations/coco_SPLIT_ids.npy``, which list
the first five sentences of each picture of Karpathy's file.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.random import default_rng
from PIL import Image
from transformers import BertConfig, BertModel

from tests.encoders.conversion.test_convert import (
    JOINT,
    PIECES,
    REGION,
    WORDS,
    tern_file,
    vsrn_file,
)
from tests.encoders.networks.test_vsrn import python2_pickle

SPLITS = ("train",) * 8 + ("restval",) * 4 + ("val",) * 4 + ("test",) * 12
REGIONS = 5
SIZE = (24, 16)
NOUNS = (
    "dog cat horse boat train bird ball tree house beach river car bike chair table snow street "
    "child bottle bench"
)
MORE = "red blue green man woman water grass road small big white"
ENGLISH = f"the a of on {NOUNS} {MORE}".split()
SENTENCES = [" ".join(default_rng(i).choice(ENGLISH, 5)) + " ." for i in range(200)]


def write_coco(data: Path) -> None:
    """Write pictures, features, captions and SPICE of COCO; the ids are those of val2014."""
    numbers = [391895 + 7 * i for i in range(len(SPLITS))]
    write_pictures(
        data / "coco",
        [f"COCO_val2014_{number:012d}.jpg" for number in numbers],
        "val2014",
        "dataset_coco.json",
        "cocobu",
        numbers,
    )


def write_f30k(data: Path) -> None:
    """Write the same of Flickr30k, with features by the place of a picture in the list."""
    names = [f"{1000092795 + 31 * i}.jpg" for i in range(len(SPLITS))]
    write_pictures(
        data / "f30k",
        names,
        "flickr30k-images",
        "dataset_flickr30k.json",
        "bu",
        range(len(names)),
    )


def write_pictures(
    home: Path,
    names: list[str],
    folder: str,
    splits: str,
    prefix: str,
    features: Sequence[int],
) -> None:
    """Write pictures, Karpathy's file, regions by number, and SPICE. The first picture has six
    sentences. Splits of Flickr30k have no restval, nor the folder of a picture."""
    rng = default_rng(0)
    images = []
    for part in (
        folder,
        f"features_36/{prefix}_att",
        f"features_36/{prefix}_box",
        "relevances",
    ):
        (home / part).mkdir(parents=True)
    for number, (name, split, feature) in enumerate(zip(names, SPLITS, features, strict=True)):
        Image.new("RGB", SIZE).save(home / folder / name)
        raws = SENTENCES[5 * number : 5 * number + (5 if number else 6)]
        own = (
            {"split": split, "filepath": folder}
            if prefix == "cocobu"
            else {"split": split.replace("restval", "train")}
        )
        images.append(
            {
                "filename": name,
                "sentences": [{"raw": raw, "tokens": raw.split()} for raw in raws],
                **own,
            },
        )
        regions = home / "features_36"
        np.savez(
            regions / f"{prefix}_att" / f"{feature}.npz",
            feat=np.float32(rng.random((REGIONS, REGION))),
        )
        corners = np.sort(
            rng.random((REGIONS, 2, 2)),
            axis=1,
        ).reshape(
            REGIONS,
            4,
        ) * (SIZE * 2)
        np.save(
            regions / f"{prefix}_box" / f"{feature}.npy",
            np.float32(corners),
        )
    (home / splits).write_text(
        json.dumps(
            {
                "images": images,
                "dataset": Path(splits).stem,
            },
        ),
    )
    count = SPLITS.count("test")
    rng.random(
        (5 * count, count),
        dtype=np.float32,
    ).tofile(
        home / "relevances" / f"{home.name}-test-spice.npy",
    )


def write_bert(data: Path) -> None:
    """Write a folder of a BERT with its vocabulary, whose length is that of the checkpoints."""
    pieces = [*["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], *ENGLISH][:PIECES]
    sizes = {
        "hidden_size": 24,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 32,
    }
    BertModel(
        BertConfig(
            vocab_size=PIECES,
            num_hidden_layers=1,
            **sizes,
        ),
    ).save_pretrained(
        data / "bert",
    )
    assert len(pieces) == PIECES
    (data / "bert" / "vocab.txt").write_text("\n".join(pieces) + "\n")


def write_tern(data: Path) -> None:
    torch.save(
        tern_file(),
        data / "model_best_ndcg.pth",
    )


def write_teran(data: Path) -> None:
    (data / "teran").mkdir()
    for name in ("coco", "f30k"):
        torch.save(
            tern_file(
                2,
                training={"alignment_mode": "MrSw"},
            ),
            data / "teran" / f"{name}.pth",
        )


def write_vsrn(data: Path) -> None:
    """Write arrays of SCAN, vocabularies, and two checkpoints of each data set; Flickr30k's have
    their own layer."""
    words = [
        "<pad>",
        "<start>",
        "<end>",
        "<unk>",
        *ENGLISH,
    ][:WORDS]
    rng = default_rng(3)
    for name, split, folder, model in (
        ("coco", "testall", "coco", "coco"),
        ("f30k", "test", "flickr", "fliker"),
    ):
        for place in (
            f"{name}_precomp",
            f"pretrain_model/{folder}",
            "vocab",
        ):
            (data / place).mkdir(
                parents=True,
                exist_ok=True,
            )
        count = SPLITS.count("test")
        np.save(
            data / f"{name}_precomp" / f"{split}_ims.npy",
            rng.random(
                (count, REGIONS, REGION),
                dtype=np.float32,
            ),
        )
        (data / f"{name}_precomp" / f"{split}_caps.txt").write_text(
            "\n".join(SENTENCES[: 5 * count]) + "\n",
        )
        (data / "vocab" / f"{name}_precomp_vocab.pkl").write_bytes(python2_pickle(words))
        for number in (1, 2):
            file = vsrn_file()
            file["opt"].data_name = f"{name}_precomp"
            for tensor in file["model"][1].values():
                tensor += 0.1 * number
            if name == "f30k":
                file["model"][0] |= {
                    f"bn.{key}": t for key, t in torch.nn.BatchNorm1d(JOINT).state_dict().items()
                }
            torch.save(
                file,
                data / "pretrain_model" / folder / f"model_{model}_{number}.pth.tar",
            )
