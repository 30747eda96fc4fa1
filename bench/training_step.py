"""Tokens per second of stamm's training loop beside Hugging Face's Trainer, in one process.

Same decoder (names, shapes, numbers of layers), same batch of the same tokens, same threads,
float32. The two take turns, several rounds each; the first steps of a turn (compilation, warm
caches) are not counted. stamm trains as in the demo: Goldfish mask, document masks, AdEMAMix,
layers compiled. The Trainer trains with its defaults (AdamW, eager), or with torch_compile=True.

Run      python -m bench.training_step [--rounds 3] [--steps 12] [--warm-up 4]
         [--arms swiglu xielu] [--eager] [--compiled] [--out FILE.jsonl]
Prints   a table; with --out appends one JSON line per arm with the machine and the commit
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from stamm.base.console import NoProgress
from stamm.engine.compile import compile_layers
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import keep_mask
from stamm.losses.language_model import nll_per_kept_token
from stamm.models.config import GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.determinism import set_determinism
from stamm.models.hub import HubSpecialIds, hub_config
from stamm.optim.build import build_optimizer
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.demo import demo
from stamm.runs.manifest import environment

WARM_UP = 4


def made_up_tokens(config: PretrainConfig, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, config.batch[0].size, config.context + 1)
    return torch.randint(73, config.model.vocab_size, shape, generator=generator)


class Ours:
    """stamm's loop, one step at a time."""

    def __init__(self, config: PretrainConfig, data: Tensor) -> None:
        self._data = data
        self._decoder = build_decoder(config.model, seed=0)
        self._optimizer = build_optimizer(config.optimizer, self._decoder, total_steps=1000)
        self._clip = config.clip_norm
        self._goldfish = config.goldfish or Goldfish()
        compile_layers(self._decoder.model.layers, config.engine, NoProgress())

    def turn(self, steps: int) -> list[float]:
        """Seconds of each step."""
        times = []
        for index in range(steps):
            began = time.perf_counter()
            batch = self._data[index % len(self._data)]
            document = (torch.arange(batch.shape[1] - 1) >= 100).long().expand(len(batch), -1)
            masks = [
                keep_mask(self._goldfish, row[1:].numpy(), document[0].numpy()) for row in batch
            ]
            keep = torch.stack([torch.from_numpy(mask) for mask in masks])
            hidden = self._decoder.model(batch[:, :-1], document.contiguous())
            loss = nll_per_kept_token(
                hidden.flatten(0, 1),
                self._decoder.lm_head.weight,
                batch[:, 1:].flatten(),
                keep.flatten(),
            )
            loss.backward()
            loss.item()
            torch.nn.utils.clip_grad_norm_(self._decoder.parameters(), self._clip)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            times.append(time.perf_counter() - began)
        return times


class Theirs:
    """Hugging Face's Trainer on the transformers class of the same model."""

    def __init__(self, config: PretrainConfig, data: Tensor, compiled: bool, folder: Path) -> None:
        plain = hub_config(config.model, HubSpecialIds(begin=1, end=2, pad=3))
        kind = AutoConfig.for_model(**plain)
        self._model = AutoModelForCausalLM.from_config(kind, dtype=torch.float32)
        self._data = [
            {"input_ids": row[:-1], "labels": row[:-1]} for batch in data for row in batch
        ]
        self._batch = data.shape[1]
        self._compiled = compiled
        self._folder = folder

    def turn(self, steps: int) -> list[float]:
        """Seconds of each step, from the end of the one before to its own end."""
        ends: list[float] = []

        class Clock(TrainerCallback):
            """Notes when each step ends."""

            def on_step_end(self, *_: Any, **__: Any) -> None:
                ends.append(time.perf_counter())

        arguments = TrainingArguments(
            output_dir=str(self._folder),
            per_device_train_batch_size=self._batch,
            max_steps=steps + 1,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            torch_compile=self._compiled,
        )
        trainer = Trainer(
            model=self._model, args=arguments, train_dataset=self._data, callbacks=[Clock()]
        )
        trainer.train()
        return [b - a for a, b in itertools.pairwise(ends)]


def main() -> None:
    """Take turns and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--arms", nargs="+", default=["swiglu", "xielu"])
    parser.add_argument("--eager", action="store_true", help="stamm does not compile")
    parser.add_argument("--compiled", action="store_true", help="the Trainer compiles, too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    study = demo()
    print(f"{'arm':<8} {'stamm tokens/s':>16} {'Trainer tokens/s':>18} {'ratio':>7}")
    for arm in study.arms:
        if arm.name not in options.arms:
            continue
        config = study.pretrain_of(arm)
        if options.eager:
            config = replace(config, engine=replace(config.engine, compile="off"))
        set_determinism(config.engine.threads)
        torch.use_deterministic_algorithms(False)  # the Trainer's default; ours needs no switch
        data = made_up_tokens(config, 8)
        tokens = data.shape[1] * config.context
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = Ours(config, data), Theirs(config, data, options.compiled, Path(folder))
            mine: list[float] = []
            other: list[float] = []
            for _ in range(options.rounds):
                mine += ours.turn(options.steps + options.warm_up)[options.warm_up :]
                other += theirs.turn(options.steps + options.warm_up)[options.warm_up :]
        speeds = [tokens / statistics.median(times) for times in (mine, other)]
        ratio = speeds[0] / speeds[1]
        print(f"{arm.name:<8} {speeds[0]:>16,.0f} {speeds[1]:>18,.0f} {ratio:>7.2f}", flush=True)
        if options.out:
            line = {
                "benchmark": "training_step",
                "arm": arm.name,
                "gated": isinstance(arm.ffn, GatedFFN),
                "trainer_compiled": options.compiled,
                "tokens_per_s": {"stamm": speeds[0], "trainer": speeds[1]},
                "seconds": {"stamm": _spread(mine), "trainer": _spread(other)},
                "ratio": ratio,
                **environment(),
            }
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


def _spread(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=10)
    return {"p20": cuts[1], "p50": statistics.median(times), "p80": cuts[7]}


if __name__ == "__main__":
    main()
