"""A date is read in every form in which people write it, and no other text is a date."""

from datetime import date

import pytest
from hypothesis import given, strategies as st

from boc.search.dates import read_date

DAYS = st.dates(date(1900, 1, 1), date(2099, 12, 31))
FORMS = ["%d.%m.%Y", "%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%dth of %b %Y", "%B %d, %Y"]


@given(DAYS, st.sampled_from(FORMS))
def test_a_date_is_read(day: date, form: str):
    assert read_date(day.strftime(form).lower()) == day.isoformat()
    for month in ("%m/%Y", "%m.%Y", "%Y-%m", "%B %Y"):
        assert read_date(day.strftime(month)) == f"{day:%Y-%m}"


@pytest.mark.parametrize("text", ["", "may", "31.02.2024", "1066", "a 2024"])
def test_other_text_is_no_date(text: str):
    assert read_date(text) == ""
