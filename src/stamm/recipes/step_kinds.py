"""The table of step kinds: the job that a step of each kind runs, and where.

Planning and listing recipes must not load torch, so jobs are named by module and function.
tests/unit/recipes/test_jobs.py checks that every name exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class StepKind:
    """A kind of step.

    kind           its name, which a step has as `job`
    job            module and function, "stamm.evaluate.job:run"
    all_ranks      whether it runs in all processes of torchrun; other kinds run in rank 0
    side_by_side   whether `--jobs` executes several at the same time, in worker processes
    """

    kind: str
    job: str
    all_ranks: bool = False
    side_by_side: bool = False


_KINDS = (
    StepKind("canaries", "stamm.corpus.canaries.job:inject"),
    StepKind("filter", "stamm.corpus.filter_job:filter_inputs"),
    StepKind("global_filter", "stamm.corpus.global_filter_job:filter_globally"),
    StepKind("finalize", "stamm.corpus.finalize_job:finalize_corpus"),
    StepKind("fetch", "stamm.corpus.consent.fetch_job:fetch"),
    StepKind("classifier", "stamm.corpus.classifiers.job:train"),
    StepKind("languages", "stamm.corpus.language.train:train"),
    StepKind("bounds", "stamm.corpus.quality.fit:fit"),
    StepKind("replay", "stamm.corpus.opt_out_replay:replay"),
    StepKind("reuse_tokens", "stamm.corpus.tokenize_job:reuse_tokens"),
    StepKind("reuse", "stamm.corpus.reuse_job:reuse_files"),
    StepKind("tokenizer", "stamm.corpus.tokenizer.job:train_tokenizer"),
    StepKind("tokenize", "stamm.corpus.tokenize_job:tokenize"),
    StepKind("pack", "stamm.corpus.pack_job:pack"),
    StepKind("activation", "stamm.pretrain.activation_check:run"),
    StepKind("pretrain", "stamm.pretrain.job:run", all_ranks=True, side_by_side=True),
    StepKind("forget", "stamm.pretrain.forget.job:run"),
    StepKind("step_timing", "stamm.pretrain.step_timing:run", all_ranks=True),
    StepKind("refine", "stamm.pretrain.lr_finder:refine"),
    StepKind("choose", "stamm.pretrain.lr_finder:choose"),
    StepKind("average", "stamm.pretrain.average:run", side_by_side=True),
    StepKind("evaluate", "stamm.evaluate.job:run", side_by_side=True),
    StepKind("audit", "stamm.audit.job:run", side_by_side=True),
    StepKind("export", "stamm.export.job:run"),
    StepKind("prepare", "stamm.align.data.prepare_job:run"),
    StepKind("choose_settings", "stamm.align.results.select_job:choose"),
    StepKind("answers", "stamm.align.results.evaluate_job:run"),
    StepKind("replacement", "stamm.adapt.job:run"),
    StepKind("carve", "stamm.adapt.carve_job:run"),
    StepKind("sparsify", "stamm.adapt.sparsify_job:run"),
    StepKind("stress", "stamm.adapt.stress_job:run"),
    StepKind("import_model", "stamm.align.import_job:run"),
    StepKind("sample", "stamm.align.sampling.sample_job:run"),
    StepKind("sample_answers", "stamm.align.results.sample_answers:run"),
    StepKind("score", "stamm.align.rewards.score:run"),
    StepKind("select", "stamm.align.results.select_job:run"),
    StepKind("finetune", "stamm.align.training.job:run", all_ranks=True),
    StepKind("grpo", "stamm.align.training.grpo_job:run", all_ranks=True),
    StepKind("reference", "stamm.align.training.reference_job:run"),
    StepKind("reward_accuracy", "stamm.align.training.reward_accuracy:run"),
    StepKind("judge", "stamm.align.judge.job:validate"),
    StepKind("charter", "stamm.align.judge.job:run"),
    StepKind("evidence", "stamm.corpus.transparency.job:evidence"),
    StepKind("report", "stamm.reports.job:run"),
    StepKind("plan", "stamm.compare.plan_job:run"),
    StepKind("look", "stamm.compare.look_job:run"),
    StepKind("candidate", "stamm.search.screen_job:run"),
    StepKind("candidate_costs", "stamm.search.cost_job:run"),
    StepKind("search_plan", "stamm.search.plan_job:run"),
    StepKind("compare", "stamm.compare.job:run"),
)
STEP_KINDS: Mapping[str, StepKind] = MappingProxyType(
    {step_kind.kind: step_kind for step_kind in _KINDS}
)
