"""What processes know of one another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stamm.activations.module import build_activation
from stamm.base.errors import ConfigError, RunError
from stamm.engine import coordinator, parallel
from stamm.engine.config import Parallel
from stamm.engine.coordinator import StepBroadcaster
from stamm.engine.distributed import (
    DistributedContext,
    destroy_process_group,
    init_distributed,
    is_lost_peer_error,
    mesh_coordinates_of,
    report_lost_peers,
    select_device,
)
from stamm.runs.sharded_job import code_hash


@pytest.mark.parametrize("folder", ["align/training", "chat", "evaluate", "losses", "recipes"])
def test_the_code_that_processes_compare_is_all_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    file = tmp_path / folder / "job.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr("stamm.runs.sharded_job.PACKAGE", tmp_path)
    found = set()
    for text in ("loss = 1", "loss = 2"):
        file.write_text(text)
        found.add(code_hash.__wrapped__(coordinator._ALL_CODE))
    assert len(found) == 2


def test_processes_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DistributedContext(torch.device("cpu"), rank=1, size=3)
    told = ["a", "a", "a"]
    monkeypatch.setattr(DistributedContext, "all_gather_object", lambda self, value: told)
    world.assert_same_on_all_ranks("the configuration", "a")
    told[1:] = ["b", "c"]
    with pytest.raises(RunError, match="the configuration of process 1, 2 of 3 is not that of"):
        world.assert_same_on_all_ranks("the configuration", "b")


def test_one_process_agrees_with_itself() -> None:
    DistributedContext(torch.device("cpu")).assert_same_on_all_ranks("the configuration", "a")


def test_what_gloo_says_of_a_lost_process_is_told_from_other_errors() -> None:
    said = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    assert is_lost_peer_error(RuntimeError(said))
    assert is_lost_peer_error(torch.distributed.DistNetworkError("timed out"))
    assert not is_lost_peer_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RunError, match=r"a peer process .* was lost"), report_lost_peers():
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="mat1"), report_lost_peers():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_leader_that_is_gone_is_told_where_its_next_word_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lost)
    broadcaster = object.__new__(StepBroadcaster)
    broadcaster._group = None
    for word in (broadcaster.receive, lambda: broadcaster.broadcast("pretrain")):
        with pytest.raises(RunError, match=r"a peer process .* was lost"):
            word()


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert select_device("auto") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"process 2 of this machine has no GPU .* torch sees 2"):
        select_device("auto")
    assert select_device("cpu") == torch.device("cpu")


def test_processes_that_replicas_do_not_divide_are_refused() -> None:
    parallel = Parallel(tensor=2, replicas=3)
    assert mesh_coordinates_of(7, parallel, 12) == ((3, 0, 1), 6)
    with pytest.raises(ConfigError) as caught:
        mesh_coordinates_of(0, parallel, 8)
    assert str(caught.value) == (
        "engine.parallel.replicas = 3 does not divide the 4 data-parallel processes (8 / 2 of context "
        "x tensor). Use a divisor of 4, or start other numbers of processes."
    )
    with pytest.raises(ConfigError, match="replicas = 2 does not divide the 1 data-parallel"):
        mesh_coordinates_of(0, Parallel(replicas=2), 1)
    with pytest.raises(ConfigError, match="replicas"):
        Parallel(replicas=0)


@pytest.mark.parametrize("name", ["all_gather_single_autograd", "all_gather_tensor_autograd"])
def test_keys_are_gathered_by_the_name_that_torch_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.13 has both and warns of the second, the older one."""
    monkeypatch.delattr(collectives, "all_gather_single_autograd")
    monkeypatch.delattr(collectives, "all_gather_tensor_autograd")
    monkeypatch.setattr(
        collectives, name, lambda x, gather_dim, group: torch.cat([x, x], gather_dim), raising=False
    )
    keys = torch.ones(1, 2, 3, 4)
    assert parallel._gather(None)(keys).shape == (1, 2, 6, 4)  # type: ignore[arg-type]


def test_effective_values_of_parameters_that_fsdp_divides() -> None:
    world = init_distributed(Parallel(), torch.device("cpu"), collectives=True)
    try:
        assert world.mesh is not None
        whole, divided = build_activation("xielu"), build_activation("xielu")
        fully_shard(divided, mesh=world.mesh["data"])
        assert isinstance(divided.alpha_p, DTensor)
        assert divided.effective() == whole.effective() and divided.raw() == whole.raw()
    finally:
        destroy_process_group()
