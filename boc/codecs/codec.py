"""Encode items and queries as term frequencies by a chain of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment
from boc.codecs.base import Blocks, Sample, Step, stack_rows
from boc.codecs.dictionary import Dictionary, query_terms
from boc.codecs.frequencies import BitQuantizer, DeepPermutation, ScalarQuantizer, TopZ, UnitNorm
from boc.codecs.late_interaction import LateInteraction
from boc.codecs.learned import LearnedTerms
from boc.codecs.signed import Center, CReLU, RandomRotation
from boc.codecs.words import WordTerms
from boc.errors import BocError
from boc.foreign import are_moderate
from boc.types import MODALITIES, Embeddings, Modality, QueryCode, Ragged, TermMatrix
from boc.vectors import Array, are_plain, batches

REMADE = "rebuild the index with another code"
STEPS: dict[str, type[Step]] = {
    step.__name__: step
    for step in (
        Center,
        RandomRotation,
        CReLU,
        TopZ,
        UnitNorm,
        ScalarQuantizer,
        BitQuantizer,
        DeepPermutation,
        Dictionary,
        HardAssignment,
        SoftAssignment,
        LateInteraction,
        LearnedTerms,
        WordTerms,
    )
}


class SurrogateCodec:
    """Chain of steps that converts embeddings to term matrices: ``encode_documents`` encodes items,
    and ``encode_queries`` encodes queries.

    Parameters
    ----------
    steps : sequence of Step
        Steps, in the order in which they are applied. The first step reads global vectors or sets;
        the last step returns term frequencies (int32 csr).

    Examples
    --------
    >>> import numpy as np
    >>> items = Embeddings("image", np.array([[0.6, -0.8], [1.0, 0.0]], np.float32))
    >>> codec = SurrogateCodec([CReLU(), ScalarQuantizer(10)]).fit(items)
    >>> codec.encode_documents(items).toarray().tolist()
    [[6, 0, 0, 8], [10, 0, 0, 0]]
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.n_terms = 0

    @property
    def reads_concepts(self) -> bool:
        """Return whether the first step reads concept sets."""
        return self.steps[0].reads_concepts

    @property
    def words(self) -> dict[int, str]:
        """Return the word of each term; empty if the terms are not words."""
        first = self.steps[0]
        return dict(enumerate(first.words)) if isinstance(first, WordTerms) else {}

    def sample_rows(self, n_items: int) -> int:
        """Return the minimum number of rows that ``fit`` needs for a collection of ``n_items``."""
        return max((step.sample_rows(n_items) for step in self.steps if not step.frozen), default=0)

    def fit(self, *samples: Sample, n_items: int | None = None) -> SurrogateCodec:
        """Fit all steps to samples of one or both modalities from a collection of ``n_items``.

        If ``n_items`` is None, the samples are the whole collection. Raises ValueError if a
        parameter is out of range.
        """
        filled = [sample for sample in samples if len(sample)]
        if not filled:
            raise BocError(
                "there are no vectors from which to learn a code; index at least one item",
            )
        learning = [i for i, step in enumerate(self.steps) if step.learned and not step.frozen]
        for number, step in enumerate(self.steps):
            if step.frozen:
                continue
            blocks = Blocks(sum(map(len, filled)), partial(self._transformed, number, filled))
            if number > max(learning, default=-1):
                # One row is enough for a step that learns only its width.
                X, modality = next(iter(blocks))
                first = X.take([0]) if isinstance(X, Ragged) else X[:1]
                blocks = Blocks(1, partial(iter, [(first, modality)]))
            step.fit_blocks(blocks, n_items)
        self.n_terms = self.steps[-1]._n_features_out
        return self

    def _transformed(
        self,
        number: int,
        samples: Sequence[Sample],
    ) -> Iterator[tuple[Any, Modality]]:
        """Yield blocks of the samples, transformed by the first ``number`` steps."""
        for sample in samples:
            for block in sample.blocks():
                X = self.steps[0].read(block)
                before = self.steps[:number]
                modality = block.modality
                yield _apply(before, X, "encode_documents", modality), modality

    def set_budgets(self, z: int, query_z: int) -> SurrogateCodec:
        """Set the budgets of documents and queries without fitting again, and return this codec."""
        for step in self.steps:
            if "query_z" in step.get_params(deep=False):
                step.set_params(z=z, query_z=query_z)
        return self

    def encode_documents(self, embeddings: Embeddings) -> TermMatrix:
        """Encode items for the index as a term matrix (n, n_terms)."""
        return self._encode(embeddings, "encode_documents")

    def encode_queries(self, embeddings: Embeddings) -> TermMatrix:
        """Encode queries as a term matrix (n, n_terms)."""
        if self.n_terms and len(embeddings) == 1:
            code = self.query_code(embeddings.modality)
            # Validate the vector once instead of once per step.
            if code is not None and are_plain(embeddings.vectors, len(code.mean)):
                return query_terms(code, embeddings.vectors)
        return self._encode(embeddings, "encode_queries")

    @property
    def query_budget(self) -> int | None:
        """Return the number of terms per query if the code is a dictionary, otherwise None."""
        last = self.steps[-1]
        return last.query_z if isinstance(last, Dictionary) else None

    def query_code(self, modality: Modality, growth: float = 1) -> QueryCode | None:
        """Return the parameters with which a dictionary encodes float32 queries, with ``growth``
        times as many terms; None for other codes."""
        match self.steps:
            case [Dictionary() as last]:
                mean = np.zeros(last.n_features_in_, np.float32)
            case [Center() as first, Dictionary() as last]:
                mean = first.mean(modality)
            case _:
                return None
        return last.query_code(mean, growth)

    def config(self) -> dict[str, Any]:
        """Return the names and parameters of the steps and the number of terms, in a form that JSON
        can represent."""
        steps = [
            {"name": type(step).__name__, "params": step.get_params(deep=False)}
            for step in self.steps
        ]
        return {"steps": steps, "n_terms": self.n_terms}

    def arrays(self) -> dict[str, Array]:
        """Return the learned arrays of all steps, with names such as ``0.means_``."""
        learned = {
            f"{i}.{name}": getattr(step, name)
            for i, step in enumerate(self.steps)
            for name in step.learned
        }
        widths = np.array([step.n_features_in_ for step in self.steps], dtype=np.int64)
        return {**learned, "widths": widths}

    @classmethod
    def restore(
        cls,
        config: Mapping[str, Any],
        arrays: Mapping[str, Array],
    ) -> SurrogateCodec:
        """Restore a codec from its ``config()`` and ``arrays()``. Raises BocError if a step is
        unknown, the code is not supported, an array is missing, or the configuration is damaged."""
        try:
            codec = cls([_restore_step(**entry) for entry in config["steps"]])
            for i, (step, width) in enumerate(zip(codec.steps, arrays["widths"], strict=True)):
                step.n_features_in_ = int(width)
                for name in step.learned:
                    array = arrays.get(f"{i}.{name}", step.added.get(name))
                    if array is None:
                        raise BocError(
                            f"codec array {i}.{name} of {type(step).__name__} is missing; rebuild "
                            "the index",
                        )
                    # Plain arrays can be sliced faster than memory maps.
                    setattr(step, name, np.asarray(array))
            for name, array in arrays.items():
                if not are_moderate(array):
                    raise ValueError(
                        f"the array {name} contains infinite, NaN or too large values",
                    )
            codec.n_terms = int(config["n_terms"])
            codec._try()
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise BocError(
                f"the code of the index is damaged ({error or type(error).__name__}); {REMADE}",
            ) from error
        return codec

    def _try(self) -> None:
        """Encode a vector as a test. Raises an exception, such as ValueError, if steps and arrays
        do not match."""
        row = np.ones((1, self.steps[0].n_features_in_), np.float32)
        concepts = Ragged(row, np.array([0, 1]))
        for modality in MODALITIES:
            sample = Embeddings(
                modality,
                row,
                concepts,
                words=[["dog"]],
            )
            terms = self._encode(sample, "encode_queries")
            if terms.shape != (1, self.n_terms):
                raise ValueError(f"the code has {terms.shape[1]} terms instead of {self.n_terms}")

    def _encode(self, embeddings: Embeddings, side: str) -> TermMatrix:
        if not self.n_terms:
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("call fit before encoding")
        if not len(embeddings):
            return sparse.csr_array((0, self.n_terms), dtype=np.int32)
        X: Any = self.steps[0].read(embeddings)
        blocks = [X]
        rows = X
        if isinstance(X, Ragged):
            rows = X.values
        elif len(X) > 1:
            blocks = [*batches(X, max(step.rows_together for step in self.steps))]
        width = self.steps[0].n_features_in_
        if rows.shape[1] != width:
            raise BocError(
                f"vectors of dimension {rows.shape[1]} for a code of dimension {width}; "
                "use the encoder that the index was built with",
            )
        modality = embeddings.modality
        return stack_rows([_apply(self.steps, block, side, modality) for block in blocks])


def _restore_step(name: str, params: Mapping[str, Any]) -> Step:
    """Create a step from its stored parameters. Raises BocError if this version of boc does not
    support the step, a parameter or a value."""
    if name not in STEPS:
        raise BocError(f"unknown codec step {name!r} (known: {', '.join(STEPS)}); upgrade boc")
    step = STEPS[name](**current(name, params))
    for parameter, choices in step.choices.items():
        if getattr(step, parameter) not in choices:
            raise BocError(
                f"this version of boc does not know {parameter}={getattr(step, parameter)} of "
                f"{name}; {REMADE}",
            )
    return step


def current(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a step without retired parameters. Raises BocError if a retired
    parameter has an unsupported value."""
    retired = STEPS[name].retired
    for parameter, value in retired.items():
        if params.get(parameter, value) != value:
            raise BocError(
                f"this version of boc does not know {parameter}={params[parameter]} of {name}; "
                f"{REMADE}",
            )
    return {parameter: value for parameter, value in params.items() if parameter not in retired}


def _apply(
    steps: Sequence[Step],
    X: Any,
    side: str,
    modality: Modality,
) -> Any:
    for step in steps:
        X = getattr(step, side)(X, modality)
    return X
