"""A toy pretraining run on a packed corpus of made-up documents, with a checkpoint every two steps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from stamm.base.console import NoProgress
from stamm.corpus.config import PackConfig
from stamm.corpus.tables import DOCUMENTS_SCHEMA, write_rows
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.engine.config import EngineConfig
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from tests.unit.small_corpus import pack_corpus

STEPS, BATCH, CONTEXT = 12, 4, 32
WORDS = ["river", "road", "tree", "house", "stone", "water", "light", "wind", "field", "bird"]
COPY = f"{1:032x}", f"{60:032x}"  # nearly the same text


class Lines(NoProgress):
    """Progress that keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        """Keep a message."""
        self.lines.append(message)


def config_of(pack: Path, **changes: Any) -> PretrainConfig:
    """Twelve steps on less than the whole corpus."""
    given: dict[str, Any] = {
        "model": DecoderConfig(
            vocab_size=352, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1,
            ffn=PlainFFN(width=24), max_context=CONTEXT,
        ),
        "context": CONTEXT,
        "sequences": STEPS * BATCH,
        "batch": (BatchStage(size=BATCH),),
        "goldfish": Goldfish(k=7, h=4),
        "schedule": WarmupStableDecay(peak=3e-3, warmup_sequences=8, decay_share=0.3),
        "engine": EngineConfig(threads=1, compile="off", checkpoint_every=2, keep_every=2, kernels="torch"),
    }  # fmt: skip
    return PretrainConfig(pack=str(pack), **(given | changes))


def corpus(root: Path) -> None:
    """Folders "corpus", "tokenizer" and "pack" below `root`."""
    draw = random.Random(5)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(4, 60))) for _ in range(60)]
    texts.append(f"{texts[1]} again")
    rows = [
        {
            "document_id": f"{number:032x}",
            "text": text,
            "url": f"https://host{number % 7}.example/{number}",
            "source": "made up",
            "licence": "CC0-1.0",
            "language": "eng_Latn",
            "split": "held_out" if number % 10 == 9 else "train",
            "probe_id": None,
            "repeat": 2 if number == 3 else 1,
        }
        for number, text in enumerate(texts)
    ]
    for name in ("corpus", "tokenizer"):
        (root / name).mkdir(parents=True)
    write_rows(root / "corpus" / "documents-00000.parquet", DOCUMENTS_SCHEMA, rows)
    trained = train_tokenizer_on(TokenizerConfig(vocab_size=352), (str(r["text"]) for r in rows))
    (root / "tokenizer" / "tokenizer.json").write_text(trained, encoding="utf-8")
    pack_corpus(PackConfig(), root)


def trained_arm(root: Path, **changes: Any) -> Path:
    """The arm of a run in `root`, which has a corpus."""
    arm = root / "arms" / "toy"
    arm.mkdir(parents=True)
    job.run(
        config_of(root / "pack", **changes), Workspace(folder=arm, inputs={"pack": root / "pack"})
    )
    return arm


def same_run(one: Path, other: Path) -> bool:
    """Whether weights, optimizer state and metrics at the end of two arms have the same bytes."""
    last = f"checkpoints/step-{STEPS:08d}"
    names = ["model/model.safetensors", "metrics.jsonl", f"{last}/state.json"]
    names += [f"{last}/{path.name}" for path in (one / last).glob("*.safetensors")]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
