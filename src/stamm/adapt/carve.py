"""Divide the units of a trained feed-forward block into experts, and fit a linear router to them.

1. Profiles: on every token the units with the largest |h_i| times the norm of column i of the last matrix are
   marked. Units with like marks belong together.
2. Groups of equal size by k-means on the profiles, where each pair of unit and group is taken by distance while the
   group has room.
3. Router: ridge regression of each expert's contribution, |E_e(x)| or its logarithm, less the mean over experts, on
   the block's input, times a common factor that makes the softmax of the scores the weights.
4. Of all numbers of marks, starts of k-means, contributions and factors those with the smallest error of the block's
   output on the tokens are used.
5. The last matrix is refit to the units that act, as in `adapt.refit`.

Letters: N tokens, C units, D model, E experts, R routed experts.

Source   activity profiles and balanced groups: Pei et al. 2025, CMoE (arXiv 2502.04416)
Checked  tests/unit/adapt/test_carve.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stamm.adapt.blocks import BlockSample
from stamm.models.config import Experts
from stamm.models.experts import expert_weights

RIDGE = 1e-3
_SCALES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)  # standard deviation of the scores
_PROFILED = 4096  # tokens of the profiles
_MARKED = (16, 8, 4)  # width / units that are marked on a token
_RESTARTS, _ROUNDS = 4, 20
_CHUNK = 1024
_SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class BlockCarve:
    """Experts of one block.

    order    units, expert by expert, (C,)
    router   weight of the router, (R, D)
    error    share of the mean square of the block's output that experts and router miss on the tokens
    down     the last matrix, (D, C), refit to the units that act; units in the order of the dense block
    """

    order: Tensor
    router: Tensor
    error: float
    down: Tensor

    def unit_weights(self, x: Tensor, experts: Experts) -> Tensor:
        """The factor of every unit of the dense block, (..., C), from the block's input."""
        return of_units(expert_weights(x @ self.router.T, experts), self.order)


def carve_block(sample: BlockSample, experts: Experts, seed: int) -> BlockCarve:
    """Experts of units with like profiles, with their router."""
    units = sample.h.shape[1]
    orders = [
        order
        for by in _MARKED
        for order in balanced_orders(sample, experts, max(1, units // by), seed)
    ]
    best = min((fit_router(sample, order, experts) for order in orders), key=lambda c: c.error)
    return _refit(sample, best, experts)


def carve_at_random(sample: BlockSample, experts: Experts, seed: int) -> BlockCarve:
    """The control: a random division, with a router fitted alike."""
    random = torch.Generator().manual_seed(seed)
    order_C = torch.randperm(sample.h.shape[1], generator=random)
    return _refit(sample, fit_router(sample, order_C, experts), experts)


def _refit(sample: BlockSample, carve: BlockCarve, experts: Experts) -> BlockCarve:
    if experts.active == experts.count:
        return carve
    return replace(carve, down=refit_matrix(sample, carve.unit_weights(sample.x, experts)))


def refit_matrix(sample: BlockSample, weights: Tensor) -> Tensor:
    """The last matrix, (D, C), with which the units times `weights`, (N, C) or (C,), miss least of the output.

    A ridge regression towards the matrix as it is.
    """
    down_CD = sample.down.T.double()
    square_CC, target_CD = torch.zeros(2 * (len(down_CD),)).double(), torch.zeros_like(down_CD)
    factors_NC = weights.expand_as(sample.h)
    for h_NC, factor_NC in zip(
        torch.split(sample.h, _CHUNK), torch.split(factors_NC, _CHUNK), strict=True
    ):
        wide_NC, k_NC = h_NC.double(), (h_NC * factor_NC).double()
        square_CC += k_NC.T @ k_NC
        target_CD += k_NC.T @ (wide_NC @ down_CD)
    ridge = RIDGE * float(square_CC.diagonal().mean())
    square_CC.diagonal().add_(ridge)
    refit_DC: Tensor = torch.linalg.solve(square_CC, target_CD + ridge * down_CD).T.float()
    return refit_DC


def of_units(weights: Tensor, order_C: Tensor) -> Tensor:
    """The factor of every unit of the dense block, (..., C), from those of the experts, (..., E)."""
    by_place = weights.repeat_interleave(len(order_C) // weights.shape[-1], -1)
    return by_place[..., order_C.argsort()]


def balanced_orders(sample: BlockSample, experts: Experts, top: int, seed: int) -> Iterator[Tensor]:
    """The units by expert, (C,), of each start: the strongest are shared, the others grouped by their profiles.

    top   units that are marked on a token
    """
    step = max(1, len(sample.h) // _PROFILED)
    strength_NC = sample.strength[::step]
    units = strength_NC.shape[1]
    marked_NC = torch.zeros_like(strength_NC)
    marked_NC.scatter_(1, strength_NC.topk(top, dim=1).indices, 1.0)
    shared = units // experts.count * experts.shared
    by_use = (marked_NC.mean(0) + 1e-3 * strength_NC.mean(0) / strength_NC.mean()).argsort(
        descending=True, stable=True
    )
    rest = by_use[shared:].sort().values
    profile_CN, random = marked_NC[:, rest].T.contiguous(), torch.Generator().manual_seed(seed)
    for _ in range(_RESTARTS):
        group_C = _balanced_groups(profile_CN, experts.routed, random)
        by_group = group_C.argsort(stable=True)
        yield torch.cat([by_use[:shared], rest[by_group]])


def _balanced_groups(profile_CN: Tensor, groups: int, random: torch.Generator) -> Tensor:
    """The group of every unit, by k-means with groups of equal size from random units."""
    center_GN = profile_CN[torch.randperm(len(profile_CN), generator=random)[:groups]]
    best, least = torch.zeros(0), float("inf")
    for _ in range(_ROUNDS):
        distance_CG = torch.cdist(profile_CN, center_GN)
        group_C = _balanced(distance_CG)
        whole = float(distance_CG.square().gather(1, group_C[:, None]).sum())
        if whole >= least:
            break
        best, least = group_C, whole
        center_GN = torch.stack([profile_CN[group_C == g].mean(0) for g in range(groups)])
    return best


def _balanced(distance_CG: Tensor) -> Tensor:
    """A group for every unit, all of the same size: pairs in the order of how much the next group would cost."""
    units, groups = distance_CG.shape
    room, group_C = [units // groups] * groups, [-1] * units
    # A pair that is much nearer than the unit's other groups comes first.
    regret_CG = distance_CG - distance_CG.mean(1, keepdim=True)
    for pair in regret_CG.flatten().argsort(stable=True).tolist():
        unit, group = divmod(pair, groups)
        if group_C[unit] < 0 and room[group]:
            group_C[unit], room[group] = group, room[group] - 1
    return torch.tensor(group_C)


def fit_router(sample: BlockSample, order_C: Tensor, experts: Experts) -> BlockCarve:
    """The experts of a block with the linear router whose weights miss least of its output.

    Edge     with all experts active the router is 0, and the block is the dense one
    """
    gram_NRR, whole = _expert_products(sample, order_C, experts)
    x_ND = sample.x.double()
    router_RD = torch.zeros(experts.routed, x_ND.shape[1])
    if experts.chosen < experts.routed:
        size_NR = gram_NRR.diagonal(dim1=1, dim2=2).double().clamp_min(_SMALLEST).sqrt()
        product_DD = x_ND.T @ x_ND
        ridge = RIDGE * float(product_DD.diagonal().mean())
        product_DD += ridge * torch.eye(len(product_DD), dtype=torch.float64)
        scaled = []
        for target_NR in (size_NR, size_NR.log()):
            target_NR = target_NR - target_NR.mean(1, keepdim=True)
            fitted_DR = torch.linalg.solve(product_DD, x_ND.T @ target_NR)
            spread = float((x_ND @ fitted_DR).std().clamp_min(_SMALLEST))
            scaled += [(fitted_DR.T * (scale / spread)).float() for scale in _SCALES]
        router_RD = min(scaled, key=lambda w_RD: _missed(sample.x @ w_RD.T, gram_NRR, experts))
    missed = _missed(sample.x @ router_RD.T, gram_NRR, experts)
    error = missed / whole if whole else 0.0
    return BlockCarve(order=order_C, router=router_RD, error=error, down=sample.down)


def expert_sizes(h_NC: Tensor, down_DC: Tensor, order_C: Tensor, experts: Experts) -> Tensor:
    """The length of the contribution E_e of every routed expert, (N, R)."""
    size_NR: Tensor = _outputs(h_NC, down_DC, order_C, experts).norm(dim=2)
    return size_NR


def _outputs(h_NC: Tensor, down_DC: Tensor, order_C: Tensor, experts: Experts) -> Tensor:
    h_NEU, down_DEU = (
        x[:, order_C].view(len(x), experts.count, -1)[:, experts.shared :] for x in (h_NC, down_DC)
    )
    return torch.einsum("neu,deu->ned", h_NEU, down_DEU)


def _expert_products(
    sample: BlockSample, order_C: Tensor, experts: Experts
) -> tuple[Tensor, float]:
    """Products of the routed experts' outputs with one another, (N, R, R), and the square of the block's output."""
    products, whole = [], 0.0
    for h_NC in torch.split(sample.h, _CHUNK):
        out_NRD = _outputs(h_NC, sample.down, order_C, experts)
        products.append(out_NRD @ out_NRD.transpose(1, 2))
        whole += float((h_NC @ sample.down.T).double().square().sum())
    return torch.cat(products), whole


def _missed(scores_NR: Tensor, gram_NRR: Tensor, experts: Experts) -> float:
    """The square of what the weighted experts miss, summed over tokens."""
    left_NR = 1 - expert_weights(scores_NR, experts)[:, experts.shared :]
    return float(torch.einsum("nr,nrs,ns->n", left_NR, gram_NRR, left_NR).double().sum())


def kept_units(sample: BlockSample, share: float) -> Tensor:
    """A mask of the units that static pruning keeps, (C,): the strongest on average."""
    strength_C = sample.strength.mean(0)
    kept_C = torch.zeros_like(strength_C)
    kept_C[strength_C.topk(round(share * len(strength_C))).indices] = 1.0
    return kept_C
