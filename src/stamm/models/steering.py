"""Steering vectors: what is added to the residual stream behind layers, their file, and the context that adds them.

vector.safetensors has a float32 tensor `layer.N`, shape (D,), for each steered layer, N from 0: what strength 1 adds to the tap
`layers.N` at every position. Its metadata has one entry "steering", a JSON object: model_sha256 (of the weights, as of
`parameters_sha256`), tap, method, strength (the multiple of the fitted direction that the tensors hold).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import atomic, canonical_json
from stamm.base.json_text import parse_json
from stamm.base.schema import decode
from stamm.models.decoder import Decoder

TAP = "layers.N"
_KEY, _LAYER = "steering", "layer."
_NAME = re.compile(r"layer\.(0|[1-9][0-9]{0,8})")
_LARGEST = 2**30  # bytes of a file that is read
_FIX = "Name vector.safetensors of `stamm steer`"


@dataclass(frozen=True, kw_only=True)
class SteeringHeader:
    """The header of a file of a vector; `strength` is the multiple of the fitted direction that its tensors hold."""

    model_sha256: str
    tap: str = TAP
    method: str
    strength: float


@dataclass(frozen=True, kw_only=True)
class SteeringVector:
    """Vectors that strength 1 adds behind layers: float32, shape (D,), by the number of the layer from 0."""

    layers: Mapping[int, Tensor]
    header: SteeringHeader


def parameters_sha256(decoder: Decoder) -> str:
    """SHA-256 of the names, dtypes, shapes and bits of all parameters, wherever they are stored."""
    digest = hashlib.sha256()
    for name, parameter in sorted(decoder.named_parameters()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        bits = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(bits.numpy().data)
    return digest.hexdigest()


def write_vector(path: Path, vector: SteeringVector) -> None:
    """Write the file of a vector; the same vector gives the same bytes."""
    tensors = {f"{_LAYER}{layer}": vector.layers[layer].float() for layer in sorted(vector.layers)}
    with atomic(path) as temporary:
        # One entry: safetensors writes several in any order.
        save_file(tensors, temporary, {_KEY: canonical_json(asdict(vector.header)).decode()})


def read_vector(path: Path) -> SteeringVector:
    """The vector of a file.

    Raises   DataError when it is missing, damaged, or not the file of a vector.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path} is larger than a steering vector", fix=_FIX)
        with safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", fix=_FIX) from None
    except SafetensorError as error:
        raise DataError(f"{path} is not a safetensors file: {error}", fix=_FIX) from None
    try:
        plain = parse_json(stated)
    except (ValueError, RecursionError):
        raise DataError(
            f"{path} is not a steering vector: its header lacks {_KEY!r}", fix=_FIX
        ) from None
    header: SteeringHeader = decode(SteeringHeader, plain, str(path), _KEY)
    layers: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if not _NAME.fullmatch(name):
            raise DataError(f"{path} has a tensor that is not layer.N: {name[:60]!r}", fix=_FIX)
        if tensor.dim() != 1 or tensor.dtype != torch.float32 or not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {name} is not a vector of finite numbers", fix=_FIX)
        layers[int(name.removeprefix(_LAYER))] = tensor
    if not layers or header.tap != TAP or not math.isfinite(header.strength):
        raise DataError(f"{path} has no layer.N, or a tap that is not {TAP}", fix=_FIX)
    return SteeringVector(layers=layers, header=header)


@contextlib.contextmanager
def steered(
    model: Decoder,
    vector: SteeringVector | str | os.PathLike[str],
    strength: float = 1.0,
    *,
    any_model: bool = False,
) -> Iterator[Decoder]:
    """A context in which `strength` times a vector is added to the residual stream behind its layers.

        model, tokenizer = stamm.load("runs/demo/arms/xielu")
        with stamm.steered(model, "vector.safetensors", 1.0):
            stamm.generate(model, prompts, 20)

    Every way to compute the model adds it: forward passes with gradients under any memory policy, and decoding. Leaving the
    context, also by an exception, restores the model; no weight is touched. At strength 0 nothing is added, so that no bit
    changes. Contexts nest: their vectors add up.

    vector      of `read_vector`, or its file
    any_model   use a vector that was fitted to other weights
    Raises      ConfigError for a strength that is not finite or makes the vector so, for another model's vector, for layers or a width that the
                model does not have; DataError for a file that is not a vector
    Checked     tests/unit/models/test_steering.py
    """
    if not isinstance(vector, SteeringVector):
        vector = read_vector(Path(vector))
    check_vector(model, vector, strength, any_model=any_model)
    changed: list[tuple[Any, Tensor | None]] = []
    try:
        for number, added_D in vector.layers.items() if strength else ():
            layer: Any = model.model.layers[number]
            weight = model.lm_head.weight
            scaled_D = strength * added_D.to(device=weight.device, dtype=weight.dtype)
            before = layer.steering_D
            changed.append((layer, before))
            layer.steering_D = scaled_D if before is None else before + scaled_D
        yield model
    finally:
        for layer, before in reversed(changed):
            layer.steering_D = before


def check_vector(
    model: nn.Module, vector: SteeringVector, strength: float, *, any_model: bool = False
) -> None:
    """Raise ConfigError for what `steered` refuses."""
    if not isinstance(model, Decoder):
        raise ConfigError(
            f"a {type(model).__name__} cannot be steered",
            fix="Open the model with stamm.load; of another class use hooks (docs/interpretability.md)",
        )
    try:
        strength = float(strength)
    except OverflowError:
        strength = math.inf
    if not math.isfinite(strength):
        raise ConfigError(f"strength = {strength} is not finite", fix="Use a number, such as 1.0")
    layers, width = len(model.model.layers), model.config.d_model
    if beyond := [number for number in vector.layers if not 0 <= number < layers]:
        raise ConfigError(
            f"the vector has a layer {beyond[0]}, and the model has layers 0 to {layers - 1}"
        )
    for number, added_D in vector.layers.items():
        if added_D.shape != (width,):
            raise ConfigError(
                f"layer {number} of the vector has shape {tuple(added_D.shape)}, and the model is {width} wide"
            )
        if not bool((strength * added_D.to(model.lm_head.weight.dtype)).isfinite().all()):
            raise ConfigError(
                f"strength {strength:g} times layer {number} of the vector is not finite in {model.lm_head.weight.dtype}",
                fix="Use a smaller strength",
            )
    if not any_model and (sha256 := parameters_sha256(model)) != vector.header.model_sha256:
        raise ConfigError(
            f"the vector was fitted to weights {vector.header.model_sha256[:12]!r}, and the model's are {sha256[:12]!r}",
            fix="Fit it to this model, or set any_model=true",
        )
