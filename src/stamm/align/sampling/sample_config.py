"""Configuration of `stamm sample`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate
from stamm.models.sampling_config import SamplingConfig


@dataclass(frozen=True, kw_only=True)
class EngineSampling(SamplingConfig):
    """Settings of sampling, and what computes it.

    engine   "stamm"; "vllm", when vLLM is installed: a model of stamm's is written in the layout of
             transformers first
    device   of engine=stamm; "auto" uses a GPU where there is one, by one process
    """

    engine: Literal["stamm", "vllm"] = "stamm"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        other = "is not read with engine=vllm"
        validate(
            self,
            ("slots", self.engine == "stamm" or self.slots == SamplingConfig.slots, other),
            ("device", self.engine == "stamm" or self.device != "cpu", other),
        )


@dataclass(frozen=True, kw_only=True)
class SampleConfig(EngineSampling):
    """Completions of prompts by a trained model.

    prompts             a file with a prompt per row: a column prompt, or messages
    n                   completions of each prompt
    prompts_per_shard   prompts that are sampled and proven together
    """

    prompts: str = ""
    n: int = 1
    prompts_per_shard: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        validate(
            self,
            ("prompts", bool(self.prompts), "is empty: set prompts=FILE"),
            ("n", self.n >= 1, "must be at least 1"),
            ("prompts_per_shard", self.prompts_per_shard >= 1, "must be at least 1"),
        )
