"""What an evaluation can be told. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate

PAIRS_SHIPPED = 15


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Held-out text and minimal pairs.

    batch_tokens   tokens of one forward pass, padding included; results depend on it only in the
                   last digits, and it is fixed so that they do not depend on the machine
    context        tokens the model sees at once; None means the model's max_context
    overlap        a document longer than the context is read in windows, each of which begins
                   with this many tokens of the one before; None means half the context
    blimp_pairs_per_paradigm   how many of the shipped pairs of each of the 67 paradigms are asked
    threads        CPU threads; part of the configuration because sums depend on it
    """

    batch_tokens: int = 8192
    context: int | None = None
    overlap: int | None = None
    blimp_pairs_per_paradigm: int = PAIRS_SHIPPED
    threads: int = 2

    def __post_init__(self) -> None:
        context, overlap, pairs = self.context, self.overlap, self.blimp_pairs_per_paradigm
        validate(
            self,
            ("threads", self.threads >= 1, "must be at least 1"),
            ("batch_tokens", self.batch_tokens >= 1, "must be at least 1"),
            ("context", context is None or context >= 2, "must be at least 2"),
            ("overlap", overlap is None or overlap >= 1, "must be at least 1"),
            (
                "overlap",
                overlap is None or context is None or overlap < context,
                f"must be below context = {context}",
            ),
            (
                "blimp_pairs_per_paradigm",
                1 <= pairs <= PAIRS_SHIPPED,
                f"must lie in [1, {PAIRS_SHIPPED}], the number shipped",
            ),
        )
