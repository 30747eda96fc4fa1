"""PFO against a lower rate, fewer epochs and a larger beta at matched reward; PPO-clip as a control.

This plan was committed before the first counted run. Before it, settings were tried on seed 100, which is not
compared: arms none and PFO, and the control with 16 epochs.

World
  A decoder of 2 layers (width 64) on a vocabulary of 16 symbols writes sums: "07+12=" is followed by at
  most three digits and a stop symbol. 256 prompts (a, b below 16): 160 to train on, 96 held out. The
  start model is trained on 4 answers to each train prompt, the sum in half of them, else a number below
  31. Reward: minus the distance to the sum, at most 20, divided by 20; -1 for what is not a number.
  Each seed has its own prompts, start model, samples and order.
QRPO arms, 5 seeds, beta 0.1 and rate 1e-3 unless stated, Adam, 4 sampled answers to train on and 8 reference
rewards for each prompt, sampled from the policy at the beginning of each round; 320 updates of 64 answers
  none           4 rounds of 8 epochs
  PFO            the same with weight 1, relative distance, features before the final norm
  lower rate     rate 2.5e-4
  fewer epochs   16 rounds of 2 epochs: as many updates on four times as many samples
  larger beta    beta 0.4
Control, where a loss of rank is expected if the toy can show one: PPO-clip (0.2, a ratio for each token,
advantages standardised over the 4 answers to a prompt, no value network), ReLU, rate 3e-3, 8 rounds
  none and PFO, with 4, 8 and 16 epochs a round; 5 seeds
Measures, of QRPO after every epoch, of the control after every round
  reward of 2 sampled answers to each train and held-out prompt; feature norm (before the final norm),
  effective and PCA rank and dormant share, on the same answers of the start model throughout; at the
  end of a round the policy ratios above and below 1; at the start and the end plasticity (`observe.plasticity`)
Comparisons, paired over seeds, Student's t intervals of 95 %
  1  at the end of training: every arm minus PFO
  2  at matched reward: R is the largest train reward that all arms of a seed reach at some evaluation;
     every arm is read at its first evaluation with at least R
Shown means
  PFO preserves features (norm, rank)   interval of "none minus PFO" on one side of 0 at matched reward
  PFO is more than a slower update      intervals of all of lower rate, fewer epochs and larger beta minus PFO on
                                        that side, too
  collapse in the control               effective rank at the end below half of the start's in at least 3
                                        of 5 seeds at 16 epochs without PFO
What it cannot show: anything about language models of a useful size, long training, or tasks whose data change.

Run      python -m bench.pfo_study --out FILE.jsonl [--until HH:MM]
         python -m bench.pfo_study --tables FILE.jsonl
Resumes  a line of the file is a finished run; a run that has one is not repeated
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.capability import processor_facts
from stamm.align.losses.preference_loss import LossInputs
from stamm.align.losses.qrpo import QRPO
from stamm.align.training.objectives import LastUnits, feature_metrics, ratio_metrics
from stamm.losses.feature_regularization import feature_distances
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.determinism import set_determinism
from stamm.observe.plasticity import plasticity_loss
from stamm.statistics.intervals import interval

PAD, BEGIN, STOP, PLUS, EQUALS, ZERO = range(6)
PROMPT, ANSWER = 7, 4  # tokens
TRAIN, HELD_OUT, NUMBERS = 160, 96, 16
DRAWN, REFERENCES, MEASURED, ROWS = 4, 8, 2, 64
CLIP = 0.2
SEEDS = range(5)
MEASURES = (
    "reward", "held_out", "feature_norm", "effective_rank", "pca_rank", "dormant_share",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings of a run; its key in the file of results."""

    arm: str
    seed: int
    loss: str = "qrpo"
    activation: str = "xielu"
    rounds: int = 4
    epochs: int = 8
    rate: float = 1e-3
    beta: float = 0.1
    pfo: float = 0.0

    @property
    def key(self) -> str:
        """The run as text; equal runs have equal keys."""
        return " ".join(f"{k}={v}" for k, v in dataclasses.asdict(self).items())


def planned(seeds: Sequence[int] = SEEDS) -> Iterator[Run]:
    """All runs, those of two seeds at a time: of QRPO, then of the control, the most epochs first."""
    for pair in (seeds[at : at + 2] for at in range(0, len(seeds), 2)):
        for seed in pair:
            yield Run(arm="none", seed=seed)
            yield Run(arm="PFO", seed=seed, pfo=1.0)
            yield Run(arm="lower rate", seed=seed, rate=2.5e-4)
            yield Run(arm="fewer epochs", seed=seed, rounds=16, epochs=2)
            yield Run(arm="larger beta", seed=seed, beta=0.4)
        for epochs, seed, pfo in itertools.product((16, 8, 4), pair, (0.0, 1.0)):
            yield Run(
                arm=f"{'PFO' if pfo else 'none'}, {epochs} epochs", seed=seed, loss="ppo",
                activation="relu", rounds=8, epochs=epochs, rate=3e-3, pfo=pfo,
            )  # fmt: skip


class World(NamedTuple):
    """Prompts (P, PROMPT) with their sums, the first TRAIN of them to train on; the start model, its answers
    and its loss of the plasticity probe.
    """

    prompts: Tensor
    sums: Tensor
    start: Decoder
    probe: Tensor
    plasticity: float


class Batch(NamedTuple):
    """Answers of prompts: tokens (B, PROMPT + ANSWER), the answer tokens that count (B, ANSWER), rewards."""

    tokens: Tensor
    own: Tensor
    reward: Tensor


def answers_own(answer_BA: Tensor) -> Tensor:
    """True up to and with the first stop symbol."""
    before = F.pad((answer_BA == STOP).cumsum(1)[:, :-1], (1, 0))
    return before == 0


def rewards(answer_BA: Tensor, sum_B: Tensor) -> Tensor:
    """Minus the distance to the sum, at most 20, over 20; -1 where the answer is not a number."""
    values = []
    for row, total in zip(answer_BA.tolist(), sum_B.tolist(), strict=True):
        digits = row[: row.index(STOP)] if STOP in row else row
        known = 0 < len(digits) < ANSWER and all(d >= ZERO for d in digits)
        number = int("".join(str(d - ZERO) for d in digits)) if known else 10**6
        values.append(-min(abs(number - total), 20) / 20)
    return torch.tensor(values, dtype=torch.float64)


@torch.no_grad()
def sampled(decoder: Decoder, world: World, rows: Tensor, draw: torch.Generator) -> Batch:
    """An answer to each of the prompts `rows`."""
    tokens = world.prompts[rows]
    for _ in range(ANSWER):
        chance = decoder(tokens)[:, -1].double().softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chance, 1, generator=draw)], dim=1)
    answer = tokens[:, PROMPT:]
    return Batch(tokens, answers_own(answer), rewards(answer, world.sums[rows]))


def log_probs(decoder: Decoder, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the answer tokens that count (N,), and their features before and after the norm."""
    number = torch.full_like(batch.tokens[:, 1:], -1)
    count = int(batch.own.sum())
    number[:, PROMPT - 1 :][batch.own] = torch.arange(count)
    log_prob_N, hidden = decoder.sequence_log_probs_and_hidden(
        batch.tokens[:, :-1], batch.tokens[:, 1:], number, count
    )
    own = number >= 0
    return log_prob_N, hidden.before_norm[own], hidden.after_norm[own]


def by_answer(value_N: Tensor, batch: Batch) -> Tensor:
    """Sums over the tokens of each answer, (B,)."""
    row_N = torch.arange(len(batch.own))[:, None].expand_as(batch.own)[batch.own]
    return torch.zeros(len(batch.own), dtype=value_N.dtype).index_add(0, row_N, value_N)


@functools.lru_cache(maxsize=4)
def build_world(seed: int, activation: str) -> World:
    """The prompts and the start model of a seed, trained 30 epochs on its answers."""
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.cartesian_prod(torch.arange(NUMBERS), torch.arange(NUMBERS))
    pairs = pairs[torch.randperm(len(pairs), generator=draw)]

    def digits(value: Tensor) -> list[Tensor]:
        return [value // 10 + ZERO, value % 10 + ZERO]

    a, b = pairs.T
    same = torch.ones_like(a)
    prompts = torch.stack([same * BEGIN, *digits(a), same * PLUS, *digits(b), same * EQUALS], dim=1)
    config = DecoderConfig(
        vocab_size=16, d_model=64, num_layers=2, num_heads=2, max_context=16, init_std=0.05,
        ffn=PlainFFN(width=256, activation=activation),
    )  # fmt: skip
    start = build_decoder(config, seed=seed)
    world = World(prompts, a + b, start, torch.zeros(0), 0.0)
    rows = torch.arange(TRAIN).repeat_interleave(DRAWN)
    right = torch.arange(len(rows)) % DRAWN < DRAWN // 2
    drawn = torch.randint(2 * NUMBERS - 1, (len(rows),), generator=draw)
    value = torch.where(right, world.sums[rows], drawn)
    answer = torch.full((len(rows), ANSWER), STOP)
    for row, number in enumerate(value.tolist()):
        for place, digit in enumerate(str(number)):
            answer[row, place] = int(digit) + ZERO
    tokens = torch.cat([prompts[rows], answer], dim=1)
    batch = Batch(tokens, answers_own(answer), torch.zeros(len(rows)))
    optimizer = torch.optim.Adam(start.parameters(), lr=3e-3)
    for _ in range(30):
        for part in parts_of(len(rows), draw):
            optimizer.zero_grad()
            (-log_probs(start, take(batch, part))[0].mean()).backward()
            optimizer.step()
    probe = sampled(start.eval(), world, torch.arange(TRAIN), draw).tokens
    return world._replace(probe=probe, plasticity=plasticity_loss(start, probe.tolist()).final)


def take(batch: Batch, rows: Tensor) -> Batch:
    """Some answers of a batch."""
    return Batch(*(value[rows] for value in batch))


def parts_of(count: int, draw: torch.Generator) -> Sequence[Tensor]:
    """The rows of each update of an epoch."""
    return torch.randperm(count, generator=draw).split(ROWS)


@torch.no_grad()
def measured(decoder: Decoder, world: World, draw: torch.Generator) -> dict[str, float]:
    """Rewards on train and held-out prompts, and the features of the probe."""
    every = torch.arange(TRAIN + HELD_OUT).repeat_interleave(MEASURED)
    reward = sampled(decoder, world, every, draw).reward.reshape(-1, MEASURED).mean(1)
    own = answers_own(world.probe[:, PROMPT:])
    with LastUnits(decoder) as units:
        _, before, after = log_probs(decoder, Batch(world.probe, own, reward))
    assert units.newest is not None
    features = feature_metrics(before, after, units.newest[:, PROMPT - 1 :][own])
    return {
        "reward": float(reward[:TRAIN].mean()),
        "held_out": float(reward[TRAIN:].mean()),
        **{name.removeprefix("representation/"): value for name, value in features.items()},
    }


def loss_of(run: Run, data: Batch, old_N: Tensor, reference: Tensor) -> Callable[..., Tensor]:
    """The loss of some rows of a round's answers, from the log-probabilities of their tokens.

    reference   rewards of other answers of the round's first policy to the same prompts, (P, REFERENCES)
    """
    mean_B = by_answer(old_N, data)
    reward_PK = data.reward.reshape(-1, DRAWN)
    advantage = (reward_PK - reward_PK.mean(1, keepdim=True)) / (
        reward_PK.std(1, keepdim=True).clamp(min=1e-3)
    )
    token_old = torch.zeros(data.own.shape, dtype=old_N.dtype)
    token_old[data.own] = old_N

    def qrpo(log_prob_N: Tensor, rows: Tensor) -> Tensor:
        part = take(data, rows)
        inputs = LossInputs(
            log_prob_B=by_answer(log_prob_N, part), reference_B=mean_B[rows],
            reward_B=part.reward, ref_reward_BN=reference[rows // DRAWN],
            length_B=part.own.sum(1), num_examples=len(rows),
        )  # fmt: skip
        return QRPO(beta=run.beta, ties="mid", partition="empirical").losses(inputs).loss.mean()

    def ppo(log_prob_N: Tensor, rows: Tensor) -> Tensor:
        own = data.own[rows]
        ratio_N = (log_prob_N - token_old[rows][own]).exp()
        value_N = advantage.flatten()[rows][:, None].expand_as(own)[own]
        clipped_N = ratio_N.clamp(1 - CLIP, 1 + CLIP) * value_N
        return -torch.minimum(ratio_N * value_N, clipped_N).mean()

    return qrpo if run.loss == "qrpo" else ppo


def performed(run: Run) -> dict[str, Any]:
    """Train and measure: a line of the file of results."""
    began = time.process_time()
    world = build_world(run.seed, run.activation)
    decoder = copy.deepcopy(world.start)
    draw = torch.Generator().manual_seed(1000 + run.seed)
    curve = [{"round": 0, "epoch": 0, **measured(decoder, world, draw)}]
    optimizer = torch.optim.Adam(decoder.parameters(), lr=run.rate)
    train = torch.arange(TRAIN)
    for number in range(1, run.rounds + 1):
        old = copy.deepcopy(decoder).requires_grad_(requires_grad=False)
        data = sampled(decoder, world, train.repeat_interleave(DRAWN), draw)
        others = sampled(decoder, world, train.repeat_interleave(REFERENCES), draw)
        with torch.no_grad():
            old_N, old_ND, _ = log_probs(old, data)
        token_features = torch.zeros(*data.own.shape, old_ND.shape[1])
        token_features[data.own] = old_ND
        loss = loss_of(run, data, old_N, others.reward.reshape(TRAIN, REFERENCES))
        for epoch in range(1, run.epochs + 1):
            for rows in parts_of(len(data.own), draw):
                part = take(data, rows)
                log_prob_N, new_ND, _ = log_probs(decoder, part)
                value = loss(log_prob_N, rows)
                if run.pfo:
                    distance_N = feature_distances(new_ND, token_features[rows][part.own])
                    value = value + run.pfo * distance_N.mean()
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
            if run.loss == "qrpo" or epoch == run.epochs:
                curve.append({"round": number, "epoch": epoch, **measured(decoder, world, draw)})
        with torch.no_grad():
            new_B, old_B = (by_answer(v, data) for v in (log_probs(decoder, data)[0], old_N))
        ratios = ratio_metrics(new_B - old_B, data.own.sum(1))
        curve[-1] |= {name.removeprefix("representation/"): v for name, v in ratios.items()}
    plastic = [world.plasticity, plasticity_loss(decoder, world.probe.tolist()).final]
    return {
        **dataclasses.asdict(run),
        "plasticity": [round(value, 4) for value in plastic],
        "curve": [{name: round(value, 4) for name, value in row.items()} for row in curve],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def perform(runs: Sequence[Run], out: Path, until: str) -> None:
    """Do the runs that `out` does not have."""
    done = {line["key"] for line in read_lines(out)}
    if not done:
        _append(out, {"key": "machine", "torch": torch.__version__, **processor_facts()})
    for run in runs:
        if run.key in done:
            continue
        if until and time.strftime("%H:%M") >= until:
            print(f"stopped at {until}; the same command continues", flush=True)
            return
        _append(out, {"key": run.key, **performed(run)})


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as out:
        out.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; none where there is no file."""
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def matched(lines: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """The first evaluation of each run of a seed whose train reward all of them reach."""
    reached = min(max(row["reward"] for row in line["curve"]) for line in lines)
    return [next(row for row in line["curve"] if row["reward"] >= reached) for line in lines]


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """Tables as Markdown: QRPO at the end and at matched reward, and the control."""
    text = []
    qrpo = [line for line in lines if line.get("loss") == "qrpo"]
    arms = list(dict.fromkeys(line["arm"] for line in qrpo))
    seeds = [
        seed
        for seed in sorted({line["seed"] for line in qrpo})
        if sum(line["seed"] == seed for line in qrpo) == len(arms)
    ]
    complete = [[next(x for x in qrpo if (x["arm"], x["seed"]) == (arm, seed)) for arm in arms]
                for seed in seeds]  # fmt: skip
    start = [{**of[0]["curve"][0], "plasticity": of[0]["plasticity"][0]} for of in complete]
    last = [[{**x["curve"][-1], "plasticity": x["plasticity"][1]} for x in of] for of in complete]
    for title, rows in (("end", last), ("matched", [matched(of) for of in complete])):
        names = [*MEASURES, *(["plasticity"] if title == "end" else ["epochs run"])]
        text.append(f"<!-- {title} -->")
        text.append("| arm | " + " | ".join(names) + " |")
        text.append("|---" * (len(names) + 1) + "|")
        if title == "end":
            text.append(_row("start", [[row[name] for row in start] for name in names]))
        for place, arm in enumerate(arms):
            columns = [
                [_epochs(row[place], of[place]) if name == "epochs run" else row[place][name]
                 for row, of in zip(rows, complete, strict=True)]
                for name in names
            ]  # fmt: skip
            text.append(_row(arm, columns))
        for place, arm in enumerate(arms):
            if arm != "PFO":
                pfo = arms.index("PFO")
                columns = [
                    [] if name == "epochs run" else [row[place][name] - row[pfo][name] for row in rows]
                    for name in names
                ]  # fmt: skip
                text.append(_row(f"{arm} minus PFO", columns, difference=True))
        text.append("")
    control = [line for line in lines if line.get("loss") == "ppo"]
    if not control:
        return "\n".join(text)
    text += ["<!-- control -->", "| arm | seeds | " + " | ".join(MEASURES) + " | plasticity |"]
    text.append("|---" * (len(MEASURES) + 3) + "|")
    for arm in ("start", *dict.fromkeys(line["arm"] for line in control)):
        of_arm = [line for line in control if line["arm"] in (arm, "none, 16 epochs")
                  and (arm == "start" or line["arm"] == arm)]  # fmt: skip
        at = 0 if arm == "start" else -1
        columns = [[line["curve"][at][name] for line in of_arm] for name in MEASURES]
        columns.append([line["plasticity"][at] for line in of_arm])
        text.append(_row(f"{arm} | {len(of_arm)}", columns))
    return "\n".join(text)


def _epochs(row: dict[str, float], line: dict[str, Any]) -> float:
    return (row["round"] - 1) * line["epochs"] + row["epoch"] if row["round"] else 0.0


def _row(name: str, columns: Sequence[Sequence[float]], *, difference: bool = False) -> str:
    cells = []
    for values in columns:
        if len(values) < 2:
            cells.append("".join(f"{value:.3g}" for value in values))
            continue
        if difference:
            of = interval(values, 0.95)
            assert of.low is not None
            assert of.high is not None
            star = "*" if of.low > 0 or of.high < 0 else ""
            cells.append(f"{of.mean:+.3g} ({of.low:+.3g} to {of.high:+.3g}){star}")
        else:
            cells.append(f"{statistics.mean(values):.3g} ± {statistics.stdev(values):.2g}")
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Do the runs, or print the tables of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--until", default="", help="do not begin a run after this time, HH:MM")
    parser.add_argument("--pilot", action="store_true", help="seed 100, which is not compared")
    parser.add_argument("--tables", type=Path)
    options = parser.parse_args()
    set_determinism(1)
    if options.tables:
        print(tables(read_lines(options.tables)))
    elif options.out:
        perform(list(planned([100] if options.pilot else SEEDS)), options.out, options.until)


if __name__ == "__main__":
    main()
