"""Tasks from files: rows, hostile ones too, become items; scores, blind baselines and resumption."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.evaluate import blind, file_task, job
from stamm.evaluate.config import EvaluateConfig, shipped_tasks, task_inputs
from stamm.evaluate.file_task import is_right
from stamm.evaluate.items import COPY, RejectedRow, TaskItem, choose_examples, read_items
from stamm.evaluate.scoring import loglikelihood
from stamm.evaluate.task_file import METRICS, TaskDescription, open_task
from stamm.models.loading import with_tokenizer
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.statistics.student_t import t_quantile

SHIPPED = {"svamp": 1000, "xcopa_slice": 550}
ASKED = {"kind": "multiple_choice", "context": "{question}", "answer": "label"}
ROWS: list[dict[str, Any]] = [
    {"question": "The river is", "choices": ["wide", "a short note"], "label": 0, "language": "en"},
    {
        "question": "Trees",
        "choices": ["grow", "is long", "fiel Schnee"],
        "label": 2,
        "language": "de",
    },
    {"question": "Der Weg ist", "choices": ["weit", "breit"], "label": "B", "language": "de"},
    {"question": "The road", "choices": ["is", "was"], "label": "is", "language": "en"},
]


def write(path: Path, rows: list[Any], header: dict[str, Any] | None = ASKED) -> str:
    lines = [json.dumps(row) if not isinstance(row, str) else row for row in rows]
    if header is not None:
        lines = [json.dumps({"stamm_task": header}), *lines]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def evaluate(inputs: dict[str, Path], folder: Path, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    job.run(EvaluateConfig(threads=1, **settings), Workspace(folder=folder, inputs=inputs))
    return folder


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_users_file_of_three_lines_is_scored(inputs: dict[str, Path], tmp_path: Path) -> None:
    out = evaluate(inputs, tmp_path / "out", tasks=(write(tmp_path / "My Task.jsonl", ROWS),))
    result = read_json(out / "my_task.json")
    assert (result["num_items"], result["metric"]) == (4, "acc_norm")
    assert next(iter(result["metrics"])) == "acc_norm"
    assert set(result["metrics"]) == set(METRICS["multiple_choice"])
    assert result["metrics"]["acc"]["chance"] == pytest.approx((3 / 2 + 1 / 3) / 4)
    assert result["groups"]["language"]["de"]["items"] == 2
    model = with_tokenizer(load_decoder(inputs["model"]), inputs["tokenizer"])
    for line, row in zip(lines_of(out / "my_task_items.jsonl"), ROWS, strict=True):
        pairs = [(row["question"], " " + choice) for choice in row["choices"]]
        expected = [log_prob for log_prob, _ in loglikelihood(model, pairs, 1000)]
        assert line["log_probs"] == pytest.approx(expected, rel=1e-5)
        best = expected.index(max(expected))
        assert line["values"]["acc"] == float(best == line["label"])
    assert [line["label"] for line in lines_of(out / "my_task_items.jsonl")] == [0, 2, 1, 0]


def test_a_killed_task_does_not_repeat_items(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_task, "BLOCK", 2)
    name = write(tmp_path / "mine.jsonl", [*ROWS, "broken", *ROWS])
    whole = evaluate(inputs, tmp_path / "whole", tasks=(name,))
    asked: list[int] = []
    original = file_task.ItemScorer.lines

    def counted(self: Any, block: Any) -> Any:
        if len(asked) == 4:
            asked.append(-1)
            raise KeyboardInterrupt
        asked.extend(row.line for row in block)
        return original(self, block)

    monkeypatch.setattr(file_task.ItemScorer, "lines", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(inputs, tmp_path / "out", tasks=(name,))
    assert not list((tmp_path / "out").glob("*.json"))
    with (tmp_path / "out" / ".mine.jsonl").open("a") as partial:
        partial.write('{"line": 99, "val')  # a block that was not finished
    evaluate(inputs, tmp_path / "out", tasks=(name,))
    assert asked == [2, 3, 4, 5, -1, 6, 7, 8, 9, 10]
    for file in ("mine.json", "mine_items.jsonl"):
        assert (tmp_path / "out" / file).read_bytes() == (whole / file).read_bytes()
    assert sorted(path.name for path in whole.iterdir()) == ["mine.json", "mine_items.jsonl"]
    # Finished results of the same data, weights and settings are kept.
    monkeypatch.setattr(file_task.ItemScorer, "lines", lambda *_: pytest.fail("scored again"))
    evaluate(inputs, whole, tasks=(name,))


def test_a_task_reads_its_description_and_the_data_that_it_names(tmp_path: Path) -> None:
    own, data, described = (tmp_path / name for name in ("own.jsonl", "data.jsonl", "mine.json"))
    write(own, ROWS)
    write(data, ROWS, None)
    described.write_text(json.dumps({**ASKED, "file": data.name}))
    tasks = ("held_out", str(own), str(described), "mine.py:Task")
    expected = {own, data, described, Path("mine.py")}
    assert set(task_inputs(tasks, None).values()) == expected
    data.unlink()
    with pytest.raises(DataError, match=r"data.jsonl is not a file"):
        task_inputs(tasks, None)


def test_hostile_rows_are_rejected_with_a_reason(tmp_path: Path) -> None:
    fine = ROWS[0]
    hostile: list[tuple[Any, str]] = [
        ("not json", "not a JSON object"),
        ([1, 2], "not a JSON object"),
        ('{"a":' * 5000, "not a JSON object"),
        ({**fine, "label": 7}, "'label' is out of range"),
        ({**fine, "label": -1}, "'label' is out of range"),
        ({**fine, "label": "nothing"}, "'label' names no choice"),
        ({**fine, "label": True}, "'label' names no choice"),
        ({**fine, "choices": []}, "fewer than 2 or more than 1000 choices"),
        ({**fine, "choices": ["a", ""]}, "an empty choice"),
        ({**fine, "choices": "ab"}, "'choices' is not a list"),
        ({**fine, "choices": ["a", 2]}, "'choices' contains something else than texts"),
        ({"choices": ["a", "b"], "label": 0}, "no field 'question'"),
        ({**fine, "question": {"a": 1}}, "'question' is neither text nor a number"),
        ({**fine, "question": " "}, "empty context"),
        ({**fine, "question": math.nan}, "'question' is not a finite number"),
        (
            '{"question": 1e400, "choices": ["a", "b"], "label": 0}',
            "'question' is not a finite number",
        ),
        ({**fine, "label": [1, 1]}, "'label' names no choice"),
        (fine, COPY),
        ({**fine, "question": "x" * 10_000_000}, "longer than 1 MiB"),
    ]
    name = write(tmp_path / "mine.jsonl", [fine, *(row for row, _ in hostile), ROWS[3]])
    found = list(read_items(open_task(name, None)))
    assert [one.reason for one in found if isinstance(one, RejectedRow)] == [r for _, r in hostile]
    assert [one.line for one in found] == list(range(2, len(hostile) + 4))
    assert sum(isinstance(one, TaskItem) for one in found) == 2


def items_of(path: Path, rows: list[Any], header: dict[str, Any]) -> list[Any]:
    """The right choices of a file's items, and the reasons of its rejected rows."""
    found = read_items(open_task(write(path, rows, header), None))
    return [one.reason if isinstance(one, RejectedRow) else one.rights for one in found]


def test_a_label_that_can_be_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    numbers = {"question": "1+2=", "choices": ["1", "2", "3", "4"]}
    fine = [
        {**numbers, "label": 2}, {**numbers, "label": "0"}, {**ROWS[0], "label": "ß"},
        {"question": "Which?", "choices": ["A", "B"], "label": "B"},
        {"question": "Which?", "choices": ["b", "b", "c"], "label": "b"},
    ]  # fmt: skip
    assert items_of(path, fine, ASKED) == [
        (2,), (0,), "'label' names no choice", (1,), "'label' names two choices of one text"
    ]  # fmt: skip
    for label, choices in (("3", numbers["choices"]), ("A", ["O", "A", "B"])):
        row = {"question": "Which?", "choices": choices, "label": label}
        with pytest.raises(DataError, match=r"is the text of choice.*line 2.*Set \"labels\""):
            items_of(path, [row], ASKED)
    row = {**numbers, "label": "3"}
    assert items_of(path, [row], {**ASKED, "labels": "choices"}) == [(2,)]
    assert items_of(path, [row], {**ASKED, "labels": ["0", "1", "2", "3"]}) == [(3,)]
    pair = {"question": "1+2=", "a": 3, "b": 0, "label": 0}
    asked = {**ASKED, "choices": ["{a}", "{b}"]}
    with pytest.raises(DataError, match="is the text of choice 1"):
        items_of(path, [pair], asked)
    assert items_of(path, [pair], {**asked, "labels": ["{a}", "{b}"]}) == [(1,)]
    shots = {**asked, "split": "test", "shots_split": "train"}
    with pytest.raises(DataError, match="is the text of choice 1"):
        choose_examples(open_task(write(path, [{**pair, "split": "train"}], shots), None), 1, 0)


def test_labels_that_begin_with_1_are_refused(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "question": f"Number {n}", "label": 1 + n % 2} for n in range(4)]
    with pytest.raises(DataError, match=r"'label' is never 0.*line 3.*\"labels\": \[\"1\", \"2\""):
        items_of(tmp_path / "mine.jsonl", rows, ASKED)
    stated = {**ASKED, "labels": ["1", "2"]}
    assert items_of(tmp_path / "mine.jsonl", rows, stated) == [(0,), (1,)] * 2
    rows.append(ROWS[0])
    out = "'label' is out of range"
    assert items_of(tmp_path / "mine.jsonl", rows, ASKED) == [(1,), out, (1,), out, (0,)]


def test_field_names_are_any_text_between_braces(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    row = {
        "Die Frage": "Why",
        "question-text": "?",
        "a.b": "x",
        "Correct Answer": "c",
        "Falsch 1": "d",
    }
    asked = {
        "kind": "multiple_choice", "context": "{Die Frage}{question-text}{a.b}", "groups": [],
        "choices": ["{Correct Answer}", "{Falsch 1}"], "answer": "k",
    }  # fmt: skip
    (item,) = read_items(open_task(write(path, [{**row, "k": "c"}], asked), None))
    assert isinstance(item, TaskItem)
    assert (item.context, item.choices) == ("Why?x", ("c", "d"))
    gone = [{"Die Frage": "Why", "k": 0}, {**row, "question-text": " ", "k": 0}]
    assert items_of(path, gone, asked) == ["no field 'question-text'", "'question-text' is empty"]
    for key in ("context", "choices"):
        with pytest.raises(ConfigError, match=rf"{key} = .*two braces; a field is {{name}}"):
            open_task(write(path, [row], {**asked, key: "{{Die Frage}}"}), None)


def test_answers_that_no_completion_gives_are_rejected(tmp_path: Path) -> None:
    answers = [5.0, 5, "5.0", '["a", "b"]', "['a']", ["a", "b"], "[1, 2]"]
    rows: list[Any] = [{"q": str(n), "answer": answer} for n, answer in enumerate(answers)]
    rows.append('{"q": "twice", "answer": "a", "answer": "b"}')
    asked = {"kind": "generation", "context": "{q}"}
    found = items_of(tmp_path / "mine.jsonl", rows, asked)
    assert found[0] == "'answer' is a decimal number; write it as text, or set match: number"
    assert found[3] == found[4] == "'answer' is a text of a list, not a list"
    assert found[1:3] == found[5:7] == [(), ()]
    assert "two values for the key 'answer'" in found[7]
    (tmp_path / "t.csv").write_text("q,answer,q\na,b,c\n")
    (tmp_path / "t.json").write_text(json.dumps({**asked, "file": "t.csv"}))
    with pytest.raises(DataError, match=r"two columns are called 'q'.*t\.csv, line 1"):
        list(read_items(open_task(str(tmp_path / "t.json"), None)))


def test_rejected_rows_are_counted_and_control_tokens_stay_text(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    control = {**ROWS[0], "question": "</s><s> {label} \ud800<script>", "choices": ["</s>", "b"]}
    long = {**ROWS[0], "choices": ["wide", "Zq " * 161]}
    name = write(tmp_path / "mine.jsonl", ["nonsense", control, long])
    out = evaluate(inputs, tmp_path / "out", tasks=(name,))
    result = read_json(out / "mine.json")
    assert result["rejected"] == {"not a JSON object": 1, file_task.TOO_LONG: 1}
    assert result["num_items"] == 1
    lines = lines_of(out / "mine_items.jsonl")
    assert [line.get("rejected", "") for line in lines] == [
        "not a JSON object",
        "",
        file_task.TOO_LONG,
    ]
    assert lines[1]["tokens"][0] > 1
    name = write(tmp_path / "none.jsonl", ["nonsense", {"question": "a"}])
    with pytest.raises(DataError, match=r"no item that can be asked: 1 not a JSON object, 1 no fi"):
        evaluate(inputs, tmp_path / "none", tasks=(name,))


def test_a_task_that_the_blind_solve_carries_a_warning(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    rows = [
        {"question": f"Number {n}", "choices": ["no", "yes, because of it"], "label": 1}
        for n in range(12)
    ]
    rows += [{**row, "choices": ["a very long one", "yes"]} for row in rows[:2]]
    name = write(tmp_path / "mine.jsonl", rows)
    result = read_json(evaluate(inputs, tmp_path / "out", tasks=(name,)) / "mine.json")
    assert result["blind"]["longest"]["value"] == pytest.approx(12 / 14)
    assert result["blind"]["shortest"]["value"] == pytest.approx(2 / 14)
    assert result["blind"]["majority"]["value"] == 1.0
    assert result["blind"]["majority_text"]["value"] == pytest.approx((12 + 2 / 2) / 14)
    assert set(result["blind"]) == {
        "answers_only", "longest", "shortest", "unigram", "majority", "majority_text"
    }  # fmt: skip
    assert result["warning"].startswith("solved blind above chance: ")
    assert "majority 1.000" in result["warning"]
    assert result["strongest_blind"] == "majority"
    difference = result["sighted_minus_blind"]["value"]
    assert difference == pytest.approx(result["metrics"]["acc_norm"]["value"] - 1.0)
    assert result["solved_blind"] >= 12


def test_the_most_frequent_answer_is_a_baseline_of_completions(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    sums = [
        {"q": f"{n}?", "answer": answer} for n, answer in enumerate(["#### 7.0", "7", "8", "9"])
    ]
    rule = {"kind": "generation", "context": "{q}", "match": "number", "max_new_tokens": 2}
    words = [{"text": f"{n} It is a {last}"} for n, last in enumerate(["tree", "road", "road"])]
    names = (
        write(tmp_path / "sums.jsonl", sums, rule),
        write(tmp_path / "words.jsonl", words, {"kind": "cloze"}),
        write(tmp_path / "costs.jsonl", words, {"kind": "cloze", "metric": "log_prob"}),
    )
    out = evaluate(inputs, tmp_path / "out", tasks=names)
    for name, share in (("sums", 2 / 4), ("words", 2 / 3)):
        result = read_json(out / f"{name}.json")
        assert set(result["blind"]) == {"majority"}
        assert result["blind"]["majority"]["value"] == pytest.approx(share)
        accuracy = result["metrics"]["acc"]["value"]
        assert result["sighted_minus_blind"]["value"] == pytest.approx(accuracy - share)
        assert not result.get("warning")  # a completion has no chance to be above
    assert "blind" not in read_json(out / "costs.json")  # a log-likelihood is no accuracy
    assert [line["answer"] for line in lines_of(out / "sums_items.jsonl")] == ["7", "7", "8", "9"]


def test_the_most_frequent_answer_is_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "_COUNTED", 2)
    given = ["b", "x", "b", "y", "z", "b", "a", "b", "b", "q"]
    assert blind.most_frequent(lambda: iter(given)) == "b"
    assert blind.most_frequent(lambda: iter(["b", "a"])) == "a"
    assert blind.most_frequent(lambda: iter(())) == ""


def test_other_kinds_and_few_shot(inputs: dict[str, Path], tmp_path: Path) -> None:
    pairs = [
        {"good": "The river is wide.", "bad": "The river wide is.", "kind": str(n % 3)}
        for n in range(6)
    ]
    described = {"kind": "minimal_pairs", "groups": ["kind"], "cluster": "kind"}
    texts = [
        {"text": "The river is wide. " * 40, "language": "en"},
        {"text": "Über Nacht", "language": "de"},
    ]
    sums = [
        {"q": f"{n}+1=", "answer": str(n + 1), "split": "test" if n else "shots"} for n in range(3)
    ]
    asked = {
        "kind": "generation", "context": "{q}", "match": "number", "max_new_tokens": 4,
        "split": "test", "shots_split": "shots", "delimiter": "",
    }  # fmt: skip
    names = (
        write(tmp_path / "pairs.jsonl", pairs, described),
        write(tmp_path / "texts.jsonl", texts, {"kind": "perplexity"}),
        write(tmp_path / "words.jsonl", texts, {"kind": "cloze"}),
    )
    out = evaluate(inputs, tmp_path / "out", tasks=names)
    result = read_json(out / "pairs.json")
    assert (result["clusters"], result["metrics"]["acc"]["chance"]) == (3, 0.5)
    assert "majority" not in result["blind"]
    assert "answers_only" not in result["blind"]
    result = read_json(out / "texts.json")
    languages = {name: one["value"] for name, one in result["groups"]["language"].items()}
    assert set(languages) == {"en", "de"}
    worst, fairness = max(languages, key=lambda name: languages[name]), result["fairness"]
    assert (fairness["worst"], fairness["worst_value"]) == (worst, languages[worst])
    assert fairness["mean"] == pytest.approx(sum(languages.values()) / 2)
    weights = [line["weight"] for line in lines_of(out / "texts_items.jsonl")]
    values = [line["values"]["bits_per_byte"] for line in lines_of(out / "texts_items.jsonl")]
    whole = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert result["metrics"]["bits_per_byte"]["value"] == pytest.approx(whole)
    assert read_json(out / "words.json")["metrics"]["log_prob"]["value"] < 0
    name = write(tmp_path / "sums.jsonl", sums, asked)
    out = evaluate(inputs, tmp_path / "shots", tasks=(name,), shots=1)
    assert read_json(out / "sums_1shot.json")["num_items"] == 2
    with pytest.raises(ConfigError, match=r"shots = 2, and split 'shots' of sums has 1 items"):
        evaluate(inputs, tmp_path / "more", tasks=(name,), shots=2)
    with pytest.raises(ConfigError, match=r"the task pairs names no other split for examples"):
        evaluate(inputs, tmp_path / "more", tasks=names[:1], shots=2)
    out = evaluate(inputs, tmp_path / "chat", tasks=(name,), shots=1, chat=True)
    assert (
        read_json(out / "sums_1shot_chat.json")["identity"]
        != read_json(tmp_path / "shots/sums_1shot.json")["identity"]
    )


@pytest.mark.parametrize(
    ("rule", "output", "answer", "right"),
    [
        ({"match": "number"}, "so 3 and 4 make 1,234.0", "1234", True),
        ({"match": "number"}, "none", "1234", False),
        ({"match": "exact"}, " Bern\n", "Bern", True),
        ({"match": "exact"}, "bern", "Bern", False),
        ({"match": "exact", "ignore_case": True}, "bern", "Bern", True),
        ({"match": "regex", "pattern": r"#### (\S+)"}, "#### 2 then #### 7", "7", True),
        ({"match": "regex", "pattern": r"#### (\S+)"}, "7", "7", False),
    ],
)
def test_answers_are_checked_by_rule(
    rule: dict[str, Any], output: str, answer: str, right: bool
) -> None:
    described = TaskDescription(kind="generation", context="{q}", **rule)
    assert is_right(described, output, answer) is right


def test_a_match_without_end_counts_as_unanswered(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = iter(["a" * 60 + "b", "aaa"])
    monkeypatch.setattr(file_task, "GENERATED_BLOCK", 1)
    monkeypatch.setattr(file_task, "generate_until", lambda *_: [next(outputs)])
    header = {
        "kind": "generation",
        "context": "{q}",
        "answer": "a",
        "match": "regex",
        "pattern": "(a+)+$",
    }
    name = write(
        tmp_path / "hostile.jsonl", [{"q": "one", "a": "aaa"}, {"q": "two", "a": "aaa"}], header
    )
    out = evaluate(inputs, tmp_path / "out", tasks=(name,))
    result = read_json(out / "hostile.json")
    assert (result["num_items"], result["unanswered"]) == (2, 1)
    assert result["metrics"]["acc"]["value"] == 0.5
    assert result["warning"].startswith("1 of 2 items count as unanswered")
    lines = lines_of(out / "hostile_items.jsonl")
    assert [line.get("unanswered", False) for line in lines] == [True, False]


def test_descriptions_are_checked(inputs: dict[str, Path], tmp_path: Path) -> None:
    note = (resources.files("stamm.evaluate") / "data" / "LICENSE.md").read_text(encoding="utf-8")
    for name, items in SHIPPED.items():
        task = open_task(name, None)
        assert task.sha256 == task.description.sha256
        assert f"## {task.description.file}\n" in note
        assert task.sha256 in note
        found = list(read_items(task))
        assert len(found) == items
        assert all(isinstance(one, TaskItem) for one in found)
    with pytest.raises(DataError, match=r"gone\.jsonl is not a file.*Correct its path"):
        open_task(str(tmp_path / "gone.jsonl"), None)
    name = write(tmp_path / "blimp.jsonl", ROWS)
    with pytest.raises(ConfigError, match="is called 'blimp', as a built-in one"):
        evaluate(inputs, tmp_path / "out", tasks=(name,))
    name = write(tmp_path / "train.jsonl", ROWS, {**ASKED, "split": "test"})
    with pytest.raises(DataError, match="it has none of split 'test'"):
        evaluate(inputs, tmp_path / "out", tasks=(name,))
    for name in set(shipped_tasks()) - set(SHIPPED):
        with pytest.raises(ConfigError, match=r"are not shipped.*task_folder"):
            open_task(name, None)
    with pytest.raises(DataError, match=r"has no hellaswag_val\.jsonl\.zst"):
        open_task("hellaswag", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"first line of .* does not describe the task.*stamm_task"
    ):
        open_task(write(tmp_path / "bare.jsonl", ROWS, None), None)
    wrong = {**ASKED, "choises": "x"}
    with pytest.raises(ConfigError, match=r"choises"):
        open_task(write(tmp_path / "wrong.jsonl", ROWS, wrong), None)
    with pytest.raises(ConfigError, match=r"regular expression with one group"):
        TaskDescription(kind="generation", context="{q}", match="regex", pattern="(a")
    with pytest.raises(ConfigError, match=r"contains a lone surrogate"):
        open_task(write(tmp_path / "half.jsonl", ROWS, {**ASKED, "source": "\ud800"}), None)
    with pytest.raises(ConfigError, match=r"regular expression with one group"):
        TaskDescription(kind="generation", context="{q}", match="regex", pattern="(a{9999999999})")
    write(tmp_path / "rows.jsonl", ROWS, None)
    (tmp_path / "mine.json").write_text(json.dumps({**ASKED, "file": "rows.jsonl", "sha256": "0"}))
    with pytest.raises(DataError, match=r"has SHA-256 .* the description is for 0"):
        open_task(str(tmp_path / "mine.json"), None)
    (tmp_path / "mine.json").write_text(json.dumps({**ASKED, "file": "rows.jsonl"}))
    assert len(list(read_items(open_task(str(tmp_path / "mine.json"), None)))) == 4
    with pytest.raises(ConfigError, match=r"'helaswag' is not an evaluation task.*hellaswag"):
        EvaluateConfig(tasks=("helaswag",))


def test_items_in_the_training_text_are_counted(inputs: dict[str, Path], tmp_path: Path) -> None:
    seen = "The RIVER is wide, and the road is long. The river"
    unseen = "No page of this corpus speaks of seven snails on a green bicycle"
    texts = (unseen, seen, "The river is", unseen + " again")
    rows = [{"question": text, "choices": ["is wide", "a b"], "label": 0} for text in texts]
    name = write(tmp_path / "mine.jsonl", rows)
    result = read_json(evaluate(inputs, tmp_path / "run", tasks=(name,)) / "mine.json")
    assert (result["contaminated"], result["contaminated_lines"]) == (1, [3])
    assert result["contamination"] == (
        "1 of 4 items are in the training text; 1 are too short to search for"
    )
    alone = {key: inputs[key] for key in ("model", "tokenizer")}
    result = read_json(evaluate(alone, tmp_path / "alone", tasks=(name,)) / "mine.json")
    assert result["contaminated"] is None
    assert result["contamination"].startswith("unknown")


def test_instructions_are_checked_strictly_and_loosely(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {
            "prompt": "b",
            "instruction_id_list": ["en:keywords:existence", "startend:quotation"],
            "kwargs": [{"keywords": ["snow"]}, None],
        },
        {"prompt": "c", "instruction_id_list": ["no:such"], "kwargs": [{}]},
        {"prompt": "d", "instruction_id_list": ["keywords:existence"], "kwargs": [{}]},
        {"prompt": "e", "instruction_id_list": "x", "kwargs": 7},
    ]
    answers = {"a": "Sure, here:\nno comma here", "b": "no white page"}
    monkeypatch.setattr(
        file_task, "generate_until", lambda model, asked, *_: list(answers.values())[: len(asked)]
    )
    header = {"kind": "instructions", "context": "{prompt}", "until": [], "max_new_tokens": 1280}
    name = write(tmp_path / "mine.jsonl", rows, header)
    result = read_json(evaluate(inputs, tmp_path / "out", tasks=(name,)) / "mine.json")
    assert {key: metric["value"] for key, metric in result["metrics"].items()} == {
        "prompt_level_strict_acc": 0.0,
        "inst_level_strict_acc": 0.0,
        "prompt_level_loose_acc": 0.5,
        "inst_level_loose_acc": pytest.approx(1 / 3),
    }
    assert result["rejected"] == {"an instruction that is not known, or wrong arguments": 3}


def test_an_answer_may_be_one_of_the_labels_of_the_choices(tmp_path: Path) -> None:
    choices = {"text": ["one", "two", "three"], "label": ["1", "2", "3"]}
    rows: list[dict[str, Any]] = [
        {"question": "q", "choices": choices, "answerKey": key} for key in ("2", "4", {})
    ]
    rows.append({"question": "q", "choices": {**choices, "label": None}, "answerKey": "1"})
    header = {
        "kind": "multiple_choice", "context": "{question}", "choices": "choices.text",
        "answer": "answerKey", "labels": "choices.label",
    }  # fmt: skip
    name = write(tmp_path / "arc.jsonl", rows, header)
    found = list(read_items(open_task(name, None)))
    assert [one.label for one in found if isinstance(one, TaskItem)] == [1]
    reasons = {one.reason for one in found if isinstance(one, RejectedRow)}
    assert reasons == {"'answerKey' is not one of 'choices.label'"}


def test_questions_of_a_language_without_examples_are_refused(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    rows = [
        {"q": "1+1=", "answer": "2", "split": "shots", "language": "en"},
        {"q": "2+1=", "answer": "3", "split": "test", "language": "en"},
        {"q": "3+1=", "answer": "4", "split": "test", "language": "de"},
    ]
    asked = {
        "kind": "generation", "context": "{q}", "match": "number", "max_new_tokens": 4,
        "split": "test", "shots_split": "shots",
    }  # fmt: skip
    name = write(tmp_path / "sums.jsonl", rows, asked)
    with pytest.raises(ConfigError, match=r"shots = 1, and split 'shots' of sums has no .*'de'"):
        evaluate(inputs, tmp_path / "out", tasks=(name,), shots=1)
    assert not list((tmp_path / "out").iterdir())


def test_rows_are_read_in_the_declared_encoding(tmp_path: Path) -> None:
    header = {"kind": "cloze", "encoding": "latin-1"}
    file = tmp_path / "old.jsonl"
    for encoding, expected in (("latin-1", ["Über Nacht"]), ("utf-8", ["not utf-8 text"])):
        text = json.dumps({"text": "Über Nacht"}, ensure_ascii=False)
        first = json.dumps({"stamm_task": {**header, "encoding": encoding}})
        file.write_bytes(f"{first}\n{text}\n".encode("latin-1"))
        found = list(read_items(open_task(str(file), None)))
        given = [
            one.reason if isinstance(one, RejectedRow) else one.context + one.answer
            for one in found
        ]
        assert given == expected
    for encoding in ("utf-16", "no-such"):
        with pytest.raises(ConfigError, match="is not an encoding that ends lines"):
            TaskDescription(kind="cloze", encoding=encoding)


@pytest.mark.parametrize(
    ("text", "context", "answer"),
    [
        ("It was a tree", "It was a ", "tree"),
        ("It was a\ttree \n", "It was a\t", "tree"),
        ("他去了北京", "他去了北", "京"),
        ("他去了北京。", "他去了北", "京。"),
        ("彼は東京へ行った", "彼は東京へ行っ", "た"),
        ("나는 학교에 간다", "나는 학교에 ", "간다"),
    ],
)
def test_the_last_word_of_any_script_is_asked(
    text: str, context: str, answer: str, tmp_path: Path
) -> None:
    name = write(tmp_path / "words.jsonl", [{"text": text}], {"kind": "cloze"})
    (item,) = read_items(open_task(name, None))
    assert isinstance(item, TaskItem)
    assert (item.context, item.answer) == (context, answer)


def test_copies_of_an_item_count_once(inputs: dict[str, Path], tmp_path: Path) -> None:
    name = write(tmp_path / "mine.jsonl", [*ROWS, *[ROWS[0]] * 3, {**ROWS[0], "label": 1}])
    result = read_json(evaluate(inputs, tmp_path / "out", tasks=(name,)) / "mine.json")
    assert (result["num_items"], result["rejected"]) == (5, {COPY: 3})


def test_groups_by_the_field_of_the_clusters_have_errors_over_items(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    rows = [
        {"good": f"{n} river is wide.", "bad": f"{n} wide river the.", "kind": str(n % 2)}
        for n in range(8)
    ]
    described = {"kind": "minimal_pairs", "groups": ["kind"], "cluster": "kind"}
    name = write(tmp_path / "pairs.jsonl", rows, described)
    out = evaluate(inputs, tmp_path / "out", tasks=(name,))
    result = read_json(out / "pairs.json")
    assert result["clusters"] == 2
    for group, one in result["groups"]["kind"].items():
        lines = lines_of(out / "pairs_items.jsonl")
        values = [line["values"]["acc"] for line in lines if line["groups"]["kind"] == group]
        assert one["items"] == 4
        assert one["standard_error"] == pytest.approx(statistics.stdev(values) / 2)
        half = t_quantile(0.95, 3) * one["standard_error"]
        assert one["interval_95"] == pytest.approx([one["value"] - half, one["value"] + half])


def test_one_answer_that_is_right_for_most_items_is_warned_of(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_task, "generate_until", lambda model, asked, *_: ["yes"] * len(asked))
    rule = {"kind": "generation", "context": "{q}", "max_new_tokens": 2}
    rows = [{"q": f"{n}?", "answer": "no" if n % 10 == 0 else "yes"} for n in range(20)]
    name = write(tmp_path / "same.jsonl", rows, rule)
    result = read_json(evaluate(inputs, tmp_path / "out", tasks=(name,)) / "same.json")
    assert result["warning"] == "the same answer is right in 0.900 of the items"
    # The same text is right in most items, under changing numbers: no model is needed to see it.
    rows = [
        {"q": f"{n}?", "choices": ["fine", f"bad {n}"][:: (-1) ** n], "label": n % 2, "a": n}
        for n in range(34)
    ]
    rows += [{"q": f"{n}?", "choices": ["fine", f"good {n}"], "label": 1} for n in range(6)]
    name = write(tmp_path / "texts.jsonl", rows, {**ASKED, "context": "{q}"})
    result = read_json(evaluate(inputs, tmp_path / "out", tasks=(name,)) / "texts.json")
    assert result["blind"]["majority_text"]["value"] == pytest.approx(34 / 40)
    assert "majority_text 0.850" in result["warning"]


def test_cut_contexts_are_counted_and_warned_of(inputs: dict[str, Path], tmp_path: Path) -> None:
    rows = [{**row, "question": row["question"] + " river" * 300} for row in ROWS]
    name = write(tmp_path / "long.jsonl", [*rows, *ROWS])
    result = read_json(evaluate(inputs, tmp_path / "out", tasks=(name,)) / "long.json")
    assert result["truncated"] == 4
    assert "4 of 8 contexts were cut to fit into the model's" in result["warning"]


def test_a_blank_in_the_context_is_scored_by_what_follows_it(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    rows = [
        {"sentence": "The _ is wide.", "option1": "river", "option2": "tree", "answer": "1"},
        {"sentence": "The road _ long and", "option1": "was", "option2": "is", "answer": "2"},
        {"sentence": "The road is _", "option1": "was", "option2": "is", "answer": "2"},
    ]
    header = {
        "kind": "multiple_choice", "context": "{sentence}", "blank": "_",
        "choices": ["{option1}", "{option2}"], "answer": "answer", "labels": ["1", "2"],
    }  # fmt: skip
    out = evaluate(inputs, tmp_path / "out", tasks=(write(tmp_path / "blank.jsonl", rows, header),))
    first, second, third = lines_of(out / "blank_items.jsonl")
    assert third["rejected"] == "nothing follows '_'"
    model = with_tokenizer(load_decoder(inputs["model"]), inputs["tokenizer"])
    filled = [("The river", " is wide."), ("The tree", " is wide.")]
    filled += [("The road was", " long and"), ("The road is", " long and")]
    expected = [log_prob for log_prob, _ in loglikelihood(model, filled, 1000)]
    assert first["log_probs"] + second["log_probs"] == pytest.approx(expected, rel=1e-5)
    assert (first["label"], second["label"]) == (0, 1)
    result = read_json(out / "blank.json")
    assert set(result["metrics"]) == {"acc"}
    assert "answers_only" not in result["blind"]
    twice = [{**rows[0], "sentence": "The _ is _ wide."}]
    (row,) = read_items(open_task(write(tmp_path / "twice.jsonl", twice, header), None))
    assert isinstance(row, RejectedRow)


def test_probability_of_several_right_choices(inputs: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"question": "The river is", "choices": ["wide", "long", "a tree"], "label": [1, 1, 0]}]
    rows += [{**rows[0], "question": "Trees", "label": [0, 1, 0]}]
    name = write(tmp_path / "mc2.jsonl", rows, {**ASKED, "metric": "mc2"})
    out = evaluate(inputs, tmp_path / "out", tasks=(name,))
    for line, rights in zip(lines_of(out / "mc2_items.jsonl"), ((0, 1), (1,)), strict=True):
        shares = [math.exp(p) for p in line["log_probs"]]
        expected = sum(shares[n] for n in rights) / sum(shares)
        assert line["values"] == {"mc2": pytest.approx(expected)}
        assert line["chance"] == pytest.approx(len(rights) / 3)
    name = write(tmp_path / "several.jsonl", rows[:1])
    (row,) = read_items(open_task(name, None))
    assert isinstance(row, RejectedRow)


def test_a_generation_may_have_several_right_answers(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = ["NYC", "Rome"]
    monkeypatch.setattr(file_task, "generate_until", lambda *_: outputs)
    rule = {"kind": "generation", "context": "{q}", "answer": "a.aliases"}
    rows = [
        {"q": "one", "a": {"aliases": ["New York", "NYC"]}},
        {"q": "two", "a": {"aliases": ["Bern"]}},
        {"q": "three", "a": {"aliases": []}},
    ]
    name = write(tmp_path / "many.jsonl", rows, rule)
    out = evaluate(inputs, tmp_path / "out", tasks=(name,))
    assert [line.get("values") for line in lines_of(out / "many_items.jsonl")] == [
        {"acc": 1.0}, {"acc": 0.0}, None
    ]  # fmt: skip


def test_every_key_of_a_description_is_read(tmp_path: Path) -> None:
    """A description with all keys, and items whose other keys have no meaning or are refused."""
    given = {
        "kind": "multiple_choice", "name": "all", "context": "{question}", "choices": "choices",
        "answer": "label", "labels": ["a", "b"], "blank": "_", "text": "{text}", "delimiter": " ",
        "until": "\n", "max_new_tokens": 9, "metric": "acc", "match": "exact", "pattern": "(a)",
        "ignore_case": True, "split": "test", "shots_split": "train", "shots_answer": "{label}",
        "groups": "language", "cluster": "document", "source": "s", "license": "MIT",
        "encoding": "utf-8", "sha256": "", "file": "",
    }  # fmt: skip
    assert given.keys() == {one.name for one in dataclasses.fields(TaskDescription)}
    row = {
        "question": "A _ b", "choices": ["c", "d"], "label": "b", "split": "test", "document": "1",
        "language": "en", "id": "7", "any": [1],
    }  # fmt: skip
    (item,) = read_items(open_task(write(tmp_path / "all.jsonl", [row], given), None))
    assert isinstance(item, TaskItem)
    assert (item.rights, item.cluster, item.name, item.groups) == (
        (1,),
        "1",
        "7",
        {"language": "en"},
    )
    file = tmp_path / "beside.jsonl"
    file.write_text(json.dumps({"stamm_task": ASKED, "split": "test"}) + "\n")
    with pytest.raises(ConfigError, match="has 'split' beside 'stamm_task'"):
        open_task(str(file), None)
    rows = [{**ROWS[0], "split": "train"}, {**ROWS[1], "split": "test"}]
    with pytest.raises(
        DataError, match=r"splits 'train' and 'test', and the description names none"
    ):
        list(read_items(open_task(write(tmp_path / "both.jsonl", rows), None)))
    by_split = write(tmp_path / "by.jsonl", rows, {**ASKED, "groups": ["split"]})
    assert len(list(read_items(open_task(by_split, None)))) == 2
