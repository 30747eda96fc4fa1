"""`stamm env`: versions and hardware for a bug report."""

from __future__ import annotations

import argparse
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from stamm.base.autotune import measurements
from stamm.base.torch_private import untested_torch
from stamm.cli.output import print_json, print_pairs
from stamm.runs.manifest import environment


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `env`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--completion",
        choices=("bash", "zsh"),
        help='print tab completion for a shell: eval "$(stamm env --completion bash)" in ~/.bashrc',
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Print versions, hardware, and which kernels are unavailable and why."""
    if options.completion:
        print(_completion(options.completion))
        return 0
    kernels, measured = (
        _kernels(),
        _measured(),
    )  # loads torch, which reports the vector instructions
    facts = environment()
    compiler = next((p for n in ("g++", "clang++", "c++") if (p := shutil.which(n))), None)
    headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()
    facts["compiler"] = compiler or "none: training runs uncompiled, slower"
    facts["python_headers"] = headers or "none: training runs uncompiled, slower"
    facts.update(kernels)
    facts["accelerator"] = _accelerator()
    facts["measured kernels"] = measured
    version = facts["libraries"]["torch"]
    if version != "missing" and (warning := untested_torch(version)):
        facts["warning"] = warning
    if options.json:
        print_json(facts)
        return 0
    facts["measured kernels"] = "" if measured else "none yet: measured by the first training run"
    libraries = facts.pop("libraries")
    print_pairs([(key, str(value)) for key, value in facts.items()])
    print_pairs([(f"  {name}", text) for name, text in measured.items()])
    print_pairs([(f"  {name}", version) for name, version in libraries.items()])
    return 0


# The words of a verb's first argument, beside files and folders.
_NAMED = {
    "recipes": ("run", "plan", "show", "cp", "diff"),
    "activations": ("show", "check", "bench"),
}


def _completion(shell: str) -> str:
    """A function of the shell: verbs, options, recipes and activations; files where no word fits."""
    from stamm.activations import catalog as activations
    from stamm.cli.main import VERBS, argument_words
    from stamm.recipes.catalog import RECIPES

    known = {
        "recipes": [recipe.name for recipe in RECIPES],
        "activations": list(activations.names()),
    }
    cases = []
    for verb in VERBS:
        words = argument_words(verb)
        words += [w for kind, verbs in _NAMED.items() if verb.name in verbs for w in known[kind]]
        if verb.name in ("compare", "search"):  # of which the prefix may be left out
            own = [name for name in known["recipes"] if name.startswith(f"{verb.name}.")]
            words += [*own, *(name.removeprefix(f"{verb.name}.") for name in own)]
        cases.append(f"    {verb.name}) words='{' '.join(words)}' ;;")
    header = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
    return (
        f"{header if shell == 'zsh' else ''}_stamm() {{\n"
        f"  local words='{' '.join(verb.name for verb in VERBS)} --help --version'\n"
        '  (( COMP_CWORD > 1 )) && case "${COMP_WORDS[1]}" in\n'
        + "\n".join(cases)
        + "\n    *) words='' ;;\n  esac\n"
        '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))\n'
        "}\ncomplete -o default -F _stamm stamm"
    )


def _accelerator() -> str:
    """Names of the GPUs, or why training uses the CPU."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        why = "no GPU is visible" if torch.version.cuda else "torch is built without CUDA"
        return f"none ({why}); training uses the CPU"
    count = torch.cuda.device_count()
    return ", ".join(torch.cuda.get_device_name(index) for index in range(count))


def _measured() -> dict[str, str]:
    """Chosen implementation of each measured operation, and its time relative to the others."""
    if find_spec("torch") is None:
        return {}
    from stamm.activations.fused import build  # loads torch

    described = {}
    for measurement in measurements(build.processor().rpartition(", ")[0]):
        times = dict(measurement.seconds)
        used, threads = times.pop(measurement.chosen), measurement.processor.rpartition(", ")[2]
        others = ", ".join(f"{used / s:.2f} of {name}'s time" for name, s in times.items())
        described[f"{measurement.operation}, {threads}"] = f"{measurement.chosen}, {others}"
    return described


def _kernels() -> dict[str, str]:
    """State of the fused activation kernels: "ready", or the reason why not."""
    if find_spec("torch") is None:
        return {f"{name} kernels": "torch is not installed" for name in ("cpu", "gpu")}
    from stamm.activations.fused import build, gpu  # load torch

    reasons = {"cpu kernels": build.unavailable_reason(), "gpu kernels": gpu.unavailable_reason()}
    states = {name: why or "ready" for name, why in reasons.items()}
    if gpu.unavailable_reason() is None and gpu.caveat() is not None:
        states["gpu kernels"] = f"ready {gpu.caveat()}"
    return states
