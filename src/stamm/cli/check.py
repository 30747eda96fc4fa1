"""`stamm check`: proofs and accuracy of an activation, or the Goldfish mask of a corpus."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.base.errors import ConfigError, visible
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import text
from stamm.cli.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from stamm.activations.board.records import BoardRecord
    from stamm.activations.conformance.check import ActivationReport
    from stamm.activations.conformance.verdict import VerdictTable
    from stamm.compare.claim import ClaimReport
    from stamm.corpus.goldfish_check import GoldfishReport
    from stamm.losses.mask_statistics import Coverage
    from stamm.statistics.estimates import MeanInterval

CLAIM = "claim"
_SHOWN = 20  # languages in the table; JSON has all of them
_HEADER = (
    "",
    "labels",
    "dropped",
    "of windows",
    "std errors",
    "key 0",
    "learned runs: 50 %",
    "99 %",
    "longest",
    "in runs > 100",
)


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `check`."""
    parser.usage = (
        "stamm check NAME [flags]\n       stamm check --all\n"
        "       stamm check --board [--quick] [--out FOLDER] [--json]\n"
        "       stamm check goldfish PACK_OR_RUN [key=value ...] [--json]\n"
        "       stamm check claim LOGS ... [against=LOGS] [target=3.28] [records=N] [--json]"
    )
    parser.add_argument(
        "name",
        type=text,
        nargs="?",
        metavar="NAME",
        help="an activation, your own as file.py:SPEC or a folder with spec.json; or goldfish",
    )
    parser.add_argument(
        "rest",
        type=text,
        nargs="*",
        default=[],
        metavar="PACK_OR_RUN",
        help="for goldfish: a packed corpus or a run, then k=, h=, hash=, salt=, context= (the length"
        " of a sequence, for hash=apertus), split=, zero_share= (allowed share of windows with key 0);"
        " defaults are the run's own settings",
    )
    parser.add_argument(
        "--against",
        type=text,
        action="append",
        default=[],
        metavar="module:function",
        help="also check this implementation (file.py:function, or a class of a module)",
    )
    parser.add_argument(
        "--golden",
        type=text,
        metavar="FOLDER",
        help="also check against the golden vectors in FOLDER",
    )
    parser.add_argument(
        "--write-golden",
        type=text,
        metavar="FOLDER",
        help="write golden vectors to FOLDER and check nothing",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="20,000 float32 inputs instead of 400,000, and fewer points in the proofs; of the board, few entries",
    )
    parser.add_argument(
        "--all", action="store_true", help="check every entry of the catalogue, with --quick"
    )
    parser.add_argument(
        "--board",
        action="store_true",
        help="the conformance board: activations in the installed libraries, and every entry in every"
        " target of `stamm emit` but latex",
    )
    parser.add_argument(
        "--out",
        type=text,
        metavar="FOLDER",
        help="write the pages of the board to FOLDER: conformance.md and conformance_targets.md",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Run the check; returns 0 when everything passes, else 1."""
    if options.name == CLAIM:
        return _check_claim(options)
    with interrupt_delayed():
        from stamm.activations.conformance.verb import check
    report = check(
        options.name,
        *options.rest,
        against=options.against,
        golden=options.golden,
        write_golden=options.write_golden,
        quick=options.quick,
        all=options.all,
        board=options.board,
        out=options.out,
        log=_ignore if options.json else _print_line,
    )
    if options.json:
        print_json(report.plain())
    elif report.board is not None:
        _print_board(report.board, report.pages)
    elif report.goldfish is not None:
        _print_goldfish(report.goldfish)
    elif report.golden:
        print("\n".join(str(file) for file in report.golden))
    elif not options.all:
        _print_activation(report.activations[0])
    return 0 if report.passed else 1


def _check_claim(options: argparse.Namespace) -> int:
    from stamm.compare.claim import check_claim

    unread = [
        flag
        for flag, value in (
            ("--against", options.against), ("--golden", options.golden), ("--quick", options.quick),
            ("--write-golden", options.write_golden), ("--all", options.all), ("--board", options.board),
            ("--out", options.out),
        )
        if value
    ]  # fmt: skip
    logs = [word for word in options.rest if "=" not in word]
    settings = dict(word.split("=", 1) for word in options.rest if "=" in word)
    unread += [name for name in settings if name not in ("against", "target", "records", "metric")]
    if unread:
        raise ConfigError(
            f"{', '.join(unread)} is not read here",
            fix="stamm check claim LOGS ... [against=LOGS,LOGS] [target=3.28] [records=N] [metric=val_bpb]",
        )
    report = check_claim(
        *logs,
        against=settings["against"].split(",") if settings.get("against") else (),
        target=_number(float, settings, "target"),
        records=1 if "records" not in settings else _number(int, settings, "records"),
        metric=settings.get("metric", ""),
    )
    if options.json:
        print_json(report.plain())
    else:
        _print_claim(report)
    return 0 if report.passed else 1


def _number(kind: type[float] | type[int], settings: Mapping[str, str], name: str) -> Any:
    if name not in settings:
        return None
    try:
        return kind(settings[name])
    except ValueError:
        raise ConfigError(f"{name} = {settings[name]!r} is not a number", fix=f"{name}=3") from None


def _print_claim(report: ClaimReport) -> None:
    runs = f"{report.runs} independent runs of {report.files} logs"
    spread = "" if report.standard_deviation is None else f", s {report.standard_deviation:.5f}"
    rows = [(report.metric, runs, f"{_interval(report.mean)}{spread}")]
    if report.target is not None:
        rows.append((f"below {report.target:g}", _shown(report.p_target), _p(report.p_target)))
    if report.difference is not None:
        told = f"{_interval(report.difference)}, {_p(report.p_difference)}"
        rows.append((f"minus {report.others} others", _shown(report.p_difference), told))
    if report.smallest is not None:
        rows.append(
            (
                "smallest difference",
                "two such sets of runs, power 0.8, 99 %",
                f"{report.smallest:.5f}",
            )
        )
    print_table(("", "", ""), rows, wrap=True)
    if report.records > 1:
        print_text("", f"p is multiplied by {report.records} recipes tried (Bonferroni).")
    for first, second in report.repeated[:_SHOWN]:
        print_text(
            f"FAILED {visible(second)} repeats {visible(first)}: the same losses or the same seed, counted once"
        )


def _interval(mean: MeanInterval) -> str:
    if mean.low is None or mean.high is None:
        return f"{mean.mean:.5f}, one run: no interval"
    return f"{mean.mean:.5f} ({mean.low:.5f} to {mean.high:.5f})"


def _shown(p: float | None) -> str:
    return "shown at 99 %" if p is not None and p < 0.01 else "not shown at 99 %"


def _p(p: float | None) -> str:
    return "no p from one run" if p is None else f"p {p:.3g}"


def _ignore(line: str) -> None:
    pass


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_activation(report: ActivationReport) -> None:
    """Print errors of f and f' by input at the first values, and the largest at all values."""
    from stamm.activations.conformance.exact import CONDITION_TEXT, FUNCTION, SLOPE
    from stamm.activations.conformance.verdict import summary, tables

    judged = [verdict for verdicts in report.verdicts.values() for verdict in verdicts]
    where = judged[0].judged_where if judged else CONDITION_TEXT
    print(f"\nErrors in units of the last place, {where}.")
    if report.quick:
        from stamm.activations.conformance.exact import FULL

        print(f"float32 is sampled at {report.float32_inputs:,} inputs instead of {FULL:,}.")
    for name, verdicts in report.verdicts.items():
        if not verdicts:
            continue
        if name == next(iter(report.verdicts)):
            for table in tables(verdicts, [FUNCTION, SLOPE]):
                _print_verdicts(table.title, table)
        table = summary(verdicts)
        _print_verdicts(f"{name} values, {table.title}", table)
    for note in report.notes:
        print(f"\n{visible(note, 600)}")
    failed = len(report.failed) or "none"
    print(f"\n{failed} of {len(report.findings)} checks failed, {report.seconds:.0f} s")


def _print_board(record: BoardRecord, pages: Sequence[Path]) -> None:
    """Print the defects of libraries, the counts of the targets, and the files."""
    from stamm.activations.board.page import COUNTS, WRONG_ULP, defect_cells, target_counts

    print(f"\nnot finite, of the wrong sign, or {WRONG_ULP:g} ulp off")
    print_table(("library", "function", "dtype", "f", "f'", ""), defect_cells(record))
    print("\nentries of each target, largest errors of value, slope and parameter gradients")
    print_table(COUNTS, target_counts(record))
    for page in pages:
        print(f"file  {visible(str(page))}")


def _print_verdicts(title: str, table: VerdictTable) -> None:
    print(f"\n{title}")
    print_table(table.header, table.rows)


def _print_goldfish(report: GoldfishReport) -> None:
    config = report.config
    print(f"{visible(str(report.pack))}, {config.split}: {report.tokens:,} tokens")
    seen = f" context={config.context}" if config.hash == "apertus" else ""
    print(f"k={config.k} h={config.h} hash={config.hash} salt={config.salt}{seen}")
    print(f"{report.remark}\n")
    total, languages, failing = report.total, report.languages, report.failing_languages
    shown = list(languages)[:_SHOWN]
    print_table(
        _HEADER,
        [_row("all", total), *(_row(f"  {name}", languages[name]) for name in shown)],
    )
    more = len(languages) - len(shown)
    if more:
        print(f"  and {more} with less text; --json lists all")
    print()
    for fault in report.faults:
        print(f"FAILED {fault}")
    if failing:
        names = ", ".join(visible(name, 40) for name in failing[:_SHOWN])
        print(
            f"FAILED for {len(failing)} languages alone: {names}{', …' * (len(failing) > _SHOWN)}"
        )
    if report.passed:
        short = "" if total.judged else " (too little text for a significant result)"
        print(f"the mask drops the stated share{short}")


def _row(name: str, coverage: Coverage) -> list[str]:
    gaps = coverage.gap_quantiles
    return [
        name,
        f"{coverage.labels:,}",
        f"{coverage.rate:.2%}",
        f"{coverage.window_rate:.2%}",
        f"{coverage.standard_errors:+.1f}" if coverage.judged else "few",
        f"{coverage.zero_share:.2%}",
        *(f"{gap:,}" for gap in (gaps[0], gaps[2], gaps[3])),
        f"{coverage.long_share:.0%}",
    ]
