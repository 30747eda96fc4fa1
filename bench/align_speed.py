"""SFT and DPO steps of stamm beside TRL's trainers: tokens per second, CPU time, memory.

The same model with the same weights, the same examples in every step, float32, on a CPU. Each arm
trains in a process of its own; arms take turns, round by round, so that other work on the machine
affects all of them. The first steps (--warm-up) do not count. Reference log-probabilities are computed before
training in every DPO arm. Tokens are those that the policy reads, without padding.

  stamm               the training job of `align.sft` and `align.dpo`: AdamW, layers compiled
  stamm-eager         the same, not compiled
  trl                 SFTTrainer, DPOTrainer, without gradient checkpointing
  trl-checkpointing   the same with gradient checkpointing, TRL's default
  trl-packed          SFTTrainer with packing=True (SFT with mixed lengths only)
  loop                a plain torch loop: forward, backward, clip, AdamW

Models   "swiglu" (transformers' Llama) and "xielu" (its Apertus), 1.3 million parameters
Lengths  "equal": every example fills a sequence, so that there is nothing to pack or to pad; "mixed":
         64 to 256 tokens. stamm packs examples and keeps them apart; TRL pads, and with packing=True
         lets examples see one another on a CPU

Run      python -m bench.align_speed --trl PYTHON [--models swiglu xielu] [--tasks sft dpo]
         [--lengths equal mixed] [--arms stamm trl] [--rounds 3] [--steps 24] [--warm-up 8]
         [--threads 2] [--out FILE.jsonl]
         Without choices: swiglu, both tasks, equal lengths, all arms but stamm-eager; about 6 minutes
         PYTHON is the interpreter of an environment with trl==1.16.0 beside torch and transformers
Prints   tables; with --out appends one JSON line per arm with machine and commit. Needs Linux
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.capability import processor_facts
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN

if TYPE_CHECKING:
    import torch

CONTEXT, BATCH, VOCABULARY, WARM_UP, BETA = 256, 8, 2048, 8, 0.1
ARMS = ("stamm", "stamm-eager", "trl", "trl-checkpointing", "trl-packed", "loop")
DEFAULT_ARMS = ("stamm", "trl", "trl-checkpointing", "trl-packed", "loop")
GOAL = 1.3  # tokens a second of `stamm` over those of `trl`
# Lengths of the examples that fill one sequence each, in turn.
FILLS: dict[str, tuple[tuple[int, ...], ...]] = {
    "equal": ((CONTEXT,),),
    "mixed": ((128, 128), (192, 64), (CONTEXT,), (160, 96)),
}


def model_config(model: str) -> DecoderConfig:
    """A decoder that transformers has a class for, of 1.3 million parameters."""
    xielu = model == "xielu"
    return DecoderConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        ffn=PlainFFN(width=528) if xielu else GatedFFN(width=352),
        qk_norm=xielu,
        max_context=2 * CONTEXT,
    )


def examples(lengths: str) -> list[tuple[list[int], int]]:
    """Token ids and the number of prompt tokens of the examples of one step.

    An example of n counted tokens has n + 1 ids: the last one is only a target. Neighbours have the
    same prompt: they are the pairs of DPO.
    """
    import torch

    draw = torch.Generator().manual_seed(0)
    fills = FILLS[lengths]
    counts = [n for row in range(BATCH) for n in fills[row % len(fills)]]
    drawn = [torch.randint(4, VOCABULARY, (n + 1,), generator=draw).tolist() for n in counts]
    found = []
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        prompt = min(len(first), len(second)) // 4
        found += [(first, prompt), (first[:prompt] + second[prompt:], prompt)]
    return found


class StepClock:
    """Times of the ends of steps, by the wall and by the processor, and the first loss."""

    def __init__(self) -> None:
        self.first_loss = float("nan")
        self._ends: list[tuple[float, float]] = []

    def tick(self) -> None:
        """A step has ended."""
        self._ends.append((time.perf_counter(), time.process_time()))

    def facts(self, steps: int) -> dict[str, Any]:
        """Seconds of the last `steps` steps, and the peak of resident memory."""
        pairs = list(zip(self._ends, self._ends[1:], strict=False))[-steps:]
        return {
            "first_loss": self.first_loss,
            "seconds": [later[0] - earlier[0] for earlier, later in pairs],
            "processor_s": [later[1] - earlier[1] for earlier, later in pairs],
            "peak_mib": _peak_kib() / 1024,
        }


def _peak_kib() -> int:
    # Of this program alone: ru_maxrss would count the process that started it, too.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def stamm(options: argparse.Namespace, folder: Path) -> StepClock:
    """Train with stamm, through what the job "finetune" calls."""
    import torch

    from stamm.align.data.encoded import EncodedAnswer
    from stamm.align.losses.dpo import DPO
    from stamm.align.training.answer_dataset import AnswerSequences
    from stamm.align.training.chat_dataset import ChatWindows
    from stamm.align.training.config import SFT, FineTuneRun
    from stamm.align.training.log_probs import completion_log_probs
    from stamm.align.training.objectives import PreferenceObjective
    from stamm.base.console import NoProgress
    from stamm.engine.config import EngineConfig
    from stamm.engine.cpu_allocator import caching_allocator
    from stamm.engine.distributed import DistributedContext
    from stamm.models.decoder import build_decoder
    from stamm.models.determinism import set_determinism
    from stamm.optim.config import AdamW
    from stamm.optim.schedules import BatchStage, WarmupStableDecay
    from stamm.pretrain.next_token import NextToken
    from stamm.pretrain.train import train_decoder
    from stamm.runs.job import Workspace
    from stamm.runs.metrics import read_metrics

    clock, dpo = StepClock(), options.task == "dpo"
    roles = ("chosen", "rejected") if dpo else ("chat",)
    answers = [
        EncodedAnswer(
            example=number // len(roles),
            role=roles[number % len(roles)],
            ids=ids,
            supervised=[place >= prompt for place in range(len(ids))],
            prompt_tokens=prompt,
        )
        for number, (ids, prompt) in enumerate(examples(options.length))
    ]

    class Ticks(NoProgress):
        """Receives each finished step."""

        def advance(self, done: float, note: str = "", share: float | None = None) -> None:
            clock.tick()

    batch = len(answers) // 2 if dpo else BATCH
    steps = 1 + options.warm_up + options.steps
    config = FineTuneRun(
        model=model_config(options.model),
        context=CONTEXT,
        sequences=steps * batch,
        batch=(BatchStage(size=batch),),
        optimizer=AdamW(weight_decay=0.0),
        schedule=WarmupStableDecay(peak=1e-5),
        loss=DPO(beta=BETA) if dpo else SFT(),
        engine=EngineConfig(
            threads=options.threads,
            compile="off" if options.arm == "stamm-eager" else "layers",
            checkpoint_every=10**6,
        ),
    )
    set_determinism(options.threads)
    sequences: Any
    if dpo:
        reference = completion_log_probs(build_decoder(config.model, config.seed), answers)
        sequences = AnswerSequences(
            answers, reference.tolist(), paired=True, context=CONTEXT, seed=0, pad=3
        )
    else:
        sequences = ChatWindows(answers, CONTEXT, 0, 3)
    with caching_allocator():  # as a run does
        train_decoder(
            config,
            Workspace(folder=folder, progress=Ticks()),
            DistributedContext(torch.device("cpu")),
            sequences,
            functools.partial(PreferenceObjective, start=folder) if dpo else NextToken,
        )
    first = next(iter(read_metrics(folder / "metrics.jsonl")))
    clock.first_loss = first["train/loss" if dpo else "train/loss_nats"]
    return clock


def hub_model(options: argparse.Namespace) -> Any:
    """transformers' class of the model, with the weights that stamm starts from."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from stamm.models.decoder import build_decoder
    from stamm.models.hub import HubSpecialIds, hub_config, hub_state
    from stamm.pretrain.config import PretrainConfig

    config = model_config(options.model)
    plain = hub_config(config, HubSpecialIds(begin=1, end=2, pad=3))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**plain), dtype=torch.float32)
    model.load_state_dict(hub_state(build_decoder(config, PretrainConfig.seed)))
    return model


def tokenizer() -> Any:
    """A tokenizer with the special tokens that trainers ask for; no text is encoded with it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
    )  # fmt: skip


def trl(options: argparse.Namespace, folder: Path) -> StepClock:
    """Train with TRL's SFTTrainer or DPOTrainer."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    clock = StepClock()
    torch.set_num_threads(options.threads)

    class Ticks(TrainerCallback):
        """Receives each finished step, and the loss of the first."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

        def on_log(self, _: Any, state: Any, control: Any, logs: Any = None, **__: Any) -> None:
            if logs and "loss" in logs and clock.first_loss != clock.first_loss:
                clock.first_loss = float(logs["loss"])

    rows = examples(options.length)
    common = {
        "output_dir": str(folder),
        "max_steps": 1 + options.warm_up + options.steps,
        "learning_rate": 1e-5,
        "max_length": CONTEXT + 2,  # the ids of two examples that fill a sequence
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": options.arm == "trl-checkpointing",
        "report_to": "none",
        "save_strategy": "no",
        "logging_first_step": True,
        "disable_tqdm": True,
    }
    if options.task == "dpo":
        pairs = [
            {"prompt_ids": a[:p], "chosen_ids": a[p:], "rejected_ids": b[p:]}
            for (a, p), (b, _) in zip(rows[::2], rows[1::2], strict=True)
        ]

        class Encoded(DPOTrainer):
            """Takes rows that are token ids already."""

            def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
                return dataset

        Encoded(
            model=hub_model(options),
            args=DPOConfig(
                **common,
                per_device_train_batch_size=len(pairs),
                beta=BETA,
                precompute_ref_log_probs=True,
            ),
            train_dataset=Dataset.from_list(pairs),
            processing_class=tokenizer(),
            callbacks=[Ticks()],
        ).train()
        return clock
    encoded = [
        {"input_ids": ids, "labels": [-100 if n < p else t for n, t in enumerate(ids)]}
        for ids, p in rows
    ]
    packed = options.arm == "trl-packed"
    SFTTrainer(
        model=hub_model(options),
        args=SFTConfig(
            **common,
            per_device_train_batch_size=BATCH if packed else len(rows),
            packing=packed,
        ),
        train_dataset=Dataset.from_list(encoded),
        processing_class=tokenizer(),
        callbacks=[Ticks()],
    ).train()
    return clock


def loop(options: argparse.Namespace, folder: Path) -> StepClock:
    """Train with a plain torch loop over transformers' model."""
    import torch
    from torch.nn.functional import cross_entropy, logsigmoid, pad

    clock = StepClock()
    torch.set_num_threads(options.threads)
    rows = examples(options.length)
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.stack([pad(torch.tensor(i), (0, longest - len(i)), value=3) for i, _ in rows])
    place = torch.arange(longest)
    prompt, length = torch.tensor([p for _, p in rows]), torch.tensor([len(i) for i, _ in rows])
    counted = (place >= prompt[:, None]) & (place < length[:, None])
    labels = ids.masked_fill(~counted, -100)[:, 1:]
    attention = (place < length[:, None]).long()[:, :-1]
    model = hub_model(options)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)

    def log_probs() -> torch.Tensor:
        logits = model(ids[:, :-1], attention_mask=attention, use_cache=False).logits
        nats = cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none"
        )
        return -nats.reshape(labels.shape)

    with torch.no_grad():
        reference = log_probs().sum(dim=1)
    for step in range(1 + options.warm_up + options.steps):
        each = log_probs()
        if options.task == "dpo":
            ratio = each.sum(dim=1) - reference
            loss = -logsigmoid(BETA * (ratio[::2] - ratio[1::2])).mean()
        else:
            loss = -each.sum() / counted[:, 1:].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            clock.first_loss = loss.item()
        clock.tick()
    return clock


def one(options: argparse.Namespace) -> None:
    """Train one arm in this process, and write what was measured."""
    begin = {"stamm": stamm, "trl": trl, "loop": loop}[options.arm.partition("-")[0]]
    with tempfile.TemporaryDirectory() as folder:
        clock = begin(options, Path(folder))
    options.result.write_text(json.dumps(clock.facts(options.steps)))


def start(
    options: argparse.Namespace, case: Sequence[str], arm: str, cache: Path
) -> dict[str, Any]:
    """Measure one arm in a process. Raises RuntimeError with its last output when it fails."""
    result = cache / "result.json"
    result.unlink(missing_ok=True)
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": str(options.threads),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "-".join([*case, arm])),
        "HF_DATASETS_CACHE": str(cache / "datasets"),
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    interpreter = options.trl if arm.startswith("trl") else sys.executable
    command = [str(interpreter), "-m", "bench.align_speed", "--one", arm, "--result", str(result)]
    for name, value in zip(("--models", "--tasks", "--lengths"), case, strict=True):
        command += [name, value]
    command += ["--threads", str(options.threads), "--steps", str(options.steps)]
    command += ["--warm-up", str(options.warm_up)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode or not result.exists():
        raise RuntimeError(f"{arm} on {case}: {done.stderr[-2000:]}")
    seen: dict[str, Any] = json.loads(result.read_text())
    return seen


def summary(seen: list[dict[str, Any]], first: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Medians of an arm, and the ratios of `first`'s speed to its own, round by round."""

    def ratio(kind: str) -> float:
        return statistics.median(
            statistics.median(theirs[kind]) / statistics.median(ours[kind])
            for ours, theirs in zip(first, seen, strict=True)
        )

    fastest = [min(t for turn in turns for t in turn["seconds"]) for turns in (first, seen)]
    return {
        "tokens_per_s": tokens
        / statistics.median(statistics.median(turn["seconds"]) for turn in seen),
        "tokens_per_s_fastest": tokens / fastest[1],
        "ratio": ratio("seconds"),
        "ratio_fastest": fastest[1] / fastest[0],
        "ratio_processor": ratio("processor_s"),
        "peak_mib": statistics.median(turn["peak_mib"] for turn in seen),
        "first_loss": seen[0]["first_loss"],
        "turns": seen,
    }


def compare(options: argparse.Namespace, case: tuple[str, str, str]) -> None:
    """One table: all arms on one model, task and kind of lengths."""
    model, task, lengths = case
    apart = task == "sft" and lengths == "mixed"
    arms = [arm for arm in options.arms if arm != "trl-packed" or apart]
    arms = [arm for arm in arms if options.trl or not arm.startswith("trl")]
    seen: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(options.rounds):
            for arm in arms:
                seen[arm].append(start(options, case, arm, Path(cache)))
    tokens = sum(len(ids) - 1 for ids, _ in examples(lengths))
    print(
        f"\n{task}, {model}, {lengths} lengths: {tokens:,} tokens a step, {options.threads} threads"
    )
    print(
        "| arm | tokens/s | fastest | stamm over it | by fastest | by processor | peak MiB | first loss |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for arm, turns in seen.items():
        found = summary(turns, seen[arms[0]], tokens)
        print(
            f"| {arm} | {found['tokens_per_s']:,.0f} | {found['tokens_per_s_fastest']:,.0f} "
            f"| {found['ratio']:.2f} | {found['ratio_fastest']:.2f} "
            f"| {found['ratio_processor']:.2f} | {found['peak_mib']:,.0f} "
            f"| {found['first_loss']:.4f} |",
            flush=True,
        )
        line = {
            "benchmark": "align_speed", "arm": arm, "model": model, "task": task,
            "lengths": lengths, "threads": options.threads, "load": os.getloadavg()[0],
            "goal": GOAL if arm == "trl" else None, **found, **processor_facts(),
        }  # fmt: skip
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


def main() -> None:
    """Take turns and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trl", type=Path)
    parser.add_argument("--models", nargs="+", choices=("swiglu", "xielu"), default=["swiglu"])
    parser.add_argument("--tasks", nargs="+", choices=("sft", "dpo"), default=["sft", "dpo"])
    parser.add_argument("--lengths", nargs="+", choices=tuple(FILLS), default=["equal"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(DEFAULT_ARMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        options.arm, options.model = options.one, options.models[0]
        options.task, options.length = options.tasks[0], options.lengths[0]
        one(options)
        return
    for model in options.models:
        for task in options.tasks:
            for lengths in options.lengths:
                compare(options, (model, task, lengths))


if __name__ == "__main__":
    main()
