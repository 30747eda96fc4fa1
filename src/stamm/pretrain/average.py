"""Average the weights of a training run over its last checkpoints and its end.

Reads    run (the folder of a trained arm, with its checkpoints of one process)
Leaves   model (a stored decoder)

Source   Izmailov et al. 2018 (arXiv 1803.05407)
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json, sha256_file
from stamm.engine.checkpoint_files import STATE, checkpoint_steps
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pretrain.average_config import WeightAverage
from stamm.runs.job import Workspace

_PREFIX = "model/"


def run(config: WeightAverage, workspace: Workspace) -> None:
    """Store the mean of the final weights and of the checkpoints every `config.every` steps before.

    Raises   RunError when one of these checkpoints is missing; DataError when one is damaged
    """
    folder = workspace.inputs["run"]
    final = int(read_json(folder / "summary.json")["steps"])
    places = folder / "checkpoints"
    newest = (final - 1) // config.every
    steps = [n * config.every for n in range(newest + 2 - config.last, newest + 1)]
    missing = sorted(set(steps) - set(checkpoint_steps(places)))
    if missing:
        raise RunError(
            f"{places} has no checkpoint of step {', '.join(map(str, missing))}, and the "
            f"{config.last - 1} every {config.every} steps before step {final} are averaged",
            fix="Lower average.last or average.every, or train the arm again",
        )
    workspace.progress.begin("average", len(steps), "checkpoints")
    decoder = load_decoder(folder / "model")
    weights = dict(decoder.named_parameters())
    sums = {name: tensor.detach().double() for name, tensor in weights.items()}
    for count, step in enumerate(steps, start=1):
        step_weights = _weights(places / f"step-{step:08d}")
        for name, total in sums.items():
            if name not in step_weights or step_weights[name].shape != total.shape:
                raise DataError(
                    f"the checkpoint of step {step} in {places} has not all of {name}",
                    fix="Weights of a run of several processes cannot be averaged",
                )
            total += step_weights[name]
        workspace.progress.advance(count)
    with torch.no_grad():
        for name, total in sums.items():
            weights[name].copy_(total / config.last)
    save_decoder(decoder, workspace.folder / "model")
    workspace.progress.end(f"steps {', '.join(map(str, steps))} and {final}")


def _weights(checkpoint: Path) -> dict[str, Tensor]:
    recorded = read_json(checkpoint / STATE)["sha256"]
    weights: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        try:
            if sha256_file(path) != recorded.get(path.name):
                raise DataError(f"{path} has changed since it was written")
            stored = load_file(path)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        weights |= {
            key.removeprefix(_PREFIX): tensor
            for key, tensor in stored.items()
            if key.startswith(_PREFIX)
        }
    return weights
