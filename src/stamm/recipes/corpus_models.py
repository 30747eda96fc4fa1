"""What a corpus is judged by, learned from texts of the user's own: heads, languages, bounds."""

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

_HEAD_INPUTS = ("labelled", "clean", "unseen_labelled", "unseen_clean")


@dataclass(frozen=True, kw_only=True)
class HeadRecipe:
    """A head that scores texts, for corpus.toxicity_classifier or corpus.quality_classifier."""

    head: ClassifierConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        """Everything to be done.

        Raises   ConfigError when nothing says what it learns from.
        """
        config = _given(self.head, "head=ClassifierConfig head.labelled=FILE")
        return (_step("head", config, _HEAD_INPUTS),)


@dataclass(frozen=True, kw_only=True)
class LanguagesRecipe:
    """A model of languages, for corpus.language.model."""

    languages: LanguageTrainConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        """Everything to be done.

        Raises   ConfigError when nothing says what it learns from.
        """
        config = _given(self.languages, "languages=LanguageTrainConfig languages.inputs=FILE,FILE")
        return (_step("languages", config, ("inputs",)),)


@dataclass(frozen=True, kw_only=True)
class BoundsRecipe:
    """Bounds of the quality rules by language, for corpus.quality.thresholds."""

    bounds: QualityFitConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        """Everything to be done.

        Raises   ConfigError when nothing says which texts are clean.
        """
        config = _given(self.bounds, "bounds=QualityFitConfig bounds.inputs=FILE,FILE")
        return (_step("bounds", config, ("inputs",)),)


def head() -> HeadRecipe:
    """A head that scores toxicity or quality, learned from labelled texts; set head=HeadConfig."""
    return HeadRecipe()


def languages() -> LanguagesRecipe:
    """A model that names languages, learned from texts that name theirs; set languages=…."""
    return LanguagesRecipe()


def bounds() -> BoundsRecipe:
    """Bounds of the quality rules for each language, from clean texts; set bounds=…."""
    return BoundsRecipe()


def _given(config: Any, example: str) -> Any:
    if config is None:
        raise ConfigError("nothing says what is learned from", fix=f"Set {example}")
    return config


def _step(name: str, config: Any, inputs: tuple[str, ...]) -> Step:
    external: dict[str, Path] = {}
    for field in inputs:
        external |= expand(getattr(config, field), f"{name}.{field}")
    return Step(name=name, job=name, config=config, folder=name, external=external, outputs=(".",))
