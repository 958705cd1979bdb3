"""The syntax of codes: ``NAME[:Z][/QUERY_Z][(ARGUMENT=VALUE, ...)]``.

``Z`` and ``QUERY_Z`` are short for the arguments ``z`` and ``query_z``. A value with blanks, quotes, parentheses,
commas or equals signs is quoted, with single or double quotes; the same quote inside is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from boc.errors import BocError

FORM = "write NAME:Z/QUERY_Z or NAME(ARGUMENT=VALUE, ...), such as dictionary:2/64 or soft(z=8, aggregate=max)"
NUMBERS = ("z", "query_z")
BARE = re.compile(r"""[^\s()=,'"]+""")
TOKEN = re.compile(rf"""{BARE.pattern}|'(?:[^']|'')*'|"(?:[^"]|"")*"|[()=,]""")
HEAD = re.compile(r"([^:/]+)(?::([^:/]+))?(?:/([^:/]+))?")


def split_code(text: str) -> tuple[str, dict[str, str]]:
    """Split a code into its name and its arguments as text. BocError for invalid syntax."""
    tokens = Tokens(text)
    head = HEAD.fullmatch(tokens.take("a name"))
    if head is None:
        raise tokens.error("the name is followed by something else than :Z and /QUERY_Z")
    name, *numbers = head.groups()
    arguments = {key: value for key, value in zip(NUMBERS, numbers, strict=True) if value is not None}
    if tokens.accept("("):
        for key, value in _listed(tokens):
            if key in arguments:
                raise tokens.error(f"{key} is given twice")
            arguments[key] = value
    if tokens.next:
        raise tokens.error(f"{tokens.next!r} is too much")
    return str(name), arguments


def join_code(name: str, arguments: Mapping[str, str]) -> str:
    """Format a code as text, the inverse of ``split_code``; the short form if it has budgets only."""
    if set(arguments) <= set(NUMBERS):
        signs = zip(":/", NUMBERS, strict=True)
        return name + "".join(sign + arguments[key] for sign, key in signs if key in arguments)
    return f"{name}({', '.join(f'{key}={_written(value)}' for key, value in arguments.items())})"


def _listed(tokens: Tokens) -> Iterator[tuple[str, str]]:
    """The arguments up to the closing parenthesis."""
    if tokens.accept(")"):
        return
    while True:
        key = tokens.take("an argument")
        if not tokens.accept("="):
            raise tokens.error(f"{key} has no value")
        yield key, tokens.take(f"a value of {key}")
        if tokens.accept(")"):
            return
        if not tokens.accept(","):
            raise tokens.error(f"a comma or ) is missing before {tokens.next!r}" if tokens.next else ") is missing")


def _written(value: str) -> str:
    return value if BARE.fullmatch(value) else "'" + value.replace("'", "''") + "'"


class Tokens:
    """The tokens of a code: words, quoted texts and signs."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.next = ""
        """The next token, including quotes; "" at the end."""
        self._advance()

    def accept(self, sign: str) -> bool:
        """Consume ``sign`` if it is the next token; return whether it was."""
        if self.next != sign:
            return False
        self._advance()
        return True

    def take(self, expected: str) -> str:
        """Consume and return the next word or quoted text. BocError naming ``expected`` if the next token is a sign."""
        token = self.next
        if not token or token in "()=,":
            raise self.error(f"{expected} is missing before {token!r}" if token else f"{expected} is missing")
        self._advance()
        quote = token[0]
        return token[1:-1].replace(2 * quote, quote) if quote in "'\"" else token

    def error(self, what: str) -> BocError:
        """A BocError about the code."""
        return BocError(f"code {self.text!r}: {what}; {FORM}")

    def _advance(self) -> None:
        rest = self.text[self.position :].lstrip()
        start = len(self.text) - len(rest)
        match = TOKEN.match(self.text, start)
        if rest and match is None:
            raise self.error(f"the quote {rest[0]} is not closed")
        self.next = match[0] if match else ""
        self.position = start + len(self.next)
