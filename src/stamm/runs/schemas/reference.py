"""summary.json of reference log-probabilities: what they were computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class ReferenceSummary:
    """Identity of reference log-probabilities.

    sha256               of log_probs.parquet
    data_sha256          of the prepared examples, in whose order they are
    weights_sha256       of the reference model
    chat_format_sha256   of all that decides the ids
    mean_nats_per_token  mean negative log-probability of the answers' tokens
    held_out_sha256, held_out_data_sha256   of the held-out answers' file and rows; "" without any

    The counts and the mean are those of the answers that are trained on.
    """

    SCHEMA: ClassVar[int] = 1

    sha256: str
    data_sha256: str
    weights_sha256: str
    chat_format_sha256: str
    answers: int
    tokens: int
    mean_nats_per_token: float
    held_out_sha256: str = ""
    held_out_data_sha256: str = ""
