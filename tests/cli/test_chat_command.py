"""`stamm chat` through the real command: piped lines, and a terminal with Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.serialization import save_decoder
from stamm.runs.model_outputs import write_chat_record
from tests.conftest import Stamm, command, environment
from tests.unit.align.test_import_job import llama_folder
from tests.unit.chat.imported_folders import LLAMA3
from tests.unit.untrained_run import untrained_run

pytestmark = pytest.mark.slow  # starts processes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model that never stops at temperature 0, and whose context takes long to fill."""
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    config = DecoderConfig(
        vocab_size=352, d_model=32, num_layers=2, ffn=PlainFFN(width=48), max_context=16384
    )
    decoder = build_decoder(config, seed=2)
    with torch.no_grad():  # logit 0 for the tokens that end an answer; the largest is positive
        decoder.lm_head.weight[sorted(load_chat_format(root / "tokenizer").stop_ids)] = 0
    save_decoder(decoder, root / "model")
    return root


def test_lines_of_a_pipe_are_answered(run: Path, stamm: Stamm, tmp_path: Path) -> None:
    arguments = [*command("chat", str(run), "temperature=0", "max_new_tokens=6")]
    given = "Grüezi\n/reset\nGrüezi\n/quit\nnever read\n".encode() + b"\xff\n"
    done = subprocess.run(
        arguments, input=given, capture_output=True, env=environment(), timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    notes = done.stderr.decode().splitlines()
    assert notes[0].startswith("This model was not fine-tuned on conversations")
    assert notes[1:] == [
        "[stopped: max_new_tokens=6]",
        "A new conversation.",
        "[stopped: max_new_tokens=6]",
    ]
    answers = done.stdout.decode()
    first = answers[: len(answers) // 2]
    assert answers == first * 2
    assert first.endswith("\n")


TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Screen:
    """A process on a pseudo-terminal of its own, and all that it has shown."""

    def __init__(self, *words: str) -> None:
        self._master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command(*words)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**environment(), "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(terminal)
        self.shown = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: bytes, seconds: float = 100) -> None:
        """Read until `text` is shown after what was waited for before."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert self._read(end - time.monotonic()), f"no {text!r} in {self.shown!r}"
        self.shown = self.shown.partition(text)[2]

    def interrupt_until(self, text: bytes, times: int = 10) -> None:
        """Type Ctrl-C until `text` is shown.

        Python misses a signal that arrives just before it waits for a line: a person presses again.
        """
        for _ in range(times):
            self.type(b"\x03")
            end = time.monotonic() + 10
            while text not in self.shown and self._read(end - time.monotonic()):
                pass
            if text in self.shown:
                self.shown = self.shown.partition(text)[2]
                return
        raise AssertionError(f"no {text!r} in {self.shown!r}")

    def _read(self, seconds: float) -> bool:
        """Read what is shown within some seconds; False when nothing was."""
        ready, _, _ = select.select([self._master], [], [], max(0, seconds))
        if ready:
            self.shown += os.read(self._master, 65536)
        return bool(ready)


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends(run: Path) -> None:
    write_chat_record(run / "model", "apertus", load_chat_format(run / "tokenizer").sha256)
    screen = Screen("chat", str(run), "temperature=0", "max_new_tokens=16000")
    screen.wait_for(b"Ctrl-C stops an answer.")
    screen.wait_for(b"> ")
    screen.interrupt_until(b"Ctrl-C stops an answer.")  # at the prompt it explains and stays
    screen.wait_for(b"> ")
    screen.type(b"Hello\n")
    screen.wait_for(b"Hello")
    time.sleep(1)
    screen.interrupt_until(b"[stopped]")
    screen.wait_for(b"> ")
    screen.type(b"\x04")
    assert screen.process.wait(timeout=60) == 0


def test_bad_settings_and_folders_are_errors(run: Path, stamm: Stamm) -> None:
    other = run.parent / "other"
    shutil.copytree(run, other)
    write_chat_record(other / "model", "apertus", "0" * 64)
    for words, message, code in (
        ((str(other),), "fine-tuned with the chat format apertus 000000000000, and its", 1),
        ((str(run), "temperature=-1"), "temperature", 2),
        (("absent",), "absent is not a folder", 1),
        ((str(run), "--arm", "x"), "no arm 'x'", 1),
    ):
        done = stamm("chat", *words)
        assert done.returncode == code, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_hugging_face_folders(stamm: Stamm, tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "hub")
    answered = subprocess.run(
        command("chat", str(folder), "system=Be brief.", "max_new_tokens=4"),
        input=b"Hello\n",
        capture_output=True,
        env=environment(),
        timeout=240,
        check=False,
    )
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusal + LLAMA3)
    done = stamm("chat", "hub", "system=Be brief.")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "stamm: the chat format llama3 of this model cannot write a system message."
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    done = stamm("chat", "hub")
    assert done.returncode == 1
    assert (
        "does not write this user message, or changes it (the chat template of hub)" in done.stderr
    )
    llama_folder(tmp_path / "small", vocab_size=200)
    done = stamm("chat", "small")
    assert done.returncode == 1
    assert " ids, and the model 200 (" in done.stderr
