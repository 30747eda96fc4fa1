"""Bad input is normal input: one clear line, nothing lost, nothing half written."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from stamm.corpus.inputs import locate
from tests.conftest import Stamm, command, environment


def _jsonl(count: int = 400) -> bytes:
    lines = []
    for i in range(count):
        sentence = f"The quick brown fox number {i} jumps over the lazy dog while the band plays. "
        lines.append(json.dumps({"text": sentence * 8, "language": "eng_Latn"}))
    return "\n".join(lines).encode() + b"\n"


def _small(*inputs: Path) -> list[str]:
    """A run that trains on `inputs` alone, for three steps."""
    return [
        "run",
        "smoke",
        "--out",
        "out",
        "corpus.inputs=" + ",".join(str(path) for path in inputs),
        "corpus.consent.no_url=allow",
        "pretrain.sequences=12",
    ]


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error: the last line of stderr, and no traceback."""
    assert "Traceback" not in done.stderr, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("stamm: "), done.stderr
    return line


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "dmeo"], 2, ["unknown recipe 'dmeo'", "Did you mean 'demo'?"]),
        (["show", "xeilu"], 2, ["'xeilu'", "Did you mean 'xielu'?"]),
        (
            ["run", "demo", "pretrain.modle.d_model=64"],
            2,
            ["unknown key 'pretrain.modle.d_model'", "Did you mean 'model'?"],
        ),
        (
            ["run", "demo", "pretrain.model.d_model=130"],
            2,
            ["d_model = 130 does not divide into num_heads = 3 heads", "set on the command line"],
        ),
        (
            ["run", "demo", "pretrain.context=abc"],
            2,
            ["pretrain.context = 'abc' is not a whole number"],
        ),
        (
            ["run", "demo", "arms.0.ffn.width=300"],
            2,
            ["the arms differ by", "Give a plain block 1.5 times the width of a gated one"],
        ),
        (["run", "demo", "tokenizer.vocab_size=5000"], 2, ["Set both"]),
        (["run", "apertus_8b"], 2, ["no packed corpus to train on", "pack=FOLDER"]),
        (["run", "mine.py"], 2, ["mine.py does not exist", "stamm cp demo mine.py"]),
        (["plan", "apertus_8b", "--gpus", "8xH2000"], 2, ["8xH2000", "Known: A100"]),
        (
            ["evaluate", "nowhere"],
            1,
            ["nowhere is not a folder. Name a run folder or a Hugging Face folder"],
        ),
        (["cp", "demo", "absent/mine.py"], 1, ["absent/mine.py"]),
        (["run", "demo", "--dry-run", "pretrain.batch=4"], 2, ["Write pretrain.batch.0.size=4."]),
        (["search", "smoke", "--dry-run", "screen.gain=1"], 2, ["gain", "two numbers"]),
        (["run", "smoke", "corpus.inputs=[draft].jsonl"], 1, ["no file matches [draft].jsonl"]),
        (
            ["run", "smoke", "corpus.inputs=/etc/hostname", "--dry-run"],
            1,
            ["not in a supported format"],
        ),
        (["import", ".", "--out", "."], 2, ["--out . is the working folder", "below it"]),
        (["run", "smoke", "--out", "/dev/null"], 1, ["/dev/null is a file"]),
        (["run", "smoke", "--out", "/proc/stamm"], 1, ["/proc/stamm"]),
        (["compare", "demo"], 2, ["demo is not a comparison", "compare.activations"]),
    ],
)
def test_misuse_gets_one_line(stamm: Stamm, words: list[str], code: int, said: list[str]) -> None:
    done = stamm(*words)
    assert done.returncode == code, done.stderr
    line = _one_line(done)
    for text in said:
        assert text in line
    assert done.stdout == ""


def test_a_missing_input_file_is_named(stamm: Stamm, tmp_path: Path) -> None:
    done = stamm(*_small(tmp_path / "absent.jsonl"))
    assert done.returncode == 1
    assert "absent.jsonl" in _one_line(done)


def test_an_empty_corpus_says_why_nothing_was_kept(stamm: Stamm, tmp_path: Path) -> None:
    source = tmp_path / "empty.jsonl"
    source.write_bytes(b'{"text": ""}\n{"text": " "}\n')
    done = stamm(*_small(source), "corpus.probes=none", "audit=none")
    assert done.returncode == 1
    line = _one_line(done)
    assert "nothing was kept" in line.lower() or "no document" in line.lower()


def _truncate_gzip(path: Path) -> Path:
    target = path / "cut.jsonl.gz"
    target.write_bytes(gzip.compress(_jsonl(), mtime=0)[:-40])
    return target


def _bad_utf8(path: Path) -> Path:
    target = path / "bad.jsonl"
    target.write_bytes(_jsonl() + b'{"text": "\xff\xfe broken"}\n')
    return target


def _bad_json(path: Path) -> Path:
    target = path / "json.jsonl"
    target.write_bytes(_jsonl() + b'{"text": \n')
    return target


def _cut_warc(path: Path, name: str) -> Path:
    whole = locate("package:pages.warc.gz", "corpus.inputs").read_bytes()
    whole = whole if name.endswith(".gz") else gzip.decompress(whole)
    target = path / name
    target.write_bytes(whole[: len(whole) * 2 // 3])
    return target


def test_damaged_records_are_in_the_ledger_and_the_run_goes_on(
    stamm: Stamm, tmp_path: Path
) -> None:
    inputs = [make(tmp_path) for make in (_truncate_gzip, _bad_utf8, _bad_json)]
    inputs += [_cut_warc(tmp_path, name) for name in ("cut.warc.gz", "cut.warc")]
    done = stamm(*_small(*inputs))
    assert done.returncode == 0, done.stderr
    reasons = [
        row["reason"]
        for ledger in sorted((tmp_path / "out" / "corpus").glob("ledger-*.parquet"))
        for row in parquet.read_table(ledger).to_pylist()
        if row["decision"] == "dropped"
    ]
    damage = ("broken_compression", "invalid_utf8", "invalid_json", "truncated_record")
    assert [reasons.count(reason) for reason in damage] == [2, 1, 1, 1]
    summary = (tmp_path / "out" / "corpus" / "summary.json").read_text()
    assert all(reason in summary for reason in reasons)


def test_a_run_folder_of_another_configuration_is_refused(smoke_run: Path, stamm: Stamm) -> None:
    done = stamm("run", "smoke", "--out", str(smoke_run), "pretrain.seed=29")
    assert done.returncode == 2
    assert "pretrain.seed: 28 there, 29 requested" in _one_line(done)


def test_an_interrupt_says_that_the_run_can_go_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("run", "smoke"), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "runs" / "smoke" / "config.json").exists():
        time.sleep(0.01)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command resumes from here" in errors
    assert "Traceback" not in errors
