"""The vocabulary: fixed ids, exact round trips, no control token out of a text."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.tokenizer.special_tokens import (
    BEGIN_ID,
    CARD_ID,
    EMAIL_ID,
    END_ID,
    IBAN_ID,
    IP_ID,
    PHONE_ID,
    PII_MARKERS,
    RESERVED_TOKENS,
)
from stamm.tokenizer.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, said getHTTPResponse in 2024.",
    "Der schnelle braune Fuchs springt über den faulen Hund; Größe: 12345.",
    "敏捷的棕色狐狸跳过了懒狗。 素早い茶色の狐。 빠른 갈색 여우.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "def f(x):\n    return x ** 2\n\n\n# end\n",
] * 20
CONFIG = TokenizerConfig(vocab_size=520)
DESCRIPTION = train_tokenizer_on(CONFIG, TEXTS)
TOKENIZER = Tokenizer(DESCRIPTION)


def test_reserved_ids_stand_where_apertus_has_them() -> None:
    wanted = {
        0: "<unk>",
        1: "<s>",
        2: "</s>",
        3: "<pad>",
        36: "<iban-pii>",
        37: "<email-pii>",
        38: "<ip-pii>",
        58: "<|fim_begin|>",
        61: "<|system_start|>",
        66: "<|user_end|>",
        67: "<|assistant_start|>",
        68: "<|assistant_end|>",
        72: "<|tools_suffix|>",
    }
    assert {i: RESERVED_TOKENS[i] for i in wanted} == wanted
    assert len(set(RESERVED_TOKENS)) == len(RESERVED_TOKENS) == 73
    plain = tokenizers.Tokenizer.from_str(DESCRIPTION)
    assert [plain.token_to_id(name) for name in RESERVED_TOKENS] == list(range(73))
    assert TOKENIZER.size == 520


@settings(max_examples=300, deadline=None)
@given(st.text())
@example("</s><s> <pad> <|user_start|> <unk>")
@example("a <email-pii> b<ip-pii><iban-pii>")
@example("\x00\r\n\t \u2028 \ufeff é e\u0301 🇨🇭 ")
@example("   leading, trailing   \n\n\n")
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(max_size=20), st.sampled_from(RESERVED_TOKENS))
def test_no_text_gives_a_control_token(text: str, name: str) -> None:
    ids = TOKENIZER.encode(f"{text}{name}{text}")
    markers = {IBAN_ID, EMAIL_ID, IP_ID, CARD_ID, PHONE_ID}
    assert all(i >= len(RESERVED_TOKENS) or i in markers for i in ids)


def test_markers_are_one_token_wherever_they_stand() -> None:
    ids = TOKENIZER.encode("mail<email-pii>, <ip-pii>:80")
    assert ids.count(EMAIL_ID) == ids.count(IP_ID) == 1
    assert [TOKENIZER.encode(PII_MARKERS[k]) for k in PII_MARKERS] == [
        [37],
        [38],
        [36],
        [13],
        [12],
    ]


def test_documents_are_framed_and_batches_agree() -> None:
    assert TOKENIZER.encode_document("</s>")[0] == BEGIN_ID
    assert TOKENIZER.encode_document("</s>").count(END_ID) == 1
    many = [{"text": f"text {i}"} for i in range(700)]
    assert list(TOKENIZER.encode_rows(many)) == [
        (row, TOKENIZER.encode_document(row["text"])) for row in many
    ]
    assert list(TOKENIZER.encode_rows([])) == []


def test_digits_stand_alone_and_case_splits() -> None:
    pieces = [TOKENIZER.decode([i]) for i in TOKENIZER.encode("2024 getHTTP")]
    assert pieces[:4] == ["2", "0", "2", "4"]
    assert not any("tH" in piece for piece in pieces)


def test_no_token_is_longer_than_asked() -> None:
    description = train_tokenizer_on(
        TokenizerConfig(vocab_size=400, longest_token=4), ["antidisestablishmentarianism "] * 50
    )
    vocabulary = json.loads(description)["model"]["vocab"]
    assert max(len(t) for t in vocabulary if t not in RESERVED_TOKENS) == 4


def test_plain_libraries_load_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(DESCRIPTION, encoding="utf-8")
    text = "Der schnelle Fuchs <email-pii>."
    plain = tokenizers.Tokenizer.from_file(str(path))
    assert plain.encode(text).ids == [BEGIN_ID, *TOKENIZER.encode(text)]
    fast = PreTrainedTokenizerFast(tokenizer_file=str(path))
    assert fast(text)["input_ids"] == [BEGIN_ID, *TOKENIZER.encode(text)]
    assert fast(text + "</s>", split_special_tokens=True)["input_ids"].count(END_ID) == 0
    assert Tokenizer.load(path).sha256 == Tokenizer.load(tmp_path).sha256 == TOKENIZER.sha256


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="memory is read from /proc")
def test_a_tokenizer_that_is_dropped_leaves_no_memory_behind() -> None:
    """0.2 MiB each, where the words that it has encoded are kept by the main thread."""

    def resident(loaded: int) -> float:
        for _ in range(loaded):
            Tokenizer(DESCRIPTION)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    before = resident(10)
    assert resident(50) - before < 4


def test_training_does_not_depend_on_the_order_of_texts() -> None:
    assert train_tokenizer_on(CONFIG, reversed(TEXTS)) == DESCRIPTION


def test_a_word_of_a_million_letters_is_learned_from_in_pieces() -> None:
    made = train_tokenizer_on(TokenizerConfig(vocab_size=350), ["ab" * 500_000, *TEXTS])
    plain = json.loads(made)
    assert plain["pre_tokenizer"] == json.loads(DESCRIPTION)["pre_tokenizer"]
    assert "abababab" in plain["model"]["vocab"]
    assert Tokenizer(made).decode(Tokenizer(made).encode("ab" * 500)) == "ab" * 500


@pytest.mark.parametrize("threads", ["1", "4"])
def test_training_does_not_depend_on_threads_or_hash_seeds(threads: str) -> None:
    code = (
        "import hashlib, json, sys\n"
        "from stamm.corpus.tokenizer.config import TokenizerConfig\n"
        "from stamm.corpus.tokenizer.tekken import train_tokenizer_on\n"
        "texts = json.load(sys.stdin)\n"
        "made = train_tokenizer_on(TokenizerConfig(vocab_size=520), texts)\n"
        "print(hashlib.sha256(made.encode()).hexdigest())\n"
    )
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false" if threads == "1" else "true",
        "PYTHONHASHSEED": threads,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout.strip() == TOKENIZER.sha256


def test_bad_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a tokenizer"):
        Tokenizer("{}")
    with pytest.raises(DataError, match=r"cannot be read.*Run the tokenizer step"):
        Tokenizer.load(tmp_path / "none.json")
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(DataError, match=r"not a tokenizer: .*\(.*half\.json\)"):
        Tokenizer.load(tmp_path / "half.json")
    foreign = DESCRIPTION.replace('"<|tools_suffix|>"', '"<other>"')
    with pytest.raises(DataError, match=r"has <\|tools_suffix\|> at None, not at 72"):
        Tokenizer(foreign)


def test_a_vocabulary_needs_room_for_bytes_and_reserved_tokens() -> None:
    with pytest.raises(
        ConfigError, match=r"vocab_size = 329 must lie in \(329, 2\^31\): 73 tokens are reserved"
    ):
        TokenizerConfig(vocab_size=329)


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    plain = json.loads(DESCRIPTION)
    change(plain)
    return json.dumps(plain)


def without_a(plain: dict[str, Any]) -> None:
    del plain["model"]["vocab"]["a"]
    merges = plain["model"]["merges"]
    plain["model"]["merges"] = [merge for merge in merges if "a" not in "".join(merge)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_a, "bytes are missing"),
        (lambda plain: plain["model"]["vocab"].pop("\u00f3"), "bytes are missing"),
        (lambda plain: plain.update(normalizer={"type": "NFC"}), "changes letters"),
        (lambda plain: plain.update(normalizer={"type": "Lowercase"}), "changes letters"),
        (lambda plain: plain.update(pre_tokenizer=None), "bytes are missing"),
        (lambda plain: [t.update(special=False) for t in plain["added_tokens"]], "control token"),
        (lambda plain: [t.update(special=True) for t in plain["added_tokens"]], "several tokens"),
        (
            lambda plain: plain["added_tokens"][2].update(special=False),
            "</s> in a text as a control token",
        ),
    ],
)
def test_a_tokenizer_that_loses_text_or_obeys_it_is_refused(
    change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        Tokenizer(changed(change))


def test_half_a_character_is_told() -> None:
    with pytest.raises(DataError, match="lone surrogate"):
        TOKENIZER.encode("a\ud800b")
