"""Comments, docstrings and pages name things by nouns: a pronoun in place of a noun makes readers
look back for it."""

import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("boc", "encoders", "indexing")
MOST = {"those": 1.5, "that of": 0.5, "none": 1.5, "what is": 0.4, "there": 4.0}
"""Occurrences in 1,000 lines of the product, or 1,000 words of the pages, at most."""


def counted(text: str) -> Counter[str]:
    return Counter({word: len(re.findall(rf"\b{word}\b", text)) for word in MOST})


def written(path: Path) -> str:
    """The comments and texts of a module, without the names of its code."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING}
    return "\n".join(token.string for token in tokens if token.type in kinds)


@pytest.mark.parametrize("kind", ["product", "pages"])
def test_nouns_name_things(kind: str):
    total = Counter()
    size = 0
    if kind == "product":
        for path in (each for name in FOLDERS for each in (ROOT / name).glob("**/*.py")):
            total += counted(written(path))
            size += len(path.read_text(encoding="utf-8").splitlines())
    else:
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")):
            text = path.read_text(encoding="utf-8")
            total += counted(text)
            size += len(text.split())
    assert size > 10_000
    rates = {word: 1000 * total[word] / size for word in MOST}
    assert {word: rate for word, rate in rates.items() if rate > MOST[word]} == {}
