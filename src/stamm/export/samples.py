"""Text samples generated with the exported model (samples.json): model and tokenizer work together."""

from __future__ import annotations

from typing import Any

from stamm.export.config import ExportConfig
from stamm.export.held_out import HeldOut, held_out_documents, plain_text
from stamm.export.target import LoadedExport
from stamm.models.hf_chat_format import AnyTokenizer


def prompts(config: ExportConfig, split: HeldOut) -> list[tuple[str, list[int]]]:
    """(language, <s> and the first tokens) of held-out documents: the first of each language.

    Edge     fewer than `config.samples` when there are not so many languages, or when no document
             of a language is longer than the prompt.
    """
    by_language: dict[str, list[int]] = {}
    for row in held_out_documents(split):
        if len(by_language) == config.samples:
            break
        length = 1 + config.prompt_tokens
        if row["language"] not in by_language and row["stop"] - row["start"] > length:
            by_language[row["language"]] = split.read(row["start"], row["start"] + length).tolist()
    return list(by_language.items())


def write_samples(
    config: ExportConfig,
    loaded: LoadedExport,
    tokenizer: AnyTokenizer,
    split: HeldOut | None,
) -> dict[str, Any]:
    """The content of samples.json: prompts from held-out text and their continuations.

    Edge     empty for a target that does not generate text.
    """
    generate = loaded.generate
    chosen = [] if split is None or generate is None else prompts(config, split)
    return {
        "method": f"greedy decoding with {loaded.description}, until </s> or sample_tokens",
        "prompt_tokens": config.prompt_tokens,
        "sample_tokens": config.sample_tokens,
        "samples": [
            {
                "language": language,
                "prompt": plain_text(prompt, tokenizer),
                "text": tokenizer.decode(generate(prompt, config.sample_tokens))
                if generate
                else "",
            }
            for language, prompt in chosen
        ],
    }
