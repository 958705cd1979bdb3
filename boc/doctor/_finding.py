"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``about`` names the subject, ``what`` is the finding in one line, ``todo`` the next step
    or empty.

    A problem stops a search, a note does not.
    """

    state: State
    about: str
    what: str
    todo: str = ""
