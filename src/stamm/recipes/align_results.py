"""Steps after the training of an aligned arm that belong to other subjects: evaluation, audit, export."""

from __future__ import annotations

from stamm.align.steps import START_AUDIT, StartModel
from stamm.audit.config import AuditConfig
from stamm.audit.steps import audit_step
from stamm.base.errors import ConfigError
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.steps import evaluate_step
from stamm.export.config import NOT_MEASURED, ExportConfig, check_without_text
from stamm.export.steps import export_step
from stamm.recipes.checks import check_reference, check_tuned_export
from stamm.runs.job import Step


def arm_evaluation(
    arm: str, config: EvaluateConfig, start: StartModel, *, of_start: bool = False
) -> Step:
    """Held-out loss and other tasks of an arm, or of the start model.

    Raises   ConfigError for a setting that none of the tasks reads
    """
    return evaluate_step(
        "evaluate.start" if of_start else f"evaluate.{arm}",
        "start_evaluate" if of_start else f"arms/{arm}/evaluate",
        start.model if of_start else f"arms/{arm}/model",
        config,
        tokenizer=start.tokenizer,
        pack=start.pack,
        external=start.external,
    )


def audit_steps(arm: str, config: AuditConfig | None, start: StartModel) -> list[Step]:
    """Audits of the start model and of an arm.

    None without planted passages, and where the default settings do not fit into the model's context.

    Raises   ConfigError for settings that do not fit into the model's context
    """
    if config is None or not start.corpus:
        return []
    check_reference(config)
    needed = 1 + config.prefix_tokens + config.new_tokens
    if needed > start.max_context:
        if config == AuditConfig():
            return []
        raise ConfigError(
            f"<s>, audit.prefix_tokens and audit.new_tokens are {needed} tokens, more than the "
            f"model's max_context = {start.max_context}",
            fix="Lower them, or set audit=none",
        )
    return [
        audit_step(
            f"audit.{name}",
            folder,
            model,
            config,
            tokenizer=start.tokenizer,
            corpus=start.corpus,
            external=start.external,
        )
        for name, folder, model in (
            ("start", START_AUDIT, start.model),
            (arm, f"arms/{arm}/audit", f"arms/{arm}/model"),
        )
    ]


def arm_export(
    arm: str, config: ExportConfig, start: StartModel, *, own_rows: bool = False
) -> Step:
    """The export of an arm.

    own_rows   whether its alignment data keeps rows from training

    Raises   ConfigError for a setting that is not read, and for a model that the target cannot hold
    """
    unmeasured = config.held_out == NOT_MEASURED
    has_text = not unmeasured and bool(start.pack or own_rows or config.held_out_file)
    if not has_text:
        why = f"export.held_out = {NOT_MEASURED}" if unmeasured else "there is no held-out text"
        check_without_text(config, why)
    if start.decoder is not None and start.vocabulary is not None:
        check_tuned_export(config, arm, start.decoder, start.vocabulary, has_text=has_text)
    return export_step(
        arm, config, tokenizer=start.tokenizer, pack=start.pack, external=start.external
    )
