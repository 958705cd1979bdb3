"""Encode items by their nearest words, so that people can read the terms (word code).

A vocabulary (``boc.clustering.make_codebook.vocabulary``) contains, for each word, the direction
that the word adds to the vector of a sentence; vectors are longer for common words. A dual encoder
places pictures close to their sentences, so a centred picture has large dot products with the words
that describe it. Its terms are the ``z`` words with the largest products, including synonyms, which
is useful for exact keyword searches. Approximating a picture by a sum of a few words (non-negative
pursuit, as in SpLiCE, Bhalla et al., NeurIPS 2024) selects only one of several synonyms and
corrects its error by rare words; in tests with drawings and photographs, keyword searches then
found fewer pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from boc.codecs.base import Blocks, BookTerms, take_codebook
from boc.codecs.frequencies import keep_block
from boc.codecs.signed import Center
from boc.labels import unpack_labels
from boc.types import Modality
from boc.vectors import Array, Bytes, Floats, unit_rows

LEAST = 1e-3  # minimum dot product of a term


class WordTerms(BookTerms, Center):
    """Encode rows as dot products with their nearest words, after centring the rows and scaling
    them to unit length.

    Documents have at most ``z`` words, queries at most ``query_z``.

    Parameters
    ----------
    clusters : int
        Number of words.
    z : int, default=32
        Maximum number of words per document; only words with positive dot products are kept.
    query_z : int, default=32
        Maximum number of words per query.

    Attributes
    ----------
    labels_, means_
        As in ``Center``; for sentences, the mean of the captions from which the vocabulary was
        learned.
    vocabulary_ : ndarray of float32 (p, d)
        Vectors of the words, of unit length or shorter.
    origin_ : ndarray of float32 (d,)
        Mean of the captions.
    term_labels_ : ndarray of uint8
        Words of the terms, packed by ``boc.labels``.

    Examples
    --------
    >>> import numpy as np
    >>> from boc.clustering.codebook import Codebook
    >>> from boc.types import Identity
    >>> book = Codebook(np.eye(2, dtype=np.float32), Identity("", "", 2), (), {}, 2)
    >>> step = WordTerms.from_codebook(book)
    >>> step = step.fit(np.array([[1.0, 0.0], [-1.0, 0.0]]), ["image", "image"])
    >>> step.transform(np.array([[0.8, 0.6]]), "image")
    ... # doctest: +ELLIPSIS
    <...2 stored elements and shape (1, 2)>
    """

    vocabulary_: Any
    origin_: Any
    term_labels_: Bytes
    learned = (
        "labels_",
        "means_",
        "vocabulary_",
        "origin_",
        "term_labels_",
    )
    retired: ClassVar[Mapping[str, Any]] = {"seed": 0}
    outputs = "vocabulary_"

    def _learn(self, blocks: Blocks) -> WordTerms:
        """Learn the mean of the pictures. Raises ValueError if a parameter is out of range, or if
        there is no vocabulary."""
        for name in ("z", "query_z"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        book = self.codebook
        if book is None:
            raise ValueError("WordTerms cannot learn words; create the step with from_codebook")
        super()._learn(blocks)
        take_codebook(
            self,
            book,
            vocabulary_="centroids",
            term_labels_="labels",
        )
        self.origin_ = book.origin
        if book.origin is None:
            self.origin_ = np.zeros(self.n_features_in_, np.float32)
        means = dict(zip(self.labels_.tolist(), self.means_, strict=True))
        means["text"] = self.origin_
        self.labels_ = np.array(sorted(means))
        self.means_ = np.stack([means[label] for label in sorted(means)]).astype(np.float32)
        return self

    @property
    def words(self) -> Sequence[str]:
        """Return the word of each term."""
        return [label.words[0] for label in unpack_labels(self.term_labels_)]

    def transform(
        self,
        X: Array,
        modality: str | None = None,
    ) -> sparse.csr_array:
        """Encode documents, X (n, d) -> float32 csr (n, p), with at most ``z`` positive values per
        row."""
        return self._nearest(unit_rows(super().transform(X, modality)), self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        """Encode queries, X (n, d) -> float32 csr (n, p), with at most ``query_z`` positive values
        per row."""
        return self._nearest(unit_rows(super().transform(X, modality)), self.query_z)

    def _nearest(self, rows: Floats, z: int) -> sparse.csr_array:
        """Return the positive dot products of each row with its ``z`` nearest words."""
        dots = np.concatenate([row[None] @ self.vocabulary_.T for row in rows])
        return keep_block(np.where(dots > LEAST, dots, 0), min(z, dots.shape[1]))
