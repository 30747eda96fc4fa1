"""Plan of an export from the configuration alone: files, their bytes, and memory.

Checked  tests/unit/export/test_export_plan.py, against exports
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text
from stamm.export.config import ExportConfig, set_options
from stamm.export.registry import guarded_target, load_target
from stamm.export.target import PlannedTarget, TargetPlan
from stamm.models.config import DecoderConfig
from stamm.models.decoder import build_blank
from stamm.models.parameter_shapes import parameter_shapes


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """Bytes of an export.

    files     weights by file, without headers and the tokenizer
    model     the decoder's weights, float32: the parity report maps their file
    write     memory to write: the largest tensor, its conversion, and structured matrices multiplied out
    engine    the exported weights in their engine, for the parity report
    """

    files: Mapping[str, int]
    model: int
    write: int
    engine: int

    def lines(self) -> list[str]:
        """The plan as text."""
        file_lines = [f"  {name}  {bytes_text(size)}" for name, size in self.files.items()]
        return [
            *file_lines,
            f"  memory  {bytes_text(self.write)} to write, one tensor at a time; parity report: the "
            f"model {bytes_text(self.model)}, memory-mapped, the export {bytes_text(self.engine)}",
        ]


def has_plan(config: ExportConfig) -> bool:
    """Whether the target can give the bytes of an export."""
    return isinstance(load_target(config.target), PlannedTarget)


def export_plan(config: ExportConfig, model: DecoderConfig) -> ExportPlan:
    """The plan of an export.

    Raises   ConfigError for a target without a plan, or one that cannot hold the model.
    """
    target = load_target(config.target)
    if not isinstance(target, PlannedTarget):
        raise ConfigError(
            f"{config.target} has no plan", where="export.target", fix="Give it a method plan"
        )
    set_options(target, config)
    if problems := guarded_target(target, lambda: tuple(target.check(model.merged()))):
        raise ConfigError(f"the model cannot be exported to {config.target}: {problems[0]}")
    decoder = build_blank(model.merged())
    sizes = [4 * parameter.numel() for parameter in decoder.parameters()]
    plan = guarded_target(target, lambda: target.plan(decoder))
    if not isinstance(plan, TargetPlan):
        raise ConfigError(
            f"{type(target).__name__}.plan returned {type(plan).__name__}, not a TargetPlan",
            where="export.target",
            fix="Return stamm.export.target.TargetPlan",
        )
    own = parameter_shapes(model)
    merged = sum(
        4 * math.prod(shape)
        for name, shape in parameter_shapes(model.merged()).items()
        if name not in own
    )
    write = merged + max(sizes) * (2 if plan.converted else 1)
    return ExportPlan(files=plan.files, model=sum(sizes), write=write, engine=plan.engine)
