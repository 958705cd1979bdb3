"""How many clauses a query may have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from boc.errors import BocWarning

from .requests import strongest

SAFE = 1000
"""Every server takes 1,024 clauses, filters among them."""
NEAR = 16  # clauses by which the limit may be underestimated


class Budget:
    """The limit of one server, found out when a query is larger than is safe: no server tells it.

    ``takes`` asks the server whether it takes a query of so many clauses; ``shown`` names it.
    """

    def __init__(self, takes: Callable[[int], bool], shown: str) -> None:
        self._takes = takes
        self._shown = shown
        self._most = SAFE
        self._too_many: int | None = None

    def kept(self, features: Mapping[str, int], others: int) -> dict[str, int]:
        """The features that can be asked for beside ``others`` clauses: all, or those of largest weight with a
        BocWarning."""
        limit = self._limit(len(features) + others) - others
        if len(features) <= limit:
            return dict(features)
        warnings.warn(
            f"a query of {len(features)} clauses was cut to the {limit} of largest weight, which is what {self._shown} "
            "takes; ask for fewer terms with --query-z, or raise indices.query.bool.max_clause_count where the server "
            "has it",
            BocWarning,
            stacklevel=4,
        )
        return strongest(features, limit)

    def _limit(self, wanted: int) -> int:
        """How many of ``wanted`` clauses the server takes."""
        while wanted > self._most and (self._too_many is None or self._too_many - self._most > NEAR):
            untried = self._too_many is None or wanted < self._too_many
            tried = wanted if untried else (self._most + (self._too_many or 0)) // 2
            if self._takes(tried):
                self._most = tried
            else:
                self._too_many = tried
        return min(wanted, self._most)
