"""Convert published data to files that boc and the other benchmarks read.

    # then: python -m bench.race.race glove/...h5
    python -m bench.datasets.make ann glove-100-angular.hdf5 -o glove
    # annotations/*.json, train2014/, val2014/
    python -m bench.datasets.make coco coco/ -o tables/coco
    # Karpathy's splits, as in the papers
    python -m bench.datasets.make coco dataset_coco.json --images coco/ --restval -o tables/coco
    python -m bench.datasets.make flickr30k f30k/dataset_flickr30k.json
        --images f30k-images -o tables/flickr30k
    python -m bench.datasets.make multi30k dataset/data/task2 -o tables/multi30k --no-images
    boc extract tables/coco/captions.csv --images coco/
        --ids tables/coco/train.ids.txt -o train.h5 --encoder ...

The SOURCE of a corpus is a folder or a caption file. In a folder or its subfolder ``annotations``,
the script reads the first of these files that exists:

| corpus | files |
|---|---|
| coco | dataset_coco.json (Karpathy), captions_*.json |
| flickr30k | dataset_flickr30k.json (Karpathy), results_20130124.token |
| flickr8k | captions.csv with *.ids.txt, dataset_flickr8k.json, Flickr8k.token.txt |
| multi30k | captions.en.tsv.gz, image_splits/*.txt with raw/*.en.gz |

The script writes a table ``captions.csv`` with the columns ``image,caption``, and a file
``SPLIT.ids.txt`` for each split, to the folder OUT. With ``--restval``, ``train.ids.txt`` includes
the pictures of restval, as in the papers. From a Karpathy file, only the first five sentences of
each picture are used, as in the papers. Missing pictures are excluded from all files and listed in
``missing.txt``. The script prints the names of the written files to stdout, and warnings to stderr.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from bench.datasets.captions import Captions, DataError, read
from bench.options import FILE, FOLDER


@dataclass(frozen=True)
class Corpus:
    """Corpus with its usual caption ``files``, in order of preference, and its picture ``folders``.
    Both are patterns relative to the folder of the corpus."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


CORPORA = {
    "coco": Corpus(("dataset_coco.json", "captions_*.json"), (".", "images", "..")),
    "flickr30k": Corpus(
        ("dataset_flickr30k.json", "results_20130124.token"),
        ("flickr30k-images", "flickr30k_images", "images", "."),
    ),
    "flickr8k": Corpus(
        ("captions.csv", "dataset_flickr8k.json", "Flickr8k.token.txt"),
        ("images", "Flicker8k_Dataset", "Flickr8k_Dataset", "../Flicker8k_Dataset", "."),
    ),
    "multi30k": Corpus(
        ("captions.en.tsv*", "image_splits/*.txt"),
        ("images", "flickr30k-images", "."),
    ),
}


def caption_files(source: Path, corpus: str) -> list[Path]:
    """Return the caption files in ``source``. Raises DataError, with the names of the expected
    files, if all of them are missing."""
    if source.is_file():
        return [source]
    for pattern in CORPORA[corpus].files:
        for folder in (source, source / "annotations"):
            paths = sorted(folder.glob(pattern))
            if paths:
                return paths
    names = ", ".join(CORPORA[corpus].files)
    raise DataError(
        f"{source}: {names} are missing, also in its folder annotations; name the file itself",
    )


def picture_root(source: Path, corpus: str, images: Path | None, first: str) -> Path:
    """Return the folder that contains the first picture."""
    home = source.parent if source.is_file() else source
    candidates = [images] if images else [home / name for name in CORPORA[corpus].folders]
    for folder in candidates:
        if (folder / first).exists():
            return folder
    names = ", ".join(str(folder) for folder in candidates)
    raise DataError(
        f"the picture {first} is not in {names}; name the folder with --images, or write all "
        "--no-images",
    )


def drop_missing(table: Captions, root: Path) -> tuple[Captions, list[str]]:
    """Return the captions that have a picture under ``root``, and the missing pictures."""
    names = dict.fromkeys(
        [*table.images, *(image for images in table.splits.values() for image in images)],
    )
    missing = [image for image in names if not (root / image).is_file()]
    absent = set(missing)
    captions = [pair for pair in table.captions if pair[0] not in absent]
    splits = {
        name: [image for image in images if image not in absent]
        for name, images in table.splits.items()
    }
    return replace(table, captions=captions, splits=splits), missing


def join_restval(table: Captions) -> Captions:
    """Join the splits train and restval, as in the papers. Raises DataError if either split is
    missing."""
    splits = {name: [*images] for name, images in table.splits.items()}
    if not {"train", "restval"} <= splits.keys():
        raise DataError(
            f"no split train and restval to join, only {', '.join(splits) or 'none'}; leave out "
            "--restval",
        )
    splits["train"] += splits.pop("restval")
    return replace(table, splits=splits)


def write(table: Captions, out: Path) -> None:
    """Write the table and the lists without images that have no caption, and print the number of
    excluded images."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["image", "caption"])
        rows.writerows(table.captions)
    pictures = set(table.images)
    click.echo(
        f"{out / 'captions.csv'}: {len(table.captions)} captions of {len(pictures)} pictures",
    )
    for name, images in table.splits.items():
        ids = [image for image in dict.fromkeys(images) if image in pictures]
        if len(ids) < len(images):
            click.echo(
                f"{name}: {len(images) - len(ids)} of {len(images)} have no caption or are "
                "duplicates",
                err=True,
            )
        path = out / f"{name}.ids.txt"
        path.write_text("".join(f"{image}\n" for image in ids), encoding="utf-8")
        click.echo(f"{path}: {len(ids)}")


def convert(
    source: Path,
    corpus: str,
    out: Path,
    images: Path | None,
    *,
    look: bool,
    restval: bool = False,
) -> None:
    """Read a corpus and write its table. With ``look``, missing pictures are excluded; with
    ``restval``, the split restval is added to train."""
    table = read(caption_files(source, corpus))
    if restval:
        table = join_restval(table)
    if table.beyond:
        click.echo(
            f"{table.beyond} sentences after the first five of a picture are skipped",
            err=True,
        )
    if table.empty:
        click.echo(f"{table.empty} captions without a word are skipped", err=True)
    missing: Sequence[str] = []
    if look:
        root = picture_root(source, corpus, images, next(iter(table.images)))
        table, missing = drop_missing(table, root)
        click.echo(f"pictures in {root}: pass this folder to boc extract as --images", err=True)
    write(table, out)
    if missing:
        (out / "missing.txt").write_text(
            "".join(f"{image}\n" for image in missing),
            encoding="utf-8",
        )
        examples = ", ".join(missing[:3])
        click.echo(
            f"{len(missing)} pictures are missing, such as {examples}; {out / 'missing.txt'} has "
            "all",
            err=True,
        )


@click.group()
def main() -> None:
    """Convert published data to tables and feature files."""


def corpus_command(name: str) -> click.Command:
    """Return the command for one corpus."""

    @click.command(
        name,
        help=f"SOURCE, a folder of {name} or a file of its captions, as a table and lists.",
    )
    @click.argument("source", type=click.Path(exists=True, path_type=Path))
    @click.option(
        "-o",
        "--out",
        required=True,
        type=FOLDER,
        help="Output folder.",
    )
    @click.option(
        "--images",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder of the pictures.",
    )
    @click.option(
        "--no-images",
        "blind",
        is_flag=True,
        help="Keep all captions, without checking that the pictures exist.",
    )
    @click.option(
        "--restval",
        is_flag=True,
        help="Add the split restval to train, as in the papers.",
    )
    def command(source: Path, out: Path, images: Path | None, blind: bool, restval: bool) -> None:
        convert(source, name, out, images, look=not blind, restval=restval)

    return command


for _name in CORPORA:
    main.add_command(corpus_command(_name))


@main.command()
@click.argument("file", type=FILE)
@click.option(
    "-o",
    "--out",
    required=True,
    type=FOLDER,
    help="Output folder.",
)
def ann(file: Path, out: Path) -> None:
    """Convert FILE, in the format of ann-benchmarks, to gallery.h5, queries.h5 and truth.npy."""
    from bench.datasets.vectors import convert as convert_vectors

    files = convert_vectors(file, out)
    for path in (files.gallery, files.queries, files.truth):
        if path is not None:
            click.echo(str(path))


if __name__ == "__main__":
    main()
