// Lines by round as inline SVG, in the manner of the reports' figures: names at the ends of lines, no box, few ticks.

const SPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 230, TOP = 26, BOTTOM = 30, LEFT = 44;
const MOST_POINTS = 300; // more are not seen at this size
const FEW_POINTS = 12; // up to here every point gets a marker
const WIDE = 6; // largest over smallest from which a scale is logarithmic
const LABEL = 15; // pixels between two labels

export function element(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// chart: {name, unit, lines: [{label, kind, points: [[round, value]], dashes}], levels: [{label, value, kind}], format, fromZero, widen, rounds}
export function draw(chart, width) {
  const lines = chart.lines.filter((line) => line.points.length);
  const shown = [...lines, ...chart.levels].map((one) => short(one.label));
  const margin = Math.min(0.3 * width, Math.max(12, ...shown.map((label) => 12 + 6.4 * label.length)));
  const right = width - margin, low = HEIGHT - BOTTOM;
  const values = [...lines.flatMap((line) => line.points.map((point) => point[1])), ...chart.levels.map((level) => level.value)];
  const scale = vertical(values, chart, low);
  const last = Math.max(1, ...lines.map((line) => line.points.at(-1)[0]));
  const across = (round) => LEFT + (right - LEFT) * (round / last);
  const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": describe(chart, lines) });
  svg.append(element("text", { x: 0, y: 11 }, chart.unit));
  for (const tick of scale.ticks) {
    const y = scale.place(tick);
    svg.append(element("line", { class: "grid", x1: LEFT, x2: right, y1: y, y2: y }));
    svg.append(element("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, chart.format(tick)));
  }
  svg.append(element("line", { class: "axis", x1: LEFT, x2: right, y1: low, y2: low }));
  for (const tick of evenly(0, last, Math.max(2, Math.min(5, Math.floor((right - LEFT) / 70)))).filter(Number.isInteger)) {
    svg.append(element("line", { class: "axis", x1: across(tick), x2: across(tick), y1: low, y2: low + 3 }));
    svg.append(element("text", { x: across(tick), y: low + 16, "text-anchor": "middle" }, tick.toLocaleString("en")));
  }
  svg.append(element("text", { x: width, y: low + 16, "text-anchor": "end" }, "round"));
  for (const level of chart.levels) {
    const y = scale.place(level.value);
    svg.append(element("line", { class: `level ${level.kind ?? ""}`, x1: LEFT, x2: right, y1: y, y2: y }));
  }
  for (const line of lines) {
    const places = thin(line.points).map(([round, value]) => [across(round), scale.place(value)]);
    const path = element("path", { class: `line ${line.kind}`, d: "M" + places.map((place) => place.map((at) => at.toFixed(1)).join(",")).join("L") });
    if (line.dashes) path.setAttribute("stroke-dasharray", line.dashes);
    svg.append(path);
    for (const [x, y] of places.length <= FEW_POINTS ? places : places.slice(-1)) svg.append(element("circle", { class: line.kind, cx: x, cy: y, r: 2.6 }));
  }
  const named = [
    ...lines.map((line) => ({ label: line.label, kind: line.kind, y: scale.place(line.points.at(-1)[1]) })),
    ...chart.levels.map((level) => ({ label: level.label, kind: level.kind ?? "", y: scale.place(level.value) })),
  ].filter((one) => one.label);
  svg.geometry = { lines, across, place: scale.place, low, width };
  for (const one of apart(named, low)) svg.append(element("text", { class: one.kind, x: right + 8, y: one.y + 4 }, short(one.label)));
  return svg;
}

// The values of the round under the pointer. `plot.pointer` stays when the figure is drawn again.
export function showValues(plot, chart, svg) {
  const { lines, across, place, low, width } = svg.geometry;
  const rounds = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))];
  const mark = element("g", { class: "mark" }), tip = document.createElement("div");
  tip.className = "tip";
  const follow = (x) => {
    plot.pointer = x;
    tip.hidden = x === null;
    mark.replaceChildren();
    if (x === null) return;
    const round = rounds.reduce((best, one) => (Math.abs(across(one) - x) < Math.abs(across(best) - x) ? one : best));
    const at = across(round), read = [];
    mark.append(element("line", { class: "axis", x1: at, x2: at, y1: TOP, y2: low }));
    for (const line of lines) {
      const value = line.points.find((point) => point[0] === round)?.[1];
      if (value === undefined) continue;
      mark.append(element("circle", { class: line.kind, cx: at, cy: place(value), r: 4 }));
      read.push(`${line.label ? `${line.label}: ` : ""}${chart.format(value)}`);
    }
    const words = [`round ${round.toLocaleString("en")}`, ...read].map((text) => Object.assign(document.createElement("div"), { textContent: text }));
    tip.replaceChildren(...words);
    tip.style.left = at < width / 2 ? `${at + 10}px` : "";
    tip.style.right = at < width / 2 ? "" : `${width - at + 10}px`;
  };
  const moved = (event) => follow(((event.clientX - svg.getBoundingClientRect().left) * width) / svg.clientWidth);
  plot.onpointermove = plot.onpointerdown = moved; // of the plot, which stays when the figure is drawn again
  plot.onpointerleave = () => follow(null);
  svg.append(mark);
  plot.append(tip);
  follow(plot.pointer ?? null);
}

function vertical(values, chart, low) {
  const least = Math.min(...values), most = Math.max(...values);
  if (chart.widen && least > 0 && most / least > WIDE) {
    const from = Math.log(least / 1.15), to = Math.log(most * 1.15);
    const subs = most / least < 300 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power++) ticks.push(...subs.map((sub) => sub * 10 ** power));
    return { ticks: ticks.filter((tick) => Math.log(tick) >= from && Math.log(tick) <= to), place: (value) => low - ((low - TOP) * (Math.log(value) - from)) / (to - from) };
  }
  const room = (most - least) * 0.08 || Math.abs(most) * 0.1 || 0.1;
  const from = chart.fromZero ? Math.min(0, least) : least - room, to = most + room;
  return { ticks: evenly(from, to, 5), place: (value) => low - ((low - TOP) * (value - from)) / (to - from) };
}

// About so many round numbers within the range.
function evenly(from, to, count) {
  const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let number = Math.ceil(from / step - 1e-9); number * step <= to + 1e-9 * step; number++) ticks.push(+(number * step).toPrecision(12));
  return ticks;
}

// Labels move until they do not touch, and stay inside.
function apart(named, low) {
  const order = [...named].sort((one, other) => one.y - other.y);
  order.forEach((one, place) => { if (place) one.y = Math.max(one.y, order[place - 1].y + LABEL); });
  for (let place = order.length - 1; place >= 0; place--) {
    order[place].y = Math.min(order[place].y, place === order.length - 1 ? Math.max(low, TOP) : order[place + 1].y - LABEL);
  }
  return order;
}

// Evenly fewer, with the first and the last.
export function thin(points, most = MOST_POINTS) {
  if (points.length <= most) return points;
  const step = (points.length - 1) / (most - 1);
  return Array.from({ length: most }, (_, place) => points[Math.round(place * step)]);
}

function describe(chart, lines) {
  const said = lines.map((line) => `${line.label || chart.name}: ${chart.format(line.points.at(-1)[1])} at round ${line.points.at(-1)[0]}.`);
  return [`${chart.name}.`, ...said, ...chart.levels.map((level) => `${level.label}: ${chart.format(level.value)}.`)].join(" ");
}

function short(label) {
  return label.length > 16 ? `${label.slice(0, 15)}…` : label;
}
