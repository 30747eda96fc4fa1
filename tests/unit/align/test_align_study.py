"""`bench.align_study` on a tiny world, and the tables of its page against the committed results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import zstandard

from bench import align_study_plan
from bench.align_study import perform, read_lines
from bench.align_study_page import TABLES, blocks, page
from bench.align_study_plan import SETTINGS, chosen, runs_of
from bench.align_study_run import Run, ideal_length, objective, performed, rated
from bench.align_study_world import Reward, Sizes, World, build_world, read, sequences

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "bench" / "results" / "align_study.jsonl"
LOG = ROOT / "docs" / "log" / "2026-11-23-alignment-study.md"
SIZES = Sizes(
    vocab_size=336, d_model=16, layers=1, longest_prompt=16, longest_answer=8, chats=40,
    start_steps=6, start_rows=8, train=8, validation=4, test=6, drawn=4, slices=10, references=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("study")
    words = ("find", "a", "bus", "book", "one", "now", "yes", "no")
    turns = [
        (f"{one} {two} {three}", f"{three} {one}")
        for one in words for two in words for three in words
    ]  # fmt: skip
    lines = [
        json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]})
        for q, a in turns
    ]  # fmt: skip
    file = folder / "dialogues.jsonl.zst"
    file.write_bytes(zstandard.ZstdCompressor().compress("\n".join(lines).encode()))
    return build_world(SIZES, file, folder / "world")


def test_a_world_is_read_again_as_it_was_built(world: World) -> None:
    own = world.pools["own"]
    assert own.tokens.shape == (8, 40, 8)
    assert {len(world.prompts[name]) for name in world.prompts} == {8, 4, 6}
    again, log_ratio, kl = read(world.start, world.prompts["train"], own.tokens, own.length)
    assert torch.allclose(again.reference, own.reference, atol=1e-4)
    assert not log_ratio.any() and float(kl.abs().max()) < 1e-5
    tokens, completion = sequences(world.prompts["train"], own.tokens, own.length)
    with torch.no_grad():
        logits = world.start(tokens[:1, :-1]).log_softmax(-1)[0]
    places = (completion[0] == 0).nonzero()[:, 0]
    alone = sum(float(logits[place, tokens[0, place + 1]]) for place in places)
    assert float(own.reference[0, 0]) == pytest.approx(alone, abs=1e-4)


def test_gold_does_not_depend_on_length_and_the_mixture_does(world: World) -> None:
    reward = Reward(world, seed=0)
    known = [world.pools[name] for name in ("rate", "rate_test")]
    gold = torch.cat([reward.gold(x).flatten() for x in known])
    length = torch.cat([x.length.flatten() for x in known]).double()
    for each in length.unique():
        assert float(gold[length == each].mean()) == pytest.approx(0, abs=1e-9)
    mixed = torch.cat([reward.mixed(x, 0.6).flatten() for x in known])
    assert float(torch.corrcoef(torch.stack([mixed, length]))[0, 1]) == pytest.approx(0.6, abs=0.1)


def test_the_ideal_length_follows_a_reward_that_is_the_length() -> None:
    length = torch.arange(1.0, 33.0).repeat(3, 1).double()
    assert ideal_length(length, length, 0.5).tolist() == pytest.approx([16.5] * 3)
    assert float(ideal_length(length, length, 0.9)[0]) == pytest.approx(0.5 + 32 * 0.9, rel=1e-6)
    other = torch.randn(3, 32, generator=torch.Generator().manual_seed(1)).double()
    assert float(ideal_length(torch.full_like(length, 4.0), other, 0.8)[0]) == pytest.approx(4.0)


def test_every_arm_trains_from_the_same_start_and_is_measured(world: World) -> None:
    reward = Reward(world, seed=0)
    for arm in (*SETTINGS, "dpo, smoothed"):
        run = Run(arm=arm, rate=1e-3, beta=0.5, seed=0, noise=0.1, references=4, steps=1)
        line = performed(world, reward, run)
        assert line["loss"] > 0 and line["kl"] >= 0 and 0 <= line["quantile"] <= 1
        assert len(line["blocks"]["quantile"]) == 6
        data = rated(world, reward, run)
        assert data.reward.equal(rated(world, reward, dataclasses.replace(run, arm="qrpo")).reward)
        loss = objective(run, data)(data.answers.reference[:4], torch.arange(4))
        assert torch.isfinite(loss)


def test_the_noise_turns_round_the_share_of_pairs(world: World) -> None:
    reward = Reward(world, seed=0)
    run = Run(arm="dpo", rate=1e-3, beta=0.5, seed=0, answers=40)
    clean = rated(world, reward, run).reward
    noisy = rated(world, reward, dataclasses.replace(run, noise=0.4)).reward
    apart = clean[:, ::2] != clean[:, 1::2]
    turned = (clean[:, ::2] > clean[:, 1::2]) != (noisy[:, ::2] > noisy[:, 1::2])
    assert float(turned[apart].double().mean()) == pytest.approx(0.4, abs=0.12)


def test_a_file_of_results_is_continued(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(align_study_plan, "SETTINGS", {"qrpo": ((1e-4, 0.1), (3e-4, 0.1))})
    out = tmp_path / "lines.jsonl"
    perform(world, ["tuning"], out, until="")
    first = read_lines(out)
    assert len(first) == 3
    out.write_text("".join(json.dumps(line) + "\n" for line in first[:-1]))
    perform(world, ["tuning"], out, until="")
    again = [{**line, "cpu_seconds": 0} for line in read_lines(out)]
    assert again == [{**line, "cpu_seconds": 0} for line in first]
    assert chosen(first)["qrpo"][1] == 0.1
    assert len({run.key for run in runs_of("arms", first)}) == 8


def test_the_log_shows_the_committed_results() -> None:
    lines = read_lines(RESULTS)
    tables = page(lines).split("\n\n")
    assert len(tables) >= len(TABLES)
    for table in tables:
        if table.startswith("|"):
            assert table in LOG.read_text()
    for line in lines:
        if "blocks" in line and "split" in line and line["split"] == "test":
            assert float(blocks([line], "kl").mean()) == pytest.approx(line["kl"], abs=1e-3)
