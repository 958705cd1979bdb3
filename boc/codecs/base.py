"""Base classes of the codec steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BocError
from boc.types import Embeddings, Modality, Ragged
from boc.vectors import FLOAT32, Array, Floats, Int32s, are_plain

if TYPE_CHECKING:
    from typing import Self

    from boc.clustering.codebook import Codebook


class Sample(Protocol):
    """Sample from which a code is learned: embeddings of one modality, in ``blocks`` that can be
    read repeatedly."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Embeddings]: ...


@dataclass(frozen=True)
class Blocks:
    """Training input of a step: ``length`` rows or sets, in blocks with their modalities. The
    blocks can be read repeatedly."""

    length: int
    read: Callable[[], Iterator[tuple[Any, Modality]]]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[Any, Modality]]:
        return self.read()


class Step:
    """Scikit-learn transformer that can be saved as its name, its parameters (``get_params``) and
    its learned arrays (``learned``).

    A step implements the interface of scikit-learn transformers, but does not derive from their
    base class, because importing scikit-learn takes longer than a search. scikit-learn is imported
    only to validate rows, which is not necessary for most queries.

    Steps that encode queries differently override ``encode_queries``, and steps that depend on the
    modality override ``encode_documents``. All other steps are ordinary transformers.
    """

    n_features_in_: int
    learned: ClassVar[tuple[str, ...]] = ()
    added: ClassVar[Mapping[str, Array]] = {}
    """Arrays in ``learned`` that older indexes do not contain, with the values to use for these
    indexes."""
    retired: ClassVar[Mapping[str, Any]] = {}
    """Parameters that only older indexes contain, each with the only value that is still
    supported."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Allowed values of string parameters."""
    outputs: ClassVar[str] = ""
    """Name of the learned array that has one row per output column; "" if input and output have the
    same columns."""
    sparse_form: ClassVar[str | Literal[False]] = False
    """Accepted format of sparse rows; False if the step accepts only dense rows."""
    reads_concepts: ClassVar[bool] = False
    """Whether chains that begin with this step read concept sets."""
    rows_together: ClassVar[int] = 1024
    """Number of rows per block. It is small enough that intermediate arrays stay in the processor
    cache."""
    frozen = False
    """Whether the step already has its codebook, so that fitting the chain does not change the
    step."""

    @classmethod
    def _parameters(cls) -> list[str]:
        return sorted(name for name in signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name. ``deep`` is ignored, because no parameter is an
        estimator."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Step:
        """Set parameters by name. Raises ValueError if a name is unknown."""
        for name, value in params.items():
            if name not in self._parameters():
                raise ValueError(
                    f"unknown parameter {name!r} of {self}; known: {', '.join(self._parameters())}",
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        parameters = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({parameters})"

    def read(self, embeddings: Embeddings) -> Floats | Ragged:
        """Return the part of ``embeddings`` that a chain with this first step reads, by default the
        global vectors (n, d)."""
        return embeddings.vectors

    def fit(self, X: Any, y: object = None) -> Step:
        """Validate ``X`` (n, d) and the parameters. Subclasses can learn arrays."""
        self._validate(X, reset=True)
        return self

    def transform(self, X: Any) -> Any:
        """Transform the rows of ``X`` (n, d)."""
        raise NotImplementedError

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """Fit to ``X`` (n, d) and transform it."""
        return self.fit(X, y).transform(X)

    def sample_rows(self, n_items: int) -> int:
        """Return the minimum number of rows that ``fit`` needs for a collection of ``n_items``."""
        return 0

    def fit_blocks(self, blocks: Blocks, n_items: int | None) -> Step:
        """Fit to a sample from a collection of ``n_items``. This implementation concatenates the
        blocks of the sample.

        Steps that learn block by block, or whose size depends on ``n_items``, override this method.
        """
        parts, labels = zip(*blocks, strict=True)
        rows = [len(part) if isinstance(part, Ragged) else part.shape[0] for part in parts]
        return self.fit(concatenate(parts), np.repeat(labels, rows))

    @property
    def _n_features_out(self) -> int:
        """Return the number of output columns."""
        if self.outputs:
            return len(getattr(self, self.outputs))
        return int(self.n_features_in_)

    def encode_documents(self, X: Any, modality: Modality) -> Any:
        """Transform items of one modality that are to be indexed."""
        return self.transform(X)

    def encode_queries(self, X: Any, modality: Modality) -> Any:
        """Transform queries of one modality."""
        return self.encode_documents(X, modality)

    def _validate(self, X: Any, *, reset: bool, **options: Any) -> Any:
        fitted = not reset and self.__sklearn_is_fitted__()
        if fitted and self._is_plain(X) and not hasattr(self, "feature_names_in_"):
            return X
        from sklearn.utils.validation import check_is_fitted, validate_data

        if not reset:
            check_is_fitted(self)
        options = {"dtype": (np.float32, np.float64), **options}
        return validate_data(self, X, reset=reset, accept_sparse=self.sparse_form, **options)

    def _is_plain(self, X: Any) -> bool:
        return are_plain(X, self.n_features_in_)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(sparse=bool(self.sparse_form)),
        )

    def __sklearn_is_fitted__(self) -> bool:
        own = vars(self)
        return "n_features_in_" in own and all(map(own.__contains__, self.learned))


class SparseStep(Step):
    """Step that accepts dense or sparse rows and returns sparse rows."""

    sparse_form = "csr"

    def _validate(self, X: Any, *, reset: bool, **options: Any) -> Any:
        # Convert counts to float32 as scikit-learn does, but without its import, which takes
        # seconds.
        if type(X) is sparse.csr_array and X.dtype == np.int32:
            X = X.astype(np.float32)
        return super()._validate(X, reset=reset, **options)

    def _is_plain(self, X: Any) -> bool:
        if type(X) is not sparse.csr_array:
            return super()._is_plain(X)
        return (
            X.dtype == FLOAT32
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
            and isfinite(X.data.dot(X.data))
        )


class ConceptStep(Step):
    """Step that reads the concept sets of items. An array (n, d) is interpreted as n sets with one
    concept each."""

    reads_concepts = True

    def read(self, embeddings: Embeddings) -> Ragged:
        """Return the concept sets. Raises BocError if the items have no concept sets."""
        if embeddings.concepts is None:
            raise BocError(
                "the items have no concept vectors",
                "encode the items with an encoder that returns concept sets, such as a model from "
                "<boc train>: <boc extract --set concepts=true>",
            )
        return embeddings.concepts

    def _sets(self, X: Any, *, reset: bool = False) -> Ragged:
        """Validate ``X`` and return it as sets. Each row of an array becomes a set."""
        options: dict[str, Any] = {"reset": reset, "dtype": np.float32, "order": "C"}
        if isinstance(X, Ragged):
            return Ragged(self._validate(X.values, ensure_min_samples=0, **options), X.offsets)
        values = self._validate(X, **options)
        return Ragged(values, np.arange(len(values) + 1))


class BookTerms(Step):
    """Step whose terms come from a codebook, with at most ``z`` terms per document and ``query_z``
    per query."""

    def __init__(
        self,
        clusters: int,
        z: int = 32,
        query_z: int = 32,
    ) -> None:
        self.clusters = clusters
        self.z = z
        self.query_z = query_z
        self.codebook: Codebook | None = None

    @classmethod
    def from_codebook(cls, codebook: Codebook, **budgets: int) -> Self:
        """Create the step from the terms of ``codebook``."""
        step = cls(len(codebook), **budgets)
        step.codebook = codebook
        return step


EMPTY: dict[str, Array] = {
    "labels": np.empty(0, np.uint8),
    "means": np.empty((0, 0), np.float32),
    "axes": np.empty((0, 0), np.float32),
    "thresholds": np.empty(0, np.float32),
}
"""Default values for arrays that a codebook does not contain."""


def take_codebook(step: Step, codebook: Codebook, **names: str) -> None:
    """Set attributes of a step to arrays from a codebook. ``names`` maps attributes to arrays."""
    for attribute, name in names.items():
        array = getattr(codebook, name)
        if array is None:
            array = EMPTY[name]
        setattr(step, attribute, array)
    step.n_features_in_ = codebook.centroids.shape[1]


def labels_of(y: Any, n: int) -> NDArray[np.str_]:
    """Return the labels ``y`` of n rows as strings. If ``y`` is None, all labels are empty."""
    if y is None:
        return np.zeros(n, "U1")
    return np.asarray(y).astype(str)


def terms_of(
    frequencies: Int32s,
    columns: Int32s,
    n_terms: int,
) -> sparse.csr_array:
    """Build a term matrix (n, n_terms) from ``frequencies`` and ascending ``columns``, both (n,
    z)."""
    n, z = columns.shape
    if n == 1:
        return one_row(frequencies[0], columns[0], n_terms)
    ends = np.arange(n + 1) * z
    matrix = sparse.csr_array((frequencies.ravel(), columns.ravel(), ends), (n, n_terms))
    matrix.has_canonical_format = True
    return matrix


def one_row(
    values: Array,
    columns: Int32s,
    width: int,
) -> sparse.csr_array:
    """Build a csr_array (1, width) from nonzero ``values`` in ascending ``columns``.

    The array is a shallow copy of an empty row, because validation by the constructor takes longer
    than a step.
    """
    matrix = copy(_empty_row(width, values.dtype))
    matrix.data = values
    matrix.indices = columns
    matrix.indptr = np.array([0, len(columns)], np.int32)
    return matrix


@lru_cache
def _empty_row(width: int, dtype: np.dtype[Any]) -> sparse.csr_array:
    return sparse.csr_array((1, width), dtype=dtype)


def frequencies(values: Array, rows: sparse.csr_array) -> sparse.csr_array:
    """Build a term matrix with the sparsity pattern of ``rows`` and with ``values`` as int32
    frequencies. Frequencies below 1 are dropped.

    Raises ValueError if a frequency exceeds int32.
    """
    largest = values.max(initial=0)
    if largest > np.iinfo(np.int32).max:
        raise ValueError(
            f"a term frequency of {largest:.3g} exceeds 2**31 - 1; use a smaller scale",
        )
    if rows.shape[0] == 1 and values.min(initial=1) >= 1:
        return one_row(values.astype(np.int32), rows.indices, rows.shape[1])
    whole = np.maximum(values, 0).astype(np.int32)
    terms = sparse.csr_array((whole, rows.indices.astype(np.int32), rows.indptr), rows.shape)
    terms.eliminate_zeros()
    terms.sort_indices()
    return terms


def as_rows(X: Any) -> sparse.csr_array:
    """Convert dense or sparse ``X`` to a read-only csr_array with sorted indices and without
    explicit zeros."""
    if type(X) is sparse.csr_array and X.shape[0] == 1 and X.has_sorted_indices and X.data.all():
        return X
    rows = sparse.csr_array(X, copy=True)
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate blocks of dense rows, sparse rows or sets."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Ragged):
        return Ragged.concatenate(parts)
    return stack_rows(parts) if sparse.issparse(parts[0]) else np.concatenate(parts)


def stack_rows(
    parts: Sequence[sparse.csr_array],
    width: int = 0,
    dtype: Any = np.float32,
) -> sparse.csr_array:
    """Stack blocks of sparse rows. Without blocks, return a matrix (0, width)."""
    if not parts:
        return sparse.csr_array((0, width), dtype=dtype)
    return parts[0] if len(parts) == 1 else sparse.vstack(parts, format="csr")


def reduce_sets(
    ufunc: np.ufunc,
    rows: Array,
    sets: Ragged,
    empty: float = 0,
) -> Floats:
    """Reduce the ``rows`` (N, p) of n sets to one row per set, float32 (n, p). Rows for empty sets
    are filled with ``empty``."""
    reduced = np.full((len(sets), rows.shape[1]), empty, np.float32)
    filled = np.diff(sets.offsets) > 0
    if filled.any():  # reduceat cannot handle empty sets
        reduced[filled] = ufunc.reduceat(rows, sets.offsets[:-1][filled], axis=0)
    return reduced
