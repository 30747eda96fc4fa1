"""Export target `transformers`: a folder that plain transformers (and vLLM) loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stamm.base.errors import DataError
from stamm.base.files import read_json, write_bytes, write_json, write_text
from stamm.base.receipts import check_file
from stamm.chat.chatml_llama3 import SYNTAXES, default_traits, turn_template
from stamm.chat.formats import ApertusFormat, chat_template
from stamm.chat.render import ASSISTANT_END, ASSISTANT_START
from stamm.chat.template_files import TEMPLATE, as_trained, config_as_trained, folder_template
from stamm.export.reward_model import sequence_classifier
from stamm.export.runtime_support import TransformersSupport
from stamm.export.target import CardText, LoadedExport, TargetPlan
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.hf_files import CONFIG, WEIGHTS, end_ids
from stamm.models.hub import (
    CODE,
    HubModel,
    HubSpecialIds,
    hub_code,
    hub_config,
    hub_state,
    hub_version,
    written_class,
)
from stamm.models.hub_folder import load_hub
from stamm.models.weight_shards import shard_file, split_shards, write_weights
from stamm.tokenizer.imported import (
    ImportedTokenizer,
    named_token,
    read_tokenizer_config,
)
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID, PAD_ID, RESERVED_TOKENS, UNKNOWN_ID
from stamm.tokenizer.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
# Of each format: the token that starts a turn, the one that ends it, other stop tokens, padding.
_FORMATS = (
    (ASSISTANT_START, ASSISTANT_END, (RESERVED_TOKENS[END_ID],), (RESERVED_TOKENS[PAD_ID],)),
    *((syntax.start, syntax.end, syntax.stops, syntax.pads) for syntax in SYNTAXES),
)
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
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

_CHAT_USAGE = _USAGE.replace(
    'tokens = tokenizer("Once", return_tensors="pt")',
    'chat = [{"role": "user", "content": "Hello"}]\n'
    "tokens = tokenizer.apply_chat_template(\n"
    '    chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"\n'
    ")",
)


def _with_own_code(usage: str) -> str:
    loading = "CausalLM.from_pretrained(folder"
    return (
        usage.replace(f"{loading})", f"{loading}, trust_remote_code=True)")
        + f"\n\ntransformers does not have this activation: `{CODE}` computes it and is executed with"
        " `trust_remote_code=True`."
    )


class TransformersTarget(TransformersSupport):
    """Apertus, Arcee, Qwen3, Llama, Qwen3Moe and Mixtral layouts of transformers, as `hub_class` chooses."""

    def __init__(self) -> None:
        super().__init__()
        self._own_tokenizer = True

    def plan(self, model: Decoder) -> TargetPlan:
        """The files of weights; transformers loads them in float32."""
        options, state = self._options, hub_state(model)
        dtypes = weight_dtypes(state, options.quantization)
        stored = {name: t.numel() * dtypes[name].itemsize for name, t in state.items()}
        shards = split_shards(stored, options.max_shard_bytes)
        files = {
            shard_file(number, len(shards)) if len(shards) > 1 else WEIGHTS: sum(
                stored[name] for name in names
            )
            for number, names in enumerate(shards, 1)
        }
        return TargetPlan(
            files=files,
            engine=sum(4 * tensor.numel() for tensor in state.values()),
            converted=options.quantization != "F32",
        )

    def reward_class(self, model: Decoder) -> str:
        """The sequence classifier of transformers, as `sequence_classifier`."""
        return sequence_classifier(model)

    def write(self, folder: Path, model: Decoder, tokenizer: Path) -> None:
        """Write the folder, as `write_folder`."""
        options = self._options
        self._own_tokenizer = not (tokenizer.parent / TOKENIZER_CONFIG).is_file()
        write_folder(folder, model, tokenizer, options.quantization, options.max_shard_bytes)

    def write_chat(self, folder: Path, tokenizer: Path, max_context: int) -> None:
        """Add the chat format, as `write_chat_files`."""
        write_chat_files(folder, tokenizer, max_context, self._options.chat_format)

    def load(self, folder: Path) -> LoadedExport:
        """The folder in transformers; for xIELU also our decoder with its order of evaluation.

        Raises   ExportError when transformers does not load it.
        """
        rounded = self._options.quantization != "F32"
        model = HubModel(folder, rounded=rounded)
        kind = written_class(folder)
        architecture = kind.own_code or kind.architecture
        template = folder_template(folder)
        chat = bool(template)
        usage = _CHAT_USAGE if chat else _USAGE
        if "enable_thinking" in template:  # what stamm's sampling writes without deliberation
            usage = usage.replace("return_dict", "enable_thinking=False, return_dict")
        own_order = kind.hidden_act == "xielu" and not rounded
        same = {SAME_ORDER: load_hub(folder, compat="eps")} if own_order else {}
        return LoadedExport(
            description=f"transformers {hub_version()} {architecture}{', BF16 weights' * rounded}",
            logits=model.logits,
            encode=model.encode if self._own_tokenizer and not chat else model.encode_split,
            decode=model.decode,
            generate=model.write,
            encode_chat=model.encode_chat if chat else None,
            references=same,
            rounded=rounded,
            card=CardText(
                library="transformers",
                architecture=architecture,
                usage=_with_own_code(usage) if kind.own_code else usage,
            ),
        )


def write_folder(
    folder: Path,
    decoder: Decoder,
    tokenizer: Path,
    quantization: str = "F32",
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write config.json, model.safetensors, generation_config.json and the tokenizer's two files.

    An activation that transformers does not have comes as Python code, modeling_stamm.py.

    tokenizer         a tokenizer.json, copied byte for byte
    quantization      F32 or BF16; xIELU's parameters stay F32
    max_shard_bytes   largest file of weights

    Raises   ExportError when no class of transformers holds the decoder.
    """
    state = hub_state(decoder)
    write_weights(folder, state, weight_dtypes(state, quantization), max_shard_bytes)
    name = str(_DTYPES[quantization]).removeprefix("torch.")
    write_companions(folder, decoder.config, tokenizer, name)


def weight_dtypes(names: Iterable[str], quantization: str) -> dict[str, torch.dtype]:
    """The dtype of each tensor in the files; xIELU's parameters stay F32."""
    dtype = _DTYPES[quantization]
    return {name: torch.float32 if "act_fn" in name else dtype for name in names}


def write_companions(
    folder: Path, config: DecoderConfig, tokenizer: Path, dtype: str = "float32"
) -> None:
    """Write config.json, the code that it names, generation_config.json and the tokenizer's two files."""
    if code := hub_code(config):
        write_text(folder / CODE, code)
    write_json(folder / CONFIG, hub_config(config, SPECIAL, dtype))
    write_json(folder / "generation_config.json", generation_config())
    check_file(tokenizer)
    write_bytes(folder / TOKENIZER, tokenizer.read_bytes())
    write_json(folder / TOKENIZER_CONFIG, tokenizer_config(config.max_context))


def write_chat_files(
    folder: Path, tokenizer: Path, max_context: int, chat_format: str = ""
) -> None:
    """Write chat_template.jinja, and configurations in which the end of an answer ends generation.

    In a chat template transformers must read control tokens, so that it reads them in plain texts,
    too; the template of stamm's own models changes those that a message spells out.

    folder        a folder that `write_folder` has written
    tokenizer     tokenizer.json; that of an imported model has its configuration beside it
    chat_format   see ExportOptions; a model that was fine-tuned has its `trained_template`

    Raises   DataError when a file cannot be read.
    """
    beside = tokenizer.parent
    if not (beside / TOKENIZER_CONFIG).is_file():
        end = RESERVED_TOKENS.index(ASSISTANT_END)
        special, ends = replace(SPECIAL, end=end), [end, END_ID]
        write_text(folder / TEMPLATE, chat_template())
        config = tokenizer_config(max_context)
        config.update(eos_token=ASSISTANT_END, split_special_tokens=False)
        write_json(folder / TOKENIZER_CONFIG, config)
    else:
        for name in (TEMPLATE, TOKENIZER_CONFIG):
            if (beside / name).is_file():
                check_file(beside / name)
                write_bytes(folder / name, (beside / name).read_bytes())
        config = read_tokenizer_config(beside)
        if chat_format:
            config = config_as_trained(config)
            # True in models without chat; the template has control tokens.
            if "split_special_tokens" in config:
                config["split_special_tokens"] = False
            if chat_format == ApertusFormat.name or (beside / TEMPLATE).is_file():
                config.pop("chat_template", None)
            if "chat_template" not in config:
                write_text(folder / TEMPLATE, trained_template(beside, chat_format))
        if config != read_json(beside / TOKENIZER_CONFIG):
            write_json(folder / TOKENIZER_CONFIG, config)
        special, ends = imported_special_ids(beside)
    ids = {
        "bos_token_id": special.begin,
        "eos_token_id": special.end,
        "pad_token_id": special.pad,
    }
    write_json(folder / CONFIG, {**read_json(folder / CONFIG), **ids})
    generation = {**generation_config(), **ids, "eos_token_id": ends}
    write_json(folder / "generation_config.json", generation)


def trained_template(folder: Path, chat_format: str) -> str:
    """The template that writes what a model was trained with.

    It is stamm's for "apertus", since the published one writes other ids; else the one of the
    tokenizer's folder, without today's date, or that of the format for a folder without one, as of base
    models.
    """
    if chat_format == ApertusFormat.name:
        return chat_template()
    if text := folder_template(folder):
        return as_trained(text)
    syntax = next(syntax for syntax in SYNTAXES if syntax.name == chat_format)
    return turn_template(syntax, default_traits(syntax, ImportedTokenizer.load(folder).has))


def imported_special_ids(folder: Path) -> tuple[HubSpecialIds, list[int]]:
    """The special ids of an imported model's tokenizer folder, and all ids that end an answer."""
    config = read_tokenizer_config(folder)
    tokenizer = ImportedTokenizer.load(folder)
    named = {name: named_token(config, name) for name in ("bos_token", "eos_token", "pad_token")}
    texts, pads = [named["eos_token"]], [named["pad_token"]]
    for start, turn_end, stops, padding in _FORMATS:
        if tokenizer.has(start):
            texts += [turn_end, *stops]
            pads += [token for token in padding if token != turn_end]
    known = [tokenizer.control_id(text) for text in texts if tokenizer.has(text)]
    ends = dict.fromkeys([*known, *end_ids(folder)])
    if not ends:
        raise DataError(f"{folder / TOKENIZER_CONFIG} has no eos_token")
    end = next(iter(ends))

    def first(texts: Iterable[str]) -> int:
        return next((tokenizer.control_id(text) for text in texts if tokenizer.has(text)), end)

    special = HubSpecialIds(begin=first([named["bos_token"]]), end=end, pad=first(pads))
    return special, list(ends)


def turn_ends(tokenizer: Tokenizer | ImportedTokenizer) -> dict[int, str]:
    """Ids and texts of the tokens with which the known chat formats end a turn."""
    if isinstance(tokenizer, Tokenizer):
        return {tokenizer.control_id(ASSISTANT_END): ASSISTANT_END}
    end_tokens = [end for start, end, *_ in _FORMATS if tokenizer.has(start) and tokenizer.has(end)]
    return {tokenizer.control_id(text): text for text in end_tokens}


def open_tokenizer(file: Path) -> Tokenizer | ImportedTokenizer:
    """The tokenizer of a model: an imported one has its configuration beside it.

    It encodes as the exported files do in their engine. `open_model` reads the chat template too, and
    tokens that only the template writes, such as <think>, are control tokens to it.
    """
    imported = (file.parent / TOKENIZER_CONFIG).is_file()
    return ImportedTokenizer.load(file) if imported else Tokenizer.load(file)


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
