"""Gated linear units as deployed: the gate, the transform of the up input, and the layout.

Names do not identify them: clamping before the gate, clamping after it and bounding both sides by
tanh are three functions that serving stacks have confused.
"""

from __future__ import annotations

from dataclasses import replace

from stamm.activations.catalog.core import LOGISTIC, RELU2
from stamm.activations.catalog.notation import cut, everywhere, fixed
from stamm.activations.catalog.self_gated import GELU_TANH, QUICK_GELU
from stamm.activations.catalog.xielu import XIELU
from stamm.activations.spec import Factor, Gated, Jump, Spec
from stamm.activations.spec.gates import gate_spec, gated

_GLU_PAPER = "Shazeer 2020, GLU Variants Improve Transformer (2002.05202)"
_DAUPHIN = "Dauphin et al. 2016, Language Modeling with Gated Convolutional Networks (1612.08083)"


def _clamped_up(offset: str) -> Factor:
    """min(max(u, -7), 7) plus an offset; the slope is 1 at the limits, as torch.clamp has it."""
    return Factor(
        pieces=cut(("x < -7", "0"), ("-7 <= x <= 7", "1"), ("x > 7", "0")),
        anchor=("0", offset),
    )


DRELU = Spec(
    name="drelu",
    title="dReLU: both inputs rectified, then multiplied",
    pieces=cut(("x > 0", "1"), ("x <= 0", "0")),
    continuity="jump",
    arity=Gated(
        order=2,
        up=Factor(
            pieces=cut(("x > 0", "1"), ("x <= 0", "0")),
        ),
    ),
    source="Song et al. 2024, Turbo Sparse (2406.05955)",
    notes="0 where either input is not positive: the product of both sparsities.",
)
SWIGLU_OAI = Spec(
    name="swiglu_oai",
    title="Clamped SwiGLU: min(gate, 7) through Quick GELU, times clamped up plus 1",
    pieces=cut(
        (
            "x <= 7",
            "logistic(1.702*x) + 1.702*x*logistic(1.702*x)*logistic(-1.702*x)",
            "x*logistic(1.702*x)",
        ),
        ("x > 7", "0"),
    ),
    continuity="jump",
    arity=Gated(order=2, layout="interleaved", up=_clamped_up("1")),
    source="openai/gpt-oss, gpt_oss/torch/model.py, swiglu",
    notes=(
        "The clamp comes before the gate and is one-sided there: gate below -7 passes. up is"
        " clamped on both sides, then 1 is added. alpha = 1.702, limit 7, inputs interleaved."
        " swiglu_step clamps after the gate and adds nothing: at gate = 8, up = 1 this one gives"
        " 13.9999 and that one 7."
    ),
)
SWIGLU_STEP = Spec(
    name="swiglu_step",
    title="Stepped SwiGLU: min(silu(gate), 7), times clamped up",
    pieces=cut(
        ("x <= 7.006342814601791", "logistic(x) + x*logistic(x)*logistic(-x)", "x*logistic(x)"),
        ("x > 7.006342814601791", "0"),
    ),
    continuity="jump",
    arity=Gated(order=2, up=_clamped_up("0")),
    source="flashinfer-ai/flashinfer pull request 3492",
    notes=(
        "The clamp comes after the gate. The knot is where silu is 7, rounded to a double: silu of"
        " it is 7 - 3.8e-16."
    ),
)
SITU_GLU = Spec(
    name="situ_glu",
    title="SiTU-GLU: 4 tanh(gate/4) logistic(gate), times 25 tanh(up/25)",
    pieces=everywhere(
        "4*logistic(x)*logistic(x/2)*logistic(-x/2) + 4*tanh(x/4)*logistic(x)*logistic(-x)",
        "4*tanh(x/4)*logistic(x)",
    ),
    arity=Gated(
        order=2,
        up=Factor(
            pieces=everywhere("4*logistic(2*x/25)*logistic(-2*x/25)", "25*tanh(x/25)"),
        ),
    ),
    source="Kimi K3 technical report, equation 12; NVIDIA/TransformerEngine pull request 3402",
    notes=(
        "Bounded by 4 times 25. The slope of tanh is stated as a product of two logistics, which"
        " keeps its digits where 1 - tanh**2 cancels."
    ),
)
FATRELU_GLU = Spec(
    name="fatrelu_glu",
    title="FATReLU-GLU: gate where it exceeds a threshold, else 0, times up",
    pieces=cut(("x > threshold", "1"), ("x <= threshold", "0")),
    parameters=fixed(threshold=0.01),
    continuity="jump",
    jumps=(Jump(at="threshold", by="threshold"),),
    arity=Gated(order=2),
    source=(
        "Kurtz et al. 2020, Inducing and Exploiting Activation Sparsity for Fast Inference;"
        " gated in Song et al. 2024, ProSparse (2402.13516)"
    ),
    notes="The function itself jumps. The threshold is calibrated after training, not learned.",
)
GLU = replace(
    gated(gate_spec(LOGISTIC), order=1, name="glu", title="GLU: logistic gate, times up"),
    arity=Gated(order=1, layout="up_first"),
    aliases=("siglu",),
    source=_DAUPHIN,
    notes="The layout is the paper's and torch's: up comes first, then the gate.",
)
GTU = replace(
    gated(gate_spec(LOGISTIC), order=1, name="gtu", title="GTU: logistic gate, times tanh of up"),
    arity=Gated(
        order=1,
        layout="up_first",
        up=Factor(
            pieces=everywhere("4*logistic(2*x)*logistic(-2*x)", "tanh(x)"),
        ),
    ),
    source=f"van den Oord et al. 2016, PixelCNN Decoders (1606.05328); named in {_DAUPHIN}",
)
BILINEAR = Spec(
    name="bilinear",
    title="Bilinear: gate times up",
    pieces=everywhere("1"),
    arity=Gated(order=2),
    source=_GLU_PAPER,
    notes="No nonlinearity but the product itself.",
)
RELU2_GLU = gated(
    RELU2,
    order=2,
    name="relu2_glu",
    title="ReGLU2: squared rectified gate, times up",
    aliases=("reglu2",),
)
XIELU_GLU = replace(
    gated(XIELU, order=2, name="xielu_glu", title="xIELU of the gate, times up"),
    compat=None,
    notes="The other libraries apply xIELU to one input only: there is no order of theirs to keep.",
)
GEGLU_TANH = gated(
    GELU_TANH, order=2, name="geglu_tanh", title="GEGLU with GELU in its tanh form, times up"
)
QUICK_GEGLU = gated(
    QUICK_GELU, order=2, name="quick_geglu", title="Quick GEGLU: Quick GELU of the gate, times up"
)

ENTRIES: tuple[Spec, ...] = (
    DRELU,
    SWIGLU_OAI,
    SWIGLU_STEP,
    SITU_GLU,
    FATRELU_GLU,
    GLU,
    GTU,
    BILINEAR,
    RELU2_GLU,
    XIELU_GLU,
    GEGLU_TANH,
    QUICK_GEGLU,
)
