"""What is loaded when: no torch for the mathematics, no SymPy for a model."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_mathematics_needs_no_torch_and_data_needs_no_sympy() -> None:
    code = (
        "import sys\n"
        "from stamm.activations import catalog, describe, spec\n"
        "print([m for m in ('sympy', 'mpmath', 'numpy', 'torch') if m in sys.modules])\n"
        "from stamm.activations.derivation import derive, stable_forms; from stamm.activations.codegen import kernel, write\n"
        "print('torch' in sys.modules)"
    )
    assert run(code).splitlines() == ["[]", "False"]


def test_a_model_needs_no_sympy() -> None:
    code = (
        "import sys, torch\n"
        "had = 'sympy' in sys.modules\n"
        "from stamm.activations import xielu, build_activation\n"
        "xielu()(torch.zeros(3)); build_activation('swiglu')\n"
        "print(had, 'sympy' in sys.modules)"
    )
    assert run(code) == "False False"


def test_public_names_resolve_whatever_was_imported_before() -> None:
    code = (
        "import stamm.activations.derivation.derive, stamm.activations as a\n"
        "from stamm.activations import derive, xielu, Spec\n"
        "print(callable(derive), all(getattr(a, n) is not None for n in a.__all__))"
    )
    assert run(code) == "True True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import stamm.activations

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stamm.activations.nothing
