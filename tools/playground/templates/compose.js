// A gradient from pieces, its integral, and the line of `stamm derive`. $page has the functions of
// the language from stamm's own kernels, rules of integration, terms to insert, and examples.

{
  const find = id => document.getElementById(id);
  const functions = {...Object.fromEntries($page.plain.map(name => [name, Math[name]])), ...$page.functions};
  const all = {...functions, ...$page.hidden};
  // Of the text of an integral, the part that depends on x: constants follow from the knots.
  const moving = tree => {
    if (tree.kind !== "+" && tree.kind !== "-") return tree;
    if (!namesIn(tree.b).includes("x")) return moving(tree.a);
    if (namesIn(tree.a).includes("x")) return {...tree, a: moving(tree.a)};
    return tree.kind === "+" ? tree.b : {kind: "neg", a: tree.b};
  };
  const rules = $page.rules.map(([gradient, text]) => [parse(gradient, all), moving(parse(text, all))]);
  const HOWS = {
    softplus: [0.05, 5], exp: [0.05, 5], absolute: [0, 5], "between(0,1)": [0.02, 0.98],
    "between(-1,1)": [-0.98, 0.98], identity: [-4, 4], fixed: [-4, 4],
  };
  let pieces = [], knots = [], parameters = Object.create(null), limits = [];

  // The ends of a slider; "softplus>b" stays above the value of b.
  function range(how) {
    const above = /^\w+>(\w+)$/.exec(how)?.[1];
    if (!above) return HOWS[how] ?? [-4, 4];
    const bound = parameters[above]?.value ?? Number(above);
    return [bound + 0.05, bound + 5];
  }

  const interval = n => pieces.length === 1 ? "all x" : n === 0 ? `x <= ${knots[0]}`
    : n === knots.length ? `x > ${knots[n - 1]}` : `${knots[n - 1]} < x <= ${knots[n]}`;
  const quoted = word => /^[\w=:.,+-]+$/.test(word) ? word : `'${word}'`;
  const pieceAt = x => { const n = knots.findIndex(knot => x <= knot); return n < 0 ? knots.length : n; };

  // Rows of controls: one for each piece, and between two of them the knot.
  function rows() {
    const box = find("pieces");
    box.replaceChildren();
    pieces.forEach((formula, n) => {
      const row = element(box, "div", {class: "piece"});
      element(row, "label", {for: `piece-${n}`});
      const input = element(row, "input", {id: `piece-${n}`, type: "text", spellcheck: "false", autocomplete: "off", maxlength: LONGEST});
      input.value = formula;
      input.addEventListener("input", () => { pieces[n] = input.value; refresh(); });
      const terms = element(row, "select", {"aria-label": `Term for piece ${n + 1}`});
      for (const term of $page.terms) element(terms, "option", {}, term);
      const more = element(row, "button", {type: "button", "aria-label": `Add the term to piece ${n + 1}`}, "Add");
      more.addEventListener("click", () => {
        pieces[n] = ["", "0"].includes(pieces[n].trim()) ? terms.value : `${pieces[n].trim()} + ${terms.value}`;
        input.value = pieces[n];
        refresh();
      });
      if (n === knots.length) return;
      const line = element(box, "div", {class: "knot"});
      element(line, "label", {for: `knot-${n}`}, `knot ${n + 1}`);
      const knot = element(line, "input", {id: `knot-${n}`, type: "number", step: "0.1", value: knots[n]});
      knot.addEventListener("input", () => { knots[n] = knot.value === "" ? NaN : Number(knot.value); refresh(); });
      const join = element(line, "button", {type: "button"}, "Remove the piece after it");
      join.addEventListener("click", () => { knots.splice(n, 1); pieces.splice(n + 1, 1); rows(); refresh(); });
    });
  }

  // A row for each parameter that the formulas or the bounds of others use.
  function parameterRows(names) {
    const box = find("parameters");
    if (box.dataset.names === names.join()) return;
    box.dataset.names = names.join();
    box.replaceChildren();
    limits = [];
    for (const name of names) {
      const parameter = parameters[name] ??= {value: 1, how: "softplus"};
      const show = () => {
        const [low, high] = range(parameter.how);
        parameter.value = Math.min(high, Math.max(low, parameter.value));
        Object.assign(row.input, {min: low, max: high, value: parameter.value});
        row.show();
      };
      const row = slider(box, name, {id: `parameter-${name}`, step: "any"}, () => shown(parameter.value),
        value => { parameter.value = Number(value.toFixed(2)); refresh(); });
      const how = element(row.input.parentNode, "select", {"aria-label": `How ${name} is stored`});
      for (const choice of new Set([...Object.keys(HOWS), parameter.how])) element(how, "option", {}, choice);
      how.value = parameter.how;
      how.addEventListener("change", () => { parameter.how = how.value; refresh(); });
      row.input.step = "0.01";
      limits.push(show);
    }
  }

  function checkedTrees() {
    if (knots.some((knot, n) => !(Math.abs(knot) <= 100) || knot <= knots[n - 1]))
      throw new Error("Knots are numbers from −100 to 100, in rising order.");
    return pieces.map((formula, n) => {
      try {
        const tree = parse(formula, functions);
        for (const name of namesIn(tree)) {
          if (name === "x" || name === "pi") continue;
          if (!/^[a-z][a-z0-9_]{0,30}$/.test(name) || $page.reserved.includes(name) || Object.hasOwn(all, name))
            throw new Error(`“${name.slice(0, 40)}” cannot be the name of a parameter`);
        }
        return tree;
      } catch (error) { throw new Error(`Piece ${n + 1}: ${error.message}.`); }
    });
  }

  // Whether the gradient is continuous at its knots: at these values of the parameters and at others.
  function continuity(trees, gradients, values) {
    const names = Object.keys(values);
    const others = [0, 0.3, 0.7].map(step => Object.fromEntries(names.map((name, n) => {
      const {value, how} = parameters[name], high = range(how)[1];
      return [name, how === "fixed" ? value : value + step * (n + 1) / names.length * (high - value)];
    })));
    let kind = pieces.some(text => /\bsign\s*\(/.test(text)) ? "jump" : "continuous";
    knots.forEach((knot, n) => others.forEach(given => {
      const [below, above] = [gradients[n], gradients[n + 1]].map(g => g({...given, x: knot}));
      if (!Number.isFinite(below) || !Number.isFinite(above)) kind = "singular";
      else if (kind === "continuous" && !(Math.abs(below - above) <= 1e-9 * Math.max(1, Math.abs(below), Math.abs(above)))) kind = "jump";
    }));
    return kind;
  }

  // The integral as a function, by three Gauss points in each cell between nodes.
  function summed(gradient, x, start) {
    const nodes = [...Array(241).keys()].map(n => x[0] + (x[1] - x[0]) * n / 240).concat(knots, 0).sort((a, b) => a - b);
    const cell = (a, b) => {
      const half = (b - a) / 2, middle = (a + b) / 2, away = half * Math.sqrt(0.6);
      return half * (5 * gradient(middle - away) + 8 * gradient(middle) + 5 * gradient(middle + away)) / 9;
    };
    const sums = [0];
    for (let n = 1; n < nodes.length; n++) sums.push(sums[n - 1] + cell(nodes[n - 1], nodes[n]));
    const shift = start - sums[nodes.indexOf(0)];
    return at => {
      let [low, high] = [0, nodes.length - 1];
      while (high - low > 1) { const middle = (low + high) >> 1; if (nodes[middle] <= at) low = middle; else high = middle; }
      return sums[low] + shift + cell(nodes[low], at);
    };
  }

  function closedForms(trees, values, numerical, x) {
    const list = find("closed");
    list.replaceChildren();
    let worst = 0, whole = true;
    trees.forEach((tree, n) => {
      const form = integral(tree, rules), label = `${interval(n)}: `;
      const without = why => { whole = false; element(list, "li", {}, label + why); };
      if (!form) { without("not among the rules of this page; stamm derive knows more"); return; }
      const value = compiled(form, all), low = n ? knots[n - 1] : x[0], high = n < knots.length ? knots[n] : x[1];
      const from = Math.min(high, Math.max(low, 0)), constant = numerical(from) - value({...values, x: from});
      let apart = 0;
      for (let k = 0; k <= 60; k++) {
        const at = low + (high - low) * k / 60, exact = value({...values, x: at}) + constant;
        apart = Math.max(apart, Math.abs(exact - numerical(at)) / Math.max(1, Math.abs(exact)));
      }
      // tanh(b*x) has log_cosh(b*x)/b, which is nothing at b = 0.
      if (!Number.isFinite(apart)) { without("no closed form at these values of the parameters"); return; }
      worst = Math.max(worst, apart);
      const sign = constant < 0 ? "-" : "+", size = Number(Math.abs(constant).toPrecision(7));
      element(list, "li", {}, `${label}f(x) = ${written(form)}${size ? ` ${sign} ${size}` : ""}`);
    });
    find("agreement").textContent = whole
      ? `The closed form and the numerical integral differ by at most ${worst.toExponential(1)}, relative to 1 or the value. Constants are those at the present values of the parameters.`
      : "The curve is the numerical integral.";
  }

  function line(names, kind) {
    const name = find("name").value, start = Number(find("start").value), gate = find("gate").value;
    if (!/^[a-z][a-z0-9_]{0,40}$/.test(name) || $page.reserved.includes(name)) throw new Error("The name is of small letters, digits and _, and begins with a letter.");
    if ($page.taken.includes(name)) throw new Error(`The catalogue has an activation called ${name}: choose another name.`);
    if (find("start").value === "" || !Number.isFinite(start)) throw new Error("f(0) is a number.");
    const words = pieces.map((formula, n) => `${interval(n)}: ${formula.trim().replace(/\s+/g, " ")}`);
    for (const parameter of names) words.push("--parameter", `${parameter}=${parameters[parameter].value}:${parameters[parameter].how}`);
    if (start) words.push("--anchor", `0=${start}`);
    if (kind !== "continuous") words.push("--continuity", kind);
    if (gate) words.push("--gated", gate);
    return ["stamm derive", ...words.map(quoted), "--name", name].join(" ");
  }

  let plot = null;
  const lines = key(find("keys"), ["f(x), summed numerically", "f′(x), as stated", "f″(x), by differences"], () => refresh());

  function refresh() {
    pieces.forEach((_, n) => { find(`piece-${n}`).previousElementSibling.textContent = `f′(x) for ${interval(n)}`; });
    try {
      const trees = checkedTrees();
      const names = [...new Set(trees.flatMap(namesIn))].filter(name => name !== "x" && name !== "pi");
      for (const name of names) {  // also those that only bound another
        const bound = /^\w+>([a-z]\w*)$/.exec(parameters[name]?.how)?.[1];
        if (bound && !names.includes(bound)) names.push(bound);
      }
      parameterRows(names);
      for (const limit of limits) limit();
      const values = Object.fromEntries(names.map(name => [name, parameters[name].value]));
      const parts = trees.map(tree => compiled(tree, functions));
      const gradients = parts.map(part => x => part({...values, x}));
      const gradient = x => gradients[pieceAt(x)](x);
      const reach = Math.max(4, ...knots.map(knot => Math.abs(knot) + 1)), x = [-reach, reach];
      for (let n = 1; n < 400; n++) {
        const at = x[0] + (x[1] - x[0]) * (n + 0.25) / 400, grid = x[0] + (x[1] - x[0]) * n / 400;
        if (Math.abs(gradient(grid)) === Infinity) throw new Error(`Piece ${pieceAt(grid) + 1} has a pole at x = ${shown(grid)}.`);
        if (!Number.isFinite(gradient(at))) throw new Error(`Piece ${pieceAt(at) + 1} has no finite value at x = ${shown(at)}.`);
      }
      const command = line(names, continuity(trees, parts, values));
      const f = summed(gradient, x, Number(find("start").value)), step = 1e-4;
      const second = at => { const g = gradients[pieceAt(at)]; return (g(at + step) - g(at - step)) / (2 * step); };
      const curves = [f, gradient, second], drawn = lines();
      plot ??= new Plot(find("plot"), x, [-1, 1]);
      plot.x = x;
      plot.y = heights(curves, x, Math.max(4, reach));
      plot.curves = curves.map((curve, n) => drawn[n] ? curve : null);
      plot.frame();
      closedForms(trees, values, f, x);
      find("line").textContent = command;
      find("problem").textContent = "";
      find("copy").disabled = false;
    } catch (error) {
      find("problem").textContent = error.message;
      find("closed").replaceChildren();
      find("agreement").textContent = "";
      find("line").textContent = "";
      find("copy").disabled = true;
    }
  }

  function load(example) {
    ({pieces: [...pieces], knots: [...knots]} = {pieces: example.pieces, knots: example.knots});
    parameters = Object.create(null);  // a parameter may be called "constructor"
    for (const {name, value, how} of example.parameters) parameters[name] = {value, how};
    find("start").value = example.start;
    find("parameters").dataset.names = "of another example";
    rows();
    refresh();
  }

  for (const example of $page.examples) element(find("example"), "option", {}, example.name);
  find("example").addEventListener("change", () => load($page.examples[find("example").selectedIndex]));
  find("add").addEventListener("click", () => {
    knots.push(knots.length ? knots.at(-1) + 1 : 0);
    pieces.push(pieces.at(-1));
    rows();
    refresh();
  });
  for (const id of ["name", "start", "gate"]) find(id).addEventListener("input", refresh);
  find("copy").addEventListener("click", async () => {
    getSelection().selectAllChildren(find("line"));
    const copied = await navigator.clipboard?.writeText(find("line").textContent).then(() => true, () => false);
    find("copied").textContent = copied ? "Copied." : "Selected: copy it with the keyboard.";
  });
  find("composer").hidden = false;
  load($page.examples[0]);
}
