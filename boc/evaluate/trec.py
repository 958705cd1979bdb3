"""Runs and relevance judgements (qrels) in the formats of TREC, which ir_measures reads.

A run has a line ``query Q0 item rank score tag`` per hit, qrels ``query 0 item relevance``. Blanks
and percent signs in ids are escaped as in URLs, because blanks separate the columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from boc.atomic_files import replacing
from boc.outputs import HEAD, check_output

COLUMNS = {"run": 6, "qrels": 4}


def write_run(
    path: Path,
    rankings: Iterable[tuple[str, Sequence[str], Sequence[float]]],
) -> None:
    """Write a run: for each query its id, the ids of its hits, best first, and their scores.

    Tools order hits by score, as float32, and each orders equal scores in its own way. So a score
    that is not below the score before it is written as the next smaller number. BocError if
    ``path`` is another kind of file.
    """
    check_run(path)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids, scores in rankings:
            level = np.float32(np.inf)
            for rank, (key, score) in enumerate(zip(ids, scores, strict=True), 1):
                level = np.minimum(np.float32(score), np.nextafter(level, np.float32(-np.inf)))
                file.write(f"{_plain(query)} Q0 {_plain(key)} {rank} {level:.9g} boc\n")


def check_run(path: Path) -> None:
    """Raise BocError unless a run can be written to ``path`` without replacing another kind of
    file."""
    check_output(path, lambda path: _is_like(path, "run"))


def write_qrels(
    path: Path,
    right: Iterable[tuple[str, Sequence[str]]],
) -> None:
    """Write the ids of the right items for each query. BocError if ``path`` is another kind of
    file."""
    check_output(path, lambda path: _is_like(path, "qrels"))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids in right:
            file.writelines(f"{_plain(query)} 0 {_plain(key)} 1\n" for key in ids)


def _plain(key: str) -> str:
    return re.sub(r"[\s%]", lambda match: quote(match[0]), key)


def _is_like(path: Path, kind: str) -> bool:
    """Return whether a file begins with a line of this kind, by its columns."""
    with path.open("rb") as file:
        return len(file.readline(HEAD).split()) == COLUMNS[kind]
