"""What each alignment objective converges to, in a world whose optimum is known in closed form.

Policies are tables: a softmax over 32 answers for each of 3 prompts. All objectives are trained on
the same offline rows: answers drawn from a data policy that is not the reference policy, each with a
reward and the rewards of n answers of the reference policy. "exact" columns replace the rows by
their expectations.

Run      python -m tools.tabular_alignment
Writes   the tables of docs/alignment.md between its markers; a test fails when they differ
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stamm.losses.preference import (
    dpo_loss,
    ipo_loss,
    kto_loss,
    qrpo_loss,
    rebel_loss,
    simpo_loss,
)
from stamm.losses.preference_types import Ties
from stamm.losses.quantile import quantile_rewards

PAGE = Path(__file__).parents[1] / "docs" / "alignment.md"
BEGIN, END = "<!-- tables: written by tools/tabular_alignment.py -->", "<!-- end of tables -->"
PROMPTS, ANSWERS, BETA, ROWS, REFERENCES = 3, 32, 0.5, 60_000, 100
FEWER = (1, 4, 20)  # other numbers of references
SIMPO_GAMMA = 0.3
DIVERGED = 0.99  # mass on the best answer of a policy that has no finite optimum

# Log-ratios of all answers, shape (P, K) -> a loss to be minimised.
Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TabularPrompts:
    """Prompts with a finite number of answers. Tensors are float64, shape (P, K) if not stated.

    reference   pi_ref
    data        mu, the policy whose answers are in the data
    reward      of each answer
    """

    reference: Tensor
    data: Tensor
    reward: Tensor

    def quantile(self, ties: Ties = "mid", under: Tensor | None = None) -> Tensor:
        """Exact quantile of each answer under a policy, the reference policy if none is given."""
        policy = self.reference if under is None else under
        lower = (self.reward[:, None, :] < self.reward[:, :, None]).double()
        equal = (self.reward[:, None, :] == self.reward[:, :, None]).double()
        weight = lower + equal * (1.0 if ties == "le" else 0.5)
        return (weight * policy[:, None, :]).sum(dim=2)

    def optimum(self, value: Tensor, beta: float = BETA) -> Tensor:
        """pi_ref exp(value / beta) / Z, by enumeration."""
        return (self.reference.log() + value / beta).softmax(dim=1)

    def beta_log_z(self, value: Tensor, beta: float = BETA) -> Tensor:
        """beta log Z by enumeration, shape (P, 1)."""
        return beta * (self.reference.log() + value / beta).logsumexp(dim=1, keepdim=True)


@dataclass(frozen=True)
class OfflineRows:
    """Pointwise rows: N answers of the data policy, with rewards of n reference answers each.

    prompt_N, answer_N   int64
    references_Nn        rewards of answers drawn from pi_ref
    """

    prompt_N: Tensor
    answer_N: Tensor
    references_Nn: Tensor


def drawn_prompts(seed: int = 0, prompts: int = PROMPTS, answers: int = ANSWERS) -> TabularPrompts:
    """Reference policy, data policy and normally distributed rewards, independent of each other."""
    draw = torch.Generator().manual_seed(seed)
    shape = (prompts, answers)
    reference, data, reward = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(3)
    )
    return TabularPrompts((0.5 * reference).softmax(1), (0.5 * data).softmax(1), reward)


def drawn_rows(
    world: TabularPrompts, rows: int, references: int, *, shared: bool = False, seed: int = 1
) -> OfflineRows:
    """`rows` answers of each prompt. With `shared`, the rows of a prompt have the same references."""
    draw = torch.Generator().manual_seed(seed)
    answers = torch.multinomial(world.data, rows, replacement=True, generator=draw)
    number = references if shared else rows * references
    drawn = torch.multinomial(world.reference, number, replacement=True, generator=draw)
    rewards = world.reward.gather(1, drawn)
    if shared:
        rewards = rewards.repeat(1, rows)
    prompt = torch.arange(len(answers)).repeat_interleave(rows)
    return OfflineRows(prompt, answers.flatten(), rewards.reshape(-1, references))


def trained(world: TabularPrompts, loss: Loss, rounds: int = 4) -> Tensor:
    """The policy that minimises a loss of its log-ratios, started at pi_ref, shape (P, K)."""
    logits = world.reference.log().clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [logits],
        max_iter=100 if rounds > 1 else 40,
        history_size=50,
        tolerance_grad=1e-13,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(logits.log_softmax(dim=1) - world.reference.log())
        value.backward()
        return value

    for _ in range(rounds):
        optimizer.step(closure)
    return logits.detach().softmax(dim=1)


def qrpo_of_rows(
    world: TabularPrompts, rows: OfflineRows, ties: Ties = "mid", beta: float = BETA
) -> Loss:
    """QRPO as a user trains it: estimated quantiles, the closed form of the partition function."""
    reward_N = world.reward[rows.prompt_N, rows.answer_N]
    quantile_N = quantile_rewards(reward_N, rows.references_Nn, ties=ties)

    def loss(log_ratio: Tensor) -> Tensor:
        each = qrpo_loss(
            log_ratio[rows.prompt_N, rows.answer_N],
            quantile_N,
            beta=beta,
            references=rows.references_Nn.shape[1],
        )
        return each.loss_B.mean()

    return loss


def qrpo_exact(world: TabularPrompts, ties: Ties = "mid") -> Loss:
    """QRPO with exact quantiles and the partition function by enumeration."""
    quantile = world.quantile(ties)
    log_z = world.beta_log_z(quantile).expand_as(quantile)

    def loss(log_ratio: Tensor) -> Tensor:
        each = qrpo_loss(
            log_ratio.flatten(),
            quantile.flatten(),
            beta=BETA,
            references=world.reward.shape[1],
            beta_log_z_B=log_z.flatten(),
        )
        return (world.data.flatten() * each.loss_B).sum()

    return loss


def exact_pairs(world: TabularPrompts, bradley_terry: bool) -> Tensor:
    """Share of the pairs in which answer i is preferred to j, shape (P, K, K), for infinite data."""
    both = world.data[:, :, None] * world.data[:, None, :]
    margin = world.reward[:, :, None] - world.reward[:, None, :]
    wins = margin.sigmoid() if bradley_terry else (margin > 0).double()
    return both * wins * (1 - torch.eye(world.data.shape[1], dtype=torch.float64))


def sampled_pairs(
    world: TabularPrompts, rows: OfflineRows, bradley_terry: bool, seed: int = 2
) -> Tensor:
    """Numbers of pairs, shape (P, K, K): neighbouring rows, without those of one answer twice."""
    prompt, first, second = rows.prompt_N[::2], rows.answer_N[::2], rows.answer_N[1::2]
    margin = world.reward[prompt, first] - world.reward[prompt, second]
    draw = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(margin), generator=draw, dtype=torch.float64)
    wins = uniform < margin.sigmoid() if bradley_terry else margin > 0
    chosen, rejected = torch.where(wins, first, second), torch.where(wins, second, first)
    apart = first != second
    count = torch.zeros(*world.reward.shape, world.reward.shape[1], dtype=torch.float64)
    ones = torch.ones(int(apart.sum()), dtype=torch.float64)
    return count.index_put_((prompt[apart], chosen[apart], rejected[apart]), ones, accumulate=True)


def pairwise(name: str, world: TabularPrompts, pairs: Tensor) -> Loss:
    """DPO, IPO, SimPO or REBEL over weighted pairs; every answer has one token."""
    place = pairs.nonzero()
    prompt, chosen, rejected = place.T
    weight = pairs[prompt, chosen, rejected] / pairs.sum()
    one = torch.ones(len(prompt), dtype=torch.float64)
    rewards = world.reward[prompt, chosen], world.reward[prompt, rejected]

    def loss(log_ratio: Tensor) -> Tensor:
        log_prob = log_ratio + world.reference.log()
        ratios = log_ratio[prompt, chosen], log_ratio[prompt, rejected]
        log_probs = log_prob[prompt, chosen], log_prob[prompt, rejected]
        match name:
            case "DPO":
                each = dpo_loss(*ratios, beta=BETA)
            case "IPO":
                each = ipo_loss(*ratios, one, one, beta=BETA)
            case "SimPO":
                each = simpo_loss(*log_probs, one, one, beta=BETA, gamma=SIMPO_GAMMA)
            case _:
                each = rebel_loss(*ratios, *rewards, beta=BETA)
        return (weight * each).sum()

    return loss


def kto(world: TabularPrompts, weight: Tensor, desirable: Tensor) -> Tensor:
    """The policy that KTO reaches; its KL term is set again before each of 20 minimisations.

    weight, desirable   of each answer with each label, shape (2, P, K)
    """
    policy = world.reference
    for _ in range(20):
        kl = (policy * (policy / world.reference).log()).sum(dim=1).mean()

        def loss(log_ratio: Tensor, kl: Tensor = kl) -> Tensor:
            both = log_ratio.expand(2, *log_ratio.shape)
            each = kto_loss(both, desirable, kl, beta=BETA)
            return (weight * each).sum() / weight.sum()

        policy = trained(world, loss, rounds=1)
    return policy


def kto_labels(world: TabularPrompts, rows: OfflineRows | None) -> tuple[Tensor, Tensor]:
    """Desirable: a reward above the median of the references. Weights and labels, (2, P, K)."""
    desirable = torch.tensor([True, False])[:, None, None].expand(2, *world.reward.shape)
    if rows is None:
        above = world.quantile() > 0.5
        return torch.stack([world.data * above, world.data * ~above]), desirable
    reward_N = world.reward[rows.prompt_N, rows.answer_N]
    above_N = quantile_rewards(reward_N, rows.references_Nn, ties="mid") > 0.5
    weight = torch.zeros(2, *world.reward.shape, dtype=torch.float64)
    place = ((~above_N).long(), rows.prompt_N, rows.answer_N)
    weight.index_put_(place, torch.ones(len(above_N), dtype=torch.float64), accumulate=True)
    return weight, desirable


def total_variation(one: Tensor, other: Tensor) -> float:
    """Half the sum of absolute differences, mean over prompts."""
    return float(0.5 * (one - other).abs().sum(dim=1).mean())


@dataclass(frozen=True)
class Reached:
    """What an objective reached: policies from exact expectations and from rows, shape (P, K).

    optimum       in closed form; None where there is none
    transformed   from exact expectations after the map R -> exp(R) of all rewards
    """

    objective: str
    labels: str
    formula: str
    optimum: Tensor | None
    exact: Tensor
    sampled: Tensor
    transformed: Tensor


def reached(world: TabularPrompts, rows: OfflineRows) -> list[Reached]:
    """Every objective on the same rows."""
    mapped = TabularPrompts(world.reference, world.data, world.reward.exp())
    quantile = world.quantile()
    found = [
        Reached(
            "QRPO",
            "single rated answers",
            "π_ref exp(q/β)/Z",
            world.optimum(quantile),
            trained(world, qrpo_exact(world)),
            trained(world, qrpo_of_rows(world, rows), rounds=1),
            trained(world, qrpo_exact(mapped)),
        )
    ]
    tilted = world.optimum(world.reward)
    seen = world.optimum(world.quantile(under=world.data))
    preference = (world.reward[:, :, None] - world.reward[:, None, :]).sigmoid()
    soft = world.optimum((preference * world.data[:, None, :]).sum(dim=2))
    for name, bradley_terry, formula, optimum in (
        ("REBEL", False, "π_ref exp(R/β)/Z", tilted),
        ("DPO", True, "π_ref exp(R/β)/Z", tilted),
        ("DPO", False, "none: the log-ratios diverge", None),
        ("IPO", True, "π_ref exp(P_μ(y preferred)/β)/Z", soft),
        ("IPO", False, "π_ref exp(q under μ/β)/Z", seen),
        ("SimPO", True, "not known; π_ref is not in it", None),
        ("SimPO", False, "none: the log-probabilities diverge", None),
    ):
        labels = "pairs, Bradley-Terry labels" if bradley_terry else "pairs, higher reward wins"
        exact, after, sampled = (
            trained(one, pairwise(name, one, pairs))
            for one, pairs in (
                (world, exact_pairs(world, bradley_terry)),
                (mapped, exact_pairs(mapped, bradley_terry)),
                (world, sampled_pairs(world, rows, bradley_terry)),
            )
        )
        labels = "pairs with both rewards" if name == "REBEL" else labels
        found.append(Reached(name, labels, formula, optimum, exact, sampled, after))
    found.append(
        Reached(
            "KTO",
            "single answers, good or bad",
            "not known",
            None,
            kto(world, *kto_labels(world, None)),
            kto(world, *kto_labels(world, rows)),
            kto(mapped, *kto_labels(mapped, None)),
        )
    )
    return found


def row_of(world: TabularPrompts, one: Reached) -> list[str]:
    """The cells of an objective."""
    goal = world.optimum(world.quantile())
    best = world.reward.argmax(dim=1, keepdim=True)
    mass = float(one.exact.gather(1, best).mean())
    kl = float((one.exact * (one.exact.clamp(min=1e-300) / world.reference).log()).sum(1).mean())
    own = [
        "" if one.optimum is None else _small(total_variation(policy, one.optimum))
        for policy in (one.exact, one.sampled)
    ]
    return [
        one.objective,
        one.labels,
        one.formula,
        *own,
        _small(total_variation(one.sampled, goal)),
        _small(total_variation(one.exact, one.transformed)),
        f"{float((one.exact * world.quantile()).sum(dim=1).mean()):.2f}",
        f"{kl:.2f}" if mass < DIVERGED else "bounded by the optimizer",
    ]


HEADER = [
    "objective",
    "data",
    "optimum",
    "distance to it, exact",
    "distance to it, rows",
    "distance to QRPO's optimum",
    "changed by R → exp(R)",
    "mean quantile",
    "KL in nats",
]


def expected_distance(world: TabularPrompts, draws: Tensor) -> float:
    """Total variation that the noise of quantiles leaves, to first order.

    draws   reference rewards behind the mean quantile of each answer, shape (P, K)

    The log-ratio of answer y has the standard deviation sqrt(q (1 - q) / draws) / beta; the mean
    of its absolute value is that times sqrt(2 / pi).
    """
    quantile, policy = world.quantile(), world.optimum(world.quantile())
    deviation = (quantile * (1 - quantile) / draws).sqrt() / BETA
    return float(0.5 * math.sqrt(2 / math.pi) * (policy * deviation).sum(dim=1).mean())


def references_row(world: TabularPrompts, references: int, shared: bool) -> list[str]:
    """How far QRPO is from its optimum with n references of each row, or of each prompt."""
    rows = drawn_rows(world, ROWS, references, shared=shared)
    goal = world.optimum(world.quantile())
    return [
        f"{references}",
        "of each prompt" if shared else "of each row",
        _small(total_variation(trained(world, qrpo_of_rows(world, rows), rounds=1), goal)),
        "" if shared else _small(expected_distance(world, ROWS * references * world.data)),
    ]


def tables() -> str:
    """Both tables."""
    world = drawn_prompts()
    rows = drawn_rows(world, ROWS, REFERENCES)
    first = [row_of(world, one) for one in reached(world, rows)]
    second = [
        references_row(world, n, shared) for shared in (False, True) for n in (*FEWER, REFERENCES)
    ]
    head = ["references", "drawn", "distance to the optimum", "expected from the noise"]
    return f"{_table(HEADER, first)}\n\n{_table(head, second)}"


def parts(page: str) -> tuple[str, str, str]:
    """The text before the tables, the tables, and the text after them."""
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before + BEGIN, inside.strip(), END + after


def main() -> None:
    """Write the tables into the page."""
    torch.set_num_threads(1)
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(f"{before}\n\n{tables()}\n\n{after}")


def _small(value: float) -> str:
    return "< 1e-6" if value < 1e-6 else f"{value:.1e}" if value < 0.01 else f"{value:.2f}"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    main()
