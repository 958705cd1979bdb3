"""Train a model on a regions file and write it to a model folder, for ``boc train``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from boc.atomic_files import json_sha256, write_text
from boc.errors import EncoderError
from boc.evaluate.metrics import Recall, Recalls
from boc.foreign import parse_json, typed
from boc.plugins import RegionSource
from boc.remarks import write_counts

from ..networks import text_towers
from ..runtime.device import pick
from ..runtime.model_config import HUBS
from ..runtime.model_folder import (
    NETWORKS,
    check_boxes,
    check_model_folder as check_model_folder,
    create_folder,
    make,
)
from .caption_tensors import CaptionTensors
from .config import TrainConfig
from .data import RegionReader, numbers_of, read_pairs
from .recipes import RECIPES
from .trainer import RunState, Trainer, TrainingProgress


@dataclass(frozen=True)
class TowerChoice:
    """Text tower chosen by a recipe; see ``load_tower``."""

    text: str
    text_layers: int


@dataclass(frozen=True)
class Recipe:
    """Settings of a run apart from its data: the kind and sizes of the network, the text tower (see
    ``load_tower``), and the training settings."""

    kind: str
    text: str
    text_layers: int
    sizes: dict[str, Any]
    train: TrainConfig

    @classmethod
    def of(
        cls,
        name: str,
        settings: Mapping[str, str],
    ) -> Recipe:
        """Build a recipe from RECIPES and ``settings``, which override fields of the network, of
        TrainConfig and of TowerChoice.

        Raises EncoderError for an unknown name or an invalid value.
        """
        if name not in RECIPES:
            raise EncoderError(f"no recipe {name!r}; known: {', '.join(RECIPES)}")
        values = {**RECIPES[name], **settings}
        kind = values.pop("kind")
        if kind not in NETWORKS:
            raise EncoderError(f"no kind of network {kind!r}; known: {', '.join(NETWORKS)}")
        network = NETWORKS[kind].Config
        known = [
            field.name for each in (network, TrainConfig, TowerChoice) for field in fields(each)
        ]
        known.remove("region_dim")
        unknown = [key for key in values if key not in known]
        if unknown:
            raise EncoderError(f"no setting {unknown[0]!r}; known: {', '.join(known)}")
        sizes = _parse(values, network)
        train = TrainConfig(**_parse(values, TrainConfig))
        tower = _parse(values, TowerChoice)
        vector = sizes.get("vector", getattr(network, "vector", None))
        # A part of the objective must train the vectors stored in an index.
        if "matching" not in train.objective.split("+") and vector != "mean":
            raise EncoderError(
                f"objective={train.objective} trains only the concepts of a {kind}, so that its "
                "global vector keeps its random values; add matching, as in "
                "objective=matching+alignment, or use a teran with vector=mean",
            )
        return cls(kind=kind, sizes=sizes, train=train, **tower)


def _parse(values: Mapping[str, str], config: type[Any]) -> dict[str, Any]:
    """Return the ``values`` that are fields of ``config``, converted to their types."""
    own = {field.name: values[field.name] for field in fields(config) if field.name in values}
    try:
        parsed = typed(own, config, strict=False)
    except ValueError as error:
        raise EncoderError(
            str(error),
            "for example, write <boc train --set epochs=4>",
        ) from None
    return {name: getattr(parsed, name) for name in own}


def describe(
    recipe: Recipe,
    items: str,
    source: RegionSource,
    validate: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return all data that determine the result of a run: the recipe, the digests of the items and
    the region source, and a digest of the picture ids to ``validate`` on, if the user names them.

    Raises EncoderError, before spending time extracting regions, if the text tower is missing or
    the network needs boxes that the source does not have.
    """
    text_towers.check_tower(recipe.text)
    check_boxes(recipe.kind, source)
    run = {"recipe": asdict(recipe), "items": items, "regions": source.identity.digest}
    if validate is not None:
        run["validate"] = json_sha256(sorted(validate))
    return run


def check_size(
    recipe: Recipe,
    pictures: int,
    validated: int | None = None,
) -> None:
    """Raise EncoderError, before spending time extracting regions, if there are too few pictures
    for training or validation."""
    held_out = validated
    fewer = "fewer ids in <--validate>"
    if held_out is None:
        held_out = recipe.train.held_out
        fewer = f"<boc train --set held_out={max(1, pictures // 10)}>"
    batch = recipe.train.batch_size
    if pictures < held_out + batch:
        raise EncoderError(
            f"{pictures} pictures are too few, because {held_out} are held out and a batch needs "
            f"{batch}",
            f"add pictures, or {fewer} and <boc train --set batch_size={max(2, pictures // 10)}>",
        )


def is_finished(folder: Path, run: Mapping[str, Any]) -> bool:
    """Return whether ``folder`` contains the result of ``run``. Raises EncoderError if the folder
    contains another run, finished or not."""
    note = folder / "training.json"
    if not note.exists():
        return False
    theirs = parse_json(note.read_text(encoding="utf-8"))
    mine = json.loads(json.dumps(run))
    differing = sorted(key for key in mine if theirs.get(key) != mine[key])
    if differing:
        raise EncoderError(
            f"{folder} contains a model trained with another {' and '.join(differing)}; run "
            "that command again to resume, or choose another folder with -o",
        )
    return (folder / "history.json").exists()


def best(folder: Path) -> Recalls:
    """Return the recalls on the held-out pictures for the weights that a finished run has kept."""
    state = RunState(**parse_json((folder / "history.json").read_text(encoding="utf-8")))
    entry = next(e for e in state.history if e["step"] == state.best_step)
    return Recalls(*(Recall(**entry[side]) for side in ("text_to_image", "image_to_text")))


class Training:
    """Training run on a regions file, as described by ``describe``, whose model is saved to
    ``folder``. A run with the same arguments resumes an unfinished run.

    ``ids`` restricts the run to these pictures; the pictures in ``validate`` are held out. Raises
    EncoderError if the data do not match."""

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
        validate: set[str] | None = None,
    ) -> None:
        self.folder = folder
        self.device = pick(device)
        torch.manual_seed(recipe.train.seed)
        reader = RegionReader(regions)
        if source.identity.digest != reader.identity.digest:
            raise EncoderError(
                f"{regions} comes from a region source other than {source.identity.spec}",
            )
        pairs, captions = read_pairs(regions, ids)
        texts = [caption.content for caption in captions]
        tower = text_towers.load_tower(recipe.text, recipe.text_layers, texts)
        text = tower.text
        if not recipe.sizes.get("stop_words", True):
            text = {**text, "stop_ids": text_towers.stop_ids(tower.tokens)}
        network = make(
            recipe.kind,
            {"region_dim": reader.identity.dim, **recipe.sizes},
            text,
        )
        if tower.module is not None:
            network.txt_enc = tower.module
        (folder / "training").mkdir(parents=True, exist_ok=True)
        held_out = None
        if validate is not None:
            pairs, held_out = pairs.apart(numbers_of(regions, validate))
        self._trainer = Trainer(
            folder,
            network,
            pairs,
            reader,
            CaptionTensors(captions, tower.tokens),
            recipe.train,
            self.device,
            held_out,
        )
        create_folder(folder, recipe.kind, network, tower.tokens, source)
        write_counts(folder, texts)
        write_text(folder / "training.json", json.dumps(run, indent=1, sort_keys=True))

    def run(self) -> Iterator[TrainingProgress]:
        """Train and yield progress. At the end, only the model and its history remain."""
        yield from self._trainer.run()
        bank = self._trainer.bank()
        if bank is not None:
            bank.write(self.folder / HUBS)
        write_text(self.folder / "history.json", json.dumps(asdict(self._trainer.state), indent=1))
        shutil.rmtree(self.folder / "training")
