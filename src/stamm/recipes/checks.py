"""Early checks of a study's evaluation, audit and export settings, before any training.

The jobs repeat them on their real inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stamm.audit.config import AuditConfig
from stamm.base.errors import ConfigError
from stamm.corpus.config import CorpusConfig
from stamm.evaluate.config import EvaluateConfig, check_step
from stamm.evaluate.task import check_tasks
from stamm.export.config import ExportConfig, check_sample_length, set_options
from stamm.export.registry import guarded_target, load_support
from stamm.export.target import TargetSupport, TokenizerTarget
from stamm.models.config import DecoderConfig


def check_evaluation(config: EvaluateConfig, corpus: CorpusConfig, model: DecoderConfig) -> None:
    """Check that the tasks load, that there is held-out text, and that the context fits the model.

    Raises   ConfigError with the values and the fix.
    """
    check_step(config)
    check_tasks(config.tasks)
    if corpus.held_out == 0 and "held_out" in config.tasks:
        raise ConfigError(
            f"corpus.held_out = {corpus.held_out} leaves no text to evaluate the models on",
            fix="Set corpus.held_out=0.03, leave held_out out of evaluate.tasks, or set evaluate=none",
        )
    limit = model.max_context
    context = limit if config.context is None else config.context
    if context > limit:
        raise ConfigError(
            f"evaluate.context = {context} exceeds pretrain.model.max_context = {limit}",
            fix=f"Set evaluate.context={limit} or less",
        )
    if config.overlap is not None and config.overlap >= context:
        raise ConfigError(
            f"evaluate.overlap = {config.overlap} leaves nothing new in a context of {context}",
            fix=f"Set evaluate.overlap below {context}",
        )


def check_reference(config: AuditConfig) -> None:
    """Check that a recipe's audit names no reference model.

    Raises   ConfigError for one.
    """
    if config.reference:
        raise ConfigError(
            f"audit.reference = {config.reference} is not read in a recipe",
            fix="Leave it out, and run `stamm audit RUN reference=FOLDER` afterwards",
        )


def check_audit(config: AuditConfig, corpus: CorpusConfig, model: DecoderConfig) -> None:
    """Check that passages will be planted, and that one fits with its continuation into the context.

    Raises   ConfigError with the values and the fix.
    """
    check_reference(config)
    if corpus.probes is None and not config.passages:
        raise ConfigError(
            "corpus.probes = None plants no passages, so there is nothing to audit",
            fix="Set audit=none, plant passages with corpus.probes=ProbesConfig, or name your "
            "own with audit.passages=FILE",
        )
    needed, limit = 1 + config.prefix_tokens + config.new_tokens, model.max_context
    if needed > limit:
        room = limit - 1 - config.prefix_tokens
        less = f"audit.new_tokens={room} or less" if room > 0 else "a smaller audit.prefix_tokens"
        raise ConfigError(
            f"<s>, audit.prefix_tokens = {config.prefix_tokens} and audit.new_tokens = "
            f"{config.new_tokens} are {needed} tokens, more than pretrain.model.max_context = "
            f"{limit}",
            fix=f"Set {less}, pretrain.model.max_context={needed} or more, or audit=none",
        )


def check_export(config: ExportConfig, models: Mapping[str, DecoderConfig]) -> None:
    """Check that the export target holds the models and that samples fit into their context.

    models   of the exported arms, by name

    Raises   ConfigError with the arm, the unsupported part and the fix.
    """
    for arm, model in models.items():
        check_target(config, arm, model, f"Set export=none, or leave {arm!r} out of exported=")
        check_sample_length(config, model.max_context, "pretrain.model.max_context")


def check_target(config: ExportConfig, arm: str, model: DecoderConfig, fix: str) -> TargetSupport:
    """The export target of an arm, which holds its model.

    Raises   ConfigError with the arm, the unsupported part and the fix.
    """
    target = load_support(config.target)
    set_options(target, config)
    problems = guarded_target(target, lambda: list(target.check(model.merged())))
    if problems:
        raise ConfigError(
            f"arm {arm!r} cannot be exported to {config.target}: {'; '.join(map(str, problems))}",
            fix=fix,
        )
    return target


def check_tuned_export(
    config: ExportConfig, arm: str, model: DecoderConfig, tokenizer: Path, *, has_text: bool
) -> None:
    """Check an export of a model that exists before a recipe tunes it.

    tokenizer   its tokenizer.json
    has_text    whether the export reads held-out text, which samples begin with

    Raises   ConfigError with what does not fit and the fix
    """
    target = check_target(config, arm, model, "Set export=none, or another export.target")
    problem = ""
    if isinstance(target, TokenizerTarget):
        problem = guarded_target(
            target, lambda: target.tokenizer_problem(tokenizer, model.vocab_size)
        )
    if problem:
        raise ConfigError(
            f"arm {arm!r} cannot be exported to {config.target}: {problem}",
            fix="Set export=none, or another export.target",
        )
    if has_text:
        check_sample_length(config, model.max_context)
