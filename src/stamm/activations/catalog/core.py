"""Rectifiers and gates: the alternatives to xIELU, expanded gates, and their gated forms."""

from __future__ import annotations

from dataclasses import replace

from stamm.activations.catalog.notation import cut
from stamm.activations.spec import Spec
from stamm.activations.spec.gates import Gate, expand, gate_spec, gated, self_gated

LOGISTIC = Gate(
    name="sigmoid",
    title="Logistic gate",
    cdf="logistic(x)",
    density="logistic(x)*logistic(-x)",
    source="Ramachandran, Zoph and Le 2017, Searching for Activation Functions (1710.05941)",
)
NORMAL = Gate(
    name="normal_gate",
    title="Normal gate",
    cdf="normal_cdf(x)",
    density="normal_pdf(x)",
    source="Hendrycks and Gimpel 2016, Gaussian Error Linear Units (1606.08415)",
)
CAUCHY = Gate(
    name="arctan_gate",
    title="Arctan gate",
    cdf="cauchy_cdf(x)",
    density="cauchy_pdf(x)",
    source="Huang 2024, Expanded Gating Ranges Improve Activation Functions (arXiv 2405.20768)",
)

RELU = Spec(
    name="relu",
    title="Rectifier",
    pieces=cut(("x > 0", "1"), ("x <= 0", "0")),
    continuity="jump",
    peers=("torch.nn.functional:relu",),
    source="Nair and Hinton 2010, Rectified Linear Units Improve Restricted Boltzmann Machines",
    notes="The gradient at 0 is 0.",
)
RELU2 = Spec(
    name="relu2",
    title="Squared rectifier",
    pieces=cut(("x > 0", "2*x"), ("x <= 0", "0")),
    source="So et al. 2021, Primer (2109.08668)",
    aliases=("relu_squared",),
    peers=("transformers.activations:ReLUSquaredActivation",),
)
SILU = replace(
    self_gated(LOGISTIC, name="silu", title="SiLU: x times the logistic gate", aliases=("swish",)),
    peers=("torch.nn.functional:silu",),
)
GELU = replace(
    self_gated(NORMAL, name="gelu", title="GELU: x times the normal gate, in its erf form"),
    peers=("torch.nn.functional:gelu",),
)
ATLU = self_gated(CAUCHY, name="atlu", title="ATLU: x times the arctan gate")
XSILU = expand(SILU, of="self_gated", name="xsilu", title="xSiLU: SiLU with an expanded gate")
XGELU = expand(GELU, of="self_gated", name="xgelu", title="xGELU: GELU with an expanded gate")
XATLU = expand(ATLU, of="self_gated", name="xatlu", title="xATLU: ATLU with an expanded gate")

_GATES = tuple(gate_spec(gate) for gate in (LOGISTIC, NORMAL, CAUCHY))
_XSIGMOID = expand(_GATES[0], of="gate", name="xsigmoid", title="Expanded logistic gate")
_XNORMAL = expand(_GATES[1], of="gate", name="xnormal", title="Expanded normal gate")
_XARCTAN = expand(_GATES[2], of="gate", name="xarctan", title="Expanded arctan gate")
# Parts of entries that are not entries themselves: checked when the index is written.
PARTS: tuple[Spec, ...] = (*_GATES, _XSIGMOID, _XNORMAL, _XARCTAN)

ENTRIES: tuple[Spec, ...] = (
    RELU,
    RELU2,
    SILU,
    GELU,
    ATLU,
    XSILU,
    XGELU,
    XATLU,
    gated(SILU, order=2, name="swiglu", title="SwiGLU: SiLU of the gate, times up"),
    gated(GELU, order=2, name="geglu", title="GEGLU: GELU of the gate, times up"),
    gated(RELU, order=2, name="reglu", title="ReGLU: rectified gate, times up"),
    gated(_XSIGMOID, order=1, name="xswiglu", title="xSwiGLU: expanded logistic gate, times up"),
    gated(_XNORMAL, order=1, name="xgeglu", title="xGEGLU: expanded normal gate, times up"),
    gated(_XARCTAN, order=1, name="xatglu", title="xATGLU: expanded arctan gate, times up"),
    gated(XSILU, order=2, name="xsilu_glu", title="xSiLU of the gate, times up"),
    gated(XGELU, order=2, name="xgelu_glu", title="xGELU of the gate, times up"),
    gated(XATLU, order=2, name="xatlu_glu", title="xATLU of the gate, times up"),
)
