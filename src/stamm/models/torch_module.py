"""Source of a module that computes one activation and imports torch alone."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.activations.spec import Gated, Spec
from stamm.models.remote_code import definitions, effective_lines

_TORCH = '''"""{title}.

    from {name}_torch import Activation

    activation = Activation()  # a torch module; y = {call}

Written by `stamm derive`. Needs torch alone. Inputs are computed one width up and rounded once; a
parameter is stored before its constraint, under the names of stamm's checkpoints. Larger tensors are
faster in {name}.py, which has fused kernels. Content hash {content_hash}.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

{definitions}


class _Function(torch.autograd.Function):
    """f(x), and its derived slopes."""

    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.save_for_backward(x, *parameters)
        return value(x, _places(parameters))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        into, *by_parameter = slopes(x, _places(parameters))
        sums = [(gradient * s).sum(dtype=torch.float64) for s in by_parameter]
        return (gradient * into, *(s.to(p.dtype) for s, p in zip(sums, parameters)))

{up}
def _places(trained):
    """Every parameter in the order of the formula: trained ones, and constants."""
    trained = iter(trained)
    return tuple(next(trained) if c is None else c for c in {constants})


def _raised(stored):
    return torch.clamp(stored, min=0.0) + torch.log1p(torch.exp(-torch.abs(stored)))


def _wide(x):
    return x.double() if x.dtype in (torch.float32, torch.float64) else x.float()


class Activation(nn.Module):
    """y = {call}, with one number for each trained parameter."""

    def __init__(self) -> None:
        super().__init__()
{stored}

    def effective(self):
        """Every parameter behind its constraint."""
{effective}

    def forward(self, {inputs}):
        """The result in the dtype of the input."""
        trained = [p.reshape(()) for p in self.effective() if isinstance(p, Tensor)]
{result}
'''
_UP = """
class _Up(torch.autograd.Function):
    \"\"\"h(up), and its slope.\"\"\"

    @staticmethod
    def forward(ctx, x):
        height, slope, _ = up(x, _places([torch.zeros(())] * {count}))
        ctx.save_for_backward(slope)
        return height

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (slope,) = ctx.saved_tensors
        return gradient * slope

"""


def torch_source(spec: Spec, kernel: str) -> str:
    """Source of a module with the activation that imports torch alone.

    Checked  tests/unit/models/test_torch_module.py
    """
    gated = spec.arity if isinstance(spec.arity, Gated) else None
    second = gated is not None and gated.up is not None
    raw = spec.raw_values({p.name: p.initial for p in spec.trainable})
    stored = [
        f"self.{name} = nn.Parameter(torch.tensor([{number!r}]))" for name, number in raw.items()
    ]
    effective = [
        line.replace("F.softplus(", "_raised(")
        for line in effective_lines(spec, cast="{}.double()")
    ]
    height = "_Up.apply(_wide(up))" if second else "_wide(up)"
    if gated is None:
        result = ["return _Function.apply(_wide(x), *trained).to(x.dtype)"]
    else:
        result = [
            f"found = _Function.apply(_wide(gate), *trained) * {height}",
            "return found.to(gate.dtype)",
        ]
    wanted = ("Parameters", "value", "slopes", *(["up"] if second else []))

    def lines(texts: Sequence[str]) -> str:
        return "\n".join(f"        {text}" for text in texts)

    return _TORCH.format(
        title=spec.title.rstrip("."),
        name=spec.name,
        call="activation(gate, up)" if gated else "activation(x)",
        content_hash=spec.content_hash,
        definitions="\n\n\n".join(definitions(kernel, wanted)),
        up=_UP.format(count=len(spec.trainable)) if second else "",
        constants=tuple(None if p.trainable else float(p.initial) for p in spec.parameters),
        stored=lines(stored or ["pass"]),
        effective=lines(effective),
        inputs="gate, up" if gated else "x",
        result=lines(result),
    )
