"""The embedded index against a dictionary in memory, through any order of loads, edits, compactions
and searches.

Segments are of a few rows, so that there are many of them, and merges. BOC_STEPS sets how many
steps are taken in all (default 500; 10000 for all).
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scipy import sparse

from boc.errors import BackendError, BocError
from boc.inputs.metadata import holds
from boc.manifest import Manifest
from boc.names import CONCEPT_DTYPES, VECTOR_DTYPES
from boc.plugins import Engine
from boc.rerank.storage import store
from boc.types import (
    MODALITIES,
    Embeddings,
    FieldType,
    Filter,
    Item,
    Modality,
    Ragged,
    Rescore,
    Rows,
    SearchRequest,
    StoredConcepts,
    TermMatrix,
)
from boc.vectors import Floats
from indexing.embedded import (
    kernel,
    merge,
    postings,
    segment,
    text_store_writer,
    writer as writer_module,
)
from indexing.embedded.backend import EmbeddedBackend
from indexing.embedded.engine import EmbeddedEngine
from tests.oracles import TEXT, new_manifest, same_matrix

STEPS = int(os.environ.get("BOC_STEPS", "500"))
LONGEST = 30  # steps of one machine
NAME = "pets"
TERMS = 5
DIM = 4
WIDTH = 3
ARRAYS = {
    "0.means_": np.arange(6, dtype=np.float32).reshape(2, 3),
    "0.labels_": np.array(["image", "text"]),
}
FIELDS: dict[str, FieldType] = {"year": "integer", "tag": "keyword", "title": "text"}
YEARS = [-3, 0, 2020, 2**53 + 1]
TAGS = [
    "dog",
    "Dog",
    "été",
    "-1",
    "it's",
]
VOCABULARY = ["zebra", "grass", "red", "car"]
SMALL = [
    (writer_module, "WAITING", 300),
    (merge, "MERGE", 3),
    (merge, "FEW", 1),
    (kernel, "BLOCK", 64),
    (postings, "BLOCK", 64),
    (segment, "ROWS", 64),
    (segment, "BLOCK", 3),
    (segment, "POSTINGS", 7),
    (text_store_writer, "OCCURRENCES", 3),
]
"""Thresholds of the engine that make several segments of a handful of rows, and several blocks of a
segment and of its posting lists."""


@dataclass(frozen=True)
class Kind:
    """What is chosen when an index is made."""

    dtype: str = "float32"
    concepts: str | None = None
    fields: bool = True

    @property
    def manifest(self) -> Manifest:
        made = new_manifest(
            TERMS,
            DIM,
            ARRAYS,
            dtype=self.dtype,
            concepts=self.concepts,
        )
        return replace(made, fields=FIELDS if self.fields else {})


@dataclass(frozen=True)
class Row:
    """What an index holds of an item; components are exact in the dtype, and so are their
    products."""

    item: Item
    terms: list[int]
    vector: list[float]
    concepts: list[list[float]]


@dataclass(frozen=True)
class Question:
    """One query of a search, with its options."""

    terms: list[int]
    k: int
    modality: Modality | None = None
    filters: tuple[Filter, ...] = ()
    vector: list[float] | None = None
    rerank_k: int = 5


@dataclass
class Model:
    """An index as a dictionary: the slow and obvious way."""

    kind: Kind = Kind()
    rows: dict[str, Row] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(self.kind, dict(self.rows))

    def passing(self, modality: Modality | None, filters: Sequence[Filter]) -> Iterator[Row]:
        for row in self.rows.values():
            if modality in (None, row.item.modality) and all(
                holds(each, row.item.fields) for each in filters
            ):
                yield row

    def answer(self, query: Question) -> list[tuple[str, float]]:
        """(id, score) of the hits, best first, by Python's numbers."""
        scored = [
            (row, product(row.terms, query.terms))
            for row in self.passing(query.modality, query.filters)
        ]
        candidates = rank([(row.item.id, score) for row, score in scored if score > 0], query.k)
        if query.vector is None:
            return candidates
        return rank(
            [(key, product(self.rows[key].vector, query.vector)) for key, _ in candidates],
            query.rerank_k,
        )

    def matching(self, text: str, modality: Modality | None, filters: Sequence[Filter]) -> set[str]:
        """The ids of items that share a word with ``text``."""
        words = set(text.split())
        return {
            row.item.id for row in self.passing(modality, filters) if words & words_of(row.item)
        }


def product(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def rank(scored: Sequence[tuple[str, float]], k: int) -> list[tuple[str, float]]:
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


def words_of(item: Item) -> set[str]:
    sentence = item.content if item.modality == "text" else ""
    return set(f"{sentence} {item.fields.get('title', '')}".split())


def rows_for(kind: Kind, keys: Sequence[str], seed: int, largest: int = 3) -> list[Row]:
    """Rows of these ids; the same of the same arguments."""
    return [
        _row(
            kind,
            key,
            random.Random(f"{key} {seed}"),
            largest,
        )
        for key in keys
    ]


def _row(kind: Kind, key: str, rng: random.Random, largest: int) -> Row:
    modality = rng.choice(MODALITIES)
    content = (
        " ".join(rng.choices(VOCABULARY, k=rng.randint(0, 3)))
        if modality == "text"
        else f"/é {key}"
    )
    fields = {}
    if kind.fields and rng.random() < 0.7:
        fields["year"] = rng.choice(YEARS)
    if kind.fields and rng.random() < 0.7:
        fields["tag"] = rng.choice([*TAGS, rng.sample(TAGS, 2)])
    if kind.fields and rng.random() < 0.3:
        fields["title"] = rng.choice(VOCABULARY)
    item = Item(
        key,
        modality,
        content,
        rng.choice(["", "a", key]),
        fields,
    )
    terms = [
        rng.choice(
            [
                0,
                0,
                1,
                min(2, largest),
                largest,
            ],
        )
        for _ in range(TERMS)
    ]
    concepts = [_halves(rng, WIDTH) for _ in range(rng.randint(0, 2))]
    return Row(
        item,
        terms,
        _signs(rng, DIM) if kind.dtype == "int8" else _halves(rng, DIM),
        concepts,
    )


def _halves(rng: random.Random, width: int) -> list[float]:
    return rng.choices(
        [
            -1.0,
            -0.5,
            0.0,
            0.5,
            1.0,
        ],
        k=width,
    )


def _signs(rng: random.Random, width: int) -> list[float]:
    """Components of one magnitude, which 8 bits hold without a loss."""
    size = rng.choice([0.5, 1.0])
    return rng.choices([-size, 0.0, size], k=width)


def columns(
    kind: Kind,
    rows: Sequence[Row],
) -> tuple[list[Item], TermMatrix, Floats, StoredConcepts | None]:
    """The rows as a writer takes them."""
    terms = sparse.csr_array(np.array([row.terms for row in rows], np.int32).reshape(-1, TERMS))
    vectors = np.array([row.vector for row in rows], np.float32).reshape(-1, DIM)
    if kind.concepts is None:
        return [row.item for row in rows], terms, vectors, None
    sets = Ragged.from_sets([np.array(row.concepts).reshape(-1, WIDTH) for row in rows], WIDTH)
    return [row.item for row in rows], terms, vectors, store(sets, kind.concepts)


def assert_answers(index: Engine, model: Model, query: Question) -> None:
    """That a search finds what the slow search finds."""
    rescore = None
    if query.vector is not None:
        rescore = Rescore(
            "dot",
            Embeddings("text", np.array([query.vector], np.float32)),
            query.rerank_k,
        )
    terms = sparse.csr_array(np.array([query.terms], np.int32))
    hits = index.search(
        SearchRequest(
            terms,
            query.k,
            query.modality,
            filters=query.filters,
            rescore=rescore,
        ),
    )[0]
    assert [(hit.item.id, hit.score) for hit in hits] == model.answer(query)
    assert [hit.item for hit in hits] == [model.rows[hit.item.id].item for hit in hits]


def assert_matches(
    index: EmbeddedEngine,
    model: Model,
    text: str,
    modality: Modality | None,
    filters: Sequence[Filter],
) -> None:
    """That a search by words finds the items that have one."""
    hits = index.match(
        [text],
        1000,
        modality,
        filters,
    )[0]
    scores = {hit.item.id: hit.score for hit in hits}
    assert set(scores) == model.matching(text, modality, filters)
    assert [hit.item.id for hit in hits] == sorted(scores, key=lambda key: (-scores[key], key))
    assert all(hit.item == model.rows[hit.item.id].item for hit in hits)


def assert_holds(index: Engine, model: Model) -> None:
    """That an index holds these rows and no others, and says so."""
    keys = sorted(model.rows)
    items, terms, vectors, sets = columns(model.kind, [model.rows[key] for key in keys])
    assert list(index.items()) == index.find(keys) == items
    assert index.manifest.items == {
        m: sum(item.modality == m for item in items) for m in MODALITIES
    }
    assert index.manifest.postings == terms.nnz
    assert same_matrix(index.terms(keys), terms)
    assert same_matrix(
        index.terms(keys, [3, 1]),
        sparse.csr_array(
            terms.toarray()
            * np.int32(
                [
                    0,
                    1,
                    0,
                    1,
                    0,
                ],
            ),
        ),
    )
    assert index.document_frequencies().tolist() == (terms.toarray() > 0).sum(axis=0).tolist()
    stored = index.vectors(keys)
    assert stored.dtype == model.kind.manifest.vector_floats
    assert index.manifest.vector_dtype == model.kind.dtype
    assert stored.tolist() == vectors.tolist()
    assert {name: array.tolist() for name, array in index.arrays().items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    if sets is not None:
        assert same_sets(index.concepts(keys), sets)
    for modality in (None, *MODALITIES):
        assert_answers(
            index,
            model,
            Question(
                [
                    1,
                    2,
                    3,
                    2,
                    1,
                ],
                1000,
                modality,
            ),
        )


def same_sets(a: StoredConcepts, b: StoredConcepts) -> bool:
    pairs = [(a.values, b.values), (a.offsets, b.offsets)]
    if a.scales is not None and b.scales is not None:
        pairs.append((a.scales, b.scales))
    return (a.scales is None) == (b.scales is None) and all(same_matrix(*pair) for pair in pairs)


def strays(home: Path) -> list[str]:
    """The files of an index that its commit does not name."""
    known = {".lock", ".checked", "CURRENT"}
    commit = ""
    if (home / "CURRENT").exists():
        current = (home / "CURRENT").read_text()
        known.add(current)
        commit = (home / current).read_text()
    paths = [path.relative_to(home).as_posix() for path in home.rglob("*")]
    return [path for path in paths if path not in known and path not in commit]


def load(backend: EmbeddedBackend, model: Model, batch: int = 7) -> None:
    """Make an index of all rows of a model, in any order; go on where a load of the same was
    killed."""
    rows = list(model.rows.values())
    random.Random(0).shuffle(rows)
    manifest = replace(model.kind.manifest, source=hashlib.sha256(repr(rows).encode()).hexdigest())
    with backend.create(NAME, manifest, ARRAYS) as writer:
        for start in range(0, len(rows), batch):
            part = columns(model.kind, rows[start : start + batch])
            if not writer.has([item.id for item in part[0]]):
                writer.add(Rows(*part))
        writer.commit()


POOL = [
    "",
    "a",
    "A",
    "b",
    "a b/ç",
    "é",
    "e\u0301",
    "\uffff",
    "\U00010000",
    "日本",
    "\n\"'<&",
    "z" * 300,
    "%_",
    "\u0000",
]
MANY = [[f"{i:03}" for i in range(first, first + 150)] for first in (0, 100)]
"""Ids that fill several blocks."""
KEYS = st.lists(
    st.sampled_from(POOL) | TEXT,
    min_size=1,
    max_size=9,
    unique=True,
) | st.sampled_from(MANY)
KINDS = st.builds(
    Kind,
    st.sampled_from(["float32", *VECTOR_DTYPES]),
    st.sampled_from([None, *CONCEPT_DTYPES]),
    st.booleans(),
)
ROWS = st.tuples(KEYS, st.integers(0, 99), st.sampled_from([1, 3, 300, 70_000]))
GONE = st.lists(st.integers(0, 99) | st.sampled_from(POOL), max_size=9)
"""Ids to delete: any, or by their number among those that are there."""
BATCHES = st.lists(ROWS, min_size=1, max_size=6)
ENDINGS = st.sampled_from(
    [
        "commit",
        "commit",
        "commit",
        "leaving",
        "failure",
    ],
)
CONDITIONS = st.builds(
    Filter,
    st.just("year"),
    st.sampled_from(
        [
            "=",
            "!=",
            "<",
            "<=",
            ">",
            ">=",
        ],
    ),
    st.sampled_from([*YEARS, 2018]),
) | st.builds(
    Filter,
    st.just("tag"),
    st.sampled_from(["=", "!=", "<", ">="]),
    st.sampled_from([*TAGS, "cat"]),
)
QUESTIONS = st.builds(
    Question,
    st.lists(st.sampled_from([0, 1, 2, 500]), min_size=TERMS, max_size=TERMS),
    st.integers(1, 4) | st.integers(1, 20),
    st.sampled_from([None, *MODALITIES]),
    st.lists(CONDITIONS, max_size=2).map(tuple),
    st.none() | st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5]), min_size=DIM, max_size=DIM),
    st.integers(1, 20),
)


@dataclass(frozen=True)
class Reader:
    """An opened index, and what it held then."""

    index: EmbeddedEngine
    model: Model

    def ask(self, query: Question) -> None:
        assert_answers(
            self.index,
            self.model,
            query if self.model.kind.fields else replace(query, filters=()),
        )


class Machine(RuleBasedStateMachine):
    """One index, its model, and opened indexes, each with the model of its time."""

    readers = Bundle("readers")
    taken = 0  # steps of all machines

    def __init__(self) -> None:
        super().__init__()
        self.steps = -1  # it is counted before the first, too
        self.cleanup = ExitStack()
        self.folder = Path(self.cleanup.enter_context(tempfile.TemporaryDirectory()))
        self.there: Model | None = None
        self.edits = 0

    def teardown(self) -> None:
        Machine.taken += self.steps
        self.cleanup.close()

    @property
    def backend(self) -> EmbeddedBackend:
        """A new one, as another process has."""
        return EmbeddedBackend(self.folder)

    @invariant()
    def count(self) -> None:
        self.steps += 1

    @invariant()
    def what_is_there(self) -> None:
        assert self.backend.exists(NAME) == (self.there is not None)
        assert self.backend.names() == ([NAME] if self.there else [])
        assert strays(self.folder / NAME) == []
        if self.there is None:
            with pytest.raises(BackendError, match="no index 'pets'"):
                self.backend.open(NAME)

    @initialize(kind=KINDS, batches=BATCHES)
    def begin(self, kind: Kind, batches: list[Any]) -> None:
        self.load(kind, batches, "commit")

    @precondition(lambda self: self.there is None or self.edits > 2)
    @rule(kind=KINDS, batches=BATCHES, ending=ENDINGS)
    def load(self, kind: Kind, batches: list[Any], ending: str) -> None:
        draft = Model(kind)
        with leaving(ending), self.backend.create(NAME, kind.manifest, ARRAYS) as writer:
            for batch in batches:
                rows = rows_for(kind, *batch)
                repeated = [row for row in rows if row.item.id in draft.rows]
                if repeated:
                    with pytest.raises(BackendError, match="occurs more than once"):
                        writer.add(Rows(*columns(kind, rows)))
                new = [row for row in rows if row not in repeated]
                writer.add(Rows(*columns(kind, new)))
                draft.rows |= {row.item.id: row for row in new}
            self.end(writer.commit, draft, ending)
        if ending == "commit":
            self.edits = 0
            assert self.backend.open(NAME).manifest.same_contents(kind.manifest)

    @precondition(lambda self: self.there is not None)
    @rule(changes=st.lists(ROWS | GONE, min_size=1, max_size=6), ending=ENDINGS)
    def edit(self, changes: list[Any], ending: str) -> None:
        self.edits += 1
        draft = self.there.copy()
        source = f"{self.edits:064x}"
        with leaving(ending), self.backend.edit(NAME) as editor:
            for change in changes:
                known = sorted(draft.rows)
                if isinstance(change, tuple):
                    rows = rows_for(draft.kind, *change)
                    editor.put(Rows(*columns(draft.kind, rows)))
                    draft.rows |= {row.item.id: row for row in rows}
                elif known:
                    keys = {
                        known[key % len(known)] if isinstance(key, int) else key for key in change
                    }
                    assert editor.delete(list(keys)) == len(keys & set(known))
                    draft.rows = {key: row for key, row in draft.rows.items() if key not in keys}
            self.end(lambda: editor.commit(source), draft, ending)
        if ending == "commit" and draft.rows:
            assert self.backend.open(NAME).manifest.same_contents(
                replace(draft.kind.manifest, source=source),
            )

    def end(self, commit: Callable[[], None], draft: Model, ending: str) -> None:
        """Look at the index while another is being written, and end the writing."""
        if self.there is not None:
            assert_holds(self.backend.open(NAME), self.there)
            self.second_writer()
        if ending == "failure":
            raise GivingUpError
        if ending == "commit" and not draft.rows:
            with pytest.raises(BackendError, match="nothing"):
                commit()
        elif ending == "commit":
            commit()
            self.there = draft
            assert_holds(self.backend.open(NAME), draft)

    def second_writer(self) -> None:
        backend = self.backend
        for other in (
            backend.create(NAME, Kind().manifest, ARRAYS).__enter__,
            backend.edit(NAME).__enter__,
            lambda: backend.compact(NAME),
        ):
            with pytest.raises(BocError, match="is being written by another process"):
                other()

    @precondition(lambda self: self.there is not None and self.edits > 1)
    @rule()
    def compact(self) -> None:
        before = self.backend.open(NAME)
        self.backend.compact(NAME)
        after = self.backend.open(NAME)
        assert after.manifest == before.manifest
        for index in (before, after):
            assert_holds(index, self.there)
        for words in VOCABULARY:
            assert after.match([words], 1000) == before.match([words], 1000)

    @precondition(lambda self: self.there is not None and self.edits > 4)
    @rule()
    def remove(self) -> None:
        self.backend.remove(NAME)
        self.there = None

    @precondition(lambda self: self.there is not None)
    @rule(target=readers)
    def open(self) -> Reader:
        return Reader(self.backend.open(NAME), self.there.copy())

    @rule(reader=readers, questions=st.lists(QUESTIONS, min_size=3, max_size=6))
    def search(self, reader: Reader, questions: list[Question]) -> None:
        for query in questions:
            reader.ask(query)

    @precondition(lambda self: self.there is not None)
    @rule(questions=st.lists(QUESTIONS, min_size=3, max_size=6))
    def search_anew(self, questions: list[Question]) -> None:
        self.search(self.open(), questions)

    @rule(
        reader=readers,
        words=st.lists(st.sampled_from([*VOCABULARY, "unheard"]), min_size=1, max_size=2),
        modality=st.sampled_from([None, *MODALITIES]),
        filters=st.lists(CONDITIONS, max_size=1),
    )
    def match(
        self,
        reader: Reader,
        words: list[str],
        modality: Modality | None,
        filters: list[Filter],
    ) -> None:
        filters = filters if reader.model.kind.fields else []
        assert_matches(
            reader.index,
            reader.model,
            " ".join(words),
            modality,
            filters,
        )

    @rule(reader=consumes(readers), others=KEYS)
    def look_and_close(self, reader: Reader, others: list[str]) -> None:
        assert_holds(reader.index, reader.model)
        assert len(reader.index) == len(reader.model.rows)
        unknown = next((key for key in others if key not in reader.model.rows), None)
        if unknown is not None:
            for ask in (reader.index.find, reader.index.vectors, reader.index.terms):
                with pytest.raises(KeyError, match=re.escape(repr(unknown))):
                    ask([*list(reader.model.rows)[:2], unknown])


class GivingUpError(Exception):
    """Raised inside a writer."""


def leaving(ending: str) -> AbstractContextManager[Any]:
    return pytest.raises(GivingUpError) if ending == "failure" else nullcontext()


def small_segments(monkeypatch) -> None:
    """Patch the thresholds, and let nothing wait for the disk: no process here outlives the
    computer."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


@pytest.mark.slow
def test_any_order_of_steps_leaves_what_a_dictionary_holds(monkeypatch):
    small_segments(monkeypatch)
    monkeypatch.setattr(Machine, "taken", 0)
    while Machine.taken < STEPS:  # runs may be shorter
        before = Machine.taken
        runs = settings(max_examples=1 + (STEPS - before) // LONGEST, stateful_step_count=LONGEST)
        run_state_machine_as_test(Machine, settings=runs)
        assert Machine.taken > before
