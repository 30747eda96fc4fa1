"""Other implementations of an activation: torch, transformers, compiled, Liger-Kernel."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.benchmark import BenchmarkArm
from stamm.activations.conformance.implementations import (
    FunctionImplementation,
    ModuleImplementation,
    implementation,
    resolve,
)
from stamm.activations.module import build_activation
from stamm.activations.spec import Gated, Plain, Spec
from stamm.base.errors import StammError
from stamm.engine.compile import separate_inductor_cache
from stamm.models.hub import hub_activation

YARDSTICK = "F.silu"
_SHORT = {"torch.nn.functional:": "F.", "transformers.activations:": "transformers "}
# Functions of torch with arguments, which the name of a peer cannot express.
_ALSO: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "gelu_tanh": ("F.gelu(tanh)", functools.partial(F.gelu, approximate="tanh")),
}
# gate and up -> y, by the name of the entry
_LIGER = {
    "swiglu": "liger_kernel.ops.swiglu:LigerSiLUMulFunction",
    "geglu_tanh": "liger_kernel.ops.geglu:LigerGELUMulFunction",
}


def arms_of(
    spec: Spec, dtype: torch.dtype, device: torch.device, *, compiled: bool
) -> tuple[list[BenchmarkArm], dict[str, str]]:
    """Implementations to time (stamm first, then the yardstick), and those unavailable, with the reason.

    compiled   include torch.compile of the others
    """
    # All gates share one code object, of which torch.compile keeps at most eight versions.
    torch.compiler.reset()
    separate_inductor_cache()
    gated = isinstance(spec.arity, Gated)
    missing: dict[str, str] = {}
    yardstick = _arm(YARDSTICK, F.silu, gated)
    arms = [*_own(spec, dtype, device), replace(yardstick, same=False)]
    for name, curve in _other_implementations(spec, dtype, device, missing):
        arm = _arm(name, curve, gated)
        if arm.name != yardstick.name:
            arms.append(arm)
        # A single function of torch is already one kernel.
        if compiled and (gated or name.startswith("transformers ")):
            fast = torch.compile(arm.call, fullgraph=True, dynamic=False)
            arms.append(replace(arm, name=f"compiled {arm.name}", call=fast, compiled=True))
    if spec.name in _LIGER:
        try:
            arms.append(_liger(_LIGER[spec.name], device))
        except (ImportError, AttributeError, ValueError) as error:
            missing["Liger-Kernel"] = str(error)
    return arms, missing


def _own(spec: Spec, dtype: torch.dtype, device: torch.device) -> list[BenchmarkArm]:
    arms = []
    # precision="fast" differs for float32 inputs only.
    for precision in ("exact", "fast") if dtype == torch.float32 else ("exact",):
        module = build_activation(spec, dtype=dtype, precision=precision).to(device)
        name = "stamm" if precision == "exact" else "stamm, fast"
        arms.append(BenchmarkArm(name=name, call=module, parameters=tuple(module.parameters())))
    return arms


def _other_implementations(
    spec: Spec, dtype: torch.dtype, device: torch.device, missing: dict[str, str]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Other implementations of the function, called as by their users; reasons go to `missing`."""
    curve = _curve(spec)
    if curve is None:
        return []
    implementations: list[tuple[str, Callable[..., Tensor]]] = []
    if curve.name in _ALSO:
        implementations.append(_ALSO[curve.name])
    for word in curve.peers:
        name = word
        for prefix, short in _SHORT.items():
            name = name.replace(prefix, short)
        try:
            implementations.append((name, _made(word, curve, dtype, device)))
        except StammError as error:
            missing[name] = error.line()
    return implementations


def _curve(spec: Spec) -> Spec | None:
    """The spec itself, or the plain entry with the same gate; None when there is none."""
    if isinstance(spec.arity, Plain):
        return spec
    if spec.arity.up is not None:
        return None
    parts = (spec.pieces, spec.parameters, spec.anchor, spec.jumps)
    entries = (catalog.get(name) for name in catalog.names())
    return next(
        (
            entry
            for entry in entries
            if isinstance(entry.arity, Plain)
            and (entry.pieces, entry.parameters, entry.anchor, entry.jumps) == parts
        ),
        None,
    )


def _made(word: str, spec: Spec, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensor]:
    """A module cast to `dtype`, or a function with the spec's parameters that it accepts."""
    hub = word.startswith("transformers.")
    peer = implementation(hub_activation(word), word) if hub else resolve(word)
    if isinstance(peer, ModuleImplementation):
        return peer.make().to(device, dtype)
    assert isinstance(peer, FunctionImplementation)
    taken = _keywords(peer.function)
    numbers = {p.name: p.initial for p in spec.parameters if p.name in taken}
    return functools.partial(peer.function, **numbers) if numbers else peer.function


def _keywords(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in, without a signature
        return set()


def _arm(name: str, curve: Callable[..., Tensor], gated: bool) -> BenchmarkArm:
    parameters = tuple(curve.parameters()) if isinstance(curve, nn.Module) else ()
    label, call = (f"{name} * up", _times_up(curve)) if gated else (name, curve)
    return BenchmarkArm(name=label, call=call, parameters=parameters)


def _times_up(curve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def times_up(gate: Tensor, up: Tensor) -> Tensor:
        return curve(gate) * up

    return times_up


def _liger(word: str, device: torch.device) -> BenchmarkArm:
    """Liger-Kernel's function; raises ValueError, ImportError or AttributeError if unavailable."""
    if device.type != "cuda":
        raise ValueError("needs a GPU")
    module, _, name = word.partition(":")
    function = getattr(importlib.import_module(module), name)
    return BenchmarkArm(name=f"Liger-Kernel {name}", call=function.apply, overwrites=True)
