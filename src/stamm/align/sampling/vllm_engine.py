"""Sampling by vLLM, for a Hugging Face folder. The one file that imports vllm.

Checked by signature, not run: vLLM needs a GPU or a build of its own. Written for vLLM 0.11 and later
(vllm/entrypoints/llm.py, sampling_params.py, outputs.py): `LLM(model, tokenizer, ..)`,
`LLM.generate(prompts, sampling_params, use_tqdm)` and `CompletionOutput.token_ids`, `logprobs`,
`finish_reason`.

A completion depends on seed and key as with stamm's engine, through vLLM's seed of a request; the random
numbers are others, so the tokens differ from those of stamm's engine.

Checked  tests/unit/align/test_vllm_engine.py
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stamm.base.errors import ConfigError
from stamm.base.hashing import GOLDEN, splitmix64
from stamm.models.sampling import Sampled
from stamm.models.sampling_config import SamplingConfig


def check_installed() -> None:
    """Raises   ConfigError when vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "engine = vllm, and vLLM is not installed",
            fix="Run: pip install 'stamm[vllm]', or use engine=stamm",
        )


class VllmEngine:
    """A model in vLLM.

    model, tokenizer   folders in the layout of transformers
    max_context        prompt and completion have at most so many tokens
    """

    def __init__(self, model: Path, tokenizer: Path, max_context: int) -> None:
        check_installed()
        import vllm

        self._vllm: Any = vllm
        self._model = vllm.LLM(
            model=str(model),
            tokenizer=str(tokenizer),
            max_model_len=max_context,
            logprobs_mode="raw_logprobs",  # at temperature 1, without top_k and top_p
            trust_remote_code=False,
        )
        self._max_context = max_context

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        stop_ids: frozenset[int],
        keys: Sequence[int],
    ) -> list[Sampled]:
        """A completion of each prompt, in order; arguments as `stamm.models.sampling.sample`.

        sampled_log_prob is None where temperature, top_k or top_p change the distribution.
        """
        outputs = self._model.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            [
                self._vllm.SamplingParams(
                    temperature=config.temperature,
                    top_k=config.top_k,
                    top_p=config.top_p,
                    max_tokens=min(config.max_new_tokens, self._max_context - len(prompt)),
                    seed=_seed(config.seed, key),
                    stop_token_ids=sorted(stop_ids),
                    ignore_eos=True,  # stop_ids has it where the chat format ends with it
                    logprobs=0,  # of the sampled token alone
                    detokenize=False,
                )
                for prompt, key in zip(prompts, keys, strict=True)
            ],
            use_tqdm=False,
        )
        plain = config.temperature == 1 and config.top_k == 0 and config.top_p == 1.0
        return [
            _sampled(request, output.outputs[0], plain) for request, output in enumerate(outputs)
        ]


def _sampled(request: int, output: Any, plain: bool) -> Sampled:
    tokens = list(output.token_ids)
    log_prob = sum(
        float(known[token].logprob) for token, known in zip(tokens, output.logprobs, strict=True)
    )
    return Sampled(
        request=request,
        tokens=tokens,
        log_prob=log_prob,
        sampled_log_prob=log_prob if plain else None,
        stopped=output.finish_reason == "stop",
    )


def _seed(seed: int, key: int) -> int:
    """A seed below 2**63 for a request."""
    with np.errstate(over="ignore"):
        mixed = splitmix64(splitmix64(np.array([seed], dtype=np.uint64)) + np.uint64(key) * GOLDEN)
    return int(mixed[0] >> np.uint64(1))
