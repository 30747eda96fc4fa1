"""The files that transformers reads, written from a decoder and a tokenizer. Nothing is loaded here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from stamm.base.files import atomic, write_bytes, write_json
from stamm.corpus.special_tokens import BEGIN_ID, END_ID, PAD_ID, RESERVED_TOKENS, UNKNOWN_ID
from stamm.models.decoder import Decoder
from stamm.models.hub import CONFIG, WEIGHTS, SpecialIds, hub_config, hub_state

TOKENIZER = "tokenizer.json"
SPECIAL = SpecialIds(begin=BEGIN_ID, end=END_ID, pad=PAD_ID)


def write_folder(folder: Path, decoder: Decoder, tokenizer: Path) -> None:
    """Write config.json, model.safetensors, generation_config.json and the tokenizer's two files.

    tokenizer   a tokenizer.json, copied byte for byte

    Raises   ExportError when no class of transformers holds the decoder.
    """
    write_json(folder / CONFIG, hub_config(decoder.config, SPECIAL))
    with atomic(folder / WEIGHTS) as temporary:
        # transformers refuses weights that do not say which library's layout they have
        save_file(hub_state(decoder), temporary, metadata={"format": "pt"})
    write_json(folder / "generation_config.json", generation_config())
    write_bytes(folder / TOKENIZER, tokenizer.read_bytes())
    limit = decoder.config.max_context
    write_json(folder / "tokenizer_config.json", tokenizer_config(limit))


def generation_config() -> dict[str, Any]:
    """The content of generation_config.json: greedy, ended by </s>."""
    return {
        "do_sample": False,
        "bos_token_id": SPECIAL.begin,
        "eos_token_id": SPECIAL.end,
        "pad_token_id": SPECIAL.pad,
    }


def tokenizer_config(max_context: int) -> dict[str, Any]:
    """The content of tokenizer_config.json.

    Control tokens spelled out in a text stay text, as in training: a document that says "</s>"
    does not end. <s> is put first by tokenizer.json itself.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": RESERVED_TOKENS[BEGIN_ID],
        "eos_token": RESERVED_TOKENS[END_ID],
        "pad_token": RESERVED_TOKENS[PAD_ID],
        "unk_token": RESERVED_TOKENS[UNKNOWN_ID],
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_context,
    }
