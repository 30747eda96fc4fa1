"""The built-in recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stamm.base.config import closest
from stamm.base.errors import ConfigError
from stamm.pretrain.config import PretrainConfig
from stamm.recipes import (
    adapt,
    align,
    align_charter,
    align_demo,
    align_reward,
    apertus,
    audit,
    branches,
    comparisons,
    corpus,
    corpus_models,
    demo,
    evidence_recipes,
    forget,
    ladder,
    llama,
    own_text,
    replay,
    robots,
    searches,
)
from stamm.recipes.adapt import AdaptRecipe, CarveRecipe, SparsifyRecipe, StressRecipe
from stamm.recipes.align import GRPORecipe, PreferenceRecipe, SFTRecipe
from stamm.recipes.align_charter import CharterRecipe
from stamm.recipes.align_demo import AlignDemo
from stamm.recipes.align_reward import RewardModelRecipe
from stamm.recipes.branches import CooldownRecipe, LongerRecipe
from stamm.recipes.compare import Comparison
from stamm.recipes.corpus import CorpusRecipe
from stamm.recipes.corpus_models import BoundsRecipe, ClassifierRecipe, LanguagesRecipe
from stamm.recipes.forget import ForgetRecipe
from stamm.recipes.own_text import OwnText
from stamm.recipes.replay import ReplayRecipe
from stamm.recipes.robots import RobotsRecipe
from stamm.recipes.search import Search
from stamm.recipes.study import Study

Stepwise = (
    Study
    | Comparison
    | Search
    | CorpusRecipe
    | RobotsRecipe
    | ClassifierRecipe
    | LanguagesRecipe
    | BoundsRecipe
    | CharterRecipe
    | OwnText
)
# Recipes that read another run; their steps depend on the run folder.
Branching = (
    ReplayRecipe
    | CooldownRecipe
    | LongerRecipe
    | ForgetRecipe
    | AdaptRecipe
    | CarveRecipe
    | SparsifyRecipe
    | StressRecipe
    | SFTRecipe
    | PreferenceRecipe
    | GRPORecipe
    | RewardModelRecipe
    | AlignDemo
)
Config = Stepwise | Branching | PretrainConfig
"""Configuration of a recipe."""


@dataclass(frozen=True)
class Recipe:
    """A name and the function that builds it; the function's docstring is its summary."""

    name: str
    build: Callable[[], Config]

    @property
    def summary(self) -> str:
        """One line."""
        return (self.build.__doc__ or "").strip().partition("\n")[0]


RECIPES: tuple[Recipe, ...] = (
    Recipe("demo", demo.demo),
    Recipe("smoke", demo.smoke),
    Recipe("train.own", own_text.own),
    Recipe("compare.smoke", comparisons.smoke),
    Recipe("compare.activations", comparisons.activations),
    Recipe("compare.evidence_activations", comparisons.evidence_activations),
    Recipe("compare.evidence_smoke", comparisons.evidence_smoke),
    Recipe("compare.evidence_longer", evidence_recipes.evidence_longer),
    Recipe("compare.evidence_expanded", evidence_recipes.evidence_expanded),
    Recipe("compare.evidence_expanded_gated", evidence_recipes.evidence_expanded_gated),
    Recipe("compare.evidence_optimizer", evidence_recipes.evidence_optimizer),
    Recipe("compare.evidence_tokens", evidence_recipes.evidence_tokens),
    Recipe("compare.evidence_ablation", evidence_recipes.evidence_ablation),
    Recipe("compare.evidence_goldfish", evidence_recipes.evidence_goldfish),
    Recipe("compare.evidence_structured", evidence_recipes.evidence_structured),
    Recipe("compare.evidence_beta", evidence_recipes.evidence_beta),
    Recipe("compare.evidence_shapes", evidence_recipes.evidence_shapes),
    Recipe("compare.evidence_scale", evidence_recipes.evidence_scale),
    Recipe("compare.ladder", ladder.ladder),
    Recipe("compare.ladder_expanded", ladder.ladder_expanded),
    Recipe("compare.ladder_recipe", ladder.ladder_recipe),
    Recipe("compare.ladder_structured", ladder.ladder_structured),
    Recipe("compare.published", ladder.published),
    Recipe("compare.activations_gpu", comparisons.activations_gpu),
    Recipe("search.activations", searches.activations),
    Recipe("search.smoke", searches.smoke),
    Recipe("audit.goldfish", audit.goldfish),
    Recipe("audit.smoke", audit.smoke),
    Recipe("corpus.demo", corpus.demo_corpus),
    Recipe("corpus.replay", replay.replay),
    Recipe("corpus.robots", robots.robots),
    Recipe("corpus.classifier", corpus_models.classifier),
    Recipe("corpus.languages", corpus_models.languages),
    Recipe("corpus.bounds", corpus_models.bounds),
    Recipe("align.charter", align_charter.charter),
    Recipe("pretrain.apertus_8b", apertus.apertus_8b),
    Recipe("pretrain.apertus_70b", apertus.apertus_70b),
    Recipe("pretrain.cooldown", branches.cooldown),
    Recipe("pretrain.longer", branches.longer),
    Recipe("pretrain.apertus_8b_longer", branches.apertus_8b_longer),
    Recipe("pretrain.forget", forget.forget),
    Recipe("adapt.activation", adapt.activation),
    Recipe("adapt.carve", adapt.carve),
    Recipe("adapt.sparsify", adapt.sparsify),
    Recipe("adapt.stress", adapt.stress),
    Recipe("align.demo", align_demo.align_demo),
    Recipe("align.sft", align.sft),
    Recipe("align.qrpo", align.qrpo),
    Recipe("align.dpo", align.dpo),
    Recipe("align.simpo", align.simpo),
    Recipe("align.rebel", align.rebel),
    Recipe("align.kto", align.kto),
    Recipe("align.grpo", align.grpo),
    Recipe("align.reward", align_reward.reward),
    Recipe("pretrain.llama_1b_xielu", llama.llama_1b_xielu),
    Recipe("pretrain.llama_3b_xielu", llama.llama_3b_xielu),
)


def get(name: str) -> Recipe:
    """The recipe called `name`; "apertus_8b" finds "pretrain.apertus_8b".

    Raises   ConfigError for an unknown name, with the nearest one.
    """
    for recipe in RECIPES:
        if name in (recipe.name, recipe.name.rpartition(".")[2]):
            return recipe
    known = [recipe.name for recipe in RECIPES] + [r.name.rpartition(".")[2] for r in RECIPES]
    match = closest(name, known)
    hint = f"Did you mean {match!r}? " if match else ""
    raise ConfigError(f"unknown recipe {name!r}", fix=f"{hint}`stamm ls recipes` lists them")
