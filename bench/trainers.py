"""stamm's training beside Hugging Face's Trainer and litgpt: speed, memory, the first step.

Same sizes of model, same number of tokens a step, float32, on a CPU. Each arm trains in a process
of its own; the arms take turns, round by round, so that what else the machine does hits all of
them. Ratios are of neighbours in a round. The first steps (compilation, warm caches) do not count.

  stamm               `pretrain.train`: AdamW, documents that do not see each other, layers compiled
  stamm-eager         the same, not compiled
  stamm-apertus       as `stamm`, with AdEMAMix and a Goldfish mask: what a recipe does
  trainer             Trainer with its defaults, on transformers' class of the same model
  trainer-compiled    the same, with torch_compile=True
  litgpt              `litgpt.pretrain`, which compiles (Llama only)

Models: "llama" is SwiGLU, "apertus" xIELU with QK-norm; at equal parameters. The Trainer and litgpt
do not keep documents apart.

Run      python -m bench.trainers [--models llama apertus] [--sizes small] [--threads 1 2]
         [--arms stamm trainer] [--rounds 3] [--steps 20] [--warm-up 4] [--litgpt FOLDER]
         [--out FILE.jsonl]
         FOLDER is where litgpt==0.5.13 lies, and what it needs beside torch:
         pip install --no-deps --target FOLDER litgpt==0.5.13 lightning==2.6.6
         lightning-utilities==0.15.3 torchmetrics==1.9.0 jsonargparse==4.53.0
Prints   tables; with --out appends one JSON line per arm with machine and commit. Needs Linux
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.capability import processor_facts
from stamm.engine.config import EngineConfig
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.flops import count_parameters
from stamm.optim.config import AdamW, AdEMAMix
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig

if TYPE_CHECKING:
    import torch

CONTEXT = 256
DOCUMENT = 200  # tokens, on average
WARM_UP = 4
ARMS = ("stamm", "stamm-eager", "stamm-apertus", "trainer", "trainer-compiled", "litgpt")
# What is to be reached: tokens a second of `stamm` over that of the arm.
GOALS = {
    ("llama", "trainer"): 1.3,
    ("llama", "trainer-compiled"): 1.1,
    ("apertus", "trainer"): 2.0,
    ("apertus", "trainer-compiled"): 1.2,
}
COMMANDS = ("--help", "ls", "show xielu", "plan demo", "plan pretrain.apertus_8b")
COMMAND_GOAL_S = 0.5


@dataclass(frozen=True)
class Size:
    """A model's sizes, and sequences a step."""

    vocab_size: int
    d_model: int
    num_layers: int
    gated_width: int
    batch: int


SIZES = {
    "small": Size(2048, 128, 4, 352, 16),
    "middle": Size(8192, 384, 6, 1024, 8),
}


def model_config(model: str, size: Size) -> DecoderConfig:
    """A decoder that transformers has a class for: "llama" or "apertus", of as many parameters."""
    apertus = model == "apertus"
    plain, gated = PlainFFN(width=size.gated_width * 3 // 2), GatedFFN(width=size.gated_width)
    heads = size.d_model // (32 if size.d_model < 256 else 64)
    return DecoderConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        num_layers=size.num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        ffn=plain if apertus else gated,
        qk_norm=apertus,
        max_context=CONTEXT,
    )


class Clock:
    """When each step ended, by the wall and by the processor, and the most memory so far."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._loaded = time.perf_counter()
        self._ends: list[tuple[float, float]] = []
        self._peak = 0

    def tick(self) -> None:
        """A step has ended."""
        self._ends.append((time.perf_counter(), time.process_time()))
        self._peak = _peak_kib()

    def told(self, steps: int) -> dict[str, Any]:
        """What was seen, of the last `steps` steps."""
        pairs = list(zip(self._ends, self._ends[1:], strict=False))[-steps:]
        return {
            "import_s": self._loaded - self._began,
            "first_step_s": self._ends[0][0] - self._began,
            "seconds": [later[0] - earlier[0] for earlier, later in pairs],
            "processor_s": [later[1] - earlier[1] for earlier, later in pairs],
            "peak_mib": self._peak / 1024,
        }


def _peak_kib() -> int:
    # VmHWM begins anew with a program, ru_maxrss does not: it would count the one that started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def rows_of(size: Size, count: int) -> torch.Tensor:
    """`count` sequences of one token more than the context, drawn from a fixed seed."""
    import torch

    draw = torch.Generator().manual_seed(0)
    return torch.randint(4, size.vocab_size, (count, CONTEXT + 1), generator=draw)


def stamm(options: argparse.Namespace, folder: Path) -> Clock:
    """Train with stamm, through what `stamm run` calls."""
    import numpy as np
    import torch

    from stamm.base.console import NoProgress
    from stamm.engine.cpu_allocator import caching_allocator
    from stamm.engine.distributed import DistributedContext
    from stamm.models.determinism import set_determinism
    from stamm.pretrain.dataset import SequenceSampler
    from stamm.pretrain.train import train_decoder
    from stamm.runs.job import Workspace

    clock, size = Clock(options.began), SIZES[options.size]
    tokens = rows_of(size, _sequences(options, size)).flatten().numpy()
    lengths = np.random.default_rng(0).geometric(1 / DOCUMENT, len(tokens))
    starts = np.concatenate(([0], lengths.cumsum()))

    class Stream:
        """A packed corpus in memory."""

        num_tokens, vocabulary, end_id = len(tokens), size.vocab_size, 2
        stages = ((0, len(tokens)),)

        def read(self, start: int, stop: int) -> Any:
            return tokens[start:stop]

        def document_starts(self) -> Any:
            return starts[starts < len(tokens)]

    class Ticks(NoProgress):
        """Hears of each step when it is done and written down."""

        def advance(self, done: float, note: str = "", share: float | None = None) -> None:
            clock.tick()

    config = PretrainConfig(
        model=model_config(options.model, size),
        context=CONTEXT,
        sequences=_sequences(options, size),
        batch=(BatchStage(size=size.batch),),
        optimizer=AdamW(),
        goldfish=None,
        schedule=WarmupStableDecay(),
        engine=EngineConfig(
            threads=options.threads,
            compile="off" if options.arm == "stamm-eager" else "layers",
            checkpoint_every=10**6,
        ),
    )
    if options.arm == "stamm-apertus":
        config = replace(config, optimizer=AdEMAMix(), goldfish=Goldfish())
    set_determinism(options.threads)
    windows = SequenceSampler(Stream(), CONTEXT, config.seed, config.goldfish)
    with caching_allocator():  # as a run does
        workspace = Workspace(folder=folder, progress=Ticks())
        train_decoder(config, workspace, DistributedContext(torch.device("cpu")), windows)
    return clock


def trainer(options: argparse.Namespace, folder: Path) -> Clock:
    """Train with Hugging Face's Trainer."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from stamm.models.hub import HubSpecialIds, hub_config

    clock = Clock(options.began)
    torch.set_num_threads(options.threads)
    size = SIZES[options.size]
    plain = hub_config(model_config(options.model, size), HubSpecialIds(begin=1, end=2, pad=3))
    kind = AutoConfig.for_model(**plain)
    rows = rows_of(size, _sequences(options, size))[:, :-1]

    class Ticks(TrainerCallback):
        """Hears of each step when it is done."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=size.batch,
        max_steps=options.warm_up + options.steps,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        torch_compile=options.arm == "trainer-compiled",
    )
    Trainer(
        model=AutoModelForCausalLM.from_config(kind, dtype=torch.float32),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[Ticks()],
    ).train()
    return clock


def litgpt(options: argparse.Namespace, folder: Path) -> Clock:
    """Train with litgpt's own pretraining."""
    import torch
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.data import DataModule
    from litgpt.model import Config
    from litgpt.pretrain import setup
    from torch.utils.data import DataLoader

    clock = Clock(options.began)
    torch.set_num_threads(options.threads)
    size = SIZES[options.size]
    model = model_config(options.model, size)
    rows = rows_of(size, _sequences(options, size) + size.batch)

    class Enough(Exception):  # noqa: N818
        """All steps are done."""

    class Ticking(DataLoader[Any]):
        """Notes when it is asked for the next step's sequences: the one before has ended."""

        def __iter__(self) -> Any:
            for step, batch in enumerate(super().__iter__()):
                if step:
                    clock.tick()
                if step == options.warm_up + options.steps:
                    raise Enough  # or it would write a checkpoint, and this loader into it
                yield batch

    class Rows(DataModule):
        """The same sequences again and again."""

        def train_dataloader(self) -> Any:
            return Ticking(rows, batch_size=size.batch, shuffle=True)  # type: ignore[arg-type]

        def val_dataloader(self) -> Any:
            return DataLoader(rows[: size.batch], batch_size=size.batch)  # type: ignore[arg-type]

    with contextlib.suppress(Enough):
        setup(
            model_name="",
            model_config=Config(
                name="bench",
                block_size=CONTEXT,
                vocab_size=size.vocab_size,
                padded_vocab_size=size.vocab_size,
                n_layer=model.num_layers,
                n_head=model.num_heads,
                n_query_groups=model.num_kv_heads,
                n_embd=model.d_model,
                intermediate_size=model.ffn.width,
                rotary_percentage=1.0,
                parallel_residual=False,
                bias=False,
                norm_class_name="RMSNorm",
                mlp_class_name="LLaMAMLP",
            ),
            out_dir=folder,
            precision="32-true",
            data=Rows(),
            train=TrainArgs(
                save_interval=None,
                global_batch_size=size.batch,
                micro_batch_size=size.batch,
                max_tokens=10**12,
                max_norm=1.0,
                tie_embeddings=False,
                lr_warmup_steps=1,
            ),
            eval=EvalArgs(interval=10**6, max_iters=1, final_validation=False),
            devices=1,
            logger_name="csv",
        )
    return clock


def _sequences(options: argparse.Namespace, size: Size) -> int:
    return int((options.warm_up + options.steps) * size.batch)


def one(options: argparse.Namespace) -> None:
    """Train one arm in this process, and write what was seen."""
    begin = {"stamm": stamm, "trainer": trainer, "litgpt": litgpt}[options.arm.partition("-")[0]]
    with tempfile.TemporaryDirectory() as folder:
        clock = begin(options, Path(folder))
    options.result.write_text(json.dumps(clock.told(options.steps)))


def start(
    options: argparse.Namespace, model: str, size: str, threads: int, arm: str, cache: Path
) -> dict[str, Any]:
    """What one process of an arm saw. Raises RuntimeError with its last words when it fails."""
    result = cache / "result.json"
    result.unlink(missing_ok=True)
    paths = [os.environ.get("PYTHONPATH", ""), str(options.litgpt) if arm == "litgpt" else ""]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / f"{arm}-{threads}"),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    command = [sys.executable, "-m", "bench.trainers", "--one"]
    command += ["--models", model, "--sizes", size]
    command += ["--threads", str(threads), "--arms", arm, "--steps", str(options.steps)]
    command += ["--warm-up", str(options.warm_up)]
    command += ["--result", str(result), "--began", str(time.perf_counter())]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode or not result.exists():
        raise RuntimeError(f"{arm} on {model}: {done.stderr[-2000:]}")
    seen: dict[str, Any] = json.loads(result.read_text())
    return seen


def side_by_side(
    options: argparse.Namespace, model: str, size: str, threads: int
) -> dict[str, list[dict[str, Any]]]:
    """What every arm saw, round by round, all arms once a round."""
    arms = [arm for arm in options.arms if arm != "litgpt" or (options.litgpt and model == "llama")]
    seen: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(options.rounds):
            for arm in arms:
                seen[arm].append(start(options, model, size, threads, arm, Path(cache)))
                taken = statistics.median(seen[arm][-1]["seconds"])
                print(f"{model} {size} {threads} {arm}: {taken:.3f} s a step", file=sys.stderr)
    return seen


def summary(seen: list[dict[str, Any]], first: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """The medians of an arm, and the ratios of `first`'s speed to its own, round by round."""
    middle = [statistics.median(turn["seconds"]) for turn in seen]
    ratios = {
        kind: [
            statistics.median(theirs[kind]) / statistics.median(ours[kind])
            for ours, theirs in zip(first, seen, strict=True)
        ]
        for kind in ("seconds", "processor_s")
    }
    fastest = min(t for turn in seen for t in turn["seconds"])
    best = min(t for turn in first for t in turn["seconds"])
    later = seen[1:] or seen
    return {
        "tokens_per_s": tokens / statistics.median(middle),
        "tokens_per_s_fastest": tokens / fastest,
        "ratio": statistics.median(ratios["seconds"]),
        "ratios": ratios["seconds"],
        "ratio_fastest": fastest / best,
        "ratio_processor": statistics.median(ratios["processor_s"]),
        "peak_mib": statistics.median(turn["peak_mib"] for turn in seen),
        "import_s": statistics.median(turn["import_s"] for turn in seen),
        "first_step_cold_s": seen[0]["first_step_s"],
        "first_step_warm_s": statistics.median(turn["first_step_s"] for turn in later),
        "turns": seen,
    }


def compare(options: argparse.Namespace, model: str, size: str, threads: int) -> None:
    """One table: all arms on one model."""
    seen = side_by_side(options, model, size, threads)
    first = next(iter(seen.values()))
    sizes = SIZES[size]
    config = model_config(model, sizes)
    parameters = count_parameters(config).total
    print(
        f"\n{model} {size}: {parameters:,} parameters, {sizes.batch} x {CONTEXT}, {threads} threads"
    )
    print(
        "| arm | tokens/s | fastest | stamm over it | by fastest | by processor | goal | peak MiB "
        "| import s | first step s, cold, warm |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for arm, turns in seen.items():
        found = summary(turns, first, sizes.batch * CONTEXT)
        goal = GOALS.get((model, arm))
        print(
            f"| {arm} | {found['tokens_per_s']:,.0f} | {found['tokens_per_s_fastest']:,.0f} "
            f"| {found['ratio']:.2f} | {found['ratio_fastest']:.2f} "
            f"| {found['ratio_processor']:.2f} | {goal or ''} | {found['peak_mib']:,.0f} "
            f"| {found['import_s']:.1f} "
            f"| {found['first_step_cold_s']:.1f}, {found['first_step_warm_s']:.1f} |",
            flush=True,
        )
        line = {
            "benchmark": "trainers",
            "arm": arm,
            "model": model,
            "size": size,
            "parameters": parameters,
            "threads": threads,
            "load": os.getloadavg()[0],
            **found,
            "goal": goal,
            **processor_facts(),
        }
        _append(options.out, line)


def commands(options: argparse.Namespace) -> None:
    """How long commands take that train nothing: fastest and median of several, in turns."""
    times: dict[str, list[float]] = {command: [] for command in COMMANDS}
    for _ in range(options.rounds + 2):
        for command in COMMANDS:
            began = time.perf_counter()
            line = [sys.executable, "-m", "stamm", *command.split()]
            subprocess.run(line, check=True, capture_output=True)
            times[command].append(time.perf_counter() - began)
    print(f"\n| command | median s | fastest s | goal {COMMAND_GOAL_S} |")
    print("|---|---|---|---|")
    for command, taken in times.items():
        met = "met" if min(taken) <= COMMAND_GOAL_S else "missed"
        print(f"| {command} | {statistics.median(taken):.2f} | {min(taken):.2f} | {met} |")
        found = {"benchmark": "commands", "command": command, "seconds": taken, **processor_facts()}
        _append(options.out, found)


def _append(path: Path | None, line: dict[str, Any]) -> None:
    if path is not None:
        with path.open("a") as out:
            out.write(json.dumps(line) + "\n")


def main() -> None:
    """Take turns and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=("llama", "apertus"), default=["llama"])
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=["small"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--litgpt", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-commands", action="store_true")
    for name, kind in (("--result", Path), ("--began", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.warm_up < 1:
        parser.error("--warm-up: the first step is not timed, so at least 1")
    if options.one:
        for name in ("model", "size", "arm"):
            setattr(options, name, getattr(options, f"{name}s")[0])
        options.threads = options.threads[0]
        one(options)
        return
    for size in options.sizes:
        for model in options.models:
            for threads in options.threads:
                compare(options, model, size, threads)
    if not options.no_commands:
        commands(options)


if __name__ == "__main__":
    main()
