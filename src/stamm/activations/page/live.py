"""The live figure of an activation's page: its emitted JavaScript, and its parameters as stops of sliders."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from stamm.activations.emitters.c_like import JAVASCRIPT
from stamm.activations.emitters.program import Program, program_of
from stamm.activations.page.figures import DOUBLE_PRIME, PRIME, figure_ends
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Exp,
    Identity,
    Parameter,
    Softplus,
)
from stamm.base.errors import ConfigError
from stamm.pages.frame import InlineScript, script_file

_PACKAGE = "stamm.activations.page"
_STOPS = 160  # steps of a slider
_SPREAD = 5.0  # sinh(5): the steps near 0 are 1/74 of those at the ends


@dataclass(frozen=True, kw_only=True)
class LiveFigure:
    """Texts of the figure that a script draws."""

    title: str
    caption: str
    alt: str


def live_parts(spec: Spec) -> dict[str, Any]:
    """Values of the page's template: `live`, `script` and `policy`; or `live_refused`, the reason why there are none.

    A spec without JavaScript keeps its static figures.

    Checked   tests/docs/test_playground.py
    """
    try:
        program = program_of(spec)
        emitted = emitted_functions(program)
    except ConfigError as refused:
        return {"live_refused": f"Without sliders: {refused.what}."}
    gated = isinstance(spec.arity, Gated)
    names = ["f(x)", f"f{PRIME}(x)", f"f{DOUBLE_PRIME}(x)"]
    if gated:
        names = ["y", "dy/dx", "d²y/dx²"]
    if spec.surrogate:
        names[1:] = ["s(x)", f"s{PRIME}(x)"]
    parameters = [_slider(parameter, spec) for parameter in spec.trainable]
    data = {"gated": gated, "x": figure_ends(spec), "names": names, "parameters": parameters}
    text = "\n".join(
        (
            f"const $live = {{...{emitted}, ...{script_json(data)}}};",
            script_file("stamm.pages", "plot.js"),
            script_file(_PACKAGE, "live.js"),
        )
    )
    script = InlineScript(Markup(text))
    return {"live": _texts(spec, names), "script": script, "policy": script.policy}


def emitted_functions(program: Program) -> str:
    """JavaScript of an object with `value`, `gradients` and `curvature`: what `stamm emit` writes, in a scope of its own.

    Raises   ConfigError where the language lacks a function
    """
    module = JAVASCRIPT.write(program)
    assert isinstance(module, str)
    body, name = re.sub(r"^export ", "", module, flags=re.MULTILINE), program.name
    functions = f"value: {name}, gradients: {name}_gradients, curvature: {name}_curvature"
    return f"(() => {{\n{body}return {{{functions}}};\n}})()"


def script_json(data: Any) -> str:
    """JSON with the characters escaped that could end a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _texts(spec: Spec, names: list[str]) -> LiveFigure:
    fixed = ", ".join(p.constraint for p in spec.parameters if not p.trainable)
    drawn = "A slider moves the curves, over the range in which its parameter is tested"
    if not spec.trainable:
        drawn = "Nothing is trained: what moves is the input"
    second = (
        f"{names[1]} is the declared surrogate, which the backward pass uses, and {names[2]} its derivative"
        if spec.surrogate
        else f"{names[2]} is the derivative of the stated gradient, by symbols"
    )
    gate = "; y is the output at one value of the second input, as a function of the gate x"
    constants = f" Constants: {fixed}." if fixed else ""
    return LiveFigure(
        title=", ".join(names),
        caption=f"{drawn}. All lines come from the JavaScript that stamm emits; {second}"
        f"{gate if 'y' in names else ''}.{constants}",
        alt=f"{', '.join(names)} at the values of the sliders.",
    )


def _slider(parameter: Parameter, spec: Spec) -> dict[str, Any]:
    """Its bound, and the distances from it that are offered, each with the stored number."""
    name, values = parameter.above_name, spec.initial_values()
    above = values[name] if name else float(parameter.above or 0.0)
    absolute = isinstance(parameter.bijection, Absolute)
    base = abs(above) if absolute else above
    low, high = parameter.range_ends(above) or (parameter.initial, parameter.initial)
    stops = [offset + base for offset in _spread(parameter, low - base, high - base)]
    start = min(range(len(stops)), key=lambda n: abs(stops[n] - parameter.initial))
    stops[start] = parameter.initial
    plain = isinstance(parameter.bijection, Identity)
    return {
        "name": parameter.name,
        "bound": name if name in [p.name for p in spec.trainable] else above,
        "absolute": absolute,
        "start": start,
        "stops": [
            [_short(stop - base), *([] if plain else [_short(parameter.raw(stop, above))])]
            for stop in stops
        ],
    }


def _spread(parameter: Parameter, low: float, high: float) -> list[float]:
    """Numbers from low to high: closer near 0, for a range without an end in equal ratios."""
    parts = [n / _STOPS for n in range(_STOPS + 1)]
    match parameter.bijection:
        case Between():
            return [low + (high - low) * part for part in parts]
        case Identity():
            parts = [2 * part - 1 for part in parts]
        case Softplus() | Exp():
            return [low * (high / low) ** part for part in parts]
    return [high * math.sinh(_SPREAD * part) / math.sinh(_SPREAD) for part in parts]


def _short(number: float) -> float:
    return float(f"{number:.6g}")
