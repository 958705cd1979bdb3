"""Read and write runs and relevance judgements (qrels) in TREC formats, as ir_measures does.

Each line of a run is ``query Q0 item rank score tag``, and each line of qrels is ``query 0 item
relevance``. Blanks and percent signs in ids are escaped as in URLs, because blanks separate the
columns.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from boc.atomic_files import replacing
from boc.outputs import HEAD, check_output


def write_run(
    path: Path,
    rankings: Iterable[tuple[str, Sequence[str], Sequence[float]]],
) -> None:
    """Write a TREC run: for each query id, the hit ids (best first) and their scores.

    Evaluation tools sort hits by float32 score and break ties differently, so a score that is not
    lower than the one before it is written as the next smaller float32. Raises BocError if ``path``
    contains anything other than a run.
    """
    check_run(path)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids, scores in rankings:
            level = np.float32(np.inf)
            for rank, (key, score) in enumerate(zip(ids, scores, strict=True), 1):
                level = np.minimum(np.float32(score), np.nextafter(level, np.float32(-np.inf)))
                file.write(f"{_plain(query)} Q0 {_plain(key)} {rank} {level:.9g} boc\n")


def check_run(path: Path) -> None:
    """Raise BocError if writing a run to ``path`` would replace another kind of file."""
    check_output(path, lambda path: _has_columns(path, 6))


def write_qrels(
    path: Path,
    right: Iterable[tuple[str, Sequence[str]]],
) -> None:
    """Write the ids of the right items for each query. Raises BocError if ``path`` contains
    anything other than qrels."""
    check_output(path, lambda path: _has_columns(path, 4))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids in right:
            file.writelines(f"{_plain(query)} 0 {_plain(key)} 1\n" for key in ids)


def _plain(key: str) -> str:
    return re.sub(r"[\s%]", lambda match: quote(match[0]), key)


def _has_columns(path: Path, count: int) -> bool:
    """Return whether a file's first line has this number of columns."""
    with path.open("rb") as file:
        return len(file.readline(HEAD).split()) == count
