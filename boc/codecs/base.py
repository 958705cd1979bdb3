"""What every codec step has in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from inspect import signature
from math import isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.types import Embeddings, Modality, Ragged

FLOAT32 = np.dtype(np.float32)


class Step:
    """A scikit-learn transformer that can be saved by name: parameters from ``get_params``, arrays from ``learned``.

    It does what scikit-learn asks of its transformers without being a child of theirs: to import scikit-learn takes
    longer than a search. So it is imported where rows are validated, which most queries pass at a glance.

    A step whose two sides differ overrides ``encode_queries``; one that treats the modalities apart overrides
    ``encode_documents``. Everything else is an ordinary transformer.
    """

    n_features_in_: int
    learned: ClassVar[tuple[str, ...]] = ()
    reads_concepts: ClassVar[bool] = False
    """Whether a chain that begins with this step works on concept sets."""
    rows_together: ClassVar[int] = 1024
    """Rows that a chain takes at a time, if there are many: so few that what is between steps stays in the cache."""
    frozen = False
    """Whether the step has all it needs, a codebook made elsewhere, and is not fitted again with its chain."""

    @classmethod
    def _parameters(cls) -> list[str]:
        return sorted(name for name in signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. None of them is an estimator, so ``deep`` makes no difference."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Step:
        """Set parameters by name; ValueError for one that there is not."""
        for name, value in params.items():
            if name not in self._parameters():
                raise ValueError(f"no parameter {name!r} of {self}; it has {', '.join(self._parameters())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({told})"

    def read(self, embeddings: Embeddings) -> NDArray[np.float32] | Ragged:
        """What a chain that begins with this step works on: the global vectors (n, d) unless the step says
        otherwise."""
        return embeddings.vectors

    def fit(self, X: Any, y: object = None) -> Step:
        """Check ``X`` (n, d) and the parameters; learn nothing unless the step says so."""
        self._validated(X, reset=True)
        return self

    def transform(self, X: Any) -> Any:
        """The rows of ``X`` (n, d) as the step turns them."""
        raise NotImplementedError

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """Fit to ``X`` (n, d) and transform it."""
        return self.fit(X, y).transform(X)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Names of the columns of ``transform``: the name of the step in lower case, and a number."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        name = type(self).__name__.lower()
        return np.array([f"{name}{i}" for i in range(self._n_features_out)], dtype=object)

    def prepare(self, n: int) -> int:
        """Called before ``fit`` with the number of items of the collection; how many rows ``fit`` should see at least.

        A step whose size follows from the collection's fixes it here: ``fit`` sees a sample only."""
        return 0

    @property
    def _n_features_out(self) -> int:
        """Columns of what the step gives, where they are not those it takes."""
        return int(self.n_features_in_)

    def encode_documents(self, X: Any, modality: Modality) -> Any:
        """``transform`` for items of one modality that are to be indexed."""
        return self.transform(X)

    def encode_queries(self, X: Any, modality: Modality) -> Any:
        """``transform`` for queries of one modality."""
        return self.encode_documents(X, modality)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        if not reset and self.__sklearn_is_fitted__() and self._plainly_valid(X):
            return X
        from sklearn.utils.validation import check_is_fitted, validate_data

        if not reset:
            check_is_fitted(self)
        accept = "csr" if self.__sklearn_tags__().input_tags.sparse else False
        return validate_data(self, X, reset=reset, dtype=(np.float32, np.float64), accept_sparse=accept)

    def _plainly_valid(self, X: Any) -> bool:
        """What most rows are, seen at a glance: for one query the full validation takes longer than its code."""
        return (
            type(X) is np.ndarray
            and X.dtype == FLOAT32
            and X.ndim == 2
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
            and not hasattr(self, "feature_names_in_")
            and isfinite((values := X.ravel()).dot(values))
        )

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        own = vars(self)
        return "n_features_in_" in own and all(map(own.__contains__, self.learned))


class SparseStep(Step):
    """A step that takes dense and sparse rows, and gives sparse ones."""

    def _plainly_valid(self, X: Any) -> bool:
        if type(X) is not sparse.csr_array:
            return super()._plainly_valid(X)
        return (
            X.dtype == FLOAT32
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
            and not hasattr(self, "feature_names_in_")
            and isfinite(X.data.dot(X.data))
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def terms_of(frequencies: NDArray[np.int32], columns: NDArray[np.int32], n_terms: int) -> sparse.csr_array:
    """Term matrix (n, n_terms) of rows of ``z`` terms each: ``frequencies`` and ascending ``columns`` (n, z)."""
    n, z = columns.shape
    if n == 1:
        return one_row(frequencies[0], columns[0], n_terms)
    found = sparse.csr_array((frequencies.ravel(), columns.ravel(), np.arange(n + 1) * z), shape=(n, n_terms))
    found.has_canonical_format = True
    return found


def one_row(values: NDArray[Any], columns: NDArray[np.int32], width: int) -> sparse.csr_array:
    """A csr_array (1, width) of ``values``, none of them 0, in ascending ``columns``.

    scipy takes longer to look at the matrix of one query than its code takes.
    """
    found = sparse.csr_array.__new__(sparse.csr_array)
    vars(found).update(vars(_empty_row(width, values.dtype)))
    found.data, found.indices, found.indptr = values, columns, np.zeros(2, np.int32)
    found.indptr[1] = len(columns)
    return found


@lru_cache
def _empty_row(width: int, dtype: np.dtype[Any]) -> sparse.csr_array:
    return sparse.csr_array((1, width), dtype=dtype)


def frequencies(values: NDArray[Any], rows: sparse.csr_array) -> sparse.csr_array:
    """Term matrix with the pattern of ``rows`` and ``values`` as int32 frequencies, without the entries below 1.

    Raises ValueError for a frequency beyond int32.
    """
    largest = values.max(initial=0)
    if largest > np.iinfo(np.int32).max:
        raise ValueError(f"a term frequency of {largest:.3g} exceeds 2**31 - 1; use a smaller scale")
    if rows.shape[0] == 1 and values.min(initial=1) >= 1:
        return one_row(values.astype(np.int32), rows.indices, rows.shape[1])
    terms = sparse.csr_array(
        (np.maximum(values, 0).astype(np.int32), rows.indices.astype(np.int32), rows.indptr), shape=rows.shape
    )
    terms.eliminate_zeros()
    terms.sort_indices()
    return terms


def as_rows(X: Any) -> sparse.csr_array:
    """Dense or sparse ``X`` as a csr_array with sorted indices, not to be written to; explicit zeros are dropped."""
    if type(X) is sparse.csr_array and X.shape[0] == 1 and X.has_sorted_indices and X.data.all():
        return X
    rows = sparse.csr_array(X, copy=True)
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


def stacked(parts: Sequence[sparse.csr_array]) -> sparse.csr_array:
    """Blocks of rows as one csr_array; older versions of scipy stack arrays to a matrix."""
    if len(parts) == 1:
        return parts[0]
    return sparse.csr_array(sparse.vstack(parts, format="csr"))
