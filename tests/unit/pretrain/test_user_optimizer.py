"""An optimizer of the user's own, as docs/extending/optimizer.md shows it, in training runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.engine.config import EngineConfig
from stamm.engine.trainer import Trainer
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.config import CustomOptimizer
from stamm.optim.custom import measured_state
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import plan
from tests.unit.pretrain.conftest import train
from tests.unit.tutorials import tutorial_file

CONFIG = PretrainConfig(
    model=DecoderConfig(
        vocab_size=64, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, max_context=16,
        ffn=PlainFFN(width=24),
    ),
    context=16,
    batch=(BatchStage(size=4),),
    sequences=24,
    schedule=WarmupStableDecay(peak=1e-3, warmup_sequences=8),
    engine=EngineConfig(
        device="cpu", threads=1, compile="off", kernels="torch", checkpoint_every=3
    ),
)  # fmt: skip
# State that a first step with zero gradients would not recreate: a copy of the initial weights, a
# number, and a number of the group that the optimizer changes.
AVERAGED = """
import torch

class Averaged(torch.optim.Optimizer):
    def __init__(self, params, beta=0.9):
        super().__init__(params, {"lr": 0.0, "beta": beta, "seen": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["seen"] += group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["z"], state["updates"] = p.clone(), 0
                state["updates"] += 1
                state["z"].sub_(p.grad, alpha=group["lr"])
                p.lerp_(state["z"], group["lr"] / group["seen"] / state["updates"])
"""


@pytest.fixture
def lion(tmp_path: Path, made_up_corpus: None) -> Path:
    return tutorial_file("optimizer", tmp_path / "lion.py")


class KilledError(Exception):
    """The run ends here."""


def _resumed(folder: Path, config: PretrainConfig, step: int) -> list[dict[str, Any]]:
    """The run, killed in `step` and resumed from the checkpoint before it."""
    original = Trainer._step

    def killed(self: Trainer, at: int, *rest: Any) -> int | None:
        if at == step:
            raise KilledError
        return original(self, at, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        with pytest.raises(KilledError):
            train(folder, config)
    return train(folder, config)


def test_the_tutorials_optimizer_trains_and_resumes_with_the_same_bits(
    tmp_path: Path, lion: Path
) -> None:
    config = override(CONFIG, [f"optimizer={lion}:Lion", "optimizer.options=beta1=0.8,beta2=0.98"])
    assert isinstance(config.optimizer, CustomOptimizer)
    assert config.optimizer.keywords() == {"beta1": 0.8, "beta2": 0.98}
    assert from_plain(PretrainConfig, to_plain(config)) == config
    whole = train(tmp_path / "whole", config)
    assert whole[-1]["train/loss_nats"] < whole[0]["train/loss_nats"]
    assert _resumed(tmp_path / "killed", config, 5) == whole
    weights = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    recorded = read_json(tmp_path / "whole" / "manifest.json")["inputs"]["optimizer"]
    assert recorded["path"].endswith("lion.py:Lion")
    assert read_json(tmp_path / "whole" / "log" / "timing.json")["optimizer"] == "Lion"


@pytest.mark.parametrize("killed_in", [2, 5])
def test_state_of_any_kind_resumes_with_the_same_bits(
    tmp_path: Path, lion: Path, killed_in: int
) -> None:
    lion.write_text(AVERAGED)
    config = override(CONFIG, [f"optimizer={lion}", "engine.checkpoint_every=1"])
    whole = train(tmp_path / "whole", config)
    assert _resumed(tmp_path / "killed", config, killed_in) == whole


def test_changed_code_does_not_resume(tmp_path: Path, lion: Path) -> None:
    config = replace(CONFIG, optimizer=CustomOptimizer(reference=f"{lion}:Lion"))
    train(tmp_path / "run", config)
    lion.write_text(lion.read_text().replace("0.99", "0.98"))
    with pytest.raises(DataError, match="the code of the optimizer is not the same"):
        train(tmp_path / "run", config)


def test_an_installed_optimizer_trains(tmp_path: Path, lion: Path) -> None:
    config = override(CONFIG, ["optimizer=torch.optim:NAdam"])
    assert len(train(tmp_path / "run", config)) == 6


def test_a_plan_measures_the_state(lion: Path) -> None:
    optimizer = CustomOptimizer(reference=f"{lion}:Lion")
    assert measured_state(optimizer) == 1.0
    unknown = plan(replace(CONFIG, optimizer=optimizer), None)
    known = plan(
        replace(CONFIG, optimizer=replace(optimizer, state_per_parameter=1.0)), devices=None
    )
    assert "is unknown: counted as 2 numbers per parameter" in unknown["notes"][-1]
    assert "estimated from 1 numbers of 32 bits" in known["notes"][-1]
    assert unknown["memory"]["moments"] == 2 * known["memory"]["moments"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Lion = 3", "is not a class or a function"),
        ("def Lion(groups): return groups", "returns list, which is not a torch.optim.Optimizer"),
        ("def Lion(groups): raise ValueError('no')", "ValueError: no"),
        (
            "import torch\ndef Lion(groups): return torch.optim.SGD(groups[:1])",
            "does not hold the parameters that it was given",
        ),
        (
            "import torch\nclass Lion(torch.optim.Optimizer):\n    def __init__(self, groups): ...",
            "does not hold the parameters that it was given: 0 of",
        ),
        ("class Lion:\n    def __init__(self, groups, x): ...", r"missing 1 required .*lion\.py\)"),
        (
            "import torch\nclass Lion(torch.optim.SGD):\n    def step(self, x): ...",
            r"TypeError: Lion\.step\(\) missing 1 required positional argument: 'x'",
        ),
        (
            "import torch\nclass Lion(torch.optim.SGD):\n    def step(self):\n        1 / 0",
            r"ZeroDivisionError: division by zero \(.*lion.py, line 4\)",
        ),
        (
            "import torch\nclass Lion(torch.optim.SGD):\n    def step(self):\n"
            "        for g in self.param_groups:\n"
            "            for p in g['params']: self.state[p]['q'] = [1]",
            r"cannot be saved: state\[parameter\]\['q'\] is a list",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path: Path, lion: Path, code: str, message: str) -> None:
    lion.write_text(code)
    config = replace(CONFIG, optimizer=CustomOptimizer(reference=f"{lion}:Lion"))
    with pytest.raises(ConfigError) as error:
        train(tmp_path / "run", config)
    assert re.search(message, error.value.line())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "lion"}, "is not of the form mine.py:MyOptimizer"),
        ({"options": ("beta1",)}, 'must be of the form "name=value"'),
        ({"options": ("a=1", "a=2")}, "has a name twice"),
        ({"weight_decay": -1.0}, "must be finite and not negative"),
    ],
)
def test_a_configuration_that_does_not_fit_is_an_error(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CustomOptimizer(**{"reference": "lion.py:Lion", **changes})
