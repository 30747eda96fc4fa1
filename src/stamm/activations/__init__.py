"""Activation functions derived from their gradients: state the gradient, get everything else.

Names are loaded when they are first used, so that the mathematics needs no torch and a model
needs no SymPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stamm.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from stamm.activations.catalog import get as get
    from stamm.activations.catalog import names as names
    from stamm.activations.derivation.derive import derive as derive
    from stamm.activations.derivation.formulas import Derived as Derived
    from stamm.activations.equivalence import Finding as Finding
    from stamm.activations.equivalence import rediscover as rediscover
    from stamm.activations.module import Activation as Activation
    from stamm.activations.module import GatedActivation as GatedActivation
    from stamm.activations.module import build_activation as build_activation
    from stamm.activations.module import xielu as xielu
    from stamm.activations.module.shape_parameters import check_not_shared as check_not_shared
    from stamm.activations.module.shape_parameters import export_values as export_values
    from stamm.activations.module.shape_parameters import import_values as import_values
    from stamm.activations.module.shape_parameters import shape_parameters as shape_parameters
    from stamm.activations.spec import Compat as Compat
    from stamm.activations.spec import Constant as Constant
    from stamm.activations.spec import Factor as Factor
    from stamm.activations.spec import Gated as Gated
    from stamm.activations.spec import Jump as Jump
    from stamm.activations.spec import Piece as Piece
    from stamm.activations.spec import Plain as Plain
    from stamm.activations.spec import Spec as Spec
    from stamm.activations.spec.gates import Gate as Gate
    from stamm.activations.spec.gates import expand as expand
    from stamm.activations.spec.gates import gate_spec as gate_spec
    from stamm.activations.spec.gates import gated as gated
    from stamm.activations.spec.gates import self_gated as self_gated
    from stamm.activations.spec.parameters import Absolute as Absolute
    from stamm.activations.spec.parameters import Between as Between
    from stamm.activations.spec.parameters import Exp as Exp
    from stamm.activations.spec.parameters import Fixed as Fixed
    from stamm.activations.spec.parameters import Identity as Identity
    from stamm.activations.spec.parameters import Parameter as Parameter
    from stamm.activations.spec.parameters import Softplus as Softplus
else:  # a type checker reports a name that is not public
    _NAMES = {
        "catalog": ["get", "names"],
        "derivation.derive": ["derive"],
        "derivation.formulas": ["Derived"],
        "equivalence": ["Finding", "rediscover"],
        "module": ["Activation", "GatedActivation", "build_activation", "xielu"],
        "module.shape_parameters": [
            "check_not_shared",
            "export_values",
            "import_values",
            "shape_parameters",
        ],
        "spec": ["Compat", "Constant", "Factor", "Gated", "Jump", "Piece", "Plain", "Spec"],
        "spec.gates": ["Gate", "expand", "gate_spec", "gated", "self_gated"],
        "spec.parameters": [
            "Absolute",
            "Between",
            "Exp",
            "Fixed",
            "Identity",
            "Parameter",
            "Softplus",
        ],
    }
    __all__ = [name for names in _NAMES.values() for name in names]
    __getattr__ = lazy_names(__name__, _NAMES, packages=("catalog",))
