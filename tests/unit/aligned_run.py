"""Writes a run folder of alignment in a world whose truth is known.

Rewards of the start model are uniform, so that a reward is its own true quantile. Arms:

    qrpo    drawn from the optimum of BETA: its KL and its mean quantile are known in closed form
    dpo     the same quantiles at a KL that is EXTRA_KL larger, and longer answers
    simpo   the start model's own distribution: nothing was gained
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from stamm.align.records import AlignmentFile
from stamm.align.results import answer_metrics
from stamm.align.results.answer_metrics import (
    EXAMPLE_RULE,
    OptimumCurve,
    example_pairs,
    kl_estimate,
    optimum_gap,
)
from stamm.align.results.completions import CompletionLine, PromptAnswers, ScoredAnswer
from stamm.align.results.evaluate_job import METHOD
from stamm.base.schema import write_record
from stamm.losses.quantile import beta_log_partition
from stamm.statistics.bootstrap import Bootstrap

BETA, EXTRA_KL, SEED = 0.25, 0.9, 8
PROMPTS, ANSWERS, REFERENCES, ALIGNED = 150, 4, 12, 2
STEPS = 80
ARMS = ("qrpo", "dpo", "simpo")
LOSSES = {"sft": "SFT", "qrpo": "QRPO", "dpo": "DPO", "simpo": "SimPO"}
HOSTILE = '<script>alert("x")</script><img src=http://evil.example/a.png>'
QUESTIONS = (
    "Write one sentence about the river in spring.",
    "Wie heisst die Hauptstadt der Schweiz, und seit wann?",
    "Explique en deux phrases pourquoi le ciel est bleu.",
    "日本で一番高い山は何ですか。",
    f"Is this safe? {HOSTILE}",
    "List three fruits as JSON.",
)
WORDS = [
    "the",
    "river",
    "rises",
    "when",
    "snow",
    "melts",
    "and",
    "carries",
    "light",
    "over",
    "stones",
    "toward",
    "villages",
    "where",
    "people",
    "wait",
    "for",
    "spring",
    "because",
    "water",
    "is",
    "what",
    "they",
    "need",
    "most",
    "in",
    "a",
    "dry",
    "valley",
    "of",
    "narrow",
    "fields",
]


def answer(
    random: np.random.Generator, prompt: int, sample: int, reward: float, length: float
) -> ScoredAnswer:
    """An answer whose text has about as many words as tokens."""
    tokens = max(3, round(random.normal(length, 3)))
    text = " ".join(random.choice(WORDS, size=tokens))
    if prompt % 17 == 3:
        text = f"{HOSTILE} {'unbroken' * 30}"
    line = CompletionLine(
        id=f"test-{prompt:03d}",
        prompt=[{"role": "user", "content": QUESTIONS[prompt % len(QUESTIONS)]}],
        completion=[{"role": "assistant", "content": text}],
        sample=sample,
        num_tokens=tokens,
        stopped=bool(random.random() < 0.95),
    )
    gold = 0.5 * reward + 0.5 * float(random.random())
    return ScoredAnswer(line, (reward, gold))


def tilted(random: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Quantiles of the optimum: density exp(q / BETA) / Z on [0, 1]."""
    uniform = random.random(count)
    return BETA * np.log1p(uniform * math.expm1(1 / BETA))  # type: ignore[no-any-return]


def world(arm: str, seeds: int = 1) -> tuple[list[PromptAnswers], list[list[list[float]]]]:
    """Answers to every prompt, and log-ratios of the aligned ones; the start's are the same for all arms."""
    log_z = float(beta_log_partition(BETA)) / BETA
    prompts, ratios = [], [[[0.0]] * PROMPTS for _ in range(seeds)]
    for place in range(PROMPTS):
        start = np.random.default_rng([SEED, place])
        before = [
            answer(start, place, i, r := float(start.random()), 24 + 8 * r)
            for i in range(ANSWERS + REFERENCES)
        ]
        after = []
        for seed in range(seeds):
            random = np.random.default_rng([SEED, place, seed, ARMS.index(arm)])
            rewards = random.random(ALIGNED) if arm == "simpo" else tilted(random, ALIGNED)
            extra = 14 if arm == "dpo" else 0
            after.append(
                tuple(
                    answer(random, place, i, float(r), 24 + 8 * r + extra)
                    for i, r in enumerate(rewards)
                )
            )
            exact = rewards / BETA - log_z + (EXTRA_KL if arm == "dpo" else 0.0)
            ratios[seed][place] = (0.0 * rewards if arm == "simpo" else exact).tolist()
        prompts.append(
            PromptAnswers(tuple(before[:ANSWERS]), tuple(before[ANSWERS:]), tuple(after))
        )
    return prompts, ratios


def result(arm: str, seeds: int = 1) -> dict[str, Any]:
    """The content of an arm's alignment.json."""
    prompts, ratios = world(arm, seeds)
    bootstrap = Bootstrap(PROMPTS, seeds, 300, 0, 0.95)
    columns = ("reward", "gold")
    rewards = [answer_metrics.of_answers(prompts, lambda a, i=i: a.rewards[i]) for i in range(2)]  # type: ignore[misc]
    ranks = [answer_metrics.quantiles(prompts, i, "mid") for i in range(2)]
    tokens = answer_metrics.of_answers(prompts, lambda a: a.line.num_tokens)
    counts = [[[a.line.num_tokens for a in p.after[s]] for p in prompts] for s in range(seeds)]
    estimate = {"mean": -0.6, "low": -0.8, "high": -0.4}
    return {
        "seeds": [str(seed) if seeds > 1 else "" for seed in range(seeds)],
        "model_sha256": {str(seed) if seeds > 1 else "": "ab" * 32 for seed in range(seeds)},
        "reference_sha256": "cd" * 32,
        "chat_format": "apertus",
        "chat_format_sha256": "ef" * 32,
        "sha256": {"start": "01" * 32, "aligned": "23" * 32},
        "prompts": PROMPTS, "answers": ANSWERS, "references": REFERENCES, "aligned": ALIGNED,
        "left_out": {"prompts with too few start answers": 3},
        "confidence": 0.95,
        "method": METHOD.format(draws="300"),
        "tie_rule": "mid",
        "beta": BETA if arm == "qrpo" else None,
        "rewards": [
            answer_metrics.reward_change(bootstrap, *each, REFERENCES)
            for each in zip(columns, rewards, ranks, strict=True)
        ],
        "kl": kl_estimate(bootstrap, ratios, counts, 0.01),
        "optimum": optimum_gap(
            bootstrap, ratios, ranks[0].means()[1], BETA if arm == "qrpo" else None
        ),
        "curve": OptimumCurve().points(),
        "tokens": answer_metrics.change(bootstrap, tokens),
        "stopped": answer_metrics.change(
            bootstrap, answer_metrics.of_answers(prompts, lambda a: float(a.line.stopped))
        ),
        "distinct_4": answer_metrics.change(
            bootstrap,
            answer_metrics.of_answers(
                prompts, lambda a: answer_metrics.distinct_4(list(map(hash, str(a.line.completion).split())))
            ),
        ),
        "length_slope": answer_metrics.length_slope(bootstrap, tokens, ranks[0]),
        "length_bins": answer_metrics.length_bins(bootstrap, tokens, ranks[0]),
        "bits_per_byte": {
            "before": {"mean": 1.312}, "after": {"mean": 1.335},
            "difference": {"mean": 0.023, "low": 0.011, "high": 0.036},
        },
        "memorization": [
            {
                "repeats": 16, "before": {**estimate}, "after": {**estimate, "mean": -0.5},
                "rouge_before": 0.21, "rouge_after": 0.18,
            }
        ],
        "examples": example_pairs(prompts, ranks[0], 20),
        "example_rule": EXAMPLE_RULE,
    }  # fmt: skip


def write(path: Path, value: Any) -> None:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_metrics(folder: Path, loss: str) -> None:
    """Metrics of an arm that was fine-tuned with `loss`."""
    lines = []
    for step in range(1, STEPS + 1):
        share = 1 - math.exp(-step / 25)
        line = {
            "step": step,
            "optim/learning_rate": 1e-4 * min(step / 8, 1),
            "optim/gradient_norm": 1 + math.sin(step) / 4,
        }
        if loss == "SFT":
            line["train/loss_nats"] = 2.5 - share + math.sin(step) / 10
        elif loss == "QRPO":
            line |= {
                "train/loss": 0.4 - 0.3 * share,
                "reward/log_ratio": -2.1 * share + math.sin(3 * step) / 3,
                "reward/quantile": 0.5 + math.sin(5 * step) / 20,
                "reward/target": -2.3 + math.sin(5 * step) / 5,
            }
        else:
            scale = 0.3 if loss == "SimPO" else 1.0
            line |= {
                "train/loss": 0.7 - 0.2 * share,
                "reward/chosen_log_ratio": scale * (3 * share + math.sin(3 * step) / 3),
                "reward/rejected_log_ratio": scale * (-9 * share + math.sin(5 * step) / 2),
                "reward/accuracy": 0.5 + 0.3 * scale * share + math.sin(7 * step) / 20,
            }
        if loss == "DPO" and (step == 1 or step % 10 == 0):
            line |= {
                "representation/effective_rank": 41.5 - 20 * share,
                "representation/effective_rank_centred": 50.0 - 20 * share,
                "representation/dormant_share": 0.1 * share,
                "representation/tokens": 512.0,
            }
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_arm(folder: Path, loss: str) -> None:
    """A fine-tuned arm as training leaves it."""
    ffn = {"kind": "PlainFFN", "width": 384, "activation": "xielu"}
    objective = {"kind": loss, "beta": BETA, "transform": "identity", "normalize": "none"}
    config = {"seed": 1, "loss": objective, "model": {"ffn": ffn}}
    write(folder / "config.json", {"schema": 1, "kind": "finetune", "config": config})
    summary = {
        "schema": 1, "parameters": 1_200_000, "steps": STEPS, "trained_tokens": 640_000,
        "epochs": 1.0, "flops": 4.6e12, "decay_start_step": 60,
    }  # fmt: skip
    write(folder / "summary.json", summary)
    write_metrics(folder, loss)


def write_prepared(folder: Path) -> None:
    """The summary of prepared data, with dropped rows and licences of which one is hostile text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "examples.parquet").write_bytes(b"")
    split = {
        "file": "examples.parquet", "sha256": "00" * 32, "examples": 1900, "answers": 1900,
        "tokens": 410_000, "supervised_tokens": 190_000, "longest": 510,
    }  # fmt: skip
    write(
        folder / "summary.json",
        {
            "schema": 1, "kind": "chat", "context": 512, "chat_format": "apertus",
            "chat_format_sha256": "ef" * 32, "tokenizer_sha256": "aa" * 32,
            "read": 2_200, "kept": 2_000,
            "dropped": {"too_long": 150, "refused_licence": 37, "contaminated": 13},
            "files": [
                {
                    "name": "sft.jsonl", "sha256": "bb" * 32, "read": 2_200, "kept": 2_000,
                    "truncated_at": 2_200,
                }
            ],
            "splits": {"train": split, "held_out": {**split, "examples": 100}},
            "licences": {"CC-BY-4.0": 1_500, "Apache-2.0": 480, HOSTILE: 20},
            "refused_licences": ["CC-BY-NC-4.0"],
            "causes": {"an assistant's turn is empty": 90, HOSTILE: 60},
            "unknown_keys": {"mood": 700},
        },
    )  # fmt: skip


def write_aligned_run(root: Path, *, answers: bool = True) -> Path:
    """A finished run of SFT and three aligned arms; without `answers` of SFT alone."""
    names = ("sft", *ARMS) if answers else ("sft",)
    write(
        root / "config.json",
        {
            "schema": 1, "recipe": "align.demo", "overrides": [],
            "config": {"arms": [{"name": name} for name in names]},
        },
    )  # fmt: skip
    manifest = {
        "schema": 1, "command": ["stamm", "run", "align.demo"], "version": "0.3.0",
        "started": "2026-11-01T10:00:00+00:00", "cpu": "A processor",
    }  # fmt: skip
    write(root / "manifest.json", manifest)
    write_prepared(root / "prepared")
    for name in names:
        folder = root / "arms" / name
        write_arm(folder, LOSSES[name])
        if name != "sft":
            (folder / "answers").mkdir()
            write_record(folder / "answers" / "alignment.json", AlignmentFile, result(name))
    return root
