"""Terms that another system made, such as SPLADE: an index holds them as they are, and queries name
theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.codecs.base import Step
from boc.errors import BocError, ImageError
from boc.foreign import parse_json, typed
from boc.labels import Label, pack_labels, unpack_labels
from boc.types import Embeddings, Identity, ImageRef, Modality, TermMatrix

FORM = 'search by terms and weights: {"dog": 1.2, "snow": 0.7}'


class GivenTerms(Step):
    """The names of terms that are given with the embeddings, and the ``scale`` that makes their
    weights frequencies.

    Examples
    --------
    >>> step = GivenTerms.of(["dog", "snow"], scale=10)
    >>> step.rows([{"dog": 1.2, "cat": 3, "snow": 0.7}]).toarray().tolist()
    [[12, 7]]
    """

    learned = ("term_labels_",)
    frozen = True
    term_labels_: NDArray[np.uint8]

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale

    @classmethod
    def of(cls, names: Sequence[str], scale: int) -> GivenTerms:
        """Make the step of distinct ``names``, in the order of the columns of term matrices."""
        step = cls(scale)
        step.n_features_in_ = 1
        step.term_labels_ = pack_labels([Label((name,)) for name in names])
        return step

    @cached_property
    def columns(self) -> dict[str, int]:
        """The column of each name."""
        return {
            label.words[0]: column for column, label in enumerate(unpack_labels(self.term_labels_))
        }

    @property
    def _n_features_out(self) -> int:
        return len(self.columns)

    def transform(self, X: Any) -> TermMatrix:
        """Return no terms (n, V): a vector says nothing of them."""
        return self.rows([{}] * len(X))

    def rows(self, vectors: Sequence[Mapping[str, float]]) -> TermMatrix:
        """Return {name: weight} as rows of a term matrix, without names that no item has."""
        columns = []
        weights = []
        ends = [0]
        for row in vectors:
            for name in row.keys() & self.columns.keys():
                columns.append(self.columns[name])
                weights.append(row[name])
            ends.append(len(columns))
        return self.terms(weights, columns, np.array(ends))

    def terms(self, weights: Any, columns: Any, ends: Any) -> TermMatrix:
        """Return the parts of a csr matrix as a term matrix. BocError for weights that cannot be
        frequencies."""
        scaled = np.rint(np.asarray(weights, np.float64) * self.scale)
        if not ((scaled >= 0) & (scaled < 2**31)).all():
            raise BocError(
                f"a weight is {np.min(weights):g} or {np.max(weights):g}; give weights from 0 to "
                "2**31",
            )
        parts = scaled.astype(np.int32), np.asarray(columns, np.int32), ends
        matrix = sparse.csr_array(parts, (len(ends) - 1, len(self.columns)))
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return matrix


class TermReader:
    """Reads queries of terms where an encoder reads sentences."""

    def __init__(self, step: GivenTerms, identity: Identity) -> None:
        self.step = step
        self.identity = identity
        self.preparer = self.prepare

    def prepare(self, image: ImageRef) -> Any:
        """Raise ImageError: another system makes the terms of a picture."""
        raise ImageError(f"{image.id}: its terms are made by another system; {FORM}")

    def encode_images(self, prepared: Sequence[Any]) -> Embeddings:
        """Return no embeddings, of no pictures."""
        return with_terms("image", self.step.rows([]))

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Return embeddings with the terms of JSON objects, {term: weight} or one with that as its
        ``vector``."""
        rows = []
        for text in texts:
            try:
                value = parse_json(text)
                rows.append(typed(value.get("vector", value), dict[str, float]))
            except (ValueError, AttributeError) as error:
                raise BocError(f"{text[:60]!r} are no terms of another system; {FORM}") from error
        return with_terms("text", self.step.rows(rows))


def with_terms(modality: Modality, terms: TermMatrix) -> Embeddings:
    """Return embeddings that have ``terms`` in place of vectors, which are all the same."""
    return Embeddings(modality, np.ones((terms.shape[0], 1), np.float32), terms=terms)
