"""stamm: activation functions derived from their gradients, and language models trained with them.

The public interface for Python, imported on first use: `import stamm` loads no library.

    run, open_run        execute a recipe; read a run folder
    load, generate       a trained model with its tokenizer; greedy continuations
    recipes              the recipes, and `recipes.build("demo", "pretrain.sequences=96")`
    activations          the whole of gradients, specs, derivation and transforms
    activation, Spec     a torch module for a name or a Spec; a Spec states a gradient
    derive               value, slope and gradients of a Spec, as formulas and code
    linear_cross_entropy, Goldfish, goldfish_mask    losses
    ledger, open_pack, Tokenizer                     a corpus: decisions, tokens, tokenizer
    read_metrics         the lines of metrics.jsonl
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stamm import activations, recipes
    from stamm.activations.derivation.derive import derive
    from stamm.activations.module import build_activation as activation
    from stamm.activations.spec import Spec
    from stamm.base.errors import ConfigError, DataError, RunError, StammError
    from stamm.corpus.tokenizer.tokenizer import Tokenizer
    from stamm.losses.config import Goldfish
    from stamm.losses.goldfish import keep_mask as goldfish_mask
    from stamm.losses.linear_cross_entropy import linear_cross_entropy
    from stamm.models.generate import greedy as generate
    from stamm.recipes.execute import run
    from stamm.recipes.ledger import ledger, open_pack
    from stamm.recipes.load import LoadedModel, load
    from stamm.recipes.run_folder import RunFolder, open_run
    from stamm.runs.metrics import read_metrics

__version__ = "0.2.0.dev0"

__all__ = [
    "ConfigError",
    "DataError",
    "Goldfish",
    "LoadedModel",
    "RunError",
    "RunFolder",
    "Spec",
    "StammError",
    "Tokenizer",
    "__version__",
    "activation",
    "activations",
    "derive",
    "generate",
    "goldfish_mask",
    "ledger",
    "linear_cross_entropy",
    "load",
    "open_pack",
    "open_run",
    "read_metrics",
    "recipes",
    "run",
]

# Public name -> module, or module:name where the name differs.
_MODULE_OF = {
    "ConfigError": "base.errors",
    "DataError": "base.errors",
    "Goldfish": "losses.config",
    "LoadedModel": "recipes.load",
    "RunError": "base.errors",
    "RunFolder": "recipes.run_folder",
    "Spec": "activations.spec",
    "StammError": "base.errors",
    "Tokenizer": "corpus.tokenizer.tokenizer",
    "activation": "activations.module:build_activation",
    "derive": "activations.derivation.derive",
    "generate": "models.generate:greedy",
    "goldfish_mask": "losses.goldfish:keep_mask",
    "ledger": "recipes.ledger",
    "linear_cross_entropy": "losses.linear_cross_entropy",
    "load": "recipes.load",
    "open_pack": "recipes.ledger",
    "open_run": "recipes.run_folder",
    "read_metrics": "runs.metrics",
    "run": "recipes.execute",
}
_PACKAGES = ("activations", "recipes")


if not TYPE_CHECKING:  # a type checker reports a name that is not public

    def __getattr__(name: str) -> Any:
        """The public name, imported from its module on first use."""
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _MODULE_OF[name].partition(":")
        value = getattr(import_module(f"{__name__}.{module}"), attribute or name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, for completion in notebooks."""
    return __all__
