"""Table of the built-in export targets; other names are references to a user's target.

No torch here: a recipe checks its export target before training.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from stamm.base.errors import ExportError
from stamm.base.user_code import guarded, load_named, load_reference
from stamm.export.runtime_support import GgufSupport, OnnxSupport, TransformersSupport
from stamm.export.target import ExportTarget, TargetSupport

T = TypeVar("T")


class BuiltIn(NamedTuple):
    """A built-in target: what it can hold, without torch, and the reference of its class."""

    support: Callable[[], TargetSupport]
    target: str


TARGETS = {
    "transformers": BuiltIn(
        TransformersSupport, "stamm.export.transformers_target:TransformersTarget"
    ),
    "gguf": BuiltIn(GgufSupport, "stamm.export.gguf_target:GgufTarget"),
    "onnx": BuiltIn(OnnxSupport, "stamm.export.onnx_target:OnnxTarget"),
}


def load_target(name: str) -> ExportTarget:
    """The target that `name` names: a built-in, or a user's "mine.py:MyTarget".

    Raises   ConfigError when it cannot be loaded or has no usable name.
    """
    if name in TARGETS:
        return load_reference(TARGETS[name].target, ExportTarget, "an export target")
    return load_named(
        name,
        ExportTarget,
        "an export target",
        names="its folder",
        where="export.target",
        reserved=TARGETS,
    )


def load_support(name: str) -> TargetSupport:
    """The checks of the target `name`: of a built-in without torch, of a user's the target itself.

    Raises   ConfigError as `load_target` does.
    """
    return TARGETS[name].support() if name in TARGETS else load_target(name)


def guarded_target(target: TargetSupport, work: Callable[[], T]) -> T:
    """The result of `work`; an exception of a user's target is reported with its file and line."""
    if type(target).__module__.startswith("stamm."):
        return work()
    result: T = guarded(Path(inspect.getfile(type(target))), work, passed=(ExportError,))
    return result
