"""Import a Hugging Face folder or a GGUF file, so that training starts from a stored decoder.

Reads    source (a Hugging Face folder: Llama, Mistral, Phi-3, Qwen2, Qwen3, Apertus or Arcee; or a GGUF
         file of Llama, Qwen2, Qwen3 or Apertus)
Leaves   model/ (decoder.json; model.safetensors: a hard link to the folder's file, or a copy in bfloat16
         where the folder has it, else float32), tokenizer/ (tokenizer.json and, where the folder
         has them, tokenizer_config.json, chat_template.jinja, and generation_config.json with the
         tokens that end a text), import.json

Checked  tests/unit/align/test_import_job.py
"""

from __future__ import annotations

from pathlib import Path

from stamm.align.import_config import ImportConfig
from stamm.base.errors import DataError
from stamm.base.files import remove_leftovers, sha256_file, write_bytes, write_json
from stamm.base.schema import write_record
from stamm.chat.formats import ChatFormat
from stamm.chat.records import ImportFile
from stamm.chat.template_files import CONFIG as TOKENIZER_CONFIG
from stamm.chat.template_files import TEMPLATE
from stamm.export.gguf_import import GgufModel
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.hf_files import GENERATION, TOKENIZER, end_ids, hub_weights_sha256
from stamm.models.hub_folder import HubWeights, open_hub
from stamm.models.loading import check_vocabulary, unused_of
from stamm.models.mapped_weights import drop_pages
from stamm.models.model_source import find_model
from stamm.models.serialization import link_weights, save_decoder, save_weights
from stamm.runs.job import Workspace
from stamm.tokenizer.imported import (
    SPECIAL_TOKENS,
    ImportedTokenizer,
    read_tokenizer_config,
)

RECORD = "import.json"


def run(config: ImportConfig, workspace: Workspace) -> None:
    """Write the decoder and the tokenizer of inputs["source"].

    Raises   DataError when a stamm decoder cannot represent the model, its tokenizer has more ids
             than the model, or its chat format is needed and not supported.
    """
    folder, progress = workspace.folder, workspace.progress
    remove_leftovers(folder)
    source, written = workspace.inputs["source"], folder / "tokenizer"
    gguf = GgufModel(source) if source.is_file() else None
    progress.begin("import", 2, "stages")
    if gguf is not None:
        gguf.write_tokenizer(written)
    elif find_model(str(source)).kind != "hub":
        raise DataError(f"{source} is a run of stamm's: it needs no import")
    described = source if gguf is None else written
    chat = _chat_format(config, described)
    tokenizer = ImportedTokenizer.load(described)
    weights = open_hub(source) if gguf is None else gguf.decoder()
    check_vocabulary(weights.config, tokenizer.size, source)
    unknown, sentences = unused_of(source, gguf.unknown if gguf is not None else None)
    for sentence in sentences:
        progress.log(sentence)
    progress.advance(1, "read")
    for name in (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE):
        if gguf is None and (source / name).is_file():
            write_bytes(written / name, (source / name).read_bytes())
    if gguf is None and (source / SPECIAL_TOKENS).is_file():
        write_json(written / TOKENIZER_CONFIG, read_tokenizer_config(source))
    if gguf is None and (ends := end_ids(source)):
        write_json(written / GENERATION, {"eos_token_id": list(ends)})
    if isinstance(weights, HubWeights):
        _store(weights, folder / "model")
    else:
        save_decoder(weights, folder / "model")
    record = {
        "folder": source.resolve().name,
        "weights_sha256": hub_weights_sha256(source) if gguf is None else sha256_file(source),
        "tokenizer_sha256": tokenizer.sha256,
        "chat_format": chat.name if chat else "",
        "chat_sha256": chat.sha256 if chat else "",
        "quantization": "" if gguf is None else gguf.quantization,
        "unknown_keys": unknown.counts(),
    }
    write_record(folder / RECORD, ImportFile, record)
    named = chat.name if chat else "no chat format"
    progress.end(f"{named}, {weights.config.vocab_size:,} tokens")


def _store(weights: HubWeights, folder: Path) -> None:
    """Store the decoder of a Hugging Face folder: a hard link to its file where that is possible, else a copy."""
    file = weights.file
    if file is not None:
        for name in weights.tensors:
            drop_pages(weights.read(name))  # which checks the values
        if link_weights(weights.config, file, weights.names, folder):
            return
    save_weights(weights.config, weights.read, folder, weights.dtypes)


def _chat_format(config: ImportConfig, folder: Path) -> ChatFormat | None:
    try:
        return load_chat_format(folder)
    except DataError:
        if config.chat:
            raise
        return None
