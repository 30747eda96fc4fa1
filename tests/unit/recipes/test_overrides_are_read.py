"""A setting that no step of a run reads is refused, whichever recipe it is set for."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.recipes.execute import check_overrides, steps_of
from stamm.recipes.resolve import resolve
from tests.unit.untrained_run import untrained_run

PROMPTS = "package:align_prompts.jsonl.zst"
CHATS = "package:align_chats.jsonl.zst"
OFFLINE = (f"data={CHATS}",)
SAMPLED = (f"prompts={PROMPTS}", "reward=Length")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An arm of a run with an untrained model."""
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    return str(root)


def check(root: Path, recipe: str, *overrides: str) -> None:
    """What a new run does before its first step."""
    resolved = resolve(recipe, overrides)
    check_overrides(resolved, root, steps_of(resolved.config, resolved.name, root))


@pytest.mark.parametrize(
    ("recipe", "given", "unread"),
    [
        ("align.dpo", OFFLINE, "n=20"),
        ("align.dpo", OFFLINE, "sampling.temperature=0.5"),
        ("align.dpo", OFFLINE, "select.candidates=3"),
        ("align.dpo", OFFLINE, "prepare.context=64"),
        ("align.dpo", OFFLINE, "prepare.kind=chat"),
        ("align.dpo", OFFLINE, "test_n=4"),
        ("align.dpo", OFFLINE, "gold=Stopped"),
        ("align.dpo", OFFLINE, "answers.draws=500"),
        ("align.dpo", OFFLINE, "reference.mismatched=true"),
        ("align.simpo", OFFLINE, "reference.batch_tokens=64"),
        ("align.qrpo", SAMPLED, "answers.draws=500"),
        ("align.sft", OFFLINE, "prepare.data=other.jsonl"),
        ("align.reward", OFFLINE, "prepare.kind=chat"),
        ("adapt.activation", (), "peak=0.5"),
        ("adapt.activation", (), "warmup_share=0.5"),
        ("adapt.activation", (), "control=false"),
    ],
)
def test_what_no_step_reads_is_refused(
    model: str, tmp_path: Path, recipe: str, given: tuple[str, ...], unread: str
) -> None:
    check(tmp_path, recipe, f"run={model}", *given)
    with pytest.raises(ConfigError, match=f"no step of this run reads {unread.split('=')[0]}"):
        check(tmp_path, recipe, f"run={model}", unread, *given)


@pytest.mark.parametrize(
    ("recipe", "unread"),
    [
        ("demo", "pretrain.model.ffn.activation=relu2"),
        ("demo", "pretrain.model.ffn.width=64"),
        ("demo", "arms.0.overrides.length=0.5"),
        ("compare.smoke", "pretrain.seed=5"),
        ("compare.smoke", "arms.1.ffn.width=64"),
    ],
)
def test_settings_that_arms_replace_are_refused(tmp_path: Path, recipe: str, unread: str) -> None:
    with pytest.raises(ConfigError, match=f"no step of this run reads {unread.split('=')[0]}"):
        check(tmp_path, recipe, unread)


@pytest.mark.parametrize("recipe", ["align.sft", "align.dpo", "align.kto", "align.reward"])
@pytest.mark.parametrize(
    "unknown",
    [
        "objective=mine.py:Mine", "z_loss=10", "context=64", "model.num_layers=7", "masks=report",
        "model.ffn.activation=relu2", "goldfish=none", "begin=none", "pack=pack", "tuned=x",
    ],
)  # fmt: skip
def test_settings_of_pretraining_are_unknown_in_fine_tuning(recipe: str, unknown: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'train\."):
        resolve(recipe, [f"train.{unknown}"])


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("align.dpo", ("train.loss.beta=0.5", "train.engine.threads=1", "prepare.held_out=0.1")),
        (
            "align.dpo",
            ("train.epochs=1.0", "train.lora=Lora", "train.lora.rank=4", "evaluate=none"),
        ),
        ("align.kto", ("train.seed=28", "reward=none", "audit=none")),
    ],
)
def test_what_is_read_or_repeats_a_default_is_accepted(
    model: str, tmp_path: Path, recipe: str, given: tuple[str, ...]
) -> None:
    check(tmp_path, recipe, f"run={model}", *OFFLINE, *given)


def test_a_value_with_the_effect_of_the_default_is_accepted(tmp_path: Path) -> None:
    check(tmp_path, "compare.smoke", "pretrain.sequences=49", "matched.tolerance=0.01")
    check(tmp_path, "demo", "tolerance=0.01", "execution.workers=1")
