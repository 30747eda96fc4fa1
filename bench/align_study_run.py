"""One run of `bench.align_study`: train one arm from the start model, and measure its answers.

Letters: P prompts, K answers of a prompt, B sequences.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.align_study_world import Answers, Reward, World, read, sampled, sequences
from stamm.losses.preference import dpo_loss, qrpo_loss, rebel_loss, simpo_loss
from stamm.losses.quantile import quantile_rewards
from stamm.models.decoder import Decoder

ROWS = 64  # answers of a step
STEPS = 40
TEST_ANSWERS = 2  # of a prompt
BLOCKS = 40
GAMMA = 0.5  # SimPO's margin over its beta
COUNTED = 8  # seeds


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings of a run; its key in the file of results.

    rho         correlation of the reward with length
    noise       share of pairs whose order the noise of the ratings turns round
    references  rated answers of the start model that quantiles are estimated from
    source      own: answers of the start model; other: of an earlier checkpoint
    answers     rated answers of a prompt to train on
    reward      gold, or the proxy fitted to it
    """

    arm: str
    rate: float
    beta: float
    seed: int
    rho: float = 0.0
    noise: float = 0.0
    references: int = 16
    source: str = "own"
    answers: int = 4
    reward: str = "gold"
    split: str = "test"
    steps: int = STEPS

    @property
    def key(self) -> str:
        """The run as text; equal runs have equal keys."""
        return " ".join(f"{k}={v}" for k, v in dataclasses.asdict(self).items())


class Rated(NamedTuple):
    """What a run trains on, by prompt: (P, K), and as rows (P * K, T)."""

    answers: Answers
    reward: Tensor
    quantile: Tensor
    tokens_BT: Tensor
    completion_BT: Tensor


def rated(world: World, reward: Reward, run: Run) -> Rated:
    """The answers of a run with its ratings, noise included."""
    place = run.seed if run.seed < COUNTED else COUNTED + run.seed % 2
    pool = world.pools[run.source]
    columns = (torch.arange(run.answers) + place * world.sizes.drawn) % pool.length.shape[1]
    answers = pool.take(columns)
    columns = (torch.arange(run.references) + run.seed) % world.sizes.references
    references = world.pools["rate"].take(columns)
    draw = torch.Generator().manual_seed(8000 + run.seed)
    # Two standard normal rewards swap their order with probability arctan(sigma) / pi.
    sigma = math.tan(math.pi * run.noise)

    def rate(of: Answers) -> Tensor:
        value = valued(reward, of, run)
        return value + sigma * torch.randn(value.shape, generator=draw, dtype=torch.float64)

    value, compared = rate(answers), rate(references)
    quantile = quantile_rewards(
        value.flatten(), compared.repeat_interleave(run.answers, 0), ties="mid"
    )
    rows = sequences(world.prompts["train"], answers.tokens, answers.length)
    return Rated(answers, value, quantile.reshape(value.shape), *rows)


def valued(reward: Reward, answers: Answers, run: Run) -> Tensor:
    """The reward that a run optimises, without noise."""
    return reward.proxy(answers) if run.reward == "proxy" else reward.mixed(answers, run.rho)


def objective(run: Run, data: Rated) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of log-probabilities (P', K) of the prompts with these numbers."""
    length, quantile, reference = data.answers.length, data.quantile, data.answers.reference
    beta = run.beta

    def qrpo(log_prob: Tensor, of: Tensor) -> Tensor:
        found = qrpo_loss(
            (log_prob - reference[of]).flatten(),
            quantile[of].flatten(),
            beta=beta,
            references=run.references,
            length_B=length[of].flatten(),
            normalize="beta" if run.arm == "qrpo, per token" else "none",
        )
        return found.loss_B.mean() / found.beta_B.mean() ** 2

    def sft(log_prob: Tensor, of: Tensor) -> Tensor:
        best = quantile[of] >= 0.5
        if run.answers > 1:
            best = data.reward[of] == data.reward[of].max(1, keepdim=True).values
        return -(log_prob * best).sum() / (length[of] * best).sum().clamp(min=1)

    def pairs(log_prob: Tensor, of: Tensor) -> Tensor:
        value, tokens = data.reward[of], length[of]
        first = value[:, ::2] > value[:, 1::2]
        apart = value[:, ::2] != value[:, 1::2]

        def both(x: Tensor) -> tuple[Tensor, Tensor]:
            one, two = x[:, ::2], x[:, 1::2]
            return torch.where(first, one, two)[apart], torch.where(first, two, one)[apart]

        if run.arm == "simpo":
            return simpo_loss(
                *both(log_prob), *both(tokens), beta=beta, gamma=GAMMA * beta
            ).mean()  # fmt: skip
        ratios = both(log_prob - reference[of])
        if run.arm == "rebel":
            return rebel_loss(*ratios, *both(value), beta=beta).mean()
        lengths = both(tokens) if run.arm == "dpo, per token" else (None, None)
        smoothing = run.noise if run.arm == "dpo, smoothed" else 0.0
        return dpo_loss(
            *ratios,
            beta=beta,
            label_smoothing=smoothing,
            chosen_length_B=lengths[0],
            rejected_length_B=lengths[1],
        ).mean()

    if run.arm.startswith("qrpo"):
        return qrpo
    return sft if run.arm == "sft on best" else pairs


def trained(world: World, run: Run, data: Rated) -> tuple[Decoder, float]:
    """The policy, and the mean loss of the last tenth of the steps."""
    decoder, steps = copy.deepcopy(world.start), run.steps
    loss_of = objective(run, data)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=run.rate, betas=(0.9, 0.99))
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / 6, 0.5 + 0.5 * math.cos(math.pi * t / steps))
    )
    prompts, count = data.reward.shape
    draw, batch = torch.Generator().manual_seed(9000 + run.seed), ROWS // count
    order: Tensor = torch.zeros(0, dtype=torch.int64)
    losses: list[float] = []
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(prompts, generator=draw)])
        of, order = order[:batch], order[batch:]
        rows = (of[:, None] * count + torch.arange(count)).flatten()
        tokens_BT, mask_BT = data.tokens_BT[rows], data.completion_BT[rows] >= 0
        longest = int(mask_BT.any(0).nonzero().max()) + 1
        completion_BT = torch.where(mask_BT, torch.arange(len(rows))[:, None], -1)[:, :longest]
        optimizer.zero_grad()
        log_prob = decoder.sequence_log_probs(
            tokens_BT[:, :longest], tokens_BT[:, 1 : longest + 1], completion_BT, len(rows)
        )
        loss = loss_of(log_prob.reshape(-1, count), of)
        loss.backward()
        optimizer.step()
        shape.step()
        losses.append(float(loss.detach()))
    last = losses[-max(steps // 10, 1) :]
    return decoder.eval(), sum(last) / len(last)


def ideal_length(length_PN: Tensor, reward_PN: Tensor, mean_quantile: float) -> Tensor:
    """Mean length, (P,), under the policy of that mean quantile with the least KL from the start model.

    That policy is pi_ref exp(q / beta) / Z; its expectation is that of the start model's N answers
    with these weights.
    """
    count = reward_PN.shape[1]
    quantile = quantile_rewards(
        reward_PN.flatten(), reward_PN.repeat_interleave(count, 0), ties="mid"
    ).reshape(reward_PN.shape)
    low, high = -1000.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        weight = (middle * quantile).softmax(1)
        reached = float((weight * quantile).sum(1).mean())
        low, high = (middle, high) if reached < mean_quantile else (low, middle)
    return (weight * length_PN).sum(1)


def measured(world: World, reward: Reward, run: Run, decoder: Decoder) -> dict[str, Any]:
    """Measures of a policy's answers on the prompts of `run.split`.

    quantile   of the reward that was optimised, among fresh answers of the start model
    gold       the same of the gold reward, which no arm sees where another is optimised
    excess     tokens above the length of the policy with the least KL at the same mean quantile
    blocks     means over blocks of consecutive prompts, for intervals
    """
    prompts, fresh = world.prompts[run.split], world.pools[f"rate_{run.split}"]
    tokens, length = sampled(
        decoder, prompts, TEST_ANSWERS, 500 + run.seed, world.stop, world.sizes.longest_answer
    )
    answers, log_ratio, kl = read(world.start, prompts, tokens, length, decoder)

    def quantiles(value: Tensor, compared: Tensor) -> Tensor:
        each = compared.repeat_interleave(TEST_ANSWERS, 0)
        return quantile_rewards(value.flatten(), each, ties="mid").reshape(value.shape)

    compared = valued(reward, fresh, run)
    quantile = quantiles(valued(reward, answers, run), compared)
    gold = quantiles(reward.gold(answers), reward.gold(fresh))
    ideal = ideal_length(fresh.length.double(), compared, float(quantile.mean()))
    tokens_P = answers.length.double().mean(1)
    by_prompt = {
        "quantile": quantile.mean(1), "gold": gold.mean(1), "kl": kl.mean(1),
        "excess": tokens_P - ideal, "length": tokens_P - fresh.length.double().mean(1),
    }  # fmt: skip
    grams = [
        tuple(row[at : at + 4])
        for row, count in zip(tokens.flatten(0, 1).tolist(), length.flatten().tolist(), strict=True)
        for at in range(count - 3)
    ]
    return {
        **{name: round(float(value.mean()), 6) for name, value in by_prompt.items()},
        "k1": round(float(log_ratio.mean()), 4),
        "k3": round(float(((-log_ratio).exp() - 1 + log_ratio).mean()), 4),
        "gold_reward": round(float(reward.gold(answers).mean()), 4),
        "stopped": round(float((tokens == world.stop).any(-1).double().mean()), 4),
        "distinct_4": round(len(set(grams)) / max(len(grams), 1), 4),
        "blocks": {name: _blocks(by_prompt[name]) for name in ("quantile", "gold", "kl", "excess")},
    }


def _blocks(value_P: Tensor) -> list[float]:
    count = min(BLOCKS, len(value_P))
    return [round(float(part.mean()), 4) for part in value_P.tensor_split(count)]


def performed(world: World, reward: Reward, run: Run) -> dict[str, Any]:
    """Train and measure: a line of the file of results."""
    began = time.process_time()
    decoder, loss = trained(world, run, rated(world, reward, run))
    found = measured(world, reward, run, decoder)
    return {
        **dataclasses.asdict(run),
        "loss": round(loss, 5),
        **found,
        "cpu_seconds": round(time.process_time() - began, 2),
    }


def best_of(
    world: World, reward: Reward, seed: int, numbers: Sequence[int]
) -> list[dict[str, Any]]:
    """The best of N answers of the start model by the proxy, exactly, from the fresh answers' order.

    Of M answers without ties the one of rank r is the best of N drawn with probability
    C(r - 1, N - 1) / C(M, N).
    """
    fresh = world.pools["rate_test"]
    proxy, gold = reward.proxy(fresh), reward.gold(fresh)
    count = proxy.shape[1]
    each = gold.repeat_interleave(count, 0)
    quantile = quantile_rewards(gold.flatten(), each, ties="mid").reshape(gold.shape)
    quantile = (count * quantile - 0.5) / (count - 1)  # without the answer itself
    sorted_quantile = quantile.gather(1, proxy.argsort(1))
    lines = []
    for n in numbers:
        chance = [math.comb(rank, n - 1) / math.comb(count, n) for rank in range(count)]
        weight = torch.tensor(chance, dtype=torch.float64)
        value = (sorted_quantile * weight).sum(1)
        lines.append(
            {
                "arm": "best of N", "n": n, "seed": seed, "reward": "proxy",
                "kl": math.log(n) - (n - 1) / n, "quantile": n / (n + 1),
                "gold": round(float(value.mean()), 6), "blocks": {"gold": _blocks(value)},
            }
        )  # fmt: skip
    return lines
