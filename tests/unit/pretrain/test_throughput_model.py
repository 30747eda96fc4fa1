"""A run's time by the speed of finished ones: exact for a machine that does what the model of it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.engine.estimate import parse_devices, traffic
from stamm.models.config import PlainFFN
from stamm.models.flops import training_flops
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import plan, setting_of
from stamm.pretrain.throughput_model import CPU_BALANCE, measured_throughput

BEGIN = 20.0


def _config(width: int, layers: int, batch: int = 8, **more: Any) -> PretrainConfig:
    model = replace(
        PretrainConfig().model, d_model=width, num_layers=layers, ffn=PlainFFN(width=3 * width)
    )
    return PretrainConfig(
        model=model, context=256, batch=(BatchStage(size=batch),), sequences=50 * batch, **more
    )


def _step(config: PretrainConfig, flops_per_s: float, bytes_per_s: float) -> float:
    """Seconds of a step on a machine of these rates."""
    size = config.batch[0].size
    per_token, per_update = traffic(
        config.model, config.optimizer, config.context, "float32", setting_of(config, None)[0]
    )
    moved = size * config.context * per_token + per_update
    return size * training_flops(config.model, config.context) / flops_per_s + moved / bytes_per_s


def _finished(folder: Path, config: PretrainConfig, step: float, **timing: Any) -> Path:
    tokens = config.batch[0].size * config.context
    steps = config.batches(config.total_sequences()).num_steps
    seconds = [step + BEGIN, *[step] * (steps - 1)]
    lines = [
        {"step": n, "speed/seconds": s, "speed/tokens_per_s": tokens / s}
        for n, s in enumerate(seconds, 1)
    ]
    (folder / "log").mkdir(parents=True)
    (folder / "log" / "speed.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    told = {
        "device": "cpu",
        "devices": {"A processor": 1},
        "processes": {"data": 1},
        "tokens_per_s_median": tokens / step,
        "seconds": sum(seconds),
    }
    (folder / "log" / "timing.json").write_text(json.dumps(told | timing))
    (folder / "config.json").write_text(json.dumps({"config": to_plain(config)}))
    return folder


def _planned(config: PretrainConfig, *runs: Path, devices: str | None = None) -> float:
    there = parse_devices(devices) if devices else None
    time = plan(config, there, pace=measured_throughput(runs, "", config, there))["time"]
    seconds: float = time["seconds"]
    return seconds


def test_a_run_takes_as_long_as_it_took_and_its_beginning_counts_once(tmp_path: Path) -> None:
    config = _config(128, 4)
    run = _finished(tmp_path / "run", config, 0.7)
    assert _planned(config, run) == pytest.approx(BEGIN + 50 * 0.7)
    longer = replace(config, sequences=500 * 8)
    assert _planned(longer, run) == pytest.approx(BEGIN + 500 * 0.7)


def test_two_sizes_tell_products_from_memory(tmp_path: Path) -> None:
    rates = (80e9, 6e9)
    known = [_config(128, 4), _config(512, 8)]
    runs = [_finished(tmp_path / str(n), c, _step(c, *rates)) for n, c in enumerate(known)]
    for asked in (_config(64, 2), _config(256, 6), _config(1024, 12), _config(256, 6, batch=1)):
        expected = BEGIN + 50 * _step(asked, *rates)
        assert _planned(asked, *runs) == pytest.approx(expected, rel=1e-9)


def test_one_size_is_carried_to_others_by_what_devices_are_like(tmp_path: Path) -> None:
    """Exact where a byte takes as long as so many products; by products alone it would be far off."""
    rates = (80e9, 80e9 / CPU_BALANCE)
    small, large = _config(64, 2, batch=1), _config(512, 8)
    run = _finished(tmp_path / "run", small, _step(small, *rates))
    expected = BEGIN + 50 * _step(large, *rates)
    assert _planned(large, run) == pytest.approx(expected, rel=1e-9)
    work = [training_flops(c.model, c.context) * c.batch[0].size for c in (small, large)]
    by_products = BEGIN + 50 * _step(small, *rates) * work[1] / work[0]
    assert by_products > 1.3 * expected


def test_runs_that_say_nothing_apart_are_read_as_one(tmp_path: Path) -> None:
    """The same size twice, and two whose speeds no machine of this kind has."""
    config = _config(128, 4)
    runs = [_finished(tmp_path / str(n), config, step) for n, step in enumerate((0.5, 0.5))]
    assert _planned(config, *runs) == pytest.approx(BEGIN + 50 * 0.5)
    large = _config(512, 8)
    odd = _finished(tmp_path / "odd", large, 0.1)
    assert 0 < _planned(config, runs[0], odd) < BEGIN + 50 * 1.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("threads", 1),
        ("compile", "off"),
        ("precision", "bfloat16"),
        ("activation_checkpointing", "layers"),
    ],
)
def test_a_speed_is_that_of_the_same_settings(key: str, value: Any, tmp_path: Path) -> None:
    config = _config(128, 4)
    run = _finished(tmp_path / "run", config, 0.5)
    engine = replace(EngineConfig(), **{key: value})
    with pytest.raises(
        ConfigError, match=rf"engine\.{key} = .*, and this is planned with {value!r}"
    ):
        _planned(replace(config, engine=engine), run)


def test_a_gpu_s_speed_is_not_another_s(tmp_path: Path) -> None:
    config = _config(128, 4)
    on = {"device": "cuda:0", "devices": {"NVIDIA GH200 480GB": 1}}
    run = _finished(tmp_path / "run", config, 0.5, **on)
    assert _planned(config, run, devices="1xGH200") == pytest.approx(BEGIN + 50 * 0.5)
    with pytest.raises(ConfigError, match=r"trained on NVIDIA GH200 480GB, .* 1xH200"):
        _planned(config, run, devices="1xH200")
    unknown = _finished(tmp_path / "u", config, 0.5, **{**on, "devices": {"Some GPU": 1}})
    assert _planned(config, unknown, devices="1xH200") == pytest.approx(BEGIN + 50 * 0.5)
