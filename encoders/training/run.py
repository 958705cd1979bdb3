"""From a regions file to a model folder: what ``boc train`` does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from boc.errors import EncoderError
from boc.evaluation import Recall, Recalls
from boc.files import write_text
from boc.types import RegionSource

from .. import _device, _text
from .._checkpoint import create_folder
from ..tern import Tern, TernConfig
from .data import RegionReader, read_pairs
from .loop import Progress, RunState, TrainConfig, Trainer
from .texts import Captions

# Settings that learn from thousands of pictures in minutes on two cores, where the published ones want a GPU and a
# hundred thousand. They were chosen on pictures held out of training.
RECIPES: dict[str, dict[str, str]] = {
    "small": {
        "text": "small", "text_layers": "2", "text_lr": "1",
        "visual_width": "256", "visual_layers": "1", "joint_width": "256", "feedforward": "512", "region_power": "0.5",
        "epochs": "7", "batch_size": "64", "captions_per_picture": "2", "lr": "1e-3", "warmup": "40",
        "negatives_first": "60", "negatives_last": "6", "dropout": "0", "held_out": "200",
    },
    "photos": {
        "text": "minilm", "text_layers": "6", "text_lr": "0.17",
        "visual_width": "512", "visual_layers": "1", "joint_width": "384", "feedforward": "512", "region_power": "0.5",
        "epochs": "6", "batch_size": "128", "captions_per_picture": "2", "lr": "3e-4", "warmup": "80",
        "negatives_first": "30", "negatives_last": "8", "region_keep": "0.5", "feature_keep": "0.8",
        "weight_decay": "0.05", "held_out": "500",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What a run is made of, next to its data: the text tower (see ``load_tower``), sizes, and settings."""

    text: str
    text_layers: int
    sizes: dict[str, Any]
    train: TrainConfig

    @classmethod
    def of(cls, name: str, settings: Mapping[str, str]) -> Recipe:
        """The recipe ``name`` of RECIPES with other ``settings``: fields of TernConfig, TrainConfig, and of this class.

        EncoderError for an unknown name or a value that is no number where one is due.
        """
        sizes, train, rest = {}, {}, {}
        if name not in RECIPES:
            raise EncoderError(f"no recipe {name!r}; known: {', '.join(RECIPES)}")
        for key, value in {**RECIPES[name], **settings}.items():
            if key in TERN_FIELDS and key != "region_dim":
                sizes[key] = _number(key, value, TERN_FIELDS[key])
            elif key in TRAIN_FIELDS:
                train[key] = _number(key, value, TRAIN_FIELDS[key])
            elif key in {"text", "text_layers"}:
                rest[key] = value if key == "text" else _number(key, value, "int")
            else:
                known = ", ".join([*TERN_FIELDS, *TRAIN_FIELDS, "text", "text_layers"])
                raise EncoderError(f"no setting {key!r}; known: {known}")
        return cls(sizes=sizes, train=TrainConfig(**train), **rest)


TERN_FIELDS = {f.name: str(f.type) for f in fields(TernConfig)}
TRAIN_FIELDS = {f.name: str(f.type) for f in fields(TrainConfig)}


def describe(recipe: Recipe, items: str, source: RegionSource) -> dict[str, Any]:
    """What decides the outcome of a run: the recipe, the digest of the items, the digest of the region source."""
    return {"recipe": asdict(recipe), "items": items, "regions": source.identity.digest}


def finished(folder: Path, run: Mapping[str, Any]) -> bool:
    """Whether ``folder`` holds the outcome of ``run``. EncoderError if it holds another run, finished or not."""
    note = folder / "training.json"
    if not note.exists():
        return False
    theirs, mine = json.loads(note.read_text(encoding="utf-8")), json.loads(json.dumps(run))
    differing = sorted(key for key in mine if theirs.get(key) != mine[key])
    if differing:
        raise EncoderError(
            f"{folder} holds a model trained with another {' and '.join(differing)}; "
            "repeat that command to go on, or choose another folder with -o"
        )
    return (folder / "history.json").exists()


def best(folder: Path) -> Recalls:
    """The recalls of the weights that a finished run kept, on the pictures held out."""
    state = RunState(**json.loads((folder / "history.json").read_text(encoding="utf-8")))
    entry = next(e for e in state.history if e["step"] == state.best_step)
    return Recalls(Recall(**entry["text_to_image"]), Recall(**entry["image_to_text"]))


class Training:
    """The run ``describe`` told of, over a regions file, into the model folder ``folder``; made again, it goes on.

    ``ids`` restricts to some pictures. Raises EncoderError if the recipe does not fit the data.
    """

    def __init__(
        self,
        folder: Path,
        regions: Path,
        source: RegionSource,
        recipe: Recipe,
        run: Mapping[str, Any],
        *,
        ids: set[str] | None,
        device: str,
    ) -> None:
        self.folder = folder
        self.device = _device.pick(device)
        torch.manual_seed(recipe.train.seed)
        reader = RegionReader(regions)
        if source.identity.digest != reader.identity.digest:
            raise EncoderError(f"{regions} was made by another region source than {source.identity.spec}")
        pairs, captions = read_pairs(regions, ids)
        tower = _text.load_tower(recipe.text, recipe.text_layers, (caption.content for caption in captions))
        model = _build(reader.identity.dim, recipe, tower)
        (folder / "training").mkdir(parents=True, exist_ok=True)
        self._captions = Captions(captions, tower, frozen=recipe.train.text_lr == 0, folder=folder / "training")
        self._trainer = Trainer(folder, model, pairs, reader, self._captions, recipe.train, self.device)
        create_folder(folder, model, tower.tokenizer, source)
        write_text(folder / "training.json", json.dumps(run, indent=1, sort_keys=True))

    @property
    def captions(self) -> int:
        """Number of captions that ``prepare`` reads."""
        return len(self._captions)

    def prepare(self) -> Iterator[int]:
        """Let a frozen text tower read the captions; yields the number done."""
        return self._captions.prepare(self._trainer.model, self.device)

    def run(self) -> Iterator[Progress]:
        """Train; at the end, only the model and its history stay."""
        yield from self._trainer.run()
        write_text(self.folder / "history.json", json.dumps(asdict(self._trainer.state), indent=1))
        shutil.rmtree(self.folder / "training")


def _build(region_dim: int, recipe: Recipe, tower: _text.TextTower) -> Tern:
    config = TernConfig(region_dim=region_dim, **recipe.sizes)
    for name in ("visual_width", "joint_width"):
        if getattr(config, name) % config.heads:
            raise EncoderError(f"{name} must be a multiple of heads={config.heads}, got {getattr(config, name)}")
    model = Tern(config, tower.bert.config)
    model.txt_enc.bert_model = tower.bert
    return model


def _number(name: str, value: str, kind: str) -> int | float:
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        raise EncoderError(f"{name} must be a number, got {value!r}; write for example --set {name}=1") from None
