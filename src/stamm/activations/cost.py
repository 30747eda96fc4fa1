"""Cost of an activation: operations counted in the source of its kernel, without running it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

from stamm.activations.spec import Gated, Spec
from stamm.activations.spec.shipped import NAMES

_KERNELS = Path(__file__).parent / "generated" / "kernels"
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
# Not counted as arithmetic: selecting between pieces, and clamping a piece into its interval.
_SELECTING = {"where", "clamp", "at_least", "at_most"}
_FILLING = {"zeros_like", "full_like", "ones_like"}


def shipped_source(spec: Spec) -> str | None:
    """The text of the kernel that ships for a spec, or None when none does."""
    name = NAMES.get(spec.content_hash)
    path = _KERNELS / f"{name}.py"
    return path.read_text(encoding="utf-8") if name is not None and path.is_file() else None


def cost(spec: Spec, source: str) -> dict[str, Any]:
    """The cost of one element, as JSON values.

    parameters   number of trainable parameters
    forward      operations of f(x); backward: those of f'(x) and the slope in each parameter.
                 Each is {calls: {name: count}, arithmetic: + - * / **, selections}
    saved        the tensors saved for the backward pass, as text, and `saved_inputs`, the number
                 of saved elements per output element

    Edge         the backward pass takes f and f' together and shares their calls; numbers are of
                 the formulas as written, before a compiler fuses them.
    Checked      tests/unit/reports/test_activation_page.py
    """
    functions = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    gated = isinstance(spec.arity, Gated)
    return {
        "parameters": len(spec.trainable),
        "forward": _operations(functions["value"]),
        "backward": _operations(functions["slopes"]),
        "saved": "the gate and up inputs" if gated else "the input",
        "saved_inputs": 2 if gated else 1,
    }


def operations_text(operations: dict[str, Any]) -> str:
    """A count as text: "1 exp, 1 phi2, 12 arithmetic, 2 selections"."""
    calls = [f"{count} {name}" for name, count in operations["calls"].items()]
    selections = operations["selections"]
    chosen = [f"{selections} selection{'' if selections == 1 else 's'}"] if selections else []
    return ", ".join([*calls, f"{operations['arithmetic']} arithmetic", *chosen])


def _operations(function: ast.FunctionDef) -> dict[str, Any]:
    calls: Counter[str] = Counter()
    arithmetic = 0
    selections = 0
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
            arithmetic += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = re.sub("_(negative|positive|pair)$", "", node.func.attr)
            if name in _SELECTING:
                selections += name == "where"
            elif name not in _FILLING:
                calls[name] += 1
    return {
        "calls": dict(sorted(calls.items())),
        "arithmetic": arithmetic,
        "selections": selections,
    }
