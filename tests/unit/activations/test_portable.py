"""Activations exported by torch.onnx run in ONNX Runtime's CPU at the default precision."""

from __future__ import annotations

import io
import math

import mpmath
import numpy as np
import pytest
import torch

from stamm.activations import build_activation
from stamm.activations.module import ops as portable
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import spec_from_arguments

onnxruntime = pytest.importorskip("onnxruntime")
NAMES = ("gelu", "geglu", "xgelu", "serf", "atlu", "silu", "xielu")
ASINH = spec_from_arguments(["asinh(x)"], name="integral_of_asinh")  # torch.onnx has no asinh


@pytest.mark.parametrize("name", [*NAMES, ASINH], ids=[*NAMES, "asinh"])
def test_an_exported_activation_runs_within_two_ulp(name: str | Spec) -> None:
    activation = build_activation(name)
    count = 2 if hasattr(activation, "of_fused") else 1
    x = torch.cat([s * torch.logspace(-12, 1.4, 200) for s in (-1, 1)] + [torch.zeros(1)])
    inputs = (x,) * count
    file = io.BytesIO()
    names = ["x", "up"][:count]
    torch.onnx.export(activation, inputs, file, dynamo=False, opset_version=18, input_names=names)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, dict.fromkeys(names, x.numpy()))
    expected = activation(*inputs).detach().numpy()
    assert y.dtype == np.float32
    # An ulp is that of the terms that cancel: of xielu left of 0, with a zero at -2.45, of a line.
    line = 0.25 * np.abs(x.numpy()) * ((x.numpy() < 0) & (name == "xielu"))
    error = np.abs(y - expected) / np.spacing(np.maximum(np.abs(expected), line))
    assert error.max() <= 2.0, x[int(error.argmax())]


@pytest.mark.parametrize(
    ("form", "exact"),
    [
        (portable.erf, mpmath.erf),
        (portable.erfc, mpmath.erfc),
        (portable.atan, mpmath.atan),
        (portable.expm1, mpmath.expm1),
        (portable.sinh, mpmath.sinh),
        (portable.cosh, mpmath.cosh),
        (portable.asinh, mpmath.asinh),
        (lambda x: portable.asin(x / 16), lambda x: mpmath.asin(x / 16)),
        (lambda x: portable.acosh(1 + x * x), lambda x: mpmath.acosh(1.0 + float(x) * float(x))),
        (lambda x: portable.atan2(torch.ones_like(x), x), lambda x: mpmath.atan2(1, x)),
    ],
)
def test_the_forms_are_right_to_a_millionth_of_float32(form: object, exact: object) -> None:
    sizes = torch.logspace(-30, 1.2, 150, dtype=torch.float64)
    x = torch.cat([sizes, -sizes, torch.zeros(1, dtype=torch.float64)])
    y = form(x).tolist()  # type: ignore[operator]
    for at, value in zip(x.tolist(), y, strict=True):
        with mpmath.workdps(40):
            true = exact(mpmath.mpf(at))  # type: ignore[operator]
            assert abs(value - true) <= 2e-13 * abs(true), at
    sizes = sizes[sizes < 0.9]
    for at, value in zip(sizes.tolist(), portable.log1p(-sizes).tolist(), strict=True):
        assert abs(value - math.log1p(-at)) <= 2e-15 * at, at
    assert torch.isnan(form(torch.tensor([torch.nan], dtype=torch.float64))).all()  # type: ignore[operator]


def test_the_error_functions_at_infinities_and_nan() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan])
    for form, exact in ((portable.erfc, torch.special.erfc), (portable.erf, torch.special.erf)):
        torch.testing.assert_close(form(x), exact(x), rtol=0, atol=0, equal_nan=True)
