"""Sites of activations in a model of transformers: by what they compute, and how their block calls them.

A site is an attribute of a block: a module, or a plain function, that maps each number to another one.
Names of models do not matter: classes are read as source text to see whether a block calls the
attribute, multiplies its result by another projection (a gated block), or computes inline.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stamm.base.errors import ConfigError

_LIBRARIES = ("transformers.activations", "torch.nn.modules.activation")
_NOT_ELEMENTWISE = frozenset({
    "GLU", "LogSoftmax", "MultiheadAttention", "Softmax", "Softmax2d", "Softmin", "LinearActivation",
})  # fmt: skip
# Functions that a block may call itself, where no attribute can be replaced.
_FUNCTIONS = frozenset({
    "celu", "elu", "gelu", "glu", "hardswish", "leaky_relu", "mish", "relu", "relu6", "rrelu", "selu",
    "silu", "softplus",
})  # fmt: skip
_TABLE = "ACT2FN"
# What blocks that mix positions take.
_POSITIONS = frozenset({
    "attention_mask", "mask", "attn_mask", "past_key_values", "past_key_value", "layer_past", "cache_params",
})  # fmt: skip


@dataclass(frozen=True)
class ActivationSite:
    """An attribute of a block that is its activation.

    name    dotted path in the model
    before  the module or function there
    gated   the block multiplies the result by another projection
    mixes   the block, or one around it in its layer, mixes positions, or holds a feed-forward block
    """

    name: str
    parent: nn.Module
    attribute: str
    before: Callable[..., Any]
    gated: bool
    mixes: bool = False


@dataclass(frozen=True)
class _Calls:
    """The attributes of self that the methods of a class read, those whose result they multiply, and
    the first activation that they compute inline."""

    read: frozenset[str]
    multiplied: frozenset[str]
    inline: str


def activation_sites(model: nn.Module) -> list[ActivationSite]:
    """Every site of the model, in its order, each block once.

    Checked  tests/unit/swap/test_activation_sites.py
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        sites = [
            site
            for name, parent in model.named_modules()
            if not _is_activation(parent)  # one may hold the function that it calls
            for site in _sites_of(f"{name}." if name else "", parent)
        ]
    return [replace(site, mixes=_mixes(model, site, sites)) for site in sites]


def _mixes(model: nn.Module, site: ActivationSite, sites: Sequence[ActivationSite]) -> bool:
    """Whether it is a function of attention or recurrence, or of a layer that has another block for it."""
    parts = site.name.split(".")[:-1]
    first = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
    around = [
        model.get_submodule(".".join(parts[:end])) for end in range(first + 2, len(parts) + 1)
    ]
    inside = {id(module) for module in site.parent.modules()} - {id(site.parent)}
    holds = any(id(other.parent) in inside and _has_matrices(other.parent) for other in sites)
    return holds or any(_is_mixer(block) for block in around)


def _is_mixer(block: nn.Module) -> bool:
    """Whether its forward takes a mask or a cache that it gives to no block of its own."""
    inner = [module for module in block.modules() if module is not block]
    return _takes_positions(type(block)) and not any(_takes_positions(type(m)) for m in inner)


def _takes_positions(kind: type[nn.Module]) -> bool:
    try:
        return not _POSITIONS.isdisjoint(inspect.signature(kind.forward).parameters)
    except (TypeError, ValueError):
        return False


def _has_matrices(block: nn.Module) -> bool:
    weights = [getattr(child, "weight", None) for child in block.children()]
    return any(isinstance(weight, Tensor) and weight.dim() == 2 for weight in weights) or any(
        p.dim() == 3 for p in block.parameters(recurse=False)
    )


def is_feed_forward(site: ActivationSite) -> bool:
    """Whether it is in a numbered layer, in a block that holds matrices."""
    numbered = any(part.isdigit() for part in site.name.split(".")[:-1])
    return numbered and not site.mixes and _has_matrices(site.parent)


def unreachable_reason(site: ActivationSite) -> str:
    """Why replacing the attribute would not change what the block computes; "" where it does."""
    if isinstance(site.parent, nn.Sequential):
        return ""
    block, attribute = type(site.parent).__name__, site.attribute
    calls = _calls_of(site.parent)
    if calls is None:
        return ""
    if attribute not in calls.read:
        return f"{block} does not call its {attribute}: a fused kernel computes it"
    if calls.inline:
        return f"{block} has {attribute} and computes {calls.inline} itself as well"
    return ""


def inline_reason(model: nn.Module) -> str:
    """The first block of a layer that computes an activation without an attribute, as text, or ""."""
    for name, module in model.named_modules():
        if any(part.isdigit() for part in name.split(".")) and not _is_activation(module):
            calls = _calls_of(module)
            if calls is not None and calls.inline:
                return f"{type(module).__name__} computes {calls.inline} in its own code"
    return ""


def tied_names(model: nn.Module, site: ActivationSite) -> list[str]:
    """The names of the site, more than one where layers share its block."""
    return [
        f"{name}.{site.attribute}"
        for name, module in model.named_modules(remove_duplicate=False)
        if module is site.parent
    ]


def neurons_of(site: ActivationSite) -> int:
    """The width of the last axis of the activation's input.

    It is what the last matrix of the block takes in; of a block with one matrix, what that gives out.

    Raises   ConfigError for a block without matrices
    """
    sizes = [_in_and_out(child) for child in site.parent.children()]
    matrices = [both for both in sizes if both is not None]
    if len(matrices) == 1:
        return matrices[0][1]
    if matrices:
        return matrices[-1][0]
    experts = [p for p in site.parent.parameters(recurse=False) if p.dim() == 3]
    if experts:
        given, made = experts[0].shape[1:], experts[-1].shape[1:]
        # (out, in), or as Llama 4 stores them (in, out): the other width is the model's, in both.
        return int(made[0] if made[1] == given[0] and made[0] != given[1] else made[1])
    raise ConfigError(
        f"the number of neurons of {site.name} is not known: its block has no matrix",
        where="parameters='neuron'",
        fix="Use parameters='layer'",
    )


def _in_and_out(module: nn.Module) -> tuple[int, int] | None:
    """Widths of a matrix; GPT-2's Conv1D stores (in, out)."""
    given, made = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if isinstance(given, int) and isinstance(made, int):
        return given, made
    given, made = getattr(module, "nx", None), getattr(module, "nf", None)
    return (given, made) if isinstance(given, int) and isinstance(made, int) else None


def _sites_of(prefix: str, parent: nn.Module) -> Iterator[ActivationSite]:
    attributes = [(n, child) for n, child in parent.named_children() if _is_activation(child)]
    attributes += [
        (n, value)
        for n, value in vars(parent).items()
        if not n.startswith("_")
        and n != "forward"
        and _is_function(value)
        and _is_elementwise(value)
    ]
    for name, before in attributes:
        calls = None if isinstance(parent, nn.Sequential) else _calls_of(parent)
        gated = calls is not None and name in calls.multiplied
        yield ActivationSite(f"{prefix}{name}", parent, name, before, gated)


def _is_activation(module: nn.Module) -> bool:
    kind = type(module)
    if kind.__module__ in _LIBRARIES:
        return kind.__name__ not in _NOT_ELEMENTWISE
    tensors = (*module.parameters(), *module.buffers(), *module.children())
    return not tensors and not kind.__module__.startswith("torch.") and _is_elementwise(module)


def _is_function(value: Any) -> bool:
    return callable(value) and isinstance(
        value, (functools.partial, type(lambda: 0), type(torch.relu))
    )


def _is_elementwise(function: Callable[..., Any]) -> bool:
    """Whether it maps each number by itself, and is not a straight line."""
    x = torch.linspace(-4.0, 4.0, 65, device="cpu")
    try:
        y, turned = function(x), function(x.flip(0))
    except Exception:  # whatever it is, it is not called with one tensor
        return False
    if not (isinstance(y, Tensor) and isinstance(turned, Tensor) and y.shape == x.shape):
        return False
    if y.dtype != x.dtype or not torch.allclose(turned.flip(0), y, atol=1e-5):
        return False
    bend = y[2:] - 2 * y[1:-1] + y[:-2]
    return bool(bend.abs().max() > 1e-4)


def _calls_of(block: nn.Module) -> _Calls | None:
    """The calls of the methods of a block; None where there is no source text of them."""
    own = vars(block).get("_old_forward") or vars(block).get("forward")
    if own is None:
        kind: Any = type(block)
        return _calls_of_class(kind)
    function = inspect.unwrap(own.func if isinstance(own, functools.partial) else own)
    try:
        return _read([ast.parse(textwrap.dedent(inspect.getsource(function)))])
    except (OSError, TypeError, SyntaxError):
        return None


@functools.lru_cache(maxsize=1024)
def _calls_of_class(kind: type) -> _Calls | None:
    classes = [c for c in kind.__mro__ if issubclass(c, nn.Module) and c is not nn.Module]
    try:
        texts = [textwrap.dedent(inspect.getsource(c)) for c in classes if not _is_base(c)]
        return _read([ast.parse(text) for text in texts])
    except (OSError, TypeError, SyntaxError):
        return None


def _is_base(kind: type) -> bool:
    return kind.__name__ == "PreTrainedModel" or kind.__module__.startswith("torch.")


def _read(trees: list[ast.Module]) -> _Calls:
    read: set[str] = set()
    multiplied: set[str] = set()
    inline = ""
    methods = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__"
    ]
    for method in methods:
        nodes = list(ast.walk(method))
        read.update(a for node in nodes if (a := _attribute(node)) and _is_loaded(node))
        multiplied.update(_factors(method))
        inline = inline or next((text for node in nodes if (text := _inline(node))), "")
    return _Calls(frozenset(read), frozenset(multiplied), inline)


def _attribute(node: ast.AST) -> str:
    """The name in `self.NAME`, or ""."""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return node.attr if own and node.value.id == "self" else ""  # type: ignore[attr-defined]


def _is_loaded(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def _called(node: ast.AST) -> str:
    return _attribute(node.func) if isinstance(node, ast.Call) else ""


def _factors(method: ast.AST) -> Iterator[str]:
    """Attributes whose result is a factor of a product, at once or under a local name."""
    results: dict[str, str] = {}
    nodes = [n for n in ast.walk(method) if isinstance(n, (ast.Assign, ast.BinOp, ast.AugAssign))]
    for node in sorted(nodes, key=lambda n: (n.lineno, not isinstance(n, ast.BinOp))):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    results[target.id] = _called(node.value)
        elif isinstance(node.op, ast.Mult):
            both = (
                (node.left, node.right)
                if isinstance(node, ast.BinOp)
                else (node.target, node.value)
            )
            for operand in both:
                named = results.get(operand.id, "") if isinstance(operand, ast.Name) else ""
                if attribute := _called(operand) or named:
                    yield attribute


def _inline(node: ast.AST) -> str:
    """An activation that a call or a look-up computes, as text, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        text = ast.unparse(node.func)
        library = text.startswith(("F.", "nn.functional.", "torch."))
        return text if library and node.func.attr in _FUNCTIONS else ""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == _TABLE:
        return ast.unparse(node)
    return ""
