"""Implementations to judge (modules and functions by import path), and what they return."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from stamm.activations.conformance.exact import FUNCTION, SLOPE, UP_SLOPE, parameter_slope
from stamm.activations.module.activation import module_of
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError, DataError
from stamm.base.user_code import load_python


@dataclass(frozen=True, eq=False)
class Bound:
    """An implementation with its parameters set, for inputs of one dtype.

    function   (leaves, x) -> y, or (leaves, gate, up) -> y for a gated spec
    values     the effective parameter values it computes with, after the rounding of storage
    leaves     what parameter gradients are taken in, by parameter name; may be empty
    holds      whether leaves are stored (raw) numbers or effective values
    module     the module itself, with these values, where it is one
    """

    function: Callable[..., Tensor]
    values: Mapping[str, float]
    leaves: Mapping[str, Tensor]
    holds: Literal["raw", "effective"] = "raw"
    module: nn.Module | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """y at the inputs."""
        return self.function(self.leaves, *inputs)


class Implementation(Protocol):
    """Something that claims to compute a spec."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def bind(self, spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> Bound:
        """Itself with these effective values, for inputs of this dtype.

        Raises   ConfigError or DataError when it cannot be given them.
        """


@dataclass(frozen=True, eq=False)
class StammImplementation:
    """stamm's own module, in the given order of evaluation."""

    name: str = "stamm"
    compat: str = "exact"

    def bind(self, spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> Bound:
        """A new module that holds these values: what follows from its stored numbers, in float64."""
        module = module_of(spec, compat=self.compat, dtype=dtype)
        return _bound_module(module, spec, values)


@dataclass(frozen=True, eq=False)
class ModuleImplementation:
    """A module of any library. `make` builds a new one each time."""

    name: str
    make: Callable[[], nn.Module]

    def bind(self, spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> Bound:
        """The module cast with `.to(dtype)`; parameters under our names get our raw numbers."""
        module = self.make().to(dtype)
        known = {name for name, _ in module.named_parameters()} & {p.name for p in spec.trainable}
        missing = [p.name for p in spec.trainable if p.name not in known]
        if known and missing:
            raise DataError(f"{self.name} has no parameter {missing[0]!r}", where=spec.where)
        return _bound_module(module, spec, values)


@dataclass(frozen=True, eq=False)
class FunctionImplementation:
    """A function of x, or of x and our effective values under our names."""

    name: str
    function: Callable[..., Any]

    def bind(self, spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> Bound:
        """Values are passed as 0-d float32 tensors; as numbers to a function that takes no gradient in these."""
        taken = _keywords(self.function)
        names = [p.name for p in spec.trainable if p.name in taken]
        if not names:
            _only_initial(self.name, spec, values)
        fixed = {p.name: p.initial for p in spec.parameters if not p.trainable and p.name in taken}
        wide = dtype if dtype == torch.float64 else torch.float32
        leaves = {name: torch.tensor(values[name], dtype=wide) for name in names}
        exact = {**values, **{name: leaf.item() for name, leaf in leaves.items()}}

        def call(given: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
            return self.function(*inputs, **given, **fixed)  # type: ignore[no-any-return]

        probe = torch.ones(2, dtype=dtype)
        gradients = {n: leaf.clone().requires_grad_() for n, leaf in leaves.items()}
        try:
            with warnings.catch_warnings():  # of float(tensor), which has no gradient
                warnings.simplefilter("ignore")
                result = call(gradients, *([probe] * _arity(spec)))
            takes_numbers = bool(gradients) and not result.requires_grad
        except (Exception, SystemExit):  # whatever it raises for tensors, it may accept numbers
            takes_numbers = True
        if takes_numbers:
            numbers = {n: leaf.item() for n, leaf in leaves.items()}
            plain = functools.partial(self.function, **numbers, **fixed)
            return Bound(lambda _, *inputs: plain(*inputs), exact, {})
        return Bound(call, exact, leaves, holds="effective")


def resolve(text: str) -> Implementation:
    """The implementation that "package.module:name" or "file.py:name" names.

    Raises   ConfigError when there is none: not importable, no such name, not callable.
    Checked  tests/unit/activations/test_conformance_callable.py
    """
    source, _, name = text.rpartition(":")
    if not source or not name:
        raise ConfigError(
            f"{text!r} names no implementation",
            fix="Write package.module:function or file.py:function",
        )
    if source.endswith(".py"):
        module: Any = load_python(Path(source))
    else:
        try:
            module = importlib.import_module(source)
        except (Exception, SystemExit) as error:  # someone else's code may raise anything
            raise ConfigError(
                f"{source} cannot be imported: {type(error).__name__}: {error}",
                fix="Install it, or name a file: file.py:function",
            ) from error
    target = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is None:
        raise ConfigError(f"{source} has no {name!r}", where=text)
    return implementation(target, text)


def implementation(thing: Any, name: str) -> Implementation:
    """The implementation that an object is: a module, a module's class, or a function.

    Raises   ConfigError for a class that is not a module, or cannot be built without arguments.
    """
    if isinstance(thing, nn.Module):
        return ModuleImplementation(name, functools.partial(copy.deepcopy, thing))
    if isinstance(thing, type) and issubclass(thing, nn.Module):
        try:
            thing()
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be built without arguments: {type(error).__name__}: {error}",
                fix="Name a function, or a class whose arguments all have defaults",
            ) from error
        return ModuleImplementation(name, thing)
    if isinstance(thing, type) or not callable(thing):
        raise ConfigError(f"{name} is {type(thing).__name__}, neither a function nor a module")
    return FunctionImplementation(name, thing)


def called(name: str, bound: Bound, *inputs: Tensor) -> Tensor:
    """bound(*inputs), checked for shape and dtype.

    Raises   DataError that names what came back instead, or at which input it raised.
    """
    try:
        result = bound(*inputs)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{name} raises {raised(error)}",
            where=f"{_kind(inputs[0])}, {_culprit(bound, *inputs)}",
        ) from error
    if not isinstance(result, Tensor):
        raise DataError(f"{name} returns {type(result).__name__}, not a tensor")
    wrong = result.shape != inputs[0].shape or result.dtype != inputs[0].dtype
    if wrong:
        raise DataError(f"{name} returns {_kind(result)} for {_kind(inputs[0])}")
    return result


def raised(error: BaseException) -> str:
    """The type of an error and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def parameter_gradients(
    name: str, output: Tensor, leaves: Mapping[str, Tensor], weight: Tensor
) -> list[Tensor]:
    """The gradients of (weight * output).sum() in the leaves, in their order.

    Raises   DataError that names a leaf without a gradient.
    """
    gradients = torch.autograd.grad(output, list(leaves.values()), weight, allow_unused=True)
    absent = [leaf for leaf, gradient in zip(leaves, gradients, strict=True) if gradient is None]
    if absent:
        raise DataError(f"{name} returns an output without a gradient in {', '.join(absent)}")
    return [gradient for gradient in gradients if gradient is not None]


def _bound_module(module: nn.Module, spec: Spec, values: Mapping[str, float]) -> Bound:
    leaves = {
        name: value.detach()
        for name, value in module.named_parameters()
        if name in {p.name for p in spec.trainable}
    }
    if spec.trainable and not leaves:
        _only_initial(type(module).__name__, spec, values)
        stored = dict(values)
    else:
        raw = spec.raw_values({name: values[name] for name in leaves})
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.fill_(raw[name])
        rounded = {name: leaf.reshape(-1)[0].item() for name, leaf in leaves.items()}
        stored = spec.effective_values(rounded)

    def call(given: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        # functional_call is not typed in torch
        return torch.func.functional_call(module, dict(given), inputs)  # type: ignore[no-any-return]

    return Bound(call, stored, leaves, module=module)


def _only_initial(name: str, spec: Spec, values: Mapping[str, float]) -> None:
    if spec.trainable and dict(values) != spec.initial_values():
        raise DataError(
            f"{name} takes none of the parameters {', '.join(p.name for p in spec.trainable)}:"
            f" it cannot be judged at other values than the initial ones"
        )


def _keywords(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in, without a signature
        return set()


def _arity(spec: Spec) -> int:
    return 2 if isinstance(spec.arity, Gated) else 1


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _culprit(bound: Bound, *inputs: Tensor) -> str:
    """The input at which it raises, by bisection, as text; or that neither half alone raises."""
    part = inputs
    while part[0].dim() and len(part[0]) > 1:
        half = len(part[0]) // 2
        sides = [tuple(t[:half] for t in part), tuple(t[half:] for t in part)]
        failing = [side for side in sides if _raises(bound, *side)]
        if not failing:
            return (
                f"on {part[0].numel()} inputs at once, from x = {part[0].reshape(-1)[0].item():g}"
            )
        part = failing[0]
    if part[0].numel() == 1:
        return f"at x = {part[0].item():g}"
    return f"on {part[0].numel() or 'no'} inputs at once"


def _raises(bound: Bound, *inputs: Tensor) -> bool:
    try:
        bound(*inputs)
    except (Exception, SystemExit):
        return True
    return False


def observe(
    name: str, bound: Bound, x: Tensor, up: Tensor | None, quantities: Collection[str]
) -> dict[str, Tensor]:
    """Results by quantity at each input; what the implementation has no gradient for is not there.

    name     how errors call it
    Edge     a slope in a parameter is taken at each input by itself, as training would sum it.
    Raises   DataError when it raises, or returns another shape or dtype.
    """
    gate = x.clone().requires_grad_()
    factors = () if up is None else (up.clone().requires_grad_(),)
    output = called(name, bound, gate, *factors)
    observed = {FUNCTION: output.detach()}
    if output.requires_grad and {SLOPE, UP_SLOPE} & set(quantities):
        try:
            slopes = torch.autograd.grad(
                output, (gate, *factors), torch.ones_like(output), allow_unused=True
            )
        except RuntimeError as error:
            raise DataError(f"{name} has no gradient: {error}") from error
        for quantity, slope in zip((SLOPE, UP_SLOPE), slopes, strict=False):
            observed[quantity] = torch.zeros_like(x) if slope is None else slope
    for leaf in bound.leaves:
        if parameter_slope(leaf) in quantities:
            observed.update(_parameter_slopes(bound, x, up))
            break
    return {q: t for q, t in observed.items() if q in quantities}


def _parameter_slopes(bound: Bound, x: Tensor, up: Tensor | None) -> dict[str, Tensor]:
    """The gradient in each parameter of each output by itself."""
    inputs = (x[:, None],) if up is None else (x[:, None], up[:, None])

    def summed(leaves: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return bound.function(leaves, *inputs).sum()

    per_output = torch.func.vmap(torch.func.grad(summed), in_dims=(None, *([0] * len(inputs))))
    try:
        slopes = per_output(dict(bound.leaves), *inputs)
    except Exception:  # not every function can be vectorised, and torch raises many kinds of error
        try:
            slopes = _twice(bound, x, up)
        except RuntimeError:  # nor differentiated twice
            return {}
    return {
        parameter_slope(name): slope.detach().reshape(len(x)).to(x.dtype)
        for name, slope in slopes.items()
    }


def _twice(bound: Bound, x: Tensor, up: Tensor | None) -> dict[str, Tensor]:
    """The same by differentiating twice: the sum of w_i df_i/dp, differentiated in each w_i."""
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in bound.leaves.items()}
    output = bound.function(leaves, *((x,) if up is None else (x, up)))
    weight = torch.ones_like(output, requires_grad=True)
    sums = torch.autograd.grad(
        output, list(leaves.values()), weight, create_graph=True, allow_unused=True
    )
    return {
        name: torch.zeros_like(x)
        if total is None
        else torch.autograd.grad(total.sum(), weight, retain_graph=True)[0]
        for name, total in zip(leaves, sums, strict=True)
    }
