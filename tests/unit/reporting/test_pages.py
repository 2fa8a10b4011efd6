from __future__ import annotations

import pytest

from sottovoce.reporting.pages import Drawing, Table, render_page


def test_a_fact_that_is_missing_is_an_error_and_not_a_gap():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render_page("report.html.jinja", {"name": "a run"})


def test_a_drawing_without_a_picture_is_words():
    assert Drawing("title", "words") == Drawing("title", "words", "", None)
    assert Table("about", "round", ["1"], [("a", ["2"])]).remark == ""
