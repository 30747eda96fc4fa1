"""An activation and its gradients as graphs of scalar operations, from which texts are written."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from stamm.activations.codegen.kernel_lookup import Kernel, kernel_of
from stamm.activations.fused.double_float import compensated, divided_first, rewritten
from stamm.activations.fused.graph import Graph, Node, Traced
from stamm.activations.fused.passes import Fixed, PassName, graph_of
from stamm.activations.primitives import coefficients
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError, RunError

SHORT = torch.bfloat16  # the graphs for all numbers of 16 bits
Lowering = Callable[..., Traced]
_ERF_TERMS = 22  # of its power series below 1: the last is 1e-22 of the first
# Names of emitted statements and modules, and words of the languages.
_RESERVED = re.compile(
    r"[vt]\d+|x|y|one|gate|up|weight|wide|dtype|shape|value|first|rest|(into|d|result)_(.*[^_])?|"
    r"np|numpy|jnp|jax|mx|mlx|tl|triton|libdevice|onnx|onnxruntime|math|metal|parameters|arguments|eval|main|"
    r"abs|fabsf?|floorf?|powf?|erfcf?|atan2f?|log1pf?|select|array|"
    # C, C++, JavaScript and Metal
    r"asm|auto|await|bitand|bitor|bool|case|catch|char|compl|concept|const|constant|constexpr|debugger|decltype|"
    r"default|delete|device|do|double|enum|explicit|export|extends|extern|false|float|fragment|friend|function|goto|"
    r"half|implements|inline|instanceof|int|interface|kernel|let|long|mutable|namespace|new|noexcept|null|nullptr|"
    r"operator|package|private|protected|public|register|requires|restrict|sampler|short|signed|sizeof|static|struct|"
    r"super|switch|template|this|thread|threadgroup|throw|true|typedef|typeid|typename|typeof|uint|undefined|union|"
    r"unsigned|using|var|vertex|virtual|void|volatile|xor|"
    # WGSL
    r"abstract|active|alias|attribute|become|break|centroid|coherent|common|compile|continuing|demote|diagnostic|"
    r"discard|enable|external|fallthrough|filter|final|fn|from|get|handle|highp|impl|layout|loop|lowp|macro|match|"
    r"mediump|meta|mod|module|move|mut|noise|of|override|packoffset|pass|patch|precise|precision|premerge|priv|pub|"
    r"ref|regardless|resource|return|sample|self|set|shared|smooth|snorm|target|technique|trait|type|unless|unorm|"
    r"unsafe|use|varying|where|writeonly"
)
_FARTHEST = 28.0  # erfc is 0 in float64 from 27.3 on


@dataclass(frozen=True, kw_only=True)
class Program:
    """The functions of an activation, elementwise.

    name        of the spec: lower-case letters, digits and _; with _ behind it where a language, a
                library or Python's own modules have that name
    inputs      names of the inputs: x; or gate and up
    parameters  names of the trainable parameters, with _ behind those that a text uses otherwise, and
                their effective values at the start. The others are constants of the text
    """

    spec: Spec
    name: str
    inputs: tuple[str, ...]
    parameters: Mapping[str, float]

    @cached_property
    def forward(self) -> Mapping[torch.dtype, Graph]:
        """The graph by computing dtype: inputs, parameters -> f(x), or f(gate) h(up).

        In float32 it is `compensated`. For SHORT, numbers of 16 bits, it is in float32 without pairs.

        Raises   ConfigError as `scalar_graph`, and when the spec cannot be integrated
        """
        return self._graphs("forward", "gated_forward")

    @cached_property
    def backward(self) -> Mapping[torch.dtype, Graph]:
        """The graph by computing dtype: weight, inputs, parameters -> the gradient in each input.

        The gradients of this element alone in each parameter are its `sums`.

        Raises   ConfigError as `forward`
        """
        return self._graphs("backward", "gated_backward")

    def _graphs(self, plain: PassName, gated: PassName) -> Mapping[torch.dtype, Graph]:
        def made(dtype: torch.dtype) -> Graph:
            if dtype != torch.float32:
                wide = torch.float64 if dtype == torch.float64 else torch.float32
                return self._graph(plain, gated, wide)
            short, wide_graph = graphs[SHORT], graphs[torch.float64]
            initial = list(self.parameters.values())
            weights = short.inputs - len(self.inputs)
            return compensated(short, wide_graph, initial, weights=weights)

        graphs = _ByDtype(made)
        return graphs

    def _graph(self, plain: PassName, gated: PassName, dtype: torch.dtype) -> Graph:
        name = gated if isinstance(self.spec.arity, Gated) else plain
        fixed = tuple(None if p.trainable else p.initial for p in self.spec.parameters)
        return scalar_graph(name, kernel_of(self.spec), fixed, dtype)

    @cached_property
    def curvature(self) -> Graph:
        """The graph in float64: inputs, parameters -> f''(x), or f''(gate) h(up).

        With a surrogate of f', the derivative of that.

        Raises   ConfigError as `forward`
        """
        return self._graph("curvature", "gated_curvature", torch.float64)


class _ByDtype(dict[torch.dtype, Graph]):
    """Graphs that are made on first use."""

    def __init__(self, make: Callable[[torch.dtype], Graph]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, dtype: torch.dtype) -> Graph:
        self[dtype] = self._make(dtype)
        return self[dtype]


@lru_cache(maxsize=256)
def program_of(spec: Spec) -> Program:
    """The program of a spec, whose graphs are made on first use."""
    gated = isinstance(spec.arity, Gated)
    name, *names = _names(spec)
    return Program(
        spec=spec,
        name=name,
        inputs=("gate", "up") if gated else ("x",),
        parameters=dict(zip(names, (p.initial for p in spec.trainable), strict=True)),
    )


def scalar_graph(name: PassName, kernel: Kernel, fixed: Fixed, dtype: torch.dtype) -> Graph:
    """`graph_of`, for another language.

    Edge     in float32 a*b/c is a*(b/c), so that a*b cannot overflow; the package's kernels compute
             large numbers in float64
    Raises   ConfigError as `graph_of`, and for a table that each call makes for its parameters
    Checked  tests/unit/activations/test_emission.py::test_products_do_not_overflow_before_they_are_divided
    """
    try:
        graph = graph_of(name, kernel, fixed, dtype)
        return divided_first(graph) if dtype == torch.float32 else graph
    except RunError:
        raise ConfigError(
            "the integral has no formula and depends on a trained parameter: its table is made in each"
            " call, which only stamm's own kernels do",
            fix="Make the parameter fixed, or state the integral with the piece",
        ) from None


def _names(spec: Spec) -> list[str]:
    """The names of the functions and of the trainable parameters, no two of them equal."""
    named = f"{spec.name}_" if spec.name in sys.stdlib_module_names else spec.name
    names: list[str] = []
    for name in (named, *(p.name for p in spec.trainable)):
        while _RESERVED.fullmatch(name) or name in names:
            name += "_"
        names.append(name)
    return names


def lowered(graph: Graph, known: Collection[str], target: str) -> Graph:
    """The graph with operations that `known` lacks replaced by others.

    Raises   ConfigError for an operation that has no replacement
    """
    missing = True

    def replaced(made: Graph, node: Node, operands: list[Traced]) -> Traced | None:
        nonlocal missing
        if node.name in ("input", "parameter", "constant") or node.name in known:
            return None
        if node.name not in _LOWERINGS:
            raise ConfigError(
                f"{target} has no function {node.name!r}, which this activation needs",
                fix="Choose another target: `stamm emit --help` lists them",
            )
        missing = True
        return _LOWERINGS[node.name](made, *operands)

    while missing:
        missing = False
        graph = rewritten(graph, replaced, {})
    return graph


def _op(graph: Graph, name: str, *operands: Traced | float) -> Traced:
    return graph.add(Node(name, tuple(graph.taken(operand).place for operand in operands)))


def _horner(graph: Graph, x: Traced, numbers: Sequence[float]) -> Traced:
    total = graph.constant(numbers[-1])
    for number in reversed(numbers[:-1]):
        total = total * x + number
    return total


def _erfc(graph: Graph, x: Traced) -> Traced:
    size = _op(graph, "minimum", _op(graph, "abs", x), _FARTHEST)
    which = int(graph.dtype == torch.float64)
    turned = (size - 3.0) / (size + 3.0)
    scaled = _horner(graph, turned, coefficients.ERROR_COMPLEMENT[which]) / (1.0 + 2.0 * size)
    # exp(-x**2) in two factors: the square of x to sixteenths is exact.
    near = _op(graph, "floor", size * 16.0) / 16.0
    tail = scaled * _op(graph, "exp", -(near * near))
    tail = tail * _op(graph, "exp", -((size - near) * (size + near)))
    tail = _op(graph, "where", x > _FARTHEST, 0.0, tail)
    return _op(graph, "where", x < 0.0, 2.0 - tail, tail)


def _erf(graph: Graph, x: Traced) -> Traced:
    square = x * x
    scale = 2.0 / math.sqrt(math.pi)
    series = [scale * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(_ERF_TERMS)]
    near = x * _horner(graph, square, series)
    size = _op(graph, "abs", x)
    far = 1.0 - _erfc(graph, size)
    far = _op(graph, "where", x < 0.0, -far, far)
    return _op(graph, "where", size < 1.0, near, far)


def _log1p(graph: Graph, u: Traced) -> Traced:
    total = 1.0 + u
    log = _op(graph, "log", total)
    # What rounding took from 1 + u is given back as a factor.
    near = _op(graph, "where", total == 1.0, u, log * (u / (total - 1.0)))
    return _op(graph, "where", u > 2.0**60, log, near)


def _atan2(graph: Graph, y: Traced, x: Traced) -> Traced:
    angle = _op(graph, "atan", y / _op(graph, "abs", x))
    half_turn = _op(graph, "where", y < 0.0, -math.pi, math.pi)
    return _op(graph, "where", x < 0.0, half_turn - angle, angle)


def _asin(graph: Graph, x: Traced) -> Traced:
    return _op(graph, "atan", x / _op(graph, "sqrt", (1.0 - x) * (1.0 + x)))


def _tan(graph: Graph, x: Traced) -> Traced:
    return _op(graph, "sin", x) / _op(graph, "cos", x)


def _sign(graph: Graph, x: Traced) -> Traced:
    negative = _op(graph, "where", x < 0.0, -1.0, x)
    return _op(graph, "where", x > 0.0, 1.0, negative)


_LOWERINGS: dict[str, Lowering] = {
    "erfc": _erfc,
    "erf": _erf,
    "log1p": _log1p,
    "atan2": _atan2,
    "asin": _asin,
    "tan": _tan,
    "sign": _sign,
}
