"""Conditions as text, and another library's order of evaluation, operation by operation."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import sympy

from stamm.activations.derivation.formulas import Branch
from stamm.activations.spec import Compat
from stamm.activations.spec.expressions import CONSTANTS, VARIABLE, parse, parse_interval

_TORCH = {name: f"torch.{name}" for name in ("exp", "expm1", "log", "sqrt", "tanh", "atan", "erf")}
_TORCH |= {"min": "torch.min", "max": "torch.max", "logistic": "torch.sigmoid"}
_EXTRA = ("min", "max")
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}


def condition_text(branch: Branch) -> str:
    """The interval of a branch, as a Spec spells it: "x <= 0", "-1 < x <= 0", "all x"."""
    low, high = branch.low, branch.high
    upper = f"{VARIABLE} {'<=' if branch.high_closed else '<'} {high}"
    if low == -sympy.oo:
        return "all x" if high == sympy.oo else upper
    if high == sympy.oo:
        return f"{VARIABLE} {'>=' if branch.low_closed else '>'} {low}"
    return f"{low} {'<=' if branch.low_closed else '<'} {upper}"


def compat_function(compat: Compat, names: Sequence[str]) -> str:
    """The torch function `compat_NAME(x, parameters..., constants...)`, all arguments tensors.

    Operations are in the order of the Compat entry and none is added, so the result equals the
    other library's to the last bit, in every dtype; gradients come from autograd.
    """
    arguments = [VARIABLE, *names, *(c.name for c in compat.constants)]
    lines = [f"# As in {compat.source}."]
    for i, piece in enumerate(compat.pieces, start=1):
        lines.append(f"piece_{i} = {_text(parse(piece.formula, extra=_EXTRA))}")
    result = f"piece_{len(compat.pieces)}"
    for i in range(len(compat.pieces) - 1, 0, -1):
        result = f"torch.where({_condition(compat.pieces[i - 1].where)}, piece_{i}, {result})"
    lines.append(f"return {result}")
    signature = ", ".join(f"{a}: Tensor" for a in arguments)
    return (
        f"def compat_{compat.name}({signature}) -> Tensor:\n"
        '    """f(x) in another library\'s order of operations."""\n'
        + "\n".join(f"    {line}" for line in lines)
    )


def _condition(where: str) -> str:
    """The interval of a piece, printed from the parsed tree: never the text that was given."""
    interval = parse_interval(where)
    parts = []
    if interval.low is not None:
        sign = ">=" if interval.low_closed else ">"
        parts.append(f"{VARIABLE} {sign} {_bound(interval.low)}")
    if interval.high is not None:
        sign = "<=" if interval.high_closed else "<"
        parts.append(f"{VARIABLE} {sign} {_bound(interval.high)}")
    if not parts:
        return f"{VARIABLE} == {VARIABLE}"
    return parts[0] if len(parts) == 1 else " & ".join(f"({part})" for part in parts)


def _bound(text: str) -> str:
    return _text(parse(text, extra=_EXTRA))


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=number):
            return repr(number)
        case ast.Name(id=name):
            return repr(CONSTANTS[name]) if name in CONSTANTS else name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_inner(operand)}"
        case ast.BinOp(left=left, op=operator, right=right):
            # Same precedence on the left needs no parentheses: Python evaluates left to right.
            # A power binds to the right: the operand on its left needs them unless it is atomic.
            whole = _binds(left) >= (4 if isinstance(operator, ast.Pow) else _binds(node))
            first = _text(left) if whole else f"({_text(left)})"
            last = _text(right) if _binds(right) > _binds(node) else f"({_text(right)})"
            return f"{first} {_SIGNS[type(operator)]} {last}"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return f"{_TORCH[name]}({', '.join(_text(a) for a in arguments)})"
    raise TypeError(f"{ast.dump(node)} is not part of a parsed formula")


def _inner(node: ast.expr) -> str:
    return f"({_text(node)})" if isinstance(node, (ast.BinOp, ast.UnaryOp)) else _text(node)


def _binds(node: ast.expr) -> int:
    if not isinstance(node, ast.BinOp):
        return 4 if not isinstance(node, ast.UnaryOp) else 3
    return {ast.Add: 1, ast.Sub: 1, ast.Mult: 2, ast.Div: 2, ast.Pow: 3}[type(node.op)]
