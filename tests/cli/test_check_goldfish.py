"""`stamm check goldfish` by the real command line: the published hash fails on real text, ours does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.job import train_tokenizer
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import keep_mask
from stamm.runs.job import Workspace
from tests.conftest import Stamm
from tests.unit.small_corpus import build_corpus, pack_corpus

pytestmark = pytest.mark.slow  # needs whole runs


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real text in many languages, in several shards."""
    root = tmp_path_factory.mktemp("real")
    (root / "tokenizer").mkdir()
    inputs = ("package:guides.jsonl.zst", "package:rights.jsonl.zst")
    config = CorpusConfig(inputs=inputs, consent=ConsentConfig(unknown_host="allow"))
    build_corpus(config, root)
    places = {"corpus": root / "corpus", "tokenizer": root / "tokenizer"}
    train_tokenizer(
        TokenizerConfig(vocab_size=2000), Workspace(folder=root / "tokenizer", inputs=places)
    )
    return pack_corpus(PackConfig(shard_tokens=100_000), root)


def _told(stamm: Stamm, *words: str) -> tuple[int, dict[str, Any]]:
    done = stamm("check", "goldfish", *words, "--json")
    assert done.stderr == ""
    told: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, told


def test_our_hash_passes_on_real_text(pack: Path, stamm: Stamm) -> None:
    code, told = _told(stamm, str(pack))
    assert (code, told["passed"], told["faults"], told["failing_languages"]) == (0, True, [], [])
    split = PackedSplit.open(pack, "train")
    table = split.documents().to_pylist()
    assert len(list(pack.glob("train-*.bin"))) > 2
    document = np.repeat(range(len(table)), [row["stop"] - row["start"] for row in table])[1:]
    keep = keep_mask(Goldfish(), split.read(1, split.num_tokens), document)
    found = told["all"]
    assert found["labels"] == split.num_tokens - 1
    assert found["masked"] == int((~keep).sum())
    assert found["zero_share"] == 0.0 and abs(found["standard_errors"]) < 4
    assert found["windows"] == int((document[49:] == document[:-49]).sum())
    languages = {row["language"] or "unknown" for row in table}
    assert set(told["languages"]) == languages and len(languages) > 10
    german = np.array([row["language"] == "deu_Latn" for row in table])[document]
    assert told["languages"]["deu_Latn"]["labels"] == int(german.sum())
    assert told["languages"]["deu_Latn"]["masked"] == int((~keep & german).sum())


def test_a_run_on_a_corpus_elsewhere_is_checked_as_it_was_trained(
    pack: Path, stamm: Stamm, tmp_path: Path
) -> None:
    goldfish = {"k": 10, "h": 13, "hash": "stamm", "salt": 0}
    config = {"pack": str(pack), "context": 64, "goldfish": goldfish}
    (tmp_path / "config.json").write_text(json.dumps({"schema": 1, "config": config}))
    code, told = _told(stamm, str(tmp_path))
    assert (code, told["pack"], told["remark"]) == (0, str(pack), "")
    assert (told["config"]["k"], told["config"]["context"]) == (10, 64)


def test_the_published_hash_fails_on_real_text(pack: Path, stamm: Stamm) -> None:
    code, told = _told(stamm, str(pack), "hash=apertus", "context=1024")
    assert (code, told["passed"]) == (1, False)
    zero, rate = told["faults"]
    assert "have the key 0" in zero and "standard errors off" in rate
    assert told["all"]["zero_share"] > 0.02
    split = PackedSplit.open(pack, "train")
    masked = sum(
        int((~keep_mask(Goldfish(hash="apertus"), labels, labels)).sum())
        for start in range(0, split.num_tokens - 1024, 1024)
        for labels in (split.read(start + 1, start + 1025),)
    )
    assert told["all"]["masked"] == masked
    done = stamm("check", "goldfish", str(pack), "hash=apertus", "context=1024")
    assert done.returncode == 1
    assert f"FAILED {zero}" in done.stdout and "k=50 h=50 hash=apertus" in done.stdout


def test_with_thirteen_tokens_the_published_hash_does_not_collapse(
    pack: Path, stamm: Stamm
) -> None:
    _, told = _told(stamm, str(pack), "hash=apertus", "h=13", "k=4")
    assert told["all"]["zero_share"] < 0.001
    assert told["all"]["window_rate"] == pytest.approx(0.25, rel=0.03)


def test_a_run_is_checked_as_it_was_trained(pack: Path, tmp_path: Path, stamm: Stamm) -> None:
    arm = tmp_path / "run" / "arms" / "xielu"
    arm.mkdir(parents=True)
    shutil.copytree(pack, tmp_path / "run" / "pack")
    goldfish = {"k": 9, "h": 11, "hash": "stamm", "salt": 5}
    study = {"config": {"pretrain": {"goldfish": goldfish, "context": 256}}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(study))
    (arm / "config.json").write_text(json.dumps({"config": study["config"]["pretrain"]}))
    for name in ("run", "run/arms/xielu"):
        code, told = _told(stamm, name)
        assert code == 0 and told["remark"] == ""
        assert told["pack"] == "run/pack"
        assert told["config"].items() >= {**goldfish, "context": 256}.items()
        assert told["all"]["window_rate"] == pytest.approx(1 / 9, rel=0.05)
    code, told = _told(stamm, "run", "k=50", "split=held_out")
    assert told["config"].items() >= {**goldfish, "k": 50}.items()
    study["config"]["pretrain"]["goldfish"] = None
    (tmp_path / "run" / "config.json").write_text(json.dumps(study))
    assert (
        "No model of this run was trained with Goldfish."
        in stamm("check", "goldfish", "run").stdout
    )


def test_a_trained_study_is_found_by_itself_and_by_its_arms(smoke_run: Path, stamm: Stamm) -> None:
    for place in (smoke_run, smoke_run / "arms" / "xielu", smoke_run / "pack"):
        code, told = _told(stamm, str(place))
        assert code == 0, told["faults"]
        assert told["pack"] == str(smoke_run / "pack")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["goldfish"], 2, "no corpus is named"),
        (["goldfish", "nowhere"], 1, "nowhere is neither a packed corpus nor a run with one"),
        (["goldfish", "PACK", "k=1"], 2, "k = 1 must be at least 2"),
        (["goldfish", "PACK", "hash=md5"], 2, "hash"),
        (["goldfish", "PACK", "kk=1"], 2, "Did you mean 'k'?"),
        (["goldfish", "PACK", "context=1"], 2, "context = 1 must be at least 2"),
        (["goldfish", "PACK", "zero_share=2"], 2, "zero_share = 2.0 must lie in [0, 1]"),
        (["goldfish", "PACK", "split=test"], 1, "has no split 'test'"),
        (["goldfish", "PACK", "--quick"], 2, "takes no flags but --json"),
        (["goldfish", "PACK", "h=10M"], 1, "no document is as long as a window"),
        (["xielu", "PACK"], 2, "follows the name of an activation"),
    ],
)
def test_what_cannot_be_checked_is_told_in_one_line(
    pack: Path, stamm: Stamm, words: list[str], code: int, said: str
) -> None:
    done = stamm("check", *(str(pack) if word == "PACK" else word for word in words))
    assert done.returncode == code
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_corpus_of_hostile_languages_is_told_without_control_characters(
    pack: Path, tmp_path: Path, stamm: Stamm
) -> None:
    shutil.copytree(pack, tmp_path / "pack")
    for path in (tmp_path / "pack").glob("train-*.documents.parquet"):
        table = pq.read_table(path)
        place = table.schema.get_field_index("language")
        names = ["\x1b[2Jall" if i % 3 else None for i in range(len(table))]
        pq.write_table(table.set_column(place, table.schema.field(place), [names]), path)
    done = stamm("check", "goldfish", "pack", "hash=apertus")
    assert done.returncode == 1 and "\x1b" not in done.stdout
    assert "unknown" in done.stdout and "\\x1b[2Jall" in done.stdout


def test_documents_that_end_too_early_are_told(pack: Path, tmp_path: Path, stamm: Stamm) -> None:
    shutil.copytree(pack, tmp_path / "pack")
    last = max((tmp_path / "pack").glob("train-*.documents.parquet"))
    pq.write_table(pq.read_table(last)[:-1], last)
    done = stamm("check", "goldfish", "pack")
    assert done.returncode == 1
    assert "the documents of the packed corpus end at token" in done.stderr
