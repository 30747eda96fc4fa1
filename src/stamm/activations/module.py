"""Activations as modules: trainable shapes, stored raw, in float32, under checkpoint names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.kernels import kernel_of
from stamm.activations.ops import gated_operation, plain_operation
from stamm.activations.spec import Gated, Identity, Parameter, Softplus, Spec
from stamm.base.errors import ConfigError

_SHORT = (torch.float16, torch.bfloat16)
EXACT = "exact"


class ShapedModule(nn.Module):
    """What plain and gated activations share: the shape parameters of one spec.

    Each trainable parameter is one `nn.Parameter` of shape (1,) under its own name, holding the raw
    number (before softplus). It stays float32 when the model is cast to 16 bits: the spacing of
    bfloat16 near 1 is larger than an optimizer's step. In a compat order of evaluation parameters
    and constants have `dtype` instead, and constants are buffers, as in the library it matches.
    """

    def __init__(self, spec: Spec, *, compat: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.compat = compat
        self._bind()
        if compat != EXACT and compat not in self._kernel.compat:
            known = ", ".join([EXACT, *self._kernel.compat])
            raise ConfigError(
                f"{spec.name} has no compat order {compat!r}", fix=f"Use one of: {known}"
            )
        stored = torch.float32 if compat == EXACT and dtype in _SHORT else dtype
        for parameter in spec.trainable:
            if hasattr(self, parameter.name):
                raise ConfigError(
                    f"the parameter name {parameter.name!r} is taken by the module",
                    where=spec.where,
                    fix="Rename the parameter",
                )
            value = nn.Parameter(torch.empty(1, dtype=stored))
            self.register_parameter(parameter.name, value)
        if compat != EXACT:
            for name, number in self._constants().items():
                self.register_buffer(name, torch.tensor(number, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every parameter and buffer to the spec's initial value, in place."""
        with torch.no_grad():
            for name, raw in self._initial_raw().items():
                getattr(self, name).fill_(raw)
            if self.compat != EXACT:
                for name, number in self._constants().items():
                    getattr(self, name).fill_(number)

    def effective(self) -> dict[str, float]:
        """The effective value of every parameter, fixed ones included, as the kernel sees it."""
        with torch.no_grad():
            trainable = iter([value.item() for value in self._effective_tensors()])
        return {p.name: next(trainable) if p.trainable else p.initial for p in self.spec.parameters}

    def raw(self) -> dict[str, float]:
        """The stored (raw) value of every trainable parameter."""
        return {p.name: float(getattr(self, p.name).detach()) for p in self.spec.trainable}

    def load_values(self, values: Mapping[str, float], *, raw: bool) -> None:
        """Set some or all trainable parameters, in place.

        raw      True when `values` are stored numbers (before softplus), False when effective
        Raises   ConfigError for an unknown name or an effective value outside its constraint.
        """
        kept = self.raw() if raw else {p: v for p, v in self.effective().items() if p in self.raw()}
        merged = {**kept, **values}
        if raw:
            self.spec.effective_values(merged)
        else:
            merged = self.spec.raw_values(merged)
        with torch.no_grad():
            for name in values:
                getattr(self, name).fill_(merged[name])

    def extra_repr(self) -> str:
        """Name, compat order and, off the meta device, effective values."""
        parts = [self.spec.name] + ([f"compat={self.compat}"] if self.compat != EXACT else [])
        if not any(p.is_meta for p in self.parameters()):
            parts += [f"{name}={value:.4g}" for name, value in self.effective().items()]
        return ", ".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the functions, which are found again from the spec."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_kernel", "_operation")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled module."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._bind()

    def _bind(self) -> None:
        self._kernel = kernel_of(self.spec)
        fixed = tuple(None if p.trainable else p.initial for p in self.spec.parameters)
        make = gated_operation if isinstance(self.spec.arity, Gated) else plain_operation
        self._operation = make(self._kernel, fixed)

    def _initial_raw(self) -> dict[str, float]:
        return self.spec.raw_values({p.name: p.initial for p in self.spec.trainable})

    def _constants(self) -> dict[str, float]:
        """Fixed parameters, and the numbers that only a compat order needs."""
        fixed = {p.name: p.initial for p in self.spec.parameters if not p.trainable}
        extra = self.spec.compat.constants if self.spec.compat else ()
        return {**fixed, **{constant.name: constant.value for constant in extra}}

    def _effective_tensors(self) -> list[Tensor]:
        """The effective value of each trainable parameter, differentiable, shape (1,)."""
        return [self._effective(p) for p in self.spec.trainable]

    def _effective(self, parameter: Parameter) -> Tensor:
        stored: Tensor = getattr(self, parameter.name)
        if isinstance(parameter.bijection, Identity):
            return stored
        assert isinstance(parameter.bijection, Softplus)
        positive = F.softplus(stored)
        above = parameter.bijection.above
        others = {p.name: p for p in self.spec.parameters}
        if above in others:
            bound = others[above]
            if bound.trainable:
                return self._effective(bound) + positive
            return (bound.initial if self.compat == EXACT else getattr(self, above)) + positive
        return positive if float(above) == 0 else float(above) + positive

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShapedModule:
        if self.compat != EXACT:
            return self._applied(fn, recurse)

        def keeping_width(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in _SHORT else moved

        return self._applied(keeping_width, recurse)

    def _applied(self, fn: Callable[[Tensor], Tensor], recurse: bool) -> ShapedModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Also accept a checkpoint that stores constants, if they are the spec's constants."""
        if self.compat == EXACT:
            for name, number in self._constants().items():
                found = state_dict.pop(prefix + name, None)
                if found is not None and not _same(found, number):
                    raise ConfigError(
                        f"{prefix}{name} = {float(found)!r} in the checkpoint, but"
                        f" {self.spec.name} fixes it at {number!r}",
                        fix=f"Build the module from a spec whose {name} is the checkpoint's",
                    )
            for parameter in self.spec.trainable:
                stored = state_dict.get(prefix + parameter.name)
                if stored is not None and stored.dtype in _SHORT:
                    state_dict[prefix + parameter.name] = stored.float()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Activation(ShapedModule):
    """y = f(x), with the spec's trainable shape."""

    def forward(self, x: Tensor) -> Tensor:
        """f(x), with the shape and dtype of x."""
        if self.compat == EXACT:
            return self._operation(x, *self._effective_tensors())
        trainable = iter(self._effective_tensors())
        values = [
            next(trainable) if p.trainable else getattr(self, p.name) for p in self.spec.parameters
        ]
        extra = self.spec.compat.constants if self.spec.compat else ()
        constants = [getattr(self, constant.name) for constant in extra]
        return self._kernel.compat[self.compat](x, *values, *constants)


class GatedActivation(ShapedModule):
    """y = f(gate) * up, with the spec's trainable shape."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """f(gate) * up, with the shape and dtype of both.

        Raises   ConfigError when they differ.
        """
        return self._operation(gate, up, *self._effective_tensors())


def build_activation(
    name: str | Spec,
    *,
    compat: Literal["exact"] | str = EXACT,
    dtype: torch.dtype = torch.float32,
) -> Activation | GatedActivation:
    """A new module for a catalogue entry or for a user's Spec; parameters are never shared.

    compat   "exact", or another library's order of evaluation ("eps" for xielu: bit for bit
             transformers' XIELUActivation, forward and backward)
    dtype    of stored parameters; "exact" keeps float32 where 16 bits are asked for
    Raises   ConfigError for an unknown name or order, or a spec that cannot be integrated.
    Checked  tests/unit/activations/test_module.py
    """
    spec = catalog.get(name) if isinstance(name, str) else name
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype = {dtype} is not a floating-point type", where=spec.where)
    kind = GatedActivation if isinstance(spec.arity, Gated) else Activation
    return kind(spec, compat=compat, dtype=dtype)


def xielu(*, compat: str = EXACT, dtype: torch.dtype = torch.float32) -> Activation:
    """A new xIELU module: x > 0: alpha_p x**2 + beta x, else alpha_n (exp(x) - 1 - x) + beta x.

    Source   Huang and Schlag 2024, arXiv 2411.13010; arguments as `build_activation`.
    """
    return Activation(catalog.XIELU, compat=compat, dtype=dtype)


def _same(found: Tensor, number: float) -> bool:
    """Whether a stored constant is `number` as its own dtype rounds it."""
    return bool((found.cpu() == torch.tensor(number, dtype=found.dtype)).all())
