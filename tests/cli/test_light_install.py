"""`pip install stamm` without extras: what works there, and what the rest says."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stamm.base.extras import EXTRA_OF
from stamm.recipes.step_kinds import STEP_KINDS

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
AT_MOST = {"torch", "numpy", "sympy", "mpmath", "safetensors", "rich"}
# torch's builds for a GPU, which a machine without one does not have.
ABSENT = re.compile(r"nvidia-|cuda-|triton|setuptools")


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _needed(stated: list[str]) -> set[str]:
    """The distributions and all that they require, by their own metadata."""
    known: set[str] = set()
    left = [Requirement(line) for line in stated]
    while left:
        wanted = left.pop()
        key = str(wanted)
        name = _name(wanted.name)
        here = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if not here or key in known or ABSENT.match(name):
            continue
        known.add(key)
        for line in importlib.metadata.requires(name) or ():
            inner = Requirement(line)
            extras = ("", *wanted.extras)
            if inner.marker is None or any(inner.marker.evaluate({"extra": e}) for e in extras):
                inner.marker = None
                left.append(inner)
    return {_name(Requirement(key).name) for key in known}


def _stated(extra: str) -> list[str]:
    """The requirements of an extra, and of those of stamm's own that it names."""
    lines = []
    for line in DECLARED["optional-dependencies"][extra]:
        own = re.fullmatch(r"stamm\[([\w,-]+)\]", line)
        lines += [r for name in own[1].split(",") for r in _stated(name)] if own else [line]
    return lines


def _installed(folder: Path, *extras: str) -> Path:
    """`folder` with what `pip install stamm[EXTRAS]` installs, linked from here, and stamm itself."""
    lines = [*DECLARED["dependencies"], *(line for extra in extras for line in _stated(extra))]
    for name in _needed(lines):
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).is_symlink():
                whole = Path(str(file.locate()))
                (folder / top).symlink_to([whole, *whole.parents][len(file.parts) - 1])
    (folder / "stamm").symlink_to(ROOT / "src" / "stamm")
    return folder


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install stamm` installs."""
    return _installed(tmp_path_factory.mktemp("light"))


def _run(light: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`code` in an interpreter that sees the folder and the standard library alone."""
    begin = f"import sys; sys.path.append({str(light)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", begin + code, *words],
        capture_output=True, text=True, check=False, cwd=light,
        env={**os.environ, "HOME": str(light), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _stamm(light: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return _run(light, "from stamm.cli.main import main\nsys.exit(main())", *words)


def test_the_package_requires_what_an_activation_needs() -> None:
    assert {_name(line) for line in DECLARED["dependencies"]} == AT_MOST


@pytest.mark.slow
def test_activations_derivations_and_losses_work(light: Path) -> None:
    done = _run(
        light,
        """
import torch, stamm
x = torch.linspace(-2, 2, 9, requires_grad=True)
stamm.activation("xielu")(x).sum().backward()
assert x.grad is not None and x.grad.isfinite().all()
hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(7, 4)
stamm.linear_cross_entropy(hidden, weight, torch.arange(5)).loss.backward()
assert stamm.derive(stamm.activations.get("silu")).spec.name == "silu"
for name in ("pyarrow", "transformers", "duckdb", "tokenizers", "matplotlib"):
    assert name not in sys.modules
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name)
""",
    )
    assert done.returncode == 0, done.stderr
    for words in (["ls"], ["show", "xielu"], ["check", "xielu"], ["--help"], ["ls", "recipes"]):
        done = _stamm(light, *words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["run", "smoke"], "corpus"),
        (["show", "xielu", "--plot", "xielu.svg"], "train"),
        (["derive", "tanh(x)"], "train"),
    ],
)
def test_a_verb_that_needs_more_names_its_extra(light: Path, words: list[str], extra: str) -> None:
    done = _stamm(light, *words)
    assert done.returncode == 1
    line = rf"stamm: .*this needs \w+, which is not installed. Run: pip install 'stamm\[{extra}\]'"
    assert re.search(line, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_every_library_that_an_extra_brings_is_known() -> None:
    """A door to a library without a line in the table would end in a traceback."""
    brought = {
        _name(line)
        for extra in ("train", "corpus", "align", "export")
        for line in DECLARED["optional-dependencies"][extra]
    } - {"stamm"}
    modules = {
        "httpcore2": "httpcore2",
        "fasttext-numpy2": "fasttext",
        "huggingface-hub": "huggingface_hub",
    }
    modules["fasttext-numpy2-wheel"] = "fasttext"
    assert {modules.get(name, name) for name in brought} <= EXTRA_OF.keys()


EXTRA_OF_JOBS = {"corpus": "corpus", "align": "align", "export": "export"}  # others: train
# It reads the ledger and the duplicates of a corpus, and the steps of a training.
OF_TWO = {"stamm.pretrain.forget.job": "corpus,train"}


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["train", "corpus", "align", "export", "corpus,train"])
def test_the_jobs_of_an_extra_load_with_it_alone(tmp_path: Path, extra: str) -> None:
    modules = sorted(
        {
            module
            for module in (one.job.partition(":")[0] for one in STEP_KINDS.values())
            if (OF_TWO.get(module) or EXTRA_OF_JOBS.get(module.split(".")[1], "train")) == extra
        }
    )
    assert modules
    code = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    done = _run(_installed(tmp_path, *extra.split(",")), code)
    assert done.returncode == 0, done.stderr[-600:]


def test_everything_is_all() -> None:
    assert set(_stated("all")) >= {
        line for extra in ("train", "corpus", "align", "export") for line in _stated(extra)
    }
