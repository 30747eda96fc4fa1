"""`stamm VERB THING key=value`: parse the command line, call the verb, print errors in one line.

A verb's module is imported when the verb is called, so that `stamm --help` stays fast.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC
from typing import NoReturn

from stamm.base.errors import ConfigError, StammError, StoppedError, visible
from stamm.base.extras import missing_library
from stamm.base.shutdown import exit_immediately, interrupt_delayed
from stamm.runs.torchrun_env import rank_and_size
from stamm.version import VERSION

_APPEND = argparse._AppendAction
SPINS = 3000  # iterations, about 10 us
RANK_0_PRINTS_S = 10.0  # rank 0 may have to close files before it prints its error


@dataclass(frozen=True)
class Verb:
    """One verb: its module, its one-line summary, and three examples."""

    name: str
    module: str
    summary: str
    examples: tuple[str, ...]


VERBS: tuple[Verb, ...] = (
    Verb(
        "ls",
        "stamm.cli.catalog_verbs",
        "list what exists: activations, recipes or runs",
        ("stamm ls activations", "stamm ls recipes", "stamm ls runs --json"),
    ),
    Verb(
        "show",
        "stamm.cli.catalog_verbs",
        "show one activation, recipe or run",
        (
            "stamm show xielu --plot xielu.svg --page xielu.html",
            "stamm show --like 'sin(x)**2'",
            "stamm show ledger runs/demo url=https://opensource.guide/*",
        ),
    ),
    Verb(
        "derive",
        "stamm.cli.derive",
        "turn a gradient of your own into a torch module, a certificate and a page",
        (
            "stamm derive 'x > 0: 2*a*x + 1' 'x <= 0: exp(x)' --parameter a=0.8:softplus --name mine",
            "stamm derive mine.py:MINE --out derived/mine",
            "stamm derive 'all x: normal_cdf(x)' --name soft_ramp --dry-run",
        ),
    ),
    Verb(
        "emit",
        "stamm.cli.emit",
        "write an activation as source for JAX, MLX, NumPy, C, JavaScript, ONNX, GPUs",
        (
            "stamm emit xielu jax",
            "stamm emit xielu target=c --out include",
            "stamm emit derived/mine onnx --out mine",
        ),
    ),
    Verb(
        "cp",
        "stamm.cli.catalog_verbs",
        "copy a recipe to a Python file, to edit and run",
        ("stamm cp demo mine.py", "stamm run mine.py", "stamm cp pretrain.apertus_8b big.py"),
    ),
    Verb(
        "check",
        "stamm.cli.check",
        "check an activation (proofs, accuracy), or the Goldfish mask of a corpus",
        (
            "stamm check xielu",
            "stamm check xielu --against transformers.activations:XIELUActivation",
            "stamm check goldfish runs/demo",
        ),
    ),
    Verb(
        "bench",
        "stamm.cli.bench",
        "time activations against a memory copy and other implementations",
        (
            "stamm bench activations",
            "stamm bench activations xielu swiglu --shape 8192x4096 --dtype float32",
            "stamm bench activations mine.py:SPEC --device cuda --out mine.jsonl",
        ),
    ),
    Verb(
        "plan",
        "stamm.cli.plan",
        "estimate parameters, memory, FLOPs, time and disk before a run",
        (
            "stamm plan demo",
            "stamm plan apertus_8b --gpus 1024xGH200",
            "stamm plan llama_1b_xielu model.num_layers=12 --json",
        ),
    ),
    Verb(
        "run",
        "stamm.cli.run",
        "execute a recipe; the same command resumes it; many GPUs: torchrun -m stamm run",
        (
            "stamm run demo",
            "stamm run mine.py pack=runs/demo/pack",
            "stamm run demo corpus.inputs=mine.jsonl,crawl.warc.gz --out runs/mine",
        ),
    ),
    Verb(
        "fields",
        "stamm.cli.fields",
        "show the fields of a data file, what they are read as, and how to map others",
        (
            "stamm fields mine.jsonl",
            "stamm fields mine.parquet text=body url=meta.link",
            "stamm fields pairs.json --rows 20 --json",
        ),
    ),
    Verb(
        "compare",
        "stamm.cli.compare",
        "compare activations at equal parameters, FLOPs or time, with confidence intervals",
        (
            "stamm compare activations --dry-run",
            "stamm compare smoke seeds=1,2,3 --out runs/toys",
            "stamm compare activations matched=EqualFlops tuning.refinements=2 --out runs/flops",
        ),
    ),
    Verb(
        "search",
        "stamm.cli.search",
        "search a family of gradients for something better, and confirm it on fresh seeds and text",
        (
            "stamm search activations --dry-run",
            "stamm search smoke",
            "stamm search mine.py:family --out runs/mine",
        ),
    ),
    Verb(
        "evaluate",
        "stamm.cli.evaluate",
        "evaluate a run or a Hugging Face folder: shipped tasks, your own files, two models compared",
        (
            "stamm evaluate runs/demo/arms/xielu tasks=held_out,blimp,mine.jsonl",
            "stamm evaluate runs/demo/arms/xielu --against models/SmolLM2 tasks=hellaswag task_folder=data",
            "stamm evaluate runs/demo checkpoints=all tasks=blimp",
        ),
    ),
    Verb(
        "observe",
        "stamm.cli.observe",
        "measure the layers of a trained model: shapes, negative branch, rank, nonlinearity by depth",
        (
            "stamm observe runs/demo/arms/xielu",
            "stamm observe models/Apertus-8B text=mine.jsonl tokens=4096",
            "stamm observe runs/compare.evidence_activations",
        ),
    ),
    Verb(
        "steer",
        "stamm.cli.steer",
        "fit steering vectors, measure effect and price beside random directions; files for llama.cpp",
        (
            "stamm steer runs/demo/arms/xielu positive=german.jsonl negative=english.jsonl",
            "stamm steer models/Qwen3-0.6B positive=a.jsonl negative=b.jsonl method=probe kl=0.1",
            "stamm steer runs/demo/arms/xielu positive=a.jsonl negative=b.jsonl --dry-run",
        ),
    ),
    Verb(
        "audit",
        "stamm.cli.model_verbs",
        "measure memorization of planted passages against a never-trained control",
        (
            "stamm audit runs/demo/arms/xielu",
            "stamm audit runs/demo",
            "stamm audit runs/demo/arms/xielu new_tokens=32",
        ),
    ),
    Verb(
        "trace",
        "stamm.cli.trace",
        "which documents a step read, which steps and releases read a document, and which documents overlap a passage",
        (
            "stamm trace runs/demo/arms/xielu step=120",
            "stamm trace runs/demo/arms/xielu passage=@answer.txt forgotten=runs/pretrain.forget",
            "stamm trace runs document=https://example.org/*",
        ),
    ),
    Verb(
        "sample",
        "stamm.cli.sample",
        "sample completions of prompts from a trained model, in the chat format",
        (
            "stamm sample runs/demo/arms/xielu prompts=prompts.jsonl n=4",
            "stamm sample runs/demo/arms/xielu prompts=prompts.jsonl temperature=0 --out greedy",
            "stamm sample runs/demo/arms/xielu prompts=prompts.parquet top_p=0.9 max_new_tokens=64",
        ),
    ),
    Verb(
        "chat",
        "stamm.cli.chat",
        "talk to a model in the terminal: a run, or a Hugging Face folder",
        (
            "stamm chat runs/demo/arms/xielu",
            "stamm chat models/Qwen3-0.6B system='Answer in one sentence.' temperature=0",
            "stamm chat runs/demo --arm xielu max_new_tokens=64 seed=7",
        ),
    ),
    Verb(
        "score",
        "stamm.cli.score",
        "add a reward to each answer of a data file: a verifiable rule, a reward model, your own",
        (
            "stamm score answers.jsonl reward=Number reward.column=final",
            "stamm score answers.jsonl reward=JsonFormat reward.schema=schema.json --out scored.jsonl",
            "stamm score pairs.parquet reward=mine.py:MyReward",
        ),
    ),
    Verb(
        "export",
        "stamm.cli.model_verbs",
        "export to a Hugging Face folder that transformers loads, with a parity check",
        (
            "stamm export runs/demo/arms/xielu",
            "stamm export runs/demo/arms/swiglu",
            "stamm export runs/demo/arms/relu2 --dry-run",
        ),
    ),
    Verb(
        "import",
        "stamm.cli.import_model",
        "turn a Hugging Face folder into a run to evaluate, align, export and release",
        (
            "stamm import models/Qwen3-0.6B",
            "stamm import models/Llama-3.2-1B --out runs/llama",
            "stamm import models/Apertus-8B --dry-run",
        ),
    ),
    Verb(
        "release",
        "stamm.cli.release",
        "write weights, cards, results and records of a model to one folder; upload it",
        (
            "stamm release runs/demo/arms/xielu --out release",
            "stamm release runs/demo/arms/xielu --out release --sign key.pem checkpoints=true",
            "stamm release runs/demo/arms/xielu --out release --push someone/model --dry-run",
        ),
    ),
    Verb(
        "verify",
        "stamm.cli.verify",
        "check a released folder offline: hashes, files, records, signature",
        (
            "stamm verify release",
            "stamm verify release --deep",
            "stamm verify release --replay 3 --pack runs/demo/pack",
        ),
    ),
    Verb(
        "receipt",
        "stamm.cli.receipt",
        "prove what the ledger of a release holds about one URL",
        (
            "stamm receipt release url=https://example.org/page receipts=private",
            "stamm receipt release url=https://example.org/page receipts=private --out receipt.json",
            "stamm verify receipt.json --release release",
        ),
    ),
    Verb(
        "report",
        "stamm.cli.model_verbs",
        "write a self-contained HTML report of a run",
        (
            "stamm report runs/demo",
            "stamm report runs/demo/arms/xielu --out xielu.html",
            "stamm report runs/demo --dry-run",
        ),
    ),
    Verb(
        "diff",
        "stamm.cli.diff",
        "show the configuration keys in which two runs or recipes differ",
        (
            "stamm diff runs/demo runs/deep",
            "stamm diff demo smoke",
            "stamm diff apertus_8b apertus_70b --json",
        ),
    ),
    Verb(
        "env",
        "stamm.cli.env",
        "show versions and hardware, for a bug report; print tab completion",
        ("stamm env", "stamm env --json", "stamm env --completion bash"),
    ),
)


def entry() -> NoReturn:
    """Entry point of `stamm`: run the command line and exit with its code."""
    _limit_openmp_spin()
    escape_what_cannot_be_encoded()
    exit_immediately(main())


def escape_what_cannot_be_encoded() -> None:
    """Print characters that the terminal's encoding lacks as escapes (\\xb2), not as an error.

    Edge     in the C locale without UTF-8 mode the error handler of stdout is "surrogateescape"
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _limit_openmp_spin() -> None:
    """Limit how long waiting OpenMP threads spin to a few microseconds.

    The default is milliseconds, on cores that other processes could use. libgomp reads the setting
    when torch loads it; results do not change. GOMP_SPINCOUNT and OMP_WAIT_POLICY set by the user
    take precedence.

    Source   docs/log/2026-11-23-busy-machine.md: with one busy process on 2 cores twice the tokens
             per second, with six 3 times; 4 % less on an idle machine
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code, as `stamm --help` lists them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(argv)
    except StoppedError as error:  # raised in all ranks: one prints it
        if not _rank():
            print(f"stamm: {error.line()}", file=sys.stderr)
        return error.exit_code
    except StammError as error:
        print(f"stamm: {_rank_prefix()}{error.line()}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_library(error)
        if missing is None:
            raise
        print(f"stamm: {_rank_prefix()}{missing.line()}", file=sys.stderr)
        return missing.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader of the output was closed (`stamm ls | head`): not an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        where = f" ({error.filename})" if error.filename else ""
        message = f"{visible(error.strerror or str(error))}{visible(where)}."
        message += (
            " Free disk space and run the same command again."
            if error.errno in (ENOSPC, EDQUOT, EFBIG)
            else ""
        )
        print(f"stamm: {_rank_prefix()}{message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not _rank():
            print("\nstamm: stopped. The same command resumes from here.", file=sys.stderr)
        return 130


def _rank() -> int:
    try:
        return rank_and_size()[0]
    except ConfigError:  # reported elsewhere
        return 0


def _rank_prefix() -> str:
    """Prefix of an error message: "" in rank 0, "process N: " in the other ranks of torchrun.

    An error that all ranks share is printed by rank 0; torchrun then ends the others while they wait
    here. A rank that is still alive after the wait is the only one with an error, and prints it.
    """
    rank = _rank()
    if not rank:
        return ""
    time.sleep(RANK_0_PRINTS_S)
    return f"process {rank}: "


def _dispatch(argv: list[str]) -> int:
    parser = _parser()
    if not argv:
        parser.print_help()
        return 2
    verbs = {verb.name: verb for verb in VERBS}
    if argv[0] not in verbs:
        parser.parse_args(argv)  # --help, --version, or an unknown verb
        return 2
    verb = verbs[argv[0]]
    with interrupt_delayed():
        module = importlib.import_module(verb.module)
    from stamm.base.config import home_expanded

    words = [home_expanded(word) for word in argv[1:]]
    own = verb_parser(verb)
    _check_options(own, words)
    code: int = module.run(own.parse_intermixed_args(words), verb.name)
    return code


def verb_parser(verb: Verb) -> argparse.ArgumentParser:
    """The parser of one verb's arguments; imports the verb's module."""
    parser = argparse.ArgumentParser(
        prog=f"stamm {verb.name}",
        description=verb.summary[0].upper() + verb.summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in verb.examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    importlib.import_module(verb.module).arguments(parser, verb.name)
    return parser


def argument_words(verb: Verb) -> list[str]:
    """The long options of a verb, and the choices of its positional arguments."""
    actions = verb_parser(verb)._actions
    words = [name for action in actions for name in action.option_strings if name[:2] == "--"]
    choices = [action.choices for action in actions if not action.option_strings]
    return words + [str(choice) for given in choices for choice in given or ()]


def _check_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Raise ConfigError for an option with one value that is given twice."""
    once = {name for a in parser._actions if a.nargs is None for name in a.option_strings}
    lists = {name for a in parser._actions if isinstance(a, _APPEND) for name in a.option_strings}
    names = [word.partition("=")[0] for word in words]
    for name in once - lists:
        if names.count(name) > 1:
            raise ConfigError(
                f"{name} is given {names.count(name)} times",
                where="set on the command line",
                fix="Leave one out",
            )


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {verb.name:<10} {verb.summary}" for verb in VERBS]
    parser = argparse.ArgumentParser(
        prog="stamm",
        usage="stamm VERB THING [key=value ...]",
        description="Activation functions derived from their gradients, and language models trained with "
        "them, on consent-aware corpora.\n\nverbs:\n" + "\n".join(lines),
        epilog="examples:\n  stamm run demo\n  stamm show xielu\n  stamm plan apertus_8b\n\n"
        "`stamm VERB -h` shows its arguments. `stamm env --completion bash` prints tab completion.\n\n"
        "exit codes: 0 done, 1 a problem was found or a step failed, 2 wrong usage or settings,\n"
        "130 stopped by Ctrl-C, 143 stopped by a signal; after 130 and 143 the same command resumes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=[verb.name for verb in VERBS], help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"stamm {VERSION}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
