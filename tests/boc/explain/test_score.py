"""Explanations: their sums are the engine's scores, their parts those of slow loops, and the
command prints them."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.clustering.make_codebook import cluster
from boc.codecs import SurrogateCodec
from boc.codecs.bag_of_concepts import HardAssignment
from boc.errors import BocError
from boc.explain.score import explain
from boc.inputs.features import FeatureFile
from boc.labels import Box, Example, IndexLabels, Label, content_words, pack_labels
from boc.manage.build import build_index
from boc.manage.load import load_index, new_manifest
from boc.search.searcher import Searcher
from boc.types import MODALITIES, ImageRef, Item, Modality, SearchRequest, TermMatrix
from tests.helpers import boc, draw_pictures, run

SENTENCE = "a red box at the left"


@pytest.fixture(scope="module")
def by_concepts(library: Path, tmp_path_factory) -> Searcher:
    """An index of the library by counts of ten codewords."""
    with FeatureFile(library / "photos.h5") as file:
        samples = [file.batch(m, 0, 100).embeddings for m in MODALITIES]
        codec = SurrogateCodec([HardAssignment.from_codebook(cluster([file], 10))]).fit(*samples)
        at = f"file:{tmp_path_factory.mktemp('concepts')}"
        for _ in load_index(
            file,
            at,
            "both",
            codec,
            new_manifest(file, codec),
        ):
            pass
    return Searcher(plugins.backend(at).open("both"))


def queries_of(searcher: Searcher, text: str) -> TermMatrix:
    return searcher.codec.encode_queries(searcher.encoder.encode_texts([text]))


@pytest.mark.parametrize(
    ("kind", "modality"),
    [
        ("searcher", "image"),
        ("searcher", "text"),
        ("by_concepts", "text"),
    ],
)
def test_products_sum_to_the_score(
    kind: str,
    modality: Modality,
    request,
):
    searcher = request.getfixturevalue(kind)
    hits = searcher.index.search(
        SearchRequest(
            queries_of(searcher, SENTENCE),
            1000,
            modality,
        ),
    )[0]
    assert len(hits) > 10
    for hit in [*hits[:3], *hits[-3:]]:
        found = explain(
            searcher,
            hit.item.id,
            SENTENCE,
            labelled=0,
        )
        assert isinstance(found.score, int)
        assert found.score == hit.score
        assert [m.product for m in found.matches] == sorted(
            (m.product for m in found.matches),
            reverse=True,
        )
        assert found.item == hit.item


def test_matches_are_shared_terms(searcher: Searcher):
    query = dict(
        zip(
            *(a.tolist() for a in _row(queries_of(searcher, SENTENCE))),
            strict=True,
        ),
    )
    item = dict(
        zip(
            *(a.tolist() for a in _row(searcher.index.terms(["003.png"]))),
            strict=True,
        ),
    )
    found = explain(searcher, "003.png", SENTENCE, labelled=2)
    assert {m.term: (m.query_frequency, m.item_frequency) for m in found.matches} == {
        term: (query[term], item[term]) for term in query if term in item
    }
    assert [m.label is None for m in found.matches] == [i >= 2 for i in range(len(found.matches))]


def _row(terms: TermMatrix) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return terms.indices, terms.data


def test_explain_reads_one_item(searcher: Searcher, monkeypatch):
    query = queries_of(searcher, SENTENCE).indices.tolist()
    whole = explain(searcher, "003.png", SENTENCE, labelled=0)
    terms = searcher.index.terms
    asked = []
    monkeypatch.setattr(searcher.index, "items", None)
    monkeypatch.setattr(
        searcher.index,
        "terms",
        lambda ids, among: asked.append((ids, among)) or terms(ids, among),
    )
    assert (
        explain(
            searcher,
            "003.png",
            SENTENCE,
            labelled=0,
        ).matches
        == whole.matches
    )
    assert asked == [(["003.png"], query)]


def test_a_picture_can_ask(searcher: Searcher, library: Path):
    path = library / "images" / "004.png"
    asked = searcher.encoder.encode_images([searcher.encoder.prepare(ImageRef(path.name, path))])
    hits = {
        h.item.id: h.score
        for h in searcher.index.search(
            SearchRequest(searcher.codec.encode_queries(asked), 1000, "text"),
        )[0]
    }
    found = explain(searcher, "004.png#0", image=path)
    assert found.score == hits["004.png#0"]
    assert found.query == Item("query", "image", str(path))
    assert found.alignment is not None
    assert found.alignment.shape == (
        46,
        len(searcher.encoder.encode_texts([found.item.content]).words[0]),
    )
    assert found.query_parts is not None
    assert found.query_parts.boxes is not None


def test_alignment_is_the_largest_cosine(searcher: Searcher):
    sentence = "a greenish box on reds"
    found = explain(searcher, "001.png#0", sentence)
    assert found.query_parts is not None
    assert found.item_parts is not None
    assert found.query_parts.names == sentence.split()
    assert len(found.query_parts.vectors) > 5  # some word has pieces
    assert found.alignment is not None
    for i, j in np.ndindex(found.alignment.shape):
        cosines = [
            v @ w / np.linalg.norm(v) / np.linalg.norm(w)
            for v in found.query_parts.vectors[found.query_parts.of == i].astype(np.float64)
            for w in found.item_parts.vectors[found.item_parts.of == j].astype(np.float64)
        ]
        assert found.alignment[i, j] == pytest.approx(max(cosines), abs=1e-5)


def test_weights_without_concept_terms(searcher: Searcher):
    found = explain(searcher, "003.png", SENTENCE)
    assert found.weighed_by == "alignment"
    assert found.alignment is not None
    assert found.weights is not None
    chosen = [i for i, word in enumerate(SENTENCE.split()) if content_words(word)]
    assert len(chosen) < len(SENTENCE.split())
    np.testing.assert_allclose(
        found.weights,
        [np.mean([row[j] for row in found.alignment[chosen]]) for j in range(46)],
        rtol=1e-5,
    )
    of_stop_words = explain(searcher, "003.png", "at the")
    assert of_stop_words.alignment is not None
    np.testing.assert_allclose(
        of_stop_words.weights,
        of_stop_words.alignment.mean(axis=0),
        rtol=1e-5,
    )


@pytest.mark.parametrize("id", ["003.png", "003.png#0"])
def test_part_shares_equal_counts_of_codewords(by_concepts: Searcher, id: str):
    """A term is carried evenly by the parts whose nearest centroid it is."""
    step = by_concepts.codec.steps[0]
    codewords = set(by_concepts.index.terms([id]).indices.tolist())
    asked = [
        item
        for item in by_concepts.index.items()
        if ("#" in item.id) == ("#" in id) and item.id != id
    ]
    query = next(
        item
        for item in asked
        if codewords & set(by_concepts.index.terms([item.id]).indices.tolist())
    )
    by_text = query.modality == "text"
    found = explain(
        by_concepts,
        id,
        query.content if by_text else None,
        None if by_text else Path(query.content),
    )
    assert found.item_parts is not None
    nearest = [
        int(
            np.argmin(
                ((step.centroids_.astype(np.float64) - v) ** 2).sum(
                    axis=1,
                ),
            ),
        )
        for v in found.item_parts.vectors
    ]
    expected = np.zeros(found.part_shares.shape)
    for m, match in enumerate(found.matches):
        at = Counter(
            name
            for name, codeword in zip(
                found.item_parts.of.tolist(),
                nearest,
                strict=True,
            )
            if codeword == match.term
        )
        assert at.total() == match.item_frequency
        for name, count in at.items():
            expected[m, name] = count / at.total()
    assert expected.any()
    np.testing.assert_allclose(found.part_shares, expected)
    assert found.weighed_by == "terms"
    assert found.weights is not None
    assert found.weights.sum() == pytest.approx(1)


def test_stored_labels_override_index_labels(by_concepts: Searcher):
    """Codewords with even numbers have words and an example stored, odd ones words only."""
    step = by_concepts.codec.steps[0]
    example = Example("x", "/x", Box(0, 0, 1, 1))
    stored = [
        Label(
            (f"word{i}",),
            () if i % 2 else (example,),
        )
        for i in range(len(step.centroids_))
    ]
    asked = IndexLabels(by_concepts.index, by_concepts.codec.n_terms)
    captions = [item for item in by_concepts.index.items() if item.modality == "text"][:10]
    step.term_labels_ = pack_labels(stored)
    try:
        matches = [
            m
            for c in captions
            for m in explain(
                by_concepts,
                c.id,
                c.content,
                labelled=99,
            ).matches
        ]
    finally:
        del step.term_labels_
    assert {m.term % 2 for m in matches} == {0, 1}
    for match in matches:
        own = stored[match.term]
        other = asked[match.term]
        assert match.label == Label(
            own.words or other.words,
            own.examples or other.examples,
        )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (("nope", SENTENCE), r"no item 'nope' in the index; give the id of a hit"),
        (("003.png",), "either a sentence or a picture"),
        (("003.png", SENTENCE, "x.png"), "either a sentence or a picture"),
        (("003.png", " "), "the sentence is empty"),
        (("003.png", None, "gone.png"), r"gone.png: cannot be read"),
    ],
)
def test_invalid_query_is_refused(searcher: Searcher, query: tuple[str, ...], message: str):
    with pytest.raises(BocError, match=message):
        explain(searcher, *query)


def test_no_shared_term_scores_0(searcher: Searcher, monkeypatch):
    terms = searcher.index.terms(["003.png"])
    monkeypatch.setattr(
        searcher.index,
        "terms",
        lambda ids, among: sparse.csr_array(
            terms.shape,
            dtype=np.int32,
        ),
    )
    found = explain(searcher, "003.png", SENTENCE)
    assert (found.score, found.matches) == (0, [])
    assert found.weights is not None


def test_explain_without_the_picture(library: Path, tmp_path: Path):
    table = draw_pictures(tmp_path, 40)
    features = tmp_path / "photos.h5"
    at = f"file:{tmp_path / 'index'}"
    run(f"extract {table} -o {features} --encoder tern:{library}/model")
    run(f"index photos {features} --at {at}")
    (tmp_path / "images" / "007.png").unlink()
    found = explain(
        Searcher.open("photos", at, device="cpu"),
        "007.png",
        SENTENCE,
    )
    result = boc(f'explain photos "{SENTENCE}" 007.png --at {at}')
    assert found.matches
    assert "007.png: cannot be read" in found.missing
    assert found.alignment is None
    assert found.weights is None
    assert result.exit_code == 0
    assert "only terms are shown: " in result.stderr
    assert f"score    {found.score}" in result.stdout


def test_explain_command_prints_terms(searcher: Searcher, library: Path):
    found = explain(searcher, "003.png", SENTENCE)
    result = run(f'explain photos "{SENTENCE}" 003.png --at file:{library}/index')
    lines = result.stdout.splitlines()
    assert len(lines) == len(found.matches) + 2 <= 12
    for line, match in zip(lines, found.matches, strict=False):
        share, _, term, f, _, g, _, product, *words = line.split()
        assert (term, int(f), int(g)) == (
            f"t{match.term}",
            match.query_frequency,
            match.item_frequency,
        )
        assert int(product) == match.product
        assert float(share) == pytest.approx(
            100 * match.product / found.score,
            abs=0.06,
        )
        assert match.label is not None
        assert " ".join(words) == ", ".join(match.label.words)
    assert lines[-2] == f"score    {found.score}"


def test_the_command_writes_json(searcher: Searcher, library: Path):
    image = library / "images" / "005.png"
    result = boc(
        "explain photos 003.png --image",
        image,
        "--json",
        "--at",
        f"file:{library / 'index'}",
    )
    record = json.loads(result.stdout)
    found = explain(searcher, "003.png", image=image)
    assert record["score"] == found.score == sum(term["product"] for term in record["terms"])
    assert sum(term["share"] for term in record["terms"]) == pytest.approx(1)
    assert np.array(record["alignment"]).shape == (46, 46)
    assert np.array(record["item_parts"]["boxes"]).shape == (46, 4)
    said = {
        "query": str(image),
        "content": found.item.content,
        "plan": "all",
    }
    assert record == {**said, **found.to_dict()}
    assert record["weighed_by"] == "alignment"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("003.png",), "give TEXT (in quotes) and an item's ID"),
        ((SENTENCE, "003.png", "--image", "x.png"), "give TEXT (in quotes) and an item's ID"),
        ((SENTENCE, "nope"), "no item 'nope' in the index"),
    ],
)
def test_the_command_says_what_is_wrong(
    library: Path,
    arguments: tuple[str, ...],
    message: str,
):
    result = boc("explain photos", *arguments, "--at", f"file:{library / 'index'}")
    assert result.exit_code != 0
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_hit_without_shared_terms_says_that_its_vector_is_near(
    library: Path,
    tmp_path: Path,
):
    at = f"file:{tmp_path}"
    build_index("few", library / "photos.h5", at=at, code="dictionary:1/1")
    searcher = Searcher.open("few", at, device="cpu")
    hits = searcher.search(SENTENCE, k=40)
    bare = next(hit for hit in hits if not explain(searcher, hit.id, SENTENCE).matches)
    by_vectors = explain(searcher, bare.id, SENTENCE).by_vectors
    assert by_vectors == pytest.approx(bare.score, abs=1e-5)
    told = run(f'explain few "{SENTENCE}" {bare.id} --at {at}')
    assert told.stdout.splitlines()[-1] == f"vectors  {bare.score:.4f}, the score of the vectors"
    assert (
        f"{bare.id} shares no terms with this query; it is a hit because its vector is close"
        in told.stderr
    )
    assert "all compared: the code took no part" in told.stderr
