"""Train networks in a loop that can resume at any step and keeps the best weights.

Every random choice depends only on the seed and the step or epoch, so a resumed run ends with the
same weights.
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from boc.atomic_files import replacing
from boc.errors import EncoderError
from boc.evaluate.metrics import Ndcg, Recalls, evaluate_ndcg, evaluate_recall
from boc.evaluate.relevance import rouge_l_matrix
from boc.foreign import parse_json
from boc.vectors import Floats, Ints, batches

from ..networks.base import Encodings, Network, signed_power
from ..runtime.device import fast_bfloat16
from ..runtime.hubs import HubBank
from ..runtime.model_config import WEIGHTS
from ..runtime.model_folder import save_weights
from .caption_tensors import CaptionTensors, in_order
from .config import CHOICES, TrainConfig
from .data import CaptionPairs, RegionReader
from .fragments import Fragments, exchange_opposites
from .hub_bank import LEAST, SIZE, choose_bank
from .objectives import Objective
from .warmstart import latent_semantics, scale, warm_start

SAVE_SECONDS = 120.0
EVAL_BATCH = 128


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a run, with ``recalls`` after a validation."""

    step: int
    steps: int
    epoch: int
    loss: float
    recalls: Recalls | None = None


@dataclass(frozen=True)
class RunState:
    """State of a run without its tensors."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    history: list[dict[str, Any]] | tuple[()] = ()

    def over(self, config: TrainConfig, steps: int) -> bool:
        """Return whether the run has ended, after the last step or after ``patience`` validations
        without improvement."""
        since = sum(entry["step"] > self.best_step for entry in self.history)
        return self.step >= steps or since >= config.patience


class Trainer:
    """Trainer for a single run in a model folder. ``run`` resumes where the last call stopped.

    The network learns from ``pairs`` and is validated on ``held_out``, by default
    ``config.held_out`` random pictures of ``pairs``.
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
        self._state_path = folder / "training" / "state.safetensors"
        self.config = config
        self.device = device
        self.mixed = config.mixed and fast_bfloat16(device)
        self.network = network.to(device)
        self.objective = Objective(config, network, captions, mixed=self.mixed).to(device)
        self.regions = regions
        self.captions = captions
        if held_out is None:
            pairs, held_out = pairs.hold_out(config.held_out, config.seed)
        self.train = pairs
        self.held_out = held_out
        if len(self.train) < config.batch_size:
            raise EncoderError(
                f"{len(self.train)} pictures for training, but a batch needs {config.batch_size}",
                "give more pictures, or use smaller batches: <boc train --set batch_size=2>",
            )
        self.fragments: Fragments | None = None
        if config.fragments:
            self.fragments = Fragments(
                captions.ids,
                self.train,
                captions.stops,
                config.fragments,
            )
        self.steps_per_epoch = len(self.train) // config.batch_size
        self.optimizer = torch.optim.AdamW(
            self._groups(),
            lr=config.lr,
            weight_decay=config.weight_decay,
            fused=True,
        )
        whole = torch.nn.ModuleDict({"network": self.network, "objective": self.objective})
        self.learned = {name: p for name, p in whole.named_parameters() if p.requires_grad}
        # The buffers are statistics of batch normalisation.
        self.buffers = dict(whole.named_buffers())
        self.average = self._copy()
        self._relevance: Floats | None = None
        if config.choose != "recall":
            numbers = np.concatenate(held_out.captions)
            texts = [captions.texts[number] for number in numbers]
            self._relevance = rouge_l_matrix(texts, held_out.owners)
        self.state = RunState()
        # This is the loss of the last batch.
        self._loss = 0.0

    @property
    def steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    def run(self) -> Iterator[TrainingProgress]:
        """Run the training to completion. After each validation, the best weights so far are saved
        in the folder."""
        if self._state_path.exists():
            self._restore()
        else:
            self._begin()
        config = self.config
        saved_at = time.monotonic()
        while not self.state.over(config, self.steps):
            epoch, done = divmod(self.state.step, self.steps_per_epoch)
            rng = np.random.default_rng((config.seed, epoch))
            drawn = self.train.batches(config.batch_size, config.captions_per_picture, rng)
            for number, batch in enumerate(drawn):
                if number < done:
                    continue
                # On a CPU, gradients of fused attention are several times slower for small sets.
                with sdpa_kernel(SDPBackend.MATH) if self.device == "cpu" else nullcontext():
                    self._step(*batch)
                self.state = replace(self.state, step=self.state.step + 1)
                yield TrainingProgress(self.state.step, self.steps, epoch, self._loss)
                if time.monotonic() - saved_at > SAVE_SECONDS and number + 1 < self.steps_per_epoch:
                    self._save()
                    saved_at = time.monotonic()
            recalls = self._validate()
            self._save()
            saved_at = time.monotonic()
            yield TrainingProgress(
                self.state.step,
                self.steps,
                epoch,
                self._loss,
                recalls,
            )

    def _save(self) -> None:
        """Save the state from which a run can resume, by atomically replacing a safetensors
        file."""
        flat = {
            f"{kind}.{name}": tensor.detach().cpu().contiguous()
            for kind, named in self._tensors.items()
            for name, tensor in named.items()
        }
        for number, moments in self.optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                moment = torch.as_tensor(value).detach().cpu().contiguous()
                flat[f"optimizer.{number}.{name}"] = moment
        self._state_path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._state_path) as temporary:
            save_file(
                flat,
                temporary,
                metadata={"state": json.dumps(asdict(self.state))},
            )

    @torch.no_grad()
    def _restore(self) -> None:
        """Restore a saved run's state, tensors and optimizer."""
        tensors = self._tensors
        moments: dict[int, dict[str, Tensor]] = {}
        with safe_open(self._state_path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 (not a dict)
                kind, _, name = key.partition(".")
                if kind == "optimizer":
                    number, _, moment = name.partition(".")
                    moments.setdefault(int(number), {})[moment] = file.get_tensor(key)
                else:
                    tensors[kind][name].copy_(file.get_tensor(key))
            self.state = RunState(**parse_json(file.metadata()["state"]))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})

    @property
    def _tensors(self) -> dict[str, Mapping[str, Tensor]]:
        return {"learned": self.learned, "average": self.average, "buffer": self.buffers}

    def _groups(self) -> list[dict[str, Any]]:
        text = list(self.network.txt_enc.parameters())
        share = self.config.text_lr
        for parameter in text:
            parameter.requires_grad_(share != 0)
        named = self.network.named_parameters()
        others = [parameter for name, parameter in named if not name.startswith("txt_enc.")]
        others += self.objective.parameters()
        groups: list[dict[str, Any]] = [{"params": others, "share": 1.0}]
        if share:
            groups.append({"params": text, "share": share})
        return groups

    def _step(
        self,
        pictures: Any,
        numbers: Any,
        positive: Tensor,
    ) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(pictures, numbers, positive)
        loss.backward()
        self._loss = float(loss.detach())
        parameters = []
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * self.config.lr * self._factor(self.state.step)
            parameters += group["params"]
        torch.nn.utils.clip_grad_norm_(parameters, self.config.clip)
        self.optimizer.step()
        update_average(
            self.average,
            self.learned,
            self.config.average,
            self.state.step,
        )

    def loss(
        self,
        pictures: Any,
        numbers: Any,
        positive: Tensor,
    ) -> Tensor:
        """Compute the loss of a batch, given picture and caption numbers, and a mask (pictures,
        captions) of captions that describe a picture."""
        config = self.config
        step = self.state.step
        torch.manual_seed(config.seed * 1_000_003 + step)
        self.network.train()
        self.objective.train()
        if not config.text_lr:
            self.network.txt_enc.eval()
        features, boxes, lengths = (
            each.to(self.device) for each in self.regions(pictures, config.region_keep)
        )
        features = torch.nn.functional.dropout(features, 1 - config.feature_keep)
        # The network reads these rows instead of the captions, with reversed captions last.
        rows = [self.captions.ids[number] for number in numbers]
        apart: Tensor | None = None
        turned: list[int] = []
        if self.fragments is not None:
            rows = self.fragments.cut(numbers, np.random.default_rng((config.seed, step, 1)))
            apart = self.fragments.apart(pictures, rows).to(self.device)
        if config.opposites:
            turned, more = exchange_opposites(
                rows,
                self.captions.opposites,
                self.captions.stops,
            )
            rows = [*rows, *more]
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.mixed):
            images = self.network.images(features, boxes, lengths)
            mask = self.network.region_mask(lengths, images.sets.shape[1])
            chunks = self.captions.encode(
                self.network,
                numbers,
                self.device,
                rows,
            )
        loss: Tensor = self.objective(
            images,
            lengths,
            mask,
            chunks,
            numbers,
            positive.to(self.device),
            self._negatives(step),
            apart,
            turned,
        )
        return loss

    def _factor(self, step: int) -> float:
        if self.config.schedule == "cosine":
            return cosine(step, self.config.warmup, self.steps)
        past = step // self.steps_per_epoch // self.config.decay_epochs
        # Steps count from 2, as in the published warm-up.
        return min(1.0, (step + 2) / max(1, self.config.warmup)) * self.config.decay**past

    def _negatives(self, step: int) -> int:
        first = self.config.negatives_first
        last = self.config.negatives_last
        return round(float(first * (last / first) ** min(1.0, 1.5 * step / self.steps)))

    def _begin(self) -> None:
        """Scale the features, and start from the closed-form solution, if the settings request
        this."""
        config = self.config
        power = self.network.config.region_power

        def rows_of(picture: int) -> Tensor:
            features, _, _ = self.regions([picture])
            return signed_power(features[0], power)

        if getattr(self.network.config, "scaled", False):
            # The feature scale is estimated from the regions of 1,000 pictures.
            _, sample = self.train.hold_out(1000, config.seed)
            scale(self.network, torch.cat([rows_of(i) for i in sample.pictures]))
        if not config.warm_start:
            return
        _, pairs = self.train.hold_out(20_000, config.seed)
        regions = torch.stack([rows_of(i).mean(dim=0).nan_to_num() for i in pairs.pictures])
        numbers = np.concatenate(pairs.captions)
        if self.network.text["kind"] == "embedding":
            latent_semantics(self.network.txt_enc.embed, self.captions.bags(numbers))
        words = self.captions.means(self.network, numbers, self.device)
        warm_start(self.network, regions[pairs.owners], words, config.averaging)
        self.average = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        """Return copies of all learned tensors."""
        return {name: parameter.detach().clone() for name, parameter in self.learned.items()}

    def _validate(self) -> Recalls:
        """Evaluate the averaged weights on the held-out pictures, and save the weights if they are
        the best so far, or if ``config.keep`` is "last"."""
        weights = self._copy()
        self._set(self.average)
        owners = self.held_out.owners
        scores = self.scores()
        recalls = evaluate_recall(scores, owners)
        entry = {"step": self.state.step, "loss": self._loss, **asdict(recalls)}
        ndcg: Ndcg | None = None
        if self._relevance is not None:
            ndcg = evaluate_ndcg(scores, owners, self._relevance)
            entry["ndcg"] = asdict(ndcg)
        self.state = replace(self.state, history=[*self.state.history, entry])
        score = CHOICES[self.config.choose](recalls, ndcg)
        if score > self.state.best or self.config.keep == "last":
            save_weights(self.folder, self.network.state_dict())
            self.state = replace(
                self.state,
                best=score,
                best_step=self.state.step,
            )
        self._set(weights)
        return recalls

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.learned.items():
            parameter.copy_(values[name])

    @torch.inference_mode()
    def vectors(
        self,
        pictures: Ints,
        numbers: Ints,
    ) -> tuple[Floats, Floats]:
        """Compute the vectors of pictures, and of captions by number."""
        images = [encoded.vectors for encoded, _ in self._images(pictures)]
        chunks = self.captions.encode(self.network, numbers, self.device)
        texts = in_order(chunks, [chunk.encoded.vectors.T for chunk in chunks]).T
        one, other = (each.float().cpu().numpy() for each in (torch.cat(images), texts))
        return one, other

    def _images(self, pictures: Ints) -> Iterator[tuple[Encodings, Tensor]]:
        """Yield batches of encoded pictures, with the region rows of their sets."""
        network = self.network.eval()
        for batch in batches(pictures, EVAL_BATCH):
            features, boxes, lengths = (each.to(self.device) for each in self.regions(batch))
            images = network.images(features, boxes, lengths)
            yield images, network.region_mask(lengths, images.sets.shape[1])

    def bank(self) -> HubBank | None:
        """Return the query bank for the best weights, or None if a bank does not improve recall on
        the held-out pictures, or if there are too few pictures."""
        held_out = self.held_out
        if len(self.train) < SIZE or len(held_out) < LEAST:
            return None
        self.network.load_state_dict(load_file(self.folder / WEIGHTS))
        _, sample = self.train.hold_out(SIZE, self.config.seed)
        first = np.array([numbers[0] for numbers in sample.captions])
        bank_images, bank_texts = self.vectors(sample.pictures, first)
        images, texts = self.vectors(held_out.pictures, np.concatenate(held_out.captions))
        return choose_bank(bank_texts, bank_images, texts, images, held_out.owners)

    @torch.inference_mode()
    def scores(self) -> Floats:
        """Compute the ranking scores (captions, pictures) of the held-out pictures and all their
        captions."""
        objective = self.objective.eval()
        numbers = np.concatenate(self.held_out.captions)
        chunks = self.captions.encode(self.network.eval(), numbers, self.device)
        scores = [
            objective.scores(objective.ranking, images, mask, chunks).cpu().numpy()
            for images, mask in self._images(self.held_out.pictures)
        ]
        return np.ascontiguousarray(np.concatenate(scores).T, np.float32)


def cosine(step: int, warmup: int, steps: int) -> float:
    """Return the learning rate factor at ``step`` (from 0), which rises linearly and then falls to
    0 along half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    angle = math.pi * (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1 + math.cos(angle))


@torch.no_grad()
def update_average(
    average: dict[str, Tensor],
    learned: Mapping[str, Tensor],
    decay: float,
    step: int,
) -> None:
    """Move the running average towards ``learned``, in place. Early steps have more weight, so that
    the average is unbiased."""
    share = 1 - min(decay, (step + 1) / (step + 10))
    for name, tensor in learned.items():
        average[name].lerp_(tensor, share)
