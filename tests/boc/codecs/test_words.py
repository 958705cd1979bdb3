"""Pictures written in words: the step against its definition, vocabularies, and searches by
keywords."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse
from sklearn.linear_model import Ridge

from boc.clustering.codebook import Codebook
from boc.clustering.make_codebook import FREQUENT, RIDGE
from boc.codecs import WordTerms
from boc.codecs.parse import code_of
from boc.codecs.surrogate_text import to_words
from boc.codecs.words import LEAST
from boc.errors import BocError
from boc.inputs.features import FeatureFile
from boc.labels import Label, content_words, pack_labels
from boc.manage.build import add_items, build_index, delete_items
from boc.manage.copy import copy_index
from boc.search.searcher import Searcher
from boc.types import Identity
from boc.vectors import Floats, unit_rows
from tests.helpers import boc

WIDTH = 5


def gaussian(rows: int, seed: int) -> Floats:
    return unit_rows(np.random.default_rng(seed).standard_normal((rows, WIDTH)))


def book_of(words: Floats, origin: Floats) -> Codebook:
    names = tuple(f"word{chr(97 + i)}" for i in range(len(words)))
    return Codebook(
        words,
        Identity(
            "t:x",
            "0" * 64,
            WIDTH,
        ),
        (),
        {},
        len(words),
        names,
        pack_labels([Label((name,)) for name in names]),
        origin=origin,
    )


@given(seed=st.integers(0, 10**6), query_z=st.integers(1, 12))
def test_terms_are_nearest_words(seed: int, query_z: int):
    words = gaussian(9, seed)
    origin = gaussian(1, seed + 1)[0]
    pictures = gaussian(7, seed + 2)
    sentences = gaussian(3, 5)
    step = WordTerms.from_codebook(
        book_of(words, origin),
        z=4,
        query_z=query_z,
    )
    step.fit(pictures, ["image"] * len(pictures))
    for row, x in zip(
        step.encode_documents(pictures, "image").toarray(),
        unit_rows(pictures - pictures.mean(axis=0)),
        strict=True,
    ):
        expected = {
            j: c
            for j, c in sorted(enumerate(words @ x), key=lambda pair: -pair[1])[:4]
            if c > LEAST
        }
        assert dict(enumerate(row)) == pytest.approx(
            {j: expected.get(j, 0) for j in range(9)},
            abs=1e-5,
        )
    queries = step.encode_queries(sentences, "text").toarray()
    cosines = unit_rows(sentences - origin) @ words.T  # no sentence was seen in fit
    for row, all_of in zip(
        queries,
        cosines,
        strict=True,
    ):
        nearest = sorted(range(9), key=lambda j: -all_of[j])[:query_z]
        expected = [all_of[j] if j in nearest and all_of[j] > LEAST else 0 for j in range(9)]
        np.testing.assert_allclose(
            row,
            expected,
            atol=1e-5,
        )
    assert list(step.words) == [f"word{letter}" for letter in "abcdefghi"]


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 5),
            st.integers(1, 7),
            max_size=6,
        ),
        max_size=4,
    ),
)
def test_to_words_repeats_by_frequency(rows: list[dict[int, int]]):
    words = {1: "rocket", 2: "red", 4: "desert"}
    terms = sparse.csr_array(
        np.array([[row.get(j, 0) for j in range(6)] for row in rows] or np.zeros((0, 6)), np.int32),
    )
    texts = to_words(terms, words)
    assert [Counter(text.split()) for text in texts] == [
        Counter({words[j]: f for j, f in row.items() if j in words}) for row in rows
    ]
    for text in texts:
        counts = [*Counter(text.split()).values()]
        assert counts == sorted(counts, reverse=True)


@pytest.fixture(scope="module")
def book(library: Path, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.npz"
    made = boc(
        f"build-codebook {library}/photos.h5 -o {path} --kind words --clusters 7",
    )
    assert made.stdout == f"7 words in {path}\n"
    return path


def test_vocabulary_follows_definition(library: Path, book: Path):
    made = Codebook.load(book)
    with FeatureFile(library / "photos.h5") as file:
        captions = [item.content for item in file.items("text")]
        vectors = file.vectors("text").astype(np.float64)
    counts = Counter(word for caption in captions for word in set(content_words(caption)))
    assert made.words == tuple(sorted(counts, key=lambda word: (-counts[word], word))[:7])
    assert made.origin is not None
    np.testing.assert_allclose(
        made.origin,
        vectors.mean(axis=0),
        atol=1e-5,
    )
    present = np.array(
        [[word in content_words(caption) for word in made.words] for caption in captions],
        float,
    )
    added = Ridge(alpha=RIDGE).fit(present, vectors).coef_.T
    for word, vector, expected in zip(
        made.words,
        made.centroids,
        added,
        strict=True,
    ):
        length = (counts[word] / counts[made.words[0]]) ** FREQUENT
        np.testing.assert_allclose(
            vector,
            length * expected / np.linalg.norm(expected),
            atol=1e-4,
        )


def test_keyword_search_without_encoder(library: Path, book: Path, tmp_path: Path):
    at = f"file:{tmp_path}"
    code = f"words(z=5, codebook='{book}')"
    build_index(
        "words",
        library / "photos.h5",
        code=code,
        at=at,
    )
    searcher = Searcher.open("words", at)
    searcher._load = lambda spec: pytest.fail("the encoder is not needed")
    assert str(code_of(searcher.index.manifest.codec)) == "words:5/32"
    items = {item.id: item for item in searcher.index.items()}
    names = searcher.codec.words
    for id, row in zip(
        items,
        searcher.index.terms([*items]),
        strict=True,
    ):
        expected = {
            names[term]: int(f)
            for term, f in zip(
                row.indices.tolist(),
                row.data.tolist(),
                strict=True,
            )
        }
        own = Counter(str(items[id].fields.get("words", "")).split())
        assert own == (Counter(expected) if items[id].modality == "image" else Counter())
    word = Counter(
        word for item in items.values() for word in set(str(item.fields.get("words", "")).split())
    )
    rarest = word.most_common()[-1][0]
    holders = {
        id for id, item in items.items() if rarest in str(item.fields.get("words", "")).split()
    }
    assert {hit.item.id for hit in searcher.search_words([rarest], k=40)[0]} == holders
    printed = boc(
        "search words",
        rarest,
        "--hybrid",
        "words",
        "-k",
        40,
        "--at",
        at,
    ).stdout
    assert {line.split()[2] for line in printed.splitlines()} == holders


def test_words_survive_edits_and_copies(library: Path, book: Path, tmp_path: Path):
    at = f"file:{tmp_path}"
    code = f"words(codebook='{book}')"
    build_index(
        "words",
        library / "photos.h5",
        code=code,
        at=at,
    )
    before = {item.id: item for item in Searcher.open("words", at).index.items()}
    delete_items(
        "words",
        [id for id in before if id.startswith("007")],
        at=at,
    )
    add_items(
        "words",
        library / "photos.h5",
        at=at,
    )
    build_index(
        "plain",
        library / "photos.h5",
        at=at,
    )
    copy_index(
        "plain",
        "copied",
        code=code,
        at=at,
    )
    copy_index(
        "words",
        at=at,
        to=tmp_path / "words.boc.zip",
    )
    build_index(
        "again",
        tmp_path / "words.boc.zip",
        at=at,
    )
    for name in ("words", "copied", "again"):
        assert {
            item.id: item.fields.get("words") for item in Searcher.open(name, at).index.items()
        } == {id: item.fields.get("words") for id, item in before.items()}


def test_invalid_requests(library: Path, book: Path, tmp_path: Path):
    table = tmp_path / "table.csv"
    table.write_text("id,words:text\n007.png,mine\n")
    with pytest.raises(BocError, match="stores words in the metadata field 'words'"):
        build_index(
            "x",
            library / "photos.h5",
            code=f"words(codebook='{book}')",
            metadata=table,
            at=f"file:{tmp_path}",
        )
    at = f"file:{library / 'index'}"
    searcher = Searcher.open("photos", at)
    with pytest.raises(BocError, match="omit rerank, collapse"):
        searcher.search_words(
            ["box"],
            rerank="dot",
            collapse=True,
        )
    with pytest.raises(BocError, match="the sentence is empty"):
        searcher.search_words([" "])
    with pytest.raises(ValueError, match="z must be at least 1, got 0"):
        WordTerms(3, z=0).fit(gaussian(4, 0))
    result = boc(
        f"search photos box --hybrid words --image a.jpg --at {at}",
    )
    assert "omit --image and --like" in result.output
