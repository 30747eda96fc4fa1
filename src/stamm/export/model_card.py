"""The model card: README.md of an exported folder, filled from what is known and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stamm.activations.module import Activation, GatedActivation
from stamm.adapt.records import ChangeFile
from stamm.align.records import PreparedSummary
from stamm.base.markdown import escape_markdown
from stamm.base.units import count_text
from stamm.corpus.packed_dataset import PackedSplit
from stamm.export.alignment_card import alignment_section
from stamm.export.card_table import LONGEST_CELL, card_table
from stamm.export.changed_model import changed
from stamm.export.records import (
    BitsAgreement,
    GreedyAgreement,
    LogitDifference,
    TokenAgreement,
)
from stamm.export.target import CardText
from stamm.models.config import GatedFFN, PlainRope
from stamm.models.decoder import Decoder
from stamm.models.flops import count_parameters
from stamm.version import VERSION

_UNMEASURED = (
    "**Not measured:** bits per byte of held-out text. The loss of the rounded weights is not known:"
    " the export was asked for without that check (`held_out=not_measured`)."
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Facts of a packed corpus for the model card. Names in it come from documents: untrusted.

    languages   training tokens by language tag, most first
    sources     (source, licence, documents), most documents first
    """

    tokens: int
    documents: int
    languages: Mapping[str, int] = field(default_factory=dict)
    sources: Sequence[tuple[str, str, int]] = ()


def origin_of(train: PackedSplit) -> Origin:
    """The facts of the training split of a packed corpus; planted repeats count each time."""
    table = train.documents().select(["language", "source", "licence", "start", "stop"])
    tokens: dict[str, int] = {}
    sources: dict[tuple[str, str], int] = {}
    for row in table.to_pylist():
        language = str(row["language"])
        tokens[language] = tokens.get(language, 0) + row["stop"] - row["start"]
        key = (str(row["source"] or "not stated"), str(row["licence"] or "not stated"))
        sources[key] = sources.get(key, 0) + 1
    return Origin(
        tokens=train.num_tokens,
        documents=table.num_rows,
        languages=dict(sorted(tokens.items(), key=lambda item: (-item[1], item[0]))),
        sources=[
            (*key, count) for key, count in sorted(sources.items(), key=lambda i: (-i[1], i[0]))
        ],
    )


def model_card(
    decoder: Decoder,
    origin: Origin | None,
    licence: str,
    differences: Sequence[LogitDifference],
    target: CardText,
    sha256: str,
    alignment: Sequence[PreparedSummary] = (),
    tokens: Sequence[TokenAgreement] = (),
    bits: Sequence[BitsAgreement] = (),
    greedy: GreedyAgreement | None = None,
    *,
    held_out: str = "",
    measured: bool = True,
    remarks: Sequence[str] = (),
    change: ChangeFile | None = None,
) -> str:
    """README.md: front matter for the Hub, architecture, activation, data, licence and parity.

    origin      None for an export without a packed corpus
    licence     of the model, "" when unknown
    differences   logit differences
    target      what the export target adds
    sha256      of the weights of the original model
    alignment   prepared data of each stage of alignment, in order
    tokens, bits, greedy   agreement on held-out text
    held_out    what that text is
    measured    False: rounded weights whose bits per byte were not measured
    remarks     sentences about the written weights
    change      of the model after its training; None: none

    Unknown facts are listed as unknown; no use, ability or limit is claimed.
    """
    spec = decoder.config.ffn.spec
    total = count_text(count_parameters(decoder.config).total)
    parts = [
        _front_matter(spec.name, origin, licence, target.library),
        f"# A causal decoder with {escape_markdown(spec.name, LONGEST_CELL)}, {total} parameters",
        f"Exported by stamm {VERSION} from weights with SHA-256 `{sha256}`. This card contains only what the export read from the"
        " model, its tokenizer, its packed corpus and its alignment data. It makes no claim about intended uses.",
        *([target.usage] if target.usage else []),
        "## Architecture",
        _architecture(decoder, target.architecture),
        *_activation(decoder),
        "## Training data",
        *_data(origin),
        *alignment_section(alignment),
        *changed(change),
        "## Licence",
        f"{escape_markdown(licence, LONGEST_CELL)}, as stated at export."
        if licence
        else "No licence was stated for this model when it was exported.",
        "## Parity with the original",
        "Logits of the exported files, loaded again, against those of the original model, both in"
        " float32 arithmetic. `parity.json` holds the full numbers.",
        card_table(
            ("text", "positions", "largest difference", "share of largest logit", "same argmax"),
            (
                (
                    difference.text,
                    str(difference.positions),
                    f"{difference.max_absolute:.3g}",
                    f"{difference.max_relative:.3g}",
                    f"{difference.argmax_agreement:.2%}",
                )
                for difference in differences
            ),
        ),
        *(escape_markdown(remark, 300) for remark in remarks),
        *([f"Held-out text: {escape_markdown(held_out, 300)}."] if held_out else []),
        *_held_out(tokens, bits, greedy),
        *([] if measured else [_UNMEASURED]),
    ]
    return "\n\n".join(parts) + "\n"


def _held_out(
    tokens: Sequence[TokenAgreement],
    bits: Sequence[BitsAgreement],
    greedy: GreedyAgreement | None,
) -> Iterable[str]:
    if tokens:
        total, wrong = (sum(row.tokens for row in tokens), sum(row.differing for row in tokens))
        yield f"Token ids of held-out text in {len(tokens)} languages: {wrong} of {total} differ."
        differing = sorted((row for row in tokens if row.differing), key=lambda row: -row.differing)
        if differing:
            rows = [(row.language, str(row.tokens), str(row.differing)) for row in differing]
            yield card_table(("language", "tokens", "different"), rows)
    if greedy is not None:
        yield (
            f"Greedy continuations of {greedy.prompts} prompts: {greedy.equal} of {greedy.tokens}"
            " tokens before the first difference."
        )
    if bits:
        yield "Held-out bits per byte, up to 1,024 tokens of each document:"
        lines = [
            (
                row.language or "all languages",
                str(row.bytes),
                f"{row.original:.5f}",
                f"{row.exported:.5f}",
                f"{row.exported / row.original - 1:+.3%}" if row.original else "0",
            )
            for row in bits
        ]
        yield card_table(("language", "bytes", "original", "exported", "change"), lines)


def _front_matter(activation: str, origin: Origin | None, licence: str, library: str) -> str:
    lines = ["---", *([f"library_name: {json.dumps(library)}"] if library else [])]
    lines.append("pipeline_tag: text-generation")
    if licence:
        lines.append(f"license: {json.dumps(licence.lower())}")
    codes = sorted({tag.partition("_")[0] for tag in origin.languages}) if origin else []
    known = [code for code in codes if re.fullmatch(r"[a-z]{2,3}", code) and code != "und"]
    if known:
        lines += ["language:", *(f"- {json.dumps(code)}" for code in known)]
    return "\n".join([*lines, "tags:", '- "stamm"', f"- {json.dumps(activation)}", "---"])


def _architecture(decoder: Decoder, architecture: str) -> str:
    config = decoder.config
    rope = config.rope
    turns = f"theta {rope.theta:g}"
    if not isinstance(rope, PlainRope):
        turns += f", Llama 3 scaling by {rope.factor:g} beyond {rope.original_context} tokens"
    rows = (
        *([("class", architecture)] if architecture else []),
        ("layers", str(config.num_layers)),
        ("width", str(config.d_model)),
        ("feed-forward", f"{config.ffn.width}, {'gated' if _is_gated(decoder) else 'plain'}"),
        (
            "heads",
            f"{config.num_heads} of width {config.head_width}, {config.num_kv_heads} for keys",
        ),
        ("queries and keys normalised", "yes" if config.qk_norm else "no"),
        ("rotary positions", turns),
        ("context", f"{config.max_context} tokens"),
        ("vocabulary", str(config.vocab_size)),
        ("output matrix", "the embedding" if config.tied_embeddings else "its own"),
        ("parameters", str(count_parameters(config).total)),
    )
    return card_table(("part", "value"), rows)


def _is_gated(decoder: Decoder) -> bool:
    return isinstance(decoder.config.ffn, GatedFFN)


def _activation(decoder: Decoder) -> Iterable[str]:
    spec = decoder.config.ffn.spec
    yield f"## Activation: {escape_markdown(spec.title, LONGEST_CELL)}"
    yield f"Source: {escape_markdown(spec.source, 300)}. Content hash of its definition: {spec.content_hash}."
    names = [parameter.name for parameter in spec.trainable]
    if not names:
        return
    yield "Learned values of the formula's parameters (the weights store them before their bijection):"
    rows = []
    for index, layer in enumerate(decoder.model.layers):
        act = layer.get_submodule("mlp.act_fn")
        if isinstance(act, (Activation, GatedActivation)):
            values = act.means()
            rows.append((str(index), *(f"{values[name]:.4g}" for name in names)))
    yield card_table(("layer", *names), rows)


def _data(origin: Origin | None) -> Iterable[str]:
    if origin is None:
        yield "The export had no packed corpus: the training data of this model are not known here."
        return
    yield (
        f"The packed corpus of the export: {origin.tokens} tokens in {origin.documents}"
        " documents, as packed; the export does not read how much of it was trained on."
    )
    languages = [(tag, str(count)) for tag, count in origin.languages.items()]
    yield card_table(("language", "tokens"), languages)
    rows = [(source, licence, str(count)) for source, licence, count in origin.sources]
    yield card_table(("source", "licence", "documents"), rows)
