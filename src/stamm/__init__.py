"""stamm: activation functions derived from their gradients, and language models trained with them.

The public interface for Python, imported on first use: `import stamm` loads no library.

    run, compare, search             execute a recipe, a comparison, a search
    evaluate, audit, observe         measure trained models
    steer, steered, patch_grid       steering vectors; a model with one; what activations carry, by layer and position
    sample, score                    completions of prompts; rewards of answers
    export, release, verify, report  write a model, a release, a page; check a release
    derive, emit, check              an activation from its gradient, in other languages; proofs and accuracy
    check_claim, compare_samples     loss logs, and logs of single items, of other projects
    like                 the known activations that a function equals, or is near
    open_run             read a run folder
    swap, parameter_groups, StammCallback            an activation in any model of transformers, and its training
    load, generate       a trained model with its tokenizer; greedy continuations
    recipes              the recipes, and `recipes.build("demo", "pretrain.sequences=96")`
    activations          the whole of gradients, specs, gates and derivation
    activation, Spec     a torch module for a name or a Spec; a Spec states a gradient
    linear_cross_entropy, Goldfish, goldfish_mask    losses
    ledger, open_pack, Tokenizer                     a corpus: decisions, tokens, tokenizer
    read_metrics         the lines of metrics.jsonl

The function of a verb has its name and its arguments: `stamm.evaluate("runs/demo", tasks="blimp")` is
`stamm evaluate runs/demo tasks=blimp`. Some packages have the name of a verb, as `stamm.evaluate`
does: they can be imported from, and called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stamm.version import VERSION

if TYPE_CHECKING:
    from stamm import activations, recipes
    from stamm.activations.conformance.verb import check
    from stamm.activations.emitters.verb import emit
    from stamm.activations.equivalence.verb import like
    from stamm.activations.module import build_activation as activation
    from stamm.activations.spec import Spec
    from stamm.activations.verb import derive
    from stamm.align.verb import sample, score
    from stamm.audit.verb import audit
    from stamm.base.errors import ConfigError, DataError, RunError, StammError
    from stamm.compare.claim import check_claim
    from stamm.compare.verb import compare
    from stamm.evaluate.log_comparison import compare_samples
    from stamm.evaluate.verb import evaluate
    from stamm.export.verb import export
    from stamm.losses.config import Goldfish
    from stamm.losses.goldfish import keep_mask as goldfish_mask
    from stamm.losses.linear_cross_entropy import linear_cross_entropy
    from stamm.models.generate import greedy as generate
    from stamm.models.steering import steered
    from stamm.observe.patch import patch_grid
    from stamm.observe.verb import observe
    from stamm.recipes.execute import run
    from stamm.recipes.ledger import ledger, open_pack
    from stamm.recipes.load import LoadedModel, load
    from stamm.recipes.run_folder import RunFolder, open_run
    from stamm.release.verb import release
    from stamm.release.verification import verify
    from stamm.reports.verb import report
    from stamm.runs.metrics import read_metrics
    from stamm.search.verb import search
    from stamm.steer.verb import steer
    from stamm.swap.callback import StammCallback
    from stamm.swap.shapes import parameter_groups
    from stamm.swap.verb import swap
    from stamm.tokenizer.tokenizer import Tokenizer

__version__ = VERSION

__all__ = [
    "ConfigError",
    "DataError",
    "Goldfish",
    "LoadedModel",
    "RunError",
    "RunFolder",
    "Spec",
    "StammCallback",
    "StammError",
    "Tokenizer",
    "__version__",
    "activation",
    "activations",
    "audit",
    "check",
    "check_claim",
    "compare",
    "compare_samples",
    "derive",
    "emit",
    "evaluate",
    "export",
    "generate",
    "goldfish_mask",
    "ledger",
    "like",
    "linear_cross_entropy",
    "load",
    "observe",
    "open_pack",
    "open_run",
    "parameter_groups",
    "patch_grid",
    "read_metrics",
    "recipes",
    "release",
    "report",
    "run",
    "sample",
    "score",
    "search",
    "steer",
    "steered",
    "swap",
    "verify",
]

# Packages whose name is that of a verb, of which NAME/verb.py has the function.
_VERBS = ("audit", "compare", "evaluate", "export", "observe", "release", "search", "steer", "swap")
# Public name -> module, or module:name where the name differs.
_MODULE_OF = {
    "ConfigError": "base.errors",
    "DataError": "base.errors",
    "Goldfish": "losses.config",
    "LoadedModel": "recipes.load",
    "RunError": "base.errors",
    "RunFolder": "recipes.run_folder",
    "Spec": "activations.spec",
    "StammCallback": "swap.callback",
    "StammError": "base.errors",
    "Tokenizer": "tokenizer.tokenizer",
    "activation": "activations.module:build_activation",
    "check": "activations.conformance.verb",
    "check_claim": "compare.claim",
    "compare_samples": "evaluate.log_comparison",
    "derive": "activations.verb",
    "emit": "activations.emitters.verb",
    "generate": "models.generate:greedy",
    "goldfish_mask": "losses.goldfish:keep_mask",
    "ledger": "recipes.ledger",
    "like": "activations.equivalence.verb",
    "linear_cross_entropy": "losses.linear_cross_entropy",
    "load": "recipes.load",
    "open_pack": "recipes.ledger",
    "open_run": "recipes.run_folder",
    "parameter_groups": "swap.shapes",
    "patch_grid": "observe.patch",
    "read_metrics": "runs.metrics",
    "report": "reports.verb",
    "run": "recipes.execute",
    "sample": "align.verb",
    "score": "align.verb",
    "steered": "models.steering",
    "verify": "release.verification",
}
_PACKAGES = ("activations", "recipes", *_VERBS)


if not TYPE_CHECKING:  # a type checker reports a name that is not public

    def _imported(module: str) -> ModuleType:
        """A module of stamm's; RunError with the extra to install for a library that is missing."""
        try:
            return import_module(f"{__name__}.{module}")
        except ModuleNotFoundError as error:
            missing = import_module(f"{__name__}.base.extras").missing_library(error)
            if missing is None:
                raise
            raise missing from error

    class _VerbPackage(ModuleType):
        """A package that is called as the function of the verb with its name."""

        @property
        def __wrapped__(self) -> Any:
            name = self.__name__.rpartition(".")[2]
            return getattr(_imported(f"{name}.verb"), name)

        def __call__(self, *arguments: Any, **settings: Any) -> Any:
            return self.__wrapped__(*arguments, **settings)

    class _Face(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if name in _VERBS and isinstance(value, ModuleType):  # it is imported just now
                value.__class__ = _VerbPackage
            super().__setattr__(name, value)

    sys.modules[__name__].__class__ = _Face

    def __getattr__(name: str) -> Any:
        """The public name, imported from its module on first use."""
        if name in _PACKAGES:
            return _imported(name)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _MODULE_OF[name].partition(":")
        value = getattr(_imported(module), attribute or name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, for completion in notebooks."""
    return __all__
