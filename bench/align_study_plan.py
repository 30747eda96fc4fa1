"""Plan of `bench.align_study`: arms, settings, questions, measures, and what counts as shown.

This text was committed before the first counted run. What deviates from it is called exploratory on
the page (docs/log/2026-11-23-alignment-study.md).

World
  A decoder of 2 layers (148 thousand parameters, xIELU, BPE of 512 tokens) that writes system turns
  of the Schema-Guided Dialogue data, at most 16 tokens. 400 prompts to train on, 100 to tune on, 400
  to test on. Rewards are functions of the tokens, drawn from the seed (`align_study_world.Reward`).
  Each seed has its own reward, answers to train on and order; all arms of a seed share them, the
  start and the numbers that draw the test answers.
Arms
  qrpo (ties mid, partition exact), qrpo per token (beta / |y|), dpo, dpo per token, simpo (gamma =
  beta / 2), rebel, sft on best (the best of a prompt's answers), and best of N of the start model,
  which is not trained. Each prompt has 4 answers: 4 samples for qrpo, 2 pairs for others. 40 steps of
  64 answers, Adam, warm-up of 6 steps, cosine to 0. QRPO alone also reads 16 rated references of each
  prompt: it has more ratings than the others, and the same answers to learn from.
Tuning
  4 settings of learning rate and beta for each arm (sft: 4 learning rates), on the validation prompts
  with seed 101, which is not compared; chosen is the largest mean quantile of those with a KL of at
  most 1.5 nats, without any such the smallest KL. Other questions take these settings; only the one
  that a question varies differs.
Measures, on 2 answers of each test prompt
  mean quantile   of the reward that is optimised, without noise, among 32 fresh answers of the start
                  model, ties mid
  gold quantile   the same of the gold reward, where another is optimised
  KL              of the policy from the start model, exact for each token, mean over answers
  below the curve the mean quantile of the closed-form curve at this KL, minus the mean quantile
  excess length   tokens above the mean length of the policy on the curve with the same mean quantile
Intervals
  95 %, hierarchical bootstrap over 40 blocks of 10 prompts and over seeds, paired. A difference is
  claimed if its p of 0 is below 0.05 after Holm's correction over the family (the column of a table).
Questions
  1 curve       QRPO at 4 betas, 8 seeds. "Lands on the point" of its beta: the intervals of mean
                quantile and KL lie within ±0.02 and ±15 % of the closed form. "Lands on the curve":
                the interval of the distance below it ends below 0.02.
    arms        all arms at their settings, 8 seeds. Primary: below the curve, minus QRPO's.
    more data   QRPO at beta 0.2 with 32 answers a prompt and 200 steps, 8 seeds.
  2 length      correlation of the reward with length 0, 0.3, 0.6; 8 seeds. Primary: excess length,
                against 0 and minus QRPO's.
  3 proxy       optimised is a head fitted to 500 noisy labels; 5 betas at a learning rate of 1e-3, for
                a wide range of KL; qrpo, dpo, rebel; 5 seeds.
                Primary: gold quantile at its peak minus that at the largest KL ("fall"); the peak of a
                seed is chosen on the other seeds. Over-optimisation is shown if the fall is above 0.
  4 noise       noise of the ratings turns round 0, 10, 20, 40 % of pairs; all arms see the same
                ratings; 5 seeds. Primary: mean quantile minus that without noise, minus QRPO's.
  6 references  n = 1 to 32; answers of the start model (off-policy) or of an earlier checkpoint
                (offline); 5 seeds. Primary: below the curve, minus that at n = 1.
  5 single      one rated answer a prompt: qrpo, sft (on answers of quantile 0.5 or more); 5 seeds.
                DPO, SimPO and REBEL need pairs and cannot be run.
Power, from seeds 100, 102 and 104, which are not compared
  Between seeds the mean quantile and the distance below the curve had standard deviations near 0.01,
  excess length near 0.1 for one reward. The smallest difference that Holm's first of 6 steps shows
  with 8 seeds is 1.3 standard deviations of the paired difference: 0.016 in the distance, 0.2 tokens
  if rewards of different seeds double the spread; of 3 with 5 seeds 1.8 of them: 0.02. The pilot
  stood about 0.13 below the curve, so that "lands on the curve" is expected to be refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.align_study_run import COUNTED, Run

Line = dict[str, Any]
TUNED_ON = 101  # seed
BUDGET = 1.5  # nats of KL
EIGHT = ("curve", "arms", "length", "more data")
FEW = 5  # seeds of the questions other than the headline and length
SETTINGS: dict[str, tuple[tuple[float, float], ...]] = {
    "qrpo": ((1e-4, 0.1), (1e-4, 0.15), (2.5e-4, 0.1), (2.5e-4, 0.15)),
    "qrpo, per token": ((1e-4, 1.2), (1e-4, 2.0), (2.5e-4, 1.2), (2.5e-4, 2.0)),
    "dpo": ((1e-4, 0.1), (1e-4, 0.4), (2.5e-4, 0.1), (2.5e-4, 0.4)),
    "dpo, per token": ((1e-4, 1.0), (1e-4, 4.0), (2.5e-4, 1.0), (2.5e-4, 4.0)),
    "simpo": ((1e-4, 1.0), (1e-4, 3.0), (2.5e-4, 1.0), (2.5e-4, 3.0)),
    "rebel": ((1e-4, 0.25), (1e-4, 0.5), (2.5e-4, 0.25), (2.5e-4, 0.5)),
    "sft on best": ((1e-4, 0.0), (2.5e-4, 0.0), (6e-4, 0.0), (1e-3, 0.0)),
}
CURVE_BETAS = (0.1, 0.2, 0.5, 1.0)
MORE_BETA = 0.2
SWEEP_RATE = 1e-3
SWEEP: dict[str, tuple[float, ...]] = {
    "qrpo": (0.02, 0.05, 0.1, 0.25, 1.0),
    "dpo": (0.03, 0.1, 0.3, 1.0, 3.0),
    "rebel": (0.1, 0.25, 0.5, 1.0, 2.0),
}
BEST_OF = (1, 2, 4, 8, 16, 32)
QUESTIONS = (
    "tuning", "curve", "arms", "length", "proxy", "noise", "references", "single", "more data",
)  # fmt: skip


def chosen(lines: Sequence[Line]) -> dict[str, tuple[float, float]]:
    """The setting of each arm: the largest mean quantile within the KL budget, else the smallest KL."""
    found = {}
    for arm in SETTINGS:
        of = [x for x in lines if x.get("arm") == arm and x.get("split") == "validation"]
        if len(of) < len(SETTINGS[arm]):
            raise SystemExit(f"{arm} is not tuned: run --questions tuning first")
        inside = [x for x in of if x["kl"] <= BUDGET]
        best = (
            max(inside, key=lambda x: x["quantile"]) if inside else min(of, key=lambda x: x["kl"])
        )
        found[arm] = best["rate"], best["beta"]
    return found


def runs_of(question: str, lines: Sequence[Line]) -> Iterator[Run]:
    """The runs of a question; all but those of "tuning" need its lines."""
    if question == "tuning":
        for arm, settings in SETTINGS.items():
            for rate, beta in settings:
                yield Run(arm=arm, rate=rate, beta=beta, seed=TUNED_ON, split="validation")
        return
    best = chosen(lines)

    def run(arm: str, seed: int, **options: Any) -> Run:
        rate, beta = best["dpo" if arm == "dpo, smoothed" else arm]
        return Run(**{"arm": arm, "rate": rate, "beta": beta, "seed": seed, **options})

    for seed in range(COUNTED if question in EIGHT else FEW):
        match question:
            case "curve":
                yield from (run("qrpo", seed, beta=beta) for beta in CURVE_BETAS)
            case "arms":
                yield from (run(arm, seed) for arm in SETTINGS)
            case "length":
                yield from (run(arm, seed, rho=rho) for rho in (0.3, 0.6) for arm in SETTINGS)
            case "proxy":
                for arm, betas in SWEEP.items():
                    yield from (
                        run(arm, seed, rate=SWEEP_RATE, beta=beta, reward="proxy") for beta in betas
                    )
            case "noise":
                for arm in ("qrpo", "dpo", "dpo, smoothed", "simpo", "rebel"):
                    yield from (run(arm, seed, noise=noise) for noise in (0.1, 0.2, 0.4))
            case "references":
                for source in ("own", "other"):
                    for count in BEST_OF:
                        yield run("qrpo", seed, references=count, source=source)
            case "more data":
                yield run("qrpo", seed, beta=MORE_BETA, answers=32, steps=200)
            case "single":
                yield from (run(arm, seed, answers=1) for arm in ("qrpo", "sft on best"))
