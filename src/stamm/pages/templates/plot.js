// A plot of functions of x in an <svg>: axes, a cursor, and lines that end at jumps. Colours and
// dashes are those of the page's style sheet.

const CELLS = 400, SVG = document.querySelector("svg.live-plot").namespaceURI;

function element(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS(name === "svg" ? SVG : parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  parent.append(made);
  return made;
}

function shown(number) {
  if (!Number.isFinite(number)) return Number.isNaN(number) ? "no value" : number > 0 ? "∞" : "−∞";
  return String(Number(number.toPrecision(4))).replace("-", "−");
}

// Where [a, b] holds a jump, the two numbers beside it with their values; else null.
function jumpIn(f, a, atA, b, atB) {
  const whole = Math.abs(atB - atA);
  for (let n = 0; n < 40; n++) {
    const middle = (a + b) / 2, value = f(middle);
    if (Math.abs(value - atA) > Math.abs(atB - value)) [b, atB] = [middle, value];
    else [a, atA] = [middle, value];
  }
  return Math.abs(atB - atA) > whole / 2 ? [a, atA, b, atB] : null;
}

class Plot {
  // x, y: the ends of the axes.
  constructor(svg, x, y) {
    this.svg = svg;
    this.x = x;
    this.y = y;
    this.curves = [];
    this.cursor = 0;
    new ResizeObserver(() => this.frame()).observe(svg);
    this.frame();
  }

  column(x) { return 40 + (this.width - 48) * (x - this.x[0]) / (this.x[1] - this.x[0]); }

  row(y) { return 8 + (this.height - 32) * (this.y[1] - y) / (this.y[1] - this.y[0]); }

  // Draw the axes for the present width, then the curves.
  frame() {
    this.width = Math.max(240, this.svg.clientWidth);
    this.height = Math.min(400, Math.max(240, Math.round(this.width * 0.55)));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.style.height = `${this.height}px`;
    this.svg.replaceChildren();
    for (const [ends, isX] of [[this.x, true], [this.y, false]]) {
      const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20].find(s => (ends[1] - ends[0]) / s <= (isX ? this.width / 50 : 9)) ?? 50;
      for (let n = Math.ceil(ends[0] / step); n * step <= ends[1]; n++) {
        const at = isX ? this.column(n * step) : this.row(n * step);
        const line = isX ? `M${at} 8V${this.height - 24}` : `M40 ${at}H${this.width - 8}`;
        element(this.svg, "path", {class: n ? "grid" : "axis", d: line});
        const place = isX ? {x: at, y: this.height - 8, "text-anchor": "middle"} : {x: 34, y: at + 4, "text-anchor": "end"};
        element(this.svg, "text", place, shown(n * step));
      }
    }
    const inner = element(this.svg, "svg", {x: 40, y: 8, width: this.width - 48, height: this.height - 32, viewBox: `40 8 ${this.width - 48} ${this.height - 32}`});
    this.mark = element(inner, "path", {class: "cursor"});
    this.lines = [0, 1, 2].map(n => element(inner, "path", {class: `curve curve-${n}`}));
    this.draw(this.curves);
  }

  // curves: at most three functions of x; null leaves a line out.
  draw(curves) {
    this.curves = curves;
    this.lines.forEach((line, n) => line.setAttribute("d", curves[n] ? this.path(curves[n]) : ""));
    this.mark.setAttribute("d", `M${this.column(this.cursor)} 0V${this.height}`);
  }

  path(f) {
    const far = 4 * (this.y[1] - this.y[0]), steep = far / 80;
    const bounded = y => this.row(Math.max(this.y[0] - far, Math.min(this.y[1] + far, y))).toFixed(1);
    let d = "", pen = "M", before = NaN, beforeY = NaN;
    const to = (x, y) => {
      d += Number.isNaN(y) ? "" : `${pen}${this.column(x).toFixed(1)} ${bounded(y)}`;
      pen = Number.isNaN(y) ? "M" : "L";
    };
    for (let n = 0; n <= CELLS; n++) {
      const x = this.x[0] + (this.x[1] - this.x[0]) * n / CELLS, y = f(x);
      const jump = Math.abs(y - beforeY) > steep && jumpIn(f, before, beforeY, x, y);
      if (jump) {
        to(jump[0], jump[1]);
        pen = "M";
        to(jump[2], jump[3]);
      }
      to(x, y);
      [before, beforeY] = [x, y];
    }
    return d;
  }
}

// The ends of a y axis that shows the curves between `x`, inside -reach to reach.
function heights(curves, x, reach) {
  let [low, high] = [-1, 1];
  for (const f of curves)
    for (let n = 0; n <= 80; n++) {
      const y = f(x[0] + (x[1] - x[0]) * n / 80);
      if (y > high) high = Math.min(y, reach);
      if (y < low) low = Math.max(y, -reach);
    }
  return [low - 0.05 * (high - low), high + 0.05 * (high - low)];
}

// A labelled range input with its value as text. `text` gives the words for an index or number.
function slider(parent, label, limits, text, changed) {
  const row = element(parent, "div", {class: "slider"});
  const name = element(row, "label", {for: limits.id}, label);
  const input = element(row, "input", {type: "range", ...limits});
  const output = element(row, "output", {for: limits.id});
  const show = () => {
    output.textContent = text(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { changed(Number(input.value)); });
  return {input, name, show};
}

// Checkboxes with the colours of the lines; `changed` gets a list of truth values.
function key(parent, names, changed) {
  const boxes = names.map((name, n) => {
    const label = element(parent, "label", {class: "key"});
    const box = element(label, "input", {type: "checkbox"});
    box.checked = true;
    const sample = element(label, "svg", {viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true"});
    element(sample, "path", {class: `curve curve-${n}`, d: "M0 4H28"});
    element(label, "span", {}, name);
    box.addEventListener("change", () => changed());
    return box;
  });
  return () => boxes.map(box => box.checked);
}
