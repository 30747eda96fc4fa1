"""Formats of imported folders: the ids of transformers' apply_chat_template, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from stamm.base.errors import DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    UserTurn,
    read_conversation,
)
from stamm.chat.formats import ChatFormat, chat_template
from stamm.export.transformers_target import write_chat_files
from stamm.models import hf_chat_format
from stamm.models.hf_chat_format import load_chat_format, load_folder_chat
from stamm.tokenizer.imported import ImportedTokenizer
from tests.unit.chat.conversations import DESCRIPTION, PLAIN, written
from tests.unit.chat.imported_folders import (
    CHATML,
    CHATML_TOKENS,
    LLAMA3,
    LLAMA3_TOKENS,
    TEMPLATES,
    THINK_TOKENS,
    imported_folder,
)

ANSWER = PLAIN.filter(lambda text: text == text.lstrip())
HOSTILE = st.lists(
    st.sampled_from([*CHATML_TOKENS, *LLAMA3_TOKENS, *THINK_TOKENS, "<|", "im_end|>", "x", "\n"])
).map("".join)


@functools.cache
def both(name: str) -> tuple[ChatFormat, ImportedTokenizer, PreTrainedTokenizerFast]:
    """Our format and tokenizer of a folder with the template `name`, and the tokenizer of transformers."""
    folder = imported_folder(Path(tempfile.mkdtemp()), TEMPLATES[name])
    found = load_folder_chat(folder)
    assert isinstance(found.tokenizer, ImportedTokenizer)
    return found.chat, found.tokenizer, PreTrainedTokenizerFast.from_pretrained(folder)


@st.composite
def rows(draw: st.DrawFn, text: st.SearchStrategy[str], answer: st.SearchStrategy[str]) -> Any:
    """Messages of a conversation that ends with the assistant; the system message may be absent."""
    found = [{"role": "system", "content": draw(text)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        found.append({"role": "user", "content": draw(text)})
        found.append({"role": "assistant", "content": draw(answer) + "."})
    return found


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "no system"])
@settings(max_examples=25, deadline=None)
@given(rows(PLAIN, ANSWER), st.booleans())
def test_the_ids_are_those_of_transformers(name: str, given: Any, thinking: bool) -> None:
    chat, _, theirs = both(name)
    whole = read_conversation(given)
    prompt = dataclasses.replace(whole, turns=whole.turns[:-1], deliberation=thinking)
    for conversation, shown, is_prompt in ((whole, given, False), (prompt, given[:-1], True)):
        found = theirs.apply_chat_template(
            shown,
            tokenize=True,
            return_dict=False,
            add_generation_prompt=is_prompt,
            enable_thinking=is_prompt and thinking,
        )
        assert chat.encode(conversation, prompt=is_prompt).ids == list(found)


@settings(max_examples=25, deadline=None)
@given(PLAIN, PLAIN, ANSWER)
def test_thoughts_are_those_of_transformers_and_read_back(ask: str, why: str, answer: str) -> None:
    chat, _, theirs = both("thinking")
    shown = [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": answer + ".", "reasoning_content": why + "."},
    ]
    conversation = read_conversation(shown, deliberation=True)
    whole = chat.encode(conversation)
    found = theirs.apply_chat_template(shown, tokenize=True, return_dict=False)
    assert whole.ids == list(found)
    prompt = chat.encode(Conversation(turns=(UserTurn(ask),), deliberation=True), prompt=True)
    assert whole.ids[: len(prompt.ids)] == prompt.ids
    assert whole.supervised == [False] * len(prompt.ids) + [True] * (
        len(whole.ids) - len(prompt.ids) - 1
    ) + [False]
    blocks = chat.parse(whole.ids[len(prompt.ids) :])
    assert blocks == (Thoughts((why + ".").strip("\n")), Response(answer + "."))


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "no system"])
@settings(max_examples=25, deadline=None)
@given(rows(HOSTILE | PLAIN, HOSTILE | PLAIN))
def test_a_text_never_becomes_a_control_token(name: str, given: Any) -> None:
    """The same control tokens as with harmless texts; prompts are beginnings; masks are exact."""
    chat, tokenizer, _ = both(name)
    whole = read_conversation(
        [
            {**row, "content": written(row["content"])} if row["role"] == "assistant" else row
            for row in given
        ]
    )
    harmless = read_conversation(
        [
            {**row, "content": "a" if row["content"] else ""}
            if row["role"] == "system"
            else {**row, "content": "a"}
            for row in given
        ]
    )

    def control(conversation: Conversation) -> list[str]:
        ids = chat.encode(conversation).ids
        return [name for each in ids if (name := tokenizer.control_token(each))]

    assert control(whole) == control(harmless)
    prompt = chat.encode(dataclasses.replace(whole, turns=whole.turns[:-1]), prompt=True)
    encoded = chat.encode(whole)
    assert encoded.ids[: len(prompt.ids)] == prompt.ids
    answer = encoded.ids[len(prompt.ids) :]
    learned = [
        each for each, keep in zip(answer, encoded.supervised[-len(answer) :], strict=True) if keep
    ]
    assert learned[-1] in chat.stop_ids
    trim = name in ("llama3", "dated")
    text = given[-1]["content"].strip() if trim else given[-1]["content"]
    text = text.lstrip("\n") if name == "thinking" else text
    assert tokenizer.decode(learned[:-1]) == text
    assert chat.decode(learned) == text
    assert chat.parse(answer)[:1] in ((Response(text),), ())


def test_every_answer_of_a_conversation_is_supervised() -> None:
    chat, tokenizer, _ = both("chatml")
    encoded = chat.encode(
        Conversation(
            turns=(
                UserTurn("q"),
                AssistantTurn((Response("first"),)),
                UserTurn("r"),
                AssistantTurn((Response("second"),)),
            )
        )
    )
    kept = [each for each, keep in zip(encoded.ids, encoded.supervised, strict=True) if keep]
    assert tokenizer.decode(kept) == "first<|im_end|>second<|im_end|>"


def test_stop_and_pad_ids() -> None:
    chat, tokenizer, _ = both("llama3")
    stops = {tokenizer.control_token(each) for each in chat.stop_ids}
    assert stops == {"<|eot_id|>", "<|end_of_text|>"}
    assert tokenizer.control_token(chat.pad_id) == "<|finetune_right_pad_id|>"
    chat, tokenizer, _ = both("chatml")
    assert {tokenizer.control_token(each) for each in chat.stop_ids} == {
        "<|im_end|>",
        "<|endoftext|>",
    }
    assert tokenizer.control_token(chat.pad_id) == "<|endoftext|>"


def test_the_hash_depends_on_the_template() -> None:
    assert both("chatml")[0].sha256 != both("default system")[0].sha256
    assert len({both(name)[0].sha256 for name in TEMPLATES}) == len(TEMPLATES)


def test_a_template_without_a_system_role_refuses_only_system_messages() -> None:
    chat, _, _ = both("no system")
    asked = Conversation(turns=(UserTurn("Hi"),))
    assert chat.encode(asked, prompt=True).ids
    with pytest.raises(DataError, match="chatml of this model cannot write a system message"):
        chat.encode(dataclasses.replace(asked, system="Be brief."))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("chatml", {"tools": ({"name": "f", "description": "d"},)}, "cannot write tools"),
        ("llama3", {"turns": (AssistantTurn((Thoughts("t"),)),)}, "cannot write thoughts"),
        (
            "thinking",
            {"turns": (UserTurn("q"), AssistantTurn((Response("a"), Thoughts("t"))))},
            "thoughts after a response",
        ),
        (
            "thinking",
            {"turns": (UserTurn("q"), AssistantTurn((Thoughts("t"), Response("a"))))},
            "deliberation is not enabled",
        ),
    ],
)
def test_conversations_that_cannot_be_written_are_refused(
    name: str, changes: Any, message: str
) -> None:
    conversation = Conversation(**{"turns": (UserTurn("q"),), **changes})
    with pytest.raises(DataError, match=message):
        both(name)[0].encode(conversation)


def test_without_a_template_the_special_tokens_decide(tmp_path: Path) -> None:
    chat = load_chat_format(imported_folder(tmp_path, None))
    assert chat.name == "chatml"
    ids = chat.encode(Conversation(turns=(UserTurn("Hi"),)), prompt=True).ids
    assert ids == both("chatml")[0].encode(Conversation(turns=(UserTurn("Hi"),)), prompt=True).ids


def test_the_template_of_the_configuration_counts_too(tmp_path: Path) -> None:
    folder = imported_folder(tmp_path, None)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    for template in (CHATML, named):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        assert load_chat_format(folder).name == "chatml"


@pytest.mark.parametrize(
    ("condition", "skipped"), [("m.content", [""]), ("m.content.strip()", ["", " \n"])]
)
def test_a_system_message_that_the_template_skips_is_none(
    tmp_path: Path, condition: str, skipped: list[str]
) -> None:
    template = TEMPLATES["skips an empty system message"].replace("or m.content", f"or {condition}")
    assert condition in template
    chat = load_chat_format(imported_folder(tmp_path, template))
    asked = Conversation(turns=(UserTurn("Hi"),))
    plain = chat.encode(asked, prompt=True).ids
    for system in ("", " \n", "x"):
        found = chat.encode(dataclasses.replace(asked, system=system), prompt=True).ids
        assert (found == plain) is (system in skipped)


@pytest.mark.parametrize("listed", [{}, {"bos_token": None, "eos_token": None}])
def test_tokens_of_an_older_folder_are_those_of_transformers(
    tmp_path: Path, listed: dict[str, Any]
) -> None:
    whole = load_chat_format(imported_folder(tmp_path / "whole", LLAMA3))
    folder = imported_folder(tmp_path / "older", LLAMA3)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **listed}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    tokens = {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>", **flags}}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    chat = load_chat_format(folder)
    asked = Conversation(turns=(UserTurn("Hi"),))
    ids = chat.encode(asked, prompt=True).ids
    assert ids == whole.encode(asked, prompt=True).ids
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = [{"role": "user", "content": "Hi"}]
    assert ids == theirs.apply_chat_template(rows, add_generation_prompt=True, return_dict=False)
    out = tmp_path / "export"
    out.mkdir()
    (out / "config.json").write_text("{}")
    write_chat_files(out, folder / "tokenizer.json", 128, chat.name)
    (out / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    again = PreTrainedTokenizerFast.from_pretrained(out)
    assert ids == again.apply_chat_template(rows, add_generation_prompt=True, return_dict=False)


def test_a_token_of_another_file_alone_is_named(tmp_path: Path) -> None:
    folder = imported_folder(tmp_path, LLAMA3)
    known = {"<|eot_id|>": ImportedTokenizer.load(folder).control_id("<|eot_id|>")}
    (folder / "added_tokens.json").write_text(json.dumps(known))
    assert load_chat_format(folder).name == "llama3"
    (folder / "added_tokens.json").write_text(json.dumps({**known, "<new>": 400}))
    with pytest.raises(DataError, match=r"added_tokens\.json gives '<new>' the id 400, and token"):
        load_chat_format(folder)


def test_our_own_template_is_the_apertus_format(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(DESCRIPTION, encoding="utf-8")
    plain = load_chat_format(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
    assert load_chat_format(tmp_path).sha256 == plain.sha256
    # another template of the same text is verified by rendering it
    (tmp_path / "chat_template.jinja").write_text(chat_template() + "{# copy #}")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    found = load_folder_chat(tmp_path)
    assert (found.chat.name, type(found.tokenizer)) == ("apertus", ImportedTokenizer)
    asked = Conversation(turns=(UserTurn("Hi"),), system="Be brief.")
    assert found.chat.encode(asked).ids == plain.encode(asked).ids


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].content }}", "does not write this assistant message"),
        (CHATML.replace("\n' ~ m.content", " ' ~ m.content"), "it ends a message with"),
        (CHATML.replace("assistant\n", "assistant\nSure"), r"it writes .*assistant\\nSure. where"),
        (CHATML + "{{ messages[0].foo.bar }}", "cannot be rendered: UndefinedError"),
        ("{% for m in messages %}<|im_start|>", "it is not a template"),
        ("<|im_start|>{{ ''.__class__.__mro__ }}", "cannot be rendered: SecurityError"),
        ("<|im_start|>{% for i in range(90000) %}{{ '%9d' % i }}{% endfor %}", "writes more than"),
        (CHATML.replace("m.content", "m.content.upper()"), "it ends a message with"),
        (CHATML + LLAMA3, "it ends a message with"),
    ],
)
def test_other_templates_are_refused(tmp_path: Path, template: str, message: str) -> None:
    folder = imported_folder(tmp_path, CHATML)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_chat_format(folder)


_LONG = tuple(
    turn for n in range(6) for turn in (UserTurn(f"Q {n}"), AssistantTurn((Response(f"A {n}"),)))
)


def _asked(text: str) -> tuple[UserTurn, AssistantTurn]:
    return UserTurn(text), AssistantTurn((Response("Yes."),))


@pytest.mark.parametrize(
    ("template", "turns", "message"),
    [
        ("{% set messages = messages[-8:] %}" + CHATML, _LONG, "does not write this user message"),
        (
            CHATML.replace("m.content", "m.content | replace('\n\n\n', '\n\n')"),
            _asked("a\n\n\nb"),
            "does not write this user message, or changes it",
        ),
        (
            CHATML.replace("m.content", "m.content | replace('/no_think', '')"),
            _asked("Why? /no_think"),
            "does not write this user message, or changes it",
        ),
        (
            CHATML.replace(
                "assistant\n' }}",
                "assistant\n' ~ ('No. ' if '/no_think' in messages[-1].content else '') }}",
            ),
            _asked("Why? /no_think"),
            "writes an answer otherwise than after its prompt",
        ),
    ],
)
def test_rows_that_a_template_changes_are_refused(
    tmp_path: Path, template: str, turns: Any, message: str
) -> None:
    folder = imported_folder(tmp_path, CHATML)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_chat_format(folder).encode(Conversation(turns=turns))


def test_a_template_without_end_is_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(hf_chat_format, "_CPU_S", 1)
    spin = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(DataError, match="needs more than 1 s or 1 GiB"):
        load_chat_format(imported_folder(tmp_path, CHATML + spin))


def test_special_tokens_of_no_known_format_are_refused(tmp_path: Path) -> None:
    text = (imported_folder(tmp_path, None) / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace("<|im_", "<|my_"), encoding="utf-8")
    with pytest.raises(DataError, match="no chat template, and its special tokens match no"):
        load_chat_format(tmp_path)


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = imported_folder(tmp_path, CHATML)
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not a tokenizer"):
        load_chat_format(folder)
