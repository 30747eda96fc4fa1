"""Results of a forgetting: the record of it, and measures of the model before and after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.audit.records import MembershipFile
from stamm.base.schema import read_lines, read_record_if_present
from stamm.evaluate.records import ContinuationLine, HeldOutFile, MemorizationFile, RepeatBucket
from stamm.pretrain.forget.records import FORGET, ForgetFile
from stamm.runs.model_outputs import read_result_if_present
from stamm.statistics.estimates import MeanInterval

COLUMNS = ("measure", "before", "after")


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """A forgetting of one arm.

    rows       measure, its value before, and after
    passages   loss of each audited forgotten passage before and after, in nats per token, by identifier;
               the largest rise first
    """

    record: ForgetFile
    rows: tuple[tuple[str, str, str], ...]
    passages: Mapping[str, tuple[float, float]]


def read_forgetting(root: Path, arm: Path) -> Forgetting | None:
    """The forgetting of a run folder; None for other runs.

    Raises   DataError when a file does not follow its schema, or is of other weights than the arm's
    """
    record = read_record_if_present(ForgetFile, root / "forget" / FORGET)
    if record is None:
        return None
    before, after = (dict(_measures(folder)) for folder in (root / "before", arm))
    read_result_if_present(MemorizationFile, arm / "audit" / "memorization.json", arm / "model")
    old, new = (
        _losses(folder / "audit" / "continuations.jsonl") for folder in (root / "before", arm)
    )
    changed = {name: (old[name], new[name]) for name in old.keys() & new.keys()}
    order = sorted(changed, key=lambda name: (changed[name][0] - changed[name][1], name))
    return Forgetting(
        record=record,
        rows=tuple((name, value, after.get(name, "")) for name, value in before.items()),
        passages={name: changed[name] for name in order},
    )


def summary_lines(record: ForgetFile) -> tuple[str, ...]:
    """Sentences on what was forgotten, by which rule, and whether it is exact."""
    begun = f"the checkpoint of step {record.checkpoint}" if record.checkpoint else "the beginning"
    rule = {
        "replace": f"{record.sequences:,} training sequences with a token of them were replaced by the next"
        " unread ones" + (f", {record.read_again:,} of which were read before" if record.read_again else ""),
        "drop": f"their tokens were hidden and out of the loss in {record.sequences:,} training sequences",
    }  # fmt: skip
    exact = (
        "Exact: by construction the bits are those of a run from the beginning without them, on this machine."
        if record.is_exact
        else "Approximate: "
        + "; ".join(
            [
                *([f"{record.read_before:,} of these sequences were read before that checkpoint"] if record.read_before else []),
                *([f"bits may differ ({'; '.join(record.differences)})"] if record.differences else []),
            ]
        )
        + "."
    )  # fmt: skip
    return (
        f"{record.documents:,} documents of {record.tokens:,} tokens were forgotten: {rule[record.rule]}.",
        f"Step {record.first_step:,} of {record.num_steps:,} read the first of them; training resumed from {begun}.",
        exact,
        "Not undone: the tokenizer, the filters and the deduplication of the corpus, and every choice that was"
        " made with the first model.",
    )


def _measures(folder: Path) -> Iterator[tuple[str, str]]:
    held_out = read_record_if_present(HeldOutFile, folder / "evaluate" / "held_out.json")
    if held_out is not None:
        for name, metric in held_out.metrics.items():
            yield f"held-out text: {name.replace('_', ' ')}", f"{metric.value:.4f}"
    audit = read_record_if_present(MemorizationFile, folder / "audit" / "memorization.json")
    for bucket in audit.buckets if audit else ():
        yield from _bucket(bucket)
    membership = read_record_if_present(MembershipFile, folder / "audit" / "membership.json")
    for area in membership.areas if membership else ():
        if area.repeats is None:
            name = f"membership of forgotten passages by {area.score.replace('_', ' ')}, AUC (0.5: none)"
            yield name, _interval(area.auc)


def _bucket(bucket: RepeatBucket) -> Iterator[tuple[str, str]]:
    kind = (
        f"forgotten passages, {bucket.repeats} x in the corpus"
        if bucket.repeats
        else "passages never seen"
    )
    yield f"{kind}: nats per token", _interval(bucket.nll_nats)
    if bucket.minus_control is not None:
        yield f"{kind}: minus those never seen", _interval(bucket.minus_control.nll_nats)
    yield f"{kind}: reproduced word for word", f"{bucket.extracted or 0} of {bucket.passages}"


def _interval(value: MeanInterval) -> str:
    if value.low is None or value.high is None:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"


def _losses(path: Path) -> dict[str, float]:
    """Loss of the forgotten passages in an audit by identifier."""
    if not path.is_file():
        return {}
    lines = read_lines(ContinuationLine, path)
    return {
        line.probe_id: line.nll_nats for line in lines if line.repeats and line.nll_nats is not None
    }
