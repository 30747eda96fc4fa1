"""Export one trained decoder to a target, and check parity of its logits with the original.

Reads    model (a stored decoder; chat.json in it marks a chat model), tokenizer, pack (optional:
         held-out text for the parity report and the samples, and the data section of the model
         card); the prepared data that the manifest beside the model names, for the model card of an
         aligned one, and its held-out rows where there is no pack; the file `held_out`
Leaves   export/TARGET/: the files of the target, parity.json, samples.json (if the target generates
         text), README.md

The folder is written and checked under a hidden name and renamed when all checks hold; until then
an earlier export stays unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.config import check_unread
from stamm.base.errors import ConfigError, ExportError, RunError
from stamm.base.files import atomic_folder, sha256_file, write_text
from stamm.base.schema import write_record
from stamm.chat.conversation import to_messages
from stamm.chat.formats import ApertusFormat
from stamm.chat.records import ChatModelFile
from stamm.chat.template_traits import PROBES
from stamm.corpus.packed_dataset import PackedSplit
from stamm.export import parity
from stamm.export.alignment_card import alignment_summaries
from stamm.export.config import (
    NOT_MEASURED,
    ExportConfig,
    check_sample_length,
    check_without_text,
    set_options,
)
from stamm.export.held_out import (
    HeldOut,
    HeldOutText,
    bits_agreement,
    greedy_agreement,
    held_out_file,
    held_out_rows,
    held_out_texts,
    plain_text,
    token_agreement,
)
from stamm.export.model_card import model_card, origin_of
from stamm.export.records import LogitDifference, ParityFile, SamplesFile
from stamm.export.registry import guarded_target, load_target
from stamm.export.reward_model import (
    add_head,
    rendered_chat,
    reward_card,
    reward_difference,
)
from stamm.export.samples import prompts, write_samples
from stamm.export.target import ChatTarget, ExportTarget, LoadedExport, RewardTarget
from stamm.export.transformers_target import open_tokenizer, turn_ends
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.determinism import set_determinism
from stamm.models.hf_chat_format import AnyTokenizer
from stamm.models.reward_head import load_head
from stamm.models.serialization import load_decoder
from stamm.runs.arms import prepared_data_of_arm
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import (
    HEAD,
    aside_folder,
    read_change,
    read_chat_record,
    recorded_sha256,
    weights_sha256,
)
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.special_tokens import BEGIN_ID
from stamm.tokenizer.tokenizer import FILE

PARITY = "parity.json"
# Texts that two readers of one tokenizer.json are known to tokenize differently.
TRICKY = ("", " two  blanks ", "</s> <s> <pad>", "it 's , a <email-pii> .", "日本\n\n語\t🙂")
OWN_ERRORS, MOST_TOLERANCES = 4, 10
"""Where float32 itself is too inexact for the gate: it becomes 4 times its error, at most 10 times wider."""


def run(config: ExportConfig, workspace: Workspace) -> None:
    """Write the target's folder and check it; an earlier export is replaced only then.

    Raises   RunError when the folder exists and is not an export; ExportError when the target cannot
             hold the model, or when the loaded export differs from it.
    """
    target = load_target(config.target)
    tokenizer = open_tokenizer(_tokenizer_file(workspace))
    is_reward = (workspace.inputs["model"] / HEAD).is_file()
    held_out = None if is_reward else _held_out(config, workspace, tokenizer)
    texts = held_out_texts(held_out, tokenizer, config.held_out_tokens)
    chat = read_chat_record(workspace.inputs["model"])
    set_options(target, config, chat.format if chat else "", [document.text for document in texts])
    finished = workspace.folder / target.name
    _check_replaceable(finished)
    set_determinism(config.threads)
    # Targets hold dense matrices: structured ones are multiplied out.
    decoder = load_decoder(workspace.inputs["model"], mapped=True).merged()
    _check_target(target, decoder.config)
    architecture = _reward_class(target, decoder) if is_reward else ""
    _check_read(config, is_reward=is_reward, has_text=bool(texts))
    if texts:
        check_sample_length(config, decoder.config.max_context)
    with atomic_folder(finished, lambda unverified: _aside(finished, unverified)) as unverified:
        if architecture:
            _export_reward(config, workspace, decoder, target, unverified, architecture)
        else:
            _export(config, workspace, decoder, target, unverified, tokenizer, held_out, texts)


def _reward_class(target: ExportTarget, decoder: Decoder) -> str:
    if not isinstance(target, RewardTarget):
        raise ExportError(
            f"the model is a reward model, and the target {target.name} has no place for its head",
            fix="Set target=transformers",
        )
    return guarded_target(target, lambda: target.reward_class(decoder))


def _check_read(config: ExportConfig, *, is_reward: bool, has_text: bool) -> None:
    """Raise ConfigError for a setting that the export of this model does not read."""
    reward = "the model is a reward model, in float32"
    if is_reward:
        check_without_text(config, reward, gate=False)
    elif not has_text:
        check_without_text(config)
    check_unread(
        config,
        ("quantization", is_reward, reward),
        ("held_out", is_reward, reward),
    )


def _tokenizer_file(workspace: Workspace) -> Path:
    source = workspace.inputs["tokenizer"]
    return source / FILE if source.is_dir() else source


def _held_out(
    config: ExportConfig, workspace: Workspace, tokenizer: AnyTokenizer
) -> HeldOut | None:
    """Held-out text: the file of the settings, the pack's, or rows of the model's alignment data."""
    if config.held_out == NOT_MEASURED:
        return None
    if config.held_out_file:
        return held_out_file(Path(config.held_out_file), tokenizer, config.held_out_tokens)
    if (pack := workspace.inputs.get("pack")) is not None:
        return PackedSplit.open(pack, "held_out")
    folders = prepared_data_of_arm(workspace.inputs["model"].parent)
    return held_out_rows(folders, config.held_out_tokens)


def _held_out_source(config: ExportConfig, workspace: Workspace) -> str:
    """The name of the held-out text for parity.json and the model card, with the SHA-256 of a file."""
    if config.held_out_file:
        path = Path(config.held_out_file)
        return f"the file {path.name}, SHA-256 {sha256_file(path)}"
    if "pack" in workspace.inputs:
        return "the packed corpus"
    return "held-out rows of the alignment data"


def _check_target(target: ExportTarget, config: DecoderConfig) -> None:
    problems = guarded_target(target, lambda: list(target.check(config)))
    if problems:
        raise ExportError(
            f"the model cannot be exported to {target.name}: {'; '.join(map(str, problems))}",
            fix="Choose another with export.target",
        )


def _export(
    config: ExportConfig,
    workspace: Workspace,
    decoder: Decoder,
    target: ExportTarget,
    folder: Path,
    tokenizer: AnyTokenizer,
    held_out: HeldOut | None,
    documents: Sequence[HeldOutText],
) -> None:
    progress = workspace.progress
    progress.begin("export", 4, "stages")
    sha256 = weights_sha256(workspace.inputs["model"])
    tokenizer_file = _tokenizer_file(workspace)
    guarded_target(target, lambda: target.write(folder, decoder, tokenizer_file))
    chat = read_chat_record(workspace.inputs["model"])
    imported = (tokenizer_file.parent / "tokenizer_config.json").is_file()
    if (chat is not None or imported) and isinstance(target, ChatTarget):
        limit = decoder.config.max_context
        guarded_target(target, lambda: target.write_chat(folder, tokenizer_file, limit))
    progress.advance(1, "written")
    loaded = guarded_target(target, lambda: target.load(folder))
    if not isinstance(loaded, LoadedExport):
        raise ConfigError(
            f"{type(target).__name__}.load returned {type(loaded).__name__}, not a LoadedExport",
            fix="Return stamm.export.target.LoadedExport",
        )
    progress.advance(2, "loaded")
    for remark in loaded.remarks:
        progress.log(remark)
    texts = [] if held_out is None else held_out_tokens(config, decoder, held_out)
    differences = guarded_target(target, lambda: compare(config, decoder, loaded, texts))
    tolerance = config.tolerance
    rounded = config.rounded or loaded.rounded
    if rounded:
        parity.require_finite(differences)
    else:
        if not all(difference.within(tolerance) for difference in differences):
            own = float64_error(config, decoder, texts)
            tolerance = max(tolerance, min(OWN_ERRORS * own, MOST_TOLERANCES * tolerance))
        parity.require(differences, tolerance)
    tokens = guarded_target(target, lambda: token_agreement(documents, tokenizer, loaded))
    parity.require_tokens(tokens, loaded.token_limit)
    if not loaded.token_limit:
        guarded_target(target, lambda: check_tokenizer(loaded, tokenizer, texts))
    bits = guarded_target(target, lambda: bits_agreement(documents, decoder, loaded.logits))
    described = _held_out_source(config, workspace) if documents else ""
    measured = not rounded or config.held_out != NOT_MEASURED
    if rounded and measured:
        parity.require_bits(bits, config.bits_tolerance)
    starts = [] if held_out is None else [tokens for _, tokens in prompts(config, held_out)]
    same = guarded_target(
        target, lambda: greedy_agreement(starts, decoder, loaded, config.sample_tokens)
    )
    if chat is not None:
        guarded_target(target, lambda: check_chat(loaded, tokenizer, chat))
    progress.advance(3, "parity checked")
    report = parity.report(
        differences,
        tolerance,
        loaded.description,
        sha256,
        bits_tolerance=config.bits_tolerance if rounded and measured else None,
        held_out=described,
        measured=measured,
        remarks=loaded.remarks,
        tokens=tokens,
        bits=bits,
        greedy=same,
    )
    write_record(folder / PARITY, ParityFile, {**report, **_files(folder)})
    if loaded.generate is not None:
        samples = write_samples(config, loaded, tokenizer, held_out)
        write_record(folder / "samples.json", SamplesFile, samples)
    pack = workspace.inputs.get("pack")
    origin = None if pack is None else origin_of(PackedSplit.open(pack, "train"))
    alignment = alignment_summaries(workspace.inputs["model"])
    card = model_card(
        decoder, origin, config.licence, differences, loaded.card, sha256, alignment, tokens, bits, same,
        held_out=described, measured=measured, remarks=loaded.remarks,
        change=read_change(workspace.inputs["model"]),
    )  # fmt: skip
    write_text(folder / "README.md", card)
    wrong = sum(row.differing for row in tokens)
    progress.end(
        f"logits differ by {max(difference.max_relative for difference in differences):.1e}"
        f"{f', {wrong} token ids of {sum(row.tokens for row in tokens)}' * bool(tokens)}"
        f"{', bits per byte not measured' * (not measured)}"
    )


def _export_reward(
    config: ExportConfig,
    workspace: Workspace,
    decoder: Decoder,
    target: ExportTarget,
    folder: Path,
    architecture: str,
) -> None:
    inputs, progress = workspace.inputs, workspace.progress
    progress.begin("export", 2, "stages")
    file, sha256 = _tokenizer_file(workspace), weights_sha256(inputs["model"])
    head_D = load_head(inputs["model"], decoder.config.d_model, sha256)
    target.write(folder, decoder, file)
    if isinstance(target, ChatTarget) and read_chat_record(inputs["model"]) is not None:
        target.write_chat(folder, file, decoder.config.max_context)
    add_head(folder, architecture, decoder, head_D, config.max_shard_bytes)
    progress.advance(1, "written")
    ends = turn_ends(open_tokenizer(file))
    chat = rendered_chat(folder, ends)
    differences = reward_difference(config, folder, decoder, head_D, ends, chat)
    parity.require(differences, config.tolerance)
    description, card = reward_card(architecture, ends, chat)
    report = parity.report(differences, config.tolerance, description, sha256)
    write_record(folder / PARITY, ParityFile, {**report, **_files(folder)})
    pack = inputs.get("pack")
    origin = None if pack is None else origin_of(PackedSplit.open(pack, "train"))
    alignment = alignment_summaries(inputs["model"])
    text = model_card(decoder, origin, config.licence, differences, card, sha256, alignment)
    write_text(folder / "README.md", text)
    progress.end(
        f"rewards differ by {max(difference.max_relative for difference in differences):.1e}"
    )


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of the files that were checked, by name."""
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        "files": {name: path.stat().st_size for name, path in files.items()},
        "sha256": {name: sha256_file(path) for name, path in files.items()},
    }


def held_out_tokens(config: ExportConfig, decoder: Decoder, split: HeldOut) -> list[Tensor]:
    """Up to `parity_rows` sequences of packed held-out text; none from an empty split."""
    length = min(config.parity_tokens, decoder.config.max_context)
    starts = range(0, min(split.num_tokens, config.parity_rows * length), length)
    return [
        torch.from_numpy(split.read(start, min(start + length, split.num_tokens)))
        for start in starts
    ]


def compare(
    config: ExportConfig, decoder: Decoder, loaded: LoadedExport, texts: Sequence[Tensor]
) -> list[LogitDifference]:
    """Logit differences on random tokens and, if any, on held-out text, for each reference."""
    length = min(config.parity_tokens, decoder.config.max_context)
    drawn = parity.random_tokens(decoder.config.vocab_size, config.parity_rows, length, config.seed)
    references: dict[str, parity.Logits] = {"": decoder, **loaded.references}
    differences = []
    for remark, ours in references.items():
        for name, tokens in (("random tokens", drawn), ("held-out text", texts)):
            if tokens:
                differences.append(parity.difference(name + remark, ours, loaded.logits, tokens))
    return differences


def float64_error(config: ExportConfig, decoder: Decoder, texts: Sequence[Tensor]) -> float:
    """The largest difference of the decoder's own logits from those in float64, as `max_relative`."""
    exact = copy.deepcopy(decoder).double()
    loaded = LoadedExport(description="float64", logits=lambda tokens_BT: exact(tokens_BT).float())
    return max(difference.max_relative for difference in compare(config, decoder, loaded, texts))


def check_chat(loaded: LoadedExport, tokenizer: AnyTokenizer, chat: ChatModelFile) -> None:
    """Check that the exported chat template, if any, gives the ids that the model was trained with.

    Other formats than Apertus keep the template of the imported folder, which was verified when the
    folder was read. Of imported tokenizers, only those are compared that the engine reads itself.

    Raises   ExportError when it does not, or when the model was trained with another chat format.
    """
    if loaded.encode_chat is None:
        return
    if isinstance(tokenizer, ImportedTokenizer) and (
        chat.format != ApertusFormat.name or loaded.token_limit
    ):
        return
    ours = ApertusFormat(tokenizer, tokenizer.sha256)
    if ours.sha256 != chat.sha256:
        raise ExportError(
            f"the model was trained with the chat format {chat.sha256[:12]}, and its tokenizer has"
            f" {ours.sha256[:12]} here",
            fix="Use the version of stamm that trained it",
        )
    for asked in PROBES:
        messages = to_messages(asked.system, asked.turns)
        for prompt in (False, True):
            if loaded.encode_chat(messages, prompt) != ours.encode(asked, prompt=prompt).ids:
                raise ExportError(f"the exported chat template gives other ids for {messages!r}")


def check_tokenizer(loaded: LoadedExport, tokenizer: AnyTokenizer, texts: Sequence[Tensor]) -> None:
    """Check that the exported tokenizer, if any, encodes and decodes texts as the original does.

    That of an imported model may begin a text with its own tokens, and change blanks in decoding.

    Raises   ExportError with a text on which they differ.
    """
    encode, decode = loaded.encode, loaded.decode
    if encode is None or decode is None:
        return
    decoded = [plain_text(text.tolist(), tokenizer) for text in texts]
    for text in (*TRICKY, *decoded):
        tokens = tokenizer.encode(text)
        exported_tokens = encode(text)
        if isinstance(tokenizer, ImportedTokenizer):
            same = exported_tokens[len(exported_tokens) - len(tokens) :] == tokens
        else:
            same = exported_tokens == [BEGIN_ID, *tokens] and decode(tokens) == text
        if not same:
            raise ExportError(
                f"the exported tokenizer does not agree with the original on {text[:80]!r}",
                where="export.target",
                fix="The export folder was not written: transformers reads this tokenizer otherwise",
            )


def _check_replaceable(finished: Path) -> None:
    """Only an earlier export is ever deleted; another folder of that name stays."""
    is_export = not finished.is_symlink() and (finished / PARITY).is_file()
    if (finished.exists() or finished.is_symlink()) and not is_export:
        raise RunError(
            f"{finished} is not an export: it holds no {PARITY}",
            fix="Choose another folder with --out, or move it away",
        )


def _aside(finished: Path, unverified: Path) -> Path | None:
    """Where an earlier export of other weights is kept; None for one of the same."""
    made_from = recorded_sha256(finished / PARITY)
    if made_from == recorded_sha256(unverified / PARITY):
        return None
    return aside_folder(finished.parent, made_from) / finished.name
