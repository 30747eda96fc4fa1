"""Verifiable rewards on answers that are right, wrong, malformed or hostile."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stamm.align.rewards import rules
from stamm.align.rewards.config import (
    CustomReward,
    JsonFormat,
    Language,
    Length,
    NotMemorized,
    Number,
    RewardConfig,
    ScoreConfig,
    Stopped,
    Weighted,
    reward_sources,
)
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, BatchReward, rewards_of
from stamm.align.steps import sample_config, sample_steps
from stamm.base.config import override
from stamm.base.errors import ConfigError, DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    UserTurn,
)
from stamm.models.sampling_config import SamplingConfig


def answer(text: str, **row: Any) -> Answer:
    return Answer(Conversation(turns=(UserTurn("?"),)), AssistantTurn((Response(text),)), row)


def score(config: RewardConfig, text: str, **row: Any) -> float:
    return load_reward(config)(answer(text, **row))


def test_numbers_are_compared_exactly_or_within_a_tolerance() -> None:
    assert score(Number(), "#### 72", answer="72") == 1
    assert score(Number(), "72.0", answer=72) == 1
    assert score(Number(), "72.1", answer=72) == 0
    assert score(Number(tolerance=0.1), "72.1", answer=72) == 1
    assert score(Number(column="final"), "x", final="1,000") == 0
    assert score(Number(), "1000", answer="Sum: 3\n#### 1,000") == 1
    assert score(Number(), "It is \u22125 degrees.", answer="5") == 0
    assert score(Number(), r"\boxed{\frac{1}{2}} because 2 + 3", answer=0.5) == 1
    with pytest.raises(DataError, match="no column answer"):
        score(Number(), "1")
    with pytest.raises(DataError, match="is not a number"):
        score(Number(), "1", answer="many")
    with pytest.raises(DataError, match="is not a number"):
        score(Number(), "1", answer="NaN")
    for several in ([4, 5], ["4"], {"value": 4}, True):
        with pytest.raises(DataError, match="is not a number"):
            score(Number(), "4", answer=several)


def test_thoughts_and_tool_outputs_do_not_count() -> None:
    blocks = (
        Thoughts("72"),
        ToolCalls((ToolCall("f", "72"),)),
        ToolOutputs(("72",)),
        Response("I think 71"),
    )
    given = Answer(Conversation(turns=()), AssistantTurn(blocks), {"answer": 72})
    assert load_reward(Number())(given) == 0


def test_json_is_parsed_and_checked_against_a_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    config = JsonFormat(schema=str(file))
    assert score(config, '{"a": 1}') == 1
    assert score(config, '```json\n{"a": 1}\n```') == 1
    assert score(JsonFormat(schema=str(file), fence=False), '```json\n{"a": 1}\n```') == 0
    assert score(config, '{"a": "1"}') == 0
    assert score(config, 'Here: {"a": 1}') == 0
    assert score(JsonFormat(), "[1, 2]") == 1
    assert score(JsonFormat(), "NaN") == 0
    assert score(JsonFormat(), "[" * 100_000) == 0
    assert score(JsonFormat(), '{"a": 1}', schema=schema) == 1
    assert score(JsonFormat(), "{}", schema=schema) == 0


def test_a_schema_that_takes_too_long_leaves_the_row_without_a_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "VALIDATION_SECONDS", 0.1)
    twice: dict[str, Any] = {"a0": {"type": "integer"}}
    for step in range(1, 40):
        twice[f"a{step}"] = {"allOf": [{"$ref": f"#/$defs/a{step - 1}"}] * 2}
    for schema, text in (
        ({"pattern": "(a+)+$"}, json.dumps("a" * 60 + "b")),
        ({"patternProperties": {"(a+)+$": {}}}, json.dumps({"a" * 60 + "b": 1})),
        ({"$defs": twice, "$ref": "#/$defs/a39"}, "1"),
    ):
        with pytest.raises(DataError, match="schema cannot be applied: TimeoutError"):
            score(JsonFormat(), text, schema=schema)


def test_schemas_that_are_wrong_or_elsewhere_are_named(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "wizard"}')
    with pytest.raises(DataError, match="not a JSON schema"):
        score(JsonFormat(schema=str(file)), "{}")
    with pytest.raises(DataError, match="cannot be applied"):
        score(JsonFormat(), "{}", schema={"$ref": "http://localhost:1/schema.json"})


def test_length_is_a_window_of_characters() -> None:
    assert [score(Length(smallest=2, largest=3), "ä" * n) for n in (1, 2, 3, 4)] == [0, 1, 1, 0]
    with pytest.raises(ConfigError, match="smallest"):
        Length(smallest=4, largest=3)


def test_the_language_of_an_answer() -> None:
    german = "Der schnelle braune Fuchs springt über den faulen Hund, und das jeden Tag aufs Neue."
    assert score(Language(language="deu_Latn"), german) == 1
    assert score(Language(), german, language="fra_Latn") == 0
    with pytest.raises(DataError, match="no column language"):
        score(Language(), german)
    for label in ("de", "deu", "de-Latn", "de-DE", "de_AT", "de-Latn-DE", "DE", "de-150"):
        assert score(Language(language=label), german) == 1
    assert score(Language(language="deu_Cyrl"), german) == 0
    assert score(Language(language="deu_Latn"), "ja") == 0
    chinese, korean = (
        "今天天气很好,我们一起去公园散步吧。",
        "오늘은 날씨가 아주 좋아서 공원에 산책하러 갑니다.",
    )
    assert [score(Language(language=x), chinese) for x in ("zho_Hans", "zh", "kor")] == [1, 1, 0]
    tags = ("zh-Hans-CN", "zh-TW", "zh-cyrl")
    assert [score(Language(language=x), chinese) for x in tags] == [1, 1, 0]
    assert score(Language(language="kor_Hang"), korean) == 1
    for label in ("german", "xx", "de-german", "de_Latn_DE_x", "de-"):
        with pytest.raises(DataError, match="is not a code"):
            load_reward(Language(language=label))


def test_the_files_that_decide_a_reward(tmp_path: Path) -> None:
    for name in ("mine.py", "schema.json", "texts.jsonl"):
        (tmp_path / name).write_text("{}")
    own, schema = CustomReward(reference=f"{tmp_path}/mine.py:Own"), f"{tmp_path}/schema.json"
    parts = (
        own,
        JsonFormat(schema=schema),
        Number(),
        NotMemorized(corpus=(f"{tmp_path}/texts.jsonl",)),
    )
    assert reward_sources(Weighted(rewards=parts)) == {
        str(tmp_path / name): tmp_path / name for name in ("mine.py", "schema.json", "texts.jsonl")
    }
    installed = reward_sources(CustomReward(reference="stamm.align.rewards.rules:LengthReward"))
    assert [path.name for path in installed.values()] == ["rules.py"]
    assert reward_sources(JsonFormat()) == {}


def test_a_step_that_scores_reads_the_files_of_its_reward(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BATCH)
    reward = CustomReward(reference=f"{file}:Longest")
    config = sample_config(SamplingConfig(), f"{file}", n=2)
    model = {"start": "start", "tokenizer": "tokenizer"}
    _, score_step = sample_steps("start", config, ScoreConfig(reward=reward), model, external={})
    assert dict(score_step.external) == {str(file): file}


def test_an_answer_that_the_model_ended() -> None:
    assert [score(Stopped(), "", stopped=stopped) for stopped in (True, False)] == [1, 0]
    with pytest.raises(DataError, match="no column stopped"):
        score(Stopped(), "")


def test_weighted_rewards() -> None:
    config = Weighted(rewards=(Number(), Length(largest=3)), weights=(2.0, -0.5))
    found = [score(config, text, answer=4) for text in ("4", "5", "=> 4", "none")]
    assert found == [1.5, -0.5, 2.0, 0.0]
    mean = Weighted(rewards=(Number(), Length()), weights=(3.0, 1.0), combine="mean")
    assert score(mean, "4", answer=4) == 1
    assert score(mean, "5", answer=4) == 0.25
    assert score(Weighted(rewards=(Number(), Length())), "4", answer=4) == 2
    with pytest.raises(DataError, match="no column answer"):
        score(mean, "4")
    changes = ["reward=Weighted", "reward.rewards=Number,Length", "reward.rewards.1.largest=3"]
    parsed = override(ScoreConfig(), [*changes, "reward.weights=2,-0.5"])
    assert parsed.reward == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": ()}, "is empty"),
        ({"weights": (1.0,)}, "must be as many as rewards, 2"),
        ({"weights": (1.0, float("nan"))}, "must be finite"),
        ({"weights": (1.0, -1.0), "combine": "mean"}, "must have a positive sum"),
    ],
)
def test_weights_that_do_not_fit_are_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Weighted(**{"rewards": (Number(), Length()), **changes})


BATCH = """
from stamm.base.errors import DataError

class Longest:
    name = "longest"

    def __call__(self, answer):
        if not answer.text:
            raise DataError("the answer is empty")
        return len(answer.text)

class Together(Longest):
    name = "together"

    def many(self, answers):
        return [len(answer.text) if answer.text else DataError("empty") for answer in answers]

class Fewer(Together):
    def many(self, answers):
        return [1.0]
"""


def test_a_reward_is_any_real_number_but_no_truth_value() -> None:
    class Given:
        name = "given"

        def __call__(self, answer: Answer) -> Any:
            return answer.row["value"]

    values = (3, np.float32(0.5), np.int64(2), Fraction(1, 4))
    assert rewards_of(Given(), [answer("a", value=v) for v in values]) == [3.0, 0.5, 2.0, 0.25]
    for value in (True, np.bool_(1), np.float32("nan"), "1", None, np.ones(1)):
        (error,) = rewards_of(Given(), [answer("a", value=value)])
        assert "is not a finite number" in str(error), value


def test_a_users_reward_of_many_answers(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BATCH)
    answers = [answer("abc"), answer(""), answer("d")]
    for name, is_batch in (("Longest", False), ("Together", True)):
        reward = load_reward(CustomReward(reference=f"{file}:{name}"))
        assert isinstance(reward, BatchReward) == is_batch
        values = rewards_of(reward, answers)
        assert (values[0], values[2]) == (3.0, 1.0)
        assert isinstance(values[1], DataError)
        assert "empty" in values[1].what
        both = Weighted(rewards=(Length(), CustomReward(reference=f"{file}:{name}")))
        assert rewards_of(load_reward(both), answers)[::2] == [4.0, 2.0]
    with pytest.raises(ConfigError, match="returned 1 rewards for 3 answers"):
        rewards_of(load_reward(CustomReward(reference=f"{file}:Fewer")), answers)
    file.write_text(BATCH.replace('"longest"', '"number"'))
    with pytest.raises(ConfigError, match=r"name = 'number'.*not the name of a built-in reward"):
        load_reward(CustomReward(reference=f"{file}:Longest"))
