"""Report the progress of long operations through a callback, or with bars in a terminal or
notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback that receives the name of the stage, the number of finished items, and the total
number of items."""

Tick: TypeAlias = Callable[[int], object]
"""A callback that receives the number of items finished since its last call."""


def silent(stage: str, done: int, total: int) -> None:
    """Ignore all progress."""


class Bars:
    """``Progress`` that draws one tqdm bar per stage, in sequence, with tqdm ``options``."""

    def __init__(self, **options: Any) -> None:
        from tqdm.auto import tqdm

        self._new = tqdm
        self._options = options
        self._stage = ""
        self._bar: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._bar is None or stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = self._new(desc=stage, total=total, **self._options)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def ticks(self, stage: str, total: int) -> Tick:
        """Start a stage, and return its callback."""
        self(stage, 0, total)
        return self._bar.update  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the current bar, even if its stage is not complete."""
        if self._bar is not None:
            self._bar.close()


def progress_of(progress: bool | Progress) -> Progress:
    """Return the callback for a ``progress`` argument: bars for True, no reports for False, and a
    callable unchanged."""
    return progress if callable(progress) else Bars() if progress else silent
