"""Search an index by sentences, pictures or vectors.

All searches call ``Searcher._hits``, which builds one request from the query terms and arranges the
hits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.dictionary import query_terms
from boc.codecs.frequencies import heaviest
from boc.errors import BocError, EncoderError
from boc.inputs.images import Picture, picture_file
from boc.inputs.metadata import by_field, check_sort, parse_filter, values_of
from boc.names import Metric
from boc.paths import folded, nfc, words_of
from boc.plan import ALIGNED, PAGE, candidates, pages, term_growth, usual_way
from boc.plugins import Encoder, Engine, check_name, find_item
from boc.remarks import knows_none, rare_words, read_counts, with_forms
from boc.rerank.dot import ids_and_scores
from boc.search.background import Background
from boc.search.dates import read_date
from boc.search.hits import Hits
from boc.search.near_duplicates import select_distinct
from boc.search.options import Filters, SearchKeywords, SearchOptions, check_texts, parse_filters
from boc.search.queries import Query, QueryPart, compose
from boc.search.rank_fusion import reciprocal_rank_fusion
from boc.types import (
    Embeddings,
    Filter,
    Hit,
    ImageRef,
    Modality,
    QueryCode,
    Rescore,
    SearchRequest,
    Stages,
    TermMatrix,
)
from boc.vectors import Array, Doubles, Floats, plain_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack


KEPT = 64  # number of option sets cached for later queries
FUSED = 2_000  # maximum number of hits per ranking in a fusion
BLOCK = 256  # queries per request in a batch
DATED = 1_000  # maximum number of pictures with a date, of which the newest are shown
NAME = re.compile(r"(?i)\S*(\d{4}|_\d)\S*( \(\d+\))?|.+\.(jpe?g|png|heic|webp|gif|tiff?)")
"""A query that is probably a file name."""
ZERO = "all scores are 0: no item in the index is similar to the query"


class _Queries(NamedTuple):
    """Encoded queries, with their sentences (``texts``) for hybrid searches. A query of several
    parts is a single row, whose alignment score is the sum over the weighted ``parts``."""

    rows: Embeddings
    texts: Sequence[str] = ()
    parts: Sequence[tuple[Embeddings, float]] = ()

    def take(self, i: int) -> _Queries:
        return self._replace(rows=self.rows.take([i]), texts=self.texts[i : i + 1])


@dataclass(eq=False)
class _Way:
    """Search method for a set of options, shared by all queries of one modality."""

    find: Modality
    filters: tuple[Filter, ...]
    metric: Metric
    depth: int
    planned: bool
    code: QueryCode | None


class Searcher:
    """Searcher for a single index, by sentences, pictures or vectors.

    The encoder is loaded when a query first needs it. Searches by vectors never load PyTorch.

    >>> searcher = boc.Searcher.open("photos")
    >>> len(searcher.search_texts(["a red box", "a yellow box"], k=5)[1])
    5
    """

    def __init__(
        self,
        index: Engine,
        encoder: Callable[[], Encoder] | None = None,
        reopen: Callable[[], Engine] | None = None,
    ) -> None:
        self.index = index
        self.codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._load = plugins.encoder if encoder is None else lambda spec: encoder()
        self._reopen = reopen or (lambda: index)
        self._ways: dict[object, _Way] = {}
        self._backgrounds: dict[Modality, Background] = {}

    @classmethod
    def open(
        cls,
        name: str,
        at: str = "file:boc-data",
        *,
        encoder: str | None = None,
        device: str = "auto",
    ) -> Searcher:
        """Open the index ``name`` in the back end ``at``. ``encoder`` is the new location of the
        index's encoder if it has moved."""
        backend = plugins.backend(at)

        def reopen() -> Engine:
            return backend.open(check_name(name))

        searcher = cls(reopen(), None, reopen)
        first = searcher.index.manifest.identity.spec
        # An index that was replaced may have another encoder, which its manifest names.
        searcher._load = lambda spec: plugins.encoder(
            encoder if encoder and spec == first else spec,
            device,
        )
        return searcher

    def renew(self, *, force: bool = False) -> Searcher:
        """Return a searcher for the current state of the index. If the index has not changed, this
        searcher itself is returned. The encoder is reused if it still matches.

        Every load and edit changes ``created`` or ``source`` in the manifest. Compaction changes
        neither, because it preserves all results. With ``force``, an unchanged index is reopened as
        well, for example after it could not be read.
        """
        index = self._reopen()
        if not force and index.manifest == self.index.manifest:
            return self  # without fetching the codec
        searcher = Searcher(index, None, self._reopen)
        searcher._load = self._load
        if (
            "encoder" in self.__dict__
            and index.manifest.identity.digest == self.encoder.identity.digest
        ):
            searcher.encoder = self.encoder  # reuse the encoder instead of loading it again
        return searcher

    def __repr__(self) -> str:
        manifest = self.index.manifest
        counts = f"{manifest.items['image']} pictures and {manifest.items['text']} sentences"
        return f"<Searcher of {counts}, encoder {manifest.identity.spec}>"

    def embeddings(self, id: str) -> Embeddings:
        """Return the stored vector of an item, with its concepts if there are any. Raises KeyError
        for an unknown id."""
        item = self.index.find([id])[0]
        concepts = None
        if self.index.manifest.concept_dtype:
            concepts = self.index.concepts([id]).to_ragged()
        return Embeddings(
            item.modality,
            self.index.vectors([id]).astype(np.float32),
            concepts,
        )

    @cached_property
    def encoder(self) -> Encoder:
        """Return the encoder of the index. Raises EncoderError if its weights have changed."""
        identity = self.index.manifest.identity
        if identity.spec.startswith("vectors:"):
            raise BocError(
                "the index was built from vectors and has no encoder",
                "search by an item: <--like ID>",
            )
        encoder = self._load(identity.spec)
        if encoder.identity.digest != identity.digest:
            raise EncoderError(
                f"the weights of the encoder {encoder.identity.spec} differ from the weights "
                f"with which the index was built ({encoder.identity.digest[:12]}, not "
                f"{identity.digest[:12]})",
                "name the right encoder with <--encoder>",
            )
        return encoder

    def search(
        self,
        text: str | None = None,
        *,
        image: Picture | None = None,
        vector: ArrayLike | None = None,
        like: Sequence[str] = (),
        unlike: Sequence[str] = (),
        options: SearchOptions | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Return the k best items for a query, best first. The query is a combination of a
        sentence, a picture, and items that hits should be ``like`` or ``unlike``, or it is the
        vector of a sentence (d,).

        Keyword arguments are fields of ``SearchOptions``, and override the fields of ``options``.
        Facts about the search are added to ``stages``.

        Raises BocError for invalid options, EncoderError for another encoder, and ImageError for an
        unreadable picture.
        """
        if not isinstance(text, (str, NoneType)):
            raise BocError(
                f"search expects one sentence, got {type(text).__name__}; pass image= for a "
                "picture, vector= for numbers, and index.search_many([...]) for several "
                "sentences",
            )
        if vector is not None:
            if text is not None or image is not None or like or unlike:
                raise BocError("a vector is a complete query; omit all arguments except vector=")
            queries = Embeddings("text", _row(vector))
            return self.search_vectors(queries, options, stages=stages, **keywords)[0]
        with nullcontext() if image is None else picture_file(image) as path:
            query = Query.of(
                text,
                images=[] if path is None else [path],
                like=like,
                unlike=unlike,
            )
            return self.search_query(query, options, stages=stages, **keywords)

    def warm(self) -> None:
        """Load the encoder, if the index has one, and run a search, so that the first query is
        fast."""
        if not self.index.manifest.identity.spec.startswith("vectors:"):
            self.search("a picture", k=1)

    def search_query(
        self,
        query: Query,
        options: SearchOptions | None = None,
        *,
        encoded: Sequence[Embeddings] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Return the k best items for a query of several parts, best first, excluding the query's
        own items.

        If the query is a file name with a digit or a suffix, such as IMG_1234 or dog.jpg, the
        search returns the files with this name. If the query is a date, such as 1.5.2024 or May
        2024, it returns the pictures that were taken on this date. A hybrid search uses the words
        of the wanted sentences. ``encoded`` contains the parts, each with one row, if they are
        already encoded. Raises BocError for an unknown id, and the same errors as ``search``.
        """
        options = self._options_of(query, options, **keywords)
        query = replace(query, parts=tuple(self._known(part) for part in query.parts))
        name = query.words or ""
        if len(query.parts) == 1 and (literal := self._literal(name, options)) is not None:
            return literal
        notes = [*filter(None, [query.note])]
        nothing = options.hybrid is None and self._knows_none(query)
        if nothing:
            way = "searched names and labels instead" if self._has_names else "there are no matches"
            notes.append(f"the encoder does not know any word of {name!r}; {way}")
        elif options.hybrid is None:
            texts = [str(part.value) for part in query.parts if part.kind == "text"]
            notes += filter(None, map(self.note, texts))
        if encoded is None:
            encoded = [self._encode(part) for part in query.parts]
        rows, parts = self._compose(query, encoded, options)
        if nothing:
            matched = self._match([name], options)[0] if self._has_names else []
            return _sort_hits(matched, options, notes)
        queries = _Queries(rows, list(filter(None, [query.words])), parts)
        hits = self._hits(queries, replace(options, k=options.k + len(query.ids)), stages)[0]
        if query.ids:
            hits = [hit for hit in hits if hit.item.id not in query.ids][: options.k]
        found = self._finish(hits, rows.vectors[0], options, notes)
        if not found:
            found.notes += self._lacking_values(options)
        return found

    def _lacking_values(self, options: SearchOptions) -> Iterator[str]:
        """Yield a note for each keyword that a filter requires but no item has, with similar or
        other values from a sample."""
        index = self.index
        find = self.target(options.find)
        items = index.find(index.sample(1000, find))
        for condition in cast("tuple[Filter, ...]", options.filters):
            name = condition.field
            values = {value for item in items for value in values_of(item.fields, name)}
            lacks = condition.op == "=" and not index.statistics(find, [condition]).passing
            if lacks and values and index.manifest.fields[name] == "keyword":
                asked = folded(str(condition.value))
                near = sorted(values, key=lambda value: (asked not in folded(value), value))
                yield f"no item has {name}={condition.value}; some have {', '.join(near[:3])}"

    def _literal(self, name: str, options: SearchOptions) -> Hits | None:
        """Return the pictures whose file name is ``name``, with or without its suffix, or that were
        taken on the date ``name``. Return None if ``name`` is neither a file name nor a date."""
        if self.target(options.find) == "text":
            return None
        date = read_date(name)
        is_name = self._has_names and not date and NAME.fullmatch(name)
        similar: list[Hit] = []
        if is_name or (self._has_names and re.search(r"\d", name)):
            similar = self._match([folded(words_of(name))], replace(options, k=DATED))[0]
        names = [folded(words_of(each)) for each in (name, Path(name).stem)]
        stems = [PurePosixPath(nfc(hit.id)).stem for hit in similar]
        named = [i for i, stem in enumerate(stems) if folded(words_of(stem)) in names]
        if named:
            return _sort_hits([similar[i] for i in named[: options.k]], options)
        if date and "taken" in self.index.used_fields():
            return self._taken_on(date, name, similar, options)
        if not is_name:
            return None
        near = get_close_matches(Path(name).stem, dict.fromkeys(stems), 3, 0.5)
        note = f"no file is named {name}; similar names: {', '.join(near) or 'none'}"
        return _sort_hits([], options, [note])

    def _taken_on(
        self,
        date: str,
        name: str,
        similar: Sequence[Hit],
        options: SearchOptions,
    ) -> Hits:
        """Return the pictures taken on a date, newest first. If there are no such pictures and
        ``name`` is a number, return the hits in ``similar``, which contain this number."""
        taken = parse_filter(f"taken={date}", self.index.manifest.fields)
        filters = *cast("tuple[Filter, ...]", options.filters), taken
        newest = replace(options, hybrid=None, filters=filters, sort=options.sort or "-taken")
        # Whichever query is used, all pictures of the date are ranked. An item needs no encoder.
        queries = self._encode(QueryPart("item", self.index.sample(1, "image")[0]))
        found = self.search_vectors(queries, newest, k=max(options.k, DATED))[0]
        if found:
            note = f"{name} was interpreted as the filter taken={date}"
            return _sort_hits(found[: options.k], newest, [note])
        numbered = similar[: options.k] if name.isdigit() else []
        note = f"no picture was taken on this date (taken={date})"
        return _sort_hits(numbered, options, [note])

    def _match(self, texts: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        """Return the hits for each text, ranked by the words of names, labels and captions."""
        filters = cast("tuple[Filter, ...]", options.filters)
        texts = list(map(with_forms, texts))
        return self.index.match(texts, options.k, self.target(options.find), filters)

    def search_texts(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Search for several sentences in one batch. Return a list of hits for each sentence."""
        texts = check_texts(texts)
        options = self._options(options, **keywords)
        encoded = self.encoder.encode_texts(texts)
        answers = self.search_vectors(encoded, options, texts=texts, stages=stages)
        for i, text in enumerate(texts):
            query = Query.of(text)
            if query.note or self.note(text) or self._knows_none(query):
                answers[i] = self.search_query(query, options, stages=stages)
            elif (literal := self._literal(text, options)) is not None:
                answers[i] = literal
        return answers

    def search_words(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Search for the words of several texts by their full-text score (BM25), without an
        encoder. The search covers captions, text fields, and the words of pictures with the code
        ``words``. Return a list of hits for each text.

        Raises BocError for options that need vectors: rm, rerank, hybrid, query_z and collapse.
        """
        texts = check_texts(texts)
        options = self._options(options, **keywords)
        if named := options.of_vectors:
            raise BocError(f"a full-text search has no vectors; omit {', '.join(named)}")
        return [_sort_hits(hits, options) for hits in self._match(texts, options)]

    def search_vectors(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        *,
        texts: Sequence[str] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Search for queries that are already encoded. Return a list of hits for each row.

        ``texts`` contains the sentences of the queries, which a hybrid search needs.
        """
        options = self._options(options, **keywords)
        queries = self._plain(queries)
        if texts is not None:
            check_texts(texts)
            if len(texts) != len(queries):
                raise BocError(
                    f"{len(texts)} texts for {len(queries)} queries; pass one sentence per query",
                )
        answers = self._hits(_Queries(queries, texts or ()), options, stages)
        pairs = zip(answers, queries.vectors, strict=True)
        return [self._finish(hits, vector, options) for hits, vector in pairs]

    def rank_vectors(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> tuple[NDArray[np.object_], Doubles]:
        """Return the ids (n, m) and scores (n, m) of the hits that ``search_vectors`` would return,
        best first, as arrays.

        The contents of the hits are not read, because reading would take most of the time for a
        batch. m is at most k; rows with fewer hits are padded with None and -inf. Raises BocError
        for options that need complete hits: hybrid, sort and collapse.
        """
        options = self._options(options, **keywords)
        queries = self._plain(queries)
        if named := options.on_hits:
            raise BocError(
                f"rank_vectors returns only ids and scores; omit {', '.join(named)}, or call "
                "search_vectors",
            )
        width = min(options.k, self.index.manifest.items[self.target(options.find)])
        ids = np.full((len(queries), width), None, object)
        scores = np.full(ids.shape, -np.inf)
        for first in range(0, len(queries), BLOCK):
            some = _Queries(queries.take(range(first, min(first + BLOCK, len(queries)))))
            if self._goes_on(options):
                best, values = ids_and_scores(self._ordered(some, options, None), width)
            else:
                best, values = self.index.rank(self._request(some, options, None))
            columns = slice(min(width, best.shape[1]))
            ids[first : first + BLOCK, columns] = best[:, columns]
            scores[first : first + BLOCK, columns] = values[:, columns]
        return ids, scores

    def request(
        self,
        query: Query,
        options: SearchOptions | None = None,
        *,
        encoded: Sequence[Embeddings] | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> str:
        """Return the JSON body of an HTTP request whose response contains the hits of
        ``search_query``. Other programs can send the body to ``POST NAME/_search``.

        Raises BocError for searches that need more than one request: items as parts, hybrid
        searches, and sorting by a field. Raises BackendError if the index is not on a server.
        """
        options = self._options_of(query, options, **keywords)
        own = options.on_hits
        if own or query.ids:
            raise BocError(
                f"a single request cannot compute {own[0] if own else 'similar items'}; search "
                "with boc instead",
            )
        if encoded is None:
            encoded = [self._encode(part) for part in query.parts]
        rows, _ = self._compose(query, encoded, options)
        return self.index.request(self._request(_Queries(rows), options, None))

    def background(self, modality: Modality) -> Background:
        """Return the background of scores for the items of a modality."""
        return self._backgrounds.setdefault(modality, Background(self.index, modality))

    def target(self, find: Modality | None = None) -> Modality:
        """Return the modality of the hits: ``find`` or, by default, pictures if the index contains
        pictures. Raises BocError if the index contains no items of the modality."""
        counts = self.index.manifest.items
        if find is None:
            return "image" if counts["image"] else "text"
        if not counts[find]:
            held = "sentences" if find == "image" else "pictures"
            raise BocError(
                f"the index contains only {held}",
                "omit <--find>, or index a CSV of image,caption to have both",
            )
        return find

    def _options(
        self,
        options: SearchOptions | None,
        **keywords: Unpack[SearchKeywords],
    ) -> SearchOptions:
        """Return the options with keyword overrides and parsed filters. Raises BocError for an
        unknown field."""
        options = SearchOptions.of(options, **keywords)
        fields = self.index.manifest.fields
        if options.filters != ():
            filters = self.parse_filters(options.filters, options.find)
            options = replace(options, filters=filters)
        if options.sort is not None:
            check_sort(options.sort, fields)
        return options

    def parse_filters(self, filters: Filters, find: Modality | None = None) -> tuple[Filter, ...]:
        """Parse filters for the index. An item must meet all conditions, except that if no item
        meets all ``=`` conditions on the same field, one of these conditions is sufficient."""
        chosen = list(parse_filters(filters, self.index.manifest.fields))
        for name in {each.field for each in chosen}:
            same = [each for each in chosen if (each.field, each.op) == (name, "=")]
            if same[1:] and not self.index.statistics(self.target(find), same).passing:
                first, *others = [part for each in same for part in each.alternatives]
                chosen = [each for each in chosen if each not in same]
                chosen.append(replace(first, others=tuple(others)))
        return tuple(chosen)

    def _options_of(
        self,
        query: Query,
        options: SearchOptions | None,
        **keywords: Unpack[SearchKeywords],
    ) -> SearchOptions:
        if not isinstance(query, Query):
            raise BocError(
                f"search_query expects a Query, got {type(query).__name__}; use search for a "
                "sentence",
            )
        return query.with_metric(self._options(options, **keywords))

    @cached_property
    def caption_counts(self) -> Mapping[str, int]:
        """Return, for each word, the number of the encoder's training captions that contain the
        word. The mapping is empty for an encoder without counts."""
        return read_counts(self.encoder.identity.spec)

    def note(self, text: str) -> str:
        """Return a note about words that the encoder barely knows; for most sentences, the note is
        empty."""
        rare = rare_words(self.caption_counts, text)
        if not rare:
            return ""
        words = ", ".join(f"{word!r} ({n} caption{'s' * (n != 1)})" for word, n in rare)
        return f"the encoder barely knows {words}; showing the nearest items"

    def _knows_none(self, query: Query) -> bool:
        """Return whether the encoder has word counts but does not know a single word of the wanted
        sentences."""
        if not all(part.kind == "text" for part in query.positive):
            return False
        vocabulary = getattr(self.encoder, "vocabulary", ())
        return knows_none(self.caption_counts, vocabulary, query.words or "")

    @property
    def _has_names(self) -> bool:
        return self.index.searches_words and "name" in self.index.manifest.fields

    def _metric(self, options: SearchOptions) -> Metric:
        return options.rerank or self.index.manifest.rerank

    def _known(self, part: QueryPart) -> QueryPart:
        """Return a part whose item id has the Unicode form that the index uses."""
        if part.kind != "item":
            return part
        try:
            return replace(part, value=find_item(self.index, str(part.value)).id)
        except KeyError:
            raise BocError(
                f"the index has no item {part.value!r}; use the id of a hit",
            ) from None

    def _encode(self, part: QueryPart) -> Embeddings:
        if part.kind == "text":
            return self.encoder.encode_texts([nfc(str(part.value))])
        if part.kind == "image":
            path = Path(part.value)
            return self.encoder.encode_images([self.encoder.prepare(ImageRef(path.name, path))])
        stored = self.embeddings(str(part.value))
        if not self.codec.reads_concepts:
            return stored
        content = self.index.find([str(part.value)])[0].content
        return replace(self._encode(QueryPart(stored.modality, content)), vectors=stored.vectors)

    def _plain(self, queries: Embeddings) -> Embeddings:
        """Return the queries with vectors and concepts as plain float32 arrays. Raises BocError for
        values that are not numbers."""
        if not isinstance(queries, Embeddings):
            raise BocError(
                f"queries must be Embeddings, got {type(queries).__name__}; write "
                "Embeddings('text', rows)",
            )
        vectors = plain_rows(queries.vectors, self.index.manifest.identity.dim, "queries")
        concepts = queries.concepts
        if concepts is not None:
            concepts = replace(
                concepts,
                values=plain_rows(concepts.values, None, "concepts of the queries"),
            )
        if vectors is queries.vectors and concepts is None:
            return queries
        return replace(queries, vectors=vectors, concepts=concepts)

    def _compose(
        self,
        query: Query,
        encoded: Sequence[Embeddings],
        options: SearchOptions,
    ) -> tuple[Embeddings, list[tuple[Embeddings, float]]]:
        """Return the query that combines the parts, and the weighted parts over which an alignment
        sums."""
        encoded = [self._plain(each) for each in encoded]
        if [len(each) for each in encoded] != [1] * len(query.parts):
            raise BocError(
                f"encoded must be Embeddings of one row for each of {len(query.parts)} parts of "
                "the query",
            )
        if len(encoded) == 1:
            return encoded[0], []
        background = self.background(self.target(options.find))

        def weighted_parts(metric: Metric) -> list[tuple[Embeddings, float]]:
            pairs = zip(query.parts, encoded, strict=True)
            return [
                (one, part.weight / background.standard_deviation(one, metric))
                for part, one in pairs
            ]

        metric = self._metric(options)
        whole = compose(weighted_parts("dot"))
        if metric == "dot" or whole.concepts is None:
            return whole, []
        return whole, weighted_parts(metric)

    def _request(
        self,
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
    ) -> SearchRequest:
        """Return the request to the index, with the query terms, the number of candidates and the
        ranking.

        The terms are added to ``stages``. Without ``stages``, the index may compute dictionary
        terms itself.
        """
        key = options, queries.rows.modality, self.codec.query_budget
        way = self._ways.get(key)
        if way is None:
            if len(self._ways) >= KEPT:
                self._ways.clear()
            way = self._ways[key] = self._find_way(options, queries.rows.modality)
        code = way.code if len(queries.rows) else None
        terms: TermMatrix | Callable[[], TermMatrix]
        if code is not None:
            terms = partial(query_terms, code, queries.rows.vectors)
            if stages is not None or way.metric != "dot":
                terms = terms()
                code = None
        else:
            terms = self.codec.encode_queries(queries.rows)
            if options.query_z is not None:
                terms = heaviest(terms, options.query_z)
        if stages is not None:
            stages.codes = terms
        return SearchRequest(
            terms,
            way.depth,
            way.find,
            way.filters,
            Rescore(way.metric, queries.rows, options.k, queries.parts, plain=True),
            code,
            way.planned,
            None if code is None else way,
            None if way.code is None else way.code.z,
        )

    def _find_way(self, options: SearchOptions, modality: Modality) -> _Way:
        find = self.target(options.find)
        filters = cast("tuple[Filter, ...]", options.filters)
        planned = options.rm is None and options.query_z is None
        rm, n_terms = self.index.manifest.budgets(find)
        rm = options.rm or rm
        metric = self._metric(options)
        if planned and metric != "dot" and self.index.manifest.recall:
            rm = max(rm, ALIGNED)
        depth = candidates(options.k, rm, planned=planned, by_vectors=metric == "dot")
        code = None
        if options.hybrid is None:
            growth = term_growth(self.index, find, filters, planned=planned)
            if planned and n_terms is not None:
                growth *= n_terms / (self.codec.query_budget or n_terms)
            code = self.codec.query_code(modality, growth)
            if code is not None:
                code = replace(code, kept=options.query_z or 0)
        return _Way(find, filters, metric, depth, planned, code)

    def _hits(
        self,
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
    ) -> Sequence[Sequence[Hit]]:
        """Return the hits for each query, ordered by score."""
        if options.hybrid is not None and len(queries.texts) != len(queries.rows):
            raise BocError(
                "a hybrid search needs the words of a sentence; search by sentences, or leave "
                "hybrid out",
            )
        if options.collapse:
            near = self.background(self.target(options.find)).near

            def ask(i: int, begun: list[Hit], k: int) -> Sequence[Hit]:
                plain = replace(options, k=k, collapse=False)
                return self._ordered(queries.take(i), plain, stages, begun)[0]

            return [
                select_distinct(partial(ask, i, []), self.index, options.k, near)
                for i in range(len(queries.rows))
            ]
        return self._ordered(queries, options, stages)

    def _goes_on(self, options: SearchOptions) -> bool:
        """Return whether a list is longer than a page, so that its hits depend on its length."""
        if options.k <= PAGE or options.rm or options.query_z:
            return False
        if options.hybrid is not None or self._metric(options) != "dot":
            return True
        filters = cast("tuple[Filter, ...]", options.filters)
        return usual_way(self.index, self.target(options.find), filters, "dot") != "all"

    def _ordered(
        self,
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
        begun: list[Hit] | None = None,
    ) -> Sequence[Sequence[Hit]]:
        """Return the hits for each query in an order that does not depend on the number of hits. A
        list longer than a page starts with the hits of a shorter list, followed by the hits of
        deeper searches. ``begun`` contains the pages of a single query that already exist; new
        pages of a single ranking are added to it."""
        if not self._goes_on(options):
            return self._one_request(queries, options, stages)
        lists: list[list[Hit]] = [[] for _ in queries.rows.vectors]
        sizes = pages(options.k)
        if options.hybrid:
            # Two long fused lists start with the same hits if the same number of hits is fused.
            rm, _ = self.index.manifest.budgets(self.target(options.find))
            sizes = [size for size in sizes if size == PAGE or rm * size < FUSED] + sizes[-1:]
        elif begun is not None:
            lists = [begun]
            sizes = [size for size in sizes if size > len(begun)]
        for size in sizes:
            deeper = self._one_request(queries, replace(options, k=size), stages)
            for hits, others in zip(lists, deeper, strict=True):
                known = {hit.item.id for hit in hits}
                new = [hit for hit in others if hit.item.id not in known]
                hits += new[: size - len(hits)]
        return [hits[: options.k] for hits in lists]

    def _one_request(
        self,
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
    ) -> Sequence[Sequence[Hit]]:
        """Return the hits for each query from a single request to the index."""
        request = self._request(queries, options, stages)
        if options.hybrid == "rrf":
            # The fusion uses all candidates, before the list is shortened.
            assert request.rescore is not None
            request.k = min(request.k, max(FUSED, options.k))
            request.rescore = replace(request.rescore, k=request.k)
            request.way = None
        answers = self.index.search(request, stages)
        if options.hybrid == "rrf":
            matched = self._match(queries.texts, replace(options, k=request.k))
            pairs = zip(answers, matched, strict=True)
            return [reciprocal_rank_fusion(pair, options.k) for pair in pairs]
        return answers

    def _finish(
        self,
        hits: Sequence[Hit],
        vector: Floats,
        options: SearchOptions,
        notes: Sequence[str] = (),
    ) -> Hits:
        """Return the hits for a query with the given vector in the requested order. A zero vector
        has no hits."""
        if self._metric(options) == "dot" and not vector.any():
            return Hits(0, list, [*notes, ZERO])
        return _sort_hits(hits, options, notes)


def _sort_hits(
    hits: Sequence[Hit],
    options: SearchOptions,
    notes: Sequence[str] = (),
) -> Hits:
    if options.sort is not None:
        hits = by_field(hits, options.sort)
    return Hits(len(hits), lambda: hits, notes)


def _row(vector: ArrayLike) -> Array:
    try:
        row = np.asarray(vector)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BocError(
            f"the vector cannot be converted to a NumPy array ({error}); pass d numbers",
        ) from error
    if row.ndim != 1:
        raise BocError(
            f"a vector must have shape (d,), got {row.shape}; use searcher.search_vectors for "
            "several",
        )
    return row[None]
