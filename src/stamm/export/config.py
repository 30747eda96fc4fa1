"""Configuration of an export. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, ClassVar

from stamm.base.bounds import AtLeastOne, Natural, Seed, Threads, at_least, within
from stamm.base.config import check_unread, nearest, validate
from stamm.base.errors import ConfigError
from stamm.base.user_code import NAMES_CODE, is_reference, reference_files
from stamm.export.registry import TARGETS, guarded_target
from stamm.export.target import (
    ExportOptions,
    OptionsTarget,
    QuantizedTarget,
    SettingsTarget,
    TargetSupport,
)

NOT_MEASURED = "not_measured"


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """A decoder written for another engine, and its parity with the original in float32.

    target          "transformers", "gguf" (llama.cpp), "onnx" (ONNX Runtime), or your own
                    "mine.py:MyTarget" (docs/extending/export_target.md)
    quantization    type of the matrices: F32; BF16 (transformers, gguf); F16, Q8_0, Q4_K, Q5_K,
                    Q6_K (gguf); those of your own target
    max_shard_bytes largest file of weights (transformers): more tensors come in further files
    tolerance       largest difference of any logit, as a share of the largest logit. Two correct
                    implementations differ by about 1e-6, a wrong activation by 0.01 and more. Where
                    the model's own logits in float32 differ more from those in float64, the gate
                    is 4 times that difference, at most 10 times the tolerance
    bits_tolerance  gate of rounded weights (all but F32) instead: largest increase of held-out bits
                    per byte, as a share
    held_out        file of held-out text: plain text, or rows as of a corpus (JSONL, Parquet). "": the
                    run's held-out text, or the held-out rows of its alignment data (prepare.held_out).
                    "not_measured": rounded weights are written without their gate, and the model card
                    reports it
    held_out_tokens tokens of held-out text whose ids and bits per byte are compared: documents of
                    each language in turn
    parity_rows     sequences compared, of random tokens and again of held-out text
    parity_tokens   tokens of each; at most the model's max_context
    seed            draws the random tokens
    samples         texts generated with the exported model, greedy decoding
    prompt_tokens   tokens of held-out text in each prompt
    sample_tokens   tokens generated after them
    licence         the model's licence, an SPDX name for the model card; "" leaves it out
    threads         CPU threads; part of the configuration because sums depend on it
    """

    MAIN_FIELD: ClassVar = "target"

    target: str = field(default="transformers", metadata=NAMES_CODE)
    quantization: str = "F32"
    max_shard_bytes: AtLeastOne = 5_000_000_000
    tolerance: Annotated[float, within("(0, 1)")] = 1e-5
    bits_tolerance: Annotated[float, within("(0, 1)")] = 0.005
    held_out: str = ""
    held_out_tokens: AtLeastOne = 16_384
    parity_rows: AtLeastOne = 4
    parity_tokens: Annotated[int, at_least(2)] = 256
    seed: Seed = 28
    samples: Natural = 4
    prompt_tokens: AtLeastOne = 24
    sample_tokens: AtLeastOne = 48
    licence: str = ""
    threads: Threads = 2

    def __post_init__(self) -> None:
        plain = self.licence.replace("-", "").replace(".", "").replace("+", "")
        formats = self._formats()
        validate(
            self,
            (
                "quantization",
                not formats or self.quantization in formats,
                f"is not a type that {self.target} has: {', '.join(formats)}",
            ),
            (
                "held_out",
                self.held_out != NOT_MEASURED or self.rounded,
                "is for rounded weights: the gate of F32 is the difference of logits",
            ),
            (
                "licence",
                not self.licence or (plain.isalnum() and plain.isascii()),
                "is not an SPDX name such as Apache-2.0",
            ),
        )
        if self.target not in TARGETS and not is_reference(self.target):
            raise ConfigError(
                f"ExportConfig.target = {self.target!r} is not an export target",
                fix=f'{nearest(self.target, TARGETS)}, or your own as "mine.py:MyTarget"',
            )

    def _formats(self) -> tuple[str, ...]:
        """Types of a built-in target; () for a user's, whose code reading a configuration does not run."""
        return quantizations(TARGETS[self.target].support()) if self.target in TARGETS else ()

    @property
    def rounded(self) -> bool:
        """Whether held-out bits per byte are the gate, and not the difference of logits."""
        return self.quantization != "F32"

    @property
    def held_out_file(self) -> str:
        """The file of held-out text; "" without one."""
        return "" if self.held_out == NOT_MEASURED else self.held_out

    def files(self) -> dict[str, Path]:
        """The user's files that an export reads: code of a target, and held-out text."""
        text = self.held_out_file
        return {**reference_files((self.target,)), **({text: Path(text)} if text else {})}

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread."""
        names: tuple[str, ...] = ("prompt_tokens", "sample_tokens") if self.samples == 0 else ()
        if self.target in TARGETS:
            unmeasured = self.held_out == NOT_MEASURED
            names += ("tolerance",) if self.rounded else ("bits_tolerance",)
            names += ("bits_tolerance",) if unmeasured else ()
            names += unread_settings(TARGETS[self.target].support())
        return names


def quantizations(target: TargetSupport) -> tuple[str, ...]:
    """The types of matrices that a target has."""
    return tuple(target.quantizations) if isinstance(target, QuantizedTarget) else ("F32",)


def unread_settings(target: TargetSupport) -> tuple[str, ...]:
    """The fields of ExportConfig that a target does not read."""
    if not isinstance(target, OptionsTarget):
        return ("max_shard_bytes",)
    return tuple(target.unread) if isinstance(target, SettingsTarget) else ()


def set_options(
    target: TargetSupport, config: ExportConfig, chat_format: str = "", texts: Sequence[str] = ()
) -> None:
    """Give a target its options.

    Raises   ConfigError for a type that it does not have, and for a setting that it does not read.
    """
    formats = quantizations(target)
    if config.quantization not in formats:
        raise ConfigError(
            f"{config.quantization!r} is not a type that {config.target} has: {', '.join(formats)}",
            where="export.quantization",
            fix="Set one of them",
        )
    if config.target not in TARGETS:  # of those, `unread` gives the same names
        _check_user_target(target, config)
    if isinstance(target, OptionsTarget):
        options = ExportOptions(
            quantization=config.quantization,
            max_shard_bytes=config.max_shard_bytes,
            chat_format=chat_format,
            texts=texts,
        )
        guarded_target(target, lambda: target.configure(options))


def _check_user_target(target: TargetSupport, config: ExportConfig) -> None:
    """Raise ConfigError for types that are never set, and for a setting that is set and not read."""
    if isinstance(target, QuantizedTarget) and not isinstance(target, OptionsTarget):
        raise ConfigError(
            f"{config.target} has quantizations and no method configure, which sets one",
            where="export.target",
            fix="Add configure(options), or leave quantizations out",
        )
    names, known = unread_settings(target), [field.name for field in fields(ExportConfig)]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"{config.target} has unread = {unknown[0]!r}, which is not a setting of an export",
            where="export.target",
            fix=nearest(str(unknown[0]), known),
        )
    check_unread(config, *((name, True, f"{config.target} does not read it") for name in names))


def check_without_text(
    config: ExportConfig, why: str = "there is no held-out text", *, gate: bool = True
) -> None:
    """Check the settings of an export that has no held-out text.

    gate     whether rounded weights need it

    Raises   ConfigError for a setting that is not read without it, and for rounded weights without
             a gate
    """
    names = ("held_out_tokens", "samples", "prompt_tokens", "sample_tokens")
    check_unread(config, *((name, True, why) for name in names))
    if gate and config.rounded and config.held_out != NOT_MEASURED:
        raise ConfigError(
            f"quantization = {config.quantization!r} is checked by bits per byte, and {why}",
            where="export.held_out",
            fix=f"Set held_out=FILE (text or JSONL), or held_out={NOT_MEASURED} to export without the check",
        )


def check_held_out_file(config: ExportConfig) -> None:
    """Check that the file of held-out text exists.

    Raises   ConfigError with its name
    """
    if config.held_out_file and not Path(config.held_out_file).is_file():
        raise ConfigError(
            f"{config.held_out_file} is not a file",
            where="export.held_out",
            fix="Name a file of text",
        )


def check_sample_length(
    config: ExportConfig, max_context: int, setting: str = "the model's max_context"
) -> None:
    """Check that <s>, a prompt and a sample fit into the model's context.

    setting   name of max_context in the message

    Raises   ConfigError with both numbers.
    """
    needed = 1 + config.prompt_tokens + config.sample_tokens
    if config.samples and needed > max_context:
        raise ConfigError(
            f"<s>, {config.prompt_tokens} prompt tokens and {config.sample_tokens} new ones are "
            f"{needed} tokens, more than {setting} = {max_context}",
            where="export.prompt_tokens and export.sample_tokens",
            fix="Lower one of them, or set export.samples=0",
        )
