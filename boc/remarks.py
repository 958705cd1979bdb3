"""Find the words in a sentence that the encoder barely knows.

A score does not reveal whether a collection contains a thing. However, an encoder can know a thing
only if its name occurs in the training captions. The file ``words.json`` in a model folder contains
the number of training captions for each word.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from boc.atomic_files import write_text
from boc.errors import EncoderError, check_system
from boc.foreign import Count, read_json, typed
from boc.labels import content_words
from boc.paths import name_words, nfc, words_of

COUNTS = "words.json"  # file name in a model folder
FEW = 10  # minimum number of training captions from which an encoder learns a word

_LETTERS = re.compile(r"[^\W_]+")


class RareWord(NamedTuple):
    """Word, with the number of training captions that contain it."""

    word: str
    captions: int


def write_counts(folder: Path, captions: Iterable[str]) -> None:
    """Count the captions that contain each content word, and write the counts to a model folder."""
    counts = Counter(word for text in captions for word in set(content_words(nfc(text))))
    write_text(folder / COUNTS, json.dumps(dict(sorted(counts.items())), ensure_ascii=False))


def read_counts(spec: str) -> Mapping[str, int]:
    """Return the word counts of the encoder ``KIND:FOLDER``, or an empty mapping if the encoder has
    no counts. Raises EncoderError for a damaged file."""
    path = Path(spec.partition(":")[2].partition("?")[0]) / COUNTS
    try:
        return typed(read_json(path), dict[str, Count])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        check_system(path, error, EncoderError)
        raise EncoderError(f"{path}: cannot be read ({error}); delete it") from error


def rare_words(counts: Mapping[str, int], text: str) -> list[RareWord]:
    """Return the content words of a sentence that occur in fewer than ``FEW`` captions, in sentence
    order. The list is empty if there are no counts."""
    rare = []
    for word in dict.fromkeys(content_words(nfc(text))) if counts else ():
        captions = max(counts.get(form, 0) for form in word_forms(word))
        # The encoder may know the parts of a hyphenated word.
        parts = [max(counts.get(form, 0) for form in word_forms(part)) for part in word.split("-")]
        if max(captions, min(parts)) < FEW:
            rare.append(RareWord(word, captions))
    return rare


def word_forms(word: str) -> list[str]:
    """Return a word, the word without a plural or possessive s, and its plurals."""
    bare = re.sub(r"['\u2019]s?$|s$", "", word)
    of_y = [re.sub("ies$", "y", word), re.sub("y$", "ies", word)]
    return [word, bare, f"{bare}s", f"{bare}es", word.removesuffix("es"), *of_y]


def with_forms(text: str) -> str:
    """Return a text followed by the parts of its mixed-case words, and by the singulars and plurals
    of its content words."""
    words = name_words(text).lower()
    forms = {form for word in content_words(words) for form in word_forms(word)}
    more = {*words.split(), *forms} - {*words_of(text.lower()).split()}
    return " ".join([text, *sorted(more)])


def knows_none(
    counts: Mapping[str, int],
    vocabulary: Collection[str],
    text: str,
) -> bool:
    """Return whether an encoder with word counts does not know a single word of a sentence, in any
    script."""
    if not counts:
        return False
    words = [*_LETTERS.findall(nfc(text).lower()), *content_words(nfc(text))]
    return not any(
        form in vocabulary or counts.get(form) for word in words for form in word_forms(word)
    )
