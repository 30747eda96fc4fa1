"""Export target `transformers`: a folder that plain transformers (and vLLM) loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from stamm.base.files import atomic, write_bytes, write_json, write_text
from stamm.corpus.special_tokens import BEGIN_ID, END_ID, PAD_ID, RESERVED_TOKENS, UNKNOWN_ID
from stamm.export.target import CardText, LoadedExport
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.hf_architecture import hub_class, unsupported_reasons
from stamm.models.hub import (
    CODE,
    CONFIG,
    WEIGHTS,
    HubModel,
    HubSpecialIds,
    hub_code,
    hub_config,
    hub_state,
    hub_version,
    load_hub,
)

TOKENIZER = "tokenizer.json"
SPECIAL = HubSpecialIds(begin=BEGIN_ID, end=END_ID, pad=PAD_ID)
# Separates differences of the layout (there are none) from those of the order of evaluation.
SAME_ORDER = ", xIELU evaluated in the order of transformers"
_USAGE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
tokens = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=40)[0]))
```"""

_OWN_CODE_USAGE = (
    _USAGE.replace(
        "CausalLM.from_pretrained(folder)",
        "CausalLM.from_pretrained(folder, trust_remote_code=True)",
    )
    + f"\n\ntransformers does not have this activation: `{CODE}` computes it and is executed with"
    " `trust_remote_code=True`."
)


class TransformersTarget:
    """Apertus, Arcee, Qwen3 and Llama layouts of transformers, as `hub_class` chooses."""

    name = "transformers"

    def check(self, config: DecoderConfig) -> Sequence[str]:
        """Why no class of transformers holds the model; empty when one does."""
        return unsupported_reasons(config)

    def write(self, folder: Path, model: Decoder, tokenizer: Path) -> None:
        """Write the folder, as `write_folder`."""
        write_folder(folder, model, tokenizer)

    def load(self, folder: Path) -> LoadedExport:
        """The folder in transformers; for xIELU also our decoder with its order of evaluation.

        Raises   ExportError when transformers does not load it.
        """
        model = HubModel(folder)
        kind = hub_class(load_hub(folder).config)
        architecture = kind.own_code or kind.architecture
        same = {SAME_ORDER: load_hub(folder, compat="eps")} if kind.hidden_act == "xielu" else {}
        return LoadedExport(
            description=f"transformers {hub_version()} {architecture}",
            logits=model.logits,
            encode=model.encode,
            decode=model.decode,
            generate=model.write,
            references=same,
            card=CardText(
                library="transformers",
                architecture=architecture,
                usage=_OWN_CODE_USAGE if kind.own_code else _USAGE,
            ),
        )


def write_folder(folder: Path, decoder: Decoder, tokenizer: Path) -> None:
    """Write config.json, model.safetensors, generation_config.json and the tokenizer's two files.

    An activation that transformers does not have comes as Python code, modeling_stamm.py.

    tokenizer   a tokenizer.json, copied byte for byte

    Raises   ExportError when no class of transformers holds the decoder.
    """
    write_json(folder / CONFIG, hub_config(decoder.config, SPECIAL))
    with atomic(folder / WEIGHTS) as temporary:
        # transformers refuses weights that do not say which library's layout they have
        save_file(hub_state(decoder), temporary, metadata={"format": "pt"})
    if code := hub_code(decoder.config):
        write_text(folder / CODE, code)
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

    Control tokens spelled out in a text stay text, as in training: "</s>" in a document does not
    end it. tokenizer.json itself prepends <s>.
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
