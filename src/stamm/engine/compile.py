"""torch.compile of a model's layers, and what it needs on this machine."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from stamm.base.console import Progress
from stamm.engine.config import EngineConfig

_GRAPH_BREAK = "graph_break"


def missing_to_compile() -> str:
    """The missing requirement of torch.compile on this machine's CPU; "" when nothing is missing."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        return "A C++ compiler (g++, clang++) was"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h (Debian: python3-dev) was"
    return ""


def separate_inductor_cache() -> None:
    """Keep code that inductor compiled for one vector length apart from that for another.

    The key of its cache lacks the vector length: after a process with AVX-512, a process with AVX2
    loaded the same code, built it with its own flags, and computed wrong numbers or wrote beyond the
    end of tensors (torch 2.13). Two things give a process another length: ATEN_CPU_CAPABILITY, which
    simdlen puts into the key; and a trial of the compiler, which counts as "no AVX-512" when the
    machine is too busy to end it within a minute, and is left out: the processor has what torch's own
    kernels use.

    Checked  tests/unit/engine/test_inductor_cache.py
    """
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in ("AVX2", "AVX512"):
        inductor.cpp.vec_isa_ok = True
    if capability == "AVX2":
        inductor.cpp.simdlen = 256


def compile_layers(layers: nn.ModuleList, config: EngineConfig, progress: Progress) -> bool:
    """Compile each layer in place; equal layers share one compilation. True when they were compiled.

    Without a compiler the layers run eagerly, slower; this is reported.

    Edge     not with fullgraph=True: that counts compiled frames in one number of the process (torch 2.12,
             2.13; github.com/pytorch/pytorch/pull/185138), and with micro-batches in several threads a call
             could end with "found no compiled frames". `graph_break` has what it would have refused
    Checked  tests/unit/engine/test_compiled_layers.py
    """
    counters[_GRAPH_BREAK].clear()  # of what the process compiled before
    if config.compile == "off":
        return False
    missing = missing_to_compile()
    if missing:
        progress.log(f"{missing} not found: training runs uncompiled, slower.")
        return False
    separate_inductor_cache()
    torch._dynamo.reset()  # compilations of an earlier model count towards a limit per function
    for layer in layers:
        layer.compile()
    return True


def graph_break() -> str:
    """The first reason for which a layer was compiled in several parts; "" where each is in one."""
    return next((reason.splitlines()[0] for reason in counters[_GRAPH_BREAK]), "")
