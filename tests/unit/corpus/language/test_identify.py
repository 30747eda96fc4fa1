"""Language identification: the shipped model, CLD2, and the rule that decides between them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_file
from stamm.corpus.language.codes import cld2_code, to_iso639_3
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import KNOWN, LanguageGuess, LanguageIdentifier, cld2_guess

# Sentences written for this test; none is in the training texts.
SENTENCES = {
    "eng_Latn": "Yesterday my neighbour lent me her bicycle because mine was broken again.",
    "deu_Latn": "Gestern hat mir meine Nachbarin ihr Fahrrad geliehen, weil meines kaputt war.",
    "fra_Latn": "Hier ma voisine m'a prêté son vélo parce que le mien était encore cassé.",
    "spa_Latn": "Ayer mi vecina me prestó su bicicleta porque la mía estaba rota otra vez.",
    "fin_Latn": "Eilen naapurini lainasi minulle polkupyöränsä, koska omani oli rikki.",
    "rus_Cyrl": "Вчера соседка одолжила мне велосипед, потому что мой опять сломался.",
    "ell_Grek": "Χθες η γειτόνισσά μου μου δάνεισε το ποδήλατό της γιατί το δικό μου χάλασε.",
    "tha_Thai": "เมื่อวานเพื่อนบ้านให้ฉันยืมจักรยานเพราะของฉันเสีย",
    "jpn_Jpan": "昨日、隣の人が自転車を貸してくれました。私のはまた壊れていたからです。",
    "cmn_Hani": "昨天邻居把她的自行车借给了我，因为我的又坏了。",
    "heb_Hebr": "אתמול השכנה שלי השאילה לי את האופניים שלה כי שלי שוב התקלקלו.",
}


@pytest.fixture(scope="module")
def identifier() -> LanguageIdentifier:
    return LanguageIdentifier(LanguageConfig())


@pytest.mark.parametrize("tag", SENTENCES)
def test_plain_sentences(identifier: LanguageIdentifier, tag: str) -> None:
    guess = identifier.identify(SENTENCES[tag])
    assert guess.language == tag
    assert guess.script == tag[4:]


def test_a_language_that_cld2_cannot_name_is_the_own_models_to_name(
    identifier: LanguageIdentifier,
) -> None:
    # Article 1 of the Universal Declaration in Venetian; CLD2 takes it for Italian.
    text = (
        "Tuti i esseri umani i nasse lìbari e conpagni in dignità e diriti. "
        "I ze dotai de razon e de coscienza e i ga da aver intrà de lori un spirito fradelo."
    )
    guess = identifier.identify(text)
    assert "vec" not in KNOWN
    assert guess.language == "vec_Latn"
    assert guess.other != "vec_Latn"


@pytest.mark.parametrize("text", ["", "   ", "12345", "!?", "http://example.org", "ok", "\x00\x01"])
def test_too_little_is_undetermined(identifier: LanguageIdentifier, text: str) -> None:
    assert identifier.identify(text).language == "und"


def test_mixed_scripts_are_undetermined_and_both_answers_stay(
    identifier: LanguageIdentifier,
) -> None:
    guess = identifier.identify(f"{SENTENCES['eng_Latn'][:60]} {SENTENCES['rus_Cyrl'][:60]}")
    assert guess.language == "und"
    assert guess.own and guess.other


def test_no_answer_in_another_script_than_the_text(identifier: LanguageIdentifier) -> None:
    for text in (*SENTENCES.values(), "Ὦ ξεῖν’ abcdefg hijklmnop", "ⰒⰓⰋⰏⰡⰓ ⰒⰓⰋⰏⰡⰓ ⰒⰓⰋⰏⰡⰓ"):
        guess = identifier.identify(text)
        assert guess.language == "und" or guess.language[4:] == guess.script


def test_an_answer_depends_on_the_text_alone(identifier: LanguageIdentifier) -> None:
    first = [identifier.identify(text) for text in SENTENCES.values()]
    again = [identifier.identify(text) for text in reversed(SENTENCES.values())]
    assert first == again[::-1]
    other = LanguageIdentifier(LanguageConfig())
    assert [other.identify(text) for text in SENTENCES.values()] == first


@pytest.mark.parametrize(
    "text",
    [
        "\ud800 broken surrogate in a text of some length, as broken inputs have it",
        "a" * 1_000_000,
        "a\u0301\u0323" * 300_000,
        "\u202e right to left override and \u0000 a null among ordinary words",
        "__label__deu_Latn __label__deu_Latn this is an English sentence about labels",
        "\U0001d400\U0001d401 " * 1000,
        "@" * 100_000,
    ],
)
def test_hostile_text_gets_an_answer(identifier: LanguageIdentifier, text: str) -> None:
    assert isinstance(identifier.identify(text), LanguageGuess)


def test_a_file_that_is_no_model_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "broken.ftz"
    broken.write_bytes(b"not a model")
    for path in (broken, tmp_path / "missing.ftz"):
        with pytest.raises(DataError, match="not a language model"):
            LanguageIdentifier(LanguageConfig(model=str(path)))


def test_the_shipped_model_is_the_one_its_card_describes() -> None:
    folder = Path(str(resources.files("stamm.corpus.language") / "model"))
    card = json.loads((folder / "languages.json").read_text())
    assert card["sha256"] == sha256_file(folder / "languages.ftz")
    assert len(card["languages"]) >= 360
    assert card["bytes"] <= 6_000_000


def test_codes() -> None:
    assert cld2_code("iw") == "heb"
    assert cld2_code("zh-Hant") == "cmn"
    assert cld2_code("zzp") == cld2_code("tlh") == cld2_code("xx-Latn") == ""
    assert to_iso639_3("nep") == to_iso639_3("ne") == "npi"
    assert all(len(code) == 3 for code in KNOWN)
    assert len(KNOWN) > 150


def test_cld2_hears_nothing_but_letters() -> None:
    guess = cld2_guess("der hund und die katze sitzen vor dem haus")
    assert (guess.code, guess.sure) == ("deu", True)


def test_thresholds_are_checked() -> None:
    with pytest.raises(ConfigError, match="min_score"):
        LanguageConfig(override_score=0.3, min_score=0.4)
