"""`stamm import`: a Hugging Face folder or a GGUF file becomes a run with one arm."""

from __future__ import annotations

import argparse
import contextlib
import re
from pathlib import Path

from stamm.align.import_config import ImportConfig, import_files
from stamm.base.config import to_plain
from stamm.base.console import Console
from stamm.base.errors import RunError
from stamm.base.files import atomic_folder, has_ending, new_folder, sha256_file
from stamm.base.receipts import CONFIG, FILES, MANIFEST, files_below
from stamm.base.schema import write_record
from stamm.base.units import bytes_text
from stamm.cli.arg_types import text
from stamm.models.hf_files import TOKENIZER
from stamm.recipes.jobs import job
from stamm.runs.command_receipts import write_command_receipt
from stamm.runs.job import Workspace
from stamm.runs.manifest import new_manifest
from stamm.runs.records import ConfigFile, ManifestFile
from stamm.version import VERSION

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
    """Write the run folder, atomically."""
    source = Path(options.folder)
    if not source.is_dir() and not (source.is_file() and has_ending(source.name, ".gguf")):
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
    config = ImportConfig(chat=False)
    with atomic_folder(out) as part:
        arm = part / "arms" / name
        arm.mkdir(parents=True)
        with contextlib.closing(Console()) as console:
            workspace = Workspace(folder=arm, inputs={"source": source}, progress=console)
            job("import_model")(config, workspace)
        (arm / "tokenizer").rename(part / "tokenizer")
        request = {"version": VERSION, "kind": "import", "config": to_plain(config)}
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
    print(out / "arms" / name)
    return 0
