"""Two processes train what one process trains: each way of splitting the work, bit by bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # starts processes

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("parallel_worker.py")
RELATIVE = 1e-6

Run = dict[str, Any]


@pytest.fixture(scope="module", params=["eager", "fused"])
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Run]:
    """What the worker found on rank 0 and on rank 1, with and without fused passes."""
    folder = tmp_path_factory.mktemp("parallel")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER), str(rank), str(folder), request.param],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], said
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    return first, second


def _numbers(trajectory: list[dict[str, dict[str, Any]]]) -> list[float]:
    found = []
    for step in trajectory:
        for values in step.values():
            for value in values.values():
                found += value if isinstance(value, list) else [value]
    return found


def _distance(run: Run, other: Run) -> float:
    """Largest relative difference of two trajectories."""
    pairs = zip(_numbers(run["trajectory"]), _numbers(other["trajectory"]), strict=True)
    return max(abs(a - b) / abs(a) for a, b in pairs)


@pytest.mark.parametrize(
    ("way", "reference"),
    [
        ("tp style", "one"),
        ("tp style, dtensors", "one"),
        ("tp style, micro-batches", "one, micro-batches"),
        ("tp style, neurons", "one, neurons"),
        ("tp style, groups", "one, groups"),
        ("tp style, two", "one, two"),
        ("tp style, gated", "one, gated"),
        ("tp hooks", "one"),
        ("tp hooks, micro-batches", "one, micro-batches"),
        ("tp now", "one"),
        ("tokens style", "one"),
        ("tokens hooks", "one"),
        ("fsdp", "one"),
        ("fsdp, neurons", "one, neurons"),
        ("fsdp, bfloat16", "one, bfloat16"),
        ("fsdp x tp, 2 x 1", "one"),
        ("fsdp x tp, 1 x 2", "one"),
    ],
)
def test_two_processes_follow_one(ranks: tuple[Run, Run], way: str, reference: str) -> None:
    first, second = ranks
    assert first[way]["gradients"] == second[way]["gradients"]  # every bit
    assert first[way]["trajectory"] == second[way]["trajectory"]
    assert _distance(first[reference], first[way]) < RELATIVE
    before, after = first[way]["norms"]
    assert before == pytest.approx(first[reference]["norms"][0], rel=1e-5) and before > 0.2
    assert after == pytest.approx(0.1, rel=1e-4)
    moved = _numbers(first[way]["trajectory"])
    count = len(moved) // len(first[way]["trajectory"])
    assert all(abs(a - b) > 1e-3 for a, b in zip(moved[:count], moved[-count:], strict=True))


@pytest.mark.parametrize("way", ["tp bare", "tokens bare"])
def test_without_the_sum_replicas_drift_apart(ranks: tuple[Run, Run], way: str) -> None:
    first, second = ranks
    assert first[way]["gradients"] != second[way]["gradients"]
    assert _distance(first[way], second[way]) > 1e-3
    assert _distance(first["one"], first[way]) > 1e-3


def test_drifted_replicas_are_told(ranks: tuple[Run, Run]) -> None:
    for run in ranks:
        told = run["tp bare, check"]
        assert told.startswith("RunError: 0.act_fn.alpha_p is 0.1") and "on rank 1." in told


def test_fsdp_hands_out_rounded_shapes_unless_they_are_excepted(ranks: tuple[Run, Run]) -> None:
    first, _ = ranks
    assert first["fsdp, bfloat16"]["seen"] == ["torch.float32"]
    assert first["fsdp bare, bfloat16"]["seen"] == ["torch.bfloat16"]
    assert _distance(first["one, bfloat16"], first["fsdp bare, bfloat16"]) > 1e-5


def test_micro_batches_are_reduced_once(ranks: tuple[Run, Run]) -> None:
    first, _ = ranks
    assert _distance(first["one"], first["tp hooks, micro-batches"]) < 1e-5


def test_sharded_parameters_are_averaged_but_not_summed(ranks: tuple[Run, Run]) -> None:
    for rank, run in enumerate(ranks):
        own = [1.0 + rank]
        for way in ("hooks", "now"):
            assert run["partly"][way] == {"0.act_fn.alpha_p": [3.0], "0.act_fn.alpha_n": [1.5]}
        assert run["partly"]["removed"] == {"0.act_fn.alpha_p": own, "0.act_fn.alpha_n": own}


def test_a_gradient_that_is_missing_on_one_process_counts_as_zero(ranks: tuple[Run, Run]) -> None:
    first, second = ranks
    assert second["unused"]["before"] == dict.fromkeys(second["unused"]["before"])
    for name, value in first["unused"]["before"].items():
        expected = None if value is None else [value[0] / 2]
        assert first["unused"]["after"][name] == second["unused"]["after"][name] == expected


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ("twice", "0.act_fn.alpha_p is already sharded over the same processes"),
        ("fsdp", "ignored_params=sharding_exceptions(model)"),
        ("meta", "0.act_fn.alpha_p is on the meta device"),
        ("unknown", "Did you mean '0.act_fn.alpha_p'?"),
        ("linear", "Linear is not an activation module"),
        ("odd", "alpha_p has 3 values, which 2 processes cannot split evenly"),
        ("load", "Load values before parallelize_module"),
        ("last", "dim = 2 is the hidden dimension of an input of shape (4, 6, 8)"),
    ],
)
def test_what_cannot_be_right_is_refused(ranks: tuple[Run, Run], request_: str, told: str) -> None:
    assert ranks[0]["refusals"][request_].startswith("ConfigError: ")
    assert told in ranks[0]["refusals"][request_]


def test_a_mesh_of_two_dimensions_is_refused(ranks: tuple[Run, Run]) -> None:
    assert "the mesh has 2 dimensions ('dp', 'tp')" in ranks[0]["fsdp x tp, 2 x 1"]["both"]


def test_a_parallel_activation_shows_its_values(ranks: tuple[Run, Run]) -> None:
    told = "ParallelActivation(xielu, alpha_p=0.8, alpha_n=0.8, beta=0.5)"
    assert ranks[0]["refusals"]["repr"] == told
    assert ranks[0]["tp style, groups"]["repr"] == "ParallelActivation(xielu, shapes=4)"
