"""`stamm chat`: talk to a trained model, or to a Hugging Face folder, in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys

from stamm.align.sampling.config import ChatConfig
from stamm.base.config import override
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import check_model_folder, text


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "model",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="a run, one arm of it, or a Hugging Face folder",
    )
    parser.add_argument(
        "changes",
        type=text,
        nargs="*",
        default=[],
        metavar="key=value",
        help="system, deliberation, temperature, top_k, top_p, max_new_tokens, seed",
    )
    parser.add_argument("--arm", type=text, help="the arm of a run with several")


def run(options: argparse.Namespace, verb: str) -> int:
    """Load the model and answer the lines of standard input until it ends."""
    config = override(ChatConfig(), options.changes)
    check_model_folder(options.model)
    with interrupt_delayed():
        from stamm.align.sampling.chat_session import HELP, ChatSession
        from stamm.models.loading import open_model
        from stamm.models.model_source import find_model
        from stamm.runs.model_outputs import read_chat_record
    source = find_model(options.model, options.arm)
    model = open_model(source, chat=True)
    if source.kind == "run" and read_chat_record(source.model) is None:
        _note("This model was not fine-tuned on conversations: it may not answer, nor stop.")
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for `input`)
        _note(HELP)
    ChatSession(model, config, _write, _note).run(_read)
    return 0


def _read() -> str:
    """The next line of standard input, invalid bytes replaced."""
    if sys.stdin.isatty():
        line = input("> ")
    else:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
    return line.encode(errors="surrogateescape").decode(errors="replace")


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
