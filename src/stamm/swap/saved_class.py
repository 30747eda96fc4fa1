"""The class of a model with a swapped activation: it is that of the code which `save_pretrained` writes.

The text of `models.remote_code.swapped_code` is the definition of the model in memory and, in the saved
folder, of the model that is loaded from there, so both evaluate the same statements in the same order.
In training mode stamm's fused kernels replace them, which may differ by a rounding.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.module.ops import operation_of
from stamm.activations.spec import Spec
from stamm.base.cache_folder import cache_folder
from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_bytes, write_text
from stamm.models.hub import CODE, auto_classes, public_module
from stamm.models.remote_code import MODULE, SWAP_KEY, swapped_code

_PREFIX = "Stamm"


def is_swapped(model: nn.Module) -> bool:
    """Whether its class is one of `swapped_class`, or was loaded from a folder that such a model wrote."""
    return hasattr(type(model), "swapped_from")


def base_class(model: nn.Module) -> type[nn.Module]:
    """The class that a swapped model had before."""
    before: type[nn.Module] = type(model).swapped_from  # type: ignore[attr-defined]
    return before


def swapped_class(model: nn.Module, spec: Spec) -> ModuleType:
    """The module whose class `class_name` is that of the model with the activation.

    Raises   ConfigError for a class that transformers does not define: the saved folder could not
             import it
    """
    base = type(model)
    module = public_module(base)
    if not module:
        raise ConfigError(
            f"{base.__name__} is defined in {base.__module__}, outside of transformers, so that a"
            " saved folder could not import it",
            fix="Swap the activation of a model class of transformers",
        )
    text = swapped_code(spec, module=module, base=base.__name__, architecture=class_name(base))
    code = _executed(text)
    _fuse(code.Activation, spec)
    return code


def class_name(base: type) -> str:
    """The name of the class with the activation."""
    return f"{_PREFIX}{base.__name__}"


def auto_map(base: type) -> dict[str, str]:
    """The value in config.json by which transformers finds the code."""
    names = auto_classes(base) or ("AutoModel",)
    return dict.fromkeys(names, f"{MODULE}.{class_name(base)}")


@functools.lru_cache(maxsize=64)
def _executed(text: str) -> ModuleType:
    """The module of this text, with a file that transformers copies when it saves."""
    digest = sha256_bytes(text.encode())[:16]
    folder = cache_folder("swapped") or Path(tempfile.mkdtemp(prefix="stamm-"))
    file = folder / digest / CODE
    _write(file, text)
    module = ModuleType(f"stamm_swapped_{digest}.{MODULE}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    # The text is generated: formulas reach it only through the parser in spec/expressions.py.
    exec(compile(text, str(file), "exec"), module.__dict__)
    architecture: Any = next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and "swapped_from" in vars(value)
    )
    names = auto_classes(architecture.swapped_from)
    architecture._auto_class = names[0] if names else "AutoModel"
    architecture.save_pretrained = _saving(architecture, file, text)
    for kind in (architecture, module.Activation):
        kind.__reduce_ex__ = _pickling(kind, text)
    return module


def _pickling(kind: Any, text: str) -> Any:
    """`__reduce_ex__` of a class that another process defines from its text, as it cannot import it."""

    def reduced(self: Any, protocol: Any) -> Any:
        if type(self) is not kind:
            return super(kind, self).__reduce_ex__(protocol)
        return _restored, (text, kind.__name__), self.__getstate__()

    return reduced


def _restored(text: str, name: str) -> Any:
    """An empty object of a class of the text, whose state is set next."""
    kind = getattr(_executed(text), name)
    return kind.__new__(kind)


def train_fused(model: nn.Module) -> None:
    """Let the model's activations use stamm's fused kernels in training mode.

    A model that was loaded from a folder computes with the statements of its own code; in training these
    kernels give the same function, and its gradients, at a fraction of the time.

    Raises   DataError when the spec in the configuration is not that of the code
    """
    for part in model.modules():
        settings = getattr(getattr(part, "config", None), SWAP_KEY, None)
        if settings is not None:
            spec = from_plain(Spec, settings["spec"], f"{SWAP_KEY} in the model's configuration")
            for module in part.modules():
                if is_generated(module):
                    _fuse(type(module), spec)


def is_generated(module: nn.Module) -> bool:
    """Whether it is an activation of the code that is saved with models."""
    return hasattr(type(module), "CONTENT_HASH")


def _fuse(kind: Any, spec: Spec) -> None:
    if spec.content_hash != kind.CONTENT_HASH:
        raise DataError(
            f"the configuration has the spec {spec.content_hash[:12]}, and the model's code another one,"
            f" {kind.CONTENT_HASH[:12]}",
            fix="Fetch the folder again",
        )
    fixed = tuple(None if p.trainable else p.initial for p in spec.parameters)
    kind.KERNEL = staticmethod(operation_of(kernel_of(spec), fixed))


def _write(file: Path, text: str) -> None:
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)


def _saving(architecture: Any, file: Path, text: str) -> Any:
    """`save_pretrained` with its file, also where the cache has been emptied since."""

    def save_pretrained(
        self: Any,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        *rest: Any,
        **settings: Any,
    ) -> None:
        _write(file, text)
        self.config.auto_map = auto_map(architecture.swapped_from)
        if type(self) is not architecture:
            # FSDP2 gives a model a class of its own, for which transformers would copy torch's file.
            type(self)._auto_class = None
            if is_main_process:
                _write(Path(save_directory) / CODE, text)
        super(architecture, self).save_pretrained(
            save_directory, is_main_process, *rest, **settings
        )

    return save_pretrained
