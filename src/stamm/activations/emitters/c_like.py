"""Targets in languages like C: C, JavaScript, CUDA, Metal and WGSL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from stamm.activations.emitters.program import SHORT, Program
from stamm.activations.emitters.syntax import (
    SHORT_ENDING,
    WITHIN,
    EmissionTarget,
    Syntax,
    calls,
    defaults,
    indented,
    literal,
    passes,
    points,
    statements,
)

_C_WHERE = "{0} ? {1} : {2}"
# The first of two equal zeros; NaN where an operand is.
_LEAST = "({1} < {0} || {1} != {1} ? {1} : {0})"
_MOST = "({1} > {0} || {1} != {1} ? {1} : {0})"
# GCC, clang and Metal define the first with -ffast-math, GCC the next three with parts of it, nvcc and
# MSVC the last two.
_GUARD = """#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \\
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \\
    defined(__USE_FAST_MATH__) || defined(_M_FP_FAST)
#error "compile without fast math: the formulas depend on rounding, infinities and NaN"
#endif

"""
_C = Syntax(
    target="C",
    operations=calls(
        "",
        {"abs": "fabs", "minimum": "stamm_minimum", "maximum": "stamm_maximum", "where": _C_WHERE},
    )
    | {"sign": "(double)(({0} > 0) - ({0} < 0))"},
    number=literal("INFINITY", "NAN"),
    assign="const double {name} = {value};",
    assign_truth="const int {name} = {value};",
    gather="{table}[(int){index}]",
    table="static const double {name}[{count}] = {{{row}}};",
)


def _stored(program: Program, syntax: Syntax, dtype: torch.dtype) -> tuple[list[str], list[str]]:
    """Statements of the function, which returns its value, and of the gradients, stored by pointers."""
    written = passes(program, syntax, dtype)
    into = zip((*program.inputs, *program.parameters), written.gradients, strict=True)
    stored = [f"*into_{name} = {value};" for name, value in into]
    return [*written.forward, f"return {written.value};"], [*written.backward, *stored]


def _c(program: Program) -> str:
    into = [*program.inputs, *program.parameters]
    name, forward, backward = f"stamm_{program.name}", *_stored(program, _C, torch.float64)
    doubles = ", ".join(f"double {n}" for n in into)
    floats = ", ".join(f"float {n}" for n in into)
    taken = ", ".join(into)
    guard = f"STAMM_{program.name.upper()}_H"
    wide = [
        f"double {', '.join(f'd_{n}' for n in into)};",
        f"{name}_gradients(weight, {taken}, {', '.join(f'&d_{n}' for n in into)});",
        *(f"*into_{n} = (float)d_{n};" for n in into),
    ]
    return (
        f"#ifndef {guard}\n#define {guard}\n\n#include <math.h>\n\n"
        f"{_GUARD}"
        "#ifndef STAMM_MINIMUM\n#define STAMM_MINIMUM\n"
        "/* The first of two equal zeros; NaN where an operand is. */\n"
        "static inline double stamm_minimum(double a, double b) { return b < a || b != b ? b : a; }\n"
        "static inline double stamm_maximum(double a, double b) { return b > a || b != b ? b : a; }\n"
        "#endif\n\n"
        f"static inline double {name}({doubles}) {{\n"
        f"{indented(_unused(into, forward) + forward, 2)}}}\n\n"
        "/* weight times the derivative in each argument; sums over elements are left to the caller. */\n"
        f"static inline void {name}_gradients(double weight, {doubles},\n"
        f"    {', '.join(f'double *into_{n}' for n in into)}) {{\n"
        f"{indented(_unused(['weight', *into], backward) + backward, 2)}}}\n\n"
        "/* The same, rounded once. */\n"
        f"static inline float {name}f({floats}) {{ return (float){name}({taken}); }}\n\n"
        f"static inline void {name}_gradientsf(float weight, {floats},\n"
        f"    {', '.join(f'float *into_{n}' for n in into)}) {{\n{indented(wide, 2)}}}\n\n"
        "#endif\n"
    )


def _unused(arguments: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Statements that name the arguments which no other one does: compilers warn of these."""
    named = set(re.findall(r"\w+", " ".join(lines)))
    return [f"(void){argument};" for argument in arguments if argument not in named]


def _c_test(program: Program) -> str:
    into, rows = [*program.inputs, *program.parameters], f"{program.name}_rows"
    numbers = "".join(
        "  {{" + ", ".join(map(repr, given)) + "}, {" + ", ".join(map(repr, true)) + "}},\n"
        for given, true in points(program)
    )
    count, name = len(into), f"stamm_{program.name}"
    given = ", ".join(f"given[{k}]" for k in range(count))
    single = ", ".join(f"(float)given[{k}]" for k in range(count))
    wide = ", ".join(f"(double)(float)given[{k}]" for k in range(count))
    pointers, floats = (
        ", ".join(f"&{a}[{k + 1}]" for k in range(count)) for a in ("results", "floats")
    )
    return (
        f'#include "{program.name}.h"\n#include <stdio.h>\n\n'
        f"static const double {rows}[][2][{count + 1}] = {{\n{numbers}}};\n\n"
        "int main(void) {\n  int wrong = 0;\n"
        f"  for (unsigned k = 0; k < sizeof {rows} / sizeof *{rows}; ++k) {{\n"
        f"    const double *given = {rows}[k][0], *expected = {rows}[k][1];\n"
        f"    double results[{count + 1}];\n    float floats[{count + 1}];\n"
        f"    results[0] = {name}({given});\n    {name}_gradients(1.0, {given}, {pointers});\n"
        f"    for (int j = 0; j < {count + 1}; ++j) {{\n"
        f"      if (!(fabs(results[j] - expected[j]) <= {WITHIN} * fabs(expected[j]) + 1e-300)) {{\n"
        '        printf("row %u, result %d: %.17g is not %.17g\\n", k, j, results[j], expected[j]);\n'
        "        wrong = 1;\n      }\n    }\n"
        f"    floats[0] = {name}f({single});\n    {name}_gradientsf(1.0f, {single}, {floats});\n"
        f"    results[0] = {name}({wide});\n    {name}_gradients(1.0, {wide}, {pointers});\n"
        f"    for (int j = 0; j < {count + 1}; ++j) {{\n"
        "      if (floats[j] != (float)results[j]) {\n"
        '        printf("row %u, result %d: %.9g is not the float of %.17g\\n", k, j, (double)floats[j], results[j]);\n'
        "        wrong = 1;\n      }\n    }\n  }\n  return wrong;\n}\n"
    )


_JAVASCRIPT = Syntax(
    target="JavaScript",
    operations=calls(
        "Math.",
        {"erf": "", "erfc": "", "minimum": _LEAST, "maximum": _MOST, "where": _C_WHERE},
    ),
    number=literal("Infinity", "NaN"),
    assign="const {name} = {value};",
    gather="{table}[{index}]",
    table="const {name} = [{row}];",
)


def _javascript(program: Program) -> str:
    written = passes(program, _JAVASCRIPT, torch.float64)
    forward = [*written.forward, f"return {written.value};"]
    backward = [*written.backward, f"return [{', '.join(written.gradients)}];"]
    arguments = ", ".join([*program.inputs, *defaults(program)])
    initial = ", ".join(f"{n}: {v!r}" for n, v in program.parameters.items())
    names = list(program.parameters)
    listed = ", ".join([*program.inputs, *names])
    lines, (second,), _ = statements(program.curvature, _JAVASCRIPT, program.inputs, names)
    return (
        f"export const parameters = {{{initial}}};\n\n"
        f"export function {program.name}({arguments}) {{\n"
        f"{indented(forward, 2)}}}\n\n"
        f"// weight times the derivatives in {listed}, as an array.\n"
        f"export function {program.name}_gradients(weight, {arguments}) {{\n"
        f"{indented(backward, 2)}}}\n\n"
        f"// The second derivative in {program.inputs[0]}.\n"
        f"export function {program.name}_curvature({arguments}) {{\n"
        f"{indented([*lines, f'return {second};'], 2)}}}\n"
    )


def _javascript_test(program: Program) -> str:
    name, true_rows = program.name, points(program, curvature=True)
    rows = ",\n".join(f"  [{given}, {true}]" for given, true in true_rows)
    return (
        f'import {{ {name}, {name}_curvature, {name}_gradients }} from "./{name}.mjs";\n\n'
        f"const rows = [\n{rows}\n];\n"
        "let wrong = 0;\n"
        "for (const [given, expected] of rows) {\n"
        f"  const results = [{name}(...given), ...{name}_gradients(1, ...given), {name}_curvature(...given)];\n"
        "  expected.forEach((value, k) => {\n"
        # Terms of the size of f' may cancel in the second derivative, which is the last.
        "    const size = Math.abs(value) + (k === expected.length - 1 ? 1 : 0);\n"
        f"    if (!(Math.abs(results[k] - value) <= {WITHIN} * size + 1e-300)) {{\n"
        "      console.error(`at ${given}, result ${k}: ${results[k]} is not ${value}`);\n"
        "      wrong = 1;\n    }\n  });\n}\nprocess.exit(wrong);\n"
    )


_SINGLE = literal("INFINITY", "NAN", single=True, ending="f")
_CUDA = Syntax(
    target="CUDA",
    operations=calls("", {
        **{call: f"{call}f({{0}})" for call in (
            "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "floor",
            "erf", "erfc", "asin", "atan", "asinh", "acosh",
        )},
        "abs": "fabsf({0})", "atan2": "atan2f({0}, {1})", "pow": "powf({0}, {1})", "sign": "",
        "minimum": _LEAST, "maximum": _MOST, "where": _C_WHERE,
    }),
    number=_SINGLE,
    assign="const float {name} = {value};",
    assign_truth="const bool {name} = {value};",
    gather="{table}[(int){index}]",
    table="const float {name}[{count}] = {{{row}}};",
)  # fmt: skip
_METAL = replace(
    _CUDA,
    target="Metal",
    operations=calls("", {
        "log1p": "", "erf": "", "erfc": "", "sign": "", "where": _C_WHERE,
        "minimum": _LEAST, "maximum": _MOST,
        **{call: f"precise::{call}({{0}})" for call in (
            "exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "atan",
            "asinh", "acosh",
        )},
        "atan2": "precise::atan2({0}, {1})", "pow": "precise::pow({0}, {1})",
    }),
)  # fmt: skip
_WGSL = Syntax(
    target="WGSL",
    operations=calls("", {
        "log1p": "", "erf": "", "erfc": "", "sign": "", "where": "select({2}, {1}, {0})",
        "minimum": "select({0}, {1}, {1} < {0})", "maximum": "select({0}, {1}, {1} > {0})",
    }),
    number=literal("", "", single=True, ending="f"),
    assign="let {name} = {value};",
    gather="{table}[i32({index})]",
    table="let {name} = array<f32, {count}>({row});",
)  # fmt: skip


def _float_functions(
    program: Program, syntax: Syntax, qualifiers: str, pointer: str, start: str = ""
) -> str:
    into = [*program.inputs, *program.parameters]
    floats = ", ".join(f"float {n}" for n in into)
    text = f"{start}{_GUARD}"
    for ending, dtype in (("", torch.float32), (SHORT_ENDING, SHORT)):
        forward, backward = _stored(program, syntax, dtype)
        name = f"stamm_{program.name}{ending}"
        if ending:
            text += "\n// The same for numbers of 16 bits: fewer operations, and errors of some float32 ulp.\n"
        text += (
            f"{qualifiers} float {name}({floats}) {{\n{indented(forward, 2)}}}\n\n"
            "// weight times the derivative in each argument; sums over elements are left to the caller.\n"
            f"{qualifiers} void {name}_gradients(float weight, {floats},\n"
            f"    {', '.join(f'{pointer}into_{n}' for n in into)}) {{\n{indented(backward, 2)}}}\n"
        )
    return text


def _cuda(program: Program) -> str:
    return _float_functions(
        program, _CUDA, "__device__ __forceinline__", "float *", "#pragma once\n\n"
    )


def _metal(program: Program) -> str:
    start = "#include <metal_stdlib>\nusing namespace metal;\n\n"
    return _float_functions(program, _METAL, "static inline", "thread float *", start)


def _wgsl(program: Program) -> str:
    into = [*program.inputs, *program.parameters]
    written = passes(program, _WGSL, torch.float32)
    floats = ", ".join(f"{n}: f32" for n in into)
    forward = [*written.forward, f"return {written.value};"]
    result = f"array<f32, {len(into)}>"
    backward = [*written.backward, f"return {result}({', '.join(written.gradients)});"]
    return (
        f"fn stamm_{program.name}({floats}) -> f32 {{\n{indented(forward, 2)}}}\n\n"
        f"// weight times the derivatives in {', '.join(into)}; WGSL has no defined NaN or infinity.\n"
        f"fn stamm_{program.name}_gradients(weight: f32, {floats}) -> {result} {{\n"
        f"{indented(backward, 2)}}}\n"
    )


JAVASCRIPT = EmissionTarget(
    name="js",
    ending=".mjs",
    comment="//",
    write=_javascript,
    test=_javascript_test,
    test_ending="_test.mjs",
)
TARGETS = (
    EmissionTarget(
        name="c", ending=".h", comment="//", write=_c, test=_c_test, test_ending="_test.c"
    ),
    JAVASCRIPT,
    EmissionTarget(name="wgsl", ending=".wgsl", comment="//", write=_wgsl),
    EmissionTarget(name="metal", ending=".metal", comment="//", write=_metal),
    EmissionTarget(name="cuda", ending=".cuh", comment="//", write=_cuda),
)
