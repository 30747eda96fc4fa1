"""Activation modules: shape parameters, stored raw, in float32, under checkpoint names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.cache import is_judged
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused.direct import (
    DirectCalls,
    ForwardPass,
    direct_calls,
    effective_tensors,
    forward_pass,
    without_gradients,
)
from stamm.activations.fused.operation import Layout
from stamm.activations.module.ops import operation_of
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec.shipped import NAMES
from stamm.base.console import Console
from stamm.base.errors import ConfigError

_LOOKED_UP = ("_kernel", "_operations", "_direct")  # from the spec, again in each copy
_SHORT = (torch.float16, torch.bfloat16)
EXACT = "exact"
Precision = Literal["exact", "fast"]
Value = float | list[float]


class ActivationModule(nn.Module):
    """Base of plain and gated activation modules: the shape parameters of one spec.

    Each trainable parameter is one `nn.Parameter` under its own name, holding raw numbers (before
    softplus): of shape (1,), or (groups,), or (neurons,). It stays float32 when the model is cast to
    16 bits: the spacing of bfloat16 near 1 is larger than an optimizer's step. In a compat order of evaluation parameters
    and constants have `dtype` instead, and constants are buffers, as in the library it matches.
    """

    if TYPE_CHECKING:
        __call__: Callable[..., Tensor]

    def __init__(
        self,
        spec: Spec,
        *,
        compat: str = EXACT,
        dtype: torch.dtype = torch.float32,
        neurons: int | None = None,
        groups: int | None = None,
        precision: Precision = "exact",
    ) -> None:
        super().__init__()
        if precision not in ("exact", "fast"):
            raise ConfigError(f"precision = {precision!r}", fix="Use 'exact' or 'fast'")
        self.spec = spec
        self.precision = precision
        self.compat = compat
        self.neurons = neurons
        self.count = _count(spec, neurons, groups)
        self._bind()
        if compat != EXACT and self.count > 1:
            raise ConfigError(
                f"the compat order {compat!r} has one shape per layer, not {self.count}",
                where=spec.where,
                fix="Leave out neurons and groups, or use compat='exact'",
            )
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
            value = nn.Parameter(torch.empty(self.count, dtype=stored))
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

    def values(self, *, raw: bool) -> dict[str, Value]:
        """The value of every parameter: a number, or a list where groups or neurons have their own.

        raw   True for stored numbers (trainable parameters only), False for effective ones
              (fixed parameters included)
        """
        with torch.no_grad():
            if raw:
                return {p.name: _numbers(getattr(self, p.name)) for p in self.spec.trainable}
            effective = iter([_numbers(values) for values in self._effective()])
        return {p.name: next(effective) if p.trainable else p.initial for p in self.spec.parameters}

    def effective(self) -> dict[str, float]:
        """The effective value of every parameter, fixed ones included, as the kernel sees it.

        Raises   ConfigError when a parameter has more than one value: see `values`.
        """
        return self._single(self.values(raw=False))

    def means(self) -> dict[str, float]:
        """As `effective`, with the mean where groups or neurons have their own values."""
        values = self.values(raw=False).items()
        return {n: sum(v) / len(v) if isinstance(v, list) else v for n, v in values}

    def raw(self) -> dict[str, float]:
        """The stored (raw) value of every trainable parameter.

        Raises   ConfigError when a parameter has more than one value: see `values`.
        """
        return self._single(self.values(raw=True))

    def load_values(self, values: Mapping[str, Value], *, raw: bool) -> None:
        """Set some or all trainable parameters, in place: all of them or, on an error, none.

        values   per parameter one number, or one for each group or neuron
        raw      True when `values` are stored numbers (before softplus), False when effective
        Raises   ConfigError for an unknown name, a wrong count, an effective value outside its
                 constraint, or a stored number whose effective value is not finite.
        """
        held = {p.name for p in self.spec.trainable}
        kept = {n: v for n, v in self.values(raw=raw).items() if n in held}
        merged = {n: self._listed(n, v) for n, v in {**kept, **values}.items()}
        rows = []
        for row in zip(*merged.values(), strict=True):
            named = dict(zip(merged, row, strict=True))
            if raw:
                self.spec.check_raw_values(named)
                rows.append(named)
            else:
                rows.append(self.spec.raw_values(named))
        given = {n: torch.tensor([row[n] for row in rows], dtype=torch.float64) for n in values}
        for name, numbers in given.items():
            if not torch.isfinite(numbers.to(getattr(self, name).dtype)).all():
                raise ConfigError(
                    f"{name} = {values[name]!r} cannot be stored as a finite number",
                    where=self.spec.where,
                )
        with torch.no_grad():
            for name, numbers in given.items():
                getattr(self, name).copy_(numbers)

    def extra_repr(self) -> str:
        """Name, compat order and effective values; none on the meta device or under a compiler."""
        parts = [self.spec.name] + ([f"compat={self.compat}"] if self.compat != EXACT else [])
        if self.count > 1:
            parts.append(f"shapes={self.count}")
        elif not (
            torch.compiler.is_dynamo_compiling() or any(p.is_meta for p in self.parameters())
        ):
            parts += [f"{name}={value:.4g}" for name, value in self.effective().items()]
        return ", ".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the functions, which are looked up again from the spec."""
        return {k: v for k, v in self.__dict__.items() if k not in _LOOKED_UP}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled module."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._bind()

    @property
    def forms(self) -> list[str]:
        """Names of the fused operations that compute it (`activations.fused.operation`)."""
        return [operation.form for operation in self._operations.values()]  # type: ignore[attr-defined]

    def _bind(self) -> None:
        self._kernel = kernel_of(self.spec)
        fixed = tuple(None if p.trainable else p.initial for p in self.spec.parameters)
        exact, arity = self.precision == "exact", self.spec.arity
        self._operations = (
            {
                layout: operation_of(self._kernel, fixed, exact, layout)
                for layout in ("apart", arity.layout)
            }
            if isinstance(arity, Gated)
            else {"plain": operation_of(self._kernel, fixed, exact)}
        )
        self._direct = {
            layout: direct_calls(operation, self.spec.parameters)
            for layout, operation in self._operations.items()
            if self.count == 1 and self.compat == EXACT
        }

    def _call(self, layout: Layout, *inputs: Tensor) -> Tensor:
        """The activation in its exact order of evaluation."""
        if not torch.compiler.is_compiling() and layout in self._direct:
            direct, held = self._direct[layout], self._parameters
            stored = [held.get(name) for name in direct.names]
            result = direct(inputs, stored)  # type: ignore[arg-type]
            if result is not None:
                return result
        return self._operations[layout](*inputs, *self.effective_tensors())

    def _initial_raw(self) -> dict[str, float]:
        return self.spec.raw_values({p.name: p.initial for p in self.spec.trainable})

    def _constants(self) -> dict[str, float]:
        """Fixed parameters, and the numbers that only a compat order needs."""
        fixed = {p.name: p.initial for p in self.spec.parameters if not p.trainable}
        extra = self.spec.compat.constants if self.spec.compat else ()
        return {**fixed, **{constant.name: constant.value for constant in extra}}

    def _listed(self, name: str, value: Value) -> list[float]:
        numbers = list(value) if isinstance(value, (list, tuple)) else [value] * self.count
        if len(numbers) != self.count:
            raise ConfigError(
                f"{name} is given {len(numbers)} values and has {self.count}",
                where=self.spec.where,
                fix="Give one number, or one for each",
            )
        return [float(number) for number in numbers]

    def _single(self, values: dict[str, Value]) -> dict[str, float]:
        single = {name: value for name, value in values.items() if isinstance(value, float)}
        if len(single) != len(values):
            raise ConfigError(
                f"{self.spec.name} has {self.count} values per parameter",
                fix="Read them with values(raw=...)",
            )
        return single

    def effective_tensors(self) -> list[Tensor]:
        """The effective values of each trainable parameter, differentiable: (1,) or (neurons,).

        Dtypes   float64, from the stored numbers without a rounding in between (float32 on a device
                 without float64); in a compat order of evaluation the stored dtype
        """
        return [self._for_neurons(values) for values in self._effective()]

    def frozen(self) -> Callable[..., Tensor]:
        """The activation with its present shape parameters, without gradients, for decoding.

        Later changes of the parameters do not reach it.
        """
        if self.compat != EXACT:
            return self
        return without_gradients(*self._frozen())

    def frozen_pass(self) -> ForwardPass | None:
        """`frozen` of float32 on a CPU as a compiled pass; None where torch computes it.

        Needs    `fused.build.unavailable_reason()` is None
        """
        return forward_pass(*self._frozen()) if self.compat == EXACT else None

    def _frozen(self) -> tuple[DirectCalls, list[Tensor]]:
        operation = next(iter(self._operations.values()))
        with torch.no_grad():
            return direct_calls(operation, self.spec.parameters), self.effective_tensors()

    def _for_neurons(self, values: Tensor) -> Tensor:
        """One value for each neuron where each group has one."""
        if self.neurons is None or values.numel() in (1, self.neurons):
            return values
        return values[:, None].expand(-1, self.neurons // values.numel()).reshape(-1)

    def _effective(self) -> list[Tensor]:
        """The effective values of each trainable parameter: one, or one for each group or neuron."""
        parameters = self.spec.parameters
        stored: dict[str, Tensor] = {p.name: getattr(self, p.name) for p in self.spec.trainable}
        if self.compat == EXACT:
            return effective_tensors(parameters, stored)
        constants = {n: getattr(self, n) for n in self._constants()}
        return effective_tensors(parameters, stored, constants=constants)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ActivationModule:
        if self.compat != EXACT:
            return self._applied(fn, recurse)

        def keeping_width(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in _SHORT else moved

        return self._applied(keeping_width, recurse)

    def _applied(self, fn: Callable[[Tensor], Tensor], recurse: bool) -> ActivationModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def remove_constants(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Remove from a checkpoint the constants of the spec, which the module does not store.

        Raises   ConfigError for one that is another number
        """
        if self.compat != EXACT:
            return
        for name, number in self._constants().items():
            stored = state_dict.pop(prefix + name, None)
            if stored is not None and not _same(stored, number):
                raise ConfigError(
                    f"{prefix}{name} = {float(stored)!r} in the checkpoint, but"
                    f" {self.spec.name} fixes it at {number!r}",
                    fix=f"Build the module from a spec whose {name} is the checkpoint's",
                )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Also accept a checkpoint that stores constants, if they are the spec's constants."""
        self.remove_constants(state_dict, prefix)
        if self.compat == EXACT:
            for parameter in self.spec.trainable:
                stored = state_dict.get(prefix + parameter.name)
                if stored is not None and stored.dtype in _SHORT:
                    state_dict[prefix + parameter.name] = stored.float()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Activation(ActivationModule):
    """y = f(x), with the spec's trainable shape."""

    def forward(self, x: Tensor) -> Tensor:
        """f(x), with the shape and dtype of x."""
        if self.compat == EXACT:
            return self._call("plain", x)
        trainable = iter(self.effective_tensors())
        values = [
            next(trainable) if p.trainable else getattr(self, p.name) for p in self.spec.parameters
        ]
        extra = self.spec.compat.constants if self.spec.compat else ()
        constants = [getattr(self, constant.name) for constant in extra]
        return self._kernel.compat[self.compat](x, *values, *constants)


class GatedActivation(ActivationModule):
    """y = f(gate) * up, with the spec's trainable shape."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """f(gate) * up, with the shape and dtype of both.

        Raises   ConfigError when they differ.
        """
        return self._call("apart", gate, up)

    def of_fused(self, fused: Tensor) -> Tensor:
        """f(gate) * up of one projection that holds both, in the layout the spec states.

        Shapes   fused (..., 2 C); the result (..., C)
        Raises   ConfigError when the last axis is odd.
        """
        assert isinstance(self.spec.arity, Gated)
        if fused.dim() == 0 or fused.shape[-1] % 2:
            raise ConfigError(
                f"a fused projection of shape {tuple(fused.shape)} does not hold gate and up",
                where=self.spec.where,
                fix="Its last axis must be even",
            )
        return self._call(self.spec.arity.layout, fused)


def build_activation(
    name: str | Spec,
    *,
    compat: Literal["exact"] | str = EXACT,
    dtype: torch.dtype = torch.float32,
    neurons: int | None = None,
    groups: int | None = None,
    precision: Precision = "exact",
) -> Activation | GatedActivation:
    """A new module for a catalogue entry or for a user's Spec; parameters are never shared.

    compat   "exact", or another library's order of evaluation ("eps" for xielu: bit for bit
             transformers' XIELUActivation, forward and backward)
    dtype    of stored parameters; "exact" keeps float32 where 16 bits are asked for
    neurons  the size of the input's last axis, for shape parameters per neuron
    groups   with `neurons`: number of equal groups, each with its own shape parameters
    precision  of float32 inputs: "exact" computes them in float64 and rounds once, "fast" in
             float32, some ulp off where terms cancel. 16-bit inputs are computed alike in both
    Edge     one line on the terminal reports a Spec whose kernel no `stamm derive`, `stamm check` or
             recipe has held to its error budgets yet
    Raises   ConfigError for an unknown name or order, or a spec that cannot be integrated.
    Checked  tests/unit/activations/test_module.py
    """
    spec = catalog.get(name) if isinstance(name, str) else name
    module = module_of(
        spec, compat=compat, dtype=dtype, neurons=neurons, groups=groups, precision=precision
    )
    if spec.content_hash not in NAMES and not is_judged(spec.content_hash):
        _report_unjudged(spec.name, spec.content_hash)
    return module


@lru_cache(maxsize=256)
def _report_unjudged(name: str, content_hash: str) -> None:
    Console().log(
        f"the kernel of {name} ({content_hash[:8]}) was derived and is not judged: `stamm derive"
        " FILE.py:NAME` holds it to its error budgets."
    )


def module_of(
    spec: Spec,
    *,
    compat: str = EXACT,
    dtype: torch.dtype = torch.float32,
    neurons: int | None = None,
    groups: int | None = None,
    precision: Precision = "exact",
) -> Activation | GatedActivation:
    """`build_activation` of a Spec without a report, for the judge itself."""
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype = {dtype} is not a floating-point type", where=spec.where)
    kind = GatedActivation if isinstance(spec.arity, Gated) else Activation
    return kind(
        spec, compat=compat, dtype=dtype, neurons=neurons, groups=groups, precision=precision
    )


def xielu(
    *,
    compat: str = EXACT,
    dtype: torch.dtype = torch.float32,
    neurons: int | None = None,
    groups: int | None = None,
    precision: Precision = "exact",
) -> Activation:
    """A new xIELU module: x > 0: alpha_p x**2 + beta x, else alpha_n (exp(x) - 1 - x) + beta x.

    Source   Huang and Schlag 2024, arXiv 2411.13010; arguments as `build_activation`.
    """
    return Activation(
        catalog.get("xielu"),
        compat=compat,
        dtype=dtype,
        neurons=neurons,
        groups=groups,
        precision=precision,
    )


def _count(spec: Spec, neurons: int | None, groups: int | None) -> int:
    """Number of values of each trainable parameter."""
    if neurons is None:
        if groups is None:
            return 1
        raise ConfigError(f"groups = {groups} without neurons", fix="Give neurons as well")
    count = neurons if groups is None else groups
    if neurons < 1 or count < 1 or neurons % count:
        raise ConfigError(
            f"{neurons} neurons cannot be split into {count} equal groups",
            where=spec.where,
            fix="Choose positive numbers, the second a divisor of the first",
        )
    return count


def _numbers(values: Tensor) -> Value:
    # FSDP2 shards parameters as DTensors: all processes gather them together.
    whole = getattr(values, "full_tensor", None)
    values = values if whole is None else whole()
    numbers: list[float] = values.detach().double().reshape(-1).tolist()
    return numbers[0] if len(numbers) == 1 else numbers


def _same(constant: Tensor, number: float) -> bool:
    """Whether a stored constant is `number`, rounded to its dtype or to a shorter one before."""
    given = constant.detach().cpu()
    rounded = (
        torch.tensor(number, dtype=dtype).to(given.dtype) for dtype in (given.dtype, *_SHORT)
    )
    return any(bool((given == number).all()) for number in rounded)
