"""Answers of both models side by side, chosen by a fixed rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stamm.align.results.answer_metrics import AnswerValues
from stamm.align.results.completions import PromptAnswers, answer_text, prompt_text

_LONGEST = 4000
EXAMPLE_RULE = (
    "Test prompts are ordered by the quantile of the aligned model's first answer, and by their place in"
    " the file where it is equal; of this order every k-th prompt is taken, from the lowest to the"
    " highest. Each model shows its first sampled answer."
)


def example_pairs(
    prompts: Sequence[PromptAnswers], ranks: AnswerValues, number: int
) -> list[dict[str, Any]]:
    """`number` prompts spread over the quantiles of the first seed's first answers, as `AnswerPair`s."""
    order = sorted(range(len(prompts)), key=lambda place: (ranks.after[0][place][0], place))
    if len(order) > number:
        last = len(order) - 1
        order = [order[round(i * last / max(number - 1, 1))] for i in range(number)]
    return [_pair(prompts[place], ranks, place) for place in order]


def _pair(prompt: PromptAnswers, ranks: AnswerValues, place: int) -> dict[str, Any]:
    before, after = prompt.before[0], prompt.after[0][0]
    return {
        "id": prompt.id[:200],
        "prompt": prompt_text(before.line.prompt)[:_LONGEST],
        "before": answer_text(before.line.completion)[:_LONGEST],
        "after": answer_text(after.line.completion)[:_LONGEST],
        "reward_before": before.rewards[0],
        "reward_after": after.rewards[0],
        "quantile_before": float(ranks.before[place][0]),
        "quantile_after": float(ranks.after[0][place][0]),
    }
