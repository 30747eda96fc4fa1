"""The budget of a judge: requests, tokens and cost, counted over a run.

Checked  tests/unit/align/test_judge_endpoint.py
"""

from __future__ import annotations

from collections.abc import Iterable

from stamm.align.judge.judge_config import Connection
from stamm.align.judge.request import JudgeReply
from stamm.base.errors import RunError

_FIX = "Raise {name} and run the same command again: stored replies are not asked for again"


class JudgeBudget:
    """Counts what a judge costs and stops the run when a limit is reached.

    stored   replies that this run has paid for already

    Requests are counted before they are sent, retries too, so that max_requests is never exceeded.
    Tokens are known afterwards: requests that are open at the same time may exceed max_tokens and
    max_cost.
    """

    def __init__(self, config: Connection, stored: Iterable[JudgeReply] = ()) -> None:
        self._config = config
        self.requests = self.prompt_tokens = self.completion_tokens = 0
        for reply in stored:
            self.requests += 1
            self.spend(reply)

    @property
    def cost(self) -> float:
        """Cost so far, in the currency of the prices."""
        prompt = self.prompt_tokens * self._config.prompt_price
        return (prompt + self.completion_tokens * self._config.completion_price) / 1e6

    def begin(self) -> None:
        """Count a request that is about to be sent.

        Raises   RunError when the budget is used up, with the limit and the fix
        """
        config = self._config
        tokens = self.prompt_tokens + self.completion_tokens
        for name, spent, limit in (
            ("max_requests", self.requests, config.max_requests),
            ("max_tokens", tokens, config.max_tokens),
            ("max_cost", round(self.cost, 6), config.max_cost),
        ):
            if limit and spent >= limit:
                key = f"judge.connection.{name}"
                raise RunError(
                    f"the budget of the judge is used up: {spent:,} of {key} = {limit:,}",
                    fix=_FIX.format(name=key),
                )
        self.requests += 1

    def spend(self, reply: JudgeReply) -> None:
        """Count the tokens of a reply."""
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
