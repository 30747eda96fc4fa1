"""Alignment objectives on policies whose answers can be enumerated: measured against closed forms.

Questions
  curve      does QRPO land on its closed-form curve of KL against mean quantile? A decoder of 2 layers
             writes 3 of 16 symbols, so that all 4,096 answers of each of 2 prompts are enumerated:
             quantiles, KL and optima are exact. Rows: 20,000 answers of the start policy for each
             prompt, each rated against 16 fresh ones. 8 seeds, 5 betas. The objective's own optimum for
             DPO (Bradley-Terry and hard labels) and REBEL from the same rows at one beta, 5 seeds.
  binary     pass or fail, by the pass rate p of the prompt: how much the odds of passing rise with ties
             "le" and "mid", and the closed, empirical or exact partition function. Tables; 5 seeds.
  outlier    the largest reward of 1 % of the prompts is multiplied by 100: which objectives train to
             the same bits, and what the others lose on the other 99 %. Decoder, 5 seeds.

Power, stated before the first run (learning rate and steps were chosen on seed 100, which is not compared)
  curve      "lands" means: the 95 % interval over 8 seeds of the mean quantile minus the closed form
             lies within ±0.01, and that of KL over the closed form within 1 ± 0.1. With an expected
             standard deviation between seeds of 0.005 and 0.04 the half widths are 0.004 and 0.03, so
             that a policy which is on the curve is shown to be with a power above 0.9, and one that
             is off by 0.015 (0.15) is not.
  binary     a log-odds per prompt from 2,000 rows has a standard error near 0.1 / (beta sqrt(n)) from its
             references; means over 8 prompts of one difficulty and 5 seeds resolve 5 % of the prediction.
  outlier    bits are equal or not; for the others, 5 seeds resolve 1.2 standard deviations between seeds.

Run      python -m bench.align_truth [--questions curve binary outlier] [--out FILE.jsonl]
         python -m bench.align_truth --tables FILE.jsonl
Prints   tables; with --out appends one JSON line per policy, with machine and commit. One thread;
         about 8 CPU minutes
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.align_truth_page import page
from bench.capability import processor_facts
from stamm.losses.preference import dpo_loss, qrpo_loss, rebel_loss, simpo_loss
from stamm.losses.preference_types import Ties
from stamm.losses.quantile import (
    empirical_beta_log_partition,
    optimum_kl,
    optimum_mean_quantile,
    quantile_rewards,
)
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.determinism import set_determinism

BETAS = (0.05, 0.1, 0.2, 0.5, 1.0)
RIVAL_BETA = 0.5
SYMBOLS = 16
Line = dict[str, Any]
Loss = Callable[[Tensor], Tensor]


class EnumeratedPolicy:
    """A decoder that writes `length` of 16 symbols after a prompt of `digits` symbols.

    `log_probs()` has shape (P, K), K = 16^length: every answer of every prompt, from one forward
    pass over all prefixes.
    """

    def __init__(self, seed: int, prompts: int, digits: int, length: int, sharpness: float) -> None:
        config = DecoderConfig(
            vocab_size=2 * SYMBOLS,
            d_model=32,
            num_layers=2,
            num_heads=2,
            num_kv_heads=2,
            ffn=GatedFFN(width=64),
            max_context=8,
        )
        self.decoder: Decoder = build_decoder(config, seed=seed)
        with torch.no_grad():
            self.decoder.lm_head.weight.mul_(sharpness)
        place = torch.arange(prompts)
        prompt = torch.stack([SYMBOLS + place // SYMBOLS**d % SYMBOLS for d in range(digits)], 1)
        prefix = torch.cartesian_prod(*[torch.arange(SYMBOLS)] * (length - 1))
        prefix = prefix.reshape(SYMBOLS ** (length - 1), length - 1)
        self._tokens = torch.cat(
            [prompt.repeat_interleave(len(prefix), 0), prefix.repeat(prompts, 1)], dim=1
        )
        self._shape = prompts, digits, length

    def log_probs(self) -> Tensor:
        """Log-probability of every answer in nats, float64, shape (P, K)."""
        prompts, digits, length = self._shape
        hidden = self.decoder.model(self._tokens)[:, digits - 1 :]
        logits = hidden @ self.decoder.lm_head.weight[:SYMBOLS].T
        step = logits.double().log_softmax(dim=-1).reshape(prompts, -1, length, SYMBOLS)
        total = torch.zeros(prompts, 1, dtype=torch.float64)
        for place in range(length):
            every = SYMBOLS ** (
                length - 1 - place
            )  # prefixes that share their first `place` symbols
            total = (total[:, :, None] + step[:, ::every, place]).flatten(1)
        return total


def smooth_rewards(seed: int, prompts: int, answers: int, length: int) -> Tensor:
    """A reward of each answer, (P, K): sums over symbols and pairs of symbols, and 10 % of noise."""
    draw = torch.Generator().manual_seed(1000 + seed)
    place = torch.arange(answers)
    symbols = [place // SYMBOLS**d % SYMBOLS for d in range(length)]
    reward = 0.1 * torch.randn(prompts, answers, generator=draw, dtype=torch.float64)
    for d in range(length):
        one = torch.randn(prompts, SYMBOLS, generator=draw, dtype=torch.float64)
        two = torch.randn(prompts, SYMBOLS, SYMBOLS, generator=draw, dtype=torch.float64)
        reward = reward + one[:, symbols[d]] + 0.3 * two[:, symbols[d], symbols[d - 1]]
    return (reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True)


def exact_quantiles(policy: Tensor, reward: Tensor) -> Tensor:
    """Mid-rank quantile of each answer under a policy, (P, K). Rewards are all different."""
    order = reward.argsort(dim=1)
    sorted_policy = policy.gather(1, order)
    middle = sorted_policy.cumsum(dim=1) - sorted_policy / 2
    return torch.zeros_like(policy).scatter_(1, order, middle)


def trained(policy: EnumeratedPolicy, loss: Loss, steps: int, rate: float = 1e-2) -> Tensor:
    """Adam with a linear warm-up of 20 steps and cosine decay to 0; log-probabilities at the end."""
    parameters = list(policy.decoder.parameters())
    optimizer = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.99))
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * t / steps))
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss(policy.log_probs()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        shape.step()
    with torch.no_grad():
        return policy.log_probs()


def frontier(kl: float) -> float:
    """The largest mean quantile that a policy at this KL can have: that of the curve of all betas."""
    low, high = 1e-6, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if optimum_kl(middle) > kl else (low, middle)
    return optimum_mean_quantile(low)


def _kl(first: Tensor, second: Tensor) -> float:
    """Mean over prompts of the KL divergence of log-probabilities, nats."""
    return float((first.exp() * (first - second)).sum(dim=1).mean())


def curve(seed: int, steps: int) -> Iterator[Line]:
    """Question "curve" for one seed."""
    prompts, length, rows, references = 2, 3, 20_000, 16

    def start() -> EnumeratedPolicy:
        return EnumeratedPolicy(seed, prompts, 1, length, sharpness=10.0)

    with torch.no_grad():
        before = start().log_probs()
    policy, answers = before.exp(), before.shape[1]
    reward = smooth_rewards(seed, prompts, answers, length)
    quantile = exact_quantiles(policy, reward)
    draw = torch.Generator().manual_seed(2000 + seed)
    drawn = torch.multinomial(policy, rows, replacement=True, generator=draw)
    compared = torch.multinomial(policy, rows * references, replacement=True, generator=draw)
    estimate = quantile_rewards(
        reward.gather(1, drawn).flatten(),
        reward.gather(1, compared).reshape(-1, references),
        ties="mid",
    ).reshape(prompts, rows)
    count = torch.zeros_like(policy).scatter_add_(1, drawn, torch.ones_like(estimate))
    mean = torch.zeros_like(policy).scatter_add_(1, drawn, estimate) / count.clamp(min=1)
    first, second = drawn[:, ::2], drawn[:, 1::2]
    margin = reward.gather(1, first) - reward.gather(1, second)
    uniform = torch.rand(margin.shape, generator=draw, dtype=torch.float64)
    apart = first != second

    def qrpo(beta: float, value: Tensor, weight: Tensor) -> Loss:
        # The loss is quadratic: rows of one answer have the gradient of their mean.
        def loss(log_prob: Tensor) -> Tensor:
            ratio = (log_prob - before).flatten()
            each = qrpo_loss(ratio, value.flatten(), beta=beta, references=references)
            return (weight.flatten() * each.loss_B).sum() / weight.sum() / beta**2

        return loss

    def pairs(beta: float, name: str) -> Loss:
        wins = uniform < margin.sigmoid() if name == "dpo, Bradley-Terry" else margin > 0
        chosen, rejected = torch.where(wins, first, second), torch.where(wins, second, first)

        def loss(log_prob: Tensor) -> Tensor:
            ratio = log_prob - before
            up, down = ratio.gather(1, chosen)[apart], ratio.gather(1, rejected)[apart]
            if name == "rebel":
                rewards = reward.gather(1, chosen)[apart], reward.gather(1, rejected)[apart]
                return rebel_loss(up, down, *rewards, beta=beta).mean()
            return dpo_loss(up, down, beta=beta).mean()

        return loss

    arms: list[tuple[str, float, Loss, Tensor | None]] = []
    for beta in BETAS:
        arms.append(("qrpo, rows", beta, qrpo(beta, mean, count), quantile))
        if beta in (0.1, 0.5):
            arms.append(("qrpo, exact", beta, qrpo(beta, quantile, policy), quantile))
            rivals = ("dpo, Bradley-Terry", "dpo, hard", "rebel")
            for name in rivals if seed < 5 and beta == RIVAL_BETA else ():
                own = None if name == "dpo, hard" else reward
                arms.append((name, beta, pairs(beta, name), own))
    for name, beta, loss, value in arms:
        after = trained(start(), loss, steps)
        kl = _kl(after, before)
        reached = float((after.exp() * quantile).sum(dim=1).mean())
        line = {
            "question": "curve", "seed": seed, "arm": name, "beta": beta, "steps": steps,
            "kl": kl, "mean_quantile": reached, "gap": frontier(kl) - reached,
            "closed_kl": optimum_kl(beta), "closed_quantile": optimum_mean_quantile(beta),
            "entropy": -float((policy * before).sum(dim=1).mean()),
        }  # fmt: skip
        if value is not None:
            goal = (before + value / beta).log_softmax(dim=1)
            line["kl_from_own_optimum"] = _kl(goal, after)
            line["start_from_own_optimum"] = _kl(goal, before)
        tilted = (before + quantile / beta).log_softmax(dim=1)
        line["kl_from_qrpo_optimum"] = _kl(tilted, after)
        yield line


TIES: tuple[Ties, ...] = ("le", "mid")
RATES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)


def binary(seed: int, beta: float = 0.1, rows: int = 2000, references: int = 16) -> Iterator[Line]:
    """Question "binary" for one seed: 8 prompts of each pass rate, with references of each row.

    A policy is its probability of passing, since answers differ in nothing else; the loss is solved
    for it by Newton's method in its log-odds.
    """
    draw = torch.Generator().manual_seed(3000 + seed)
    for rate in RATES:
        lifts: dict[tuple[Ties, str], list[float]] = defaultdict(list)
        for _ in range(8):
            passed = (torch.rand(rows, generator=draw) < rate).double()
            compared = (torch.rand(rows, references, generator=draw) < rate).double()
            for ties in TIES:
                for partition in ("exact", "grid", "empirical", "enumerated"):
                    lift = _log_odds_lift(passed, compared, rate, ties, partition, beta)
                    lifts[ties, partition].append(lift)
        for (ties, partition), found in lifts.items():
            yield {
                "question": "binary", "seed": seed, "arm": f"{ties}, {partition}", "beta": beta,
                "rate": rate, "lift": statistics.fmean(found),
                "predicted": rate / beta if ties == "le" else 1 / (2 * beta),
            }  # fmt: skip


def _log_odds_lift(
    passed: Tensor, compared: Tensor, rate: float, ties: Ties, partition: str, beta: float
) -> float:
    """By how many nats training raises the log-odds of passing."""
    quantile = quantile_rewards(passed, compared, ties=ties)
    log_z = None
    if partition == "empirical":
        of_references = (
            1.0 * (compared > 0) + (compared == 0) * (1 - compared.mean(1, keepdim=True))
            if ties == "le"
            else torch.where(
                compared > 0,
                1 - compared.mean(1, keepdim=True) / 2,
                (1 - compared.mean(1, keepdim=True)) / 2,
            )
        )
        log_z = empirical_beta_log_partition(beta, of_references)
    if partition == "enumerated":
        good, bad = (1.0, 1 - rate) if ties == "le" else (1 - rate / 2, (1 - rate) / 2)
        z = rate * math.exp((good - 1) / beta) + (1 - rate) * math.exp((bad - 1) / beta)
        log_z = torch.full_like(quantile, 1 + beta * math.log(z))
    start = math.log(rate / (1 - rate))
    odds = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([odds], max_iter=60, line_search_fn="strong_wolfe")
    sign = 2 * passed - 1
    reference = torch.nn.functional.logsigmoid(sign * start)

    def closure() -> Tensor:
        solver.zero_grad()
        ratio = torch.nn.functional.logsigmoid(sign * odds) - reference
        found = qrpo_loss(
            ratio,
            quantile,
            beta=beta,
            references=compared.shape[1],
            partition="grid" if partition == "grid" else "exact",
            beta_log_z_B=log_z,
        )
        loss = found.loss_B.mean() / beta**2
        loss.backward()
        return loss

    solver.step(closure)
    return float(odds.detach()) - start


def outlier(seed: int, steps: int) -> Iterator[Line]:
    """Question "outlier" for one seed: 100 prompts, one with its largest reward times 100."""
    prompts, length, rows, references, beta = 100, 2, 8, 8, 0.5

    def start() -> EnumeratedPolicy:
        return EnumeratedPolicy(seed, prompts, 2, length, sharpness=10.0)

    with torch.no_grad():
        before = start().log_probs()
    policy, answers = before.exp(), before.shape[1]
    clean = smooth_rewards(seed, prompts, answers, length)
    clean = clean - clean.min() + 0.1
    quantile = exact_quantiles(policy, clean)
    draw = torch.Generator().manual_seed(4000 + seed)
    drawn = torch.multinomial(policy, rows, replacement=True, generator=draw)
    compared = torch.multinomial(policy, references, replacement=True, generator=draw)
    inside = torch.zeros_like(policy).scatter_(1, torch.cat([drawn, compared], 1), 1.0)
    best = clean.masked_fill(inside == 0, -1).argmax(dim=1)
    chosen_prompt = int((drawn == best[:, None]).any(dim=1).nonzero()[0])
    broken = clean.clone()
    broken[chosen_prompt, best[chosen_prompt]] *= 100
    first, second = drawn[:, ::2], drawn[:, 1::2]
    apart = first != second

    def losses(reward: Tensor) -> dict[str, Loss]:
        of_rows = reward.gather(1, drawn).flatten()
        of_references = reward.gather(1, compared).repeat_interleave(rows, 0)
        estimate = quantile_rewards(of_rows, of_references, ties="mid")
        wins = reward.gather(1, first) > reward.gather(1, second)
        chosen, rejected = torch.where(wins, first, second), torch.where(wins, second, first)
        one = torch.full((int(apart.sum()),), float(length), dtype=torch.float64)

        def both(value: Tensor) -> tuple[Tensor, Tensor]:
            return value.gather(1, chosen)[apart], value.gather(1, rejected)[apart]

        def qrpo(log_prob: Tensor) -> Tensor:
            ratio = (log_prob - before).gather(1, drawn).flatten()
            each = qrpo_loss(ratio, estimate, beta=beta, references=references)
            return each.loss_B.mean() / beta**2

        return {
            "qrpo": qrpo,
            "dpo": lambda log_prob: dpo_loss(*both(log_prob - before), beta=beta).mean(),
            "simpo": lambda log_prob: simpo_loss(
                *both(log_prob), one, one, beta=2.0, gamma=0.6
            ).mean(),
            "rebel": lambda log_prob: rebel_loss(
                *both(log_prob - before), *both(reward), beta=beta
            ).mean(),
        }

    others = torch.arange(prompts) != chosen_prompt
    for name in ("qrpo", "dpo", "simpo", "rebel"):
        found = {}
        for case, reward in (("clean", clean), ("outlier", broken)):
            found[case] = after = trained(start(), losses(reward)[name], steps, rate=5e-3)
            yield {
                "question": "outlier", "seed": seed, "arm": name, "case": case, "beta": beta,
                "steps": steps, "kl": _kl(after[others], before[others]),
                "mean_quantile": float((after.exp() * quantile).sum(dim=1)[others].mean()),
                "same_bits": torch.equal(found["clean"], after),
            }  # fmt: skip


def main() -> None:
    """Run the questions, or print the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--questions", nargs="+", default=["binary", "outlier", "curve"])
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path)
    options = parser.parse_args()
    if options.tables:
        print(page([json.loads(line) for line in options.tables.read_text().splitlines()]))
        return
    set_determinism(1)
    facts, found = processor_facts(), defaultdict(list)
    for question in options.questions:
        for seed in options.seeds or range(8 if question == "curve" else 5):
            began = time.process_time()
            runs = {
                "curve": lambda seed=seed: curve(seed, options.steps),
                "binary": lambda seed=seed: binary(seed),
                "outlier": lambda seed=seed: outlier(seed, options.steps // 3),
            }[question]
            for line in runs():
                found[question].append(line)
                if options.out:
                    with options.out.open("a") as out:
                        out.write(json.dumps({**line, **facts}) + "\n")
            print(f"{question} seed {seed}: {time.process_time() - began:.0f} CPU s", flush=True)
    print(page([line for lines in found.values() for line in lines]))


if __name__ == "__main__":
    main()
