"""Which settings of a configuration a job reads: what is set and never read must not be accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any
from unittest.mock import patch

from stamm.align.training import config as finetune_config
from stamm.base import bounds as base_bounds
from stamm.base import config as base_config

# Code that copies, compares or checks whole configurations, whatever they are for.
_BOOKKEEPING = (dataclasses.__file__, base_config.__file__, base_bounds.__file__, "<string>")
_RUNS = {"FineTuneRun": "FineTuneJobConfig", "GRPORun": "GRPOJobConfig"}
_COPIES = {finetune_config.FineTuneRun.of.__func__.__code__.co_filename: ("of", "<dictcomp>")}


class Reads:
    """The fields that were read, with the values that they had there."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, str]] = set()

    def note(self, config: Any, name: str, value: Any) -> None:
        """Note a read; that of a run counts for the step that it is made from."""
        kind = type(config)
        for name_of_class in {kind.__name__, _RUNS.get(kind.__name__, kind.__name__)}:
            self._seen.add((name_of_class, name, repr(value)))

    def unread(self, config: Any, path: str = "") -> list[str]:
        """Paths of the fields of a configuration whose value was read nowhere."""
        paths = []
        for f in dataclasses.fields(config):
            value = object.__getattribute__(config, f.name)
            inside = f"{path}.{f.name}" if path else f.name
            if (type(config).__name__, f.name, repr(value)) not in self._seen:
                paths.append(inside)
            for part in value if isinstance(value, tuple) else (value,):
                if dataclasses.is_dataclass(part):
                    paths += self.unread(part, inside)
        return paths


@contextlib.contextmanager
def recorded(*configs: Any) -> Iterator[Reads]:
    """While in use, reads of fields of the classes in these configurations are recorded."""
    reads = Reads()
    with contextlib.ExitStack() as patches:
        for kind in _classes(configs):
            names = {f.name for f in dataclasses.fields(kind)}
            patches.enter_context(patch.object(kind, "__getattribute__", _spy(reads, names)))
        yield reads


def _spy(reads: Reads, names: set[str]) -> Any:
    def get(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in names and not _is_bookkeeping(sys._getframe(1).f_code):
            reads.note(self, name, value)
        return value

    return get


def _is_bookkeeping(code: CodeType) -> bool:
    if code.co_filename in _BOOKKEEPING or code.co_name == "__post_init__":
        return True
    return code.co_name in _COPIES.get(code.co_filename, ())


def _classes(config: Any) -> set[type]:
    """The classes of all configurations in `config`, and those that they inherit from."""
    found: set[type] = set()
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple):
            parts += part
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            found |= {kind for kind in type(part).__mro__ if dataclasses.is_dataclass(kind)}
            parts += [getattr(part, f.name) for f in dataclasses.fields(part)]
    return found
