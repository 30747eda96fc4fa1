"""Select training examples from scored completions: pairs, or single rated answers, with references.

Reads    answers (scored completions, n of each prompt, "sample" from 0), and optionally references
         (scored completions of the reference policy on the same prompts; without it, the completions
         of `answers` that are not candidates)
Writes   examples.jsonl (rows for the prepare job, with the ids that were sampled), summary.json

A prompt whose candidates all have the same reward makes no pair; it is counted as "tied".

Checked  tests/unit/align/test_select_job.py
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stamm.align.data.config import SelectConfig
from stamm.align.records import ChosenFile, SelectionSummary
from stamm.align.results.config import ChooseConfig
from stamm.base.errors import DataError
from stamm.base.files import atomic, json_line, sha256_file
from stamm.base.schema import read_objects, write_record
from stamm.runs.job import Workspace

EXAMPLES = "examples.jsonl"
TIED, FEW, UNKNOWN = "tied", "too_few_candidates", "no_references"
_PASSED = ("id", "source", "licence", "tools", "deliberation")
_SAMPLED = (*_PASSED, "token_ids")


def run(config: SelectConfig, workspace: Workspace) -> None:
    """Write the examples of every prompt.

    Raises   DataError when no prompt makes an example, naming the reasons
    """
    answers = _by_prompt(workspace.inputs["answers"])
    references_path = workspace.inputs.get("references")
    references = None if references_path is None else _by_prompt(references_path)
    dropped: Counter[str] = Counter()
    kept = written = 0
    counts: list[int] = []
    path = workspace.folder / EXAMPLES
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for prompt, rows in answers.items():
            candidates = rows[: config.candidates]
            others = rows[config.candidates :] if references is None else references.get(prompt, [])
            rewards = [float(row["reward"]) for row in others]
            examples, reason = _examples(config, candidates, rewards)
            if reason:
                dropped[reason] += 1
                continue
            kept += 1
            counts.append(len(rewards))
            for example in examples:
                file.write(json_line(example))
                written += 1
    if not kept:
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        raise DataError(
            f"none of {len(answers)} prompts makes an example: {reasons or 'no answers'}",
            fix="Sample more completions of each prompt, or use a reward that differs among them",
        )
    summary = {
        "prompts": len(answers),
        "kept": kept,
        "dropped": dict(sorted(dropped.items())),
        "examples": written,
        "references": (min(counts), max(counts)),
        "sha256": sha256_file(path),
    }
    write_record(workspace.folder / "summary.json", SelectionSummary, summary)
    workspace.progress.log(f"{written} examples of {kept} of {len(answers)} prompts.")


def _examples(
    config: SelectConfig, candidates: Sequence[dict[str, Any]], references: list[float]
) -> tuple[list[dict[str, Any]], str]:
    """The examples of one prompt, or the reason why it has none."""
    if not references:
        return [], UNKNOWN
    if config.take == "all":
        return [_rated(row, references) for row in candidates], "" if candidates else FEW
    if len(candidates) < 2:
        return [], FEW
    best = max(candidates, key=lambda row: float(row["reward"]))
    worst = min(candidates, key=lambda row: float(row["reward"]))
    if best["reward"] == worst["reward"]:
        return [], TIED
    pair = {
        "prompt": best["prompt"],
        "chosen": best["completion"],
        "rejected": worst["completion"],
        "chosen_reward": float(best["reward"]),
        "rejected_reward": float(worst["reward"]),
        "ref_rewards": references,
    }
    if "token_ids" in best and "token_ids" in worst:
        pair |= {"chosen_token_ids": best["token_ids"], "rejected_token_ids": worst["token_ids"]}
    return [{**_passed(best), **pair}], ""


def _rated(row: dict[str, Any], references: list[float]) -> dict[str, Any]:
    return {
        **_passed(row, _SAMPLED),
        "prompt": row["prompt"],
        "completion": row["completion"],
        "reward": float(row["reward"]),
        "ref_rewards": references,
        "sample": row["sample"],
    }


def _passed(row: dict[str, Any], names: Sequence[str] = _PASSED) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def _by_prompt(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The scored rows of each prompt in the order of their samples; prompts in order of occurrence."""
    rows_by_prompt: dict[str, list[dict[str, Any]]] = {}
    for number, (_, row) in enumerate(read_objects(path), start=1):
        if not isinstance(row.get("reward"), int | float) or "sample" not in row:
            raise DataError(
                f"{path}, row {number} has no reward or no sample number",
                fix="Sample completions with `stamm sample` and score them with `stamm score`",
            )
        key = json.dumps(
            [row["prompt"], row.get("tools"), row.get("deliberation"), row.get("id")],
            sort_keys=True,
        )
        rows_by_prompt.setdefault(key, []).append(row)
    return {
        key: sorted(rows, key=lambda row: int(row["sample"]))
        for key, rows in rows_by_prompt.items()
    }


CHOSEN = "chosen.json"


def choose(config: ChooseConfig, workspace: Workspace) -> None:
    """Write the best settings of every objective, and what each candidate reached.

    Raises   DataError for a file without rewards
    """
    arms = {}
    for arm in config.arms:
        means = [
            mean_reward(workspace.inputs[f"{arm.name}.{number}"])
            for number in range(len(arm.settings))
        ]
        candidates = [
            {"settings": list(settings), "mean_reward": mean}
            for settings, mean in zip(arm.settings, means, strict=True)
        ]
        best = arm.settings[means.index(max(means))]  # the first of equals
        arms[arm.name] = {"settings": list(best), "candidates": candidates}
        shown = ", ".join(f"{mean:.3f}" for mean in means)
        workspace.progress.log(f"{arm.name}: mean rewards {shown}.")
    write_record(workspace.folder / CHOSEN, ChosenFile, {"arms": arms})


def mean_reward(path: Path) -> float:
    """Mean of the column "reward" of a file.

    Raises   DataError when it has no row with a finite number
    """
    rewards = [row.get("reward") for _, row in read_objects(path)]
    numbers = [float(reward) for reward in rewards if isinstance(reward, int | float)]
    if not numbers or len(numbers) != len(rewards) or not all(map(math.isfinite, numbers)):
        raise DataError(f"{path} has rows without a reward", fix="Run the score step again")
    return math.fsum(numbers) / len(numbers)
