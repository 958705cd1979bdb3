"""Measure Recall@10 against sparsity, postings and bytes, in both directions (BoC, Figs. 3a, 3b,
3c).

    python -m bench.paper.sparsity_recall FEATURES --fit LEARN

The codes over global vectors are measured with these chains: "plain", as in the papers, quantises
the kept components; "printed order" quantises first; "offset" counts ranks from twice the number of
kept components; "centred, rotated" is the default of boc; "shifted" keeps all terms and the order
of the dense vectors. If FEATURES contains concepts, the codes "soft sum", "soft max" and "hard" are
measured with codebooks "with context" (from --fit) and with "no context" (from --alone). Items are
always encoded with context, as in section IV of the paper ("during the clustering phase"). The
sparsity of a soft code is defined as in the paper, 1 - z / p, where each concept keeps its z
nearest of p centroids before aggregation. An item with several concepts can therefore have more
than z terms; "terms" is the actual number. "dictionary" is the code of boc, with the sparsity 1 - z
/ V.

A row contains z for items and for queries; the terms stored per item, the postings read per query,
and the bytes of these terms per item in the embedded engine; R@10, in percent, of the dense vectors
and, for each Rm, of the 10 best by dense vectors among the first Rm * 10 hits; and standard errors
over pictures. A row of code "A minus B" contains differences on the same queries, where A can be
"dense".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import CLUSTERS, CODEBOOKS, PATH
from bench.paper import variants
from bench.paper.codebooks import Codebooks
from bench.paper.ranking import DIRECTIONS, RMS, Gallery, share
from bench.report.rows import Writer
from boc.codecs import Code, SurrogateCodec, concept_code, global_code
from boc.inputs.features import FeatureFile
from boc.manage.learn import fit_code
from boc.types import Modality

SPARSITIES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
CONTEXT = {"with": "with context", "no": "no context"}
PROBES = (
    (1, 32),
    (2, 16),
    (2, 32),
    (2, 64),
    (2, 128),
    (4, 32),
    (4, 128),
)
PLAIN = "plain"
PRINTED = "printed order"
OFFSET = "offset"
ROTATED = "centred, rotated"
CHAINS: tuple[tuple[str, str, Callable[[int], SurrogateCodec]], ...] = (
    ("scalar", PLAIN, lambda z: global_code("scalar", z=z, query_z=z, plain=True)),
    ("scalar", PRINTED, lambda z: variants.printed_order("scalar", z, z)),
    ("scalar", ROTATED, lambda z: global_code("scalar", z=z, query_z=z)),
    ("permutation", PLAIN, lambda z: global_code("permutation", z=z, query_z=z, plain=True)),
    ("permutation", PRINTED, lambda z: variants.printed_order("permutation", z, z)),
    ("permutation", OFFSET, lambda z: variants.offset_ranks(z, z)),
    ("permutation", ROTATED, lambda z: global_code("permutation", z=z, query_z=z)),
)
"""The chains, as tuples of the code, the name of the chain, and a function that builds the chain
for a number of terms."""
PAIRS = (
    (("scalar", PLAIN), ("permutation", PLAIN)),
    (("scalar", PRINTED), ("permutation", PRINTED)),
    (("scalar", PLAIN), ("permutation", OFFSET)),
    (("scalar", ROTATED), ("permutation", ROTATED)),
    (("scalar", ROTATED), ("scalar", PLAIN)),
    (("dense", ""), ("scalar", PLAIN)),
    (("dense", ""), ("permutation", PLAIN)),
    (("dense", ""), ("scalar", ROTATED)),
    (("dense", ""), ("soft sum", "with context")),
    (("scalar", PLAIN), ("soft sum", "with context")),
    (("soft sum", "with context"), ("soft max", "with context")),
    (("soft sum", "no context"), ("soft max", "no context")),
    (("soft sum", "with context"), ("soft sum", "no context")),
    (("soft max", "with context"), ("soft max", "no context")),
)
COLUMNS = (
    "code",
    "chain",
    "z",
    "query z",
    "sparsity",
    "terms",
    "direction",
    "postings",
    "bytes",
    "dense",
    *(f"Rm={rm}" for rm in RMS),
    *(f"Rm={rm} +-" for rm in RMS),
)


Hits = dict[tuple[str, str, float, Modality], NDArray[np.bool_]]
"""Hits, as bool arrays (queries, Rm), by code, chain, sparsity and modality of the queries."""


class Setting(NamedTuple):
    """Fitted code with its name and sparsity."""

    code: str
    chain: str
    z: int
    query_z: int
    sparsity: float
    codec: SurrogateCodec


def global_settings(
    fit: FeatureFile,
    sparsities: Sequence[float],
    dictionary: SurrogateCodec,
) -> Iterator[Setting]:
    """Yield codes over global vectors at each sparsity, with equal numbers of terms in queries and
    items; the default code; and the fitted ``dictionary`` at several budgets."""
    width = 2 * fit.header.dim
    yield from component_settings(fit, sparsities)
    for sparsity in sparsities:
        z = terms_at(
            sparsity,
            width,
        )  # determines the largest component, which is the unit of bits
        yield Setting(
            "bits",
            ROTATED,
            z,
            z,
            sparsity,
            fit_code(fit, global_code("bits", z=z, query_z=z)),
        )
    z, query_z = Code("scalar").budgets(fit.header.dim)
    default = fit_code(fit, Code("scalar").codec(fit.header.dim))
    yield Setting("scalar", "default", z, query_z, round(1 - z / width, 4), default)
    if 0 in sparsities:
        codec_of_all = fit_code(fit, variants.shifted_crelu("scalar"))
        yield Setting("scalar", "shifted", width, width, 0.0, codec_of_all)
    yield from dictionary_settings(dictionary)


def component_settings(
    fit: FeatureFile,
    sparsities: Sequence[float],
    chosen: Container[tuple[str, str]] | None = None,
) -> Iterator[Setting]:
    """Yield the CHAINS, or the ``chosen`` pairs (code, chain), at each sparsity."""
    width = 2 * fit.header.dim
    for code, chain, make in CHAINS:
        if chosen is None or (code, chain) in chosen:
            codec = fit_code(fit, make(width))
            for sparsity in sparsities:
                z = terms_at(sparsity, width)
                yield Setting(code, chain, z, z, sparsity, codec.set_budgets(z, z))


def dictionary_settings(dictionary: SurrogateCodec) -> Iterator[Setting]:
    """Yield a fitted dictionary at the PROBES for which it has enough terms."""
    name = f"of {dictionary.n_terms}"
    for z, query_z in PROBES:
        if query_z <= dictionary.n_terms:
            codec = dictionary.set_budgets(z, query_z)
            yield Setting("dictionary", name, z, query_z, round(1 - z / codec.n_terms, 4), codec)


def concept_settings(
    books: Codebooks,
    fit: FeatureFile,
    sparsities: Sequence[float],
) -> Iterator[Setting]:
    """Yield codes over concepts, and soft codes at each sparsity."""
    one = fit.batch("image", 0, 1).embeddings
    for name in books.contexts:
        book = books[name]
        for aggregate in ("sum", "max"):
            codec = concept_code(book, aggregate=aggregate).fit(one)
            for sparsity in sparsities:
                z = terms_at(sparsity, len(book))
                yield Setting(
                    f"soft {aggregate}",
                    CONTEXT[name],
                    z,
                    z,
                    sparsity,
                    codec.set_budgets(z, z),
                )
        hard = concept_code(book, "hard").fit(one)
        yield Setting("hard", CONTEXT[name], 1, 1, round(1 - 1 / len(book), 4), hard)


def terms_at(sparsity: float, width: int) -> int:
    """Return the number of terms, of ``width`` in total, that are kept at a sparsity."""
    return max(1, round((1 - sparsity) * width))


def rows(gallery: Gallery, settings: Iterator[Setting]) -> Iterator[list[object]]:
    """Yield one row per setting and direction, and then one row for each pair in PAIRS whose codes
    were both measured."""
    dense = {asking: gallery.exact(asking, target) for asking, target in DIRECTIONS}
    hits: Hits = {}
    for setting in settings:
        click.echo(f"{setting.code}, {setting.chain}, {setting.z} / {setting.query_z}", err=True)
        for asking, target in DIRECTIONS:
            result = gallery.search(setting.codec, asking, target)
            hits[setting.code, setting.chain, setting.sparsity, asking] = result.hits
            hits["dense", "", setting.sparsity, asking] = np.repeat(
                dense[asking][:, None],
                len(RMS),
                axis=1,
            )
            dense_share = share(dense[asking], gallery.groups[asking])[0]
            yield [
                setting.code,
                setting.chain,
                setting.z,
                setting.query_z,
                setting.sparsity,
                round(result.terms, 2),
                f"{asking} to {target}",
                round(result.postings, 1),
                round(result.size, 1),
                f"{dense_share:.2f}",
                *figures(result.hits, gallery.groups[asking]),
            ]
    yield from differences(gallery, hits)


def differences(gallery: Gallery, hits: Hits) -> Iterator[list[object]]:
    """Yield the recall difference between the codes of each pair at each common sparsity."""
    for (one, of), (other, than) in PAIRS:
        chain = " minus ".join(dict.fromkeys(name for name in (of, than) if name))
        for (code, name, sparsity, asking), more in hits.items():
            less = hits.get((other, than, sparsity, asking))
            if (code, name) == (one, of) and less is not None:
                direction = f"{asking} to {dict(DIRECTIONS)[asking]}"
                cells = figures(more.astype(np.int8) - less, gallery.groups[asking])
                yield [
                    f"{one} minus {other}",
                    chain,
                    None,
                    None,
                    sparsity,
                    None,
                    direction,
                    None,
                    None,
                    None,
                    *cells,
                ]


def figures(values: NDArray[np.generic], groups: NDArray[np.int64]) -> list[str]:
    """Return the percentage for each column of ``values`` (queries, Rm), followed by the standard
    errors."""
    shares = [share(column, groups) for column in values.T]
    return [f"{value:.2f}" for side in zip(*shares, strict=True) for value in side]


@click.command()
@click.argument("features", type=PATH)
@click.option(
    "--fit",
    type=PATH,
    help="Embeddings to learn from [default: FEATURES].",
)
@click.option(
    "--alone",
    type=PATH,
    help="Embeddings of some or all of these items by the encoder FOLDER?alone.",
)
@CLUSTERS
@CODEBOOKS
@click.option("--terms", default=2048, show_default=True, help="Size of the dictionary.")
@click.option("--vectors", is_flag=True, help="Measure only codes of global vectors.")
@click.option(
    "--sparsity",
    "sparsities",
    multiple=True,
    type=float,
    default=SPARSITIES,
    show_default=True,
)
def main(
    features: Path,
    fit: Path | None,
    alone: Path | None,
    clusters: int,
    codebooks: Path | None,
    terms: int,
    vectors: bool,
    sparsities: tuple[float, ...],
) -> None:
    """Measure Recall@10 against sparsity of the embeddings in FEATURES."""
    with ExitStack() as stack:
        gallery_file, sample = (
            stack.enter_context(FeatureFile(path)) for path in (features, fit or features)
        )
        context_free = stack.enter_context(FeatureFile(alone)) if alone else None
        gallery = Gallery(gallery_file)
        dictionary = fit_code(sample, global_code("dictionary", terms=terms))
        settings = [global_settings(sample, sparsities, dictionary)]
        if gallery.of["image"].concepts is not None and not vectors:
            books = Codebooks(sample, context_free, codebooks, clusters)
            settings.append(concept_settings(books, sample, sparsities))
        with Writer(sys.stdout, __file__, click.get_current_context().params, COLUMNS) as out:
            for row in rows(gallery, (setting for part in settings for setting in part)):
                out.write(*row)


if __name__ == "__main__":
    main()
