"""Rewrites formulas as text: substitutes names in the parsed tree, builds sums and products.

The only simplifications are exact arithmetic with the numbers in a formula and the rules for 0 and
1, so that the result of a transform stays short enough to read.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from fractions import Fraction

from stamm.activations.spec.expressions import parse


def substituted(text: str, replacements: Mapping[str, str]) -> str:
    """The formula with names replaced by formulas, in the tree and hence with the right brackets.

    Edge     functions keep their names; all replacements happen at once, so two names can be
             exchanged.
    Raises   ConfigError when a text is not a formula.
    """
    put = {name: parse(formula) for name, formula in replacements.items()}
    return ast.unparse(_rebuilt(parse(text), put))


def plus(left: str, right: str) -> str:
    """left + right, without a term that is 0."""
    return ast.unparse(_binary(ast.Add(), parse(left), parse(right)))


def minus(left: str, right: str) -> str:
    """left - right, without a term that is 0."""
    return ast.unparse(_binary(ast.Sub(), parse(left), parse(right)))


def times(left: str, right: str) -> str:
    """left * right, without a factor that is 1; "0" when one of them is 0."""
    return ast.unparse(_binary(ast.Mult(), parse(left), parse(right)))


def over(left: str, right: str) -> str:
    """left / right, without a divisor that is 1."""
    return ast.unparse(_binary(ast.Div(), parse(left), parse(right)))


def _rebuilt(node: ast.expr, put: Mapping[str, ast.expr]) -> ast.expr:
    """A copy of a parsed formula with names replaced; parsed trees are shared and stay as they are."""
    match node:
        case ast.Name(id=name):
            return put.get(name, node)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _negated(_rebuilt(operand, put))
        case ast.UnaryOp(operand=operand):
            return _rebuilt(operand, put)
        case ast.BinOp(left=left, op=operator, right=right):
            return _binary(operator, _rebuilt(left, put), _rebuilt(right, put))
        case ast.Call(func=function, args=arguments):
            return ast.Call(func=function, args=[_rebuilt(a, put) for a in arguments], keywords=[])
    return node


def _exact(node: ast.expr) -> Fraction | None:
    """The number that a tree spells, 3, -0.5 or 2/3; None when it spells something else."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _exact(operand)
            return None if inner is None else -inner
        case ast.BinOp(
            left=ast.Constant(value=int() as p), op=ast.Div(), right=ast.Constant(value=int() as q)
        ) if q:
            return Fraction(p, q)
    return None


def _spelled(number: Fraction) -> ast.expr:
    size: ast.expr = ast.Constant(value=abs(number.numerator))
    if number.denominator != 1:
        size = ast.BinOp(left=size, op=ast.Div(), right=ast.Constant(value=number.denominator))
    return ast.UnaryOp(op=ast.USub(), operand=size) if number < 0 else size


def _negated(node: ast.expr) -> ast.expr:
    number = _exact(node)
    if number is not None:
        return _spelled(-number)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    return ast.UnaryOp(op=ast.USub(), operand=node)


def _binary(operator: ast.operator, left: ast.expr, right: ast.expr) -> ast.expr:
    p, q = _exact(left), _exact(right)
    match operator:
        case ast.Add() | ast.Sub() if p is not None and q is not None:
            return _spelled(p + q if isinstance(operator, ast.Add) else p - q)
        case ast.Mult() if p is not None and q is not None:
            return _spelled(p * q)
        case ast.Div() if p is not None and q:
            return _spelled(p / q)
        case ast.Add() if p == 0:
            return right
        case ast.Add() | ast.Sub() if q == 0:
            return left
        case ast.Sub() if p == 0:
            return _negated(right)
        case ast.Mult() if p == 0 or q == 0:
            return ast.Constant(value=0)
        case ast.Mult() if p == 1 or p == -1:
            return right if p == 1 else _negated(right)
        case ast.Mult() | ast.Div() if q == 1 or q == -1:
            return left if q == 1 else _negated(left)
        case ast.Add() | ast.Sub() if isinstance(right, ast.UnaryOp):
            other = ast.Sub() if isinstance(operator, ast.Add) else ast.Add()
            return ast.BinOp(left=left, op=other, right=right.operand)
    return ast.BinOp(left=left, op=operator, right=right)
