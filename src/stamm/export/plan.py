"""Plan of an export from the configuration alone: files, their bytes, and memory.

Checked  tests/unit/export/test_export_plan.py, against exports
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text
from stamm.export.config import BUILT_IN_TARGETS, ExportConfig
from stamm.export.gguf_file import gguf_tensors
from stamm.export.onnx_graph import DATA
from stamm.export.registry import export_problems
from stamm.export.runtime_support import BLOCK_BYTES, BLOCKS
from stamm.export.transformers_target import weight_dtypes
from stamm.models.config import DecoderConfig
from stamm.models.decoder import build_blank
from stamm.models.hf_files import WEIGHTS
from stamm.models.hub import hub_state
from stamm.models.parameter_shapes import parameter_shapes
from stamm.models.weight_shards import shard_file, split_shards


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
        found = [f"  {name}  {bytes_text(size)}" for name, size in self.files.items()]
        return [
            *found,
            f"  memory  {bytes_text(self.write)} to write, one tensor at a time; parity report: the "
            f"model {bytes_text(self.model)}, memory-mapped, the export {bytes_text(self.engine)}",
        ]


def export_plan(config: ExportConfig, model: DecoderConfig) -> ExportPlan:
    """The plan of an export to a built-in target.

    Raises   ConfigError for a user target, or one that cannot hold the model.
    """
    if config.target not in BUILT_IN_TARGETS:
        raise ConfigError(f"{config.target} is not a built-in target: it has no plan")
    if problems := export_problems(config.target, model, config.quantization):
        raise ConfigError(f"the model cannot be exported to {config.target}: {problems[0]}")
    decoder = build_blank(model.merged())
    sizes = [4 * parameter.numel() for parameter in decoder.parameters()]
    if config.target == "transformers":
        state = hub_state(decoder)
        dtypes = weight_dtypes(state, config.quantization)
        stored = {name: t.numel() * dtypes[name].itemsize for name, t in state.items()}
        shards = split_shards(stored, config.max_shard_bytes)
        files = {
            shard_file(number, len(shards)) if len(shards) > 1 else WEIGHTS: sum(
                stored[name] for name in names
            )
            for number, names in enumerate(shards, 1)
        }
        engine = sum(4 * tensor.numel() for tensor in state.values())
    elif config.target == "gguf":
        kinds = (
            (t.numel(), config.quantization if t.dim() > 1 else "F32")
            for _, t in gguf_tensors(decoder)
        )
        engine = sum(count // BLOCKS[kind] * BLOCK_BYTES[kind] for count, kind in kinds)
        files = {f"model-{config.quantization}.gguf": engine}
    else:
        engine = sum(sizes)
        files = {DATA: engine}
    own = parameter_shapes(model)
    merged = sum(
        4 * math.prod(shape)
        for name, shape in parameter_shapes(model.merged()).items()
        if name not in own
    )
    converted = config.quantization != "F32" or config.target == "onnx"
    write = merged + max(sizes) * (2 if converted else 1)
    return ExportPlan(files=files, model=sum(sizes), write=write, engine=engine)
