"""Configuration of the training engine: devices, parallelism, precision, checkpoints. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Positive, Threads, at_least
from stamm.base.config import Bounded, validate

AttentionKernel = Literal["dense", "flex", "fused"]
Precision = Literal["float32", "bfloat16", "float8", "float8_rows"]
EIGHT_BITS = ("float8", "float8_rows")


@dataclass(frozen=True, kw_only=True)
class Parallel(Bounded):
    """Parallelism over the processes that torchrun starts.

    data      data parallel: processes that take other sequences; None: as many as remain
    context   context parallel: processes that take other parts of the same sequences
    tensor    tensor parallel: processes that take other neurons and heads of every layer
    replicas  hybrid sharding (HSDP): groups of equal size into which the data-parallel processes are
              divided. Weights, gradients and optimizer state are sharded over the processes of one
              group (FSDP2), and gradients are all-reduced between groups; 1: sharded over all processes
    Source    Zhao et al. 2023 (arXiv 2304.11277, section 3.2.2) for hybrid sharding
    """

    data: AtLeastOne | None = None
    context: AtLeastOne = 1
    tensor: AtLeastOne = 1
    replicas: AtLeastOne = 1


@dataclass(frozen=True, kw_only=True)
class StopOnNonfinite(Bounded):
    """End the run at a non-finite loss (NaN, infinity); the checkpoints before it are kept.

    A loss spike is recorded and trained on. Resumed unchanged, the run ends at the same step again:
    correct the cause, or choose RollBackAndSkip.

    window, deviations   definition of a loss spike: see `engine.spike_detection`
    """

    window: Annotated[int, at_least(2)] = 128
    deviations: Positive = 8.0


@dataclass(frozen=True, kw_only=True)
class RollBackAndSkip(Bounded):
    """Roll back to a checkpoint before a loss spike or a non-finite loss, and skip the sequences of the
    `skipped_steps` steps up to it for good.

    at_most   rollbacks in a run; then it ends
    Source    Chowdhery et al. 2022 (arXiv 2204.02311, section 5.1): spikes did not come back when
              the batches around them were left out
    """

    window: Annotated[int, at_least(2)] = 128
    deviations: Positive = 8.0
    skipped_steps: AtLeastOne = 1
    at_most: AtLeastOne = 10


@dataclass(frozen=True, kw_only=True)
class SkipUpdate(Bounded):
    """Skip the update of a step with a non-finite loss, record loss spikes, and train on.

    at_most   such steps in a row; then the run ends
    """

    window: Annotated[int, at_least(2)] = 128
    deviations: Positive = 8.0
    at_most: AtLeastOne = 10


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Bounded):
    """Training engine: threads, devices, precision, parallelism, checkpoints.

    threads            CPU threads; part of the configuration because sums depend on it, unless
                       `pieces` is given and as large
    pieces             on a CPU, in one float32 process: into how many pieces a micro-batch is split, of
                       which each thread computes one at a time (`engine.micro_batches`). Sums
                       depend on it. None: chosen by `engine.pieces.pieces_of`
    compile            "layers" compiles one layer and shares it; "off" runs eagerly. Without a C++
                       compiler, "layers" runs eagerly, with a message
    device             "auto" uses a GPU where there is one
    precision          "bfloat16": matrices are cast for products; gradients between processes and
                       optimizer state stay float32.
                       "float8", "float8_rows": in addition the layers' matrices multiply in 8 bits, with
                       one scale per tensor or per row; on GPUs, through torchao
    attention          attention backend: "dense" masks for any device; "flex" for GPUs and "fused" for
                       float32 on CPUs, which need no T x T mask and skip blocks of other documents;
                       "auto" is flex or fused where it is available
    kernels            activations and attention on CPUs: "stamm", the generated kernels; "torch",
                       torch's own functions; "auto", the faster of both as measured on this machine
                       at the start of a run. The choice is recorded in the manifest and used again
                       when the run resumes
    activation_checkpointing   "layers": keep only each layer's input for the backward pass, recompute
                       the rest
    parallel           parallelism over processes, under torchrun
    checkpoint_every   steps between checkpoints
    keep_checkpoints   how many of the newest are kept; under RollBackAndSkip also those that it may need
    keep_every         also keep the checkpoints of every so many steps; None: only the one before the
                       learning rate decays
    async_checkpointing   write checkpoints in the background; needs their size in memory
    on_nonfinite       what to do about a non-finite loss or a loss spike
    portable_bits      the same bits on every x86-64 processor with AVX2 (`engine.portable_bits`): float32, one
                       process on a CPU, compile="off". Slower: docs/accountability.md has numbers
    """

    threads: Threads = 2
    pieces: AtLeastOne | None = None
    compile: Literal["layers", "off"] = "layers"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "float32"
    attention: Literal["auto", "dense", "flex", "fused"] = "auto"
    kernels: Literal["auto", "stamm", "torch"] = "auto"
    activation_checkpointing: Literal["none", "layers"] = "none"
    parallel: Parallel = field(default_factory=Parallel)
    checkpoint_every: AtLeastOne = 50
    keep_checkpoints: AtLeastOne = 2
    keep_every: AtLeastOne | None = None
    async_checkpointing: bool = False
    on_nonfinite: StopOnNonfinite | RollBackAndSkip | SkipUpdate = field(
        default_factory=StopOnNonfinite
    )
    portable_bits: bool = False

    def __post_init__(self) -> None:
        fits = {"device": ("auto", "cpu"), "precision": ("float32",), "compile": ("off",)}
        fits |= {"attention": ("auto", "dense", "fused"), "kernels": ("auto", "stamm")}
        validate(
            self,
            *(
                (name, not self.portable_bits or getattr(self, name) in values,
                 f"does not go with portable_bits; set engine.{name}={values[-1]}")
                for name, values in fits.items()
            ),
            ("parallel", not self.portable_bits or self.parallel == Parallel(),
             "does not go with portable_bits, which trains in one process"),
        )  # fmt: skip
