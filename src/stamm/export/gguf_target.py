"""Export target `gguf`: a file that llama.cpp, Ollama and LM Studio load, checked in llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stamm.base.errors import ExportError
from stamm.base.receipts import check_file
from stamm.chat.formats import chat_template
from stamm.chat.render import ASSISTANT_END
from stamm.chat.template_files import TEMPLATE, folder_template
from stamm.chat.template_sandbox import render_all
from stamm.export.gguf_file import (
    SmallWeights,
    gguf_tensors,
    read_metadata,
    stored_types,
    write_gguf,
)
from stamm.export.gguf_tokenizer import GgufTokenizer, read_bpe
from stamm.export.held_out import different_tokens
from stamm.export.llama_cpp import VERSION, LlamaCpp
from stamm.export.runtime_support import BLOCK_BYTES, BLOCKS, GgufSupport
from stamm.export.target import CardText, LoadedExport, TargetPlan
from stamm.export.transformers_target import (
    TOKENIZER_CONFIG,
    imported_special_ids,
    open_tokenizer,
    trained_template,
)
from stamm.models.decoder import Decoder
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID, PAD_ID, RESERVED_TOKENS

_HELLO = [{"role": "user", "content": "Hello"}]
_NO_BEGIN = "tokenizer.ggml.add_bos_token=bool:false"
# llama.cpp's rules that cut texts into words; it knows no others (src/llama-vocab.cpp).
PRE_TOKENIZERS = (
    "qwen35", "tiny_aya", "superbpe", "tekken", "llama-bpe", "qwen2", "gpt-4o", "smollm", "gpt-2",
)  # fmt: skip
MOST_DIFFERING = 0.01
"""Largest share of held-out tokens that llama.cpp's tokenizer may give otherwise."""
_PROBE = "Über 1234 Wörter, l'ÉCOLE; it's 3.14!\n\n  hello_world()\t日本語 हिन्दी العَرَبِيَّة 🙂"


class GgufTarget(GgufSupport):
    """One file, model-TYPE.gguf."""

    def __init__(self) -> None:
        super().__init__()
        self._lost = SmallWeights()

    def plan(self, model: Decoder) -> TargetPlan:
        """The file; llama.cpp maps it."""
        kind = self._options.quantization
        stored = [(t.numel(), kind if t.dim() > 1 else "F32") for _, t in gguf_tensors(model)]
        size = sum(count // BLOCKS[kind] * BLOCK_BYTES[kind] for count, kind in stored)
        return TargetPlan(files={f"model-{kind}.gguf": size}, engine=size, converted=kind != "F32")

    def write(self, folder: Path, model: Decoder, tokenizer: Path) -> None:
        """Write the file.

        Raises   ExportError for a tokenizer other than byte-level BPE, for a weight beyond the range of
                 F16, or when a package is missing.
        """
        described = self._tokenizer(tokenizer, model.config.vocab_size)
        rule = self._options.pre_tokenizer or _best_rule(
            folder, described, tokenizer, (*self._options.texts, _PROBE)
        )
        kind = self._options.quantization
        described = replace(described, pre=rule)
        self._lost = write_gguf(folder / f"model-{kind}.gguf", described, model, kind)

    def load(self, folder: Path) -> LoadedExport:
        """The file in llama.cpp.

        Raises   ExportError when llama.cpp does not load it.
        """
        kind = self._options.quantization
        path = folder / f"model-{kind}.gguf"
        facts = read_metadata(path)
        engine = LlamaCpp(path, int(facts["context_length"]))
        template = facts["template"]

        def encode_chat(messages: Sequence[Mapping[str, Any]], prompt: bool) -> list[int]:
            case = {"messages": list(messages), "add_generation_prompt": prompt}
            text = render_all(template, [case], {"bos_token": RESERVED_TOKENS[BEGIN_ID]})[0].text
            return engine.encode(text, control=True)

        begin, asked = facts["begin"], {"messages": _HELLO, "add_generation_prompt": True}
        text = render_all(template, [asked], {"bos_token": begin})[0].text if template else begin
        # Training and transformers put no token before a chat but those of the template.
        plain = "" if text.startswith(begin) else f" --override-kv {_NO_BEGIN}"
        types = ", ".join(f"{count} {name}" for name, count in stored_types(path).items())
        rule = facts["pre"]
        return LoadedExport(
            description=f"llama.cpp (xllamacpp {VERSION}), {facts['architecture']}, matrices: {types}",
            logits=engine.logits,
            encode=engine.encode,
            generate=engine.generate,
            encode_chat=encode_chat if template else None,
            rounded=kind != "F32",
            token_limit=MOST_DIFFERING,
            remarks=_remarks(self._lost),
            card=CardText(
                library="gguf",
                architecture=f"{facts['architecture']} of llama.cpp, pre-tokenizer {rule}",
                usage=f"```\nllama-cli -m {path.name} {'-cnv' if template else '-no-cnv -p Once'}{plain}\n```",
            ),
        )

    def _tokenizer(self, file: Path, vocab_size: int) -> GgufTokenizer:
        beside, chat = file.parent, self._options.chat
        for read in (file, beside / TEMPLATE):
            check_file(read)
        tokens, types, merges = read_bpe(file, vocab_size)
        begin, pad, ends, template = BEGIN_ID, PAD_ID, [END_ID], ""
        add_begin = True
        if (beside / TOKENIZER_CONFIG).is_file():
            special, ends = imported_special_ids(beside)
            begin, pad = special.begin, special.pad
            add_begin = bool(ImportedTokenizer.load(file).prefix_ids())
            if chat:
                template = trained_template(beside, self._options.chat_format)
            else:
                template = folder_template(beside)
        elif chat:
            ends, template = [END_ID, RESERVED_TOKENS.index(ASSISTANT_END)], chat_template()
        return GgufTokenizer(
            pre="",
            tokens=tokens,
            types=types,
            merges=merges,
            begin=begin,
            pad=pad,
            add_begin=add_begin,
            ends=ends,
            template=template,
            json=file.read_text(encoding="utf-8"),
        )


def _remarks(lost: SmallWeights) -> list[str]:
    if not lost.zero + lost.inexact:
        return []
    return [
        f"Of {lost.weights:,} weights of matrices, {lost.zero:,} are too small for float16 and became 0, and"
        f" {lost.inexact:,} below 6.1e-5 lost precision."
    ]


def _best_rule(
    folder: Path, described: GgufTokenizer, tokenizer: Path, texts: Sequence[str]
) -> str:
    """The rule with which llama.cpp differs from the tokenizer in the fewest tokens of `texts`."""
    original = open_tokenizer(tokenizer)
    wanted = [original.encode(text) for text in texts]
    num_different: dict[str, int] = {}
    for rule in PRE_TOKENIZERS:
        file = folder / ".vocabulary.gguf"
        write_gguf(file, replace(described, pre=rule, add_begin=False, json=""), None, "F32")
        try:
            engine = LlamaCpp(file, 0)
        except ExportError as error:  # a rule that this version does not have
            if "pre-tokenizer" not in error.what:
                raise
            continue
        finally:
            file.unlink()
        pairs = zip(wanted, texts, strict=True)
        num_different[rule] = sum(different_tokens(ids, engine.encode(text)) for ids, text in pairs)
        if not num_different[rule]:
            break
    return min(num_different, key=lambda rule: num_different[rule])
