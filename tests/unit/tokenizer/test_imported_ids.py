"""Tokenizers of other models: ids are those of transformers, or the file is refused by name."""

from __future__ import annotations

import json
import random
import re
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.tokenizer.imported import CONFIG_KEYS, ImportedTokenizer

SEED_TEXTS = ["The wind turns the mill. Grüezi, l'été! 12 + 30 = 42\n"] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
ADDED = [
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("Folded", normalized=True),
]


def begins(tokenizer: tokenizers.Tokenizer, *, ends: bool = False) -> tokenizers.Tokenizer:
    ids = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    single = "<s> $A </s>" if ends else "<s> $A"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    return tokenizer


def byte_level(**changes: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=changes.get("blank", False))
    tokenizer.decoder = decoders.ByteLevel()
    if "normalizer" in changes:
        tokenizer.normalizer = changes["normalizer"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SEED_TEXTS, trainer)
    return tokenizer


def pieces(*, metaspace: bool) -> tokenizers.Tokenizer:
    """As Llama 2 (a normalizer), or as Mistral (Metaspace): bytes where the vocabulary has no piece."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        parts = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(parts)
    replace = decoders.Replace("▁", " ")
    last = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), last])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL + bytes_, show_progress=False
    )
    tokenizer.train_from_iterator(SEED_TEXTS, trainer)
    plain = json.loads(tokenizer.to_str())  # bytes are no special tokens in published files
    plain["added_tokens"] = plain["added_tokens"][: len(SPECIAL)]
    return begins(tokenizers.Tokenizer.from_str(json.dumps(plain)))


def unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SEED_TEXTS, trainer)
    return tokenizer


def with_added_tokens() -> tokenizers.Tokenizer:
    tokenizer = byte_level(normalizer=normalizers.Lowercase())
    tokenizer.add_tokens(ADDED)
    return tokenizer


def with_stored_lengths() -> tokenizers.Tokenizer:
    tokenizer = begins(byte_level())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=32, pad_id=3, pad_token="<pad>")
    return tokenizer


KINDS = {
    "byte level": byte_level,
    "byte level, begins": lambda: begins(byte_level()),
    "byte level, a blank before": lambda: byte_level(blank=True),
    "byte level, NFC": lambda: byte_level(normalizer=normalizers.NFC()),
    "letters folded": lambda: byte_level(
        normalizer=normalizers.Sequence(
            [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        )
    ),
    "Llama 2": lambda: pieces(metaspace=False),
    "Mistral": lambda: pieces(metaspace=True),
    "added tokens": with_added_tokens,
    "truncation and padding": with_stored_lengths,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "names alone": {},
    "does not end": {"add_eos_token": False},
    "lengths": {"model_max_length": 4, "truncation_side": "left", "padding_side": "left"},
    "decoding": {"clean_up_tokenization_spaces": True, "split_special_tokens": True},
}


def texts() -> list[str]:
    """Three hundred texts of many scripts, with blanks, control tokens and added tokens between."""
    draws = random.Random(7)
    words = [
        "The", "mill", "Grüezi", "l'été", "É", "ﬁ", "é", "日本語", "हिन्दी", "العَرَبِيَّة", "🙂", "3.14", " ", "  ", "\n",
        "\t", "\u00a0", "▁", "<s>", "</s>", "<pad>", "<unk>", "<left>", "<right>", "word", "words", "Folded",
        "folded", "\u200b", "\x00", "\ufeff", "a" * 40,
    ]  # fmt: skip
    made = ["", " ", "\n", "<s>", "word", " <left> x <right> y"]
    return made + [
        draws.choice(["", " "]).join(draws.choices(words, k=draws.randint(1, 12)))
        for _ in range(300)
    ]


def folder_of(folder: Path, tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, **config}
    write_json(folder / "tokenizer_config.json", names)
    write_json(folder / "config.json", {"model_type": "llama"})
    return folder


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(kind: str, config: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, KINDS[kind](), CONFIGS[config])
    ours = ImportedTokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in texts():
        expected = theirs(text, split_special_tokens=True)["input_ids"]
        assert [*ours.prefix_ids(), *ours.encode(text)] == expected, text


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "ends by the configuration": ("byte level", {"add_bos_token": False, "add_eos_token": True}, r"add_eos_token = True in tokenizer_config\.json, and tokenizer\.json does otherwise"),
    "begins by the configuration": ("byte level", {"add_bos_token": True}, r"add_bos_token = True in"),
    "does not begin by the configuration": ("Llama 2", {"add_bos_token": False}, r"add_bos_token = False in"),
    "a blank": ("byte level", {"add_prefix_space": True}, r"add_prefix_space = True in tokenizer_config\.json"),
    "no blank": ("Mistral", {"add_prefix_space": False}, r"add_prefix_space = False"),
    "a text that becomes a control token": ("unigram", {}, r"encodes '<s>' in a text as a control token"),
    "own code": ("byte level", {"auto_map": {"AutoTokenizer": ["x.Y", None]}}, r"auto_map = .*names code"),
    "lower case": ("byte level", {"do_lower_case": True}, r"do_lower_case = True changes the letters"),
    "another pattern": ("byte level", {"fix_mistral_regex": True}, r"fix_mistral_regex = True"),
    "a token of texts": ("byte level", {"added_tokens_decoder": {"340": {"content": "<tool>", "special": False}}}, r"added_tokens_decoder gives '<tool>' id = 340"),
    "a flag": ("added tokens", {"added_tokens_decoder": {"ID": {"content": "word", "single_word": False, "special": False}}}, r"gives 'word' single_word = False, and tokenizer\.json True"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_honoured_is_refused(case: str, tmp_path: Path) -> None:
    kind, config, message = REFUSED[case]
    tokenizer = unigram() if kind == "unigram" else KINDS[kind]()
    text = json.dumps(config).replace("ID", str(tokenizer.token_to_id("word")))
    with pytest.raises(DataError, match=message):
        ImportedTokenizer.load(folder_of(tmp_path, tokenizer, json.loads(text)))


def test_begins_agree(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, begins(byte_level()), {"add_bos_token": True})
    assert ImportedTokenizer.load(folder).prefix_ids() == [1]
    folder = folder_of(tmp_path, byte_level(), {"add_bos_token": True, "bos_token": None})
    assert ImportedTokenizer.load(folder).prefix_ids() == []


def test_tokens_after_every_text_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, begins(byte_level(), ends=True), {})
    with pytest.raises(DataError, match=r"tokenizer\.json puts '</s>' after every text"):
        ImportedTokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(DataError, match="is not a JSON object"):
        ImportedTokenizer.load(folder)


def test_every_key_that_transformers_writes_is_known(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, byte_level(), CONFIGS["does not end"] | {"add_prefix_space": False}
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.save_pretrained(tmp_path / "again")
    written = read_json(tmp_path / "again" / "tokenizer_config.json")
    own = set(vars(transformers.PreTrainedTokenizerBase(**NAMES))["init_kwargs"])
    assert CONFIG_KEYS.unknown(dict.fromkeys([*written, *own], 1)) == []
    assert CONFIG_KEYS.unknown({"sound": 1, "errors": "replace"}) == ["sound"]


def growing(count: int, content: str = "aaaaaaaa", pattern: object = None) -> str:
    plain = json.loads(byte_level().to_str())
    step = {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}
    plain["normalizer"] = {"type": "Sequence", "normalizers": [step] * count}
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (lambda: growing(10), r"the normalizer may make a text 1\.07e\+09 times as long"),
        (lambda: growing(3, "aaaaaaa", {"Regex": ""}), "the normalizer may make a text 512 times"),
        (lambda: growing(10, "q" * 8, {"String": "q"}), r"1\.07e\+09 times"),
        (lambda: growing(0).replace('"normalizers": []', '"normalizers": [{"type": "Prepend", "prepend": "%s"}]' % ("x" * 9999)), "the normalizer may make a text 156 times"),
    ],
)  # fmt: skip
def test_growing_texts_are_refused_at_once(description: Any, message: str) -> None:
    text, begin = description(), time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=message):
        ImportedTokenizer(text)
    assert time.process_time() - begin < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_ordinary_replacements_are_read() -> None:
    for count, content in ((10, "a"), (2, "aaaaaaaa")):
        assert ImportedTokenizer(growing(count, content)).encode("ab")


def test_an_encoding_by_chance_is_named() -> None:
    plain = json.loads(byte_level().to_str())
    for dropout in (None, 0.0):
        plain["model"]["dropout"] = dropout
        assert ImportedTokenizer(json.dumps(plain)).encode("ab")
    plain["model"]["dropout"] = 0.1
    with pytest.raises(DataError, match=r"dropout = 0\.1 encodes a text by chance"):
        ImportedTokenizer(json.dumps(plain))


def test_a_costly_tokenizer_ends_at_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that takes exponential time is stopped; it is the library's own code that runs."""
    monkeypatch.setattr("stamm.tokenizer.imported._CPU_S", 1)
    monkeypatch.setattr("stamm.tokenizer.imported._PROBE", "a" * 4000)
    plain = json.loads(byte_level().to_str())
    split = {
        "type": "Split",
        "pattern": {"Regex": r"(?:a|aa)+b"},
        "behavior": "Isolated",
        "invert": False,
    }
    plain["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, plain["pre_tokenizer"]]}
    with pytest.raises(DataError, match=re.escape("needs more than 1 s or 4 GiB")):
        ImportedTokenizer(json.dumps(plain))
