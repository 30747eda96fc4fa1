"""Names and shapes of all parameters, from the configuration alone. No torch here."""

from __future__ import annotations

from stamm.models.config import BlockDense, BlockShuffle, DecoderConfig, Dense, GatedFFN, LowRank
from stamm.models.lora_config import Lora


def parameter_shapes(config: DecoderConfig, *, guides: bool = False) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a decoder by name, in the module's order; a tied matrix once.

    guides   include the dense guides of structured matrices
    Checked  tests/unit/models/test_parameter_names.py
    """
    d, e = config.d_model, config.head_width
    queries, keys = config.num_heads * e, config.num_kv_heads * e
    trained = [p.name for p in config.ffn.spec.trainable]
    guided = guides and config.structured.guide is not None
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, d)}
    for layer in range(config.num_layers):
        ffn, here = config.ffn_of(layer), f"model.layers.{layer}"
        for name, shape in (
            ("q", (queries, d)),
            ("k", (keys, d)),
            ("v", (keys, d)),
            ("o", (d, queries)),
        ):
            shapes[f"{here}.self_attn.{name}_proj.weight"] = shape
            if config.qkv_bias and name != "o":
                shapes[f"{here}.self_attn.{name}_proj.bias"] = shape[:1]
        if config.qk_norm:
            shapes |= {f"{here}.self_attn.{x}_norm.weight": (e,) for x in "qk"}
        sides = (("gate", d, ffn.width),) if isinstance(ffn, GatedFFN) else ()
        for name, inputs, outputs in (*sides, ("up", d, ffn.width), ("down", ffn.width, d)):
            factors = _factors(ffn.linear, inputs, outputs)
            if guided and not isinstance(ffn.linear, Dense):
                factors["guide"] = (outputs, inputs)
            for factor, shape in factors.items():
                shapes[f"{here}.mlp.{name}_proj.{factor}"] = shape
        shapes |= {f"{here}.mlp.act_fn.{name}": (ffn.neurons or 1,) for name in trained}
        if ffn.experts is not None:
            shapes[f"{here}.mlp.router.weight"] = (ffn.experts.routed, d)
        for name in ("attention", "feedforward"):
            shapes[f"{here}.{name}_layernorm.weight"] = (d,)
    shapes["model.norm.weight"] = (d,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    return shapes


def adapter_shapes(config: DecoderConfig, lora: Lora) -> dict[str, tuple[int, ...]]:
    """The shapes of A and B of every adapter, by name.

    Checked  tests/unit/models/test_parameter_names.py
    """
    suffixes = tuple(f".{target}.weight" for target in lora.targets)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (outputs, inputs) in _matrices(config).items():
        if name.endswith(suffixes):
            module_name = name.removesuffix(".weight")
            shapes[f"{module_name}.lora_A"] = (lora.rank, inputs)
            shapes[f"{module_name}.lora_B"] = (outputs, lora.rank)
    return shapes


def trained_shapes(
    config: DecoderConfig, *, guides: bool = False, lora: Lora | None = None
) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter that is trained by name: all, or the adapters of `lora`."""
    shapes = parameter_shapes(config, guides=guides)
    if lora is None:
        return shapes
    activation = {n: shape for n, shape in shapes.items() if ".act_fn." in n}
    return adapter_shapes(config, lora) | (activation if lora.train_activation else {})


def _matrices(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    return {
        name: (shape[0], shape[1])
        for name, shape in parameter_shapes(config).items()
        if len(shape) == 2
    }


def _factors(
    linear: Dense | LowRank | BlockDense | BlockShuffle, inputs: int, outputs: int
) -> dict[str, tuple[int, int]]:
    if isinstance(linear, Dense):
        return {"weight": (outputs, inputs)}
    blocks = 1 if isinstance(linear, LowRank) else linear.blocks
    between = linear.between(inputs, outputs)
    last = between // blocks if isinstance(linear, BlockShuffle) else between
    return {"first": (between, inputs // blocks), "second": (outputs, last)}
