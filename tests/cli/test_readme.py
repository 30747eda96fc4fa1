"""Every command of the README and of the index of docs/, and every Python block of the README runs."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT, Stamm, environment

README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "README.md").read_text()
WRITES = ("run", "evaluate", "audit", "observe", "steer", "export", "release", "report")


def _commands() -> list[str]:
    goals = README[README.index("## Goals") : README.index("## Install")]
    written = re.findall(r"`(stamm [^`]+)`", goals + INDEX)
    return [c for c in dict.fromkeys(written) if "…" not in c and "VERB" not in c]


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def _files(folder: Path) -> list[Path]:
    """What lies in the folder, but for what Python itself leaves beside a file it has loaded."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def test_there_is_something_to_test() -> None:
    assert len(_commands()) >= 25
    assert len(_blocks()) == 2


@pytest.fixture(scope="module")
def released(smoke_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with release/, the receipt of one URL, and the corpus that a replay reads."""
    folder = tmp_path_factory.mktemp("released")
    (folder / "runs").mkdir()
    shutil.copytree(smoke_run, folder / "runs" / "demo")  # a release is noted in its run
    url = "url=https://unicode.org/udhr/d/udhr_epo.txt"
    for words in (
        ["release", "runs/demo/arms/xielu", "--out", "release", "receipts=private", "checkpoints=true"],
        ["receipt", "release", url, "receipts=private", "--out", "receipt.json"],
    ):  # fmt: skip
        subprocess.run([sys.executable, "-m", "stamm", *words], cwd=folder, env=environment(), check=True)  # fmt: skip
    return folder


@pytest.mark.parametrize("line", _commands())
def test_a_command_of_the_readme_runs(
    line: str, smoke_run: Path, stamm: Stamm, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Writing verbs with --dry-run; a run of the smallest recipe stands in for the runs they name.

    `run` gets an empty place, as a reader has it: a dry run refuses a folder that holds another.
    """
    (tmp_path / "mine.jsonl").write_text('{"text": "My own text."}\n')  # the reader's own files
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.md").write_text(README)
    row = {"prompt": "2 + 2?", "completion": "4", "answer": 4}
    (tmp_path / "answers.jsonl").write_text(json.dumps(row) + "\n")
    for name, sentence in (("german", "Der Hund schläft."), ("english", "The dog is asleep.")):
        text = "".join(json.dumps({"text": f"{sentence} {n}. " * 8}) + "\n" for n in range(8))
        (tmp_path / f"{name}.jsonl").write_text(text)
    trained = pq.read_table(next((smoke_run / "corpus").glob("documents-*.parquet")))
    (tmp_path / "answer.txt").write_text(max(trained["text"].to_pylist(), key=len)[:2000])
    (tmp_path / "requests.txt").write_text("https://unicode.org/*\n")
    words = shlex.split(line)[1:]
    if {"release", "receipt.json"} & {*words[1:]}:
        made = request.getfixturevalue("released")
        for name in ("release", "receipt.json", "private"):
            (tmp_path / name).symlink_to(made / name)
    if words[0] != "run" or any(word.startswith("run=runs/") for word in words):
        (tmp_path / "runs").mkdir()
        for name in ("demo", "deep", "corpus.demo"):
            (tmp_path / "runs" / name).symlink_to(smoke_run)
    if "run=runs/corpus.demo" in words:  # its own copy: another test may hold the shared run's lock
        (tmp_path / "runs" / "corpus.demo").unlink()
        shutil.copytree(smoke_run, tmp_path / "runs" / "corpus.demo")
    if "mine.py:demo" in words:
        assert stamm("cp", "demo", "mine.py").returncode == 0
    words = [
        word.replace("1024x4096", "64x512") for word in words
    ]  # a benchmark as short as can be
    if words[0] in WRITES:
        words.append("--dry-run")
    before = _files(tmp_path)
    done = stamm(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if words[0] == "run":
        printed = done.stdout.splitlines()
        lines = printed[[line.split()[:1] for line in printed].index(["step"]) + 1 :]
        steps = list(itertools.takewhile(lambda line: line and " time: " not in line, lines))
        assert len(steps) >= (4 if words[1].startswith("adapt.") else 6)
        # A step and its state, or steps of one kind, all of which are to do
        ends = [step.split()[-2:] for step in steps]
        assert all(end == ["to", "do"] or end[0] == end[1] for end in ends)
        assert _files(tmp_path) == before


def test_the_activation_block_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _blocks()[0] + "\nprint(y.dtype, act.effective())"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.bfloat16 {'alpha_p': 0.8")


def test_plain_transformers_loads_the_export(smoke_run: Path, tmp_path: Path) -> None:
    """No part of stamm is imported: the folder stands on its own."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(smoke_run)
    code = _blocks()[1] + (
        "\nimport sys\nassert not any(name.split('.')[0] == 'stamm' for name in sys.modules)"
        "\nids = tokenizer('We the people', return_tensors='pt')"
        "\nout = model.generate(**ids, max_new_tokens=5, do_sample=False)"
        "\nprint(type(model).__name__, out.shape[1] > ids['input_ids'].shape[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment(), "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ApertusForCausalLM True"
