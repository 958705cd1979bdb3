"""A code is a chain of steps with two sides: one for what is indexed, one for what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import NotFittedError

from boc.codecs._base import Step
from boc.codecs.center import Center
from boc.codecs.crelu import CReLU
from boc.codecs.norm import UnitNorm
from boc.codecs.permutation import DeepPermutation
from boc.codecs.rotation import RandomRotation
from boc.codecs.scalar import BitQuantizer, ScalarQuantizer
from boc.codecs.topz import TopZ
from boc.errors import BocError
from boc.types import Embeddings, TermMatrix

STEPS: dict[str, type[Step]] = {
    step.__name__: step
    for step in (Center, RandomRotation, CReLU, TopZ, UnitNorm, ScalarQuantizer, BitQuantizer, DeepPermutation)
}
CODES = ("scalar", "bits", "permutation")


class SurrogateCodec:
    """Turns global vectors into term matrices; ``encode_documents`` and ``encode_queries`` are its two sides.

    Parameters
    ----------
    steps : sequence of Step
        Applied in order; the last gives term frequencies (int32 csr).
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.n_terms = 0

    def fit(self, *samples: Embeddings) -> SurrogateCodec:
        """Learn all steps from embeddings of one or both modalities. ValueError for a parameter out of its range."""
        samples = tuple(sample for sample in samples if len(sample))
        if not samples:
            raise BocError("no vectors to fit a code on; index at least one item")
        X: Any = np.concatenate([sample.vectors for sample in samples])
        labels = np.repeat([sample.modality for sample in samples], [len(sample) for sample in samples])
        for step in self.steps:
            step.fit(X, labels)
            parts = [step.encode_documents(X[labels == sample.modality], sample.modality) for sample in samples]
            X = parts[0] if len(parts) == 1 else _stack(parts)
        self.n_terms = X.shape[1]
        return self

    def encode_documents(self, embeddings: Embeddings) -> TermMatrix:
        """Term matrix (n, n_terms) of items to be indexed."""
        X: Any = self._checked(embeddings)
        if not len(X):
            return sparse.csr_array((0, self.n_terms), dtype=np.int32)
        for step in self.steps:
            X = step.encode_documents(X, embeddings.modality)
        return X

    def encode_queries(self, embeddings: Embeddings) -> TermMatrix:
        """Term matrix (n, n_terms) of queries."""
        X: Any = self._checked(embeddings)
        if not len(X):
            return sparse.csr_array((0, self.n_terms), dtype=np.int32)
        for step in self.steps:
            X = step.encode_queries(X, embeddings.modality)
        return X

    def config(self) -> dict[str, Any]:
        """Names and parameters of the steps, ready for JSON."""
        steps = [{"name": type(step).__name__, "params": step.get_params(deep=False)} for step in self.steps]
        return {"steps": steps, "n_terms": self.n_terms}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the steps learned, by ``number.name``."""
        learned = {f"{i}.{name}": getattr(step, name) for i, step in enumerate(self.steps) for name in step.learned}
        widths = np.array([step.n_features_in_ for step in self.steps], dtype=np.int64)
        return {**learned, "widths": widths}

    @classmethod
    def restore(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> SurrogateCodec:
        """The codec that gave ``config()`` and ``arrays()``. BocError for a step this version does not know."""
        for entry in config["steps"]:
            if entry["name"] not in STEPS:
                raise BocError(f"unknown codec step {entry['name']!r} (known: {', '.join(STEPS)}); upgrade boc")
        codec = cls([STEPS[entry["name"]](**entry["params"]) for entry in config["steps"]])
        for i, (step, width) in enumerate(zip(codec.steps, arrays["widths"], strict=True)):
            step.n_features_in_ = int(width)
            for name in step.learned:
                setattr(step, name, arrays[f"{i}.{name}"])
        codec.n_terms = int(config["n_terms"])
        return codec

    def _checked(self, embeddings: Embeddings) -> NDArray[np.float32]:
        if not self.n_terms:
            raise NotFittedError("call fit before encoding")
        width = self.steps[0].n_features_in_
        if embeddings.vectors.shape[1] != width:
            raise BocError(
                f"vectors of dimension {embeddings.vectors.shape[1]} for a code of dimension {width}; "
                "use the encoder that the index was made with"
            )
        return embeddings.vectors


def global_code(
    code: str = "scalar",
    *,
    z: int | None = None,
    query_z: int | None = None,
    center: bool = True,
    rotate: bool = True,
    expand: int = 1,
    seed: int = 0,
    bits: int = 4,
) -> SurrogateCodec:
    """One of the codes over global vectors, unfitted: ``scalar``, ``bits`` or ``permutation``.

    The chain is centring, rotation, c-ReLU, top-z, unit norm (not for ranks, which have it), quantiser. Without
    centring and rotation it is the papers' own.
    """
    if code not in CODES:
        raise BocError(f"no code {code!r}; known: {', '.join(CODES)}")
    before: list[Step] = [Center()] if center else []
    before += [RandomRotation(seed, expand)] if rotate else []
    before += [CReLU(), TopZ(z, query_z)]
    if code == "permutation":
        return SurrogateCodec([*before, DeepPermutation()])
    return SurrogateCodec([*before, UnitNorm(), ScalarQuantizer() if code == "scalar" else BitQuantizer(bits)])


def _stack(parts: list[Any]) -> Any:
    return sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)
