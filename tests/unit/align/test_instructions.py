"""Checkable instructions: for each id a text that follows it and texts that do not."""

from __future__ import annotations

from typing import Any

import pytest

from stamm.align.rewards.config import Instructions
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer
from stamm.align.rewards.rules import InstructionReward
from stamm.base.errors import DataError
from stamm.base.time_limit import time_limit
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn
from stamm.evaluate.instruction_arguments import InstructionArguments
from stamm.evaluate.instruction_checks import CHECKS, sentences_of, words_of
from stamm.evaluate.instructions import loosened

ENGLISH = "this is a whole sentence about the weather in the mountains, written in plain english"
SPANISH = "esta es una frase entera sobre el tiempo que hace en las montañas de nuestro país"
FRENCH = "ceci est une phrase entière sur le temps qu'il fait dans les montagnes de notre pays"
Case = tuple[str, dict[str, Any], list[str], list[str]]

# id, arguments, texts that follow, texts that do not
CASES: list[Case] = [
    ("change_case:capital_letters", {}, ["STOP NOW, 3 TIMES"], ["STOP now", "123"]),
    ("change_case:lowercase_letters", {}, ["stop now"], ["Stop now", "123"]),
    ("en:change_case:english_capital", {}, [ENGLISH.upper(), "NO"], [ENGLISH, FRENCH.upper()]),
    ("en:change_case:english_lowercase", {}, [ENGLISH, "no"], [ENGLISH.title(), SPANISH]),
    ("es:change_case:spanish_capital", {}, [SPANISH.upper()], [SPANISH, ENGLISH.upper()]),
    ("es:change_case:spanish_lowercase", {}, [SPANISH], [SPANISH.upper(), ENGLISH]),
    ("fr:change_case:french_capital", {}, [FRENCH.upper()], [FRENCH, ENGLISH.upper()]),
    ("fr:change_case:french_lowercase", {}, [FRENCH], [FRENCH.upper(), ENGLISH]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["GO to BERN", "A, B"],
        ["GO to Bern", "go"],
    ),
    (
        "fr:change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "moins de"},
        ["GO to Bern", "ça va"],
        ["GO to BERN"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem."},
        ["Write a poem. Roses ...", " write a poem.\nRoses"],
        ["Sure! Write a poem."],
    ),
    ("combination:two_responses", {}, ["one******two", "one\n******\ntwo\n******\n"],
     ["one******one", "one", "a******b******c", "one*****two"]),
    ("fr:detectable_content:informal_address", {}, ["Tu es là, je t'aime."],
     ["Vous êtes là.", "Tu es avec vous.", "Il est là."]),
    ("fr:detectable_content:no_digits", {}, ["dix ans"], ["10 ans"]),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] lives in [city]", "[a] [b] [c]"],
        ["[name]", "[] []"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Text.\nP.P.S. More.", "**p.p.s** more"],
        ["Text with P.P.S. inside", "P.S. More"],
    ),
    ("en:detectable_format:constrained_response", {}, ["My answer is yes."],
     ["Yes.", "My answer is yes. My answer is no."]),
    ("ja:detectable_format:constrained_response", {}, ["はい、そうです。"], ["はい。"]),
    (
        "detectable_format:constrained_response_with_argument",
        {"options": ["Mit svar er ja.", "Mit svar er nej."]},
        ["Mit svar er nej."],
        ["Nej.", "Mit svar er ja. Mit svar er nej."],
    ),
    ("detectable_format:json_format", {}, ['{"a": 1}', '```json\n{"a": 1}\n```'],
     ["{a: 1}", 'Here: {"a": 1}', "NaN", '{"a": -Infinity}', "[" * 100_000]),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb", "SECTION 1 SECTION 2 SECTION 3"],
        ["SECTION 1\na", "Section 1 Section 2"],
    ),
    (
        "ja:detectable_format:multiple_sections",
        {"section_spliter": "章", "num_sections": 2},
        ["第1章\n春\n第2章\n夏", "第一章 第二章"],
        ["第1章\n春", "章1 章2"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* one\n* two", "Two:\n - a\n - b\nEnd"],
        ["* one", "* a\n* b\n* c", "*one*\n*two*", "***\n***"],
    ),
    ("ja:detectable_format:number_bullet_lists", {"num_bullets": 2}, ["・春\n・夏"], ["・春"]),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*one* and *two*", "**one** and *two*", "*a b* c *d e* f *g*"],
        ["*one*", "* one\n* two\n* three", "** **"],
    ),
    (
        "ja:detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["《春》と《夏》"],
        ["《春》と夏"],
    ),
    (
        "ja:detectable_format:number_numbered_lists",
        {"num_items": 2},
        ["1. 春\n2. 夏", "1) a\n2) b"],
        ["1. 春", "3.5 and\n4.5"],
    ),
    ("detectable_format:title", {}, ["<<Bern>>\ntext"], ["<Bern>", "<< >>"]),
    ("fr:detectable_format:title", {}, ["##Berne##\ntexte"], ["<<Berne>>", "## Berne"]),
    ("ja:detectable_format:title", {}, ["『昭和』です"], ["「昭和」です"]),
    ("keywords:existence", {"keywords": ["Mom", "ice cream"]}, ["Ice cream for mom"], ["ice, mom"]),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["can", "lave mad"]},
        ["cane, scan", "lave  mad"],
        ["I Can.", "at lave mad nu"],
    ),
    ("ja:keywords:forbidden_words", {"forbidden_words": ["肌"]}, ["美しい"], ["美肌効果"]),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": "at least"},
        ["War and war"],
        ["war", "peace"],
    ),
    (
        "es:keywords:frequency",
        {"keyword": "éxito", "frequency": 1, "relation": "como máximo"},
        ["el éxito", "nada"],
        ["éxito, ÉXITO"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": "less than"},
        ["Queen", ""],
        ["Quite quick"],
    ),
    ("ja:keywords:letter_frequency",
     {"letter": "か", "let_frequency": 2, "let_relation": "以上"}, ["かかる"], ["かる"]),
    ("language:response_language", {"language": "fr"}, [FRENCH], [ENGLISH, "non"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Weekend"},
        ["One.\n\nweekend plans", "One.\n\n**Weekend**, at last"],
        ["Weekend\n\nplans", "One.\n\nWeekends", "One.\n\nTwo.\n\nWeekend", "Weekend"],
    ),
    (
        "ja:length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "首"},
        ["春\n\n首都は"],
        ["首\n\n春"],
    ),
    (
        "ja:length_constraints:number_letters",
        {"num_letters": 4, "relation": "未満"},
        ["春 夏\n秋"],
        ["春夏秋冬"],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["One\n***\nTwo", "One *** Two", "***\nOne\n***\nTwo\n***"],
        ["One\n\nTwo", "One\n***\n***\nTwo", "a***b***c"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ['"One." Two!', "One\n\nTwo"],
        ["One, 3.5 or so", "One..."],
    ),
    (
        "ja:length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "未満"},
        ["春です。夏です。"],
        ["春です。夏です。秋です。"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        ["two words", "x"],
        ["now three words"],
    ),
    ("ja:letters:furigana", {}, ["漢字（かんじ）を書（か）く"], ["漢字（かんじ）を書く"]),
    ("ja:letters:hiragana_only", {}, ["みずは、たいせつ。"], ["水はたいせつ", "ミズ", "123"]),
    ("ja:letters:kanji", {"kanji_limit": 2, "relation": "以上"}, ["漢字です"], ["漢です"]),
    ("ja:letters:kansuuji", {}, ["二〇二三年"], ["2023年", "２年"]),
    ("ja:letters:katakana_only", {}, ["ドリアンハ、クダモノ。"], ["ドリアンは"]),
    ("ja:letters:no_hiragana", {}, ["日本国憲法"], ["日本の憲法"]),
    ("ja:letters:no_katakana", {}, ["目隠しの遊び"], ["ゲーム"]),
    ("es:punctuation:exclamation_marks", {}, ["¡Hola!"], ["Hola."]),
    ("punctuation:no_comma", {}, ["one; two"], ["one, two"]),
    ("ja:punctuation:no_comma", {}, ["春です。"], ["春、夏。"]),
    ("ja:punctuation:no_period", {}, ["春です"], ["春です。"]),
    ("es:punctuation:question_marks", {}, ["¿Sí?"], ["Sí."]),
    (
        "fr:special_character:accents",
        {"word_to_accentuate": {"lecon": "leçon", "evenements": "événements", "tot": None}},
        ["Quelle leçon des événements ?"],
        ["Quelle lecon des événements ?", "Quelle leçon, quelle lecon, des événements"],
    ),
    ("es:special_character:dieresis", {"let_frequency": 1}, ["pingüino"], ["pinguino", "ü ü"]),
    ("es:special_character:enie", {"let_frequency": 2}, ["Año, niño"], ["año", "año año año"]),
    ("fr:special_character:ethel_or_cedilla", {"forbidden_char": "ç"}, ["facade"], ["FAÇADE"]),
    ("fr:special_character:no_accents", {}, ["facile, façade"], ["été", "maïs"]),
    (
        "es:special_character:tildes",
        {"num_words": 1, "relation": "como máximo"},
        ["sí", "nada"],
        ["sí, más"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Is there anything else?"},
        ["Yes. Is there anything else?", 'Yes. "is there anything else?"\n'],
        ["Is there anything else? Bye."],
    ),
    ("startend:quotation", {}, ['"all of it"', " “all”", "« tout »", "「春」"], ['"all" of it', '""']),
    ("ja:startend:sentence_unified_end", {"ending": "です"}, ["春です。夏です。"],
     ["春です。夏だ。", "。"]),
]  # fmt: skip


def answer(text: str, **row: Any) -> Answer:
    return Answer(Conversation(turns=(UserTurn("?"),)), AssistantTurn((Response(text),)), row)


def rows(*given: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"instruction_id_list": [one[0] for one in given], "kwargs": [one[1] for one in given]}


@pytest.fixture(scope="module")
def reward() -> InstructionReward:
    return InstructionReward(Instructions())


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_each_instruction(case: Case, reward: InstructionReward) -> None:
    name, arguments, followed, broken = case
    for text in followed:
        if text:
            assert reward(answer(text, **rows((name, arguments)))) == 1, text
    for text in broken:
        assert reward(answer(text, **rows((name, arguments)))) == 0, text


def test_every_check_has_a_case() -> None:
    assert {name[3:] if name[2] == ":" else name for name, *_ in CASES} == set(CHECKS)


def test_all_instructions_of_a_row_or_their_share(reward: InstructionReward) -> None:
    three = rows(
        ("punctuation:no_comma", {}),
        ("keywords:existence", {"keywords": ["Bern"]}),
        ("change_case:lowercase_letters", {"keywords": None}),
    )
    share = load_reward(Instructions(count="share"))
    for text, wanted in (("bern", 3), ("Bern", 2), ("Bern, Genf", 1), ("", 0), ("\n ", 0)):
        assert share(answer(text, **three)) == pytest.approx(wanted / 3)
        assert reward(answer(text, **three)) == float(wanted == 3)


def test_the_loose_mode_forgives_an_introduction_and_asterisks(reward: InstructionReward) -> None:
    loose = load_reward(Instructions(mode="loose"))
    json_row = rows(("detectable_format:json_format", {}))
    for text in ('Sure:\n{"a": 1}', '{"a": 1}\nDone', 'Sure:\n**{"a": 1}**\nDone'):
        assert (reward(answer(text, **json_row)), loose(answer(text, **json_row))) == (0, 1)
    assert loose(answer('Sure:\nHere:\n{"a": 1}', **json_row)) == 0
    assert len(set(loosened("a\n*b*\nc"))) == 8
    # Nothing is left of one line without its first; that follows nothing.
    assert loose(answer("a, b", **rows(("punctuation:no_comma", {})))) == 0


def test_words_and_sentences() -> None:
    assert words_of("Don't stop, 3 times") == ["Don", "t", "stop", "3", "times"]
    assert words_of("春の日") == ["春", "の", "日"]
    assert sentences_of('He said "Go!" Then?  3.5 m.\n\nTitle\n\n... End') == [
        'He said "Go', "Then", "3.5 m", "Title", "End",
    ]  # fmt: skip
    assert sentences_of("春です。「夏。」秋") == ["春です", "「夏", "秋"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "no column instruction_id_list"),
        (
            {"instruction_id_list": ["punctuation:no_comma"]},
            "1 instructions, and not as many kwargs",
        ),
        (rows(("punctuation:no_coma", {})), "is not known. Did you mean 'punctuation:no_comma'"),
        (rows(("ja:detectable_format:nominal_ending", {"count": 1})), "is not known"),
        (rows(("keywords:existence", {})), "keywords = None, not a list of texts"),
        (rows(("keywords:existence", {"keywords": [1]})), "not a list of texts"),
        (rows(("keywords:frequency", {"keyword": "a", "frequency": -1})), "not a whole number"),
        (rows(("keywords:frequency", {"keyword": " ", "frequency": 1})), "not a text"),
        (
            rows(("length_constraints:number_words", {"num_words": 1, "relation": "about"})),
            "relation = 'about', not one of at least",
        ),
        (rows(("language:response_language", {"language": "cz"})), "unknown language 'cz'"),
        (rows(("de:detectable_format:constrained_response", {})), "the options in language 'de'"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["x"]}, "is not an object"),
        (rows(("special_character:accents", {"word_to_accentuate": 1})), "not an object of texts"),
    ],
)
@pytest.mark.parametrize("text", ["an answer", ""])
def test_a_row_that_cannot_be_checked_is_an_error(
    row: dict[str, Any], message: str, text: str, reward: InstructionReward
) -> None:
    with pytest.raises(DataError) as error:
        reward(answer(text, **row))
    assert message in error.value.line()


def test_numbers_of_parquet_columns_with_missing_values(reward: InstructionReward) -> None:
    row = rows(("detectable_format:number_bullet_lists", {"num_bullets": 1.0, "keyword": None}))
    assert reward(answer("* one", **row)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("length_constraints:number_sentences", "." * 100_000 + "a"),
        ("detectable_format:title", "<<" + "a" * 100_000),
        ("fr:detectable_format:title", "##" + "a" * 100_000),
        ("detectable_format:json_format", "```json" + "\n" * 100_000),
        ("ja:letters:furigana", "漢" * 100_000),
    ],
)
def test_degenerate_answers_take_linear_time(name: str, text: str) -> None:
    language, _, key = name.partition(":") if name[2] == ":" else ("", "", name)
    given = InstructionArguments(name, {"num_sentences": 1}, language, lambda _: "und")
    with time_limit(1.0):
        CHECKS[key](text, given)
