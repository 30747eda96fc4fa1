"""Activation functions derived from their gradients: state the gradient, get everything else.

Names are loaded when they are first used, so that the mathematics needs no torch and a model
needs no SymPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stamm.activations.catalog import get, names
    from stamm.activations.derivation.derive import derive
    from stamm.activations.derivation.formulas import Derived
    from stamm.activations.equivalence.detect import rediscover
    from stamm.activations.equivalence.finding import Finding
    from stamm.activations.module import Activation, GatedActivation, build_activation, xielu
    from stamm.activations.module.parallel import (
        clip_gradient_norm,
        reduce_shape_gradients,
        sharding_exceptions,
    )
    from stamm.activations.module.parallel_style import ShapedActivationParallel
    from stamm.activations.module.shape_parameters import (
        check_not_shared,
        export_values,
        import_values,
        shape_parameters,
    )
    from stamm.activations.spec import (
        Compat,
        Constant,
        Factor,
        Gated,
        Jump,
        Piece,
        Plain,
        Spec,
    )
    from stamm.activations.spec.parameters import (
        Absolute,
        Between,
        Exp,
        Fixed,
        Identity,
        Parameter,
        Softplus,
    )
    from stamm.activations.transforms import (
        Gate,
        affine,
        clip,
        clip_output,
        clip_to_zero,
        concave,
        expand,
        gate_spec,
        gated,
        leak,
        mix,
        normalise,
        power,
        reanchor,
        reflect,
        saturate,
        scale,
        self_gated,
        soft_clamp,
        surrogate,
    )

_HOMES = {
    "catalog": ("get", "names"),
    "derivation.derive": ("derive",),
    "derivation.formulas": ("Derived",),
    "module": ("Activation", "GatedActivation", "build_activation", "xielu"),
    "transforms": (
        "Gate",
        "affine",
        "clip",
        "clip_output",
        "clip_to_zero",
        "concave",
        "expand",
        "gate_spec",
        "gated",
        "leak",
        "mix",
        "normalise",
        "power",
        "reanchor",
        "reflect",
        "saturate",
        "scale",
        "self_gated",
        "soft_clamp",
        "surrogate",
    ),
    "equivalence.detect": ("rediscover",),
    "equivalence.finding": ("Finding",),
    "spec.parameters": ("Absolute", "Between", "Exp", "Fixed", "Identity", "Parameter", "Softplus"),
    "module.parallel": ("clip_gradient_norm", "reduce_shape_gradients", "sharding_exceptions"),
    "module.parallel_style": ("ShapedActivationParallel",),
    "module.shape_parameters": (
        "export_values",
        "import_values",
        "check_not_shared",
        "shape_parameters",
    ),
    "spec": ("Compat", "Constant", "Factor", "Gated", "Jump", "Piece", "Plain", "Spec"),
}
_HOME = {name: home for home, members in _HOMES.items() for name in members}

__all__ = [
    "Absolute",
    "Activation",
    "Between",
    "Compat",
    "Constant",
    "Derived",
    "Exp",
    "Factor",
    "Finding",
    "Fixed",
    "Gate",
    "Gated",
    "GatedActivation",
    "Identity",
    "Jump",
    "Parameter",
    "Piece",
    "Plain",
    "ShapedActivationParallel",
    "Softplus",
    "Spec",
    "affine",
    "build_activation",
    "check_not_shared",
    "clip",
    "clip_gradient_norm",
    "clip_output",
    "clip_to_zero",
    "concave",
    "derive",
    "expand",
    "export_values",
    "gate_spec",
    "gated",
    "get",
    "import_values",
    "leak",
    "mix",
    "names",
    "normalise",
    "power",
    "reanchor",
    "rediscover",
    "reduce_shape_gradients",
    "reflect",
    "saturate",
    "scale",
    "self_gated",
    "shape_parameters",
    "sharding_exceptions",
    "soft_clamp",
    "surrogate",
    "xielu",
]


if not TYPE_CHECKING:  # a type checker reports a name that is not public

    def __getattr__(name: str) -> Any:
        """The public name, imported from its file on first use."""
        if name in ("catalog", "transforms"):
            return import_module(f"{__name__}.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
