"""`stamm.swap`: an activation of stamm in a model of transformers, by one line, and back."""

from __future__ import annotations

import copy
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stamm.activations.catalog.registry import load_spec
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fit import ActivationFit, fit_activation
from stamm.activations.spec import Gated, Spec
from stamm.base.config import from_plain, nearest, to_plain
from stamm.base.console import Console
from stamm.base.errors import ConfigError
from stamm.models.hub import activation_names
from stamm.models.remote_code import SWAP_KEY
from stamm.swap.saved_class import auto_map, base_class, class_name, is_swapped, swapped_class
from stamm.swap.sites import (
    ActivationSite,
    activation_sites,
    inline_reason,
    is_feed_forward,
    neurons_of,
    tied_names,
    unreachable_reason,
)

_SAMPLE = 8192  # pre-activations of a site that a fit uses, of each batch


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """The result of `swap`.

    activation     name of the spec that is in the model now; of `back=True`, that was
    sites         names of the modules and functions that were replaced
    gated          whether their blocks multiply it by another projection
    numbers        how many shape numbers train
    refuses_plain  whether a folder that this model writes is refused without trust_remote_code=True.
                   Where its class names no activation in its configuration, it is not
    fits           with `fit`: by site, the fit to the function that was there
    """

    activation: str
    sites: tuple[str, ...]
    gated: bool
    numbers: int
    refuses_plain: bool = True
    fits: Mapping[str, ActivationFit] = field(default_factory=dict)


def swap(
    model: nn.Module,
    activation: str | Spec | None = None,
    *,
    where: str | Sequence[str] | None = None,
    parameters: Literal["layer", "neuron"] = "layer",
    fit: Tensor | Mapping[str, Any] | None = None,
    back: bool = False,
) -> Swapped:
    """Put an activation into a model of transformers, in place; `back=True` takes it out again, exactly.

        stamm.swap(model, "xielu")
        model.save_pretrained("folder")  # AutoModel….from_pretrained("folder", trust_remote_code=True)
        stamm.swap(model, back=True)

    The model's class becomes a subclass of its own, defined by the code that `save_pretrained` writes and
    that needs no stamm: model and saved folder compute the same bits.

    activation  a name of the catalogue, a derived folder, file.py:SPEC, or a Spec. In a gated block,
                f(gate) up, it is f: silu and swiglu are the same there
    where       names of sites, with * for any text ("*.mlp.act_fn"); by default every feed-forward block
                of a numbered layer
    parameters  shape parameters per layer, or per neuron
    fit         a batch as the model takes it, as input ids or keywords: shape parameters are fitted to the
                old function on the pre-activations of this batch, site by site

    Raises      ConfigError, before anything is changed, for a model without such sites, for blocks that
                compute their activation inline or by a fused kernel, for a gated name in a plain block, for
                an unknown name, for a second swap, and for layers that share one block where the
                activation has shape parameters
    Checked     tests/unit/swap/test_round_trip.py, tests/unit/swap/test_refusals.py
    """
    _check_model(model)
    if back:
        if activation is not None or where is not None or fit is not None:
            raise ConfigError("back=True takes the model alone", fix="swap(model, back=True)")
        return _back(model)
    if not isinstance(activation, (str, Spec)):
        what = "no activation" if activation is None else f"no activation but {activation!r:.60}"
        raise ConfigError(f"{what} is named", fix='Name one: swap(model, "xielu")')
    if fit is not None and not isinstance(fit, (Tensor, Mapping)):
        raise ConfigError(
            f"fit is a {type(fit).__name__}",
            fix="Give input ids, or the keywords of the model's forward: fit=tokenizer(text, return_tensors='pt')",
        )
    if parameters not in ("layer", "neuron"):
        raise ConfigError(f"parameters = {parameters!r}", fix="Use 'layer' or 'neuron'")
    if is_swapped(model):
        settings = _settings(model)
        raise ConfigError(
            f"the model's activation was swapped already, for {settings['name']}",
            fix="Take it out first: swap(model, back=True)",
        )
    spec = activation if isinstance(activation, Spec) else load_spec(activation)
    spec = from_plain(Spec, to_plain(spec), spec.where)  # the one that config.json holds
    sites = _chosen(model, where)
    gated = _check_arity(spec, sites)
    _check_sites(model, spec, sites)
    if fit is not None and not spec.trainable:
        raise ConfigError(f"{spec.name} has no shape parameters to fit", fix="Leave fit out")
    per_neuron = parameters == "neuron" and spec.trainable
    settings = {
        "name": spec.name,
        "content_hash": spec.content_hash,
        "spec": to_plain(spec),
        "sites": {site.name: neurons_of(site) if per_neuron else 1 for site in sites},
        "names": _names(model, spec, sites),
        "auto_map": getattr(model.config, "auto_map", None),
    }
    code = swapped_class(model, spec)
    fits = {} if fit is None else _fits(model, spec, sites, fit)
    before = type(model)
    _own_config(model)
    code.install(model, settings)
    config: Any = model.config
    setattr(config, SWAP_KEY, settings)
    config.auto_map = auto_map(before)
    model.__class__ = getattr(code, class_name(before))
    for path, names in settings["names"].items():
        _set(config, path, names["after"])
    for name, site_fit in fits.items():
        with torch.no_grad():
            for parameter, raw in site_fit.raw.items():
                model.get_submodule(name).get_parameter(parameter).fill_(raw)
    refuses = _refuses_plain(config, settings["names"])
    if not refuses:
        Console().log(
            f"{type(config).__name__} does not name the activation of {before.__name__}: a saved folder"
            " loaded without trust_remote_code=True has the old one, without an error."
        )
    numbers = sum(settings["sites"].values()) * len(spec.trainable)
    return Swapped(
        activation=spec.name,
        sites=tuple(settings["sites"]),
        gated=gated,
        numbers=numbers,
        refuses_plain=refuses,
        fits=fits,
    )


def _own_config(model: Any) -> None:
    """Give the model a configuration of its own: another model may have been made from the same object."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        held = vars(module).get("config")
        if id(held) in copies:
            module.config = copies[id(held)]


def _check_model(model: Any) -> None:
    known = {kind.__name__ for kind in type(model).__mro__}
    if "PreTrainedModel" in known:
        return
    fix = "Give a model that transformers loaded"
    for wrapper, inner in (
        ("PeftModel", ""),
        ("OptimizedModule", "model._orig_mod"),
    ):
        if wrapper in known:
            fix = f"Swap before wrapping, or give {inner}" if inner else "Swap before wrapping"
    raise ConfigError(f"{type(model).__name__} is not a model of transformers", fix=fix)


def _settings(model: Any) -> dict[str, Any]:
    settings: dict[str, Any] = getattr(model.config, SWAP_KEY)
    return settings


def _chosen(model: nn.Module, where: str | Sequence[str] | None) -> list[ActivationSite]:
    """The sites to replace, at least one."""
    sites = activation_sites(model)
    if where is None:
        chosen = [site for site in sites if is_feed_forward(site)]
        if chosen:
            return chosen
        if inline := inline_reason(model):
            raise ConfigError(
                f"{type(model).__name__} has no activation to replace: {inline}",
                fix="Load it with a class that calls a module or an attribute",
            )
        others = ", ".join(site.name for site in sites[:3])
        raise ConfigError(
            f"{type(model).__name__} has no activation in a feed-forward block",
            fix=f"Name others with where=: {others}" if sites else "It computes none in a module",
        )
    patterns = [where] if isinstance(where, str) else where
    if not (
        isinstance(patterns, Sequence) and patterns and all(isinstance(p, str) for p in patterns)
    ):
        raise ConfigError(
            f"where = {where!r:.60} is not a name or a list of names",
            fix='For example "*.mlp.act_fn"',
        )
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(site.name, pattern) for site in sites):
            names = [site.name for site in sites]
            raise ConfigError(
                f"where = {pattern!r} matches no activation of {type(model).__name__}",
                fix=nearest(pattern, names) if names else "The model has none",
            )
    return [p for p in sites if any(fnmatch.fnmatchcase(p.name, pattern) for pattern in patterns)]


def _check_arity(spec: Spec, sites: Sequence[ActivationSite]) -> bool:
    """Whether the blocks are gated; they must fit the spec."""
    plain = [site.name for site in sites if not site.gated]
    if isinstance(spec.arity, Gated):
        if plain:
            raise ConfigError(
                f"{spec.name} takes a gate and another projection, and the block of {plain[0]} has no gate",
                fix="Name the function of one input, as silu for swiglu, or choose gated blocks with where=",
            )
        if spec.arity.up is not None:
            raise ConfigError(
                f"{spec.name} changes its second input as well, which the model's blocks multiply as it is",
                fix="Name an activation f(gate) up, such as swiglu",
            )
    return not plain


def _check_sites(model: nn.Module, spec: Spec, sites: Sequence[ActivationSite]) -> None:
    kernel_of(spec)  # it can be integrated
    for parameter in spec.trainable:
        if hasattr(nn.Module(), parameter.name):
            raise ConfigError(
                f"the parameter name {parameter.name!r} is taken by the module",
                where=spec.where,
                fix="Rename the parameter",
            )
    for site in sites:
        if reason := unreachable_reason(site):
            raise ConfigError(
                f"{site.name} cannot be replaced: {reason}",
                fix="Load the model without fused kernels, or choose other sites with where=",
            )
        if spec.trainable and _is_offloaded(site.parent):
            raise ConfigError(
                f"the weights beside {site.name} are offloaded, so its shape parameters have no device",
                fix="Load the model without offloading, or swap and save first",
            )
        names = tied_names(model, site)
        if len(names) > 1 and spec.trainable:
            raise ConfigError(
                f"{names[0]} and {names[1]} are one module, so they would learn one shape",
                fix="Name an activation without shape parameters, or untie the layers",
            )


def _is_offloaded(block: nn.Module) -> bool:
    """Whether accelerate keeps weights of the block elsewhere, and fetches them for each call."""
    hooks = (getattr(module, "_hf_hook", None) for module in block.modules())
    return any(getattr(hook, "offload", False) for hook in hooks)


def _names(
    model: nn.Module, spec: Spec, sites: Sequence[ActivationSite]
) -> dict[str, dict[str, str]]:
    """Fields of the configuration that name an old activation: what they held, and what they will hold.

    Plain transformers finds no activation of that name: it refuses the folder instead of computing the
    old function.
    """
    config: Any = model.config
    after = f"stamm_{spec.name}_{spec.content_hash[:8]}"
    parts = {"": config} | {
        f"{name}.": part
        for name in getattr(config, "sub_configs", {})
        if (part := getattr(config, name, None)) is not None
    }
    known = {name for site in sites for name in activation_names(site.before)}
    return {
        f"{path}{name}": {"before": value, "after": after}
        for path, part in parts.items()
        for name, value in part.to_dict().items()
        if "act" in name and isinstance(value, str) and value in known
    }


def _set(config: Any, path: str, value: str) -> None:
    *inner, name = path.split(".")
    for part in inner:
        config = getattr(config, part)
    setattr(config, name, value)


def _refuses_plain(config: Any, names: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the configuration keeps the names of the new activation when it is written and read."""
    stored = type(config).from_dict(config.to_dict())
    for path, both in names.items():
        part = stored
        for name in path.split("."):
            part = getattr(part, name)
        if part == both["after"]:
            return True
    return False


class _Recorder(nn.Module):
    """The old function, which keeps a sample of what it is given."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.kept: list[tuple[Tensor, Tensor]] = []
        self._function = [function]  # in a list: it is not to be a submodule

    def forward(self, x: Tensor) -> Any:
        """f(x)."""
        function = self._function[0]
        flat = x.detach().reshape(-1)
        step = max(1, math.ceil(flat.numel() / _SAMPLE))
        sample = flat[::step].double()
        self.kept.append((sample.cpu(), function(sample.clone()).detach().cpu().double()))
        return function(x)


@torch.no_grad()
def _fits(
    model: nn.Module,
    spec: Spec,
    sites: Sequence[ActivationSite],
    batch: Tensor | Mapping[str, Any],
) -> dict[str, ActivationFit]:
    """The fit of each site to what it computes on a batch; the model is left as it was."""
    recorders = {site.name: _Recorder(site.before) for site in sites}
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for site in sites:
            _put(site.parent, site.attribute, recorders[site.name])
        if isinstance(batch, Tensor):
            model(batch)
        else:
            model(**batch)
    finally:
        for site in sites:
            _put(site.parent, site.attribute, site.before)
        for module, training in modes:
            module.training = training
    fits = {}
    for name, recorder in recorders.items():
        if not recorder.kept:
            raise ConfigError(f"the batch of fit does not reach {name}", fix="Give a longer batch")
        x_N, f_N = (torch.cat(column) for column in zip(*recorder.kept, strict=True))
        fits[name] = fit_activation(spec, x_N, f_N, torch.ones_like(x_N), scales=False)
    return fits


def _put(parent: nn.Module, attribute: str, value: Any) -> None:
    """Set a module or a function, whichever is there; a module keeps its position in the order."""
    if not isinstance(value, nn.Module) and attribute in dict(parent.named_children()):
        delattr(parent, attribute)
    setattr(parent, attribute, value)


def _tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def _back(model: Any) -> Swapped:
    """The model as it was before the swap, whether in this process or in the one that saved it."""
    if not is_swapped(model):
        raise ConfigError(
            f"{type(model).__name__} has no swapped activation",
            fix='Put one in first: stamm.swap(model, "xielu")',
        )
    if "swapped_from" not in vars(type(model)):
        raise ConfigError(
            f"{type(model).__name__} was made by another library from the swapped class",
            fix="Take the activation out before the model is sharded or wrapped",
        )
    settings, before = _settings(model), base_class(model)
    swapped, config = type(model).__name__, model.config
    on_meta = all(p.is_meta for p in model.parameters())
    for name, function in model.activations_before.items():
        held = _tensors_of(function) if isinstance(function, nn.Module) else []
        if any(p.is_meta for p in held) and not on_meta:
            raise ConfigError(
                f"the old function of {name} had weights, which the folder does not hold",
                fix="Load the model from where it was before the swap",
            )
    in_float32: set[str] = vars(model)["_keep_in_fp32_modules_strict"]  # of transformers
    for name, function in model.activations_before.items():
        path, _, attribute = name.rpartition(".")
        for parameter, _ in model.get_submodule(name).named_parameters():
            in_float32.discard(f"{attribute}.{parameter}")
        _put(model.get_submodule(path), attribute, function)
    del model.activations_before
    for path, names in settings["names"].items():
        _set(config, path, names["before"])
    delattr(config, SWAP_KEY)
    if settings["auto_map"] is None:
        del config.auto_map
    else:
        config.auto_map = settings["auto_map"]
    if config.architectures == [swapped]:
        config.architectures = [before.__name__]
    model.__class__ = before
    return Swapped(
        activation=settings["name"], sites=tuple(settings["sites"]), gated=False, numbers=0
    )
