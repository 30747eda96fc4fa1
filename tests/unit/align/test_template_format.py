"""Chat templates of no known format: ids of transformers, and a loss mask of the answer with its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import transformers

from stamm.align.hf_chat_format import load_folder_chat
from stamm.base.errors import DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    UserTurn,
)
from stamm.corpus.tokenizer.imported import ImportedTokenizer
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
TEMPLATES = {
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "phi3": (PHI3, ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"], "<|end|>"),
    "mistral": (MISTRAL, ["[INST]", "[/INST]"], "</s>"),
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


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_transformers_and_the_mask_is_the_answer(
    name: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / name, *TEMPLATES[name])
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
    assert tokenizer.decode(trained).strip() == f"It is 42.\n\nThe mill turns.{end}"
    assert trained[-1] in chat.stop_ids
    assert chat.parse(trained) == (Response("It is 42.\n\nThe mill turns."),)
    parts = chat.split(ASKED)
    assert [len(part.turns) for part in parts] == [2, 4]
    first = chat.encode(parts[0])
    answer = [id for id, counts in zip(first.ids, first.supervised, strict=True) if counts]
    assert tokenizer.decode(answer).strip() == f"Hi!{end}"


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
