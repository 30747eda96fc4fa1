"""Adapters are trained beside frozen weights: what changes, what a checkpoint holds, how a run resumes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import Objective
from stamm.engine.trainer import InitialCheckpoint
from stamm.engine.trainer_setup import fit
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.lora import is_adapter
from stamm.models.lora_config import Lora
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256
from tests.conftest import environment
from tests.forked import Parent
from tests.unit.engine.lora_processes import MODEL, OPTIMIZERS, Adapting, train

SCRIPT = Path(__file__).with_name("lora_processes.py")
LORA = Lora(rank=4, alpha=8.0, train_activation=True)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A stored decoder to start from."""
    folder = tmp_path / "start"
    save_decoder(build_decoder(MODEL, seed=1), folder)
    return folder


def _asked(folder: Path, start: Path, **others: Any) -> dict[str, Any]:
    return {"folder": str(folder), "start": str(start), "lora": to_plain(LORA), **others}


def _processes(
    parent: Parent, folder: Path, count: int, *asked: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    words = [json.dumps(one) for one in asked]
    said = [str(SCRIPT), str(folder / f"results-{count}.json"), *words]
    return parent.run(said, folder, environment(), ranks=count, timeout=900)


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file that does not record times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "log" not in path.parts
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_adapters_learn_and_frozen_weights_do_not_change(
    tmp_path: Path, start: Path, optimizer: str
) -> None:
    lines = train(_asked(tmp_path / "run", start, optimizer=optimizer))
    losses = [line["train/loss_nats"] for line in lines]
    whole = train(_asked(tmp_path / "whole", start, optimizer=optimizer, lora=None))
    assert losses[0] == whole[0]["train/loss_nats"]
    assert losses[-1] < losses[0] - 0.02
    begun = dict(load_decoder(start).named_parameters())
    targets = [f"{target}.weight" for target in LORA.targets]
    for name, tensor in load_decoder(tmp_path / "run" / "model").named_parameters():
        changes = ".act_fn." in name or name.split(".", 4)[-1] in targets
        assert torch.equal(tensor, begun[name]) != changes, name


def test_a_checkpoint_holds_what_is_trained_and_the_hash_of_its_start(
    tmp_path: Path, start: Path
) -> None:
    train(_asked(tmp_path / "run", start))
    newest = tmp_path / "run" / "checkpoints" / "step-00000006"
    names = {name for path in newest.glob("*.safetensors") for name in load_file(path)}
    kept = {name.removeprefix("model/") for name in names if name.startswith("model/")}
    assert kept and all(is_adapter(name) or ".act_fn." in name for name in kept)
    moments = {name.split("/")[1] for name in names if name.startswith("optimizer/")}
    assert moments == kept
    state = json.loads((newest / "state.json").read_text())
    assert state["frozen_sha256"] == weights_sha256(start)


def test_a_checkpoint_of_adapters_is_no_start(tmp_path: Path, start: Path) -> None:
    train(_asked(tmp_path / "run", start))
    newest = tmp_path / "run" / "checkpoints" / "step-00000006"
    with pytest.raises(DataError, match=r"holds adapters, not all weights\. Start from .* model/"):
        train(_asked(tmp_path / "other", newest))
    train(_asked(tmp_path / "other", tmp_path / "run" / "model"))


def test_a_checkpoint_of_all_weights_is_a_start(tmp_path: Path, start: Path) -> None:
    train(_asked(tmp_path / "whole", start, lora=None, steps=2))
    checkpoint = tmp_path / "whole" / "checkpoints" / "step-00000002"
    lines = train(_asked(tmp_path / "run", checkpoint, steps=4))
    resumed = tmp_path / "run" / "checkpoints"
    assert len(lines) == 4
    shutil.rmtree(resumed / "step-00000004")
    before = _contents(tmp_path / "run" / "model")
    train(_asked(tmp_path / "run", checkpoint, steps=4))
    assert _contents(tmp_path / "run" / "model") == before


def test_a_run_does_not_resume_on_other_frozen_weights(tmp_path: Path, start: Path) -> None:
    asked = _asked(tmp_path / "run", start, steps=2)
    train(asked)
    recorded = weights_sha256(start)
    save_decoder(build_decoder(MODEL, seed=2), start)
    told = f"frozen weights with SHA-256 {recorded[:12]}, and the start model has "
    with pytest.raises(DataError, match=told + weights_sha256(start)[:12]):
        train({**asked, "steps": 4})
    shutil.rmtree(start)
    with pytest.raises(DataError, match=r"start, which this run starts from, does not exist"):
        train({**asked, "steps": 4})
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, start: Path, parent: Parent) -> None:
    reference = tmp_path / "reference"
    train(_asked(reference, start))
    for kill in (2, 6):
        run = tmp_path / f"killed-{kill}"
        done = _processes(parent, tmp_path, 1, _asked(run, start, kill=kill))
        assert done.returncode == -signal.SIGKILL, done.stderr
        train(_asked(run, start))
        assert _contents(run) == _contents(reference)


@pytest.mark.slow
def test_a_rank_that_tensor_parallelism_does_not_divide_is_refused(
    tmp_path: Path, start: Path, parent: Parent
) -> None:
    asked = _asked(tmp_path / "run", start, tensor=2, lora=to_plain(Lora(rank=3)))
    done = _processes(parent, tmp_path, 2, asked)
    assert done.returncode != 0
    assert "engine.parallel.tensor = 2 does not divide lora.rank = 3" in done.stderr


@pytest.mark.slow
def test_two_processes_follow_one(tmp_path: Path, start: Path, parent: Parent) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"tensor": 2},
        {"optimizer": "Muon", "recompute": "layers"},
    ]
    done = _processes(
        parent,
        tmp_path,
        2,
        *(_asked(tmp_path / f"two-{n}", start, **kind) for n, kind in enumerate(kinds)),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads((tmp_path / "results-2.json").read_text())
    for n, (kind, found) in enumerate(zip(kinds, results, strict=True)):
        alone = {key: value for key, value in kind.items() if key != "tensor"}
        expected = train(_asked(tmp_path / f"one-{n}", start, **alone))
        for key in ("train/loss_nats", "optim/gradient_norm"):
            assert [line[key] for line in found] == pytest.approx(
                [line[key] for line in expected], rel=2e-5
            ), (kind, key)
        one, two = (load_decoder(tmp_path / f"{k}-{n}" / "model") for k in ("one", "two"))
        tokens = torch.arange(12).view(1, -1)
        torch.testing.assert_close(two(tokens), one(tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("engine", "begin", "told"),
    [
        (EngineConfig(), None, "the run starts from random ones"),
        (EngineConfig(), InitialCheckpoint(Path("start"), optimizer_state=True), "of start is not"),
        (
            EngineConfig(precision="float8"),
            InitialCheckpoint(Path("start"), optimizer_state=False),
            "lora cannot multiply in 8 bits",
        ),
    ],
)
def test_what_adapters_do_not_support_is_refused(
    tmp_path: Path, engine: EngineConfig, begin: InitialCheckpoint | None, told: str
) -> None:
    def objective(decoder: Decoder) -> Objective:
        raise AssertionError("it was built")

    world = DistributedContext(torch.device("cpu"))
    config = Adapting(lora=LORA, engine=engine)
    with pytest.raises(ConfigError, match=told):
        fit(config, objective, 2, Workspace(folder=tmp_path), world, begin)
