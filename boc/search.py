"""Searching an index by sentences, pictures or vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.topz import heaviest
from boc.errors import BocError, EncoderError
from boc.inputs.metadata import check_filter
from boc.plugins import check_name
from boc.rank_fusion import reciprocal_rank_fusion
from boc.rerank import check_metric
from boc.search_options import SearchOptions
from boc.types import Embeddings, Hit, ImageRef, Modality, Rescore, Stages, TextScore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from boc.plugins import Encoder, Index
    from boc.search_options import SearchKeywords


class Searcher:
    """Searches one index by sentences, pictures or vectors.

    The encoder is loaded when the first query needs it; vectors never load torch.
    """

    def __init__(
        self,
        index: Index,
        encoder: Callable[[], Encoder] | None = None,
        reopen: Callable[[], Index] | None = None,
    ) -> None:
        self.index = index
        self.codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._load = encoder or (lambda: plugins.encoder(index.manifest.identity.spec))
        self._reopen = reopen or (lambda: index)

    @classmethod
    def open(
        cls, name: str, at: str = "file:boc-data", *, encoder: str | None = None, device: str = "auto"
    ) -> Searcher:
        """Open index ``name`` at back end ``at``. ``encoder`` names its encoder if it has moved."""
        backend = plugins.backend(at)

        def reopen() -> Index:
            return backend.open(check_name(name))

        index = reopen()
        spec = encoder or index.manifest.identity.spec
        return cls(index, lambda: plugins.encoder(spec, device), reopen)

    def renewed(self, *, force: bool = False) -> Searcher:
        """A searcher of the current index, with the encoder of this one; itself if the index has not changed.

        Every load and edit changes ``created`` or ``source`` of the manifest; a compacted index gives the same answers.
        ``force`` is for an index that could not be read, and may be available again without a change.
        """
        index = self._reopen()
        if not force and index.manifest == self.index.manifest:
            return self  # without fetching the codec
        found = Searcher(index, self._load, self._reopen)
        if "encoder" in self.__dict__ and index.manifest.identity.digest == self.encoder.identity.digest:
            found.encoder = self.encoder  # reused, so it is not loaded again
        return found

    def stored(self, id: str) -> Embeddings:
        """The stored vector of an item, and its concepts if stored. KeyError for an unknown id."""
        item, sets = self.index.find([id])[0], self.index.manifest.concept_dtype is not None
        concepts = self.index.concepts([id]).ragged() if sets else None
        return Embeddings(item.modality, self.index.vectors([id]).astype(np.float32), concepts)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the index. EncoderError if its weights differ."""
        found, wanted = self._load(), self.index.manifest.identity
        if found.identity.digest != wanted.digest:
            raise EncoderError(
                f"the encoder {found.identity.spec} has other weights than the index was made with "
                f"({found.identity.digest[:12]}, not {wanted.digest[:12]}); name the right one with --encoder"
            )
        return found

    def search(
        self,
        text: str | None = None,
        image: Path | str | None = None,
        options: SearchOptions | None = None,
        *,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]:
        """The k best items for a sentence or a picture, best first.

        The keyword arguments are the fields of ``SearchOptions``: ``search("a dog", k=5, find="text")``; they override
        those of ``options``. ``stages`` gets the time of each stage.

        BocError for invalid options; EncoderError if the encoder is not that of the index; ImageError for an unreadable
        picture.
        """
        if (text is None) == (image is None):
            raise BocError("give either a sentence or a picture to search by")
        if text is not None:
            return self.search_texts([text], options, stages=stages, **keywords)[0]
        options, stages = SearchOptions.of(options, **keywords), stages or Stages()
        path, encoder = Path(str(image)), self.encoder
        begun = perf_counter()
        encoded = encoder.encode_images([encoder.prepare(ImageRef(path.name, path))])
        stages.took("encode_ms", begun)
        return self.search_vectors(encoded, options, stages=stages)[0]

    def search_texts(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]:
        """Search by several sentences as one batch; one list of hits per sentence."""
        if not all(text.strip() for text in texts):
            raise BocError("the sentence is empty; write what the picture shows")
        options, stages, encoder = SearchOptions.of(options, **keywords), stages or Stages(), self.encoder
        begun = perf_counter()
        encoded = encoder.encode_texts(texts)
        stages.took("encode_ms", begun)
        return self.search_vectors(encoded, options, texts=texts, stages=stages)

    def search_vectors(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        *,
        texts: Sequence[str] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]:
        """Search by queries that are encoded already; one list of hits per row.

        ``texts`` are their sentences, which a hybrid search needs.
        """
        options, stages = SearchOptions.of(options, **keywords), stages or Stages()
        for condition in options.filters:
            check_filter(condition, self.index.manifest.fields)
        words = _text_score(options, texts)
        target = self.target(options.find)
        begun = perf_counter()
        codes = self.codec.encode_queries(queries)
        stages.codes = codes = codes if options.query_z is None else heaviest(codes, options.query_z)
        stages.took("code_ms", begun)
        if options.hybrid == "sum":
            return self.index.search(codes, options.k, target, filters=options.filters, words=words, stages=stages)
        depth = math.ceil((self.index.manifest.rm if options.rm is None else options.rm) * options.k)
        rescore = Rescore(
            check_metric(options.rerank or self.index.manifest.rerank), queries, options.k if words is None else depth
        )
        ranked = self.index.search(codes, depth, target, filters=options.filters, rescore=rescore, stages=stages)
        if words is None:
            return ranked
        begun = perf_counter()
        matched = self.index.match(words.texts, depth, target, options.filters)
        stages.took("postings_ms", begun)
        return [reciprocal_rank_fusion(pair, options.k) for pair in zip(ranked, matched, strict=True)]

    def target(self, find: Modality | None = None) -> Modality:
        """The modality of the hits: ``find``, or pictures if the index has any. BocError if it has no such items."""
        counts = self.index.manifest.items
        if find is None:
            return "image" if counts["image"] else "text"
        if not counts[find]:
            held = "sentences" if find == "image" else "pictures"
            raise BocError(f"the index holds {held} only; drop --find, or index a CSV of image,caption to have both")
        return find


def _text_score(options: SearchOptions, texts: Sequence[str] | None) -> TextScore | None:
    """The text score of a hybrid search that adds scores; None for any other search."""
    if options.hybrid is None:
        return None
    if texts is None:
        raise BocError("a hybrid search counts the words of a sentence; search by sentences, or leave hybrid out")
    return TextScore(texts, options.words_weight or 1.0)
