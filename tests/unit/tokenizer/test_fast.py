"""The fast encoder: the same ids on every text, proven where it is used, bounded on long runs."""

from __future__ import annotations

import copy
import json
import random
import sys
from typing import Any

import pytest
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from stamm.base.errors import DataError
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.job import load_declaration
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.tokenizer.fast import BYTE_LETTERS, bytes_word, fast_encoder, word_bytes
from stamm.tokenizer.special_tokens import PII_MARKERS, RESERVED_TOKENS
from stamm.tokenizer.tokenizer import Tokenizer

TEXTS = [article for articles in load_declaration().values() for article in articles[:6]]
TEXTS += [
    "aaaa aaa aaaaaaa bbbb abab ababab",
    "    deep\n\n\n\t\tcode = {}  # --------",
    "……———!!!???",
] * 5
DESCRIPTION = train_tokenizer_on(TokenizerConfig(vocab_size=1500), TEXTS)
TOKENIZER = Tokenizer(DESCRIPTION)
PIECES = (
    *RESERVED_TOKENS, *PII_MARKERS.values(), "<email-pii", "email-pii>", "\\begin{", "a", "A", "aA",
    "é", "e\u0301", "ß", "ǅ", "ʰ", "漢", "字", "ك", "א", "ไ", "ि", "١", "Ⅷ", "7", " ", "  ", "\t",
    "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u2028", "\u200b", "\ufeff",
    "\u3000", "/", "//", "-", "_", ".", "'", "’", "🇨🇭", "👩‍🔬", "\x00", "\ufffe", "\U0010ffff",
    "\ue000", "\u0378", "\U0001cc00", "dignity", " rights", "Würde", "THE", "abab", "ZZzz",
)  # fmt: skip


def hostile(seed: int) -> str:
    draw = random.Random(seed)
    parts = [
        draw.choice(PIECES) * draw.choice((1, 1, 1, 2, 3, 9)) for _ in range(draw.randint(1, 40))
    ]
    return "".join(parts)


def same(text: str) -> bool:
    fast = TOKENIZER.fast
    assert fast is not None
    assert TOKENIZER.encode(text) == TOKENIZER.encode_slowly(text), text
    return fast.can_encode(text)


def test_the_same_ids_on_hostile_strings() -> None:
    taken = sum(same(hostile(seed)) for seed in range(4000))
    assert taken > 1000  # the others hold a character that no table knows


@settings(max_examples=300, deadline=None)
@given(st.text())
@example("</s><s> <pad> <|user_start|> <email-pii><phone-pii>")
@example(" " * 3000 + "x")
def test_the_same_ids_on_any_text(text: str) -> None:
    same(text)


def test_the_same_ids_on_every_article_in_every_language() -> None:
    assert all(same(article) for articles in load_declaration().values() for article in articles)


def test_the_same_ids_on_every_character() -> None:
    signs = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    for first in range(0, len(signs), 4096):
        same("a " + " a".join(signs[first : first + 4096]))


def classes(pattern: str) -> tuple[str, str]:
    """The characters of a class, as tiktoken and as the tokenizers library see it."""
    signs = "".join(chr(c) for c in range(0x3000) if not 0xD800 <= c < 0xE000)
    encoding = tiktoken.Encoding(
        "x",
        pat_str=pattern,
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={},
    )
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    left = {c for piece, _ in split.pre_tokenize_str(signs) for c in piece}
    return encoding.decode(encoding.encode_ordinary(signs)), "".join(
        c for c in signs if c not in left
    )


@pytest.mark.parametrize("name", ["Lu", "Lt", "Lm", "Lo", "M", "Ll", "N", "L"])
def test_both_libraries_have_the_same_classes(name: str) -> None:
    one, other = classes(rf"\p{{{name}}}")
    assert one == other != ""
    assert classes(r"\s")[0] == classes(r"\s")[1]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10**6,
        " " * 10**6,
        " " * 10**6 + "x",
        "\n" * 10**6,
        "-" * 10**6,
        "aB" * 500_000,
        "9" * 10**6,
    ],
)
def test_a_million_of_one_letter_is_encoded(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert len(ids) > 1000


def test_enormous_blanks_and_new_characters_go_the_slow_way() -> None:
    fast = TOKENIZER.fast
    assert fast is not None
    assert fast.can_encode(" " * 100_000) and not fast.can_encode("x" + "\t " * 50_001)
    assert (
        fast.can_encode("x " * 10**5)
        and fast.can_encode("Würde")
        and not fast.can_encode("W\u0378rde")
    )


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert sorted(BYTE_LETTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())
    text = "".join(chr(c) for c in range(0x20, 0x800))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert level.pre_tokenize_str(text)[0][0] == bytes_word(text.encode())
    assert word_bytes(bytes_word(bytes(range(256)))) == bytes(range(256))


def swap_merges(plain: dict[str, Any]) -> None:
    merges = plain["model"]["merges"]
    merges[5], merges[6] = merges[6], merges[5]


def second_way(plain: dict[str, Any]) -> None:
    plain["model"]["merges"].append(plain["model"]["merges"][0])


def other_cut(plain: dict[str, Any]) -> None:
    plain["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"


def whole_words(plain: dict[str, Any]) -> None:
    plain["model"]["ignore_merges"] = True


def norm(plain: dict[str, Any]) -> None:
    plain["normalizer"] = {"type": "NFC"}


def greedy_marker(plain: dict[str, Any]) -> None:
    next(t for t in plain["added_tokens"] if t["content"] == "<email-pii>")["lstrip"] = True


@pytest.mark.parametrize(
    "change", [swap_merges, second_way, other_cut, whole_words, norm, greedy_marker]
)
def test_without_proof_there_is_no_quick_way(change: Any) -> None:
    plain = json.loads(DESCRIPTION)
    assert fast_encoder(plain, TOKENIZER._pieces) is not None
    changed = copy.deepcopy(plain)
    change(changed)
    assert fast_encoder(changed, TOKENIZER._pieces) is None


def test_a_token_that_its_own_merges_do_not_make_is_found() -> None:
    # "ab" comes first in "abc", so the merge (a, bc) is never used on it, and abc never made;
    # tiktoken would make it all the same.
    plain = json.loads(DESCRIPTION)
    vocabulary = {c: i for i, c in enumerate(BYTE_LETTERS)} | {"ab": 256, "bc": 257, "abc": 258}
    plain["model"] |= {"vocab": vocabulary, "merges": [["a", "b"], ["b", "c"], ["a", "bc"]]}
    plain["added_tokens"] = []
    made = {"abc": [256, vocabulary["c"]]}
    assert fast_encoder(plain, lambda word: made.get(word, [vocabulary[word]])) is None
    assert fast_encoder(plain, lambda word: [vocabulary[word]]) is not None


def test_unproven_vocabularies_encode_the_same_documents() -> None:
    changed = json.loads(DESCRIPTION)
    whole_words(changed)
    slow = Tokenizer(json.dumps(changed))
    rows = [{"text": text} for text in TEXTS[:300]]
    assert slow.fast is None
    assert [ids for _, ids in slow.encode_rows(rows)] == [
        slow.encode_document(r["text"]) for r in rows
    ]


def test_half_of_a_character_is_refused_by_every_encoder() -> None:
    for encode in (TOKENIZER.encode, TOKENIZER.encode_slowly, TOKENIZER.encode_with_spans):
        with pytest.raises(DataError, match="lone surrogate"):
            encode("a \ud83d")
