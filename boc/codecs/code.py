"""Codes as values: a name with arguments, which is formatted as text and parsed from text.

This module does not import numpy, so the command line can list, complete and check codes quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from boc.codecs.code_syntax import join_code, split_code
from boc.errors import BocError
from boc.names import CONCEPT_CODES, LEARNED_CODES, READINGS, WORD_CODES

if TYPE_CHECKING:
    from boc.clustering.codebook import Codebook
    from boc.codecs.codec import SurrogateCodec

DEFAULT_Z = 64
DEFAULT_QUERY_Z = 128
HELP = "boc index --help lists all codes with their arguments"


@dataclass(frozen=True)
class Whole:
    """Integers from ``least`` to ``most``."""

    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        span = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"a whole number {span}"

    def read(self, text: str) -> int | None:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None

    def takes(self, value: object) -> bool:
        return type(value) is int and self.least <= value and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class OneOf:
    """One of a set of words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " or ".join(self.words)

    def read(self, text: str) -> str | None:
        return text

    def takes(self, value: object) -> bool:
        return value in self.words


class Flag:
    """true or false."""

    def __str__(self) -> str:
        return "true or false"

    def read(self, text: str) -> bool | None:
        return {"true": True, "false": False}.get(text)

    def takes(self, value: object) -> bool:
        return isinstance(value, bool)


class File:
    """The path of a file."""

    def __str__(self) -> str:
        return "the path of a file"

    def read(self, text: str) -> str | None:
        return text

    def takes(self, value: object) -> bool:
        return isinstance(value, str) and value != ""


Rule: TypeAlias = Whole | OneOf | Flag | File


@dataclass(frozen=True)
class Kind:
    """The description of a code in one line, and the types of its arguments."""

    about: str
    rules: Mapping[str, Rule]


NUMBERS: dict[str, Rule] = {"z": Whole(), "query_z": Whole()}
SEED: dict[str, Rule] = {"seed": Whole(0, 2**32 - 1)}
ROTATED: dict[str, Rule] = {**NUMBERS, "plain": Flag(), "shift": Flag(), "expand": Whole(), **SEED}
TERMS: dict[str, Rule] = {"terms": Whole(1, 2**18)}
BOOK: dict[str, Rule] = {"codebook": File(), "stopwords": OneOf(("keep", "drop"))}
SOFT: dict[str, Rule] = {
    **NUMBERS,
    **BOOK,
    "similarity": OneOf(("inverse", "gaussian", "printed", "excess", "deviation")),
    "aggregate": OneOf(("sum", "max")),
}
CODES = {
    "scalar": Kind(
        "components of the rotated vector, frequencies in proportion", {**ROTATED, "reading": OneOf(READINGS["scalar"])}
    ),
    "bits": Kind("the same, frequencies of few bits", {**ROTATED, "bits": Whole(1, 15)}),
    "permutation": Kind("the same, frequencies by rank", {**ROTATED, "reading": OneOf(READINGS["permutation"])}),
    "dictionary": Kind(
        "nearest centroids of whole vectors, learned from the items",
        {"z": Whole(1, 16), "query_z": Whole(), **TERMS, "plain": Flag(), **SEED},
    ),
    "hard": Kind("nearest centroid of each concept, counted", BOOK),
    "soft": Kind("similarities of concepts to their nearest centroids", SOFT),
    "mixed": Kind("soft and dictionary side by side", {**SOFT, **TERMS, **SEED}),
    "words": Kind(
        "words nearest to a picture, to be read and searched as text",
        {**NUMBERS, "codebook": File()},
    ),
    "learned": Kind(
        "terms learned from pictures and their captions",
        {**NUMBERS, "codebook": File()},
    ),
    "late": Kind(
        "late interaction, how near the best region is to centroids of words",
        {**TERMS, "density": Whole(1, 100), **SEED},
    ),
}
ARGUMENTS = {
    "z": "terms per item [64; dictionary: 2; words: 32; learned: 8]; soft, mixed: per concept [all; 2]",
    "query_z": "terms per query [128; dictionary: 64; words, learned: 32]; soft, mixed: per concept [z]",
    "terms": "centroids of the dictionary [by the number of items], or of words [1024]",
    "density": "percent of the pictures that have a term [20]",
    "bits": "bits per frequency [4]",
    "plain": "true: neither centre nor rotate, as in the papers [false]",
    "shift": "true: keep all terms, and so the order of the vectors [false]",
    "reading": "kept: quantise the kept terms; offset: ranks from 2z to z + 1; printed: quantise, then keep [kept]",
    "expand": "number of rotations side by side [1]",
    "codebook": "file made by boc build-codebook; required",
    "stopwords": "keep or drop the concepts of English stop-words [keep]",
    "similarity": "inverse, gaussian, printed, excess or deviation, of concept and centroid [inverse]",
    "aggregate": "sum or max over the concepts of an item [sum]",
    "seed": "of the rotation, or of the k-means [0]",
}
"""Meaning of each argument, with its default in brackets."""


@dataclass(frozen=True, repr=False)
class Code:
    """A code by name, with its arguments; missing arguments have the defaults of the code.

    ``CODES`` lists the arguments of each code, ``ARGUMENTS`` their meanings. ``str`` and ``repr`` give the text that
    ``parse_code`` reads. BocError for an unknown name, an unknown argument, or a value out of range.

    Examples
    --------
    >>> Code("soft", z=8, aggregate="max")
    soft(z=8, aggregate=max)
    >>> parse_code("dictionary:2/64") == Code("dictionary", z=2, query_z=64)
    True
    """

    name: str = "scalar"
    z: int | None = None
    query_z: int | None = None
    terms: int | None = None
    bits: int = 4
    plain: bool = False
    shift: bool = False
    reading: str = "kept"
    expand: int = 1
    codebook: str | None = None
    stopwords: str = "keep"
    similarity: str = "inverse"
    aggregate: str = "sum"
    density: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        _check_name(self.name)
        for argument, value in self.arguments.items():
            rule = _rule(self.name, argument)
            if not rule.takes(value):
                raise _refused(self.name, argument, rule, value)
        if self.shift and (self.z is not None or self.query_z is not None):
            raise BocError(f"code {self}: a shifted code keeps every term; leave out z and query_z, or leave out shift")
        if self.shift and self.reading != "kept":
            raise BocError(f"code {self}: a shifted code has one reading; leave out reading, or leave out shift")
        if self.plain and self.expand > 1:
            raise BocError(f"code {self}: expand rotates, plain does not; give one of them")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments with other values than their defaults, in the order of the fields."""
        given = {each.name: (getattr(self, each.name), each.default) for each in fields(self)[1:]}
        return {name: value for name, (value, default) in given.items() if value != default}

    def __str__(self) -> str:
        written = {name: str(value) for name, value in self.arguments.items()}
        flags = {name: text.lower() for name, text in written.items() if isinstance(getattr(self, name), bool)}
        return join_code(self.name, written | flags)

    __repr__ = __str__

    @property
    def reads_concepts(self) -> bool:
        """Whether the code reads concept sets."""
        return self.name in (*CONCEPT_CODES, *LEARNED_CODES)

    @property
    def reads_codebook(self) -> bool:
        """Whether the code needs a codebook."""
        return "codebook" in CODES[self.name].rules

    def load_codebook(self) -> Codebook | None:
        """The codebook, read from its file; None for a code that needs none. BocError if the code names no file, or the
        file holds no codebook."""
        if not self.reads_codebook:
            return None
        kind = {**dict.fromkeys(WORD_CODES, "words"), **dict.fromkeys(LEARNED_CODES, "learned")}.get(self.name)
        option = "" if kind is None else f" --{kind}"
        if self.codebook is None:
            raise BocError(
                f"code {self}: needs a codebook; make one with boc build-codebook FEATURES -o FILE"
                f"{option} and write {self.name}(codebook=FILE)"
            )
        from boc.clustering.codebook import Codebook

        book = Codebook.load(Path(self.codebook).expanduser())
        if book.made_for != (kind or "concepts"):
            held = {"concepts": "concepts", "words": "the vectors of words", "learned": "learned terms"}[book.made_for]
            way = f"with boc build-codebook{option}" if kind else f"without boc build-codebook --{book.made_for}"
            raise BocError(f"code {self}: the codebook holds {held}; make one {way}")
        return book

    def budgets(self, dim: int) -> tuple[int, int]:
        """Terms of an item and of a query under a code of components, for vectors of ``dim`` components: those of the
        code, or the defaults limited to twice the components. BocError for more than that."""
        terms = 2 * dim * self.expand
        for argument, value in (("z", self.z), ("query_z", self.query_z)):
            if value is not None and value > terms:
                raise BocError(
                    f"code {self}: {argument} must be between 1 and {terms} (2 x {terms // 2} components), got {value}"
                )
        return self.z or min(DEFAULT_Z, terms), self.query_z or max(self.z or 0, min(DEFAULT_QUERY_Z, terms))

    def codec(self, dim: int, codebook: Codebook | None = None) -> SurrogateCodec:
        """The unfitted codec for vectors of ``dim`` components.

        ``codebook`` replaces the file that the code names. BocError for more terms than ``dim`` allows.
        """
        from boc.codecs.presets import concept_code, global_code, late_code, learned_code, word_code

        if self.name == "late":
            return late_code(self.terms, self.density, self.seed)
        z, query_z = self.z, self.query_z
        book = codebook if self.reads_codebook and codebook is not None else self.load_codebook()
        if book is not None and self.name in WORD_CODES:
            return word_code(book, z=z, query_z=query_z)
        if book is not None and self.name in LEARNED_CODES:
            return learned_code(book, z=z, query_z=query_z)
        if book is not None:
            return concept_code(
                book, self.name, z=z, query_z=query_z, similarity=self.similarity, aggregate=self.aggregate,
                drop_stopwords=self.stopwords == "drop", terms=self.terms, seed=self.seed,
            )  # fmt: skip
        if "expand" in CODES[self.name].rules and not self.shift:
            z, query_z = self.budgets(dim)
        return global_code(
            self.name, z=z, query_z=query_z, center=not self.plain, rotate=not self.plain, shift=self.shift,
            expand=self.expand, seed=self.seed, bits=self.bits, terms=self.terms, reading=self.reading,
        )  # fmt: skip


def parse_code(text: str) -> Code:
    """Parse a code such as ``bits:32`` or ``soft(z=8, aggregate=max, codebook=book.npz)``.

    BocError says what is wrong, the known names, and the syntax.
    """
    name, written = split_code(text)
    _check_name(name)
    arguments: dict[str, Any] = {}
    for argument, value in written.items():
        rule = _rule(name, argument)
        arguments[argument] = rule.read(value)
        if arguments[argument] is None:
            raise _refused(name, argument, rule, value)
    return Code(name, **arguments)


def _check_name(name: str) -> None:
    if name not in CODES:
        raise BocError(f"no code {name!r}{_meant(name, CODES)}; known: {', '.join(CODES)}; {HELP}")


def _rule(name: str, argument: str) -> Rule:
    rules = CODES[name].rules
    if argument not in rules:
        owners = [other for other, kind in CODES.items() if argument in kind.rules]
        why = f" (it is for {', '.join(owners)})" if owners else _meant(argument, rules)
        raise BocError(f"code {name}: no argument {argument!r}{why}; {name} takes {', '.join(rules)}; {HELP}")
    return rules[argument]


def _refused(name: str, argument: str, rule: Rule, value: object) -> BocError:
    return BocError(f"code {name}: {argument} must be {rule}, got {value!r}; correct it; {HELP}")


def _meant(typed: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(typed.lower(), known, 1)
    return f" (did you mean {near[0]}?)" if near else ""
