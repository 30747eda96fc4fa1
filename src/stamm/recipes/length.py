"""Number of training tokens, from the packed corpus or estimated from input file sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import has_ending, read_json
from stamm.base.units import count_text
from stamm.corpus.config import CorpusConfig
from stamm.corpus.inputs import expand
from stamm.recipes.study import MANIFEST, Study

# Bytes of kept text per byte of an input file, by file name ending; the longest match applies. Measured on the demo's inputs: 3,050,087 bytes of text were kept from 926,779 of
# JSONL under zstandard (3,477,815 plain, 1,133,524 under gzip), 186,939 from 199,317 of web
# archive under gzip (473,311 plain). The same JSONL as Parquet (snappy) has 1,727,216, as Arrow
# 3,399,864. Plain text, WET and archives of code: rough values.
KEPT_SHARE = {
    ".jsonl.zst": 3.29,
    ".jsonl.gz": 2.69,
    ".jsonl": 0.88,
    ".json.zst": 3.29,
    ".json.gz": 2.69,
    ".json": 0.88,
    ".txt.zst": 3.3,
    ".txt.gz": 2.7,
    ".txt": 1.0,
    ".md": 1.0,
    ".warc.gz": 0.94,
    ".warc": 0.39,
    ".wet.gz": 2.2,
    ".wet": 0.9,
    ".tar.gz": 2.2,
    ".tar.zst": 2.6,
    ".tgz": 2.2,
    ".tar": 0.6,
    ".zip": 2.0,
    ".parquet": 1.77,
    ".arrow": 0.90,
}
BYTES_PER_TOKEN = 2.7  # the demo's corpus in 65 languages, a vocabulary of 4,096


@dataclass(frozen=True, kw_only=True)
class CorpusLength:
    """Tokens of the train split.

    source   how the number was obtained, as text for the plan
    """

    tokens: int
    source: str

    def sequences(self, context: int) -> int:
        """Sequences of `context` tokens in one pass; each also needs the token after its last."""
        return max(self.tokens - 1, 0) // context


def corpus_length(study: Study, run: Path) -> CorpusLength:
    """The length of a study's corpus: as packed in the run folder `run`, else an estimate.

    Edge     a run folder with another corpus, tokenizer or packing is ignored.
    Raises   DataError when an input does not exist.
    """
    if (run / "pack" / MANIFEST).is_file() and _is_same_corpus(study, run):
        return packed_length(run / "pack")
    return estimated_length(study)


def packed_length(pack: Path) -> CorpusLength:
    """The length of a packed corpus, from its manifest.

    Raises   DataError when the manifest lacks it.
    """
    path = pack / MANIFEST
    try:
        tokens = int(read_json(path)["splits"]["train"]["tokens"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} has no number of tokens", fix="Pack the corpus again") from None
    return CorpusLength(tokens=tokens, source=f"{tokens:,} tokens packed in {pack}")


def estimated_length(study: Study) -> CorpusLength:
    """Estimated length of a study's corpus, from the sizes of its input files.

    tokens = (sum_i size_i * KEPT_SHARE_i * (1 - held_out) + planted) / BYTES_PER_TOKEN

    planted, the probes: passages of each bucket * repeats * their mean length in characters.

    Checked  tests/unit/recipes/test_length.py: within 10 % of what the demo's corpus packs to
    Raises   DataError when an input does not exist or has an unknown file format.
    """
    corpus = study.corpus
    number = len(expand(corpus.inputs, "corpus.inputs"))
    text = text_bytes(corpus) * (1 - corpus.held_out)
    if corpus.probes is not None:
        passages = corpus.probes.passages_per_bucket * sum(corpus.probes.repeats)
        text += passages * (corpus.probes.shortest + corpus.probes.longest) / 2
    tokens = round(text / BYTES_PER_TOKEN)
    return CorpusLength(
        tokens=tokens,
        source=f"about {count_text(tokens)} tokens, estimated from the sizes of {number} inputs with "
        f"the demo's share of kept text and {BYTES_PER_TOKEN} bytes per token (vocabulary of "
        "4,096; a larger one gives fewer tokens)",
    )


def text_bytes(corpus: CorpusConfig) -> float:
    """Estimated bytes of text that the filters keep, from the sizes of the input files.

    Raises   DataError when an input does not exist or has an unknown file format
    """
    inputs = expand(corpus.inputs, "corpus.inputs")
    return sum(path.stat().st_size * _kept_share(name) for name, path in inputs.items())


def tokens_of_files(paths: Iterable[Path]) -> int:
    """About how many tokens the rows of fine-tuning have, from the sizes of their files."""
    unpacked = {".zst": 3.7, ".gz": 3.1, ".parquet": 2.0}  # as JSONL, which `KEPT_SHARE` compares
    sizes = (path.stat().st_size * unpacked.get(path.suffix.lower(), 1.0) for path in paths)
    return round(sum(sizes) / BYTES_PER_TOKEN)


def _kept_share(name: str) -> float:
    fitting = [end for end in KEPT_SHARE if has_ending(name, end)]
    if not fitting:
        raise DataError(
            f"{name} has an unknown file format",
            where="corpus.inputs",
            fix=f"Known: {', '.join(KEPT_SHARE)}",
        )
    return KEPT_SHARE[fitting[0]]


def _is_same_corpus(study: Study, run: Path) -> bool:
    path = run / "config.json"
    stored: Any = read_json(path) if path.is_file() else None
    config = stored.get("config") if isinstance(stored, dict) else None
    if not isinstance(config, dict):
        return False
    own = to_plain(study)
    return all(config.get(name) == own[name] for name in ("corpus", "tokenizer", "pack"))
