"""GRPO in one process and in two: the same answers, losses and norms, whatever the division."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stamm.align.training.rollouts import Rated, read_rollout
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.tokenizer.tokenizer import FILE
from tests.conftest import ROOT, environment
from tests.forked import Parent
from tests.unit.align import finetuned
from tests.unit.align.grpo_processes import CASES, STEPS, train
from tests.unit.align.prepared import write_rows
from tests.unit.chat.conversations import DESCRIPTION

pytestmark = pytest.mark.slow  # each starts two processes that train several models

# Both heads and key-value heads are divided over two processes.
MODEL = dataclasses.replace(finetuned.MODEL, num_kv_heads=2)
DIVISIONS: dict[str, dict[str, int]] = {
    "data": {},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "replicas": {"replicas": 2},
}
TRAINED = [
    (case, division)
    for case in CASES
    for division in DIVISIONS
    if division == "data" or case == "several steps" or (case, division) == ("adapters", "tensor")
]
CLOSE = ("train/loss", "optim/gradient_norm", "reward/clip_share", "reward/kl_per_token")
EQUAL = (
    "tokens", "train/tokens", "optim/learning_rate", "reward/mean", "reward/equal_groups",
    "reward/unrated", "reward/length", "reward/cut",
)  # fmt: skip
REWARD = '''
from stamm.base.errors import ConfigError


class Mine:
    """Ends the job at the last prompt of the file."""

    name = "mine"

    def __call__(self, answer):
        if answer.row.get("last"):
            raise ConfigError("this prompt cannot be judged")
        return 1.0
'''


@pytest.fixture(scope="module")
def trained(parent: Parent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder CASE/DIVISION for each case and division, "one" being one process."""
    root = tmp_path_factory.mktemp("grpo")
    asked = []
    for case in (*CASES, "unrated", "raises"):
        folder = root / case
        save_decoder(build_decoder(MODEL, 5), folder / "start")
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / FILE).write_text(DESCRIPTION)
        (folder / "mine.py").write_text(REWARD)
        rows: list[dict[str, Any]] = [{"prompt": prompt} for prompt in finetuned.PROMPTS]
        rows[-1]["last"] = True
        write_rows(folder / "prompts.jsonl", rows)
        common = {"case": case, "folder": str(folder)}
        if case in CASES:
            train({**common, "name": "one"})
        for division, ways in DIVISIONS.items():
            if (case, division) in TRAINED or (case not in CASES and division == "data"):
                asked.append({**common, "name": division, **ways})
    said = ["-m", "tests.unit.align.grpo_processes", *map(json.dumps, asked)]
    done = parent.run(said, ROOT, environment(), ranks=2, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def answers(arm: Path) -> list[Rated]:
    """All answers of a run."""
    paths = sorted((arm / "rollouts").iterdir())
    return [a for path in paths for a in read_rollout(path.parent, int(path.stem[5:])).answers]


@pytest.mark.parametrize(("case", "division"), TRAINED)
def test_two_processes_follow_one(trained: Path, case: str, division: str) -> None:
    arms = [trained / case / name for name in ("one", division)]
    expected, found = (finetuned.metrics(arm) for arm in arms)
    assert len(expected) == len(found) == STEPS
    assert [sorted(line) for line in found] == [sorted(line) for line in expected]
    compared = [key for key in CLOSE if key in expected[0]]
    assert len(compared) >= 3
    for key in compared:
        # Advantages have the mean 0: a loss is a difference of sums.
        reference = [line[key] for line in expected]
        assert [line[key] for line in found] == pytest.approx(reference, rel=2e-5, abs=4e-6), key
    for key in EQUAL:
        assert [line[key] for line in found] == [line[key] for line in expected], key
    if case == "several steps":
        assert any(line["reward/clip_share"] for line in expected)
    if case == "dropped":
        assert {answer.draw for answer in answers(arms[0])} == {0, 1, 2, 3}
    weights = [dict(load_decoder(arm / "model").named_parameters()) for arm in arms]
    for name, one in weights[0].items():
        assert weights[1][name].detach() == pytest.approx(one.detach(), abs=1e-5), name


@pytest.mark.parametrize(("case", "division"), TRAINED)
def test_two_processes_sample_the_answers_of_one(trained: Path, case: str, division: str) -> None:
    """All rollouts, in the same order, with the same rewards and advantages."""
    log_probs = ("old_log_probs", "reference_log_probs")
    expected, found = (answers(trained / case / name) for name in ("one", division))
    assert [dataclasses.replace(a, **dict.fromkeys(log_probs)) for a in found] == [
        dataclasses.replace(a, **dict.fromkeys(log_probs)) for a in expected
    ]
    assert len({answer.text for answer in expected}) > 10
    for one, other in zip(expected, found, strict=True):
        for name in log_probs:
            values = getattr(one, name)
            assert (values is None) == (getattr(other, name) is None)
            if values is not None:
                assert getattr(other, name) == pytest.approx(values, abs=2e-5)


def test_a_resumed_run_of_two_processes_has_the_same_bits(trained: Path, parent: Parent) -> None:
    """Resumed after 4 of 6 steps, in the middle of a rollout."""
    folder = trained / "several steps"
    shutil.copytree(folder / "data", folder / "resumed")
    shutil.rmtree(folder / "resumed" / "model")
    (folder / "resumed" / "summary.json").unlink()
    shutil.rmtree(sorted((folder / "resumed" / "checkpoints").iterdir())[-1])
    asked = {"case": "several steps", "folder": str(folder), "name": "resumed"}
    said = ["-m", "tests.unit.align.grpo_processes", json.dumps(asked)]
    done = parent.run(said, ROOT, environment(), ranks=2)
    assert done.returncode == 0, done.stderr[-4000:]
    for name in ("metrics.jsonl", "model/model.safetensors", "rollouts/step-000004.parquet"):
        found, expected = (folder / arm / name for arm in ("resumed", "data"))
        assert found.read_bytes() == expected.read_bytes(), name


def test_all_processes_report_the_error_of_one(trained: Path) -> None:
    """The reward raises in the process that has the last prompt; nothing hangs."""
    for case, expected in (
        ("unrated", "no answer could be rated: "),
        ("raises", "this prompt cannot be judged"),
    ):
        lines = [(trained / case / "data" / f"error-{r}.txt").read_text() for r in range(2)]
        assert lines[0] == lines[1] and expected in lines[0]
