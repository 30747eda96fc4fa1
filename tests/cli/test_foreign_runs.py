"""Training on Megatron's files of others, by the real command line: the bits of our own pack, and clear refusals."""

from __future__ import annotations

import json
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.job import train_tokenizer
from stamm.runs.job import Workspace
from tests.conftest import Stamm, contents, environment, given_once
from tests.forked import Parent
from tests.unit.foreign_files import write_foreign
from tests.unit.small_corpus import build_corpus, pack_corpus

pytestmark = pytest.mark.slow  # each test needs whole runs

VOCABULARY = 360
RECIPE = """
from stamm.engine.config import EngineConfig
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig


def mine() -> PretrainConfig:
    return PretrainConfig(
        model=DecoderConfig(
            vocab_size=360, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1,
            ffn=PlainFFN(width=32), max_context=32,
        ),
        context=32,
        batch=(BatchStage(size=4),),
        goldfish=Goldfish(k=5, h=12),
        schedule=WarmupStableDecay(peak=3e-3, warmup_sequences=8, decay_share=0.3),
        engine=EngineConfig(threads=1, compile="off", checkpoint_every=5),
    )
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, our packed corpus in several shards, its tokenizer, and its text as two files of others."""
    root = tmp_path_factory.mktemp("place")
    (root / "mine.py").write_text(RECIPE)
    words = ("river", "stone", "light", "wander", "quiet", "lantern", "maple", "harbour", "signal")
    draw = random.Random(5)
    texts = (" ".join(draw.choice(words) for _ in range(20 + i)) for i in range(80))
    lines = [json.dumps({"text": text}) for text in texts]
    (root / "text.jsonl").write_text("\n".join(lines) + "\n")
    (root / "tokenizer").mkdir()
    build_corpus(CorpusConfig(inputs=(str(root / "text.jsonl"),)), root)
    places = {"corpus": root / "corpus", "tokenizer": root / "tokenizer"}
    train_tokenizer(
        TokenizerConfig(vocab_size=VOCABULARY), Workspace(folder=root / "tokenizer", inputs=places)
    )
    split = PackedSplit.open(pack_corpus(PackConfig(shard_tokens=1500), root), "train")
    assert len(list((root / "pack").glob("train-*.bin"))) > 1
    taken = [
        split.read(row["start"], row["stop"]).tolist() for row in split.documents().to_pylist()
    ]
    # Documents of sequences of five tokens, cut into files elsewhere than the shards are.
    documents = [[text[i : i + 5] for i in range(0, len(text), 5)] for text in taken]
    write_foreign(root / "dump.0_text_document", documents[:29], 4)
    write_foreign(root / "dump.1_text_document", documents[29:], 8)
    return root


FOREIGN = (
    "foreign=MegatronFiles",
    "foreign.prefixes=dump.0_text_document,dump.1_text_document",
    "foreign.tokenizer=tokenizer",
)


@pytest.fixture
def here(place: Path, tmp_path: Path) -> Path:
    """A copy of `place` in the folder in which `stamm` runs, to break things in."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def finished(place: Path, parent: Parent) -> Path:
    """The run on the files of others, never interrupted. Read only."""
    words = ["stamm", "run", "mine.py", *FOREIGN, "--out", "finished"]
    done = parent.run(words, place, environment())
    assert done.returncode == 0, done.stderr
    return place / "finished"


def _refused(stamm: Stamm, *words: str) -> str:
    done = stamm("run", "mine.py", *given_once(*FOREIGN, *words), "--out", "out")
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("stamm: ")
    return line


def test_the_same_data_trains_to_the_same_bits_as_our_own_pack(
    finished: Path, here: Path, stamm: Stamm
) -> None:
    done = stamm("run", "mine.py", "pack=pack", "--out", "own")
    assert done.returncode == 0, done.stderr
    own, theirs = contents(here / "own"), contents(finished)
    assert own.keys() == theirs.keys()
    assert "arms/xielu/model/model.safetensors" in own
    assert len(own["arms/xielu/metrics.jsonl"].splitlines()) > 20
    different = [name for name in own if own[name] != theirs[name]]
    assert sorted(different) == ["arms/xielu/config.json", "config.json"]
    losses = [json.loads(line)["train/loss_nats"] for line in own["arms/xielu/metrics.jsonl"].splitlines()]  # fmt: skip
    assert losses[-1] < losses[0] - 0.3


def test_the_manifest_names_what_was_read(finished: Path, place: Path) -> None:
    manifest = json.loads((finished / "arms" / "xielu" / "manifest.json").read_text())
    inputs = manifest["inputs"]
    assert set(inputs) == {"foreign", "foreign.0", "foreign.1", "tokenizer"}
    assert inputs["foreign.0"]["path"] == "../../../dump.0_text_document"
    assert len(inputs["foreign"]["sha256"]) == len(inputs["tokenizer"]["sha256"]) == 64
    split = PackedSplit.open(place / "pack", "train")
    files = inputs["foreign"]["files"]
    assert inputs["foreign"]["tokens"] == split.num_tokens
    assert sum(file["documents"] for file in files) == len(split.document_starts())
    assert max(file["largest_id"] for file in files) == split.read(0, split.num_tokens).max()


def test_killed_it_goes_on_to_the_same_bits_but_not_with_other_tokens(
    finished: Path, here: Path, stamm: Stamm, parent: Parent
) -> None:
    words = ("run", "mine.py", *FOREIGN, "--out", "killed")
    arm = here / "killed" / "arms" / "xielu"
    process = parent.start(["stamm", *words], here, environment())
    began = time.monotonic()
    metrics = arm / "metrics.jsonl"
    while process.poll() is None and time.monotonic() - began < 200:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= 8:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL
    steps = sorted(path.name for path in (arm / "checkpoints").glob("step-*"))
    assert steps
    data = here / "dump.1_text_document.bin"
    whole = data.read_bytes()
    data.write_bytes(whole[:300] + struct.pack("<H", 77) + whole[302:])
    done = stamm(*words)
    assert done.returncode == 1
    assert "the data are not the same as when killed/arms/xielu" in done.stderr
    assert sorted(path.name for path in (arm / "checkpoints").glob("step-*")) == steps
    data.write_bytes(whole)
    done = stamm(*words)
    assert done.returncode == 0, done.stderr
    assert "Resuming after step" in done.stderr
    assert contents(here / "killed") == contents(finished)
    assert "is complete: nothing to do" in stamm(*words).stdout


def test_a_plan_counts_the_files(here: Path, stamm: Stamm) -> None:
    done = stamm("plan", "mine.py", *FOREIGN, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    tokens = PackedSplit.open(here / "pack", "train").num_tokens
    assert facts["sequences"] == (tokens - 1) // 32
    assert f"{tokens:,} tokens in dump.0_text_document, dump.1_text_document" in facts["length"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _put(path: Path, at: int, data: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:at] + data + old[at + len(data) :])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: _cut(f / "dump.1_text_document.bin"), r"dump.1_text_document.bin has"),
        (lambda f: _put(f / "dump.0_text_document.idx", 9, b"\2"), "has version 2 and type 4"),
        (lambda f: _put(f / "dump.0_text_document.idx", 17, b"\7\7"), "its header declares"),
        (lambda f: _put(f / "dump.0_text_document.idx", 17, b"\x0b"), "has version 1 and type 11"),
        (lambda f: write_foreign(f / "dump.1_text_document", []), ".bin contains no token"),
        (lambda f: (f / "dump.1_text_document.idx").write_bytes(b""), "cannot be read"),
        (lambda f: (f / "dump.1_text_document.idx").unlink(), "dump.1_text_document.idx does not"),
        (lambda f: (f / "dump.1_text_document.bin").unlink(), "dump.1_text_document.bin does not"),
        (lambda f: (f / "tokenizer" / "tokenizer.json").unlink(), "tokenizer.json does not"),
        (
            lambda f: write_foreign(f / "dump.0_text_document", [[[1, VOCABULARY, 2]]]),
            "has id 360 at token 1, its tokenizer has 360 ids",
        ),
    ],
)
def test_damage_is_one_clear_line(
    here: Path, stamm: Stamm, damage: Callable[[Path], object], message: str
) -> None:
    damage(here)
    assert message in _refused(stamm)
    assert not (here / "out" / "arms" / "xielu" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.vocab_size=359"], "model.vocab_size = 359 is smaller than the tokenizer's 360"),
        (["pack=pack"], "foreign too"),
        (["foreign.prefixes=dump.0_text_document.idx"], "must be without .bin and .idx"),
        (["foreign.prefixes=absent"], "absent.idx does not exist"),
        (["foreign.prefixes=["], "[.idx does not exist"),
        (["foreign.prefixes=[]"], "foreign"),
        (["foreign.prefixes=/"], "does not name a file"),
        (["foreign.end_token=<|endoftext|>"], "has no token '<|endoftext|>'"),
    ],
)
def test_misuse_is_one_clear_line(here: Path, stamm: Stamm, words: list[str], message: str) -> None:
    assert message in _refused(stamm, *words)


def test_a_study_packs_a_corpus_of_its_own(stamm: Stamm) -> None:
    changes = [word.replace("foreign", "pretrain.foreign", 1) for word in FOREIGN]
    done = stamm("run", "smoke", *changes)
    assert done.returncode == 2
    assert "pretrain.foreign is set, but a study packs its own corpus" in done.stderr
