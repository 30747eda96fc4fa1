"""A model of stamm's in lm-evaluation-harness. One of the two files that import lm_eval.

    from stamm.evaluate.harness_model import HarnessModel

    results = lm_eval.simple_evaluate(model=HarnessModel(text_model, 8192), tasks=[..])

Written for lm_eval 0.4.13 (lm_eval/api/model.py: LM).
Checked  tests/unit/evaluate/test_harness.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM

from stamm.base.errors import ConfigError
from stamm.evaluate.scoring import generate_until, loglikelihood, loglikelihood_rolling
from stamm.evaluate.text_model import TextModel

NEW_TOKENS = 256  # the harness' default for max_gen_toks
_READ = ("until", "max_gen_toks", "do_sample", "temperature")


class HarnessModel(LM):  # type: ignore[misc]
    """The three requests of the harness, answered by stamm's scoring.

    batch_tokens   tokens of one forward pass, padding included
    """

    def __init__(self, model: TextModel, batch_tokens: int) -> None:
        super().__init__()
        self._model, self._batch_tokens = model, batch_tokens

    @property
    def tokenizer_name(self) -> str:
        """Identifies the tokenizer in the harness' caches."""
        return self._model.tokenizer.sha256

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """For each (context, continuation): log-likelihood in nats, and whether it is greedy."""
        pairs = [(context, continuation) for context, continuation in _arguments(requests)]
        return loglikelihood(self._model, pairs, self._batch_tokens)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """For each text: its log-likelihood in nats."""
        return loglikelihood_rolling(
            self._model, [text for (text,) in _arguments(requests)], self._batch_tokens
        )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """For each (context, settings): the greedy completion.

        Raises   ConfigError for settings that ask for sampling or beams.
        """
        groups: dict[tuple[tuple[str, ...], int], list[tuple[int, list[int]]]] = {}
        for number, (context, settings) in enumerate(_arguments(requests)):
            ids = self._model.context_ids(context)
            groups.setdefault(_settings(settings), []).append((number, ids))
        found = [""] * len(requests)
        for (until, new_tokens), members in groups.items():
            texts = generate_until(self._model, [ids for _, ids in members], until, new_tokens)
            for (number, _), text in zip(members, texts, strict=True):
                found[number] = text
        return found


def _arguments(requests: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [request.args for request in requests]


def _settings(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    other = sorted(set(settings) - set(_READ))
    if other or (settings.get("do_sample") and settings.get("temperature", 1.0) != 0):
        raise ConfigError(
            f"generation_kwargs asks for {', '.join(other) or 'do_sample'}; answers are greedy",
            where="the task's YAML",
            fix=f"Use {', '.join(_READ)} with do_sample: false",
        )
    until = settings.get("until") or ()
    texts = (until,) if isinstance(until, str) else tuple(until)
    return texts, int(settings.get("max_gen_toks", NEW_TOKENS))
