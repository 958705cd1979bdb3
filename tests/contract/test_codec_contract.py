"""What every codec step must do; a newcomer in ``boc.codecs.STEPS`` is tested unasked."""

import json
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from boc.clustering.codebook import Codebook
from boc.codecs import STEPS, SurrogateCodec, WordTerms
from boc.codecs.base import Step
from boc.errors import BocError
from boc.types import MODALITIES, Embeddings, Identity, Modality, Ragged
from boc.vectors import Floats
from tests.oracles import assert_canonical, dense, same_matrix

ROWS = 12
WIDTH = 6

WITH_BOOK = {name: kind for name, kind in STEPS.items() if hasattr(kind, "from_codebook")}
"""Steps that a codebook completes."""
BOOK = Codebook(
    default_rng(99).standard_normal((9, WIDTH)).astype(np.float32),
    Identity("", "", WIDTH),
    (),
    {},
    9,
    thresholds=np.zeros((2, 2, 9), np.float32),
)


def of_book(kind: Any) -> Step:
    return kind.from_codebook(BOOK)


def of_other_book(kind: Any) -> Step:
    """The step with its budgets off their defaults."""
    budgets = {"z": 3, "query_z": 2} if "z" in kind._parameters() else {}
    return kind.from_codebook(BOOK, **budgets)


def fresh_of(step: Step) -> Step:
    return copy(step) if type(step).__name__ in WITH_BOOK else clone(step)


def fit(step: Step, X: Any, y: Any = None) -> Any:
    made = fresh_of(step)
    return made if made.frozen else made.fit(X, y)


def varied(step: type[Step]) -> Step:
    """The step with every parameter off its default."""

    def other(name, value):
        if isinstance(value, str):
            return next(choice for choice in step.choices[name] if choice != value)
        return 1 if value is None else not value if isinstance(value, bool) else value + 1

    return step(
        **{name: other(name, value) for name, value in step().get_params(deep=False).items()},
    )


def gaussian(seed: int, rows: int = ROWS) -> Floats:
    return default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)


def embeddings(modality: Modality, X: Floats) -> Embeddings:
    """Vectors that are also sets of one concept each, for steps that read these."""
    return Embeddings(
        modality,
        X,
        Ragged(X, np.arange(len(X) + 1)),
        words=[["ball"]] * len(X),
    )


EXAMPLES = [
    pytest.param(make(kind), id=f"{name}-{word}")
    for name, kind in STEPS.items()
    for word, make in (
        (("default", of_book), ("varied", of_other_book))
        if name in WITH_BOOK
        else (("default", lambda kind: kind()), ("varied", varied))
    )
]
each_step = pytest.mark.parametrize("step", EXAMPLES)
LEARNING = {name: kind for name, kind in STEPS.items() if name not in WITH_BOOK}


@pytest.mark.slow
@pytest.mark.parametrize("step", LEARNING.values(), ids=list(LEARNING))
def test_scikit_learn_checks(step: type[Step]):
    check_estimator(step(), on_skip=None)


@each_step
def test_row_alone_equals_batch(step: Step):
    X = gaussian(0)
    labels = np.repeat(MODALITIES, ROWS // 2)
    for kind in (
        (np.asarray, sparse.csr_array)
        if step.__sklearn_tags__().input_tags.sparse
        else (np.asarray,)
    ):
        fitted = fit(step, kind(X), labels)
        for encode, modality in product(
            (fitted.encode_documents, fitted.encode_queries),
            MODALITIES,
        ):
            batch = dense(encode(kind(X), modality))
            for i in range(ROWS):
                np.testing.assert_allclose(
                    dense(encode(kind(X[i : i + 1]), modality))[0],
                    batch[i],
                    rtol=1e-5,
                    atol=1e-6,
                )


@each_step
def test_encode_documents_is_transform(step: Step):
    X = gaussian(1)
    fitted = fit(step, X)
    for modality in () if isinstance(step, WordTerms) else MODALITIES:  # it centres by modality
        assert same_matrix(fitted.encode_documents(X, modality), fitted.transform(X))


@each_step
def test_results_are_finite(step: Step):
    fitted = fit(step, gaussian(2))
    result = fitted.transform(gaussian(2))
    if np.issubdtype(result.dtype, np.integer):
        assert_canonical(result, (ROWS, result.shape[1]))
    else:
        assert result.dtype == np.float32
        assert np.isfinite(dense(result)).all()
    assert result.shape[1] == fitted._n_features_out


@each_step
def test_input_is_unchanged(step: Step):
    X = gaussian(3)
    rows = sparse.csr_array(X) if step.__sklearn_tags__().input_tags.sparse else X
    fit(step, rows).encode_queries(rows, "image")
    assert np.array_equal(dense(rows), gaussian(3))


@each_step
def test_parameters_round_trip(step: Step):
    params = step.get_params(deep=False)
    assert json.loads(json.dumps(params)) == params
    assert clone(step).get_params(deep=False) == params
    assert type(step)(**params).get_params(deep=False) == params
    X = gaussian(4)
    if type(step).__name__ not in WITH_BOOK:
        assert same_matrix(clone(step).fit_transform(X), type(step)(**params).fit_transform(X))


@each_step
def test_restored_step_is_equal(step: Step, tmp_path: Path):
    samples = [embeddings("image", gaussian(5)), embeddings("text", gaussian(6, 7) + 1)]
    codec = SurrogateCodec([fresh_of(step)]).fit(*samples)
    for name, array in codec.arrays().items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=False)
    stored = {
        path.stem: np.load(path, mmap_mode="r", allow_pickle=False)
        for path in tmp_path.glob("*.npy")
    }
    restored = SurrogateCodec.restore(json.loads(json.dumps(codec.config())), stored)
    assert restored.config() == codec.config()
    assert restored.n_terms == dense(codec.encode_documents(samples[0])).shape[1]
    for modality in MODALITIES:
        fresh = embeddings(modality, gaussian(7))
        assert same_matrix(restored.encode_documents(fresh), codec.encode_documents(fresh))
        assert same_matrix(restored.encode_queries(fresh), codec.encode_queries(fresh))


@each_step
def test_learned_arrays_are_saved(step: Step):
    fitted = fit(step, gaussian(8))
    arrays = {name for name in vars(fitted) if name.endswith("_") and not name.startswith("_")}
    assert arrays - {"n_features_in_"} == set(step.learned)


@each_step
def test_other_width(step: Step):
    codec = SurrogateCodec([fresh_of(step)]).fit(embeddings("image", gaussian(9)))
    with pytest.raises(BocError, match=rf"{WIDTH - 1}.*{WIDTH}"):
        codec.encode_queries(embeddings("text", gaussian(9)[:, 1:]))
    with pytest.raises(ValueError, match=rf"{WIDTH - 1} features.*{WIDTH} features"):
        fit(step, gaussian(9)).transform(gaussian(9)[:, 1:])
