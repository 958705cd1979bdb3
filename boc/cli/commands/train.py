"""Define the command boc train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.inputs.sources import Source
    from boc.plugins import RegionSource


@click.command("train")
@options.source
@options.output("Model folder to write.")
@click.option(
    "--regions",
    default="grid",
    metavar="KIND[:ARGUMENT]",
    help="Region source for the training pictures.",
)
@click.option(
    "--recipe",
    "recipe_name",
    default="small",
    metavar="NAME",
    help="Recipe that determines the network and its settings; see below.",
)
@click.option(
    "--validate",
    type=options.PATH,
    help="File with the ids of the validation pictures, one per line [default: random pictures].",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Recipe setting to change, such as epochs=8 or text=FOLDER; can be repeated.",
)
@options.device
def command(
    source: Path,
    ids: Path | None,
    images: Path | None,
    output: Path,
    regions: str,
    recipe_name: str,
    validate: Path | None,
    settings: tuple[str, ...],
    device: str,
) -> None:
    """Train an encoder on pictures with captions. The encoder is a TERN, TERAN, VSRN or VSRN++
    network; SOURCE is a CSV or a regions file.

    Some pictures are held out for validation, chosen at random or by --validate. The command keeps
    the weights with the best recall on these pictures. If the command is killed, run it again to
    resume.

    The text encoder (--set text=...) is small, minilm, words, gru, lstm, or a folder that contains
    a BERT model.

    \b
    Recipes for thousands of pictures, on a CPU:
      small           TERN, trained from scratch
      scenes          TERAN of words and regions, trained from scratch
      photos          TERN on top of a pretrained BERT (--set text=FOLDER)
      photos-teran    TERAN, which aligns words with regions
      photos-align    TERN with alignment: global vectors for codes, concepts for re-ranking
      photos-vsrn     VSRN with pretrained word vectors
      photos-vsrnpp   VSRN++ with a frozen BERT
    Recipes of the papers, which need a GPU and --set text=FOLDER (bert-base-uncased):
      tern, tern-align, teran, teran-f30k, vsrn, vsrn-f30k, vsrnpp

    \b
    Examples: boc train captions.csv -o models/mine
              boc train all.h5 -o mine --recipe photos --regions efficientnet:lite0 --set epochs=8
    """
    from tqdm import tqdm

    from boc import plugins
    from boc.atomic_files import check_writable, sole_writer
    from boc.inputs.sources import join_sources, open_source, without

    trainer = plugins.tool("train")
    check_writable(output / "config.json")
    trainer.check_model_folder(output)
    recipe = trainer.Recipe.of(recipe_name, dict(map(options.assignment, settings)))
    data = open_source(source, ids, images)
    region_source = plugins.region_source(regions)
    validated = None
    held = None
    if validate is not None:
        held_out = open_source(source, validate, images)
        if ids is None:
            data = without(data, held_out)
        data = join_sources(data, held_out)
        validated = {item.id for item in held_out.items if item.modality == "image"}
        held = len(validated)
    data.check_captioned()
    picture_ids = {item.id for item in data.items if item.modality == "image"}
    trainer.check_size(recipe, len(picture_ids), held)
    run = trainer.describe(recipe, data.digest, region_source, validated)
    with sole_writer(output):
        if not trainer.is_finished(output, run):
            file = data.file or regions_file(data, output, region_source)
            training = trainer.Training(
                output,
                file,
                region_source,
                recipe,
                run,
                ids=picture_ids,
                device=device,
                validate=validated,
            )
            with options.bars() as progress:
                for now in training.run():
                    progress("training", now.step, now.steps)
                    if now.recalls is not None:
                        text = now.recalls.text_to_image.r10
                        image = now.recalls.image_to_text.r10
                        tqdm.write(
                            f"epoch {now.epoch + 1}: loss {now.loss:.3f}, R@10 sentence to picture "
                            f"{text:.1f}, picture to sentence {image:.1f}",
                            sys.stderr,
                        )
        options.write_onnx(output)
    best = trainer.best(output)
    for label, recall in (
        ("sentence to picture", best.text_to_image),
        ("picture to sentence", best.image_to_text),
    ):
        click.echo(
            f"{label}: R@1 {recall.r1:.1f}  R@5 {recall.r5:.1f}  R@10 {recall.r10:.1f} (on "
            "held-out pictures)",
        )
    click.echo(f"model in {output}; use it with --encoder {recipe.kind}:{output}")


def regions_file(data: Source, output: Path, source: RegionSource) -> Path:
    """Write the regions of all pictures to a file in the folder of the training run, and return its
    path.

    Unusable pictures are skipped and printed, one per line.
    """
    from boc.inputs.extraction import Extraction
    from boc.inputs.features import FeatureFile

    path = output / "training" / "regions.h5"
    if not path.exists():
        options.show(Extraction(data, path, regions=source, workers=None).steps("cutting regions"))
    with FeatureFile(path) as file:
        for _, reason in file.failures:
            options.tell(f"left out: {reason}")
    return path
