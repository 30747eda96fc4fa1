"""The tokenizer step: trains a BPE tokenizer or takes tekken, and measures fertility by language."""

from __future__ import annotations

from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import remove_leftovers, write_text
from stamm.base.schema import write_record
from stamm.corpus.held_out import HELD_OUT, TRAIN
from stamm.corpus.special_tokens import RESERVED_TOKENS
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.corpus.tokenizer.fairness import count_tokens, fairness, merge_counts
from stamm.corpus.tokenizer.parallel_corpus import TITLE, load_declaration
from stamm.corpus.tokenizer.sample import RULE, TokenizerSample, open_corpus_documents
from stamm.corpus.tokenizer.tekken import tekken_description
from stamm.corpus.tokenizer.tokenizer import FILE, Tokenizer
from stamm.corpus.tokenizer.training import train_tokenizer_on
from stamm.runs.job import Workspace
from stamm.runs.schemas.corpus import TokenizerSummary

SUMMARY = "summary.json"


def train_tokenizer(config: TokenizerConfig | TekkenConfig, workspace: Workspace) -> None:
    """Write tokenizer.json, trained on the train split of inputs["corpus"] or tekken; summary.json.

    Probes count once, whatever their repeats: the vocabulary must not memorize them.
    Raises   DataError when the split is empty or too small for the vocabulary size.
    """
    remove_leftovers(workspace.folder)
    for name in (FILE, SUMMARY):
        (workspace.folder / name).unlink(missing_ok=True)
    workspace.progress.begin("tokenizer", config.vocab_size, "tokens")
    with open_corpus_documents(workspace.inputs["corpus"], workspace.folder) as query:
        samples = {
            split: TokenizerSample(query, config.sample_bytes, config.temperature, split)
            for split in (TRAIN, HELD_OUT)
        }
        if isinstance(config, TekkenConfig):
            description = tekken_description(config)
        else:
            texts = (document.text for document in samples[TRAIN].documents())
            description = train_tokenizer_on(config, texts)
        tokenizer = Tokenizer(description)
        if tokenizer.size != config.vocab_size:
            raise DataError(
                f"the corpus gives {tokenizer.size} tokens, fewer than {config.vocab_size}",
                where="tokenizer.vocab_size",
                fix=f"Set tokenizer.vocab_size={tokenizer.size} or less, and pretrain.model.vocab_size with "
                f"it; or add text: `stamm show ledger {workspace.folder.parent} decision=dropped` "
                "shows what was left out",
            )
        write_text(workspace.folder / FILE, description)
        summary = _summary(config, tokenizer, samples)
        write_record(workspace.folder / SUMMARY, TokenizerSummary, summary)
    workspace.progress.end(f"{tokenizer.size} tokens")


def _summary(
    config: TokenizerConfig | TekkenConfig,
    tokenizer: Tokenizer,
    samples: dict[str, TokenizerSample],
) -> dict[str, Any]:
    return {
        "vocabulary": tokenizer.size,
        "reserved": len(RESERVED_TOKENS),
        "sha256": tokenizer.sha256,
        "fast": tokenizer.fast is not None,
        "sampling": {
            "rule": RULE,
            "sample_bytes": config.sample_bytes,
            "temperature": config.temperature,
        },
        **{split: _costs(tokenizer, sample) for split, sample in samples.items()},
        "parallel": {"text": TITLE, **fairness(tokenizer, load_declaration())},
    }


def _costs(tokenizer: Tokenizer, sample: TokenizerSample) -> dict[str, Any]:
    """Token counts of the corpus' own documents of a sample, the largest language first."""
    own = (document for document in sample.documents() if not document.planted)
    found = count_tokens(tokenizer, ((document.language, document.text) for document in own))
    ranked = sorted(found.items(), key=lambda item: (-item[1].bytes, item[0]))
    return {
        "whole": sample.whole,
        "corpus_bytes": sample.own_bytes,
        **merge_counts(found, tokenizer.size).as_dict(None),
        "languages": {language: cost.as_dict(language) for language, cost in ranked},
    }
