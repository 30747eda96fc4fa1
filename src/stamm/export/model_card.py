"""The model card: README.md of an exported folder, filled from what is known and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import stamm
from stamm.activations import catalog
from stamm.activations.module import Activation, GatedActivation
from stamm.base.markdown import escape_markdown
from stamm.base.units import count_text
from stamm.corpus.packed_dataset import PackedSplit
from stamm.export.parity import Difference
from stamm.models.config import GatedFFN, PlainRope
from stamm.models.decoder import Decoder
from stamm.models.flops import count_parameters
from stamm.models.hf_architecture import hub_class

LONGEST_TABLE = 40
_LONGEST_TEXT = 120


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a packed corpus says of itself. Names in it come from documents: untrusted.

    languages   training tokens by language tag, most first
    sources     (source, licence, documents), most documents first
    """

    tokens: int
    documents: int
    languages: Mapping[str, int] = field(default_factory=dict)
    sources: Sequence[tuple[str, str, int]] = ()


def origin_of(train: PackedSplit) -> Origin:
    """What the training split of a packed corpus says of itself; planted repeats count each time."""
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
    decoder: Decoder, origin: Origin | None, licence: str, found: Sequence[Difference]
) -> str:
    """README.md: front matter for the Hub, the architecture, the data, the proof of equality.

    origin    None when the export was given no packed corpus
    licence   of the model, "" when nobody said
    found     the parity that was measured

    What is not known is said to be unknown: no use, ability or limit is claimed.
    """
    spec = catalog.get(decoder.config.ffn.activation)
    total = count_text(count_parameters(decoder.config).total)
    parts = [
        _front_matter(spec.name, origin, licence),
        f"# A causal decoder with {escape_markdown(spec.name, _LONGEST_TEXT)}, {total} parameters",
        f"Written by stamm {stamm.__version__} for transformers. This card holds what the export"
        " could read from the model, its tokenizer and its packed corpus. It does not know for what"
        " the model is fit, and says nothing about it.",
        _USE,
        "## Architecture",
        _architecture(decoder),
        *_activation(decoder),
        "## Training data",
        *_data(origin),
        "## Licence",
        f"{escape_markdown(licence, _LONGEST_TEXT)}, as stated by whoever exported the model."
        if licence
        else "Nobody stated a licence for this model when it was exported.",
        "## Agreement with the original",
        "Logits of this folder, loaded with plain transformers, against those of the model it was"
        " exported from, both in float32. `parity.json` holds the full numbers.",
        _table(
            ("text", "positions", "largest difference", "share of largest logit", "same argmax"),
            (
                (
                    one.text,
                    str(one.positions),
                    f"{one.max_absolute:.3g}",
                    f"{one.max_relative:.3g}",
                    f"{one.argmax_agreement:.2%}",
                )
                for one in found
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # where this file lies
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
tokens = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=40)[0]))
```"""


def _front_matter(activation: str, origin: Origin | None, licence: str) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if licence:
        lines.append(f"license: {json.dumps(licence.lower())}")
    codes = sorted({tag.partition("_")[0] for tag in origin.languages}) if origin else []
    known = [code for code in codes if re.fullmatch(r"[a-z]{2,3}", code) and code != "und"]
    if known:
        lines += ["language:", *(f"- {json.dumps(code)}" for code in known)]
    return "\n".join([*lines, "tags:", '- "stamm"', f"- {json.dumps(activation)}", "---"])


def _architecture(decoder: Decoder) -> str:
    config = decoder.config
    kind = hub_class(config)
    rope = config.rope
    turns = f"theta {rope.theta:g}"
    if not isinstance(rope, PlainRope):
        turns += f", Llama 3 scaling by {rope.factor:g} beyond {rope.original_context} tokens"
    rows = (
        ("class", kind.architecture),
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
    return _table(("part", "value"), rows)


def _is_gated(decoder: Decoder) -> bool:
    return isinstance(decoder.config.ffn, GatedFFN)


def _activation(decoder: Decoder) -> Iterable[str]:
    spec = catalog.get(decoder.config.ffn.activation)
    yield f"## Activation: {escape_markdown(spec.title, _LONGEST_TEXT)}"
    yield f"Source: {escape_markdown(spec.source, 300)}. Content hash of its definition: {spec.content_hash}."
    names = [parameter.name for parameter in spec.trainable]
    if not names:
        return
    yield "Learned values, as they stand in the formula (the weights hold them before softplus):"
    rows = []
    for index, layer in enumerate(decoder.model.layers):
        act = layer.get_submodule("mlp.act_fn")
        if isinstance(act, (Activation, GatedActivation)):
            values = act.effective()
            rows.append((str(index), *(f"{values[name]:.4g}" for name in names)))
    yield _table(("layer", *names), rows)


def _data(origin: Origin | None) -> Iterable[str]:
    if origin is None:
        yield "The export was given no corpus: what the model was trained on is not known here."
        return
    yield (
        f"The packed corpus given to the export: {origin.tokens} tokens in {origin.documents}"
        " documents. How often the model read it is not known here."
    )
    languages = [(tag, str(count)) for tag, count in origin.languages.items()]
    yield _table(("language", "tokens"), languages)
    rows = [(source, licence, str(count)) for source, licence, count in origin.sources]
    yield _table(("source", "licence", "documents"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    listed = list(rows)
    lines = [
        head,
        ["---"] * len(head),
        *([escape_markdown(c, _LONGEST_TEXT) for c in r] for r in listed[:LONGEST_TABLE]),
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    left = len(listed) - LONGEST_TABLE
    return text + (f"\n\n{left} more rows are left out." if left > 0 else "")
