"""A trace says of every step what it read, and of every document when, as training itself read it."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import sha256_file, write_json
from stamm.cli.main import main
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shuffle import WindowOrder
from stamm.corpus.tables import write_whole
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchPlan, BatchStage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.forget.config import ForgetConfig
from stamm.pretrain.forget.documents import FORGOTTEN_SCHEMA
from stamm.pretrain.forget.sequences import RemainingSequences, TokenSpans
from stamm.pretrain.trace import trace
from stamm.pretrain.trace_order import TrainingOrder, matching
from tests.unit.untrained_run import untrained_run

CONFIG = PretrainConfig(
    model=DecoderConfig(
        vocab_size=352, d_model=32, num_layers=2, ffn=PlainFFN(width=48), max_context=160
    ),
    context=16,
    sequences=45,  # more than two epochs
    batch=(BatchStage(size=4), BatchStage(start=20, size=6)),
    goldfish=Goldfish(k=3, h=4),
    first_sequence=2,
)


def write_arm(arm: Path, config: PretrainConfig = CONFIG, **manifest: Any) -> None:
    """The files of a trained arm that a trace reads."""
    total = config.batches(config.total_sequences(10**6)).num_steps
    write_json(arm / "config.json", {"schema": 1, "kind": "pretrain", "config": to_plain(config)})
    write_json(arm / "manifest.json", {"schema": 1, "inputs": manifest})
    lines = [f'{{"step":{step},"train/loss_nats":{step}.5}}\n' for step in range(1, total + 1)]
    (arm / "metrics.jsonl").write_text("".join(lines))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traced") / "run"
    root.mkdir()
    inputs = untrained_run(root)
    arm = root / "arms" / "xielu"
    arm.mkdir(parents=True)
    inputs["model"].rename(arm / "model")
    sha256 = sha256_file(root / "pack" / "manifest.json")
    write_arm(arm, pack={"path": "../../pack", "sha256": sha256})
    return root


def read_in_training(
    run: Path,
) -> dict[tuple[int, int], list[tuple[int, int, list[int], list[int]]]]:
    """Of each step and document: position, tokens as targets, and those with a loss, from the batches."""
    split = PackedSplit.open(run / "pack", "train")
    sampler = SequenceSampler(split, CONFIG.context, CONFIG.seed, CONFIG.goldfish)
    order = WindowOrder(split.stages, CONFIG.context, CONFIG.seed)
    starts = split.document_starts()
    plan = BatchPlan(CONFIG.batch, 45)
    read: dict[tuple[int, int], list[tuple[int, int, list[int], list[int]]]] = {}
    for step in range(plan.num_steps):
        span = plan.step(step)
        for position in range(2 + span.first, 2 + span.first + span.size):
            (window,) = order.windows(position, 1).tolist()
            keep = sampler.batch(position, 1).keep_BT[0].tolist()
            for number in range(len(starts)):
                start = int(starts[number])
                stop = int(starts[number + 1]) if number + 1 < len(starts) else split.num_tokens
                inside = [t for t in range(window, window + 17) if start <= t < stop]
                targets = [t - start for t in inside if t > window]
                masked = [t - start for t in inside if t > window and not keep[t - window - 1]]
                if inside:
                    entry = (position, inside[0] - start, targets, masked)
                    read.setdefault((step + 1, number), []).append(entry)
    return read


def test_every_reading_of_every_document_is_that_of_training(run: Path) -> None:
    expected = read_in_training(run)
    arm = run / "arms" / "xielu"
    table = PackedSplit.open(run / "pack", "train").documents().to_pylist()
    steps = TrainingOrder(arm).steps
    assert steps == BatchPlan(CONFIG.batch, 45).num_steps == 9
    for number, row in enumerate(table):
        (traced,) = trace(arm, document=row["document_id"].upper(), limit=100).arms
        (document,) = [d for d in traced.documents if d.start == row["start"]]
        assert (document.stop, document.licence) == (row["stop"], "CC0-1.0")
        found = [
            (r.step, r.position, r.start, r.targets, r.learned, list(r.masked), r.loss_nats)
            for r in document.readings
        ]
        wanted = [
            (step, position, first, len(targets), len(targets) - len(masked), masked, step + 0.5)
            for (step, other), entries in expected.items()
            if other == number
            for position, first, targets, masked in entries
        ]
        assert found == sorted(wanted) and len(wanted) > 1
        assert traced.first_step == wanted[0][0]
    for step in (1, 6, steps):
        (traced,) = trace(arm, step=step, limit=100).arms
        assert {d.start for d in traced.documents} == {
            table[number]["start"] for other, number in expected if other == step
        }
        assert all(r.step == step for d in traced.documents for r in d.readings)
        assert sum(len(d.readings) for d in traced.documents) == sum(
            len(entries) for (other, _), entries in expected.items() if other == step
        )


@pytest.mark.parametrize("checkpoint", [0, 4])
@pytest.mark.parametrize("rule", ["replace", "drop"])
def test_a_run_that_forgot_a_document_is_traced_as_it_was_trained(
    run: Path, tmp_path: Path, rule: Literal["replace", "drop"], checkpoint: int
) -> None:
    """Catches a trace by the order of the run before, which still read the document at every step."""
    shutil.copytree(run, tmp_path / "first")
    pack, arm = tmp_path / "first" / "pack", tmp_path / "second" / "arms" / "xielu-without"
    split = PackedSplit.open(pack, "train")
    table = split.documents().to_pylist()
    row = min(table, key=lambda row: row["stop"] - row["start"])
    forgotten = [other for other in table if other["document_id"] == row["document_id"]]
    (arm / "model").mkdir(parents=True)
    given = {f.name: getattr(CONFIG, f.name) for f in dataclasses.fields(PretrainConfig)}
    write_arm(
        arm,
        ForgetConfig(rule=rule, **given),
        pack={"path": "../../../first/pack", "sha256": sha256_file(pack / "manifest.json")},
        source={"path": "../../../first/arms/xielu/config.json", "sha256": None},
    )
    folder = tmp_path / "second" / "forget"
    folder.mkdir()
    with pytest.raises(RunError, match="does not hold which"):
        trace(arm, step=1)
    write_whole(
        folder / "documents.parquet",
        FORGOTTEN_SCHEMA,
        [{k: other[k] for k in ("document_id", "url", "language", "start", "stop")} | {"request": ""}
         for other in forgotten],
    )  # fmt: skip
    record = dict.fromkeys(
        ("requests", "unmatched", "documents", "occurrences", "tokens", "sequences", "read_again", "first_step",
         "num_steps", "read_before", "audited", "controls"), 0
    )  # fmt: skip
    write_json(
        folder / "forget.json",
        {"schema": 1, "rule": rule, "start": "approximate", "checkpoint": checkpoint, "differences": [],
         "seconds": None, "near_duplicates": None, **record},
    )  # fmt: skip
    spans = TokenSpans(*(np.array([o[k] for o in forgotten]) for k in ("start", "stop")))
    settings = split, CONFIG.context, CONFIG.seed, CONFIG.goldfish, CONFIG.masks
    after = RemainingSequences(*settings, spans=spans, rule=rule, first=2, total=45)
    before, plan = SequenceSampler(*settings), BatchPlan(CONFIG.batch, 45)
    for step in range(1, plan.num_steps + 1):
        (traced,) = trace(arm, step=step, limit=100).arms
        span, sampler = plan.step(step - 1), after if step > checkpoint else before
        batch = sampler.batch(2 + span.first, span.size)
        read = np.zeros((span.size, 16), bool)
        for document in traced.documents:
            tokens = split.read(document.start, document.stop)
            hidden = document.document_id == row["document_id"]
            assert not hidden or step <= checkpoint
            for r in document.readings:
                targets = np.arange(r.stop - r.targets, r.stop)
                (at,) = np.flatnonzero(
                    [
                        bool(np.isin(tokens[targets], line).all())
                        and (2 + span.first + number) == r.position
                        for number, line in enumerate(batch.target_BT.numpy())
                    ]
                )
                learned = np.setdiff1d(targets, r.masked)
                assert len(learned) == r.learned
                read[at] |= True
                assert r.learned <= int(batch.keep_BT[at].sum())
        learned_there = sum(r.learned or 0 for d in traced.documents for r in d.readings)
        assert learned_there == int(batch.keep_BT.sum()) and read.all()
    both = trace(tmp_path, document=row["document_id"]).arms
    assert [(Path(a.arm).name, a.contains) for a in both] == [
        ("xielu", True),
        ("xielu-without", bool(checkpoint)),
    ]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "good")
    bad = shutil.copytree(run, tmp_path / "bad")
    (bad / "pack" / "order-train.parquet").write_bytes(b"damaged")
    row = PackedSplit.open(run / "pack", "train").documents().to_pylist()[0]
    damaged, whole = trace(tmp_path, document=row["document_id"]).arms
    assert damaged.error and not whole.error and whole.contains
    assert main(["trace", str(tmp_path), f"document={row['document_id']}"]) == 1
    assert "not known:" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(4))
def test_readings_are_those_of_the_windows_over_stages_and_epochs(seed: int) -> None:
    draw = random.Random(seed)
    borders = sorted(draw.sample(range(40, 400), 3))
    stages = list(zip([0, *borders], [*borders, 440], strict=True))
    stages = [(a, max(b, a + 9)) for a, b in stages]
    order = WindowOrder(stages, 7, seed)
    count = draw.randrange(1, 3 * order.count)
    windows = order.windows(0, count)
    for _ in range(30):
        start = draw.randrange(450)
        stop = start + draw.randrange(40)
        positions, tokens = order.readings(start, stop, count)
        holds = (windows < stop) & (windows + 7 >= start) & (stop > start)
        assert positions.tolist() == np.flatnonzero(holds).tolist()
        assert tokens.tolist() == windows[holds].tolist()


def test_the_step_of_a_sequence_is_the_one_whose_span_holds_it() -> None:
    for stages in ((BatchStage(size=4),), (BatchStage(size=2), BatchStage(start=6, size=5))):
        for total in (1, 6, 7, 23):
            for partial in (False, True):
                plan = BatchPlan(stages, total, partial_last_step=partial)
                spans = [plan.step(index) for index in range(plan.num_steps)]
                for sequence in range(total + 3):
                    inside = [
                        index
                        for index, span in enumerate(spans)
                        if span.first <= sequence < span.first + span.size
                    ]
                    assert plan.step_of(sequence) == (inside[0] if inside else None)


def test_text_and_loss_are_those_of_the_document(run: Path) -> None:
    arm = run / "arms" / "xielu"
    row = PackedSplit.open(run / "pack", "train").documents().to_pylist()[0]
    (traced,) = trace(arm, document=row["document_id"], text=True, loss=True).arms
    (document,) = traced.documents
    assert document.text is not None
    assert document.text.startswith(("The river", "A short", "Trees", "Der Fluss", "Über"))
    assert document.scored == row["stop"] - row["start"] - 1
    assert document.nats is not None and 3 < document.nats / document.scored < 9


def test_a_release_shows_no_text_and_says_what_it_does_not_know(run: Path, tmp_path: Path) -> None:
    release = tmp_path / "release"
    shutil.copytree(
        run / "pack", release / "run" / "pack", ignore=shutil.ignore_patterns("train-*")
    )
    arm = release / "run" / "arms" / "xielu"
    shutil.copytree(run / "arms" / "xielu", arm)
    write_json(release / "release.json", {})
    row = PackedSplit.open(run / "pack", "train").documents().to_pylist()[0]
    (traced,) = trace(release, document=row["document_id"], text=True).arms
    (document,) = traced.documents
    assert (document.text, traced.release) == (None, str(release))
    assert [remark.split()[0] for remark in traced.remarks] == ["masks", "texts"]
    (whole,) = trace(run, document=row["document_id"]).arms
    bare = [dataclasses.replace(r, learned=None, masked=()) for r in whole.documents[0].readings]
    assert list(document.readings) == bare


def test_below_a_folder_every_arm_that_contains_it_is_named(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    shutil.copytree(run, root / "first")
    heir = root / "second" / "arms" / "tuned"
    (heir / "checkpoints" / "step-00000003").mkdir(parents=True)
    write_json(heir / "config.json", {"schema": 1, "kind": "finetune", "config": {}})
    start = {"path": "../../../first/arms/xielu/model", "sha256": None}
    write_json(heir / "manifest.json", {"schema": 1, "inputs": {"start": start}})
    stranger = shutil.copytree(heir, root / "third" / "arms" / "other")
    write_json(stranger / "manifest.json", {"schema": 1, "inputs": {}})
    row = PackedSplit.open(run / "pack", "train").documents().to_pylist()[0]
    traced = trace(root, document=row["document_id"]).arms
    assert [(Path(a.arm).name, a.contains, a.checkpoints) for a in traced] == [
        ("xielu", True, ()),
        ("tuned", True, (3,)),
    ]
    assert main(["trace", str(root), f"document={row['document_id']}"]) == 0
    assert main(["trace", str(root), f"document={'f' * 32}"]) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("step=0", "step"),
        ("step=10", "not one of 1 to 9"),
        ("tokens=x-5", "not START-STOP"),
        ("tokens=9-3", "not START-STOP"),
        ("tokens=0-99999999", "not in the stream"),
        ("document=John Doe", "not a document"),
        ("limit=3", "one of them must be given"),
    ],
)
def test_what_is_not_there_is_told(run: Path, change: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        trace(run, change)


def test_other_folders_and_damage_are_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no pretrained arm"):
        trace(tmp_path, step=1)
    with pytest.raises(RunError, match="not a folder"):
        trace(tmp_path / "none", step=1)
    copy = shutil.copytree(run, tmp_path / "run")
    write_json(
        copy / "arms" / "xielu" / "manifest.json",
        {"schema": 1, "inputs": {"pack": {"path": "../../pack", "sha256": "0" * 64}}},
    )
    with pytest.raises(DataError, match="not the packed corpus"):
        trace(copy, step=1)


def test_spellings_of_urls_find_the_same_rows() -> None:
    urls = ["https://a.example/x", "HTTPS://A.example:443/x", "https://me@a.example/%78", None,
            "https://b.example/?u=https://a.example/x", "https://bücher.example/x", "https://sub.a.example/x"]  # fmt: skip
    table = pa.table({"url": urls, "document_id": [f"{n:032x}" for n in range(7)]})
    assert matching(table, "https://a.example/x") == [0, 1, 2]
    assert matching(table, "https://xn--bcher-kva.example/x") == [5]
    assert matching(table, "a.example") == [0, 1, 2, 6]
    assert matching(table, "https://a.example/*") == [0, 1, 2]
    assert matching(table, f"{3:032x}") == [3]


BROKEN = (b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"schema": 1, "inputs": []}', b'{"schema": 1, "inputs": {"pack": 3}}',
          b'{"schema": 1, "inputs": {"pack": {"path": 3}}}')  # fmt: skip


@pytest.mark.parametrize(
    ("file", "content"),
    [("manifest.json", content) for content in BROKEN]
    + [("config.json", content) for content in BROKEN[:5]]
    + [("config.json", b'{"schema": 1, "kind": "pretrain", "config": %s}' % plain)
       for plain in (b"3", b"[]", b'{"rule": []}', b'{"rule": "replace"}')],
)  # fmt: skip
def test_a_damaged_file_of_an_arm_does_not_end_the_list(
    run: Path, tmp_path: Path, file: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a walk over runs that stops at the first file that it cannot read, of any kind of arm."""
    for name in ("a", "b", "c"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "b" / "arms" / "xielu" / file).write_bytes(content)
    tuned = tmp_path / "d" / "arms" / "tuned"
    write_json(tuned / "config.json", {"schema": 1, "kind": "finetune", "config": {}})
    (tuned / "manifest.json").write_bytes(b"{")
    row = PackedSplit.open(run / "pack", "train").documents().to_pylist()[0]
    traced = trace(tmp_path, document=row["document_id"]).arms
    assert [(Path(arm.arm).parts[-3], bool(arm.error), arm.contains) for arm in traced] == [
        ("a", False, True), ("b", True, False), ("c", False, True), ("d", True, False)
    ]  # fmt: skip
    assert main(["trace", str(tmp_path), f"document={row['document_id']}"]) == 1
    assert capsys.readouterr().out.count("not known:") == 2
