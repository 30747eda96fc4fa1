"""Steps of a search before its first training run: the screen, the timing, the plan."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.runs.job import Step
from stamm.search.config import CandidateConfig, CostConfig, ScreenLimits, SearchPlanConfig
from stamm.search.families import Proposal
from stamm.search.records import COSTS, PLAN, PLAN_SHA256, SCREENED


def screen_steps(candidates: Iterable[Proposal], screen: ScreenLimits) -> list[Step]:
    """One step for each candidate: its certificate, and the limits that it does not keep."""
    return [
        Step(
            name=f"candidate.{proposal.name}",
            job="candidate",
            config=CandidateConfig(
                name=proposal.name, spec=proposal.spec, refused=proposal.refused, screen=screen
            ),
            folder=f"candidates/{proposal.name}",
            outputs=(SCREENED,),
        )
        for proposal in candidates
    ]


def cost_step(config: CostConfig) -> Step:
    """Times of the candidates' kernels beside the baseline's."""
    return Step(
        name="costs",
        job="candidate_costs",
        config=config,
        folder="costs",
        inputs={f"candidate.{spec.name}": f"candidates/{spec.name}" for spec in config.candidates},
        outputs=(COSTS,),
    )


def plan_step(config: SearchPlanConfig) -> Step:
    """Registration of the plan: candidates, rounds and confirmations."""
    return Step(
        name="plan",
        job="search_plan",
        config=config,
        folder="plan",
        inputs={"costs": f"costs/{COSTS}"},
        outputs=(PLAN, PLAN_SHA256),
    )
