"""Finding the torch functions of a Spec: shipped for the catalogue, derived in place otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from torch import Tensor

from stamm.activations.catalog import ENTRIES
from stamm.activations.generated.kernels import KERNELS
from stamm.activations.generated.primitives import Parameters
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Kernel:
    """The torch functions of one activation; `parameters` are effective, in the spec's order.

    value        (x, parameters) -> f(x)
    slopes       (x, parameters) -> f'(x), then df/dp for each trainable parameter
    curvatures   (x, parameters) -> f''(x), then d2f/dx dp, then d2f/dp dq for q not before p
    compat       other libraries' orders of evaluation, by name
    Dtypes       x is float32 or float64; the caller converts 16-bit input.
    """

    content_hash: str
    value: Callable[[Tensor, Parameters], Tensor]
    slopes: Callable[[Tensor, Parameters], tuple[Tensor, ...]]
    curvatures: Callable[[Tensor, Parameters], tuple[Tensor, ...]]
    compat: Mapping[str, Callable[..., Tensor]]


@lru_cache(maxsize=256)
def kernel_of(spec: Spec) -> Kernel:
    """The kernel of a spec, chosen by content hash: names play no part.

    Raises   ConfigError when the shipped kernel of a catalogue entry belongs to another spec, or
             when a user's spec cannot be integrated.
    """
    for entry in ENTRIES:
        if entry.content_hash == spec.content_hash:
            module = KERNELS.get(entry.name)
            if module is None or spec.content_hash != module.CONTENT_HASH:
                raise ConfigError(
                    f"the generated kernel of {entry.name} does not belong to its spec",
                    fix="Run python -m stamm.activations.emit",
                )
            return _kernel(module)
    return _kernel(_derived_module(spec))


def _derived_module(spec: Spec) -> ModuleType:
    # The door to SymPy: it costs half a second to load, and the catalogue never needs it.
    from stamm.activations.derivation import derive
    from stamm.activations.emit import kernel_source

    source = kernel_source(derive(spec))
    module = ModuleType(f"stamm.activations.generated.derived_{spec.content_hash[:16]}")
    # The text is our own: formulas reach it only through the parser in expressions.py.
    exec(compile(source, f"<derived from spec {spec.name}>", "exec"), module.__dict__)
    return module


def _kernel(module: ModuleType) -> Kernel:
    return Kernel(
        content_hash=module.CONTENT_HASH,
        value=module.value,
        slopes=module.slopes,
        curvatures=module.curvatures,
        compat=module.COMPAT,
    )
