"""Options of the scripts of the race: the data, the folder of the indexes, how to build them and how often to query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from bench.datasets import vectors
from bench.race.data import Data, first, synthetic

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
OPTIONS = (
    click.argument("gallery", required=False, type=FILE),
    click.argument("queries", required=False, type=FILE),
    click.option("--validation", type=FILE, help="Choose settings."),
    click.option(
        "--synthetic", "count", type=int, help="Random data of so many items, in place of GALLERY and QUERIES."
    ),
    click.option("--dim", default=1024, show_default=True, help="Of synthetic vectors."),
    click.option("--asked", default=300, show_default=True, help="Synthetic queries."),
    click.option("--work", required=True, type=FOLDER, help="Folder of all that is built."),
    click.option("--terms", type=int, help="Of the dictionary [default: by the size of the gallery]."),
    click.option("--threads", default=2, show_default=True, help="To build with, for every index."),
    click.option("--rounds", default=5, show_default=True),
    click.option("--seed", default=0, show_default=True),
)


@dataclass(frozen=True)
class Given:
    """The values of the options above."""

    gallery: Path | None
    queries: Path | None
    validation: Path | None
    count: int | None
    dim: int
    asked: int
    work: Path
    terms: int | None
    threads: int
    rounds: int
    seed: int

    def data(self, limit: int | None = None) -> Data:
        """The data with the first ``limit`` items of the gallery, made at the first use. UsageError if there is no
        gallery, or the folder holds other data."""
        self.work.mkdir(parents=True, exist_ok=True)
        gallery, queries, validation, truth = self.gallery, self.queries, self.validation, None
        if self.count is not None:
            gallery, queries, validation = synthetic(self.work, self.count, self.dim, self.asked, self.seed)
        elif gallery is not None and queries is None and vectors.is_ann(gallery):
            made = vectors.convert(gallery, self.work / "data")
            gallery, queries, truth = made.gallery, made.queries, made.truth
        if gallery is None or queries is None:
            raise click.UsageError("give GALLERY and QUERIES, a file of ann-benchmarks, or --synthetic N")
        cut = gallery if limit is None else first(gallery, self.work, limit)
        data = Data(self.work, cut, queries, validation, self.terms, self.seed, truth if cut == gallery else None)
        data.check()
        return data


def on_data(main: Callable[..., None]) -> Callable[..., None]:
    """Have ``main`` take the options above, as a ``Given`` before its own."""

    @wraps(main)
    def command(**values: Any) -> None:
        given = Given(**{field.name: values.pop(field.name) for field in fields(Given)})
        main(given, **values)

    for option in reversed(OPTIONS):
        command = option(command)
    return command
