"""Finding an implementation by its path, giving it parameters, and telling what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.conformance.implementations import (
    FunctionImplementation,
    ModuleImplementation,
    called,
    implementation,
    observe,
    resolve,
)
from stamm.base.errors import ConfigError, DataError

VALUES = {"alpha_p": 166.0, "alpha_n": 41.25, "beta": 0.5}
X = torch.tensor([-1.0, 2.0])


def test_a_function_and_a_class_are_found_by_their_path() -> None:
    assert isinstance(resolve("torch.nn.functional:gelu"), FunctionImplementation)
    assert isinstance(resolve("torch.nn:GELU"), ModuleImplementation)
    bound = resolve("torch.nn:GELU").bind(catalog.GELU, {}, torch.float32)
    assert torch.equal(bound(X), torch.nn.functional.gelu(X))


def test_a_function_in_a_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def double(x):\n    return 2 * x\n")
    bound = resolve(f"{file}:double").bind(catalog.RELU, {}, torch.float32)
    assert bound(X).tolist() == [-2.0, 4.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch", "names no implementation"),
        ("no_such_package:f", "cannot be imported: ModuleNotFoundError"),
        ("torch:no_such_function", "has no 'no_such_function'"),
        ("torch:pi", "neither a function nor a module"),
        ("torch.nn:Linear", "cannot be built without arguments"),
        ("missing.py:f", "missing.py does not exist"),
    ],
)
def test_what_cannot_be_found_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(text)
    assert said in caught.value.line()


def test_a_broken_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("a = 1\nb = a / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError") as caught:
        resolve(f"{tmp_path / 'broken.py'}:f")
    assert "line 2" in caught.value.line()


def test_a_module_gets_raw_numbers_in_the_shape_it_has() -> None:
    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha_p = nn.Parameter(torch.zeros(1, 1))
            self.alpha_n = nn.Parameter(torch.zeros(1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.alpha_p.to(x.dtype).reshape(())

    bound = implementation(Theirs, "theirs").bind(catalog.XIELU, VALUES, torch.bfloat16)
    assert {name: leaf.shape for name, leaf in bound.leaves.items()} == {
        "alpha_p": (1, 1),
        "alpha_n": (1, 1),
    }
    assert bound.leaves["alpha_p"].dtype == torch.bfloat16
    assert bound.leaves["alpha_p"].item() == 166.0  # softplus(166) is 166
    assert bound.values["alpha_n"] == 41.25
    seen = observe("theirs", bound, X.bfloat16(), None, ["function", "slope", "slope_in_alpha_p"])
    assert seen["slope_in_alpha_p"].tolist() == [-1.0, 2.0]


def test_a_function_gets_effective_values_under_our_names() -> None:
    def theirs(x: Tensor, alpha_p: Tensor, beta: float) -> Tensor:
        return alpha_p * x + beta

    bound = FunctionImplementation("theirs", theirs).bind(catalog.XIELU, VALUES, torch.float32)
    assert bound.holds == "effective"
    assert bound(X).tolist() == [-165.5, 332.5]
    seen = observe("theirs", bound, X, None, ["slope_in_alpha_p"])
    assert seen["slope_in_alpha_p"].tolist() == [-1.0, 2.0]


def test_a_function_that_wants_numbers_gets_numbers() -> None:
    def theirs(x: Tensor, alpha_p: float) -> Tensor:
        if isinstance(alpha_p, Tensor):
            raise TypeError("a number, please")
        return alpha_p * x

    bound = FunctionImplementation("theirs", theirs).bind(catalog.XIELU, VALUES, torch.float32)
    assert not bound.leaves
    assert bound(X).tolist() == [-166.0, 332.0]


def test_what_takes_no_parameters_is_judged_at_the_initial_values_only() -> None:
    theirs = FunctionImplementation("theirs", lambda x: x)
    theirs.bind(catalog.XIELU, catalog.XIELU.initial_values(), torch.float32)
    with pytest.raises(DataError, match="takes none of the parameters alpha_p, alpha_n"):
        theirs.bind(catalog.XIELU, VALUES, torch.float32)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.double(), "returns (4,) float64 for (4,) float32"),
        (lambda x: x[:2], "returns (2,) float32 for (4,) float32"),
        (lambda x: 3.0, "returns float, not a tensor"),
    ],
)
def test_another_shape_or_dtype_is_told(function: object, said: str) -> None:
    bound = FunctionImplementation("theirs", function).bind(catalog.RELU, {}, torch.float32)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        called("theirs", bound, torch.arange(4.0))
    assert said in caught.value.line()


def test_the_input_that_makes_it_raise_is_named() -> None:
    def theirs(x: Tensor) -> Tensor:
        if (x == 37.0).any():
            raise ValueError("not 37")
        return x

    bound = FunctionImplementation("theirs", theirs).bind(catalog.RELU, {}, torch.float32)
    with pytest.raises(DataError, match=r"raises ValueError: not 37 \(.*at x = 37\)"):
        called("theirs", bound, torch.arange(100.0))
    crowded = FunctionImplementation("crowded", _alone).bind(catalog.RELU, {}, torch.float32)
    with pytest.raises(DataError, match=r"on 100 inputs at once, from x = 0"):
        called("crowded", crowded, torch.arange(100.0))


def _alone(x: Tensor) -> Tensor:
    if len(x) > 50:
        raise ValueError("too many")
    return x


def test_parameter_slopes_do_not_need_a_function_that_can_be_vectorised() -> None:
    def theirs(x: Tensor, alpha_p: Tensor) -> Tensor:
        return alpha_p * x * x if x.sum().item() > -1e9 else x

    bound = FunctionImplementation("theirs", theirs).bind(catalog.XIELU, VALUES, torch.float32)
    seen = observe("theirs", bound, X, None, ["slope_in_alpha_p"])
    assert seen["slope_in_alpha_p"].tolist() == [1.0, 4.0]


def test_what_cannot_be_differentiated_twice_is_judged_without_parameter_slopes() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, alpha: Tensor) -> Tensor:
            return x * alpha

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: object, into: Tensor) -> tuple[Tensor, Tensor]:
            return into, into.sum()

    def theirs(x: Tensor, alpha_p: Tensor) -> Tensor:
        return Once.apply(x, alpha_p)  # type: ignore[no-any-return]

    bound = FunctionImplementation("theirs", theirs).bind(catalog.XIELU, VALUES, torch.float32)
    seen = observe("theirs", bound, X, None, ["function", "slope", "slope_in_alpha_p"])
    assert list(seen) == ["function", "slope"]


def test_a_parameter_that_is_not_used_has_slope_zero() -> None:
    def theirs(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
        return alpha_p * x if x.max().item() > -1e9 else x

    bound = FunctionImplementation("theirs", theirs).bind(catalog.XIELU, VALUES, torch.float32)
    seen = observe("theirs", bound, X, None, ["slope_in_alpha_p", "slope_in_alpha_n"])
    assert seen["slope_in_alpha_p"].tolist() == [-1.0, 2.0]
    assert seen["slope_in_alpha_n"].tolist() == [0.0, 0.0]
