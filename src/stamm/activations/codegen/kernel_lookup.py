"""Loads the torch functions of a Spec: shipped for the catalogue, else derived once and cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from torch import Tensor

from stamm.activations.describe import shipped_source
from stamm.activations.primitives import Parameters
from stamm.activations.spec import Spec
from stamm.activations.spec.shipped import NAMES
from stamm.base.errors import ConfigError

_KERNELS = "stamm.activations.generated.kernels"


@dataclass(frozen=True, eq=False)
class Kernel:
    """The torch functions of one activation; `parameters` are effective, in the spec's order.

    value        (x, parameters) -> f(x)
    slopes       (x, parameters) -> f'(x), then df/dp for each trainable parameter
    curvatures   (x, parameters) -> f''(x), then d2f/dx dp, then d2f/dp dq for q not before p;
                 with a surrogate s of f': ds/dx in the place of f'', and ds/dp at the end
    compat       other libraries' orders of evaluation, by name
    up           the kernel of h, or None where up is multiplied by as it is
    Dtypes       x is float32 or float64; the caller converts 16-bit input.
    """

    content_hash: str
    value: Callable[[Tensor, Parameters], Tensor]
    slopes: Callable[[Tensor, Parameters], tuple[Tensor, ...]]
    curvatures: Callable[[Tensor, Parameters], tuple[Tensor, ...]]
    compat: Mapping[str, Callable[..., Tensor]]
    up: Kernel | None


@lru_cache(maxsize=256)
def kernel_of(spec: Spec) -> Kernel:
    """The kernel of a spec, found by content hash, independent of names.

    Raises   ConfigError when the shipped kernel of a catalogue entry belongs to another spec, or
             when a user's spec cannot be integrated.
    """
    name = NAMES.get(spec.content_hash)
    if name is None:
        return _kernel(_derived_module(spec))
    module = import_module(f"{_KERNELS}.{name}")
    if spec.content_hash != module.CONTENT_HASH:
        raise ConfigError(
            f"the generated kernel of {name} does not belong to its spec",
            fix="Run python -m stamm.activations.codegen",
        )
    return _kernel(module)


def kernel_text(spec: Spec) -> str:
    """The source of the kernel of a spec."""
    return shipped_source(spec) or _known_source(spec)


def _known_source(spec: Spec) -> str:
    from stamm.activations.cache import known_kernel_source  # not needed by the catalogue

    return known_kernel_source(spec.content_hash) or _derived_source(spec)


def _derived_module(spec: Spec) -> ModuleType:
    source = _known_source(spec)
    module = ModuleType(f"stamm.activations.generated.derived_{spec.content_hash[:16]}")
    # The source is generated: formulas reach it only through the parser in spec/expressions.py.
    exec(compile(source, f"<derived from spec {spec.name}>", "exec"), module.__dict__)
    return module


def _derived_source(spec: Spec) -> str:
    # The only import of SymPy: it takes half a second to load, and each spec needs it once.
    from stamm.activations.cache import store_kernel_source
    from stamm.activations.codegen.kernel import kernel_source
    from stamm.activations.derivation.derive import derive

    source = kernel_source(derive(spec), "stamm derive")
    store_kernel_source(spec.content_hash, source)
    return source


def _kernel(module: ModuleType) -> Kernel:
    return Kernel(
        content_hash=module.CONTENT_HASH,
        value=module.value,
        slopes=module.slopes,
        curvatures=module.curvatures,
        compat=getattr(module, "COMPAT", {}),
        up=_up(module.CONTENT_HASH, module.up) if hasattr(module, "up") else None,
    )


def _up(content_hash: str, together: Callable[[Tensor, Parameters], tuple[Tensor, ...]]) -> Kernel:
    """The kernel of h from the one function that returns h, h' and h''."""
    return Kernel(
        content_hash=f"{content_hash}/up",
        value=lambda u, parameters: together(u, parameters)[0],
        slopes=lambda u, parameters: together(u, parameters)[1:2],
        curvatures=lambda u, parameters: together(u, parameters)[2:],
        compat={},
        up=None,
    )
