"""Replay of a release: every segment as it was published, then forged ones, and how far apart results are.

Every segment between checkpoints is trained again (`stamm verify --replay`). Then a copy of the release is forged,
one checkpoint at a time: one number of one tensor, of the weights or of the optimizer state, moves to its
neighbour in float32, and all hashes are made to fit. Last, segments are trained on other data: how far that moves
the weights shows what the tolerance for other machines must stay below.

Run      python -m bench.replay RELEASE --pack FOLDER [--honest N] [--forged 20] [--other 5] [--out FILE.jsonl]
Prints   segments that pass and fail, and the deviation of `stamm.release.replay`; with --out appends a JSON line
Needs    a release with checkpoints. Under ATEN_CPU_CAPABILITY=avx2, a release that was trained with AVX-512 shows
         what other kernels change; forged segments are left out there
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.engine.checkpoint_files import checkpoint_steps, order_names, read_state, write_state
from stamm.release import replay as replaying
from stamm.release.layout import RECORD, arm_folder
from stamm.release.records import ReleaseFile
from stamm.runs.manifest import environment

_ALL = 10**9


def main(words: list[str] | None = None) -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("release", type=Path)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument(
        "--honest", type=int, default=_ALL, help="segments to replay (default: all)"
    )
    parser.add_argument("--forged", type=int, default=20)
    parser.add_argument("--other", type=int, default=5, help="segments to train on other data")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    honest = replaying.replay(given.release, given.pack, given.honest, 1)
    failed = [segment for segment in honest.picked if segment.problem]
    line: dict[str, Any] = {
        "bench": "replay",
        "segments": len(honest.picked),
        "passed": len(honest.picked) - len(failed),
        "largest_deviation": max(segment.deviation for segment in honest.picked),
        "differences": list(honest.differences),
    }
    if not honest.differences:
        found = sum(_forged(given.release, given.pack, number) for number in range(given.forged))
        line |= {"forged": given.forged, "forged_found": found}
    line["other_data_deviations"] = _other_data(given.release, given.pack, given.other)
    facts = environment()
    line |= {name: facts[name] for name in ("cpu", "capability", "commit")}
    print(json.dumps(line))
    if given.out:
        with given.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _forged(release: Path, pack: Path, number: int) -> bool:
    """Whether the segment that ends at a forged checkpoint fails."""
    draw = random.Random(number)
    name = read_record(ReleaseFile, release / RECORD).arm
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(release / arm_folder(name), Path(folder) / "arm"))
        steps = [0, *checkpoint_steps(copy / "checkpoints")]
        at = draw.randrange(1, len(steps))
        _forge(copy / "checkpoints" / f"step-{steps[at]:08d}", draw)
        config = replaying.replayed_config(copy)
        with tempfile.TemporaryDirectory() as work:
            segment = replaying.replay_segment(
                config, copy, pack, steps[at - 1], steps[at], Path(work), same_bits=True
            )
            return bool(segment.problem)


def _forge(path: Path, draw: random.Random) -> None:
    (shard,) = path.glob("*.safetensors")
    with safe_open(shard, "pt") as file:
        described = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = draw.choice(sorted(n for n, t in tensors.items() if t.is_floating_point()))
    flat = tensors[name].view(-1)
    place = draw.randrange(len(flat))
    flat[place] = torch.nextafter(flat[place], torch.tensor(float("inf")))
    save_file(tensors, shard, described)
    order_names(shard)
    state = read_state(path)
    del state["schema"]
    write_state(path, state | {"sha256": {shard.name: sha256_file(shard)}})


def _other_data(release: Path, pack: Path, count: int) -> list[float]:
    """Deviations of up to `count` segments that were trained on sequences in another order."""
    arm = release / arm_folder(read_record(ReleaseFile, release / RECORD).arm)
    steps = checkpoint_steps(arm / "checkpoints")
    pairs = list(itertools.pairwise(steps))
    config = replaying.replayed_config(arm)
    deviations = []
    for first, last in pairs[:: max(len(pairs) // max(count, 1), 1)][:count]:
        with tempfile.TemporaryDirectory() as work:
            other = replace(config, seed=config.seed + 1)
            segment = replaying.replay_segment(
                other, arm, pack, first, last, Path(work), same_bits=False
            )
            deviations.append(segment.deviation)
    return deviations


if __name__ == "__main__":
    main()
