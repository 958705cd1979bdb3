"""Read caption files: pairs of image and caption, and lists of images by split.

| file | source | |---|---| | ``captions_NAME.json`` | COCO: ``images``, ``annotations`` | |
``dataset_NAME.json`` | Karpathy's splits: ``images`` with filename, split, sentences | |
``NAME.token``, ``NAME.token.txt`` | Flickr30K and Flickr8k: ``image#number<TAB>caption`` | |
``Flickr_8k.NAMEImages.txt``, ``NAME.ids.txt`` | images of a split, one per line | |
``captions.csv`` | ours: ``image,caption`` | | ``captions.LANGUAGE.tsv``, ``.tsv.gz`` | ours, from
Multi30k: ``image<TAB>number<TAB>caption`` | | ``raw/SPLIT.en.gz``, ``raw/SPLIT.1.en.gz``,
``image_splits/SPLIT.txt`` | Multi30k |

A DataError names the file, the line or entry, and the next step.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

# number of sentences per picture used in the papers; some COCO pictures have more
FIRST = 5


class DataError(click.ClickException):
    """The contents of a file do not match its name, or are incomplete."""


@dataclass
class Captions:
    """Collection of captioned pictures. ``captions`` contains pairs (image, sentence) in file
    order, and ``splits`` maps the name of each split to a list of images."""

    captions: list[tuple[str, str]] = field(default_factory=list)
    splits: dict[str, list[str]] = field(default_factory=dict)
    empty: int = 0  # number of skipped captions that contain no word
    # Number of skipped sentences in a Karpathy file, after the first five of each picture.
    beyond: int = 0

    def add(self, image: str, caption: str) -> None:
        """Add a caption, after collapsing whitespace to single spaces."""
        words = " ".join(caption.split())
        if words:
            self.captions.append((image, words))
        else:
            self.empty += 1

    @property
    def images(self) -> list[str]:
        """Return the distinct images that have a caption."""
        return list(dict.fromkeys(image for image, _ in self.captions))


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, optionally gzipped. Raises DataError for any other file."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig") as file:
                yield file
        else:
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: not a readable UTF-8 text ({error}); download the file again",
        ) from error


def read_json(path: Path, *keys: str) -> list[list[Any]]:
    """Read the lists under these keys in a JSON object. A missing list is returned as an empty
    list. COCO needs about 1 GB of memory."""
    with open_text(path) as file:
        try:
            content = json.load(file)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: broken JSON ({error}); download the file again") from error
    lists: list[list[Any]] = [[] for _ in keys]
    for number, key in enumerate(keys):
        if isinstance(content, dict) and isinstance(content.get(key), list):
            lists[number] = content[key]
    return lists


def read_coco(paths: Sequence[Path]) -> Captions:
    """Read COCO's own files, such as captions_val2014.json. Each file is a split, and the pictures
    of the split are in a folder of the same name."""
    corpus = Captions()
    for path in paths:
        split = path.stem.partition("_")[2]
        images, annotations = read_json(path, "images", "annotations")
        names = {
            _value(path, e, "id"): f"{split}/{_value(path, e, 'file_name', str)}" for e in images
        }
        captions = [
            (_value(path, e, "image_id"), _value(path, e, "caption", str)) for e in annotations
        ]
        if not names or not captions:
            raise DataError(
                f"{path}: contains no images or no annotations; use COCO's captions_{split}.json",
            )
        strange = next((key for key, _ in captions if key not in names), None)
        if strange is not None:
            raise DataError(
                f"{path}: a caption belongs to image {strange}, which the file does not list; "
                "download the file again",
            )
        for owner, caption in captions:
            corpus.add(names[owner], caption)
        corpus.splits[split] = list(names.values())
    return corpus


def read_karpathy(paths: Sequence[Path]) -> Captions:
    """Read Karpathy's file for a corpus, such as dataset_coco.json. For COCO, ``filepath`` names
    the folder of each picture.

    As in the papers, only the first five sentences of each picture are used.
    """
    corpus = Captions()
    for path in paths:
        for element in read_json(path, "images")[0]:
            name = _value(path, element, "filename", str)
            image = "/".join(filter(None, (element.get("filepath"), name)))
            corpus.splits.setdefault(_value(path, element, "split", str), []).append(image)
            sentences = _value(path, element, "sentences", list)
            corpus.beyond += len(sentences[FIRST:])
            for sentence in sentences[:FIRST]:
                corpus.add(image, _value(path, sentence, "raw", str))
    if not corpus.captions:
        raise DataError(f"{paths[0]}: contains no images; use one of Karpathy's dataset_NAME.json")
    return corpus


def _value(path: Path, element: Any, key: str, kind: type = object) -> Any:
    if not isinstance(element, dict) or key not in element or not isinstance(element[key], kind):
        excerpt = json.dumps(element)[:80]
        raise DataError(
            f"{path}: an element without {key!r}, or of another type: {excerpt}; download "
            "the file again",
        )
    return element[key]


def read_tokens(paths: Sequence[Path]) -> Captions:
    """Read lines ``image#number<TAB>caption``, with the split lists beside the file, if any."""
    corpus = Captions()
    for path in paths:
        for number, line in _lines(path):
            name, tab, caption = line.partition("\t")
            image, sharp, _ = name.rpartition("#")
            if not tab or not sharp or not image:
                raise DataError(
                    f"{path}, line {number}: not IMAGE#NUMBER<TAB>CAPTION; download the file again",
                )
            corpus.add(image, caption)
        for split in sorted(path.parent.glob("Flickr_8k.*Images.txt")):
            corpus.splits[split.name[len("Flickr_8k.") : -len("Images.txt")]] = [
                line for _, line in _lines(split)
            ]
    return corpus


def read_table(paths: Sequence[Path]) -> Captions:
    """Read our own table ``image,caption``, with the split lists NAME.ids.txt beside it."""
    corpus = Captions()
    for path in paths:
        with open_text(path) as file:
            try:
                reader = csv.DictReader(file, strict=True)
                if not {"image", "caption"} <= set(reader.fieldnames or ()):
                    raise DataError(
                        f"{path}: the first line must contain the column names image,caption",
                    )
                for row in reader:
                    if not row["image"] or row["caption"] is None:
                        raise DataError(
                            f"{path}, line {reader.line_num}: image or caption is missing",
                        )
                    corpus.add(row["image"], row["caption"])
            except csv.Error as error:
                raise DataError(f"{path}: not a CSV file ({error})") from error
        for split in sorted(path.parent.glob("*.ids.txt")):
            corpus.splits[split.name[: -len(".ids.txt")]] = [line for _, line in _lines(split)]
    return corpus


def read_numbered(paths: Sequence[Path]) -> Captions:
    """Read lines ``image<TAB>number<TAB>caption``."""
    corpus = Captions()
    for path in paths:
        for number, line in _lines(path):
            cells = line.split("\t")
            if len(cells) != 3 or not cells[0]:
                raise DataError(f"{path}, line {number}: not IMAGE<TAB>NUMBER<TAB>CAPTION")
            corpus.add(cells[0], cells[2])
    return corpus


def read_parallel(paths: Sequence[Path]) -> Captions:
    """Read lists of images ``image_splits/SPLIT.txt``, and the English captions in ``raw``. Line n
    of a list corresponds to line n of its captions."""
    corpus = Captions()
    for path in paths:
        split = path.stem.removesuffix("_images")
        images = [line.partition("#")[0] for _, line in _lines(path)]
        raw = path.parent.parent / "raw"
        files: list[Path] = []
        for pattern in (f"{split}.en", f"{split}.[0-9].en"):
            plain = raw.glob(pattern)
            gzipped = raw.glob(f"{pattern}.gz")
            files += sorted([*plain, *gzipped])
        if not files:
            raise DataError(
                f"{raw}: neither {split}.en.gz nor {split}.1.en.gz is in it, the captions of "
                f"{path.name}",
            )
        sides = [[line for _, line in _lines(file, empty=True)] for file in files]
        for file, lines in zip(files, sides, strict=True):
            if len(lines) != len(images):
                raise DataError(
                    f"{file}: {len(lines)} lines for the {len(images)} images of {path.name}; "
                    "download both files",
                )
        for image, *captions in zip(images, *sides, strict=True):
            for caption in captions:
                corpus.add(image, caption)
        corpus.splits[split] = images
    return corpus


def _lines(path: Path, *, empty: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (number, line) for each non-empty line."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip("\r\n")
            if empty or text.strip():
                yield number, text


READERS: tuple[tuple[str, Callable[[Sequence[Path]], Captions]], ...] = (
    (r"dataset_.+\.json", read_karpathy),
    (r"captions_.+\.json", read_coco),
    (r".+\.token(\.txt)?", read_tokens),
    (r".+\.csv", read_table),
    (r".+\.tsv(\.gz)?", read_numbered),
    (r"(train|val|test).*\.txt", read_parallel),
)


def read(paths: Sequence[Path]) -> Captions:
    """Read caption files. The file names determine the formats."""
    for pattern, reader in READERS:
        if all(re.fullmatch(pattern, path.name) for path in paths):
            corpus = reader(paths)
            if not corpus.captions:
                raise DataError(f"{paths[0]}: contains no captions; download the file again")
            return corpus
    raise DataError(
        f"{paths[0]}: not a known name of a caption file; see python -m bench.datasets.make --help",
    )
