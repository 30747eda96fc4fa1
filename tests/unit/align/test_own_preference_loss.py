"""A preference loss of the user's own: the built-in ones are written against the same interface."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.align.losses import dpo, kto, qrpo
from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.kto import KTO
from stamm.align.losses.preference_loss import LossInputs, OwnPreferenceLoss
from stamm.align.losses.qrpo import QRPO
from stamm.align.training.config import Loss, loss_name, needs_reference
from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.recipes.align import PreferenceRecipe, on_answers
from tests.unit.align.finetuned import fine_tune, metrics, pairs, rated
from tests.unit.tutorials import tutorial_code

HINGE = tutorial_code("preference_loss")


def moved(tmp_path: Path, module: Any) -> Path:
    """The source of a built-in loss as a user's file, unchanged."""
    file = tmp_path / "mine.py"
    file.write_text(inspect.getsource(module))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "loss", "options", "rows"),
    [
        (kto, KTO(beta=0.2), ("beta=0.2",), pairs()),
        (qrpo, QRPO(), (), rated()),
        (dpo, SimPO(gamma=0.5), ("gamma=0.5",), pairs()),
        (dpo, DPO(form="ipo"), ("form=ipo",), pairs()),
        (dpo, REBEL(), (), pairs()),
    ],
)
def test_a_built_in_loss_in_a_file_of_the_users_trains_to_the_same_bits(
    tmp_path: Path, module: Any, loss: Loss, options: tuple[str, ...], rows: list[dict[str, Any]]
) -> None:
    name = type(loss).__name__
    own = OwnPreferenceLoss(reference=f"{moved(tmp_path, module)}:{name}", options=options)
    assert (loss_name(own), needs_reference(own)) == (name, needs_reference(loss))
    ours = fine_tune(tmp_path / "ours", rows, loss)
    theirs = fine_tune(tmp_path / "theirs", rows, own)
    assert metrics(theirs) == metrics(ours)
    # What the data decided is recorded; the rest is in the file, whose hash is.
    chosen = {"QRPO": ["partition='exact'", "ties='le'"]}.get(name, [])
    stored = read_json(theirs / "config.json")["config"]["loss"]
    assert stored["options"] == [*options, *chosen]


@pytest.mark.slow
def test_a_loss_of_ones_own_trains(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HINGE)
    own = OwnPreferenceLoss(reference=f"{file}:Hinge", options=("margin=2.0",))
    lines = metrics(fine_tune(tmp_path, pairs(), own, epochs=8.0))
    assert lines[0]["train/loss"] == pytest.approx(2.0, abs=1e-3)
    assert lines[-1]["train/loss"] < 1.0 and lines[-1]["reward/accuracy"] == 1.0


def test_it_is_named_on_the_command_line_and_its_needs_reach_the_recipe(tmp_path: Path) -> None:
    base = PreferenceRecipe(train=on_answers(DPO()), run="r")
    reference = f"{moved(tmp_path, kto)}:KTO"
    changed = override(base, [f"train.loss={reference}", "train.loss.options=beta=0.3"])
    assert changed.train.loss == OwnPreferenceLoss(reference=reference, options=("beta=0.3",))
    assert from_plain(PreferenceRecipe, to_plain(changed)) == changed
    assert changed.name == "kto" and changed._reference.mismatched
    assert changed._prepare(64).needs == "labels"
    assert changed.train.user_code() == {"loss": reference}


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("x = 1", (), "has no 'Mine'"),
        ("class Mine: pass", (), "is not a subclass of PreferenceLoss"),
        (
            HINGE.replace("Hinge", "Mine"),
            ("margn=1",),
            "has no field 'margn'. Did you mean 'margin'",
        ),
        ("raise OSError(1)", (), "mine.py"),
    ],
)
def test_what_is_no_loss_is_one_line(
    tmp_path: Path, text: str, options: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    own = OwnPreferenceLoss(reference=f"{tmp_path}/mine.py:Mine", options=options)
    with pytest.raises(ConfigError, match=problem):
        own.loaded()


WRONG = {
    "a sum": ("(self.margin - difference).clamp(min=0).sum()", r"the loss has the shape \(\)"),
    "a value for each answer": ("score * 1.0", r"the loss has the shape \(4,\), and there are 2"),
    "a fault": ("difference.no_such()", r"AttributeError: .*no_such.* line \d+"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_result_and_a_fault_are_one_line(tmp_path: Path, case: str) -> None:
    text, message = WRONG[case]
    file = tmp_path / "mine.py"
    file.write_text(HINGE.replace("(self.margin - difference).clamp(min=0)", text))
    with pytest.raises(ConfigError) as error:
        fine_tune(tmp_path, pairs(), OwnPreferenceLoss(reference=f"{file}:Hinge"))
    assert re.search(message, error.value.line()), error.value.line()


def test_kl_is_no_number_where_it_is_not_asked_for(tmp_path: Path) -> None:
    values = torch.zeros(2, dtype=torch.float64)
    inputs = LossInputs(
        log_prob_B=values,
        reference_B=values,
        reward_B=values,
        ref_reward_BN=values[:, None],
        length_B=values,
        num_examples=1,
    )
    assert math.isnan(inputs.kl)


def test_reading_a_configuration_runs_no_code_of_the_users(tmp_path: Path) -> None:
    """A stored configuration may be someone else's."""
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('it ran')")
    base = PreferenceRecipe(train=on_answers(DPO()), run="r", data=("d",))
    recipe = override(base, [f"train.loss={file}:Mine"])
    assert from_plain(PreferenceRecipe, to_plain(recipe)) == recipe
    assert recipe.name == "mine" and loss_name(recipe.train.loss) == "Mine"


def test_what_no_record_can_hold_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HINGE)
    own = OwnPreferenceLoss(reference=f"{file}:Hinge", options=("margin=2.0",))
    inner = own.loaded().inner
    assert own.with_values(inner) == own
    changed = own.with_values(replace(inner, margin=3.0))  # type: ignore[call-arg]
    assert changed.options == ("margin=3.0",)
    with pytest.raises(ConfigError, match="chose margin = inf, which is not a Python literal"):
        own.with_values(replace(inner, margin=math.inf))  # type: ignore[call-arg]


def test_options_are_named_once() -> None:
    with pytest.raises(ConfigError, match="has a name twice"):
        OwnPreferenceLoss(reference="mine.py:X", options=("a=1", "a=2"))
    with pytest.raises(ConfigError, match="is not of the form"):
        OwnPreferenceLoss(reference="mine")
