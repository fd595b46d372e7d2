"use strict";
// Charts: each stands in the page as JSON, and Observable Plot draws it at the width there is.
const SHAPES = {square: "square", diamond: "diamond2", triangle: "triangle"};
const finite = (axis) => (value) => Number.isFinite(value) && (axis.scale !== "log" || value > 0);
const reach = (axis, values) => {
  const [low = axis.scale === "log" ? 1 : 0, high = 1] = d3.extent(values.filter(finite(axis)));
  if (axis.scale === "log") return [low / (axis.zero ? 2.5 : 1.25), high * 1.25];
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low < 0 ? low - margin : axis.zero ? 0 : Math.max(0, low - margin), high + margin];
};
const scaled = (axis, domain, space) => {
  const options = {type: axis.scale, domain, label: axis.title, labelAnchor: "center", labelArrow: "none", grid: true, ticks: Math.max(3, Math.round(space / 70))};
  if (axis.scale !== "log") return options;
  const few = d3.scaleLog(domain, [0, 1]).ticks(6).filter((tick) => tick >= domain[0] && tick <= domain[1]);
  const steps = few.length > 8 ? few.filter((tick) => /^[125]/.test(tick.toExponential())) : few;
  const kept = steps.length > 8 ? steps.filter((tick) => /^1/.test(tick.toExponential())) : steps;
  options.ticks = axis.zero ? [domain[0], ...kept.filter((tick) => tick > domain[0] * 1.5)] : kept;
  options.tickFormat = (tick) => (axis.zero && tick === domain[0] ? "0" : tick >= 1e-4 && tick < 1e6 ? String(+tick.toPrecision(3)) : tick.toExponential(0));
  return options;
};
const drawChart = (spec, width) => {
  const {x, y} = spec, ys = spec.marks.map((mark) => mark.y), xs = spec.marks.flatMap((mark) => [mark.x, mark.to ?? mark.x]);
  if (spec.limit) ys.push(spec.limit[0]);
  const both = spec.square ? [...xs, ...ys] : null, X = reach(x, both ?? xs), Y = reach(y, both ?? ys);
  const at = (axis, domain, value) => (axis.scale === "log" && axis.zero && value === 0 ? domain[0] : value);
  const marks = spec.marks.map((mark) => ({...mark, px: at(x, X, mark.x), py: at(y, Y, mark.y)})).filter((mark) => finite(x)(mark.px) && finite(y)(mark.py));
  const color = (mark) => `var(--${mark.look})`;
  const across = (mark) => (x.scale === "log" ? Math.log(mark.px / X[0]) / Math.log(X[1] / X[0]) : (mark.px - X[0]) / (X[1] - X[0]));
  const right = (mark) => 75 + across(mark) * (width - 78) + 7.5 * mark.label.length > width;
  const label = (dx, textAnchor, keep) => Plot.text(marks.filter((mark) => mark.label && keep(mark)), {x: "px", y: "py", text: "label", dx, textAnchor, fill: "currentColor", stroke: "var(--paper)", strokeWidth: 4, fontWeight: 560});
  return Plot.plot({
    width, height: Math.min(372, Math.max(260, width * 0.8)), marginLeft: 62, marginBottom: 46, marginRight: 16,
    style: {background: "none", color: "var(--ink)", fontSize: width < 420 ? "13px" : "12px", fontFamily: "inherit", overflow: "visible"},
    x: scaled(x, X, width), y: scaled(y, Y, 320), color: {type: "identity"},
    marks: [
      spec.limit ? Plot.rectY([0], {x1: X[0], x2: X[1], y1: Math.max(Y[0], spec.limit[0]), y2: Y[1], fill: "var(--bad)", fillOpacity: 0.1}) : null,
      spec.square ? Plot.line([X, X].map((ends, index) => [ends[index], ends[index]]), {stroke: "var(--soft)", strokeWidth: 1.3}) : null,
      spec.limit ? Plot.ruleY([spec.limit[0]], {stroke: "var(--bad)", strokeDasharray: "5 4"}) : null,
      spec.limit ? Plot.text([spec.limit], {x: () => X[1], y: "0", text: "1", textAnchor: "end", dx: -4, dy: -8, fill: "var(--soft)", stroke: "var(--paper)", strokeWidth: 3}) : null,
      Plot.ruleY(marks.filter((mark) => Number.isFinite(mark.to)), {x1: "px", x2: "to", y: "py", stroke: "var(--soft)"}),
      Plot.dot(marks, {x: "px", y: "py", r: (mark) => (mark.look === "dot" ? 3.6 : 4.6), symbol: (mark) => SHAPES[mark.symbol] ?? "circle", stroke: color, fill: (mark) => (mark.hollow ? "var(--paper)" : color(mark)), fillOpacity: (mark) => (mark.look === "dot" ? 0.5 : 0.9), strokeWidth: 1.5, ariaLabel: "text"}),
      Plot.dot(marks.filter((mark) => mark.ring), {x: "px", y: "py", r: 9, stroke: color, strokeWidth: 1.6}),
      label(13, "start", (mark) => !right(mark)),
      label(-13, "end", right),
      Plot.tip(marks, Plot.pointer({x: "px", y: "py", title: "text", fill: "var(--card)", stroke: "var(--edge)", lineWidth: 26, fontSize: 12.5})),
    ],
  });
};
for (const box of document.querySelectorAll("div.chart")) {
  const spec = JSON.parse(box.nextElementSibling.textContent);
  let drawn = 0;
  const draw = () => {
    if (!box.clientWidth || Math.abs(box.clientWidth - drawn) < 2) return;
    drawn = box.clientWidth;
    try {
      box.replaceChildren(drawChart(spec, Math.min(600, drawn)));
    } catch (error) {
      box.replaceChildren(`This chart failed in the browser (${error}).`);
    }
  };
  new ResizeObserver(draw).observe(box);
  draw();
}
