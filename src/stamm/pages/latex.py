"""An activation for a paper: its formulas as LaTeX, and its source as BibTeX."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa",
    "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega",
})  # fmt: skip
_FUNCTIONS = {
    "exp": r"\exp", "log": r"\log", "sin": r"\sin", "cos": r"\cos", "tanh": r"\tanh",
    "sinh": r"\sinh", "cosh": r"\cosh", "asin": r"\arcsin", "atan": r"\arctan",
    "logistic": r"\sigma", "normal_cdf": r"\Phi", "normal_pdf": r"\varphi",
    "sign": r"\operatorname{sgn}", "signum": r"\operatorname{sgn}",
}  # fmt: skip
_RELATIONS = {ast.Lt: "<", ast.LtE: r"\le", ast.Gt: ">", ast.GtE: r"\ge"}
_SUM, _PRODUCT, _POWER, _ATOM = range(4)
_LETTERS = 0x180  # the end of Latin Extended-A
_PLAIN = {"\u2013": "--", "\u2014": "---", "\u2018": "`", "\u2019": "'", "\u2032": "'"}
_ARXIV = re.compile(r"\b(\d{4}\.\d{4,5})\b")
# "Shazeer 2020, GLU Variants Improve Transformer (2002.05202)", after "gated in " or "gated linear units: "
_PAPER = re.compile(
    r"(?:\D*?: |\D*?\bin )?(?P<authors>\D+?) (?P<year>(?:19|20)\d\d)"
    r"(?:, (?P<title>.*?))?(?: \([^()]*\))?"
)


def latex(facts: Mapping[str, Any]) -> str:
    """The gradient and the function as equations, for `amsmath`.

    facts   as `describe` returns them
    Checked tests/unit/pages/test_latex.py
    """
    rows = [("f'(x)", facts["gradient"]), ("f(x)", facts["function"])]
    return aligned(f"{left_side} &= {cases(pieces)}" for left_side, pieces in rows)


def aligned(rows: Iterable[str]) -> str:
    """Rows of an equation, each with its &, for `amsmath`."""
    body = " \\\\\n".join(f"  {row}" for row in rows)
    return f"\\begin{{align*}}\n{body}\n\\end{{align*}}"


def bibtex(facts: Mapping[str, Any]) -> str:
    """One entry for each paper in the source of an activation; one for the source without a paper."""
    papers = [p for p in re.split(r";\s+", facts["source"]) if _PAPER.fullmatch(p)]
    entries = []
    for number, source in enumerate(papers or [facts["source"]]):
        paper, arxiv = _PAPER.fullmatch(source), _ARXIV.search(source)
        title = (paper and paper["title"]) or facts["title"]
        fields = {"title": f"{{{escaped(title)}}}", "note": escaped(source)}
        if paper:
            authors = paper["authors"].replace(" et al.", " and others").replace(", ", " and ")
            fields |= {"author": escaped(authors), "year": paper["year"]}
        if arxiv:
            fields |= {"eprint": arxiv[1], "archiveprefix": "arXiv"}
        key = facts["name"] + (f"_{number + 1}" if number else "")
        lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
        entries.append(f"@misc{{{key},\n{lines}}}")
    return "\n".join(entries)


def cases(pieces: Sequence[Mapping[str, str]]) -> str:
    """A function by its pieces, each with `formula` and `where`."""
    if len(pieces) == 1:
        return formula(pieces[0]["formula"])
    rows = " \\\\ ".join(f"{formula(p['formula'])} & {formula(p['where'])}" for p in pieces)
    return rf"\begin{{cases}} {rows} \end{{cases}}"


def formula(text: str) -> str:
    """A formula or condition in mathematical notation; as plain text where it is neither."""
    try:
        return _set(ast.parse(text.strip(), mode="eval").body)[0]
    except (SyntaxError, ValueError, RecursionError):
        return rf"\text{{{escaped(text)}}}"


def _set(node: ast.expr) -> tuple[str, int]:
    """The formula, and how tightly its outermost operation binds."""
    match node:
        case ast.Constant(value=value):
            digits, _, power = str(value).partition("e")
            if not power:
                return digits, _ATOM
            factor = "" if digits == "1" else rf"{digits} \cdot "
            return f"{factor}10^{{{int(power)}}}", _PRODUCT if factor else _POWER
        case ast.Name(id=name):
            return _name(name), _ATOM
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_at_least(operand, _PRODUCT)}", _SUM
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            sign = "+" if isinstance(operator, ast.Add) else "-"
            tight = _SUM if sign == "+" else _PRODUCT
            return f"{_at_least(left, _SUM)} {sign} {_at_least(right, tight)}", _SUM
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _at_least(left, _PRODUCT), _at_least(right, _PRODUCT)
            mixed = re.search(r"\d$", first) and re.match(r"\\frac{\d", second)  # 2 1/3 is not 2/3
            dot = r" \cdot " if mixed or second[0].isdigit() else r"\,"
            return f"{first}{dot}{second}", _PRODUCT
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return rf"\frac{{{_set(left)[0]}}}{{{_set(right)[0]}}}", _PRODUCT
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return f"{_at_least(left, _ATOM)}^{{{_set(right)[0]}}}", _POWER
        case ast.Compare(left=left, ops=ops, comparators=sides):
            parts = [_set(left)[0]]
            for relation, side in zip(ops, sides, strict=True):
                parts += [_RELATIONS[type(relation)], _set(side)[0]]
            return " ".join(parts), _SUM
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument]):
            return rf"\sqrt{{{_set(argument)[0]}}}", _ATOM
        case ast.Call(func=ast.Name(id="abs" | "absolute" | "Abs"), args=[argument]):
            return rf"\left|{_set(argument)[0]}\right|", _ATOM
        case ast.Call(func=ast.Name(id=name), args=arguments):
            shown = _FUNCTIONS.get(name) or rf"\operatorname{{{escaped(name)}}}"
            inner = ", ".join(_set(argument)[0] for argument in arguments)
            return rf"{shown}\left({inner}\right)", _ATOM
    raise ValueError(f"{ast.unparse(node)!r} is not a formula")


def _at_least(node: ast.expr, tight: int) -> str:
    text, binds = _set(node)
    return text if binds >= tight else rf"\left({text}\right)"


def _name(name: str) -> str:
    stem, _, index = name.partition("_")
    shown = rf"\{stem}" if stem in _GREEK else stem if len(stem) == 1 else rf"\mathrm{{{stem}}}"
    return f"{shown}_{{{escaped(index)}}}" if index else shown


def escaped(text: str) -> str:
    """Plain text for LaTeX; letters that its usual fonts lack are question marks."""
    plain = "".join(_PLAIN.get(c, c if ord(c) < _LETTERS else "?") for c in text.replace("\\", " "))
    return re.sub(r"([&%$#_{}])|([\^~])", lambda m: f"\\{m[0]}" + "{}" * bool(m[2]), plain)
