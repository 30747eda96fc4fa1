"""`stamm import`: a Hugging Face folder or a GGUF file becomes a run with one arm."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
from pathlib import Path

import stamm
from stamm.align.import_config import TOKENIZER, ImportConfig, import_files
from stamm.base.config import to_plain
from stamm.base.console import Console
from stamm.base.errors import RunError
from stamm.base.files import sha256_file
from stamm.base.receipts import CONFIG, FILES, MANIFEST, files_below
from stamm.base.schema import write_record
from stamm.base.units import bytes_text
from stamm.cli.arg_types import new_folder, text
from stamm.recipes.jobs import job
from stamm.runs.command_receipts import write_command_receipt
from stamm.runs.job import Workspace
from stamm.runs.manifest import new_manifest
from stamm.runs.schemas.run import ConfigFile, ManifestFile

_OTHERS = re.compile(r"[^A-Za-z0-9_]+")


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `import`."""
    parser.add_argument(
        "folder",
        type=text,
        help="a Hugging Face folder (Apertus, Arcee, Llama, Mistral, Phi-3, Qwen2 or Qwen3) or a GGUF file of"
        " llama.cpp (Apertus, Arcee, Llama, Qwen2 or Qwen3)",
    )
    parser.add_argument(
        "--out",
        type=text,
        metavar="RUN",
        help="the run folder (default: runs/NAME of the folder or file)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be read and written"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Write the run folder; it gets its name when it is complete."""
    source = Path(options.folder)
    if not source.is_dir() and not (source.is_file() and source.suffix == ".gguf"):
        raise RunError(
            f"{source} is neither a folder nor a .gguf file", fix="Name a folder with config.json"
        )
    named = source.resolve()
    name = (
        _OTHERS.sub("-", named.stem if source.is_file() else named.name).strip("-")[:100] or "model"
    )
    out = new_folder(options.out) if options.out else Path("runs") / name
    files = import_files(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists", fix="Choose another folder with --out, or remove it")
    if options.dry_run:
        size = sum(path.stat().st_size for path in files.values())
        print(f"import {source} ({len(files)} files, {bytes_text(size)}) -> {out / 'arms' / name}")
        return 0
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    arm = part / "arms" / name
    arm.mkdir(parents=True)
    config = ImportConfig(chat=False)
    try:
        with contextlib.closing(Console()) as console:
            place = Workspace(folder=arm, inputs={"source": source}, progress=console)
            job("import_model")(config, place)
        (arm / "tokenizer").rename(part / "tokenizer")
        request = {"version": stamm.__version__, "kind": "import", "config": to_plain(config)}
        tokenizer = {
            "path": "../../tokenizer",
            "sha256": sha256_file(part / "tokenizer" / TOKENIZER),
        }
        facts = {"kind": "import", "inputs": {"tokenizer": tokenizer}}
        write_record(arm / "config.json", ConfigFile, request)
        write_record(arm / "manifest.json", ManifestFile, new_manifest(**facts))
        write_record(part / CONFIG, ConfigFile, {**request, "recipe": "import"})
        write_command_receipt(part, "import", files_below(part))
        tied = {CONFIG: sha256_file(part / CONFIG)}
        manifest = new_manifest(recipe="import", state="complete", **{FILES: tied})
        write_record(part / MANIFEST, ManifestFile, manifest)
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(out / "arms" / name)
    return 0
