"""Train the ablations (Table 5) and region orders (Table 6) of VSRN++ on any regions.

    python -m bench.paper.vsrnpp_tables regions.h5 --train train.ids.txt --test dev.ids.txt --out O

Each line is a training run of the recipe ``photos-vsrn`` or ``photos-vsrnpp``. An interrupted run
can be resumed. A row contains the recall on --test, and the paper's figures for Flickr30K (for
Table 6, the mean over five folds of MS-COCO 1K). "confidence" is the order of the source.
"""

import subprocess
import sys
from pathlib import Path

import click

from bench.options import FOLDER, PATH
from bench.paper.printed import MEASURES
from bench.paper.reproduce import BOC
from bench.report.rows import Writer
from boc.evaluate.metrics import evaluate_recall
from boc.evaluate.runs import Gallery
from boc.inputs.features import FeatureFile

COLUMNS = ("table", "line", "measure", "found", "printed")
LINES = """
5 | visual mean | vsrn | reasoning_layers=0 image_pooling=mean | 44.1 73.3 82.2 59.4 84.9 91.3
5 | visual RRR | vsrn | reasoning_layers=1 image_pooling=mean | 48.8 78.0 86.2 67.3 89.0 94.0
5 | visual GSR | vsrn | reasoning_layers=0 | 50.9 78.7 86.3 68.5 89.2 94.2
5 | visual 1RRR+GSR | vsrn | reasoning_layers=1 | 52.4 79.1 86.4 70.3 89.5 94.2
5 | visual 4RRR+GSR | vsrn | | 54.7 81.8 88.2 71.3 90.6 96.0
5 | visual 4RRR+GSR no generation | vsrn | objective=matching | 52.5 80.2 86.3 69.6 90.1 94.2
5 | visual 4RRR+LRR+GSR | vsrn | kind=vsrnpp ALONE | 56.6 83.5 89.4 73.2 93.0 96.2
5 | textual mean | vsrnpp | ALONE text_pooling=mean | 43.8 74.4 83.0 56.4 85.5 91.8
5 | textual WRR | vsrnpp | sinkhorn=0 text_pooling=mean | 47.5 76.8 85.2 63.2 87.1 93.3
5 | textual GRU | vsrnpp | ALONE | 57.6 84.2 90.4 74.7 93.2 96.2
5 | textual WRR+GRU | vsrnpp | sinkhorn=0 | 58.7 85.0 90.8 76.8 94.0 96.9
5 | with Sinkhorn | vsrnpp | | 60.6 85.6 91.4 79.2 94.6 97.5
6 | random | vsrn | region_order=random | 61.6 89.0 94.5 74.8 94.0 97.8
6 | box size | vsrn | region_order=size | 62.4 89.4 94.8 75.6 94.5 98.2
6 | confidence reversed | vsrn | region_order=reversed | 62.6 89.7 95.1 75.8 94.9 98.3
6 | confidence | vsrn | | 62.7 89.6 95.1 76.0 94.7 98.2
"""
"""The lines, in the format: table | line | recipe | settings | printed recalls, image retrieval
first. ALONE stands for settings without word reasoning and Sinkhorn."""


@click.command()
@click.argument("regions", type=PATH)
@click.option(
    "--train",
    required=True,
    type=PATH,
    help="File with the ids of the training pictures.",
)
@click.option("--test", required=True, type=PATH, help="File with the ids of the test pictures.")
@click.option("--out", default="vsrnpp-tables", type=FOLDER, show_default=True)
@click.option(
    "--line",
    "names",
    multiple=True,
    help="Line to train; can be repeated [default: all].",
)
@click.option("--set", "more", multiple=True, help="Setting for all trainings; can be repeated.")
def main(
    regions: Path,
    train: Path,
    test: Path,
    out: Path,
    names: tuple[str, ...],
    more: tuple[str, ...],
) -> None:
    """Train and evaluate every line on REGIONS."""
    with FeatureFile(regions) as file:
        source = file.header.identity.spec
    settings = {"regions": regions, "train": train, "test": test, "settings": more}
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=("torch",)) as rows:
        for text in LINES.replace("ALONE", "word_reasoning=0 sinkhorn=0").strip().splitlines():
            table, line, recipe, changes, printed = map(str.strip, text.split("|"))
            if names and line not in names:
                continue
            model = out / "-".join([recipe, *changes.split()])
            vectors = model.with_name(f"{model.name}.h5")
            sets = [f"--set={setting}" for setting in (*changes.split(), *more)]
            place = ["--ids", train, "-o", model, "--recipe", f"photos-{recipe}"]
            learn = ["train", regions, *place, "--regions", source, *sets]
            encode = ["extract", regions, "--ids", test, "-o", vectors, "--encoder", model]
            for command in (learn, encode):
                subprocess.run([*BOC, *map(str, command)], check=True, stdout=sys.stderr)
            gallery = Gallery.of(vectors)
            found = evaluate_recall(gallery.scores(), gallery.owners)
            sides = (found.text_to_image, found.image_to_text)
            recalls = [each for side in sides for each in (side.r1, side.r5, side.r10)]
            for measure, recall, known in zip(MEASURES, recalls, printed.split(), strict=True):
                rows.write(table, line, measure, f"{recall:.1f}", known)


if __name__ == "__main__":
    main()
