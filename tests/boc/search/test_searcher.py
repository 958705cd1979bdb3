"""Queries of a few terms only, the heaviest; what a search took."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from boc.codecs.frequencies import heaviest
from boc.errors import BocError
from boc.search.queries import Query
from boc.search.searcher import Searcher
from boc.types import Embeddings, Hit, Rescore, SearchRequest, Stages
from indexing.embedded.engine import EmbeddedEngine
from tests.helpers import boc
from tests.oracles import assert_canonical, term_matrices


@given(
    terms=term_matrices((4, 9), 5),
    z=st.integers(1, 11),
)
def test_the_heaviest_terms_are_kept_and_ties_go_to_the_lower(
    terms: sparse.csr_array,
    z: int,
):
    heavy = heaviest(terms, z)
    assert_canonical(heavy, terms.shape)
    for row, cut in zip(
        terms.toarray().tolist(),
        heavy.toarray().tolist(),
        strict=True,
    ):
        expected = sorted(
            (j for j, f in enumerate(row) if f),
            key=lambda j: (-row[j], j),
        )[:z]
        assert cut == [f if j in expected else 0 for j, f in enumerate(row)]


def test_a_search_asks_by_the_terms_that_are_kept(searcher: Searcher):
    queries = searcher.encoder.encode_texts(["a red box", "something green"])
    codes = searcher.codec.encode_queries(queries)
    for z in (1, 3, 1000):
        stages = Stages()
        hits = searcher.search_vectors(
            queries,
            k=4,
            rm=2,
            query_z=z,
            stages=stages,
        )
        rescore = Rescore("dot", queries, 4)
        assert hits == searcher.index.search(
            SearchRequest(
                heaviest(codes, z),
                8,
                "image",
                rescore=rescore,
            ),
        )
        assert stages.codes is not None
        assert np.diff(stages.codes.indptr).tolist() == [
            min(z, n) for n in np.diff(codes.indptr).tolist()
        ]
        assert hits == searcher.search_vectors(
            queries,
            k=4,
            rm=2,
            query_z=z,
        )
        alone = searcher.search(
            "a red box",
            k=4,
            rm=2,
            query_z=z,
        )
        assert [hit.item for hit in alone] == [hit.item for hit in hits[0]]
    with pytest.raises(BocError, match="query_z must be at least 1"):
        searcher.search("a red box", query_z=0)


def test_a_search_tells_how_many_candidates_it_had(searcher: Searcher, library: Path):
    for query in (
        {"text": "a red box"},
        {"image": library / "images" / "000.png"},
    ):
        stages = Stages()
        assert searcher.search(
            **query,
            k=3,
            rm=2,
            stages=stages,
        ) == searcher.search(
            **query,
            k=3,
            rm=2,
        )  # type: ignore[arg-type]
        assert stages.candidates == 6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "rm": 1.5, "query_z": 4},
        {"k": 50, "find": "text"},
    ],
)
def test_a_ranking_has_the_ids_and_scores_of_the_hits(
    searcher: Searcher,
    monkeypatch,
    options: dict[str, Any],
):
    monkeypatch.setattr("boc.search.searcher.BLOCK", 2)
    queries = searcher.encoder.encode_texts(
        ["a red box", "something green", "a box", "blue", "two red boxes"],
    )
    ids, scores = searcher.rank_vectors(queries, **options)
    assert ids.shape == scores.shape
    assert ids.shape[1] <= options.get("k", 10)
    for i in range(5):
        hits = searcher.search_vectors(
            queries.take([i]),
            **options,
        )[0]
        rest = ids.shape[1] - len(hits)
        assert ids[i].tolist() == [*(hit.id for hit in hits), *[None] * rest]
        assert scores[i].tolist() == [
            *(hit.score for hit in hits),
            *[-np.inf] * rest,
        ]


REAL = ("e", "f", "d", "g", ">f4", ">f8", "b", "h", "i", "q", "B", ">u2", "I", "Q", "?")
OTHERS = ("F", "D", "O", "U4", "S4", "M8[s]", "m8[s]")
ENTRIES: dict[str, Callable[[Searcher, Embeddings], Any]] = {
    "search_vectors": lambda s, rows: [hit.id for hit in s.search_vectors(rows, k=5)[0]],
    "rank_vectors": lambda s, rows: s.rank_vectors(rows, k=5)[0][0].tolist(),
    "search_query": lambda s, rows: [
        hit.id
        for hit in s.search_query(
            Query.of("a"),
            encoded=[rows],
            k=5,
        )
    ],
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "dtype",
    [*REAL, *OTHERS],
)
def test_queries_of_any_real_type_find_the_same(searcher: Searcher, entry: str, dtype: str):
    row = np.eye(1, 16, dtype=np.float32)
    if dtype in OTHERS:
        with pytest.raises(BocError, match="; pass real numbers"):
            ENTRIES[entry](
                searcher,
                Embeddings(
                    "text",
                    row.astype(int).astype(dtype),
                ),
            )
    else:
        typed = ENTRIES[entry](
            searcher,
            Embeddings("text", row.astype(dtype)),
        )
        assert typed == ENTRIES[entry](
            searcher,
            Embeddings("text", row),
        )


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            np.full((1, 16), np.nan),
            "row 0 of the queries contains NaN",
        ),
        (
            np.append(np.zeros((1, 15)), -np.inf)[None],
            "row 0 of the queries contains NaN",
        ),
        (
            np.full((1, 16), 3e38, np.float32),
            "too large for float32",
        ),
        (
            np.full((1, 16), 1e300),
            "too large for float32",
        ),
        (np.ones((1, 15)), r"queries have shape \(1, 15\); pass an array of shape \(n, 16\)"),
        (np.ones((1, 0)), r"pass an array of shape \(n, 16\)"),
    ],
)
def test_queries_that_are_no_vectors_are_refused(
    searcher: Searcher,
    entry: str,
    row: Any,
    said: str,
):
    with pytest.raises(BocError, match=said):
        ENTRIES[entry](searcher, Embeddings("text", row))


def test_no_queries_have_no_hits(searcher: Searcher):
    none = searcher.encoder.encode_texts(["a"]).take([])
    ids, scores = searcher.rank_vectors(none, k=3)
    assert ids.shape == scores.shape == (0, 3)
    assert searcher.search_vectors(none) == []


def test_rankings_refuse_options_that_work_on_hits(searcher: Searcher):
    queries = searcher.encoder.encode_texts(["a red box"])
    with pytest.raises(BocError, match="omit collapse, or call search_vectors"):
        searcher.rank_vectors(queries, collapse=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.search("a", options=5),
            "options must be SearchOptions, got int",
        ),
        (
            lambda s: s.search_query("a"),
            "search_query expects a Query, got str; use search for a sentence",
        ),
        (
            lambda s: s.search_texts("a dog"),
            r"sentences must be a list, got 'a dog'; write \['a dog'\]",
        ),
        (
            lambda s: s.search_texts(["a", 5]),
            "a sentence must be text, got 5",
        ),
        (
            lambda s: s.search_vectors(np.ones((1, 3))),
            r"queries must be Embeddings, got ndarray; write Embeddings",
        ),
        (
            lambda s: s.search_vectors(
                s.encoder.encode_texts("ab"),
                texts=["a"],
                hybrid="rrf",
            ),
            "1 texts for 2 queries",
        ),
        (
            lambda s: s.search_query(Query.of("a"), encoded=[]),
            "encoded must be Embeddings of one row for each of 1",
        ),
        (
            lambda s: Embeddings("texts", np.ones((1, 3))),
            "modality must be image or text, got 'texts'",
        ),
        (
            lambda s: Embeddings("text", np.ones(3)),
            r"vectors must be an array \(n, d\), got \(3,\)",
        ),
    ],
)
def test_wrong_calls_are_told_the_right_form(
    searcher: Searcher,
    call: Callable[[Any], object],
    message: str,
):
    with pytest.raises(BocError, match=message):
        call(searcher)


def test_a_searcher_and_its_hits_show_what_they_are(searcher: Searcher):
    assert re.fullmatch(
        r"<Searcher of \d+ pictures and \d+ sentences, encoder \S+>",
        repr(searcher),
    )
    picture = searcher.search("a red box", k=1)[0]
    assert (picture.id, picture.path, picture.fields) == (
        picture.item.id,
        picture.item.content,
        picture.item.fields,
    )
    assert repr(picture).startswith(
        f"Hit(id={picture.id!r}, score={picture.score!r}, path={picture.path!r}",
    )
    assert "content_hash" not in repr(
        Hit(
            replace(
                picture.item,
                fields={"content_hash": "ab", "width": 5},
            ),
            1.0,
        ),
    )
    assert (
        searcher.search(
            "a red box",
            k=1,
            find="text",
        )[0].path
        is None
    )


def test_a_stored_item_is_what_was_indexed(searcher: Searcher):
    embeddings = searcher.embeddings("003.png#1")
    assert embeddings.modality == "text"
    assert embeddings.vectors.dtype == np.float32
    assert np.array_equal(
        embeddings.vectors,
        searcher.index.vectors(["003.png#1"]),
    )
    with pytest.raises(KeyError):
        searcher.embeddings("none such")


def test_a_renewed_searcher_keeps_the_encoder(searcher: Searcher):
    encoder = searcher.encoder
    fresh = searcher.renew(force=True)
    assert fresh.encoder is encoder
    assert fresh.index is not searcher.index
    assert fresh.search("a red box") == searcher.search("a red box")


def test_an_index_is_taken_anew_if_it_was_edited_and_its_codec_fetched_then_only(
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    at = f"file:{tmp_path}"
    photos = library / "photos.h5"
    assert boc(f"index photos {photos} --at {at}").exit_code == 0
    searcher = Searcher.open("photos", at, device="cpu")
    fetched = []
    arrays = EmbeddedEngine.arrays
    monkeypatch.setattr(
        EmbeddedEngine,
        "arrays",
        lambda index: fetched.append(index) or arrays(index),
    )
    assert searcher.renew() is searcher
    assert not fetched
    for _ in range(2):  # the same items in place of those that are there, as many as before
        assert boc(f"add photos {photos} --at {at}").exit_code == 0
        fetched.clear()
        fresh = searcher.renew()
        assert fresh is not searcher
        assert fetched == [fresh.index]
        assert fresh.index.manifest.items == searcher.index.manifest.items
        searcher = fresh
    before = searcher.search_vectors(
        searcher.embeddings("003.png"),
        k=5,
    )
    assert boc(f"compact photos --at {at}").exit_code == 0
    assert searcher.renew() is searcher
    assert (
        searcher.search_vectors(
            searcher.embeddings("003.png"),
            k=5,
        )
        == before
    )
    assert (
        Searcher.open("photos", at).search_vectors(
            searcher.embeddings("003.png"),
            k=5,
        )
        == before
    )


COLD = """
import sys
from boc.search.searcher import Searcher
for name in sys.argv[2:]:
    Searcher.open(name, sys.argv[1]).search("a red box", rm=1)
print(*{"sklearn", "scipy.stats", "pandas"} & sys.modules.keys())
"""


@pytest.mark.slow
def test_a_cold_search_by_any_code_loads_no_library_for_learning(
    library: Path,
    tmp_path: Path,
):
    photos = library / "photos.h5"
    codes = dict.fromkeys(("dictionary", "scalar", "permutation", "bits", "late"), "")
    for kind in ("plain", "words", "learned"):
        book = tmp_path / f"{kind}.npz"
        made = boc(f"build-codebook {photos} -o {book} --kind {kind} --clusters 16")
        assert made.exit_code == 0, made.output
        for code in {"plain": ("hard", "soft")}.get(kind, (kind,)):
            codes[code] = f"(codebook='{book}')"
    at = f"file:{tmp_path / 'index'}"
    for code, arguments in codes.items():
        assert boc("index", code, photos, "--at", at, "--code", code + arguments).exit_code == 0
    loaded = subprocess.run(
        [sys.executable, "-c", COLD, at, *codes],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout == "\n"
