"""Early checks of a study's evaluation, audit and export settings, before any training.

The jobs repeat them on their real inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

from stamm.audit.config import AuditConfig
from stamm.base.errors import ConfigError
from stamm.corpus.config import CorpusConfig
from stamm.evaluate.config import EvaluateConfig, check_step
from stamm.evaluate.task import check_tasks
from stamm.export.config import ExportConfig
from stamm.export.registry import export_problems
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
    """Nothing, when passages will be planted, and one fits with its continuation into the context.

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
        problems = export_problems(config.target, model, config.quantization)
        if problems:
            raise ConfigError(
                f"arm {arm!r} cannot be exported to {config.target}: {'; '.join(problems)}",
                fix=f"Set export=none, or leave {arm!r} out of exported=",
            )
        needed = 1 + config.prompt_tokens + config.sample_tokens
        if config.samples and needed > model.max_context:
            raise ConfigError(
                f"<s>, export.prompt_tokens = {config.prompt_tokens} and export.sample_tokens = "
                f"{config.sample_tokens} are {needed} tokens, more than "
                f"pretrain.model.max_context = {model.max_context}",
                fix="Lower one of them, or set export.samples=0 or export=none",
            )
