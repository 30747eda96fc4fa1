"""Training with engine.portable_bits: the same bits with code for other processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, RunError
from stamm.base.files import read_json
from stamm.base.processor import PORTABLE, use_portable_code
from stamm.engine.config import EngineConfig, Parallel
from stamm.optim.config import Muon
from stamm.pretrain import job
from stamm.recipes.execute import RecipeRun
from stamm.recipes.resolve import Resolved
from stamm.runs.job import Workspace
from tests.conftest import ROOT, environment
from tests.unit.trained_run import config_of, corpus, same_run

# Vectors, MKL's functions and linear algebra, and the C library as on other processors.
OTHER = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "MKL_VML_DEBUG_CPU_TYPE": "5",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512DQ,-AVX512BW",
}
ARMS = ("fused", "dense")
# The configuration of the toy is imported from tests/.
WITH_TESTS = {**environment(), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("portable")
    corpus(folder)
    return folder / "pack"


def started(root: Path, pack: Path, words: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    """A process that trains in `root`."""
    root.mkdir()
    (root / "pack").symlink_to(pack)
    script = Path(__file__).with_name("portable_process.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(root), *words.split()],
        env={**WITH_TESTS, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_bits_are_those_of_other_processors_and_plain_ones_are_not(pack: Path) -> None:
    runs = {
        "here": ("portable wide", PORTABLE),
        "there": ("portable narrow replay", {**OTHER, **PORTABLE}),
        "plain": ("plain wide", {}),
        "elsewhere": ("plain wide", OTHER),
    }
    processes = {
        name: started(pack.parent / name, pack, words, variables)
        for name, (words, variables) in runs.items()
    }
    printed = {}
    for name, process in processes.items():
        printed[name], errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
    here, there, plain, elsewhere = (pack.parent / name / "run" / "arms" for name in runs)
    for arm in ARMS:
        assert same_run(here / arm, there / arm), arm
        assert not same_run(plain / arm, elsewhere / arm), arm
    # A release from another processor is replayed to the bit; from another arithmetic within the tolerance.
    replayed = json.loads(printed["there"])
    assert replayed["same"] == replayed["problems"] == []
    assert len(replayed["others"]) == 1 and replayed["others"][0].startswith("arithmetic ")
    assert f"{'0' * 64} there" in replayed["others"][0]


RECIPE = """
from tests.conftest import ROOT, environment
from tests.unit.trained_run import config_of
from stamm.engine.config import EngineConfig

def toy():
    return config_of("pack", engine=EngineConfig(threads=1, compile="off"))
"""


def test_the_command_sets_the_environment_before_torch_is_loaded(pack: Path) -> None:
    folder = pack.parent
    (folder / "toy.py").write_text(RECIPE)
    command = "run toy.py engine.portable_bits=true --out runs/toy"
    subprocess.run(
        [sys.executable, "-m", "stamm", *command.split()], cwd=folder, check=True, env=WITH_TESTS
    )
    (manifest,) = folder.glob("runs/toy/arms/*/manifest.json")
    recorded = read_json(manifest)
    assert recorded["capability"] == "AVX2" and len(recorded["arithmetic"]) == 64


def test_finished_steps_decide_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations after an interruption compute as they would have without it."""
    for name in PORTABLE:
        monkeypatch.setenv(name, "other")
    (tmp_path / "manifest.json").write_text("{}")
    for portable in (False, True):
        engine = EngineConfig(compile="off", portable_bits=portable)
        config = config_of(tmp_path, engine=engine)
        execution = RecipeRun(Resolved("toy", config, (), config), tmp_path / f"run{portable}")
        monkeypatch.setattr(execution, "pending", list)
        monkeypatch.setattr(execution.folder, "state", lambda: "complete")
        assert not execution.execute(quiet=True)
        assert (os.environ["MKL_CBWR"] == PORTABLE["MKL_CBWR"]) == portable


def test_a_process_that_cannot_compute_portably_refuses(pack: Path, tmp_path: Path) -> None:
    config = config_of(pack, engine=EngineConfig(threads=1, compile="off", portable_bits=True))
    with pytest.raises(RunError, match="after torch had been loaded") as error:
        job.run(config, Workspace(folder=tmp_path, inputs={"pack": pack}))
    assert all(f"{name}={value}" in error.value.fix for name, value in PORTABLE.items())


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cuda"}, {"precision": "bfloat16"}, {"compile": "layers"}, {"kernels": "torch"},
        {"attention": "flex"}, {"parallel": Parallel(data=2)},
    ],
)  # fmt: skip
def test_settings_that_do_not_go_with_it_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"EngineConfig.{next(iter(changes))} .*portable_bits"):
        EngineConfig(**{"compile": "off", "portable_bits": True, **changes})  # type: ignore[arg-type]


def test_muon_is_refused(tmp_path: Path) -> None:
    engine = EngineConfig(compile="off", portable_bits=True)
    with pytest.raises(ConfigError, match=r"engine\.portable_bits = True is not for Muon"):
        config_of(tmp_path, engine=engine, optimizer=Muon())


def test_the_environment_is_set_only_for_configurations_that_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in PORTABLE:
        monkeypatch.setenv(name, "other")
    use_portable_code({"engine": {"portable_bits": False}})
    assert os.environ["MKL_CBWR"] == "other"
    asking = {"arms": [{"engine": {"portable_bits": True}}]}
    with monkeypatch.context() as patch:
        patch.setattr("stamm.base.processor.cpu_flags", lambda: frozenset({"sse4_2"}))
        use_portable_code(asking)
        assert os.environ["ATEN_CPU_CAPABILITY"] == "other"
    use_portable_code({}, asking)
    assert {name: os.environ[name] for name in PORTABLE} == PORTABLE
