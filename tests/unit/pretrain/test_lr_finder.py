"""Which learning rates are tried, which is taken, and how a run comes to know it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.optim.schedules import WarmupStableDecay
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.lr_finder import (
    ChoiceConfig,
    ShortRun,
    apply_tuning,
    choose,
    next_rates,
    refine,
    tail_loss,
)
from stamm.pretrain.step_timing import lengths
from stamm.pretrain.step_timing_config import StepTimingConfig, TimedArm
from stamm.runs.job import Workspace


def trials(**losses: float) -> list[ShortRun]:
    return [ShortRun(rate=float(rate[1:]) / 1000, loss=loss) for rate, loss in losses.items()]


def test_beside_the_best_inside_the_grid() -> None:
    assert next_rates(trials(r1=3.0, r4=2.0, r16=2.5)) == (0.002, 0.008)


def test_beyond_an_edge_by_the_same_factor() -> None:
    assert next_rates(trials(r1=1.0, r2=2.0, r4=2.5)) == (0.0005, 0.00025)
    assert next_rates(trials(r1=3.0, r2=2.0, r4=1.5)) == (0.008, 0.016)


def test_rates_that_diverged_are_walls() -> None:
    assert next_rates(trials(r1=3.0, r2=2.0, r4=math.inf)) == (0.001414, 0.002828)
    assert next_rates(trials(r1=math.inf, r2=math.inf)) == (0.0005, 0.00025)


@pytest.mark.parametrize("optimum", [2e-5, 1.1e-3, 3e-3, 0.7])
def test_every_refinement_comes_nearer_to_the_optimum(optimum: float) -> None:
    """On a parabola in the logarithm of the rate, wherever its lowest point lies."""
    found = [ShortRun(rate=r, loss=math.log(r / optimum) ** 2) for r in (1e-3, 2e-3, 4e-3)]
    apart = [min(trial.loss for trial in found)]
    for _ in range(4):
        found += [ShortRun(rate=r, loss=math.log(r / optimum) ** 2) for r in next_rates(found)]
        apart.append(min(trial.loss for trial in found))
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 0.1 * apart[0] + 0.01
    assert len({trial.rate for trial in found}) == len(found)


def write_trial(folder: Path, rate: float, losses: list[float], kept: int = 10) -> Path:
    folder.mkdir(parents=True)
    config = PretrainConfig(sequences=160, schedule=WarmupStableDecay(peak=rate))
    plain = {"schema": 1, "kind": "pretrain", "config": to_plain(config)}
    (folder / "config.json").write_text(json.dumps(plain))
    lines = [
        {"step": step, "train/loss_nats": loss, "train/kept_tokens": kept + step}
        for step, loss in enumerate(losses, start=1)
        if math.isfinite(loss)  # the engine leaves such an update out, and its line
    ]
    (folder / "summary.json").write_text(json.dumps({"schema": 1, "steps": len(losses)}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def workspace(tmp_path: Path, folders: list[Path], **inputs: Path) -> Workspace:
    (tmp_path / "out").mkdir(exist_ok=True)
    named = {f"trial.{number}": folder for number, folder in enumerate(folders)}
    return Workspace(folder=tmp_path / "out", inputs={**named, **inputs})


def test_a_score_is_the_loss_of_the_last_tokens(tmp_path: Path) -> None:
    folder = write_trial(tmp_path / "a", 1e-3, [9.0] * 18 + [2.0, 5.0])
    # steps 19 and 20 of 20 learned 29 and 30 tokens
    assert tail_loss(folder, 0.1) == pytest.approx((2 * 29 + 5 * 30) / 59)
    assert tail_loss(write_trial(tmp_path / "b", 1e-3, [1.0, math.nan]), 0.5) == math.inf
    assert tail_loss(write_trial(tmp_path / "c", 1e-3, [math.nan, 1.0]), 0.5) == 1.0


def test_a_run_that_lost_its_way_at_the_end_has_no_score(tmp_path: Path) -> None:
    """It was the best by far until then: the steps that have lines must not speak for the others."""
    lost = write_trial(tmp_path / "lost", 8e-3, [0.1] * 15 + [math.nan] * 5)
    kept = write_trial(tmp_path / "kept", 1e-3, [2.0] * 20)
    assert tail_loss(lost, 0.1) == math.inf
    place = workspace(tmp_path, [lost, kept])
    choose(ChoiceConfig(arm="xielu", trials=2), place)
    assert json.loads((place.folder / "chosen.json").read_text())["rate"] == 1e-3


def test_the_lowest_is_chosen_and_all_are_recorded(tmp_path: Path) -> None:
    losses = {4e-3: [3.0], 1e-3: [2.5], 2e-3: [2.0], 8e-3: [math.nan]}
    folders = [write_trial(tmp_path / f"{rate}", rate, loss) for rate, loss in losses.items()]
    place = workspace(tmp_path, folders)
    choose(ChoiceConfig(arm="xielu", trials=4), place)
    chosen = json.loads((place.folder / "chosen.json").read_text())
    assert chosen["rate"] == 2e-3
    assert chosen["at_edge"] is False
    assert chosen["runs"] == {"final": {"peak": 2e-3}}
    assert [trial["rate"] for trial in chosen["trials"]] == [1e-3, 2e-3, 4e-3, 8e-3]
    assert chosen["trials"][-1]["loss_nats"] is None
    assert apply_tuning(PretrainConfig(tuned="final"), {"tuned": place.folder / "chosen.json"}) == (
        PretrainConfig(schedule=WarmupStableDecay(peak=2e-3))
    )


def test_an_edge_is_told(tmp_path: Path) -> None:
    folders = [write_trial(tmp_path / str(rate), rate, [rate]) for rate in (1e-3, 2e-3)]
    place = workspace(tmp_path, folders)
    choose(ChoiceConfig(arm="xielu", trials=2), place)
    assert json.loads((place.folder / "chosen.json").read_text())["at_edge"] is True


def test_where_no_rate_works_the_lowest_is_taken(tmp_path: Path) -> None:
    folders = [write_trial(tmp_path / str(rate), rate, [math.nan]) for rate in (2e-3, 1e-3)]
    place = workspace(tmp_path, folders)
    choose(ChoiceConfig(arm="xielu", trials=2), place)
    chosen = json.loads((place.folder / "chosen.json").read_text())
    assert (chosen["rate"], chosen["at_edge"]) == (1e-3, True)
    assert [trial["loss_nats"] for trial in chosen["trials"]] == [None, None]


def test_refined_runs_know_their_rate_and_their_measured_length(tmp_path: Path) -> None:
    folders = [
        write_trial(tmp_path / str(rate), rate, [loss])
        for rate, loss in ((1e-3, 3.0), (4e-3, 2.0), (16e-3, 2.5))
    ]
    pace = tmp_path / "step_timing.json"
    runs = {"xielu.final": {"sequences": 640}, "xielu.short": {"sequences": 160}}
    pace.write_text(json.dumps({"runs": runs}))
    place = workspace(tmp_path, folders, step_timing=pace)
    refine(ChoiceConfig(arm="xielu", trials=3), place)
    choose(ChoiceConfig(arm="xielu", trials=3), place)
    config = PretrainConfig(sequences=32, tuned="1")
    short = apply_tuning(config, {"tuned": place.folder / "refined.json"})
    assert (short.schedule.peak, short.sequences, short.tuned) == (0.008, 160, "")
    final = apply_tuning(PretrainConfig(tuned="final"), {"tuned": place.folder / "chosen.json"})
    assert (final.schedule.peak, final.sequences) == (4e-3, 640)


def test_a_run_that_is_told_nothing_says_so(tmp_path: Path) -> None:
    config = PretrainConfig()
    assert apply_tuning(config, {}) is config
    with pytest.raises(ConfigError, match="no earlier step wrote the tuned values"):
        apply_tuning(PretrainConfig(tuned="final"), {})
    path = tmp_path / "chosen.json"
    for text in ("{}", "[]", '{"runs": {"final": 3}}', '{"runs": {"final": {"peak": "x"}}}'):
        path.write_text(text)
        with pytest.raises(DataError, match="has no valid entry for the run 'final'"):
            apply_tuning(PretrainConfig(tuned="final"), {"tuned": path})


def paced(short: float = 0.25) -> StepTimingConfig:
    run = PretrainConfig(sequences=1600)
    arms = tuple(TimedArm(name=name, pretrain=run) for name in ("base", "slow", "fast"))
    return StepTimingConfig(arms=arms, baseline="base", short=short)


def test_the_same_time_in_whole_steps() -> None:
    found = lengths(paced(), {"base": 0.3, "slow": 0.7, "fast": 0.1})
    # 100 steps of 16 take 30 s: 42.86 of 0.7 s, 300 of 0.1 s; a quarter of each for short runs
    assert found["base.final"] == {"sequences": 100 * 16}
    assert found["slow.final"] == {"sequences": 42 * 16}
    assert found["fast.final"] == {"sequences": 300 * 16}
    assert found["slow.short"] == {"sequences": 10 * 16}
    assert found["fast.short"] == {"sequences": 75 * 16}


def test_nothing_takes_longer_than_the_baseline() -> None:
    draw = random.Random(3)
    for _ in range(200):
        seconds = {name: draw.uniform(0.01, 5.0) for name in ("base", "slow", "fast")}
        found = lengths(paced(), seconds)
        whole = 100 * seconds["base"]
        for name, each in seconds.items():
            steps = found[f"{name}.final"]["sequences"] // 16
            assert steps * each <= whole * (1 + 1e-6) or steps == 1
            assert (steps + 1) * each > whole * (1 - 1e-6)


def test_the_lowest_rate_within_the_margin_is_chosen(tmp_path: Path) -> None:
    losses = {1e-3: 2.10, 2e-3: 2.004, 4e-3: 2.0, 8e-3: 2.002}
    folders = [write_trial(tmp_path / str(r), r, [loss]) for r, loss in losses.items()]
    for margin, rate in ((0.0, 4e-3), (0.005, 2e-3), (0.2, 1e-3)):
        choose(ChoiceConfig(arm="a", trials=4, margin=margin), workspace(tmp_path, folders))
        found = json.loads((tmp_path / "out" / "chosen.json").read_text())
        assert found["rate"] == found["runs"]["final"]["peak"] == rate
        assert found["at_edge"] is False  # the best rate, 4e-3, is inside
    folders = [
        write_trial(tmp_path / f"up{r}", r, [loss]) for r, loss in ((1e-3, 2.003), (2e-3, 2.0))
    ]
    choose(ChoiceConfig(arm="a", trials=2, margin=0.005), workspace(tmp_path, folders))
    found = json.loads((tmp_path / "out" / "chosen.json").read_text())
    assert (found["rate"], found["at_edge"]) == (1e-3, True)  # the best is the highest tried


def test_a_single_rate_is_taken_as_it_is(tmp_path: Path) -> None:
    choose(ChoiceConfig(arm="a", trials=0, rate=2e-3), workspace(tmp_path, []))
    found = json.loads((tmp_path / "out" / "chosen.json").read_text())
    assert (found["rate"], found["at_edge"], found["trials"]) == (2e-3, False, [])
    assert found["runs"] == {"final": {"peak": 2e-3}}
    for settings in ({"trials": 0}, {"trials": 1}, {"trials": 2, "rate": 1e-3}):
        with pytest.raises(ConfigError):
            ChoiceConfig(arm="a", **settings)


def test_the_factor_of_the_shapes_is_chosen_with_the_rate(tmp_path: Path) -> None:
    """Refinements stay at the best factor, and the margin compares rates at that factor alone."""
    losses = {(1e-3, 1.0): 3.0, (2e-3, 1.0): 2.95, (1e-3, 30.0): 2.9, (2e-3, 30.0): 2.85}
    folders = []
    for number, ((rate, factor), loss) in enumerate(losses.items()):
        folder = write_trial(tmp_path / str(number), rate, [loss] * 10)
        path = folder / "config.json"
        plain = json.loads(path.read_text())
        plain["config"]["optimizer"]["shape_lr_factor"] = factor
        path.write_text(json.dumps(plain))
        folders.append(folder)
    place = workspace(tmp_path, folders)
    refine(ChoiceConfig(arm="xielu", trials=4, shaped=True), place)
    tried = json.loads((tmp_path / "out" / "refined.json").read_text())["runs"].values()
    assert [(run["peak"], run["shape_lr_factor"]) for run in tried] == [
        (0.004, 30.0),
        (0.008, 30.0),
    ]
    # At the factor 1 a rate of 2e-3 lies within the margin, too; at 30 it is 1e-3.
    choose(ChoiceConfig(arm="xielu", trials=4, shaped=True, margin=0.11), place)
    chosen = json.loads((tmp_path / "out" / "chosen.json").read_text())
    assert (chosen["rate"], chosen["shape_factor"], chosen["at_edge"]) == (1e-3, 30.0, True)
    assert chosen["factor_at_edge"]
    config = PretrainConfig(sequences=160, tuned="final", schedule=WarmupStableDecay(peak=9.0))
    tuned = apply_tuning(config, {"tuned": tmp_path / "out" / "chosen.json"})
    assert (tuned.schedule.peak, tuned.optimizer.shape_lr_factor) == (1e-3, 30.0)
