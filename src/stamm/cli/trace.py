"""`stamm trace`: which documents a step read, which steps and releases read a document, and which overlap a passage."""

from __future__ import annotations

import argparse
import dataclasses

from stamm.base.errors import visible
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, text
from stamm.cli.output import print_json, print_pairs
from stamm.pretrain.trace_records import ArmTrace, CommonRun, Reading, TracedDocument, TracedPassage

_READINGS = 20


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `trace`."""
    parser.add_argument(
        "folder",
        type=text,
        metavar="FOLDER",
        help="an arm, a run, a release, or a folder of runs and releases",
    )
    add_changes(
        parser,
        "step=N, document=URL-or-id, tokens=START-STOP or passage=TEXT-or-@FILE; text=true, loss=true, limit=N; of "
        "a passage: shortest=N, new_tokens=N, forgotten=RUN",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the trace; 1 when no document is found, or an arm cannot be read."""
    with interrupt_delayed():
        from stamm.pretrain.trace import trace
    traced = trace(options.folder, *options.changes)
    if options.json:
        print_json([dataclasses.asdict(arm) | {"contains": arm.contains} for arm in traced.arms])
    else:
        for number, arm in enumerate(traced.arms):
            if number:
                print()
            _print_arm(arm, alone=len(traced.arms) == 1)
        if len(traced.arms) > 1:
            print("\nName one arm to see its documents and readings; --json has all")
    if any(arm.error for arm in traced.arms):
        return 1
    known = [arm for arm in traced.arms if arm.passage is None or arm.passage.covered is not None]
    return 0 if any(arm.count or arm.started_from for arm in known) or not known else 1


def _print_arm(arm: ArmTrace, *, alone: bool) -> None:
    """Print what an arm contains; alone: with the documents, and not only their number."""
    what = f"{arm.count} documents"
    if arm.passage and arm.passage.covered is None:
        what = ""
    elif arm.error:
        what = f"not known: {arm.error}"
    elif arm.contains:
        among = ""
        if arm.passage and len(arm.documents) < arm.count:
            among = f", of the {len(arm.documents)} that are listed"
        what += f", first read at step {arm.first_step}{among}" if arm.first_step else ""
    elif arm.kind == "pretrain":
        what += ", none of them read"
    if rules := [document.forgotten for document in arm.documents if document.forgotten]:
        what += f"; {len(rules)} forgotten by the rule {rules[0]}"
    with_it = [step for step in arm.checkpoints if step >= (arm.first_step or 0)]
    before = [step for step in arm.checkpoints if step not in with_it]
    print_pairs(
        [
            (name, value)
            for name, value in (
                ("arm", arm.arm),
                ("release", arm.release),
                ("found", what),
                ("trained from", arm.started_from and f"{arm.started_from}, which contains them"),
                ("trained", f"{arm.done} of {arm.steps} steps" if arm.steps else ""),
                *(_passage(arm.passage) if arm.passage else ()),
                ("checkpoints", _steps("with them", with_it) if arm.contains else ""),
                ("", _steps("before them", before) if arm.contains else ""),
                *(("remark", remark) for remark in arm.remarks),
            )
            if value
        ]
    )
    for document in arm.documents if alone else ():
        print()
        print_pairs(_document(document))
    if alone and (more := arm.count - len(arm.documents)):
        print(f"\n{more} more: limit={arm.count}")


def _steps(what: str, steps: list[int]) -> str:
    return f"{what}: {', '.join(map(str, steps))}" if steps else ""


def _passage(passage: TracedPassage) -> list[tuple[str, str]]:
    sizes = f"{passage.tokens} tokens"
    if passage.continued:
        sizes += f", and {passage.continued} of the model's continuation"
    covered = ""
    if passage.covered is not None:
        covered = f"{passage.covered} of these tokens are in a run of {passage.shortest} or more of a document"
    loss = f"{passage.nats / passage.tokens:.3f} nats a token" if passage.nats is not None else ""
    changes = []
    for change in passage.changes:
        words = f"{change.before:.3f} to {change.after:.3f} nats a token ({change.after - change.before:+.3f})"
        if change.held_out is not None:
            words += f", held-out text {change.held_out:+.3f}"
        words += (
            f"; {change.documents} documents {'' if change.exact else 'approximately '}forgotten"
        )
        if change.overlapping:
            words += f", of those below: {', '.join(change.overlapping)}"
        changes.append((f"without {change.branch}", words))
    return [
        ("passage", sizes),
        ("continuation", passage.continuation),
        ("overlap", covered),
        ("loss", loss),
        *changes,
    ]


def _document(document: TracedDocument) -> list[tuple[str, str]]:
    length = document.stop - document.start
    final = ""
    if document.nats is not None and document.scored:
        final = f"{document.nats / document.scored:.3f} nats a token under the trained model"
    pairs = [
        ("document", document.url or document.document_id),
        ("  identifier", document.document_id),
        ("  licence", document.licence),
        ("  source", document.source),
        ("  language", document.language),
        ("  stage", document.stage),
        ("  occurrence", str(document.occurrence) if document.occurrence else ""),
        ("  in common", _run(document.run) if document.run else ""),
        ("  forgotten", document.forgotten and f"by the rule {document.forgotten}"),
        ("  tokens", f"{document.start}-{document.stop - 1}, {length}"),
        ("  loss", final),
        ("  read", "" if document.readings or document.run is None else "never"),
        *((f"  step {r.step}", _reading(r)) for r in document.readings[:_READINGS]),
        ("  more", f"{more} readings" if (more := len(document.readings) - _READINGS) > 0 else ""),
        ("  text", document.text or ""),
    ]
    return [(visible(name, 40), value) for name, value in pairs if value]


def _run(run: CommonRun) -> str:
    words = f"{run.stop - run.start} tokens: {run.start}-{run.stop - 1} of the passage"
    words += f", from token {run.document_start} of the document on"
    return words + (f", {run.occurrences} times" if run.occurrences > 1 else "") + f": {run.text}"


def _reading(reading: Reading) -> str:
    words = f"sequence {reading.position}: tokens {reading.start}-{reading.stop - 1}"
    if reading.learned is not None:
        words += f", {reading.learned} of {reading.targets} learned"
    if reading.loss_nats is not None:
        words += f"; loss of the step {reading.loss_nats:.3f}"
    return words
