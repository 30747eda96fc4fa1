"""Dense and structured matrices: low-rank, block-dense and block-shuffle, with a dense guide.

Letters: T tokens, N inputs, M outputs, B blocks, R width between the factors.

A factor is stored as a matrix with a row for each output, blocks one below the other, so it divides
over processes by rows as any matrix does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.models.config import BlockDense, BlockShuffle, Dense, Linear, LowRank

_ROWS = 1024  # rows of the identity multiplied at once by `dense_weight`

Draw = Callable[[str, Sequence[int]], Tensor]


class StructuredLinear(nn.Module):
    """S x = second(first(x)) without bias; while guided, a W x + (1 - a) S x.

    guide    W; exists in training only, between `add_guide` and `drop_guide`
    guided   whether this step multiplies by W. Evaluation never does: it measures the structured
             matrix, which is stored, merged and exported.

    Checked  tests/unit/models/test_structured.py
    """

    guide: nn.Parameter | None
    guide_weight: Tensor  # a; a tensor, so that its changes do not recompile

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
        """The M x N matrix that equals the product, summed in float64 and rounded once."""
        first, second = self.first.double(), self.second.double()
        inputs = torch.arange(self.in_features, device=first.device)
        columns = []
        for some in torch.split(inputs, _ROWS):
            rows_TN = F.one_hot(some, self.in_features).double()
            columns.append(structured(self.form, rows_TN, first, second).to(self.first.dtype))
        return torch.cat(columns).T.contiguous()

    def merged(self) -> nn.Linear:
        """The same map as one dense matrix."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.dense_weight())
        return linear.train(self.training)

    @torch.no_grad()
    def initialise(self, name: str, draw: Draw, deviation: float) -> None:
        """Initialise the factors; a guide starts as their product.

        name   of this module; each factor is drawn by its own name
        draw   standard normal values for a tensor of this name and shape

        LowRank takes the largest singular values of the dense matrix that it replaces ("weight", times
        `deviation`), each divided between the factors by its square root. Blocks become the nearest
        matrices with orthonormal rows or columns, as does a dense U, so no singular value of the
        product is above 1 for any `deviation`.

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
        """Add a dense guide that equals the current product of the factors."""
        weight = torch.ones((), device=self.first.device)
        self.register_buffer("guide_weight", weight, persistent=False)
        self.guide = nn.Parameter(self.dense_weight())

    def drop_guide(self) -> None:
        """Remove the guide, if there is one."""
        if self.guide is not None:
            self.guide, self.guided = None, False
            del self.guide_weight

    def extra_repr(self) -> str:
        """Form and sizes, shown by `print`."""
        return f"{self.form}, in_features={self.in_features}, out_features={self.out_features}"


def build_linear(form: Linear, inputs: int, outputs: int) -> nn.Module:
    """A dense or structured matrix of `outputs` x `inputs`, without bias."""
    if isinstance(form, Dense):
        return nn.Linear(inputs, outputs, bias=False)
    return StructuredLinear(form, inputs, outputs)


def structured(
    form: LowRank | BlockDense | BlockShuffle, x: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """second(first(x)) for the factors of `form`.

    LowRank       second (M, R), first (R, N): U (V x)
    BlockDense    second (M, R), first (R, N/B) of B blocks
    BlockShuffle  second (M, R/B), first (R, N/B), each of B blocks. Block b of the second takes every
                  B-th output of the first, from the b-th on; results interleave likewise.

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

    Singular vectors are unique up to sign, and libraries differ: the largest value of each row of V
    is made positive.
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
