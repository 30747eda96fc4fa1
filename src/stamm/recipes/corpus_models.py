"""Recipes that train a text classifier, language identification, or quality bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError
from stamm.corpus.classifiers.config import ClassifierConfig
from stamm.corpus.inputs import expand
from stamm.corpus.language.config import LanguageTrainConfig
from stamm.corpus.quality.config import QualityFitConfig
from stamm.runs.job import Step

_CLASSIFIER_INPUTS = ("labelled", "clean", "unseen_labelled", "unseen_clean")


@dataclass(frozen=True, kw_only=True)
class ClassifierRecipe:
    """A text classifier, for corpus.toxicity_classifier or corpus.quality_classifier."""

    classifier: ClassifierConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        """All steps.

        Raises   ConfigError when no training texts are set.
        """
        config = _given(self.classifier, "classifier=ClassifierConfig classifier.labelled=FILE")
        return (_step("classifier", config, _CLASSIFIER_INPUTS),)


@dataclass(frozen=True, kw_only=True)
class LanguagesRecipe:
    """A language identification model, for corpus.language.model."""

    languages: LanguageTrainConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        """All steps.

        Raises   ConfigError when no training texts are set.
        """
        config = _given(self.languages, "languages=LanguageTrainConfig languages.inputs=FILE,FILE")
        return (_step("languages", config, ("inputs",)),)


@dataclass(frozen=True, kw_only=True)
class BoundsRecipe:
    """Bounds of the quality filters by language, for corpus.quality.thresholds."""

    bounds: QualityFitConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        """All steps.

        Raises   ConfigError when no clean texts are set.
        """
        config = _given(self.bounds, "bounds=QualityFitConfig bounds.inputs=FILE,FILE")
        return (_step("bounds", config, ("inputs",)),)


def classifier() -> ClassifierRecipe:
    """Train a classifier of toxicity or quality from labelled texts; set classifier=ClassifierConfig."""
    return ClassifierRecipe()


def languages() -> LanguagesRecipe:
    """Train language identification from texts of known languages; set languages=LanguageTrainConfig."""
    return LanguagesRecipe()


def bounds() -> BoundsRecipe:
    """Fit bounds of the quality rules per language from clean texts; set bounds=QualityFitConfig."""
    return BoundsRecipe()


def _given(config: Any, example: str) -> Any:
    if config is None:
        raise ConfigError("no training texts are set", fix=f"Set {example}")
    return config


def _step(name: str, config: Any, inputs: tuple[str, ...]) -> Step:
    external: dict[str, Path] = {}
    for field in inputs:
        external |= expand(getattr(config, field), f"{name}.{field}")
    return Step(name=name, job=name, config=config, folder=name, external=external, outputs=(".",))
