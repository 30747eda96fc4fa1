"""Tokenizer folders as other models have them: ChatML and Llama 3, with templates of several habits."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from stamm.chat.formats import chat_template

# Words keep the blank before them; line breaks are pieces of their own, as in Llama 3 and Qwen.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ADDED = {"__type": "AddedToken", "content": "<|endoftext|>"}
_TEXTS = ["user assistant system\n\nThe wind turns the mill. Hello! 12 + 30 = 42\n"] * 20

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|finetune_right_pad_id|>",
)
THINK_TOKENS = ("<think>", "</think>")

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    + CHATML
)
THINKING = """\
{%- set asked = namespace(last=messages | length - 1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set asked.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.role == 'assistant' and loop.last and loop.index0 > asked.last %}
        {%- set why = m.reasoning_content if m.reasoning_content is string else '' %}
        {{- '<think>\n' + why.strip('\n') + '\n</think>\n\n' + m.content.lstrip('\n') }}
    {%- else %}
        {{- m.content }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""
LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
DATED = """\
{{- bos_token ~ '<|start_header_id|>system<|end_header_id|>\n\n' }}
{{- 'Today: ' ~ (strftime_now('%Y') if strftime_now is defined and no else '2024') ~ '\n\n' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content | trim }}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for m in messages %}
    {{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
# As Llama 3.2: today's date where the engine has a clock, else a fixed one.
TODAY = DATED.replace(
    "strftime_now('%Y') if strftime_now is defined and no else '2024'",
    "strftime_now('%Y') if strftime_now is defined else '2024'",
)
SKIPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' or m.content %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content"
    " ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHATML
)
TEMPLATES = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "thinking": THINKING,
    "llama3": LLAMA3,
    "dated": DATED,
    "skips an empty system message": SKIPS_SYSTEM,
    "no system": NO_SYSTEM,
}


def apertus_folder(folder: Path, description: str, place: str) -> Path:
    """A folder of Apertus' with a tokenizer.json; its published template in a file or in the configuration.

    place   "chat_template.jinja", "tokenizer_config.json" or "": no template

    The published template writes a default system message with the date and leaves the last turn open.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(description, encoding="utf-8")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    if place:
        ours = chat_template()
        dated = ours.replace("set system = ''", "set system = 'Today: ' ~ strftime_now('%Y-%m-%d')")
        last = "plain(turn.text) ~ ('' if message.role == 'end' else '<|assistant_end|>')"
        opened = dated.replace("plain(turn.text) ~ '<|assistant_end|>'", last)
        assert len({ours, dated, opened}) == 3
        if place == "chat_template.jinja":
            (folder / place).write_text(opened, encoding="utf-8")
        else:
            config["chat_template"] = opened
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def imported_folder(folder: Path, template: str | None) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; None: no template."""
    folder.mkdir(parents=True, exist_ok=True)
    llama = template is not None and "eot_id" in template
    (folder / "tokenizer.json").write_text(description(llama), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>" if llama else None,
        "eos_token": "<|eot_id|>" if llama else "<|im_end|>",
        "pad_token": None if llama else _ADDED,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@functools.cache
def description(llama: bool) -> str:
    """A tokenizer.json with the control tokens of Llama 3 or of ChatML."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_special_tokens(list(LLAMA3_TOKENS if llama else CHATML_TOKENS))
    if not llama:
        tokenizer.add_tokens([AddedToken(name, normalized=False) for name in THINK_TOKENS])
    text: str = tokenizer.to_str()
    return text
