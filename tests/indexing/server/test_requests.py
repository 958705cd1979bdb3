"""What servers are sent: digits make up the frequency, scripts decode what was stored, conditions
are all there."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.types import MODALITIES, Filter, Item, Modality, TermMatrix
from indexing.server import requests, searches
from indexing.server.binary import from_base64, to_base64
from indexing.server.term_fields import STRATEGIES, Strategy, Text, strongest
from indexing.server.vector_fields import VECTOR_FIELDS, VectorField
from tests.oracles import TEXT, assert_canonical, new_manifest, same_matrix, term_matrices

LARGEST = 2**31 - 1
HIDDEN = ["size", "digits", "first", "terms", "vector", "concepts", "item", "words", "block"]
SOURCE_ONLY = ("content", "group", "array", "part", "items", "unit", "concept_dim", "by")
BINARY = {"type": "binary", "doc_values": True}
UNREAD = {"type": "keyword", "index": False, "doc_values": False}
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
    found: dict[str, int] = {}
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
    ) -> None:
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

    @given(value=frequencies)
    def test_digits_of_a_number(self, strategy: Strategy, value: int) -> None:
        digits = strategy.digits(value)
        assert strategy.base ** (digits - 1) <= value < strategy.base**digits
        asked = strategy.features([7], [3], digits)
        assert list(asked.values()) == [3 * strategy.base**i for i in range(digits)]
        assert len(asked) == digits

    @given(
        weights=st.dictionaries(
            st.integers(0, 99).map("t{}".format),
            st.integers(1, LARGEST),
            min_size=1,
        ),
    )
    def test_query_has_all_weights(self, strategy: Strategy, weights: dict[str, int]) -> None:
        query = strategy.query(weights)
        assert orjson.loads(requests.dumps(query)) == query
        if strategy.name == "sparse_vector":
            assert query["sparse_vector"] == {
                "field": "terms",
                "query_vector": weights,
                "prune": False,
            }
            return
        clauses = query["bool"]["should"]
        if strategy.name == "rank_features":
            assert all(clause["rank_feature"]["linear"] == {} for clause in clauses)
            found = {
                c["rank_feature"]["field"].removeprefix("terms."): c["rank_feature"]["boost"]
                for c in clauses
            }
        else:
            found = {c["term"]["terms"]["value"]: c["term"]["terms"]["boost"] for c in clauses}
        assert found == weights

    @pytest.mark.parametrize("field", VECTOR_FIELDS.values(), ids=list(VECTOR_FIELDS))
    @pytest.mark.parametrize("order", ["id", "term"])
    def test_mapping_of_an_index(self, strategy: Strategy, field: VectorField, order: str) -> None:
        manifest = replace(new_manifest(10, 3), fields={"year": "integer", "title": "text"})
        body = requests.index_body(strategy, manifest, field, {"a": 1}, shards=3, order=order)
        excluded = [] if field.in_source else HIDDEN
        assert body["mappings"] == {
            "dynamic": False,
            "_source": {
                "enabled": True,
                "includes": [] if field.in_source else ["*"],
                "excludes": excluded,
            },
            "_routing": {"required": False},
            "_meta": {"a": 1},
            "properties": {
                "id": {"type": "keyword", "index": False},
                "modality": {"type": "keyword"},
                "size": {"type": "integer", "index": False},
                "digits": {"type": "byte", "index": False},
                "terms": strategy.mapping,
                "vector": field.mapping(3),
                **dict.fromkeys(("concepts", "item", "block"), BINARY),
                "words": {
                    "type": "text",
                    "analyzer": "standard",
                    "search_analyzer": "standard",
                    "similarity": "BM25",
                },
                "meta": {
                    "properties": {
                        "year": {"type": "long"},
                        "title": {"type": "text", "index": False, "copy_to": "words"},
                    },
                },
                **dict.fromkeys(SOURCE_ONLY, UNREAD),
                **({"first": {"type": "integer", "index": False}} if order == "term" else {}),
            },
        }
        settings = body["settings"]
        assert (settings["number_of_shards"], settings["number_of_replicas"]) == (3, 0)
        assert settings["refresh_interval"] == "-1"
        assert settings["sort.field"] == (["first", "id"] if order == "term" else ["id"])
        assert {**strategy.settings, **field.settings}.items() <= settings.items()

    def test_mapping_of_attached_codes(self, strategy: Strategy) -> None:
        assert requests.object_mapping(strategy, 3) == {
            "dynamic": False,
            "properties": {
                "id": {"type": "keyword", "index": False},
                "modality": {"type": "keyword"},
                "row": {"type": "keyword"},
                "size": {"type": "integer", "index": False},
                "digits": {"type": "byte", "index": False},
                "terms": strategy.mapping,
                "vector": BINARY,
            },
        }


@given(terms=sparse_terms())
def test_first_terms(terms: TermMatrix) -> None:
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
) -> None:
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
def test_hit_without_item(layout: requests.Layout) -> None:
    with pytest.raises(KeyError):
        layout.of_hits([{"_source": {}}])


@given(
    features=st.dictionaries(st.integers(0, 50).map("t{}".format), st.integers(1, 5)),
    limit=st.integers(0, 20),
)
def test_strongest_equal_a_slow_choice(features: dict[str, int], limit: int) -> None:
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
def test_base64_round_trip(data: bytes) -> None:
    text = to_base64(data)
    assert base64.b64decode(text, validate=True) == data
    assert from_base64(text) == data
    assert from_base64(base64.urlsafe_b64encode(data).decode().rstrip("=")) == data


@given(
    a=TEXT | st.text("é日a", min_size=150, max_size=300),
    b=TEXT | st.text("é日a", min_size=150, max_size=300),
)
def test_document_ids_are_distinct(a: str, b: str) -> None:
    for key in (a, f"boc:{b}", f"boc:sha256:{b}"):
        found = requests.document_id(key)
        assert len(found.encode()) <= 512
        assert (found == key) == (len(key.encode()) <= 512 and not key.startswith("boc:"))
    if a != b:
        assert len({requests.document_id(key) for key in (a, b, f"boc:{a}", f"boc:{b}")}) == 4


values = st.text(min_size=1, max_size=5) | st.integers(-5, 5) | st.booleans() | st.floats(-2, 2)
filters = st.lists(
    st.builds(
        Filter,
        st.sampled_from("abc"),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        values,
    ),
    max_size=4,
)


@given(
    conditions=filters,
    modality=st.none() | st.sampled_from(["image", "text"]),
    k=st.integers(1, 50),
    words=st.none() | st.just(requests.match_body("a dog", 2.5)),
)
def test_conditions_are_in_the_query(
    conditions: list[Filter],
    modality: Any,
    k: int,
    words: Any,
) -> None:
    query = STRATEGIES["text"].query({"t1": 2, "t3": 4})
    body = requests.search_body(query, k, modality, conditions, words)
    assert (body["size"], body["track_total_hits"]) == (k, True)
    assert body["sort"] == [{"_score": "desc"}, {"id": "asc"}]
    whole = body["query"]
    if not conditions and modality is None and words is None:
        assert whole == query
        return
    assert whole["bool"]["must"] == [query]  # a hit shares a term
    assert whole["bool"].get("should", []) == ([] if words is None else [words])
    said = [("only", *clause.items()) for clause in whole["bool"].get("filter", [])]
    said += [("not", *clause.items()) for clause in whole["bool"].get("must_not", [])]
    wanted: list[Any] = [] if modality is None else [("only", ("term", {"modality": modality}))]
    for c in conditions:
        name = f"meta.{c.field}"
        if c.op in ("=", "!="):
            wanted.append(("only" if c.op == "=" else "not", ("term", {name: c.value})))
        else:
            side = ("l" if "<" in c.op else "g") + "t" + ("e" if "=" in c.op else "")
            wanted.append(("only", ("range", {name: {side: c.value}})))
    key = orjson.dumps
    assert sorted(map(key, said)) == sorted(map(key, wanted))


class Pages:
    """A transport that answers with the next of ``n`` numbered hits, as many as a request wants."""

    def __init__(self, n: int) -> None:
        self.n = n

    def open_pit(self, index: str, keep_alive: str) -> str:
        return index

    def close_pit(self, pit: str) -> None: ...

    def request(self, method: str, path: str, body: Any) -> Any:
        assert body["size"] > 0
        first = body.get("search_after", [-1])[0] + 1
        return {
            "hits": {
                "hits": [{"sort": [i]} for i in range(first, min(self.n, first + body["size"]))],
            },
        }


@given(n=st.integers(0, 12), k=st.none() | st.integers(0, 12))
def test_scan_gives_the_first_hits_once(n: int, k: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "SCAN", 3)
        transport: Any = Pages(n)
        assert [hit["sort"][0] for hit in searches.scan(transport, "index", {}, k)] == list(
            range(n),
        )[:k]
