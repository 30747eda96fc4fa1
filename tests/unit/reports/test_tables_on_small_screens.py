"""Tables of a page: intervals break as a whole, and wide tables become lines with labels on a telephone."""

from __future__ import annotations

import re
from importlib import resources

import jinja2

from stamm.pages.figure import DataTable


def _drawn(table: DataTable) -> str:
    folder = str(resources.files("stamm.pages") / "templates")
    loader = jinja2.FileSystemLoader(folder)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["drawing"] = str
    template = "{% from 'parts.html' import cells %}{{ cells(table, 'label') }}"
    return environment.from_string(template).render(table=table)


COLUMNS = ("arm", "repeats", "cost, nats/token", "note")


def test_a_wide_table_has_a_label_in_every_cell_and_a_curve_has_none() -> None:
    row = ("xielu", "4", "5.1 [4.9, 5.3]", "a, b")
    stacked = _drawn(DataTable(columns=COLUMNS, rows=(row,) * 60, words=2))
    assert 'class="scroll wide stacked"' in stacked and '<table class="stack">' in stacked
    labels = re.findall(r'<td[^>]* data-label="([^"]*)"', stacked)
    assert labels == list(COLUMNS[1:]) * 60
    curve = _drawn(DataTable(columns=COLUMNS, rows=(row,) * 61, words=2))
    assert 'class="scroll wide"' in curve and "data-label" not in curve
    narrow = _drawn(DataTable(columns=COLUMNS[:3], rows=(row[:3],)))
    assert 'class="scroll"' in narrow and "data-label" not in narrow


def test_an_interval_is_kept_together_and_other_cells_are_as_they_were() -> None:
    rows = (("xielu", "4", "5.1 [4.9, 5.3]", "a, b"), ("<x>", "", "0.5", "see [1], then"))
    shown = _drawn(DataTable(columns=COLUMNS, rows=rows))
    assert re.search(r'<td class="interval"[^>]*>5\.1 <span>\[4\.9, 5\.3\]</span></td>', shown)
    assert shown.count("<span>") == 1
    for cell in (">a, b<", ">0.5<", ">see [1], then<", ">&lt;x&gt;<"):
        assert cell in shown
