"""`stamm env`: what a bug report needs."""

from __future__ import annotations

import argparse
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from stamm.base.autotune import measurements
from stamm.cli.output import print_json, print_pairs
from stamm.runs.manifest import environment


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of `env`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print versions, hardware, and what cannot be used here with the reason."""
    kernels, measured = _kernels(), _measured()  # torch is loaded by now: its capability is known
    facts = environment()
    compiler = next((p for n in ("g++", "clang++", "c++") if (p := shutil.which(n))), None)
    headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()
    facts["compiler"] = compiler or "none: training runs uncompiled, slower"
    facts["python_headers"] = headers or "none: training runs uncompiled, slower"
    facts.update(kernels)
    facts["accelerator"] = _accelerator()
    facts["measured kernels"] = measured
    if options.json:
        print_json(facts)
        return 0
    facts["measured kernels"] = "" if measured else "none yet: a training run measures what it uses"
    libraries = facts.pop("libraries")
    print_pairs([(key, str(value)) for key, value in facts.items()])
    print_pairs([(f"  {name}", told) for name, told in measured.items()])
    print_pairs([(f"  {name}", version) for name, version in libraries.items()])
    return 0


def _accelerator() -> str:
    """The GPUs that training would use, or why the CPU is."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        built = "sees none" if torch.version.cuda else "is built without CUDA"
        return f"none: this torch {built}; training uses the CPU"
    count = torch.cuda.device_count()
    return ", ".join(torch.cuda.get_device_name(index) for index in range(count))


def _measured() -> dict[str, str]:
    """Per operation the implementation that a run here uses, and its time over the other's."""
    if find_spec("torch") is None:
        return {}
    from stamm.activations.fused import build  # loads torch

    described = {}
    for found in measurements(build.processor().rpartition(", ")[0]):
        times = dict(found.seconds)
        used, threads = times.pop(found.chosen), found.processor.rpartition(", ")[2]
        others = ", ".join(f"{used / s:.2f} of {name}'s time" for name, s in times.items())
        described[f"{found.operation}, {threads}"] = f"{found.chosen}, {others}"
    return described


def _kernels() -> dict[str, str]:
    """Per backend of fused activations: ready, or why not."""
    if find_spec("torch") is None:
        return {f"{name} kernels": "torch is not installed" for name in ("cpu", "gpu")}
    from stamm.activations.fused import build, gpu  # load torch

    found = {"cpu kernels": build.unavailable(), "gpu kernels": gpu.unavailable()}
    told = {name: why or "ready" for name, why in found.items()}
    if gpu.unavailable() is None and gpu.caveat() is not None:
        told["gpu kernels"] = f"ready {gpu.caveat()}"
    return told
