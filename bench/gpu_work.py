"""What `bench/gpu.py` measures: each function yields results, each result knows its limit.

Every comparison takes turns on one device: each round calls everything once, and the order is
rotated by one from round to round. On a GPU, events time the device, its cache overwritten before.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.gpu_training import ARMS as TRAINED
from bench.linear_cross_entropy import ARMS, DROPPED, Loss, step
from stamm.activations.benchmark import Quantiles, Timed, clock_of, in_turns, quantiles
from stamm.activations.board.board import QUICK, ROUNDED, measure_board
from stamm.activations.catalog import ENTRIES, get
from stamm.activations.catalog.registry import names
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.emitters.verb import TARGETS
from stamm.activations.module import GatedActivation, build_activation
from stamm.activations.module.ops import operation_of
from stamm.activations.spec import Gated
from stamm.models.config import PlainFFN
from stamm.models.ffn import build_ffn

ROOT = Path(__file__).parents[1]
ARM_SECONDS = 240  # of training, compilation included
WARM_UP = 2  # rounds that are not counted
PRICED = ("xielu", "prelu", "swish_beta")
GATED = ("swiglu", "xielu_glu")
EMITTED = ("triton", "cuda")
LIGER = "liger_kernel.transformers.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyLoss"
AGREE = 2e-2  # relative, in the Euclidean norm: two paths in bfloat16
FIRST_CALL = """
import sys, time
import torch
from stamm.activations.module import xielu
device = torch.device(sys.argv[1])
module = xielu().to(device)
x = torch.randn(256, 1024, device=device).bfloat16().requires_grad_()
began = time.perf_counter()
module(x).sum().backward()
x.grad[0, 0].item()
print(time.perf_counter() - began)
"""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a result is held to: its ratio, or another of its numbers."""

    of: Literal["ratio", "p50", "failed", "took"] = "ratio"
    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Whether the value keeps it; NaN does not."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


SHARE = Limit(at_least=0.90)  # of the bandwidth of a copy
EVERY_SHARE = Limit(at_least=0.50)  # likewise, of functions that may be bound by arithmetic
PRICE = Limit(at_most=1.05)  # of learnable parameters, over the same kernel with constants
# A feed-forward block over its bare matrix products and the bytes of its activation at the speed of a
# copy: 24.8 and .85 ms on an H200, 24.2 and 1.17 ms on an H100.
BLOCK = Limit(at_most=1.02)
NOT_SLOWER = Limit(at_most=1.0)
HALF = Limit(at_most=0.5)
FIRST = Limit(of="p50", at_most=2.0)  # seconds
ALL_PASS = Limit(of="failed", at_most=0)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measurement.

    seconds   of the call
    ratio     what `told` says; None where there is nothing to compare with
    not_run   why nothing was measured, or not all of it: the limit is then not kept, if not missed
    more      further numbers by name
    """

    benchmark: str
    case: str
    shape: tuple[int, ...] = ()
    dtype: str = "bfloat16"
    seconds: Quantiles | None = None
    ratio: float | None = None
    told: str = ""
    limit: Limit | None = None
    not_run: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """As JSON values; `met` is None where nothing was measured or nothing is asked."""
        numbers = asdict(self.seconds) if self.seconds else {}
        values = {**self.more, **numbers, "ratio": self.ratio}
        limit = {} if self.limit is None else asdict(self.limit)
        held = None if self.limit is None else values.get(self.limit.of)
        met = None if held is None or self.limit is None else self.limit.met(held)
        if self.not_run and met:
            met = None
        return {
            "benchmark": self.benchmark,
            "case": self.case,
            "shape": list(self.shape),
            "dtype": self.dtype,
            **values,
            "told": self.told,
            "limit": {name: value for name, value in limit.items() if value is not None} or None,
            "met": met,
            "not_run": self.not_run,
        }


PLAIN = tuple(spec.name for spec in ENTRIES if not isinstance(spec.arity, Gated))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where is measured, and how large everything is: by default as in a large model's layers."""

    device: torch.device
    rounds: int = 20
    tokens: int = 16_384
    hidden: int = 4096
    inner: int = 21_504
    loss_tokens: int = 8192
    vocabulary: int = 131_072
    entries: tuple[str, ...] = PLAIN
    processes: int = 5
    is_quick: bool = False

    def normal(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        """Normal numbers in bfloat16, made on the device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        made = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return made.normal_(0.0, scale, generator=generator)


def quick(device: torch.device) -> Setting:
    """Everything once, small enough for any machine: numbers that mean nothing."""
    return Setting(
        device=device,
        rounds=3,
        tokens=64,
        hidden=64,
        inner=1024,
        loss_tokens=64,
        vocabulary=512,
        entries=("xielu", "silu", "gelu"),
        processes=2,
        is_quick=True,
    )


def timed(setting: Setting, works: Mapping[str, Timed], rounds: int) -> dict[str, Quantiles]:
    """Seconds of each call, taking turns."""
    times = in_turns(clock_of(setting.device), works, rounds, warm_up=WARM_UP)
    return {name: quantiles(taken) for name, taken in times.items()}


def pointwise(setting: Setting) -> Iterator[Result]:
    """Every plain entry: the share of a copy's bandwidth, forward, and backward with parameters."""
    shape = (setting.tokens, setting.inner)
    x, weight = (setting.normal(*shape, seed=seed, scale=2.0) for seed in range(2))
    works = {"copy": _copy(x)}
    for name in setting.entries:
        module = build_activation(name).to(setting.device)
        forward, backward = _passes(module, (x,), tuple(module.parameters()), weight)
        works |= {f"{name} forward": forward, f"{name} backward": backward}
    found = timed(setting, works, setting.rounds)
    copied = found.pop("copy")
    yield Result(benchmark="copy", case="copy of a tensor", shape=shape, seconds=copied)
    for case, seconds in found.items():
        name, _, which = case.rpartition(" ")
        tensors = 2 if which == "forward" else 3
        yield Result(
            benchmark="xielu" if name == "xielu" else "every entry",
            case=case,
            shape=shape,
            seconds=seconds,
            ratio=tensors / 2 * copied.p50 / seconds.p50,
            told="of the bandwidth of a copy",
            limit=SHARE if name == "xielu" else EVERY_SHARE,
        )


def price(setting: Setting) -> Iterator[Result]:
    """Learnable parameters, over the same function with constants in their place."""
    shape = (setting.tokens, setting.inner)
    x, weight = (setting.normal(*shape, seed=seed, scale=2.0) for seed in range(2))
    for name in PRICED:
        spec = get(name)
        module = build_activation(spec).to(setting.device)
        fixed = operation_of(kernel_of(spec), tuple(p.initial for p in spec.parameters))
        works: dict[str, Timed] = {}
        for arm, call, parameters in (
            ("learnable", module, tuple(module.parameters())),
            ("constant", fixed, ()),
        ):
            forward, backward = _passes(call, (x,), parameters, weight)
            works |= {f"{arm} forward": forward, f"{arm} backward": backward}
        found = timed(setting, works, setting.rounds)
        for which in ("forward", "backward"):
            learnable, constant = found[f"learnable {which}"], found[f"constant {which}"]
            yield Result(
                benchmark="price of parameters",
                case=f"{name} {which}",
                shape=shape,
                seconds=learnable,
                ratio=learnable.p50 / constant.p50,
                told="times the kernel with constants",
                limit=PRICE,
                more={"against": asdict(constant)},
            )


def gated(setting: Setting) -> Iterator[Result]:
    """Gate and up as two tensors, and as the one that a joint projection gives."""
    shape = (setting.tokens, setting.inner)
    gate, up, weight = (setting.normal(*shape, seed=seed, scale=2.0) for seed in range(3))
    both = setting.normal(shape[0], 2 * shape[1], seed=3, scale=2.0)
    works = {"copy": _copy(gate)}
    for name in GATED:
        module = build_activation(name).to(setting.device)
        assert isinstance(module, GatedActivation)
        parameters = tuple(module.parameters())
        for layout, call, given in (
            ("in two", module, (gate, up)),
            ("in one", module.of_fused, (both,)),
        ):
            forward, backward = _passes(call, given, parameters, weight)
            works |= {f"{name} {layout} forward": forward, f"{name} {layout} backward": backward}
    found = timed(setting, works, setting.rounds)
    copied = found.pop("copy")
    for case, seconds in found.items():
        tensors = 3 if case.endswith("forward") else 5
        yield Result(
            benchmark="gated",
            case=case,
            shape=shape,
            seconds=seconds,
            ratio=tensors / 2 * copied.p50 / seconds.p50,
            told="of the bandwidth of a copy",
            limit=SHARE,
        )


def block(setting: Setting) -> Iterator[Result]:
    """A training step of the xielu feed-forward block, over its products and the bytes it must move."""
    tokens, hidden, inner = setting.tokens, setting.hidden, setting.inner
    ffn = build_ffn(hidden, PlainFFN(width=inner)).bfloat16().to(setting.device)
    x, into = (setting.normal(tokens, hidden, seed=seed) for seed in range(2))
    post, slope = (setting.normal(tokens, inner, seed=seed) for seed in range(2, 4))
    up, down = ffn.get_parameter("up_proj.weight"), ffn.get_parameter("down_proj.weight")
    leaves = [x.requires_grad_(), *ffn.parameters()]

    def whole() -> object:
        return torch.autograd.grad(ffn(x), leaves, into)

    @torch.no_grad()
    def bare() -> object:
        forward = (x @ up.T, post @ down.T)
        return (*forward, into @ down, into.T @ post, slope @ up, slope.T @ x)

    works: dict[str, Timed] = {"block": (_nothing, whole), "products": (_nothing, bare)}
    works["copy"] = _copy(post)
    found = timed(setting, works, setting.rounds)
    flops = 12 * tokens * hidden * inner
    moved = 2.5 * found["copy"].p50  # two tensors forward, three backward; a copy moves two
    yield Result(
        benchmark="feed-forward block",
        case="xielu forward and backward",
        shape=(tokens, hidden, inner),
        seconds=found["block"],
        ratio=found["block"].p50 / (found["products"].p50 + moved),
        told="times its matrix products and the activation's bytes",
        limit=BLOCK,
        more={
            "against": asdict(found["products"]),
            "moved_s": moved,
            "products_tflops": flops / found["products"].p50 / 1e12,
        },
    )


def loss(setting: Setting) -> Iterator[Result]:
    """Linear cross-entropy, over all logits at once and over Liger-Kernel: time and peak memory."""
    n, v, d = setting.loss_tokens, setting.vocabulary, setting.hidden
    hidden = setting.normal(n, d, seed=0).requires_grad_()
    weight = setting.normal(v, d, seed=1, scale=0.02).requires_grad_()
    generator = torch.Generator(setting.device).manual_seed(2)
    target = torch.randint(0, v, (n,), generator=generator, device=setting.device)
    target[::DROPPED] = -100
    data = [hidden, weight, target]
    arms: dict[str, Loss] = dict(ARMS)
    missing = _with_liger(setting, arms)
    expected = step(arms["plain"], data)
    peaks = {}
    for name, arm in list(arms.items()):
        errors = list(map(_distance, step(arm, data), expected))
        if not all(error < AGREE for error in errors):
            told = f"{name} and plain differ by {errors}: it is not timed"
            if name != "Liger-Kernel":
                raise ArithmeticError(told)
            missing = told
            del arms[name]
            continue
        peaks[name] = _peak(setting, arm, data)
    del expected
    works: dict[str, Timed] = {name: (_nothing, _stepping(arm, data)) for name, arm in arms.items()}
    times = timed(setting, works, max(3, setting.rounds // 2))
    for name in ("plain", "Liger-Kernel"):
        case = f"forward and backward, beside {name}"
        facts: dict[str, Any] = {"benchmark": "linear cross-entropy", "shape": (n, v, d)}
        if name not in times:
            yield Result(case=case, limit=NOT_SLOWER, not_run=missing, **facts)
            continue
        yield Result(
            case=case,
            seconds=times["stamm"],
            ratio=times["stamm"].p50 / times[name].p50,
            told=f"times {name}",
            limit=NOT_SLOWER,
            more={"against": asdict(times[name])},
            **facts,
        )
        if setting.device.type == "cuda" and name == "plain":
            yield Result(
                case="peak memory, beside plain",
                ratio=peaks["stamm"] / peaks[name],
                told=f"of the bytes of {name}",
                limit=HALF,
                more={"bytes": peaks["stamm"], "against_bytes": peaks[name]},
                **facts,
            )


def first_call(setting: Setting) -> Iterator[Result]:
    """The first step of xielu in a fresh process whose kernels were compiled by another one."""
    times = []
    for _ in range(1 + setting.processes):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CALL, str(setting.device)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"a fresh process fails: {done.stderr.strip()[-300:]}")
        times.append(float(done.stdout))
    yield Result(
        benchmark="first call",
        case="xielu forward and backward, kernels compiled before",
        shape=(256, 1024),
        seconds=quantiles(times[1:]),
        limit=FIRST,
        more={"process_before": times[0]},
    )


def training(setting: Setting) -> Iterator[Result]:
    """Steps of the 1 B model through stamm's own loop, each activation in a process of its own."""
    for arm in TRAINED:
        command = [sys.executable, "-m", "bench.gpu_training", arm, "--device", setting.device.type]
        command += ["--quick"] if setting.is_quick else []
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=ARM_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{arm}: {done.stderr.strip()[-400:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        speed = statistics.median(found["tokens_per_s"])
        yield Result(
            benchmark="training, 1 B",
            case=f"{arm}, a step of {found['tokens_a_step']:,} tokens",
            seconds=quantiles(found.pop("seconds")),
            ratio=statistics.median(found["mfu"]),
            told=f"MFU, {speed:,.0f} tokens/s, {found['peak_bytes'] / 2**30:.1f} GiB",
            more=found,
        )


def emitted(setting: Setting) -> Iterator[Result]:
    """Texts of `stamm emit`, run on the device: errors beside the correctly rounded float32 graph."""
    targets = {name: TARGETS[name] for name in EMITTED}
    record = measure_board(
        {},
        targets,
        entries=QUICK if setting.is_quick else names(),
        count=2**12 if setting.is_quick else 2**13,
        compiled=False,
        log=lambda line: print(line, flush=True),
    )
    rows = {(row.target, row.entry): row for row in record.target_rows}
    for runtime in record.targets:
        own = [row for row in record.target_rows if row.target == runtime.name]
        ran = [row for row in own if not row.problem]
        near = [r for r in ran if r.ulp <= rows[ROUNDED, r.entry].ulp + 1]
        problems = {row.entry: row.problem for row in own if row.problem}
        functions = {
            p.function: [p.ulp, p.at] for p in record.primitives if p.target == runtime.name
        }
        yield Result(
            benchmark="emitted text",
            case=f"{runtime.name}: {len(own)} entries, {runtime.how}",
            shape=(record.inputs,),
            dtype="float32",
            told=f"{len(near)} within 1 ulp of the rounded graph, {sum(r.stable <= 4 for r in ran)}"
            f" stable within 4, {len(problems)} did not run",
            limit=None if runtime.name == ROUNDED else ALL_PASS,
            not_run=runtime.problem or None,
            more={
                "failed": len(problems),
                "problems": problems,
                "functions": functions,
                "version": runtime.version,
                "entries": {row.entry: [row.ulp, row.stable, list(row.special)] for row in ran},
            },
        )


BENCHMARKS: dict[str, Callable[[Setting], Iterator[Result]]] = {
    "pointwise": pointwise,
    "price": price,
    "gated": gated,
    "block": block,
    "loss": loss,
    "first_call": first_call,
    "emitted": emitted,
    "training": training,
}


def _nothing() -> None:
    pass


def _copy(source: Tensor) -> Timed:
    target = torch.empty_like(source)
    return _nothing, lambda: target.copy_(source)


def _passes(
    call: Callable[..., Tensor],
    given: tuple[Tensor, ...],
    parameters: tuple[nn.Parameter, ...],
    weight: Tensor,
) -> tuple[Timed, Timed]:
    """The forward pass without gradients; and the backward pass of a result made before, untimed."""
    leaves = [t.detach().requires_grad_() for t in given]
    made: list[Tensor] = []

    @torch.no_grad()
    def forward() -> object:
        return call(*given)

    def prepare() -> None:
        made.append(call(*leaves))

    def backward() -> object:
        return torch.autograd.grad(made.pop(), [*leaves, *parameters], weight)

    return (_nothing, forward), (prepare, backward)


def _stepping(arm: Loss, data: list[Tensor]) -> Callable[[], object]:
    return lambda: step(arm, data)


def _distance(found: Tensor, true: Tensor) -> float:
    """In the Euclidean norm, relative; NaN stays NaN."""
    wide, truth = found.detach().double(), true.detach().double()
    return float((wide - truth).norm() / truth.norm())


def _peak(setting: Setting, arm: Loss, data: list[Tensor]) -> int:
    """The most bytes that a step holds at once, its results included, its inputs not; 0 on a CPU."""
    if setting.device.type == "cpu":
        return 0
    torch.cuda.synchronize(setting.device)
    torch.cuda.reset_peak_memory_stats(setting.device)
    before = torch.cuda.memory_allocated(setting.device)
    step(arm, data)
    torch.cuda.synchronize(setting.device)
    return torch.cuda.max_memory_allocated(setting.device) - before


def _with_liger(setting: Setting, arms: dict[str, Loss]) -> str | None:
    """Add Liger-Kernel's loss, or say why it cannot be measured."""
    if setting.device.type == "cpu":
        return "Liger-Kernel needs a GPU"
    place, _, name = LIGER.partition(":")
    try:
        theirs = getattr(importlib.import_module(place), name)(reduction="sum")
    except (ImportError, AttributeError) as error:
        return f"Liger-Kernel is not installed: {error}"
    arms["Liger-Kernel"] = lambda hidden, weight, target: theirs(weight, hidden, target)
    return None
