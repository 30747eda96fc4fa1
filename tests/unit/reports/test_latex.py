"""LaTeX and BibTeX of an activation."""

from __future__ import annotations

from stamm.activations.describe import describe, summaries
from stamm.reports.latex import bibtex, latex


def test_xielu_is_set_as_in_its_paper() -> None:
    facts = describe("xielu")
    text = latex(facts)
    assert r"f'(x) &= \begin{cases} 2\,\alpha_{p}\,x + \beta & x > 0" in text
    assert r"\alpha_{n}\,\left(\exp\left(x\right) - 1\right) + \beta" in text
    cited = bibtex(facts)
    assert cited.startswith("@misc{xielu,") and "eprint = {2411.13010}" in cited
    assert "author = {Huang and Schlag}" in cited and "year = {2024}" in cited


def test_every_entry_is_set_with_balanced_braces() -> None:
    for row in summaries():
        facts = describe(row["name"])
        for text in (latex(facts), bibtex(facts)):
            assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
            assert text.count(r"\left") == text.count(r"\right")
        assert r"\text" not in latex(facts), row["name"]
