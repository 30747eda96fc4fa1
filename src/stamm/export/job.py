"""Export one trained decoder for transformers, and prove that what was written is the same model.

Reads    model (a stored decoder), tokenizer, pack (optional: held-out text for the proof, and
         what the model card says of the data)
Leaves   transformers/: config.json, model.safetensors, generation_config.json, tokenizer.json,
         tokenizer_config.json, parity.json, samples.json, README.md

The folder is filled and checked under a hidden name, and gets its own when all checks hold: until
then an earlier export stays as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stamm.base.errors import ExportError, RunError
from stamm.base.files import write_json, write_text
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.special_tokens import BEGIN_ID, END_ID
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.export import parity
from stamm.export.config import ExportConfig
from stamm.export.folder import TOKENIZER, write_folder
from stamm.export.model_card import model_card, origin_of
from stamm.export.samples import check_room, write_samples
from stamm.models.decoder import Decoder
from stamm.models.determinism import settle
from stamm.models.hf_architecture import hub_class
from stamm.models.hub import HubModel, hub_version, load_hub
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace

FINISHED = "transformers"
PARITY = "parity.json"
UNVERIFIED = ".transformers.part"
REPLACED = ".transformers.replaced.part"
# Tells apart what the layout does (nothing) from what another order of evaluation does.
SAME_ORDER = ", xIELU evaluated in the order of transformers"
# Texts on which two readers of one tokenizer.json are known to part ways.
TRICKY = ("", " two  blanks ", "</s> <s> <pad>", "it 's , a <email-pii> .", "日本\n\n語\t🙂")


def run(config: ExportConfig, workspace: Workspace) -> None:
    """Write `transformers/` and check it; an earlier export makes room only when all checks hold.

    Raises   RunError when `transformers/` is there and is no export; ExportError when no class of
             transformers holds the model, or when what was loaded back differs.
    """
    finished, unverified = workspace.folder / FINISHED, workspace.folder / UNVERIFIED
    _check_replaceable(finished)
    _remove(unverified)
    settle(config.threads)
    # Classes of transformers hold whole matrices: structured ones are written out.
    decoder = load_decoder(workspace.inputs["model"]).merged()
    kind = hub_class(decoder.config)
    check_room(config, decoder.config.max_context)
    try:
        _fill(config, workspace, decoder, unverified, kind.architecture)
        _exchange(unverified, finished)
    finally:
        _remove(unverified)


def _fill(
    config: ExportConfig, workspace: Workspace, decoder: Decoder, folder: Path, architecture: str
) -> None:
    progress = workspace.progress
    progress.begin("export", 4, "stages")
    source = workspace.inputs["tokenizer"]
    tokenizer_file = source / TOKENIZER if source.is_dir() else source
    write_folder(folder, decoder, tokenizer_file)
    progress.advance(1, "written")
    model, tokenizer = HubModel(folder), Tokenizer.load(tokenizer_file)
    pack = workspace.inputs.get("pack")
    held_out = None if pack is None else PackedSplit.open(pack, "held_out")
    progress.advance(2, "loaded back")
    texts = [] if held_out is None else held_out_tokens(config, decoder, held_out)
    found = compare(config, decoder, model, texts)
    if hub_class(decoder.config).hidden_act == "xielu":
        found += compare(config, load_hub(folder, compat="eps"), model, texts, SAME_ORDER)
    report = parity.report(found, config.tolerance, f"transformers {hub_version()} {architecture}")
    parity.require(found, config.tolerance)
    check_tokenizer(model, tokenizer, texts)
    progress.advance(3, "equal")
    write_json(folder / PARITY, report)
    write_json(folder / "samples.json", write_samples(config, model, tokenizer, held_out))
    origin = None if pack is None else origin_of(PackedSplit.open(pack, "train"))
    write_text(folder / "README.md", model_card(decoder, origin, config.licence, found))
    progress.end(f"logits differ by {max(one.max_relative for one in found):.1e}")


def held_out_tokens(config: ExportConfig, decoder: Decoder, split: PackedSplit) -> list[Tensor]:
    """Up to `parity_rows` sequences of held-out text, as it stands packed; none from an empty split."""
    length = min(config.parity_tokens, decoder.config.max_context)
    starts = range(0, min(split.num_tokens, config.parity_rows * length), length)
    return [
        torch.from_numpy(split.read(start, min(start + length, split.num_tokens)))
        for start in starts
    ]


def compare(
    config: ExportConfig,
    decoder: Decoder,
    model: HubModel,
    texts: Sequence[Tensor],
    remark: str = "",
) -> list[parity.Difference]:
    """Differences on random tokens and, where there is some, on held-out text.

    remark   added to what each text is called
    """
    length = min(config.parity_tokens, decoder.config.max_context)
    drawn = parity.random_tokens(decoder.config.vocab_size, config.parity_rows, length, config.seed)
    found = [parity.difference(f"random tokens{remark}", decoder, model.logits, drawn)]
    if texts:
        found.append(parity.difference(f"held-out text{remark}", decoder, model.logits, texts))
    return found


def check_tokenizer(model: HubModel, tokenizer: Tokenizer, texts: Sequence[Tensor]) -> None:
    """Nothing, when the exported tokenizer reads and writes texts as the original does.

    Raises   ExportError with the text on which they part.
    """
    control = {BEGIN_ID, END_ID}
    spoken = [
        tokenizer.decode([token for token in text.tolist() if token not in control])
        for text in texts
    ]
    for text in (*TRICKY, *spoken):
        tokens = tokenizer.encode(text)
        if model.encode(text) != [BEGIN_ID, *tokens] or model.decode(tokens) != text:
            raise ExportError(
                f"the exported tokenizer does not agree with the original on {text[:80]!r}",
                fix="Use a tokenizer.json written by stamm's tokenizer step",
            )


def _check_replaceable(finished: Path) -> None:
    """Only what an earlier export left is ever deleted; a folder of that name may be anything."""
    is_export = not finished.is_symlink() and (finished / PARITY).is_file()
    if (finished.exists() or finished.is_symlink()) and not is_export:
        raise RunError(
            f"{finished} is not an export: it holds no {PARITY}",
            fix="Choose another folder with --out, or move it away",
        )


def _exchange(unverified: Path, finished: Path) -> None:
    # A folder cannot take the name of one that holds files: the old one steps aside first.
    replaced = finished.with_name(REPLACED)
    _remove(replaced)
    if finished.exists():
        finished.replace(replaced)
    try:
        unverified.replace(finished)
    except OSError:
        if replaced.exists():
            replaced.replace(finished)
        raise
    _remove(replaced)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
