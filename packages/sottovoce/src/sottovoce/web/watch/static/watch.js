// What the server tells of runs, as cards and figures. Nothing is sent but the request for the stream.

import { draw, element, showValues, thin } from "./chart.js";

const COLOURS = 9, DASHES = ["", "7 3", "2 4", "9 3 2 3"];
const ROWS = 12; // of a table
const ARRIVALS = 30; // rounds from whose arrival the time left is told

const runs = []; // {about, record, diagnostics, written, arrivals, heard, seen, card}
let internal = false, due = false;

const find = (id) => document.getElementById(id);
function make(tag, kind = "", text = "") {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  node.textContent = text;
  return node;
}

// ---- the stream

const source = new EventSource("events");
source.onopen = () => say("live", "Live.");
source.onerror = () => say("lost", source.readyState === EventSource.CLOSED
  ? "The server no longer knows this address. Open the one it prints now."
  : "Not connected; what is shown may be old. Trying again.");
source.addEventListener("runs", (event) => {
  const told = JSON.parse(event.data);
  internal = told.internal;
  if (told.runs.length !== runs.length || told.runs.some((about, place) => about.name !== runs[place].about.name)) {
    runs.splice(0, runs.length, ...told.runs.map(() => ({ record: [], diagnostics: [], arrivals: [] })));
    find("runs").replaceChildren();
    find("figures").replaceChildren();
  }
  told.runs.forEach((about, place) => { runs[place].about = about; });
  update();
});
for (const kind of ["record", "diagnostics"]) {
  source.addEventListener(kind, (event) => {
    const news = JSON.parse(event.data), run = runs[news.run];
    if (news.again) run[kind] = [];
    run[kind].push(...news.lines);
    if (kind === "record") run.written = news.time;
    if (kind === "record") hear(run, news);
    update();
  });
}

// A run that was cut back plays rounds again: what arrived before tells nothing of them.
function hear(run, news) {
  const now = performance.now(), last = news.lines.at(-1);
  if (news.again) run.arrivals = [];
  if (!last || !news.live) return;
  run.heard = now;
  run.arrivals.push([now, last.round]);
  run.arrivals.splice(0, run.arrivals.length - ARRIVALS);
}

function say(kind, text) {
  const node = find("connection");
  node.className = kind === "live" ? "quiet live" : kind;
  if (node.textContent !== text) node.textContent = text;
}

function update() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; show(); });
}

// ---- words

const percent = (value) => `${+(100 * value).toPrecision(4)}%`;
const number = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(4)}`);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
function scientific(value) {
  return value >= 0.001 ? `${value}` : value.toExponential().replace("e-0", "e-");
}
// An ε is rounded up: never shown as less than it is.
function epsilon(value, digits = 3) {
  if (value === 0) return "0";
  const power = 10 ** (digits - 1 - Math.floor(Math.log10(value)));
  return `${+(Math.ceil(value * power - 1e-9) / power).toPrecision(digits)}`;
}
function duration(seconds) {
  if (seconds < 60) return "under a minute";
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${+(seconds / 3600).toPrecision(2)} hours`;
  return `${Math.round(seconds / 86400)} days`;
}

const evaluations = (run) => run.record.filter((line) => line.evaluation);
const lastRound = (run) => run.record.at(-1)?.round ?? 0;
const points = (lines, value) => lines.map((line) => [line.round, value(line)]).filter((point) => isNumber(point[1]));
const measured = (run, key) => points(evaluations(run), (line) => line.evaluation[key]);

// From rounds as they arrive; before that from the rounds since this training began, by the times of its files.
function secondsLeft(run) {
  const { about } = run, done = lastRound(run), left = about.rounds - done;
  if (run.arrivals.length > 1) {
    const [[begin, from], [end, to]] = [run.arrivals[0], run.arrivals.at(-1)];
    return to > from ? Math.max(0, (left * (end - begin)) / (to - from) - (performance.now() - end)) / 1000 : null;
  }
  if (isNumber(about.first) && done > about.first && run.written > about.began) {
    const pace = (run.written - about.began) / (done - about.first);
    return Math.max(0, left * pace - Math.max(0, Math.min(pace, Date.now() / 1000 - run.written)));
  }
  const known = run.diagnostics.slice(-ARRIVALS).map((line) => line.seconds).filter(isNumber).sort((a, b) => a - b);
  return known.length ? left * known[Math.floor(known.length / 2)] : null;
}

// A kind and words.
function state(run) {
  const { about } = run, done = lastRound(run);
  if (!about.there) return ["waiting", "waiting for it to begin"];
  if (isNumber(about.rounds) && done >= about.rounds) return ["finished", "finished"];
  if (about.running) {
    run.seen = true;
    return run.arrivals.length || (isNumber(about.first) ? done > about.first : done) ? ["training", "training"] : ["compiling", "compiling: the first round takes longest"];
  }
  if (run.seen || (about.rounds_done === done && done)) return ["stopped", "stopped"];
  if (run.heard === undefined) return ["unknown", done ? "not training on this machine" : "begun"];
  const quiet = (performance.now() - run.heard) / 1000; // written by another machine
  const usual = run.arrivals.length > 1 ? (run.arrivals.at(-1)[0] - run.arrivals[0][0]) / 1000 / (run.arrivals.length - 1) : 60;
  return quiet > Math.max(60, 5 * usual) ? ["unknown", `no new round for ${duration(quiet)}`] : ["training", "training"];
}

function facts(run) {
  const { about } = run, done = lastRound(run), last = run.record.at(-1), found = evaluations(run).at(-1);
  const [kind] = state(run), left = ["training", "compiling"].includes(kind) ? secondsLeft(run) : null;
  const later = { compiling: "known after the first round", training: "known after two new rounds" }[kind] ?? "";
  const at = isNumber(about.delta) ? `at δ = ${scientific(about.delta)}` : "";
  const spent = !last ? ["–", at] : isNumber(last.epsilon)
    ? [epsilon(last.epsilon), isNumber(about.budget) ? `of ${epsilon(about.budget, 6)}, ${at}` : at] : ["infinite", "no guarantee"];
  const measure = (key, format) => (found && isNumber(found.evaluation[key]) ? format(found.evaluation[key]) : found ? "not finite" : "–");
  const when = found ? `round ${found.round.toLocaleString("en")}` : "not evaluated yet";
  return [
    ["Round", done.toLocaleString("en"), isNumber(about.rounds) ? `of ${about.rounds.toLocaleString("en")}` : ""],
    ["ε spent", ...spent],
    ["Top-1", measure("top1", percent), when],
    ["Perplexity", measure("perplexity", number), `per token, ${when}`],
    ...(found && isNumber(found.evaluation.bits_per_byte) ? [["Bits per byte", number(found.evaluation.bits_per_byte), when]] : []),
    ["Time left", left === null ? "–" : duration(left), left === null ? later : "at the pace of late"],
  ];
}

// ---- cards

function showCard(run, place) {
  if (!run.card) {
    const card = make("section", "card run"), head = make("header"), bar = make("progress");
    const swatch = element("svg", { class: "swatch", viewBox: "0 0 32 4", "aria-hidden": "true" });
    swatch.append(element("line", { class: `c${place % COLOURS}`, x1: 0, x2: 32, y1: 2, y2: 2, "stroke-width": 4, "stroke-dasharray": dashes(place) || "none" }));
    const name = make("h2", "", run.about.name);
    card.setAttribute("aria-labelledby", name.id = `run-${place}`);
    name.hidden = runs.length === 1; // the page's title says it
    bar.setAttribute("aria-label", "rounds done");
    const practice = make("span", "remark", "synthetic people");
    practice.hidden = true;
    head.append(...(runs.length > 1 ? [swatch] : []), name, practice, make("span", "state"));
    card.append(head, bar, make("dl"));
    find("runs").append(card);
    run.card = card;
  }
  run.card.querySelector("header .remark").hidden = !run.about.practice;
  const bar = run.card.querySelector("progress"), [kind, words] = state(run), shownState = run.card.querySelector(".state");
  bar.max = run.about.rounds || 1;
  bar.value = Math.min(lastRound(run), bar.max);
  shownState.dataset.kind = kind;
  if (shownState.textContent !== words) shownState.textContent = words;
  const shown = facts(run), text = JSON.stringify(shown);
  if (run.shown === text) return;
  run.shown = text;
  run.card.querySelector("dl").replaceChildren(...shown.map(([label, value, remark]) => {
    const box = make("div");
    box.append(make("dt", "", label), make("dd", "figure", value), make("dd", "remark", remark));
    return box;
  }));
}

const dashes = (place) => DASHES[place % DASHES.length];

// ---- figures

function perRun(value) {
  return runs.map((run, place) => ({ label: runs.length > 1 ? run.about.name : "", kind: `c${place % COLOURS}`, dashes: runs.length > 1 ? dashes(place) : "", points: value(run) }));
}

function budgets() {
  const known = [...new Set(runs.filter((run) => run.record.some((line) => isNumber(line.epsilon))).map((run) => run.about.budget).filter(isNumber))];
  return known.map((value) => ({ label: known.length > 1 ? `budget ${epsilon(value, 6)}` : "budget", value }));
}

// What public text alone gives. The top-1 of a unigram is at most that of the constant keyboard.
function baselines(key) {
  const all = runs.flatMap((run) => run.about.baselines).filter((one) => isNumber(one[key]) && !(key === "top1" && one.label === "a unigram"));
  return [...new Map(all.map((one) => [`${one.label} ${one[key]}`, { label: one.label, value: one[key] }])).values()];
}

function clipNorms() {
  const last = runs.map((run) => run.record.at(-1)?.clip_norm).filter(isNumber);
  return new Set(last).size === 1 ? [{ label: "clip norm", value: last[0] }] : [];
}

function norms() {
  const quantile = (run, place) => points(run.diagnostics, (line) => line.norm_quantiles?.[place]);
  if (runs.length > 1) return perRun((run) => quantile(run, 1));
  const [run] = runs;
  return [["p90", "pale", 2], ["median", "c0", 1], ["p10", "pale", 0]].map(([label, kind, place]) => ({ label, kind, points: quantile(run, place) }));
}

// Only where each word is one token is the top-1 of words measured in training.
const hasPieces = (run) => evaluations(run).some(({ evaluation }) => isNumber(evaluation.bits_per_byte) && !isNumber(evaluation.top1_words));

function charts() {
  const single = runs.length === 1, [run] = runs;
  const accuracy = single
    ? [["top-5", "pale", "top5"], ["top-3", "middle", "top3"], ["top-1", "c0", "top1"]].map(([label, kind, key]) => ({ label, kind, points: measured(run, key) }))
    : perRun((one) => measured(one, "top1"));
  const below = baselines("top1"), above = baselines("perplexity");
  const unknown = "No evaluation yet.";
  const shown = [
    { name: single ? "Accuracy" : "Top-1 accuracy", unit: "share of targets", words: `On held-out users.${below.length ? " Dashed: top-1 without training on people." : ""}`, format: percent, lines: accuracy, levels: below, fromZero: true, nothing: unknown },
    { name: "Perplexity", unit: "perplexity", words: `On held-out users; lower is better.${above.length ? " Dashed: without training on people." : ""}`, format: number, lines: perRun((one) => measured(one, "perplexity")), levels: above, fromZero: true, widen: true, nothing: unknown },
    { name: "Privacy spent", unit: "ε", words: "What a run claims is the ε of all planned rounds, also if it stops early.", format: (value) => epsilon(value), lines: perRun((one) => points(one.record, (line) => line.epsilon)), levels: budgets(), fromZero: true,
      nothing: runs.some((one) => one.record.length) ? "ε is infinite: no guarantee." : "No round yet." },
  ];
  if (runs.some(hasPieces)) {
    shown.splice(2, 0, { name: "Bits per byte", unit: "bits per byte", words: "On held-out users; lower is better, whatever the tokens are.", format: number, lines: perRun((one) => measured(one, "bits_per_byte")), levels: [], fromZero: true, widen: true, nothing: unknown });
  }
  if (!internal) return shown;
  return [...shown,
    { name: "Update norms", unit: "L2 norm", words: single ? "Before the last clip: 10th percentile, median, 90th percentile." : "Before the last clip: the median.", format: number, lines: norms(), levels: clipNorms(), fromZero: true, widen: true, owner: true, nothing: "No round yet." },
    { name: "Cohort", unit: "users", words: "Who joined each round.", format: number, lines: perRun((one) => points(one.diagnostics, (line) => line.users)), levels: [], fromZero: true, owner: true, nothing: "No round yet." },
    { name: "Speed", unit: "users a second", words: "A round after a start compiles, and is slower.", format: number, lines: perRun((one) => points(one.diagnostics, (line) => (line.seconds ? line.users / line.seconds : null))), levels: [], fromZero: true, owner: true, nothing: "No round yet." },
  ];
}

function showChart(chart) {
  const id = `figure-${chart.name.toLowerCase().replaceAll(" ", "-")}`;
  let figure = find(id);
  if (!figure) {
    figure = make("figure", chart.owner ? "card private" : "card");
    figure.id = id;
    const caption = make("figcaption"), numbers = make("details", "numbers"), scroll = make("div", "scroll");
    caption.append(make("h2", "", chart.name), make("p"));
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Numbers of ${chart.name}`);
    numbers.append(make("summary", "", "Numbers"), scroll);
    figure.append(caption, make("div", "plot"), numbers);
    find("figures").append(figure);
    sizes.observe(figure.querySelector(".plot"));
  }
  figure.querySelector("figcaption p").textContent = chart.words;
  const plot = figure.querySelector(".plot"), empty = !chart.lines.some((line) => line.points.length);
  figure.querySelector(".numbers").hidden = empty;
  if (empty) plot.replaceChildren(make("p", "nothing", chart.nothing));
  else {
    const svg = draw(chart, Math.max(240, plot.clientWidth));
    plot.replaceChildren(svg);
    showValues(plot, chart, svg);
  }
  if (!empty) figure.querySelector(".scroll").replaceChildren(table(chart));
}

function table(chart) {
  const lines = chart.lines.filter((line) => line.points.length).map((line) => ({ ...line, values: new Map(line.points) }));
  const rounds = thin([...new Set(lines.flatMap((line) => [...line.values.keys()]))].sort((a, b) => a - b), ROWS);
  const node = make("table"), head = node.createTHead().insertRow(), body = node.createTBody();
  const heading = (text) => { const cell = make("th", "", text); cell.scope = "col"; return cell; };
  head.append(heading("round"), ...lines.map((line) => heading(line.label || chart.unit)), ...chart.levels.map((level) => heading(level.label)));
  for (const round of rounds.toReversed()) {
    const row = body.insertRow(), first = make("th", "", round.toLocaleString("en"));
    first.scope = "row";
    row.append(first, ...lines.map((line) => make("td", "", line.values.has(round) ? chart.format(line.values.get(round)) : "–")), ...chart.levels.map((level) => make("td", "", chart.format(level.value))));
  }
  return node;
}

const sizes = new ResizeObserver(update);

function show() {
  if (!runs.length) return;
  const name = runs.length === 1 ? runs[0].about.name : `${runs.length} runs`;
  find("title").textContent = runs.length === 1 ? name : "Runs as they go";
  document.title = runs.length === 1 && isNumber(runs[0].about.rounds) ? `${lastRound(runs[0])} of ${runs[0].about.rounds}: ${name}` : `Watching ${name}`;
  find("internal").hidden = !internal;
  runs.forEach(showCard);
  charts().forEach(showChart);
}

setInterval(() => runs.forEach((run, place) => run.card && showCard(run, place)), 1000);
