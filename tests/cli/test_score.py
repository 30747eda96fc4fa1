"""`stamm score`: rewards of answers through the real command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.conftest import ROOT, Stamm

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


def test_each_answer_gets_its_reward_and_bad_rows_are_named(stamm: Stamm, tmp_path: Path) -> None:
    data = write(tmp_path)
    done = stamm("score", "answers.jsonl", "reward=Number")
    assert done.returncode == 0, done.stderr
    assert "3 answers, mean reward 0.6667, 2 values" in done.stdout
    assert "3 rows without a reward:" in done.stdout
    assert "answers.jsonl, row 3: the row has no completion" in done.stdout
    assert "answers.jsonl, row 4: no known combination of columns: completion" in done.stdout
    scored = [
        json.loads(line) for line in (tmp_path / "answers.scored.jsonl").read_text().splitlines()
    ]
    assert scored == [
        {**row, "reward": r} for row, r in zip([*ROWS[:2], ROWS[4]], (1.0, 0.0, 1.0), strict=True)
    ]
    manifest = json.loads((tmp_path / "answers.scored.jsonl.manifest.json").read_text())
    assert (manifest["rows"], manifest["num_bad_rows"], manifest["input"]["path"]) == (
        3,
        3,
        data.name,
    )
    again = stamm("score", "answers.jsonl", "reward=Number")
    assert (again.returncode, "exists" in again.stderr) == (2, True)


def test_the_reward_of_the_tutorial_scores_a_file(stamm: Stamm, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending" / "reward.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(block)
    write(tmp_path)
    done = stamm("score", "answers.jsonl", "reward=mine.py:FewWords", "--out", "scored.jsonl")
    assert done.returncode == 0, done.stderr
    rewards = [
        json.loads(line)["reward"] for line in (tmp_path / "scored.jsonl").read_text().splitlines()
    ]
    assert rewards == [0, 1 / 3, 0]
    assert (
        len(json.loads((tmp_path / "scored.jsonl.manifest.json").read_text())["code"]["sha256"])
        == 64
    )


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
        ("reward=Number", "bad_rows=stop"): "answers.jsonl, row 3",
        ("reward=Number", "bad_rows=x"): "bad_rows",
    }
    for words, message in cases.items():
        done = stamm("score", "answers.jsonl", *words)
        assert done.returncode in (1, 2), words
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not list(tmp_path.glob("*.scored.jsonl*"))
    missing = stamm("score", "none.jsonl")
    assert "none.jsonl" in missing.stderr
