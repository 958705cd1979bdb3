"""The tables of a paper from the files that its authors published: every printed number beside the one found here.

    python -m bench.paper.reproduce PAPER DATA --out OUT            # tern, teran, vsrn, vsrnpp or boc
    python -m bench.paper.reproduce PAPER DATA --needs              # what DATA has to hold, and what of it is there
    python -m bench.paper.reproduce PAPER DATA --out OUT --device cuda

Published checkpoints are converted, the features of the test pictures encoded and evaluated; of VSRN++, which has no
published checkpoint, two models are trained. What needs a file that is not in DATA is left out. After a kill the same
command continues: a stage is repeated only if its command or its inputs have changed. Records and logs of the stages
are in OUT/stages.

A row holds the test set, the model, the measure, the printed number, the one found, their difference, and a verdict:
``reproduced`` (the printed digits), ``near`` (what a seed moves), ``differs``, or ``not run``. Recalls are in percent,
"image" is image retrieval. The rows of BoC are those of its Table I on MS-COCO 5K; its figures have no printed numbers,
OUT/boc-sparsity.csv has their points and OUT/boc-claims.csv what the paper says of them.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from bench.paper.needs import TERN, VOCABULARY, placed, show_needs
from bench.paper.printed import GRADED, MEASURES, PRINTED, verdict
from bench.paper.table1 import PAPER as TABLE1
from bench.report.rows import Writer
from bench.run import Runner, listing, locked, told
from bench.stages import BOC, PYTHON, Stage
from boc import plugins
from boc.errors import BocError

PICTURES = {"coco": {"test": 5000, "val": 5000, "train": 113_287}, "f30k": {"test": 1000, "val": 1014, "train": 29_000}}
SECONDS = {"encode": 0.07, "regions": 0.02, "train": 0.33, "evaluate": 0.01, "align": 0.3, "table": 3600.0}
"""Seconds per picture with its five captions (``train``: and epoch; ``table``: for all), on two cores without a GPU,
until a stage of that kind is done. They were measured with drawn weights and arrays of the published sizes, but for
``regions`` and ``table``, which are guesses."""
EPOCHS = 80  # of the recipe vsrnpp
COLUMNS = ("set", "model", "measure", "printed", "found", "difference", "verdict")
SIDES = {"image": "text_to_image", "sentence": "image_to_text"}
KEYS = {"R@1": "r1", "R@5": "r5", "R@10": "r10"}


@dataclass(frozen=True)
class Line:
    """A model on a test set: ``found`` by relevance, the files that ``boc evaluate --json`` wrote; ``folds`` if the
    set is their mean."""

    set: str
    model: str
    found: dict[str, Path]
    folds: bool = False


@dataclass
class Plan:
    """The stages and lines of one paper over DATA, for results in OUT.

    ``settings`` are for ``boc train --set``. Of BoC, ``sample`` is the part of the training pictures that codebooks are
    made of, more than 100,000 concepts, ``alone`` that encoded without context, ``points`` options of its figures.
    """

    data: Path
    out: Path
    device: str = "auto"
    fold: int = 1000
    clusters: int = 1000
    settings: tuple[str, ...] = ()
    sample: str = "1/20"
    alone: str = "1/75"
    points: tuple[object, ...] = ()
    stages: list[Stage] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def tern(self) -> None:
        """Table I of TERN, with the sentence retrieval that the paper of TERAN prints."""
        self._measured("TERN", "coco", "dot", [self._encoded("tern", "tern", TERN.path, "coco")])

    def teran(self) -> None:
        """The rows TERAN MrSw of Tables 1-3 of TERAN."""
        for data in ("coco", "f30k"):
            file = self._encoded(f"teran-{data}", "teran", f"teran/{data}.pth", data)
            self._measured("TERAN MrSw", data, "mrsw", [file])

    def vsrn(self) -> None:
        """The rows VSRN of Tables 1-3 of VSRN++: two models of each data set, and the mean of their scores."""
        for data, split, folder, name in (("coco", "testall", "coco", "coco"), ("f30k", "test", "flickr", "fliker")):
            array, tokens = self.data / f"{data}_precomp/{split}_ims.npy", f"vocab/{data}_precomp_vocab.pkl"
            files = []
            for number in (1, 2):
                label, checkpoint = f"vsrn-{data}-{number}", f"pretrain_model/{folder}/model_{name}_{number}.pth.tar"
                model = self._converted(label, checkpoint, tokens, f"scan:{array.parent}", array)
                files.append(self._extracted(label, "vsrn", model, array, (array,), count=PICTURES[data]["test"]))
            self._measured("VSRN (two models)", data, "dot", files, graded=False)

    def vsrnpp(self) -> None:
        """The rows VSRN++ of its Tables 1-3, by two trainings that differ in their seeds."""
        for data in ("coco", "f30k"):
            table, features = self._table(data), self._regions(data)
            regions, arguments = self.out / f"{data}-regions.h5", ("--regions", features)
            folder = self.data / data / "features_36"
            pictures = PICTURES[data]
            self._boc(f"{data}-regions", ("extract", table, *self._pictures(data), "-o", regions, *arguments),
                      (table, folder), regions, cost=("regions", sum(pictures.values())))  # fmt: skip
            ids = {split: self.out / data / f"{split}.ids.txt" for split in ("train", "val", "test")}
            files = []
            for seed in (0, 1):
                label, bert = f"vsrnpp-{data}-{seed}", self.data / "bert"
                model = self.out / label
                learn = ("train", regions, "--ids", ids["train"], "--validate", ids["val"], "-o", model, "--recipe",
                         "vsrnpp", "--text", bert, "--seed", seed, *arguments, "--device", self.device)  # fmt: skip
                more = [word for setting in self.settings for word in ("--set", setting)]
                self._boc(label, (*learn, *more), (regions, bert), model, cost=("train", EPOCHS * pictures["train"]))
                test = ("--ids", ids["test"])
                files.append(
                    self._extracted(label, "vsrnpp", model, regions, (regions, model), test, count=pictures["test"])
                )
            self._measured("VSRN++ (two models)", data, "dot", files, graded=False)

    def boc(self) -> None:
        """Table I of the Bag of Concepts paper on COCO, the points of its Fig. 3, and its claims."""
        dev = self._encoded("tern", "tern", TERN.path, "coco")
        train = self._encoded("tern-train", "tern", TERN.path, "coco", "train", ("--shard", self.sample))
        alone = self._encoded("tern-alone", "tern", TERN.path, "coco", "train", ("--shard", self.alone), "?alone")
        books = self.out / "codebooks"
        size = ("--clusters", self.clusters, "--codebooks", books)
        table, sparsity = self.out / "boc-table1.csv", self.out / "boc-sparsity.csv"
        self._rows("boc-table1", "table1", (dev, "--fit", train, "--alone-train", alone, *size), (dev, train, alone))
        self._rows("boc-sparsity", "sparsity_recall", (dev, "--fit", train, "--alone", alone, *size, *self.points),
                   (dev, train, alone, table))  # fmt: skip
        self._rows("boc-claims", "claims", (table, sparsity), (table, sparsity))

    def cells(self) -> Iterator[tuple[str, str, str, float, float | None]]:
        """(set, model, measure, printed, found) of every printed number; None where it was not run."""
        for line in self.lines:
            tables = {relevance: _table(path, folds=line.folds) for relevance, path in line.found.items()}
            for measure in (*MEASURES, *GRADED):
                printed = PRINTED[line.model, line.set].get(measure)
                if printed is None:
                    continue
                side, name = measure.split(" ")
                table = tables.get("ROUGE-L" if name in KEYS else name)
                found = None if table is None else table[SIDES[side]].get(KEYS.get(name, "ndcg"))
                yield line.set, line.model, measure, printed, found
        if any(stage.name == "boc-table1" for stage in self.stages):
            yield from self._table1()

    def _table1(self) -> Iterator[tuple[str, str, str, float, float | None]]:
        found: dict[str, dict[str, str]] = {}
        path = self.out / "boc-table1.csv"
        if path.is_file():
            rows = csv.DictReader(line for line in path.read_text("utf-8").splitlines() if not line.startswith("# "))
            found = {row["model"]: row for row in rows if not row["minus"]}
        for model, numbers in TABLE1.items():
            for measure, printed in zip(MEASURES, numbers, strict=False):
                cell = found.get(model, {}).get(measure)
                yield "MS-COCO 5K", model, measure, printed, None if cell is None else float(cell)

    def _pictures(self, data: str) -> tuple[object, ...]:
        return "--images", self.data / "coco" if data == "coco" else self.data / "f30k" / "flickr30k-images"

    def _regions(self, data: str) -> str:
        """The region source of the published features."""
        folder = self.data / data / "features_36"
        index = placed(self.data, "f30k/dataset_flickr30k.json")
        return f"files:{folder}" + ("" if data == "coco" else f"?index={index}")

    def _table(self, data: str) -> Path:
        """The table of captions, and beside it the lists of splits."""
        corpus = {"coco": "coco", "f30k": "flickr30k"}[data]
        path, table = placed(self.data, f"{data}/dataset_{corpus}.json"), self.out / data / "captions.csv"
        joined = ("--restval",) if data == "coco" else ()
        words = ("bench.datasets.make", corpus, path, *self._pictures(data), "-o", table.parent, *joined)
        self._stage(Stage(f"{data}-captions", (*PYTHON, *map(str, words)), (path,), table))
        return table

    def _encoded(
        self,
        label: str,
        kind: str,
        checkpoint: str,
        data: str,
        split: str = "test",
        more: tuple[object, ...] = (),
        context: str = "",
    ) -> Path:
        """The pictures and captions of a split by a published TERN or TERAN."""
        table, folder = self._table(data), self.data / data / "features_36"
        name = label if kind == "teran" else kind
        model = self._converted(name, checkpoint, VOCABULARY.path, self._regions(data), folder)
        ids = ("--ids", table.with_name(f"{split}.ids.txt"), *self._pictures(data), *more)
        part, _, parts = str(more[1]).partition("/") if more else ("1", "", "1")
        count = PICTURES[data][split] * int(part) / int(parts)
        return self._extracted(label, kind, model, table, (table, folder), ids, context, count)

    def _converted(self, name: str, checkpoint: str, tokens: str, regions: str, features: Path) -> Path:
        """The model folder of a published checkpoint."""
        paths, model = (self.data / checkpoint, self.data / tokens), self.out / name
        words = ("convert", paths[0], "-o", model, "--tokens", paths[1], "--regions", regions, "--replace")
        self._boc(f"{name}-model", words, (*paths, features), model / "config.json")
        return model

    def _extracted(
        self,
        label: str,
        kind: str,
        model: Path,
        source: Path,
        reads: tuple[Path, ...],
        more: tuple[object, ...] = (),
        context: str = "",
        count: float = 0,
    ) -> Path:
        made = self.out / f"{label}.h5"
        words = ("extract", source, "-o", made, "--encoder", f"{kind}:{model}{context}", "--device", self.device, *more)
        note = model if kind == "vsrnpp" else model / "config.json"
        self._boc(label + "-vectors", words, (*reads, note), made, cost=("encode", count))
        return made

    def _measured(self, model: str, data: str, score: str, files: list[Path], *, graded: bool = True) -> None:
        """The lines of a model, an ensemble if there are several ``files``."""
        name = files[0].stem.removesuffix("-1").removesuffix("-0")
        found: dict[str, Path] = {}
        for relevance in ("ROUGE-L", "SPICE") if graded else ("ROUGE-L",):
            matrix = self.data / data / "relevances" / f"{data}-test-spice.npy"
            if relevance == "SPICE" and not matrix.exists():
                continue
            label = f"{name}-{relevance.lower()}"
            given: tuple[object, ...] = ("--ndcg", matrix if relevance == "SPICE" else "rouge-l") if graded else ()
            given += ("--device", self.device) if self.device == "cuda" and score != "dot" else ()
            words = ("evaluate", *files, "--score", score, "--fold", self.fold, "--json", *given)
            made = found[relevance] = self.out / f"{label}.json"
            reads = (*files, matrix) if relevance == "SPICE" else tuple(files)
            kind = "evaluate" if score == "dot" else "align"
            self._boc(label, words, reads, made, prints=True, cost=(kind, PICTURES[data]["test"]))
        if data == "coco":
            self.lines.append(Line("MS-COCO 1K", model, found, folds=True))
        self.lines.append(Line("MS-COCO 5K" if data == "coco" else "Flickr30K 1K", model, found))

    def _boc(
        self,
        name: str,
        words: tuple[object, ...],
        reads: tuple[Path, ...],
        made: Path,
        *,
        prints: bool = False,
        cost: tuple[str, float] = ("", 0.0),
    ) -> None:
        self._stage(Stage(name, (*BOC, *map(str, words)), reads, made, prints, cost=cost))

    def _rows(self, name: str, script: str, words: tuple[object, ...], reads: tuple[Path, ...]) -> None:
        command = (*PYTHON, f"bench.paper.{script}", *map(str, words))
        self._stage(Stage(name, command, reads, self.out / f"{name}.csv", prints=True, cost=("table", 1)))

    def _stage(self, stage: Stage) -> None:
        if stage.name not in {known.name for known in self.stages}:
            self.stages.append(stage)


PAPERS: dict[str, Callable[[Plan], None]] = {
    "tern": Plan.tern, "teran": Plan.teran, "vsrn": Plan.vsrn, "vsrnpp": Plan.vsrnpp, "boc": Plan.boc,
}  # fmt: skip


def _table(path: Path, *, folds: bool) -> dict[str, dict[str, float]] | None:
    """The figures by direction; None if they were not measured."""
    if not path.is_file():
        return None
    tables: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return next((table for label, table in tables.items() if label.startswith("mean") == folds), None)


def tell_time(runner: Runner) -> None:
    """The time left, on stderr."""
    seconds = runner.seconds_left(SECONDS)
    if seconds >= 60:
        told(f"about {seconds / 3600:.1f} hours left, as far as known")


def write_cells(plan: Plan, paper: str) -> None:
    """The rows, on stdout."""
    with Writer(sys.stdout, __file__, {"paper": paper, "fold": plan.fold, "settings": plan.settings}, COLUMNS) as out:
        for group, model, measure, printed, found in plan.cells():
            digits = 1 if "R@" in measure else 3
            numbers = (None, None) if found is None else (f"{found:.{digits}f}", f"{found - printed:+.{digits}f}")
            out.write(group, model, measure, f"{printed:.{digits}f}", *numbers, verdict(measure, printed, found))


def check_settings(paper: str, settings: tuple[str, ...]) -> None:
    """UsageError for settings that the training of the paper does not take, before regions are cut for hours."""
    if settings and paper != "vsrnpp":
        raise click.UsageError(
            f"--set is for the training of vsrnpp; the models of {paper} are published, leave it out"
        )
    pairs = [setting.partition("=") for setting in settings]
    wrong = next((name for name, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise click.UsageError(f"--set takes NAME=VALUE, got {wrong!r}")
    if pairs:
        try:
            plugins.trainer().Recipe.of("vsrnpp", {name: value for name, _, value in pairs})
        except BocError as error:
            raise click.UsageError(f"--set: {error}") from error


@click.command()
@click.argument("paper", type=click.Choice(list(PAPERS)))
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", default="reproduced", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Device of torch."
)
@click.option("--fold", type=click.IntRange(1), default=1000, show_default=True, help="Number of pictures per fold.")
@click.option(
    "--clusters", type=click.IntRange(2), default=1000, show_default=True, help="Size of the codebooks of BoC."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the training of VSRN++.")
@click.option("--needs", is_flag=True, help="Tell what DATA has to hold and how the stages stand; run nothing.")
def main(
    paper: str, data: Path, out: Path, device: str, fold: int, clusters: int, settings: tuple[str, ...], needs: bool
) -> None:
    """Reproduce the tables of PAPER from DATA, or continue a stopped run."""
    check_settings(paper, settings)
    plan = Plan(data.resolve(), out.resolve(), device, fold, clusters, settings)
    PAPERS[paper](plan)
    runner = Runner(plan.out, plan.stages)
    runner.after = partial(tell_time, runner)
    show_needs(paper, data)
    needed = runner.needed([stage.name for stage in plan.stages])
    if needs:
        listing(runner, needed)
    tell_time(runner)
    if needs:
        return
    (plan.out / "stages").mkdir(parents=True, exist_ok=True)
    with locked(plan.out):
        fine = runner.run(needed)
    write_cells(plan, paper)
    failed = [stage.name for stage in plan.stages if runner.state[stage.name] == "failed"]
    if not fine:
        told(f"failed: {', '.join(failed)}; see above, mend it and repeat the command")
        sys.exit(1)
    if all(found is None for *_, found in plan.cells()):
        told(f"no number of the paper was found, since {data} lacks what is named as missing above")
        sys.exit(1)


if __name__ == "__main__":
    main()
