"""Started by torchrun: fine-tune a small decoder with the real job, under each division that is asked for.

Arguments   JSON objects: loss, inputs (folders by name), folder (of the arm), and context and tensor ways
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.kto import KTO
from stamm.align.losses.qrpo import QRPO
from stamm.align.training import job
from stamm.align.training.config import (
    PFO,
    SFT,
    BradleyTerry,
    FineTuneJobConfig,
    Loss,
)
from stamm.base.shutdown import exit_immediately
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import destroy_process_group
from stamm.models.lora_config import Lora
from stamm.optim.schedules import BatchStage
from stamm.runs.job import Workspace
from tests.unit.align import finetuned

LOSSES: dict[str, Loss] = {
    "SFT": SFT(),
    "QRPO": QRPO(),
    "KTO": KTO(),
    "QRPO, rated": QRPO(transform="log", ties="mid", beta=0.1),
    "DPO": DPO(),
    "DPO, normalized": DPO(form="normalized"),
    "DPO, LoRA": DPO(),
    "REBEL, PFO": REBEL(),
    "IPO": DPO(form="ipo"),
    "SimPO": SimPO(),
    "REBEL": REBEL(),
    "reward model": BradleyTerry(),
}
STEPS, BATCH = 6, 4
LAST = 1  # examples of the last step: of two data-parallel processes one has none


def train(asked: dict[str, Any]) -> None:
    """Six steps of the job, the last of them smaller."""
    name = asked["loss"]
    parallel = Parallel(**{name: asked.get(name, 1) for name in ("context", "tensor", "replicas")})
    engine = EngineConfig(threads=1, compile="off", checkpoint_every=3, parallel=parallel)
    config: FineTuneJobConfig = finetuned.config(
        LOSSES[name],
        batch=(BatchStage(size=BATCH),),
        sequences=(STEPS - 1) * BATCH + LAST,
        validate_every=3,
        lora=Lora(rank=4) if name.endswith("LoRA") else None,
        pfo=PFO() if name.endswith("PFO") else None,
        engine=engine,
    )
    folder = Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {key: Path(path) for key, path in asked["inputs"].items()}
    job.run(config, Workspace(folder=folder, inputs=inputs))


def main() -> None:
    """Do every training that the command line asks for."""
    for text in sys.argv[1:]:
        train(json.loads(text))
    destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
