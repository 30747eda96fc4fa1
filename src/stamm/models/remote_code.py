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
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Exp,
    Fixed,
    Parameter,
    Softplus,
    as_number,
)
from stamm.version import VERSION

MODULE = "modeling_stamm"
_BLOCK = 1 << 15  # numbers that are computed at once on a processor
_NAMESPACES = ("primitives", "coefficients")  # modules whose functions the text contains instead
_ACTIVATION = '''"""{title}

Activation {name!r} of this model, written by stamm {version}; content hash of its spec:
{content_hash}.
Load the model with trust_remote_code=True. Needs torch and transformers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
{imports}

{definitions}


def _wide(x: Tensor) -> Tensor:
    """x one width up: 16 bits in float32, others in float64 where the device has it."""
    double = x.dtype in (torch.float32, torch.float64) and x.device.type != "mps"
    return x.double() if double else x.float()


def _places(trained, x: Tensor) -> Parameters:
    """All parameters in the order of the formula: trained ones, and constants."""
    trained = iter([p.reshape(()) if p.numel() == 1 else p.to(x.dtype) for p in trained])
    return tuple(next(trained) if c is None else c for c in {constants})


def _rows(x: Tensor) -> tuple[Tensor, ...]:
    """Parts of x that a processor's cache holds, each of whole rows; x itself elsewhere."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= {block}:
        return (x,)
    return x.reshape(-1, x.shape[-1]).split(max(1, {block} // x.shape[-1]))


def _joined(parts, like: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts).reshape(like.shape)


def _computed(x: Tensor, trained) -> Tensor:
    wide = map(_wide, _rows(x))
    return _joined([value(part, _places(trained, part)).to(x.dtype) for part in wide], x)


def _gradients(gradient: Tensor, x: Tensor, trained) -> list[Tensor]:
    """The gradient in x, then the summed ones in the parameters."""
    wide, weight = _wide(x), _wide(gradient)
    into, *by_parameter = slopes(wide, _places(trained, wide))
    sums = [_summed(weight * s, p) for s, p in zip(by_parameter, trained)]
    return [(weight * into).to(x.dtype), *sums]


def _summed(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The sum over the elements that a parameter has shaped."""
    if parameter.numel() == 1:
        return gradient.sum(dtype=parameter.dtype).reshape(parameter.shape)
    return gradient.reshape(-1, parameter.numel()).sum(0, dtype=parameter.dtype)


class _Function(torch.autograd.Function):
    """f(x) with its derived slopes; of the forward pass it keeps x alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, *trained):
        return _computed(x, trained)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, *trained = ctx.saved_tensors
        pairs = zip(_rows(gradient), _rows(x))
        parts, *sums = zip(*(_gradients(weight, part, trained) for weight, part in pairs))
        return (_joined(parts, x), *map(sum, sums))


class Activation(nn.Module):
    """f(x), computed one width up and rounded once.

    Trainable parameters are stored before their bijection: one number, or one for each neuron (the
    last axis of x). They stay float32 when the model is cast to 16 bits, where a step of an optimizer
    would be lost.
    """

    CONTENT_HASH = "{content_hash}"
    TRAINED = {trained}
    INITIAL = {initial}
    KERNEL = None  # a fused form for training mode, where stamm trains the model

    def __init__(self, neurons: int = 1) -> None:
        super().__init__()
{stored}

    def _effective(self) -> Parameters:
{effective}

    def forward(self, x: Tensor) -> Tensor:
        """f of every element."""
        trained = [p for p in self._effective() if isinstance(p, Tensor)]
        if self.training and self.KERNEL is not None:
            return self.KERNEL(x, *trained)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *trained)):
            return _Function.apply(x, *trained)
        return _computed(x, trained)

    def _apply(self, fn, recurse=True):
        def kept(tensor):
            moved = fn(tensor)
            short = moved.dtype in (torch.float16, torch.bfloat16)
            return tensor.to(moved.device) if short else moved

        return super()._apply(kept, recurse)
'''
_EXPORTED = '''

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
_SWAPPED = '''

def install(model: nn.Module, settings: dict) -> None:
    """Put an Activation at every site of the settings; the model keeps the functions of before."""
    before = {{}}
    for site, neurons in settings["sites"].items():
        path, _, name = site.rpartition(".")
        parent = model.get_submodule(path)
        before[site] = getattr(parent, name)
        device = [*parent.parameters(), *model.parameters()][0].device
        setattr(parent, name, Activation(neurons).to(device).train(parent.training))
    model.activations_before = before
    names = {{f"{{site.rpartition('.')[2]}}.{{p}}" for site in before for p in Activation.TRAINED}}
    model._keep_in_fp32_modules_strict = {{*(model._keep_in_fp32_modules_strict or ()), *names}}


def _set(config, names: dict, key: str) -> None:
    for path, both in names.items():
        *inner, field = path.split(".")
        part = config
        for name in inner:
            part = getattr(part, name)
        setattr(part, field, both[key])


class {architecture}({base}):
    """{base} with this activation at the sites that config.{key} names."""

    swapped_from = {base}

    def __init__(self, config, *args, **kwargs) -> None:
        settings = config.{key}
        _set(config, settings["names"], "before")
        try:
            super().__init__(config, *args, **kwargs)
        finally:
            _set(config, settings["names"], "after")
        install(self, settings)

    def initialize_weights(self) -> None:
        """As transformers, and initial shapes for those that a checkpoint does not have."""
        super().initialize_weights()
        for module in self.modules():
            for name, number in zip(module.TRAINED, module.INITIAL) if isinstance(module, Activation) else ():
                if not getattr(module.get_parameter(name), "_is_hf_initialized", False):
                    nn.init.constant_(module.get_parameter(name), number)
'''
SWAP_KEY = "stamm_swap"
"""The key of config.json with the sites of `swapped_code`."""


def remote_code(spec: Spec, *, hidden_act: str, base: str, architecture: str) -> str:
    """Source of the module of `architecture`, in which transformers finds the activation by its name.

    hidden_act    name of the activation in config.json
    base          class of transformers whose blocks the model has
    Raises        ConfigError when the gradient of `spec` cannot be integrated
    Checked       tests/unit/export/test_remote_code.py
    """
    imports = f"from transformers import {base}\nfrom transformers.activations import ACT2FN"
    # h has no trained parameter: their places hold numbers that it does not read.
    constants = tuple(float(p.initial) for p in spec.parameters)
    height = _HEIGHT.format(constants=constants) if _second(spec) else ""
    names = {"hidden_act": hidden_act, "base": base, "architecture": architecture}
    return _activation(spec, imports) + _EXPORTED.format(**names, height=height)


def _second(spec: Spec) -> bool:
    """Whether the second factor is a function h(up)."""
    return isinstance(spec.arity, Gated) and spec.arity.up is not None


def swapped_code(spec: Spec, *, module: str, base: str, architecture: str) -> str:
    """Source of the module of `architecture`, which puts the activation at named sites of `base`.

    module    where `base` is imported from
    Raises    ConfigError when the gradient of `spec` cannot be integrated
    Checked   tests/unit/swap/test_round_trip.py
    """
    names = {"base": base, "architecture": architecture, "key": SWAP_KEY}
    return _activation(spec, f"from {module} import {base}") + _SWAPPED.format(**names)


def _activation(spec: Spec, imports: str) -> str:
    """The module up to its class Activation."""
    raw = spec.raw_values({p.name: p.initial for p in spec.trainable})
    stored = [
        f"self.{name} = nn.Parameter(torch.full((neurons,), {float(raw[name])!r}))" for name in raw
    ]
    wanted = ("Parameters", "value", "slopes", *(["up"] if _second(spec) else []))
    return _ACTIVATION.format(
        title=spec.title,
        name=spec.name,
        version=VERSION,
        content_hash=spec.content_hash,
        imports=imports,
        definitions="\n\n\n".join(definitions(kernel_text(spec), wanted)),
        block=_BLOCK,
        constants=tuple(None if p.trainable else float(p.initial) for p in spec.parameters),
        trained=tuple(raw),
        initial=tuple(float(value) for value in raw.values()),
        stored=_indented(stored or ["pass"]),
        effective=_indented(effective_lines(spec, cast="_wide({})")),
    )


def effective_lines(spec: Spec, fixed: str = "", cast: str = "{}.float()") -> list[str]:
    """The body of a function that returns the effective values of all parameters of `self`.

    fixed   name of a function (self, name, initial value) for parameters that are not trained; their
            initial values otherwise
    cast    expression of a stored number {} in the dtype to compute in
    """
    bounds_first = sorted(spec.parameters, key=lambda p: p.above_name is not None)
    names = "".join(f"{_local(p.name)}, " for p in spec.parameters)
    lines = [f"{_local(p.name)} = {_effective(p, fixed, cast)}" for p in bounds_first]
    return [*lines, f"return ({names.strip() if len(spec.parameters) == 1 else names[:-2]})"]


def _effective(parameter: Parameter, fixed: str, cast: str) -> str:
    """Expression of the effective value from the stored one; other parameters are local names."""
    stored = cast.format(f"self.{parameter.name}")
    bound = parameter.above_name
    number = as_number(parameter.above or "0")
    above = repr(number) if bound is None else _local(bound)
    match parameter.bijection:
        case Fixed():
            constant = repr(float(parameter.initial))
            return f"{fixed}(self, {parameter.name!r}, {constant})" if fixed else constant
        case Softplus():
            return f"{above} + F.softplus({stored})"
        case Exp():
            return f"{above} + torch.exp({stored})"
        case Absolute():
            return f"abs({above}) + torch.abs({stored})"
        case Between(low=low, high=high):
            return f"{float(low)!r} + {float(high - low)!r} * torch.sigmoid({stored})"
    return stored


def _local(name: str) -> str:
    return f"{name}_value"


def definitions(kernel: str, wanted: Sequence[str]) -> Iterator[str]:
    """The definitions that `wanted` of a kernel's text need, in the order in which they are used."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(_folder().glob("*.py"))]
    definition_of: dict[str, tuple[str, ast.stmt]] = {}  # its source and where it is there
    for source in (*sources, kernel):
        for node in ast.parse(source).body:
            for name in _defined(node):
                definition_of[name] = (source, node)
    ordered: dict[str, str] = {}
    visiting: set[str] = set()

    def visit(name: str) -> None:
        if name in visiting:
            return
        visiting.add(name)
        source, node = definition_of[name]
        for used in _used(node):
            if used in definition_of:
                visit(used)
        text = ast.get_source_segment(source, node) or ""
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
