"""A model of stamm's in lm-evaluation-harness. One of the two files that import lm_eval.

    from stamm.evaluate.harness_model import HarnessModel

    results = lm_eval.simple_evaluate(model=HarnessModel(open_model(folder), 8192), tasks=[..])

Written for lm_eval 0.4.13 (lm_eval/api/model.py: LM).
Checked  tests/unit/evaluate/test_harness.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM

from stamm.base.errors import ConfigError
from stamm.base.known_keys import KnownKeys, RefusedKey
from stamm.evaluate.scoring import generate_until, loglikelihood, loglikelihood_rolling
from stamm.models.loading import OpenModel

NEW_TOKENS = 256  # the harness' default for max_gen_toks
GENERATION_KEYS = KnownKeys(
    reader="generation_kwargs",
    read=frozenset(("until", "max_gen_toks", "temperature")),
    harmless=frozenset(("top_p", "top_k", "min_p")),
    refused={
        "num_beams": RefusedKey(meaning="asks for beams", neutral=(1,), fix="Set num_beams: 1"),
        "do_sample": RefusedKey(
            meaning="asks for samples",
            neutral=(False,),
            fix="Set do_sample: false; answers are greedy",
        ),
    },
)
"""Settings of an answer: greedy ones do not depend on what samples are drawn from."""


class HarnessModel(LM):  # type: ignore[misc]
    """The three requests of the harness, answered by stamm's scoring.

    batch_tokens   tokens of one forward pass, padding included
    begin_twice    of whole texts, as `loglikelihood_rolling`
    truncated      task and number of each document whose context was cut
    """

    def __init__(self, model: OpenModel, batch_tokens: int, *, begin_twice: bool = False) -> None:
        super().__init__()
        self._begin_twice = begin_twice
        self._model, self._batch_tokens = model, batch_tokens
        self.truncated: set[tuple[str, int]] = set()

    @property
    def tokenizer_name(self) -> str:
        """Identifies the tokenizer in the harness' caches."""
        return self._model.tokenizer.sha256

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """For each (context, continuation): log-likelihood in nats, and whether it is greedy."""
        pairs = [(context, continuation) for context, continuation in _arguments(requests)]
        limit = self._model.decoder.config.max_context
        for request, pair in zip(requests, pairs, strict=True):
            first, rest = self._model.encode_pair(*pair)
            self._count(request, len(first) + len(rest) - 1 > limit)
        return loglikelihood(self._model, pairs, self._batch_tokens)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """For each text: its log-likelihood in nats."""
        texts = [text for (text,) in _arguments(requests)]
        return loglikelihood_rolling(
            self._model, texts, self._batch_tokens, begin_twice=self._begin_twice
        )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """For each (context, settings): the greedy completion.

        Raises   ConfigError for settings that ask for sampling or beams.
        """
        groups: dict[tuple[tuple[str, ...], int], list[tuple[int, list[int]]]] = {}
        limit = self._model.decoder.config.max_context
        for number, (request, (context, given)) in enumerate(
            zip(requests, _arguments(requests), strict=True)
        ):
            ids, settings = self._model.context_ids(context), _settings(given)
            self._count(request, len(ids) + settings[1] > limit)
            groups.setdefault(settings, []).append((number, ids))
        completions = [""] * len(requests)
        for (until, new_tokens), members in groups.items():
            texts = generate_until(self._model, [ids for _, ids in members], until, new_tokens)
            for (number, _), text in zip(members, texts, strict=True):
                completions[number] = text
        return completions

    def _count(self, request: Any, is_cut: bool) -> None:
        if is_cut:
            self.truncated.add((request.task_name, request.doc_id))


def _arguments(requests: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [request.args for request in requests]


def _settings(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    where = "generation_kwargs of the task's YAML"
    temperature = settings.get("temperature")
    checked = dict(settings)
    if temperature == 0:
        checked.pop("do_sample", None)  # greedy, whatever it is
    GENERATION_KEYS.check(checked, where)
    if unknown := GENERATION_KEYS.unknown(settings):
        raise ConfigError(f"{unknown[0]} is not known", where=where, fix="Leave it out")
    if temperature and settings.get("do_sample") is None:
        raise ConfigError(
            f"temperature = {temperature} asks for samples; answers are greedy",
            where=where,
            fix="Set do_sample: false",
        )
    until = settings.get("until") or ()
    texts = (until,) if isinstance(until, str) else tuple(until)
    if not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(
            "until holds an empty text", where=where, fix="Name texts that end an answer"
        )
    return texts, int(settings.get("max_gen_toks", NEW_TOKENS))
