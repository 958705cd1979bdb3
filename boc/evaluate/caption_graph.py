"""Objects, attributes and relations of captions, and a relevance by them: after SPICE, without its jar.

SPICE (Anderson et al., ECCV 2016, section 3) parses captions to scene graphs, and is the F1 of their tuples: objects,
attributes of objects, and relations between objects. Here a small parser takes the place of the Stanford parser, and
the stems of words that of WordNet: captions have short main clauses, in which function words and the endings of verbs
tell what is what. It needs no data and no other program; it knows no synonyms, and some captions are parsed wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BocError

Tuple = tuple[str, ...]

PICTURES = 256  # pictures compared at a time
WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SINGULAR_DETERMINERS = _words("a an another each every one")
DETERMINERS = SINGULAR_DETERMINERS | _words(
    "the this that these those some several many few all both any no other his her its their my your our"
)
PREPOSITIONS = _words(
    "in on at by with without of for over under behind near beside beneath below above across through into onto from "
    "to along around between against inside outside off down up toward towards during past among amongst amid atop "
    "underneath next about like after before upon out via aboard alongside"
)
BREAKS = _words(
    "and or but while as when where who whom whose which that what because so than then if he she it they them him we "
    "you i us me himself herself itself themselves someone something somebody everyone there here not just also very "
    "together away too only still"
)
AUXILIARIES = _words(
    "is are was were be been being am has have had having do does did can could will would may might must should"
)
CLAUSES = _words("and but while as when where because so then")  # after which a new subject may stand
COLOURS = _words(
    "black white brown red blue green yellow orange pink purple tan gray grey gold silver beige blond blonde"
)
PLACES = _words("front top middle side edge back center centre corner bottom end left right")  # "in front of"
NOUNS_IN_LY = _words("family fly belly jelly lily bully ally butterfly assembly")
NOUNS_IN_ING = _words(
    "building ceiling railing clothing evening morning string ring king wing thing spring painting wedding crossing "
    "awning swing sling bling outing clearing landing earring"
)
NOUNS_IN_ED = _words("bed shed sled red weed seed reed speed steed moped bobsled hundred feed")
SINGULAR_IN_S = _words("grass dress glass bus gas bass cross class mattress canvas tennis lens this its his")
IRREGULAR = {
    "men": "man", "women": "woman", "people": "person", "persons": "person", "children": "child", "feet": "foot",
    "teeth": "tooth", "mice": "mouse", "geese": "goose", "leaves": "leaf", "knives": "knife", "wives": "wife",
    "shelves": "shelf", "halves": "half", "calves": "calf", "wolves": "wolf", "loaves": "loaf", "scarves": "scarf",
    "firemen": "fireman", "policemen": "policeman", "fishermen": "fisherman", "snowmen": "snowman",
}  # fmt: skip
VERBS = {"ran": "run", "sat": "sit", "stood": "stand", "rode": "ride", "held": "hold", "worn": "wear", "wore": "wear",
         "seen": "see", "taken": "take", "made": "make", "shown": "show", "caught": "catch"}  # fmt: skip


def tuples(sentence: str) -> frozenset[Tuple]:
    """The objects (noun,), attributes (noun, adjective) and relations (noun, relation, noun) of a caption.

    Nouns are singular, verbs are stems, words are in lower case.
    """
    return frozenset(_Parser().parse(WORD.findall(sentence.lower())))


def graph_relevance(
    texts: Sequence[str], owners: NDArray[np.int64], *, tick: Callable[[int], None] = lambda done: None
) -> NDArray[np.float32]:
    """The F1 of the tuples of each sentence and those of all sentences of each picture, float32 (n_texts, n_pictures);
    0 if neither has any.

    ``owners`` (n_texts,) is the number of each sentence's picture; BocError if a number up to the largest is missing.
    ``tick`` is called with the number of cells of each finished block.
    """
    if len(texts) != len(owners) or not len(texts):
        raise BocError(f"relevance needs one owner for each caption, got {len(texts)} captions, {len(owners)} owners")
    if not (counts := np.bincount(owners)).all():
        raise BocError(f"picture {int(counts.argmin())} has no caption to be relevant by; leave it out")
    number: dict[Tuple, int] = {}
    columns = [[number.setdefault(found, len(number)) for found in sorted(tuples(text))] for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    flat = np.array([column for row in columns for column in row], dtype=np.int64)
    shape = (len(texts), max(1, len(number)))
    sentences = sparse.csr_array((np.ones(len(flat), np.float32), flat, offsets), shape=shape)
    pictures = sparse.csr_array(
        (np.ones(len(texts), np.float32), (owners, np.arange(len(texts)))), shape=(len(counts), len(texts))
    )
    graphs = (pictures @ sentences).sign().tocsr()
    sizes, own = np.diff(graphs.indptr).astype(np.float32), np.diff(offsets).astype(np.float32)
    relevance = np.zeros((len(texts), len(counts)), dtype=np.float32)
    for first in range(0, len(counts), PICTURES):
        block = relevance[:, first : first + PICTURES]
        common = (sentences @ graphs[first : first + PICTURES].T).toarray()
        together = own[:, None] + sizes[first : first + PICTURES]
        np.divide(2 * common, together, out=block, where=together > 0)
        tick(block.size)
    return relevance


@dataclass
class _Parser:
    """Reads words from left to right. A noun phrase ends at a function word or a verb; its last word is the object, the
    words before it are attributes. What stands between two objects relates them: a preposition the nearest one before
    it, a verb the subject, which is the first object of a clause."""

    found: list[Tuple] = field(default_factory=list)
    phrase: list[str] = field(default_factory=list)
    singular: bool = False  # whether the phrase began with a singular determiner
    begun: bool = False  # whether a determiner or number stands before the phrase
    subject: str = ""
    nearest: str = ""
    relation: list[str] = field(default_factory=list)
    verbal: bool = False  # whether the relation has a verb

    def parse(self, words: Sequence[str]) -> Iterator[Tuple]:
        for word in words:
            self._read(word)
        self._end()
        yield from self.found

    def _read(self, word: str) -> None:
        if word in DETERMINERS:
            self._end()
            self.singular, self.begun = word in SINGULAR_DETERMINERS, True
        elif word == "of" and self.phrase and self.phrase[-1] in PLACES and (self.relation or len(self.phrase) > 1):
            place = self.phrase.pop()  # of "in front of", "a cat left of"
            self._end()
            self.relation += [place, word]
        elif word in PREPOSITIONS:
            self._end()
            self.relation.append(word)
        elif word == "and" and self.phrase and self.phrase[-1] in COLOURS:
            pass  # "a black and white dog"
        elif word in AUXILIARIES:
            self._end()
        elif word.endswith("ly") and word not in NOUNS_IN_LY:
            pass
        elif word in BREAKS:
            self._end()
            if word in CLAUSES:
                self.relation, self.verbal = [], False
                self.nearest = ""
        elif self._is_verb(word):
            self._end()
            self.relation, self.verbal = [stem(word)], True
        else:
            self.phrase.append(word)

    def _is_verb(self, word: str) -> bool:
        """By its ending, and by what stands before it in its phrase."""
        if word in VERBS:
            return True
        if word.endswith("ing") and len(word) > 4 and word not in NOUNS_IN_ING:
            return bool(self.phrase) or not self.begun  # "a smiling man" has an attribute
        if word.endswith("ed") and len(word) > 3 and word not in NOUNS_IN_ED:
            return bool(self.phrase)  # "a parked car" has an attribute, "a man dressed in" a verb
        if not self.phrase:
            return False
        ended = _is_plural(word)
        if self.singular and not _is_plural(self.phrase[-1]):
            return ended  # "a dog runs"
        return _is_plural(self.phrase[-1]) and not ended and not self.singular  # "two dogs run"

    def _end(self) -> None:
        """The phrase is over: its last word is an object."""
        phrase, self.phrase = self.phrase, []
        self.singular = self.begun = False
        if not phrase:
            return
        noun = singular(phrase[-1])
        self.found.append((noun,))
        self.found += [(noun, adjective) for adjective in phrase[:-1]]
        before = self.subject if self.verbal else self.nearest
        if self.relation and before:
            self.found.append((before, " ".join(self.relation), noun))
        if not self.subject or not (self.relation or self.nearest):
            self.subject = noun
        self.nearest, self.relation, self.verbal = noun, [], False


def _is_plural(word: str) -> bool:
    return word in IRREGULAR or (
        word.endswith("s") and len(word) > 3 and not word.endswith(("ss", "us", "is")) and word not in SINGULAR_IN_S
    )


def singular(noun: str) -> str:
    """The singular of a noun, by the common rules."""
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if not _is_plural(noun):
        return noun
    if noun.endswith("ies") and len(noun) > 4:
        return noun[:-3] + "y"
    return noun[:-2] if noun.endswith(("ches", "shes", "sses", "xes", "zes", "oes")) else noun[:-1]


def stem(verb: str) -> str:
    """A verb without its ending: "rides", "riding" and "rode" become "rid", "runs" and "running" "run"."""
    found = VERBS.get(verb, verb)
    for ending in ("ing", "ed", "es", "s"):
        if found == verb and verb.endswith(ending) and len(verb) > len(ending) + 2:
            found = verb.removesuffix(ending)
            break
    if len(found) > 3 and found[-1] == found[-2] and found[-1] not in "lsz":
        found = found[:-1]
    return found.removesuffix("e")
