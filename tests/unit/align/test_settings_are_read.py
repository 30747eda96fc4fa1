"""Every setting of fine-tuning is read by its job, with the value that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.kto import KTO
from stamm.align.losses.qrpo import QRPO
from stamm.align.training.config import (
    PFO,
    SFT,
    BradleyTerry,
    FineTuneJobConfig,
    FineTuneRun,
    Loss,
)
from stamm.engine.config import EngineConfig, StopOnNonfinite
from stamm.models.lora_config import Lora
from stamm.optim.schedules import BatchStage, ConstantRate
from tests.unit.align import finetuned
from tests.unit.align.finetuned import chats, fine_tune, pairs
from tests.unit.align.prepared import prepare
from tests.unit.config_reads import recorded

pytestmark = pytest.mark.slow

# Set with values that are not the defaults, these are refused in such runs.
REFUSED = {
    "loss.label_smoothing",  # form=ipo
    "loss.threshold",  # pairs
}


@pytest.mark.parametrize(
    "loss",
    [SFT(), DPO(), DPO(form="ipo"), SimPO(), REBEL(), KTO(), QRPO(), BradleyTerry(margin=True)],
    ids=str,
)
def test_every_setting_is_read(tmp_path: Path, loss: Loss) -> None:
    rows = chats() if isinstance(loss, SFT) else pairs()
    prepare(tmp_path, rows, context=finetuned.CONTEXT, held_out=0.4)
    settings = finetuned.config(
        loss,
        epochs=2.0,
        batch=(BatchStage(size=1),),
        schedule=ConstantRate(peak=3e-3, warmup_sequences=4, warmup_from=0.1),
        engine=EngineConfig(threads=1, compile="off", on_nonfinite=StopOnNonfinite(window=2)),
        validate_every=2,
        lora=None if isinstance(loss, BradleyTerry) else Lora(rank=2, train_activation=True),
        pfo=PFO() if isinstance(loss, DPO | KTO) else None,
    )
    with recorded(settings, FineTuneRun.of(settings, model=finetuned.MODEL)) as reads:
        fine_tune(tmp_path, rows, loss, **_changes(settings))
    assert [path for path in reads.unread(settings) if path not in REFUSED] == []


def _changes(settings: FineTuneJobConfig) -> dict[str, object]:
    return {
        name: getattr(settings, name)
        for name in (
            "epochs",
            "batch",
            "schedule",
            "engine",
            "lora",
            "pfo",
            "validate_every",
        )
    }
