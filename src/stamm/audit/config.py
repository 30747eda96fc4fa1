"""Configuration of the memorization audit. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Greedy continuations of planted passages, compared with the true text.

    prefix_tokens   tokens of the passage shown after <s>. 50 is the shortest of Apertus' audit
                    and the usual choice in the literature (Carlini et al. 2023, arXiv 2202.07646)
    new_tokens      tokens continued and compared
    candidates      texts drawn as a made-up canary is, never planted, among which it is ranked;
                    exposure is at most log2(candidates + 1) bits
    batch_tokens    tokens of one forward pass, padding included
    threads         CPU threads; part of the configuration because sums depend on it
    """

    prefix_tokens: int = 50
    new_tokens: int = 100
    candidates: int = 255
    batch_tokens: int = 8192
    threads: int = 2

    def __post_init__(self) -> None:
        validate(
            self,
            ("threads", self.threads >= 1, "must be at least 1"),
            ("prefix_tokens", self.prefix_tokens >= 1, "must be at least 1"),
            ("new_tokens", self.new_tokens >= 1, "must be at least 1"),
            ("candidates", 1 <= self.candidates <= 1_000_000, "must lie in 1 to 1000000"),
            ("batch_tokens", self.batch_tokens >= 1, "must be at least 1"),
        )
