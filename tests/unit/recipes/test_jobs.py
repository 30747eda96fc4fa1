"""Jobs named by module and function exist, and take a configuration and a workspace."""

from __future__ import annotations

import inspect

import pytest

from stamm.recipes import jobs


@pytest.mark.parametrize("kind", jobs.JOBS)
def test_every_kind_of_job_takes_a_configuration_and_a_workspace(kind: str) -> None:
    assert inspect.signature(jobs.job(kind)).bind(None, None)


def test_the_lazily_loaded_modules_have_what_is_asked_of_them() -> None:
    reader = jobs.megatron_reader()
    assert callable(reader.MegatronTokens.open)
    assert callable(reader.tokenizer_file)
    from stamm.engine.coordinator import StepBroadcaster

    assert callable(StepBroadcaster)
    assert set(jobs.JOBS) >= jobs.ALL_RANKS
