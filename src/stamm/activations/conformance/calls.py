"""Probes of the ways in which networks call an activation: modes, repeated calls, saved tensors, devices."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError, FakeTensorMode

from stamm.activations.conformance.exact import FUNCTION, exact_quantities, mixed_ups
from stamm.activations.conformance.implementations import (
    Bound,
    Implementation,
    called,
    parameter_gradients,
    raised,
)
from stamm.activations.conformance.judge import near_knots
from stamm.activations.conformance.ulp import budget, dtype_name
from stamm.activations.conformance.verdict import errors_of
from stamm.activations.spec import Gated, Spec

_STORED = (torch.bfloat16, torch.float32)
_LADDER = (0.0, 1.0, 2.0, 0.5, 1e-30, 1e-8, 1e-3, 37.0, 3e3, 1e9, 1e15, torch.inf)
_ROWS, _WIDTH = 6, 150
_MANY = 1_200_000
_CHANNELS = 5


def modes(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """The same inputs give the same outputs in every mode that a network is run in.

    Two results may differ by two roundings. A mode that raises where the plain call does not is wrong,
    but for `torch.vmap` and `torch.compile`, which not every function supports.
    """
    wrong: list[str] = []
    absent: dict[str, None] = {}
    checked: dict[str, None] = {}
    for dtype in _STORED:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        inputs = _inputs(spec, dtype)
        usual = called(judged.name, bound, *(t.clone().requires_grad_() for t in inputs))
        alike = _Comparison(spec, bound, inputs, usual, dtype)
        for mode, run in _modes(judged.name, bound, inputs, dtype):
            try:
                difference = alike.difference(run())
            except Exception as error:  # tracing someone else's code may raise anything
                if mode not in ("under torch.vmap", "under torch.compile"):
                    wrong.append(f"{mode}, {dtype_name(dtype)}: raises {raised(error)}")
                else:
                    absent[mode] = None
                continue
            checked[mode] = None
            if difference:
                wrong.append(f"{mode}, {dtype_name(dtype)}: {difference}")
    described = f"{len(checked)} modes of {len(_STORED)} dtypes"
    described += f"; not offered: {', '.join(absent)}" if absent else ""
    return not wrong, "; ".join(wrong[:2]) or described


def _modes(
    name: str, bound: Bound, inputs: Sequence[Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    def with_gradients(function: Callable[..., Tensor]) -> Tensor:
        return function(*(t.clone().requires_grad_() for t in inputs)).detach()

    def apart(context: Callable[[], torch.inference_mode | torch.no_grad]) -> Tensor:
        with context():
            return bound(*(t.clone() for t in inputs)).clone()

    def automatic() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return with_gradients(bound)

    def many() -> Tensor:
        times = _MANY // inputs[0].numel()
        with torch.no_grad():
            long = called(name, bound, *(t.reshape(-1).repeat(times) for t in inputs))
        rows = long.reshape(times, -1)
        same = (rows == rows[0]) | (torch.isnan(rows) & torch.isnan(rows[0]))
        worst = int((~same).any(-1).int().argmax())  # the first row that differs, else 0
        return rows[worst].reshape(inputs[0].shape)

    yield "without gradients", lambda: apart(torch.no_grad)
    yield "in inference mode", lambda: apart(torch.inference_mode)
    if dtype == torch.float32:
        yield "under autocast", automatic
        yield f"of {_MANY:,} inputs", many
    if bound.module is not None:
        module = bound.module
        yield "called without functional_call", lambda: with_gradients(module)
        yield "after eval()", lambda: with_gradients(module.eval())
        module.train()
    yield "under torch.vmap", lambda: torch.vmap(bound)(*inputs)
    if dtype == torch.float32:
        yield "under torch.compile", lambda: with_gradients(_traced(bound))


def _traced(bound: Bound) -> Callable[..., Tensor]:
    """The function as dynamo traces it, without code generation."""
    leaves = bound.leaves

    def plain(*inputs: Tensor) -> Tensor:
        return bound.function(leaves, *inputs)

    # dynamo counts recompilations by code object, and stops tracing one that had too many.
    code = plain.__code__.replace(co_name="traced")
    fresh = types.FunctionType(code, plain.__globals__, "traced", None, plain.__closure__)
    return torch.compile(fresh, backend="eager", dynamic=False)


class _Comparison:
    """The plain call's result, and how another result differs from it."""

    def __init__(
        self, spec: Spec, bound: Bound, inputs: Sequence[Tensor], usual: Tensor, dtype: torch.dtype
    ) -> None:
        x = inputs[0].detach().reshape(-1)
        up = inputs[1].detach().double().reshape(-1) if len(inputs) > 1 else None
        exact = exact_quantities(spec, bound.values, x.double(), up)[FUNCTION]
        self.x, self.usual = x, usual.detach().reshape(-1)
        # Rounded to zero or beyond the knot, two orders of evaluation may differ.
        self.judged = exact.well_conditioned & ~near_knots(spec, bound.values, x)[1]
        self.judged |= ~torch.isfinite(x)
        self.limit = budget(spec.name, dtype_name(dtype))
        self.shape, self.dtype = usual.shape, usual.dtype

    def difference(self, other: Tensor) -> str:
        """Nothing, or what is different and where first."""
        if other.shape != self.shape or other.dtype != self.dtype:
            return (
                f"returns {tuple(other.shape)} {dtype_name(other.dtype)},"
                f" not {tuple(self.shape)} {dtype_name(self.dtype)}"
            )
        result = other.detach().reshape(-1)
        errors, finite = errors_of(result, self.usual.double(), room=self.limit.room)
        alike = (result == self.usual) | (torch.isnan(result) & torch.isnan(self.usual))
        alike |= finite & (errors <= 2 * self.limit.ulp)
        bad = self.judged & ~alike
        if not bad.any():
            return ""
        at = int(bad.nonzero()[0])
        return (
            f"{int(bad.sum())} of {len(bad)} results differ, first f({self.x[at].item():g}) ="
            f" {result[at].item():.6g} instead of {self.usual[at].item():.6g}"
        )


def repeated(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """A second call with the same inputs has the same bits, and no call has side effects.

    Elementwise results do not depend on the order of additions, so bits are compared.
    """
    wrong: dict[str, None] = {}
    calls = 0
    for dtype in _STORED:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        for gradients in (True, False):
            inputs = [t.clone().requires_grad_(gradients) for t in _inputs(spec, dtype)]
            before = _surroundings()
            with torch.set_grad_enabled(gradients):
                first = _with_slopes(judged.name, bound, inputs)
                kept = [t.clone() for t in first]
                # Calls with another shape and with the same one: they would overwrite a shared
                # buffer.
                for other in ([t[:2] for t in inputs], [t.flip(0) for t in inputs]):
                    _with_slopes(judged.name, bound, other)
                held = all(map(_equal, first, kept))
                second = _with_slopes(judged.name, bound, inputs)
            calls += 4
            after = _surroundings()
            changed = [name for name, value in before.items() if after[name] != value]
            wrong.update({f"a call changes {name} of torch": None for name in changed})
            _restore(before)
            where = f"{dtype_name(dtype)}, {'with' if gradients else 'without'} gradients"
            if not held:
                wrong[f"a later call writes the result of an earlier one ({where})"] = None
            elif not all(map(_equal, kept, second)):
                wrong[f"the same call returns something else ({where})"] = None
    return not wrong, "; ".join(list(wrong)[:2]) or f"{calls} calls"


def _with_slopes(name: str, bound: Bound, inputs: Sequence[Tensor]) -> list[Tensor]:
    """f, and f' where gradients are recorded."""
    y = called(name, bound, *inputs)
    if not y.requires_grad or not torch.is_grad_enabled():
        return [y]
    (slope,) = torch.autograd.grad(y, inputs[:1], torch.ones_like(y), allow_unused=True)
    return [y.detach(), *([slope] if slope is not None else [])]


_SMALLEST = torch.tensor([5e-324], dtype=torch.float64)


def _surroundings() -> dict[str, object]:
    """Global settings of torch, which a function must not change."""
    return {
        "the random state": torch.get_rng_state().numpy().tobytes(),
        "the number of threads": torch.get_num_threads(),
        "the default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "the flushing of subnormal numbers": bool((_SMALLEST * 1).item() == 0),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def _restore(before: Mapping[str, object]) -> None:
    torch.set_num_threads(int(str(before["the number of threads"])))
    torch.set_flush_denormal(bool(before["the flushing of subnormal numbers"]))
    torch.set_grad_enabled(bool(before["grad mode"]))
    torch.use_deterministic_algorithms(bool(before["deterministic algorithms"]))
    dtype = before["the default dtype"]
    if isinstance(dtype, torch.dtype):
        torch.set_default_dtype(dtype)


def saved(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """A tensor that is written between forward and backward raises, or leaves the gradients as they were.

    An optimizer step, or `h += y` after the activation, otherwise changes gradients silently.
    """
    wrong, refused = [], 0
    bound = judged.bind(spec, spec.initial_values(), torch.float32)
    names = ["the input", *(["up"] if isinstance(spec.arity, Gated) else []), "the output"]
    usual = _gradients_after_writing(spec, judged, bound, None)
    for name in (*names, *bound.leaves):
        try:
            other = _gradients_after_writing(spec, judged, bound, name)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            refused += 1
            continue
        changed = [
            label
            for label, gradient in other.items()
            if not torch.allclose(gradient, usual[label], rtol=1e-4, atol=1e-6, equal_nan=True)
        ]
        if changed:
            wrong.append(
                f"writing {name} after the forward pass changes the gradient of {changed[0]}"
            )
    tried = len(names) + len(bound.leaves)
    return not wrong, "; ".join(wrong[:2]) or f"{tried} tensors written, {refused} refused by torch"


def _gradients_after_writing(
    spec: Spec, judged: Implementation, bound: Bound, written: str | None
) -> dict[str, Tensor]:
    leaves = {n: leaf.detach().clone().requires_grad_() for n, leaf in bound.leaves.items()}
    count = 64
    given = {"the input": mixed_ups(count, torch.float32) * 1.5}
    if isinstance(spec.arity, Gated):
        given["up"] = mixed_ups(count, torch.float32).flip(0)
    tensors = {name: t.requires_grad_() for name, t in given.items()}
    inner = {name: t * 1.0 for name, t in tensors.items()}  # not leaves, as in a network
    y = bound.function(leaves, *inner.values())
    held = {**inner, **leaves, "the output": y}
    if written is not None:
        with torch.no_grad():
            held[written].mul_(-1.5)
    wanted = {**tensors, **leaves}
    weight = mixed_ups(count, torch.float32)
    gradients = parameter_gradients(judged.name, y, wanted, weight)
    return dict(zip(wanted, gradients, strict=True))


def device(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """The result is on the device of the input: tried with a fake one, which computes nothing."""
    bound = judged.bind(spec, spec.initial_values(), torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):

        def elsewhere(t: Tensor) -> Tensor:
            return torch.empty(t.shape, dtype=t.dtype, device="cuda")

        leaves: dict[str, Tensor] = {n: elsewhere(leaf) for n, leaf in bound.leaves.items()}
        if bound.module is not None:
            state = itertools.chain(bound.module.named_parameters(), bound.module.named_buffers())
            leaves |= {name: elsewhere(t) for name, t in state}
        inputs = [elsewhere(t) for t in _inputs(spec, torch.float32)]
        try:
            with torch.no_grad():
                result = bound.function(leaves, *inputs)
        except FakeTensorDeviceMismatchError as error:
            return False, f"on a GPU it would raise: {raised(error)}"
        except Exception as error:  # control flow that depends on values cannot be tried
            return True, f"not tried: {type(error).__name__} on a tensor without values"
    if isinstance(result, Tensor) and result.device.type != "cuda":
        return False, f"returns a tensor on {result.device.type} for an input on cuda"
    return True, "that of the input"


def channels(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """A function that accepts one value of a parameter a channel gives each its own gradient.

    One that raises, forward or backward, does not accept them.
    """
    bound = judged.bind(spec, spec.initial_values(), torch.float32)
    if not bound.leaves or bound.holds != "effective":
        return True, "not offered" if spec.trainable else "there are none"
    count = 40 * _CHANNELS
    x = (mixed_ups(count, torch.float32) * 1.5).reshape(-1, _CHANNELS)
    inputs = [x, mixed_ups(count, torch.float32).flip(0).reshape(x.shape)][: _arity(spec)]
    weight = mixed_ups(count, torch.float32).reshape(x.shape)
    wide = {n: leaf.expand(_CHANNELS).clone().requires_grad_() for n, leaf in bound.leaves.items()}
    try:
        y = bound.function(wide, *inputs)
        gradients = parameter_gradients(judged.name, y, wide, weight)
    except Exception:  # a function of scalars may raise anything
        return True, "not offered"
    if y.shape != x.shape:
        return False, f"returns {tuple(y.shape)} for {tuple(x.shape)} and {_CHANNELS} values"
    wrong = []
    for i in range(_CHANNELS):
        column = [t[:, i].contiguous() for t in inputs]
        channel_leaves = {n: leaf.clone().requires_grad_() for n, leaf in bound.leaves.items()}
        part = bound.function(channel_leaves, *column)
        expected = parameter_gradients(judged.name, part, channel_leaves, weight[:, i])
        if not torch.allclose(part, y[:, i], rtol=1e-5, atol=1e-7):
            wrong.append(f"f of channel {i}")
        wrong += [
            f"the gradient of {name} in channel {i} is {whole[i].item():.6g}, not {own.item():.6g}"
            for name, whole, own in zip(channel_leaves, gradients, expected, strict=True)
            if not torch.allclose(whole[i], own, rtol=1e-3, atol=1e-5)
        ]
    return not wrong, "; ".join(wrong[:2]) or f"{_CHANNELS} channels, {len(wide)} parameters"


def _inputs(spec: Spec, dtype: torch.dtype) -> list[Tensor]:
    """Two dimensions of numbers of every size, infinities and NaN; up is never NaN nor below 1."""
    count = _ROWS * _WIDTH
    ladder = torch.tensor([*_LADDER, *(-size for size in _LADDER), torch.nan])
    x = mixed_ups(count, torch.float64) * 2.0
    x[: len(ladder)] = ladder.double()
    return [
        t.to(dtype).reshape(_ROWS, _WIDTH)
        for t in (x, mixed_ups(count, torch.float64).flip(0))[: _arity(spec)]
    ]


def _arity(spec: Spec) -> int:
    return 2 if isinstance(spec.arity, Gated) else 1


def _equal(left: Tensor, right: Tensor) -> bool:
    return torch.equal(torch.isnan(left), torch.isnan(right)) and torch.equal(
        torch.nan_to_num(left), torch.nan_to_num(right)
    )
