"""Pages of the documentation site that compute in the browser: a composer of gradients, and a trained model.

Formulas come from stamm: functions from emitted kernels, rules of integration from the derivation.
"""

from __future__ import annotations

import base64
import hashlib
import keyword
import math
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stamm.activations import catalog
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.emitters.program import program_of
from stamm.activations.page.live import emitted_functions, script_json
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.expressions import CONSTANTS, FUNCTIONS, WORDS
from stamm.activations.spec.parameters import Absolute, Between, Bijection, Exp, Fixed, Softplus
from stamm.base.errors import ConfigError, ExportError
from stamm.base.files import write_text
from stamm.export.onnx_graph import DATA, MODEL
from stamm.export.onnx_target import GENERATION
from stamm.models.hf_files import CONFIG
from stamm.pages.frame import InlineScript, fill, script_file
from stamm.tokenizer.tokenizer import FILE as TOKENIZER

PACKAGE = "tools.playground"
# Functions of the language by the gradient that integrates to them and their value at 0. A second
# name is that of the gradient.
STATED: Mapping[str, tuple[str, str, str]] = {
    "logistic": ("logistic(x)*logistic(-x)", "1/2", ""),
    "softplus": ("logistic(x)", "log(2)", ""),
    "erf": ("2/sqrt(pi)*exp(-x**2)", "0", ""),
    "normal_cdf": ("normal_pdf(x)", "1/2", "normal_pdf"),
    "cauchy_cdf": ("cauchy_pdf(x)", "1/2", "cauchy_pdf"),
    "gompertz": ("gompertz_pdf(x)", "exp(-1)", "gompertz_pdf"),
    "log_cosh": ("tanh(x)", "0", ""),
}
HIDDEN = ("log_cosh",)  # in integrals, not in the language of gradients
ABSENT = ("erfc",)  # of the language, not of the page
RULES = (
    "x", "x**2", "x**3", "exp(x)", "x*exp(x)", "sin(x)", "cos(x)", "sinh(x)", "cosh(x)", "atan(x)",
    "asinh(x)", "tanh(x)", "erf(x)", "logistic(x)", "logistic(x)*logistic(-x)", "normal_pdf(x)",
    "normal_cdf(x)", "cauchy_pdf(x)", "gompertz_pdf(x)", "x*normal_pdf(x)", "exp(-x**2)",
    "x*exp(-x**2)", "x*logistic(x)*logistic(-x)", "1/(1 + x**2)", "sqrt(1 + x**2)",
    "x/sqrt(1 + x**2)", "expm1(x)",
)  # fmt: skip
TERMS = (
    "1", "c", "x", "2*a*x", "a*(exp(x) - 1)", "exp(x)", "logistic(b*x)", "tanh(b*x)", "atan(x)",
    "a*exp(-x**2)", "normal_cdf(x)", "x*normal_pdf(x)", "a*sin(b*x)", "1/(1 + x**2)",
)  # fmt: skip
EXAMPLES = (
    "xielu", "relu", "elu", "silu", "gelu", "hard_swish", "sqnl", "arctan", "tanh", "elu_concave", "snake",
)  # fmt: skip


RUNTIME = "onnxruntime-web"
RUNTIME_VERSION = "1.30.0"
RUNTIME_SHA512 = (  # of the package, as the registry's "integrity" has it
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
NPM_SECONDS = 300
MODEL_FILES = (MODEL, DATA, TOKENIZER, CONFIG, GENERATION)


def compose_page() -> str:
    """HTML of the page on which a gradient is composed.

    Checked   tests/docs/test_playground.py
    """
    functions = {name: _functions(name) for name in STATED}
    shown = [name for name in functions if name not in HIDDEN]
    slopes = {slope: name for name, (_, _, slope) in STATED.items() if slope}
    written = ", ".join(
        [
            *(f"{name}: {functions[name]}.value" for name in shown),
            *(f"{slope}: x => {functions[of]}.gradients(1, x)[0]" for slope, of in slopes.items()),
        ]
    )
    hidden = ", ".join(f"{name}: {functions[name]}.value" for name in HIDDEN)
    data = {
        "plain": [f for f in FUNCTIONS if f not in (*shown, *slopes, *ABSENT)],
        "rules": [[gradient, integral_text(gradient)] for gradient in RULES],
        "terms": TERMS,
        "examples": [_example(catalog.get(name)) for name in EXAMPLES],
        "taken": sorted({n for spec in catalog.ENTRIES for n in (spec.name, *spec.aliases)}),
        "reserved": sorted({*keyword.kwlist, *FUNCTIONS, *CONSTANTS, *WORDS, "x"}),
    }
    text = "\n".join(
        (
            f"const $page = {{functions: {{{written}}}, hidden: {{{hidden}}}, ...{script_json(data)}}};",
            script_file("stamm.pages", "plot.js"),
            script_file(PACKAGE, "grammar.js"),
            script_file(PACKAGE, "compose.js"),
        )
    )
    script = InlineScript(Markup(text))
    return str(fill("compose.html", {"script": script, "policy": script.policy}, PACKAGE))


def integral_text(gradient: str) -> str:
    """An integral of a formula in x, by the derivation, as text of the formula language."""
    (branch,) = exact_formulas(spec_from_arguments([gradient], name="rule")).function
    return str(branch.formula)


def _functions(name: str) -> str:
    gradient, start, _ = STATED[name]
    spec = spec_from_arguments([gradient], name=f"the_{name}", anchor=f"0={start}")
    return emitted_functions(program_of(spec))


def _example(spec: Spec) -> dict[str, Any]:
    order = sorted(range(len(spec.pieces)), key=lambda n: _number(spec.intervals[n].low, -math.inf))
    return {
        "name": spec.name,
        "pieces": [spec.pieces[n].formula for n in order],
        "knots": [_number(spec.intervals[n].high, math.inf) for n in order[:-1]],
        "parameters": [
            {"name": p.name, "value": p.initial, "how": _how(p.bijection)} for p in spec.parameters
        ],
        "start": _number(spec.anchor[1], 0.0),
    }


def _number(text: str | None, otherwise: float) -> float:
    return otherwise if text is None else float(text)


def _how(bijection: Bijection) -> str:
    """How `stamm derive --parameter` spells it."""
    match bijection:
        case Softplus(above=above) | Exp(above=above) | Absolute(above=above):
            return type(bijection).__name__.lower() + (f">{above}" if above != "0" else "")
        case Between(low=low, high=high):
            return f"between({low:g},{high:g})"
        case Fixed():
            return "fixed"
    return "identity"


def exported_model(arm: Path) -> Path:
    """The folder of the ONNX export of a trained model.

    Raises   ConfigError with the command that makes it
    """
    folder = arm / "export" / "onnx"
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        train = "" if arm.is_dir() else "Train it first (`make demo` trains those of runs/demo). "
        raise ConfigError(
            f"{folder} has no {missing[0]}", fix=f"{train}Run: stamm export {arm} target=onnx"
        )
    return folder


def write_model_page(arm: Path, pages: Path, cache: Path) -> None:
    """Write model.html with the exported model of `arm` and the runtime into `pages`.

    cache    keeps the package of the runtime for the next build

    Raises   ConfigError without an export; ExportError where the package cannot be fetched or has
             another hash
    Checked  tests/docs/test_playground.py
    """
    export = exported_model(arm)
    package = runtime_package(cache)
    pages.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(export / name, pages / name)
    with tarfile.open(package) as archive:
        for name in RUNTIME_FILES:
            member = archive.extractfile(f"package/dist/{name}")
            assert member is not None
            (pages / name).write_bytes(member.read())
    scripts = (script_file(PACKAGE, name) for name in ("tokenizer.js", "model.js"))
    write_text(pages / "model.js", "\n".join(scripts))
    context = {
        "arm": arm.name,
        "runtime": RUNTIME_VERSION,
        "policy": "script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'",
    }
    write_text(pages / "model.html", str(fill("model.html", context, PACKAGE)))


def runtime_package(cache: Path) -> Path:
    """The package of the runtime in `cache`, fetched by npm where it is not there.

    Raises   ExportError where npm is missing, fails or takes over 300 s, or the package has another hash
    """
    package = cache / f"{RUNTIME}-{RUNTIME_VERSION}.tgz"
    if not package.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        wanted = f"{RUNTIME}@{RUNTIME_VERSION}"
        command = ("npm", "pack", wanted, "--loglevel=error", "--pack-destination", str(cache))
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=NPM_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            # The first lines name the cause; the last ones are of traces and log files.
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace")
            cause = "; ".join([str(error), *said.splitlines()[:2]])
            raise ExportError(
                f"npm cannot fetch {wanted}: {cause[:600]}",
                fix=f"Install npm, or put {package} there",
            ) from None
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != RUNTIME_SHA512:
        raise ExportError(
            f"{package} has the hash sha512-{digest}, not sha512-{RUNTIME_SHA512}",
            fix="Delete it, and build again",
        )
    return package
