"""Jobs named by module and function exist, and take a configuration and a workspace."""

from __future__ import annotations

import inspect

import pytest

from stamm.recipes import jobs
from stamm.recipes.step_kinds import STEP_KINDS


@pytest.mark.parametrize("kind", STEP_KINDS)
def test_every_kind_of_job_takes_a_configuration_and_a_workspace(kind: str) -> None:
    assert inspect.signature(jobs.job(kind)).bind(None, None)


def test_the_lazily_loaded_modules_have_what_is_asked_of_them() -> None:
    reader = jobs.loaded("stamm.corpus.megatron_dataset")
    assert callable(reader.MegatronTokens.open)
    assert callable(reader.tokenizer_file)
    from stamm.engine.coordinator import StepBroadcaster

    assert callable(StepBroadcaster)
