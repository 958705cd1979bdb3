"""boc show-alignment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.explain.alignment import Alignment


@click.command("show-alignment")
@click.argument("image", type=options.PATH)
@click.argument("text")
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="Figure to write: .png, .jpg or .pdf [default: IMAGE-alignment.png here]",
)
@click.option("--all-words", is_flag=True, help="Boxes for stop-words too.")
@options.as_json
@options.encoder
@options.device
def command(
    image: Path,
    text: str,
    output: Path | None,
    all_words: bool,
    as_json: bool,
    encoder: str | None,
    device: str,
) -> None:
    """Draw which region of IMAGE each word of TEXT is closest to, and which regions matter to the whole picture.

    Any encoder serves that tells where its regions lie and which words it read. Prints, for each word, its largest
    cosine with a region, and that region's number from 1 and box (x1 y1 x2 y2, in parts of the picture).

    \b
    Examples: boc show-alignment dog.jpg "a dog on a sled" --encoder teran:models/flickr8k
              boc show-alignment dog.jpg "a dog on a sled" --encoder teran:models/flickr8k -o figure.pdf
    """
    if encoder is None:
        raise click.UsageError("name what encodes picture and sentence: --encoder KIND:PATH")
    from boc import plugins
    from boc.atomic_files import check_writable
    from boc.errors import BocError
    from boc.explain.alignment import show
    from boc.explain.figure import draw_figure, format_of, save_figure
    from boc.inputs.images import read_image
    from boc.types import ImageRef

    path = output or Path(f"{image.stem}-alignment.png")
    format_of(path)
    check_writable(path)
    if path.resolve() == image.resolve():
        raise BocError(f"{path} is the picture itself; choose another name for the figure")
    photo = read_image(image)
    alignment = show(plugins.encoder(encoder, device), ImageRef(image.name, image), text)
    save_figure(path, draw_figure(photo, alignment, all_words=all_words))
    if as_json:
        click.echo(json.dumps(_record(image, text, path, alignment), ensure_ascii=False))
    else:
        _print(alignment)
    click.echo(f"figure in {path}", err=True)


def _print(alignment: Alignment) -> None:
    width = max(len(word) for word in alignment.words)
    for word, region, cosines in zip(alignment.words, alignment.best, alignment.cosines, strict=True):
        box = " ".join(f"{side:.3f}" for side in alignment.boxes[region])
        click.echo(f"{word:<{width}}  {cosines[region]:7.4f}  region {region + 1:<4} {box}")


def _record(image: Path, text: str, path: Path, alignment: Alignment) -> dict[str, Any]:
    words = zip(alignment.words, alignment.best, alignment.cosines, strict=True)
    return {
        "image": str(image),
        "text": text,
        "figure": str(path),
        "words": [
            {
                "word": word,
                "region": int(region) + 1,
                "box": alignment.boxes[region].tolist(),
                "cosine": float(cosines[region]),
            }
            for word, region, cosines in words
        ],
        "regions": [
            {"box": box, "attention": score}
            for box, score in zip(alignment.boxes.tolist(), alignment.scores.tolist(), strict=True)
        ],
    }
