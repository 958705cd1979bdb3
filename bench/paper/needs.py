"""What ``reproduce.py`` needs of the files that the authors of the papers published, and what of it is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from boc.atomic_files import sha256


@dataclass(frozen=True)
class Need:
    """A file or folder of DATA: its ``path`` there, what it is, its size, computed from published shapes, and what its
    content is if it is the published one, as ``content`` tells it."""

    path: str
    what: str
    size: str = ""
    published: str = ""


def content(path: Path) -> str:
    """The shape of an array, the pictures of Karpathy's file, the digest of a vocabulary, the bytes of a matrix without
    a header; empty for another file, and for one that cannot be read, which its stage names."""
    try:
        if path.name == "vocab.txt":
            return f"sha256 {sha256(path)}"
        if path.name.endswith("-spice.npy"):
            return f"{path.stat().st_size:,} bytes"
        if path.suffix == ".npy":
            return "x".join(map(str, np.load(path, mmap_mode="r", allow_pickle=False).shape))
        if path.suffix == ".json":
            return f"{len(json.loads(path.read_text(encoding='utf-8'))['images']):,} pictures"
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return ""


COCO = (
    Need("coco/dataset_coco.json", "Karpathy's splits of COCO (caption_datasets.zip)", "144 MB", "123,287 pictures"),
    Need("coco/val2014", "pictures of COCO val2014, whose sizes the boxes need; to train, coco/train2014 too"),
    Need("coco/features_36", "TERN's and TERAN's archives features_36_*.tgz: cocobu_att/ID.npz, cocobu_box/ID.npy "
                             "(or bu_att, bu_box)", "0.3 MB per picture"),
)  # fmt: skip
F30K = (
    Need(
        "f30k/dataset_flickr30k.json",
        "Karpathy's splits of Flickr30k (caption_datasets.zip)",
        "37 MB",
        "31,014 pictures",
    ),
    Need("f30k/flickr30k-images", "pictures of Flickr30k"),
    Need("f30k/features_36", "TERAN's archive of Flickr30k: bu_att/INDEX.npz, bu_box/INDEX.npy", "0.3 MB per picture"),
)
RELEVANCE = (
    Need("coco/relevances/coco-test-spice.npy", "SPICE of COCO's test set, for that column only; float32, no header",
         "500 MB", "500,000,000 bytes"),
)  # fmt: skip
VOCABULARY = Need("bert/vocab.txt", "word-pieces of bert-base-uncased", "30,522 lines",
                  "sha256 07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3")  # fmt: skip
TERN = Need("model_best_ndcg.pth", "from TERN_model_best_ndcg.pth.tgz", "0.8 GB and more")
NEEDS: dict[str, tuple[Need, ...]] = {
    "tern": (*COCO, VOCABULARY, TERN, *RELEVANCE),
    "teran": (
        *COCO, *F30K, VOCABULARY, *RELEVANCE,
        Need("teran/coco.pth", "the MrSw model of COCO from TERAN_pretrained_models.tgz, under this name", "0.9 GB"),
        Need("teran/f30k.pth", "the same of Flickr30k", "0.9 GB"),
        Need("f30k/relevances/f30k-test-spice.npy", "SPICE of Flickr30k's test set, for that column only", "20 MB",
             "20,000,000 bytes"),
    ),
    "vsrn": tuple(
        need
        for data, split, size, count, folder, name in (
            ("coco", "testall", "1.5 GB", 5000, "coco", "coco"), ("f30k", "test", "0.3 GB", 1000, "flickr", "fliker"),
        )
        for need in (
            Need(f"{data}_precomp/{split}_ims.npy", f"SCAN's arrays, with {split}_caps.txt beside it", size,
                 f"{count}x36x2048"),
            Need(f"vocab/{data}_precomp_vocab.pkl", "the vocabulary in VSRN's repository"),
            *(Need(f"pretrain_model/{folder}/model_{name}_{n}.pth.tar", "from VSRN's pretrain_model", "0.4 GB")
              for n in (1, 2)),
        )
    ),
    "vsrnpp": (*COCO, *F30K, Need("bert", "folder of bert-base-uncased: config.json, vocab.txt, weights", "0.4 GB")),
    "boc": (*COCO, Need("coco/train2014", "pictures of COCO train2014"), VOCABULARY, TERN),
}  # fmt: skip


def placed(data: Path, path: str) -> Path:
    """The place of a file in DATA: ``path``, or the folder ``annotations`` beside it, where TERAN's data.tar has it."""
    plain = data / path
    other = plain.parent / "annotations" / plain.name
    return other if other.exists() and not plain.exists() else plain


def show_needs(paper: str, data: Path) -> None:
    """What DATA has to hold, a line each, on stderr."""
    for need in NEEDS[paper]:
        path = placed(data, need.path)
        state = "there  " if path.exists() else "missing"
        size = f" ({need.size})" if need.size else ""
        found = content(path) if need.published and state != "missing" else ""
        if found:
            size += ", as published" if found == need.published else f", holds {found}; published: {need.published}"
        click.echo(f"{state} {path}: {need.what}{size}", err=True)
