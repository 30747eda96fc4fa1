"""Configuration of `stamm chat`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.models.sampling_config import SamplingConfig


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
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
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 512
    seed: int = 28

    def __post_init__(self) -> None:
        self.sampling()  # checks the values

    def sampling(self) -> SamplingConfig:
        """The settings of sampling."""
        return SamplingConfig(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
        )
