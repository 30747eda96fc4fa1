"""Sections "Training" and "Learned shape" of a run's page."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.base.units import count_text, flops_text
from stamm.pages.config import ReportConfig
from stamm.pages.formatting import fixed
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.pretrain.page.events import events_table
from stamm.pretrain.page.shape_figures import shape_figures
from stamm.pretrain.page.training_figures import loss_figure, optimisation_figure
from stamm.pretrain.results import ArmTraining, read_training
from stamm.runs.run_view import ALIGNMENT, STUDY, RunView


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Training of the arms and the shapes that they learned; nothing where the run does not train.

    Raises   DataError when a file does not follow its schema
    """
    if run.kind not in (STUDY, ALIGNMENT):
        return ()
    arms = [(arm, read_training(arm.folder)) for arm in run.arms]
    figures = (loss_figure(run, arms, config), optimisation_figure(run, arms, config))
    context = {
        "figures": [figure for figure in figures if figure is not None],
        "command": run.made_by(),
        "events": events_table([(arm.name, training) for arm, training in arms], config.rows),
    }
    training = Section(
        key="training",
        title="Training",
        html=fill("training.html", context, "stamm.pretrain"),
        facts=training_facts([training for _, training in arms]),
    )
    if run.kind == ALIGNMENT and not any(
        trained.metrics and trained.metrics.shapes for _, trained in arms
    ):
        return (training,)
    html = fill("shape.html", {"figures": shape_figures(run, arms, config)}, "stamm.pretrain")
    return (training, Section(key="shape", title="Learned shape", html=html))


def training_facts(trainings: Sequence[ArmTraining]) -> tuple[str, ...]:
    """Size, tokens, epochs, FLOPs and seeds of the arms of a run, for the head of its page."""
    summaries = [training.summary for training in trainings if training.summary]
    seeds = sorted({training.seed for training in trainings if training.seed is not None})
    facts = []
    if summaries:
        facts += [
            f"{count_text(max(s.parameters for s in summaries))} parameters",
            f"{count_text(max(s.trained_tokens for s in summaries))} tokens an arm",
            f"{fixed(max(s.epochs for s in summaries), 2)} epochs",
            f"{flops_text(max(s.flops for s in summaries))} an arm",
        ]
    if seeds:
        facts.append("seed " + ", ".join(map(str, seeds)))
    return tuple(facts)
