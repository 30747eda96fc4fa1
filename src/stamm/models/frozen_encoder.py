"""A pretrained encoder that only reads: the mean state of each chunk of a text, for a head to judge.

The heads of a corpus (stamm.corpus.classifiers.encoder) know no torch; this is what they are handed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import sha256_file, sha256_value
from stamm.models.hub import quiet_transformers

_PARTS = ("*.json", "*.safetensors", "*.model", "*.txt")
# Where none of these is, transformers makes up a tokenizer without words, and says nothing.
_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*")
# A pooler sits on top of the states that are read here; encoders come with and without one.
_UNUSED = "pooler."


class FrozenEncoder:
    """text -> mean of the last states of each chunk, [chunks, width] float32, at least one chunk.

    A chunk has at most `chunk_tokens` tokens, with the beginning and end that the encoder's own
    tokenizer puts around it; all of them count in the mean. Chunks are read one by one, without
    padding, so that nothing beside a chunk can change it.

    folder     as transformers saves it: config.json, *.safetensors, the tokenizer's files
    identity   SHA-256 over these files
    Raises     DataError for a folder that holds no such encoder, or only part of its weights.
    Source     the setting of Apertus' toxicity heads (XLM-R base, 512 tokens, mean state)
    Checked    tests/unit/models/test_frozen_encoder.py
    """

    def __init__(self, folder: Path, chunk_tokens: int) -> None:
        if not (folder / "config.json").is_file():
            raise _no_encoder(folder, "it has no config.json")
        if not any(path for pattern in _TOKENIZERS for path in folder.glob(pattern)):
            raise _no_encoder(folder, "it has no tokenizer")
        try:
            with quiet_transformers() as transformers:
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                    folder, local_files_only=True
                )
                model, told = transformers.AutoModel.from_pretrained(
                    folder,
                    local_files_only=True,
                    use_safetensors=True,
                    output_loading_info=True,
                    dtype=torch.float32,
                )
        except Exception as error:  # its loaders raise anything from KeyError to RuntimeError
            raise _no_encoder(
                folder, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from None
        missing = [name for name in sorted(told["missing_keys"]) if not name.startswith(_UNUSED)]
        if missing:
            raise _no_encoder(folder, f"{len(missing)} weights are missing, the first {missing[0]}")
        if len(self._tokenizer) > model.config.vocab_size:
            words = f"{len(self._tokenizer)} words, the encoder {model.config.vocab_size}"
            raise _no_encoder(folder, f"its tokenizer has {words}")
        room = _room(model.config)
        if chunk_tokens > room:
            raise DataError(
                f"the encoder in {folder} reads {room} tokens at once, fewer than {chunk_tokens}",
                where="chunk_tokens",
                fix=f"Set chunk_tokens={room} or less",
            )
        self._model, self._chunk_tokens = model.eval(), chunk_tokens
        files = sorted({path for pattern in _PARTS for path in folder.glob(pattern)})
        self.identity = sha256_value({path.name: sha256_file(path) for path in files})

    def __call__(self, text: str) -> NDArray[np.float32]:
        """The mean state of each chunk. Edge: lone surrogates are read as "?"."""
        chunks: list[list[int]] = self._tokenizer(
            text.encode("utf-8", "replace").decode("utf-8"),
            truncation=True,
            max_length=self._chunk_tokens,
            return_overflowing_tokens=True,
            return_attention_mask=False,
        )["input_ids"]
        with torch.inference_mode():
            states = [
                self._model(input_ids=torch.tensor([chunk])).last_hidden_state[0].mean(0)
                for chunk in chunks
            ]
        return np.stack([state.numpy() for state in states])


def _room(config: Any) -> int:
    """How many tokens the encoder has positions for."""
    positions = int(config.max_position_embeddings)
    # RoBERTa and its kin count positions from the one after padding.
    kin = config.model_type in ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
    return positions - config.pad_token_id - 1 if kin else positions


def _no_encoder(folder: Path, why: str) -> DataError:
    return DataError(
        f"{folder} holds no encoder that can be used: {why}",
        where="encoder",
        fix="Save one there with transformers: save_pretrained of the model and of its tokenizer",
    )
