"""The training loop of all networks: resumable at any step; it keeps the best weights.

Every random choice depends on the seed and the step or epoch alone, so a continued run ends with
the same weights.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from boc.atomic_files import replacing
from boc.errors import EncoderError
from boc.evaluate.metrics import Ndcg, Recalls, check_relevance, evaluate_ndcg, evaluate_recall
from boc.evaluate.relevance import read_relevance, rouge_l_matrix
from boc.foreign import parse_json

from ..networks.base import Network, signed_power
from ..networks.layers import recompute
from ..runtime.device import fast_bfloat16
from ..runtime.model_folder import save_weights
from .caption_tensors import CaptionTensors
from .config import CHOICES, TrainConfig
from .data import CaptionPairs, RegionReader
from .fragments import Fragments, exchange_opposites
from .objectives import Objective
from .warmstart import latent_semantics, scale, warm_start

SAVE_SECONDS = 120.0
EVAL_BATCH = 128
SCALED = 1_000  # pictures whose regions show the scale of features
WARM_START = 20_000  # pictures used by the closed form


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a run; ``recalls`` is set after a validation, ``ndcg`` too where it chooses
    the weights."""

    step: int
    steps: int
    epoch: int
    loss: float
    recalls: Recalls | None = None
    ndcg: Ndcg | None = None


@dataclass(frozen=True)
class RunState:
    """The state of a run without its tensors."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    history: list[dict[str, Any]] | tuple[()] = ()

    def over(self, config: TrainConfig, steps: int) -> bool:
        """Return whether the last step is done, or ``patience`` validations brought no
        improvement."""
        since = sum(entry["step"] > self.best_step for entry in self.history)
        return self.step >= steps or since >= config.patience


class Trainer:
    """One run in one model folder. ``run`` continues where the last one stopped.

    It learns from ``pairs`` and validates on ``held_out``, by default ``config.held_out`` random
    ones of ``pairs``.
    """

    def __init__(
        self,
        folder: Path,
        network: Network,
        pairs: CaptionPairs,
        regions: RegionReader,
        captions: CaptionTensors,
        config: TrainConfig,
        device: str,
        held_out: CaptionPairs | None = None,
    ) -> None:
        self.folder = folder
        self.config = config
        self.device = device
        self.mixed = bool(config.mixed) and fast_bfloat16(device)
        self.network = network.to(device)
        if config.recompute:
            recompute(self.network)
        self.objective = Objective(config, network, captions, mixed=self.mixed).to(device)
        self.regions = regions
        self.captions = captions
        self.train, self.held_out = (
            (pairs, held_out) if held_out is not None else self._hold_out(pairs)
        )
        if len(self.train) < config.batch_size:
            raise EncoderError(
                f"{len(self.train)} pictures to learn from, batches have {config.batch_size}",
                "give more pictures, or smaller batches: <boc train --set batch_size=2>",
            )
        share = config.fragments
        ids = self.captions.ids
        self.fragments = Fragments(ids, self.train, self.captions.stops, share) if share else None
        self.steps_per_epoch = len(self.train) // config.batch_size
        self.optimizer = torch.optim.AdamW(
            self._groups(),
            lr=config.lr,
            weight_decay=config.weight_decay,
            fused=True,
        )
        whole = torch.nn.ModuleDict({"network": self.network, "objective": self.objective})
        self.learned = {name: p for name, p in whole.named_parameters() if p.requires_grad}
        self.buffers = dict(whole.named_buffers())  # those of batch normalisation
        self.average = {
            name: parameter.detach().clone() for name, parameter in self.learned.items()
        }
        self._relevance = self._load_relevance() if config.choose != "recall" else None
        self.state = RunState()
        self._loss = 0.0  # of the last batch

    def _hold_out(self, pairs: CaptionPairs) -> tuple[CaptionPairs, CaptionPairs]:
        if not 1 <= self.config.held_out < len(pairs):
            raise EncoderError(
                f"held_out must be between 1 and {len(pairs) - 1}, all pictures but one; got "
                f"{self.config.held_out}",
            )
        return pairs.hold_out(self.config.held_out, self.config.seed)

    @property
    def steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    def run(self) -> Iterator[TrainingProgress]:
        """Train to the end. After each validation the folder has the best weights so far."""
        if self._state_path.exists():
            self.state = restore(self._state_path, self._tensors, self.optimizer)
        else:
            self._begin()
        saved_at = time.monotonic()
        while not self.state.over(self.config, self.steps):
            epoch, done = divmod(self.state.step, self.steps_per_epoch)
            rng = np.random.default_rng((self.config.seed, epoch))
            batches = self.train.batches(
                self.config.batch_size,
                self.config.captions_per_picture,
                rng,
            )
            for number, batch in enumerate(batches):
                if number < done:
                    continue
                # On a CPU the gradients of fused attention take several times as long for small
                # sets.
                with sdpa_kernel(SDPBackend.MATH) if self.device == "cpu" else nullcontext():
                    self._step(*batch)
                self.state = replace(self.state, step=self.state.step + 1)
                yield TrainingProgress(self.state.step, self.steps, epoch, self._loss)
                if time.monotonic() - saved_at > SAVE_SECONDS and number + 1 < self.steps_per_epoch:
                    self._save()
                    saved_at = time.monotonic()
            recalls, ndcg = self._validate()
            self._save()
            saved_at = time.monotonic()
            yield TrainingProgress(self.state.step, self.steps, epoch, self._loss, recalls, ndcg)

    @property
    def _state_path(self) -> Path:
        return self.folder / "training" / "state.safetensors"

    def _save(self) -> None:
        save(self._state_path, self.state, self._tensors, self.optimizer)

    @property
    def _tensors(self) -> dict[str, Mapping[str, Tensor]]:
        return {"learned": self.learned, "average": self.average, "buffer": self.buffers}

    def _groups(self) -> list[dict[str, Any]]:
        text = list(self.network.txt_enc.parameters())
        frozen = self.config.text_lr == 0
        for parameter in text:
            parameter.requires_grad_(not frozen)
        others = [
            p for name, p in self.network.named_parameters() if not name.startswith("txt_enc.")
        ]
        others += list(self.objective.parameters())
        groups: list[dict[str, Any]] = [{"params": others, "share": 1.0}]
        return groups if frozen else [*groups, {"params": text, "share": self.config.text_lr}]

    def _step(self, pictures: Any, numbers: Any, positive: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._forward(pictures, numbers, positive)
        loss.backward()
        self._loss = float(loss.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * self.config.lr * self._factor(self.state.step)
        torch.nn.utils.clip_grad_norm_(
            [p for group in self.optimizer.param_groups for p in group["params"]],
            self.config.clip,
        )
        self.optimizer.step()
        update_average(self.average, self.learned, self.config.average, self.state.step)

    def _forward(self, pictures: Any, numbers: Any, positive: Tensor) -> Tensor:
        step = self.state.step
        torch.manual_seed(self.config.seed * 1_000_003 + step)
        self.network.train()
        self.objective.train()
        if self.captions.frozen:
            self.network.txt_enc.eval()
        features, boxes, lengths = (
            t.to(self.device) for t in self.regions(pictures, self.config.region_keep)
        )
        features = torch.nn.functional.dropout(features, 1 - self.config.feature_keep)
        rows, apart, turned = self._read(pictures, numbers, step)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.mixed):
            images = self.network.images(features, boxes, lengths)
            mask = self.network.region_mask(lengths, images.sets.shape[1])
            chunks = self.captions.encode(self.network, numbers, self.device, rows)
        belongs = (
            positive.to(self.device),
            self._negatives(step),
            None if apart is None else apart.to(self.device),
        )
        loss: Tensor = self.objective(images, lengths, mask, chunks, numbers, *belongs, turned)
        return loss

    def _read(
        self,
        pictures: Any,
        numbers: Any,
        step: int,
    ) -> tuple[list[list[int]] | None, Tensor | None, list[int]]:
        """Return the texts to read instead of captions; the negative pairs; which texts are turned
        round at the end."""
        rows: list[list[int]] | None = None
        apart: Tensor | None = None
        turned: list[int] = []
        if self.fragments is not None:
            rows = self.fragments.cut(numbers, np.random.default_rng((self.config.seed, step, 1)))
            apart = self.fragments.apart(pictures, rows)
        if self.config.opposites:
            rows = [self.captions.ids[number] for number in numbers] if rows is None else rows
            turned, more = exchange_opposites(rows, self.captions.opposites, self.captions.stops)
            rows = [*rows, *more]
        return rows, apart, turned

    def _factor(self, step: int) -> float:
        if self.config.schedule == "cosine":
            return cosine(step, self.config.warmup, self.steps)
        past = step // self.steps_per_epoch // self.config.decay_epochs
        # From 2, as in the published warm-up, whose counter advances once before the first step.
        return min(1.0, (step + 2) / max(1, self.config.warmup)) * self.config.decay**past

    def _negatives(self, step: int) -> int:
        first = self.config.negatives_first
        last = self.config.negatives_last
        return round(float(first * (last / first) ** min(1.0, 1.5 * step / self.steps)))

    def _begin(self) -> None:
        power = self.network.config.region_power
        if getattr(self.network.config, "scaled", False):
            pictures = self.train.sample(SCALED, self.config.seed).pictures
            scale(
                self.network,
                torch.cat([signed_power(self.regions([i])[0][0], power) for i in pictures]),
            )
        if self.config.warm_start:
            self._warm_start()

    def _warm_start(self) -> None:
        pairs = self.train.sample(WARM_START, self.config.seed)
        power = self.network.config.region_power
        means = torch.stack(
            [
                signed_power(self.regions([i])[0][0], power).mean(dim=0).nan_to_num()
                for i in pairs.pictures
            ],
        )
        each = np.repeat(np.arange(len(pairs)), [len(c) for c in pairs.captions])
        numbers = np.concatenate(pairs.captions)
        if self.network.text["kind"] == "embedding":
            latent_semantics(self.network.txt_enc.embed, self.captions.bags(numbers))
        words = self.captions.means(self.network, numbers, self.device)
        warm_start(self.network, means[torch.from_numpy(each)], words, self.config.averaging)
        self.average = {
            name: parameter.detach().clone() for name, parameter in self.learned.items()
        }

    def _load_relevance(self) -> NDArray[np.float32]:
        """Return the relevance of the held-out pictures to their captions. BocError if the file is
        of others."""
        texts = [
            self.captions.texts[number] for numbers in self.held_out.captions for number in numbers
        ]
        if self.config.relevance in ("", "rouge-l"):
            return rouge_l_matrix(texts, self.held_out.owners)
        relevance = read_relevance(Path(self.config.relevance), len(texts))
        check_relevance(relevance, len(texts), len(self.held_out))
        return relevance

    def _validate(self) -> tuple[Recalls, Ndcg | None]:
        """Evaluate the averaged weights on the held-out pictures, and write the best weights to the
        folder."""
        weights = {name: parameter.detach().clone() for name, parameter in self.learned.items()}
        self._set(self.average)
        owners = self.held_out.owners
        scores = validate(
            self.network,
            self.objective,
            self.held_out,
            self.regions,
            self.captions,
            self.device,
        )
        recalls = evaluate_recall(scores, owners)
        ndcg = None if self._relevance is None else evaluate_ndcg(scores, owners, self._relevance)
        entry = {"step": self.state.step, "loss": self._loss, **asdict(recalls)}
        if ndcg is not None:
            entry["ndcg"] = asdict(ndcg)
        self.state = replace(self.state, history=[*self.state.history, entry])
        score = CHOICES[self.config.choose](recalls, ndcg)
        if score > self.state.best or self.config.keep == "last":
            save_weights(self.folder, self.network.state_dict())
            self.state = replace(self.state, best=score, best_step=self.state.step)
        self._set(weights)
        return recalls, ndcg

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.learned.items():
            parameter.copy_(values[name])


def cosine(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the learning rate at ``step`` (from 0): linear up, then half a cosine
    down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@torch.no_grad()
def update_average(
    average: dict[str, Tensor],
    learned: Mapping[str, Tensor],
    decay: float,
    step: int,
) -> None:
    """Move the running average towards ``learned``, in place; early steps have more weight, so that
    it is unbiased."""
    share = 1 - min(decay, (step + 1) / (step + 10))
    for name, tensor in learned.items():
        average[name].lerp_(tensor, share)


@torch.inference_mode()
def validate(
    network: Network,
    objective: Objective,
    pairs: CaptionPairs,
    regions: RegionReader,
    captions: CaptionTensors,
    device: str,
) -> NDArray[np.float32]:
    """Compute the ranking scores (captions, pictures) of the pictures of ``pairs`` and all their
    captions."""
    network.eval()
    objective.eval()
    numbers = np.concatenate(pairs.captions)
    parts = range(0, len(numbers), EVAL_BATCH)
    chunks = [
        captions.encode(network, numbers[start : start + EVAL_BATCH], device) for start in parts
    ]
    scores = []
    for start in range(0, len(pairs), EVAL_BATCH):
        features, boxes, lengths = (
            t.to(device) for t in regions(pairs.pictures[start : start + EVAL_BATCH])
        )
        images = network.images(features, boxes, lengths)
        mask = network.region_mask(lengths, images.sets.shape[1])
        columns = [objective.scores(objective.ranking, images, mask, part) for part in chunks]
        scores.append(torch.cat(columns, dim=1).cpu().numpy())
    by_caption: NDArray[np.float32] = np.ascontiguousarray(
        np.concatenate(scores).T,
        dtype=np.float32,
    )
    return by_caption


def save(
    path: Path,
    state: RunState,
    tensors: Mapping[str, Mapping[str, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Save everything that a run needs to continue in one safetensors file, replaced atomically."""
    flat = {
        f"{kind}.{name}": tensor
        for kind, named in tensors.items()
        for name, tensor in named.items()
    }
    for number, moments in optimizer.state_dict()["state"].items():
        flat |= {
            f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in flat.items()}
        save_file(contiguous, temporary, metadata={"state": json.dumps(asdict(state))})


@torch.no_grad()
def restore(
    path: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> RunState:
    """Restore a saved run into ``tensors`` and the optimizer."""
    moments: dict[int, dict[str, Tensor]] = {}
    with safe_open(path, "pt") as file:
        for key in file.keys():  # noqa: SIM118 (not a dict)
            kind, _, name = key.partition(".")
            if kind == "optimizer":
                number, _, moment = name.partition(".")
                moments.setdefault(int(number), {})[moment] = file.get_tensor(key)
            else:
                tensors[kind][name].copy_(file.get_tensor(key))
        state = RunState(**parse_json(file.metadata()["state"]))
    optimizer.load_state_dict(
        {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]},
    )
    return state
