"""Recognise queries that are dates, in the formats that people type."""

import re
from contextlib import suppress
from datetime import datetime

_SPACE = re.compile(r"[-/:, ]+|\. *|(?<=\d)(?:st|nd|rd|th)\b(?: of)?", re.IGNORECASE)
_FORMS = ("Y", "Y m", "m Y", "b Y", "B Y", "Y m d", "d m Y", "d b Y", "d B Y", "b d Y", "B d Y")


def read_date(text: str) -> str:
    """Return the year, month or day that ``text`` denotes, as a filter value. Return an empty
    string if ``text`` is not a date.

    In dates with dots, the day comes first. In dates with slashes, either the day or the month may
    come first; if both are possible, the value contains both dates.

    >>> read_date("1.5.2024"), read_date("01/05/2024"), read_date("May 2024")
    ('2024-05-01', '2024-05-01|2024-01-05', '2024-05')
    """
    if not re.search(r"\d{4}", text):
        return ""
    parts = " ".join(_SPACE.sub(" ", text).split())
    values = {}
    for form in _FORMS if "." in text else (*_FORMS, "m d Y"):
        with suppress(ValueError):
            day = datetime.strptime(parts, re.sub(r"\w", r"%\g<0>", form))
            if day.year // 100 in (19, 20):
                values[f"{day:%Y-%m-%d}"[: 4 + 3 * form.count(" ")]] = day
    return "|".join(values)
