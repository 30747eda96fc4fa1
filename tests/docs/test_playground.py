"""Pages that compute in the browser: true numbers, quick sliders, lines that derive, nothing that runs typed text."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import Markup

from stamm.activations import Parameter, Piece, Softplus, Spec, catalog
from stamm.activations.catalog.registry import load_spec
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.describe import describe
from stamm.activations.page.live import live_parts
from stamm.activations.page.page import activation_page
from stamm.activations.spec.expressions import evaluate, parse
from stamm.activations.spec.parameters import Absolute, Between, Exp, Identity
from stamm.base.errors import ConfigError, ExportError
from stamm.corpus.tokenizer.job import load_declaration
from stamm.export.onnx_target import OnnxRuntime
from stamm.export.verb import export
from stamm.pages.frame import InlineScript, script_file
from stamm.tokenizer.tokenizer import Tokenizer
from tests.conftest import Stamm
from tests.docs.browser import Browser, started_browser
from tests.unit.tokenizer.test_fast import DESCRIPTION, TOKENIZER, hostile
from tools import docs_playground
from tools.docs_gallery import write_gallery
from tools.docs_playground import (
    PACKAGE,
    RULES,
    RUNTIME,
    RUNTIME_VERSION,
    compose_page,
    exported_model,
    runtime_package,
    write_model_page,
)
from tools.docs_site import NPM

FRAME_MS = 16.0
HOSTILE = (
    "alert(1)", "x; alert(1)", "(() => 1)()", "constructor(1)", "__proto__", "x.constructor", "`x`",
    "x['y']", "exp", "x = 1", "'; rm -rf / #", "<img src=x onerror=alert(1)>", "$(id)", "x\n&& y",
    "exp(x", "2x", "x x", "", "   ", "é", "01", "(" * 99 + "x" + ")" * 99, "-" * 99 + "x", "x" * 2001,
    "valueOf(x)", "toString(1)", "hasOwnProperty(x)", "exp()", "1e", "..5", "x^2", "x" + " + x" * 100, "x**65", "x**-65",
)  # fmt: skip
FORMULAS = (
    "1", "x", "-x**2", "2**-x", "x**3/3 - x/2 - 1", "2*a*x + b", "a - b - x", "a/b/x", "a/(b*x)",
    "exp(-x**2)", "logistic(x)*logistic(-x)", "tanh(0.5*x) - atan(x)", "softplus(a*x)/b", "erf(x)",
    "x*normal_pdf(x) + normal_cdf(x)", "cauchy_cdf(x)*cauchy_pdf(x)", "sqrt(x**2 + 1)", "+x - -x",
    "gompertz(x) - gompertz_pdf(x)", "sign(x)*abs(x)", "log1p(x**2)", "asinh(x)", "1.5e-3*x", ".5*x",
    "2**3**0.5", "-2**2", "(-2)**2", "pi*x", "cosh(x) - sinh(x)", "asin(tanh(x))", "expm1(x)", "x" + "*x" * 99, "x**64/2**60",
)  # fmt: skip


def node(script: str) -> Any:
    """What a script for node prints, as JSON."""
    ran = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def composer() -> str:
    """The page on which a gradient is composed."""
    return compose_page()


@pytest.fixture(scope="module")
def language(composer: str) -> str:
    """Its functions and its grammar, as a script."""
    (page,) = re.findall(r"const \$page = .*?^(?=// A plot)", composer, re.DOTALL | re.MULTILINE)
    functions = (
        "const functions = {...Object.fromEntries($page.plain.map(name => [name, Math[name]])), ...$page.functions};\n"
        "const all = {...functions, ...$page.hidden};\n"
    )
    return f"{page}\n{functions}{script_file(PACKAGE, 'grammar.js')}\n"


def printed(expression: str) -> str:
    return f"process.stdout.write(JSON.stringify({expression}));\n"


@pytest.mark.slow
def test_a_formula_has_the_value_that_stamm_gives_it(language: str) -> None:
    assert (
        node(f"{language}{printed('Object.keys(all).filter(n => typeof all[n] !== `function`)')}")
        == []
    )
    points = [-3.7, -1.0, -0.25, 0.5, 2.5]
    values = f"{json.dumps(points)}.map(x => compiled(tree, functions)({{x, a: 0.8, b: 1.5}}))"
    texts = "written(tree), written(parse(written(tree), functions))"
    results = node(
        f"{language}{printed(f'{json.dumps(FORMULAS)}.map(text => {{const tree = parse(text, functions); return [{values}, {texts}];}})')}"
    )
    for formula, (found, once, twice) in zip(FORMULAS, results, strict=True):
        expected = [evaluate(parse(formula), {"x": x, "a": 0.8, "b": 1.5}) for x in points]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15, err_msg=formula)
        rewritten = [evaluate(parse(once), {"x": x, "a": 0.8, "b": 1.5}) for x in points]
        np.testing.assert_allclose(rewritten, expected, rtol=1e-12, atol=1e-15, err_msg=once)
        assert once == twice


@pytest.mark.slow
def test_what_is_not_a_formula_is_refused(language: str) -> None:
    read = "text => {try {return namesIn(parse(text, functions)).filter(name => name !== 'x');} catch (error) {return error.message;}}"
    results = node(f"{language}{printed(f'{json.dumps(HOSTILE)}.map({read})')}")
    for text, found in zip(HOSTILE, results, strict=True):
        # Plain names are refused as names of parameters, by compose.js.
        assert isinstance(found, str) or text in ("__proto__", "exp"), (text, found)
    assert not re.search(
        r"\beval\b|\bFunction\s*\(|innerHTML|insertAdjacent|document\.write", language
    )


@pytest.mark.slow
def test_every_closed_form_has_the_gradient_as_its_derivative(language: str) -> None:
    """Also of sums, multiples and arguments a*x + b; by central differences, of order 4."""
    gradients = [
        *RULES,
        "2*a*x + b",
        "a*(exp(b*x) - 1)",
        "3*logistic(2*x - 1)/b",
        "-cos(b*x)",
        "a/(1 + x**2)",
        "a*x**2/b - 1/2",
        "a*x*exp(x)",
    ]
    script = (
        f"{language}const rules = $page.rules.map(rule => rule.map(text => parse(text, all)));\n"
        f"const points = [-2.3, -0.7, 0.4, 1.9], step = 1e-3;\n"
        + printed(
            f"{json.dumps(gradients)}.map(text => {{const g = parse(text, all), F = integral(g, rules), value = x => compiled(F, all)({{x, a: 0.8, b: 1.5}});"
            " return points.map(x => [compiled(g, all)({x, a: 0.8, b: 1.5}), (8*(value(x + step) - value(x - step)) - value(x + 2*step) + value(x - 2*step))/(12*step)]);})"
        )
    )
    for gradient, pairs in zip(gradients, node(script), strict=True):
        for stated, differences in pairs:
            assert differences == pytest.approx(stated, rel=1e-8, abs=1e-8), gradient
    (refused,) = node(f"{language}{printed('[integral(parse(`exp(-x**4)`, all), [])]')}")
    assert refused is None


@pytest.mark.parametrize(
    ("how", "initial"),
    [(Softplus(), 0.8), (Softplus(above="0.5"), 0.8), (Exp(), 1.0), (Absolute(), 0.3), (Between(low=-1, high=2), 0.5), (Identity(), 0.0), (Identity(), -2.5)],
    ids=str,
)  # fmt: skip
def test_stops_cover_the_range_and_hold_the_initial_value(how: Any, initial: float) -> None:
    parameter = Parameter(name="a", initial=initial, bijection=how)
    spec = Spec(
        name="own",
        title="",
        pieces=(Piece(where="all x", formula="a*x"),),
        parameters=(parameter,),
        source="",
    )
    (slider,) = re.findall(r'"parameters":(\[.*?\]\}\])', live_parts(spec)["script"].text)
    (data,) = json.loads(slider)
    bound = abs(data["bound"]) if data["absolute"] else data["bound"]
    values = [bound + stop[0] for stop in data["stops"]]
    assert values[data["start"]] == pytest.approx(initial, rel=1e-5)
    assert values == sorted(values)
    ends = parameter.range_ends(data["bound"])
    assert ends is not None
    assert (values[0], values[-1]) == pytest.approx(ends, rel=1e-4)
    for value, stop in zip(values, data["stops"], strict=True):
        assert parameter.effective(stop[-1], data["bound"]) == pytest.approx(
            value, rel=1e-4, abs=1e-5
        )


def test_a_spec_without_javascript_says_so_and_keeps_its_figures() -> None:
    own = Parameter(name="a", initial=0.5, bijection=Softplus())
    pieces = (Piece(where="all x", formula="exp(-a*x**4/8)"),)
    spec = Spec(name="own", title="", pieces=pieces, parameters=(own,), source="")
    page = activation_page(spec, describe("silu"))
    assert "Without sliders: the integral has no formula" in page
    assert "<script" not in page and "script-src" not in page and '<figure id="function"' in page


def test_a_script_cannot_end_its_element() -> None:
    for text in ("1 </SCRIPT >", "a <!-- b"):
        with pytest.raises(ConfigError, match="would end it"):
            InlineScript(Markup(text))


def test_a_model_without_export_names_the_command(tmp_path: Path) -> None:
    arm = tmp_path / "demo"
    with pytest.raises(ConfigError) as refused:
        exported_model(arm)
    assert "`make demo` trains" in refused.value.line()
    arm.mkdir()
    with pytest.raises(ConfigError) as refused:
        exported_model(arm)
    assert f"Run: stamm export {arm} target=onnx" in refused.value.line()


def test_a_runtime_of_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{RUNTIME}-{RUNTIME_VERSION}.tgz").write_bytes(b"another")
    with pytest.raises(ExportError, match="not sha512-"):
        runtime_package(tmp_path)


def test_a_failed_fetch_says_what_npm_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text("#!/bin/sh\necho 'npm error code ECONNREFUSED' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ExportError, match=r"exit status 1\.?; npm error code ECONNREFUSED"):
        runtime_package(tmp_path / "cache")
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(docs_playground, "NPM_SECONDS", 0.2)
    with pytest.raises(ExportError, match=r"timed out after 0\.2 seconds"):
        runtime_package(tmp_path / "cache")


@pytest.mark.slow
def test_the_tokenizer_of_the_page_gives_the_ids_of_stamm() -> None:
    """On hostile strings, on articles in 65 languages, and on every character that Python's tables know."""
    texts = [
        text
        for text in map(hostile, range(3000))
        if TOKENIZER.fast and TOKENIZER.fast.can_encode(text)
    ]
    assert len(texts) > 700
    texts += [text for texts in load_declaration().values() for text in texts]
    numbers = np.random.default_rng(0).integers(0, 26, 4000)
    texts += ["".join(chr(first + n) for n in numbers) for first in (ord("a"), 0x4E00)]
    texts += ["a" * 4000, "ab" * 2000]
    texts += ["", " ", "</s><s> <pad>", "<email-pii><phone-pii> <email-pii", " " * 500 + "x"]
    signs = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    texts += ["a " + " a".join(signs[first : first + 4096]) for first in range(0, len(signs), 4096)]
    script = (
        f"{script_file(PACKAGE, 'tokenizer.js')}\nconst tokenizer = new Tokenizer({DESCRIPTION});\n"
        f"const ids = {json.dumps(texts)}.map(text => tokenizer.encode(text));\n"
        + printed("ids.map(some => [some, tokenizer.decode(some)])")
    )
    for text, (ids, decoded) in zip(texts, node(script), strict=True):
        assert ids == TOKENIZER.encode(text), text[:200]
        assert decoded == text


# In the browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, composer: str) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    write_gallery(["xielu", "swiglu", "helu", "pau", "relu"], folder)
    (folder / "compose.html").write_text(composer, encoding="utf-8")
    return folder


def opened(browser: Browser, page: Path | str, width: int = 1280, **how: bool) -> None:
    browser.window(width, **how)
    browser.open(page)


def no_complaints(browser: Browser) -> None:
    assert not browser.complaints()


def value_of(browser: Browser, formula: str) -> Any:
    return browser.run(f"return {formula}")


def points_of(browser: Browser, line: int) -> list[tuple[float, float]]:
    """The points of a drawn line, as x and y: read from the path by the labels of the axes."""
    script = """
        const svg = document.querySelector("svg.live-plot"), texts = [...svg.querySelectorAll(":scope > text")];
        const number = text => Number(text.textContent.replace("−", "-"));
        const ticks = middle => texts.filter(t => (t.getAttribute("text-anchor") === "middle") === middle);
        const read = (list, name, shift) => [list[0], list.at(-1)].map(t => [Number(t.getAttribute(name)) - shift, number(t)]);
        const path = svg.querySelector(`.curve-${arguments[0]}`).getAttribute("d");
        return [read(ticks(true), "x", 0), read(ticks(false), "y", 4), path.match(/[\\d.-]+ [\\d.-]+/g)];
    """
    (x0, x1), (y0, y1), pairs = browser.run(script, line)
    scale = lambda at, a, b: a[1] + (at - a[0]) * (b[1] - a[1]) / (b[0] - a[0])  # noqa: E731
    points = [tuple(map(float, pair.split())) for pair in pairs]
    return [(scale(x, x0, x1), scale(y, y0, y1)) for x, y in points]


@pytest.mark.slow
def test_curves_are_those_of_the_kernel_after_a_slider_has_moved(
    browser: Browser, pages: Path
) -> None:
    opened(browser, pages / "xielu.html")
    browser.press("#live-parameter-alpha_p", "\ue013" * 9)  # arrow up: the keyboard alone
    text = value_of(
        browser, "document.querySelector('#live-parameter-alpha_p').getAttribute('aria-valuetext')"
    )
    alpha, stored = (float(part) for part in re.findall(r"[\d.]+", text))
    assert alpha > 1 and math.log1p(math.exp(stored)) == pytest.approx(alpha, rel=1e-3)
    spec = catalog.get("xielu")
    kernel, parameters = kernel_of(spec), (alpha, 0.8, 0.5)
    for line, compute in enumerate(
        (kernel.value, lambda x, p: kernel.slopes(x, p)[0], lambda x, p: kernel.curvatures(x, p)[0])
    ):
        drawn = [(x, y) for x, y in points_of(browser, line) if abs(y) < 4 and abs(x) > 0.02]
        assert len(drawn) > 200
        x = torch.tensor([x for x, _ in drawn], dtype=torch.float64)
        expected = torch.as_tensor(compute(x, parameters)).expand(len(drawn))
        np.testing.assert_allclose([y for _, y in drawn], expected, atol=0.02)
    no_complaints(browser)


@pytest.mark.slow
def test_a_parameter_may_have_the_name_of_a_part_of_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    names = ("values", "plot", "key", "controls", "title", "up")
    spec = Spec(
        name="own",
        title="",
        pieces=(Piece(where="all x", formula="*".join((*names, "x"))),),
        parameters=tuple(Parameter(name=n, initial=1.0, bijection=Softplus()) for n in names),
        source="",
    )
    page = tmp_path / "own.html"
    page.write_text(activation_page(spec, describe("silu")), encoding="utf-8")
    opened(browser, page)
    ids = value_of(browser, "[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids)) > 20
    labelled = "[...document.querySelectorAll('#live-controls label')].map(l => l.control.id)"
    assert value_of(browser, labelled)[: len(names)] == [f"live-parameter-{n}" for n in names]
    no_complaints(browser)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "slider", "first", "step"),
    [("xielu", "#live-parameter-alpha_p", 20, 3), ("pau", "#live-parameter-a1", 20, 3), ("compose", "#parameter-alpha_p", 0.1, 0.1)],
)  # fmt: skip
def test_a_slider_moves_the_curves_within_a_frame(
    browser: Browser, pages: Path, name: str, slider: str, first: float, step: float
) -> None:
    """From the event to the laid-out curve: the median of 40 moves; a busy machine delays a few."""
    opened(browser, pages / f"{name}.html")
    script = """
        const [selector, first, step] = arguments, times = [];
        const slider = document.querySelector(selector), svg = document.querySelector("svg.live-plot");
        for (let n = 0; n < 40; n++) {
          const before = svg.innerHTML, begun = performance.now();
          slider.value = first + step * n;
          slider.dispatchEvent(new Event("input"));
          svg.getBoundingClientRect();
          times.push(performance.now() - begun);
          if (svg.innerHTML === before) return [];
        }
        return times.sort((a, b) => a - b);
    """
    times = browser.run(script, slider, first, step)
    assert len(times) == 40, "the curve did not move"
    assert times[20] < FRAME_MS
    no_complaints(browser)


@pytest.mark.slow
def test_pages_fit_a_telephone_and_both_themes_and_have_labels(
    browser: Browser, pages: Path
) -> None:
    for name in ("xielu", "swiglu", "helu", "pau", "relu", "compose"):
        for width, dark in ((1280, False), (400, True)):
            opened(browser, pages / f"{name}.html", width, dark=dark)
            wide = "return [document.documentElement.scrollWidth, innerWidth, getComputedStyle(document.querySelector('.curve-0')).stroke]"
            used, inner, stroke = browser.run(wide)
            assert used <= inner
            assert stroke == ("rgb(98, 180, 240)" if dark else "rgb(10, 102, 168)")
        unnamed = "return [...document.querySelectorAll('input, select, textarea, button')].filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent)).map(e => e.id)"
        assert browser.run(unnamed) == []
        assert (
            value_of(browser, "document.querySelectorAll('.curve-1')[1].getAttribute('d').length")
            > 30
        )
        no_complaints(browser)
        if name != "compose":
            assert (pages / f"{name}.html").stat().st_size <= 200_000


@pytest.mark.slow
def test_without_scripts_the_static_figure_is_there(browser: Browser, pages: Path) -> None:
    opened(browser, pages / "xielu.html", scripts=False)
    browser.window(1280)
    look = "return [...document.querySelectorAll('#curves figure')].map(f => [f.id, f.checkVisibility()])"
    assert browser.run(look)[:2] == [["live", False], ["function", True]]


@pytest.mark.slow
def test_a_surrogate_and_a_gated_unit_say_what_is_drawn(browser: Browser, pages: Path) -> None:
    opened(browser, pages / "helu.html")
    assert "declared surrogate" in browser.text("#live figcaption")
    opened(browser, pages / "swiglu.html")
    before = browser.text("#live-values")
    browser.press("#live-up", "\ue013" * 10)
    assert browser.text("#live-values") != before
    # SwiGLU: x logistic(x) up, at x = 1 and up = 2
    assert f"y = {2 / (1 + math.exp(-1)):.4g}" in browser.text("#live-values").replace("−", "-")


def composed(
    browser: Browser, page: Path, pieces: Sequence[str], knots: Sequence[float], **fields: str
) -> str:
    """The line of the composer for pieces that are typed."""
    opened(browser, page)
    script = """
        const [pieces, knots, fields] = arguments;
        const set = (id, value, event) => { const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event(event)); };
        set("example", "silu", "change");
        for (const _ of knots) document.getElementById("add").click();
        knots.forEach((knot, n) => set(`knot-${n}`, knot, "input"));
        pieces.forEach((piece, n) => set(`piece-${n}`, piece, "input"));
        for (const [id, value] of Object.entries(fields)) set(id, value, "input");
    """
    browser.run(script, list(pieces), list(knots), fields)
    return browser.text("#line")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pieces", "knots", "fields"),
    [
        (["alpha*(exp(x) - 1) + c", "2*a*x + c"], [0], {}),
        (["0", "a*x", "b"], [-1, 1], {"name": "steps_and_ramps"}),
        (["logistic(x)*logistic(-x)"], [], {"start": "0.5", "gate": "1"}),
        (["a*exp(-x**2) + tanh(b*x)/2"], [], {}),
        (["-atan(-x)", "x*normal_pdf(x) - -1"], [0.5], {}),
    ],
    ids=["elu_like", "steps", "gate", "bump", "arctan"],
)
def test_a_composed_line_derives_by_the_real_command(
    browser: Browser, pages: Path, stamm: Stamm, tmp_path: Path,
    pieces: list[str], knots: list[float], fields: dict[str, str],
) -> None:  # fmt: skip
    line = composed(browser, pages / "compose.html", pieces, knots, **fields)
    assert browser.text("#problem") == ""
    words = shlex.split(line)
    assert words[:2] == ["stamm", "derive"]
    done = stamm(*words[1:])
    assert done.returncode == 0, (line, done.stderr)
    name = fields.get("name", "mine")
    # The integral that the page draws is that of the derivation.
    source = json.loads((tmp_path / "derived" / name / "spec.json").read_text())
    spec = load_spec(str(tmp_path / "derived" / name))
    assert [piece["formula"] for piece in source["pieces"]] == [" ".join(p.split()) for p in pieces]
    kernel, values = kernel_of(spec), tuple(p.initial for p in spec.parameters)
    drawn = [(x, y) for x, y in points_of(browser, 0) if abs(y) < 4]
    x = torch.tensor([x for x, _ in drawn], dtype=torch.float64)
    np.testing.assert_allclose([y for _, y in drawn], kernel.value(x, values), atol=0.02)
    no_complaints(browser)


@pytest.mark.slow
def test_every_example_derives_to_what_the_catalogue_has(
    browser: Browser, pages: Path, stamm: Stamm
) -> None:
    for name in docs_playground.EXAMPLES:
        opened(browser, pages / "compose.html")
        browser.run(
            "const e = document.getElementById('example'); e.value = arguments[0]; e.dispatchEvent(new Event('change'));",
            name,
        )
        assert browser.text("#problem") == "", name
        line = browser.text("#line")
        trained = [p.name for p in catalog.get(name).parameters]
        assert sorted(
            browser.run(
                "return [...document.querySelectorAll('#parameters label')].map(l => l.textContent)"
            )
        ) == sorted(trained)
        done = stamm(*shlex.split(line)[1:], "--dry-run")
        assert done.returncode == 0, (name, line, done.stderr)


SET = "const [id, value, event] = arguments, e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event(event));"


@pytest.mark.slow
def test_a_parameter_that_only_bounds_another_is_in_the_line(
    browser: Browser, pages: Path, stamm: Stamm
) -> None:
    opened(browser, pages / "compose.html")
    browser.run(SET, "example", "xielu", "change")
    for n in (0, 1):
        formula = value_of(browser, f"document.getElementById('piece-{n}').value")
        assert " + beta" in formula
        browser.run(SET, f"piece-{n}", formula.replace(" + beta", ""), "input")
    line = browser.text("#line")
    assert "softplus>beta" in line and "--parameter beta=0.5:fixed" in line
    done = stamm(*shlex.split(line)[1:], "--dry-run")
    assert done.returncode == 0, (line, done.stderr)
    no_complaints(browser)


@pytest.mark.slow
def test_a_closed_form_that_divides_by_0_or_is_of_an_older_formula_is_not_shown(
    browser: Browser, pages: Path
) -> None:
    composed(browser, pages / "compose.html", ["tanh(b*x)"], [])
    assert "log_cosh(b*x)/b" in browser.text("#closed")
    assert "differ by at most" in browser.text("#agreement")
    browser.run(
        "const e = document.querySelector('#parameters select'); e.value = 'identity'; e.dispatchEvent(new Event('change'));"
    )
    browser.run(SET, "parameter-b", 0, "input")
    assert "no closed form at these values" in browser.text("#closed")
    assert browser.text("#agreement") == "The curve is the numerical integral."
    browser.run(SET, "parameter-b", 2, "input")
    assert "log_cosh(b*x)/b" in browser.text("#closed")
    browser.run(SET, "piece-0", "tanh(b*x", "input")
    assert browser.text("#problem").startswith("Piece 1")
    assert browser.text("#closed") == browser.text("#agreement") == ""
    no_complaints(browser)


@pytest.mark.slow
def test_a_gradient_is_built_without_typing_or_a_mouse(browser: Browser, pages: Path) -> None:
    opened(browser, pages / "compose.html")
    browser.press("#example", "relu")
    browser.press("#piece-0 ~ select", "a*exp(-")
    browser.press("#piece-0 ~ button", "\ue007")
    browser.press("#add", "\ue007")
    browser.press("#parameter-a", "\ue013" * 5)
    assert browser.text("#problem") == ""
    line = browser.text("#line")
    assert shlex.split(line)[2:] == [
        "x <= 0: a*exp(-x**2)", "0 < x <= 1: 1", "x > 1: 1", "--parameter", "a=1.05:softplus",
        "--continuity", "jump", "--name", "mine",
    ]  # fmt: skip
    browser.press("#knot-1 ~ button", "\ue007")
    assert "x > 0: 1" in browser.text("#line")


@pytest.mark.slow
def test_typed_text_is_never_run_and_gives_no_line(browser: Browser, pages: Path) -> None:
    for text in HOSTILE:
        opened(browser, pages / "compose.html") if text == HOSTILE[0] else None
        script = "window.alert = () => { document.title = 'run'; }; const e = document.getElementById('piece-0'); e.value = arguments[0]; e.dispatchEvent(new Event('input'));"
        browser.run(script, text)
        assert browser.text("#line") == "" and browser.text("#problem").startswith("Piece 1"), text
    assert value_of(browser, "[document.title, document.querySelectorAll('img').length]") == [
        "Compose a gradient – stamm playground",
        0,
    ]
    composed(browser, pages / "compose.html", ["x"], [], name="a'b; rm")
    assert browser.text("#line") == "" and "The name is" in browser.text("#problem")
    for text, said in (("1/x", "a pole at x = 0"), ("log(x)", "no finite value at x = −")):
        assert composed(browser, pages / "compose.html", [text], []) == ""
        assert said in browser.text("#problem")
    assert composed(browser, pages / "compose.html", ["x"], [], name="relu") == ""
    line = composed(browser, pages / "compose.html", ["constructor*x"], [])
    assert "--parameter constructor=1:softplus" in line
    no_complaints(browser)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, smoke_run: Path) -> Iterator[tuple[str, Path]]:
    """The address of the page of a model, and the model's export."""
    if not (NPM / f"{RUNTIME}-{RUNTIME_VERSION}.tgz").is_file():
        pytest.skip(
            f"{NPM} has no {RUNTIME}: npm pack {RUNTIME}@{RUNTIME_VERSION} --pack-destination build/npm"
        )
    site = tmp_path_factory.mktemp("site")
    arm = site / "run" / "arms" / "xielu"
    shutil.copytree(smoke_run, site / "run")
    export(arm, target="onnx")
    write_model_page(arm, site / "model", NPM)
    handler = partial(_QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/model/model.html", arm / "export" / "onnx"
        server.shutdown()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing is printed for a request."""


def waited(browser: Browser, holds: Callable[[str], bool]) -> str:
    until = time.monotonic() + 60
    while not holds(text := browser.text("#status")):
        assert time.monotonic() < until, text
        time.sleep(0.05)
    return text


def answered(browser: Browser, fields: Mapping[str, object]) -> str:
    """What the model of the page writes for these values of its fields."""
    browser.run(
        "for (const [id, value] of Object.entries(arguments[0])) document.getElementById(id).value = value; document.getElementById('ask').requestSubmit();",
        dict(fields),
    )
    waited(browser, lambda text: "tokens in" in text or "stopped" in text)
    return browser.text("#answer")


@pytest.mark.slow
def test_a_model_answers_in_the_page_as_in_onnx_runtime(
    browser: Browser, served: tuple[str, Path]
) -> None:
    address, folder = served
    opened(browser, address)
    waited(browser, lambda text: text.startswith("Ready"))
    tokenizer, runtime = Tokenizer.load(folder), OnnxRuntime(folder)
    for prompt in ("Once upon a time", "Menschenwürde 漢字", ""):
        expected = runtime.generate([1, *tokenizer.encode(prompt)], 30)
        assert answered(
            browser, {"prompt": prompt, "temperature": 0, "count": 30}
        ) == tokenizer.decode(expected)
    drawn = [
        answered(browser, {"prompt": "The", "temperature": 1, "seed": seed}) for seed in (1, 2, 1)
    ]
    assert drawn[0] == drawn[2] != drawn[1]
    browser.run(
        "document.getElementById('prompt').value = 'x7 '.repeat(400); document.getElementById('ask').requestSubmit();"
    )
    assert "shorten it" in waited(browser, lambda text: "shorten" in text)
    no_complaints(browser)


@pytest.mark.slow
def test_a_browser_without_webassembly_is_told(browser: Browser, served: tuple[str, Path]) -> None:
    address, _ = served
    source = {"source": "delete globalThis.WebAssembly"}
    added = browser.command(
        "POST",
        "/goog/cdp/execute",
        {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": source},
    )
    opened(browser, address)
    assert "no WebAssembly" in waited(browser, lambda text: not text.startswith(("Not", "Load")))
    browser.command(
        "POST",
        "/goog/cdp/execute",
        {"cmd": "Page.removeScriptToEvaluateOnNewDocument", "params": added},
    )
    no_complaints(browser)
