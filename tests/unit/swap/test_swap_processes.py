"""A swapped model under DDP and FSDP2, gloo on the CPU, against one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.conftest import environment
from tests.forked import Parent
from tests.unit.swap.small_models import logits

SCRIPT = Path(__file__).with_name("swap_processes.py")


def _trained(parent: Parent, folder: Path, way: str, count: int) -> dict[str, torch.Tensor]:
    out = folder / way
    done = parent.run([str(SCRIPT), str(out), way], folder, environment(), ranks=count, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    tensors: dict[str, torch.Tensor] = load_file(out / "trained.safetensors")
    return tensors


@pytest.mark.slow
def test_two_processes_follow_one(parent: Parent, tmp_path: Path) -> None:
    alone = _trained(parent, tmp_path, "one", 1)
    for way in ("ddp", "fsdp2"):
        trained = _trained(parent, tmp_path, way, 2)
        assert set(trained) == set(alone)
        for name, value in trained.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-5, msg=name)
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / way / "model", trust_remote_code=True
        )
        for way in ("one", "ddp", "fsdp2")
    ]
    for way in ("ddp", "fsdp2"):
        code = [file.name for file in (tmp_path / way / "model").glob("*.py")]
        assert code == ["modeling_stamm.py"]
    for model in models:
        assert type(model).__name__ == "StammLlamaForCausalLM"
    first, *others = [logits(model, "LlamaForCausalLM") for model in models]
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-2, atol=1e-3)
