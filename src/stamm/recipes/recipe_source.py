"""A built-in recipe as a Python file of its own, to edit and run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stamm.recipes.catalog import Recipe
from stamm.recipes.resolve import source_file

_Imports = ast.Import | ast.ImportFrom


def recipe_source(recipe: Recipe) -> str:
    """The function of `recipe` with what it uses of its file: imports, constants, other functions.

    Classes of the file are imported, since a copy of a class would be another class.
    """
    text = source_file(recipe.name).read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    definitions = {name: node for node in tree.body for name in _defined(node)}
    needed = _needed(recipe.build.__name__, definitions)
    imports, classes, code = list[str](), list[str](), list[str]()
    for node in tree.body:
        names = [name for name in _defined(node) if name in needed]
        if isinstance(node, _Imports):
            if names:
                imports.append(_import_text(node, names))
        elif isinstance(node, ast.ClassDef):
            classes += names
        elif names:
            code.append("\n".join(lines[_first_line(node, lines) : node.end_lineno]))
    if classes:
        imports.append(_from_import(recipe.build.__module__, sorted(classes)))
    title = f'"""A copy of the recipe {recipe.name} of stamm."""'
    head = "\n\n".join([title, "from __future__ import annotations", "\n".join(imports)])
    return "\n\n\n".join([head, *code]) + "\n"


def _needed(first: str, definitions: dict[str, ast.stmt]) -> set[str]:
    """`first` and the names of the file that it uses, and that they use; not those of classes."""
    needed, todo = set[str](), [first]
    while todo:
        name = todo.pop()
        if name in needed or name not in definitions:
            continue
        needed.add(name)
        if not isinstance(definitions[name], ast.ClassDef):
            todo += [node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)]
    return needed


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, _Imports):
        if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            yield from (_bound(alias) for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _import_text(node: _Imports, names: list[str]) -> str:
    kept = [alias for alias in node.names if _bound(alias) in names]
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(names=kept))
    return _from_import(node.module or "", [ast.unparse(alias) for alias in kept])


def _from_import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 100:
        return line
    listed = "".join(f"    {name},\n" for name in names)
    return f"from {module} import (\n{listed})"


def _first_line(node: ast.stmt, lines: list[str]) -> int:
    """Index of the first line, with decorators and the comment above."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return first
