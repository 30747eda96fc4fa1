"""A large packed corpus is verified while the first steps are trained; damage ends the run before a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stamm.base.console import NoProgress
from stamm.base.errors import DataError, RunError
from stamm.base.files import sha256_file, write_json
from stamm.corpus.packed_dataset import MANIFEST, SIDECAR_SCHEMA, PackedSplit
from stamm.corpus.records import PackManifest
from stamm.corpus.shards import write_shard
from stamm.corpus.tables import write_rows
from stamm.engine.background_check import BackgroundCheck
from stamm.engine.checkpoint_files import checkpoint_steps
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import DistributedContext
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from tests.conftest import environment
from tests.forked import Parent

SCRIPT = Path(__file__).with_name("verification_processes.py")
VOCABULARY, CONTEXT, STEPS = 64, 16, 6
CONFIG = PretrainConfig(
    model=DecoderConfig(
        vocab_size=VOCABULARY, d_model=16, num_layers=1, num_heads=1, num_kv_heads=1,
        ffn=PlainFFN(width=16), max_context=CONTEXT,
    ),
    context=CONTEXT,
    batch=(BatchStage(size=2),),
    sequences=2 * STEPS,
    goldfish=None,
    engine=EngineConfig(
        device="cpu", threads=1, compile="off", kernels="torch", checkpoint_every=4
    ),
)  # fmt: skip


class Watch(NoProgress):
    """Notes the steps and what is logged; calls `after` at the end of each step."""

    def __init__(self, after: Callable[[int], None] = lambda step: None) -> None:
        self.steps: list[int] = []
        self.said: list[str] = []
        self._after = after

    def advance(self, done: float, note: str = "", share: float | None = None) -> None:
        """After each step."""
        self.steps.append(int(done))
        self._after(int(done))

    def log(self, text: str) -> None:
        """Anything else."""
        self.said.append(text)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """Two shards of documents of 20 tokens, as many as the run reads."""
    folder, shards = tmp_path / "pack", []
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in ("train-00000", "train-00001"):
        documents = [np.append(draw.integers(3, VOCABULARY, 19), 2) for _ in range(5)]
        write_shard(folder / name, documents, 8)
        rows: list[dict[str, Any]] = [
            {
                **dict.fromkeys(("language", "source", "licence", "url"), "x"),
                "document_id": f"{name}-{i}", "probe_id": None, "stage": 0, "occurrence": 0,
                "start": 100 * len(shards) + 20 * i, "stop": 100 * len(shards) + 20 * (i + 1), "bytes": 20,
            }
            for i in range(5)
        ]  # fmt: skip
        write_rows(folder / f"{name}.documents.parquet", SIDECAR_SCHEMA, rows)
        files = {end: sha256_file(folder / f"{name}{end}") for end in (".bin", ".idx")}
        shards.append({"name": name, "tokens": 100, "sha256": files})
    splits = {"train": {"tokens": 200, "documents": 10, "shards": shards}}
    write_json(
        folder / MANIFEST,
        {"schema": PackManifest.SCHEMA, "vocabulary": VOCABULARY, "splits": splits},
    )
    return folder


def _alter(pack: Path, value: int) -> None:
    """A token of the second shard, the last that the check reads."""
    path = pack / "train-00001.bin"
    ids = np.frombuffer(path.read_bytes(), dtype=np.uint16).copy()
    ids[10] = value if ids[10] != value else value + 1
    path.write_bytes(ids.tobytes())


def _train(pack: Path, folder: Path, watch: Watch) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    job.run(CONFIG, Workspace(folder=folder, inputs={"pack": pack}, progress=watch))
    return read_metrics(folder / "metrics.jsonl")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Every packed corpus is large, and its check waits for this event."""
    may_read, examine = threading.Event(), PackedSplit.examine
    monkeypatch.setattr(job, "READ_FIRST", 0)

    def late(split: PackedSplit, files: Any) -> dict[int, Any]:
        if threading.current_thread().name == "check-data":
            assert may_read.wait(60)
        return examine(split, files)

    monkeypatch.setattr(PackedSplit, "examine", late)
    return may_read


def test_an_altered_byte_ends_the_run_before_its_first_checkpoint(
    pack: Path, held: threading.Event, tmp_path: Path
) -> None:
    _alter(pack, 5)  # an id as good as another
    out = tmp_path / "run"

    def after(step: int) -> None:
        if step == 3:  # step 4 has a checkpoint
            held.set()

    watch = Watch(after)
    with pytest.raises(DataError, match=r"train-00001\.bin was altered: its hash is not the one"):
        _train(pack, out, watch)
    assert watch.steps[-1] in (3, 4)
    assert checkpoint_steps(out / "checkpoints") == []
    assert not (out / "model").exists() and not (out / "summary.json").exists()


def test_a_checkpoint_waits_for_the_check(
    pack: Path, held: threading.Event, tmp_path: Path
) -> None:
    out, saved = tmp_path / "run", []
    releaser = threading.Timer(0.5, lambda: (saved.extend((out / "checkpoints").glob("*")), held.set()))  # fmt: skip

    def after(step: int) -> None:
        if step == 4:
            releaser.start()

    watch = Watch(after)
    found = _train(pack, out, watch)
    assert saved == [] and checkpoint_steps(out / "checkpoints") == [4, 5, STEPS]
    assert watch.said == [
        "The packed corpus, 400 B, is verified during the first steps; the first checkpoint waits for it.",
        "The packed corpus, 400 B, is verified.",
    ]
    assert (out / "summary.json").is_file() and len(found) == STEPS


def test_a_small_corpus_is_verified_before_the_first_step(
    pack: Path, held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.set()
    large = _train(pack, tmp_path / "large", Watch())
    monkeypatch.setattr(job, "READ_FIRST", 400)
    watch = Watch()
    assert _train(pack, tmp_path / "small", watch) == large and watch.said == []
    _alter(pack, 5)
    watch = Watch()
    with pytest.raises(DataError, match=r"train-00001\.bin was altered"):
        _train(pack, tmp_path / "altered", watch)
    assert watch.steps == [] and not (tmp_path / "altered" / "metrics.jsonl").exists()


def test_a_value_that_is_no_id_is_reported_as_damage_before_the_check_reaches_it(
    pack: Path, held: threading.Event, tmp_path: Path
) -> None:
    _alter(pack, VOCABULARY + 1)
    with pytest.raises(
        RunError, match=r"of step \d .*train-00001\.bin was altered: its hash is not"
    ):
        _train(pack, tmp_path / "run", Watch())
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == []
    held.set()


def test_damage_in_the_part_of_one_process_ends_both(
    pack: Path, parent: Parent, tmp_path: Path
) -> None:
    """The second shard is read by the second process; the first reports the same line."""
    for name, expected in (("intact", ""), ("damaged", "train-00001.bin was altered")):
        out = tmp_path / name
        out.mkdir()
        done = parent.run([str(SCRIPT), str(pack), str(out)], tmp_path, environment(), ranks=2)
        assert done.returncode == 0, done.stderr[-4000:]
        for rank in range(2):
            assert expected in (error := (out / f"error-{rank}.txt").read_text())
            assert bool(error) == bool(expected)
        steps = checkpoint_steps(out / "checkpoints")
        assert steps == ([] if expected else [4, 5, STEPS])
        _alter(pack, 5)


def test_the_part_of_another_process_ends_this_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is still reading; the other has found damage."""
    world = DistributedContext(torch.device("cpu"), size=2)
    monkeypatch.setattr(DistributedContext, "all_reduce_sum", lambda self, counts: counts + torch.tensor([0.0, 1.0]))  # fmt: skip
    monkeypatch.setattr(DistributedContext, "all_gather_object", lambda self, mine: [mine, DataError("b.bin was altered")])  # fmt: skip
    forever = threading.Event()
    check = BackgroundCheck(forever.wait, world, passed=lambda: None)
    with pytest.raises(DataError, match=r"b\.bin was altered"):
        check.advance()
    forever.set()
