"""Measure the recall of four codes against their sparsity on your own vectors, and write rows, a
table and a plot.

    python -m bench.paper.curves images.npy captions.npy -o curves

A file ``captions.txt`` beside ``captions.npy`` contains one sentence per line
(docs/howto/own-vectors.md describes the file formats). The codes are scalar quantisation and deep
permutation as in the papers, scalar quantisation of centred and rotated vectors, and the
dictionary, learned from the same vectors. The script writes features.h5, rows.csv, table.md,
table.tex, plot.svg and plot.pdf to OUT. The rows have the same columns as in ``sparsity_recall``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from bench.options import FILE, FOLDER
from bench.paper.ranking import Gallery
from bench.paper.sparsity_recall import (
    COLUMNS,
    PLAIN,
    ROTATED,
    SPARSITIES,
    Setting,
    component_settings,
    dictionary_settings,
    rows,
)
from bench.report.figures import pdf, svg
from bench.report.paper import latex
from bench.report.rows import Rows, Writer, read
from bench.report.views import Table
from boc.codecs import global_code
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile
from boc.manage.learn import fit_code
from boc.manage.vector_items import VectorItems
from boc.types import MODALITIES

CODES = (("scalar", PLAIN), ("permutation", PLAIN), ("scalar", ROTATED))
SHOWN = (
    "code",
    "chain",
    "z",
    "query z",
    "sparsity",
    "direction",
    "postings",
    "bytes",
    "dense",
    "Rm=1",
    "Rm=1 +-",
    "Rm=10",
)


def settings(file: FeatureFile, terms: int, sparsities: Sequence[float]) -> Iterator[Setting]:
    """Yield three component codes at each sparsity, and a dictionary of ``terms`` at several
    budgets."""
    yield from component_settings(file, sparsities, CODES)
    yield from dictionary_settings(fit_code(file, global_code("dictionary", terms=terms)))


def shown(rows: Rows) -> Table:
    """Return the displayed columns of all rows except differences."""
    return Table(
        list(SHOWN),
        [[row[name] for name in SHOWN] for row in rows.table if " minus " not in row["code"]],
    )


@click.command()
@click.argument(
    "vectors",
    nargs=-1,
    required=True,
    type=FILE,
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=FOLDER,
    help="Output folder.",
)
@click.option("--terms", default=2048, show_default=True, help="Size of the dictionary.")
@click.option(
    "--sparsity",
    "sparsities",
    multiple=True,
    type=float,
    default=SPARSITIES[1:],
    show_default=True,
)
def main(vectors: tuple[Path, ...], out: Path, terms: int, sparsities: tuple[float, ...]) -> None:
    """Measure R@10 of four codes against their sparsity on VECTORS of pictures and captions."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "features.h5").exists():
        items = VectorItems(vectors)
        done = 0
        with FeatureWriter(out / "features.h5", items.header) as writer:
            for modality in MODALITIES:
                for count, _, batch in items.lazy_batches(modality, 4096, sets=False):
                    done += count
                    if done > writer.done:
                        writer.append(count, [batch()])
            writer.finish()
    with (
        FeatureFile(out / "features.h5") as file,
        (out / "rows.csv").open("w", encoding="utf-8") as stream,
    ):
        gallery = Gallery(file)
        with Writer(stream, __file__, click.get_current_context().params, COLUMNS) as writer:
            for row in rows(gallery, settings(file, terms, sparsities)):
                writer.write(*row)
    measured = read(out / "rows.csv")
    (out / "table.md").write_text(shown(measured).markdown() + "\n", encoding="utf-8")
    (out / "table.tex").write_text(latex(shown(measured)), encoding="utf-8")
    drawn = replace(measured, name=", ".join(path.stem for path in vectors))
    (out / "plot.svg").write_text(svg(drawn, "own"), encoding="utf-8")
    (out / "plot.pdf").write_bytes(pdf(drawn, "own"))
    for path in sorted(out.iterdir()):
        click.echo(str(path))


if __name__ == "__main__":
    main()
