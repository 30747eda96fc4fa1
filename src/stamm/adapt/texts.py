"""The text that a change of a model is calibrated on, and another one that its losses are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stamm.adapt.config import TextConfig
from stamm.adapt.records import TextIdentity
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_value
from stamm.models.loading import OpenModel
from stamm.observe.config import ObserveConfig
from stamm.observe.model import packed_text, text_of_file
from stamm.runs.job import Workspace

Sequences = tuple[list[int], ...]


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Token sequences that are fitted on, and those that losses are measured on; none is in both.

    fitted_name, measured_name   of the splits, or the halves of the file
    """

    fitted_name: str
    measured_name: str
    fitted: Sequences
    measured: Sequences

    @property
    def calibration(self) -> TextIdentity:
        """The text that was fitted on."""
        return _identity(self.fitted_name, self.fitted)

    @property
    def reported(self) -> TextIdentity:
        """The text of the losses."""
        return _identity(self.measured_name, self.measured)


def _identity(name: str, sequences: Sequences) -> TextIdentity:
    tokens = sum(len(sequence) - 1 for sequence in sequences)
    return TextIdentity(name=name, sha256=sha256_value(list(sequences)), tokens=tokens)


def two_texts(config: TextConfig, workspace: Workspace, start: OpenModel) -> Texts:
    """The two texts of a change.

    Raises   ConfigError without a text; DataError where one is too short for two
    """
    inputs, context = workspace.inputs, start.decoder.config.max_context
    if config.text is None:
        if "pack" not in inputs:
            raise ConfigError(
                "the model has no packed corpus",
                fix='Name a file with text=FILE of the step: a .txt file, or JSONL with "text"',
            )
        wanted = ObserveConfig(tokens=config.tokens)
        fitted, measured = (
            packed_text(wanted, inputs["pack"], context, split, most_contexts=1)
            for split in ("train", "held_out")
        )
        return _apart(fitted.name, fitted.sequences, measured.name, measured.sequences)
    path = Path(config.text)
    both = ObserveConfig(tokens=2 * config.tokens)
    # One context of a text: no text is in both halves.
    sequences = text_of_file(both, path, start.tokenizer.encode, start.prefix, context, 1).sequences
    middle = (len(sequences) + 1) // 2
    if len(sequences) < 2:
        raise DataError(
            f"{path} holds one text, and one half is fitted on, the other measured",
            fix='Name JSONL with several lines with "text"',
        )
    halves = (f"first half of {path.name}", f"second half of {path.name}")
    return _apart(halves[0], sequences[:middle], halves[1], sequences[middle:])


def _apart(fitted_name: str, fitted: Sequences, measured_name: str, measured: Sequences) -> Texts:
    """The texts without measured sequences that are fitted on, too: documents may occur twice."""
    seen = {tuple(sequence) for sequence in fitted}
    other = tuple(sequence for sequence in measured if tuple(sequence) not in seen)
    if not other:
        raise DataError(
            f"every sequence of the {measured_name} is in the {fitted_name}, too",
            fix="Losses are measured on text that is not fitted on: name other text",
        )
    return Texts(
        fitted_name=fitted_name,
        measured_name=measured_name,
        fitted=fitted,
        measured=other,
    )
