"""`stamm emit`: texts of other languages compute what the kernels compute, and bad requests are refused."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import stamm
from stamm.activations import Parameter, Piece, Softplus, Spec
from stamm.activations.catalog import ENTRIES, get
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.emitters.program import lowered, program_of, scalar_graph
from stamm.activations.emitters.syntax import literal, points
from stamm.activations.emitters.verb import TARGETS, emit
from stamm.activations.fused.graph import Graph, Node
from stamm.activations.module import build_activation
from stamm.activations.primitives.integrals import Side, integrated
from stamm.activations.spec import Gated
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Absolute, Between, Identity
from stamm.base.errors import ConfigError
from stamm.cli.emit import TARGET_NAMES
from stamm.cli.main import main
from tests.conftest import ROOT
from tests.unit.activations.witnesses import swept
from tests.unit.tutorials import tutorial_file

SIZES = np.logspace(-37, 37, 149)
SPECIAL = [0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, -1.0, 1.0, 0.5, -3.0]
X = np.concatenate([SIZES, -SIZES, np.linspace(-12, 12, 97), SPECIAL])
TABLE = spec_from_arguments(["all x: exp(-x**4/8)"], name="table")
# In the interpreter of its language; every target with a test is in one of the three lists.
COMMANDS: Mapping[str, Sequence[str]] = {
    "c": ("sh", "-c", "cc -std=c11 -O2 -Wall -Werror -o t {name}_test.c -lm && ./t"),
    "js": ("node", "{name}_test.mjs"),
    "latex": ("pdflatex", "-halt-on-error", "-interaction=nonstopmode", "{name}_test.tex"),
}
needs_latex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
IMPORTED = ("numpy", "jax", "mlx", "onnx")


def truth(
    spec: Spec, x: np.ndarray, up: np.ndarray, effective: Mapping[str, float]
) -> list[np.ndarray]:
    """Value and derivatives of the kernel in float64."""
    values = tuple(
        torch.tensor(effective[p.name], dtype=torch.float64) if p.trainable else p.initial
        for p in spec.parameters
    )
    kernel, given = kernel_of(spec), torch.from_numpy(x)
    value, (slope, *partials) = kernel.value(given, values), kernel.slopes(given, values)
    results = [value, slope, *partials]
    if isinstance(spec.arity, Gated):
        factor, change = torch.from_numpy(up), torch.ones(len(up), dtype=torch.float64)
        if kernel.up is not None:
            (change, *_) = kernel.up.slopes(factor, values)
            factor = kernel.up.value(factor, values)
        results = [value * factor, slope * factor, value * change, *(p * factor for p in partials)]
    return [torch.broadcast_to(r, given.shape).numpy() for r in results]


def module_of(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(text, names)
    return names


@pytest.mark.parametrize("spec", [*ENTRIES, TABLE], ids=lambda s: s.name)
def test_numpy_gives_the_numbers_of_the_kernel(spec: Spec) -> None:
    """At the initial values of the trained parameters, and at others that training can reach."""
    emitted = emit(spec, "numpy")
    names = module_of(emitted.text)
    up = np.cos(np.arange(len(X)))
    inputs = [X, up] if isinstance(spec.arity, Gated) else [X]
    module = build_activation(spec)
    raw = {name: float(stored) for name, stored in module.values(raw=True).items()}
    for moved in (0.0, 0.4, -0.7) if raw else (0.0,):
        trained = {p.name: raw[p.name] + moved for p in spec.trainable}
        module.load_values(trained, raw=True)
        effective = module.effective()
        parameters = [effective[p.name] for p in spec.trainable]
        results = names[f"{emitted.name}_gradients"](1.0, *inputs, *parameters)
        results = results if isinstance(results, tuple) else (results,)
        results = (names[emitted.name](*inputs, *parameters), *results)
        wanted = truth(spec, X, up, effective)
        for result, true in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, true, rtol=4e-12, atol=1e-300)
        zero = wanted[0] == 0
        assert np.array_equal(np.signbit(results[0][zero]), np.signbit(wanted[0][zero]))
    half = names[emitted.name](*(np.array([0.5], np.float16) for _ in inputs))
    assert half.dtype == np.float16


@pytest.mark.parametrize("target", ["c", "js", pytest.param("latex", marks=needs_latex)])
@pytest.mark.parametrize("spec", swept(ENTRIES))
def test_a_text_passes_the_test_that_comes_with_it(spec: Spec, target: str, tmp_path: Path) -> None:
    emitted = emit(spec, target, out=tmp_path)
    command = [word.format(name=emitted.name) for word in COMMANDS[target]]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


C_COMPILERS = ("gcc -std=c11", "g++ -std=c++17", "clang -std=c11", "clang++ -std=c++17")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", C_COMPILERS)
def test_c_of_every_entry_compiles_without_warnings_as_c_and_as_cpp(
    compiler: str, tmp_path: Path
) -> None:
    """With fused multiply-adds as well, where the processor has them."""
    command = compiler.split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    text, calls = "", []
    for spec in (*ENTRIES, TABLE):
        emitted = emit(spec, "c", out=tmp_path)
        test = emitted.files[f"{emitted.name}_test.c"].decode()
        text += test.replace("int main(void)", f"static int test_{emitted.name}(void)")
        calls.append(f"test_{emitted.name}()")
    source = tmp_path / ("all.cpp" if "++" in compiler else "all.c")
    source.write_text(f"{text}int main(void) {{ return {' + '.join(calls)}; }}\n")
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
    for flags in (["-O2"], ["-O3", "-march=native", "-ffp-contract=fast"]):
        built = subprocess.run(
            [*command, *strict, *flags, source.name, "-o", "all", "-lm"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr[-3000:]
        ran = subprocess.run(["./all"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
def test_cuda_of_every_entry_compiles_with_nvcc(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    texts = [emit(spec, "cuda").text.replace("#pragma once", "") for spec in (*ENTRIES, TABLE)]
    (tmp_path / "all.cu").write_text("".join(texts))
    built = subprocess.run(
        ["nvcc", "-ptx", "all.cu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr[-3000:]


EXTREMES = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.2e-38, -1.2e-38, 0.5, -3.0, 90.0, -90.0, 200.0, -200.0, 1e5, -1e5,
     1e20, -1e20, 1e30, -1e30, 1e38, -1e38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan],
    dtype=np.float32,
)  # fmt: skip
BELOW = 1.3e-38  # numbers that a library may take to be 0, or make so


def agree(result: np.ndarray, true: np.ndarray, *, rtol: float, atol: float) -> np.ndarray:
    """Where a result is the true number, infinity or NaN; a true number beyond the dtype is infinite."""
    with np.errstate(all="ignore"):
        rounded = true.astype(result.dtype).astype(np.float64)
        wide = result.astype(np.float64)
        near = np.abs(wide - rounded) <= rtol * np.abs(rounded) + atol
    return near | (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))


LIBRARIES = {
    "jax": """
import jax, jax.numpy as jnp
def run(module, name, given):
    value, back = jax.vjp(getattr(module, name), *map(jnp.asarray, given))
    return [value, *back(jnp.ones_like(value))]
""",
    "mlx": """
import mlx.core as mx
def run(module, name, given):
    value, into = mx.vjp(getattr(module, name), list(map(mx.array, given)), [mx.ones(given[0].shape)])
    return [*value, *into]
""",
    "onnx": """
import onnxruntime
onnxruntime.set_default_logger_severity(3)
def run(module, name, given):
    session = onnxruntime.InferenceSession(f"{name}.onnx")
    read = [*session.get_inputs(), *session.get_overridable_initializers()]
    names = [value.name for value in read if value.name != "weight"]
    return session.run(None, dict(zip(names, given)))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(LIBRARIES))
def test_extreme_numbers_of_float32(target: str, tmp_path: Path) -> None:
    """NaN, infinities, zeros, subnormal and the largest numbers, for every entry.

    XLA and MLX take subnormal numbers to be 0, also inside: results where one is read or made are not
    compared. 2*alpha*x of snake is infinite in the last binade.
    """
    up = np.cos(np.arange(len(EXTREMES))).astype(np.float32)
    names, given = [], []
    for spec in (*ENTRIES, TABLE):
        program = program_of(spec)
        emit(spec, target, out=tmp_path)
        names.append(program.name)
        constants = [np.full(len(EXTREMES), v, np.float32) for v in program.parameters.values()]
        given.append([EXTREMES, up][: len(program.inputs)] + constants)
    np.savez(tmp_path / "given.npz", **{f"{n}-{k}": g for n, gs in zip(names, given, strict=True) for k, g in enumerate(gs)})  # fmt: skip
    program_text = (
        f"{LIBRARIES[target]}import importlib, numpy as np\n"
        "given, results = np.load('given.npz'), {}\n"
        f"for name, count in {[(n, len(g)) for n, g in zip(names, given, strict=True)]!r}:\n"
        f"    module = importlib.import_module(name) if {target != 'onnx'} else None\n"
        "    row = run(module, name, [given[f'{name}-{k}'] for k in range(count)])\n"
        "    results |= {f'{name}-{k}': np.asarray(r) for k, r in enumerate(row)}\n"
        "np.savez('results.npz', **results)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program_text], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    results = np.load(tmp_path / "results.npz")
    wrong = []
    for spec, name in zip((*ENTRIES, TABLE), names, strict=True):
        effective = {p.name: p.initial for p in spec.parameters}
        wanted = truth(spec, EXTREMES.astype(np.float64), up.astype(np.float64), effective)
        for k, true in enumerate(wanted):
            good = agree(results[f"{name}-{k}"], true, rtol=2e-5, atol=2e-38)
            if target != "onnx":
                vanishing = np.abs(EXTREMES) < BELOW
                good |= vanishing | np.isin(EXTREMES, np.float32([90.0, -90.0]))
                good |= name in FLUSHED and EXTREMES < -9e37
            good |= name.startswith("snake") and np.abs(EXTREMES) > 2.0**127
            wrong += [(name, k, float(x)) for x in EXTREMES[~good]]
    assert not wrong, wrong


# 1/x is subnormal at the largest numbers.
FLUSHED = ("atlu", "xatlu", "xatlu_glu", "xssslur2", "xssslupr")


@pytest.mark.parametrize("target", ["c", "js"])
def test_extreme_numbers_of_float64(target: str, tmp_path: Path) -> None:
    largest = float(np.finfo(np.float64).max)
    inputs = [0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e150, -1e150, 1e300, -1e300, largest, -largest,
              math.inf, -math.inf, math.nan]  # fmt: skip
    for name in ("xielu", "gelu", "softplus", "golu", "mish", "elu", "softsign", "symlog", "table"):
        spec = TABLE if name == "table" else get(name)
        effective = {p.name: p.initial for p in spec.parameters}
        wanted = np.stack(truth(spec, np.array(inputs), np.zeros(len(inputs)), effective), -1)
        emitted = emit(spec, target, out=tmp_path)
        given = [repr(v) for v in program_of(spec).parameters.values()]
        count = len(given) + 1
        if target == "js":
            spelled = [repr(x).replace("inf", "Infinity").replace("nan", "NaN") for x in inputs]
            calls = [f"{a}{', '.join([x, *given])})" for x in spelled for a in (f"m.{emitted.name}(", f"...m.{emitted.name}_gradients(1, ")]  # fmt: skip
            text = f'import * as m from "./{emitted.name}.mjs";\nfor (const v of [{", ".join(calls)}]) console.log(Object.is(v, -0) ? "-0" : v);\n'
            (tmp_path / "run.mjs").write_text(text)
            command = "node run.mjs"
        else:
            spelled = [repr(x).replace("inf", "INFINITY").replace("nan", "NAN") for x in inputs]
            into = ", ".join(f"into + {k}" for k in range(count))
            lines = [
                f'printf("%.17g\\n", stamm_{emitted.name}({", ".join([x, *given])}));'
                f"stamm_{emitted.name}_gradients(1, {', '.join([x, *given])}, {into});"
                f'for (int k = 0; k < {count}; ++k) printf("%.17g\\n", into[k]);'
                for x in spelled
            ]
            body = f"double into[{count}]; {' '.join(lines)} return 0;"
            text = f'#include "{emitted.name}.h"\n#include <stdio.h>\nint main(void) {{ {body} }}\n'
            (tmp_path / "run.c").write_text(text)
            command = "cc -std=c11 -O2 run.c -o run -lm && ./run"
        ran = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        printed = [float(line.replace("Infinity", "inf")) for line in ran.stdout.split()]
        results = np.array(printed).reshape(len(inputs), count + 1)
        assert agree(results, wanted, rtol=1e-12, atol=1e-300).all(), (name, results, wanted)
        zero = wanted[:2, 0] == 0
        assert np.array_equal(np.signbit(results[:2, 0][zero]), np.signbit(wanted[:2, 0][zero]))


def test_products_do_not_overflow_before_they_are_divided() -> None:
    """x*x/(1 - x) of xssslur2 in float32 at -1e30, where x*x is infinite."""
    program = program_of(get("xssslur2"))
    x = torch.tensor([-1e30])
    graph = program.backward[torch.float32]
    into = computed(graph, [torch.ones(1), x], list(program.parameters.values()))
    slope = dict(zip(program.parameters, into[1:], strict=True))["alpha_n"]
    assert slope.item() == pytest.approx(1e30, rel=1e-6)


@pytest.mark.slow
def test_onnx_takes_x_of_any_shape_and_parameters_of_layers_and_neurons(tmp_path: Path) -> None:
    emit("xielu", "onnx", out=tmp_path)
    names = module_of(emit("xielu", "numpy").text)
    session = onnxruntime.InferenceSession(tmp_path / "xielu.onnx")
    assert "one for each of the last axis" in session.get_modelmeta().graph_description
    for shape in ((), (5,), (2, 3), (2, 1, 3, 4), (0, 3)):
        x = np.linspace(-3, 3, math.prod(shape), dtype=np.float32).reshape(shape)
        weight = np.array(np.cos(x))
        for axes in {(), shape[-1:]}:
            alpha = np.full(axes, 0.7, np.float32)
            y, *into = session.run(None, {"x": x, "weight": weight, "alpha_p": alpha})
            true = names["xielu_gradients"](weight, x, 0.7)
            np.testing.assert_allclose(y, names["xielu"](x, 0.7), rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(into[0], true[0], rtol=1e-6, atol=1e-7)
            summed = true[1].reshape(-1, alpha.size).sum(0).reshape(alpha.shape)
            assert y.shape == into[0].shape == shape and into[1].shape == alpha.shape
            np.testing.assert_allclose(into[1], summed, rtol=1e-5, atol=1e-6)


@needs_latex
@pytest.mark.slow
def test_latex_of_every_entry_and_of_hostile_texts_compiles(tmp_path: Path) -> None:
    parameters = (
        Parameter(name="a", initial=1e-7, bijection=Softplus()),
        Parameter(name="b", initial=1.0, bijection=Between(low=-1.0, high=2.5)),
        Parameter(name="c", initial=3.0, bijection=Absolute(above="-2")),
        Parameter(name="d", initial=1.0, bijection=Identity()),
    )
    hostile = Spec(
        name="hostile_x",
        title="50% & $x$ \u2203 ^^M _ {",
        pieces=(Piece(where="all x", formula="a*exp(-x**4/8) + b*tanh(c*x)*d"),),
        parameters=parameters,
        source="100% sure & ~^{ } # $ \u4e2d \u2014 \u00e9 et al. 2020, x_y",
    )
    names = [emit(spec, "latex", out=tmp_path).name for spec in (*ENTRIES, TABLE, hostile)]
    text = emit(hostile, "latex").text
    for expected in (
        r"\frac{\partial f}{\partial a} &= \operatorname{table\_e2fa9a73}\left(x\right)",
        r"\left(x\right) &= \int_{0}^{x} \exp\left(\frac{-t^{4}}{8}\right)\,\mathrm{d}t",
        r"a &> 0, \quad \text{initially } 10^{-7}",
        r"b &\in \left(-1.0, 2.5\right)",
        r"c &\ge \left|-2\right|",
        r"Source: 100\% sure \& \~{}\^{}\{ \} \# \$ ? --- \u00e9 et al. 2020, x\_y.",
    ):
        assert expected.replace(r"\u00e9", "\u00e9") in text, text
    inputs = "".join(f"\\input{{{name}.tex}}\n" for name in names)
    (tmp_path / "all.tex").write_text(
        "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{amsmath}\n"
        f"\\begin{{document}}{inputs}\\end{{document}}\n"
    )
    ran = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:]


def test_latex_has_gradients_domains_and_definitions() -> None:
    text = emit("xielu", "latex").text
    for row in (
        r"\frac{\partial f}{\partial \alpha_{p}} &= \begin{cases} 0 & x \le 0 \\ x^{2} & x > 0 \end{cases}",
        r"\alpha_{p} &> 0, \quad \text{initially } 0.8",
        r"\alpha_{n} &> \beta",
        r"\beta &= 0.5",
        "Source: Huang and Schlag 2024",
    ):
        assert row in text
    gated = emit("swiglu_oai", "latex").text
    assert r"y &= f(\mathrm{gate})\,h(\mathrm{up})" in gated and r"\quad h(0) = 1" in gated
    assert r"\sigma\left(x\right) &= \frac{1}{1 + \exp\left(-x\right)}" in gated
    assert r"\text{surrogate of } f'(x)" in emit("helu", "latex").text
    for spec in ENTRIES:
        text = emit(spec, "latex").text
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        assert text.count(r"\left") == text.count(r"\right"), spec.name


@pytest.mark.slow
@pytest.mark.parametrize("target", IMPORTED)
def test_modules_of_every_entry_pass_the_tests_that_come_with_them(
    target: str, tmp_path: Path
) -> None:
    """In one process: jax and onnxruntime take seconds to load."""
    written = [emit(spec, target, out=tmp_path) for spec in (*ENTRIES, TABLE)]
    tests = [f"{emitted.name}_test" for emitted in written]
    program = (
        "import importlib\n"
        f"for name in {tests!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    for test in [t for n, t in vars(module).items() if n.startswith('test_')]:\n"
        "        test()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_every_test_that_is_written_runs_here() -> None:
    assert {name for name, t in TARGETS.items() if t.test} == {*COMMANDS, *IMPORTED}


@pytest.mark.slow
def test_jax_differentiates_maps_and_compiles(tmp_path: Path) -> None:
    emit("xielu", "jax", out=tmp_path)
    program = """
import jax, jax.numpy as jnp, numpy as np
from xielu import xielu
x = jnp.linspace(-4, 4, 24).reshape(2, 12)
alpha = jnp.full((12,), 0.7)
f = lambda x, a, b: (jnp.sin(x) * xielu(x, a, b)).sum()
into = jax.jit(jax.grad(f, (0, 1, 2)))(x, alpha, jnp.float32(0.8))
assert [g.shape for g in into] == [(2, 12), (12,), ()]
step = 1e-2
for k in range(3):
    given = [x, alpha, jnp.float32(0.8)]
    moved = [[g + s * step * (j == k) for j, g in enumerate(given)] for s in (1, -1)]
    change = (f(*moved[0]) - f(*moved[1])) / (2 * step)
    np.testing.assert_allclose(into[k].sum(), change, rtol=2e-3)
rows = jax.vmap(xielu, (0, None, None))(x, 0.8, 0.8)
np.testing.assert_array_equal(rows, xielu(x))
assert xielu(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
jax.config.update("jax_enable_x64", True)
wide = xielu(jnp.float64(-1e-9))
assert wide.dtype == jnp.float64 and abs(wide / -5e-10 - 1) < 1e-8
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_numpy_takes_integers_and_a_parameter_for_each_channel() -> None:
    names = module_of(emit("xielu", "numpy").text)
    whole = names["xielu"](np.array([2, -1]))
    np.testing.assert_array_equal(whole, names["xielu"](np.array([2.0, -1.0])))
    assert whole.dtype == np.float64 and whole[1] != 0 and names["xielu"](-1) == whole[1]
    wide = names["xielu"](np.array([[1.0]], np.float32), np.array([0.5, 1.0, 2.0]))
    np.testing.assert_array_equal(wide, np.array([[1.0, 1.5, 2.5]], np.float32))
    into = names["xielu_gradients"](1.0, np.array([[1.0]], np.float32), np.array([0.5, 1.0, 2.0]))
    assert {g.shape for g in into} == {(1, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["jax", "mlx"])
def test_integers_give_the_numbers_of_equal_floats(target: str, tmp_path: Path) -> None:
    emit("xielu", target, out=tmp_path)
    program = """
import numpy as np
from xielu import xielu
given = np.array([2, -1, -3])
whole, true = np.asarray(xielu(given)), np.asarray(xielu(given.astype(np.float32)))
assert whole.dtype == np.float32, whole.dtype
np.testing.assert_array_equal(whole, true)
assert float(xielu(-1)) == true[1]
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        ("c", "-Ofast"),
        ("c", "-ffinite-math-only"),
        ("cuda", "-D__device__= -D__forceinline__=inline -D__USE_FAST_MATH__"),
        ("metal", "-ffast-math"),
    ],
)
def test_flags_that_change_the_formulas_are_refused(
    target: str, flags: str, tmp_path: Path
) -> None:
    module = next(iter(emit("gelu", target, out=tmp_path).files))
    (tmp_path / "metal_stdlib").write_text(METAL)
    (tmp_path / "all.cpp").write_text(f'#include <cmath>\n#include "{module}"\n')
    for chosen in ([], flags.split()):
        command = ["c++", "-I.", "-w", "-D__device__=", "-D__forceinline__=inline", *chosen]
        ran = subprocess.run(
            [*command, "-c", "all.cpp"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (ran.returncode != 0) == bool(chosen), ran.stderr
    assert "without fast math" in ran.stderr


METAL = """
#include <cmath>
#define thread
namespace metal {
using std::fabs; using std::floor; using std::abs;
namespace precise { using namespace std; }
}
"""
CHECK = """
#include <cmath>
#include <cstdio>
{include}
int main() {{
  const double rows[][{width}] = {{{rows}}};
  for (auto &row : rows) {{
    float into[{count}];
    const double found = {name}({given});
    {name}_gradients(1.0f, {given}, {results});
    for (int k = 0; k <= {count}; ++k) {{
      const double result = k ? into[k - 1] : found, expected = row[{count} + k];
      if (!(std::fabs(result - expected) <= 1e-5 * std::fabs(expected) + 2e-38)) {{
        std::printf("at %g, result %d: %.9g is not %.9g", row[0], k, result, expected);
        return 1;
      }}
    }}
  }}
}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda", "metal"])
def test_device_functions_give_the_numbers_of_the_kernel_as_cpp(
    target: str, tmp_path: Path
) -> None:
    """All entries in one program for each ten, with the qualifiers of the language defined away."""
    (tmp_path / "metal_stdlib").write_text(METAL)
    for first in range(0, len(ENTRIES), 10):
        programs, calls = "", ""
        for spec in ENTRIES[first : first + 10]:
            program, emitted = program_of(spec), emit(spec, target)
            count = len(program.inputs) + len(program.parameters)
            text = CHECK.format(
                include="",
                width=2 * count + 1,
                count=count,
                name=f"of_{spec.name}::stamm_{spec.name}",
                rows=", ".join(
                    "{" + ", ".join(map(repr, [*given, *true])) + "}"
                    for given, true in points(program)
                ),
                given=", ".join(f"float(row[{k}])" for k in range(count)),
                results=", ".join(f"into + {k}" for k in range(count)),
            )
            text = text.replace("int main()", f"int check_{spec.name}()").replace(
                "\n  }\n}\n", "\n  }\n  return 0;\n}\n"
            )
            body = emitted.text.replace("#pragma once", "").replace("#include <metal_stdlib>", "")
            programs += f"namespace of_{spec.name} {{\n{body}\n}}\n{text}"
            calls += f" || check_{spec.name}()"
        head = '#include "metal_stdlib"\n' if target == "metal" else "#include <cmath>\n"
        (tmp_path / "all.cpp").write_text(f"{head}{programs}int main() {{ return 0{calls}; }}\n")
        flags = [
            "-std=c++17",
            "-O1",
            "-w",
            "-I.",
            "-D__device__=static",
            "-D__forceinline__=inline",
        ]
        built = subprocess.run(
            ["c++", *flags, "all.cpp", "-o", "all"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr[-3000:]
        ran = subprocess.run(["./all"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (ENTRIES[first].name, ran.stdout)


@pytest.mark.parametrize("name", ["wgsl", "metal", "cuda", "triton"])
def test_languages_without_a_compiler_here_have_every_entry(name: str) -> None:
    without = {"aglu", "repu", "xiprelup"} if name == "wgsl" else set()  # they have a NaN
    for spec in ENTRIES:
        if spec.name in without:
            with pytest.raises(ConfigError, match="has no constant nan"):
                emit(spec, name)
            continue
        text = emit(spec, name).text
        assert spec.content_hash in text and "{0}" not in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", ["xielu", "xgelu", "xatlu", "velu", "swiglu_oai", "tanhsoft_2"])
def test_triton_compiles_the_functions_for_a_gpu(name: str, tmp_path: Path) -> None:
    program = program_of(get(name))
    emit(name, "triton", out=tmp_path)
    loaded = [f"tl.load({n}_ptr + lane)" for n in program.inputs]
    pointers = ", ".join(f"{n}_ptr" for n in program.inputs)
    given = ", ".join([*loaded, *map(repr, program.parameters.values())])
    count = len(program.inputs) + len(program.parameters)
    gradients = ", ".join(f"g{k}" for k in range(count))
    (tmp_path / "kernel_of_it.py").write_text(
        "import triton\nimport triton.language as tl\n"
        f"from {program.name} import {program.name}, {program.name}_gradients\n\n\n"
        f"@triton.jit\ndef kernel({pointers}, y_ptr, BLOCK: tl.constexpr):\n"
        "    lane = tl.arange(0, BLOCK)\n"
        f"    y = {program.name}({given})\n"
        f"    {gradients} = {program.name}_gradients(y, {given})\n"
        f"    tl.store(y_ptr + lane, y + {gradients.replace(', ', ' + ')})\n"
    )
    run = (
        "import torch\nfrom kernel_of_it import kernel\n"
        "from tests.unit.activations.ahead_of_time import compiled_for_nvidia\n"
        f"arrays = [torch.zeros(128) for _ in range({len(program.inputs) + 1})]\n"
        "made = compiled_for_nvidia(kernel, arrays, {'BLOCK': 128})\n"
        "assert made.spilled == 0 and made.registers\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", run],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_a_constant_that_the_language_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="the language has no constant nan"):
        literal("", "", single=True)(math.nan)
    with pytest.raises(ConfigError, match="the language has no constant inf"):
        literal("", "0", single=True)(1e39)
    assert literal("inf", "nan", single=True, ending="f")(-0.0) == "(-0.0f)"
    assert literal("inf", "nan")(1.0) == "1.0" and literal("inf", "nan")(1e300) == "1e+300"


def test_the_help_lists_every_target() -> None:
    assert sorted(TARGETS) == TARGET_NAMES.split(", ")


def test_a_missing_function_is_computed_from_others() -> None:
    known = frozenset({
        "add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "abs", "floor", "minimum", "where", "lt", "gt",
        "eq", "atan", "sin", "cos",
    })  # fmt: skip
    x = torch.linspace(-0.97, 0.97, 41, dtype=torch.float64)
    wide = torch.cat([x * 27, x * 1e-6])
    for name, at in (("erf", wide), ("erfc", wide), ("log1p", x), ("asin", x), ("tan", x)):
        graph = Graph(dtype=torch.float64, inputs=1)
        made = graph.add(Node(name, (graph.add(Node("input")).place,)))
        graph.outputs = (made.place,)
        (result,) = computed(lowered(graph, known, "a test"), [at])
        torch.testing.assert_close(result, getattr(torch, name)(at), rtol=2e-14, atol=1e-300)
    with pytest.raises(ConfigError, match="a test has no function 'exp', which this activation"):
        lowered(program_of(get("swish")).forward[torch.float64], known - {"exp"}, "a test")


def computed(
    graph: Graph, inputs: Sequence[torch.Tensor], parameters: Sequence[float] = ()
) -> list[torch.Tensor]:
    values: dict[int, Any] = {}
    for index in graph.needed():
        node = graph.nodes[index]
        taken = [values[t] for t in node.takes]
        match node.name:
            case "input":
                values[index] = inputs[int(node.number)]
            case "parameter":
                values[index] = torch.tensor(parameters[int(node.number)], dtype=graph.dtype)
            case "constant":
                values[index] = torch.tensor(node.number, dtype=graph.dtype)
            case name:
                values[index] = getattr(torch, name)(*taken)
    return [values[place] for place in (*graph.outputs, *graph.sums)]


def test_an_activation_of_ones_own_is_emitted_for_a_target_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tutorial_file("emission_target", tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    assert main(["emit", "mine.py:RAMP", "target=mine.py:LUA"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("-- ramp\n") and "function ramp(x, a)\n" in text and "end\n" in text


def test_bad_requests_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no target 'jxa'") as error:
        emit("xielu", "jxa")
    assert "jax" in error.value.line()
    with pytest.raises(ConfigError, match=r"xielu\.onnx is not text"):
        _ = emit("xielu", "onnx").text
    with pytest.raises(ConfigError, match="--out '' is empty"):
        emit("relu", "c", out="")
    (tmp_path / "relu.h").write_text("mine")
    with pytest.raises(ConfigError, match=r"relu\.h exists and has other contents"):
        emit("relu", "c", out=tmp_path)
    assert (tmp_path / "relu.h").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
    emit("relu", "c", out=tmp_path, force=True, dry_run=True)
    assert (tmp_path / "relu.h").read_text() == "mine"
    emit("relu", "c", out=tmp_path, force=True)
    assert "stamm_relu" in (tmp_path / "relu.h").read_text()


def test_the_command_writes_and_lists_what_the_function_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", "xielu", "js", "--out", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    emitted = stamm.emit("xielu", "js")
    assert {name: (tmp_path / name).read_bytes() for name in listed["bytes"]} == emitted.files
    assert main(["emit", "xielu", "js", "--out", str(tmp_path / "other"), "--dry-run"]) == 0
    assert not (tmp_path / "other").exists()
    assert "would write" in capsys.readouterr().out


def test_parameters_with_names_that_texts_use_get_others(tmp_path: Path) -> None:
    own = [Parameter(name=n, initial=0.5, bijection=Softplus()) for n in ("v4", "weight", "long")]
    pieces = (Piece(where="all x", formula="v4 + weight*long*exp(-x**2)"),)
    spec = Spec(name="named", title="", pieces=pieces, parameters=tuple(own), source="")
    emitted = emit(spec, "c", out=tmp_path)
    command = COMMANDS["c"][2].format(name="named")
    assert "double v4_, double weight_, double long_" in emitted.text
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("beta", ("beta",)), ("jax", ("y", "one")), ("math", ("d_x",)), ("parameters", ("weight", "weight_"))],
)  # fmt: skip
def test_names_that_collide_are_told_apart(
    name: str, parameters: tuple[str, ...], tmp_path: Path
) -> None:
    own = [Parameter(name=n, initial=0.5, bijection=Softplus()) for n in parameters]
    pieces = (Piece(where="all x", formula=" + ".join(parameters)),)
    spec = Spec(name=name, title="", pieces=pieces, parameters=tuple(own), source="")
    for target in ("numpy", "js"):
        emitted = emit(spec, target, out=tmp_path / target)
        command = {"numpy": sys.executable, "js": "node"}[target], list(emitted.files)[1]
        ran = subprocess.run(
            command, cwd=tmp_path / target, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    assert len(emitted.name) == len(name) + (name != "beta")
    assert f"return {emitted.name}(" in emit(spec, "jax").text
    assert parameters[0] != "beta" or "def _saved(x, beta_)" in emit(spec, "jax").text
    assert emit(spec, "onnx").files


def test_the_head_says_what_the_gradients_are() -> None:
    text = emit("helu", "js").text
    assert "// Gradients use a surrogate, not f'(x): 1 where x > -0.05\n" in text
    assert "surrogate" not in emit("relu", "js").text
    text = emit("swiglu_oai", "js").text
    assert "// h'(x) = 1 where" in text and "h'(x)" not in emit("swiglu", "js").text


def test_the_head_has_the_error_of_a_table() -> None:
    line = r"// The integral of exp\(-x\*\*4/8\) from 0: a table of \d+ cells, within \S+ of \|F\| \+ \|x F'\|, or 1e-18\n"
    assert re.search(line, emit(TABLE, "c").text)
    assert "a table of" not in emit("gelu", "c").text
    with pytest.raises(ConfigError, match="Triton has no function 'gather', which this activation"):
        emit(TABLE, "triton")


def test_a_table_of_a_trained_parameter_is_refused() -> None:
    """The kernel is a stand-in: to derive a real one takes half a minute."""

    def value(x: Any, parameters: Any) -> Any:
        end = Side(edges=(1.0,), order=1, tail=-1)
        return integrated(x, parameters, lambda u, _: u, 0.0, end, end)

    kernel = replace(kernel_of(get("relu")), value=value)
    with pytest.raises(ConfigError, match=r"depends on a trained parameter.*Make the parameter"):
        scalar_graph("forward", kernel, (), torch.float32)


def test_a_title_does_not_choose_the_encoding_of_a_module() -> None:
    pieces = (Piece(where="all x", formula="1"),)
    spec = Spec(name="own", title="Sparse coding: a line", pieces=pieces, source="")
    compile(emit(spec, "numpy").text.encode(), "own.py", "exec")


def test_device_functions_do_not_hide_functions_of_the_language() -> None:
    for target in ("wgsl", "cuda", "metal"):
        text = emit("tanh", target).text
        assert " stamm_tanh(" in text and " stamm_tanh_gradients(" in text


def test_a_parameter_of_a_softplus_is_an_effective_value() -> None:
    spec = spec_from_arguments(["all x: a"], ["a=0.25:softplus"], name="own")
    names = module_of(emit(spec, "numpy").text)
    assert names["PARAMETERS"] == {"a": 0.25} and names["own"](8.0) == 2.0
