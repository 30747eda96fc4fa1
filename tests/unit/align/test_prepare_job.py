"""Prepared data: exact loss masks, every dropped row named, and a ledger of all rows."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from stamm.align.data import dataset_reader
from stamm.align.data.config import (
    APERTUS_REFUSED,
    DataSource,
    PrepareConfig,
    RowFields,
    evaluation_files,
)
from stamm.align.data.encoded import EncodedExamples
from stamm.align.data.prepare_job import run
from stamm.align.records import PreparedSummary
from stamm.base.config import override
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import read_record
from stamm.chat.conversation import read_conversation
from stamm.chat.render import encode_conversation
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.readers.rows import FieldUse
from stamm.corpus.tables import read_rows
from stamm.runs.job import Workspace
from stamm.tokenizer.imported import ImportedTokenizer
from tests.unit.align.prepared import bad_rows, chat, prepare, write_rows
from tests.unit.chat.conversations import TOKENIZER
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder

PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}


def summary(out: Path) -> PreparedSummary:
    return read_record(PreparedSummary, out / "summary.json")


def test_chats_are_encoded_in_order_with_the_mask_of_the_format(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4", id="a", source="s", licence="mit"), chat("Bern?", "Yes.")]
    two_turns = [*rows[0]["messages"], *rows[1]["messages"]]
    rows.append({"messages": two_turns})
    found = EncodedExamples.open(prepare(tmp_path, rows))
    assert found.kind == "chat"
    assert [answer.example for answer in found.answers] == [0, 1, 2]
    for row, answer in zip(rows, found.answers, strict=True):
        conversation = read_conversation(row["messages"])
        expected = encode_conversation(conversation, TOKENIZER)
        assert (answer.ids, answer.supervised) == (expected.ids, expected.supervised)
        assert answer.supervised[-1]  # the end token is learned
    first, _, last = found.answers
    assert (first.id, first.source, first.licence, first.role) == ("a", "s", "MIT", "chat")
    assert TOKENIZER.decode(first.ids[first.prompt_tokens :]) == "4<|assistant_end|>"
    assert TOKENIZER.decode(last.ids[last.prompt_tokens :]) == "Yes.<|assistant_end|>"
    both = [TOKENIZER.decode([i]) for i, s in zip(last.ids, last.supervised, strict=True) if s]
    assert "".join(both) == "4<|assistant_end|>Yes.<|assistant_end|>"


def test_a_pair_is_two_answers_and_only_its_last_turn_is_learned(tmp_path: Path) -> None:
    before = [*chat("Bern?", "Yes.")["messages"], {"role": "user", "content": "2+2?"}]
    rows = [
        {**PAIR, "prompt": before, "score_chosen": 2, "score_rejected": -1, "ref_rewards": [0, 1]},
        PAIR,
    ]
    found = EncodedExamples.open(prepare(tmp_path, rows))
    assert found.kind == "preference"
    assert [(a.example, a.role, a.reward) for a in found.answers] == [
        (0, "chosen", 2.0), (0, "rejected", -1.0), (1, "chosen", None), (1, "rejected", None),
    ]  # fmt: skip
    chosen, rejected = found.answers[:2]
    assert chosen.ref_rewards == rejected.ref_rewards == (0.0, 1.0)
    learned = [i for i, s in zip(chosen.ids, chosen.supervised, strict=True) if s]
    assert TOKENIZER.decode(learned) == "4<|assistant_end|>"
    assert learned == chosen.ids[chosen.prompt_tokens :]
    assert chosen.ids[: chosen.prompt_tokens] == rejected.ids[: rejected.prompt_tokens]
    stated = found.summary.splits["train"]
    assert (stated.examples, stated.answers, stated.answers_with_reward) == (2, 4, 2)


def test_rated_rows_keep_equal_samples_apart(tmp_path: Path) -> None:
    row = {"prompt": "2+2?", "completion": "4", "reward": 1, "ref_rewards": [0.5], "sample": 0}
    out = prepare(tmp_path, [row, {**row, "sample": 1}, row])
    found = EncodedExamples.open(out).answers
    assert [(a.role, a.reward, a.ref_rewards) for a in found] == [("rated", 1.0, (0.5,))] * 2
    assert bad_rows(out) == [(3, "exact_duplicate")]


def test_every_dropped_row_is_named_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        chat("2+2?", "4"),
        chat("2+2?", ""),
        chat("2+2?", " \n"),
        chat("2+2?", "word " * 300),
        chat("2+2?", "4", id="again"),
        {"text": "no columns"},
        {"prompt": "2+2?"},
        PAIR,
        chat("2+3?", "5"),
    ]
    write_rows(path, rows)
    path.write_text(path.read_text() + "not JSON\n")
    out = prepare(tmp_path / "run", [], data=(str(path),))
    assert bad_rows(out) == [
        (2, "empty_answer"),
        (3, "empty_answer"),
        (4, "too_long"),
        (5, "exact_duplicate"),
        (6, "bad_row"),
        (7, "bad_row"),
        (8, "bad_row"),
        (10, "bad_row"),
    ]
    first = json.loads((out / "bad_rows.jsonl").read_text().splitlines()[0])
    assert first["file"] == str(path)
    assert "turn is empty" in first["detail"]
    found = summary(out)
    assert (found.read, found.kept) == (10, 2)
    assert found.dropped == {
        "bad_row": 4, "empty_answer": 2, "exact_duplicate": 1, "too_long": 1,
    }  # fmt: skip


def test_the_longest_answer_has_exactly_the_context(tmp_path: Path) -> None:
    ids = encode_conversation(read_conversation(chat("2+2?", "4")["messages"]), TOKENIZER).ids
    out = prepare(tmp_path, [chat("2+2?", "4")], context=len(ids))
    assert summary(out).splits["train"].longest == len(ids)
    with pytest.raises(DataError, match=f"too_long, {len(ids)} tokens, context {len(ids) - 1}"):
        prepare(tmp_path, [chat("2+2?", "4")], context=len(ids) - 1)


def test_a_pair_with_one_long_answer_is_dropped_whole(tmp_path: Path) -> None:
    out = prepare(tmp_path, [PAIR, {**PAIR, "rejected": "five " * 300}])
    assert bad_rows(out) == [(2, "too_long")]
    assert len(EncodedExamples.open(out).answers) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "?"}, "no known combination of columns"),
        (chat("2+2?", ""), "turn is empty"),
        (chat("2+2?", "word " * 300), "tokens, context 256"),
        ({"prompt": "a", "completion": "b", "reward": math.nan}, "not a finite number"),
        ({**PAIR, "chosen_reward": 1}, "the other has none"),
        (chat("2+2?", "\ud800"), "surrogate"),
    ],
)
def test_a_defective_row_stops_the_run_when_asked(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message) as stopped:
        prepare(tmp_path, [chat("1+1?", "2"), row], bad_rows="stop")
    assert "row 2" in stopped.value.where
    assert bad_rows(prepare(tmp_path, [chat("1+1?", "2"), row]))[0][0] == 2


def test_nothing_left_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 read, dropped: licence_unknown 2; .*row 1: licence_un"):
        prepare(tmp_path, [chat("a", "b"), chat("c", "d")], refused_licences=("unknown",))
    assert bad_rows(tmp_path / "prepared") == [(1, "licence_unknown"), (2, "licence_unknown")]


def test_refused_licences_and_missing_sources(tmp_path: Path) -> None:
    licences = ["Apache-2.0", "CC-BY-SA-4.0", "cc-by-nc-4.0", "MIT OR CC-BY-SA-4.0", "my own", ""]
    rows = [chat(f"Q {name}", "x", licence=name, source=name) for name in licences]
    everything = summary(prepare(tmp_path / "all", rows))
    assert everything.kept == len(rows)
    assert everything.licences["CC-BY-NC-4.0"] == 1

    out = prepare(
        tmp_path / "some", rows, refused_licences=APERTUS_REFUSED, without_source="refuse"
    )
    assert bad_rows(out) == [
        (2, "licence_denied"),
        (3, "licence_denied"),
        (5, "licence_unknown"),
        (6, "licence_unknown"),
    ]
    found = summary(out)
    assert found.refused_licences == APERTUS_REFUSED
    assert found.licences == {"Apache-2.0": 1, "CC-BY-SA-4.0 OR MIT": 1}
    by_source = {each.source: (each.kept, each.dropped) for each in found.sources}
    assert by_source["CC-BY-SA-4.0"] == (0, 1)
    no_source = prepare(tmp_path / "source", rows, without_source="refuse")
    assert bad_rows(no_source) == [(6, "no_source")]
    with pytest.raises(ConfigError, match="share-alike"):
        prepare(tmp_path, rows, refused_licences=("sharealike",))


def test_rows_with_evaluation_texts_are_dropped_and_named(tmp_path: Path) -> None:
    question = "Each pack of dvds costs 76 dollars. How much do you have to pay for each pack?"
    items = [{"id": "svamp-1", "prompt": question}]
    sets = EvaluationSet(
        name="svamp", file=write_rows(tmp_path / "eval.jsonl", items), fields=("prompt",)
    )
    changed = question.replace("76", "75")
    rows = [chat("2+2?", "4"), chat(f"Solve: {changed}", "75"), chat("Say it.", changed)]
    out = prepare(tmp_path, rows, decontaminate=ContaminationConfig(sets=(sets,)))
    assert bad_rows(out) == [(2, "contaminated"), (3, "contaminated")]
    assert "svamp svamp-1" in (out / "bad_rows.jsonl").read_text()
    assert "dvds" not in (out / "bad_rows.jsonl").read_text()
    found = summary(out).decontamination
    assert found is not None
    assert (found.contaminated, found.sets["svamp"].items) == ({"svamp": 2}, 1)


def test_the_ledger_has_every_row_with_its_decision(tmp_path: Path) -> None:
    rows = [
        chat("2+2?", "4", id=17, source="s", license="mit", language="eng_Latn"),
        chat("2+2?", ""),
    ]
    out = prepare(tmp_path, rows)
    kept, dropped = read_rows(out / "alignment_ledger-00000.parquet")
    assert (kept["decision"], kept["path"], kept["licence"]) == ("kept", "17", "MIT")
    assert (kept["language"], kept["split"], kept["input_position"]) == ("eng_Latn", "train", 1)
    assert (kept["bytes_out"], len(kept["document_id"])) == (5, 32)
    assert (dropped["decision"], dropped["reason"]) == ("dropped", "empty_answer")
    assert kept["document_id"] != dropped["document_id"]


def test_questions_are_held_out_whole_and_by_the_seed(tmp_path: Path) -> None:
    rows = [chat(f"question {k // 2}", f"answer {k}") for k in range(80)]
    out = prepare(tmp_path, rows, held_out=0.3)
    splits = {
        name: {TOKENIZER.decode(a.ids[: a.prompt_tokens]) for a in EncodedExamples.open(out, name).answers}
        for name in ("train", "held_out")
    }  # fmt: skip
    assert not splits["train"] & splits["held_out"]
    assert 5 <= len(splits["held_out"]) <= 20
    assert len(splits["train"]) + len(splits["held_out"]) == 40
    again = (out / "held_out.parquet").read_bytes()
    assert (prepare(tmp_path, rows, held_out=0.3) / "held_out.parquet").read_bytes() == again
    assert (
        prepare(tmp_path, rows, held_out=0.3, seed=1) / "held_out.parquet"
    ).read_bytes() != again


def test_repeated_rows_are_kept_when_asked(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4")] * 3
    assert summary(prepare(tmp_path / "a", rows, duplicates="keep")).kept == 3
    assert summary(prepare(tmp_path / "b", rows)).kept == 1


def test_rows_of_an_earlier_step_are_read_where_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "selected").mkdir()
    path = tmp_path / "selected" / "examples.jsonl"
    write_rows(path, [chat("2+2?", "4")])
    out = prepare(tmp_path, [], data=(), rows=path)
    assert [each.name for each in summary(out).files] == ["selected/examples.jsonl"]
    sets = EvaluationSet(name="rows", file=str(path))
    config = PrepareConfig(decontaminate=ContaminationConfig(sets=(sets,)))
    assert evaluation_files(config) == {str(path): path}
    assert evaluation_files(PrepareConfig()) == {}


def test_data_that_is_not_there(tmp_path: Path) -> None:
    for data, kind, message in (
        ((), ConfigError, "data is empty"),
        (("missing.jsonl",), DataError, "does not exist"),
        (("package:chats.jsonl.zst",), DataError, "not shipped"),
    ):
        with pytest.raises(kind, match=message):
            prepare(tmp_path, [], data=data)


def test_evaluation_sets_are_named_on_the_command_line() -> None:
    first = "decontaminate.sets.0"
    words = [f"{first}.name=svamp", f"{first}.file=svamp.jsonl", f"{first}.fields=prompt"]
    found = override(PrepareConfig(), ["decontaminate=ContaminationConfig", *words])
    expected = EvaluationSet(name="svamp", file="svamp.jsonl", fields=("prompt",))
    assert found.decontaminate == ContaminationConfig(sets=(expected,))
    with pytest.raises(ConfigError, match="name at least one evaluation set"):
        override(PrepareConfig(), ["decontaminate=ContaminationConfig"])


def test_sampled_ids_of_an_earlier_step_are_kept_and_those_of_a_file_are_not(
    tmp_path: Path,
) -> None:
    cut = TOKENIZER.encode("4 and")
    row = {**PAIR, "chosen_token_ids": cut, "rejected_token_ids": [68]}
    text = EncodedExamples.open(prepare(tmp_path / "file", [row])).answers
    assert [TOKENIZER.decode(a.ids[a.prompt_tokens :]) for a in text] == [
        "4<|assistant_end|>",
        "5<|assistant_end|>",
    ]
    out, tokenizer = tmp_path / "own", tmp_path / "file" / "tokenizer"
    out.mkdir()
    inputs = {"tokenizer": tokenizer, "rows": tmp_path / "file" / "rows.jsonl"}
    run(PrepareConfig(context=256), Workspace(folder=out, inputs=inputs))
    own = EncodedExamples.open(out).answers
    assert [a.ids[a.prompt_tokens :] for a in own] == [cut, [68]]
    assert [a.ids[: a.prompt_tokens] for a in own] == [a.ids[: a.prompt_tokens] for a in text]
    assert [a.supervised.count(True) for a in own] == [len(cut), 1]


def test_a_row_without_the_columns_of_the_loss_is_a_bad_row(tmp_path: Path) -> None:
    rated = {**PAIR, "chosen_reward": 1.0, "rejected_reward": 0.0}
    rows = [PAIR, {**rated, "prompt": "x"}, {**rated, "prompt": "y", "ref_rewards": [0.5]}]
    for needs, bad in (("nothing", []), ("rewards", [1]), ("ref_rewards", [1, 2])):
        out = prepare(tmp_path / needs, rows, needs=needs)
        assert bad_rows(out) == [(row, "bad_row") for row in bad]


def test_a_turn_that_the_model_ended_at_once_is_trained_on_by_its_end_token(tmp_path: Path) -> None:
    stop = TOKENIZER.control_id("<|assistant_end|>")
    empty = [{"role": "assistant", "content": ""}]
    prepare(tmp_path, [PAIR])
    row = {**PAIR, "prompt": "x", "rejected": empty}
    ids = {"chosen_token_ids": [68, stop], "rejected_token_ids": [stop]}
    write_rows(tmp_path / "rows.jsonl", [{**row, **ids}, {**row, "prompt": "y"}])
    inputs = {"tokenizer": tmp_path / "tokenizer", "rows": tmp_path / "rows.jsonl"}
    run(PrepareConfig(context=256), Workspace(folder=tmp_path / "prepared", inputs=inputs))
    found = EncodedExamples.open(tmp_path / "prepared").answers
    assert [a.ids[a.prompt_tokens :] for a in found] == [[68, stop], [stop]]
    assert bad_rows(tmp_path / "prepared") == [(2, "empty_answer")]


@pytest.mark.parametrize("ids", ["12", [1.5], [-1], [True]])
def test_sampled_ids_that_are_no_ids_are_bad_rows(tmp_path: Path, ids: object) -> None:
    prepare(tmp_path, [PAIR])
    write_rows(tmp_path / "rows.jsonl", [PAIR, {**PAIR, "prompt": "x", "chosen_token_ids": ids}])
    inputs = {"tokenizer": tmp_path / "tokenizer", "rows": tmp_path / "rows.jsonl"}
    run(PrepareConfig(context=256), Workspace(folder=tmp_path / "prepared", inputs=inputs))
    assert bad_rows(tmp_path / "prepared") == [(2, "bad_row")]


def test_more_bad_rows_than_a_fifth_stop_the_step_unless_asked(tmp_path: Path) -> None:
    good = [chat(f"{k}?", "4") for k in range(8)]
    bad = [{"messages": [{"role": "wizard", "content": str(k)}]} for k in range(3)]
    assert summary(prepare(tmp_path / "a", [*good, *bad[:2]], max_bad_rows=0.2)).kept == 8
    message = r"3 of 11 rows \(27%\) cannot be used, .*: message 1: unknown role 'wizard' \(3\)"
    with pytest.raises(DataError, match=message) as stopped:
        prepare(tmp_path / "b", [*good, *bad], max_bad_rows=PrepareConfig().max_bad_rows)
    assert "bad_rows.jsonl" in stopped.value.fix
    assert len(bad_rows(tmp_path / "b" / "prepared")) == 3
    assert not (tmp_path / "b" / "prepared" / "summary.json").exists()
    # A row that the configuration drops is not a bad one.
    refused = {"refused_licences": ("unknown",), "max_bad_rows": 0.0}
    licensed = [{**row, "licence": "MIT"} for row in good[:2]]
    assert summary(prepare(tmp_path / "c", [*licensed, *good], **refused)).kept == 2
    with pytest.raises(ConfigError, match=r"max_bad_rows = 1\.5 must"):
        PrepareConfig(max_bad_rows=1.5)


def test_causes_and_unknown_keys_are_told_and_recorded(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4", score=1), chat("3+3?", "6", score=2), chat("4+4?", ""), {"text": "x"}]
    rows[1]["messages"][0]["mood"] = "glad"
    told: list[str] = []

    class Told(NoProgress):
        def log(self, text: str) -> None:
            told.append(text)

    out = prepare(tmp_path, rows, progress=Told())
    found = summary(out)
    assert found.unknown_keys == {"score": 2, "messages: mood": 1}
    assert (
        "Unknown keys in rows of alignment data, not used: score (2), messages: mood (1)." in told
    )
    assert sorted(found.causes.values()) == [1, 1]
    assert any(cause.startswith("no known combination of columns: text") for cause in found.causes)
    (line,) = [line for line in told if line.startswith("Rows that cannot be used")]
    assert "an assistant's turn is empty" in line


def test_columns_have_the_names_that_are_configured(tmp_path: Path) -> None:
    rows = [{"question": "2+2?", "answer": "4", "prompt": 7, "from": "here"}]
    names = RowFields(prompt="question", completion="answer", source="from")
    (found,) = EncodedExamples.open(prepare(tmp_path / "a", rows, fields=names)).answers
    assert TOKENIZER.decode(found.ids[found.prompt_tokens :]) == "4<|assistant_end|>"
    assert found.source == "here"
    with pytest.raises(DataError, match="no row has the field 'Question', or it is null") as wrong:
        prepare(tmp_path / "b", rows, fields=RowFields(prompt="Question"))
    assert wrong.value.where == "prepare.fields.prompt"
    assert (
        wrong.value.fix
        == f"`stamm fields {tmp_path / 'b' / 'rows.jsonl'}` shows what the rows have"
    )
    with pytest.raises(ConfigError, match="names two fields"):
        RowFields(prompt="question", completion="question")


def test_a_configured_field_may_lie_inside_another_and_is_read_under_no_other_name(
    tmp_path: Path,
) -> None:
    rows = [{"data": {"ask": {"en": "2+2?"}}, "answer": "4", "response": "5", "instruction": "no"}]
    names = RowFields(prompt="data.ask.en", completion="answer")
    (found,) = EncodedExamples.open(prepare(tmp_path, rows, fields=names)).answers
    assert TOKENIZER.decode(found.ids[found.prompt_tokens :]) == "4<|assistant_end|>"
    assert "2+2?" in TOKENIZER.decode(found.ids)


def test_columns_that_a_configured_field_replaces_are_told(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Add.", "input": f"{k}+1" if k else "", "output": f"{k}", "meta": {"a": k}}
        for k in range(5)
    ]
    out = prepare(tmp_path / "a", rows, fields=RowFields(prompt="instruction", id="meta.a"))
    assert summary(out).unknown_keys == {"input": 4}
    rows = [{"q.en": "2+2?", "q": "[metadata]", "completion": "4"}]
    assert summary(prepare(tmp_path / "b", rows, fields=RowFields(prompt="q.en"))).unknown_keys == {
        "q": 1
    }
    data = {"ask": {"en": "2+2?", "image": "a.png"}, "cost": 3, "note": None}
    for k, row in enumerate(({"data": data}, {"data": json.dumps(data)})):
        fields = RowFields(prompt="data.ask.en")
        out = prepare(tmp_path / f"c{k}", [{**row, "completion": "4"}], fields=fields)
        assert (summary(out).kept, summary(out).unknown_keys) == (
            1,
            {"data.ask.image": 1, "data.cost": 1},
        )


@pytest.mark.parametrize("whole", [True, False])
def test_one_answer_of_pairs_is_learned(whole: bool, tmp_path: Path) -> None:
    """SFT on the chosen answers of preference data; the rest of the pair is told, not read."""
    asked, right, wrong = (
        {"role": role, "content": text}
        for role, text in (("user", "2+2?"), ("assistant", "4"), ("assistant", "5"))
    )
    row: dict[str, Any] = {"prompt": "2+2?", "score_chosen": 9.0, "score_rejected": 1.0}
    if whole:
        row |= {"chosen": [asked, right], "rejected": [asked, wrong]}
        fields = RowFields(messages="chosen")
    else:
        row |= {"chosen": "4", "rejected": "5"}
        fields = RowFields(completion="chosen")
    out = prepare(tmp_path, [row], fields=fields)
    (found,) = EncodedExamples.open(out).answers
    assert TOKENIZER.decode(found.ids[found.prompt_tokens :]) == "4<|assistant_end|>"
    assert summary(out).unknown_keys == {"rejected": 1, "score_chosen": 1, "score_rejected": 1}


def test_rows_without_columns_are_not_reported_as_a_wrong_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{oops\n" * 3)
    with pytest.raises(DataError, match="3 read, dropped: bad_row 3"):
        prepare(tmp_path, [], data=(str(path),), fields=RowFields(prompt="q"))


def mixture(folder: Path, sizes: dict[str, int], **settings: Any) -> Path:
    """Prepared data of sources with rows "a 0", "a 1", … and settings by name."""
    sources = []
    for name, size in sizes.items():
        rows = [{"q": f"{name} {k}?", "response": f"{name} {k}"} for k in range(size)]
        data = (write_rows(folder / f"{name}.jsonl", rows),)
        fields = RowFields(prompt="q")
        sources.append(DataSource(data=data, fields=fields, **settings.pop(name, {})))
    return prepare(folder, [], data=(), mixture=tuple(sources), **settings)


def test_a_mixture_has_the_shares_of_its_weights_evenly_spread(tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 40, "c": 30}
    out = mixture(tmp_path, sizes, b={"weight": 2.0}, c={"weight": 0.5})
    found = summary(out)
    assert [(one.examples, one.kept, one.read) for one in found.mixture] == [
        (10, 10, 10), (20, 20, 40), (5, 5, 30),
    ]  # fmt: skip
    assert found.dropped == {"not_in_mixture": 45}
    examples = EncodedExamples.open(out).answers
    assert [one.example for one in examples] == list(range(35))
    texts = [TOKENIZER.decode(one.ids[one.prompt_tokens :]) for one in examples]
    assert [text.partition("<")[0] for text in texts[10:]] == [
        *(f"b {k}" for k in range(1, 40, 2)), *(f"c {k}" for k in range(5, 30, 6)),
    ]  # fmt: skip


def test_a_scarce_source_is_repeated_up_to_its_most_epochs(tmp_path: Path) -> None:
    out = mixture(tmp_path, {"a": 10, "b": 20}, a={"most_epochs": 2.5, "weight": 2.0})
    found = summary(out)
    assert [(one.examples, one.kept, one.epochs) for one in found.mixture] == [
        (25, 10, 2.5), (12, 12, 0.625),
    ]  # fmt: skip
    numbers = [one.example for one in EncodedExamples.open(out).answers]
    assert numbers == list(range(37))
    assert found.splits["train"].examples == 37


def test_bad_rows_are_counted_by_source_and_impossible_weights_are_named(tmp_path: Path) -> None:
    bad = write_rows(tmp_path / "bad.jsonl", [{"text": "?"}] * 3)
    good = write_rows(tmp_path / "good.jsonl", [chat(f"{k}?", f"{k}") for k in range(40)])
    sources = (DataSource(data=(good,), weight=9.0), DataSource(data=(bad,), weight=1.0))
    with pytest.raises(
        DataError, match=r"3 of 3 rows of .*bad\.jsonl \(100%\) cannot be used"
    ) as told:
        prepare(tmp_path, [], data=(), mixture=sources, max_bad_rows=0.2)
    assert "prepare.fields.prompt=NAME" in told.value.fix
    tiny = (DataSource(data=(good,), weight=1e-4), DataSource(data=(bad,)))
    with pytest.raises(DataError, match="is less than one row of the mixture") as told:
        prepare(tmp_path, [], data=(), mixture=tiny)
    assert told.value.where == "mixture.0.weight"
    with pytest.raises(DataError, match=r"good\.jsonl is in two sources"):
        prepare(tmp_path, [], data=(), mixture=(sources[0], sources[0]))
    again = DataSource(data=(str(tmp_path / "a" / ".." / "good.jsonl"),))
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="is in two sources"):
        prepare(tmp_path, [], data=(), mixture=(sources[0], again))
    with pytest.raises(ConfigError, match=r"data = .*good.jsonl.* is given, and mixture too"):
        PrepareConfig(data=(good,), mixture=sources)
    with pytest.raises(ConfigError, match=r"mixture\.0\.fields"):
        PrepareConfig(mixture=sources, fields=RowFields(prompt="q"))


def test_a_turn_without_weight_is_context_and_rows_that_differ_in_it_are_not_equal(
    tmp_path: Path,
) -> None:
    draft = {"role": "assistant", "content": "5"}
    first, second = chat("2+2?", "4")["messages"], chat("Sure?", "Yes.")["messages"]
    rows = [{"messages": [first[0], {**draft, "weight": weight}, *second]} for weight in (0, 1, 0)]
    rows.append({"messages": [*first, second[0], {**draft, "train": False}]})
    out = prepare(tmp_path, rows)
    answers = EncodedExamples.open(out).answers
    learned = [
        TOKENIZER.decode([i for i, keep in zip(a.ids, a.supervised, strict=True) if keep])
        for a in answers
    ]
    end = "<|assistant_end|>"
    assert learned == [f"Yes.{end}", f"5{end}Yes.{end}", f"4{end}"]
    assert answers[0].ids == answers[1].ids
    assert TOKENIZER.decode(answers[2].ids).endswith(f"4{end}")  # what follows is left out
    assert bad_rows(out) == [(3, "exact_duplicate")]
    none = {"messages": [first[0], {**draft, "weight": 0}]}
    assert bad_rows(prepare(tmp_path / "none", [*rows, none]))[-1] == (5, "no_loss_tokens")


def test_a_format_without_earlier_thoughts_gives_a_sequence_for_each_turn(tmp_path: Path) -> None:
    folder = imported_folder(tmp_path / "tokenizer", TEMPLATES["thinking"])
    rows = []
    for number in range(3):
        turns = [chat(f"{number}?", "4")["messages"], chat("Sure?", "Yes.")["messages"]]
        turns[0][1]["reasoning_content"] = "Two and two."
        rows.append({"messages": [*turns[0], *turns[1]]})
    (tmp_path / "out").mkdir()
    config = PrepareConfig(data=(write_rows(tmp_path / "rows.jsonl", rows),), context=256)
    run(config, Workspace(folder=tmp_path / "out", inputs={"tokenizer": folder}))
    found = EncodedExamples.open(tmp_path / "out")
    assert (found.summary.kept, len(found.answers)) == (3, 6)
    assert [answer.example for answer in found.answers] == [0, 0, 1, 1, 2, 2]
    tokenizer = ImportedTokenizer.load(folder, TEMPLATES["thinking"])
    shown = [tokenizer.decode(a.ids[a.prompt_tokens :]) for a in found.answers[:2]]
    thoughts = "<think>\nTwo and two.\n</think>\n\n4<|im_end|>\n"
    assert shown == [thoughts, "<think>\n\n</think>\n\nYes.<|im_end|>\n"]
    assert all(not any(a.supervised[: a.prompt_tokens]) for a in found.answers)


def test_labels_beside_messages_are_read_where_the_loss_needs_them(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4", label=1), chat("2+2?", "5", label=0)]
    labelled = EncodedExamples.open(prepare(tmp_path / "kto", rows, needs="labels"))
    assert [(a.role, a.reward) for a in labelled.answers] == [("rated", 1.0), ("rated", 0.0)]
    assert EncodedExamples.open(prepare(tmp_path / "sft", rows)).kind == "chat"


class Said(NoProgress):
    """Keeps the lines of the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


def test_pairs_whose_rewards_contradict_their_order_are_counted(tmp_path: Path) -> None:
    rows = [
        {**PAIR, "prompt": f"{number}?", "chosen_reward": chosen, "rejected_reward": 1.0}
        for number, chosen in enumerate([2.0, 0.5, 1.0, 1.0])
    ]
    said = Said()
    prepare(tmp_path, [*rows, PAIR], progress=said)
    assert [line for line in said.lines if "reward" in line] == [
        "The chosen answer has a lower reward than the rejected one in 1 pairs, and an equal one in 2: "
        "the columns chosen and rejected decide."
    ]


def test_no_question_is_in_both_splits_and_their_sizes_are_reported(tmp_path: Path) -> None:
    rows = [
        chat(f"{blank}Question {number}?{blank}", f"Answer {take}")
        for number in range(40)
        for take, blank in enumerate(("", " ", "\n"))
    ]
    said = Said()
    out = prepare(tmp_path, rows, held_out=0.3, progress=said)
    splits = [EncodedExamples.open(out, split).answers for split in ("train", "held_out")]
    train, held_out = (
        {
            TOKENIZER.decode(answer.ids[: answer.prompt_tokens]).split("Question")[1].split("?")[0]
            for answer in split
        }
        for split in splits
    )
    assert train
    assert held_out
    assert not train & held_out
    assert f"Held out: {len(splits[1])} of 120 rows, by their first questions." in said.lines


def test_one_question_for_all_rows_cannot_be_split(tmp_path: Path) -> None:
    rows = [chat("Translate this.", f"Answer {number}") for number in range(8)]
    said = Said()
    prepare(tmp_path / "none", rows, held_out=0.1, progress=said)
    assert any(line.startswith("Held out: 0 of 8 rows") and "raise" in line for line in said.lines)
    with pytest.raises(DataError, match="all 8 rows are held out, since held_out chooses first"):
        prepare(tmp_path / "all", rows, held_out=0.999)


def test_a_configured_field_of_a_source_that_its_rows_lack_is_named_with_its_source(
    tmp_path: Path,
) -> None:
    """The other source has rows with that field."""
    sources = []
    for number, name in enumerate(("question", "prompt")):
        rows = [{name: f"{k}?", "response": "4"} for k in range(3)]
        data = (write_rows(tmp_path / f"{number}.jsonl", rows),)
        sources.append(DataSource(data=data, fields=RowFields(prompt="question")))
    with pytest.raises(DataError, match="no row has the field 'question', or it is null") as wrong:
        prepare(tmp_path, [], data=(), mixture=tuple(sources), max_bad_rows=1.0)
    assert wrong.value.where == "mixture.1.fields.prompt"
    use = FieldUse(RowFields.names())
    read = list(
        dataset_reader.read_rows(
            tmp_path / "1.jsonl", fields=RowFields(completion="response"), use=use
        )
    )
    assert use.rows == len(read) == 3 and use.read["completion"] == {"response": 3}
    assert use.missing(RowFields(completion="response", prompt="nowhere")) == {"prompt": "nowhere"}


def test_files_that_end_in_the_middle_are_named_and_counted(tmp_path: Path) -> None:
    """Each has one bad row, which max_bad_rows counts as others."""
    told: list[str] = []

    class Told(NoProgress):
        def log(self, text: str) -> None:
            told.append(text)

    rows = [{"prompt": f"{k}?", "completion": "4"} for k in range(9)]
    whole = Path(write_rows(tmp_path / "a.jsonl", rows))
    cut, packed = tmp_path / "b.jsonl", tmp_path / "c.jsonl.gz"
    cut.write_bytes(whole.read_bytes()[:-9])
    packed.write_bytes(gzip.compress(whole.read_bytes())[:-1])
    data = tuple(str(path) for path in (whole, cut, packed))
    settings: dict[str, Any] = {"data": data, "duplicates": "keep"}
    found = summary(prepare(tmp_path, [], progress=Told(), **settings))
    assert found.dropped == {"truncated_file": 2} and found.kept == 9 + 8 + 9
    assert [one.truncated_at for one in found.files] == [None, 9, 10]
    (line,) = [line for line in told if "end in the middle" in line]
    names = [one.name for one in found.files[1:]]
    assert line == (
        f"2 files end in the middle, and rows are lost: {names[0]} from row 9 on, {names[1]} "
        "from row 10 on."
    )
    with pytest.raises(DataError, match=r"2 of 28 rows \(7%\) cannot be used.* in the middle"):
        prepare(tmp_path / "b", [], max_bad_rows=0.05, **settings)
    with pytest.raises(DataError, match="truncated_file: the file ends in the middle"):
        prepare(tmp_path / "c", [], bad_rows="stop", **settings)
