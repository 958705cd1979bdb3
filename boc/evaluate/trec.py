"""Runs and relevance judgements (qrels) in the forms of TREC, and what ir_measures computes of
them.

A run has a line ``query Q0 item rank score tag`` per hit, qrels ``query 0 item relevance``. Blanks
and percent signs in ids are written as in URLs, because blanks separate the columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from boc.atomic_files import replacing
from boc.errors import BocError, needing
from boc.evaluate.significance import Difference, compare
from boc.outputs import HEAD, check_output
from boc.vectors import Doubles

if TYPE_CHECKING:
    from types import ModuleType

MEASURES = ("Success@1", "Success@5", "Success@10", "R@10", "RR", "AP", "nDCG@10")
"""What is measured of a run, by its name in ir_measures. Success@K is the R@K of papers on
image-text retrieval: the share of queries with a right item among K hits."""
FORMS = {"run": "query Q0 item rank score tag", "qrels": "query 0 item relevance"}


def write_run(
    path: Path,
    rankings: Iterable[tuple[str, Sequence[str], Sequence[float]]],
) -> None:
    """Write a run: of each query its id, the ids of its hits, best first, and their scores.

    Tools order hits by score, as float32, and equal scores in ways of their own; so a score that is
    not below the one before it is written as the next smaller number. BocError if ``path`` is
    another kind of file.
    """
    check_run(path)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids, scores in rankings:
            level = np.float32(np.inf)
            for rank, (key, score) in enumerate(zip(ids, scores, strict=True), 1):
                level = np.minimum(np.float32(score), np.nextafter(level, np.float32(-np.inf)))
                file.write(f"{_plain(query)} Q0 {_plain(key)} {rank} {level:.9g} boc\n")


def check_run(path: Path) -> None:
    """Raise BocError unless a run can be written to ``path`` without a loss of another kind of
    file."""
    check_output(path, lambda path: _is_like(path, "run"))


def write_qrels(
    path: Path,
    right: Iterable[tuple[str, Sequence[str]]],
) -> None:
    """Write the ids of the right items of each query. BocError if ``path`` is another kind of
    file."""
    check_output(path, lambda path: _is_like(path, "qrels"))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, ids in right:
            file.writelines(f"{_plain(query)} 0 {_plain(key)} 1\n" for key in ids)


class Judgements:
    """Relevance judgements, read from a file of qrels. BocError if it is none, or judges nothing as
    relevant."""

    def __init__(self, path: Path) -> None:
        self._tool = _tool()
        self._qrels = _read(path, "qrels", self._tool.read_trec_qrels)
        right: dict[str, list[str]] = {}
        for each in self._qrels:
            if each.relevance > 0:
                right.setdefault(each.query_id, []).append(each.doc_id)
        if not right:
            raise BocError(f"{path}: judges no item as relevant; give the qrels of these queries")
        self.path = path
        self.queries = sorted(right)
        groups = {query: tuple(sorted(right[query])) for query in self.queries}
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups.values()))}
        self.clusters = np.array([numbers[groups[query]] for query in self.queries])
        """int64 (queries,): equal numbers for queries with the same right items, such as the
        captions of a picture."""

    def measure(self, run: Path) -> Doubles:
        """Return ``MEASURES`` of each of ``queries`` (queries, measures); 0 for those that the run
        lacks.

        BocError if ``run`` is no run, or of other queries.
        """
        scored = _read(run, "run", self._tool.read_trec_run)
        if not {each.query_id for each in scored} & {*self.queries}:
            raise BocError(f"{run}: has no query of {self.path}; give the qrels of these queries")
        measures = {self._tool.parse_measure(name): column for column, name in enumerate(MEASURES)}
        rows = {query: row for row, query in enumerate(self.queries)}
        values = np.zeros((len(rows), len(measures)))
        for each in self._tool.iter_calc(list(measures), self._qrels, scored):
            if each.query_id in rows:
                values[rows[each.query_id], measures[each.measure]] = each.value
        return values

    def compare(self, one: Path, other: Path) -> Mapping[str, Difference]:
        """Return what the run ``one`` has more than ``other`` of each measure, with clusters drawn
        as a whole."""
        return dict(
            zip(
                MEASURES,
                compare(self.measure(one), self.measure(other), self.clusters),
                strict=True,
            ),
        )


def _plain(key: str) -> str:
    return re.sub(r"[\s%]", lambda match: quote(match[0]), key)


def _tool() -> ModuleType:
    with needing("a run", "measures"):
        import ir_measures
    return ir_measures


def _read(path: Path, kind: str, read: Any) -> list[Any]:
    try:
        if path.stat().st_size and _is_like(path, kind):
            return list(read(str(path)))
        raise ValueError("its first line has other columns")
    except (OSError, ValueError) as error:
        raise BocError(
            f"{path}: cannot be read as {kind} ({error}); write lines of {FORMS[kind]}",
        ) from error


def _is_like(path: Path, kind: str) -> bool:
    """Return whether a file begins with a line of this kind, by its columns."""
    with path.open("rb") as file:
        return len(file.readline(HEAD).split()) == len(FORMS[kind].split())
