"""Targets in Python: NumPy, JAX, MLX and Triton."""

from __future__ import annotations

import torch

from stamm.activations.emitters.program import SHORT, Program
from stamm.activations.emitters.syntax import (
    SHORT_ENDING,
    EmissionTarget,
    Passes,
    Syntax,
    calls,
    defaults,
    indented,
    literal,
    passes,
    points,
)


def _extremes(module: str) -> str:
    """Functions that keep the first of two equal zeros, and are NaN where an operand is."""
    return "".join(
        f"def {name}(a, b):\n    return {module}.where((b {sign} a) | (b != b), b, a)\n\n\n"
        for name, sign in (("_least", "<"), ("_most", ">"))
    )


_SUMMED = '''def _summed(gradient, like):
    """The sum over the axes along which `like` was repeated."""
    extra = gradient.ndim - like.ndim
    repeated = [k + extra for k, size in enumerate(like.shape) if size == 1]
    axes = (*range(extra), *repeated)
    total = gradient.sum(axis=axes) if axes else gradient
    return total.reshape(like.shape).astype(like.dtype)


'''


def _returned(written: Passes) -> tuple[list[str], list[str]]:
    """The statements of function and gradients with their results, as Python returns them."""
    gradients = f"return {', '.join(written.gradients)}"
    return [*written.forward, f"return {written.value}"], [*written.backward, gradients]


# NumPy: float64 inside, whatever the array holds.
_NUMPY = Syntax(
    target="NumPy",
    operations=calls("np.", {
        "erf": "_erf({0})", "erfc": "_erfc({0})", "asin": "np.arcsin({0})", "atan": "np.arctan({0})",
        "asinh": "np.arcsinh({0})", "acosh": "np.arccosh({0})", "atan2": "np.arctan2({0}, {1})",
        "pow": "np.power({0}, {1})",
        "minimum": "_least({0}, {1})",
        "maximum": "_most({0}, {1})",
    }),
    number=literal("np.inf", "np.nan"),
    assign="{name} = {value}",
    gather="{table}[np.asarray({index}, dtype=np.int64)]",
    table="{name} = np.array([{row}])",
)  # fmt: skip


def _numpy(program: Program) -> str:
    written = passes(program, _NUMPY, torch.float64)
    rounded = [f"_like({name}, shape, dtype)" for name in written.gradients]
    forward = [*written.forward, f"return _like({written.value}, shape, dtype)"]
    backward = [*written.backward, f"return {', '.join(rounded)}"]
    name, inputs = program.name, list(program.inputs)
    used = "".join(forward + backward)
    library = [
        f"_{function} = np.vectorize(math.{function}, otypes=[float])\n"
        for function in ("erf", "erfc")
        if f"_{function}(" in used
    ]
    arguments = ", ".join([*inputs, *defaults(program)])
    names = ", ".join([*inputs, *program.parameters])
    return (
        ("import math\n\n" if library else "")
        + "import numpy as np\n\n"
        + "".join(library)
        + f"PARAMETERS = {dict(program.parameters)!r}\n\n\n"
        + _extremes("np")
        + "def _floating(array):\n"
        + "    dtype = np.asarray(array).dtype\n"
        + '    return np.dtype(np.float64) if dtype.kind in "biu" else dtype\n\n\n'
        + "def _like(value, shape, dtype):\n"
        + "    return np.broadcast_to(value, shape).astype(dtype)\n\n\n"
        + f'def {name}({arguments}):\n    """The function, in the dtype of {inputs[0]}, float64 for integers; float64 inside."""\n'
        + indented(_numpy_start(inputs, list(program.parameters)))
        + "    with np.errstate(all=\"ignore\"):\n"
        + indented(forward, 8)
        + f"\n\ndef {name}_gradients(weight, {arguments}):\n"
        + f'    """weight times the derivatives in {names}, elementwise: sum those of a parameter."""\n'
        + indented(_numpy_start([*inputs, "weight"], list(program.parameters)))
        + "    with np.errstate(all=\"ignore\"):\n"
        + indented(backward, 8)
    )  # fmt: skip


def _numpy_start(inputs: list[str], parameters: list[str]) -> list[str]:
    return [
        f"dtype = _floating({inputs[0]})",
        *(f"{name} = np.asarray({name}, dtype=np.float64)" for name in [*inputs, *parameters]),
        "shape = np.broadcast_shapes("
        + f"{', '.join(f'{name}.shape' for name in [*inputs, *parameters])})",
    ]


def _numpy_test(program: Program) -> str:
    single = len(program.inputs) + len(program.parameters) == 1
    call = "[{name}_gradients(1.0, *GIVEN)]" if single else "{name}_gradients(1.0, *GIVEN)"
    return _python_test(program, "", "np.asarray", call)


# JAX: 16-bit arrays in float32, float64 arrays in float64.
_JAX_CALLS = calls("jnp.", {
    "erf": "jax.scipy.special.erf({0})", "erfc": "jax.scipy.special.erfc({0})",
    "asin": "jnp.arcsin({0})", "atan": "jnp.arctan({0})", "asinh": "jnp.arcsinh({0})",
    "acosh": "jnp.arccosh({0})", "atan2": "jnp.arctan2({0}, {1})", "pow": "jnp.power({0}, {1})",
    "minimum": "_least({0}, {1})", "maximum": "_most({0}, {1})",
})  # fmt: skip
_JAX = Syntax(
    target="JAX",
    operations=_JAX_CALLS,
    number=literal("jnp.inf", "jnp.nan"),
    assign="{name} = {value}",
    gather="jnp.take({table}, {index}.astype(jnp.int32))",
    table="{name} = jnp.array([{row}], dtype=dtype)",
)


def _jax(program: Program) -> str:
    name, inputs = program.name, list(program.inputs)
    names = [*inputs, *program.parameters]
    listed = ", ".join(names)
    functions = ""
    for bits, dtype in ((16, SHORT), (32, torch.float32), (64, torch.float64)):
        forward, backward = _returned(passes(program, _JAX, dtype))
        start = indented([f"dtype = jnp.float{max(bits, 32)}"])
        functions += f"def _forward{bits}({listed}):\n{start}{indented(forward)}\n\n"
        functions += f"def _backward{bits}(weight, {listed}):\n{start}{indented(backward)}\n\n"
    arguments = ", ".join([*inputs, *defaults(program)])
    single = "," if len(names) == 1 else ""
    return (
        "import jax\nimport jax.numpy as jnp\n\n"
        f"PARAMETERS = {dict(program.parameters)!r}\n\n\n{_extremes('jnp')}{functions}"
        "def _floating(array):\n"
        "    dtype = jnp.asarray(array).dtype\n"
        "    return dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)\n\n\n"
        "_forward = {4: _forward32, 8: _forward64}\n_backward = {4: _backward32, 8: _backward64}\n\n\n"
        "def _wide(*arrays):\n"
        "    size = _floating(arrays[0]).itemsize\n"
        "    dtype = jnp.float64 if size == 8 else jnp.float32\n"
        "    return size, [jnp.asarray(array).astype(dtype) for array in arrays]\n\n\n"
        f"{_SUMMED}"
        f"@jax.custom_vjp\ndef {name}({arguments}):\n"
        f'    """The function, elementwise; a parameter has one number, or one for each of the last axis."""\n'
        f"    size, wide = _wide({listed})\n"
        f"    return _forward.get(size, _forward16)(*wide).astype(_floating({inputs[0]}))\n\n\n"
        f"def _saved({listed}):\n"
        f"    return {name}({listed}), ({listed}{single})\n\n\n"
        "def _gradients(saved, weight):\n"
        "    size, (_, *wide) = _wide(saved[0], *saved)\n"
        "    weight = weight.astype(wide[0].dtype)\n"
        "    into = _backward.get(size, _backward16)(weight, *wide)\n"
        + ("    into = (into,)\n" if len(names) == 1 else "")
        + "    shape = jnp.broadcast_shapes(weight.shape, wide[0].shape)\n"
        "    return tuple(\n"
        "        _summed(jnp.broadcast_to(gradient, shape), jnp.asarray(like))\n"
        "        for gradient, like in zip(into, saved)\n"
        "    )\n\n\n"
        f"{name}.defvjp(_saved, _gradients)\n"
    )


def _jax_test(program: Program) -> str:
    call = "jax.vjp({name}, *GIVEN)[1](jnp.ones_like(GIVEN[0]))"
    return _python_test(program, "import jax\nimport jax.numpy as jnp", "jnp.asarray", call)


# MLX: float32 inside.
_MLX = Syntax(
    target="MLX",
    operations=calls("mx.", {
        "erfc": "", "erf": "", "asin": "mx.arcsin({0})", "atan": "mx.arctan({0})",
        "asinh": "mx.arcsinh({0})", "acosh": "mx.arccosh({0})", "atan2": "mx.arctan2({0}, {1})",
        "pow": "mx.power({0}, {1})",
        "minimum": "_least({0}, {1})", "maximum": "_most({0}, {1})",
    }),
    number=literal("mx.inf", "mx.nan"),
    assign="{name} = {value}",
    gather="mx.take({table}, {index}.astype(mx.int32))",
    table="{name} = mx.array([{row}])",
)  # fmt: skip


def _mlx(program: Program) -> str:
    functions = ""
    for bits, dtype in ((16, SHORT), (32, torch.float32)):
        forward, backward = _returned(passes(program, _MLX, dtype))
        functions += f"def _forward{bits}({{0}}):\n{indented(forward)}\n\n"
        functions += f"def _backward{bits}(weight, {{0}}):\n{indented(backward)}\n\n"
    name, inputs = program.name, list(program.inputs)
    names = [*inputs, *program.parameters]
    listed = ", ".join(names)
    arguments = ", ".join([*inputs, *defaults(program)])
    return (
        "import mlx.core as mx\n\n"
        f"PARAMETERS = {dict(program.parameters)!r}\n\n\n{_extremes('mx')}"
        f"{functions.replace('{0}', listed)}{_SUMMED}"
        "@mx.custom_function\n"
        f"def _function({listed}):\n"
        f"    wide = [array.astype(mx.float32) for array in ({listed},)]\n"
        f"    forward = _forward16 if {inputs[0]}.dtype.size == 2 else _forward32\n"
        f"    return forward(*wide).astype({inputs[0]}.dtype)\n\n\n"
        "@_function.vjp\n"
        "def _gradients(primals, weight, output):\n"
        "    primals = primals if isinstance(primals, (list, tuple)) else [primals]\n"
        "    wide = [array.astype(mx.float32) for array in primals]\n"
        "    backward = _backward16 if primals[0].dtype.size == 2 else _backward32\n"
        "    into = backward(weight.astype(mx.float32), *wide)\n"
        + ("    into = (into,)\n" if len(names) == 1 else "")
        + "    shape = output.shape\n"
        "    gradients = [\n"
        "        _summed(mx.broadcast_to(gradient, shape), like)\n"
        "        for gradient, like in zip(into, primals)\n"
        "    ]\n"
        + ("    return gradients[0]\n" if len(names) == 1 else "    return gradients\n")
        + f"\n\ndef {name}({arguments}):\n"
        '    """The function, elementwise; a parameter has one number, or one for each of the last axis."""\n'
        f"    first, *rest = (mx.array(array) for array in ({listed},))\n"
        "    if not mx.issubdtype(first.dtype, mx.floating):\n"
        "        first = first.astype(mx.float32)\n"
        "    return _function(first, *rest)\n"
    )


def _mlx_test(program: Program) -> str:
    call = "mx.vjp({name}, GIVEN, [mx.ones_like(GIVEN[0])])[1]"
    return _python_test(program, "import mlx.core as mx", "mx.array", call)


_TRITON = Syntax(
    target="Triton",
    operations=calls("libdevice.", {
        "exp": "tl.exp({0})", "log": "tl.log({0})", "sqrt": "tl.sqrt_rn({0})", "sin": "tl.sin({0})",
        "cos": "tl.cos({0})", "abs": "tl.abs({0})", "floor": "tl.floor({0})", "erf": "tl.erf({0})",
        "where": "tl.where({0}, {1}, {2})", "sign": "",
        "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    }) | {"div": "tl.div_rn({0}, {1})"},
    number=literal('float("inf")', 'float("nan")'),
    assign="{name} = {value}",
)  # fmt: skip


def _triton(program: Program) -> str:
    listed = ", ".join([*program.inputs, *program.parameters])
    functions = []
    for ending, dtype in (("", torch.float32), (SHORT_ENDING, SHORT)):
        forward, backward = _returned(passes(program, _TRITON, dtype))
        name = f"{program.name}{ending}"
        functions += [f"@triton.jit\ndef {name}({listed}):\n{indented(forward)}"]
        functions += [f"@triton.jit\ndef {name}_gradients(weight, {listed}):\n{indented(backward)}"]
    imports = (
        "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
    )
    return imports + "\n\n" + "\n\n".join(functions)


def _python_test(program: Program, imports: str, array: str, gradients: str) -> str:
    """Values and gradients in float32; an error of rounding of the arguments is multiplied by 100."""
    rows = ",\n".join(f"    ({given}, {true})" for given, true in points(program))
    name = f"emitted.{program.name}"
    return (
        f"{imports}\nimport numpy as np\n\nimport {program.name} as emitted\n\n"
        f"ROWS = [\n{rows},\n]\n"
        f"GIVEN = [{array}(np.array(column, np.float32)) for column in zip(*(row[0] for row in ROWS))]\n\n\n"
        "def check(result, column):\n"
        "    true = np.array([row[1][column] for row in ROWS])\n"
        "    error = np.abs(np.asarray(result, np.float64) - true)\n"
        "    assert np.all(error <= 1e-5 * np.abs(true) + 2e-38), (column, result, true)\n\n\n"
        f"def test_values():\n    check({name}(*GIVEN), 0)\n\n\n"
        f"def test_gradients():\n    gradients = {gradients.format(name=name)}\n"
        f"    assert len(gradients) == {len(program.inputs) + len(program.parameters)}\n"
        "    for column, gradient in enumerate(gradients, 1):\n        check(gradient, column)\n\n\n"
        'if __name__ == "__main__":\n    test_values()\n    test_gradients()\n'
    )


TARGETS = (
    EmissionTarget(
        name="numpy",
        ending=".py",
        comment="#",
        write=_numpy,
        test=_numpy_test,
        test_ending="_test.py",
    ),
    EmissionTarget(
        name="jax", ending=".py", comment="#", write=_jax, test=_jax_test, test_ending="_test.py"
    ),
    EmissionTarget(
        name="mlx", ending=".py", comment="#", write=_mlx, test=_mlx_test, test_ending="_test.py"
    ),
    EmissionTarget(name="triton", ending=".py", comment="#", write=_triton),
)
