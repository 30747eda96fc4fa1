"""Started by torchrun: train a small decoder on its own answers, under each division that is asked for.

Arguments   JSON objects: case, folder (with start/ and tokenizer/), name (of the arm), and the ways of
            context and tensor parallelism, and replicas
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stamm.align.rewards.config import CustomReward, Length, Number, RewardConfig
from stamm.align.training import grpo_job
from stamm.align.training.config import GRPO, GRPOJobConfig
from stamm.base.errors import StammError
from stamm.base.shutdown import exit_immediately
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import destroy_process_group
from stamm.models.lora_config import Lora
from stamm.models.sampling_config import SamplingConfig
from stamm.optim.config import AdamW
from stamm.optim.schedules import BatchStage, ConstantRate
from stamm.runs.job import Workspace
from stamm.runs.torchrun_env import rank_and_size
from tests.unit.align import finetuned

CASES: dict[str, GRPO] = {
    "one step": GRPO(),
    "several steps": GRPO(steps_per_rollout=3, average="token", clip_low=0.01, clip_high=0.01),
    "adapters": GRPO(steps_per_rollout=2, beta=0.0),
    "dropped": GRPO(drop_equal=True, refills=3, beta=0.1),
}
STEPS, BATCH = 6, 4
LAST = 1  # prompts of the last step: of two data-parallel processes one has none


def config(folder: Path, asked: dict[str, Any]) -> GRPOJobConfig:
    """Six steps, the last of them smaller."""
    case = asked["case"]
    parallel = Parallel(**{name: asked.get(name, 1) for name in ("context", "tensor", "replicas")})
    reward: RewardConfig = Length(smallest=20, largest=40)
    if case == "dropped":
        reward = Length(smallest=30, largest=45)
    if case == "unrated":
        reward = Number()
    if case == "raises":
        reward = CustomReward(reference=f"{folder / 'mine.py'}:Mine")
    return GRPOJobConfig(
        loss=CASES.get(case, GRPO()),
        prompts=str(folder / "prompts.jsonl"),
        context=finetuned.CONTEXT,
        n=3,
        sampling=SamplingConfig(max_new_tokens=10),
        reward=reward,
        batch=(BatchStage(size=BATCH),),
        sequences=(STEPS - 1) * BATCH + LAST,
        micro_batch=1 if case == "several steps" else None,
        # A larger eps: else the first updates make ±1 of gradients that are rounding.
        optimizer=AdamW(weight_decay=0.0, eps=1e-3),
        schedule=ConstantRate(peak=1e-2),
        lora=Lora(rank=4) if case == "adapters" else None,
        engine=EngineConfig(threads=1, compile="off", checkpoint_every=4, parallel=parallel),
    )


def train(asked: dict[str, Any]) -> None:
    """Train with the real job."""
    folder = Path(asked["folder"])
    arm = folder / asked["name"]
    arm.mkdir(parents=True, exist_ok=True)
    inputs = {name: folder / name for name in ("start", "tokenizer")}
    try:
        grpo_job.run(config(folder, asked), Workspace(folder=arm, inputs=inputs))
    except StammError as error:
        (arm / f"error-{rank_and_size()[0]}.txt").write_text(error.line())


def main() -> None:
    """Do every training that the command line asks for."""
    for text in sys.argv[1:]:
        train(json.loads(text))
    destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
