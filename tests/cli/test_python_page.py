"""Every code block of docs/python.md runs, and the public interface works on a finished run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stamm
from stamm.recipes.demo import demo
from tests.conftest import ROOT, contents, environment

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_page_runs(number: int, smoke_run: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    code = BLOCKS[number].replace('"demo"', '"smoke"')
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_type_checker_finds_no_fault_in_the_page_and_reports_a_wrong_name(tmp_path: Path) -> None:
    typed = """
from stamm.recipes.demo import demo

print(stamm.recipes.build(demo).no_field)  # reported
print(stamm.no_name)  # reported
print(stamm.activations.no_name)  # reported
print(stamm.activations.catalog.get("xielu").no_field)  # reported
print(stamm.activation("xielu")(torch.ones(2)).no_method())  # reported
"""
    code = "\n".join((*BLOCKS, typed))
    (tmp_path / "page.py").write_text(code)
    done = subprocess.run(
        # torch's own Tensor.backward is not typed
        [sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "page.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    lines = re.findall(r"page.py:(\d+): error", done.stdout)
    reported = [n for n, line in enumerate(code.split("\n"), 1) if line.endswith("# reported")]
    assert [int(line) for line in lines] == reported, done.stdout


def test_a_recipe_is_built_by_its_function_too() -> None:
    named = stamm.recipes.build("demo", "pretrain.sequences=96")
    assert stamm.recipes.build(demo, "pretrain.sequences=96") == named


def test_the_page_lists_every_public_name() -> None:
    for name in set(stamm.__all__) - {"__version__", "LoadedModel"}:
        assert f"`{name}" in PAGE, name


def test_an_arm_and_its_export_load_as_the_same_model(smoke_run: Path) -> None:
    import torch

    model, tokenizer = stamm.load(smoke_run / "arms" / "xielu")
    exported = stamm.load(smoke_run / "arms" / "xielu" / "export")
    assert not model.training
    assert not exported.model.training
    tokens = torch.tensor([tokenizer.encode("We the people")])
    assert exported.tokenizer.encode("We the people") == tokens[0].tolist()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), exported.model(tokens), rtol=1e-4, atol=1e-4)


def test_load_and_arm_name_what_is_missing(smoke_run: Path, tmp_path: Path) -> None:
    with pytest.raises(stamm.RunError, match=r"holds 3 trained models. Name one: .*xielu"):
        stamm.load(smoke_run)
    with pytest.raises(stamm.RunError, match="Did you mean 'xielu'"):
        stamm.load(smoke_run, "xielo")
    with pytest.raises(stamm.RunError, match="holds no trained model"):
        stamm.load(tmp_path)
    with pytest.raises(stamm.RunError, match="is not a folder"):
        stamm.load(tmp_path / "absent")
    with pytest.raises(stamm.ConfigError, match="Pass out=FOLDER"):
        stamm.run(stamm.recipes.build("smoke"))


@pytest.mark.slow
def test_a_configuration_runs_like_its_recipe(smoke_run: Path, tmp_path: Path) -> None:
    """From Python, from a configuration: the same files as the command line's."""
    config = stamm.recipes.build("pretrain.llama_1b_xielu", f"pack={smoke_run / 'pack'}", *TINY)
    run = stamm.run(config, out=tmp_path / "one", quiet=True)
    assert run.state == "complete"
    assert run.arms == ("xielu",)
    assert run.report is not None
    before = contents(run.root)
    assert stamm.run(config, out=tmp_path / "one", quiet=True).root == run.root
    assert contents(run.root) == before
    assert "loss" in str(run.metrics()[-1])


TINY = (
    "model.vocab_size=512",
    "model.d_model=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.max_context=64",
    "model.ffn.width=48",
    "context=64",
    "sequences=16",
    "batch.0.size=8",
    "micro_batch=4",
    "engine.device=cpu",
    "engine.precision=float32",
)
