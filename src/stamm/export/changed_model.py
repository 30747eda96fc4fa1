"""The part of a card on a model that was changed after its training; needs no library of training."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.adapt.records import ChangeFile
from stamm.export.card_table import card_table


def changed(change: ChangeFile | None) -> Iterable[str]:
    """Change of a model after its training: its parent, texts and cost; nothing where there was none."""
    if change is None:
        return
    yield "## Changed after training"
    rows = [
        ("change", change.change),
        ("SHA-256 of the model before", change.parent_sha256),
        *((f"setting {name}", text) for name, text in sorted(change.settings.items())),
        ("fitted on", f"{change.calibration.name}, {change.calibration.tokens} tokens"),
        ("SHA-256 of that text's token ids", change.calibration.sha256),
        ("measured on", f"{change.measured.name}, {change.measured.tokens} tokens"),
        ("SHA-256 of that text's token ids", change.measured.sha256),
        ("nats per token before", f"{change.loss:.4f}"),
        ("nats per token after", f"{change.changed_loss:.4f}"),
        ("tokens of further training", str(change.trained_tokens)),
    ]
    yield card_table(("what", "value"), rows)
    if change.trained_tokens:
        yield "The losses are from before the further training."
