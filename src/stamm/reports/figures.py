"""All figures of a page, by section."""

from __future__ import annotations

from collections.abc import Mapping

from stamm.reports.alignment_figures import alignment_figures
from stamm.reports.audit_figures import audit_figures
from stamm.reports.canary_figures import canary_figures
from stamm.reports.config import ReportConfig
from stamm.reports.corpus_figures import dropped_figure, stayed_figure
from stamm.reports.corpus_vocabulary import fairness_figure
from stamm.reports.figure import Figure
from stamm.reports.measure_figures import grammar_figure, language_figure, memorization_figure
from stamm.reports.observation_section import observation_figure
from stamm.reports.preference_figures import (
    grpo_figure,
    kto_figure,
    log_ratio_figure,
    representation_figure,
    reward_figure,
    target_figure,
)
from stamm.reports.run_data import RunResults
from stamm.reports.shape_figures import shape_figures
from stamm.reports.task_curves import curve_figures
from stamm.reports.training_figures import goldfish_figure, loss_figure, optimisation_figure


def figures_of(study: RunResults, config: ReportConfig) -> Mapping[str, tuple[Figure, ...]]:
    """The figures of each section; () for a section without data."""
    return {
        "alignment": (
            *alignment_figures(study),
            *_there(
                log_ratio_figure(study, config),
                target_figure(study, config),
                kto_figure(study, config),
                grpo_figure(study, config),
                reward_figure(study, config),
                representation_figure(study, config),
            ),
        ),
        "training": _there(loss_figure(study, config), optimisation_figure(study, config)),
        "shape": tuple(shape_figures(study, config)),
        "observe": _there(observation_figure(study)),
        "languages": (
            *_there(language_figure(study, config), grammar_figure(study)),
            *curve_figures(study),
        ),
        "corpus": _there(
            dropped_figure(study), stayed_figure(study, config), fairness_figure(study, config)
        ),
        "memorization": (
            *_there(memorization_figure(study)),
            *audit_figures(study, config.rows),
            *canary_figures(study),
            *_there(goldfish_figure(study)),
        ),
    }


def _there(*figures: Figure | None) -> tuple[Figure, ...]:
    return tuple(figure for figure in figures if figure is not None)
