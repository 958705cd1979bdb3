"""One thing found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """``what`` was found, in a line, of the thing that ``about`` names, and what to do next (``todo``, may be empty).

    A problem stops a search, a note does not.
    """

    state: State
    about: str
    what: str
    todo: str = ""
