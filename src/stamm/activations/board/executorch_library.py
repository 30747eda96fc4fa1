"""ExecuTorch: functions of torch, exported and run by its portable kernels."""

from __future__ import annotations

import importlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stamm.activations.board.library import GATED, LibraryFunction, torch_functions
from stamm.activations.conformance.implementations import raised
from stamm.base.errors import DataError
from stamm.base.extras import missing_library


def _modules() -> tuple[Any, Any]:
    """The functions that export, and the class that runs.

    Raises   RunError when executorch is missing
    """
    try:
        exir = importlib.import_module("executorch.exir")
        runtime = importlib.import_module("executorch.runtime")
    except ModuleNotFoundError as error:
        raise missing_library(error) or error from None
    return exir.to_edge, runtime.Runtime


@dataclass(frozen=True)
class ExecutorchLibrary:
    """Functions of torch in ExecuTorch, which has no slopes."""

    version: str

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Each function of torch with one input."""
        return [
            LibraryFunction(function.entry, function.name, _run(function.value))
            for function in torch_functions().functions(dtype)
            if function.entry not in GATED
        ]


class _Module(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def _run(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        to_edge, runtime = _modules()
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it warns of every conversion
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = torch.export.export(_Module(call).eval(), (x,))
                program = to_edge(exported).to_executorch().buffer
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "function.pte"
                path.write_bytes(program)
                method = runtime.get().load_program(path).load_method("forward")
                results: list[Tensor] = method.execute([x])
        except Exception as error:  # it raises errors of every kind
            raise DataError(f"ExecuTorch raises {raised(error)}") from error
        finally:
            logging.disable(level)
        return results[0].clone()

    return run


def executorch_library() -> ExecutorchLibrary:
    """The installed ExecuTorch.

    Raises   RunError when it is missing
    """
    _modules()
    return ExecutorchLibrary(version=metadata.version("executorch"))
