"""What several test files share: slow obvious references, and strategies for their input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import sparse

from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.manifest import Manifest
from boc.plan import Plan
from boc.topk import topk
from boc.types import Batch, Hit, Identity, Item
from boc.vectors import Floats, unit_rows
from indexing.embedded.kernel import Kernel
from indexing.embedded.postings import Postings, RowScores

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x1f"), max_size=6)


def tied_vectors(
    rows: tuple[int, int],
    width: int | None = None,
) -> st.SearchStrategy[Floats]:
    """float32 (n, d) of hundredths in [-1, 1] from a coarse grid: many ties and zeros, no
    underflow."""
    widths = st.integers(1, 7) if width is None else st.just(width)
    grid = st.integers(-4, 4).map(lambda i: i / 4) | st.integers(-100, 100).map(lambda i: i / 128)
    return arrays(
        np.float32,
        st.tuples(st.integers(*rows), widths),
        elements=grid.map(np.float32),
    )


def term_matrices(shape: tuple[int, int], largest: int) -> st.SearchStrategy[sparse.csr_array]:
    """Canonical term matrices with many zeros, empty rows among them."""
    elements = st.just(0) | st.integers(0, 3) | st.integers(0, largest)
    return arrays(np.int32, shape, elements=elements).map(sparse.csr_array)


def random_terms(
    seed: int | np.random.Generator,
    shape: tuple[int, int],
    largest: int,
    density: float,
) -> sparse.csr_array:
    """A term matrix of int32 with frequencies 1 to ``largest``."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(
        1,
        largest,
        shape,
        endpoint=True,
    ) * (rng.random(shape) < density)
    return sparse.csr_array(dense.astype(np.int32))


def assert_canonical(terms: sparse.csr_array, shape: tuple[int, int]) -> None:
    """What the library calls a term matrix."""
    assert isinstance(terms, sparse.csr_array)
    assert terms.shape == shape
    assert terms.dtype == np.int32
    assert (terms.data >= 1).all()
    for start, stop in zip(
        terms.indptr[:-1],
        terms.indptr[1:],
        strict=True,
    ):
        row = terms.indices[start:stop].tolist()
        assert row == sorted(set(row))


def same_matrix(a: Any, b: Any) -> bool:
    """Whether two results, dense or sparse, are equal to the last bit, and of the same kind."""
    if sparse.issparse(a) != sparse.issparse(b) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(dense(a), dense(b)))


def dense(X: Any) -> NDArray[Any]:
    return np.asarray(X.toarray() if sparse.issparse(X) else X)


def picture(key: str, content: str = "") -> Item:
    return Item(key, "image", content or f"/pictures/{key}", key)


def sentence(key: str, content: str = "a sentence", group: str = "") -> Item:
    return Item(key, "text", content, group)


def pairs_of_hits(hits: Sequence[Hit]) -> list[tuple[str, float]]:
    return [(hit.item.id, hit.score) for hit in hits]


def random_units(seed: int, n: int, dim: int) -> Floats:
    """Unit vectors (n, dim)."""
    return np.float32(unit_rows(np.random.default_rng(seed).standard_normal((n, dim))))


def write_features(
    path: Path,
    *batches: Batch,
    spec: str = "made:up",
    digest: str = "0" * 64,
    dtype: str = "float32",
    source: str | None = None,
) -> Path:
    """A feature file of ``batches``; its source is ``source``, or what the file is called."""
    dim = batches[0].embeddings.vectors.shape[1]
    with FeatureWriter(
        path,
        Header("embeddings", spec, digest, dim, dtype, source or path.name),
    ) as writer:
        writer.append(sum(len(batch.items) for batch in batches), batches)
        writer.finish()
    return path


def new_manifest(
    n_terms: int,
    dim: int,
    codec_arrays: dict[str, NDArray[Any]] | None = None,
    *,
    dtype: str = "float32",
    concepts: str | None = None,
) -> Manifest:
    """The manifest of an index to be made, under a code without steps."""
    identity = Identity("tern:somewhere", "ab" * 32, dim)
    config = {"steps": [], "n_terms": n_terms}
    return Manifest.new(
        identity,
        config,
        codec_arrays or {},
        rm=10.0,
        dtype=dtype,
        source="cd" * 32,
        concept_dtype=concepts,
    )


def top_rows(
    postings: Postings,
    queries: sparse.csr_array,
    k: int,
    mask: NDArray[np.uint8] | None = None,
    *,
    native: bool = True,
) -> list[RowScores]:
    """The rows and scores of at most k largest scores per query by posting lists, best first: by
    the kernel, or by the scores that numpy sums, as for those of 2**32 and more."""
    if native:
        kernel = Kernel(
            [
                (
                    (
                        *postings.arrays,
                        mask,
                        *5 * [None],
                    ),
                    postings.n,
                ),
            ],
        )
        answer = kernel.best(queries, k, Plan("terms", k, k))
        if answer is not None:
            return [answer[0].query(i)[1:] for i in range(queries.shape[0])]
    answers = []
    for begin, end in zip(
        queries.indptr[:-1],
        queries.indptr[1:],
        strict=True,
    ):
        sums = postings.scores(queries.indices[begin:end], queries.data[begin:end])
        if mask is not None:
            sums *= mask
        above = np.flatnonzero(sums > 0)
        best = above[topk(sums[above], k)]
        answers.append((best, sums[best]))
    return answers
