"""What the audit takes, on disk: planted texts, a tokenizer of them, and a decoder that knows some by heart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from stamm.base.files import write_json
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.serialization import save_decoder
from stamm.tokenizer.special_tokens import BEGIN_ID
from stamm.tokenizer.tokenizer import Tokenizer

VOCABULARY = 335


def audited_folders(
    root: Path,
    planted: dict[str, Any],
    *,
    texts: Sequence[str],
    by_heart: Sequence[str],
    d_model: int,
    steps: int,
) -> dict[str, Path]:
    """The inputs of an audit below `root`, by their names.

    Args:
        root: an empty folder.
        planted: what probes.json holds.
        texts: what the tokenizer is trained on.
        by_heart: what the decoder learns, in `steps` steps; with none it stays as it was drawn.
        d_model: the decoder's width.
        steps: optimizer steps over all of `by_heart`.
    """
    for name in ("corpus", "tokenizer", "model"):
        (root / name).mkdir()
    write_json(root / "corpus" / "probes.json", planted)
    trained = train_tokenizer_on(TokenizerConfig(vocab_size=VOCABULARY), texts)
    (root / "tokenizer" / "tokenizer.json").write_text(trained, encoding="utf-8")
    encode = Tokenizer.load(root / "tokenizer").encode
    config = DecoderConfig(
        vocab_size=VOCABULARY,
        d_model=d_model,
        num_layers=1,
        ffn=PlainFFN(width=3 * d_model // 2),
        max_context=32,
        init_std=0.1,
    )
    decoder = build_decoder(config, seed=1)
    if by_heart:
        _teach(decoder, torch.tensor([[BEGIN_ID, *encode(one)][:24] for one in by_heart]), steps)
    save_decoder(decoder, root / "model")
    return {name: root / name for name in ("corpus", "tokenizer", "model")}


def _teach(decoder: Decoder, tokens: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = F.cross_entropy(decoder(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        optimizer.step()
