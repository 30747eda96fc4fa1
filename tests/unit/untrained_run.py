"""A tiny packed corpus with its tokenizer, made by the corpus room itself, and a decoder for it."""

from __future__ import annotations

from pathlib import Path

from stamm.corpus.config import PackConfig
from stamm.corpus.tables import DOCUMENTS_SCHEMA, write_rows
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.serialization import save_decoder
from tests.unit.small_corpus import pack_corpus

# The name of a source is text from the web.
HOSTILE = "<script>alert(1)</script> | [x](javascript:y)\n# not a heading"
TEXTS = {
    "eng_Latn": ["The river is wide and the road is long. ", "A short note. ", "Trees grow. "],
    "deu_Latn": ["Der Fluss ist breit und der Weg ist weit. ", "Über Nacht fiel Schnee. "],
}


def _document(number: int, language: str, text: str, split: str) -> dict[str, object]:
    return {
        "document_id": f"{number:032x}",
        "text": text,
        "url": None,
        "source": HOSTILE if number == 0 else "made up",
        "licence": "CC0-1.0",
        "language": language,
        "split": split,
        "probe_id": None,
        "repeat": 1,
    }


def untrained_run(root: Path) -> dict[str, Path]:
    """Folders "corpus", "tokenizer", "pack" and "model" below `root`; the model was never trained."""
    rows: list[dict[str, object]] = []
    for language, texts in TEXTS.items():
        for place, text in enumerate(texts):
            for split, copies in (("train", 6), ("held_out", 1 + 4 * place)):
                rows.append(_document(len(rows), language, (text * copies).strip(), split))
    for name in ("corpus", "tokenizer", "model"):
        (root / name).mkdir()
    write_rows(root / "corpus" / "documents-00000.parquet", DOCUMENTS_SCHEMA, rows)
    trained = train_tokenizer_on(TokenizerConfig(vocab_size=352), (str(r["text"]) for r in rows))
    (root / "tokenizer" / "tokenizer.json").write_text(trained, encoding="utf-8")
    pack_corpus(PackConfig(), root)
    config = DecoderConfig(
        vocab_size=352,
        d_model=32,
        num_layers=2,
        ffn=PlainFFN(width=48),
        max_context=160,
        init_std=0.2,
    )
    save_decoder(build_decoder(config, seed=2), root / "model")
    return {name: root / name for name in ("corpus", "tokenizer", "pack", "model")}
