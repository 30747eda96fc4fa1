"""Find and load a model to talk to or to align: a run of stamm's, or a Hugging Face folder.

source = find_model("runs/demo", "xielu")
model = load_chat_model(source)
ids = model.chat.encode(conversation, prompt=True).ids
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stamm.align.hf_chat_format import load_folder_chat
from stamm.base.config import from_plain, nearest
from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json
from stamm.base.known_keys import UnknownKeys
from stamm.chat.formats import ChatFormat
from stamm.chat.render import ChatTokenizer
from stamm.corpus.tokenizer.imported import CONFIG as TOKENIZER_CONFIG
from stamm.corpus.tokenizer.imported import CONFIG_KEYS
from stamm.corpus.tokenizer.tokenizer import FILE
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.hf_files import CONFIG, is_hub_folder, unused_keys, weight_files
from stamm.models.hub_folder import hub_weights_sha256, load_hub, load_hub_config
from stamm.models.serialization import load_decoder
from stamm.runs.arms import input_of_arm, trained_arms
from stamm.runs.model_outputs import DECODER, read_chat_record, weights_sha256


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model on disk.

    kind        "run": a stored decoder of stamm's; "hub": a folder in the layout of transformers
    model       the folder of the weights
    tokenizer   the folder with tokenizer.json
    """

    kind: Literal["run", "hub"]
    model: Path
    tokenizer: Path


@dataclass(frozen=True, kw_only=True)
class ChatModel:
    """A model in memory with its chat format.

    decoder            float32, on the CPU, in evaluation mode
    tokenizer          encodes plain text; a text never becomes a control token
    weights_sha256     of the weights' file; of a Hugging Face folder with several files, of their hashes
    tokenizer_sha256   of tokenizer.json
    """

    decoder: Decoder
    chat: ChatFormat
    tokenizer: ChatTokenizer
    weights_sha256: str
    tokenizer_sha256: str


def find_model(path: str, arm: str | None = None) -> ModelSource:
    """The model at `path`: a run folder, one arm of it, or a Hugging Face folder.

    arm   of a run folder with several arms

    Raises   RunError when the folder holds no model, several without `arm`, or not that arm;
             DataError for a Hugging Face folder without a file that is needed.
    """
    root = Path(path)
    if not root.is_dir():
        raise RunError(f"{root} is not a folder", fix="Name a run folder or a Hugging Face folder")
    if is_hub_folder(root):
        if arm is not None:
            raise RunError(f"{root} is a Hugging Face folder, which has no arms")
        return _hub_source(root)
    arms = {found.name: found for found in trained_arms(root)}
    if not arms:
        running = (root / CONFIG).is_file()
        raise RunError(
            f"{root} holds no trained model",
            fix="Finish its run first" if running else "`stamm ls runs` lists the runs",
        )
    if arm is None and len(arms) > 1:
        named = ", ".join(str(found) for found in arms.values())
        raise RunError(f"{root} holds {len(arms)} trained models", fix=f"Name one: {named}")
    if arm is not None and arm not in arms:
        raise RunError(f"{root} has no arm {arm!r}", fix=nearest(arm, arms))
    found = next(iter(arms.values())) if arm is None else arms[arm]
    return ModelSource(
        kind="run", model=found / "model", tokenizer=input_of_arm(found, "tokenizer")
    )


def source_of(model: Path, tokenizer: Path) -> ModelSource:
    """The source of a model folder: a stored decoder of stamm's, or else a Hugging Face folder."""
    kind: Literal["run", "hub"] = "run" if (model / DECODER).is_file() else "hub"
    return ModelSource(kind=kind, model=model, tokenizer=tokenizer)


def config_of(source: ModelSource) -> DecoderConfig:
    """The configuration of the decoder of a source, without its weights.

    Raises   DataError for a file that does not describe a decoder of stamm's
    """
    if source.kind == "hub":
        return load_hub_config(source.model)
    path = source.model / DECODER
    return from_plain(DecoderConfig, read_json(path)["decoder"], str(path))


def load_chat_model(source: ModelSource) -> ChatModel:
    """The decoder of a source with its chat format.

    Raises   DataError when files are damaged, when the model has fewer tokens than the tokenizer,
             when its chat format is not supported, or is another than the one it was fine-tuned with.
    """
    loaded = load_folder_chat(source.tokenizer)
    trained = read_chat_record(source.model)
    if trained is not None and trained.sha256 != loaded.chat.sha256:
        raise DataError(
            f"the model was fine-tuned with the chat format {trained.format} {trained.sha256[:12]}, "
            f"and its tokenizer has {loaded.chat.name} {loaded.chat.sha256[:12]}",
            where=str(source.tokenizer),
            fix="Use the tokenizer, and the version of stamm, that it was trained with",
        )
    hub = source.kind == "hub"
    decoder = load_hub(source.model) if hub else load_decoder(source.model)
    check_vocabulary(decoder.config, loaded.tokenizer.size, source.tokenizer)
    return ChatModel(
        decoder=decoder,
        chat=loaded.chat,
        tokenizer=loaded.tokenizer,
        weights_sha256=(hub_weights_sha256 if hub else weights_sha256)(source.model),
        tokenizer_sha256=loaded.tokenizer.sha256,
    )


def unused_of(
    source: Path, unknown_keys: Sequence[str] | None = None
) -> tuple[UnknownKeys, list[str]]:
    """The unknown keys of a model's files, and sentences about what is not used.

    source         a Hugging Face folder, or a GGUF file
    unknown_keys   of a GGUF file

    Raises   DataError when a file of the folder is not a JSON object.
    """
    unknown, sentences = UnknownKeys(), list[str]()
    if unknown_keys is not None:
        unknown.add(unknown_keys)
    else:
        unknown, sentences = unused_keys(source)
        if (source / TOKENIZER_CONFIG).is_file():
            unknown.add(CONFIG_KEYS.unknown(read_json(source / TOKENIZER_CONFIG)))
    named = unknown.sentence(str(source))
    return unknown, [*sentences, *([named] if named else [])]


def load_chat_format(folder: Path) -> ChatFormat:
    """The chat format of a folder with tokenizer.json: the Apertus format for a run of stamm's, and
    for others the one that their template has.

    Raises   DataError when a file cannot be read, or the chat format is not supported.
    """
    return load_folder_chat(folder).chat


def check_vocabulary(config: DecoderConfig, size: int, where: Path) -> None:
    """Check that the decoder has an embedding for each id of a tokenizer of `size` ids.

    Raises   DataError with both numbers.
    """
    if config.vocab_size < size:
        raise DataError(
            f"the tokenizer has {size} ids, and the model {config.vocab_size}",
            where=str(where / FILE),
            fix="Use the tokenizer that the model was trained with",
        )


def _hub_source(root: Path) -> ModelSource:
    for name in weight_files(root):
        if not (root / name).is_file():
            raise DataError(
                f"{root} has no {name}", fix="Other formats are not read: save it as safetensors"
            )
    if not (root / FILE).is_file():
        raise DataError(
            f"{root} has no {FILE}",
            fix="Save the tokenizer with transformers (a fast tokenizer's save_pretrained)",
        )
    return ModelSource(kind="hub", model=root, tokenizer=root)
