"""`stamm bench activations`: measure each entry and print its table."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stamm.activations import catalog
from stamm.activations.benchmark import (
    STEPS,
    ArmTimings,
    Step,
    kernels_text,
    measure,
    memory_bytes,
    tensors_moved,
)
from stamm.activations.catalog.registry import load_spec
from stamm.activations.spec import Gated, Spec
from stamm.base.config import closest, nearest
from stamm.base.console import Console
from stamm.base.errors import ConfigError, visible
from stamm.base.units import bytes_text, parse_count
from stamm.cli.bench_baselines import arms_of
from stamm.cli.output import print_json, print_table
from stamm.runs.manifest import environment

ENTRIES = (
    "xielu", "silu", "gelu", "gelu_tanh", "relu2", "mish", "golu", "prelu", "swish_beta",
    "swiglu", "geglu_tanh", "xielu_glu",
)  # fmt: skip
SHAPE, DTYPE = "4096x8192", "bfloat16"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
}
_LIVE = (
    24  # tensors of the input's size alive at once, intermediates of other implementations included
)
_DISTURBED = 0.1  # share of all cores busy with other programs from which a warning is printed
_COMMAND = "the command line"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One table: an activation, and shape, dtype and device of its inputs."""

    spec: Spec
    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    rounds: int

    @property
    def inputs(self) -> int:
        """1, or 2 for gate and up."""
        return 2 if isinstance(self.spec.arity, Gated) else 1


def bench(options: argparse.Namespace) -> int:
    """Measure, print, and append to --out if given."""
    cases = _cases(options)
    lines = []
    with _opened(options.out) as write:
        facts = environment()
        log, work = Console().log, "measure" if options.no_compile else "compile and measure"
        for number, case in enumerate(cases, start=1):
            size = f"{case.shape[0]}x{case.shape[1]} {_dtype_name(case.dtype)}"
            log(f"{number} of {len(cases)}: {case.spec.name}, {size}: {work}")
            line = _line(case, not options.no_compile, facts)
            lines.append(line)
            write(json.dumps(line) + "\n")
            if not options.json:
                _print(line)
            _warn(line)
    if options.json:
        print_json(lines)
    return 0


def _cases(options: argparse.Namespace) -> list[_Case]:
    """The requested measurements, validated before the first one."""
    if options.rounds < 2:
        raise ConfigError(
            f"--rounds {options.rounds} gives no spread", where=_COMMAND, fix="Use 2 or more"
        )
    specs = [_spec(word) for word in options.names or ENTRIES]
    shapes = [_shape(word) for word in options.shape or [SHAPE]]
    dtypes = [_dtype(word) for word in options.dtype or [DTYPE]]
    device = _device(options.device)
    for shape, dtype in itertools.product(shapes, dtypes):
        needed, available = _LIVE * shape[0] * shape[1] * dtype.itemsize, memory_bytes(device)
        if needed > available:
            raise ConfigError(
                f"--shape {shape[0]}x{shape[1]} in {_dtype_name(dtype)} needs about {bytes_text(needed)},"
                f" and {device} has {bytes_text(available)}",
                where=_COMMAND,
                fix="Choose a smaller one",
            )
    return [
        _Case(spec=spec, shape=shape, dtype=dtype, device=device, rounds=options.rounds)
        for shape, dtype, spec in itertools.product(shapes, dtypes, specs)
    ]


def _spec(word: str) -> Spec:
    """The spec that `word` names; the error for an unknown name suggests a similar one."""
    entries = [catalog.get(name) for name in catalog.names()]
    known = [name for spec in entries for name in (spec.name, *spec.aliases)]
    if word in known or re.search(r"[/.:]", word) or Path(word) in Path().iterdir():
        return load_spec(word)
    match = closest(word, known)
    hint = f"Did you mean {match!r}? " if match else ""
    fix = f"{hint}`stamm ls activations` lists them"
    raise ConfigError(f"{visible(word, 60)!r} is not an activation", where=_COMMAND, fix=fix)


def _shape(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"([^x]+)x([^x]+)", word)
    sizes = [parse_count(part) for part in match.groups()] if match else []
    if len(sizes) != 2 or min(sizes) < 1:
        raise ConfigError(
            f"--shape {word!r} is not ROWSxCOLUMNS", where=_COMMAND, fix=f"Write {SHAPE}"
        )
    return sizes[0], sizes[1]


def _dtype(word: str) -> torch.dtype:
    if word not in _DTYPES:
        raise ConfigError(
            f"--dtype {word!r} is not measured", where=_COMMAND, fix=nearest(word, _DTYPES)
        )
    return _DTYPES[word]


def _device(word: str | None) -> torch.device:
    if word is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d{1,18})?", word) is None:
        raise ConfigError(
            f"--device {visible(word, 60)!r} is not measured",
            where=_COMMAND,
            fix="Use cpu, cuda or cuda:1",
        )
    kind, _, number = word.partition(":")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {word}: torch finds {torch.cuda.device_count()} GPUs here",
            where=_COMMAND,
            fix="Use --device cpu, or a torch that is built for the GPU",
        )
    return torch.device(word)


@contextlib.contextmanager
def _opened(path: str | None) -> Iterator[Any]:
    """A function that appends a line to the file; opened before measuring, to fail early."""
    if path is None:
        yield lambda line: None
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a") as out:

        def write(line: str) -> None:
            out.write(line)
            out.flush()

        yield write


def _line(case: _Case, compiled: bool, facts: dict[str, Any]) -> dict[str, Any]:
    """One measurement as JSON values; times in seconds, sizes in bytes."""
    arms, missing = arms_of(case.spec, case.dtype, case.device, compiled=compiled)
    with _chosen(case.device):
        timings = measure(
            arms,
            inputs=case.inputs,
            shape=case.shape,
            dtype=case.dtype,
            device=case.device,
            rounds=case.rounds,
        )
    moved = {step: n * timings.tensor_bytes for step, n in tensors_moved(case.inputs).items()}
    gpu = case.device.type == "cuda"
    return {
        "benchmark": "activations",
        "entry": case.spec.name,
        "content_hash": case.spec.content_hash,
        "device": torch.cuda.get_device_name(case.device) if gpu else "cpu",
        "threads": torch.get_num_threads(),
        "others_busy_cores": timings.others_busy,
        "kernels": kernels_text(case.shape[0] * case.shape[1], case.dtype, case.device),
        "shape": list(case.shape),
        "dtype": _dtype_name(case.dtype),
        "inputs": case.inputs,
        "rounds": case.rounds,
        "seconds": {
            step: {arm: asdict(q) for arm, q in timings.steps[step].items()} for step in STEPS
        },
        "copy_seconds": {name: asdict(q) for name, q in timings.copies.items()},
        "copy_bytes": 2 * timings.tensor_bytes,
        "bytes_moved": moved,
        "share_of_copy": {step: _shares(timings, step, moved[step]) for step in STEPS},
        "saved_bytes": timings.saved_bytes,
        "ratio": {
            step: {
                arm: q.p50 / timings.steps[step]["stamm"].p50
                for arm, q in timings.steps[step].items()
                if arm != "stamm"
            }
            for step in STEPS
        },
        "not_measured": {**missing, **timings.refused},
        **facts,
    }


def _shares(timings: ArmTimings, step: Step, moved: int) -> dict[str, dict[str, float]]:
    """Bandwidth of each arm relative to each copy, from medians."""
    speeds = {name: 2 * timings.tensor_bytes / q.p50 for name, q in timings.copies.items()}
    return {
        arm: {name: moved / q.p50 / speed for name, speed in speeds.items()}
        for arm, q in timings.steps[step].items()
    }


def _chosen(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make `device` the current CUDA device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _print(line: dict[str, Any]) -> None:
    rows, columns = line["shape"]
    print(
        f"{line['entry']}, {rows}x{columns} {line['dtype']}, {_machine(line)},"
        f" {line['rounds']} rounds, kernels {line['kernels']}"
    )
    header = ["implementation", "forward ms", "of copy", "of clone", "× stamm"]
    header += ["forward+backward ms", "of copy", "of clone", "× stamm", "saved"]
    table = [
        [
            arm,
            *(cell for step in STEPS for cell in _cells(line, step, arm)),
            bytes_text(line["saved_bytes"][arm]),
        ]
        for arm in line["seconds"][STEPS[0]]
    ]
    copies = [
        [name, _spread(line["copy_seconds"][memory]), *[""] * 8]
        for name, memory in (("copy, warm memory", "warm"), ("clone, fresh memory", "fresh"))
    ]
    print_table(header, [*table, *copies])
    for name, why in line["not_measured"].items():
        print(visible(f"{name} is not measured: {why}", 300))
    print(flush=True)


def _machine(line: dict[str, Any]) -> str:
    if line["device"] != "cpu":
        return str(line["device"])
    busy = line["others_busy_cores"]
    others = "unknown" if busy is None else f"{busy:.1f} of {line['cores']} cores"
    return f"{line['cpu']}, {line['threads']} threads, busy with other programs: {others}"


def _cells(line: dict[str, Any], step: Step, arm: str) -> list[str]:
    shares = line["share_of_copy"][step][arm]
    ratio = line["ratio"][step].get(arm, 1.0)
    percents = [f"{100 * shares[name]:.0f} %" for name in ("warm", "fresh")]
    return [_spread(line["seconds"][step][arm]), *percents, f"{ratio:.2f}"]


def _spread(seconds: dict[str, float]) -> str:
    """Median, then 20th to 80th percentile, in milliseconds."""
    p20, p50, p80 = (1000 * seconds[name] for name in ("p20", "p50", "p80"))
    return f"{p50:.3g} ({p20:.3g}-{p80:.3g})"


def _warn(line: dict[str, Any]) -> None:
    busy, cores = line["others_busy_cores"], line["cores"]
    if line["device"] == "cpu" and busy is not None and busy > _DISTURBED * cores:
        problem = f"{line['entry']}: other programs used {busy:.1f} of {cores} cores"
        print(f"stamm: {problem}; repeat on an idle machine.", file=sys.stderr)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
