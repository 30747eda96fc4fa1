"""Support of 8-bit products: models and GPUs. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from stamm.engine.config import EIGHT_BITS, EngineConfig
from stamm.models.config import DecoderConfig, Dense
from stamm.models.parameter_shapes import parameter_shapes

LANES = 16  # numbers that an 8-bit product takes at once, in every direction of its matrices
# From which compute capability on torch multiplies: with one scale a tensor, or one a row.
CAPABILITY = {"float8": (8, 9), "float8_rows": (9, 0)}
_CUT_BY_COLUMNS = ("o_proj", "down_proj")


def layer_matrices(model: DecoderConfig, tensor: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of the matrices of the layers, as each of `tensor` processes has them."""
    matrices = {}
    for name, shape in parameter_shapes(model).items():
        if ".layers." in name and len(shape) == 2:
            rows, columns = shape
            cut = name.split(".")[-2] in _CUT_BY_COLUMNS
            matrices[name] = (rows, columns // tensor) if cut else (rows // tensor, columns)
    return matrices


def refusals(
    engine: EngineConfig, model: DecoderConfig, context: int, capability: tuple[int, int] | None
) -> Iterator[tuple[str, str]]:
    """The reasons why a model cannot be trained in 8 bits, each with a fix; none where it can.

    context      tokens of a sequence
    capability   CUDA compute capability of the GPU; None: a CPU
    """
    if engine.precision not in EIGHT_BITS:
        return
    asked = f"engine.precision = {engine.precision!r}"
    needed = CAPABILITY[engine.precision]
    if capability is None or capability < needed:
        there = "this is a CPU" if capability is None else f"this one has {_dotted(capability)}"
        yield (
            f"{asked} needs a GPU of compute capability {_dotted(needed)} or newer, and {there}",
            "Set engine.precision=bfloat16",
        )
    if not isinstance(model.ffn.linear, Dense):
        yield (
            f"{asked} cannot multiply {type(model.ffn.linear).__name__} matrices: torchao takes"
            " whole matrices alone",
            "Set engine.precision=bfloat16, or model.ffn.linear=Dense",
        )
        return
    for name, (rows, columns) in layer_matrices(model, engine.parallel.tensor).items():
        if rows % LANES or columns % LANES:
            yield (
                f"{asked} multiplies {LANES} numbers at once, and {name} is a matrix of"
                f" {rows} x {columns} on each process",
                f"Make model.d_model, heads and model.ffn.width such that both divide by {LANES},"
                " or set engine.precision=bfloat16",
            )
            break
    local_context = context // engine.parallel.context
    if local_context % LANES:
        yield (
            f"{asked} multiplies {LANES} tokens at once, and context = {context} leaves {local_context} to"
            " each process",
            f"Use a multiple of {LANES * engine.parallel.context}",
        )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
