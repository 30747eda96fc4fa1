"""A swapped model: saved with its own code, loaded without stamm, taken out again."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import stamm
from stamm.activations import Parameter, Piece, Softplus
from stamm.activations.catalog.registry import load_spec
from stamm.activations.module import build_activation
from stamm.activations.spec import Spec
from stamm.base.config import to_plain
from stamm.base.files import read_json, write_json
from tests.unit.swap.small_models import IDS, MODELS, batch, build, logits, move_shapes

_CHECK = """
import sys
sys.modules["stamm"] = None
import torch, transformers
from safetensors.torch import load_file
transformers.logging.set_verbosity_error()
given = load_file(sys.argv[1])
for folder in sys.argv[2:]:
    name = folder.rpartition("/")[2]
    batch = {key.partition("|")[2]: value for key, value in given.items() if key.startswith(name + "|in_")}
    kind = transformers.AutoConfig.from_pretrained(folder).auto_map
    auto = getattr(transformers, sorted(kind)[0])
    model = auto.from_pretrained(folder, trust_remote_code=True)
    for parameter in model.parameters():  # products may depend on the address: torch's is aligned
        parameter.data = parameter.data.clone()
    with torch.no_grad():
        result = model(**{key[3:]: value for key, value in batch.items()}).logits
    print(name, torch.equal(result, given[name + "|logits"]), type(model).__name__)
"""


def load(model: Any, folder: Path) -> Any:
    """The model that was saved in `folder`, its weights where torch allocates them.

    transformers leaves some where they lie in the file: a product may depend on that in its last bit.
    """
    auto = getattr(transformers, sorted(model.config.auto_map)[0])
    loaded = auto.from_pretrained(folder, trust_remote_code=True)
    for parameter in loaded.parameters():
        parameter.data = parameter.data.clone()
    return loaded


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_has_the_same_bits_and_the_undo_is_exact(name: str, tmp_path: Path) -> None:
    model = build(name)
    before, config, names = logits(model, name), model.config.to_dict(), list(model.state_dict())
    old_class, wide = type(model), set(model._keep_in_fp32_modules_strict)
    done = stamm.swap(model, "xielu")
    assert done.gated == MODELS[name][2]
    assert len(done.sites) == sum(p.endswith("alpha_p") for p, _ in model.named_parameters())
    move_shapes(model)
    swapped = logits(model, name)
    assert not torch.allclose(swapped, before, atol=1e-3)
    model.save_pretrained(tmp_path)
    loaded = load(model, tmp_path)
    assert torch.equal(logits(loaded, name), swapped)
    for other in (model, loaded):
        stamm.swap(other, back=True)
        assert type(other) is old_class
        assert torch.equal(logits(other, name), before)
        assert list(other.state_dict()) == names
        assert set(other._keep_in_fp32_modules_strict) == wide
    left = model.config.to_dict()
    changed = {key for key in {*left, *config} if left.get(key) != config.get(key)}
    assert changed <= {"dtype", "architectures"}  # written by save_pretrained itself


def test_a_folder_is_loaded_where_stamm_cannot_be_imported(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    given: dict[str, torch.Tensor] = {}
    folders = []
    for name in MODELS:
        model = build(name)
        stamm.swap(model, "xielu", parameters="neuron")
        move_shapes(model)
        model.save_pretrained(tmp_path / name)
        folders.append(str(tmp_path / name))
        given[f"{name}|logits"] = logits(model, name).contiguous()
        given |= {f"{name}|in_{key}": value.clone() for key, value in batch(name).items()}
    save_file(given, tmp_path / "given.safetensors")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            _CHECK,
            str(tmp_path / "given.safetensors"),
            *folders,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines == [f"{name} True Stamm{name}" for name in MODELS]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_bits_of_other_types_are_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    build("LlamaForCausalLM").save_pretrained(tmp_path / "old")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "old", dtype=dtype)
    stamm.swap(model, "xielu", parameters="neuron")
    move_shapes(model)
    swapped = logits(model, "LlamaForCausalLM")
    model.save_pretrained(tmp_path / "new")
    loaded = load(model, tmp_path / "new")
    shapes = {p.dtype for n, p in loaded.named_parameters() if "alpha" in n}
    assert shapes == {torch.float64 if dtype == torch.float64 else torch.float32}
    assert loaded.dtype == dtype and torch.equal(logits(loaded, "LlamaForCausalLM"), swapped)


@pytest.mark.parametrize("parameters", ["layer", "neuron"])
def test_values_and_gradients_are_those_of_the_module(parameters: Any) -> None:
    model = build("GPT2LMHeadModel")
    stamm.swap(model, "xielu", parameters=parameters)
    move_shapes(model)
    ours = model.transformer.h[0].mlp.act
    size = 128 if parameters == "neuron" else None
    module = build_activation("xielu", neurons=size)
    module.load_values(
        {n: p.tolist() if size else p.item() for n, p in ours.named_parameters()}, raw=True
    )
    x = torch.linspace(-6, 6, 4 * 128).reshape(4, 128)
    weight = torch.cos(torch.arange(4.0 * 128)).reshape(4, 128)
    for training in (False, True):  # the statements of the saved code; fused kernels
        ours.train(training)
        ours.zero_grad()
        module.zero_grad()
        here, there = x.clone().requires_grad_(), x.clone().requires_grad_()
        value, expected = ours(here), module(there)
        (value * weight).sum().backward()
        (expected * weight).sum().backward()
        torch.testing.assert_close(value, expected, rtol=3e-7, atol=0)
        torch.testing.assert_close(here.grad, there.grad, rtol=1e-6, atol=1e-7)
        for name, parameter in ours.named_parameters():
            other = module.get_parameter(name)
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_finite_differences() -> None:
    model = build("GPT2LMHeadModel").double()
    stamm.swap(model, "xielu")
    act = model.transformer.h[0].mlp.act.double()
    x = torch.tensor([-3.0, -1.2, -0.4, 0.3, 2.0], dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(act, {"alpha_p": p, "alpha_n": n}, (x,))
        return result

    shapes = [
        act.get_parameter(n).detach().clone().requires_grad_() for n in ("alpha_p", "alpha_n")
    ]
    assert torch.autograd.gradcheck(function, (x, *shapes))


@pytest.mark.parametrize(
    ("model_name", "activation"),
    [("LlamaForCausalLM", "silu"), ("LlamaForCausalLM", "swiglu"), ("GPT2LMHeadModel", "gelu_tanh"),
     ("BertForMaskedLM", "gelu"), ("OPTForCausalLM", "relu"), ("T5ForConditionalGeneration", "geglu_tanh")],
)  # fmt: skip
def test_the_same_function_changes_nothing(model_name: str, activation: str) -> None:
    model = build(model_name).double()
    before = logits(model, model_name)
    done = stamm.swap(model, activation)
    assert done.numbers == 0
    torch.testing.assert_close(logits(model, model_name), before, rtol=1e-10, atol=1e-11)


def test_a_map_to_code_that_a_published_folder_had_comes_back(tmp_path: Path) -> None:
    model = build("Phi3ForCausalLM")
    published = {"AutoConfig": "someone/phi--configuration_phi3.Phi3Config"}
    model.config.auto_map = dict(published)
    stamm.swap(model, "xsilu")
    model.save_pretrained(tmp_path)
    stored = read_json(tmp_path / "config.json")["auto_map"]
    assert stored == {"AutoModelForCausalLM": "modeling_stamm.StammPhi3ForCausalLM"}
    loaded = load(model, tmp_path)
    for other in (model, loaded):
        stamm.swap(other, back=True)
        assert other.config.auto_map == published


def test_plain_loading_is_refused_instead_of_another_function(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM")
    assert stamm.swap(model, "xsilu").refuses_plain
    model.save_pretrained(tmp_path)
    for kind in (
        transformers.AutoModelForCausalLM,
        transformers.LlamaForCausalLM,
        transformers.AutoModel,
    ):
        with pytest.raises(KeyError, match="stamm_xsilu_"):
            kind.from_pretrained(tmp_path)
    bloom = build("BloomForCausalLM")
    assert not stamm.swap(bloom, "xsilu").refuses_plain


def test_a_loaded_model_is_saved_trained_and_saved_again(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xsilu")
    model.save_pretrained(tmp_path / "first")
    loaded = load(model, tmp_path / "first")
    loss = loaded.train()(input_ids=IDS, labels=IDS).loss
    loss.backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()
    trained = logits(loaded.eval(), "LlamaForCausalLM")
    loaded.save_pretrained(tmp_path / "second")
    again = load(model, tmp_path / "second")
    assert torch.equal(logits(again, "LlamaForCausalLM"), trained)
    assert not torch.equal(trained, logits(model, "LlamaForCausalLM"))
    first, second = (tmp_path / n / "modeling_stamm.py" for n in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


class _Hub:
    """What transformers asks of the Hub, without a network."""

    def create_repo(self, repo_id: str, **_: Any) -> Any:
        """The repository."""
        return SimpleNamespace(repo_id=repo_id)


def _no_card(*_: Any, **__: Any) -> Any:
    """Where transformers would fetch and fill a model card."""
    return SimpleNamespace(save=lambda path: None)


@pytest.mark.parametrize("way", ["push_to_hub", "save_pretrained"])
def test_an_upload_has_the_code(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = tmp_path / "fetched"

    def upload(
        self: Any, working_dir: str, repo_id: str, files_timestamps: dict[str, float], **_: Any
    ) -> None:
        fetched.mkdir()
        for file in Path(working_dir).iterdir():
            if file.stat().st_mtime > files_timestamps.get(file.name, 0):
                (fetched / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(transformers.PreTrainedModel, "_upload_modified_files", upload)
    for module in ("utils.hub", "modeling_utils"):
        monkeypatch.setattr(f"transformers.{module}.hf_api", _Hub)
        monkeypatch.setattr(f"transformers.{module}.create_and_tag_model_card", _no_card)
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xsilu")
    if way == "push_to_hub":
        model.push_to_hub("someone/model")
    else:
        model.save_pretrained(tmp_path / "model", push_to_hub=True)
    loaded = load(model, fetched)
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))


def test_code_that_was_removed_from_the_cache_is_written_again(tmp_path: Path) -> None:
    model = build("OPTForCausalLM")
    stamm.swap(model, "xsilu")
    Path(sys.modules[type(model).__module__].__file__ or "").unlink()
    model.save_pretrained(tmp_path)
    loaded = load(model, tmp_path)
    assert torch.equal(logits(loaded, "OPTForCausalLM"), logits(model, "OPTForCausalLM"))


def test_where_names_a_part_of_the_places(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM")
    before = [type(layer.mlp.act_fn) for layer in model.model.layers]
    done = stamm.swap(model, "xielu", where="model.layers.1.*")
    assert done.sites == ("model.layers.1.mlp.act_fn",)
    assert type(model.model.layers[0].mlp.act_fn) is before[0]
    model.save_pretrained(tmp_path)
    loaded = load(model, tmp_path)
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))
    bert = build("BertForMaskedLM")
    done = stamm.swap(bert, "xielu", where=["*.transform.*", "*.layer.0.*"])
    assert len(done.sites) == 2 and any("transform" in site for site in done.sites)


def test_a_spec_of_ones_own_and_a_copy(tmp_path: Path) -> None:
    spec = Spec(
        name="bent_silu",
        title="SiLU with a trained slope",
        source="",
        pieces=(Piece(where="all x", formula="a*(sigmoid(x) + x*sigmoid(x)*(1 - sigmoid(x)))"),),
        parameters=(Parameter(name="a", initial=1.0, bijection=Softplus()),),
    )
    model = build("LlamaForCausalLM")
    stamm.swap(model, spec)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.model.layers[0].mlp.act_fn.a.add_(1)
    assert not torch.equal(logits(copied, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))
    copied.save_pretrained(tmp_path)
    loaded = load(model, tmp_path)
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(copied, "LlamaForCausalLM"))
    stored = read_json(tmp_path / "config.json")["stamm_swap"]
    assert stored["content_hash"] == spec.content_hash
    stamm.swap(copied, back=True)
    stamm.swap(model, back=True)
    assert torch.equal(logits(copied, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))


def test_a_spec_in_a_file_or_a_derived_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from stamm.activations import Piece\nfrom stamm.activations.spec import Spec\n"
        'SPEC = Spec(name="mine", title="Mine", source="",'
        ' pieces=(Piece(where="all x", formula="sigmoid(x)"),))\n'
    )
    stored = to_plain(load_spec(f"{tmp_path / 'mine.py'}:SPEC"))
    (tmp_path / "derived").mkdir()
    write_json(tmp_path / "derived" / "spec.json", stored)
    results = []
    for given in (f"{tmp_path / 'mine.py'}:SPEC", str(tmp_path / "derived")):
        model = build("GPT2LMHeadModel")
        assert stamm.swap(model, given).activation == "mine"
        results.append(logits(model, "GPT2LMHeadModel"))
    assert torch.equal(*results)


def test_a_pickled_model_is_read_by_another_process(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu")
    move_shapes(model)
    torch.save(model, tmp_path / "model.pt")
    torch.save(logits(model, "LlamaForCausalLM"), tmp_path / "logits.pt")
    script = (
        "import sys, torch\n"
        "model = torch.load(sys.argv[1] + '/model.pt', weights_only=False)\n"
        "expected = torch.load(sys.argv[1] + '/logits.pt')\n"
        "ids = (torch.arange(3, 19) * 5 % 97)[None]\n"
        "with torch.no_grad(): assert torch.equal(model(input_ids=ids).logits, expected)\n"
        "model.save_pretrained(sys.argv[1] + '/saved')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = load(model, tmp_path / "saved")
    assert torch.equal(logits(loaded, "LlamaForCausalLM"), logits(model, "LlamaForCausalLM"))


def test_a_plain_function_is_put_back() -> None:
    model = build("GPT2LMHeadModel")
    for block in model.transformer.h:
        del block.mlp.act
        block.mlp.act = nn.functional.silu
    before = logits(model, "GPT2LMHeadModel")
    done = stamm.swap(model, "silu")
    assert done.sites == ("transformer.h.0.mlp.act", "transformer.h.1.mlp.act")
    torch.testing.assert_close(logits(model, "GPT2LMHeadModel"), before, rtol=1e-5, atol=1e-5)
    stamm.swap(model, back=True)
    assert model.transformer.h[0].mlp.act is nn.functional.silu
    assert torch.equal(logits(model, "GPT2LMHeadModel"), before)


def test_shapes_are_fitted_to_the_old_function() -> None:
    """Swish with beta = 1 is SiLU."""
    model = build("LlamaForCausalLM")
    before, training = logits(model, "LlamaForCausalLM"), [m.training for m in model.modules()]
    unfitted = copy.deepcopy(model)
    with torch.no_grad():
        done = stamm.swap(model, "swish_beta", fit=IDS)
    stamm.swap(unfitted, "xielu")
    assert max(fit.error for fit in done.fits.values()) < 1e-9
    assert [m.training for m in model.modules()][: len(training)] == training
    betas = [p.item() for n, p in model.named_parameters() if n.endswith("beta")]
    assert len(betas) == 2
    torch.testing.assert_close(logits(model, "LlamaForCausalLM"), before, rtol=1e-3, atol=1e-3)
    fitted = build("LlamaForCausalLM")
    fits = stamm.swap(fitted, "xielu", fit={"input_ids": IDS}).fits
    assert all(fit.error < fit.initial_error for fit in fits.values())
    gap = (logits(fitted, "LlamaForCausalLM") - before).square().mean()
    assert gap < (logits(unfitted, "LlamaForCausalLM") - before).square().mean()


def test_a_billion_parameters_on_the_meta_device() -> None:
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    assert model.num_parameters() > 1e9
    done = stamm.swap(model, "xielu", parameters="neuron")
    assert done.numbers == 16 * 2 * 8192
    assert {p.device.type for p in model.parameters()} == {"meta"}
