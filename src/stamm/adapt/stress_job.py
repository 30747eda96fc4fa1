"""Loss of a trained decoder with flipped bits in its feed-forward matrices, or with noise on `post`.

Bits are those of bfloat16 weights, and of INT8 weights with a scale per 32, as Q8_0 exports store them. Each draw is
measured as it is and with a clip: `post` and the residual stream at their largest size on the calibration text, NaN as 0.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   stress.json, config.json, manifest.json
Checked  tests/unit/adapt/test_stress.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from stamm.adapt.change import open_parent, write_origin
from stamm.adapt.config import StressConfig, require_dense
from stamm.adapt.records import StressFile, StressPoint
from stamm.adapt.sample import mean_loss, token_batches
from stamm.base.schema import write_record
from stamm.observe.taps import tapped
from stamm.runs.job import Workspace

DRAWS = 20
NOISE = (0.03, 0.1, 0.3, 1.0)  # over the root mean square of a layer's `post`
BITS = {"bfloat16": range(16), "int8": range(8)}


@torch.no_grad()
def run(config: StressConfig, workspace: Workspace) -> None:
    """Write the losses of inputs["start"] under faults.

    Raises   ConfigError for structured matrices, or without a text; DataError when a file is damaged
    """
    parent, random = open_parent(config, workspace), torch.Generator()
    decoder, texts = parent.decoder, parent.texts
    require_dense(decoder.config, "have bits flipped")
    square = {f"layers.{n}.mlp.act_fn": 0.0 for n in range(decoder.config.num_layers)}
    largest = dict.fromkeys([*square, *(f"layers.{n}" for n in range(len(square)))], 0.0)

    def observe(real_BT: Tensor, name: str, _: object, out: Tensor) -> None:
        largest[name] = max(largest[name], float(out[real_BT].abs().max()))
        if name in square:
            square[name] += float(out[real_BT].square().mean(1).sum()) / texts.calibration.tokens

    for tokens_BT, real_BT in token_batches(texts.fitted, config.batch_tokens):
        with tapped(decoder, {name: partial(observe, real_BT, name) for name in largest}):
            decoder.model(tokens_BT[:, :-1])

    def change(noise: float, clip: bool, name: str, _: object, out: Tensor) -> Tensor:
        if noise and name in square:
            out = out + noise * square[name] ** 0.5 * torch.randn(out.shape, generator=random)
        return out.nan_to_num().clamp(-largest[name], largest[name]) if clip else out

    named = decoder.model.named_parameters()
    stored = {w: w.clone() for name, w in named if "mlp" in name and name.endswith("proj.weight")}

    def losses(kind: str, at: float, draw: int, rate: float = config.rate) -> tuple[float, float]:
        means = []
        for clip in (False, True):
            random.manual_seed(config.seed * DRAWS + draw)  # the same fault
            for weight, original in stored.items() if kind in BITS else ():
                weight.copy_(flipped(original, kind, int(at), rate, random))
            noise = 0.0 if kind in BITS else at
            with tapped(decoder, {name: partial(change, noise, clip, name) for name in largest}):
                means.append(mean_loss(decoder, texts.measured, config.batch_tokens))
        without, clipped = (loss if math.isfinite(loss) else math.inf for loss in means)
        return without, clipped

    bare, clipped = losses("noise", 0.0, 0)
    faults = [("noise", at) for at in NOISE] + [(k, float(bit)) for k in BITS for bit in BITS[k]]
    workspace.progress.begin("stress", len(faults), "faults")
    points = []
    for done, (kind, at) in enumerate(faults, 1):
        points.append(point(kind, at, [losses(kind, at, draw) for draw in range(DRAWS)]))
        workspace.progress.advance(done, kind)
    record = StressFile(
        model_sha256=parent.sha256,
        calibration=texts.calibration,
        measured=texts.reported,
        rate=config.rate,
        loss=bare,
        controls={"clip": clipped} | {kind: losses(kind, 0.0, 0, rate=0.0)[0] for kind in BITS},
        points=tuple(points),
    )
    write_origin("stress", config, workspace)
    write_record(workspace.folder / "stress.json", StressFile, asdict(record))
    workspace.progress.end(f"loss {bare:.4f} without faults")


def flipped(weight: Tensor, kind: str, bit: int, rate: float, random: torch.Generator) -> Tensor:
    """The matrix as it is read when the bit is flipped in a share `rate` of its stored weights."""
    scale = None
    code = weight.bfloat16().view(torch.int16)
    if kind == "int8":
        padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 32))
        rows = padded.reshape(len(weight), -1, 32)
        scale = rows.abs().amax(2, keepdim=True) / 127
        whole = torch.where(scale > 0, rows / scale, 0.0)
        code = (whole.sign() * (whole.abs() + 0.5).floor()).to(torch.int8)
    code = code ^ ((torch.rand(code.shape, generator=random) < rate).to(code.dtype) << bit)
    if scale is None:
        return code.view(torch.bfloat16).to(weight.dtype)
    read: Tensor = (code * scale.half().float()).flatten(1)[:, : weight.shape[1]]
    return read


def point(kind: str, at: float, draws: Sequence[tuple[float, float]]) -> StressPoint:
    """Order statistics of 20 draws (loss, loss with the clip), which need no distribution; inf is larger than all.

    The 6th and the 15th hold the median in 95.9 % of samples. The clip is shown to lower the loss where the 18th
    difference is below 0: 99.96 % for each fault, and above 95 % for all 28 together.
    """
    differences = sorted(b - a if a != b else 0.0 for a, b in draws)
    clip = "lowers" if differences[17] < 0 else "raises" if differences[2] > 0 else "not shown"
    ends = []
    for ordered in map(sorted, zip(*draws, strict=True)):
        values = (ordered[5], (ordered[9] + ordered[10]) / 2, ordered[14])
        ends.append(tuple(x if math.isfinite(x) else None for x in values))
    return StressPoint(kind=kind, at=at, loss=ends[0], clipped=ends[1], clip=clip)
