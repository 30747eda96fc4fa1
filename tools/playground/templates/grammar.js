// The formula language of stamm, as far as a page reads it. A text becomes a tree, and a tree a
// chain of closures: nothing that is typed is ever run as a program.

const LONGEST = 2000, DEEPEST = 60, MOST_TERMS = 100, LARGEST_EXPONENT = 64;  // those of stamm
const TOKEN = /\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z_][A-Za-z0-9_]*)|(\*\*|[-+*/()]))/y;

// The tree of a formula: {kind, ...}. `functions` maps the names that may be called to what computes
// them; other names are variables. Throws an Error whose message quotes what is wrong.
function parse(text, functions) {
  if (text.length > LONGEST) throw new Error(`longer than ${LONGEST} characters`);
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim() !== "") {
    const start = TOKEN.lastIndex, match = TOKEN.exec(text);
    if (!match) throw new Error(`“${text.slice(start).trim().slice(0, 12)}” is not in the language${text[start] === "^" ? ": write ** for a power" : ""}`);
    if (/^0\d/.test(match[1] ?? "")) throw new Error(`“${match[1]}” begins with 0`);
    tokens.push(match[1] !== undefined ? {number: match[1]} : match[2] !== undefined ? {name: match[2]} : {sign: match[3]});
  }
  let place = 0, depth = 0;
  const next = sign => tokens[place]?.sign === sign && ++place > 0;

  function flat(operand, signs) {
    let tree = operand();
    for (let terms = 2; ; terms++) {
      const sign = signs.find(next);
      if (!sign) return tree;
      if (terms > MOST_TERMS) throw new Error(`more than ${MOST_TERMS} terms or factors in a row`);
      tree = {kind: sign, a: tree, b: operand()};
    }
  }
  function sum() {
    if (++depth > DEEPEST) throw new Error(`nested deeper than ${DEEPEST}`);
    const tree = flat(product, ["+", "-"]);
    depth--;
    return tree;
  }
  function product() { return flat(signed, ["*", "/"]); }
  function signed() {
    if (++depth > DEEPEST) throw new Error(`nested deeper than ${DEEPEST}`);
    const tree = next("-") ? {kind: "neg", a: signed()} : next("+") ? signed() : power();
    depth--;
    return tree;
  }
  function power() {
    const base = atom();
    if (!next("**")) return base;
    const exponent = signed();
    if (Number(exponent.text ?? exponent.a?.text) > LARGEST_EXPONENT) throw new Error(`an exponent above ${LARGEST_EXPONENT}`);
    return {kind: "**", a: base, b: exponent};
  }
  function atom() {
    const token = tokens[place++];
    if (!token) throw new Error("the formula ends too early");
    if (token.number !== undefined) return {kind: "number", text: token.number};
    if (token.sign === "(") return closed(sum());
    if (token.name === undefined) throw new Error(`“${token.sign}” has nothing before it`);
    if (!next("(")) return {kind: "name", name: token.name};
    if (!Object.hasOwn(functions, token.name)) throw new Error(`there is no function “${token.name.slice(0, 40)}”; there are ${Object.keys(functions).join(", ")}`);
    return {kind: "call", name: token.name, a: closed(sum())};
  }
  function closed(tree) {
    if (!next(")")) throw new Error("a parenthesis is not closed");
    return tree;
  }

  const tree = sum();
  if (place < tokens.length) {
    const token = tokens[place];
    throw new Error(`a sign is missing before “${(token.number ?? token.name ?? token.sign).slice(0, 40)}”; write products as 2*x`);
  }
  return tree;
}

// The names of a tree that are not functions.
function namesIn(tree) {
  if (!tree) return [];
  return tree.kind === "name" ? [tree.name] : [...namesIn(tree.a), ...namesIn(tree.b)];
}

// A function of an object of values that computes a tree.
function compiled(tree, functions) {
  const a = tree.a && compiled(tree.a, functions), b = tree.b && compiled(tree.b, functions);
  switch (tree.kind) {
    case "number": { const value = Number(tree.text); return () => value; }
    case "name": return tree.name === "pi" ? () => Math.PI : values => values[tree.name];
    case "neg": return values => -a(values);
    case "+": return values => a(values) + b(values);
    case "-": return values => a(values) - b(values);
    case "*": return values => a(values) * b(values);
    case "/": return values => a(values) / b(values);
    case "**": return values => a(values) ** b(values);
    case "call": { const call = functions[tree.name]; return values => call(a(values)); }
  }
}

const RANK = {"+": 1, "-": 1, "*": 2, "/": 2, neg: 2, "**": 4};

// A tree as text of the language.
function written(tree, rank = 0) {
  if (tree.kind === "number") return tree.text;
  if (tree.kind === "name") return tree.name;
  if (tree.kind === "call") return `${tree.name}(${written(tree.a)})`;
  const own = RANK[tree.kind];
  let text;
  if (tree.kind === "neg") text = `-${written(tree.a, own)}`;
  else if (tree.kind === "**") text = `${written(tree.a, own + 1)}**${written(tree.b, own)}`;
  else text = own === 1 ? `${written(tree.a, 1)} ${tree.kind} ${written(tree.b, 2)}` : `${written(tree.a, 2)}${tree.kind}${written(tree.b, 3)}`;
  return own < rank || (tree.kind === "neg" && rank > 0) ? `(${text})` : text;
}

const same = (a, b) => written(a) === written(b);
const times = (a, b) => a.text === "1" ? b : b.text === "1" ? a : {kind: "*", a, b};
const over = (a, b) => b.text === "1" ? a : {kind: "/", a, b};
const ONE = {kind: "number", text: "1"};

// The tree with a tree in the place of x.
function substituted(tree, x) {
  if (tree.kind === "name") return tree.name === "x" ? x : tree;
  return {...tree, ...(tree.a && {a: substituted(tree.a, x)}), ...(tree.b && {b: substituted(tree.b, x)})};
}

// What x is in `pattern` where it is like `tree`, or null.
function matched(pattern, tree) {
  if (pattern.kind === "name" && pattern.name === "x") return tree;
  if (pattern.kind !== tree.kind || pattern.name !== tree.name || pattern.text !== tree.text) return null;
  const sides = [["a", "a"], ["b", "b"]].filter(([side]) => pattern[side] && namesIn(pattern[side]).includes("x"));
  for (const side of ["a", "b"])
    if (pattern[side] && !namesIn(pattern[side]).includes("x") && !same(pattern[side], tree[side])) return null;
  const all = sides.map(([side]) => matched(pattern[side], tree[side]));
  return all.every(Boolean) && all.every(one => same(one, all[0])) ? all[0] : null;
}

// The factor of x in a tree that is a*x + b with a and b free of x, or null.
function slopeOf(tree) {
  const has = part => namesIn(part).includes("x");
  if (tree.kind === "name" && tree.name === "x") return ONE;
  if ((tree.kind === "+" || tree.kind === "-") && has(tree) && !(has(tree.a) && has(tree.b))) {
    const slope = slopeOf(has(tree.a) ? tree.a : tree.b);
    return slope && tree.kind === "-" && has(tree.b) ? {kind: "neg", a: slope} : slope;
  }
  if (tree.kind === "neg") { const slope = slopeOf(tree.a); return slope && {kind: "neg", a: slope}; }
  if (tree.kind === "*" && has(tree.a) !== has(tree.b)) {
    const [linear, factor] = has(tree.a) ? [tree.a, tree.b] : [tree.b, tree.a], slope = slopeOf(linear);
    return slope && times(factor, slope);
  }
  if (tree.kind === "/" && !has(tree.b)) { const slope = slopeOf(tree.a); return slope && over(slope, tree.b); }
  return null;
}

// An integral of a tree by linearity and the rules, a list of [gradient, integral]; null where none fits.
function integral(tree, rules) {
  if (!namesIn(tree).includes("x")) return times(tree, {kind: "name", name: "x"});
  if (tree.kind === "+" || tree.kind === "-") {
    const a = integral(tree.a, rules), b = a && integral(tree.b, rules);
    return a && b && {kind: tree.kind, a, b};
  }
  if (tree.kind === "neg") { const a = integral(tree.a, rules); return a && {kind: "neg", a}; }
  const free = part => !namesIn(part).includes("x");
  if (tree.kind === "*" && (free(tree.a) || free(tree.b))) {
    const [factor, rest] = free(tree.a) ? [tree.a, tree.b] : [tree.b, tree.a], found = integral(rest, rules);
    return found && times(factor, found);
  }
  if (tree.kind === "/" && free(tree.b)) { const a = integral(tree.a, rules); return a && over(a, tree.b); }
  for (const [gradient, rule] of rules) {
    const inner = matched(gradient, tree), slope = inner && slopeOf(inner);
    if (slope) return over(substituted(rule, inner), slope);
  }
  if (tree.kind === "/" && free(tree.a) && tree.a.text !== "1") {
    const inverse = integral({...tree, a: ONE}, rules);
    return inverse && times(tree.a, inverse);
  }
  if (tree.kind === "*" && tree.a.kind === "*" && free(tree.a.a))  // c*u*v as c*(u*v)
    return integral({kind: "*", a: tree.a.a, b: {kind: "*", a: tree.a.b, b: tree.b}}, rules);
  return null;
}
