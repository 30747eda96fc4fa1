"""Replay of training: segments between neighbouring checkpoints of a release are trained again.

The verifier gives the seed that picks them, after the release is published: of N segments of which one is
forged, k picked ones contain it with probability k / N.

On a machine that computes as that of the run did (with `engine.portable_bits`, whatever its processor), each
file of the checkpoint and each metric must have the same bits. Elsewhere kernels round differently, and training
amplifies it. The distance between both results is then compared with how far the segment moved the weights:

  deviation = |replayed - published| / |published - weights at the start of the segment|

in the Euclidean norm over all parameters. A forged change that is smaller than the tolerance of what the segment
learned is not found there.

Measured  bench/replay.py: AVX2 after AVX-512 deviates by at most 5.3e-7 over 25 steps in float32, other data by
          0.28 or more. Precisions below float32 were not measured
Checked   tests/unit/release/test_replay.py
"""

from __future__ import annotations

import hashlib
import itertools
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stamm.base.config import from_plain
from stamm.base.errors import DataError, RunError, StammError
from stamm.base.files import read_json, sha256_file
from stamm.base.schema import read_record
from stamm.base.user_code import check_stored_code
from stamm.engine.checkpoint_files import checkpoint_folder, checkpoint_steps, read_state
from stamm.engine.portable_bits import why_not_portable
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.job import RunBranch, train
from stamm.pretrain.machine import machine_differences
from stamm.release.layout import RECORD, RUN, arm_folder
from stamm.release.records import ReleaseFile
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics

TOLERANCE = {"float32": 1e-3}
"""Largest deviation of a segment on a machine that computes with other kernels, by precision; of a shorter one:"""
_SHORT = 0.05
_MODEL = "model/"


@dataclass(frozen=True, kw_only=True)
class ReplayedSegment:
    """Training from the checkpoint of step `first` to that of step `last`, repeated.

    deviation   of the weights, as the module defines it; 0 for the same bits
    problem     what is wrong with the published checkpoint; "" for nothing
    """

    first: int
    last: int
    deviation: float
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Replay of some segments of a release.

    picked        in the order of their steps
    segments      number of all segments that can be replayed
    differences   of this machine and that of the run that may change bits; (): bits were compared
    model_problem   why the released weights are not those of the last checkpoint; "" when they are
    """

    arm: str
    model_problem: str
    picked: tuple[ReplayedSegment, ...]
    segments: int
    differences: tuple[str, ...]


def replay(release: Path, pack: Path, count: int, seed: int) -> Replay:
    """Train `count` segments of the run in a release again, and compare their checkpoints.

    pack     packed corpus of the run, as its manifest in the release describes it
    Raises   RunError when the release has no checkpoints or the run cannot be replayed; DataError for
             another packed corpus; ConfigError for code of the user's that the configuration names
    """
    record = read_record(ReleaseFile, release / RECORD)
    arm = release / arm_folder(record.arm)
    manifest = pack / "manifest.json"
    known_pack = manifest.is_file() and record.pack_sha256 == sha256_file(manifest)
    if not known_pack or not any(pack.glob("train-*.bin")):
        raise DataError(
            f"{pack} does not hold the packed corpus of the release, whose manifest is"
            f" {RUN}/pack/manifest.json",
            fix="Name the folder pack/ of the run with --pack",
        )
    config = replayed_config(arm)
    steps = checkpoint_steps(arm / "checkpoints")
    known = [0, *steps] if config.begin is None else steps
    segments = list(itertools.pairwise(dict.fromkeys(known)))
    if not segments:
        raise RunError(
            f"{release} has no checkpoints to replay between",
            fix="Release with checkpoints=true a run with engine.keep_every=N",
        )
    if config.engine.portable_bits and (reason := why_not_portable()) is not None:
        differences: tuple[str, ...] = (f"engine.portable_bits there, which {reason}",)
        config = replace(config, engine=replace(config.engine, portable_bits=False))
    else:
        differences = machine_differences(arm, config)
    picked = []
    for first, last in picked_segments(segments, count, seed):
        with tempfile.TemporaryDirectory() as folder:
            picked.append(
                replay_segment(
                    config, arm, pack, first, last, Path(folder), same_bits=not differences
                )
            )
    return Replay(
        arm=record.arm,
        model_problem=_model_problem(arm, steps[-1]),
        picked=tuple(picked),
        segments=len(segments),
        differences=differences,
    )


def picked_segments(
    segments: list[tuple[int, int]], count: int, seed: int
) -> list[tuple[int, int]]:
    """`count` of the segments, each set of them equally likely over the seeds; in their order."""

    def draw(segment: tuple[int, int]) -> str:
        return hashlib.sha256(f"replay {seed} {segment[0]} {segment[1]}".encode()).hexdigest()

    return sorted(sorted(segments, key=draw)[:count])


def _model_problem(arm: Path, last: int) -> str:
    """Why the released weights are not those of the last checkpoint; "" when they are."""
    released = dict(load_decoder(arm / "model").named_parameters())
    stored = {k: v for k, v in _weights(arm, last).items() if not k.endswith(".guide")}
    if stored.keys() != released.keys():
        return f"does not have the tensors of the checkpoint of step {last}"
    different = [name for name, tensor in released.items() if not tensor.equal(stored[name])]
    return f"{different[0]} is not that of the checkpoint of step {last}" if different else ""


def replayed_config(arm: Path) -> PretrainConfig:
    """The configuration of the run in `arm`, without what changes no weight.

    Raises   RunError for other kinds of runs; ConfigError for code of the user's
    """
    path = arm / "config.json"
    plain: Any = read_json(path)
    if plain.get("kind") != "pretrain" or "rule" in plain.get("config", {}):
        raise RunError(
            f"{path} is not that of a pretraining run on its whole packed corpus",
            fix="Such a run is repeated from the runs that it was made from",
        )
    config = from_plain(PretrainConfig, plain["config"], str(path))
    check_stored_code(config, str(path), (), "replay it as a run of your own")
    # Neither changes a weight.
    return replace(config, trackers=(), evaluate=None, tuned="")


def replay_segment(
    config: PretrainConfig,
    arm: Path,
    pack: Path,
    first: int,
    last: int,
    folder: Path,
    *,
    same_bits: bool,
) -> ReplayedSegment:
    """The segment, trained again in `folder`; what makes it differ is a problem, not an error."""
    deviation, problem = math.inf, ""
    tolerance = TOLERANCE.get(config.engine.precision, _SHORT)
    try:
        sha256 = _published_hashes(checkpoint_folder(arm / "checkpoints", last))
        train(
            config,
            Workspace(folder=folder, inputs={"pack": pack}),
            RunBranch(source=arm, step=first, until=last),
        )
        deviation = _deviation(config, arm, first, last, folder)
        own = read_state(checkpoint_folder(folder / "checkpoints", last))
        if same_bits and own["sha256"] != sha256:
            problem = f"is not what training from step {first} gives: other bits"
        elif same_bits and (metric := _different_metric(arm, folder, first)):
            problem = f"has other metrics than training gives: {metric}"
        elif not deviation <= tolerance:
            share = f"{deviation:.2%} of what the segment changes, more than {tolerance:.1%}"
            problem = f"is not what training from step {first} gives: {share}"
    except StammError as error:
        problem = error.what
    return ReplayedSegment(first=first, last=last, deviation=deviation, problem=problem)


def _published_hashes(path: Path) -> dict[str, str]:
    """The SHA-256 of the file of a published checkpoint, by name.

    Raises   DataError when it has another one, or several processes wrote the checkpoint
    """
    hashes: dict[str, str] = read_state(path)["sha256"]
    if len(hashes) != 1:
        raise DataError(f"{path} was written by several processes, which are not replayed")
    for name, sha256 in hashes.items():
        if not (path / name).is_file() or sha256_file(path / name) != sha256:
            raise DataError(f"{path / name} has changed since it was written")
    return hashes


def _deviation(config: PretrainConfig, arm: Path, first: int, last: int, folder: Path) -> float:
    published, own = _weights(arm, last), _weights(folder, last)
    before: Mapping[str, Tensor] = (
        _weights(arm, first) if first else build_decoder(config.model, config.seed).state_dict()
    )
    names = published.keys() & own.keys() & before.keys()
    if published.keys() != own.keys() or not names:
        raise DataError("the published checkpoint has other tensors than training gives")
    apart = sum(float((own[n].double() - published[n]).square().sum()) for n in names)
    moved = sum(float((published[n] - before[n].double()).square().sum()) for n in names)
    return math.sqrt(apart / moved) if moved else (0.0 if not apart else math.inf)


def _different_metric(arm: Path, folder: Path, first: int) -> str:
    """The first metric behind step `first` that training gives otherwise; "" for none."""
    published = {line["step"]: line for line in read_metrics(arm / "metrics.jsonl")}
    for line in read_metrics(folder / "metrics.jsonl"):
        for name, value in line.items() if line["step"] > first else ():
            if (there := published.get(line["step"], {}).get(name)) != value:
                return f"{name} of step {line['step']} is {value}, and {there} is published"
    return ""


def _weights(arm: Path, step: int) -> dict[str, Tensor]:
    """The parameters in a checkpoint by name."""
    path = checkpoint_folder(arm / "checkpoints", step)
    try:
        return {
            name.removeprefix(_MODEL): tensor
            for shard in sorted(path.glob("*.safetensors"))
            for name, tensor in load_file(shard).items()
            if name.startswith(_MODEL)
        }
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
