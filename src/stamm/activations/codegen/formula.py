"""One function body: piecewise SymPy formulas written as short torch statements, and the tables that they read."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

import mpmath
import sympy
from sympy import Expr, Function

from stamm.activations.derivation.anchored import Anchored
from stamm.activations.derivation.formulas import Branch, Derived, Integrand
from stamm.activations.derivation.parametric import ParametricIntegral
from stamm.activations.derivation.primitives import Primitive, X, expm1, logistic, phi2
from stamm.activations.derivation.stable_forms import ordered_factors, ordered_terms
from stamm.activations.derivation.tables import TabulatedIntegral, tables_in
from stamm.base.errors import ConfigError

_WIDTH = 36  # longer text is assigned to a variable
_TORCH = {
    sympy.exp: "torch.exp",
    sympy.log: "primitives.log",
    sympy.sin: "torch.sin",
    sympy.cos: "torch.cos",
    sympy.tan: "torch.tan",
    sympy.asin: "torch.asin",
    sympy.tanh: "torch.tanh",
    sympy.atan: "torch.atan",
    sympy.erf: "torch.erf",
    sympy.erfc: "torch.erfc",
    sympy.Abs: "torch.abs",
    sympy.sinh: "torch.sinh",
    sympy.cosh: "torch.cosh",
    sympy.asinh: "torch.asinh",
    sympy.acosh: "torch.acosh",
}


class Body:
    """Statements of one function; equal inputs, conditions and function calls are written once."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = frozenset(taken)  # names of parameters
        self.lines: list[str] = []
        self._named: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def piecewise(self, branches: Sequence[Branch], *, signed: bool = False) -> str:
        """The name of the variable that holds the piecewise formula's value.

        signed   whether a formula that vanishes at 0 keeps the sign of a zero
        """
        values = [self._branch(branch, signed and owns_zero(branch)) for branch in branches]
        last = _last(branches)
        result = values[last]
        for i in range(last - 1, -1, -1):
            sign = "<=" if branches[i].high_closed else "<"
            result = self._select(f"x {sign} {self._end(branches[i].high)}", values[i], result)
        for i in range(last + 1, len(branches)):
            sign = ">=" if branches[i].low_closed else ">"
            result = self._select(f"x {sign} {self._end(branches[i].low)}", values[i], result)
        return result

    def _select(self, condition: str, value: str, otherwise: str) -> str:
        return self.name("chosen", f"torch.where({condition}, {value}, {otherwise})")

    def _branch(self, branch: Branch, signed: bool) -> str:
        """The branch's value on its own clamped input."""
        formula = _rewritten(branch, signed)
        if formula.has(X):
            return self.name("branch", _Printer(self, self._input(branch), branch).text(formula))
        if formula == 0:
            return self.name("flat", "torch.zeros_like(x)")
        text = self._end(formula)
        if not formula.free_symbols:
            return self.name("flat", f"torch.full_like(x, {text})")
        return self.name("flat", f"torch.zeros_like(x) + {text}")

    def _input(self, branch: Branch) -> str:
        if branch.low.free_symbols or branch.high.free_symbols:
            return self._between_moving_knots(branch)
        limits = []
        if branch.low != -sympy.oo:
            limits.append(f"min={self._end(branch.low)}")
        if branch.high != sympy.oo:
            limits.append(f"max={self._end(branch.high)}")
        return self.name("inside", f"torch.clamp(x, {', '.join(limits)})") if limits else "x"

    def _between_moving_knots(self, branch: Branch) -> str:
        text = "x"
        if branch.low != -sympy.oo:
            text = f"primitives.at_least({text}, {self._end(branch.low)})"
        if branch.high != sympy.oo:
            text = f"primitives.at_most({text}, {self._end(branch.high)})"
        return self.name("inside", text)

    def _end(self, end: Expr) -> str:
        return _Printer(self, "x", None).text(end)

    def name(self, kind: str, text: str) -> str:
        """The variable that holds `text`, assigned on first use; `kind` is the prefix of its name."""
        if text.isidentifier():
            return text
        key = (kind, text)
        if key not in self._named:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            while f"{kind}_{self._counts[kind]}" in self._taken:
                self._counts[kind] += 1
            self._named[key] = f"{kind}_{self._counts[kind]}"
            self.lines.append(f"{self._named[key]} = {text}")
        return self._named[key]


class _Printer:
    """Text of one formula in which x is called `variable`."""

    def __init__(self, body: Body, variable: str, branch: Branch | None) -> None:
        self._body = body
        self._variable = variable
        self._branch = branch

    def text(self, formula: Expr) -> str:
        """The formula as a torch expression that needs no outer parentheses."""
        if formula == X:
            return self._variable
        if formula.is_Symbol:
            return str(formula.name)
        if not formula.free_symbols:
            return _number(formula)
        if formula.is_Add:
            return self._sum(formula)
        if formula.is_Mul:
            return self._product(formula)
        if formula.is_Pow:
            return self._power(formula.base, formula.exp)
        return self._call(formula)

    def _sum(self, formula: Expr) -> str:
        groups = [self._terms(group) for group in ordered_terms(formula) if group]
        if len(groups) == 2 and len(ordered_terms(formula)[0]) > 1:
            groups[0] = f"({groups[0]})"
        return " + ".join(groups).replace("+ -", "- ")

    def _terms(self, terms: Sequence[Expr]) -> str:
        text = ""
        for term in sorted(terms, key=lambda t: t.could_extract_minus_sign()):
            if not text:
                text = self._short(term)
            elif term.could_extract_minus_sign():
                text += f" - {self._factor(-term) if term.is_Add else self._short(-term)}"
            else:
                text += f" + {self._short(term)}"
        return text

    def _product(self, formula: Expr) -> str:
        number, over, parts = sympy.S.One, [], []
        for factor in ordered_factors(formula):
            if not factor.free_symbols:
                number *= factor
            elif factor.is_Pow and factor.exp.is_negative:
                over.append(factor)
            else:
                parts.append(self._factor(factor))
        common = _common_root([_refactored(factor) for factor in over])
        if common is not None:
            root, power = common
            parts += [self._body.name("part", self._quotient(root))] * power
            over = []
        sign = ""
        if number == -1 and parts:
            sign = "-"
        elif number != 1:
            parts.insert(0, _number(number))
        text = sign + (" * ".join(parts) if parts else "1.0")
        for f in over:
            text += f" / {self._factor(f.base ** (-f.exp))}"
        return text

    def _factor(self, formula: Expr) -> str:
        text = self._short(formula)
        if formula.is_Add or formula.is_Mul or formula.is_Pow:
            return text if text.isidentifier() else f"({text})"
        return text

    def _short(self, formula: Expr) -> str:
        text = self.text(formula)
        return self._body.name("part", text) if len(text) > _WIDTH else text

    def _power(self, base: Expr, exponent: Expr) -> str:
        if exponent == -1:
            base, exponent = _refactored(base**exponent).as_base_exp()
        if exponent.is_Integer and 0 < exponent <= 4:
            return " * ".join([self._factor(base)] * int(exponent))
        if exponent.is_Integer and -4 <= exponent < 0:
            if exponent < -1 and base.has(X):
                quotient = self._body.name("part", self._quotient(base))
                return " * ".join([quotient] * -int(exponent))
            return f"1.0 / {self._factor(base**-exponent)}"
        if exponent == sympy.Rational(1, 2):
            return f"torch.sqrt({self._tensor(base)})"
        return f"torch.pow({self._tensor(base)}, {self.text(exponent)})"

    def _quotient(self, base: Expr) -> str:
        """1/base, to be multiplied: the power of a large base overflows where its quotient is > 0."""
        return f"1.0 / {self._factor(base)}"

    def _call(self, formula: Expr) -> str:
        kind, argument = type(formula), self._tensor(formula.args[0])
        if issubclass(kind, ParametricIntegral):
            name = integral_name(kind)
            text = f"{argument}, parameters, _rate_of_{name}, {kind.origin!r}, *{name.upper()}"
            return self._body.name("integral", f"primitives.integrated({text})")
        if kind is logistic:
            return self._logistic(formula.args[0])
        if issubclass(kind, TabulatedIntegral):
            text = f"primitives.tabulated({argument}, {table_constant(kind)})"
            return self._body.name("table", text)
        if issubclass(kind, Anchored):
            text = f"{argument}, {anchored_constant(kind)}, {kind.single}"
            return self._body.name("anchored", f"primitives.anchored({text})")
        if kind in (phi2, phi2_over):
            name = f"primitives.{kind.__name__}{_window(formula.args[0], self._branch)}"
        elif isinstance(formula, Primitive):
            name = f"primitives.{kind.__name__}"
        elif kind in _TORCH:
            name = _TORCH[kind]
        else:
            raise ConfigError(
                f"the derived formula holds {formula}, which has no kernel",
                fix="State a gradient whose integral is elementary",
            )
        return self._body.name(kind.__name__.lower(), f"{name}({argument})")

    def _tensor(self, argument: Expr) -> str:
        """The argument of a function as a tensor: torch rejects a plain number (a fixed parameter)."""
        text = self.text(argument)
        return text if argument.has(X) else f"primitives.lifted({text}, x)"

    def _logistic(self, argument: Expr) -> str:
        """One of the two halves of a pair that share one exponential."""
        falling = bool(argument.could_extract_minus_sign())
        text = self._tensor(-argument if falling else argument)
        pair = self._body.name("pair", f"primitives.logistic_pair({text})")
        return f"{pair}[{int(falling)}]"


def _common_root(over: Sequence[Expr]) -> tuple[Expr, int] | None:
    """b and n > 1 of a denominator b**n that grows with x: x**3*(1 + x**-2)**(3/2); else None."""
    whole = [-factor.exp for factor in over if factor.exp.is_Integer and factor.has(X)]
    if not whole or not 2 <= whole[0] <= 4:
        return None
    power = int(whole[0])
    # A base with half of an odd exponent is positive as it is; with half of an even one not.
    allowed = {power, sympy.Rational(power, 2)} if power % 2 else {power}
    if any(-factor.exp not in allowed for factor in over):
        return None
    return sympy.Mul(*(factor.base ** (-factor.exp / power) for factor in over)), power


def _refactored(factor: Expr) -> Expr:
    """1/(1 + 2*x + x**2) as (1 + x)**-2, whose square does not overflow before it is divided by."""
    if factor.exp == -1 and factor.base.is_Add and factor.base.is_polynomial(X):
        factored = sympy.factor(factor.base)
        if factored.is_Pow and factored.exp.is_Integer:
            return factored.base**-factored.exp
    return factor


def _rewritten(branch: Branch, signed: bool) -> Expr:
    """exp(u) - 1 as u + phi2(u) inside the window, where both are needed and neither cancels.

    signed   as a product with u, and the whole likewise
    """

    def near(u: Expr) -> Expr:
        return u * (1 + phi2_over(u)) if signed else u + phi2(u)

    formula = branch.formula
    if formula.has(expm1):
        formula = formula.replace(expm1, lambda u: near(u) if _window(u, branch) else expm1(u))
    return factor_out_x(formula) if signed else formula


def _window(argument: Expr, branch: Branch | None) -> str:
    """Which polynomial covers the argument on the branch: by name suffix, "" when none does."""
    scale = argument / X
    if branch is None or not scale.is_Rational:
        return ""
    if branch.low.free_symbols or branch.high.free_symbols:
        return ""
    low, high = sorted([scale * branch.low, scale * branch.high])
    if low >= -1 and high <= 0:
        return "_negative"
    if low >= 0 and high <= 1:
        return "_positive"
    return ""


def _last(branches: Sequence[Branch]) -> int:
    """The rightmost branch that depends on x: a NaN must reach it and come out as NaN."""
    dependent = [i for i, branch in enumerate(branches) if branch.formula.has(X)]
    return dependent[-1] if dependent else len(branches) - 1


def _number(constant: Expr) -> str:
    """The nearest double of a constant expression."""
    with mpmath.workdps(40):
        return repr(float(constant._to_mpmath(140)))


_PER_LINE = 4


def anchored_constant(kind: type[Anchored]) -> str:
    """The name of the coefficients of such a function in the module of a kernel."""
    return kind.__name__.upper()


def anchored_source(kinds: Iterable[type[Anchored]]) -> str:
    """The module-level coefficients of every function given, each once, by name; "" for none.

    Checked  tests/unit/activations/test_anchored.py
    """
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    return "\n".join(_definition(kind) for kind in ordered)


def _definition(kind: type[Anchored]) -> str:
    low, high = kind.window
    rows = [
        "    " + " ".join(f"{c!r}," for c in kind.coefficients[i : i + _PER_LINE])
        for i in range(0, len(kind.coefficients), _PER_LINE)
    ]
    lines = [
        f"# {kind.difference}",
        f"# on [{low:g}, {high:g}]: coefficients of x, x**2, ...",
        f"{anchored_constant(kind)} = (",
        *rows,
        ")",
    ]
    return "\n".join(lines) + "\n"


phi2_over = Function("phi2_over")  # phi2(u)/u, without the division


def owns_zero(branch: Branch) -> bool:
    """Whether x = 0 belongs to the branch; False where its ends move with parameters."""
    if branch.low.free_symbols or branch.high.free_symbols:
        return False
    above = branch.low < 0 or (branch.low == 0 and branch.low_closed)
    below = branch.high > 0 or (branch.high == 0 and branch.high_closed)
    return bool(above and below)


def factor_out_x(formula: Expr) -> Expr:
    """The formula as x times the rest, where it is a sum of multiples of x; else as it is.

    Edge     of a product each factor likewise
    Checked  tests/unit/activations/test_signed_zero.py
    """
    if formula.is_Mul:
        return sympy.Mul(*map(factor_out_x, formula.args))
    if not formula.is_Add:
        return formula
    divided = [_over_x(term) for term in formula.args]
    if any(term is None for term in divided):
        return formula
    rest = sympy.Add(*divided)
    return sympy.Mul(X, rest, evaluate=False) if rest.is_Add else formula


def _over_x(term: Expr) -> Expr | None:
    """term/x, or None where that has x left in the denominator."""
    factors = [sympy.factor_terms(f) if f.is_Add else f for f in sympy.Mul.make_args(term)]
    for index, factor in enumerate(factors):
        if isinstance(factor, phi2) and (factor.args[0] / X).is_Rational:
            factors[index] = factor.args[0] * phi2_over(factor.args[0])
            break
    quotient = sympy.Mul(*factors) / X
    power_of_x = quotient.as_powers_dict().get(X, sympy.S.Zero)
    return quotient if power_of_x.is_nonnegative else None


_TABLE_WIDTH = 96


def table_constant(table: type[TabulatedIntegral]) -> str:
    """The name of a table in the module of a kernel."""
    return table.__name__.upper()


def integral_name(kind: type[ParametricIntegral]) -> str:
    """The name of a parametric integral in the module of a kernel."""
    return kind.__name__


def sides_source(integrand: Integrand) -> str:
    """The module-level cells of the table that each call makes of a gradient."""
    lines = [
        f"# Cells of {integrand.kind.__doc__}, left and right.",
        f"{integral_name(integrand.kind).upper()} = (",
    ]
    for side in (integrand.left, integrand.right):
        lines += [
            "    primitives.Side(",
            *textwrap.wrap(
                f"edges={side['edges']!r},",
                _TABLE_WIDTH,
                initial_indent=" " * 8,
                subsequent_indent=" " * 9,
            ),
            f"        order={side['order']},",
            f"        tail={side['tail']},",
            "    ),",
        ]
    return "\n".join([*lines, ")"]) + "\n"


def tables_source(derived: Derived) -> str:
    """The module-level definition of every table that the kernel of `derived` calls; "" for none.

    Checked  tests/unit/activations/test_tables.py
    """
    return "".join(f"{_table_definition(table)}\n" for table in tables_in(derived))


def _table_definition(table: type[TabulatedIntegral]) -> str:
    rows = [line for row in table.rows for line in _row(row)]
    lines = [
        f"# The integral of {table.gradient} from {table.origin:g}: a table of {len(table.rows)} cells,",
        f"# within {table.bound:.2g} of |F| + |x F'|, or 1e-18; polynomials beyond its ends.",
        f"{table_constant(table)} = primitives.Table(",
        f"    low={table.low!r},",
        f"    high={table.high!r},",
        f"    step={table.step!r},",
        f"    single={table.single!r},",
        "    rows=(",
        *rows,
        "    ),",
        f"    left={table.left!r},",
        f"    right={table.right!r},",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _row(numbers: tuple[float, ...]) -> list[str]:
    text = ", ".join(map(repr, numbers))
    indent = " " * 8
    return textwrap.wrap(
        f"({text}),", _TABLE_WIDTH, initial_indent=indent, subsequent_indent=f"{indent} "
    )
