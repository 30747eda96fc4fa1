"""Compare the answers of an aligned model with those of the model it started from.

Reads    start        scored completions of the start model, n >= 2 a prompt: the first half of a
                      prompt's completions is compared, the rest are fresh references for quantiles
         aligned      scored completions of the aligned model on the same prompts
         reference    model folder of the start model, or a Hugging Face folder
         model        model folder of the aligned model
         tokenizer    the tokenizer's folder: it decides the chat format
         start_gold, gold           the same completions scored by a reward that training did not
                                    see (optional)
         start_evaluate, evaluate   folders of `stamm evaluate` of both models (optional)
         start_audit, audit         folders of `stamm audit` of both models (optional)
         Over several seeds, aligned, model, gold, evaluate and audit are named aligned.SEED and so on.
Leaves   alignment.json

Checked  tests/unit/align/test_answers_job.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stamm.align.records import AlignmentFile
from stamm.align.results import answer_metrics
from stamm.align.results.completions import (
    CompletionLine,
    EncodedCompletion,
    PairedAnswers,
    PromptAnswers,
    encode_completion,
    read_paired,
)
from stamm.align.results.config import AnswersConfig
from stamm.align.training.log_probs import completion_log_probs
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_file
from stamm.base.schema import write_record
from stamm.chat.formats import ChatFormat
from stamm.models.determinism import set_determinism
from stamm.models.loading import OpenModel, open_model
from stamm.models.model_source import ModelSource
from stamm.runs.job import Workspace
from stamm.statistics.bootstrap import Bootstrap

RESULT = "alignment.json"
METHOD = (
    "Bootstrap over prompts, which all seeds share, and over seeds, {draws} draws; the part of the"
    " seeds is widened to Student's t"
)


@dataclass(frozen=True)
class _LogRatios:
    """log pi(y|x) - log pi_ref(y|x), and tokens, [seed][prompt][answer]; and hashes of the models."""

    ratios: list[list[list[float]]]
    tokens: list[list[list[int]]]
    recoded: float
    reference: OpenModel
    weights: dict[str, str]


def run(config: AnswersConfig, workspace: Workspace) -> None:
    """Write alignment.json: rewards, quantiles, wins, KL, length, repetition and cost.

    Raises   DataError for completions without rewards or prompts in common; ConfigError for missing
             inputs; and as `open_model`
    """
    inputs = workspace.inputs
    seeds = seeds_of(inputs)
    set_determinism(config.threads)
    gold = _every(inputs, "gold", seeds) if "start_gold" in inputs else []
    aligned = {seed: inputs[_input("aligned", seed)] for seed in seeds}
    paired = read_paired(
        inputs["start"],
        list(aligned.values()),
        config.reward,
        (inputs["start_gold"], gold) if gold else None,
    )
    columns = (config.reward_name, config.gold_name)[: 2 if gold else 1]
    prompts = paired.prompts
    bootstrap = Bootstrap(len(prompts), len(seeds), config.draws, config.seed, config.confidence)
    log_ratios = _log_ratios(config, workspace, seeds, prompts)
    chat = log_ratios.reference.chat
    rewards = [
        answer_metrics.of_answers(prompts, lambda answer, i=i: answer.rewards[i])  # type: ignore[misc]
        for i in range(len(columns))
    ]
    ranks = [answer_metrics.quantiles(prompts, i, config.ties) for i in range(len(columns))]
    tokens = answer_metrics.of_answers(prompts, lambda answer: answer.line.num_tokens)
    references = sorted(len(p.references) for p in prompts)[len(prompts) // 2]
    changes = [
        answer_metrics.reward_change(bootstrap, *reward_values, references)
        for reward_values in zip(columns, rewards, ranks, strict=True)
    ]
    body: dict[str, Any] = {
        "seeds": seeds,
        "model_sha256": log_ratios.weights,
        "reference_sha256": log_ratios.reference.sha256,
        "chat_format": chat.name,
        "chat_format_sha256": chat.sha256,
        "sha256": {
            "start": sha256_file(inputs["start"]),
            **{_input("aligned", seed): sha256_file(path) for seed, path in aligned.items()},
        },
        **_counts(paired),
        "confidence": config.confidence,
        "method": METHOD.format(draws=f"{config.draws:,}"),
        "tie_rule": config.ties,
        "beta": config.beta,
        "rewards": changes,
        "kl": answer_metrics.kl_estimate(
            bootstrap, log_ratios.ratios, log_ratios.tokens, log_ratios.recoded
        ),
        "optimum": answer_metrics.optimum_gap(
            bootstrap, log_ratios.ratios, ranks[0].means()[1], config.beta
        ),
        "curve": answer_metrics.OptimumCurve().points(),
        "tokens": answer_metrics.change(bootstrap, tokens),
        "stopped": answer_metrics.change(
            bootstrap, answer_metrics.of_answers(prompts, lambda answer: float(answer.line.stopped))
        ),
        "distinct_4": answer_metrics.change(
            bootstrap,
            answer_metrics.of_answers(prompts, lambda answer: _distinct_4(chat, answer.line)),
        ),
        "length_slope": answer_metrics.length_slope(bootstrap, tokens, ranks[0]),
        "length_bins": answer_metrics.length_bins(bootstrap, tokens, ranks[0]),
        "bits_per_byte": answer_metrics.bits_change(
            config, inputs.get("start_evaluate"), _every(inputs, "evaluate", seeds)
        ),
        "memorization": answer_metrics.memorization_changes(
            config, inputs.get("start_audit"), _every(inputs, "audit", seeds)
        ),
        "examples": answer_metrics.example_pairs(prompts, ranks[0], config.examples),
        "example_rule": answer_metrics.EXAMPLE_RULE,
    }
    write_record(workspace.folder / RESULT, AlignmentFile, body)


def seeds_of(inputs: Mapping[str, Path]) -> list[str]:
    """The seeds that the inputs name, [""] for one aligned model without a name.

    Raises   ConfigError when an input is missing
    """
    if "aligned" in inputs:
        seeds = [""]
    else:
        seeds = [name.partition(".")[2] for name in inputs if name.startswith("aligned.")]
    needed = ["start", "reference", "tokenizer"]
    needed += [_input(name, seed) for seed in seeds or [""] for name in ("aligned", "model")]
    missing = [name for name in needed if name not in inputs]
    if missing:
        raise ConfigError(f"the answers job has no input {', '.join(missing)}")
    return seeds


def _input(name: str, seed: str) -> str:
    return f"{name}.{seed}" if seed else name


def _every(inputs: Mapping[str, Path], name: str, seeds: Sequence[str]) -> list[Path]:
    """The input of every seed; [] where one is missing."""
    paths = [inputs.get(_input(name, seed)) for seed in seeds]
    return [path for path in paths if path is not None] if None not in paths else []


def _counts(paired: PairedAnswers) -> dict[str, Any]:
    """Numbers of prompts and of answers of each; the smallest where prompts differ."""
    prompts = paired.prompts
    return {
        "prompts": len(prompts),
        "answers": min(len(p.before) for p in prompts),
        "references": min(len(p.references) for p in prompts),
        "aligned": min(len(row) for p in prompts for row in p.after),
        "left_out": paired.left_out,
    }


def _log_ratios(
    config: AnswersConfig,
    workspace: Workspace,
    seeds: Sequence[str],
    prompts: Sequence[PromptAnswers],
) -> _LogRatios:
    """Log-ratios of the aligned answers. One model is in memory at a time."""
    inputs = workspace.inputs
    ratios, tokens, weights = [], [], {}
    recoded = total = 0
    logs: list[tuple[list[list[EncodedCompletion]], np.ndarray[Any, Any]]] = []
    for number, seed in enumerate(seeds):
        model = _model(inputs[_input("model", seed)], inputs["tokenizer"])
        limit = model.decoder.config.max_context + 1
        every = [[encode_completion(model.chat, a.line) for a in p.after[number]] for p in prompts]
        known = [[e for e in row if e is not None and len(e.ids) <= limit] for row in every]
        total += sum(map(len, every))
        recoded += sum(map(len, every)) - sum(not e.recoded for row in known for e in row)
        if not any(known):
            raise DataError(
                f"the chat format {model.chat.name} can write none of the completions",
                where=str(inputs[_input("aligned", seed)]),
            )
        weights[seed] = model.sha256
        logs.append((known, _log_probs(config, workspace, model, known, f"seed {seed}".strip())))
    reference = _model(inputs["reference"], inputs["tokenizer"])
    for known, log_pi in logs:
        log_ratio = log_pi - _log_probs(config, workspace, reference, known, "start model")
        bounds = np.cumsum([len(row) for row in known])[:-1]
        ratios.append([part.tolist() for part in np.split(log_ratio, bounds)])
        tokens.append([[sum(e.supervised) for e in row] for row in known])
    return _LogRatios(ratios, tokens, recoded / total, reference, weights)


def _log_probs(
    config: AnswersConfig,
    workspace: Workspace,
    model: OpenModel,
    known: Sequence[Sequence[EncodedCompletion]],
    name: str,
) -> np.ndarray[Any, Any]:
    answers = [completion for row in known for completion in row]
    workspace.progress.begin(f"log-probabilities, {name}", len(answers), "answers")
    log_probs = completion_log_probs(
        model.decoder, answers, config.batch_tokens, workspace.progress
    ).numpy()
    workspace.progress.end()
    return log_probs


def _model(folder: Path, tokenizer: Path) -> OpenModel:
    return open_model(ModelSource(model=folder, tokenizer=tokenizer), chat=True)


def _distinct_4(chat: ChatFormat, line: CompletionLine) -> float:
    encoded = encode_completion(chat, line)
    return answer_metrics.distinct_4(encoded.completion if encoded else [])
