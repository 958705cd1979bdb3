"""What servers are sent: digits make up the frequency, scripts decode what was stored, conditions
are all there."""

import base64
from typing import Any

import pytest
from hypothesis import given, strategies as st

from boc.types import MODALITIES, Item, Modality, TermMatrix
from indexing.server import requests, searches
from indexing.server.binary import from_base64, to_base64
from indexing.server.term_fields import STRATEGIES, Strategy, Text, strongest
from tests.oracles import TEXT, assert_canonical, same_matrix, term_matrices

LARGEST = 2**31 - 1
frequencies = (
    st.integers(1, 20)
    | st.sampled_from([15, 16, 17, 511, 512, 513, 2**24 - 1, 2**24])
    | st.integers(1, LARGEST)
)


@st.composite
def sparse_terms(draw: st.DrawFn, rows: int = 4, width: int = 9) -> TermMatrix:
    """Term matrices with frequencies of every size, rows without any among them."""
    terms = draw(term_matrices((rows, width), LARGEST))
    terms.data[:] = draw(st.lists(frequencies, min_size=terms.nnz, max_size=terms.nnz))
    terms.eliminate_zeros()
    return terms


def slow_dot(query: dict[str, int], document: dict[str, int]) -> int:
    return sum(weight * document.get(feature, 0) for feature, weight in query.items())


def row_of(terms: TermMatrix, i: int) -> dict[int, int]:
    span = slice(terms.indptr[i], terms.indptr[i + 1])
    return dict(zip(terms.indices[span].tolist(), terms.data[span].tolist(), strict=True))


def words(field: str) -> dict[str, int]:
    """What a server counts of surrogate text."""
    found = {}
    for word in field.split():
        name, _, count = word.partition("|")
        found[name] = found.get(name, 0) + int(count or 1)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
class TestStrategy:
    @given(terms=sparse_terms(), query=st.dictionaries(st.integers(0, 8), st.integers(1, LARGEST)))
    def test_features_equal_frequencies(
        self,
        strategy: Strategy,
        terms: TermMatrix,
        query: dict[int, int],
    ):
        """Their products with those of a query sum up to the dot product, and a term is there if
        one of them is."""
        digits = strategy.digits(int(terms.data.max(initial=0)))
        asked = strategy.features(list(query), list(query.values()), digits)
        documents = strategy.documents(terms)
        for i, document in enumerate(documents):
            row = row_of(terms, i)
            assert all(0 < digit < strategy.base for digit in document.values())
            assert slow_dot(asked, document) == sum(
                weight * row.get(j, 0) for j, weight in query.items()
            )
            there = {
                j
                for j in range(terms.shape[1])
                if document.keys() & strategy.features([j], [1], digits).keys()
            }
            assert there == set(row)
            field = strategy.field(document)
            assert (words(field) if isinstance(strategy, Text) else field) == document
            assert not any("." in name or " " in name for name in document)
        found = requests.decode_terms(documents, strategy.base, terms.shape[1])
        assert_canonical(found, terms.shape)
        assert same_matrix(found, terms)


@given(terms=sparse_terms())
def test_first_terms(terms: TermMatrix):
    rows = [row_of(terms, i) for i in range(terms.shape[0])]
    expected = [min(row, key=lambda term: (-row[term], term)) if row else None for row in rows]
    assert requests.first_terms(terms) == expected


@given(
    texts=st.tuples(TEXT, TEXT, TEXT),
    modality=st.sampled_from(MODALITIES),
    fields=st.dictionaries(
        TEXT,
        st.none()
        | TEXT
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
    length=st.sampled_from([0, 31_000, 32_000, 33_000]),
)
def test_item_field_round_trip(
    texts: tuple[str, str, str],
    modality: Modality,
    fields: dict[str, Any],
    length: int,
):
    item = Item(texts[0], modality, texts[1] + length * "x", texts[2], fields)
    text = requests.pack_item(item)
    assert len(from_base64(text)) <= 32_766
    of_opensearch = text.replace("+", "-").replace("/", "_").rstrip("=")
    shown = set(
        requests.OWN.of_hits([{"fields": {"item": [each]}} for each in (text, of_opensearch)]),
    )
    either = [{item}, {item.id}]
    assert shown in (either[:1] if length <= 31_000 else either[1:] if length > 32_000 else either)


@pytest.mark.parametrize("layout", [requests.OWN, requests.ATTACHED])
def test_hit_without_item(layout: requests.Layout):
    with pytest.raises(KeyError):
        layout.of_hits([{"_source": {}}])


@given(
    features=st.dictionaries(st.integers(0, 50).map("t{}".format), st.integers(1, 5)),
    limit=st.integers(0, 20),
)
def test_strongest_equal_a_slow_choice(features: dict[str, int], limit: int):
    found = strongest(features, limit)
    names = list(features)
    left = list(names)
    expected = []
    while left and len(expected) < limit:
        best = left[0]
        for name in left:
            if features[name] > features[best]:
                best = name
        left.remove(best)
        expected.append((best, features[best]))
    assert list(found.items()) == expected
    assert list(features) == names


@given(data=st.binary(max_size=200))
def test_base64_round_trip(data: bytes):
    text = to_base64(data)
    assert base64.b64decode(text, validate=True) == data
    assert from_base64(text) == data
    assert from_base64(base64.urlsafe_b64encode(data).decode().rstrip("=")) == data


@given(
    a=TEXT | st.text("é日a", min_size=150, max_size=300),
    b=TEXT | st.text("é日a", min_size=150, max_size=300),
)
def test_document_ids_are_distinct(a: str, b: str):
    for key in (a, f"boc:{b}", f"boc:sha256:{b}"):
        found = requests.document_id(key)
        assert len(found.encode()) <= 512
        assert (found == key) == (len(key.encode()) <= 512 and not key.startswith("boc:"))
    if a != b:
        assert len({requests.document_id(key) for key in (a, b, f"boc:{a}", f"boc:{b}")}) == 4


class Pages:
    """A transport that answers with the next of ``n`` numbered hits, as many as a request wants."""

    def __init__(self, n: int) -> None:
        self.n = n

    def open_pit(self, index: str, keep_alive: str) -> str:
        return index

    def close_pit(self, pit: str) -> None: ...

    def request(self, method: str, path: str, body: Any, **params: str) -> Any:
        assert params == searches.WHOLE
        assert body["size"] > 0
        first = body.get("search_after", [-1])[0] + 1
        return {
            "hits": {
                "hits": [{"sort": [i]} for i in range(first, min(self.n, first + body["size"]))],
            },
        }


@given(n=st.integers(0, 12), k=st.none() | st.integers(0, 12))
def test_scan_gives_the_first_hits_once(n: int, k: int | None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "SCAN", 3)
        transport = Pages(n)
        assert [hit["sort"][0] for hit in searches.scan(transport, "index", {}, k)] == list(
            range(n),
        )[:k]
