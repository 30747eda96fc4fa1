"""The decoder: no leak between documents, exact counts, the same numbers as its rivals' formulas."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, write_json
from stamm.models.attention_mask import Kernel, document_mask, partial_attention_inputs
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN, PlainRope
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import count_parameters, forward_flops
from stamm.models.rope import inverse_frequencies
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.catalog import RECIPES
from stamm.recipes.study import Study

SMALL = DecoderConfig(
    vocab_size=64, d_model=32, num_layers=2, ffn=PlainFFN(width=48), max_context=64
)
FFNS = (
    PlainFFN(width=48, activation="xielu"),
    PlainFFN(width=48, activation="relu2"),
    GatedFFN(width=32, activation="swiglu"),
)


# Three sequences of 40 tokens, packed differently: several documents, two, and one with one of one token.
PACKED = torch.stack(
    [
        torch.tensor([0] * 11 + [1] * 9 + [2] * 20),
        torch.tensor([0] * 30 + [1] * 10),
        torch.tensor([0] * 1 + [1] * 38 + [2] * 1),
    ]
)


def _logits(decoder: Decoder, tokens: torch.Tensor, kernel: Kernel = "dense") -> torch.Tensor:
    dtype, place = decoder.lm_head.weight.dtype, torch.arange(tokens.shape[1])
    seen = partial_attention_inputs(
        decoder.model, PACKED, PACKED, place, place, dtype, kernel=kernel
    )
    logits: torch.Tensor = decoder.lm_head(decoder.model(tokens, attention=seen))
    return logits


def _tokens() -> torch.Tensor:
    return torch.randint(0, 64, (3, 40), generator=torch.Generator().manual_seed(0))


def _assert_no_leak(decoder: Decoder, kernel: Kernel = "dense") -> None:
    """Each document in turn is replaced: no bit of any other one's logits changes, but its own do."""
    tokens = _tokens()
    with torch.no_grad():
        before = _logits(decoder, tokens, kernel)
        for row, number in itertools.product(range(3), range(3)):
            changed = torch.zeros_like(PACKED, dtype=torch.bool)
            changed[row] = PACKED[row] == number
            if not changed.any():
                continue
            after = _logits(decoder, torch.where(changed, (tokens + 1) % 64, tokens), kernel)
            assert torch.equal(after[~changed], before[~changed]), (row, number)
            assert (after[changed] != before[changed]).any(dim=-1).all(), (row, number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("ffn", FFNS)
def test_documents_do_not_leak(
    ffn: PlainFFN | GatedFFN, num_kv_heads: int, dtype: torch.dtype
) -> None:
    """With and without grouped queries: first, middle and last documents of several sequences."""
    config = replace(SMALL, ffn=ffn, num_kv_heads=num_kv_heads)
    _assert_no_leak(build_decoder(config, seed=1).to(dtype))


@pytest.mark.parametrize(("num_kv_heads", "dtype"), [(2, torch.float32), (4, torch.bfloat16)])
def test_documents_do_not_leak_where_layers_are_compiled(
    num_kv_heads: int, dtype: torch.dtype
) -> None:
    torch.compiler.reset()
    decoder = build_decoder(replace(SMALL, num_kv_heads=num_kv_heads), seed=1).to(dtype)
    for layer in decoder.model.layers:
        layer.compile(fullgraph=True)
    _assert_no_leak(decoder)


@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_documents_do_not_leak_through_a_list_of_blocks(num_kv_heads: int) -> None:
    decoder = build_decoder(replace(SMALL, num_kv_heads=num_kv_heads), seed=1)
    _assert_no_leak(decoder, kernel="flex")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_gradient_leaks_between_documents(dtype: torch.dtype) -> None:
    """The loss of one document has a gradient of exactly 0 by every token of every other."""
    decoder = build_decoder(replace(SMALL, num_kv_heads=2), seed=1).to(dtype)
    embedded: list[torch.Tensor] = []

    def kept(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    decoder.model.embed_tokens.register_forward_hook(kept)
    own = torch.zeros_like(PACKED, dtype=torch.bool)
    own[0] = PACKED[0] == 1
    _logits(decoder, _tokens())[own].float().logsumexp(dim=-1).sum().backward()
    gradient = embedded[0].grad
    assert gradient is not None
    assert (gradient[~own] == 0).all()
    assert (gradient[own] != 0).any(dim=-1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_is_told_documents_is_needed(dtype: torch.dtype) -> None:
    """Without it the same change is seen by every later token of its sequence: the test can fail."""
    decoder = build_decoder(SMALL, seed=1).to(dtype)
    tokens = _tokens()
    other = tokens.clone()
    other[0, 3] = (other[0, 3] + 1) % 64
    with torch.no_grad():
        before, after = decoder(tokens), decoder(other)
    changed = (before != after).any(dim=-1)
    assert changed[0].tolist() == [False] * 3 + [True] * 37
    assert not changed[1:].any()


def test_three_packed_documents_are_read_as_if_each_were_alone() -> None:
    decoder = build_decoder(replace(SMALL, max_context=256), seed=1)
    tokens = torch.randint(0, 64, (2, 150), generator=torch.Generator().manual_seed(0))
    document = torch.tensor([0] * 64 + [1] * 30 + [2] * 56).expand(2, -1)
    alone = [decoder(tokens[:, a:b]) for a, b in ((0, 64), (64, 94), (94, 150))]
    torch.testing.assert_close(
        decoder(tokens, document), torch.cat(alone, dim=1), rtol=1e-4, atol=1e-5
    )


def test_a_packed_document_is_read_as_if_it_were_alone() -> None:
    decoder = build_decoder(SMALL, seed=1)
    tokens = torch.randint(0, 64, (1, 40), generator=torch.Generator().manual_seed(0))
    document = (torch.arange(40) >= 17).long()[None]
    with torch.no_grad():
        packed, alone = decoder(tokens, document)[:, 17:], decoder(tokens[:, 17:])
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


def test_the_mask_is_causal_within_documents() -> None:
    document, place = torch.tensor([[0, 0, 1, 1]]), torch.arange(4)
    mask = document_mask(document, document, place, place, torch.float32)[0, 0]
    assert set(mask.flatten().tolist()) == {0.0, -torch.inf}
    assert (mask == 0).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, True, True],
    ]


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", ["plain", "llama3"])
def test_rope_frequencies_equal_transformers(theta: float, kind: str) -> None:
    from transformers import ApertusConfig
    from transformers.models.apertus.modeling_apertus import ApertusRotaryEmbedding

    parameters = {"rope_theta": theta, "rope_type": "default"}
    config: PlainRope | Llama3Rope = PlainRope(theta=theta)
    if kind == "llama3":
        config = Llama3Rope(theta=theta)
        parameters |= {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    theirs = ApertusConfig(hidden_size=256, num_attention_heads=2, rope_parameters=parameters)
    expected = ApertusRotaryEmbedding(theirs).inv_freq
    torch.testing.assert_close(inverse_frequencies(config, 128), expected, rtol=1e-6, atol=0)


def _decoders() -> list[tuple[str, DecoderConfig, int]]:
    found = []
    for recipe in RECIPES:
        config = recipe.build()
        if isinstance(config, PretrainConfig):
            found.append((recipe.name, config.model, config.context))
        elif isinstance(config, Study):
            for arm in config.arms:
                name = f"{recipe.name}.{arm.name}"
                found.append((name, config.model_of(arm), config.pretrain.context))
    return found


@pytest.mark.parametrize(("name", "config", "context"), _decoders())
def test_counts_equal_the_module_on_the_meta_device(
    name: str, config: DecoderConfig, context: int
) -> None:
    with torch.device("meta"):
        decoder = Decoder(config)
        tokens = torch.zeros(1, context, dtype=torch.long)
    assert count_parameters(config).total == sum(p.numel() for p in decoder.parameters())
    assert count_parameters(config).activation == sum(
        p.numel() for n, p in decoder.named_parameters() if ".act_fn." in n
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        decoder(tokens)
    assert forward_flops(config, context).executed == counter.get_total_flops()


@pytest.mark.parametrize(
    ("recipe", "billions"),
    [
        ("pretrain.apertus_8b", 8.053),
        ("pretrain.apertus_70b", 70.60),
        ("llama_1b_xielu", 1.1),
        ("llama_3b_xielu", 3.0),
    ],
)
def test_full_size_recipes_have_the_published_sizes(recipe: str, billions: float) -> None:
    from stamm.recipes.catalog import get

    config = get(recipe).build()
    assert isinstance(config, PretrainConfig)
    assert count_parameters(config.model).total / 1e9 == pytest.approx(
        billions, rel=1e-1 if "llama" in recipe else 2e-4
    )


def test_shared_tensors_of_two_arms_start_equal_and_seeds_differ() -> None:
    plain = build_decoder(replace(SMALL, ffn=FFNS[0]), seed=3).state_dict()
    gated = build_decoder(replace(SMALL, ffn=FFNS[2]), seed=3).state_dict()
    other = build_decoder(replace(SMALL, ffn=FFNS[0]), seed=4).state_dict()
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(plain[name], gated[name])
    assert not torch.equal(plain[name], other[name])
    assert plain[name].std().item() == pytest.approx(SMALL.init_std, rel=0.1)


def test_layers_do_not_share_their_activation() -> None:
    decoder = build_decoder(SMALL, seed=0)
    first, second = (layer.mlp.act_fn.alpha_p for layer in decoder.model.layers)
    assert first is not second
    assert first.dtype == torch.float32
    assert tuple(first.shape) == (1,)


@pytest.mark.parametrize("tied", [False, True])
def test_a_stored_decoder_comes_back_bit_for_bit(tmp_path: Path, tied: bool) -> None:
    decoder = build_decoder(replace(SMALL, tied_embeddings=tied), seed=5).eval()
    save_decoder(decoder, tmp_path)
    loaded = load_decoder(tmp_path)
    assert loaded.config == decoder.config
    tokens = torch.arange(20)[None]
    assert torch.equal(loaded(tokens), decoder(tokens))


def test_a_decoder_with_another_activation_under_the_same_name_is_refused(tmp_path: Path) -> None:
    save_decoder(build_decoder(SMALL, seed=5), tmp_path)
    description = read_json(tmp_path / "decoder.json")
    description["activation"]["content_hash"] = "0" * 64
    write_json(tmp_path / "decoder.json", description)
    with pytest.raises(DataError, match="'xielu' had content hash 000000000000"):
        load_decoder(tmp_path)


def test_a_decoder_with_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    save_decoder(build_decoder(SMALL, seed=5), tmp_path)
    description = read_json(tmp_path / "decoder.json")
    description["decoder"]["num_layers"] = 3
    write_json(tmp_path / "decoder.json", description)
    with pytest.raises(DataError, match=r"does not fit decoder\.json"):
        load_decoder(tmp_path)


def test_weights_that_were_changed_are_refused(tmp_path: Path) -> None:
    save_decoder(build_decoder(SMALL, seed=5), tmp_path)
    weights = tmp_path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4:] = bytes(4)
    weights.write_bytes(data)
    with pytest.raises(DataError, match=r"has SHA-256 \w+, and decoder\.json records \w+.*restore"):
        load_decoder(tmp_path)
    described = read_json(tmp_path / "decoder.json")
    del described["weights_sha256"]
    write_json(tmp_path / "decoder.json", described)
    with pytest.raises(DataError, match=r"decoder\.json records None"):
        load_decoder(tmp_path)
    write_json(tmp_path / "decoder.json", {**described, "schema": 1})  # of an older version
    load_decoder(tmp_path)
    weights.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 33}, "d_model = 33 does not divide into num_heads = 4 heads"),
        ({"num_kv_heads": 3}, "num_kv_heads = 3 does not divide num_heads = 4"),
        ({"head_dim": 7}, "head_dim = 7 gives heads of odd width"),
        ({"norm_eps": 0.0}, "norm_eps = 0.0 must be positive"),
    ],
)
def test_impossible_decoders_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(SMALL, **changes)  # type: ignore[arg-type]
    assert words in caught.value.line()


def test_a_gate_where_none_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a gate"):
        PlainFFN(activation="swiglu")
    with pytest.raises(ConfigError, match="has no gate"):
        GatedFFN(activation="xielu")
    with pytest.raises(ConfigError, match="xielu"):
        PlainFFN(activation="xeilu")
