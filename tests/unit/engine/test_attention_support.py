"""What attends, told from the configuration, is what attention itself chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stamm.engine.attention_support import kernel_of, refusals
from stamm.engine.config import EngineConfig, Parallel, Precision
from stamm.models.attention_mask import choose
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.fused_attention import unavailable_reason

MODEL = DecoderConfig(d_model=128, num_heads=4, num_kv_heads=4, ffn=PlainFFN(width=64))


@pytest.mark.parametrize("width", [8, 16, 30, 64, 256, 260])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("context", [1, 2])
def test_auto_is_what_attention_chooses(width: int, precision: Precision, context: int) -> None:
    if unavailable_reason():
        pytest.skip("nothing can be compiled here")
    model = replace(MODEL, head_dim=width)
    engine = EngineConfig(precision=precision, parallel=Parallel(context=context))
    dtype = getattr(torch, precision)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    whole = context == 1
    assert kernel_of(engine, model, gpu=False) == choose("auto", cpu, width, dtype, whole=whole)
    assert kernel_of(engine, model, gpu=True) == choose("auto", gpu, width, dtype, whole=whole)
    assert not list(refusals(engine, model, gpu=False))


@pytest.mark.parametrize(
    ("engine", "width", "gpu", "said"),
    [
        (EngineConfig(attention="flex"), 64, False, "has no backward pass on a CPU"),
        (EngineConfig(attention="flex"), 8, True, "at least 16, and these have 8"),
        (EngineConfig(attention="fused"), 64, True, "is for CPUs"),
        (EngineConfig(attention="fused"), 6, False, "heads are 6 wide"),
        (EngineConfig(attention="fused", precision="bfloat16"), 64, False, "is 'bfloat16'"),
        (EngineConfig(attention="fused", parallel=Parallel(context=2)), 64, False, "divides them"),
        (EngineConfig(attention="dense"), 6, False, None),
        (EngineConfig(attention="flex"), 64, True, None),
        (EngineConfig(attention="fused"), 64, False, None),
    ],
)
def test_what_cannot_train_is_refused(
    engine: EngineConfig, width: int, gpu: bool, said: str | None
) -> None:
    found = list(refusals(engine, replace(MODEL, head_dim=width), gpu=gpu))
    assert [said in what for what, _ in found] == [True] if said else found == []
