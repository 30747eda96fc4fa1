"""Configuration of `stamm sample`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from stamm.base.bounds import (
    AtLeastOne,
    Finite,
    Natural,
    NotNegative,
    PositiveShare,
    not_empty,
    within,
)
from stamm.base.config import Bounded, validate
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
    vector              file of a steering vector (`stamm steer`), with engine=stamm; "": none
    strength            what it is multiplied by
    any_model           use a vector that was fitted to other weights
    """

    prompts: Annotated[str, not_empty("set prompts=FILE")] = ""
    n: AtLeastOne = 1
    prompts_per_shard: AtLeastOne = 64
    vector: str = ""
    strength: Finite = 1.0
    any_model: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_ = (self.strength, self.any_model) != (1.0, False)
        validate(
            self,
            ("vector", self.engine == "stamm" or not self.vector, "is not read with engine=vllm"),
            ("strength", bool(self.vector) or not set_, "and any_model are read with vector=FILE"),
        )


@dataclass(frozen=True, kw_only=True)
class ChatConfig(Bounded):
    """A conversation in the terminal.

    system           system message; "" for none
    deliberation     whether the model may write thoughts
    temperature      logits are divided by it; 0 takes the most likely token
    top_k            draw among the k most likely tokens; 0: among all
    top_p            draw among the fewest tokens whose probabilities reach it
    max_new_tokens   longest answer
    seed             of the random numbers
    """

    system: str = ""
    deliberation: bool = False
    temperature: NotNegative = 0.7
    top_k: Natural = 0
    top_p: PositiveShare = 1.0
    max_new_tokens: AtLeastOne = 512
    seed: Annotated[int, within("[0, 2^64)")] = 28

    def sampling(self) -> SamplingConfig:
        """The settings of sampling."""
        return SamplingConfig(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
        )
