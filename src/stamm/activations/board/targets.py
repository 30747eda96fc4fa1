"""Emitted texts of every entry, run in their languages: what each target gives at float32 inputs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.activations.board.jax_library import from_jax, jax_modules, to_jax
from stamm.activations.board.mlx_library import from_mlx, mlx_modules, to_mlx
from stamm.activations.board.onnx_library import onnxruntime_library, session
from stamm.activations.conformance.implementations import raised
from stamm.activations.conformance.ulp import rounded
from stamm.activations.emitters.onnx import onnx_library
from stamm.activations.emitters.program import Program
from stamm.activations.emitters.syntax import SHORT_ENDING
from stamm.base.errors import RunError, StammError

_COMPILERS = ("c++", "g++", "clang++")
_GROUP = 12  # entries in one compilation: more take longer than their sum
_INTERPRETED_TOGETHER = 48  # loading Triton takes longer than an entry
_SECONDS = 600


@dataclass(frozen=True)
class Case:
    """An emitted entry and what it is run at.

    text         the module in the target, or bytes of a model
    given        x; or gate and up: float32, or of 16 bits
    parameters   effective values, which float32 holds
    """

    program: Program
    text: bytes
    given: tuple[Tensor, ...]
    parameters: tuple[float, ...]

    @property
    def name(self) -> str:
        """Of the functions."""
        return self.program.name

    @property
    def dtype(self) -> torch.dtype:
        """Of what it is run at, and of its results."""
        return self.given[0].dtype

    @property
    def device_name(self) -> str:
        """Of the functions in a language whose text has others for 16 bits."""
        return self.name if self.dtype == torch.float32 else f"{self.name}{SHORT_ENDING}"


Outcome = list[Tensor] | StammError  # value, gradient in each input, in each parameter


@dataclass(frozen=True)
class TargetRun:
    """Runtime of a target.

    version   of the runtime, as text; raises StammError where it is missing
    how       as text: its numbers, and what it is not
    run       each case to its results, in order
    has_short whether it takes bfloat16 and float16
    """

    target: str
    version: Callable[[], str]
    how: str
    run: Callable[[Sequence[Case]], Iterator[Outcome]]
    has_short: bool = False


def each(run: Callable[[Case], list[Tensor]]) -> Callable[[Sequence[Case]], Iterator[Outcome]]:
    """A run of cases one by one; an error of a runtime is the outcome of its case."""

    def all_of(cases: Sequence[Case]) -> Iterator[Outcome]:
        for case in cases:
            try:
                yield run(case)
            except StammError as error:
                yield error
            except Exception as error:  # runtimes raise errors of every kind
                yield RunError(f"{case.name} raises {raised(error)}")

    return all_of


def _functions(case: Case) -> tuple[Callable[..., Any], Any]:
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(case.text.decode(), names)
    return names[case.name], names.get(f"{case.name}_gradients")


def _numpy(case: Case) -> list[Tensor]:
    function, gradients = _functions(case)
    given = [x.numpy() for x in case.given]
    into = gradients(np.float32(1), *given, *case.parameters)
    into = into if isinstance(into, tuple) else (into,)
    return [torch.from_numpy(np.array(r)) for r in (function(*given, *case.parameters), *into)]


def _jax(case: Case) -> list[Tensor]:
    jax, jnp = jax_modules()
    function, _ = _functions(case)
    count = len(case.given[0])

    def both(inputs: Any, parameters: Any) -> Any:
        # A parameter for each element: its gradient is then not a sum.
        wide = [jnp.full(count, 1.0, jnp.float32) * p for p in parameters]
        y, pulled = jax.vjp(function, *inputs, *wide)
        return y, *pulled(jnp.ones_like(y))

    inputs = [to_jax(x) for x in case.given]
    results = jax.jit(both)(inputs, [np.float32(p) for p in case.parameters])
    return [from_jax(result) for result in results]


def _mlx(case: Case) -> list[Tensor]:
    mx, _ = mlx_modules()
    function, _ = _functions(case)
    inputs = [to_mlx(x) for x in case.given]
    wide = [mx.full(inputs[0].shape, p, dtype=mx.float32) for p in case.parameters]
    outputs, slopes = mx.vjp(function, [*inputs, *wide], [mx.ones_like(inputs[0])])
    return [from_mlx(result) for result in (*outputs, *slopes)]


def _onnx(case: Case) -> list[Tensor]:
    model = onnx_library().ModelProto.FromString(case.text)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")  # a parameter for each element, as for JAX
    count = len(case.given[0])
    given = {n: x.numpy() for n, x in zip(case.program.inputs, case.given, strict=True)}
    for name, number in zip(case.program.parameters, case.parameters, strict=True):
        given[name] = np.full(count, number, np.float32)
    results = session(model.SerializeToString()).run(None, given)
    return [torch.from_numpy(np.array(np.broadcast_to(r, count))) for r in results]


def _program(*names: str) -> str:
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise RunError(f"{' or '.join(names)} is not installed", fix=f"Install {names[0]}")


def done(command: Sequence[str], folder: Path, what: str) -> str:
    """Output of a command.

    Raises   RunError where it fails.
    """
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{what} takes more than {_SECONDS} seconds") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{what} fails: {raised(error)}") from None
    if ended.returncode:
        lines = [line for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
        raise RunError(f"{what} fails: {(lines or ['without a message'])[-1][:200]}")
    return ended.stdout


def version_of(*names: str) -> str:
    """First line of --version of the first of these programs that is installed."""
    lines = done([_program(*names), "--version"], Path(), names[0]).splitlines()
    return lines[0] if lines else names[0]


def columns(case: Case) -> int:
    """Of its results: the value, and a gradient in each input and parameter."""
    return 1 + len(case.given) + len(case.parameters)


def _stored(case: Case, folder: Path) -> None:
    torch.stack(case.given).float().numpy().tofile(folder / f"{case.name}.in")


def _loaded(case: Case, folder: Path) -> list[Tensor]:
    rows: NDArray[np.float32] = np.fromfile(folder / f"{case.name}.out", np.float32)
    results = torch.from_numpy(rows.reshape(columns(case), len(case.given[0])))
    return list(results if case.dtype == torch.float32 else rounded(results.double(), case.dtype))


def in_groups(
    run: Callable[[Sequence[Case], Path], None], together: int = _GROUP
) -> Callable[[Sequence[Case]], Iterator[Outcome]]:
    """A run of so many cases at once in a folder, which writes NAME.out for NAME.in."""

    def outcomes(group: Sequence[Case]) -> Iterator[Outcome]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                for case in group:
                    _stored(case, folder)
                run(group, folder)
                results = [_loaded(case, folder) for case in group]
            except (StammError, OSError, ValueError) as error:  # or a file is missing or short
                if len(group) == 1:
                    if not isinstance(error, StammError):
                        error = RunError(f"{group[0].name} raises {raised(error)}")
                    yield error
                else:  # the others may run without the one that fails
                    for case in group:
                        yield from outcomes([case])
                return
        yield from results

    def all_of(cases: Sequence[Case]) -> Iterator[Outcome]:
        for first in range(0, len(cases), together):
            yield from outcomes(cases[first : first + together])

    return all_of


_LOOP = """
extern "C" void run_{name}(long count, const float *given, float *results) {{
  for (long i = 0; i < count; ++i) {{
    {number} into[{slopes}];
    results[i] = (float){function}({arguments});
    {gradients}(1, {wide}, {pointers});
    for (int k = 0; k < {slopes}; ++k) results[(k + 1) * count + i] = (float)into[k];
  }}
}}
"""
_METAL_LIBRARY = """#include <cmath>
#define thread
namespace metal {
using std::fabs; using std::floor; using std::abs;
namespace precise { using namespace std; }
}
"""


def _native(target: str, head: str, flags: Sequence[str]) -> Callable[[Sequence[Case], Path], None]:
    """Cases as C++, with the qualifiers of the language defined away; C is a part of it."""

    def run(cases: Sequence[Case], folder: Path) -> None:
        text = head
        for case in cases:
            body = case.text.decode().replace("#pragma once", "")
            for line in ("#include <metal_stdlib>", "#include <math.h>"):
                body = body.replace(line, "")
            own = f"of_{case.name}::stamm_{case.device_name}"
            parameters = [f"{p!r}" for p in case.parameters]
            inputs = [f"given[{k} * count + i]" for k in range(len(case.given))]
            slopes = columns(case) - 1
            text += f"namespace of_{case.name} {{\n{body}\n}}\n" + _LOOP.format(
                name=case.name,
                number="double" if target == "c" else "float",
                slopes=slopes,
                function=own + ("f" if target == "c" else ""),
                gradients=f"{own}_gradients",
                arguments=", ".join([*inputs, *parameters]),
                wide=", ".join([*inputs, *parameters]),
                pointers=", ".join(f"into + {k}" for k in range(slopes)),
            )
            # The minimum and maximum of a header are defined once for a program.
            text += "#undef STAMM_MINIMUM\n"
        (folder / "all.cpp").write_text(text)
        # Compilers for GPUs make one operation of * and +, those for C may not by the standard.
        contracted = ["-O1", "-ffp-contract=off"]
        if target != "c":
            contracted = ["-O2", "-ffp-contract=fast", "-march=native"]
        command = [_program(*_COMPILERS), "-std=c++17", *contracted]
        options = ["-shared", "-fPIC", "-w", *flags, "all.cpp", "-o", "all.so"]
        done([*command, *options], folder, "c++")
        calls = json.dumps([[case.name, columns(case), len(case.given)] for case in cases])
        done([sys.executable, "-c", CALL, calls], folder, f"{target} as C++")

    return run


CALL = """
import ctypes, json, sys
import numpy as np
library = ctypes.CDLL("./all.so")
pointer = ctypes.POINTER(ctypes.c_float)
for name, columns, inputs in json.loads(sys.argv[1]):
    given = np.fromfile(name + ".in", np.float32)
    count = len(given) // inputs
    results = np.zeros(columns * count, np.float32)
    function = getattr(library, "run_" + name)
    function.argtypes, function.restype = (ctypes.c_long, pointer, pointer), None
    function(count, given.ctypes.data_as(pointer), results.ctypes.data_as(pointer))
    results.tofile(name + ".out")
"""
_NODE = """
import fs from "node:fs";
const cases = JSON.parse(process.argv[2]);
for (const [name, inputs, parameters] of cases) {
  const module = await import(`./${name}.mjs`);
  const bytes = fs.readFileSync(`${name}.in`);
  const given = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const count = given.length / inputs;
  const columns = 1 + inputs + parameters.length;
  const results = new Float32Array(columns * count);
  for (let i = 0; i < count; i++) {
    const row = [];
    for (let k = 0; k < inputs; k++) row.push(given[k * count + i]);
    row.push(...parameters);
    results[i] = module[name](...row);
    module[`${name}_gradients`](1, ...row).forEach((v, k) => { results[(k + 1) * count + i] = v; });
  }
  fs.writeFileSync(`${name}.out`, results);
}
"""


def _javascript(cases: Sequence[Case], folder: Path) -> None:
    for case in cases:
        (folder / f"{case.name}.mjs").write_bytes(case.text)
    (folder / "all.mjs").write_text(_NODE)
    listed = json.dumps([[c.name, len(c.given), list(c.parameters)] for c in cases])
    done([_program("node"), "all.mjs", listed], folder, "node")


_LIBDEVICE = "from triton.language.extra import libdevice"
_TRITON = """
import numpy as np, torch, triton, triton.language as tl
from {module} import {function}, {function}_gradients


@triton.jit
def kernel(given_ptr, results_ptr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = lane < COUNT
{loads}
    tl.store(results_ptr + lane, {function}({arguments}), mask=kept)
    {slopes} = {function}_gradients(one, {arguments})
{stores}


given = torch.from_numpy(np.fromfile("{name}.in", np.float32)).to("{device}")
count = len(given) // {inputs}
results = torch.zeros({columns} * count, device="{device}")
block = triton.next_power_of_2(count) if "{device}" == "cpu" else 512
kernel[(triton.cdiv(count, block),)](given, results, COUNT=count, BLOCK=block)
results.cpu().numpy().tofile("{name}.out")
"""


# Triton reads the variable when it is loaded.
_INTERPRETED = """
import importlib, os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path[:] = {path!r}
for name in {names!r}:
    importlib.import_module(name)
"""


def _triton(cases: Sequence[Case], folder: Path) -> None:
    run = _INTERPRETED.format(path=[".", *sys.path], names=triton_modules(cases, folder, "cpu"))
    done([sys.executable, "-c", run], folder, "Triton's interpreter")


def triton_modules(cases: Sequence[Case], folder: Path, device: str) -> list[str]:
    """Names of modules that run a case when they are loaded.

    device   "cuda"; or "cpu" for Triton's interpreter
    """
    for case in cases:
        module = case.text.decode()
        if device == "cpu":  # the interpreter has no library of device functions
            interpreted = "import stamm.activations.fused.interpreted as libdevice"
            module = module.replace(_LIBDEVICE, interpreted)
        (folder / f"emitted_{case.name}.py").write_text(module)
        inputs, slopes = len(case.given), columns(case) - 1
        loads = [
            f"    x{k} = tl.load(given_ptr + {k} * COUNT + lane, mask=kept)" for k in range(inputs)
        ]
        loads += ["    one = tl.full((BLOCK,), 1.0, tl.float32)"]
        loads += [
            f"    p{k} = tl.full((BLOCK,), {value!r}, tl.float32)"
            for k, value in enumerate(case.parameters)
        ]
        arguments = [f"x{k}" for k in range(inputs)]
        arguments += [f"p{k}" for k in range(len(case.parameters))]
        stores = [
            f"    tl.store(results_ptr + {k + 1} * COUNT + lane, g{k}, mask=kept)"
            for k in range(slopes)
        ]
        (folder / f"run_{case.name}.py").write_text(
            _TRITON.format(
                module=f"emitted_{case.name}",
                name=case.name,
                function=case.device_name,
                loads="\n".join(loads),
                arguments=", ".join(arguments),
                slopes=", ".join(f"g{k}" for k in range(slopes)),
                stores="\n".join(stores),
                inputs=inputs,
                columns=slopes + 1,
                device=device,
            )
        )
    return [f"run_{case.name}" for case in cases]


def _installed(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        raise RunError(f"{name} is not installed", fix=f"Run: pip install {name}")
    return f"{name} {importlib.metadata.version(name)}"


_CPP = "as C++ on the CPU, with * and + as one operation where they may be, and with the language's qualifiers defined away; not on a GPU"
RUNS = (
    TargetRun("numpy", lambda: f"numpy {np.__version__}", "float64 inside", each(_numpy)),
    TargetRun(
        "jax",
        lambda: f"jax {jax_modules()[0].__version__}",
        "float32, under jit on the CPU",
        each(_jax),
        has_short=True,
    ),
    TargetRun(
        "mlx",
        lambda: (mlx_modules(), _installed("mlx"))[1],
        "float32, on the CPU; not on an Apple GPU",
        each(_mlx),
        has_short=True,
    ),
    TargetRun(
        "onnx",
        lambda: f"onnxruntime {onnxruntime_library().__version__}",
        "float32, on the CPU",
        each(_onnx),
    ),
    TargetRun(
        "c",
        lambda: version_of(*_COMPILERS),
        "float64 inside, rounded to float32",
        in_groups(_native("c", "#include <cmath>\nusing namespace std;\n", ())),
    ),
    TargetRun(
        "js",
        lambda: f"node {version_of('node')}",
        "float64 inside, rounded to float32",
        in_groups(_javascript),
    ),
    TargetRun(
        "cuda",
        lambda: version_of(*_COMPILERS),
        f"float32, {_CPP}",
        in_groups(
            _native(
                "cuda",
                "#include <cmath>\n",
                ("-D__device__=static", "-D__forceinline__=inline"),
            )
        ),
        has_short=True,
    ),
    TargetRun(
        "metal",
        lambda: version_of(*_COMPILERS),
        f"float32, {_CPP}",
        in_groups(_native("metal", _METAL_LIBRARY, ())),
        has_short=True,
    ),
    TargetRun(
        "triton",
        lambda: _installed("triton"),
        "float32, in Triton's interpreter with torch's functions; not on a GPU",
        in_groups(_triton, _INTERPRETED_TOGETHER),
        has_short=True,
    ),
)
