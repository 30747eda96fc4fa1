"""Private names of torch are listed in base/torch_private.py, exist in the installed torch, and have a tested range."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.base.torch_private import OLDEST, PRIVATE_NAMES, UNTESTED_FROM, untested_torch

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stamm"
LIBRARIES = ("torch", "torchao", "triton")
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}


def _is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def _chain(node: ast.AST) -> list[str]:
    """["torch", "_C", "_functorch"] of torch._C._functorch; [] for anything but names and dots."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (above := _chain(node.value)):
        return [*above, node.attr]
    return []


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local names of modules and members of torch, with their full names."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                root = name.name.split(".")[0]
                if root in LIBRARIES:
                    found[name.asname or root] = name.name if name.asname else root
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            chain = _chain(node.value)
            if len(chain) > 1 and chain[0] in found:
                found[node.targets[0].id] = ".".join([found[chain[0]], *chain[1:]])
    return found


def _own_names(trees: list[ast.AST]) -> set[str]:
    """Private names that the package defines: functions, classes, fields, attributes."""
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found


def _private(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Private names of torch that a file uses; of an object of unknown type "*.name"."""
    aliases = _aliases(tree)
    yield from (name for name in aliases.values() if _is_private(name))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _is_private(text) and re.fullmatch(r"torch(\.\w+)+", text):
            yield text
        if not isinstance(node, ast.Attribute):
            continue
        chain = _chain(node)
        if chain and chain[0] in aliases:
            path = ".".join([aliases[chain[0]], *chain[1:]])
            if id(node) not in inner and _is_private(path):
                yield path
        elif aliases and _is_private(node.attr) and node.attr not in own | NAMED_TUPLE:
            base_class = isinstance(node.value, ast.Call) and _chain(node.value.func) == ["super"]
            if base_class or _chain(node.value)[:1] not in (["self"], ["cls"]):
                yield f"*.{node.attr}"


def test_every_private_name_of_torch_is_listed() -> None:
    files = [
        file
        for file in sorted(SOURCE.rglob("*.py"))
        if file.name != "torch_private.py" and "generated" not in file.parts
    ]
    trees: list[ast.AST] = [ast.parse(file.read_text()) for file in files]
    own = _own_names(trees)
    # Methods of torch that the package overrides are private names of torch, too.
    own -= {"_apply", "_load_from_state_dict"}
    methods = {f"*.{name.rpartition('.')[2]}": name for name in PRIVATE_NAMES}
    used: dict[str, str] = {}
    for file, tree in zip(files, trees, strict=True):
        for name in _private(tree, own):
            used[methods.get(name, name)] = str(file.relative_to(SOURCE))
    new = {name: file for name, file in used.items() if name not in PRIVATE_NAMES}
    assert not new, f"add to base/torch_private.py, with its purpose: {new}"
    assert not set(PRIVATE_NAMES) - set(used), "not used any more: remove it from the table"


@pytest.mark.parametrize("name", sorted(PRIVATE_NAMES))
def test_a_private_name_exists(name: str) -> None:
    parts = name.split(".")
    value: Any = None
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        break
    assert value is not None or name.endswith(("simdlen", "vec_isa_ok"))


def test_the_tested_range_is_that_of_the_package() -> None:
    declared = re.search(r'"torch>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert declared and declared.groups() == (OLDEST, UNTESTED_FROM)
    assert untested_torch(torch.__version__) == ""
    for version in ("2.11.0", "2.12.1+cu126", "2.13.0+cpu"):
        assert untested_torch(version) == ""
    for version in ("2.10.1", "2.14.0.dev20270101+cpu", "3.0", "unknown"):
        assert f"torch {version} is outside of the tested range, 2.11 to 2.13" in untested_torch(
            version
        )
