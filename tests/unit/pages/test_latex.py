"""LaTeX and BibTeX of an activation."""

from __future__ import annotations

from typing import Any

import pytest

from stamm.activations.describe import describe, summaries
from stamm.pages.latex import bibtex, latex


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


@pytest.mark.parametrize(
    ("formula", "set_text"),
    [
        ("-x**2", "-x^{2}"),
        ("(-x)**2", r"\left(-x\right)^{2}"),
        ("2**-x", "2^{-x}"),
        ("a - (b - x)", r"a - \left(b - x\right)"),
        ("1e-05*x", r"10^{-5}\,x"),
        ("2.5e-7**x", r"\left(2.5 \cdot 10^{-7}\right)^{x}"),
        ("2*(1/3)*x", r"2 \cdot \frac{1}{3}\,x"),
        ("2*3**x", r"2 \cdot 3^{x}"),
    ],
)
def test_a_formula_keeps_its_value_in_latex(formula: str, set_text: str) -> None:
    pieces = [{"where": "all x", "formula": formula}]
    assert f"f(x) &= {set_text}\n" in latex({"gradient": pieces, "function": pieces})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("silu", ["{Ramachandran and Zoph and Le}", "{{Searching for Activation Functions}}"]),
        ("relu2", ["{So and others}", "{{Primer}}", "{2021}", "{2109.08668}"]),
        ("reglu", ["{Shazeer}", "{2020}", "{2002.05202}"]),
        ("fatrelu_glu", ["{Song and others}", "{{ProSparse}}"]),
        ("lelelu", ["{Maniatopoulos and Mitianoudis}", "{{Learnable Leaky ReLU (LeLeLU): An"]),
    ],
)
def test_bibtex_names_each_author_and_the_title_of_the_paper(name: str, fields: list[str]) -> None:
    cited = bibtex(describe(name))
    for field in fields:
        assert field in cited


@pytest.mark.parametrize(
    ("source", "entries"),
    [
        ("torch.nn.Identity; the baseline without a nonlinearity", 1),
        ("arXiv 2002.05202", 1),
        ("stated on the command line", 1),
        (
            "Nair and Hinton 2010, Rectified Linear Units; gated in Shazeer 2020 (arXiv 2002.05202)",
            2,
        ),
    ],
)
def test_bibtex_has_one_entry_for_each_paper(source: str, entries: int) -> None:
    facts: dict[str, Any] = {"name": "mine", "title": "Mine", "source": source}
    cited = bibtex(facts)
    assert cited.count("@misc") == entries
    assert cited.count("author = ") == (2 if entries == 2 else 0) and "year = {2002}" not in cited
