"""Shape parameters of a model: list them, check that none is shared, export and import values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from stamm.activations.module.activation import ActivationModule
from stamm.base.config import nearest
from stamm.base.errors import ConfigError

Values = dict[str, dict[str, float | list[float]]]


def shape_modules(model: nn.Module) -> dict[str, ActivationModule]:
    """Every activation module with trainable parameters, under its name in the model.

    A module that is reached by several names is listed once, under the first of them.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, ActivationModule) and module.spec.trainable
    }


def shape_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every stored (raw) shape parameter, under its name in the model, in the model's order.

    Edge   one that two modules share is there once, under its first name.
    """
    parameters: dict[str, nn.Parameter] = {}
    for module_name, module in shape_modules(model).items():
        for parameter in module.spec.trainable:
            stored = module.get_parameter(parameter.name)
            if not any(stored is other for other in parameters.values()):
                parameters[_join(module_name, parameter.name)] = stored
    return parameters


def check_not_shared(model: nn.Module, allow: Collection[str] = ()) -> None:
    """Check that no two places of the model share a trainable shape.

    One module object that is put into every layer trains one shape for all of them, without an
    error: the gradients of all layers are added up in it.

    allow    names of modules that are meant to share, as `named_modules` spells them; one of the
             names of a shared module suffices
    Raises   ConfigError that names the places; also for a name in `allow` that is not shared.
    Checked  tests/unit/activations/test_shape_parameters.py
    """
    shared = [*_module_places(model), *_parameter_places(model)]
    for places, what in shared:
        if not set(places) & set(allow):
            raise ConfigError(
                f"{' and '.join(places)} share one {what}, so they would learn one shape",
                fix="Build one activation for each layer, or name one of them as meant to share",
            )
    meant = {module_name for places, _ in shared for module_name in places}
    for name in allow:
        if name not in meant:
            raise ConfigError(
                f"{name!r} is named as shared, but shares no trainable shape",
                fix="Drop it from the names that are meant to share",
            )


def export_values(model: nn.Module, *, raw: bool) -> Values:
    """The value of every trainable parameter: module name -> parameter name -> number or numbers.

    raw      True for stored numbers, False for effective ones (what the function is computed with)
    Shapes   a parameter of one number gives a float, a longer one a list
    Edge     numbers are exact: `import_values` with the same `raw` restores the same float32 bits.
             Parameters sharded over processes are gathered, so every process must call this.
    """
    exported: Values = {}
    for module_name, module in shape_modules(model).items():
        stored = {p.name: _whole(module.get_parameter(p.name)) for p in module.spec.trainable}
        length = max(len(numbers) for numbers in stored.values())
        columns: dict[str, list[float]] = {name: [] for name in stored}
        for index in range(length):
            values = {name: _at(numbers, index) for name, numbers in stored.items()}
            if not raw:
                values = module.spec.effective_values(values)
            for name, column in columns.items():
                column.append(values[name])
        exported[module_name] = {
            name: column[0] if len(stored[name]) == 1 else column
            for name, column in columns.items()
        }
    return exported


def import_values(
    model: nn.Module,
    values: Mapping[str, Mapping[str, float | Sequence[float]]],
    *,
    raw: bool,
) -> None:
    """Set every trainable parameter of the model, in place; all of them or none.

    values   as `export_values` gives them: every module and every parameter must be there
    raw      True for stored numbers, False for effective ones. It has no default: a raw number often is a valid effective one,
             so a mistake would load, and the model would compute another function
    Raises   ConfigError for an unknown or missing name, a wrong count, a number that is not finite
             (raw or effective) or that breaks its constraint, with the module and the value; nothing is changed then.
    """
    modules = shape_modules(model)
    _check_names(values, modules, "trainable activation", "")
    planned: list[tuple[nn.Parameter, Tensor]] = []
    for module_name, module in modules.items():
        spec = module.spec
        named = {p.name: module.get_parameter(p.name) for p in spec.trainable}
        _check_names(values[module_name], named, "trainable parameter", f" of {module_name}")
        columns = {
            name: _numbers(values[module_name][name], parameter, _join(module_name, name))
            for name, parameter in named.items()
        }
        stored = {name: [0.0] * len(column) for name, column in columns.items()}
        for index in range(max(len(column) for column in columns.values())):
            row = {name: _at(column, index) for name, column in columns.items()}
            row = _stored(module, row, module_name, index, raw=raw)
            for name, column in stored.items():
                column[min(index, len(column) - 1)] = row[name]
        for name, parameter in named.items():
            numbers = torch.tensor(stored[name], dtype=torch.float64).to(parameter.dtype)
            if not bool(torch.isfinite(numbers).all()):
                raise ConfigError(
                    f"{_join(module_name, name)} = {stored[name]!r} overflows {numbers.dtype}"
                )
            planned.append((parameter, numbers))
    with torch.no_grad():
        for parameter, numbers in planned:
            parameter.copy_(numbers.reshape(parameter.shape))


def _stored(
    module: ActivationModule, row: dict[str, float], module_name: str, index: int, *, raw: bool
) -> dict[str, float]:
    """One row of values as stored ones, or the error with its place."""
    try:
        if not raw:
            return module.spec.raw_values(row)
        module.spec.check_raw_values(row)
        return row
    except ConfigError as error:
        entry = f"entry {index} of " if index else ""
        raise ConfigError(
            error.what, where=f"{entry}{module_name or 'the model'}", fix=error.fix
        ) from None


def _module_places(model: nn.Module) -> list[tuple[list[str], str]]:
    """The places of every trainable activation that is reached by more than one name."""
    return _repeated(
        (
            (name, module)
            for name, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, ActivationModule) and module.spec.trainable
        ),
        "activation module",
    )


def _parameter_places(model: nn.Module) -> list[tuple[list[str], str]]:
    """The places of every shape parameter that several module objects hold."""
    return _repeated(
        (
            (name, module.get_parameter(parameter.name))
            for name, module in shape_modules(model).items()
            for parameter in module.spec.trainable
        ),
        "shape parameter",
    )


def _repeated(
    named: Iterable[tuple[str, nn.Module | nn.Parameter]], what: str
) -> list[tuple[list[str], str]]:
    places: dict[int, list[str]] = {}
    for name, item in named:
        known = places.setdefault(id(item), [])
        if name not in known:
            known.append(name)
    return [(names, what) for names in places.values() if len(names) > 1]


def _check_names(
    given: Mapping[str, object], known: Mapping[str, object], what: str, owner: str
) -> None:
    for name in given:
        if name not in known:
            fix = nearest(name, known) if known else "It has none"
            raise ConfigError(f"{name!r} is not a {what}{owner or ' of the model'}", fix=fix)
    for name in known:
        if name not in given:
            raise ConfigError(
                f"no value is given for the {what} {name!r}{owner}",
                fix="Give values for all, or none are loaded",
            )


def _numbers(given: float | Sequence[float], parameter: nn.Parameter, name: str) -> list[float]:
    """The values given for one parameter, as the number of floats that it holds."""
    numbers = [float(v) for v in given] if isinstance(given, Sequence) else [float(given)]
    if len(numbers) != parameter.numel():
        raise ConfigError(
            f"{name} holds {parameter.numel()} values, but {len(numbers)} are given",
            fix="Build the model with the granularity the values were exported from",
        )
    for value in numbers:
        if not math.isfinite(value):
            raise ConfigError(f"{name} = {value!r} is not finite")
    if hasattr(parameter, "placements"):
        raise ConfigError(
            f"{name} is already sharded over processes", fix="Import values before parallelizing"
        )
    return numbers


def _whole(parameter: nn.Parameter) -> list[float]:
    """All numbers of a parameter, gathered where it is sharded over processes (a DTensor)."""
    gather = getattr(parameter, "full_tensor", None)
    whole: Tensor = parameter.detach() if gather is None else gather().detach()
    return [float(value) for value in whole.reshape(-1).double().tolist()]


def _at(numbers: Sequence[float], index: int) -> float:
    """The number for one neuron; a parameter of one number holds for all of them."""
    return numbers[index] if len(numbers) > 1 else numbers[0]


def _join(module_name: str, name: str) -> str:
    return f"{module_name}.{name}" if module_name else name
