"""`stamm.derive`: an activation from its gradient."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from stamm.activations import catalog, derived_folder
from stamm.activations.catalog.registry import check_name_free, load_spec, names_spec
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import (
    CONTINUITIES,
    Continuity,
    known_entry,
    spec_from_arguments,
)
from stamm.activations.spec.spec import unused_parameters
from stamm.base.config import nearest
from stamm.base.errors import ConfigError
from stamm.base.files import recover_folder

if TYPE_CHECKING:
    from stamm.activations.derivation.formulas import Derived


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """A derived activation in a folder.

    known     name of the catalogue entry with the same definition
    before    whether the folder held it already, complete and unchanged
    receipt   what derived.json records: facts, accuracy, findings; None in a dry run
    """

    folder: Path
    spec: Spec
    known: str | None
    before: bool
    receipt: Mapping[str, Any] | None = None

    @property
    def files(self) -> list[Path]:
        """The files of the folder, also in a dry run."""
        return [self.folder / name for name in derived_folder.file_names(self.spec.name)]


@overload
def derive(thing: Spec, /) -> Derived: ...


@overload
def derive(
    *things: str | os.PathLike[str],
    name: str | None = None,
    parameter: str | Sequence[str] | None = None,
    anchor: str | None = None,
    continuity: Continuity | None = None,
    gated: Literal[1, 2] | None = None,
    cpu_seconds: int = 120,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Derivation: ...


def derive(
    *things: Any,
    name: str | None = None,
    parameter: str | Sequence[str] | None = None,
    anchor: str | None = None,
    continuity: Continuity | None = None,
    gated: Literal[1, 2] | None = None,
    cpu_seconds: int = 120,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Derived | Derivation:
    """Derive an activation from its gradient into a folder: module, kernel, certificate, golden vectors, page.

        stamm.derive("x > 0: 2*a*x + 1", "x <= 0: exp(x)", parameter="a=0.8:softplus", name="mine")

    things       pieces of a gradient, a Python file with a Spec, or a spec.json. A `Spec` alone:
                 nothing is written, and the result has its formulas
    name         by default derived from the content hash
    parameter    shape parameters, "a=0.8:softplus", "t=0.5:between(0,1)", "b=0.5:fixed" ...
    anchor       "X=Y": f(X) = Y, by default "0=0"
    continuity   of the gradient, by default "continuous"
    gated        y = f(gate) * up: 1 for a bounded gate, else 2
    cpu_seconds  give up after so much CPU time; not outside the main thread
    out          by default derived/NAME
    force        replace an earlier derivation there
    dry_run      write nothing: the result names the files
    Raises       ConfigError for a gradient that cannot be derived, or a folder that cannot be written
    """
    declared = [parameter] if isinstance(parameter, str) else list(parameter or ())
    stated = {
        "parameter": declared or None,
        "anchor": anchor,
        "continuity": continuity,
        "gated": gated,
    }
    if any(isinstance(thing, Spec) for thing in things):
        of_folder = {"name": name, "out": out, "force": force, "dry_run": dry_run}
        given = [flag for flag, value in {**stated, **of_folder}.items() if value]
        if len(things) > 1 or given:
            raise ConfigError(
                f"a Spec is derived alone, without {given[0] if given else 'other pieces'}",
                fix="For a folder, write it to a file and name that: 'mine.py:SPEC'",
            )
        # A folder that is there already needs no SymPy.
        formulas: Derived = import_module("stamm.activations.derivation.derive").derive(things[0])
        return formulas
    _check_flags(name, out, continuity, gated, cpu_seconds)
    things = tuple(os.fspath(thing) for thing in things)
    spec, known = _stated(things, name, stated)
    folder = Path("derived") / spec.name if out is None else _output_folder(os.fspath(out))
    if not dry_run:
        recover_folder(folder)
    receipt = derived_folder.intact(folder, spec)
    before = receipt is not None and not force
    if not before:
        derived_folder.check_writable(folder)
        derived_folder.check_replaceable(folder, spec.name, force=force)
    if dry_run:
        return Derivation(folder=folder, spec=spec, known=known, before=before)
    if receipt is None or force:
        words = {
            "name": name,
            "anchor": anchor,
            "continuity": continuity,
            "gated": gated,
            "out": out,
        }
        command = _command(things, words, declared)
        # Its page takes libraries that formulas and checks do not need.
        page = import_module("stamm.activations.page.verb")
        receipt = page.derive_into(folder, spec, known, command, cpu_seconds)
    return Derivation(folder=folder, spec=spec, known=known, before=before, receipt=receipt)


def _check_flags(
    name: str | None,
    out: str | os.PathLike[str] | None,
    continuity: str | None,
    gated: int | None,
    cpu_seconds: int,
) -> None:
    """Check what the command line refuses while it reads its flags."""
    for flag, value in (("name", name), ("out", out)):
        if value == "":
            raise ConfigError(f"--{flag} '' is empty", fix="Omit the flag, or give a value")
    if continuity not in (None, *CONTINUITIES):
        raise ConfigError(
            f"--continuity {continuity!r} is not known", fix=nearest(continuity or "", CONTINUITIES)
        )
    if gated not in (None, 1, 2):
        raise ConfigError(
            f"--gated {gated!r} is not 1 or 2", fix="Write 1 for a bounded gate, else 2"
        )
    if cpu_seconds < 1:
        raise ConfigError(f"--cpu-seconds {cpu_seconds} is below 1", fix="Allow 1 second or more")


def _stated(
    things: Sequence[str], name: str | None, stated: Mapping[str, Any]
) -> tuple[Spec, str | None]:
    """The spec, and the name of the catalogue entry with the same definition."""
    references = [word for word in things if names_spec(word)]
    if references:
        given = [flag for flag, value in stated.items() if value is not None]
        if len(things) > 1 or given:
            other = f"--{given[0]}" if given else "another THING"
            raise ConfigError(
                f"{references[0]!r} is a complete spec; {other} cannot be combined with it",
                fix="Change the spec, or give the pieces on the command line",
            )
        spec = load_spec(references[0])
        spec = replace(spec, name=name) if name else spec
    else:
        anchor = stated["anchor"]
        spec = spec_from_arguments(
            things,
            stated["parameter"] or (),
            name=name or "",
            anchor=anchor if anchor is not None else "0=0",
            continuity=stated["continuity"] or "continuous",
            gated=stated["gated"],
        )
    unused = unused_parameters(spec)
    if unused:
        raise ConfigError(
            f"the parameter {unused[0]!r} is used in no formula",
            where=spec.where,
            fix="Leave it out",
        )
    known = known_entry(spec, catalog.ENTRIES)
    if known is not None and spec.name in (known.name, *known.aliases):
        spec = known  # same definition and name: the entry itself
    check_name_free(spec, catalog.ENTRIES)
    derived_folder.check_module_name(spec.name)
    return spec, known.name if known else None


def _output_folder(out: str) -> Path:
    """The output folder; raises early when it contains the working directory."""
    folder, here = Path(os.path.realpath(out)), Path.cwd().resolve()
    if folder == here or folder in here.parents:
        raise ConfigError(
            f"--out {out!r} is the working directory or contains it",
            where="set on the command line",
            fix="Name a new folder",
        )
    return folder if Path(out).name == ".." else Path(out)


def _command(things: Sequence[str], words: Mapping[str, Any], declared: Sequence[str]) -> str:
    """The command line that repeats this derivation."""
    line = ["stamm", "derive", *things]
    for flag, value in words.items():
        line += [f"--{flag}", str(value)] if value is not None else []
    for parameter in declared:
        line += ["--parameter", parameter]
    return shlex.join(line)
