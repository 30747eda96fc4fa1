"""Divide the units of a trained feed-forward block into experts, and fit a linear router to them.

1. Profiles: on every token the `top` units with the largest |h_i| times the norm of column i of the last matrix
   are marked. Units with like marks belong together.
2. Groups of equal size by k-means on the profiles, where each pair of unit and group is taken by distance while the
   group has room.
3. Router: ridge regression of each expert's contribution |E_e(x)|, less the mean over experts, on the block's input.
   A common factor of the scores, the one with the smallest error of the block's output on the tokens, makes their
   softmax the weights.

Letters: N tokens, C units, D model, E experts, R routed experts.

Source   activity profiles and balanced groups: Pei et al. 2025, CMoE (arXiv 2502.04416)
Checked  tests/unit/adapt/test_carve.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.models.config import Experts
from stamm.models.experts import expert_weights

RIDGE = 1e-3
_SCALES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)  # standard deviation of the scores
_PROFILED = 4096  # tokens of the profiles
_RESTARTS, _ROUNDS = 4, 20
_CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class BlockSample:
    """A block on calibration tokens: its input (N, D), the outputs of its units (N, C), its last matrix (D, C)."""

    x: Tensor
    h: Tensor
    down: Tensor

    @property
    def strength(self) -> Tensor:
        """|h_i| times the norm of column i of the last matrix, (N, C)."""
        strength_NC: Tensor = self.h.abs() * self.down.norm(dim=0)
        return strength_NC


@dataclass(frozen=True, kw_only=True)
class BlockCarve:
    """Experts of one block.

    order    units, expert by expert, (C,)
    router   weight of the router, (R, D)
    error    share of the mean square of the block's output that experts and router miss on the tokens
    """

    order: Tensor
    router: Tensor
    error: float


def balanced_order(sample: BlockSample, experts: Experts, top: int, seed: int) -> Tensor:
    """The units by expert, (C,): the strongest are shared, the others grouped by their profiles."""
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
    groups = _balanced_groups(marked_NC[:, rest].T.contiguous(), experts.routed, seed)
    return torch.cat([by_use[:shared], *(rest[group] for group in groups)])


def random_order(units: int, seed: int) -> Tensor:
    """A random permutation of the units: the control of `balanced_order`."""
    return torch.randperm(units, generator=torch.Generator().manual_seed(seed))


def _balanced_groups(profile_CN: Tensor, groups: int, seed: int) -> list[Tensor]:
    """k-means with groups of equal size; the best of some random starts."""
    random = torch.Generator().manual_seed(seed)
    best, least = torch.zeros(0), float("inf")
    for _ in range(_RESTARTS):
        start = torch.randperm(len(profile_CN), generator=random)[:groups]
        center_GN, before = profile_CN[start], float("inf")
        for _ in range(_ROUNDS):
            distance_CG = torch.cdist(profile_CN, center_GN)
            group_C = _balanced(distance_CG)
            whole = float(distance_CG.square().gather(1, group_C[:, None]).sum())
            if whole < least:
                best, least = group_C, whole
            if whole >= before:
                break
            before = whole
            center_GN = torch.stack([profile_CN[group_C == g].mean(0) for g in range(groups)])
    return [(best == group).nonzero().flatten() for group in range(groups)]


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
        size_NR = gram_NRR.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        target_NR = (size_NR - size_NR.mean(1, keepdim=True)).double()
        product_DD = x_ND.T @ x_ND
        ridge = RIDGE * float(product_DD.diagonal().mean())
        eye_DD = torch.eye(len(product_DD), dtype=torch.float64)
        fitted_DR = torch.linalg.solve(product_DD + ridge * eye_DD, x_ND.T @ target_NR)
        spread = float((x_ND @ fitted_DR).std().clamp_min(1e-30))
        scaled = [(fitted_DR.T * (scale / spread)).float() for scale in _SCALES]
        router_RD = min(scaled, key=lambda w_RD: _missed(sample.x @ w_RD.T, gram_NRR, experts))
    missed = _missed(sample.x @ router_RD.T, gram_NRR, experts)
    return BlockCarve(order=order_C, router=router_RD, error=missed / whole if whole else 0.0)


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
