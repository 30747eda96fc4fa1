"""A model with its tokenizer: a stored decoder of stamm's, or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError
from stamm.corpus.special_tokens import BEGIN_ID
from stamm.corpus.tokenizer.imported import ImportedTokenizer
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.models.decoder import Decoder
from stamm.models.hub_folder import hub_weights_sha256, load_hub
from stamm.models.serialization import load_decoder
from stamm.runs.model_outputs import DECODER, weights_sha256


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A decoder in memory, and how texts become its token ids.

    begin    ids before every text: <s>, or what another model's tokenizer.json adds
    sha256   of the weights
    """

    decoder: Decoder
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    begin: tuple[int, ...]
    sha256: str


def load_audited(model: Path, tokenizer: Path) -> AuditedModel:
    """The model in a folder, with the tokenizer in another.

    Raises   DataError when one of them cannot be read, or the model has fewer ids.
    """
    if (model / DECODER).is_file():
        own = Tokenizer.load(tokenizer)
        sha256, begin = weights_sha256(model), (BEGIN_ID,)
        return AuditedModel(
            decoder=load_decoder(model),
            encode=own.encode,
            decode=own.decode,
            begin=begin,
            sha256=sha256,
        )
    other = ImportedTokenizer.load(tokenizer)
    decoder = load_hub(model)
    if decoder.config.vocab_size < other.size:
        raise DataError(
            f"the tokenizer has {other.size} ids, and the model {decoder.config.vocab_size}",
            where=str(tokenizer),
            fix="Use the tokenizer that the model was trained with",
        )
    return AuditedModel(
        decoder=decoder,
        encode=other.encode,
        decode=other.decode,
        begin=tuple(other.prefix_ids()),
        sha256=hub_weights_sha256(model),
    )
