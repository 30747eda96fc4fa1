"""Records of the conformance board."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The errors of one quantity of a function.

    inputs       how many are judged
    ulp          largest error, in units of the last place of the true value
    at           the input with that error
    stable       largest error over 1 + the condition number: at most 1 where the result is that of an
                 input within one unit of the given one, rounded
    stable_at    the input with that error
    wrong_sign   share of the judged results whose sign is not that of the true value
    not_finite   among all finite inputs, results that are NaN, or infinite where the true value is not
    lost         results that are 0 although the dtype holds a number nearer to the true value
    """

    quantity: str
    inputs: int
    ulp: float
    at: float
    stable: float
    stable_at: float
    wrong_sign: float
    not_finite: int
    lost: int


@dataclass(frozen=True, kw_only=True)
class FunctionRow:
    """A function of a library in one dtype.

    differs   by quantity, the share of inputs at which eager and compiled results have other bits
    problem   why it is not measured, or not compiled
    """

    library: str
    entry: str
    name: str
    dtype: str
    errors: tuple[Errors, ...] = ()
    differs: tuple[tuple[str, float], ...] = ()
    remark: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class TargetRow:
    """An entry in a target, in float32.

    special   inputs at which f or f' is not what the entry has there: "f(nan)", "f'(-inf)", "f(-0)"
    beyond    by how many ulp a result errs more, at most, than what the errors of the runtime's own
              elementary functions make of it
    """

    target: str
    entry: str
    errors: tuple[Errors, ...] = ()
    special: tuple[str, ...] = ()
    beyond: float = 0.0
    problem: str = ""

    @property
    def ulp(self) -> float:
        """The largest error."""
        return max((error.ulp for error in self.errors), default=0.0)

    @property
    def stable(self) -> float:
        """The largest error over 1 + the condition number."""
        return max((error.stable for error in self.errors), default=0.0)


@dataclass(frozen=True, kw_only=True)
class ShortRow:
    """An entry in a target at every finite number of a 16-bit dtype: f and its gradients in the inputs.

    ulp, at   largest error, in units of the last place of the true value, and the input with it
    budget    of the entry in the dtype, in ulp
    beyond    results that are further off than the budget allows, or not finite
    """

    target: str
    entry: str
    dtype: str
    ulp: float = 0.0
    at: float = 0.0
    budget: float = 0.0
    beyond: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class PrimitiveRow:
    """Largest error of a function of a runtime in float32, in ulp, and where.

    lowered   whether the target lacks the function, so that its text computes it from others
    """

    target: str
    function: str
    ulp: float
    at: float
    lowered: bool


@dataclass(frozen=True, kw_only=True)
class RuntimeRecord:
    """A library or the runtime of a target: version and how it is run, or why it is not."""

    name: str
    version: str = ""
    how: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class BoardRecord:
    """Everything that is measured; the same for the same versions and processor.

    entries   how many of the catalogue
    inputs    in float32, of an entry without knots; the others have a few more
    unpaired  rows of the graphs without pairs of numbers, every operation correctly rounded
    """

    stamm_version: str
    processor: str
    entries: int
    inputs: int
    libraries: tuple[RuntimeRecord, ...]
    functions: tuple[FunctionRow, ...]
    targets: tuple[RuntimeRecord, ...]
    target_rows: tuple[TargetRow, ...]
    unpaired: tuple[TargetRow, ...]
    short_rows: tuple[ShortRow, ...]
    primitives: tuple[PrimitiveRow, ...]
