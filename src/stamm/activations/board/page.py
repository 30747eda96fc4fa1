"""Pages of the conformance board: libraries, and the table of entries and targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stamm.activations import catalog
from stamm.activations.board.measure import WHERE
from stamm.activations.board.records import (
    BoardRecord,
    Errors,
    FunctionRow,
    PrimitiveRow,
    ShortRow,
    TargetRow,
)
from stamm.activations.conformance.exact import FUNCTION, SLOPE, UP_SLOPE
from stamm.base.markdown import escape_markdown

LIBRARIES_PAGE, TARGETS_PAGE, PATCHES = "conformance.md", "conformance_targets.md", "conformance"
STABLE = 4.0  # an error over 1 + condition number from which on a formula is listed
WRONG_ULP = 1000.0  # from here on a value has at most 14 of float32's 24 bits
_SUBJECT = 200  # characters of a diff's first line
_NAMES = {FUNCTION: "f", SLOPE: "f′", UP_SLOPE: "f′ in up"}
_TRUTH = (
    "The true values are those of the kernels in float64, which `stamm check NAME` compares with the"
    " integral of the gradient in 120 digits (mpmath): they are within one millionth of a float32 ulp."
)


def pages(record: BoardRecord, patches: Sequence[str]) -> dict[str, str]:
    """The text of each page by file name.

    patches   file names of unified diffs in PATCHES, each with its subject: "NAME.diff: subject"
    """
    return {
        LIBRARIES_PAGE: "\n".join(_libraries(record, patches)) + "\n",
        TARGETS_PAGE: "\n".join(_targets(record)) + "\n",
    }


def patches_in(folder: Path) -> list[str]:
    """For each diff in a folder, its name and its first line, which is its subject."""
    subjects = []
    for path in sorted(folder.glob("*.diff")):
        with path.open(errors="replace") as opened:
            subjects.append(f"{path.name}: {opened.readline(_SUBJECT).strip()}")
    return subjects


def defects(record: BoardRecord) -> list[FunctionRow]:
    """Functions with a value or slope that is not finite, has the wrong sign or is WRONG_ULP off."""
    return [
        row
        for row in record.functions
        if any(e.not_finite or e.wrong_sign or e.ulp >= WRONG_ULP for e in row.errors)
    ]


def defect_cells(record: BoardRecord) -> list[tuple[str, ...]]:
    """`defects` as rows of text: library, function, dtype, f, f', facts."""
    return [(row.library, row.name, row.dtype, *_two(row), _facts(row)) for row in defects(record)]


def target_counts(record: BoardRecord) -> list[tuple[str, ...]]:
    """For each target that ran: entries, those within 1 and 4 ulp, and those within what rounding costs."""
    ideal = {row.entry: row for row in record.target_rows if row.target == "rounded"}
    counts: list[tuple[str, ...]] = []
    measured = [
        (t.name, [r for r in record.target_rows if r.target == t.name]) for t in record.targets
    ]
    for name, all_rows in (*measured, ("rounded, without pairs", record.unpaired)):
        rows = [row for row in all_rows if not row.problem]
        if not rows:
            continue
        near = [row for row in rows if row.ulp <= max(1.0, ideal[row.entry].ulp + 1.0)]
        broken = [row for row in rows if any(error.not_finite for error in row.errors)]
        counts.append(
            (
                name,
                str(len(rows)),
                str(sum(row.ulp <= 1 for row in rows)),
                str(sum(row.ulp <= 4 for row in rows)),
                str(sum(row.beyond <= 1 for row in rows)),
                str(sum(row.beyond <= 4 for row in rows)),
                str(sum(row.beyond > 4 for row in rows)),
                str(len(near)),
                str(sum(row.stable <= 1 for row in rows)),
                str(sum(row.stable <= 4 for row in rows)),
                str(len(broken)),
                str(sum(bool(row.special) for row in rows)),
                str(sum(any(error.lost for error in row.errors) for row in rows)),
            )
        )
    return counts


COUNTS = (
    "target",
    "entries",
    "within 1 ulp",
    "within 4",
    "within 1 beyond its functions",
    "within 4 beyond",
    "more beyond",
    "within 1 of `rounded`",
    "stable: 1",
    "stable: 4",
    "not finite",
    "NaN, ±inf, −0",
    "underflow",
)


def number(ulp: float) -> str:
    """An error in ulp with two digits: .50, 3.4, 120, 1.7e7."""
    if ulp < 0.005:
        return "0"
    if ulp < 10:
        return f"{ulp:.2f}".removeprefix("0") if ulp < 1 else f"{ulp:.1f}"
    return f"{ulp:.0f}" if ulp < 1e5 else f"{ulp:.1e}".replace("e+0", "e").replace("e+", "e")


def _libraries(record: BoardRecord, patches: Sequence[str]) -> Iterator[str]:
    yield from _head(record, "Conformance of activations in other libraries")
    entries = "an entry" if _is_whole(record) else f"one of {record.entries} entries"
    yield (
        f"\nEvery function of these libraries that computes {entries} of the catalogue, at the entry's"
        " initial parameters, against the true values. The table of stamm's own targets is"
        f" [{TARGETS_PAGE}]({TARGETS_PAGE}).\n"
    )
    yield from _table(
        ("library", "version", ""),
        [(lib.name, lib.version or "not measured", _safe(lib.problem)) for lib in record.libraries],
    )
    yield "\n## How to read it\n"
    yield from _method()
    yield (
        "\nSlopes are those of the library's own differentiation; ONNX Runtime and ExecuTorch have none, and"
        " ggml's only one, of silu, is not measured. float16 and bfloat16 are measured at every finite"
        f" input, float32 at {_inputs(record)} inputs of all"
        " magnitudes. *Compiled*: the share of inputs (in float32 16,384 of all magnitudes) at which the results under"
        " torch.compile, jax.jit or mx.compile have other bits than the eager ones, f and f′."
    )
    if patches:
        yield "\n## Patches\n"
        yield (
            "Each is a unified diff for the named release, with a test beside it that fails without the"
            " patch and passes with it. The tests of this repository apply each one to a copy of the"
            " installed file.\n"
        )
        for line in patches:
            name, _, subject = line.partition(": ")
            test = f"test_{name.removesuffix('.diff')}.py"
            yield (f"- [{name}]({PATCHES}/{name}), [{test}]({PATCHES}/{test}): {_safe(subject)}")
    yield f"\n## Results that are not finite, have the wrong sign, or are {WRONG_ULP:g} ulp off\n"
    yield from _table(
        ("library", "function", "dtype", "f", "f′", ""),
        [(library, f"`{name}`", *cells) for library, name, *cells in defect_cells(record)],
    )
    for dtype in ("float32", "bfloat16", "float16"):
        yield f"\n## {dtype}\n"
        rows = [row for row in record.functions if row.dtype == dtype]
        yield from _table(
            ("library", "function", "entry", "f", "f′", "compiled", ""),
            [
                (
                    row.library,
                    f"`{row.name}`" if row.name else "all",
                    row.entry,
                    *_two(row),
                    _differs(row),
                    _facts(row),
                )
                for row in rows
            ],
        )


def _targets(record: BoardRecord) -> Iterator[str]:
    yield from _head(record, "Conformance of emitted targets")
    entries = "Each entry" if _is_whole(record) else f"{record.entries} entries"
    yield (
        f"\n{entries} of the catalogue in each target of `stamm emit` that is a program, run at"
        f" {_inputs(record)} float32 inputs:"
        " value, slope, and gradients in the parameters, which are rounded to float32. Functions of other"
        f" libraries are in [{LIBRARIES_PAGE}]({LIBRARIES_PAGE}).\n"
    )
    yield from _table(
        ("target", "runtime", "how"),
        [(t.name, t.version or "-", _safe(t.problem or t.how)) for t in record.targets],
    )
    yield "\n## How to read it\n"
    yield from _method()
    yield (
        "\n`rounded` is the float32 graph with every operation correctly rounded. Near a zero of f or f′"
        " terms cancel, and in a tail the rounded argument of an exponential counts. Where that costs a"
        " value, slope or parameter gradient more than 4 ulp beyond what the errors of the elementary"
        " functions alone make of it, operations are in pairs of float32 numbers (two-sum, products of"
        " halves), as few as bring it within these 4; others stay as they are, since pairs cost 3 to 6 times the time"
        " ([activations.md](activations.md#in-other-languages)). *Beyond its functions* is what a result errs"
        " more than that: an error of .5 ulp of exp, multiplied by a cancellation, is not the formula's."
    )
    yield "\n## Elementary functions of each runtime, float32\n"
    yield (
        "Largest error in ulp at the same inputs, and where. *Italic*: the language lacks the function,"
        " and the text computes it from others.\n"
    )
    yield from _primitives(record.primitives)
    yield "\n## Counts\n"
    yield (
        "Entries whose largest error in value, slope and parameter gradients is within so many ulp;"
        " at every eighth input within 1 and 4 ulp more than what the runtime's own elementary functions"
        " err there, carried through the formula in float64, and more; within 1 ulp more than `rounded`;"
        " stable within 1 and 4; entries with a result that is not"
        " finite although the true value is; entries that differ at NaN, infinities or −0; entries with"
        " a result of 0 where float32 has a nearer number.\n"
    )
    yield from _table(COUNTS, target_counts(record))
    yield "\n## 16 bits\n"
    yield (
        "Every finite bfloat16 and float16 in the targets that have these types (of CUDA, Metal and Triton"
        " the functions `_short`, whose float32 result is rounded): largest error of f and f′ in ulp of the"
        " type, and entries within the budget that `stamm check` holds the kernels to. ONNX models are"
        " float32.\n"
    )
    yield from _table(
        ("target", "dtype", "entries", "largest error", "within budget"), _short(record.short_rows)
    )
    beyond = [row for row in record.short_rows if row.beyond or row.problem]
    if beyond:
        yield "\nBeyond the budget, or not run:\n"
        yield from _table(
            ("target", "entry", "dtype", "largest error", "budget", "results beyond"),
            [
                (
                    row.target,
                    row.entry,
                    row.dtype,
                    f"{number(row.ulp)} at {row.at:.4g}",
                    number(row.budget),
                    _safe(row.problem) or f"{row.beyond:,}",
                )
                for row in beyond
            ],
        )
    yield "\n## Entries\n"
    yield "Largest errors in ulp: f / f′ (gate and up) / gradients in parameters.\n"
    names = [runtime.name for runtime in record.targets]
    by_entry: dict[str, dict[str, TargetRow]] = {}
    for row in record.target_rows:
        by_entry.setdefault(row.entry, {})[row.target] = row
    yield from _table(
        ("entry", *names),
        [(entry, *(_cell(rows.get(name)) for name in names)) for entry, rows in by_entry.items()],
    )
    yield "\n## Findings\n"
    yield (
        "Results that are not finite, that differ at NaN, infinities or −0, or with an error over"
        f" 1 + condition number above {STABLE:g}.\n"
    )
    yield from _table(("entry", "finding", "targets"), _findings(record.target_rows))


def _short(rows: Sequence[ShortRow]) -> list[tuple[str, ...]]:
    """For each target and dtype: entries, the largest error, and entries within the budget."""
    groups: dict[tuple[str, str], list[ShortRow]] = {}
    for row in rows:
        groups.setdefault((row.target, row.dtype), []).append(row)
    return [
        (
            *names, str(len(group)), number(max(row.ulp for row in group)),
            str(sum(not row.beyond and not row.problem for row in group)),
        )
        for names, group in groups.items()
    ]  # fmt: skip


def _is_whole(record: BoardRecord) -> bool:
    return record.entries == len(catalog.names())


def _inputs(record: BoardRecord) -> str:
    return f"about {round(record.inputs, -3):,}"


def _head(record: BoardRecord, title: str) -> Iterator[str]:
    short = "" if _is_whole(record) else " --quick"
    yield f"# {title}\n"
    yield (
        f"Written by `stamm check --board{short} --out docs` of stamm {record.stamm_version} on"
        f" {escape_markdown(record.processor, 200)}. Another processor may give other last digits."
    )


def _method() -> Iterator[str]:
    yield (
        f"Errors are in **ulp**, units of the last place of the true value: .50 is correct rounding, 1.7e7"
        f" in float32 is a value without one right digit. They are the largest ones {WHERE}, so not at"
        f" zeros of f or f′. *Stable* is the largest error over 1 + the condition number: at most 1 where"
        f" the result belongs to an input within 1 ulp of the given one. NaN and infinities count at"
        f" every finite input. {_TRUTH}"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        yield "None."
        return
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _two(row: FunctionRow) -> tuple[str, str]:
    by_name = {error.quantity: error for error in row.errors}
    return tuple(_at(by_name.get(name)) for name in (FUNCTION, SLOPE))  # type: ignore[return-value]


def _at(error: Errors | None) -> str:
    if error is None:
        return "-"
    return number(error.ulp) if error.ulp <= 1 else f"{number(error.ulp)} at {error.at:.4g}"


def _facts(row: FunctionRow) -> str:
    parts = []
    for error in row.errors:
        name = _NAMES.get(error.quantity, error.quantity)
        if error.not_finite:
            parts.append(f"{name}: {error.not_finite:,} not finite")
        if error.wrong_sign:
            parts.append(f"{name}: {error.wrong_sign:.2%} wrong sign")
    lost = sum(error.lost for error in row.errors)
    if lost:
        parts.append(f"{lost:,} underflow")
    return "; ".join([*parts, *(_safe(text) for text in (row.remark, row.problem) if text)])


def _differs(row: FunctionRow) -> str:
    return " / ".join(f"{share:.1%}" if share else "0" for _, share in row.differs) or "-"


def _cell(row: TargetRow | None) -> str:
    if row is None:
        return "-"
    if row.problem:
        return "not run" if row.problem in ("not run", "not installed") else "refused"
    groups: dict[str, float] = {}
    for error in row.errors:
        kind = {FUNCTION: "f", SLOPE: "s", UP_SLOPE: "s"}.get(error.quantity, "p")
        groups[kind] = max(groups.get(kind, 0.0), error.ulp)
    return " / ".join(number(ulp) for ulp in groups.values())


def _primitives(rows: Sequence[PrimitiveRow]) -> Iterator[str]:
    targets = list(dict.fromkeys(row.target for row in rows))
    table: dict[str, dict[str, PrimitiveRow]] = {}
    for row in rows:
        table.setdefault(row.function, {})[row.target] = row
    yield from _table(
        ("", *targets),
        [
            (name, *(_primitive(by_target.get(target)) for target in targets))
            for name, by_target in table.items()
        ],
    )


def _primitive(row: PrimitiveRow | None) -> str:
    if row is None:
        return "-"
    text = number(row.ulp) if row.ulp <= 1 else f"{number(row.ulp)} at {row.at:.3g}"
    return f"*{text}*" if row.lowered else text


def _findings(rows: Sequence[TargetRow]) -> list[tuple[str, str, str]]:
    """One row for an entry and finding, with the targets and their numbers."""
    table: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for error in row.errors:
            name = error.quantity.replace("_", " ")
            if error.not_finite:
                targets = table.setdefault((row.entry, f"{name}: not finite"), [])
                targets.append(f"{row.target} {error.not_finite:,}")
            if error.stable > STABLE:
                targets = table.setdefault((row.entry, f"{name}: error over 1 + condition"), [])
                targets.append(
                    f"{row.target} {number(error.stable)} ({number(error.ulp)} ulp)"
                    f" at {error.stable_at:.4g}"
                )
        for special in row.special:
            table.setdefault((row.entry, special), []).append(row.target)
        if row.problem not in ("", "not run", "not installed"):
            table.setdefault((row.entry, _safe(row.problem)), []).append(row.target)
    return [(entry, fact, ", ".join(targets)) for (entry, fact), targets in table.items()]


def _safe(text: str) -> str:
    return escape_markdown(text, 300)
