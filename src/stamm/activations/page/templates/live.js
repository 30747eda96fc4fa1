// Sliders of an activation. $live has its emitted functions, and its parameters with their stops.

{
  const figure = document.getElementById("live");
  figure.hidden = false;
  const chosen = $live.parameters.map(parameter => parameter.start);
  const controls = document.getElementById("live-controls");
  let up = 1, x = 1, effective = [];

  // A stop is the distance from the bound, and the stored number.
  function refresh() {
    const value = parameter => {
      const bound = typeof parameter.bound === "string"
        ? value($live.parameters.find(other => other.name === parameter.bound)) : parameter.bound;
      const offset = parameter.stops[chosen[$live.parameters.indexOf(parameter)]][0];
      return (parameter.absolute ? Math.abs(bound) : bound) + offset;
    };
    effective = $live.parameters.map(value);
  }

  const inputs = at => $live.gated ? [at, up] : [at];
  const curves = [
    at => $live.value(...inputs(at), ...effective),
    at => $live.gradients(1, ...inputs(at), ...effective)[0],
    at => $live.curvature(...inputs(at), ...effective),
  ];
  refresh();
  const plot = new Plot(document.getElementById("live-plot"), $live.x, heights(curves, $live.x, Math.max(4, $live.x[1])));

  function draw() {
    refresh();
    const drawn = lines();
    plot.cursor = x;
    plot.draw(curves.map((curve, n) => drawn[n] ? curve : null));
    for (const control of sliders) control.show();
    document.getElementById("live-values").textContent =
      `At x = ${shown(x)}: ${$live.names.map((name, n) => `${name} = ${shown(curves[n](x))}`).join(", ")}.`;
  }

  const lines = key(document.getElementById("live-key"), $live.names, draw);
  const sliders = $live.parameters.map((parameter, n) => {
    const text = stop => `${shown(effective[n])}, stored ${shown(parameter.stops[stop][1] ?? parameter.stops[stop][0])}`;
    const limits = {id: `live-parameter-${parameter.name}`, min: 0, max: parameter.stops.length - 1, value: parameter.start};
    return slider(controls, parameter.name, limits, text, stop => { chosen[n] = stop; draw(); });
  });
  if ($live.gated)
    sliders.push(slider(controls, "up, the second input", {id: "live-up", min: -4, max: 4, step: 0.1, value: up}, shown, value => { up = value; draw(); }));
  const ends = {id: "live-x", min: $live.x[0], max: $live.x[1], step: 0.05, value: x};
  sliders.push(slider(controls, "x, read at the line", ends, shown, value => { x = value; draw(); }));
  if (chosen.length) {
    const reset = element(controls, "button", {type: "button"}, "Initial values");
    reset.addEventListener("click", () => {
      $live.parameters.forEach((parameter, n) => { chosen[n] = parameter.start; sliders[n].input.value = parameter.start; });
      draw();
    });
  }
  draw();
}
