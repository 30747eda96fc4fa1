"""The code that is exported with activations of which transformers has none, or not the same one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations import Parameter, Piece, Softplus, catalog
from stamm.activations.fused.operation import use_eager
from stamm.activations.module import build_activation
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import DataError, ExportError
from stamm.base.files import read_json, write_json
from stamm.export.transformers_target import TransformersTarget
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.hf_architecture import hub_class
from stamm.models.hf_files import CONFIG
from stamm.models.hub import CODE, HubModel
from stamm.models.hub_folder import load_hub
from stamm.models.remote_code import remote_code

X = torch.cat([torch.linspace(-9, 9, 501), torch.tensor([0.0, 1e-30, -1e-3, 30.0, -40.0])])
EXPORTABLE = [
    spec.name
    for spec in catalog.entries()
    if not (isinstance(spec.arity, Gated) and spec.arity.up is not None)
]


def module_of(spec: Spec) -> torch.nn.Module:
    """The activation of the exported code, without transformers."""
    code = remote_code(spec, hidden_act="own", base="torch.nn.Module", architecture="Model")
    code = code.replace("from transformers import torch.nn.Module\n", "")
    names: dict[str, Any] = {"__name__": "exported"}
    exec(code.replace("from transformers.activations import ACT2FN", "ACT2FN = {}"), names)
    assert "stamm." not in code.partition('"""\n')[2]
    module: torch.nn.Module = names["ACT2FN"]["own"]()
    return module


def check(spec: Spec) -> None:
    """Compare values, gradients and parameter names with stamm's own module."""
    theirs, ours = module_of(spec), build_activation(spec, precision="fast")
    stored = dict(theirs.named_parameters())
    assert {name: p.shape for name, p in stored.items()} == {
        name: p.shape for name, p in ours.named_parameters()
    }
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            stored[name].copy_(parameter.add_(0.2))
    inputs = (X, torch.ones_like(X)) if isinstance(spec.arity, Gated) else (X,)
    use_eager(ours.forms, eager=True)  # fused passes are compared with it elsewhere
    try:
        torch.testing.assert_close(theirs(X), ours(*inputs), rtol=1e-5, atol=1e-6)
    finally:
        use_eager(ours.forms, eager=False)
    assert theirs(X.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["xielu", "swiglu", "velu", "elu", "s_shaped_relu", "dice"])
def test_the_code_computes_the_function(name: str) -> None:
    check(catalog.get(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTABLE)
def test_the_code_of_every_entry_computes_its_function(name: str) -> None:
    check(catalog.get(name))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> Path:
    """A gated decoder with an activation that transformers does not have, exported."""
    folder = tmp_path_factory.mktemp("own") / "transformers"
    folder.mkdir()
    ffn = GatedFFN(width=24, activation="xswiglu")
    config = DecoderConfig(vocab_size=352, d_model=32, num_layers=2, ffn=ffn, init_std=0.2)
    tokenizer = inputs["tokenizer"] / "tokenizer.json"
    TransformersTarget().write(folder, build_decoder(config, seed=1), tokenizer)
    return folder


@pytest.mark.slow
def test_transformers_loads_it_and_computes_the_same(exported: Path) -> None:
    tokens = torch.arange(24)[None]
    ours = load_hub(exported)
    assert ours.config.ffn == GatedFFN(width=24, activation="xswiglu")
    loaded = TransformersTarget().load(exported)
    assert "StammQwen3ForCausalLM" in loaded.description
    assert "trust_remote_code=True" in loaded.card.usage
    assert (loaded.logits(tokens) - ours(tokens)).abs().max() < 1e-5


@pytest.mark.slow
def test_transformers_needs_no_stamm(exported: Path) -> None:
    script = (
        "import sys; sys.modules['stamm'] = None; import torch, transformers;"
        "model = transformers.AutoModelForCausalLM.from_pretrained("
        "sys.argv[1], trust_remote_code=True);"
        "print(model(torch.arange(24)[None]).logits.double().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(exported)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    ours = load_hub(exported)(torch.arange(24)[None]).double().sum().item()
    assert float(done.stdout) == pytest.approx(ours, abs=1e-2)


@pytest.mark.slow
def test_changed_code_is_never_executed(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / CODE).write_text("raise SystemExit('executed')\n")
    config = read_json(folder / CONFIG)
    config["hidden_act"] = "of_nobody"
    write_json(folder / CONFIG, config)
    with pytest.raises(ExportError, match="transformers cannot load"):
        HubModel(folder)


def test_the_stored_spec_must_be_the_one_that_is_named(exported: Path, tmp_path: Path) -> None:
    config = read_json(exported / CONFIG)
    config["stamm_activation"]["content_hash"] = "0" * 64
    write_json(tmp_path / CONFIG, config)
    with pytest.raises(DataError, match="content_hash = '000"):
        load_hub(tmp_path)


def test_an_entry_under_another_name_needs_no_code() -> None:
    own = replace(catalog.get("gelu"), name="my_gelu", aliases=())
    found = hub_class(DecoderConfig(ffn=PlainFFN(activation=own)))
    assert (found.hidden_act, found.own_code) == ("gelu", "")


def test_a_parameter_may_have_any_name() -> None:
    spec = Spec(
        name="odd",
        title="A parameter called self",
        source="",
        pieces=(Piece(where="all x", formula="self*cos(x)"),),
        parameters=(Parameter(name="self", initial=0.5, bijection=Softplus()),),
    )
    check(spec)
