"""The model card: what is known, escaped; what is not known, said to be unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are another package

from stamm.corpus.packed_dataset import PackedSplit
from stamm.export.card_table import LONGEST_TABLE
from stamm.export.model_card import Origin, model_card, origin_of
from stamm.export.records import LogitDifference
from stamm.export.target import CardText
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN
from stamm.models.decoder import Decoder, build_decoder

CARD = CardText(library="transformers", architecture="ApertusForCausalLM", usage="from_pretrained")
FOUND = [
    LogitDifference(
        text="random tokens",
        sequences=4,
        positions=128,
        max_absolute=1.5e-6,
        max_relative=3e-7,
        argmax_agreement=1.0,
    )
]


def decoder(**changes: Any) -> Decoder:
    base: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "num_layers": 2, "max_context": 64}
    return build_decoder(DecoderConfig(**{**base, "ffn": PlainFFN(width=48), **changes}), seed=1)


def front_matter(card: str) -> dict[str, Any]:
    head = card.split("---\n")[1]
    plain: dict[str, Any] = yaml.safe_load(head)
    return plain


def test_nothing_is_invented() -> None:
    card = model_card(decoder(), None, "", FOUND, CARD, "ab12" * 16)
    assert front_matter(card) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["stamm", "xielu"],
    }
    assert "No licence was stated" in card
    assert "training data of this model are not known here" in card


def test_what_is_known_is_there() -> None:
    origin = Origin(
        tokens=120,
        documents=3,
        languages={"eng_Latn": 100, "deu_Latn": 15, "und": 3, "x: [y]": 2},
        sources=[("a book", "CC0-1.0", 3)],
    )
    card = model_card(decoder(rope=Llama3Rope()), origin, "Apache-2.0", FOUND, CARD, "ab12" * 16)
    head = front_matter(card)
    assert head["license"] == "apache-2.0"
    assert head["language"] == ["deu", "eng"]
    assert "120 tokens in 3 documents" in card
    assert "| a book | CC0-1.0 | 3 |" in card
    assert "| eng\\_Latn | 100 |" in card
    assert "Llama 3 scaling by 8 beyond 8192 tokens" in card
    assert "| ApertusForCausalLM |" in card
    assert "| 1 | 0.8 | 0.8 |" in card  # effective, not raw
    assert "| random tokens | 128 | 1.5e-06 | 3e-07 | 100.00% |" in card


def test_activation_without_parameters_has_no_table() -> None:
    card = model_card(decoder(ffn=GatedFFN(width=32)), None, "", FOUND, CARD, "ab12" * 16)
    assert "Learned values" not in card
    assert "32, gated" in card


def test_names_from_documents_are_plain_text(inputs: dict[str, Path]) -> None:
    origin = origin_of(PackedSplit.open(inputs["pack"], "train"))
    assert origin.tokens == sum(origin.languages.values())
    assert origin.documents == 5
    card = model_card(decoder(), origin, "", FOUND, CARD, "ab12" * 16)
    assert "alert(1)" in card
    assert "<script" not in card
    assert "[x](" not in card  # only with its brackets escaped
    assert "\n# not a heading" not in card


def test_long_tables_are_cut_and_say_so() -> None:
    languages = {f"l{i:02}_Latn": 1 for i in range(LONGEST_TABLE + 7)}
    card = model_card(
        decoder(), Origin(tokens=1, documents=1, languages=languages), "", FOUND, CARD, "ab12" * 16
    )
    assert "7 more rows are omitted." in card
    assert f"l{LONGEST_TABLE - 1:02}" in card
    assert f"l{LONGEST_TABLE:02}\\_" not in card
