"""Registry of the built-in export targets; other names are references to a user's target.

No torch here: a recipe checks its export target before training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import ExportError
from stamm.base.user_code import load_named, load_reference
from stamm.export.config import BUILT_IN_TARGETS, BuiltInTarget
from stamm.export.gguf_tokenizer import read_bpe
from stamm.export.runtime_support import gguf_reasons, onnx_reasons
from stamm.export.target import ExportTarget
from stamm.models.config import DecoderConfig
from stamm.models.hf_architecture import unsupported_reasons


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A built-in target.

    check    as ExportTarget.check, without torch
    target   reference to its class, loaded when an export starts
    """

    check: Callable[[DecoderConfig], Sequence[str]]
    target: str


TARGETS: dict[BuiltInTarget, BuiltIn] = {
    "transformers": BuiltIn(
        check=unsupported_reasons,
        target="stamm.export.transformers_target:TransformersTarget",
    ),
    "gguf": BuiltIn(check=gguf_reasons, target="stamm.export.gguf_target:GgufTarget"),
    "onnx": BuiltIn(check=onnx_reasons, target="stamm.export.onnx_target:OnnxTarget"),
}


def load_target(name: str) -> ExportTarget:
    """The target that `name` names: a built-in, or a user's "mine.py:MyTarget".

    Raises   ConfigError when it cannot be loaded or has no usable name.
    """
    built_in = _built_in(name)
    if built_in is not None:
        return load_reference(built_in.target, ExportTarget, "an export target")
    return load_named(
        name,
        ExportTarget,
        "an export target",
        names="its folder",
        where="export.target",
        reserved=BUILT_IN_TARGETS,
    )


def export_problems(name: str, config: DecoderConfig, quantization: str = "F32") -> tuple[str, ...]:
    """The reasons why the target `name` cannot hold a model; structured matrices are merged first.

    quantization   type of the matrices, one that the target has

    Raises   ConfigError as `load_target` does.
    """
    if name == "gguf":
        return gguf_reasons(config.merged(), quantization)
    check = (_built_in(name) or load_target(name)).check
    return tuple(check(config.merged()))


def tokenizer_problem(name: str, file: Path, vocab_size: int) -> str:
    """The reason why the target `name` cannot hold a tokenizer.json; "" when none is known.

    vocab_size   of the model
    """
    if name != "gguf":
        return ""
    try:
        read_bpe(file, vocab_size)
    except ExportError as error:
        return error.what
    return ""


def _built_in(name: str) -> BuiltIn | None:
    return next((entry for known, entry in TARGETS.items() if known == name), None)
