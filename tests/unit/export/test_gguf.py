"""GGUF files in llama.cpp itself: logits, token ids, chat format, quantization and refusals."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.base.errors import ConfigError, ExportError, RunError
from stamm.base.files import read_json, write_json
from stamm.chat.conversation import Conversation, UserTurn, to_messages
from stamm.chat.formats import chat_template
from stamm.chat.template_sandbox import render_all
from stamm.chat.template_traits import PROBES
from stamm.export import gguf_file, job, llama_cpp, parity
from stamm.export.config import ExportConfig
from stamm.export.gguf_import import GgufModel
from stamm.export.gguf_target import GgufTarget
from stamm.export.gguf_tokenizer import read_bpe
from stamm.export.held_out import different_tokens
from stamm.export.llama_cpp import LlamaCpp
from stamm.export.parity import difference, random_tokens
from stamm.export.records import TokenAgreement
from stamm.export.runtime_support import gguf_reasons
from stamm.export.target import ExportOptions, LoadedExport
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import write_chat_record
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.tokenizer import Tokenizer
from tests.conftest import environment
from tests.unit.chat.imported_folders import CHATML, TODAY, apertus_folder, imported_folder

CONFIG = ExportConfig(
    target="gguf", parity_rows=2, parity_tokens=40, prompt_tokens=6, sample_tokens=8, threads=1
)
USUAL = ExportConfig()
SMALL = DecoderConfig(
    vocab_size=352, d_model=32, num_layers=2, ffn=PlainFFN(width=64), max_context=96, init_std=0.2
)
ROPE = Llama3Rope(theta=10_000.0, original_context=16)
SWIGLU = GatedFFN(width=64, activation="swiglu")
# layout and its architecture in llama.cpp
LAYOUTS = {
    "plain": (SMALL, "apertus"),
    "tied": (replace(SMALL, tied_embeddings=True), "apertus"),
    "wide heads": (replace(SMALL, head_dim=16), "apertus"),
    "llama3 rope": (replace(SMALL, rope=ROPE), "apertus"),
    "qwen3": (replace(SMALL, ffn=SWIGLU), "qwen3"),
    "llama": (replace(SMALL, ffn=SWIGLU, qk_norm=False, tied_embeddings=True), "llama"),
    "qwen2": (replace(SMALL, ffn=SWIGLU, qk_norm=False, qkv_bias=True), "qwen2"),
    "arcee": (replace(SMALL, ffn=PlainFFN(width=64, activation="relu2"), qk_norm=False), "arcee"),
    "arcee with llama3 rope": (
        replace(SMALL, ffn=PlainFFN(width=64, activation="relu2"), qk_norm=False, rope=ROPE),
        "arcee",
    ),
    "llama with llama3 rope": (replace(SMALL, ffn=SWIGLU, qk_norm=False, rope=ROPE), "llama"),
}


def decoder_of(config: DecoderConfig, seed: int = 2) -> Decoder:
    """A decoder with random weights, norms and alphas."""
    decoder = build_decoder(config, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return decoder.eval()


def exported(
    folder: Path, decoder: Decoder, inputs: dict[str, Path], quantization: str = "F32"
) -> LoadedExport:
    target = GgufTarget()
    target.configure(ExportOptions(quantization=quantization))
    folder.mkdir(exist_ok=True)
    target.write(folder, decoder, inputs["tokenizer"] / "tokenizer.json")
    return target.load(folder)


def largest(decoder: Decoder, loaded: LoadedExport) -> float:
    tokens = random_tokens(decoder.config.vocab_size, 1, 90, seed=1)
    return difference("random tokens", decoder, loaded.logits, tokens).max_absolute


def test_an_export_passes_its_gates_in_llama_cpp(inputs: dict[str, Path], tmp_path: Path) -> None:
    job.run(CONFIG, Workspace(folder=tmp_path, inputs=inputs))
    folder = tmp_path / "gguf"
    names = ["README.md", "model-F32.gguf", "parity.json", "samples.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    report = read_json(folder / "parity.json")
    assert report["candidate"].startswith("llama.cpp (xllamacpp ")
    assert max(one["max_absolute"] for one in report["comparisons"]) < 1e-5
    assert {(one["language"], one["differing"]) for one in report["tokens"]} == {
        ("eng_Latn", 0),
        ("deu_Latn", 0),
    }
    for one in report["bits"]:
        assert one["exported"] == pytest.approx(one["original"], rel=1e-6)
    assert report["greedy"] == {"prompts": 2, "tokens": 16, "equal": 16}
    assert "bits per byte" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(inputs: dict[str, Path], tmp_path: Path) -> None:
    files = [tmp_path / name / "model-Q8_0.gguf" for name in "ab"]
    for file in files:
        exported(file.parent, decoder_of(SMALL), inputs, "Q8_0")
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_agrees(layout: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    config, architecture = LAYOUTS[layout]
    decoder = decoder_of(config)
    loaded = exported(tmp_path, decoder, inputs)
    assert f"), {architecture}, matrices:" in loaded.description
    assert largest(decoder, loaded) < 2e-5


def negated_alpha(decoder: Decoder) -> Any:
    arrays = xielu_arrays(decoder)
    return {**arrays, "alpha_n": [-arrays["alpha_n"][0], *arrays["alpha_n"][1:]]}


def softplus_twice(decoder: Decoder) -> Any:
    arrays = xielu_arrays(decoder)
    raw = torch.tensor(arrays["alpha_p"])
    return {**arrays, "alpha_p": torch.nn.functional.softplus(raw).tolist()}


xielu_arrays = gguf_file.xielu_arrays
MUTANTS = {
    "negated alpha": ("plain", "xielu_arrays", negated_alpha),
    "effective alpha": ("plain", "xielu_arrays", softplus_twice),
    "rotary factors forgotten": ("llama3 rope", "rope_factors", lambda rope, width: None),
    "rotation of halves": ("llama", "to_neighbours", lambda weight, width: weight),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_file_fails_the_gate(
    mutant: str, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, name, wrong = MUTANTS[mutant]
    monkeypatch.setattr(gguf_file, name, wrong)
    decoder = decoder_of(LAYOUTS[layout][0])
    loaded = exported(tmp_path, decoder, inputs)
    tokens = random_tokens(decoder.config.vocab_size, 1, 90, seed=1)
    assert difference("", decoder, loaded.logits, tokens).max_relative > 100 * CONFIG.tolerance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "most"),
    [("F16", 0.02), ("BF16", 0.1), ("Q8_0", 0.5), ("Q6_K", 0.6), ("Q4_K", 3.0)],
)
def test_quantized_types_are_those_named(
    quantization: str, most: float, inputs: dict[str, Path], tmp_path: Path
) -> None:
    decoder = decoder_of(replace(SMALL, d_model=256, ffn=PlainFFN(width=256), init_std=0.06))
    loaded = exported(tmp_path, decoder, inputs, quantization)
    assert loaded.rounded
    assert loaded.description.endswith(f"matrices: 14 {quantization}")
    assert 1e-4 < largest(decoder, loaded) < most


@pytest.mark.slow
def test_two_conversions_do_not_mix(inputs: dict[str, Path], tmp_path: Path) -> None:
    models = [decoder_of(SMALL, seed) for seed in (3, 4)]
    loaded = [exported(tmp_path / str(n), model, inputs) for n, model in enumerate(models)]
    for model, one in zip(models, loaded, strict=True):
        assert largest(model, one) < 2e-5


@pytest.mark.parametrize(
    ("config", "quantization", "message"),
    [
        (replace(SMALL, ffn=PlainFFN(activation="relu2")), "F32", "no architecture with the"),
        (replace(SMALL, qk_norm=False), "F32", "'xielu' without qk_norm"),
        (replace(SMALL, ffn=SWIGLU, rope=ROPE), "F32", "ignores the factors of Llama3Rope"),
        (
            replace(SMALL, d_model=40),
            "Q8_0",
            r"blocks of 32 .* not divide model\.d_model = 40, num_heads \* head_dim = 40: choose",
        ),
        (SMALL, "Q4_K", r"blocks of 256 weights, which do not divide model\.d_model = 32"),
    ],
)
def test_what_llama_cpp_cannot_run_is_refused(
    config: DecoderConfig, quantization: str, message: str
) -> None:
    reasons = gguf_reasons(config, quantization)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("; ".join(reasons))


def test_an_unknown_quantization_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"quantization = 'Q8' is not a type that gguf has: F32, F16, BF16, Q8_0"
    ) as raised:
        ExportConfig(target="gguf", quantization="Q8")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_rounded_weights_are_gated_by_bits_per_byte(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    config = replace(CONFIG, quantization="BF16")
    job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    report = read_json(tmp_path / "gguf_bf16" / "parity.json")
    whole = report["bits"][0]
    assert report["bits_tolerance"] == 0.005
    assert 0 < abs(whole["exported"] / whole["original"] - 1) < 0.005
    with pytest.raises(ExportError, match=r"bits per byte .*% more; 0\.00% are allowed"):
        strict = replace(config, bits_tolerance=1e-12)
        job.run(strict, Workspace(folder=tmp_path / "strict", inputs=inputs))
    without = {name: inputs[name] for name in ("model", "tokenizer")}
    with pytest.raises(ConfigError, match="there is no held-out text"):
        no_samples = replace(
            config, prompt_tokens=USUAL.prompt_tokens, sample_tokens=USUAL.sample_tokens
        )
        job.run(no_samples, Workspace(folder=tmp_path / "without", inputs=without))
    assert not list((tmp_path / "strict").iterdir() if (tmp_path / "strict").exists() else [])


@pytest.mark.slow
def test_the_tokenizer_splits_as_the_original(inputs: dict[str, Path], tmp_path: Path) -> None:
    loaded = exported(tmp_path, decoder_of(SMALL), inputs)
    original = Tokenizer.load(inputs["tokenizer"])
    assert loaded.encode is not None
    for text in (*job.TRICKY, "ÜBUNG École 12.5\r\n\n  x", "हिन्दी العَرَبِيَّة ไทย", "a <email-pii> b"):
        assert loaded.encode(text) == [1, *original.encode(text)]


@pytest.mark.slow
def test_the_chat_template_gives_our_ids(inputs: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(inputs["model"], model)
    ours = load_chat_format(inputs["tokenizer"])
    write_chat_record(model, "apertus", ours.sha256)
    target = GgufTarget()
    target.configure(ExportOptions(chat_format="apertus"))
    target.write(tmp_path, load_decoder(model), inputs["tokenizer"] / "tokenizer.json")
    encode = target.load(tmp_path).encode_chat
    assert encode is not None
    for asked in PROBES:
        messages = to_messages(asked.system, asked.turns)
        for prompt in (False, True):
            assert encode(messages, prompt) == ours.encode(asked, prompt=prompt).ids


@pytest.mark.parametrize("place", ["", "chat_template.jinja"])
def test_a_fine_tuned_imported_apertus_has_the_template_and_stops_of_its_training(
    inputs: dict[str, Path], tmp_path: Path, place: str
) -> None:
    description = (inputs["tokenizer"] / "tokenizer.json").read_text(encoding="utf-8")
    source = apertus_folder(tmp_path, description, place)
    target = GgufTarget()
    target.configure(ExportOptions(chat_format="apertus"))
    stored = target._tokenizer(source / "tokenizer.json", SMALL.vocab_size)
    chat = load_chat_format(source)
    assert (stored.template, set(stored.ends), stored.pad) == (
        chat_template(),
        chat.stop_ids,
        chat.pad_id,
    )
    target.configure(ExportOptions())  # not fine-tuned: the template of the folder, as it is
    kept = target._tokenizer(source / "tokenizer.json", SMALL.vocab_size).template
    assert kept == ((source / place).read_text(encoding="utf-8") if place else "")


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
@pytest.mark.parametrize("tuned", [False, True])
def test_an_imported_model_keeps_its_template_without_the_date_if_it_was_fine_tuned(
    tmp_path: Path, place: str, tuned: bool
) -> None:
    folder = imported_folder(tmp_path, TODAY)
    if place == "tokenizer_config.json":
        config = read_json(folder / place)
        write_json(folder / place, {**config, "chat_template": TODAY})
        (folder / "chat_template.jinja").unlink()
    ours = load_chat_format(folder)
    target = GgufTarget()
    target.configure(ExportOptions(chat_format=ours.name if tuned else ""))
    size = ImportedTokenizer.load(folder).size
    template = target._tokenizer(folder / "tokenizer.json", size).template
    assert (template == TODAY) is not tuned
    case = {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True}
    names = {"bos_token": "<|begin_of_text|>", "strftime_now": lambda _: "1 Jan 2030"}
    text = render_all(template, [case], names)[0].text
    asked = Conversation(turns=(UserTurn("Hello"),))
    same = ours.encode(asked, prompt=True).ids == ImportedTokenizer.load(folder).encode_rendered(
        text
    )
    assert same is tuned


@pytest.mark.parametrize("begins", [False, True])
def test_a_chat_without_the_token_before_texts_is_run_without_it(
    tmp_path: Path, begins: bool
) -> None:
    """llama.cpp puts it before chats too, and transformers only where the template has it."""
    template = ("{{ bos_token }}" if begins else "") + CHATML
    folder = imported_folder(tmp_path, template)
    begin = ImportedTokenizer.load(folder).control_id("<|endoftext|>")
    plain = read_json(folder / "tokenizer.json")
    plain["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [begin], "tokens": ["<|endoftext|>"]}
        },
    }
    write_json(folder / "tokenizer.json", plain)
    config = read_json(folder / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", {**config, "bos_token": "<|endoftext|>"})
    size = ImportedTokenizer.load(folder).size
    decoder = decoder_of(replace(SMALL, ffn=SWIGLU, qk_norm=False, vocab_size=size))
    target = GgufTarget()
    target.configure(ExportOptions(chat_format="chatml"))
    target.write(tmp_path, decoder, folder / "tokenizer.json")
    usage = target.load(tmp_path).card.usage
    assert ("--override-kv tokenizer.ggml.add_bos_token=bool:false" in usage) is not begins


@pytest.mark.slow
def test_no_space_left_leaves_nothing(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_file, "_add_model", full)
    with pytest.raises(RunError, match=r"no space left to write .*model-F32\.gguf"):
        job.run(CONFIG, Workspace(folder=tmp_path / "out", inputs=inputs))
    assert not list((tmp_path / "out").iterdir())


_KEPT = """
import sys
from pathlib import Path
from stamm.export.held_out import different_tokens
from stamm.export.llama_cpp import LlamaCpp
kept = LlamaCpp(Path(sys.argv[1]), 32)
print(len(kept.encode("some text")))
"""


@pytest.mark.slow
def test_a_process_that_keeps_a_model_to_its_end_ends_well(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    exported(tmp_path, decoder_of(SMALL), inputs)
    command = [sys.executable, "-c", _KEPT, str(tmp_path / "model-F32.gguf")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 1


@pytest.mark.slow
def test_a_damaged_file_is_one_line(inputs: dict[str, Path], tmp_path: Path) -> None:
    exported(tmp_path, decoder_of(SMALL), inputs)
    path = tmp_path / "model-F32.gguf"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ExportError, match=r"llama\.cpp cannot load") as raised:
        LlamaCpp(path, 32)
    assert "\n" not in str(raised.value)


def test_another_layout_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llama_cpp._CONTEXT, "type_k", (112, 1))
    with pytest.raises(ExportError, match=r"laid out differently .*: type_k\. Run: pip install"):
        llama_cpp._default(
            llama_cpp._library().call.llama_context_default_params, llama_cpp._CONTEXT, "params"
        )


def test_without_the_wheel_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"xllamacpp\. Run: pip install 'stamm\[gguf\]'"):
        llama_cpp._library.__wrapped__()


BYTES = {"type": "ByteLevel", "add_prefix_space": False}
WORDS = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
OTHER_KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model": {"type": "Unigram", "vocab": []}},
    "characters": {"model": WORDS, "pre_tokenizer": {"type": "Whitespace"}},
    "byte fallback": {"model": {**WORDS, "byte_fallback": True}, "pre_tokenizer": BYTES},
    "word ends": {"model": {**WORDS, "end_of_word_suffix": "</w>"}, "pre_tokenizer": BYTES},
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_tokenizer_of_another_kind_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    write_json(file, OTHER_KINDS[kind])
    with pytest.raises(ExportError, match="is not a byte-level BPE tokenizer"):
        read_bpe(file, 10)


def test_a_byte_level_tokenizer_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    step = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, BYTES]}
    write_json(file, {"model": WORDS, "pre_tokenizer": step})
    assert read_bpe(file, 4) == (["a", "b", "ab", "[PAD3]"], [1, 1, 1, 5], ["a b"])


def test_float16_names_the_weights_that_it_cannot_hold() -> None:
    """Half of the smallest number, 2^-25, becomes 0; 2^-24 and 2^-14 are exact; 65519 is rounded down."""
    small = [0.0, 1.0, -65504.0, 65519.0, 2.0**-14, 2.0**-24, -(2.0**-25), 1e-30, 1.5 * 2.0**-24]
    half, lost = gguf_file.to_float16("blk.0.ffn_up.weight", torch.tensor([small]))
    assert half.dtype == torch.float16
    assert half.tolist()[0][:6] == [0.0, 1.0, -65504.0, 65504.0, 2.0**-14, 2.0**-24]
    assert (lost.weights, lost.zero, lost.inexact) == (9, 2, 1)
    for wrong in (65520.0, -1e9, float("inf"), float("nan")):
        with pytest.raises(ExportError, match=r"blk\.0\.ffn_up\.weight has a weight of .*65504"):
            gguf_file.to_float16("blk.0.ffn_up.weight", torch.tensor([[1.0, wrong]]))


def test_an_export_in_float16_reports_what_it_loses_and_refuses_infinities(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """The model's weights in bfloat16 are those of float16 after the import of the file, but for small ones."""
    config = replace(
        USUAL, target="gguf", quantization="F16", held_out="not_measured", parity_rows=1, threads=1
    )
    decoder = load_decoder(inputs["model"]).bfloat16().float()
    first = decoder.model.layers[0].get_parameter("mlp.up_proj.weight")[0]
    model = tmp_path / "model"
    given = {**inputs, "model": model}

    def export(*values: float) -> None:
        with torch.no_grad():
            first[: len(values)] = torch.tensor(values)
        save_decoder(decoder, model)
        job.run(config, Workspace(folder=tmp_path / "out", inputs=given))

    export(1e-9, 1e-6, 0.5)
    folder = tmp_path / "out" / "gguf_f16"
    (remark,) = read_json(folder / "parity.json")["remarks"]
    found = re.search(
        r" ([\d,]+) are too small for float16 and became 0, and ([\d,]+) below", remark
    )
    assert found is not None
    card = (folder / "README.md").read_text()
    assert "too small for float16 and became 0" in card
    read = GgufModel(folder / "model-F16.gguf")
    assert read.quantization == "14 F16, 9 F32"
    changed = 0
    for ours, theirs in zip(
        decoder.state_dict().items(), read.decoder().state_dict().items(), strict=True
    ):
        assert ours[0] == theirs[0]
        assert torch.allclose(ours[1], theirs[1], rtol=0, atol=2.0**-25)
        changed += int((ours[1] != theirs[1]).sum())
    assert changed == sum(int(number.replace(",", "")) for number in found.groups())
    with pytest.raises(ExportError, match=r"ffn_up.weight has a weight of 65536, and float16 ends"):
        export(65_536.0)
    with pytest.raises(ExportError, match="logits that are infinite or NaN on random tokens"):
        export(60_000.0)  # llama.cpp computes with float16, and xIELU squares
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gguf_f16"]


def test_logits_that_are_no_numbers_are_refused_without_a_gate_too() -> None:
    tokens = [torch.tensor([1, 2])]
    ours = torch.zeros(1, 2, 4)
    for wrong in (float("nan"), float("inf")):
        found = difference("held-out text", lambda _: ours, lambda _, w=wrong: ours + w, tokens)
        with pytest.raises(ExportError, match=r"infinite or NaN on held-out text \(export\.quanti"):
            parity.require_finite([found])
    parity.require_finite([difference("", lambda _: ours, lambda _: ours + 9, tokens)])


def test_other_ids_are_refused_above_a_limit_and_named_by_language() -> None:
    found = [
        TokenAgreement(language="hin_Deva", texts=1, tokens=100, differing=31),
        TokenAgreement(language="eng_Latn", texts=1, tokens=900, differing=0),
    ]
    parity.require_tokens(found, 0.05)
    with pytest.raises(ExportError, match=r"for held-out text: hin_Deva 31 of 100 tokens\."):
        parity.require_tokens(found, 0.01)
    assert different_tokens([1, 2, 3, 4], [1, 9, 9, 3, 4]) == 1
