"""The studies of VSRN++ on any regions: ablations (Table 5), orders of regions (Table 6) and times (Table 4).

    python -m bench.paper.vsrnpp_tables regions.h5 --train train.ids.txt --test dev.ids.txt --out OUT
    python -m bench.paper.vsrnpp_tables f30k-regions.h5 --train ... --test ... --out OUT --published BERT --device cuda

Each line of the tables is a training of ``boc train`` on the pictures of --train, from the recipes ``photos-vsrn`` and
``photos-vsrnpp``, with --published those of the paper, and an evaluation on those of --test. After a kill the same
command continues. A row holds the table, the line of the paper, the measure, the mean over --runs seeds and their
standard deviation, and what the paper prints for Flickr30K (Table 6: the mean of five folds of MS-COCO 1K).

The text of VSRN is read by a layer of word vectors and a GRU, that of VSRN++ by a frozen BERT. "confidence" is the
order of the source, which is by confidence in detectors. Times are seconds for all pictures and captions of --test,
without regions and reading files: the smallest of three.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from numpy.typing import NDArray

from bench.paper.printed import MEASURES
from bench.report.rows import Writer
from bench.run import Runner, locked, told
from bench.stages import BOC, Stage
from boc import plugins
from boc.inputs.features import FeatureFile
from boc.inputs.text_lines import read_ids
from boc.types import Embeddings, Regions

T = TypeVar("T")
Matrix = NDArray[np.float32]
COLUMNS = ("table", "line", "measure", "runs", "found", "deviation", "printed")
SIDES = {"image": "text_to_image", "sentence": "image_to_text"}
BATCH = 128
TIMES = 3


@dataclass(frozen=True)
class Line:
    """A line of a table: its kind of network, settings beside those of the recipe, and the six printed recalls, image
    retrieval first."""

    table: str
    name: str
    kind: str
    settings: Mapping[str, object] = field(default_factory=dict)
    printed: str = ""

    @property
    def slug(self) -> str:
        return f"{self.table}-{self.name}".replace(" ", "-").replace("+", "and").lower()


WORDS = {"word_reasoning": 0, "sinkhorn": 0}
LINES = (
    Line("5", "visual mean", "vsrn", {"reasoning_layers": 0, "image_pooling": "mean"}, "44.1 73.3 82.2 59.4 84.9 91.3"),
    Line("5", "visual RRR", "vsrn", {"reasoning_layers": 1, "image_pooling": "mean"}, "48.8 78.0 86.2 67.3 89.0 94.0"),
    Line("5", "visual GSR", "vsrn", {"reasoning_layers": 0}, "50.9 78.7 86.3 68.5 89.2 94.2"),
    Line("5", "visual 1RRR+GSR", "vsrn", {"reasoning_layers": 1}, "52.4 79.1 86.4 70.3 89.5 94.2"),
    Line("5", "visual 4RRR+GSR", "vsrn", {}, "54.7 81.8 88.2 71.3 90.6 96.0"),
    Line("5", "visual 4RRR+GSR no generation", "vsrn", {"objective": "matching"}, "52.5 80.2 86.3 69.6 90.1 94.2"),
    Line("5", "visual 4RRR+LRR+GSR", "vsrn", {"kind": "vsrnpp", **WORDS}, "56.6 83.5 89.4 73.2 93.0 96.2"),
    Line("5", "textual mean", "vsrnpp", {**WORDS, "text_pooling": "mean"}, "43.8 74.4 83.0 56.4 85.5 91.8"),
    Line("5", "textual WRR", "vsrnpp", {"sinkhorn": 0, "text_pooling": "mean"}, "47.5 76.8 85.2 63.2 87.1 93.3"),
    Line("5", "textual GRU", "vsrnpp", WORDS, "57.6 84.2 90.4 74.7 93.2 96.2"),
    Line("5", "textual WRR+GRU", "vsrnpp", {"sinkhorn": 0}, "58.7 85.0 90.8 76.8 94.0 96.9"),
    Line("5", "with Sinkhorn", "vsrnpp", {}, "60.6 85.6 91.4 79.2 94.6 97.5"),
    Line("6", "random", "vsrn", {"region_order": "random"}, "61.6 89.0 94.5 74.8 94.0 97.8"),
    Line("6", "box size", "vsrn", {"region_order": "size"}, "62.4 89.4 94.8 75.6 94.5 98.2"),
    Line("6", "confidence reversed", "vsrn", {"region_order": "reversed"}, "62.6 89.7 95.1 75.8 94.9 98.3"),
    Line("6", "confidence", "vsrn", {}, "62.7 89.6 95.1 76.0 94.7 98.2"),
)
PRINTED_TIMES = {"VSRN": (16.7, 4.7), "VSRN++": (20.4, 4.9)}  # encoding and matching, of Flickr30K's 1K
TIMED = {"VSRN": "visual 4RRR+GSR", "VSRN++": "with Sinkhorn"}


@dataclass
class Plan:
    """The trainings and evaluations of ``lines``; lines of equal settings are trained once."""

    regions: Path
    train: Path
    test: Path
    out: Path
    lines: list[Line]
    runs: int = 1
    published: str | None = None
    device: str = "auto"
    settings: tuple[str, ...] = ()
    stages: list[Stage] = field(default_factory=list)
    models: dict[tuple[str, int], Path] = field(default_factory=dict)
    figures: dict[tuple[str, int], Path] = field(default_factory=dict)

    def plan(self) -> None:
        with FeatureFile(self.regions) as file:
            source = file.header.identity.spec
        for line in self.lines:
            like = next(known for known in LINES if (known.kind, known.settings) == (line.kind, line.settings))
            for seed in range(self.runs):
                model = self.out / f"{like.slug}-{seed}"
                self.models[line.slug, seed] = model
                self.figures[line.slug, seed] = model.with_suffix(".json")
                if like is line or like not in self.lines:
                    self._stages(line, seed, model, source)

    def _stages(self, line: Line, seed: int, model: Path, source: str) -> None:
        kind = str(line.settings.get("kind", line.kind))
        given = [f"--set={name}={value}" for name, value in line.settings.items()]
        given += [f"--set={setting}" for setting in self.settings]
        recipe = f"photos-{line.kind}" if self.published is None else {"vsrn": "vsrn-f30k"}.get(line.kind, line.kind)
        if self.published is not None and line.kind == "vsrnpp":
            given += ["--text", self.published]
        learn = ("train", self.regions, "--ids", self.train, "-o", model, "--recipe", recipe, "--regions", source,
                 "--seed", seed, "--device", self.device, *given)  # fmt: skip
        self._boc(model.name, learn, (self.regions, self.train), model)
        vectors = model.with_suffix(".h5")
        extract = ("extract", self.regions, "--ids", self.test, "-o", vectors, "--encoder", f"{kind}:{model}",
                   "--device", self.device)  # fmt: skip
        self._boc(f"{model.name}-vectors", extract, (self.regions, self.test, model), vectors)
        figures = model.with_suffix(".json")
        measure = ("evaluate", vectors, "--fold", 10**9, "--json")
        self._boc(f"{model.name}-recalls", measure, (vectors,), figures, prints=True)

    def _boc(
        self, name: str, words: tuple[object, ...], reads: tuple[Path, ...], made: Path, *, prints: bool = False
    ) -> None:
        self.stages.append(Stage(name, (*BOC, *map(str, words)), reads, made, prints))

    def rows(self) -> Iterator[tuple[object, ...]]:
        """The rows of the lines whose runs are done."""
        for line in self.lines:
            paths = [self.figures[line.slug, seed] for seed in range(self.runs)]
            if not all(path.is_file() for path in paths):
                continue
            tables = [next(iter(json.loads(path.read_text(encoding="utf-8")).values())) for path in paths]
            for measure, printed in zip(MEASURES, line.printed.split(), strict=True):
                side, name = measure.split(" ")
                found = [table[SIDES[side]][name.replace("@", "").lower()] for table in tables]
                apart = f"{statistics.stdev(found):.2f}" if len(found) > 1 else None
                yield line.table, line.name, measure, len(found), f"{statistics.mean(found):.1f}", apart, printed
        for name, of in TIMED.items():
            timed = next((line for line in self.lines if line.name == of), None)
            if timed is not None and (self.models[timed.slug, 0] / "history.json").is_file():
                kind = str(timed.settings.get("kind", timed.kind))
                seconds = self.times(f"{kind}:{self.models[timed.slug, 0]}")
                for measure, value, known in zip(("encoding", "matching"), seconds, PRINTED_TIMES[name], strict=True):
                    yield "4", name, f"{measure} (s)", TIMES, f"{value:.3f}", None, known

    def times(self, spec: str) -> tuple[float, float]:
        """Seconds to encode all pictures and captions of --test, and to compare each with each."""
        encoder, ids = plugins.encoder(spec, self.device), set(read_ids(self.test))
        with FeatureFile(self.regions) as file:
            offsets, items = file.offsets("image"), file.items("image")
            features, boxes = (file.mapped("image", f"ragged/{name}") for name in ("features", "boxes"))
            spans = [slice(offsets[i], offsets[i + 1]) for i, item in enumerate(items) if item.id in ids]
            pictures = [Regions(features[span].astype(np.float32), np.array(boxes[span])) for span in spans]
            captions = [item.content for item in file.items("text") if item.group in ids]

        def vectors(encode: Callable[[Any], Embeddings], inputs: Sequence[object]) -> Matrix:
            return np.concatenate([encode(inputs[at : at + BATCH]).vectors for at in range(0, len(inputs), BATCH)])

        encoding, (images, texts) = _least(
            lambda: (vectors(encoder.encode_images, pictures), vectors(encoder.encode_texts, captions))
        )
        return encoding, _least(lambda: texts @ images.T)[0]


def _least(work: Callable[[], T]) -> tuple[float, T]:
    """The smallest of three times, in seconds, and the result."""
    found = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        made = work()
        found.append(time.perf_counter() - begun)
    return min(found), made


@click.command()
@click.argument("regions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--train", required=True, type=click.Path(exists=True, path_type=Path), help="Ids to train on.")
@click.option("--test", required=True, type=click.Path(exists=True, path_type=Path), help="Ids to evaluate on.")
@click.option("--out", default="vsrnpp-tables", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--line", "names", multiple=True, help="Only this line, by its name; can be repeated [default: all].")
@click.option("--runs", default=1, show_default=True, type=click.IntRange(1), help="Seeds per line.")
@click.option("--published", metavar="BERT", help="The published recipes, over this bert-base-uncased.")
@click.option("--device", default="auto", show_default=True, help="Device of torch, for example cuda.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of all trainings.")
def main(
    regions: Path,
    train: Path,
    test: Path,
    out: Path,
    names: tuple[str, ...],
    runs: int,
    published: str | None,
    device: str,
    settings: tuple[str, ...],
) -> None:
    """Train and evaluate every line on REGIONS, or continue a stopped run."""
    unknown = sorted(set(names) - {line.name for line in LINES})
    if unknown:
        raise click.UsageError(f"no line {unknown[0]!r}; known: {', '.join(line.name for line in LINES)}")
    lines = [line for line in LINES if not names or line.name in names]
    plan = Plan(regions.resolve(), train.resolve(), test.resolve(), out.resolve(), lines, runs, published, device,
                settings)  # fmt: skip
    plan.plan()
    runner = Runner(plan.out, plan.stages)
    (plan.out / "stages").mkdir(parents=True, exist_ok=True)
    with locked(plan.out):
        fine = runner.run(runner.needed([stage.name for stage in plan.stages]))
    told_settings = {"regions": regions, "train": train, "test": test, "runs": runs, "published": published,
                     "settings": settings}  # fmt: skip
    with Writer(sys.stdout, __file__, told_settings, COLUMNS, extras=("torch",)) as rows:
        for row in plan.rows():
            rows.write(*row)
    if not fine:
        told("some stages failed; see above, mend it and repeat the command")
        sys.exit(1)


if __name__ == "__main__":
    main()
