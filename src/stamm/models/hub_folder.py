"""Decoders from folders in the layout of transformers: Llama, Mistral, Phi-3, Qwen2, Qwen3, Arcee, Apertus.

Keys of config.json are read, or refused by name (`hf_files`). Names, shapes and types of the tensors
are compared with the configuration before a decoder is built.

Checked  tests/unit/models/test_hub_folder.py, against transformers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.module.activation import ActivationModule
from stamm.base.config import from_plain, nearest
from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.files import read_json
from stamm.base.receipts import check_file
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN, PlainRope
from stamm.models.decoder import Decoder, build_blank, check_finite, decoder_of
from stamm.models.hf_architecture import CLASSES, GATED_ACTS, PLAIN_ACTS
from stamm.models.hf_files import (
    ACTIVATION_KEY,
    CONFIG,
    DEFAULTS,
    INDEX,
    OTHER_BLOCKS,
    config_keys,
    longest_context,
    rope_keys,
    weight_files,
    weight_map,
)
from stamm.models.mapped_weights import map_weights, own_float32
from stamm.models.parameter_shapes import parameter_shapes
from stamm.models.rope import inverse_frequencies

LLAMA_NAMES = {
    ".attention_layernorm.": ".input_layernorm.",
    ".feedforward_layernorm.": ".post_attention_layernorm.",
}
"""Our names of tensors, and those of every architecture of transformers but Apertus."""
_TYPES = {name: blocks for blocks, (name, _) in CLASSES.items()}
_TYPES["mistral"] = _TYPES["llama"]  # the same block, with a window
_TYPES["phi3"] = _TYPES["llama"]  # the same block, with some matrices stored as one
_DTYPES = ("F64", "F32", "BF16", "F16")
_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_FREQUENCIES = ".rotary_emb.inv_freq"  # transformers before version 4.32 stored the constants
_XIELU_CONSTANTS = (".act_fn.beta", ".act_fn.eps")
# Code in published folders that transformers' class was taken from: the class is read, the code is not.
_PUBLISHED_CODE = {
    "phi3": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    }
}
_BESIDE = ("rope_theta", "partial_rotary_factor")
_THETA = 10_000.0  # of every class of transformers that is read, except Apertus
_NAMED = 3  # tensors in one message


class _Stored(NamedTuple):
    """A tensor in a file, or its rows from `first` to `last`, exclusive; None: all."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    first: int = 0
    last: int | None = None


def load_hub(
    folder: Path,
    *,
    stored: Literal["raw", "effective"] = "raw",
    compat: Literal["exact", "eps"] = "exact",
) -> Decoder:
    """The decoder in a folder in the layout of transformers, float32.

    stored   meaning of xIELU's stored alpha_p and alpha_n: "raw", before softplus, as in every
             checkpoint of transformers; "effective", the values in the formula
    compat   "eps" evaluates xIELU with transformers' clamp, bit for bit

    Edge     an output matrix that differs from the embedding is kept, also where the configuration
             ties them, as transformers 5 does
    Raises   DataError when the folder describes a model that a stamm decoder cannot represent, when
             tensors are missing, extra, quantized or of another shape, or contain NaN.
    """
    weights = open_hub(folder, compat)
    config, state = weights.config, weights.tensors
    if config.ffn.spec.name == "xielu" and stored == "effective":
        _make_raw(state, config.num_layers, folder)
    for name, tensor in state.items():
        state[name] = own_float32(tensor)
    if config.tied_embeddings:
        state[_OUTPUT] = state[_EMBEDDING]
    try:
        decoder = decoder_of(config, state)
    except (RuntimeError, ConfigError) as error:
        raise _unfit(folder, str(error)) from None
    for name, parameter in decoder.named_parameters():
        weights.check_finite(name, parameter)
    return decoder


@dataclass(frozen=True)
class HubWeights:
    """The decoder in a folder in the layout of transformers.

    config    its configuration
    tensors   its parameters by our names, as pages of the files, of the stored dtypes; the output
              matrix is not among them where it is tied
    stored    where each of them is
    """

    folder: Path
    config: DecoderConfig
    tensors: dict[str, Tensor]
    stored: Mapping[str, _Stored]

    @property
    def file(self) -> Path | None:
        """The file of all tensors, if there is one and none needs another type or is a part of a matrix."""
        files = {self.stored[name].file for name in self.tensors}
        known = all(
            tensor.dtype in (torch.bfloat16, torch.float32) for tensor in self.tensors.values()
        )
        whole = all(self.stored[name].last is None for name in self.tensors)
        return files.pop() if known and whole and len(files) == 1 else None

    @property
    def names(self) -> dict[str, str]:
        """The names in the file by our names, sorted."""
        return {name: self.stored[name].name for name in sorted(self.tensors)}

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """bfloat16 for each tensor that is stored so, by name."""
        return {n: t.dtype for n, t in self.tensors.items() if t.dtype == torch.bfloat16}

    def read(self, name: str) -> Tensor:
        """The values of a parameter.

        Raises   DataError for NaN and infinity
        """
        self.check_finite(name, self.tensors[name])
        return self.tensors[name]

    def check_finite(self, name: str, values: Tensor) -> None:
        """Raise DataError when the values of a parameter contain NaN or infinity."""
        try:
            check_finite({name: values})
        except DataError as error:
            fix = "Fetch the weights again"
            raise DataError(error.what, where=str(self.folder), fix=fix) from None


def open_hub(folder: Path, compat: Literal["exact", "eps"] = "exact") -> HubWeights:
    """The decoder that `load_hub` loads, tensor by tensor: nothing but the configuration is in memory.

    Raises   what `load_hub` raises, except for NaN
    """
    config = load_hub_config(folder, compat)
    tensors = _stored_tensors(folder, config)
    _check_tensors(config, tensors, folder)
    try:
        state = _read(tensors)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights in {folder} cannot be read: {error}") from None
    if config.tied_embeddings and _OUTPUT in state:
        if _EMBEDDING in state and not torch.equal(state[_OUTPUT], state[_EMBEDDING]):
            config = replace(config, tied_embeddings=False)
        else:
            state.setdefault(_EMBEDDING, state[_OUTPUT])
            tensors.setdefault(_EMBEDDING, tensors[_OUTPUT])
            del state[_OUTPUT]
    _drop_frequencies(state, config, folder)
    try:
        for name, module in build_blank(config).named_modules():
            if isinstance(module, ActivationModule):
                module.remove_constants(state, f"{name}.")
    except ConfigError as error:
        raise _unfit(folder, str(error)) from None
    return HubWeights(folder, config, state, tensors)


def load_hub_config(folder: Path, compat: Literal["exact", "eps"] = "exact") -> DecoderConfig:
    """The configuration of the decoder that `load_hub` loads, by config.json alone."""
    stored, where = read_json(folder / CONFIG), str(folder / CONFIG)
    if not isinstance(stored, dict):
        raise DataError(f"{where} is not a JSON object")
    return _decoder_config(stored, where, compat)


def _decoder_config(
    stored: Mapping[str, Any], where: str, compat: Literal["exact", "eps"]
) -> DecoderConfig:
    try:
        model_type = str(stored["model_type"])
        if model_type not in _TYPES:
            known = nearest(model_type, _TYPES)
            why = OTHER_BLOCKS.get(model_type)
            raise _not_ours("model_type", model_type, where, f"It {why}. {known}" if why else known)
        gated, qk_norm, qkv_bias = _TYPES[model_type]
        config_keys(model_type).check(stored, where)
        plain = {**DEFAULTS[model_type], **stored}
        _check_class(plain, model_type, where)
        acts = {theirs: ours for ours, theirs in (GATED_ACTS if gated else PLAIN_ACTS).items()}
        own = plain.get(ACTIVATION_KEY)
        act = own["spec"] if isinstance(own, Mapping) else acts.get(str(plain["hidden_act"]))
        if act is None:
            raise _not_ours("hidden_act", plain["hidden_act"], where, nearest("", acts))
        ffn = {"width": plain["intermediate_size"], "activation": act}
        if gated:
            ffn["kind"] = GatedFFN.__name__
        else:
            ffn.update(kind=PlainFFN.__name__, compat=compat if act == "xielu" else "exact")
        config = from_plain(
            DecoderConfig,
            {
                "vocab_size": plain["vocab_size"],
                "d_model": plain["hidden_size"],
                "num_layers": plain["num_hidden_layers"],
                "num_heads": plain["num_attention_heads"],
                "num_kv_heads": plain.get("num_key_value_heads") or plain["num_attention_heads"],
                "head_dim": plain.get("head_dim"),
                "ffn": ffn,
                "rope": _rope(plain, model_type, where),
                "qk_norm": qk_norm,
                "qkv_bias": qkv_bias,
                "norm_eps": plain["rms_norm_eps"],
                "tied_embeddings": plain.get("tie_word_embeddings") or False,
                "init_std": plain.get("initializer_range") or 0.02,
                "max_context": longest_context(plain) or plain["max_position_embeddings"],
            },
            where,
        )
        if isinstance(own, Mapping) and own["content_hash"] != config.ffn.spec.content_hash:
            raise _not_ours("content_hash", own["content_hash"], where, "Export the model again")
        return config
    except KeyError as error:
        raise DataError(f"{where} has no {error.args[0]!r}") from None
    except ConfigError as error:
        raise DataError(
            f"{where} does not describe a decoder: {error.what}", fix=error.fix
        ) from None
    except DataError as error:
        raise DataError(error.what, where=error.where or where, fix=error.fix) from None


def _check_class(plain: Mapping[str, Any], model_type: str, where: str) -> None:
    """Check that the folder's class is the causal model of its type, and not one of its own code.

    Edge     the type's class without an output matrix is read; so is the class that an export
             with an activation of its own writes. Upper and lower case are one: "LLaMAForCausalLM"
    """
    classes = plain.get("architectures") or []
    causal = f"{model_type.capitalize()}ForCausalLM"
    own = (f"Stamm{causal}",) if ACTIVATION_KEY in plain else ()
    known_classes = (causal, f"{model_type.capitalize()}Model", *own)
    for name in classes if isinstance(classes, list) else [classes]:
        if str(name).lower() not in (known.lower() for known in known_classes):
            raise _not_ours("architectures", name, where, f"Known: {', '.join(known_classes)}")
    code = plain.get("auto_map") or {}
    published = isinstance(code, Mapping) and _PUBLISHED_CODE.get(model_type, {}) == code
    if code and not published and ACTIVATION_KEY not in plain:
        raise _not_ours(
            "auto_map", plain["auto_map"], where, "Code of a model folder is not executed"
        )


def _rope(plain: Mapping[str, Any], model_type: str, where: str) -> dict[str, Any]:
    """The rotary positions in the plain form of a stamm configuration."""
    given: dict[str, Any] = {}
    # Before version 5, rope_theta was beside rope_scaling; version 5 reads all three places.
    for name in ("rope_parameters", "rope_scaling", ""):
        table = plain.get(name) or {} if name else {k: plain.get(k) for k in _BESIDE}
        if not isinstance(table, Mapping):
            raise _not_ours(name, table, where)
        for written, value in table.items():
            key = "rope_type" if written == "type" else str(written)
            known = given.get(key)
            if known is not None and value is not None and value != known:
                raise DataError(
                    f"{key} has two values, {visible(repr(known), 40)} and {visible(repr(value), 40)}",
                    where=where,
                    fix="Remove the wrong one",
                )
            given[key] = value if known is None else known
    kind = given.get("rope_type") or "default"
    if kind not in ("default", "llama3"):
        raise _not_ours("rope_type", kind, where, "Known: default, llama3")
    rope_keys(kind).check(given, where)
    if model_type == "apertus" and not (plain.get("rope_parameters") or plain.get("rope_scaling")):
        raise DataError(f"{where} has no rope_parameters", fix="Write them into it")
    share = given.get("partial_rotary_factor")
    if share not in (None, 1):
        raise _not_ours("partial_rotary_factor", share, where, "Known: 1, every dimension rotated")
    theta = given.get("rope_theta")
    rope = {"kind": PlainRope.__name__, "theta": _THETA if theta is None else theta}
    if kind == "default":
        return rope
    return {
        "kind": Llama3Rope.__name__,
        "theta": rope["theta"],
        "factor": given["factor"],
        "low_frequency_factor": given["low_freq_factor"],
        "high_frequency_factor": given["high_freq_factor"],
        "original_context": given["original_max_position_embeddings"],
    }


def _not_ours(key: str, value: object, where: str, fix: str = "") -> DataError:
    shown = visible(repr(value), 100)
    return DataError(f"{key} = {shown} is not supported by a stamm decoder", where=where, fix=fix)


def _unfit(folder: Path, why: str) -> DataError:
    return DataError(f"the weights in {folder} do not fit {CONFIG}: {why}")


def _stored_tensors(folder: Path, config: DecoderConfig) -> dict[str, _Stored]:
    """Each stored tensor by our name; no data are read.

    Raises   DataError for a tensor of another type, or one that is stored twice.
    """
    stored: list[_Stored] = []
    for path in (folder / name for name in weight_files(folder)):
        check_file(path)
        try:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a mapping)
                    entry = opened.get_slice(name)
                    stored.append(_Stored(name, path, tuple(entry.get_shape()), entry.get_dtype()))
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
    if lost := sorted(weight_map(folder).keys() - {tensor.name for tensor in stored}):
        raise DataError(
            f"{INDEX} names {_listed(lost)}, and none of its files has it",
            where=str(folder),
            fix="Fetch the weights again",
        )
    # A model that was saved from the class without an output matrix has no "model." in its names.
    prefix = "" if any(tensor.name.startswith("model.") for tensor in stored) else "model."
    model_type = read_json(folder / CONFIG)["model_type"]
    tensors: dict[str, _Stored] = {}
    parts = (part for entry in stored for part in _parts(entry, config, model_type))
    for name, tensor in parts:
        shown = visible(tensor.name, 100)
        if tensor.dtype not in _DTYPES:
            raise DataError(
                f"{shown} in {tensor.file} has the type {tensor.dtype}: quantized weights are not read",
                fix=f"Use the model with weights of the type {' or '.join(_DTYPES)}",
            )
        own = name if name == _OUTPUT else prefix + name
        for ours, theirs in () if model_type == "apertus" else LLAMA_NAMES.items():
            own = own.replace(theirs, ours)
        if own in tensors:
            raise DataError(
                f"{shown} is stored twice, in {tensors[own].file.name} and {tensor.file.name}",
                where=str(folder),
                fix="Fetch the weights again",
            )
        tensors[own] = tensor
    return tensors


def _parts(
    tensor: _Stored, config: DecoderConfig, model_type: str
) -> Iterator[tuple[str, _Stored]]:
    """A stored tensor by its name; each matrix of those that Phi-3 stores as one."""
    queries = config.num_heads * config.head_width
    keys, width = config.num_kv_heads * config.head_width, config.ffn.width
    fused = {
        "qkv_proj": (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)),
        "gate_up_proj": (("gate_proj", width), ("up_proj", width)),
    }
    module = tensor.name.removesuffix(".weight").rpartition(".")[2]
    if model_type != "phi3" or module not in fused or len(tensor.shape) != 2:
        yield tensor.name, tensor
        return
    first, (rows, columns) = 0, tensor.shape
    for number, (name, size) in enumerate(fused[module], 1):
        # The last has all rows that are left, so that its shape is wrong when the sizes are.
        last = rows if number == len(fused[module]) else first + size
        part = tensor._replace(shape=(last - first, columns), first=first, last=last)
        yield tensor.name.replace(f".{module}.", f".{name}."), part
        first = last


def _check_tensors(config: DecoderConfig, tensors: Mapping[str, _Stored], folder: Path) -> None:
    """Check names and shapes of the tensors.

    Raises   DataError that names what is missing, extra or of another shape.
    """
    if config.num_layers > len(tensors):  # before anything is made for each layer
        raise _unfit(
            folder,
            f"num_hidden_layers = {config.num_layers:,}, and there are {len(tensors):,} tensors",
        )
    expected = parameter_shapes(replace(config, tied_embeddings=False))
    tied = (
        {_EMBEDDING, _OUTPUT}
        if config.tied_embeddings and {_EMBEDDING, _OUTPUT} & tensors.keys()
        else set()
    )
    if missing := [name for name in expected if name not in tensors and name not in tied]:
        apertus = read_json(folder / CONFIG)["model_type"] == "apertus"
        raise _unfit(
            folder, f"they lack {_listed(missing if apertus else map(_llama_name, missing))}"
        )
    constants = (
        (*_XIELU_CONSTANTS, _FREQUENCIES) if config.ffn.spec.name == "xielu" else _FREQUENCIES
    )
    if extra := [
        t.name
        for name, t in tensors.items()
        if name not in expected and not name.endswith(constants)
    ]:
        raise _unfit(folder, f"a stamm decoder does not have {_listed(extra)}")
    for name, shape in expected.items():
        if name in tensors and tensors[name].shape != shape:
            raise _unfit(
                folder,
                f"{visible(tensors[name].name, 100)} has the shape {tensors[name].shape}, and not {shape}",
            )


def _read(tensors: Mapping[str, _Stored]) -> dict[str, Tensor]:
    """The tensors as pages of their files."""
    files = {path: map_weights(path) for path in {tensor.file for tensor in tensors.values()}}
    return {
        own: files[tensor.file][tensor.name][tensor.first : tensor.last]
        if tensor.shape
        else files[tensor.file][tensor.name]
        for own, tensor in tensors.items()
    }


def _drop_frequencies(state: dict[str, Tensor], config: DecoderConfig, folder: Path) -> None:
    """Remove stored rotary frequencies, which must be those of the configuration."""
    expected = inverse_frequencies(PlainRope(theta=config.rope.theta), config.head_width)
    for name in [name for name in state if name.endswith(_FREQUENCIES)]:
        stored = state.pop(name).float()
        if stored.shape != expected.shape or not torch.allclose(
            stored, expected, rtol=1e-2, atol=0
        ):
            raise _unfit(
                folder, f"{visible(name, 100)} is not that of rope_theta = {config.rope.theta}"
            )


def _llama_name(name: str) -> str:
    for ours, theirs in LLAMA_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _NAMED:,} more" if len(listed) > _NAMED else ""
    return ", ".join(visible(name, 100) for name in listed[:_NAMED]) + more


def _make_raw(state: dict[str, Tensor], num_layers: int, folder: Path) -> None:
    spec = catalog.get("xielu")
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}.mlp.act_fn."
        try:
            raw = spec.raw_values({p.name: float(state[prefix + p.name]) for p in spec.trainable})
        except ConfigError as error:
            raise DataError(
                f"layer {layer} in {folder}: {error.what}", fix='Load it with stored="raw"'
            ) from None
        for name, value in raw.items():
            state[prefix + name] = torch.tensor([value], dtype=torch.float32)
