"""Fine-tuning in one process and in two: the same losses and norms, whatever the division."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stamm.align.training import reference_job
from stamm.align.training.config import ReferenceConfig
from stamm.models.decoder import build_decoder
from stamm.models.serialization import save_decoder
from tests.conftest import ROOT, environment
from tests.forked import Parent
from tests.unit.align import finetuned
from tests.unit.align.finetune_processes import LOSSES, STEPS, train
from tests.unit.align.prepared import prepare

pytestmark = pytest.mark.slow  # each starts two processes that train several models

# Both heads and key-value heads are divided over two processes.
MODEL = dataclasses.replace(finetuned.MODEL, num_kv_heads=2)
DIVISIONS: dict[str, dict[str, int]] = {
    "data": {},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "replicas": {"replicas": 2},
}
REPLICATED = ("KTO", "DPO, LoRA", "REBEL, PFO")
CASES = [
    (loss, division)
    for loss in LOSSES
    for division in DIVISIONS
    if division == "data"
    or (loss in REPLICATED if division == "replicas" else not loss.endswith("PFO"))
]
CLOSE = ("train/loss_nats", "train/loss", "train/pfo", "optim/gradient_norm", "reward/")
EQUAL = ("tokens", "train/tokens", "train/kept_tokens", "optim/learning_rate")


def _inputs(folder: Path, rows: list[dict[str, Any]], *, reference: bool) -> dict[str, str]:
    """Prepared rows, a start model, and its log-probabilities."""
    prepare(folder, rows, context=finetuned.CONTEXT, held_out=0.4)
    save_decoder(build_decoder(MODEL, 5), folder / "start")
    inputs = {name: folder / name for name in ("tokenizer", "start")}
    inputs["data"] = folder / "prepared"
    if reference:
        inputs["reference"] = folder / "reference"
        inputs["reference"].mkdir()
        settings = ReferenceConfig(mismatched=True)
        reference_job.run(settings, finetuned.workspace(inputs["reference"], inputs))
    return {name: str(path) for name, path in inputs.items()}


@pytest.fixture(scope="module")
def trained(parent: Parent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder LOSS/DIVISION for each loss and division, "one" being one process."""
    root = tmp_path_factory.mktemp("processes")
    given = {
        "chat": _inputs(root / "chat", finetuned.chats() * 4, reference=False),
        "pairs": _inputs(root / "pairs", finetuned.pairs(), reference=True),
        "rated": _inputs(root / "rated", finetuned.rated(), reference=True),
    }
    kinds = {"SFT": "chat", "QRPO, rated": "rated"}
    asked = []
    for loss in LOSSES:
        inputs = given[kinds.get(loss, "pairs")]
        train({"loss": loss, "inputs": inputs, "folder": str(root / loss / "one")})
        for division, ways in DIVISIONS.items():
            if (loss, division) not in CASES:
                continue
            folder = str(root / loss / division)
            asked.append({"loss": loss, "inputs": inputs, "folder": folder, **ways})
    said = ["-m", "tests.unit.align.finetune_processes", *map(json.dumps, asked)]
    done = parent.run(said, ROOT, environment(), ranks=2, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.mark.parametrize(("loss", "division"), CASES)
def test_two_processes_follow_one(trained: Path, loss: str, division: str) -> None:
    expected, found = (finetuned.metrics(trained / loss / name) for name in ("one", division))
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    held_out = {key for line in expected for key in line if key.startswith("evaluate/")}
    assert len(held_out) >= 1
    for line, other in zip(expected, found, strict=True):
        values = {key: line[key] for key in held_out & line.keys() if "accuracy" not in key}
        assert {key: other[key] for key in values} == pytest.approx(values, rel=2e-5, abs=1e-5)
    expected, found = ([line for line in lines if line["step"]] for lines in (expected, found))
    assert len(expected) == len(found) == STEPS
    assert [sorted(line) for line in found] == [sorted(line) for line in expected]
    compared = [key for key in expected[0] if key.startswith(CLOSE)]
    assert len(compared) >= 2
    for key in compared:
        # Before the first update log-ratios are rounding, and their order is chance.
        first = 1 if key == "reward/accuracy" else 0
        reference = [line[key] for line in expected[first:]]
        values = [line[key] for line in found[first:]]
        # A log-ratio near 0 is a difference of two sums, of some ten log-probabilities of about -6,
        # each of which float32 rounds to 5e-7.
        assert values == pytest.approx(reference, rel=2e-5, abs=4e-6), key
    for key in EQUAL:
        assert [line.get(key) for line in found] == [line.get(key) for line in expected], key
