"""Implementations that are right when called plainly, and wrong in other ways in which networks call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.conformance import calls, probes
from stamm.activations.conformance.exact import SAMPLED
from stamm.activations.conformance.implementations import (
    FunctionImplementation,
    Implementation,
    StammImplementation,
    called,
    implementation,
)
from stamm.activations.conformance.judge import judge
from stamm.activations.spec import Spec
from stamm.base.errors import DataError

Probe = Callable[[Spec, Implementation], tuple[bool, str]]
SILU, RELU, SWIGLU = catalog.SILU, catalog.RELU, catalog.get("swiglu")
XIPRELU = catalog.get("xiprelu")


def silu(x: Tensor) -> Tensor:
    """SiLU in float64, with its limits."""
    wide = x.double()
    inner = wide.clamp(min=-1e4)
    return torch.where(wide == -torch.inf, 0.0, inner * torch.sigmoid(inner)).to(x.dtype)


def xiprelu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    """xIPReLU in float64."""
    wide = x.double()
    return (wide * (torch.where(wide > 0, alpha_p.double(), alpha_n.double()) * wide + 0.5)).to(
        x.dtype
    )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return (silu(gate.double()) * up.double()).to(gate.dtype)


def only(condition: Callable[[Tensor], bool]) -> Callable[[Tensor], Tensor]:
    """SiLU, 1 % off where the condition holds."""
    return lambda x: silu(x) * (1.01 if condition(x) else 1.0)


def nan_is_0_with_gradients(x: Tensor) -> Tensor:
    y = silu(x)
    return torch.where(torch.isnan(x), torch.zeros_like(y), y) if x.requires_grad else y


class Evaluated(nn.Module):
    """Leaky after eval()."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) if self.training else nn.functional.leaky_relu(x, 0.01)


class Bypassed(nn.Module):
    """Right with parameters that are passed, wrong with its own."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.zeros(()))
        self.alpha_n = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        values = [nn.functional.softplus(p.double()) for p in (self.alpha_p, self.alpha_n)]
        own = isinstance(self._parameters["alpha_p"], nn.Parameter)
        return xiprelu(x, *values) * (1.01 if own else 1.0)


class Buffered(nn.Module):
    """Writes every result into one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return silu(x)
        return self.kept.setdefault((x.shape, x.dtype), torch.empty_like(x)).copy_(silu(x))


class Counted(nn.Module):
    """Its second call is another function."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return silu(x) * (1.0 if self.calls < 2 else 1.01)


def random(x: Tensor) -> Tensor:
    return silu(x) * (1 + 1e-2 * torch.rand((), dtype=x.dtype))


def sets_threads(x: Tensor) -> Tensor:
    torch.set_num_threads(torch.get_num_threads() + 1)
    return silu(x)


class _ByReference(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.kept = (x, *parameters)
        return xiprelu(x, *parameters)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            given = [t.detach().requires_grad_() for t in ctx.kept]
            return torch.autograd.grad(xiprelu(*given), given, weight)


def by_reference(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    return _ByReference.apply(x, alpha_p, alpha_n)  # type: ignore[no-any-return, no-untyped-call]


class _Gradients(torch.autograd.Function):
    """Right, but for what `wrong` says of the backward pass."""

    @staticmethod
    def forward(ctx: Any, wrong: str, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.wrong = wrong
        ctx.save_for_backward(x, *parameters)
        return xiprelu(x, *parameters)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        saved, wrong = ctx.saved_tensors, ctx.wrong
        x = saved[0]
        if wrong == "weights" and x.dtype != torch.float64:
            weight = torch.ones_like(weight)
        if wrong == "strides" and weight.dim() > 1 and 0 not in weight.stride():
            flat = torch.as_strided(weight, (weight.numel(),), (1,), weight.storage_offset())
            weight = flat.reshape(weight.shape)
        with torch.enable_grad():
            given = [t.detach().requires_grad_() for t in saved]
            slope, *sums = torch.autograd.grad(xiprelu(*given), given, weight)
        if wrong == "float16" and x.dtype == torch.float16 and x.dim() > 1:
            terms = torch.where(x > 0, x.double() ** 2, 0.0) * weight.double()
            total = torch.zeros((), dtype=torch.float16)
            for row in terms:
                total = total + row.sum().half()
            sums[0] = total.to(sums[0].dtype).reshape(sums[0].shape)
        if wrong == "channels":
            sums = [s.sum().expand(s.shape) for s in sums]
        if wrong == "missing":
            sums[1] = None
        if wrong == "needed" and ctx.needs_input_grad[1] and x.dim() > 1:
            sums = [2 * s for s in sums]
        return None, slope, *sums


def gradients(wrong: str) -> Callable[..., Tensor]:
    def function(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
        return _Gradients.apply(wrong, x, alpha_p, alpha_n)  # type: ignore[no-any-return, no-untyped-call]

    return function


def ignores_strides_of_up(gate: Tensor, up: Tensor) -> Tensor:
    if up.numel() and not up.is_contiguous() and 0 not in up.stride():
        up = torch.as_strided(up, (up.numel(),), (1,), up.storage_offset()).reshape(up.shape)
    return swiglu(gate, up)


def on_the_cpu(x: Tensor) -> Tensor:
    return torch.where(x > -1e30, silu(x), torch.zeros(x.shape, dtype=x.dtype, device="cpu"))


def empty_rows_raise(x: Tensor) -> Tensor:
    if x.dim() > 1 and not x.numel():
        raise ValueError("nothing to do")
    return silu(x)


def writes_matrices(x: Tensor) -> Tensor:
    y = silu(x)
    if x.dim() == 2 and not x.requires_grad and 0 not in x.stride():
        x.copy_(y)
    return y


CALLS = (calls.modes, calls.repeated, calls.saved, calls.device, calls.channels)
WRONG: dict[str, tuple[Spec, Probe, Any, str]] = {
    "far numbers without gradients": (
        SILU,
        calls.modes,
        lambda x: torch.where(x > 1e3, silu(x) * (2 - torch.is_grad_enabled()), silu(x)),
        "without gradients, bfloat16: ",
    ),
    "inference mode": (
        SILU,
        calls.modes,
        only(lambda _: torch.is_inference_mode_enabled()),
        "in inference mode, bfloat16: ",
    ),
    "autocast": (
        SILU,
        calls.modes,
        only(lambda _: torch.is_autocast_enabled("cpu")),
        "under autocast, float32: ",
    ),
    "torch.compile": (
        SILU,
        calls.modes,
        only(lambda _: torch.compiler.is_compiling()),
        "under torch.compile, float32: ",
    ),
    "vmap": (
        SILU,
        calls.modes,
        only(torch._C._functorch.is_batchedtensor),
        "under torch.vmap, bfloat16: ",
    ),
    "many": (
        SILU,
        calls.modes,
        only(lambda x: x.numel() > 10**6),
        "of 1,200,000 inputs, float32: ",
    ),
    "NaN with gradients": (
        SILU,
        calls.modes,
        nan_is_0_with_gradients,
        "first f(nan) = nan instead of 0",
    ),
    "eval": (RELU, calls.modes, Evaluated, "after eval(), bfloat16: "),
    "own parameters": (
        XIPRELU,
        calls.modes,
        Bypassed,
        "called without functional_call, bfloat16: ",
    ),
    "buffer": (SILU, calls.repeated, Buffered, "a later call writes the result of an earlier one"),
    "counter": (SILU, calls.repeated, Counted, "the same call returns something else"),
    "random": (SILU, calls.repeated, random, "a call changes the random state of torch"),
    "threads": (
        SILU,
        calls.repeated,
        sets_threads,
        "a call changes the number of threads of torch",
    ),
    "saved": (
        XIPRELU,
        calls.saved,
        by_reference,
        "writing the input after the forward pass changes the gradient of the input",
    ),
    "device": (SILU, calls.device, on_the_cpu, "on a GPU it would raise: "),
    "channels": (
        XIPRELU,
        calls.channels,
        gradients("channels"),
        "the gradient of alpha_p in channel 0 is ",
    ),
    "weights": (XIPRELU, probes._layouts, gradients("weights"), "f' of 2 elements, bfloat16: "),
    "weights of sums": (XIPRELU, probes._sums, gradients("weights"), " of the allowed error"),
    "strides of weights": (
        XIPRELU,
        probes._layouts,
        gradients("strides"),
        "f' of 7 x 13, bfloat16: ",
    ),
    "sums in float16": (
        XIPRELU,
        probes._sums,
        gradients("float16"),
        " of the allowed error in alpha_p, float16 inputs",
    ),
    "sums with an input that needs a gradient": (
        XIPRELU,
        probes._sums,
        gradients("needed"),
        " of the allowed error",
    ),
    "three dimensions": (
        SILU,
        probes._layouts,
        only(lambda x: x.dim() == 3),
        "f of 4 x 9 x 16, bfloat16: ",
    ),
    "one row": (
        SILU,
        probes._layouts,
        only(lambda x: x.shape[:1] == (1,) and x.dim() == 2),
        "f of 1 x 40",
    ),
    "writes matrices": (
        SILU,
        probes._layouts,
        writes_matrices,
        "the input is written: 7 x 13, bfloat16",
    ),
    "strides of up": (SWIGLU, probes._layouts, ignores_strides_of_up, "f of every second element"),
    "NaN in up": (
        SWIGLU,
        probes._nan,
        lambda gate, up: swiglu(gate, torch.nan_to_num(up, posinf=torch.inf, neginf=-torch.inf)),
        "lost or spread in bfloat16 (up)",
    ),
    "NaN gradients": (
        XIPRELU,
        probes._nan,
        gradients("weights"),
        "lost or spread in bfloat16 (gradients)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_implementation_fails_where_it_is_wrong(name: str) -> None:
    spec, run, thing, expected = WRONG[name]
    passed, numbers = run(spec, implementation(thing, "wrong"))
    assert not passed
    assert expected in numbers
    assert len(numbers.splitlines()) == 1


@pytest.mark.parametrize(
    ("spec", "thing"),
    [
        (SILU, silu),
        (XIPRELU, xiprelu),
        (XIPRELU, gradients("")),
        (SWIGLU, swiglu),
        (RELU, nn.ReLU()),
        (XIPRELU, None),
        (SILU, torch.jit.script(silu)),
    ],
    ids=["silu", "xiprelu", "autograd.Function", "swiglu", "nn.ReLU", "own", "torch.jit"],
)
def test_a_right_implementation_passes(spec: Spec, thing: Any) -> None:
    judged = StammImplementation() if thing is None else implementation(thing, "right")
    for run in (*CALLS, probes._nan, probes._layouts, probes._sums):
        passed, numbers = run(spec, judged)
        assert passed, numbers


def test_a_parameter_without_a_gradient_is_named() -> None:
    judged = implementation(gradients("missing"), "theirs")
    with pytest.raises(DataError, match="without a gradient in alpha_n"):
        probes._sums(XIPRELU, judged)


def test_float32_is_judged_at_round_numbers() -> None:
    def off_at_3(x: Tensor) -> Tensor:
        y = silu(x)
        return torch.where(x == 3, y * (1 + 1e-5), y) if x.dtype == torch.float32 else y

    verdict = judge(SILU, implementation(off_at_3, "w"), dtypes=(torch.float32,), count=SAMPLED)
    assert any("off at x = 3 " in problem for problem in verdict.problems)


def test_what_ends_the_process_is_an_error_of_the_implementation() -> None:
    def exits(x: Tensor) -> Tensor:
        raise SystemExit(3)

    bound = FunctionImplementation("theirs", exits).bind(RELU, {}, torch.float32)
    with pytest.raises(DataError, match="theirs raises SystemExit: 3"):
        called("theirs", bound, torch.ones(2))


def test_an_implementation_that_raises_for_no_inputs_says_so() -> None:
    with pytest.raises(
        DataError, match=r"nothing to do \(\(0, 5\) bfloat16, on no inputs at once\)"
    ):
        probes._layouts(SILU, implementation(empty_rows_raise, "theirs"))


def test_numbers_are_passed_to_a_function_that_has_no_gradient_in_its_parameters() -> None:
    def of_numbers(x: Tensor, alpha_p: float, alpha_n: float) -> Tensor:
        values = (torch.tensor(float(v), dtype=torch.float64) for v in (alpha_p, alpha_n))
        return xiprelu(x, *values)

    judged = FunctionImplementation("theirs", of_numbers)
    assert not judged.bind(XIPRELU, XIPRELU.initial_values(), torch.float32).leaves
