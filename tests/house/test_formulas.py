"""Each formula exists once: no file outside the specs computes with the functions that activations are made of."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "stamm"
FUNCTIONS = frozenset({
    "expm1", "log1p", "erf", "erfc", "erfinv", "tanh", "sinh", "cosh", "asinh", "atan", "arctan", "atan2", "sigmoid",
    "logistic", "expit", "logsigmoid", "log_sigmoid", "softplus", "softsign", "ndtr", "normal_cdf", "silu", "swish",
    "gelu", "elu", "selu", "celu", "relu", "relu6", "leaky_relu", "prelu", "rrelu", "mish", "hardswish", "hardtanh",
    "hardsigmoid", "hardshrink", "softshrink", "tanhshrink", "threshold", "glu", "xielu", "relu2",
})  # fmt: skip
MODULES = frozenset(
    {"torch", "F", "nn", "functional", "np", "math", "mpmath", "sympy", "primitives"}
)
# Folders of the mathematics: what an activation is, and what is generated from it.
MATHEMATICS = (
    "activations/spec/", "activations/catalog/", "activations/derivation/", "activations/primitives/",
    "activations/codegen/", "activations/generated/", "activations/emitters/", "activations/fused/",
)  # fmt: skip
# File -> why it calls one of them, which is not the formula of an activation.
ALLOWED = {
    "activations/certificates/gaussian.py": "functions of the formula language in float64",
    "activations/board/jax_library.py": "functions of JAX that are measured",
    "activations/board/library.py": "functions of torch that are measured",
    "activations/board/mlx_library.py": "functions of MLX that are measured",
    "activations/certificates/intervals.py": "functions of the formula language on intervals",
    "activations/certificates/tails.py": "limits of the functions of the formula language",
    "activations/conformance/acceptance.py": "functions of the formula language to any precision",
    "activations/equivalence/curves.py": "functions of the formula language on arrays",
    "activations/module/ops.py": "functions of torch that ONNX Runtime lacks in float64, while a module is traced",
    "activations/page/live.py": "distances of the points of a figure",
    "audit/extraction.py": "probability of an extraction in many trials",
    "cli/bench_baselines.py": "functions of torch that kernels are timed beside",
    "compare/verdict.py": "relative differences from logarithms",
    "corpus/classifiers/classifier.py": "probability of a class",
    "engine/portable_bits.py": "functions of torch whose bits are compared between machines",
    "export/ggml_library.py": "stored number of a parameter behind softplus",
    "losses/bradley_terry.py": "log-likelihood of a preference",
    "losses/policy_gradient.py": "estimate of a KL divergence",
    "losses/preference.py": "log-likelihood of a preference",
    "losses/quantile.py": "log-probability of a quantile",
    "statistics/sequential.py": "normal distribution of a test",
    "statistics/student_t.py": "distribution of a test",
    "swap/sites.py": "functions of torch that a model calls and a swap replaces",
}


def calls(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MODULES:
                names.add(name)
            case (
                ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name), args=[])
            ):
                names.add(name)
    return names & FUNCTIONS


def test_no_file_outside_the_specs_has_the_formula_of_an_activation() -> None:
    computing = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith(MATHEMATICS) and (used := calls(ast.parse(file.read_text()))):
            computing[name] = sorted(used)
    unknown = {name: used for name, used in computing.items() if name not in ALLOWED}
    assert not unknown, f"state a Spec, or say in ALLOWED why this is none: {unknown}"
    assert computing.keys() == ALLOWED.keys(), "ALLOWED names a file that calls none of them"


def test_no_c_source_outside_the_generated_kernels_has_one() -> None:
    pattern = re.compile(r"\b(tanh|erfc?|expm1|log1p|sigmoid|gelu|silu|softplus|relu)f?\s*\(")
    files = [f for ending in ("*.h", "*.cpp", "*.cu") for f in SOURCE.rglob(ending)]
    outside = [f for f in files if "fused" not in f.parts]
    assert len(outside) >= 2
    assert not [f.name for f in outside if pattern.search(f.read_text())]


def test_a_formula_that_is_written_twice_is_seen() -> None:
    text = (
        "def gelu(x):\n    return x * torch.erf(x)\n\n\ny = F.silu(x) + softplus(x)*x.sigmoid()\n"
    )
    assert calls(ast.parse(text)) == {"erf", "silu", "softplus", "sigmoid"}
