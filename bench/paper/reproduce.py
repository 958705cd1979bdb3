"""Reproduce the tables of a paper from its authors' published files, and compare every printed
figure with boc's figure.

    # PAPER is tern, teran, vsrn, vsrnpp or boc
    python -m bench.paper.reproduce PAPER DATA --out OUT
    # list the files required in DATA
    python -m bench.paper.reproduce PAPER DATA --needs

The script converts published checkpoints, encodes the test pictures from the published features,
and evaluates the results. VSRN++ has no published checkpoint, so the script trains two models.
Steps whose files are missing in DATA are skipped. A step whose result is already in OUT is not
repeated, so you can run the same command again to resume a killed run. The log of a step is
OUT/logs/STEP.log.

A row contains the test set, the model, the measure, the printed figure, boc's figure, the
difference, and a verdict: ``reproduced`` (the printed digits), ``near`` (within the effect of a
seed), ``differs``, or ``not run``. Recalls are in percent; "image" is image retrieval. For BoC, the
rows are the rows of Table I on MS-COCO 5K. The paper does not print the values of its figures;
OUT/boc-sparsity.csv contains boc's points for these figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import click

from bench.options import FOLDER
from bench.paper.printed import GRADED, MEASURES, PRINTED, verdict
from bench.paper.table1 import PAPER as TABLE1
from bench.report.rows import Writer, read
from boc import plugins
from boc.errors import BocError

BOC = (sys.executable, "-c", "from boc.cli import main; main()")
COLUMNS = ("set", "model", "measure", "printed", "found", "difference", "verdict")
SIDES = {"image": "text_to_image", "sentence": "image_to_text"}
KEYS = {"R@1": "r1", "R@5": "r5", "R@10": "r10"}
TERN = "model_best_ndcg.pth"
VOCABULARY = "bert/vocab.txt"
KINDS = {  # kind of file in DATA: path pattern, and where the file is published
    "*/dataset_*.json": "Karpathy's splits (caption_datasets.zip)",
    "*/val2014": "pictures of COCO val2014, whose sizes the "
    "boxes need; to train, coco/train2014 too",
    "*/train2014": "pictures of COCO train2014",
    "*/flickr30k-images": "pictures of Flickr30k",
    "*/features_36": "TERN's and TERAN's archives features_36_*.tgz: "
    "cocobu_att/ID.npz, cocobu_box/ID.npy "
    "(or bu_att, "
    "bu_box); 0.3 MB per picture",
    "*/relevances/*.npy": "SPICE of the test set, for that column only; float32, no header",
    "bert/vocab.txt": "word-pieces of bert-base-uncased; 30,522 lines",
    "bert": "folder of bert-base-uncased: config.json, vocab.txt, weights; 0.4 GB",
    TERN: "from TERN_model_best_ndcg.pth.tgz; 0.8 GB and more",
    "teran/*.pth": "the MrSw model of this data set from "
    "TERAN_pretrained_models.tgz, under this name; "
    "0.9 GB",
    "*_ims.npy": "SCAN's arrays, with the captions beside it; 0.3 to 1.5 GB",
    "vocab/*.pkl": "the vocabulary in VSRN's repository",
    "pretrain_model/*": "from VSRN's pretrain_model; 0.4 GB",
}


@dataclass(frozen=True)
class Step:
    """Step that runs a command to create a file. If ``prints`` is true, the file contains the
    command's stdout."""

    name: str
    command: tuple[str, ...]
    needs: tuple[Path, ...]
    makes: Path
    prints: bool = False

    def run(self, log: Path) -> None:
        """Run the command. Raises CalledProcessError if it fails."""
        printed = (
            self.makes.with_name(self.makes.name + ".part")
            if self.prints
            else log.with_suffix(".out")
        )
        with log.open("wb") as stderr, printed.open("wb") as stdout:
            subprocess.run(self.command, check=True, stdout=stdout, stderr=stderr)
        if self.prints:
            printed.replace(self.makes)


@dataclass(frozen=True)
class Line:
    """Model on a test set, with the outputs of `boc evaluate --json` by relevance. ``folds`` is
    true if the figures are means over folds."""

    set: str
    model: str
    files: dict[str, Path]
    folds: bool = False


@dataclass
class Plan:
    """Steps and table lines for one paper on the files in DATA, with results in OUT.

    ``settings`` configure the training of VSRN++. For BoC, ``sample`` selects the training pictures
    used for codebooks, which must have more than 100,000 concepts, ``alone`` selects the pictures
    encoded without context, and ``points`` are options of the figures.
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
    steps: dict[str, Step] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    matrices: list[Path] = field(default_factory=list)

    def tern(self) -> None:
        """Plan Table I of TERN, with the figures for sentence retrieval from the TERAN paper."""
        self.measure("TERN", "coco", "dot", [self.encode("tern", "tern", TERN, "coco")])

    def teran(self) -> None:
        """Plan the TERAN MrSw rows in Tables 1-3 of TERAN."""
        for data in ("coco", "f30k"):
            self.measure(
                "TERAN MrSw",
                data,
                "mrsw",
                [self.encode(f"teran-{data}", "teran", f"teran/{data}.pth", data)],
            )

    def vsrn(self) -> None:
        """Plan the VSRN rows in Tables 1-3 of VSRN++, which use the mean score of two models per
        dataset."""
        for data, split, folder, name in (
            ("coco", "testall", "coco", "coco"),
            ("f30k", "test", "flickr", "fliker"),
        ):
            array = self.data / f"{data}_precomp/{split}_ims.npy"
            tokens = f"vocab/{data}_precomp_vocab.pkl"
            files = []
            for number in (1, 2):
                label = f"vsrn-{data}-{number}"
                checkpoint = f"pretrain_model/{folder}/model_{name}_{number}.pth.tar"
                model = self.convert(
                    label,
                    checkpoint,
                    tokens,
                    f"scan:{array.parent}",
                    array,
                )
                files.append(self.extract(label, "vsrn", model, array, (array,)))
            self.measure("VSRN (two models)", data, "dot", files, graded=False)

    def vsrnpp(self) -> None:
        """Plan the VSRN++ rows in Tables 1-3 of VSRN++, from two training runs with different
        seeds."""
        for data in ("coco", "f30k"):
            table = self.captions(data)
            source = self.regions(data)
            regions = self.out / f"{data}-regions.h5"
            words = ("extract", table, *self.images(data), "-o", regions, "--regions", source)
            self.boc_step(
                f"{data}-regions",
                words,
                (table, self.data / data / "features_36"),
                regions,
            )
            train, validate, test = (
                self.out / data / f"{split}.ids.txt" for split in ("train", "val", "test")
            )
            files = []
            for seed in (0, 1):
                label = f"vsrnpp-{data}-{seed}"
                bert = self.data / "bert"
                settings = (f"text={bert}", f"seed={seed}", *self.settings)
                learn = (
                    "train",
                    regions,
                    "--ids",
                    train,
                    "--validate",
                    validate,
                    "-o",
                    self.out / label,
                    "--recipe",
                    "vsrnpp",
                    "--regions",
                    source,
                    "--device",
                    self.device,
                    *(word for setting in settings for word in ("--set", setting)),
                )
                history = self.out / label / "history.json"
                self.boc_step(label, learn, (regions, bert), history)
                reads = (regions, history)
                files.append(
                    self.extract(
                        label,
                        "vsrnpp",
                        self.out / label,
                        regions,
                        reads,
                        ("--ids", test),
                    ),
                )
            self.measure("VSRN++ (two models)", data, "dot", files, graded=False)

    def boc(self) -> None:
        """Plan Table I of the Bag of Concepts paper on COCO, and the points in its Fig. 3."""
        dev = self.encode("tern", "tern", TERN, "coco")
        train = self.encode(
            "tern-train",
            "tern",
            TERN,
            "coco",
            "train",
            ("--shard", self.sample),
        )
        alone = self.encode(
            "tern-alone",
            "tern",
            TERN,
            "coco",
            "train",
            ("--shard", self.alone),
            "?alone",
        )
        size = ("--clusters", self.clusters, "--codebooks", self.out / "codebooks")
        reads = (dev, train, alone)
        self.rows_step(
            "boc-table1",
            "table1",
            (dev, "--fit", train, "--alone-train", alone, *size),
            reads,
        )
        self.rows_step(
            "boc-sparsity",
            "sparsity_recall",
            (dev, "--fit", train, "--alone", alone, *size, *self.points),
            (*reads, self.out / "boc-table1.csv"),
        )

    def cells(self) -> Iterator[tuple[str, str, str, float, float | None]]:
        """Yield (set, model, measure, printed, found) for every printed figure. ``found`` is None
        if the model was not run."""
        for line in self.lines:
            tables = {
                relevance: read_figures(path, folds=line.folds)
                for relevance, path in line.files.items()
            }
            for measure in (*MEASURES, *GRADED):
                printed = PRINTED[line.model, line.set].get(measure)
                if printed is not None:
                    side, name = measure.split(" ")
                    table = tables.get("ROUGE-L" if name in KEYS else name)
                    value = (
                        None if table is None else table[SIDES[side]].get(KEYS.get(name, "ndcg"))
                    )
                    yield line.set, line.model, measure, printed, value
        if "boc-table1" in self.steps:
            path = self.out / "boc-table1.csv"
            rows = (
                {row["model"]: row for row in read(path).table if not row["minus"]}
                if path.is_file()
                else {}
            )
            for model, numbers in TABLE1.items():
                for measure, printed in zip(MEASURES, numbers, strict=False):
                    cell = rows.get(model, {}).get(measure)
                    yield (
                        "MS-COCO 5K",
                        model,
                        measure,
                        printed,
                        None if cell is None else float(cell),
                    )

    def images(self, data: str) -> tuple[object, ...]:
        return (
            "--images",
            self.data / "coco" if data == "coco" else self.data / "f30k" / "flickr30k-images",
        )

    def splits(self, data: str) -> Path:
        """Return the path of Karpathy's file, which is either beside the caption files or in
        ``annotations``, as in TERAN's data.tar."""
        plain = self.data / data / f"dataset_{'coco' if data == 'coco' else 'flickr30k'}.json"
        other = plain.parent / "annotations" / plain.name
        return other if other.exists() and not plain.exists() else plain

    def regions(self, data: str) -> str:
        """Return the region source of the published features."""
        source = f"files:{self.data / data / 'features_36'}"
        return source if data == "coco" else f"{source}?index={self.splits(data)}"

    def captions(self, data: str) -> Path:
        """Add the step that creates the caption table and the split lists."""
        path = self.splits(data)
        table = self.out / data / "captions.csv"
        corpus, joined = ("coco", ("--restval",)) if data == "coco" else ("flickr30k", ())
        words = (corpus, path, *self.images(data), "-o", table.parent, *joined)
        command = (sys.executable, "-m", "bench.datasets.make", *map(str, words))
        pictures = self.data / ("coco/val2014" if data == "coco" else "f30k/flickr30k-images")
        self.add(Step(f"{data}-captions", command, (path, pictures), table))
        return table

    def encode(
        self,
        label: str,
        kind: str,
        checkpoint: str,
        data: str,
        split: str = "test",
        more: tuple[object, ...] = (),
        context: str = "",
    ) -> Path:
        """Add the steps that encode a split with a published TERN or TERAN."""
        table = self.captions(data)
        features = self.data / data / "features_36"
        name = label if kind == "teran" else kind
        model = self.convert(name, checkpoint, VOCABULARY, self.regions(data), features)
        ids = ("--ids", table.with_name(f"{split}.ids.txt"), *self.images(data), *more)
        return self.extract(label, kind, model, table, (table, features), ids, context)

    def convert(
        self,
        name: str,
        checkpoint: str,
        tokens: str,
        regions: str,
        features: Path,
    ) -> Path:
        """Add the step that converts a published checkpoint."""
        paths = (self.data / checkpoint, self.data / tokens)
        model = self.out / name
        words = ("convert", paths[0], "-o", model, "--tokens", paths[1], "--regions", regions)
        self.boc_step(f"{name}-model", words, (*paths, features), model / "config.json")
        return model

    def extract(
        self,
        label: str,
        kind: str,
        model: Path,
        source: Path,
        reads: tuple[Path, ...],
        more: tuple[object, ...] = (),
        context: str = "",
    ) -> Path:
        """Add the step that encodes a source with a model, and return its file."""
        file = self.out / f"{label}.h5"
        words = (
            "extract",
            source,
            "-o",
            file,
            "--encoder",
            f"{kind}:{model}{context}",
            "--device",
            self.device,
            *more,
        )
        config = () if kind == "vsrnpp" else (model / "config.json",)
        self.boc_step(f"{label}-vectors", words, (*reads, *config), file)
        return file

    def measure(
        self,
        model: str,
        data: str,
        score: str,
        files: list[Path],
        *,
        graded: bool = True,
    ) -> None:
        """Add the steps and lines of a model, which is an ensemble if it has several ``files``."""
        name = files[0].stem.removesuffix("-1").removesuffix("-0")
        spice = self.data / data / "relevances" / f"{data}-test-spice.npy"
        relevances: dict[str, tuple[object, ...]] = {
            "ROUGE-L": ("--ndcg", "rouge-l") if graded else (),
        }
        if graded:
            self.matrices.append(spice)
        if graded and spice.exists():
            relevances["SPICE"] = ("--ndcg", spice)
        results = {}
        for relevance, ndcg in relevances.items():
            words = ("evaluate", *files, "--score", score, "--fold", self.fold, "--json", *ndcg)
            results[relevance] = self.out / f"{name}-{relevance.lower()}.json"
            self.boc_step(
                results[relevance].stem,
                words,
                tuple(files),
                results[relevance],
                prints=True,
            )
        if data == "coco":
            self.lines.append(Line("MS-COCO 1K", model, results, folds=True))
        self.lines.append(Line("MS-COCO 5K" if data == "coco" else "Flickr30K 1K", model, results))

    def boc_step(
        self,
        name: str,
        words: tuple[object, ...],
        needs: tuple[Path, ...],
        makes: Path,
        prints: bool = False,
    ) -> None:
        self.add(Step(name, (*BOC, *map(str, words)), needs, makes, prints))

    def rows_step(
        self,
        name: str,
        script: str,
        words: tuple[object, ...],
        needs: tuple[Path, ...],
    ) -> None:
        command = (sys.executable, "-m", f"bench.paper.{script}", *map(str, words))
        self.add(Step(name, command, needs, self.out / f"{name}.csv", prints=True))

    def add(self, step: Step) -> None:
        self.steps.setdefault(step.name, step)

    def sources(self) -> list[Path]:
        """Return the files and folders in DATA that the steps need, and the SPICE matrices."""
        needs = dict.fromkeys(path for step in self.steps.values() for path in step.needs)
        products = {step.makes for step in self.steps.values()}
        return [path for path in (*needs, *self.matrices) if path not in products]

    def run(self) -> bool:
        """Run the unfinished steps whose input files exist. Return whether all these steps
        succeeded."""
        fine = True
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        for step in self.steps.values():
            if step.makes.exists():
                continue
            lacking = [path for path in step.needs if not path.exists()]
            if lacking:
                click.echo(f"{step.name}: skipped: needs {lacking[0]}", err=True)
                continue
            click.echo(f"{step.name}: running", err=True)
            log = self.out / "logs" / f"{step.name}.log"
            try:
                step.run(log)
            except subprocess.CalledProcessError:
                fine = False
                errors = log.read_text(encoding="utf-8", errors="replace").strip()
                click.echo(
                    f"{step.name}: failed: {errors.rpartition(chr(10))[2]} ({log})",
                    err=True,
                )
        return fine


PAPERS: dict[str, Callable[[Plan], None]] = {
    "tern": Plan.tern,
    "teran": Plan.teran,
    "vsrn": Plan.vsrn,
    "vsrnpp": Plan.vsrnpp,
    "boc": Plan.boc,
}


def read_figures(path: Path, *, folds: bool) -> dict[str, dict[str, float]] | None:
    """Return the figures by direction, or None without a measurement."""
    if not path.is_file():
        return None
    tables: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return next(
        (table for label, table in tables.items() if label.startswith("mean") == folds),
        None,
    )


def show_needs(plan: Plan) -> None:
    """Print the required files of DATA on stderr, one per line."""
    for path in plan.sources():
        name = path.relative_to(plan.data).as_posix()
        what = next(what for pattern, what in KINDS.items() if fnmatch(name, pattern))
        click.echo(f"{'there  ' if path.exists() else 'missing'} {path}: {what}", err=True)


def check_settings(paper: str, settings: tuple[str, ...]) -> None:
    """Raise UsageError for settings that the paper's training does not accept, before spending
    hours on extracting regions."""
    if settings and paper != "vsrnpp":
        raise click.UsageError(
            f"--set applies only to training vsrnpp; the models of {paper} are published; leave it "
            "out",
        )
    try:
        plugins.tool("train").Recipe.of(
            "vsrnpp",
            dict(setting.split("=", 1) for setting in settings),
        )
    except (BocError, ValueError) as error:
        raise click.UsageError(
            f"--set accepts NAME=VALUE of a training setting: {error}",
        ) from error


@click.command()
@click.argument("paper", type=click.Choice(list(PAPERS)))
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out",
    default="reproduced",
    show_default=True,
    type=FOLDER,
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
)
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of pictures per fold.",
)
@click.option(
    "--clusters",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="Size of BoC's codebooks.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Training setting for VSRN++; can be repeated.",
)
@click.option(
    "--needs",
    is_flag=True,
    help="List the required files in DATA without running any step.",
)
def main(
    paper: str,
    data: Path,
    out: Path,
    device: str,
    fold: int,
    clusters: int,
    settings: tuple[str, ...],
    needs: bool,
) -> None:
    """Reproduce the tables of PAPER from DATA, or resume an interrupted run."""
    check_settings(paper, settings)
    plan = Plan(data.resolve(), out.resolve(), device, fold, clusters, settings)
    PAPERS[paper](plan)
    show_needs(plan)
    if needs:
        return
    fine = plan.run()
    with Writer(
        sys.stdout,
        __file__,
        {"paper": paper, "fold": fold, "settings": settings},
        COLUMNS,
    ) as rows:
        for group, model, measure, printed, value in plan.cells():
            digits = 1 if "R@" in measure else 3
            found = None
            difference = None
            if value is not None:
                found = f"{value:.{digits}f}"
                difference = f"{value - printed:+.{digits}f}"
            rows.write(
                group,
                model,
                measure,
                f"{printed:.{digits}f}",
                found,
                difference,
                verdict(measure, printed, value),
            )
    if not fine:
        raise click.ClickException(
            "some steps failed; correct the errors above and repeat the command",
        )
    if all(value is None for *_, value in plan.cells()):
        raise click.ClickException(
            f"no number of the paper was found: {data} lacks the files named as missing above",
        )


if __name__ == "__main__":
    main()
