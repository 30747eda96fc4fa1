"""Private names of torch that the package uses, and the tested range of torch. No torch here.

A private name may change in any release. tests/house/test_torch_private.py finds every use in the
package, checks that it is listed here, and that it exists in the installed torch.
"""

from __future__ import annotations

OLDEST, UNTESTED_FROM = "2.11", "2.14"  # as in pyproject.toml
_NEWEST = "2.13"

# Name -> purpose.
PRIVATE_NAMES: dict[str, str] = {
    "torch._C._AutoDispatchBelowAutograd": "call an operation's kernel below its own autograd function",
    "torch._C._autograd._top_saved_tensors_default_hooks": "whether checkpointing counts what autograd saves",
    "torch._C._dispatch_tls_is_dispatch_key_included": "whether make_fx traces before autograd",
    "torch._C._functorch": "whether torch.func transforms a tensor, where an operation has no rule for it",
    "torch._C._functorch.get_dynamic_layer_stack_depth": "number of torch.func transforms in progress",
    "torch._C._functorch.is_functorch_wrapped_tensor": "whether a tensor belongs to a torch.func transform",
    "torch._C._functorch.is_legacy_batchedtensor": "the same for the batching of torch.autograd.grad(is_grads_batched=True)",
    "torch._C._functorch.peek_interpreter_stack": "whether torch.func transforms a reduction of fixed order",
    "torch._C._len_torch_dispatch_stack": "whether a dispatch mode, such as fake tensors, observes a reduction",
    "torch._subclasses.fake_tensor.FakeTensorDeviceMismatchError": "an operation on tensors of two devices, of the same run",
    "torch._subclasses.fake_tensor.FakeTensorMode": "run an implementation on a device that is not there",
    "torch._VF._unpack_dual": "tangent of a tensor in forward mode, without the checks of unpack_dual",
    "torch._dynamo.exc.TorchDynamoException": "errors of compilation, reported in one line",
    "torch._dynamo.reset": "forget compilations of an earlier model, which count towards a limit",
    "torch._dynamo.utils.counters": "why a layer was compiled in several parts",
    "torch._assert_async": "targets of a loss on a GPU, without waiting for it",
    "torch._foreach_add_": "AdEMAMix over lists of tensors",
    "torch._foreach_div_": "AdEMAMix over lists of tensors",
    "torch._foreach_mul": "AdEMAMix over lists of tensors",
    "torch._foreach_mul_": "AdEMAMix over lists of tensors; gradient clipping",
    "torch._foreach_norm": "gradient norm",
    "torch._foreach_sub": "AdEMAMix over lists of tensors",
    "torch._foreach_sub_": "AdEMAMix over lists of tensors",
    "torch._inductor.config": "settings of the compiler",
    "torch._inductor.config.cpp.simdlen": "vector length as part of the key of the compiler's cache",
    "torch._inductor.config.cpp.vec_isa_ok": "vector length without a trial that a busy machine fails",
    "torch.distributed._functional_collectives": "all-gather with a gradient, for context parallelism; its name differs by version",
    "torch.distributed.device_mesh.DeviceMesh._concatenate": "replicas beside a flattened dimension, for HSDP, as FSDP does",
    "torch.distributed.device_mesh.DeviceMesh._flatten": "one mesh dimension out of several, for FSDP",
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": "rows and columns of a process's shard",
    "torch.nn.Module._apply": "activation parameters stay in float32 when a model is cast",
    "torch.nn.Module._load_from_state_dict": "activation parameters load from earlier names",
    "torch.ops.aten._unsafe_view": "a view that is a new tensor for autograd, as torch's own products return it",
    "torch.ops.mkldnn._linear_pointwise": "products of few rows with a matrix packed for oneDNN, for decoding",
    "torch.ops.mkldnn._reorder_linear_weight": "packs that matrix",
    "torch.utils._pytree": "name of a logger that is silenced while torchao is imported",
}


def untested_torch(version: str) -> str:
    """A warning when this version of torch is outside of the tested range; "" when it is inside."""
    release = _numbers(version)
    if release and _numbers(OLDEST) <= release < _numbers(UNTESTED_FROM):
        return ""
    return (
        f"torch {version} is outside of the tested range, {OLDEST} to {_NEWEST}: "
        "results may differ, private names may be missing"
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(p.isdigit() for p in parts) else ()
