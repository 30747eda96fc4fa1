"""Evaluation texts in documents: what is planted is found however it is dressed, chance is not."""

from __future__ import annotations

import json
import random
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.contamination.index import (
    PASSAGES_PER_RUN,
    Hit,
    Index,
    build_index,
    load_index,
)
from stamm.corpus.contamination.items import Item
from stamm.corpus.dedup.shingles import hash_words

CONFIG = ContaminationConfig(sets=(EvaluationSet(name="quiz", file="quiz.jsonl"),))
SHORT = "Who should Derek hug after shocking Richard?"


def prose(seed: object, words: int) -> list[str]:
    draw = random.Random(str(seed))
    return [f"word{draw.randrange(5000)}" for _ in range(words)]


def item(name: str, *texts: str) -> Item:
    return Item(set_name="quiz", item_id=name, texts=texts)


def index(*items: Item, config: ContaminationConfig = CONFIG) -> Index:
    return build_index(config, items)


def hits(made: Index, text: str) -> tuple[Hit, ...]:
    return made.hits(hash_words(text))


def around(text: str) -> str:
    return f"{' '.join(prose('before', 300))}. {text} {' '.join(prose('after', 300))}"


PASSAGE = " ".join(prose("passage", 120))


def changed(text: str, share: float) -> str:
    draw = random.Random(share)
    return " ".join(w if draw.random() >= share else "other" for w in text.split())


@pytest.mark.parametrize(
    "dress",
    [
        str,
        str.upper,
        lambda text: textwrap.fill(text, 31, initial_indent="> ", subsequent_indent="> "),
        lambda text: text.replace(" ", "\u200b  "),
        lambda text: text.replace("word", "wo\u00adrd"),
        lambda text: changed(text, 0.1),
        lambda text: text[: 2 * len(text) // 3],
        lambda text: text.replace(" ", ", "),
    ],
)
def test_a_planted_passage_is_found_however_dressed(dress: Callable[[str], str]) -> None:
    made = index(item("other", " ".join(prose("x", 120))), item("planted", PASSAGE))
    assert [hit.item_id for hit in hits(made, around(dress(PASSAGE)))] == ["planted"]


def test_what_a_hit_says() -> None:
    (hit,) = hits(index(item("a", PASSAGE)), around(PASSAGE))
    assert hit == Hit(set_name="quiz", item_id="a", overlap=1.0, words=120, position=300)
    kept = PASSAGE.split()[:90]
    (hit,) = hits(index(item("a", PASSAGE)), " ".join(kept))
    assert (hit.overlap, hit.position) == (0.75, 0)


def test_one_run_in_common_is_not_enough() -> None:
    words = PASSAGE.split()
    made = index(item("a", PASSAGE))
    assert hits(made, around(" ".join(words[40:99]))) == ()  # 59 of 120
    assert len(hits(made, around(" ".join(words[40:100])))) == 1  # 60 of 120
    # Blocks under five words do not count towards the overlap.
    fours = " ".join(" ".join(words[i : i + 4]) + " x" for i in range(13, 120, 4))
    assert hits(made, around(" ".join(words[:13]) + " y " + fours)) == ()


def test_halves_far_apart_are_not_one_passage() -> None:
    words = PASSAGE.split()
    far = " ".join([*words[:40], *prose("far", 2000), *words[80:]])
    assert hits(index(item("a", PASSAGE)), far) == ()


@pytest.mark.parametrize("count", [13, 14, 25])
def test_first_and_last_run_count_alike(count: int) -> None:
    text = " ".join(prose("edge", count))
    made = index(item("a", text))
    for document in (text, f"x {text}", f"{text} x", f"x {text} x"):
        assert len(hits(made, document)) == 1
    tail = " ".join(text.split()[-13:])
    assert len(hits(made, around(tail))) == (13 / count >= 0.5)


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (SHORT, True),
        (f"They asked. {SHORT} Nobody knew.", True),
        (f'{{"good": "{SHORT.lower()}", "bad": ""}}', True),
        (f"first line\n{SHORT[:-1]}\nlast line", True),
        (f"And who {SHORT[4:-1]} at noon", False),
        (f"It is unclear {SHORT}", False),
        (SHORT.replace("hug", "see"), False),
        (" ".join(SHORT.split()[:-1]), False),
    ],
)
def test_a_short_text_counts_where_it_stands_by_itself(document: str, found: bool) -> None:
    assert [hit.item_id for hit in hits(index(item("s", SHORT)), document)] == ["s"] * found


def test_scripts_without_blanks() -> None:
    passage = "他打开了门，看见院子里站着一个陌生人，手里拿着一封信。"
    short = "他把口袋掏空了"
    made = index(item("long", passage), item("short", short), item("no", "他走进了门"))
    assert [hit.item_id for hit in hits(made, f"前面的话。{passage}后面的话。")] == ["long"]
    assert [hit.item_id for hit in hits(made, f"前面的话，{short}，后面的话。")] == ["short"]
    assert hits(made, f"前面的话{short}后面的话。他走进了门。") == ()
    assert made.coverage["quiz"].unseen == 1


QUESTIONS = {
    "eng": "How many points did the Panthers defense surrender in the whole season of last year?",
    "deu": "Wie viele Punkte gab die Verteidigung der Panthers in der ganzen letzten Saison ab?",
    "hin": "पिछले साल के पूरे सीज़न में पैंथर्स के रक्षा दल ने कुल कितने अंक दिए थे?",
    "ara": "كم عدد النقاط التي تخلى عنها دفاع فريق بانثرز خلال الموسم الماضي كله في المباريات؟",
    "cmn": "黑豹队的防守在去年整个赛季当中一共丢掉了多少分？",
    "tha": "แนวรับของทีมแพนเธอร์สเสียแต้มไปทั้งหมดกี่แต้มในฤดูกาลที่แล้ว",
}


@pytest.mark.parametrize("language", QUESTIONS)
@pytest.mark.parametrize("dress", ["plain", "upper", "bare", "wrapped", "changed"])
def test_a_question_in_a_long_page_however_dressed(language: str, dress: str) -> None:
    text = QUESTIONS[language]
    half = len(text) * 3 // 4
    planted = {
        "plain": text,
        "upper": text.upper(),
        "bare": text.rstrip("?？؟"),
        "wrapped": "\r\n\t> ".join([text[:half], text[half:]])
        if " " not in text
        else text.replace(" ", "\r\n\t> ", 3),
        "changed": " ".join([*text.split()[:-4], "other", *text.split()[-3:]])
        if " " in text
        else f"{text[:half]}火{text[half + 1 :]}",
    }[dress]
    assert planted != text or dress in ("plain", "upper", "bare")
    made = index(*(item(name, each) for name, each in QUESTIONS.items()))
    page = "\n".join([" ".join(prose("before", 20_000)), planted, " ".join(prose("after", 20_000))])
    assert [hit.item_id for hit in hits(made, page)] == [language]


def test_what_cannot_be_found_is_known_by_item() -> None:
    made = index(item("a", "I agree.", "Yes."), item("b", "No.", PASSAGE), item("c"))
    facts = made.coverage["quiz"]
    assert (facts.items, facts.blind, facts.unseen, facts.runs) == (3, 2, 3, 1)


def test_vowel_signs_are_letters() -> None:
    # Without them these five words would have 16 letters, too few to look for.
    text = "उसने अपनी किताब मेज़ पर रखी"
    assert hits(index(item("hin", text)), f"पहले। {text}। बाद में।")[0].item_id == "hin"


def test_coverage_stands_by_itself(tmp_path: Path) -> None:
    index(item("<script>", "I agree.")).save(tmp_path)
    raw = (tmp_path / "coverage.json").read_text(encoding="utf-8")
    assert json.loads(raw)["sets"]["quiz"] == {
        "items": 1, "blind": 1, "runs": 0, "short": 0, "unseen": 1,
    }  # fmt: skip
    assert "script" not in raw


def test_a_chance_phrase_of_fourteen_letters_is_no_hit() -> None:
    text = "เขาหยิบเครื่องคิดเลขออกมา"
    assert len(hash_words(text).hashes) == 25
    made = index(item("thai", text))
    assert hits(made, f"ไป{text[-14:]}") == ()
    assert len(hits(made, f"ไป{text}")) == 1


def test_what_is_too_short_is_counted_and_not_found() -> None:
    made = index(item("a", "I agree.", PASSAGE), item("b", "one two three four five six", ""))
    assert hits(made, "I agree. One two three four five six.")[0].item_id == "b"
    facts = made.coverage["quiz"]
    assert (facts.items, facts.runs, facts.short, facts.unseen) == (2, 1, 1, 2)


def test_one_hit_an_item_with_its_largest_overlap() -> None:
    two = " ".join(prose("second", 50))
    made = index(item("a", PASSAGE, two))
    half = " ".join(PASSAGE.split()[:70])
    (hit,) = hits(made, f"{half} and {two} and {half} and {two}")
    assert (hit.overlap, hit.words) == (1.0, 50)


def test_a_document_of_items_names_so_many_and_no_more() -> None:
    items = [item(f"{i}", " ".join(prose(i, 40))) for i in range(150)]
    whole = ". ".join(one.texts[0] for one in items)
    assert len(hits(index(*items), whole)) == CONFIG.most_hits
    assert len(hits(index(*items, config=replace(CONFIG, most_hits=3)), whole)) == 3


def test_a_template_shared_by_all_items_names_the_first() -> None:
    template = " ".join(prose("template", 40))
    items = [item(f"{i}", f"{template} {' '.join(prose(i, 10))}") for i in range(100)]
    found = hits(index(*items), around(template))
    assert [hit.item_id for hit in found] == [str(i) for i in range(PASSAGES_PER_RUN)]
    own = hits(index(*items), around(items[77].texts[0]))
    assert "77" in {hit.item_id for hit in own}


def test_a_document_that_repeats_a_passage_a_thousand_times() -> None:
    made = index(item("a", PASSAGE))
    first = " ".join(PASSAGE.split()[:13])
    assert len(hits(made, f"{PASSAGE}. " * 1000)) == 1
    assert hits(made, f"{first}. " * 10_000) == ()


def test_an_instruction_before_each_question_does_not_hide_the_last() -> None:
    told = " ".join(prose("instruction", 10))
    questions = [f"{told} {' '.join(prose(i, 14))}" for i in range(200)]
    made = index(item("last", questions[-1]))
    assert hits(made, ". ".join(questions[:-1])) == ()
    assert [hit.item_id for hit in hits(made, ". ".join(questions))] == ["last"]


def test_a_million_equal_words() -> None:
    made = index(item("laugh", "ha " * 40), item("other", PASSAGE))
    text = "ha " * 10**6
    (hit,) = hits(made, text)
    assert (hit.item_id, hit.position) == ("laugh", 0)
    assert [hit.item_id for hit in hits(made, f"{text} {PASSAGE}")] == ["laugh", "other"]
    assert hits(made, "x") == hits(made, "\ud800") == hits(made, "a" * 2**23) == ()


def test_stored_and_loaded_it_finds_the_same(tmp_path: Path) -> None:
    made = index(item("a", PASSAGE), item("s", SHORT))
    digest = made.save(tmp_path / "one")
    assert index(item("a", PASSAGE), item("s", SHORT)).save(tmp_path / "two") == digest
    loaded = load_index(tmp_path / "one", digest)
    document = around(f"{PASSAGE}. {SHORT}")
    assert hits(loaded, document) == hits(made, document) != ()
    assert loaded.coverage == made.coverage


def test_a_changed_index_is_refused(tmp_path: Path) -> None:
    digest = index(item("a", PASSAGE)).save(tmp_path)
    index(item("b", PASSAGE)).save(tmp_path / "other")
    with pytest.raises(DataError, match="is not the contamination index"):
        load_index(tmp_path / "other", digest)
    keys = tmp_path / "keys.npy"
    keys.write_bytes(keys.read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match="is not the contamination index"):
        load_index(tmp_path, digest)
    keys.unlink()
    with pytest.raises(DataError, match="holds no contamination index"):
        load_index(tmp_path)


def test_an_empty_index_finds_nothing(tmp_path: Path) -> None:
    index().save(tmp_path)
    for made in (index(), load_index(tmp_path)):
        assert hits(made, around(PASSAGE)) == ()
    assert hits(index(item("a", PASSAGE)), "") == ()


def test_refused_settings() -> None:
    with pytest.raises(ConfigError, match=r"sets = .*one name twice.*block_words = 14"):
        ContaminationConfig(sets=CONFIG.sets * 2, block_words=14)
