"""Adapter to transformers: configuration and tensor names of its classes, and the loaded model.

The layout (config.json, tensor names) is written and read without transformers; `HubModel` is the
model that transformers loads from a folder, for comparison with the original decoder.
"""

from __future__ import annotations

import contextlib
import functools
import logging as std_logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.activations import catalog
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, ExportError
from stamm.base.files import read_json
from stamm.models.config import DecoderConfig, Experts, Llama3Rope, PlainRope
from stamm.models.decoder import Decoder
from stamm.models.hf_architecture import EXPERT_CLASSES, HubClass, hub_class
from stamm.models.hf_files import ACTIVATION_KEY, CONFIG
from stamm.models.hub_folder import LLAMA_NAMES, load_hub_config
from stamm.models.remote_code import MODULE, remote_code

CODE = f"{MODULE}.py"

_XIELU_BUFFERS = ("beta", "eps")
_ACTIVATIONS = "transformers.activations"


@dataclass(frozen=True, kw_only=True)
class HubSpecialIds:
    """Ids of the tokens that begin, end and pad a sequence."""

    begin: int
    end: int
    pad: int


def hub_config(
    config: DecoderConfig, special: HubSpecialIds, dtype: str = "float32"
) -> dict[str, Any]:
    """The content of config.json, with the keys that other engines read as well.

    dtype    of the weights, a name of torch's

    Source   keys that transformers does not need: MLX-LM, models/apertus.py and qwen3.py (ModelArgs);
             rope_theta and rope_scaling also transformers before version 5
    Raises   ExportError as `hub_class` does.
    """
    kind = hub_class(config)
    spec = config.ffn.spec
    own = {
        "auto_map": {"AutoModelForCausalLM": f"{MODULE}.{kind.own_code}"},
        ACTIVATION_KEY: {"content_hash": spec.content_hash, "spec": to_plain(spec)},
    }
    plain, apertus = isinstance(config.rope, PlainRope), kind.model_type == "apertus"
    return {
        **(own if kind.own_code else {}),
        "architectures": [kind.own_code or kind.architecture],
        "model_type": kind.model_type,
        "dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        **_width_keys(config, kind.model_type),
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": kind.hidden_act,
        "max_position_embeddings": config.max_context,
        "initializer_range": config.init_std,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "rope_parameters": _rope_parameters(config.rope),
        "rope_theta": config.rope.theta,
        **({} if plain else {"rope_scaling": _rope_parameters(config.rope)}),
        **({"mlp_bias": False, "qk_norm": True, "post_norm": False} if apertus else {}),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "bos_token_id": special.begin,
        "eos_token_id": special.end,
        "pad_token_id": special.pad,
    }


def _width_keys(config: DecoderConfig, model_type: str) -> dict[str, Any]:
    """Width of the feed-forward blocks, and their experts; Mixtral's intermediate_size is that of an expert."""
    width, experts = config.ffn.width, config.ffn.experts
    if experts is None:
        return {"intermediate_size": width}
    expert_width = width // experts.count
    keys = {"num_experts_per_tok": experts.active, "output_router_logits": False}
    if model_type == "mixtral":
        own = {"intermediate_size": expert_width, "num_local_experts": experts.count}
        return {**own, **keys, "sliding_window": None}
    own = {
        "intermediate_size": width,
        "moe_intermediate_size": expert_width,
        "num_experts": experts.count,
    }
    return {
        **own, **keys, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def written_class(folder: Path) -> HubClass:
    """The class that a written folder names, by its config.json."""
    stored = read_json(folder / CONFIG)
    if stored.get("model_type") not in dict(EXPERT_CLASSES.values()):
        return hub_class(load_hub_config(folder))
    return HubClass(
        model_type=stored["model_type"],
        architecture=stored["architectures"][0],
        hidden_act=stored["hidden_act"],
    )


def hub_code(config: DecoderConfig) -> str:
    """Source of the module that `hub_config` names; "" when transformers has the activation."""
    kind = hub_class(config)
    if not kind.own_code:
        return ""
    return remote_code(
        config.ffn.spec,
        hidden_act=kind.hidden_act,
        base=kind.architecture,
        architecture=kind.own_code,
    )


def hub_state(decoder: Decoder) -> dict[str, Tensor]:
    """The tensors of model.safetensors, under the names of the class that `hub_class` chose.

    xIELU's alpha_p and alpha_n stay raw (before softplus), shape (1,); its constants are buffers
    beside them. A shared output matrix is left out, since it is the embedding, except of Apertus:
    llama.cpp and older versions of MLX-LM do not tie it.
    """
    kind = hub_class(decoder.config)
    state = {
        _hub_name(name, kind.model_type): tensor.detach().contiguous()
        for name, tensor in decoder.state_dict().items()
    }
    if decoder.config.ffn.experts is not None:
        state = _expert_state(state, decoder.config.ffn.experts, kind.model_type)
    if decoder.config.tied_embeddings and kind.model_type != "apertus":
        del state["lm_head.weight"]
    if kind.hidden_act == "xielu":
        constants = xielu_constants()
        for layer in range(decoder.config.num_layers):
            for name in _XIELU_BUFFERS:
                key = f"model.layers.{layer}.mlp.act_fn.{name}"
                state[key] = torch.tensor(constants[name], dtype=torch.float32)
    return state


# Our names in a block with experts, and theirs.
_EXPERT_NAMES = {
    "qwen3_moe": ("mlp.", {name: f"{name}_proj" for name in ("gate", "up", "down")}),
    "mixtral": ("block_sparse_moe.", {"gate": "w1", "up": "w3", "down": "w2"}),
}


def _expert_state(
    state: Mapping[str, Tensor], experts: Experts, model_type: str
) -> dict[str, Tensor]:
    """The tensors with a matrix for each expert; the last one takes up the factor r of the weights."""
    block, names = _EXPERT_NAMES[model_type]
    split: dict[str, Tensor] = {}
    for name, tensor in state.items():
        layer, block_name, part = name.partition("mlp.")
        if not block_name:
            split[name] = tensor
        elif part == "router.weight":
            split[f"{layer}{block}gate.weight"] = tensor
        else:
            own = part.removesuffix("_proj.weight")
            whole = tensor * experts.chosen if own == "down" else tensor
            for number, matrix in enumerate(whole.chunk(experts.count, dim=int(own == "down"))):
                split[f"{layer}{block}experts.{number}.{names[own]}.weight"] = matrix.contiguous()
    return split


def xielu_constants() -> dict[str, float]:
    """beta and eps of xIELU as transformers stores them, from the catalogue's entry."""
    spec = catalog.get("xielu")
    constants = {p.name: p.initial for p in spec.parameters if not p.trainable}
    if spec.compat is not None:
        constants.update((constant.name, constant.value) for constant in spec.compat.constants)
    return {name: constants[name] for name in _XIELU_BUFFERS}


class HubModel:
    """Model and tokenizer that transformers loads from a folder, float32, on the CPU.

    rounded   the folder's weights are bfloat16: they are converted

    Edge     the folder's own code is executed only when it is what `hub_code` writes
    Raises   ExportError when transformers is missing, cannot load the folder, reports tensors
             that are missing or unexpected, or does not keep them in float32.
    """

    def __init__(self, folder: Path, *, rounded: bool = False) -> None:
        wanted = {"dtype": torch.float32} if rounded else {}
        with quiet_transformers() as transformers:
            try:
                model, report = transformers.AutoModelForCausalLM.from_pretrained(
                    folder,
                    local_files_only=True,
                    output_loading_info=True,
                    trust_remote_code=_is_our_code(folder),
                    **wanted,
                )
                tokenizer = transformers.AutoTokenizer.from_pretrained(
                    folder, local_files_only=True
                )
            except Exception as error:  # its loaders raise anything from KeyError to RuntimeError
                raise ExportError(
                    f"transformers cannot load {folder}: {type(error).__name__}: {error}"
                ) from error
        problems = {name: sorted(map(str, keys)) for name, keys in report.items() if keys}
        problems.update(
            {
                f"not float32: {name}": [str(tensor.dtype)]
                for name, tensor in model.state_dict().items()
                if tensor.is_floating_point() and tensor.dtype != torch.float32
            }
        )
        if problems:
            raise ExportError(f"transformers does not load {folder} unchanged: {problems}")
        self._model = model.eval()
        self._tokenizer = tokenizer

    @torch.no_grad()
    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits of the next token, shape (B, T, V)."""
        with quiet_transformers():
            logits_BTV: Tensor = self._model(tokens_BT, use_cache=False).logits
        return logits_BTV

    @torch.no_grad()
    def write(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """At most `new_tokens` tokens after `prompt`, by greedy decoding with its generate()."""
        with quiet_transformers():
            tokens_BT = torch.tensor([list(prompt)])
            written = self._model.generate(
                tokens_BT,
                attention_mask=torch.ones_like(tokens_BT),
                max_new_tokens=new_tokens,
                do_sample=False,
            )
        tokens: list[int] = written[0, len(prompt) :].tolist()
        return tokens

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with special tokens."""
        with quiet_transformers():
            tokens: list[int] = self._tokenizer(text)["input_ids"]
        return tokens

    def encode_split(self, text: str) -> list[int]:
        """As `encode`; control tokens that `text` spells out stay text, as a user can ask for."""
        with quiet_transformers():
            tokens: list[int] = self._tokenizer(text, split_special_tokens=True)["input_ids"]
        return tokens

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> list[int]:
        """Token ids of messages by the folder's chat template; a prompt ends where the model begins."""
        with quiet_transformers():
            tokens: list[int] = self._tokenizer.apply_chat_template(
                list(messages), tokenize=True, return_dict=False, add_generation_prompt=prompt
            )
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def hub_version() -> str:
    """The installed version of transformers.

    Raises   ExportError when it is missing.
    """
    with quiet_transformers() as transformers:
        return str(transformers.__version__)


def hub_activation(path: str) -> Any:
    """The class that computes an activation in transformers: "transformers.activations:ClassName".

    Raises   ConfigError when it has no such class; ExportError when transformers is missing.
    Checked  tests/unit/cli/test_check.py
    """
    module, _, name = path.partition(":")
    with quiet_transformers() as transformers:
        activation_class = (
            getattr(transformers.activations, name, None) if module == _ACTIVATIONS else None
        )
        if activation_class is None:
            raise ConfigError(
                f"transformers {transformers.__version__} has no {path!r}",
                fix=f"Write {_ACTIVATIONS}:ClassName",
            )
    return activation_class


def public_module(model_class: type) -> str:
    """The module of transformers from which a class of its models is imported; "" for another's class."""
    with quiet_transformers() as transformers:
        if getattr(transformers, model_class.__name__, None) is model_class:
            return "transformers"
    return (
        model_class.__module__ if model_class.__module__.startswith("transformers.models.") else ""
    )


def auto_classes(model_class: Any) -> tuple[str, ...]:
    """The names of the Auto classes of transformers that load this class of models, sorted."""
    config_class = getattr(model_class, "config_class", None)
    names = []
    with quiet_transformers() as transformers:
        for name, auto in sorted(vars(transformers.models.auto.modeling_auto).items()):
            mapping = getattr(auto, "_model_mapping", None)
            if name.startswith("AutoModel") and mapping is not None and config_class in mapping:
                known = mapping[config_class]
                if model_class in (known if isinstance(known, tuple) else (known,)):
                    names.append(name)
    return tuple(names)


def activation_names(function: Any) -> frozenset[str]:
    """The names by which configurations of transformers know an activation module."""
    with quiet_transformers() as transformers:
        classes = transformers.activations.ACT2CLS
        return frozenset(
            name
            for name, known in classes.items()
            if type(function) is (known[0] if isinstance(known, tuple) else known)
        )


def hub_activations() -> dict[str, Any]:
    """By name in a configuration, what makes each activation of transformers: `ACT2FN[name]`.

    Raises   ExportError when transformers is missing.
    """
    with quiet_transformers() as transformers:
        table = transformers.activations.ACT2FN
        names = list(transformers.activations.ACT2CLS)

    def made(name: str) -> Any:
        with quiet_transformers():
            return table[name]

    return {name: functools.partial(made, name) for name in names}


def _is_our_code(folder: Path) -> bool:
    """Whether the folder has code and it is the text that `hub_code` writes for its configuration."""
    if not (folder / CODE).is_file():
        return False
    return (folder / CODE).read_text(encoding="utf-8") == hub_code(load_hub_config(folder))


@contextlib.contextmanager
def quiet_transformers() -> Iterator[Any]:
    """The module transformers, offline, with its warnings and those of its imports silenced."""
    try:
        import transformers
        from transformers.utils.hub import constants
    except ImportError as error:
        raise ExportError(
            f"transformers cannot be imported: {error}", fix="Run: pip install 'stamm[align]'"
        ) from None
    logging = transformers.logging
    before = (constants.HF_HUB_OFFLINE, logging.get_verbosity(), logging.is_progress_bar_enabled())
    constants.HF_HUB_OFFLINE = True
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # torchao warns of missing GPU libraries, and makes torch warn of torchao's classes.
    others = {name: std_logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")}
    levels = {name: logger.level for name, logger in others.items()}
    for logger in others.values():
        logger.setLevel(std_logging.ERROR)
    try:
        yield transformers
    finally:
        for name, logger in others.items():
            logger.setLevel(levels[name])
        constants.HF_HUB_OFFLINE = before[0]
        logging.set_verbosity(before[1])
        if before[2]:
            logging.enable_progress_bar()


def _rope_parameters(rope: PlainRope | Llama3Rope) -> dict[str, Any]:
    if isinstance(rope, PlainRope):
        return {"rope_type": "default", "rope_theta": rope.theta}
    return {
        "rope_type": "llama3",
        "rope_theta": rope.theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_frequency_factor,
        "high_freq_factor": rope.high_frequency_factor,
        "original_max_position_embeddings": rope.original_context,
    }


def _hub_name(name: str, model_type: str) -> str:
    """A tensor's name in transformers."""
    for ours, theirs in LLAMA_NAMES.items() if model_type != "apertus" else ():
        name = name.replace(ours, theirs)
    return name
