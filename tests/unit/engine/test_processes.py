"""One process, two, four: the same losses and norms, whatever the division, and across a change of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.serialization import save_decoder
from tests.conftest import environment
from tests.forked import Parent

SCRIPT = Path(__file__).with_name("processes.py")
Trained = list[dict[str, Any]]


def _train(parent: Parent, folder: Path, count: int, *asked: dict[str, Any]) -> list[Trained]:
    """What `asked` gives in `count` processes."""
    folder.mkdir(exist_ok=True)
    out = folder / f"results-{count}.json"
    words = [
        json.dumps({"folder": str(folder / str(count) / str(i)), **a}) for i, a in enumerate(asked)
    ]
    said = [str(SCRIPT), str(out), *words]
    done = parent.run(said, folder, environment(), ranks=count, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[Trained] = json.loads(out.read_text())
    return results


def _close(
    trained: Trained, reference: Trained, tolerance: float, norms: float | None = None
) -> None:
    assert [line["step"] for line in trained] == [line["step"] for line in reference]
    limits = {"train/loss_nats": tolerance, "optim/gradient_norm": norms or tolerance}
    for key, limit in limits.items():
        found, expected = ([line[key] for line in t] for t in (trained, reference))
        assert found == pytest.approx(expected, rel=limit), key


PLAIN: list[dict[str, Any]] = [
    {},
    {"gated": True, "bias": True, "tied": True, "optimizer": "AdamW"},
    {"precision": "bfloat16"},
]


@pytest.fixture(scope="module")
def alone(parent: Parent, tmp_path_factory: pytest.TempPathFactory) -> list[Trained]:
    """PLAIN in one process; what all divisions are held against."""
    return _train(parent, tmp_path_factory.mktemp("alone"), 1, *PLAIN)


def test_two_processes_follow_one(parent: Parent, alone: list[Trained], tmp_path: Path) -> None:
    gated = PLAIN[1]
    data, tensor, context, recomputed, other, other_tensor, short, short_tensor = _train(
        parent,
        tmp_path,
        2,
        {},
        {"tensor": 2},
        {"context": 2},
        {"tensor": 2, "recompute": "layers", "background": True},
        gated,
        {**gated, "tensor": 2},
        PLAIN[2],
        {**PLAIN[2], "tensor": 2},
    )
    for trained in (data, tensor, context, recomputed):
        _close(trained, alone[0], 2e-5)
    for trained in (other, other_tensor):
        _close(trained, alone[1], 2e-5)
    for trained in (short, short_tensor):
        _close(trained, alone[2], 2e-3, norms=5e-2)


def test_biases_are_cast_and_divided_as_their_matrices(parent: Parent, tmp_path: Path) -> None:
    """In float32: gated models of `PLAIN` have biases."""
    asked = {"gated": True, "bias": True, "precision": "bfloat16", "steps": 3}
    alone = _train(parent, tmp_path, 1, asked)[0]
    for trained in _train(parent, tmp_path, 2, asked, {**asked, "tensor": 2}):
        _close(trained, alone, 2e-3, norms=5e-2)


def test_four_processes_in_two_directions_follow_one(
    parent: Parent, alone: list[Trained], tmp_path: Path
) -> None:
    both, cut = _train(parent, tmp_path, 4, {"context": 2, "tensor": 2}, {"tensor": 2})
    _close(both, alone[0], 2e-5)
    _close(cut, alone[0], 2e-5)


def test_a_run_goes_on_in_another_number_of_processes(
    parent: Parent, alone: list[Trained], tmp_path: Path
) -> None:
    """Three steps cut by neurons in two processes, then three in one, then in two divided by tokens."""
    folder = str(tmp_path / "run")
    first = {"folder": folder, "steps": 3}
    _train(parent, tmp_path, 2, {**first, "tensor": 2})
    _close(_train(parent, tmp_path, 1, {**first, "steps": 4})[0], alone[0][:4], 2e-5)
    _close(_train(parent, tmp_path, 2, {**first, "steps": 6, "context": 2})[0], alone[0], 2e-5)


def test_replicas_of_shards_follow_one_process(
    parent: Parent, alone: list[Trained], tmp_path: Path
) -> None:
    """Four processes: 2 replicas over data, context and tensor parallelism, and 4 of one process each."""
    two, four, context, tensor, gated, short = _train(
        parent,
        tmp_path,
        4,
        {"replicas": 2},
        {"replicas": 4},
        {"replicas": 2, "context": 2},
        {"replicas": 2, "tensor": 2, "recompute": "layers", "background": True},
        {**PLAIN[1], "replicas": 2},
        {**PLAIN[2], "replicas": 2},
    )
    for trained in (two, four, context, tensor):
        _close(trained, alone[0], 2e-5)
    _close(gated, alone[1], 2e-5)
    _close(short, alone[2], 2e-3, norms=5e-2)


def test_a_checkpoint_is_written_by_one_replica_and_loads_in_any_division(
    parent: Parent, alone: list[Trained], tmp_path: Path
) -> None:
    run = {"folder": str(tmp_path / "run")}
    _train(parent, tmp_path, 4, {**run, "steps": 3, "replicas": 2})
    written = {path.name for path in (tmp_path / "run/checkpoints/step-00000003").iterdir()}
    assert written == {
        "shard-00001-model-00001-of-00001.safetensors",
        "shard-00002-model-00001-of-00001.safetensors",
        "state.json",
    }
    _close(_train(parent, tmp_path, 4, {**run, "steps": 4})[0], alone[0][:4], 2e-5)
    _close(_train(parent, tmp_path, 2, {**run, "steps": 5, "replicas": 2})[0], alone[0][:5], 2e-5)
    _close(_train(parent, tmp_path, 1, run)[0], alone[0], 2e-5)


# State as tensors, as a number of a parameter and as a number of a group.
CENTERED = """
import torch

class Centered(torch.optim.Optimizer):
    elementwise = True

    def __init__(self, params):
        super().__init__(params, {"lr": 0.0, "total": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["total"] += group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["start"], state["mean"] = p.clone(), torch.zeros_like(p)
                    state["step"], state["updates"] = torch.zeros(()), 0
                state["updates"] += 1
                state["step"] += 1
                state["mean"].lerp_(p.grad, 1 / state["updates"])
                p.copy_(state["start"] - 10 * group["total"] * state["mean"])
"""


def test_a_users_optimizer_resumes_in_another_number_of_processes(
    parent: Parent, tmp_path: Path
) -> None:
    (tmp_path / "centered.py").write_text(CENTERED)
    asked = {"optimizer": f"{tmp_path}/centered.py:Centered"}
    reference = _train(parent, tmp_path / "one", 1, asked)[0]
    assert reference[-1]["train/loss_nats"] < reference[0]["train/loss_nats"]
    run = {**asked, "folder": str(tmp_path / "run")}
    _train(parent, tmp_path, 2, {**run, "steps": 3, "tensor": 2})
    _close(_train(parent, tmp_path, 1, {**run, "steps": 4})[0], reference[:4], 2e-5)
    _close(_train(parent, tmp_path, 2, run)[0], reference, 2e-5)


@pytest.mark.slow
def test_a_run_starts_from_a_stored_decoder_in_any_division(parent: Parent, tmp_path: Path) -> None:
    decoder = build_decoder(
        DecoderConfig(
            vocab_size=64,
            d_model=32,
            num_layers=2,
            num_kv_heads=2,
            ffn=GatedFFN(width=32),
            qk_norm=False,
            qkv_bias=True,
            tied_embeddings=True,
            max_context=32,
        ),
        seed=8,
    )
    save_decoder(decoder, tmp_path / "model")
    asked = {**PLAIN[1], "start": str(tmp_path / "model")}
    reference, other = _train(parent, tmp_path, 1, asked, PLAIN[1])
    assert reference[0]["train/loss_nats"] != other[0]["train/loss_nats"]
    data, tensor = _train(parent, tmp_path, 2, asked, {**asked, "tensor": 2})
    _close(data, reference, 2e-5)
    _close(tensor, reference, 2e-5)


def test_compiled_layers_are_divided_too(
    parent: Parent, alone: list[Trained], tmp_path: Path
) -> None:
    data, tensor = _train(
        parent, tmp_path, 2, {"compile": "layers"}, {"compile": "layers", "tensor": 2}
    )
    _close(data, alone[0], 1e-4)
    _close(tensor, alone[0], 1e-4)
