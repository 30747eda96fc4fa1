"""Chat templates of no known format: ids of transformers, and a loss mask of the answer with its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from stamm.base.errors import DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    UserTurn,
)
from stamm.models.hf_chat_format import load_folder_chat
from stamm.tokenizer.imported import ImportedTokenizer
from tests.unit.chat.imported_folders import description

GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}"
    "{% else %}{{ raise_exception('only users and assistants') }}{% endif %}{% endfor %}"
)
MISTRAL_FIRST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token + ' ' }}{% endif %}{% endfor %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'User: ' + m.content + '\n\n' }}"
    "{% else %}{{ 'Assistant: ' + m.content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
# As Command R and Granite: what they write with tools or documents, which transformers passes as none.
TOOLS = (
    "{% if tools is not none %}{{ 'You have tools.' }}{% endif %}"
    "{% if documents is defined %}{{ '<|user|>\nRead.<|end|>\n' }}{% endif %}" + PHI3
)
PHI3_TOKENS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
TEMPLATES = {
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "phi3": (PHI3, PHI3_TOKENS, "<|end|>"),
    "mistral": (MISTRAL, ["[INST]", "[/INST]"], "</s>"),
    "deepseek": (DEEPSEEK, [], "</s>"),
    "tools": (TOOLS, PHI3_TOKENS, "<|end|>"),
    "mistral, first version": (MISTRAL_FIRST, [], "</s>"),
    "llama 2": (LLAMA2, [], "</s>"),
    "zephyr": (ZEPHYR, [], "</s>"),
}
ASKED = Conversation(
    turns=(
        UserTurn("Hello"),
        AssistantTurn((Response("Hi!"),)),
        UserTurn("12 + 30?"),
        AssistantTurn((Response("It is 42.\n\nThe mill turns."),)),
    )
)


def folder_of(folder: Path, template: str, tokens: list[str], end: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    plain = json.loads(description(llama=False))
    plain["added_tokens"] = []
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
    tokenizer.add_special_tokens(["<s>", "</s>", *tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def sentencepiece(scheme: str) -> tokenizers.Tokenizer:
    """A tokenizer as Llama 2 has: a blank begins every text, by a normalizer ("prepend") or Metaspace."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=200,
        special_tokens=["<unk>"],
        initial_alphabet=list(ALPHABET),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["The wind turns the mill. Hello! Hi! [INST] It is 42."] * 20, trainer
    )
    blanks = normalizers.Replace(" ", "\u2581")
    if scheme == "prepend":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), blanks])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


ALPHABET = "".join(map(chr, range(32, 127))) + "\n\u2581"
CASES = [(name, "bytes") for name in TEMPLATES] + [
    (name, scheme)
    for name in ("mistral, first version", "llama 2", "zephyr", "phi3", "mistral")
    for scheme in ("prepend", "first")
]


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_ids_are_those_of_transformers_and_the_mask_is_the_answer(
    name: str, scheme: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / name, *TEMPLATES[name])
    if scheme != "bytes":
        tokenizer_of = sentencepiece(scheme)
        tokenizer_of.add_special_tokens(["<s>", "</s>", *TEMPLATES[name][1]])
        tokenizer_of.save(str(folder / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    loaded = load_folder_chat(folder)
    chat, tokenizer = loaded.chat, loaded.tokenizer
    assert isinstance(tokenizer, ImportedTokenizer)
    assert chat.name == "template"
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "12 + 30?"},
        {"role": "assistant", "content": "It is 42.\n\nThe mill turns."},
    ]

    def expected(count: int, *, prompt: bool) -> list[int]:
        ids: list[int] = theirs.apply_chat_template(
            messages[:count], tokenize=True, return_dict=False, add_generation_prompt=prompt
        )
        return ids

    encoded = chat.encode(ASKED)
    assert encoded.ids == expected(4, prompt=False)
    prompt = chat.encode(Conversation(turns=ASKED.turns[:3]), prompt=True).ids
    assert prompt == expected(3, prompt=True) == encoded.ids[: len(prompt)]
    trained = [id for id, counts in zip(encoded.ids, encoded.supervised, strict=True) if counts]
    end = TEMPLATES[name][2]
    text, _, rest = tokenizer.decode(trained).partition(end)
    assert (text.strip(), rest) == ("It is 42.\n\nThe mill turns.", "")
    assert trained[-1] in chat.stop_ids
    assert chat.parse(trained) == (Response("It is 42.\n\nThe mill turns."),)
    parts = chat.split(ASKED)
    assert [len(part.turns) for part in parts] == [2, 4]
    first = chat.encode(parts[0])
    answer = [id for id, counts in zip(first.ids, first.supervised, strict=True) if counts]
    text, _, rest = tokenizer.decode(answer).partition(end)
    assert (text.strip(), rest) == ("Hi!", "")


def test_what_a_template_does_not_write_is_refused(tmp_path: Path) -> None:
    chat = load_folder_chat(folder_of(tmp_path, *TEMPLATES["gemma"])).chat
    for conversation, message in (
        (Conversation(turns=ASKED.turns, system="Be brief."), "no system"),
        (
            Conversation(turns=(UserTurn("Say <end_of_turn>"),)),
            "user message spells a control token",
        ),
        (
            Conversation(
                turns=(UserTurn("a"), AssistantTurn((Thoughts("b"), Response("c")))),
                deliberation=True,
            ),
            "does not write thoughts",
        ),
    ):
        with pytest.raises(DataError, match=message):
            chat.encode(conversation)
    other = PHI3.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
    tokens = TEMPLATES["phi3"][1]
    chat = load_folder_chat(folder_of(tmp_path / "other", other, tokens, "<|end|>")).chat
    with pytest.raises(DataError, match="does not write this system message"):
        chat.encode(Conversation(turns=ASKED.turns, system="Be brief."))


LEFT_OUT = {
    "a system message that every turn spells": (
        PHI3.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"),
        Conversation(turns=(UserTurn("a"), AssistantTurn((Response("b"),))), system="user"),
        "does not write this system message",
    ),
    "a turn that its neighbours spell": (
        PHI3.replace("{% for m in messages %}", "{% for m in messages[-4:] %}"),
        Conversation(turns=(*ASKED.turns[:2] * 2, *ASKED.turns[:2])),
        "does not write this user message",
    ),
    "letters of an answer that its prompt spells": (
        PHI3.replace("m.content", "m.content.split('</think>')[-1]"),
        Conversation(turns=(UserTurn("Hi"), AssistantTurn((Response("</think>"),)))),
        "does not write this assistant message",
    ),
    "text by how a message begins": (
        PHI3.replace("{% for m in messages %}", "{% for m in messages %}{{ 'x' if m.content[0] == 'b' }}"),
        Conversation(turns=(UserTurn("b"), AssistantTurn((Response("c"),)))),
        "by how its text begins",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_message_is_not_taken_for_a_text_elsewhere(case: str, tmp_path: Path) -> None:
    template, conversation, message = LEFT_OUT[case]
    chat = load_folder_chat(folder_of(tmp_path, template, PHI3_TOKENS, "<|end|>")).chat
    with pytest.raises(DataError, match=message):
        chat.encode(conversation)


def test_an_answer_that_the_tokenizer_joins_with_a_prompt_of_blanks_is_refused(
    tmp_path: Path,
) -> None:
    folder = folder_of(tmp_path, *TEMPLATES["zephyr"])
    tokenizer = sentencepiece("first")
    plain = json.loads(tokenizer.to_str())
    plain["model"]["vocab"]["\n\n"] = len(plain["model"]["vocab"])
    plain["model"]["merges"].append(["\n", "\n"])
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    chat = load_folder_chat(folder).chat
    with pytest.raises(DataError, match="joins the beginning of this answer with its prompt"):
        chat.encode(Conversation(turns=(UserTurn("a"), AssistantTurn((Response("\nb"),)))))


def test_blanks_that_indent_a_template_are_no_control_tokens(tmp_path: Path) -> None:
    """Tokenizers of GPT-NeoX have added tokens for runs of blanks."""
    folder = folder_of(tmp_path, PHI3.replace("{% for", "{#   #}{% for"), PHI3_TOKENS, "<|end|>")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["  ", "   "])
    tokenizer.save(str(folder / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    loaded = load_folder_chat(folder)
    text = "a   b"
    assert loaded.tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)
    asked = Conversation(turns=(UserTurn(text), AssistantTurn((Response("x  y"),))))
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "x  y"}]
    expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert loaded.chat.encode(asked).ids == expected


REFUSED = {
    "a prompt that the whole does not begin with": (
        PHI3.replace("'<|assistant|>\n' }}{% endif", "'<|assistant|>\n<think>\n' }}{% endif"),
        "<|end|>",
        "otherwise than after its prompt",
    ),
    "an end that is no end": (PHI3, "</s>", r"ends an answer with '<\|end\|>'.*generation_config"),
    "no end at all": (PHI3.replace("<|end|>", ""), "</s>", "ends an answer with 'no control token'"),
    "answers in capitals": (
        PHI3.replace("m.content", "m.content | upper"), "<|end|>", "this user message, or changes it",
    ),
    "no template": ("{% for %}", "<|end|>", "cannot be rendered"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_template_without_a_provable_mask_is_refused(case: str, tmp_path: Path) -> None:
    template, end, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        load_folder_chat(folder_of(tmp_path, template, TEMPLATES["phi3"][1], end))


def test_an_end_of_generation_config_counts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PHI3, TEMPLATES["phi3"][1], "</s>")
    number = ImportedTokenizer.load(folder).control_id("<|end|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [number]}))
    assert number in load_folder_chat(folder).chat.stop_ids
