"""Represent codes as a name with arguments, and convert codes to and from text.

The syntax is ``NAME[:Z][/QUERY_Z][(ARGUMENT=VALUE, ...)]``, where ``Z`` and ``QUERY_Z`` are the
arguments ``z`` and ``query_z``. Values that contain spaces, quotes, parentheses, commas or equals
signs must be enclosed in single or double quotes; the same quotes inside the value are doubled.

This module does not import NumPy, so that the command line can list, complete and check codes
quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from boc.errors import BocError
from boc.names import CONCEPT_CODES, LEARNED_CODES, WORD_CODES

if TYPE_CHECKING:
    from boc.clustering.codebook import Codebook
    from boc.codecs.codec import SurrogateCodec

DEFAULT_Z = 64
DEFAULT_QUERY_Z = 128
HELP = "<boc index --help> lists all codes with their arguments"
FORM = (
    "write NAME:Z/QUERY_Z or NAME(ARGUMENT=VALUE, ...), such as dictionary:2/64 or soft(z=8, "
    "aggregate=max)"
)
BUDGETS = ("z", "query_z")
BARE = re.compile(r"""[^\s()=,'"]+""")
VALUE = rf"""(?:{BARE.pattern}|'(?:[^']|'')*'|"(?:[^"]|"")*")"""
ARGUMENT = re.compile(rf"({BARE.pattern})\s*=\s*({VALUE})")
SETTING = rf"{BARE.pattern}\s*=\s*{VALUE}"
PART = r"""[^\s()=,'":/]+"""
WHOLE = re.compile(
    rf"\s*({PART})(?::({PART}))?(?:/({PART}))?\s*"
    rf"(?:\(\s*((?:{SETTING}(?:\s*,\s*{SETTING})*)?)\s*\))?\s*",
)


@dataclass(frozen=True)
class Whole:
    """Rule for an integer argument from ``least`` to ``most``."""

    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        if self.most is None:
            return f"a whole number of at least {self.least}"
        return f"a whole number from {self.least} to {self.most}"

    def read(self, text: str) -> int | str:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text

    def takes(self, value: object) -> bool:
        if type(value) is not int or value < self.least:
            return False
        return self.most is None or value <= self.most


@dataclass(frozen=True)
class OneOf:
    """Rule for an argument that must be one of several words, each of which stands for a value."""

    values: Mapping[str, str | bool]

    def __str__(self) -> str:
        return " or ".join(self.values)

    def read(self, text: str) -> str | bool:
        return self.values.get(text, text)

    def takes(self, value: object) -> bool:
        return isinstance(value, (str, bool)) and value in self.values.values()


class File:
    """Rule for an argument that is a file path."""

    def __str__(self) -> str:
        return "the path of a file"

    def read(self, text: str) -> str:
        return text

    def takes(self, value: object) -> bool:
        return isinstance(value, str) and value != ""


Rule: TypeAlias = Whole | OneOf | File


@dataclass(frozen=True)
class Kind:
    """Kind of code, with a one-line description and the rules for its arguments."""

    about: str
    rules: Mapping[str, Rule]


NUMBERS = {"z": Whole(), "query_z": Whole()}
TERMS = {"terms": Whole(1, 2**18)}
BOOK = {"codebook": File()}
PLAIN = {"plain": OneOf({"true": True, "false": False})}
SIMILARITY = OneOf({"inverse": "inverse", "deviation": "deviation"})
AGGREGATE = OneOf({"sum": "sum", "max": "max"})
CODES = {
    "scalar": Kind(
        "components of the rotated vector, with proportional frequencies",
        {**NUMBERS, **PLAIN},
    ),
    "bits": Kind(
        "same components, with frequencies of a few bits",
        {**NUMBERS, "bits": Whole(1, 15)},
    ),
    "permutation": Kind("same components, with their ranks as frequencies", {**NUMBERS, **PLAIN}),
    "dictionary": Kind(
        "nearest centroids of global vectors, learned from the items",
        {"z": Whole(1, 16), "query_z": Whole(), **TERMS},
    ),
    "hard": Kind("number of concepts nearest to each centroid", BOOK),
    "soft": Kind(
        "similarities of concepts to their nearest centroids",
        {**NUMBERS, **BOOK, "similarity": SIMILARITY, "aggregate": AGGREGATE},
    ),
    "words": Kind(
        "nearest words of a picture, which can be searched as text",
        {**NUMBERS, **BOOK},
    ),
    "learned": Kind("terms learned from pictures and captions", {**NUMBERS, **BOOK}),
    "late": Kind(
        "late interaction, with similarities of regions to word centroids",
        {**TERMS, "density": Whole(1, 100)},
    ),
}
ARGUMENTS = {
    "z": "terms per item [64; dictionary: 2; words: 32; learned: 8]; soft: terms per concept [all]",
    "query_z": "terms per query [128; dictionary: 64; words, learned: 32]; soft: terms per concept "
    "[z]",
    "terms": "number of centroids [dictionary: depends on the number of items; late: 1024]",
    "density": "percentage of the pictures that contain a given term [20]",
    "bits": "bits per frequency [4]",
    "plain": "true: omit centring and rotation, as in the papers [false]",
    "codebook": "file written by boc build-codebook; required",
    "similarity": "similarity of concept and centroid: inverse, or deviation with a rescaled "
    "codebook [inverse]",
    "aggregate": "sum or max over the concepts of an item [sum]",
}
"""Meaning of each argument, with its default in brackets."""


@dataclass(frozen=True, repr=False)
class Code:
    """Name of a code and its arguments. Missing arguments have the default values of the code.

    ``CODES`` lists the arguments of each code, and ``ARGUMENTS`` describes them. ``str`` and
    ``repr`` return text that ``parse_code`` accepts. Raises BocError if the name or an argument is
    unknown, or if a value is out of range.

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
    codebook: str | None = None
    similarity: str = "inverse"
    aggregate: str = "sum"
    density: int = 20

    def __post_init__(self) -> None:
        _check_name(self.name)
        for argument, value in self.arguments.items():
            rule = _rule(self.name, argument)
            if not rule.takes(value):
                raise BocError(
                    f"code {self.name}: {argument} must be {rule}, got {value!r}; correct this "
                    "value",
                    HELP,
                )

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults, in the order of the fields."""
        return {
            field.name: value
            for field in fields(self)[1:]
            if (value := getattr(self, field.name)) != field.default
        }

    def __str__(self) -> str:
        values = {}
        for name, value in self.arguments.items():
            text = str(value)
            if isinstance(value, bool):
                text = text.lower()
            elif not BARE.fullmatch(text):
                text = "'" + text.replace("'", "''") + "'"
            values[name] = text
        if values.keys() <= set(BUDGETS):
            return self.name + "".join(
                sign + values[key] for sign, key in zip(":/", BUDGETS, strict=True) if key in values
            )
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in values.items())})"

    __repr__ = __str__

    @property
    def reads_concepts(self) -> bool:
        """Return whether the code reads concept sets."""
        return self.name in (*CONCEPT_CODES, *LEARNED_CODES)

    @property
    def reads_codebook(self) -> bool:
        """Return whether the code needs a codebook."""
        return "codebook" in CODES[self.name].rules

    def load_codebook(self) -> Codebook | None:
        """Read the codebook, or return None if the code does not need a codebook. Raises BocError
        if the code does not name a file, or if the file is not a suitable codebook."""
        if not self.reads_codebook:
            return None
        kind = "concepts"
        make = "build one with <boc build-codebook FEATURES -o FILE>"
        if self.name in (*WORD_CODES, *LEARNED_CODES):
            kind = self.name
            make = f"build one with <boc build-codebook FEATURES -o FILE --kind {kind}>"
        if self.codebook is None:
            raise BocError(
                f"code {self}: needs a codebook",
                f"{make} and write {self.name}(codebook=FILE)",
            )
        from boc.clustering.codebook import Codebook

        book = Codebook.load(Path(self.codebook).expanduser())
        if book.kind != kind:
            kinds = {"words": "the vectors of words", "learned": "learned terms"}
            raise BocError(
                f"code {self}: the codebook contains {kinds.get(book.kind, 'concepts')}",
                make,
            )
        return book

    def budgets(self, dim: int) -> tuple[int, int]:
        """Return the numbers of terms per item and per query for a component code and vectors of
        ``dim`` components. Defaults are limited to 2 * ``dim``; larger numbers in the code raise
        BocError."""
        terms = 2 * dim
        for argument, value in (("z", self.z), ("query_z", self.query_z)):
            if value is not None and value > terms:
                raise BocError(
                    f"code {self}: {argument} must be between 1 and {terms} (2 x {terms // 2} "
                    f"components), got {value}",
                )
        query_z = max(self.z or 0, min(DEFAULT_QUERY_Z, terms))
        return self.z or min(DEFAULT_Z, terms), self.query_z or query_z

    def codec(self, dim: int, codebook: Codebook | None = None) -> SurrogateCodec:
        """Create an unfitted codec for vectors of ``dim`` components.

        ``codebook`` replaces the file named in the code. Raises BocError if the code has more terms
        than ``dim`` allows.
        """
        from boc.codecs.codec import SurrogateCodec
        from boc.codecs.late_interaction import LateInteraction
        from boc.codecs.presets import book_code, concept_code, global_code

        if self.name == "late":
            return SurrogateCodec([LateInteraction(self.terms or 1024, self.density)])
        budgets = {"z": self.z, "query_z": self.query_z}
        if self.reads_codebook:
            book = codebook or self.load_codebook()
            assert book is not None
            if self.name in (*WORD_CODES, *LEARNED_CODES):
                return book_code(book, self.name, **budgets)
            return concept_code(
                book,
                self.name,
                **budgets,
                similarity=self.similarity,
                aggregate=self.aggregate,
            )
        if self.name != "dictionary":
            budgets = dict(zip(BUDGETS, self.budgets(dim), strict=True))
        return global_code(
            self.name,
            **budgets,
            plain=self.plain,
            bits=self.bits,
            terms=self.terms,
        )


def parse_code(text: str) -> Code:
    """Parse a code such as ``bits:32`` or ``soft(z=8, aggregate=max, codebook=book.npz)``.

    Raises BocError with the error, the known names and the syntax.
    """
    match = WHOLE.fullmatch(text)
    if match is None:
        raise BocError(f"code {text!r} has invalid syntax; {FORM}")
    name, *numbers, inside = match.groups()
    texts = {key: value for key, value in zip(BUDGETS, numbers, strict=True) if value is not None}
    for key, value in ARGUMENT.findall(inside or ""):
        if key in texts:
            raise BocError(f"code {text!r}: {key} occurs twice; {FORM}")
        quote = value[0]
        if quote in "'\"":
            value = value[1:-1].replace(2 * quote, quote)
        texts[key] = value
    _check_name(name)
    values: dict[str, Any] = {key: _rule(name, key).read(text) for key, text in texts.items()}
    return Code(name, **values)


def _check_name(name: str) -> None:
    if name not in CODES:
        raise BocError(
            f"unknown code {name!r}{_suggest(name, CODES)}; known: {', '.join(CODES)}",
            HELP,
        )


def _rule(name: str, argument: str) -> Rule:
    rules = CODES[name].rules
    if argument not in rules:
        owners = [other for other, kind in CODES.items() if argument in kind.rules]
        why = _suggest(argument, rules)
        if owners:
            why = f" (only for {', '.join(owners)})"
        raise BocError(
            f"code {name}: unknown argument {argument!r}{why}; {name} accepts {', '.join(rules)}",
            HELP,
        )
    return rules[argument]


def _suggest(typed: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(typed.lower(), known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


# The code of each characteristic step; the first step that occurs in a chain decides.
CODE_OF_STEP = {
    "WordTerms": "words",
    "LearnedTerms": "learned",
    "Dictionary": "dictionary",
    "SoftAssignment": "soft",
    "HardAssignment": "hard",
    "LateInteraction": "late",
    "BitQuantizer": "bits",
    "DeepPermutation": "permutation",
    "ScalarQuantizer": "scalar",
}


def code_of(config: Mapping[str, Any]) -> Code | None:
    """Return the code whose codec has this configuration, with budgets but without the path of the
    codebook.

    ``config`` is the value of ``SurrogateCodec.config`` stored in a manifest. Returns None if these
    steps do not correspond to a code.
    """
    import numpy as np

    from boc.clustering.codebook import Codebook
    from boc.codecs.codec import current
    from boc.types import Identity

    params = {step["name"]: step["params"] for step in config["steps"]}
    name = next((name for step, name in CODE_OF_STEP.items() if step in params), None)
    if name is None:
        return None
    every = {key: value for step in params.values() for key, value in step.items()}
    every["plain"] = "RandomRotation" not in params
    try:
        code = Code(
            name,
            **{key: value for key, value in every.items() if key in CODES[name].rules},
        )
        book = None
        if code.reads_codebook:
            options = {"spherical": every.get("spherical", False)}
            book = Codebook(
                np.zeros((every["clusters"], 1), np.float32),
                Identity("", "", 1),
                (),
                options,
                0,
            )
        codec = code.codec(max(code.z or 1, code.query_z or 1), book)
        stored = [(step["name"], current(step["name"], step["params"])) for step in config["steps"]]
    except (BocError, LookupError, TypeError, ValueError, MemoryError):
        # The stored parameters may not come from boc.
        return None
    steps = [(type(step).__name__, step.get_params()) for step in codec.steps]
    # Parameters that were added later have their default values.
    known = dict(steps)
    completed = [(step, {**known.get(step, {}), **params}) for step, params in stored]
    return code if completed == steps else None
