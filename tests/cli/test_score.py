"""`stamm score`: rewards of answers through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.align.data.dataset_reader import read_examples
from stamm.align.data.examples import PreferencePair
from stamm.align.records import ScoreManifest
from stamm.align.rewards.config import CustomReward, Length, ScoreConfig
from stamm.align.rewards.score import score_file
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from tests.conftest import Stamm
from tests.unit.tutorials import tutorial_file

ROWS = [
    {"prompt": "2+2?", "completion": "4", "answer": 4, "city": "Bern"},
    {"prompt": "2+2?", "completion": "Bern 5", "answer": 4, "city": "Bern"},
    {"prompt": "2+2?"},
    {"completion": "4"},
    {
        "messages": [{"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "6"}],
        "answer": "6",
        "city": "Genf",
    },
]


def write(folder: Path) -> Path:
    data = folder / "answers.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)) + "\n{broken\n")
    return data


def test_an_answer_without_content_is_scored_as_any_other(stamm: Stamm, tmp_path: Path) -> None:
    """`stamm sample` writes it where the model ends its turn at once."""
    texts = ["4", "", "five", "-"]
    rows = [
        {"prompt": "2+2?", "completion": [{"role": "assistant", "content": text}], "answer": 4}
        for text in texts
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for words, rewards in (
        (("reward=Number",), [1, 0, 0, 0]),
        (("reward=Length", "reward.smallest=1", "reward.largest=3"), [1, 0, 0, 1]),
        (("reward=Language", "reward.language=eng_Latn"), [0, 0, 0, 0]),
    ):
        done = stamm("score", "answers.jsonl", *words, "--out", f"{words[0]}.jsonl")
        assert done.returncode == 0, done.stderr
        assert "without a reward" not in done.stdout
        lines = (tmp_path / f"{words[0]}.jsonl").read_text().splitlines()
        assert [json.loads(line)["reward"] for line in lines] == rewards


def test_each_answer_gets_its_reward_and_bad_rows_are_named(stamm: Stamm, tmp_path: Path) -> None:
    data = write(tmp_path)
    done = stamm("score", "answers.jsonl", "reward=Number")
    assert done.returncode == 0, done.stderr
    assert "3 answers, mean reward 0.6667, 2 values" in done.stdout
    assert "2 prompts: 0.0% of the pairs of answers to one prompt are ties, 0.0% of" in done.stdout
    assert "rank correlation of reward and length -1.000" in done.stdout
    assert "3 rows without a reward:" in done.stdout
    assert "answers.jsonl, row 3: the row has no completion" in done.stdout
    assert "answers.jsonl, row 4: no known combination of columns: completion" in done.stdout
    scored = [
        json.loads(line) for line in (tmp_path / "answers.scored.jsonl").read_text().splitlines()
    ]
    assert scored == [
        {**row, "reward": r} for row, r in zip([*ROWS[:2], ROWS[4]], (1.0, 0.0, 1.0), strict=True)
    ]
    out = tmp_path / "answers.scored.jsonl"
    manifest = read_record(ScoreManifest, tmp_path / "answers.scored.jsonl.manifest.json")
    causes = [row.cause for row in manifest.bad_rows]
    assert causes == ["no_reward", "bad_row", "bad_row"]
    assert (manifest.rows, manifest.num_bad_rows, manifest.distinct_rewards) == (3, 3, 2)
    assert (manifest.prompts, manifest.tied_pairs, manifest.constant_prompts) == (2, 0.0, 0.0)
    assert manifest.length_correlation == pytest.approx(-1)
    assert (manifest.input.path, manifest.input.sha256) == (data.name, sha256_file(data))
    assert (manifest.output.path, manifest.output.sha256) == (out.name, sha256_file(out))
    again = stamm("score", "answers.jsonl", "reward=Number")
    assert (again.returncode, "exists" in again.stderr) == (2, True)


def test_a_file_of_answers_that_ends_in_the_middle_is_named(stamm: Stamm, tmp_path: Path) -> None:
    data = write(tmp_path)
    data.write_text(data.read_text().replace("{broken\n", json.dumps(ROWS[0])[:20]))
    done = stamm("score", "answers.jsonl", "reward=Number")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == (
        "1 file ends in the middle, and rows are lost: answers.jsonl from row 6 on."
    )
    manifest = read_record(ScoreManifest, tmp_path / "answers.scored.jsonl.manifest.json")
    assert manifest.bad_rows[-1].cause == "truncated_file"


def test_the_reward_of_the_tutorial_scores_a_file(stamm: Stamm, tmp_path: Path) -> None:
    tutorial_file("reward", tmp_path / "mine.py")
    write(tmp_path)
    done = stamm("score", "answers.jsonl", "reward=mine.py:FewWords", "--out", "scored.jsonl")
    assert done.returncode == 0, done.stderr
    rewards = [
        json.loads(line)["reward"] for line in (tmp_path / "scored.jsonl").read_text().splitlines()
    ]
    assert rewards == [0, 1 / 3, 0]
    manifest = read_record(ScoreManifest, tmp_path / "scored.jsonl.manifest.json")
    code = manifest.reads["mine.py"]
    assert (code.path, code.sha256) == ("mine.py", sha256_file(tmp_path / "mine.py"))


CODE = """
from stamm.base.errors import DataError

class Judged:
    name = "judged"

    def __call__(self, answer):
        if answer.row["answer"] != 4:
            raise DataError("only sums of four are judged")
        return len(answer.text)
"""


def test_every_format_is_read_and_a_reward_may_leave_rows_out(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    rows = [ROWS[0], ROWS[1], {"prompt": "3+3?", "completion": "6", "answer": 6, "city": "Bern"}]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for ending in (".gz", ".zst"):
        with pa.output_stream(tmp_path / f"a.jsonl{ending}") as stream:  # compressed by its ending
            stream.write(text)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_bytes(text)
    config = ScoreConfig(reward=CustomReward(reference=f"{tmp_path}/mine.py:Judged"))
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        out = tmp_path / f"{name}.scored.jsonl"
        scored = score_file(tmp_path / name, out, config)
        assert [row.line() for row in scored.bad_rows] == [
            f"{name}, row 3: only sums of four are judged"
        ]
        assert [json.loads(line) for line in out.read_text().splitlines()] == [
            {**row, "reward": reward} for row, reward in zip(rows[:2], (1.0, 6.0), strict=True)
        ]


def test_both_answers_of_a_pair_are_scored(stamm: Stamm, tmp_path: Path) -> None:
    pairs = [("4", "five", 1.0, 0.0), ("6", "4", 0.0, 1.0), ("0", "1", 0.0, 0.0)]
    rows = [{"prompt": "2+2?", "chosen": a, "rejected": b, "answer": 4} for a, b, *_ in pairs]
    rows += [{"prompt": "2+2?", "chosen": "4", "rejected": "5"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = stamm("score", "pairs.jsonl", "reward=Number")
    assert done.returncode == 0, done.stderr
    assert "6 answers, mean reward 0.3333" in done.stdout
    assert "3 pairs: the chosen answer has the larger reward in 50.0%" in done.stdout
    assert "1 rows without a reward:" in done.stdout
    out = tmp_path / "pairs.scored.jsonl"
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {**row, "chosen_reward": better, "rejected_reward": worse}
        for row, (*_, better, worse) in zip(rows[:3], pairs, strict=True)
    ]
    manifest = read_record(ScoreManifest, tmp_path / "pairs.scored.jsonl.manifest.json")
    assert (manifest.rows, manifest.answers, manifest.agreement) == (3, 6, 0.5)
    pair = next(iter(read_examples(out)))
    assert isinstance(pair, PreferencePair)
    assert (pair.chosen_reward, pair.rejected_reward) == (1.0, 0.0)


def test_columns_of_an_earlier_reward_are_replaced(tmp_path: Path) -> None:
    earlier = {"reward": 0.5, "ref_rewards": [0.1, 0.2], "id": "a"}
    pair = {"chosen_rewards": 2.0, "score_rejected": 1.0, "ref_rewards": [0.3], "id": "b"}
    rows = [
        {"prompt": "?", "completion": "one", **earlier},
        {"prompt": "?", "chosen": "one", "rejected": "longer", **pair},
    ]
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score_file(data, tmp_path / "b.jsonl", ScoreConfig(reward=Length(largest=4)))
    found = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert found == [
        {"prompt": "?", "completion": "one", "id": "a", "reward": 1.0},
        {
            "prompt": "?",
            "chosen": "one",
            "rejected": "longer",
            "id": "b",
            "chosen_reward": 1.0,
            "rejected_reward": 0.0,
        },
    ]


def test_a_file_that_changes_while_it_is_read_is_not_scored(tmp_path: Path) -> None:
    data = write(tmp_path)
    (tmp_path / "mine.py").write_text(
        f"class Writes:\n    name = 'writes'\n\n    def __call__(self, answer):\n"
        f"        with open({str(data)!r}, 'a') as file:\n            file.write(' ')\n"
        f"        return 1.0\n"
    )
    config = ScoreConfig(reward=CustomReward(reference=f"{tmp_path}/mine.py:Writes"))
    with pytest.raises(DataError, match="changed while it was read"):
        score_file(data, tmp_path / "out.jsonl", config)
    assert not list(tmp_path.glob("out*"))


def test_what_is_wrong_is_one_line(stamm: Stamm, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import math\n\n\nclass Nan:\n    name = 'nan'\n\n    def __call__(self, answer):\n"
        "        return math.nan\n\n\nclass Raises(Nan):\n    def __call__(self, answer):\n"
        "        return answer.row['none']\n\n\nclass Other:\n    pass\n"
    )
    cases = {
        ("reward=mine.py:Nan",): "reward nan is nan, which is not a finite number",
        ("reward=mine.py:Raises",): "mine.py, line 13, for answers.jsonl, row 1",
        ("reward=mine.py:Other",): "mine.py:Other is not a reward",
        ("reward=mine.py:Nothing",): "mine.py has no 'Nothing'",
        ("reward=Wizard",): "Wizard",
        ("reward=ModelReward", "reward.run=none"): "none is not a folder",
        ("reward=NotMemorized", "reward.corpus=none.txt"): "none.txt is neither a run folder nor",
        ("reward=Number", "bad_rows=stop"): "answers.jsonl, row 3",
        ("reward=Number", "bad_rows=x"): "bad_rows",
    }
    for words, message in cases.items():
        done = stamm("score", "answers.jsonl", *words)
        assert done.returncode in (1, 2), words
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not list(tmp_path.glob("*.scored.jsonl*"))
        assert not list(tmp_path.glob("*.manifest.json"))
    missing = stamm("score", "none.jsonl")
    assert "none.jsonl" in missing.stderr
