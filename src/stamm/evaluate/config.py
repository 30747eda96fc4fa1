"""Configuration of an evaluation. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from stamm.base.config import nearest, validate
from stamm.base.errors import ConfigError
from stamm.base.user_code import is_reference

PAIRS_SHIPPED = 15
BuiltInTask = Literal["held_out", "blimp"]
BUILT_IN_TASKS: tuple[str, ...] = get_args(BuiltInTask)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluation tasks and how the model reads text in them.

    tasks          "held_out" (loss and bits per byte of held-out text), "blimp" (English minimal
                   pairs), or your own "mine.py:MyTask" (docs/extending/evaluation_task.md)
    batch_tokens   tokens of one forward pass, padding included; results depend on it only in the
                   last digits, and it is fixed so that they do not depend on the machine
    context        tokens the model sees at once; None means the model's max_context
    overlap        a document longer than the context is read in windows, each of which begins
                   with this many tokens of the one before; None means half the context
    blimp_pairs_per_paradigm   minimal pairs used of each of the 67 paradigms
    threads        CPU threads; part of the configuration because sums depend on it
    """

    tasks: tuple[str, ...] = BUILT_IN_TASKS
    batch_tokens: int = 8192
    context: int | None = None
    overlap: int | None = None
    blimp_pairs_per_paradigm: int = PAIRS_SHIPPED
    threads: int = 2

    def __post_init__(self) -> None:
        context, overlap, pairs = self.context, self.overlap, self.blimp_pairs_per_paradigm
        validate(
            self,
            ("tasks", bool(self.tasks), "is empty"),
            ("tasks", len(set(self.tasks)) == len(self.tasks), "names a task twice"),
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
        for name in self.tasks:
            if name not in BUILT_IN_TASKS and not is_reference(name):
                raise ConfigError(
                    f"EvaluateConfig.tasks: {name!r} is not an evaluation task",
                    fix=f'{nearest(name, BUILT_IN_TASKS)}, or your own as "mine.py:MyTask"',
                )
