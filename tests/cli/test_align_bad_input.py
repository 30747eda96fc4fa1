"""Bad input of the alignment commands: one line says what is wrong, where, and what to do."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.cli.main import main
from stamm.models.decoder import build_decoder
from stamm.models.serialization import checked_config, save_decoder
from tests.unit.align.prepared import chat, write_rows
from tests.unit.untrained_run import untrained_run

GOOD = chat("2+2?", "4")
PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
RATED = {"prompt": "2+2?", "completion": "4", "reward": 1.0, "ref_rewards": [0.5]}
LABELLED = {"prompt": "2+2?", "completion": "4", "label": True}
OWN = {**RATED, "ref_rewards": [0.5, 0.6]}
NO_REFERENCES = {name: value for name, value in RATED.items() if name != "ref_rewards"}
TIED = [{**RATED, "reward": 0.5}, {**RATED, "prompt": "3+3?", "reward": 0.5}]
SAMPLED = ("n=3", "select.candidates=2", "sampling.max_new_tokens=4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoder of 160 tokens of context, and its tokenizer. Read only."""
    root = tmp_path_factory.mktemp("start")
    untrained_run(root)
    return root


class Refused:
    """Runs a command line that must fail."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *words: object) -> str:
        """The one line that it ends with. Nothing of a model and no temporary file is left."""
        run = self.folder / "run"
        assert main([*map(str, words), "--out", str(run)]) in (1, 2)
        told = self._capsys.readouterr().err
        assert "Traceback" not in told
        assert told.count("stamm: ") == 1
        left = [path.name for path in run.rglob("*")] if run.exists() else []
        assert not [name for name in left if name in ("model", "report.html") or ".part" in name]
        return told.strip().splitlines()[-1].removeprefix("stamm: ")


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Its runs are below this test's own folder."""
    return Refused(tmp_path, capsys)


@pytest.mark.parametrize(
    ("recipe", "rows", "words", "message"),
    [
        ("qrpo", [NO_REFERENCES], (), "row 1: bad_row, no ref_rewards, the rewards of reference completions"),
        ("qrpo", [{**RATED, "ref_rewards": []}], (), "row 1: bad_row, no ref_rewards"),
        ("qrpo", [PAIR], (), "row 1: bad_row, no chosen_reward and rejected_reward: `stamm score` adds"),
        ("rebel", [PAIR], (), "row 1: bad_row, no chosen_reward and rejected_reward"),
        ("qrpo", TIED, (), "all rewards are 0.5: there is nothing to learn from. Score the"),
        ("rebel", [{**PAIR, "chosen_reward": 1, "rejected_reward": 1}], (), "all rewards are 1.0: there is nothing"),
        ("kto", [LABELLED, {**LABELLED, "prompt": "3+3?"}], (), "all rewards are 1.0: there is nothing"),
        ("kto", [{**LABELLED, "label": "yes"}], (), "row 1: bad_row, label is 'yes', which is not true or false, 1 or 0"),
        ("kto", [GOOD], (), "row 1: bad_row, a row of kind chat, which has no reward"),
        ("qrpo", [{**RATED, "reward": float("nan")}], (), "row 1: bad_row, reward holds nan, which is not a finite"),
        ("qrpo", [RATED], ("train.loss.transform=probit",), "row 1: bad_row, 1 ref_rewards, and the loss needs 3"),
        ("qrpo", [OWN], ("train.loss.leave_one_out=true",), "row 1: bad_row, a reward that is not among its"),
        ("qrpo", [{**RATED, "ref_rewards": [float("nan")]}], (), "row 1: bad_row, ref_rewards holds"),
        ("qrpo", [GOOD], (), "row 1: bad_row, a row of kind chat, which has no reward"),
        ("dpo", [GOOD], (), "row 1: bad_row, a row of kind chat in data of kind preference"),
        ("simpo", [RATED], (), "row 1: bad_row, a row of kind rated in data of kind preference"),
        ("sft", [RATED], (), "row 1: bad_row, a row of kind rated in data of kind chat"),
        ("sft", [GOOD], ("train.epochs=0.5",), "1 packed sequences times epochs = 0.5 is less than one. Add"),
        ("dpo", [PAIR], ("train.epochs=0.5",), "the data gives 1 examples, and the run needs 2. Add rows, or raise"),
        ("sft", [], (), "rows.jsonl has no rows"),
        ("sft", [GOOD], ("context=161",), "context = 161 exceeds the model's max_context = 160"),
        ("sft", [GOOD], ("context=1",), "context = 1 must be at least 2"),
        ("sft", [GOOD], ("arm=absent",), "has no arm 'absent'. Known: "),
        ("sft", [GOOD], ("train.loss=DPO",), "is DPO: use align.dpo"),
        ("sft", [GOOD], ("train.patience=2",), "patience = 2, and no rows are held out to evaluate on. Raise prepare.held_out, such"),
        ("sft", [GOOD], ("prepare.context=64",), "unknown key 'prepare.context' (set on the command line)"),
        ("sft", [GOOD], ("prepare.seed=5", "prepare.held_out=0"), "no step of this run reads prepare.seed (set by prepare.seed=5)"),
        ("sft", [GOOD], ("prepare.kind=chat",), "no step of this run reads prepare.kind (set by prepare.kind=chat)"),
        ("dpo", [PAIR], ("train.z_loss=10",), "unknown key 'train.z_loss'"),
        ("sft", [GOOD], ("train.batch.0.size=0",), "size = 0 must be at least 1 (train.batch.0.size set on the command line)"),
    ],
)  # fmt: skip
def test_data_and_settings_that_do_not_fit(
    refused: Refused,
    model: Path,
    recipe: str,
    rows: list[dict[str, Any]],
    words: tuple[str, ...],
    message: str,
) -> None:
    data = write_rows(refused.folder / "rows.jsonl", rows)
    assert message in refused("run", f"align.{recipe}", f"run={model}", f"data={data}", *words)
    assert not (refused.folder / "run" / "reference").exists(), "a costly step came before"


def test_files_that_are_no_rows(refused: Refused, model: Path) -> None:
    for name, content, message in (
        ("words.jsonl", b"hello\nworld\n", "words.jsonl, row 1: bad_row, not JSON: Expecting value"),
        ("list.jsonl", b"[1]\n", "list.jsonl, row 1: bad_row, the row is not an object"),
        ("empty.parquet", b"", "empty.parquet, row 1: bad_row, Parquet file size is 0 bytes"),
        ("rows.txt", b"hello\n", "rows.txt has an unknown format. Use .jsonl"),
        ("rows.jsonl.gz", b"hello\n", "rows.jsonl.gz, row 1: bad_row"),
    ):  # fmt: skip
        (refused.folder / name).write_bytes(content)
        data = refused.folder / name
        told = refused("run", "align.sft", f"run={model}", f"data={data}")
        assert message in told
        shutil.rmtree(refused.folder / "run")


def test_a_start_that_is_no_model(refused: Refused, model: Path) -> None:
    data = write_rows(refused.folder / "rows.jsonl", [GOOD])
    bare = refused.folder / "bare"
    shutil.copytree(model, bare, ignore=shutil.ignore_patterns("tokenizer"))
    broken = refused.folder / "broken"
    shutil.copytree(model, broken)
    (broken / "tokenizer" / "tokenizer.json").write_text("{")
    for start, message in (
        ("nowhere", "nowhere is not a folder. Name a run folder or a Hugging Face folder"),
        (data, "rows.jsonl is not a folder"),
        (refused.folder, "holds no trained model. `stamm ls runs`"),
        ("", "run is empty: there is no model to start from. Set run=FOLDER"),
        (bare, f"the tokenizer of {bare} is not found"),
        (broken, "broken/tokenizer/tokenizer.json). Save the tokenizer again"),
    ):  # fmt: skip
        assert message in refused("run", "align.sft", f"run={start}", f"data={data}")
        shutil.rmtree(refused.folder / "run", ignore_errors=True)


def test_a_checkpoint_of_another_vocabulary(refused: Refused, model: Path) -> None:
    other = refused.folder / "other"
    shutil.copytree(model, other)
    small = dataclasses.replace(checked_config(model / "model"), vocab_size=300)
    shutil.rmtree(other / "model")
    save_decoder(build_decoder(small, seed=3), other / "model")
    message = "the tokenizer has 352 ids, and the model 300 ("
    chats = write_rows(refused.folder / "chats.jsonl", [GOOD])
    pairs = write_rows(refused.folder / "pairs.jsonl", [PAIR])
    for words in (
        ("run", "align.sft", f"run={other}", f"data={chats}", "train.batch.0.size=1"),
        ("run", "align.simpo", f"run={other}", f"data={pairs}", "train.batch.0.size=1"),
        ("run", "align.dpo", f"run={other}", f"data={pairs}", "train.batch.0.size=1"),
        ("sample", other, f"prompts={chats}", "n=1"),
    ):
        told = refused(*words)
        assert message in told and "other/tokenizer/tokenizer.json). Use the tokenizer" in told
        shutil.rmtree(refused.folder / "run")


def test_prompts_and_rewards_of_the_models_own_answers(refused: Refused, model: Path) -> None:
    prompts = write_rows(refused.folder / "prompts.jsonl", [{"prompt": "2+2?"}])
    texts = write_rows(refused.folder / "texts.jsonl", [{"text": "?"}])
    empty = write_rows(refused.folder / "empty.jsonl", [])
    never = ("reward=Length", "reward.smallest=100000", "reward.largest=100001")
    for words, message in (
        ((f"prompts={texts}", "reward=Length"), "has no prompt: texts.jsonl, row 1: no known comb"),
        ((f"prompts={empty}", "reward=Length"), "empty.jsonl has no prompt"),
        (("prompts=absent.jsonl", "reward=Length"), "absent.jsonl does not exist (prompts)"),
        ((f"prompts={prompts}", "reward=Nonesuch"), "reward = 'Nonesuch' is not a known class"),
        ((f"prompts={prompts}",), "reward = None is needed with prompts=FILE"),
        ((f"prompts={prompts}", f"data={prompts}", "reward=Length"), "data too: choose one"),
        ((), "there is nothing to train on: data and prompts are empty. Set data=FILE, or"),
        ((f"prompts={prompts}", *never), "none of 1 prompts makes an example: tied 1. Sample more"),
        ((f"prompts={prompts}", "reward=Number"), "completions.jsonl can be scored: completions.j"),
        ((f"prompts={prompts}", "reward=Length", "n=2"), "n = 2 must exceed select.candidates"),
        ((f"prompts={prompts}", "reward=Length", "rounds=0"), "rounds = 0 must be at least 1"),
        ((f"prompts={prompts}", "reward=ModelReward", f"reward.run={model}"), "holds no reward models: folders wi"),
    ):  # fmt: skip
        keys = {word.partition("=")[0] for word in words}
        usual = [word for word in SAMPLED if word.partition("=")[0] not in keys]
        told = refused("run", "align.qrpo", f"run={model}", *usual, *words)
        assert message in told
        shutil.rmtree(refused.folder / "run", ignore_errors=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(refused: Refused, model: Path) -> None:
    rows = write_rows(refused.folder / "rows.jsonl", [PAIR])
    small = (f"run={model}", f"data={rows}", "train.batch.0.size=1")
    for words, where in (
        (("sample", model, f"prompts={rows}", "device=cuda"), "device"),
        (("run", "align.dpo", *small, "reference.device=cuda"), "reference.device"),
    ):
        told = refused(*words)
        assert f"{where} = 'cuda', and torch sees no GPU. Set {where}=cpu" in told
        shutil.rmtree(refused.folder / "run", ignore_errors=True)


def test_scored_rewards_that_are_not_numbers(refused: Refused) -> None:
    """A user's reward that gives NaN: the row is named, and no file is written."""
    code = "class Bad:\n    name = 'bad'\n\n    def __call__(self, answer):\n        return float('nan')\n"
    (refused.folder / "mine.py").write_text(code)
    answers = write_rows(refused.folder / "a.jsonl", [{"prompt": "2+2?", "completion": "4"}])
    reward = f"reward={refused.folder}/mine.py:Bad"
    told = refused("score", answers, reward)
    assert "a.jsonl, row 1: reward" in told and "is nan, which is not a finite number" in told
    assert not list(refused.folder.glob("run*"))
    rows = [json.loads(line) for line in Path(answers).read_text().splitlines()]
    assert rows == [{"prompt": "2+2?", "completion": "4"}]
