"""How a model is trained on this machine. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from stamm.base.config import validate

AttentionKernel = Literal["dense", "flex", "fused"]
Precision = Literal["float32", "bfloat16", "float8", "float8_rows"]
EIGHT_BITS = ("float8", "float8_rows")


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the processes that torchrun starts divide the work.

    data      processes that take other sequences; None: as many as are left
    context   processes that take other stretches of the same sequences
    tensor    processes that take other neurons and heads of every layer
    Edge      whatever the division, weights, gradients and moments lie in pieces over all of them
    """

    data: int | None = None
    context: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        validate(
            self,
            ("data", self.data is None or self.data >= 1, "must be at least 1"),
            ("context", self.context >= 1, "must be at least 1"),
            ("tensor", self.tensor >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End the run at a loss that is no number; the checkpoints before it are kept.

    A spike is noted and trained on. The same run, begun again, ends there again: change what is
    wrong, or choose RollBack.

    window, deviations   what a spike is: see `engine.guard`
    """

    window: int = 128
    deviations: float = 8.0

    def __post_init__(self) -> None:
        _check_guard(self)


@dataclass(frozen=True, kw_only=True)
class RollBack:
    """Go back to a checkpoint from before a spike or a loss that is no number, and train on other
    sequences: those of the `passed_over` steps that led there are left out, for good.

    at_most   times in a run; then it ends
    Source    Chowdhery et al. 2022 (arXiv 2204.02311, section 5.1): spikes did not come back when
              the batches around them were left out
    """

    window: int = 128
    deviations: float = 8.0
    passed_over: int = 1
    at_most: int = 10

    def __post_init__(self) -> None:
        _check_guard(self)
        validate(
            self,
            ("passed_over", self.passed_over >= 1, "must be at least 1"),
            ("at_most", self.at_most >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """Leave out the update of a step whose loss is no number, note spikes, and train on.

    at_most   steps in a row without a number; then the run ends
    """

    window: int = 128
    deviations: float = 8.0
    at_most: int = 10

    def __post_init__(self) -> None:
        _check_guard(self)
        validate(self, ("at_most", self.at_most >= 1, "must be at least 1"))


def _check_guard(policy: Stop | RollBack | GoOn) -> None:
    validate(
        policy,
        ("window", policy.window >= 2, "must be at least 2"),
        ("deviations", 0 < policy.deviations < math.inf, "must be positive and finite"),
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The machine side of training.

    threads            CPU threads; part of the configuration because sums depend on it, unless
                       `pieces` is given and as large
    pieces             on a CPU, in one float32 process: into how many pieces a micro-batch is cut, of
                       which each thread computes one at a time (`engine.micro_batches`). Sums
                       depend on it. None: as `engine.pieces.pieces_of` says
    compile            "layers" compiles one layer and shares it; "off" runs eagerly. Where no C++
                       compiler is found, "layers" runs eagerly and says so
    device             "auto" takes a GPU where there is one
    precision          "bfloat16": matrices are cast for products, sums and gradients between
                       processes stay float32, and so does what the optimizer changes.
                       "float8", "float8_rows": besides, the layers' matrices multiply in 8 bits, with
                       one scale a tensor or one a row; for GPUs, through torchao
    attention          what attends: "dense" masks for any device; "flex" for GPUs and "fused" for
                       float32 on CPUs, which need no T x T numbers and pass over what documents
                       hide; "auto" is flex or fused where that can be
    kernels            what computes activations and attention on CPUs: "stamm", the generated
                       kernels; "torch", torch's own functions; "auto", the faster of both as
                       measured on this machine at the start of a run. The choice is kept in the
                       manifest, and with it a run resumes
    recompute          "layers" keeps each layer's input alone and computes the rest once more
    parallel           how processes divide the work, under torchrun
    checkpoint_every   steps between checkpoints
    keep_checkpoints   how many of the newest are kept; under RollBack also those that it may need
    keep_every         further checkpoints that stay: those of every so many steps; None: none but
                       the one before the learning rate falls
    background_saves   write checkpoints while training goes on; takes their size in memory more
    bad_losses         what to do about a loss that is no number, or a spike
    """

    threads: int = 2
    pieces: int | None = None
    compile: Literal["layers", "off"] = "layers"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "float32"
    attention: Literal["auto", "dense", "flex", "fused"] = "auto"
    kernels: Literal["auto", "stamm", "torch"] = "auto"
    recompute: Literal["none", "layers"] = "none"
    parallel: Parallel = field(default_factory=Parallel)
    checkpoint_every: int = 50
    keep_checkpoints: int = 2
    keep_every: int | None = None
    background_saves: bool = False
    bad_losses: Stop | RollBack | GoOn = field(default_factory=Stop)

    def __post_init__(self) -> None:
        validate(
            self,
            ("threads", self.threads >= 1, "must be at least 1"),
            ("pieces", self.pieces is None or self.pieces >= 1, "must be at least 1"),
            ("checkpoint_every", self.checkpoint_every >= 1, "must be at least 1"),
            ("keep_every", self.keep_every is None or self.keep_every >= 1, "must be at least 1"),
            ("keep_checkpoints", self.keep_checkpoints >= 1, "must be at least 1"),
        )
