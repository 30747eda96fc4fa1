"""Replay of training from the checkpoints of a release."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bench import replay as bench
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import read_json, sha256_file, write_json
from stamm.base.processor import PORTABLE
from stamm.base.schema import write_record
from stamm.cli.main import main
from stamm.engine.checkpoint_files import order_names, read_state, write_state
from stamm.release import replay as replaying
from stamm.release.checksums import write_sums
from stamm.release.records import Problem, ReleaseFile
from stamm.release.replay import Replay, picked_segments, replay
from stamm.release.verification import verify
from stamm.runs.model_outputs import weights_sha256
from stamm.runs.records import ManifestFile
from tests.unit.trained_run import STEPS, corpus, trained_arm

Edit = Callable[[dict[str, torch.Tensor]], object]
SEGMENTS = STEPS // 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and what a replay reads of its release."""
    folder = tmp_path_factory.mktemp("replayed")
    corpus(folder / "run")
    arm = trained_arm(folder / "run")
    target = folder / "release" / "run" / "arms" / "toy"
    shutil.copytree(arm, target, ignore=shutil.ignore_patterns("log"))
    record = {
        "version": "0", "name": "toy", "arm": "toy", "formats": [],
        "model_sha256": weights_sha256(target / "model"), "tokenizer_sha256": "",
        "pack_sha256": sha256_file(folder / "run" / "pack" / "manifest.json"),
    }  # fmt: skip
    write_record(folder / "release" / "release.json", ReleaseFile, record)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """The same, to change."""
    shutil.copytree(made / "release", tmp_path / "release")
    (tmp_path / "pack").symlink_to(made / "run" / "pack")
    return tmp_path


def checkpoint(place: Path, step: int) -> Path:
    """The folder of a published checkpoint."""
    return place / "release/run/arms/toy/checkpoints" / f"step-{step:08d}"


def forge(path: Path, edit: Edit) -> None:
    """Change tensors of a checkpoint, with all hashes made to fit."""
    (shard,) = path.glob("*.safetensors")
    with safe_open(shard, "pt") as file:
        described = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    edit(tensors)
    save_file(tensors, shard, described)
    order_names(shard)
    state = read_state(path)
    del state["schema"]
    write_state(path, state | {"sha256": {shard.name: sha256_file(shard)}})


def one_ulp(name: str) -> Edit:
    """Moves the largest number of a tensor to its neighbour."""

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        flat = tensors[name].view(-1)
        place = flat.abs().argmax()
        flat[place] = torch.nextafter(flat[place], torch.tensor(float("inf")))

    return edit


def failed(result: Replay) -> list[int]:
    """Ends of the segments with a problem."""
    return [segment.last for segment in result.picked if segment.problem]


def test_every_honest_segment_has_the_published_bits(place: Path) -> None:
    result = replay(place / "release", place / "pack", SEGMENTS, 3)
    assert [(s.first, s.last) for s in result.picked] == [(n, n + 2) for n in range(0, STEPS, 2)]
    assert not failed(result) and not result.model_problem and not result.differences
    assert {segment.deviation for segment in result.picked} == {0.0}


def test_the_smallest_change_of_weights_optimizer_state_or_metrics_is_found(
    place: Path, made: Path
) -> None:
    """Both segments that the checkpoint ends and begins fail; those elsewhere do not."""
    name = "model/model.layers.0.mlp.up_proj.weight"
    forge(checkpoint(place, 6), one_ulp(name))
    result = replay(place / "release", place / "pack", SEGMENTS, 3)
    assert failed(result) == [6, 8]
    assert all("other bits" in s.problem for s in result.picked if s.problem)
    shutil.rmtree(place / "release")
    shutil.copytree(made / "release", place / "release")
    state = next(n for n in _names(checkpoint(place, 12)) if not n.startswith("model/"))
    forge(checkpoint(place, 12), one_ulp(state))
    path = place / "release/run/arms/toy/metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["train/loss_nats"] += 1e-9
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    result = replay(place / "release", place / "pack", SEGMENTS, 3)
    # Later checkpoints state the hash of other metrics and cannot be resumed from.
    assert failed(result) == [4, 6, 8, 10, 12]
    assert "train/loss_nats of step 3" in result.picked[1].problem


def _names(path: Path) -> list[str]:
    (shard,) = path.glob("*.safetensors")
    with safe_open(shard, "pt") as file:
        return sorted(file.keys())


def test_other_released_weights_are_found_without_training(place: Path) -> None:
    arm = place / "release/run/arms/toy"
    forge(checkpoint(place, STEPS), one_ulp("model/model.norm.weight"))
    assert "model.norm.weight is not that of the checkpoint" in replaying._model_problem(arm, STEPS)


def test_elsewhere_a_tolerance_is_stated_and_a_forged_segment_exceeds_it(place: Path) -> None:
    """A checkpoint trained on other data is as far away as the segment moved; rounding is not."""
    path = place / "release/run/arms/toy/manifest.json"
    manifest = read_json(path)
    manifest.pop("self_sha256")
    write_record(path, ManifestFile, manifest | {"cpu": "Another 9000"})
    assert not failed(replay(place / "release", place / "pack", 2, 1))
    forge(checkpoint(place, 6), one_ulp("model/model.layers.0.mlp.up_proj.weight"))
    result = replay(place / "release", place / "pack", SEGMENTS, 1)
    assert "processor Another 9000 there" in result.differences[0] + result.differences[-1]
    assert not failed(result), "a rounding error is within the tolerance"

    def other(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.startswith("model/") and tensor.ndim == 2:
                tensor *= 1.01

    forge(checkpoint(place, 6), other)
    result = replay(place / "release", place / "pack", SEGMENTS, 1)
    assert 6 in failed(result) and "more than 0.1%" in result.picked[2].problem


def test_a_machine_without_portable_bits_replays_within_the_tolerance(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier cannot change the setting of the run: its segments are compared as on any other machine."""
    config = place / "release/run/arms/toy/config.json"
    plain = read_json(config)
    plain.pop("self_sha256", None)
    engine = plain["config"]["engine"] | {
        "portable_bits": True,
        "compile": "off",
        "kernels": "stamm",
    }
    write_json(config, plain | {"config": plain["config"] | {"engine": engine}})
    monkeypatch.setattr("stamm.engine.portable_bits.cpu_capability", lambda: "DEFAULT")
    result = replay(place / "release", place / "pack", SEGMENTS, 1)
    assert result.differences == ("engine.portable_bits there, which needs a processor with AVX2",)
    assert not failed(result) and len(result.picked) == SEGMENTS


def test_the_benchmark_of_replay_runs(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(made / "release"), "--pack", str(made / "run/pack"), "--honest", "2"]
    bench.main([*given, "--forged", "1", "--other", "1"])
    line = json.loads(capsys.readouterr().out)
    assert (line["segments"], line["passed"], line["forged_found"]) == (2, 2, 1)
    assert line["other_data_deviations"][0] > 0.1


def test_one_forged_segment_of_n_is_picked_with_probability_k_of_n() -> None:
    """The picks of 4,000 seeds: each segment equally often, within 5 standard errors."""
    segments = list(itertools.pairwise(range(0, 42, 2)))
    seeds, k, n = 4000, 3, len(segments)
    counts = Counter(s for seed in range(seeds) for s in picked_segments(segments, k, seed))
    share = k / n
    error = (share * (1 - share) / seeds) ** 0.5
    assert set(counts) == set(segments)
    assert all(abs(count / seeds - share) < 5 * error for count in counts.values())
    assert picked_segments(segments, 99, 1) == segments


def test_what_cannot_be_replayed_is_refused(place: Path) -> None:
    release = place / "release"
    with pytest.raises(DataError, match="does not hold the packed corpus of the release"):
        replay(release, place, 1, 1)
    config = release / "run/arms/toy/config.json"
    plain = read_json(config)
    plain.pop("self_sha256", None)
    write_json(config, plain | {"config": plain["config"] | {"objective": "evil.py:Objective"}})
    with pytest.raises(ConfigError, match="names code"):
        replay(release, place / "pack", 1, 1)
    write_json(config, plain | {"config": plain["config"] | {"rule": "drop"}})
    with pytest.raises(RunError, match="whole packed corpus"):
        replay(release, place / "pack", 1, 1)
    write_json(config, plain)
    shutil.rmtree(release / "run/arms/toy/checkpoints")
    with pytest.raises(RunError, match="no checkpoints to replay between"):
        replay(release, place / "pack", 1, 1)
    with pytest.raises(ConfigError, match="no segment is replayed"):
        verify(release, seed=3)


def test_a_release_with_portable_bits_sets_the_environment_before_its_files_are_checked(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def portable(*_: object) -> Iterator[Any]:
        return iter([Problem(file="environment", what=os.environ["MKL_CBWR"])])

    for name in PORTABLE:
        monkeypatch.setenv(name, "other")
    monkeypatch.setattr("stamm.release.verify.verify", portable)
    config = place / "release/run/arms/toy/config.json"
    plain = read_json(config)
    engine = plain["config"]["engine"] | {"portable_bits": True}
    asking = json.dumps({"config": plain["config"] | {"engine": engine}})
    for text in (config.read_text(), "{", "[" * 9000, '{"config": []}'):
        config.write_text(text)
        assert verify(place / "release", replay=1).problems[0].what == "other"
    config.write_text(asking)
    assert verify(place / "release").problems[0].what == "other"
    assert verify(place / "release", replay=1).problems[0].what == PORTABLE["MKL_CBWR"]
    monkeypatch.setenv("MKL_CBWR", "other")
    config.unlink()
    os.mkfifo(config)
    assert verify(place / "release", replay=1).problems[0].what == "other"


def test_the_verb_replays_what_the_seed_picks(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release: Any = place / "release"
    monkeypatch.setattr("stamm.release.verify.verify", lambda *_: iter(()))
    write_sums(release)
    given = ["verify", str(release), "--replay", "2", "--seed", "7", "--pack", str(place / "pack")]
    assert main(given) == 0
    out = capsys.readouterr().out
    assert f"2 of {SEGMENTS} segments, picked by seed 7" in out and out.count("same bits") == 2
    (first, last), _ = picked_segments([(n, n + 2) for n in range(0, STEPS, 2)], 2, 7)
    forge(checkpoint(place, last), one_ulp("model/model.norm.weight"))
    write_sums(release)
    assert main([*given, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"][0]["file"].endswith(f"step-{last:08d}")
    assert (found["replay"]["seed"], found["replay"]["picked"][0]["first"]) == (7, first)
