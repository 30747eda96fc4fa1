"""`stamm ls`, `show` and `cp`: list, show one thing, and copy a recipe to edit."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from stamm.activations import catalog as activations
from stamm.activations.spec import Gated
from stamm.activations.spec.shipped import HOMES
from stamm.base.config import closest, flatten, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, write_text
from stamm.base.units import count_text, seconds_text
from stamm.cli import activation_show
from stamm.cli.arg_types import text
from stamm.cli.ledger import show_ledger
from stamm.cli.output import print_groups, print_json, print_pairs
from stamm.models.flops import count_parameters
from stamm.pretrain.config import PretrainConfig
from stamm.recipes import catalog as recipes
from stamm.recipes.recipe_source import recipe_source
from stamm.recipes.resolve import resolve
from stamm.recipes.study import Study
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.run import finished_steps, shown_state

_KINDS = ("activations", "recipes", "runs")


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the three verbs."""
    if verb == "ls":
        parser.add_argument("kind", nargs="?", choices=_KINDS, help="what to list (default: all)")
        parser.add_argument(
            "--in",
            type=text,
            dest="folder",
            default="runs",
            help="folder of the runs (default: runs)",
        )
    elif verb == "show":
        parser.add_argument(
            "name",
            type=text,
            help="an activation (or a file with a Spec), a recipe or a run folder; with --like also a formula",
        )
        parser.add_argument(
            "changes",
            type=text,
            nargs="*",
            default=[],
            metavar="key=value",
            help="changes to a recipe; with --like more pieces of a function",
        )
        activation_show.arguments(parser)
    else:
        parser.add_argument("recipe", type=text, help="a recipe's name")
        parser.add_argument("file", type=text, help="the Python file to write")
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would be written, write nothing"
        )
    if verb != "cp":
        parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Run one of the three verbs."""
    return {"ls": _ls, "show": _show, "cp": _cp}[verb](options)


def _ls(options: argparse.Namespace) -> int:
    kinds = [options.kind] if options.kind else list(_KINDS)
    rows = {kind: _rows(kind, Path(options.folder)) for kind in kinds}
    if options.json:
        print_json(rows if options.kind is None else rows[options.kind])
        return 0
    for number, kind in enumerate(kinds):
        if number:
            print()
        groups: dict[str, list[tuple[str, str]]] = {}
        for row in rows[kind]:
            heading, name, description = _listed(kind, row)
            groups.setdefault(heading, []).append((name, description))
        if groups:
            print_groups(groups)
        else:
            print(f"no runs in {options.folder}/")
    return 0


def _listed(kind: str, row: dict[str, Any]) -> tuple[str, str, str]:
    """Heading, name and description of a row of `stamm ls`."""
    if kind == "activations":
        family = HOMES[row["name"]].replace("_", " ")
        mark = "  [gated]" if row["gated"] else ""
        return f"activations: {family}", row["name"], f"{row['title']}{mark}"
    if kind == "recipes":
        family, dot, _ = row["name"].partition(".")
        return f"recipes {family}.*" if dot else "recipes", row["name"], row["summary"]
    steps, took, day = f"{row['steps']} steps", row["took"].rjust(12), str(row["started"])[:10]
    return (
        f"runs of {row['recipe'] or 'unknown recipes'}",
        row["run"],
        f"{row['state']:<11}  {steps:>9}{took}  {day}",
    )


def _rows(kind: str, folder: Path) -> list[dict[str, Any]]:
    if kind == "activations":
        return [
            {
                "name": spec.name,
                "title": spec.title,
                "source": spec.source,
                "gated": isinstance(spec.arity, Gated),
            }
            for spec in (activations.get(name) for name in activations.names())
        ]
    if kind == "recipes":
        return [{"name": recipe.name, "summary": recipe.summary} for recipe in recipes.RECIPES]
    manifests = sorted(folder.glob("*/manifest.json")) if folder.is_dir() else []
    return [_run_row(path) for path in manifests]


def _run_row(path: Path) -> dict[str, Any]:
    try:
        manifest = read_json(path)
        steps = finished_steps(path.parent, manifest)
        took = seconds_text(sum(step["seconds"] for step in steps))
    except (DataError, OSError, AttributeError, TypeError, KeyError):
        manifest, steps, took = {"state": "unreadable"}, [], ""
    return {
        "run": str(path.parent),
        "recipe": manifest.get("recipe", manifest.get("kind", "")),
        "state": shown_state(path.parent, manifest.get("state", "")),
        "steps": len(steps),
        "took": took,
        "started": manifest.get("started", ""),
    }


def _show(options: argparse.Namespace) -> int:
    name = options.name
    if options.like:
        return activation_show.show_like(options)
    for flag in ("gradient", "parameter"):
        if getattr(options, flag):
            raise ConfigError(f"--{flag} needs --like", fix=f"Add --like, or omit --{flag}")
    if name == "ledger" and not Path(name).exists():
        return show_ledger(options.changes, options.json)
    if activation_show.is_file(name, "manifest.json"):
        return _show_run(Path(name), options)
    spec = activation_show.spec_named(name)
    if spec is not None:
        return activation_show.show_activation(name, spec, options)
    if Path(name).is_dir():
        return _show_run(Path(name), options)
    if options.plot is not None or options.page is not None:
        raise ConfigError(
            f"{name!r} is not an activation", fix="--plot and --page need an activation"
        )
    if not name.endswith(".py") and ".py:" not in name:
        entries = [activations.get(entry) for entry in activations.names()]
        _check_known(name, [word for spec in entries for word in (spec.name, *spec.aliases)])
    recipe = resolve(name, options.changes)
    if options.json:
        plain = to_plain(recipe.config)
        print_json({"recipe": recipe.name, "overrides": recipe.overrides, "config": plain})
        return 0
    config = recipe.config
    print_pairs([("recipe", recipe.name)])
    if isinstance(config, Study):
        for arm in config.arms:
            total = count_parameters(config.model_of(arm)).total
            print_pairs([(f"arm {arm.name}", f"{count_text(total)} parameters ({total:,})")])
    elif isinstance(config, PretrainConfig):
        total = count_parameters(config.model).total
        print_pairs([("parameters", f"{count_text(total)} ({total:,})")])
    flat = flatten(to_plain(config))
    print_pairs([(key, json.dumps(value, ensure_ascii=False)) for key, value in flat.items()])
    return 0


def _check_known(name: str, known: list[str]) -> None:
    try:
        recipes.get(name)
    except ConfigError:
        match = closest(name, [*known, *(recipe.name for recipe in recipes.RECIPES)])
        hint = f"Did you mean {match!r}? " if match else ""
        raise ConfigError(
            f"{name!r} is not an activation, recipe or run folder",
            fix=f"{hint}`stamm ls` lists them",
        ) from None


def _show_run(root: Path, options: argparse.Namespace) -> int:
    manifest = read_json(root / "manifest.json", MANIFEST_FIX)
    if not isinstance(manifest, dict):
        raise DataError(f"{root / 'manifest.json'} is not the manifest of a run", fix=MANIFEST_FIX)
    if options.json:
        stored = read_json(root / "config.json")
        if not isinstance(stored, dict):
            raise DataError(f"{root / 'config.json'} is not the configuration of a run")
        print_json({"manifest": manifest, **stored})
        return 0
    if "state" in manifest:
        manifest["state"] = shown_state(root, manifest["state"])
    pairs = [(k, v) for k, v in manifest.items() if isinstance(v, (str, int, float))]
    print_pairs([(key, str(value)) for key, value in pairs])
    try:
        steps = [(s["name"], seconds_text(s["seconds"])) for s in finished_steps(root, manifest)]
    except (TypeError, KeyError):
        raise DataError(
            f"{root / 'manifest.json'} lists steps without a name or seconds", fix=MANIFEST_FIX
        ) from None
    print_pairs([(f"  {name}", seconds) for name, seconds in steps])
    return 0


def _cp(options: argparse.Namespace) -> int:
    target = Path(options.file)
    if target.suffix != ".py":
        raise ConfigError(f"{target} is not a .py file", fix="Name it mine.py")
    if not target.parent.is_dir():
        raise DataError(
            f"{target.parent} is not a folder", fix=f"Make it before {target} is written"
        )
    if target.exists():
        raise ConfigError(f"{target} exists already", fix="Choose another name")
    recipe = recipes.get(options.recipe)
    function = recipe.build.__name__
    verb = "search" if recipe.name.startswith("search.") else "run"
    if not options.dry_run:
        write_text(target, recipe_source(recipe))
    print(f"{target}: edit it, then `stamm {verb} {shlex.quote(f'{target}:{function}')}`")
    return 0
