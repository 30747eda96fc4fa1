"""Exports and the release of an arm as readers of a run want them, checked against the weights of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stamm.base.receipts import check_present, is_present
from stamm.base.schema import read_record, read_record_if_present
from stamm.export.records import ParityFile, SamplesFile, SampleText
from stamm.release.records import ReleasedFile
from stamm.runs.model_outputs import read_result
from stamm.runs.run_view import ArmView


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Exports and release of one arm.

    parities   parity reports by export target
    released   the latest release
    """

    parities: tuple[tuple[str, ParityFile], ...] = ()
    samples: tuple[SampleText, ...] = ()
    released: ReleasedFile | None = None


def read_exported(arm: ArmView) -> Exported:
    """The exports of an arm, and its release.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    exported = exported_in(arm.folder / "export", arm.folder / "model")
    released = read_record_if_present(ReleasedFile, arm.folder / "released.json")
    return replace(exported, released=released)


def exported_in(folder: Path, model: Path | None = None) -> Exported:
    """The exports in a folder, each in a folder of its own.

    model    as of `read_result`

    Raises   DataError as `read_result`
    """
    check_present(folder, "*/parity.json")
    exports = sorted(folder.glob("[!.]*/parity.json"))
    return Exported(
        parities=tuple(
            (path.parent.name, read_result(ParityFile, path, model)) for path in exports
        ),
        samples=tuple(
            sample
            for path in exports
            if is_present(file := path.with_name("samples.json"))
            for sample in read_record(SamplesFile, file).samples
        ),
    )
