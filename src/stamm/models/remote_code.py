"""Source of a module for transformers that computes an activation that transformers does not have.

The module is self-contained: it needs torch and transformers, and `trust_remote_code=True` to be
loaded. It contains the derived formula of f with the primitives that the formula uses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from stamm.activations import primitives
from stamm.activations.codegen.kernel_lookup import kernel_text
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec.parameters import Absolute, Between, Exp, Fixed, Parameter, Softplus
from stamm.version import VERSION

MODULE = "modeling_stamm"
_NAMESPACES = ("primitives", "coefficients")  # modules whose functions the text contains instead
_TEMPLATE = '''"""{title}

Activation {name!r} of this model, written by stamm {version}; content hash of its spec:
{content_hash}.
Load the model with trust_remote_code=True. Needs torch and transformers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import {base}
from transformers.activations import ACT2FN

{definitions}


class Activation(nn.Module):
    """f(x), computed in float32. Trainable parameters are stored before their bijection."""

    def __init__(self) -> None:
        super().__init__()
{stored}

    def _effective(self) -> Parameters:
{effective}

    def forward(self, x: Tensor) -> Tensor:
        """f of every element."""
        wide = x if x.dtype == torch.float64 else x.float()
        return value(wide, self._effective()).to(x.dtype)


ACT2FN["{hidden_act}"] = Activation


class {architecture}({base}):
    """{base} with this activation."""
{height}'''
_HEIGHT = '''
    def __init__(self, config) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.up_proj.register_forward_hook(self._height)

    @staticmethod
    def _height(projection, inputs, output: Tensor) -> Tensor:
        """The second factor: h of the projection, computed in float32."""
        wide = output if output.dtype == torch.float64 else output.float()
        return up(wide, {constants!r})[0].to(output.dtype)
'''


def remote_code(spec: Spec, *, hidden_act: str, base: str, architecture: str) -> str:
    """Source of the module of `architecture`.

    hidden_act    name of the activation in config.json
    base          class of transformers whose blocks the model has
    Raises        ConfigError when the gradient of `spec` cannot be integrated
    Checked       tests/unit/export/test_remote_code.py
    """
    raw = spec.raw_values({p.name: p.initial for p in spec.trainable})
    stored = [f"self.{name} = nn.Parameter(torch.full((1,), {raw[name]!r}))" for name in raw]
    effective = effective_lines(spec)
    second = isinstance(spec.arity, Gated) and spec.arity.up is not None
    wanted = ("Parameters", "value", *(["up"] if second else []))
    # h has no trained parameter: their places hold numbers that it does not read.
    constants = tuple(float(p.initial) for p in spec.parameters)
    return _TEMPLATE.format(
        title=spec.title,
        name=spec.name,
        version=VERSION,
        content_hash=spec.content_hash,
        base=base,
        definitions="\n\n\n".join(definitions(kernel_text(spec), wanted)),
        stored=_indented(stored),
        effective=_indented(effective),
        hidden_act=hidden_act,
        architecture=architecture,
        height=_HEIGHT.format(constants=constants) if second else "",
    )


def effective_lines(spec: Spec, fixed: str = "") -> list[str]:
    """The body of a function that returns the effective values of all parameters of `self`.

    fixed   name of a function (self, name, initial value) for parameters that are not trained; their
            initial values otherwise
    """
    bounds_first = sorted(spec.parameters, key=lambda p: p.above_name is not None)
    names = "".join(f"{_local(p.name)}, " for p in spec.parameters)
    lines = [f"{_local(p.name)} = {_effective(p, fixed)}" for p in bounds_first]
    return [*lines, f"return ({names.strip() if len(spec.parameters) == 1 else names[:-2]})"]


def _effective(parameter: Parameter, fixed: str) -> str:
    """Expression of the effective value from the stored one; other parameters are local names."""
    stored = f"self.{parameter.name}.float()"
    bound = parameter.above_name
    above = parameter.above if bound is None else _local(bound)
    match parameter.bijection:
        case Fixed():
            number = repr(float(parameter.initial))
            return f"{fixed}(self, {parameter.name!r}, {number})" if fixed else number
        case Softplus():
            return f"{above} + F.softplus({stored})"
        case Exp():
            return f"{above} + torch.exp({stored})"
        case Absolute():
            return f"abs({above}) + torch.abs({stored})"
        case Between(low=low, high=high):
            return f"{low!r} + {high - low!r} * torch.sigmoid({stored})"
    return stored


def _local(name: str) -> str:
    return f"{name}_value"


def definitions(kernel: str, wanted: Sequence[str]) -> Iterator[str]:
    """The definitions that `wanted` of a kernel's text need, in the order in which they are used."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(_folder().glob("*.py"))]
    definition_of: dict[str, tuple[str, ast.stmt]] = {}
    for source in (*sources, kernel):
        for node in ast.parse(source).body:
            for name in _defined(node):
                definition_of[name] = (ast.get_source_segment(source, node) or "", node)
    ordered: dict[str, str] = {}
    visiting: set[str] = set()

    def visit(name: str) -> None:
        if name in visiting:
            return
        visiting.add(name)
        text, node = definition_of[name]
        for used in _used(node):
            if used in definition_of:
                visit(used)
        for namespace in _NAMESPACES:
            text = text.replace(f"{namespace}.", "")
        ordered.setdefault(text, text)

    for name in wanted:
        visit(name)
    return iter(ordered)


def _folder() -> Path:
    return Path(primitives.__file__).parent


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _used(node: ast.stmt) -> list[str]:
    names = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            names.append(inner.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            names += [inner.attr] if inner.value.id in _NAMESPACES else []
    return names


def _indented(lines: list[str]) -> str:
    return "\n".join(f"        {line}" for line in lines)
