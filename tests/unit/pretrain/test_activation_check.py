"""The check of a user's activation before training: a spec beyond its error budget stops the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.activations import Identity, Parameter, Piece, Spec
from stamm.base.errors import ConfigError, DataError
from stamm.pretrain.activation_check import run
from stamm.pretrain.activation_check_config import ActivationCheckConfig
from stamm.runs.job import Workspace


def _spec(formula: str) -> Spec:
    return Spec(
        name="free_scale",
        title="",
        source="",
        pieces=(Piece(where="all x", formula=formula),),
        parameters=(Parameter(name="c", initial=0.7, bijection=Identity()),),
    )


@pytest.mark.slow
def test_a_spec_beyond_its_budget_is_refused(tmp_path: Path) -> None:
    config = ActivationCheckConfig(spec=_spec("tanh(c*x)"), inputs=1000)
    with pytest.raises(
        DataError, match=r"free_scale does not hold its accuracy budget.*slope_in_c"
    ):
        run(config, Workspace(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_spec_that_cannot_be_integrated_is_refused(tmp_path: Path) -> None:
    config = ActivationCheckConfig(spec=_spec("tanh(x + c*sin(x))"))
    with pytest.raises(ConfigError):
        run(config, Workspace(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_too_few_inputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="inputs = 10 must be at least 1000"):
        ActivationCheckConfig(spec=_spec("c*x"), inputs=10)
