"""Reference pages of the documentation site: modules from their docstrings, commands from their help.

The modules are parsed, not imported, so that the pages need no optional library.
"""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path

from stamm.cli.main import VERBS, main
from stamm.recipes.catalog import RECIPES

Definition = ast.FunctionDef | ast.ClassDef


def module_pages(package: Path) -> dict[str, str]:
    """File name to Markdown: one page for each folder of the package `package` with public modules."""
    pages: dict[str, list[str]] = {}
    for file in sorted(package.rglob("*.py")):
        folder = file.parent.relative_to(package.parent)
        if file.name == "__init__.py" or "generated" in folder.parts:
            continue
        body = _module(file, ".".join((*folder.parts, file.stem)))
        if body:
            pages.setdefault(".".join(folder.parts), []).append(body)
    return {
        f"{name}.md": f"# {name}\n\n" + "\n".join(modules)
        for name, modules in sorted(pages.items())
    }


def command_pages() -> dict[str, str]:
    """File name to Markdown: the overview of the command line, and one page for each verb."""
    pages = {"stamm.md": _help("stamm", [])}
    for verb in VERBS:
        pages[f"{verb.name}.md"] = _help(f"stamm {verb.name}", [verb.name])
    return pages


def recipe_page() -> str:
    """Markdown: the recipes with what their functions say."""
    lines = [
        "# Recipes",
        "",
        "`stamm run NAME` executes a recipe, `stamm show NAME` prints its settings, and",
        "`stamm cp NAME mine.py` writes a copy to edit.",
        "",
        "| name | what it does |",
        "|---|---|",
    ]
    for recipe in RECIPES:
        summary = recipe.summary.replace("|", "\\|")
        lines += [f"| `{recipe.name}` | {summary} |"]
    return "\n".join(lines) + "\n"


def _module(file: Path, name: str) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = [_definition(node) for node in tree.body if _is_public(node)]
    if not parts:
        return ""
    return "\n".join([f"## {name}", "", _block(ast.get_docstring(tree)), *parts])


def _is_public(node: ast.stmt) -> bool:
    return isinstance(node, Definition) and not node.name.startswith("_")


def _definition(node: ast.stmt) -> str:
    assert isinstance(node, Definition)
    lines = [f"### {node.name}", "", "```python", _signature(node), "```", ""]
    lines.append(_block(ast.get_docstring(node)))
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and _is_public(method):
                signature = f"```python\n{_signature(method)}\n```\n"
                lines += [f"#### {node.name}.{method.name}", "", signature]
                lines.append(_block(ast.get_docstring(method)))
    return "\n".join(lines)


def _signature(node: Definition) -> str:
    decorators = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{decorators}def {node.name}({ast.unparse(node.args)}){returns}"
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    fields = "".join(
        f"\n    {ast.unparse(part)}"
        for part in node.body
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_")
    )
    return f"{decorators}class {node.name}{f'({bases})' if bases else ''}:{fields or ' ...'}"


def _block(text: str | None) -> str:
    """A docstring as it is set: its tables are aligned by spaces."""
    fence = "````"
    return f"{fence}text\n{text}\n{fence}\n" if text else ""


def _help(title: str, words: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return f"# {title}\n\n{_block(printed.getvalue())}"
