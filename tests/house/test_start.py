"""Modules that `stamm --help`, `import stamm` and light verbs must not import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "sympy", "transformers", "matplotlib", "pyarrow", "numpy")


def _loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("\n")[0].rpartition("\n")[2].split())


def test_mathematical_files_load_without_torch() -> None:
    for name in ("spec", "derivation.derive", "codegen.write", "catalog.registry"):
        assert "torch" not in _loaded(f"import stamm.activations.{name}"), name


def test_recipes_and_plans_load_nothing_heavy() -> None:
    loaded = _loaded("import stamm.cli.plan, stamm.cli.catalog_verbs, stamm.cli.run")
    assert not loaded


def test_verbs_of_trained_models_load_nothing_heavy_before_they_use_a_model() -> None:
    """A dry run of theirs takes half a second."""
    assert not _loaded("import stamm.evaluate.verb, stamm.audit.verb, stamm.observe.verb")


def test_the_check_of_a_release_sets_the_environment_of_its_run_before_torch_is_loaded() -> None:
    assert "torch" not in _loaded("import stamm.cli.verify, stamm.release.verification")


def test_models_load_without_sympy() -> None:
    code = (
        "from stamm.models.config import DecoderConfig\n"
        "from stamm.models.decoder import build_decoder\n"
        "build_decoder(DecoderConfig(num_layers=1, d_model=32, vocab_size=64), seed=0)"
    )
    assert "sympy" not in _loaded(code)


HELP = "from stamm.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"
OURS = "print('|', *(m for m in sys.modules if m.startswith('stamm.')), '|')"


def test_help_loads_the_parser_and_nothing_else() -> None:
    """`python -m bench.start` times it."""
    assert not _loaded(HELP)
    assert _own_modules(HELP) == {
        "stamm.base", "stamm.base.errors", "stamm.base.extras", "stamm.base.shutdown", "stamm.cli", "stamm.cli.main",
        "stamm.runs", "stamm.runs.torchrun_env", "stamm.version",
    }  # fmt: skip


def _own_modules(code: str) -> set[str]:
    script = f"import sys\n{code}\n{OURS}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rsplit("|", 2)[1].split())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_openmp_spins_shortly_unless_the_user_says_otherwise(
    given: dict[str, str], wanted: str | None
) -> None:
    code = (
        "import os, sys\n"
        "from stamm.cli import main\n"
        "assert 'torch' not in sys.modules\n"
        "main._limit_openmp_spin()\n"
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    bare = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(wanted)


def test_the_public_interface_imports_nothing_until_it_is_used() -> None:
    """`python -m bench.start` times it."""
    assert _own_modules("import stamm\ndir(stamm)") == {"stamm.version"}
    assert not _loaded("import stamm\ndir(stamm)")
    assert not _loaded("import stamm\nstamm.Spec, stamm.run, stamm.open_run, stamm.recipes.build")


def test_every_public_name_exists() -> None:
    code = "import stamm\nfor name in stamm.__all__: getattr(stamm, name)"
    assert "torch" in _loaded(code)
