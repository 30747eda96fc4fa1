"""`stamm.emit`: an activation as source text of another language or runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.activations.catalog.registry import load_spec
from stamm.activations.emitters import c_like, python
from stamm.activations.emitters.latex import LATEX
from stamm.activations.emitters.onnx import ONNX
from stamm.activations.emitters.program import Program, program_of
from stamm.activations.emitters.syntax import EmissionTarget, head
from stamm.activations.spec import Spec
from stamm.base.config import nearest
from stamm.base.errors import ConfigError
from stamm.base.files import write_bytes
from stamm.base.user_code import is_reference, load_reference

TARGETS: Mapping[str, EmissionTarget] = {
    target.name: target for target in (*python.TARGETS, *c_like.TARGETS, LATEX, ONNX)
}


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """An activation in a target.

    name     of the functions
    target   name of the target
    files    content by file name: first the module, then its test where the target has one
    folder   where they were written; None: nowhere
    """

    name: str
    target: str
    files: Mapping[str, bytes]
    folder: Path | None = None

    @property
    def text(self) -> str:
        """The module.

        Raises   ConfigError where it is not text, as for ONNX
        """
        file, content = next(iter(self.files.items()))
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{file} is not text", fix="Write it to a folder: --out") from None

    def plain(self) -> dict[str, object]:
        """As JSON values: without the contents."""
        folder = None if self.folder is None else str(self.folder)
        sizes = {name: len(content) for name, content in self.files.items()}
        return {"name": self.name, "target": self.target, "folder": folder, "bytes": sizes}


def emit(
    name: str | Spec,
    target: str,
    *,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Emitted:
    """Write an activation as source text for another language, from the graph of its kernels.

        print(stamm.emit("xielu", "jax").text)
        stamm.emit("derived/mine", "c", out="include")

    name      of the catalogue, a derived folder, file.py:SPEC, or a Spec
    target    a name of `TARGETS`, or your own as mine.py:NAME
    out       a folder for the module and its test; None: nothing is written
    force     replace files of other contents
    dry_run   write nothing

    Raises    ConfigError for a target that is not known or lacks a function, for a spec that cannot
              be integrated, and where a file of other contents would be replaced
    Checked   tests/unit/activations/test_emission.py
    """
    target = target.removeprefix("target=")
    chosen = _target(target)
    spec = name if isinstance(name, Spec) else load_spec(name)
    program = program_of(spec)
    files = _files(program, chosen, target)
    if out == "":
        raise ConfigError("--out '' is empty", fix="Omit the flag, or name a folder")
    folder = None if out is None else Path(out)
    if folder is not None:
        for file, content in files.items():
            path = folder / file
            if path.exists() and path.read_bytes() != content and not force:
                raise ConfigError(
                    f"{path} exists and has other contents",
                    fix="Choose another folder with --out, or replace it with --force",
                )
        if not dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                write_bytes(folder / file, content)
    return Emitted(name=program.name, target=chosen.name, files=files, folder=folder)


def _target(target: str) -> EmissionTarget:
    if is_reference(target):
        return load_reference(target, EmissionTarget, "an emission target")
    if target not in TARGETS:
        raise ConfigError(
            f"there is no target {target!r}",
            fix=f"{nearest(target, TARGETS)} Or name your own: mine.py:NAME",
        )
    return TARGETS[target]


def _files(program: Program, target: EmissionTarget, named: str) -> dict[str, bytes]:
    content = target.write(program)
    if isinstance(content, str):
        start = head(program, target.comment, named) if target.comment else ""
        content = (start + content).encode()
    files = {f"{program.name}{target.ending}": content}
    if target.test is not None:
        files[f"{program.name}{target.test_ending}"] = target.test(program).encode()
    return files
