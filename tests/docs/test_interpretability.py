"""Every block of docs/interpretability.md runs on an exported folder, and reads what stamm's decoder computes."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stamm
from stamm.export import job
from stamm.export.config import ExportConfig
from stamm.models.loading import open_model
from stamm.models.model_source import ModelSource
from stamm.models.steering import SteeringHeader, SteeringVector, parameters_sha256
from stamm.runs.job import Workspace
from tests.conftest import ROOT, environment
from tests.unit.untrained_run import untrained_run

PAGE = (ROOT / "docs" / "interpretability.md").read_text(encoding="utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# (\w+)\n(.*?)```", PAGE, re.DOTALL))
TEXT = "The river is wide."


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, inputs = (
        tmp_path_factory.mktemp("exported"),
        untrained_run(tmp_path_factory.mktemp("made")),
    )
    arm = root / "runs/demo/arms/xielu"
    shutil.copytree(inputs["model"].parent, arm)
    config = ExportConfig(
        parity_rows=2, parity_tokens=40, prompt_tokens=6, sample_tokens=8, threads=1
    )
    job.run(config, Workspace(folder=arm / "export", inputs=inputs))
    return root


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a block of the page defines."""
    pytest.importorskip(name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    (folder / f"{name}_block.py").write_text(BLOCKS[name], encoding="utf-8")
    return runpy.run_path(f"{name}_block.py")


# The tensors that a block defines, written by the process that ran it.
_SAVED = """
import runpy, sys, torch
names = runpy.run_path(sys.argv[1])
torch.save({n: v.detach() for n, v in names.items() if isinstance(v, torch.Tensor)}, sys.argv[2])
"""


def tensors_of(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that a block defines, run in a process of its own.

    nnsight gives every object of its process attributes: one that then loads ONNX Runtime or MLX crashes.
    """
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    script, saved = folder / f"{name}_block.py", folder / f"{name}.pt"
    script.write_text("import torch\ntorch.manual_seed(0)\n" + BLOCKS[name], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _SAVED, str(script), str(saved)],
        cwd=folder, env={**environment(), "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded: dict[str, torch.Tensor] = torch.load(saved, weights_only=True)
    return loaded


class Own:
    """The same in stamm's decoder: pre-activation, features and residual stream of layer 1, and logits."""

    def __init__(self, folder: Path, text: str, add: float = 0.0) -> None:
        arm = folder / "runs/demo/arms/xielu"
        model = open_model(ModelSource(model=arm / "model", tokenizer=arm / "tokenizer"))
        layer: Any = model.decoder.model.layers[1]

        def block(_m: Any, inputs: Any, output: torch.Tensor) -> None:
            self.pre, self.post = inputs[0], output

        def whole(_m: Any, _i: Any, output: torch.Tensor) -> torch.Tensor:
            self.resid = output + add
            return self.resid

        layer.mlp.act_fn.register_forward_hook(block)
        layer.register_forward_hook(whole)
        with torch.no_grad():
            ids = [*model.prefix, *model.tokenizer.encode(text)]
            self.logits = model.decoder(torch.tensor([ids]))


def steered_logits(folder: Path) -> torch.Tensor:
    """Logits with 1 added by `stamm.steered` to the residual stream behind layer 1."""
    arm = folder / "runs/demo/arms/xielu"
    model = open_model(ModelSource(model=arm / "model", tokenizer=arm / "tokenizer"))
    header = SteeringHeader(
        model_sha256=parameters_sha256(model.decoder), method="means", strength=1.0
    )
    vector = SteeringVector(layers={1: torch.ones(model.decoder.config.d_model)}, header=header)
    ids = [*model.prefix, *model.tokenizer.encode(TEXT)]
    with stamm.steered(model.decoder, vector), torch.no_grad():
        logits: torch.Tensor = model.decoder(torch.tensor([ids]))
    return logits


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    largest = float(b.detach().abs().max())
    return a.shape == b.shape and float((a - b).detach().abs().max()) <= 1e-5 * max(largest, 1.0)


def test_every_tool_of_the_table_has_a_block() -> None:
    assert list(BLOCKS) == ["nnsight", "transformer_lens", "pyvene", "peft", "sae_lens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nnsight", "transformer_lens", "pyvene"])
def test_a_tool_reads_and_changes_what_stamm_computes(name: str, exported: Path) -> None:
    found = tensors_of(name, exported)
    own = Own(exported, TEXT)
    for part in ("pre", "post", "resid"):
        if name != "pyvene":
            assert close(found[part], getattr(own, part)), part
    assert close(found["logits"], own.logits)
    if name != "transformer_lens":
        assert close(found["steered"], Own(exported, TEXT, add=1.0).logits)
        assert not close(found["steered"], own.logits)
        expected = steered_logits(exported)
        assert float((found["steered"] - expected).abs().max()) <= 1e-6 * float(
            expected.abs().max()
        )
        return
    # The last position of the patched text has the residual stream of the other one, and its logits.
    assert close(found["patched"][:, -1], own.logits[:, -1])
    assert not close(Own(exported, "Trees grow.").logits[:, -1], own.logits[:, -1])


@pytest.mark.slow
def test_peft_trains_the_shapes_alone(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("peft", exported, monkeypatch)
    assert len(found["trained"]) == 4  # two shape parameters in each of two layers
    assert all("act_fn" in name for name in found["trained"])
    ids = torch.arange(10, 20)[None]
    model = found["AutoModelForCausalLM"].from_pretrained(found["folder"])
    for changed in (found["lora"], found["shapes"]):
        assert torch.equal(changed(ids).logits, model(ids).logits)


@pytest.mark.slow
def test_a_sparse_autoencoder_learns(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("sae_lens", exported, monkeypatch)
    assert 0.0 < float(found["error"]) < 0.9
