"""`stamm release`: write everything that a run has about one model to a folder, and upload it."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from stamm.activations import catalog
from stamm.base.config import from_plain, override
from stamm.base.console import Console
from stamm.base.errors import ConfigError, RunError
from stamm.base.units import bytes_text
from stamm.cli.arg_types import add_changes, new_folder, text
from stamm.cli.model_verbs import changed_settings, inputs_of
from stamm.cli.output import print_table
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.export.config import BUILT_IN_TARGETS
from stamm.recipes.jobs import job
from stamm.release.checksums import SUMS
from stamm.release.config import ReleaseConfig
from stamm.release.facts import evidence_settings, read_release_facts
from stamm.release.layout import PARITY, TOP_FORMAT
from stamm.runs.arms import run_of_arm, trained_arms
from stamm.runs.command_receipts import recorded
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256
from stamm.runs.run import Run


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `release`."""
    parser.add_argument(
        "run",
        type=text,
        metavar="RUN",
        help="one arm, a run with one arm, or the name of an activation",
    )
    add_changes(parser, "changes to the settings; evidence.KEY=... for the corpus documents")
    parser.add_argument("--out", type=text, metavar="FOLDER", required=True, help="where to write")
    parser.add_argument("--sign", type=text, metavar="KEY", help="private key (PEM) that signs")
    parser.add_argument("--push", type=text, metavar="OWNER/NAME", help="upload to the Hub, too")
    parser.add_argument(
        "--dry-run", action="store_true", help="print every file with its size, write nothing"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Write the release of one arm; upload it with --push."""
    from stamm.release.push import check_repository, push
    from stamm.release.write_release import check_destination, planned_files, write_release

    if not Path(options.run).exists() and options.run in catalog.names():
        return _kernel(options)
    arm, out = _one_arm(Path(options.run)), new_folder(options.out)
    key = Path(options.sign) if options.sign else None
    if options.push:
        check_repository(options.push)
    if not options.dry_run:  # an export takes long
        check_destination(out, weights_sha256(arm / "model"), key)
    root = run_of_arm(arm)
    about_corpus = [word for word in options.changes if word.startswith("evidence.")]
    changes = [word for word in options.changes if word not in about_corpus]
    config = override(ReleaseConfig(), changes)
    stored = evidence_settings(root)
    evidence = EvidenceConfig() if stored is None else from_plain(EvidenceConfig, stored)
    evidence = override(evidence, [word.removeprefix("evidence.") for word in about_corpus])
    lock = contextlib.nullcontext() if options.dry_run else Run(root, "", (), None).locked()
    with lock, contextlib.closing(Console()) as console:
        missing = _missing_exports(config, arm)
        for target in missing:
            if options.dry_run:
                print(f"export {arm} to {target} first: its files are not listed")
                continue
            settings = changed_settings(root, "export", _target(target))
            place = arm / "export"
            place.mkdir(exist_ok=True)
            inputs = inputs_of(arm, "export")
            with recorded(root, f"export.{arm.resolve().name}", place):
                job("export")(settings, Workspace(folder=place, inputs=inputs, progress=console))
        if options.dry_run and missing:
            return 0
        facts = read_release_facts(config, arm, evidence)
        if TOP_FORMAT not in facts.exports and not config.formats:
            console.log(
                f"The release has no export to {TOP_FORMAT}, which most libraries load: run `stamm"
                f" export {arm} target={TOP_FORMAT}` first to include it."
            )
        if options.dry_run:
            sizes = planned_files(config, facts, job)
            print_table(["bytes", "file"], [[str(size), name] for name, size in sizes.items()])
            to = f", then to {options.push}" if options.push else ""
            print(f"{len(sizes)} files, {bytes_text(sum(sizes.values()))} -> {out}{to}")
            return 0
        write_release(config, facts, out, job, key, console.log)
    print(out)
    if options.push:
        message = f"{facts.record.name}, weights {facts.record.model_sha256[:16]}, {SUMS}"
        print(push(out, options.push, message))
    return 0


def _kernel(options: argparse.Namespace) -> int:
    """Write an activation of the catalogue in the layout of the kernels hub."""
    from stamm.release.kernel_folder import write_kernel_folder

    if options.changes or options.sign or options.push:
        raise ConfigError(f"a kernel folder of {options.run} takes --out and --dry-run alone")
    if not options.dry_run:
        write_kernel_folder(catalog.get(options.run), Path(options.out))
    print(options.out)
    return 0


def _missing_exports(config: ReleaseConfig, arm: Path) -> list[str]:
    made = {path.parent.name for path in (arm / "export").glob(f"*/{PARITY}")}
    return sorted((set(config.formats) or made or {TOP_FORMAT}) - made)


def _target(name: str) -> list[str]:
    """The settings of an export by the name of its folder: gguf_q8_0 has target gguf and Q8_0."""
    target, _, kind = name.partition("_")
    if kind and target in BUILT_IN_TARGETS:
        return [f"target={target}", f"quantization={kind.upper()}"]
    return [f"target={name}", "quantization=F32"]


def _one_arm(root: Path) -> Path:
    if not (root / "config.json").is_file():
        raise RunError(f"{root} is not a run folder", fix="`stamm ls runs` lists them")
    arms = trained_arms(root)
    if not arms:
        raise RunError(f"{root} holds no trained model yet", fix="Finish its run first")
    if len(arms) > 1:
        named = ", ".join(map(str, arms))
        raise RunError(f"{root} holds {len(arms)} trained models", fix=f"Name one: {named}")
    return arms[0]
