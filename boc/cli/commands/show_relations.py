"""boc show-relations."""

from __future__ import annotations

import json
from pathlib import Path

import click

from boc.cli import options


@click.command("show-relations")
@click.argument("image", type=options.PATH)
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="Figure to write: .png, .jpg or .pdf [default: IMAGE-relations.png in the current folder]",
)
@click.option("-k", "count", type=click.IntRange(1), default=3, show_default=True, help="Number of relations.")
@options.as_json
@options.encoder
@options.device
def command(image: Path, output: Path | None, count: int, as_json: bool, encoder: str | None, device: str) -> None:
    """Draw the strongest relations between the regions of IMAGE, as a VSRN or VSRN++ sees them.

    A relation is an affinity in the first layer of region reasoning: the arrow goes from the region that gives to the
    region that takes. The command prints the affinity, the numbers of both regions from 1, and their boxes (x1 y1 x2
    y2, as fractions of the picture).

    \b
    Examples: boc show-relations dog.jpg --encoder vsrnpp:models/flickr8k
              boc show-relations dog.jpg --encoder vsrnpp:models/flickr8k -k 5 -o figure.pdf
    """
    if encoder is None:
        raise click.UsageError("name what relates the regions: --encoder vsrnpp:FOLDER, or vsrn:FOLDER")
    from boc import plugins
    from boc.explain.figure import BEGINS, format_of, save_figure
    from boc.explain.relations import draw_relations, relations
    from boc.inputs.images import read_image
    from boc.outputs import begins, check_output
    from boc.types import ImageRef

    path = output or Path(f"{image.stem}-relations.png")
    check_output(path, begins(BEGINS[format_of(path)]), image)
    photo = read_image(image)
    found = relations(plugins.encoder(encoder, device), ImageRef(image.name, image), count)
    save_figure(path, draw_relations(photo, found))
    boxes = found.boxes.tolist()
    if as_json:
        told = [
            {"affinity": weight, "from": of + 1, "to": to + 1, "boxes": [boxes[of], boxes[to]]}
            for of, to, weight in found.strongest
        ]
        click.echo(json.dumps({"image": str(image), "figure": str(path), "relations": told}))
    else:
        for of, to, weight in found.strongest:
            sides = " -> ".join(" ".join(f"{side:.3f}" for side in boxes[region]) for region in (of, to))
            click.echo(f"{weight:8.4f}  region {of + 1} -> {to + 1}  {sides}")
    click.echo(f"figure in {path}", err=True)
