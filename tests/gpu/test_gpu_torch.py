"""What torch does with the operations: compile, check, differentiate twice, shard, checkpoint."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stamm.activations.fused import operation
from stamm.activations.module import build_activation, xielu
from stamm.models.config import MemoryPolicy, PlainFFN, Recompute, SavePost, SavePre
from stamm.models.ffn import build_ffn

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def normal(*shape: int, dtype: torch.dtype, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).to(device, dtype)


def gradients(
    module: nn.Module,
    weight: Tensor,
    *inputs: Tensor,
    call: Callable[..., Tensor] | None = None,
) -> list[Tensor]:
    """The result of the module, or of a call to it, then the gradients of inputs and parameters."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    result = (module if call is None else call)(*leaves)
    taken = [*leaves, *module.parameters()]
    return [result.detach(), *torch.autograd.grad(result, taken, weight)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["xielu", "xatglu"])
def test_a_compiled_graph_is_whole_and_gives_the_same_bits(
    name: str, dtype: torch.dtype, device: torch.device, passes: list[str]
) -> None:
    torch.compiler.reset()
    module = build_activation(name).to(device)
    count = 2 + hasattr(module, "of_fused")
    weight, *inputs = (normal(257, 1031, dtype=dtype, seed=s, device=device) for s in range(count))
    eager = gradients(module, weight, *inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler warns about itself
        compiled = torch.compile(module, fullgraph=True)
        found = gradients(module, weight, *inputs, call=compiled)
    assert all(torch.equal(a, b) for a, b in zip(eager, found, strict=True))
    assert len(passes) == 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operations_pass_torchs_own_checks(dtype: torch.dtype, device: torch.device) -> None:
    for name in ("xielu", "xatglu"):
        module = build_activation(name).to(device)
        count = 1 + hasattr(module, "of_fused")
        forms = [f for f in operation._FORMS.values() if f.kernel is module._kernel and f.exact]
        form = next(f.name for f in forms if f.inputs == count)
        values = [v.detach() for v in module.effective_tensors()]
        for rows in (2, 257):  # by the eager form, and by the kernels
            weight, *inputs = (
                normal(rows, 1031, dtype=dtype, seed=s, device=device) for s in range(1 + count)
            )
            torch.library.opcheck(torch.ops.stamm.activation, (inputs, values, form))
            torch.library.opcheck(
                torch.ops.stamm.activation_gradients, (weight, inputs, values, form)
            )


def test_second_derivatives_are_those_of_float64(device: torch.device, passes: list[str]) -> None:
    x = normal(64, 1024, dtype=torch.float32, seed=0, device=device)
    weight = normal(64, 1024, dtype=torch.float32, seed=1, device=device)
    found = []
    for module, given, into in (
        (xielu().to(device), x, weight),
        (xielu(dtype=torch.float64), x.double().cpu(), weight.double().cpu()),
    ):
        leaf = given.clone().requires_grad_()
        taken = [leaf, *module.parameters()]
        first = torch.autograd.grad(module(leaf), taken, into, create_graph=True)
        total = sum((g * g).sum() for g in first)
        assert isinstance(total, Tensor)
        found.append(torch.autograd.grad(total, taken))
    for ours, true in zip(*found, strict=True):
        torch.testing.assert_close(ours.double().cpu(), true.double(), rtol=1e-5, atol=1e-5)
    assert passes  # the first call is fused; what is differentiated twice is not


POLICIES = [SavePost(), SavePre(), Recompute()]


@pytest.mark.parametrize("memory", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_block_keeps_its_bits_under_every_memory_policy(
    memory: MemoryPolicy, device: torch.device, passes: list[str]
) -> None:
    torch.manual_seed(0)
    reference, block = (
        build_ffn(128, PlainFFN(width=512, memory=m)).bfloat16().to(device)
        for m in (SavePost(), memory)
    )
    block.load_state_dict(reference.state_dict())
    x, weight = (normal(256, 128, dtype=torch.bfloat16, seed=s, device=device) for s in range(2))
    expected, found = gradients(reference, weight, x), gradients(block, weight, x)
    assert torch.equal(expected[0], found[0])
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert all(torch.isfinite(t).all() for t in found)
    assert len(passes) >= 4


@pytest.fixture
def mesh(device: torch.device) -> Iterator[DeviceMesh]:
    """One process, alone in its group."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh(device.type, (1,), mesh_dim_names=("one",))
    finally:
        dist.destroy_process_group()


def _block(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return build_ffn(128, PlainFFN(width=512)).bfloat16().to(device)


def _whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_a_sharded_block_has_the_same_bits(
    device: torch.device, mesh: DeviceMesh, passes: list[str]
) -> None:
    block = _block(device)
    x, weight = (normal(256, 128, dtype=torch.bfloat16, seed=s, device=device) for s in range(2))
    sharded = copy.deepcopy(block)
    fully_shard(sharded.get_submodule("act_fn"), mesh=mesh)  # float32 beside bfloat16
    fully_shard(sharded, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in sharded.parameters())
    for model in (block, sharded):
        (_whole(model(x)) * weight).sum().backward()
    for own, other in zip(block.parameters(), sharded.parameters(), strict=True):
        assert torch.equal(_whole(own.grad), _whole(other.grad))
    assert len(passes) == 4
