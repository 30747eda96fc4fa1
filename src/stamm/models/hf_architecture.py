"""The Hugging Face architecture of a decoder: which class of transformers computes the same function.

Neither torch nor transformers is loaded, so a recipe can check its export before training.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.activations.spec.shipped import NAMES
from stamm.base.errors import ExportError
from stamm.models.config import DecoderConfig, Dense, GatedFFN

# Names of ACT2FN in transformers/activations.py that compute the same function as ours.
PLAIN_ACTS = {"xielu": "xielu", "relu2": "relu2", "relu": "relu", "gelu": "gelu", "silu": "silu"}
GATED_ACTS = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
# (gated, qk_norm, qkv_bias) -> model type and class with such blocks
CLASSES = {
    (False, True, False): ("apertus", "ApertusForCausalLM"),
    (False, False, False): ("arcee", "ArceeForCausalLM"),
    (True, True, False): ("qwen3", "Qwen3ForCausalLM"),
    (True, False, False): ("llama", "LlamaForCausalLM"),
    (True, False, True): ("qwen2", "Qwen2ForCausalLM"),
}
EXPERT_CLASSES = {
    True: ("qwen3_moe", "Qwen3MoeForCausalLM"),
    False: ("mixtral", "MixtralForCausalLM"),
}
"""By qk_norm: the class with gated experts, whose router's softmax over the chosen ones sums to 1."""


@dataclass(frozen=True, kw_only=True)
class HubClass:
    """A class of transformers, and its name of the activation.

    own_code   the activation is not one of transformers: a class of this name, derived from
               `architecture`, is written beside the weights and needs trust_remote_code
    """

    model_type: str
    architecture: str
    hidden_act: str
    own_code: str = ""


def hub_class(config: DecoderConfig) -> HubClass:
    """The class of transformers that computes what `config` describes.

    Raises   ExportError with the part that none of its classes supports.
    """
    gated = isinstance(config.ffn, GatedFFN)
    spec = config.ffn.spec
    name = NAMES.get(spec.content_hash, spec.name)
    known = GATED_ACTS if gated else PLAIN_ACTS
    if not isinstance(config.ffn.linear, Dense):
        raise ExportError(
            f"no class of transformers has matrices of the form {type(config.ffn.linear).__name__}",
            where="model.ffn.linear",
            fix="Export the decoder that Decoder.merged() gives: the same function, dense",
        )
    if reason := shapes_reason(config):
        raise ExportError(
            reason,
            where="model.ffn.shapes = 'neuron'",
            fix="Train with model.ffn.shapes=layer to export the model",
        )
    if name == "xielu" and not config.qk_norm:
        raise ExportError(
            "transformers computes 'xielu' in float32 only inside Apertus, whose attention"
            " normalises queries and keys",
            where="model.qk_norm = False",
            fix="Train with model.qk_norm=true to export xielu",
        )
    if not config.qk_norm and config.d_model % config.num_heads:
        raise ExportError(
            f"d_model = {config.d_model} does not divide by num_heads = {config.num_heads}, which "
            "the classes of transformers without normalised queries and keys require",
            where="model.num_heads",
            fix="Train with model.qk_norm=true, or with heads that divide d_model",
        )
    if config.ffn.experts is not None:
        return _expert_class(config, known.get(name, ""))
    blocks = (gated, config.qk_norm, config.qkv_bias)
    if blocks not in CLASSES:
        raise ExportError(
            "transformers has biases of queries, keys and values only in Qwen2, whose block is gated"
            " and does not normalise queries and keys",
            where="model.qkv_bias = True",
            fix="Train with model.qkv_bias=false, or a gated block with model.qk_norm=false",
        )
    model_type, architecture = CLASSES[blocks]
    own = name not in known
    return HubClass(
        model_type=model_type,
        architecture=architecture,
        hidden_act=f"stamm_{spec.name}_{spec.content_hash[:8]}" if own else known[name],
        own_code=f"Stamm{architecture}" if own else "",
    )


def _expert_class(config: DecoderConfig, hidden_act: str) -> HubClass:
    experts = config.ffn.experts
    if not isinstance(config.ffn, GatedFFN):
        reason = "no class of transformers has experts without a gate"
    elif experts is not None and experts.shared:
        reason = "Qwen3Moe and Mixtral have no shared experts"
    elif config.qkv_bias:
        reason = "Qwen3Moe and Mixtral have no biases of queries, keys and values"
    elif not hidden_act:
        reason = f"transformers has no activation {config.ffn.spec.name!r} for the experts of its classes"
    else:
        model_type, architecture = EXPERT_CLASSES[config.qk_norm]
        return HubClass(model_type=model_type, architecture=architecture, hidden_act=hidden_act)
    raise ExportError(
        reason,
        where="model.ffn.experts",
        fix="Use the model in stamm, or export the model that it was carved from",
    )


def shapes_reason(config: DecoderConfig) -> str:
    """Why no export format can store the activation's parameters; "" when one can."""
    if config.ffn.shapes == "layer":
        return ""
    return f"exported formats store one set of parameters of {config.ffn.spec.name!r} per layer, not per neuron"


def unsupported_reasons(config: DecoderConfig) -> tuple[str, ...]:
    """Why no class of transformers computes what `config` describes; empty when one does."""
    try:
        hub_class(config)
    except ExportError as error:
        return (f"{error.what}. {error.where}: {error.fix}",)
    return ()
