"""Write runs and relevance judgements (qrels) in TREC formats, which ir_measures can read.

Each line of a run is ``query Q0 item rank score tag``, and each line of qrels is ``query 0 item
relevance``. Spaces and percent signs in ids are escaped as in URLs, because spaces separate
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
    """Write a TREC run, which contains the ids of the hits (best first) and their scores for each
    query id.

    Evaluation tools sort hits by float32 score and resolve ties differently. Therefore, if a score
    is not lower than the previous score, the next smaller float32 is written. Raises BocError if
    ``path`` exists and is not a run.
    """
    check_run(path)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids, scores in rankings:
            level = np.float32(np.inf)
            for rank, (key, score) in enumerate(zip(ids, scores, strict=True), 1):
                level = np.minimum(np.float32(score), np.nextafter(level, np.float32(-np.inf)))
                file.write(f"{_plain(query)} Q0 {_plain(key)} {rank} {level:.9g} boc\n")


def check_run(path: Path) -> None:
    """Raise BocError if writing a run to ``path`` would replace a file of another kind."""
    check_output(path, lambda path: _has_columns(path, 6))


def write_qrels(
    path: Path,
    right: Iterable[tuple[str, Sequence[str]]],
) -> None:
    """Write the ids of the relevant items for each query. Raises BocError if ``path`` exists and
    does not contain qrels."""
    check_output(path, lambda path: _has_columns(path, 4))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids in right:
            file.writelines(f"{_plain(query)} 0 {_plain(key)} 1\n" for key in ids)


def _plain(key: str) -> str:
    return re.sub(r"[\s%]", lambda match: quote(match[0]), key)


def _has_columns(path: Path, count: int) -> bool:
    """Return whether the first line of a file has ``count`` columns."""
    with path.open("rb") as file:
        return len(file.readline(HEAD).split()) == count
