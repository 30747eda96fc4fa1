"""Commands on an aligned run, and alignment of an exported Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.base.files import sha256_file
from tests.conftest import Stamm
from tests.unit.tutorials import tutorial_file

pytestmark = pytest.mark.slow  # each test needs whole runs

SETTINGS = ("data=chats.jsonl", "train.batch.0.size=2", "train.engine.threads=1")
RATE = "train.schedule.peak=1e-4"  # the default follows from where the start model was trained


@pytest.fixture
def arm(smoke_run: Path, tmp_path: Path) -> Path:
    """A trained arm; chats.jsonl and prompts.jsonl are in the test's folder."""
    rows = [{"prompt": f"What is {n} and {n}?", "completion": f"It is {2 * n}."} for n in range(8)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "chats.jsonl").write_text(lines)
    return smoke_run / "arms" / "xielu"


def test_an_exported_folder_gives_the_bits_of_its_run(
    arm: Path, stamm: Stamm, tmp_path: Path
) -> None:
    folder = arm / "export" / "transformers"
    for out, start in (("own", arm), ("hub", folder)):
        done = stamm("run", "align.sft", f"run={start}", *SETTINGS, RATE, "--out", out)
        assert done.returncode == 0, done.stderr
        words = ("prompts=chats.jsonl", "n=2", "max_new_tokens=8", "--out", f"answers-{out}")
        done = stamm("sample", str(start), *words)
        assert done.returncode == 0, done.stderr
    for name in ("arms/sft/model/model.safetensors", "arms/sft/metrics.jsonl"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "hub" / name).read_bytes()
    own, hub = (tmp_path / f"answers-{out}" / "completions.jsonl" for out in ("own", "hub"))
    assert own.read_bytes() == hub.read_bytes()
    # Without the corpus of its pretraining, there is nothing to measure on.
    done = stamm("evaluate", "hub")
    assert done.returncode == 2
    assert "Leave held_out out of tasks, or score texts of your own" in done.stderr
    done = stamm("audit", "hub")
    assert done.returncode == 1
    assert "the corpus of hub/arms/sft is not found" in done.stderr


def test_every_command_works_on_an_aligned_run(arm: Path, stamm: Stamm, tmp_path: Path) -> None:
    done = stamm("plan", "align.sft", f"run={arm}", *SETTINGS)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "stamm: recipe align.sft has no plan. Use `stamm run`, or `stamm show` to print it."
    )
    done = stamm("run", "align.sft", f"run={arm}", *SETTINGS, "--out", "tuned")
    assert done.returncode == 0, done.stderr
    for words, said in (
        (("show", "tuned"), "finetune.sft"),
        (("show", "ledger", "tuned", "decision=kept"), "8 documents"),
        (("evaluate", "tuned"), "tuned/arms/sft/evaluate"),
        (("audit", "tuned"), "tuned/arms/sft/audit"),
        (("export", "tuned", "--out", "exported"), "exported"),
    ):
        done = stamm(*words)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    assert list((tmp_path / "exported").rglob("model.safetensors"))
    page = (tmp_path / "tuned" / "report.html").read_text()
    assert "memorized, 4 times" in page, "audits of the start model and of the tuned one"
    again = stamm("run", "align.sft", f"run={arm}", *SETTINGS, "--out", "tuned")
    assert again.returncode == 0 and "nothing to do" in again.stdout


def test_kto_trains_on_labelled_answers(arm: Path, stamm: Stamm, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"What is {n} and {n}?", "completion": f"{text} {2 * n}.", "label": label}
        for n in range(8)
        for text, label in (("It is", True), ("No idea", False))
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("data=labels.jsonl", "train.batch.0.size=4", "train.engine.threads=1", "export=none")
    done = stamm("run", "align.kto", f"run={arm}", *words, "audit=none", "--out", "kto")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "kto" / "report.html").read_text()
    assert "KTO: log-ratios and KL during training" in page
    assert not (tmp_path / "kto" / "start_audit").exists()


def test_a_preference_loss_of_the_users_own_is_named_on_the_command_line(
    arm: Path, stamm: Stamm, tmp_path: Path
) -> None:
    """docs/extending/preference_loss.md, on pairs as UltraFeedback and HH-RLHF write them."""
    mine = tutorial_file("preference_loss", tmp_path / "hinge.py")
    pairs = [
        {
            "chosen": [
                {"role": "user", "content": f"What is {n} and {n}?"},
                {"role": "assistant", "content": f"It is {2 * n}."},
            ],
            "rejected": [
                {"role": "user", "content": f"What is {n} and {n}?"},
                {"role": "assistant", "content": "No idea."},
            ],
        }
        for n in range(8)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    words = ["run", "align.dpo", f"run={arm}", "data=pairs.jsonl", "train.loss=hinge.py:Hinge"]
    words += ["train.loss.options=margin=2.0", *SETTINGS[1:], RATE, "--out", "own"]
    words += ["evaluate=none", "audit=none", "export=none", "sample_answers=none"]
    done = stamm(*words)
    assert done.returncode == 0, done.stderr
    arm_folder = tmp_path / "own" / "arms" / "hinge"
    lines = map(json.loads, (arm_folder / "metrics.jsonl").read_text().splitlines())
    first = next(line for line in lines if line["step"] == 1)
    assert first["train/loss"] == pytest.approx(2.0, abs=1e-3), "margin, before the first update"
    assert sha256_file(mine) in (arm_folder / "manifest.json").read_text()
    for verb in ("show", "report"):
        done = stamm(verb, "own")
        assert done.returncode == 0, done.stderr
    mine.write_text(mine.read_text() + "\n")
    done = stamm(*words)
    assert "The inputs of step finetune.hinge have changed" in done.stderr + done.stdout
