"""Loss of a trained decoder with flipped bits in its feed-forward matrices, or noise on its units (`post`).

Bits of bfloat16 weights, and of INT8 weights with a scale per 32, as Q8_0 stores them. Each with and without a clip of
units and residual stream at the largest size on the calibration text.

Reads    start, tokenizer; pack, or the configuration's text
Writes   stress.json, config.json, manifest.json

Checked  tests/unit/adapt/test_stress.py
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from stamm.adapt.change import open_parent, write_origin
from stamm.adapt.config import StressConfig
from stamm.adapt.records import StressFile, StressPoint
from stamm.adapt.sample import mean_loss
from stamm.base.schema import write_record
from stamm.models.config import SavePost
from stamm.runs.job import Workspace

DRAWS = 20
NOISE = (0.03, 0.1, 0.3, 1.0)  # over the root mean square of a layer's units
BITS = {"bfloat16": range(16), "int8": range(8)}


def run(config: StressConfig, workspace: Workspace) -> None:
    """Write the losses of inputs["start"] under faults.

    Raises   ConfigError without a text; DataError when a file is damaged
    """
    parent = open_parent(config, workspace)
    layers: list[Any] = list(parent.decoder.model.layers)
    parts = [part for layer in layers for part in (layer.mlp.act_fn, layer)]
    for layer in layers:
        layer.mlp.memory = SavePost()
    largest, square = [0.0] * len(parts), [0.0] * len(parts)
    random = torch.Generator().manual_seed(config.seed)

    def loss(change: Callable[[int, Tensor], Tensor], text: Sequence[Sequence[int]]) -> float:
        with ExitStack() as stack:
            for n, part in enumerate(parts):
                handle = part.register_forward_hook(lambda _m, _i, out, n=n: change(n, out))
                stack.callback(handle.remove)
            return mean_loss(parent.decoder, text, config.batch_tokens)

    def observe(n: int, out: Tensor) -> Tensor:
        largest[n] = max(largest[n], float(out.abs().max()))
        square[n] = float(out.square().mean())
        return out

    def faulty(noise: float, clip: bool) -> float:
        def change(n: int, out: Tensor) -> Tensor:
            if noise and n % 2 == 0:  # units
                out = out + noise * square[n] ** 0.5 * torch.randn(out.shape, generator=random)
            return out.nan_to_num().clamp(-largest[n], largest[n]) if clip else out

        return loss(change, parent.texts.measured)

    loss(observe, parent.texts.fitted)
    baseline, points = faulty(0.0, False), []
    workspace.progress.begin("stress", len(NOISE) + sum(map(len, BITS.values())), "faults")
    stored = {
        weight: weight.detach().clone()
        for layer in layers
        for name, weight in layer.mlp.named_parameters()
        if weight.dim() == 2 and "router" not in name
    }
    faults = [("noise", at) for at in NOISE] + [(k, b) for k, bits in BITS.items() for b in bits]
    for done, ((kind, at), clip) in enumerate(itertools.product(faults, (False, True))):
        losses = []
        for _ in range(DRAWS):
            for weight, original in stored.items() if kind in BITS else ():
                weight.data.copy_(flipped(original, kind, int(at), config.rate, random))
            losses.append(faulty(0.0 if kind in BITS else at, clip))
        points.append(StressPoint(kind=kind, at=at, clip=clip, **median(losses)))
        workspace.progress.advance((done + 1) // 2, kind)
    record = StressFile(
        model_sha256=parent.sha256,
        calibration=parent.texts.calibration,
        measured=parent.texts.reported,
        rate=config.rate,
        loss=baseline,
        points=tuple(points),
    )
    write_origin("stress", config, workspace)
    write_record(workspace.folder / "stress.json", StressFile, asdict(record))
    workspace.progress.end(f"loss {baseline:.4f} without faults")


def flipped(weight: Tensor, kind: str, bit: int, rate: float, random: torch.Generator) -> Tensor:
    """The matrix as it is read when the bit is flipped in a share `rate` of its stored weights."""
    if kind == "bfloat16":
        code = weight.bfloat16().view(torch.int16)
        flips = torch.rand(code.shape, generator=random) < rate
        return (code ^ (flips.to(code.dtype) << bit)).view(torch.bfloat16).to(weight.dtype)
    rows = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 32)).unflatten(1, (-1, 32))
    scale = rows.abs().amax(2, keepdim=True) / 127
    whole = torch.where(scale > 0, rows / scale, 0.0)
    code = (whole.sign() * (whole.abs() + 0.5).floor()).to(torch.int8)
    flips = torch.rand(code.shape, generator=random) < rate
    read = (code ^ (flips.to(code.dtype) << bit)) * scale.half().float()
    return read.flatten(1)[:, : weight.shape[1]]


def median(losses: Sequence[float]) -> dict[str, float | None]:
    """Median of the 20 draws and its 95 % interval, the 6th and 15th; None: not finite, larger than all."""
    ordered = sorted(x if math.isfinite(x) else math.inf for x in losses)
    ends = {"loss": sum(ordered[9:11]) / 2, "low": ordered[5], "high": ordered[14]}
    return {name: end if math.isfinite(end) else None for name, end in ends.items()}
