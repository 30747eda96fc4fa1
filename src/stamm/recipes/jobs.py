"""The jobs of a run by kind, and other heavy code of recipes, imported on first use.

Planning and listing recipes must not load torch, so jobs are named here by module and attribute.
tests/unit/recipes/test_jobs.py checks that every name exists.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stamm.base.errors import RunError
from stamm.base.shutdown import interrupt_delayed
from stamm.runs.run import Job

if TYPE_CHECKING:
    from stamm.engine.coordinator import StepBroadcaster

JOBS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "plant": ("stamm.corpus.inject_canaries", "plant"),
        "screen": ("stamm.corpus.filter_job", "screen_inputs"),
        "decide": ("stamm.corpus.global_filter_job", "decide"),
        "settle": ("stamm.corpus.finalize_job", "finalize_corpus"),
        "fetch": ("stamm.corpus.consent.fetch_job", "fetch"),
        "classifier": ("stamm.corpus.classifiers.job", "train"),
        "languages": ("stamm.corpus.language.train", "train"),
        "bounds": ("stamm.corpus.quality.fit", "fit"),
        "replay": ("stamm.corpus.opt_out_replay", "replay"),
        "take_tokenizer": ("stamm.corpus.reuse_tokens", "reuse_tokenizer"),
        "retake": ("stamm.corpus.reuse_tokens", "retake"),
        "tokenizer": ("stamm.corpus.tokenizer.job", "train_tokenizer"),
        "tokenize": ("stamm.corpus.tokenize_job", "tokenize"),
        "pack": ("stamm.corpus.pack_job", "pack"),
        "activation": ("stamm.pretrain.activation_check", "run"),
        "pretrain": ("stamm.pretrain.job", "run"),
        "pace": ("stamm.pretrain.step_timing", "run"),
        "refine": ("stamm.pretrain.lr_finder", "refine"),
        "choose": ("stamm.pretrain.lr_finder", "choose"),
        "average": ("stamm.pretrain.average", "run"),
        "evaluate": ("stamm.evaluate.job", "run"),
        "audit": ("stamm.audit.job", "run"),
        "export": ("stamm.export.job", "run"),
        "prepare": ("stamm.align.data.prepare_job", "run"),
        "choose_settings": ("stamm.align.results.choose_job", "run"),
        "answers": ("stamm.align.results.evaluate_job", "run"),
        "swap": ("stamm.adapt.swap_job", "run"),
        "import_model": ("stamm.align.import_job", "run"),
        "sample": ("stamm.align.sampling.sample_job", "run"),
        "sample_answers": ("stamm.align.results.sample_answers", "run"),
        "score": ("stamm.align.rewards.score_job", "run"),
        "select": ("stamm.align.data.select_job", "run"),
        "finetune": ("stamm.align.training.job", "run"),
        "grpo": ("stamm.align.policy.grpo_job", "run"),
        "reference": ("stamm.align.training.reference_job", "run"),
        "reward_accuracy": ("stamm.align.training.reward_accuracy", "run"),
        "judge": ("stamm.align.judge.charter_job", "validate"),
        "charter": ("stamm.align.judge.charter_job", "run"),
        "evidence": ("stamm.corpus.transparency.job", "evidence"),
        "report": ("stamm.reports.job", "run"),
        "plan": ("stamm.reports.comparison_plan", "run"),
        "look": ("stamm.reports.comparison_look", "run"),
        "candidate": ("stamm.search.screen_job", "run"),
        "candidate_costs": ("stamm.search.cost_job", "run"),
        "search_plan": ("stamm.search.plan_job", "run"),
        "compare": ("stamm.reports.comparison_job", "run"),
    }
)
"""Module and function of each kind of job."""

ALL_RANKS = frozenset({"pretrain", "pace", "finetune", "grpo"})
"""Jobs that run in all processes of torchrun; every other job runs in rank 0."""

SIDE_BY_SIDE = frozenset({"pretrain", "average", "evaluate", "audit"})
"""Jobs that `--jobs` executes at the same time, in processes that run the module WORKER."""

WORKER = "stamm.recipes.step_worker"


def job(kind: str) -> Job:
    """The function that runs a job of this kind.

    Raises   RunError when a library that it needs is not installed.
    """
    module, function = JOBS[kind]
    try:
        with interrupt_delayed():
            found: Job = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise RunError(
            f"the {kind} job needs {error.name}, which is not installed",
            fix="Install stamm with its requirements (`make setup`)",
        ) from error
    return found


def coordinator() -> StepBroadcaster:
    """The connection between the processes of torchrun, opened in this process."""
    found: StepBroadcaster = _loaded("stamm.engine.coordinator").StepBroadcaster()
    return found


def megatron_reader() -> Any:
    """The module that reads Megatron token files."""
    return _loaded("stamm.corpus.megatron_dataset")


def model_finder() -> Any:
    """The module that finds the model that an alignment recipe starts from."""
    return _loaded("stamm.align.model_source")


def _loaded(module: str) -> Any:
    with interrupt_delayed():
        return importlib.import_module(module)
