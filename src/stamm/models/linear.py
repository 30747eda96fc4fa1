"""A matrix, or what stands for one: a product of two structured factors, with a dense guide at first.

Letters: T tokens, N inputs, M outputs, B blocks, R what is between the factors.

Factors are stored as matrices of as many rows as they have outputs, blocks one below the other, so
that they divide over processes by rows as any matrix does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.models.config import BlockDense, BlockShuffle, Dense, Linear, LowRank

_ROWS = 1024  # of the identity that go through a matrix at once when it is written out

Draw = Callable[[str, Sequence[int]], Tensor]


class StructuredLinear(nn.Module):
    """S x = second(first(x)), no bias and nothing between; while guided, a W x + (1 - a) S x.

    guide    W, there in training alone and between `add_guide` and `drop_guide`
    guided   whether this step multiplies by W. Evaluation never does: it measures the structured
             matrix, which is what is stored, merged and exported.

    Checked  tests/unit/models/test_structured.py
    """

    guide: nn.Parameter | None
    guide_weight: Tensor  # a; a tensor, so that compiled code is not compiled again as it changes

    def __init__(
        self, form: LowRank | BlockDense | BlockShuffle, inputs: int, outputs: int
    ) -> None:
        super().__init__()
        self.form, self.in_features, self.out_features = form, inputs, outputs
        blocks = 1 if isinstance(form, LowRank) else form.blocks
        between = form.between(inputs, outputs)
        last = between // blocks if isinstance(form, BlockShuffle) else between
        self.first = nn.Parameter(torch.empty(between, inputs // blocks))
        self.second = nn.Parameter(torch.empty(outputs, last))
        self.register_parameter("guide", None)
        self.guided = False

    def forward(self, x: Tensor) -> Tensor:
        """The result, (..., M), from `x`, (..., N)."""
        y = structured(self.form, x, self.first, self.second)
        if self.guide is None or not self.guided or not self.training:
            return y
        return self.guide_weight * F.linear(x, self.guide) + (1.0 - self.guide_weight) * y

    @torch.no_grad()
    def dense_weight(self) -> Tensor:
        """The M x N matrix that the factors stand for, summed in float64 and rounded once."""
        first, second = self.first.double(), self.second.double()
        inputs = torch.arange(self.in_features, device=first.device)
        columns = []
        for some in torch.split(inputs, _ROWS):
            rows_TN = F.one_hot(some, self.in_features).double()
            columns.append(structured(self.form, rows_TN, first, second).to(self.first.dtype))
        return torch.cat(columns).T.contiguous()

    def merged(self) -> nn.Linear:
        """The same map as one matrix."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.dense_weight())
        return linear.train(self.training)

    @torch.no_grad()
    def initialise(self, name: str, draw: Draw, deviation: float) -> None:
        """Draw the factors, and let a guide start as their product.

        name   of this module; its parts are drawn by theirs
        draw   standard normal numbers for a tensor of this name and shape

        LowRank takes the largest singular values of the dense matrix that would stand in its place
        ("weight", times `deviation`), each shared between the factors by its root.
        Blocks become the nearest matrices with orthonormal rows or columns, and so does a dense U;
        so the product has no singular value above 1, whatever `deviation` is.

        Source   the code of Wei et al. 2024 (arXiv 2406.16450): `svd` and `ortho`, neither scaled.
                 Entries of the product deviate by about 1/sqrt(max(M, N)) for BlockShuffle, those of
                 LowRank by less than `deviation`.
        """
        if isinstance(self.form, LowRank):
            dense = draw(f"{name}.weight", (self.out_features, self.in_features)).mul_(deviation)
            second, first = _truncated(dense, self.form.rank)
        else:
            blocks = self.form.blocks
            first = _orthonormal(draw(f"{name}.first", self.first.shape), blocks)
            of_second = blocks if isinstance(self.form, BlockShuffle) else 1
            second = _orthonormal(draw(f"{name}.second", self.second.shape), of_second)
        self.first.copy_(first)
        self.second.copy_(second)
        if self.guide is not None:
            self.guide.copy_(self.dense_weight())

    def add_guide(self) -> None:
        """Give the matrix a dense guide that is the same map as its factors are now."""
        weight = torch.ones((), device=self.first.device)
        self.register_buffer("guide_weight", weight, persistent=False)
        self.guide = nn.Parameter(self.dense_weight())

    def drop_guide(self) -> None:
        """Take the guide away; nothing happens where there is none."""
        if self.guide is not None:
            self.guide, self.guided = None, False
            del self.guide_weight

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.form}, in_features={self.in_features}, out_features={self.out_features}"


def build_linear(form: Linear, inputs: int, outputs: int) -> nn.Module:
    """What stands for a matrix of `outputs` x `inputs`, without bias."""
    if isinstance(form, Dense):
        return nn.Linear(inputs, outputs, bias=False)
    return StructuredLinear(form, inputs, outputs)


def structured(
    form: LowRank | BlockDense | BlockShuffle, x: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """second(first(x)) as `form` reads the two factors.

    LowRank       second (M, R), first (R, N): U (V x)
    BlockDense    second (M, R), first (R, N/B) of B blocks
    BlockShuffle  second (M, R/B), first (R, N/B), each of B blocks. Of what the first gives, block b
                  of the second takes every B-th number from the b-th on; results interleave likewise.

    Shapes   x (..., N), the result (..., M)
    """
    if isinstance(form, LowRank):
        return F.linear(F.linear(x, first), second)
    x_TBN = x.reshape(x.shape[:-1].numel(), form.blocks, x.shape[-1] // form.blocks)
    y_TR = _blocks(x_TBN, first).flatten(1)
    if isinstance(form, BlockDense):
        y_TM = F.linear(y_TR, second)
    else:
        every_TBR = y_TR.view(-1, y_TR.shape[1] // form.blocks, form.blocks).transpose(1, 2)
        y_TM = _blocks(every_TBR, second).transpose(1, 2).flatten(1)
    return y_TM.view(*x.shape[:-1], y_TM.shape[-1])


def structured_linears(module: nn.Module) -> list[tuple[str, StructuredLinear]]:
    """Every structured matrix in `module`, with its name."""
    return [(name, m) for name, m in module.named_modules() if isinstance(m, StructuredLinear)]


def _blocks(x_TBN: Tensor, weight: Tensor) -> Tensor:
    """Each block times its part of every token, (T, B, outputs of a block)."""
    weight_BMN = weight.reshape(x_TBN.shape[1], -1, weight.shape[1])
    return torch.bmm(x_TBN.transpose(0, 1), weight_BMN.mT).transpose(0, 1)


def _truncated(dense: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """U and V with U V the best approximation of `dense` of that rank: U_r sqrt(s_r), sqrt(s_r) V_r.

    A pair of singular vectors is known up to its sign, and libraries differ: the largest number of
    each row of V is made positive.
    """
    left, values, right = torch.linalg.svd(dense.double(), full_matrices=False)
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    signs = right.gather(1, right.abs().argmax(dim=1, keepdim=True)).sign()
    return left * values.sqrt() * signs.T, right * values.sqrt()[:, None] * signs


def _orthonormal(weight: Tensor, blocks: int) -> Tensor:
    """The polar factor of each block: the nearest matrix with orthonormal rows or columns."""
    stacked = weight.double().reshape(blocks, -1, weight.shape[1])
    left, _, right = torch.linalg.svd(stacked, full_matrices=False)
    nearest: Tensor = left @ right
    return nearest.flatten(0, 1)
