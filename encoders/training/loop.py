"""The training loop: resumable at any step, the best weights kept.

Every random choice is a function of the seed and the number of the step or epoch, so a run that was killed and
repeated ends with the same weights as one that was not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from boc.errors import EncoderError
from boc.evaluation import Recalls, evaluate
from boc.files import replacing

from .._checkpoint import save_weights
from .._device import fast_bfloat16
from ..tern import Tern, raised
from .data import Pairs, RegionReader
from .losses import hinge
from .texts import Captions
from .warmstart import warm_start

SAVE_SECONDS = 30.0
EVAL_BATCH = 128
WARM_START = 20_000  # pictures that the closed form looks at


@dataclass(frozen=True)
class TrainConfig:
    """How TERN is trained. Learning rate: linear warm-up over ``warmup`` steps, then a cosine down to zero.

    Attributes
    ----------
    batch_size, captions_per_picture : pictures in a batch, and captions drawn for each
    negatives_first, negatives_last : negatives of a pair that count at the start, and in the last third of the epochs;
        in between their number falls exponentially. 1 and 1 is the published loss
    region_keep : probability with which a region stays in a training batch
    feature_keep : probability with which a number of a region's feature stays in a training batch
    warm_start : whether to begin at the closed-form solution (see warmstart.py), 1 or 0
    average : decay of the running average of the weights that is validated and kept; 0 keeps the weights themselves
    text_lr : learning rate of the text tower, as a share of ``lr``; 0 freezes it
    held_out : pictures kept from training, to validate on
    patience : epochs without a better validation before training stops
    mixed : 1 to compute in bfloat16 where that is faster (weights, averages and the loss stay float32), else 0
    """

    epochs: int = 30
    batch_size: int = 128
    captions_per_picture: int = 1
    lr: float = 5e-4
    warmup: int = 200
    weight_decay: float = 1e-4
    clip: float = 2.0
    margin: float = 0.2
    negatives_first: int = 100
    negatives_last: int = 1
    region_keep: float = 1.0
    feature_keep: float = 1.0
    warm_start: int = 1
    average: float = 0.99
    text_lr: float = 0.0
    held_out: int = 500
    patience: int = 5
    mixed: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Where a run stands; ``recalls`` is there after each validation."""

    step: int
    steps: int
    epoch: int
    loss: float
    recalls: Recalls | None = None


@dataclass(frozen=True)
class RunState:
    """What a run knows besides tensors."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    history: list[dict[str, Any]] | tuple[()] = ()

    def over(self, config: TrainConfig, steps: int) -> bool:
        """Whether the last step is done, or ``patience`` validations brought nothing better."""
        since = sum(entry["step"] > self.best_step for entry in self.history)
        return self.step >= steps or since >= config.patience


class Trainer:
    """One run in one model folder. ``run`` goes on where the last one stopped."""

    def __init__(
        self,
        folder: Path,
        model: Tern,
        pairs: Pairs,
        regions: RegionReader,
        captions: Captions,
        config: TrainConfig,
        device: str,
    ) -> None:
        self.folder = folder
        self.config = config
        self.device = device
        self.mixed = bool(config.mixed) and fast_bfloat16(device)
        self.model = model.to(device)
        self.regions = regions
        self.captions = captions
        if not 1 <= config.held_out < len(pairs):
            raise EncoderError(
                f"held_out must be between 1 and {len(pairs) - 1}, all pictures but one; got {config.held_out}"
            )
        self.train, self.held_out = pairs.split(config.held_out, config.seed)
        if len(self.train) < config.batch_size:
            raise EncoderError(
                f"{len(self.train)} pictures to learn from, batches have {config.batch_size}; "
                "give more pictures or a smaller --batch-size"
            )
        self.steps_per_epoch = len(self.train) // config.batch_size
        self.optimizer = torch.optim.AdamW(self._groups(), lr=config.lr, weight_decay=config.weight_decay)
        self.learned = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.average = {name: parameter.detach().clone() for name, parameter in self.learned.items()}
        self.state = RunState()

    @property
    def steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    def run(self) -> Iterator[Progress]:
        """Train to the end. The best weights so far stand in the folder after each validation."""
        if self._saved.exists():
            self.state = restore(self._saved, self.learned, self.optimizer, self.average)
        elif self.config.warm_start:
            self._warm_start()
        saved_at = time.monotonic()
        while not self.state.over(self.config, self.steps):
            epoch, done = divmod(self.state.step, self.steps_per_epoch)
            rng = np.random.default_rng((self.config.seed, epoch))
            batches = self.train.batches(self.config.batch_size, self.config.captions_per_picture, rng)
            for number, batch in enumerate(batches):
                if number < done:
                    continue
                loss = self._step(*batch)
                self.state = replace(self.state, step=self.state.step + 1)
                yield Progress(self.state.step, self.steps, epoch, loss)
                if time.monotonic() - saved_at > SAVE_SECONDS and number + 1 < self.steps_per_epoch:
                    self._save()
                    saved_at = time.monotonic()
            recalls = self._validate()
            self._save()
            saved_at = time.monotonic()
            yield Progress(self.state.step, self.steps, epoch, loss, recalls)

    @property
    def _saved(self) -> Path:
        return self.folder / "training" / "state.safetensors"

    def _save(self) -> None:
        save(self._saved, self.state, self.learned, self.optimizer, self.average)

    def _groups(self) -> list[dict[str, Any]]:
        text = list(self.model.txt_enc.parameters())
        frozen = self.config.text_lr == 0
        for parameter in text:
            parameter.requires_grad_(not frozen)
        others = [p for name, p in self.model.named_parameters() if not name.startswith("txt_enc.")]
        groups: list[dict[str, Any]] = [{"params": others, "share": 1.0}]
        return groups if frozen else [*groups, {"params": text, "share": self.config.text_lr}]

    def _step(self, pictures: Any, numbers: Any, positive: Tensor) -> float:
        step = self.state.step
        torch.manual_seed(self.config.seed * 1_000_003 + step)
        self.model.train()
        if self.captions.frozen:
            self.model.txt_enc.eval()
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * self.config.lr * schedule(step, self.config.warmup, self.steps)
        features, boxes, lengths = (t.to(self.device) for t in self.regions(pictures, self.config.region_keep))
        features = torch.nn.functional.dropout(features, 1 - self.config.feature_keep)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.mixed):
            images, _ = self.model.images(features, boxes, lengths)
            texts = self.captions.encode(self.model, numbers, self.device)
        scores = images.float() @ texts.float().T
        loss = hinge(scores, positive.to(self.device), self.config.margin, self._negatives(step)) / len(numbers)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        update_average(self.average, self.learned, self.config.average, step)
        return float(loss.detach())

    def _negatives(self, step: int) -> int:
        first, last = self.config.negatives_first, self.config.negatives_last
        return round(first * (last / first) ** min(1.0, 1.5 * step / self.steps))

    def _warm_start(self) -> None:
        pairs = self.train.sample(WARM_START, self.config.seed)
        power = self.model.config.region_power
        numbers = np.concatenate(pairs.captions)
        words = self.captions.means(self.model, numbers, self.device)
        regions = torch.stack([raised(self.regions([i])[0][0], power).mean(dim=0).nan_to_num() for i in pairs.pictures])
        each = torch.from_numpy(np.repeat(np.arange(len(pairs)), [len(c) for c in pairs.captions]))
        warm_start(self.model, regions[each], words)
        self.average = {name: parameter.detach().clone() for name, parameter in self.learned.items()}

    def _validate(self) -> Recalls:
        """Recalls of the averaged weights on the pictures held out; the best are written to the folder."""
        kept = {name: parameter.detach().clone() for name, parameter in self.learned.items()}
        self.model.load_state_dict(self.average, strict=False)
        recalls = validate(self.model, self.held_out, self.regions, self.captions, self.device)
        self.state = replace(self.state, history=[*self.state.history, {"step": self.state.step, **asdict(recalls)}])
        if recalls.total > self.state.best:
            save_weights(self.folder, self.model.state_dict())
            self.state = replace(self.state, best=recalls.total, best_step=self.state.step)
        self.model.load_state_dict(kept, strict=False)
        return recalls


def schedule(step: int, warmup: int, steps: int) -> float:
    """Factor of the learning rate at ``step`` (from 0): linear up, then half a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@torch.no_grad()
def update_average(average: dict[str, Tensor], learned: Mapping[str, Tensor], decay: float, step: int) -> None:
    """Move the running average towards ``learned``, in place; early steps count more, so that it starts unbiased."""
    share = 1 - min(decay, (step + 1) / (step + 10))
    for name, tensor in learned.items():
        average[name].lerp_(tensor, share)


@torch.inference_mode()
def validate(model: Tern, pairs: Pairs, regions: RegionReader, captions: Captions, device: str) -> Recalls:
    """Recalls on the pictures of ``pairs`` with all their captions."""
    model.eval()
    images, texts = [], []
    for start in range(0, len(pairs), EVAL_BATCH):
        batch = regions(pairs.pictures[start : start + EVAL_BATCH])
        images.append(model.images(*(t.to(device) for t in batch))[0].cpu().numpy())
    numbers = np.concatenate(pairs.captions)
    for start in range(0, len(numbers), EVAL_BATCH):
        texts.append(captions.encode(model, numbers[start : start + EVAL_BATCH], device).cpu().numpy())
    owners = np.repeat(np.arange(len(pairs)), [len(c) for c in pairs.captions])
    return evaluate(np.concatenate(images), np.concatenate(texts), owners)


def save(
    path: Path,
    state: RunState,
    learned: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor],
) -> None:
    """Everything that a run needs to go on, in one safetensors file, replaced at once."""
    tensors = {f"model.{name}": tensor for name, tensor in learned.items()}
    tensors |= {f"average.{name}": tensor for name, tensor in average.items()}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata={"state": json.dumps(asdict(state))})


@torch.no_grad()
def restore(
    path: Path, learned: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
) -> RunState:
    """Put a saved run back into the parameters ``learned``, the optimizer and the average."""
    moments: dict[int, dict[str, Tensor]] = {}
    with safe_open(path, "pt") as file:
        for key in file.keys():  # noqa: SIM118 (not a dict)
            kind, _, name = key.partition(".")
            if kind == "optimizer":
                number, _, moment = name.partition(".")
                moments.setdefault(int(number), {})[moment] = file.get_tensor(key)
            else:
                {"model": learned, "average": average}[kind][name].copy_(file.get_tensor(key))
        state = RunState(**json.loads(file.metadata()["state"]))
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return state
