"""Which words mean the same: the sets of synonyms of WordNet (Miller, Communications of the ACM, 1995).

A folder ``dict`` of WordNet 3 holds ``data.noun``, ``data.verb``, ``data.adj`` and ``data.adv``, a set of synonyms per
line, and in the full distribution lists of irregular forms, ``noun.exc`` and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

PARTS = ("noun", "verb", "adj", "adv")
ENDINGS = {
    "noun": (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
             ("ies", "y"), ("'s", "")),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip
"""How WordNet takes inflections off; a letter doubled before an ending becomes single, too."""
IRREGULAR = {"noun": {"children": ["child"], "people": ["person"]}}
"""Frequent forms in captions, known without the lists."""


class Synonyms:
    """The base forms and sets of synonyms of words, from the folder ``dict`` of WordNet."""

    def __init__(self, folder: Path) -> None:
        """UsageError if ``folder`` lacks a file of WordNet."""
        self.sets: dict[str, dict[str, list[str]]] = {}
        self.irregular = {part: dict(IRREGULAR.get(part, {})) for part in PARTS}
        for part in PARTS:
            path = folder / f"data.{part}"
            if not path.is_file():
                raise click.UsageError(f"{path}: no such file; give the folder dict of WordNet, which has data.noun")
            self.sets[part] = _sets(path)
            exceptions = folder / f"{part}.exc"
            if exceptions.is_file():
                for line in exceptions.read_text(encoding="ascii").splitlines():
                    form, *bases = line.split()
                    self.irregular[part][form] = bases
        self.meanings = cache(self._meanings)

    def _meanings(self, word: str) -> frozenset[str]:
        """The word itself, its base forms, and the sets of synonyms that have one of these: two words whose meanings
        overlap are the same word, or synonyms in some sense of theirs."""
        found = {word}
        for part in PARTS:
            for base in self._bases(word, part):
                if base in self.sets[part]:
                    found |= {base, *self.sets[part][base]}
        return frozenset(found)

    def _bases(self, word: str, part: str) -> Iterator[str]:
        yield word
        yield from self.irregular[part].get(word, [])
        for ending, instead in ENDINGS[part]:
            if word.endswith(ending) and len(word) > len(ending) + 1:
                stem = word[: -len(ending)]
                yield stem + instead
                if not instead and stem[-1] == stem[-2]:
                    yield stem[:-1]


def _sets(path: Path) -> dict[str, list[str]]:
    """The names of the sets of synonyms that have each word."""
    found: dict[str, list[str]] = defaultdict(list)
    with path.open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith(" "):  # the licence
                continue
            offset, _, kind, count, *fields = line.split(" ", 4 + 2 * 256)[: 4 + 2 * 256]
            for word in fields[: 2 * int(count, 16) : 2]:
                found[word.partition("(")[0].lower()].append(f"{offset}.{kind}")
    return dict(found)
