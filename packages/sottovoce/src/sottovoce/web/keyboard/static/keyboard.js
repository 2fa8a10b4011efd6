// The page: a field, the keys of up to three models, a counter, and what was planted. Nothing is sent after it has loaded.

import { drawBoard } from "./board.js";
import { loadModel } from "./model.js";
import { carryOver, count } from "./suggestions.js";

const find = (id) => document.getElementById(id);
const field = find("text");
const percent = (share) => `${(100 * share).toFixed(0)}%`;
const countOf = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

let models = [];
let suggestions = 3;
let text = ""; // as it was at the last event
let given = []; // for each UTF-16 unit of it: did a suggestion fill it in?
let space = -1; // where a suggestion left a space that a mark takes back
let done = -1; // where a suggestion ended a word of a language without spaces
let leaving = false; // Esc was pressed: Tab moves on
let edits = 0;
let board = null; // the drawn keyboard

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const powers = (number) => (number < 0.001 ? number.toExponential() : `${number}`);

function privacyOf({ private: isPrivate, epsilon_shown: epsilon, delta, trained_on: trainedOn }) {
  if (trainedOn === "public") return element("span", { className: "badge", textContent: "public text only" });
  if (!isPrivate) return element("span", { className: "badge stop", textContent: "not private" });
  return element("span", { className: "badge fine", textContent: `private: ε = ${epsilon} at δ = ${powers(delta)}` });
}

// A menu of what the model may know of a writer, where it was trained with that.
function contextsOf(model) {
  const contexts = Object.entries(model.manifest.contexts);
  const menu = element("select", { className: "context" }, element("option", { value: model.begin, textContent: "anyone" }));
  menu.append(...contexts.map(([value, token]) => element("option", { value: token, textContent: value })));
  menu.addEventListener("change", () => {
    model.begin = Number(menu.value);
    show();
  });
  return element("label", { className: "quiet", hidden: !contexts.length }, "writing as ", menu);
}

function keysOf(model, number) {
  const keys = Array.from({ length: suggestions }, (_, place) => {
    const key = element("button", { type: "button", className: "key", disabled: true }, element("b"), element("span"));
    key.dataset.key = number * suggestions + place + 1;
    key.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the caret
    key.addEventListener("click", () => take(key));
    return key;
  });
  const none = element("p", { className: "none quiet", hidden: true });
  const potential = element("p", { className: "potential quiet" }, element("b"), element("span"));
  const bar = element("progress", { max: 1, value: 0, ariaHidden: "true" });
  const name = model.manifest.name;
  const { kind, parameters } = model.manifest.model;
  const size = element("span", { className: "size quiet", textContent: `${kind}, ${parameters.toLocaleString("en")} parameters` });
  const group = element("div", { className: "keys" }, ...keys);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `Suggestions of ${name}`);
  const title = element("header", {}, element("h2", { textContent: name }), privacyOf(model.manifest.privacy), size, contextsOf(model));
  const note = element("p", { className: "otherwise quiet", hidden: model.alike });
  note.textContent = "This browser finds other words in this language than the model knows, so it may suggest worse.";
  find("models").append(element("section", { className: "model card" }, title, group, none, potential, bar, note));
  return Object.assign(model, { keys, group, none, potentialLine: potential, bar });
}

async function show() {
  const edit = (edits += 1);
  field.dataset.edit = edit;
  const { characters, saved, typed } = count(text, given);
  find("share").textContent = characters ? percent(saved / characters) : "–";
  find("counts").textContent = characters
    ? `${typed} of ${countOf(characters, "character")} typed, ${saved} filled in`
    : "Start typing. Spaces cost nothing and count for nothing.";
  const before = text.slice(0, field.selectionStart);
  board?.follow(before);
  const stale = () => edit !== edits; // somebody typed on meanwhile
  for (const model of models) {
    const found = await model.suggest({ before, finished: before.length === done }, suggestions, stale);
    if (stale()) return;
    const { offered, typed: letters } = found;
    model.shown = edit;
    model.keys.forEach((key, place) => label(key, offered[place]?.word, offered[place]?.chance));
    model.group.hidden = !offered.length && letters !== "";
    model.none.hidden = !model.group.hidden;
    model.none.textContent = `No word begins with “${letters}”.`;
  }
  for (const model of models) {
    const own = await model.potential({ before, finished: before.length === done }, suggestions, stale);
    if (stale()) return;
    const saved = own.characters ? 1 - own.typed / own.characters : 0;
    model.potentialLine.firstChild.textContent = own.characters ? percent(saved) : "–";
    model.potentialLine.lastChild.textContent = own.characters
      ? ` of ${countOf(own.characters, "character")} saved, if its words are taken as soon as they show`
      : " of characters saved, if its words are taken as soon as they show";
    model.bar.value = saved;
  }
  field.dataset.shown = edit; // the keys belong to this text
}

function label(key, word, chance) {
  const [shown, detail] = key.children;
  key.disabled = word === undefined;
  key.dataset.word = word ?? "";
  shown.textContent = word ?? "–";
  const number = element("kbd", { textContent: key.dataset.key, title: `Alt and ${key.dataset.key}` });
  detail.replaceChildren(...(word === undefined ? [] : [number, chance < 0.01 ? "<1%" : percent(chance)]));
  key.title = word ?? "";
  key.setAttribute("aria-label", word === undefined ? "no word" : `${word}, key ${key.dataset.key}`);
}

function take(key) {
  const { word } = key.dataset;
  if (!word) return;
  const caret = field.selectionStart;
  const after = text.slice(field.selectionEnd);
  const model = models.find((one) => one.keys.includes(key));
  const raw = model.typedIn({ before: text.slice(0, caret), finished: caret === done });
  if (model.shown !== edits && !word.startsWith(raw)) return; // it was offered for other letters
  const gap = !model.spaced || /^\s/.test(after) ? "" : " ";
  const start = caret - raw.length;
  given = [
    ...given.slice(0, start),
    ...Array.from({ length: word.length + gap.length }, (_, place) => place >= raw.length),
    ...given.slice(field.selectionEnd),
  ];
  text = text.slice(0, start) + word + gap + after;
  space = gap ? start + word.length : -1;
  field.value = text;
  field.focus();
  const next = start + word.length + (gap || /^\s/.test(after) ? 1 : 0);
  done = model.spaced ? -1 : next;
  field.setSelectionRange(next, next);
  show();
}

function edited(event) {
  const caret = field.selectionStart;
  let now = field.value;
  given = carryOver(text, given, now);
  if (space >= 0 && caret === space + 2 && now[space] === " " && /^[.,!?;:]$/.test(event.data ?? "")) {
    now = now.slice(0, space) + now.slice(space + 1);
    given.splice(space, 1);
    field.value = now;
    field.setSelectionRange(caret - 1, caret - 1);
  }
  text = now;
  space = done = -1;
  leaving = false;
  show();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.isComposing || event.getModifierState("AltGraph")) return;
  if (event.key === "Escape") leaving = true;
  const all = models.flatMap((model) => model.keys);
  let key;
  if (event.key === "Tab" && !event.shiftKey && !event.altKey && !leaving && text.trim()) key = all[0];
  if (event.altKey && /^Digit[1-9]$/.test(event.code)) key = all.find((one) => one.dataset.key === event.code.at(-1));
  if (!key || key.disabled) return;
  event.preventDefault();
  take(key);
}

// What a key of the drawn keyboard does: it types a text, or deletes with `null`.
function press(typed) {
  const { selectionStart: start, selectionEnd: end } = field;
  const from = typed === null && start === end ? start - (Array.from(text.slice(0, start)).at(-1)?.length ?? 0) : start;
  field.setRangeText(typed ?? "", from, end, "end");
  edited({ data: typed });
}

function useBoard() {
  const drawn = small.matches && models[0].latin && find("own").ariaPressed !== "true";
  find("own").hidden = !small.matches || !models[0].latin;
  find("board").hidden = !drawn;
  field.inputMode = drawn ? "none" : "text"; // else a phone shows its own keyboard too
}

const small = matchMedia("(max-width: 36rem)");

function moved() {
  if (document.activeElement === field && field.value === text) show();
}

async function ask(planted) {
  const rows = [];
  for (const canary of planted) {
    const cells = [];
    for (const [number, model] of models.entries()) cells.push(await placesOf(canary, canary.holders[number], model));
    const start = element("button", { type: "button", className: "plain", textContent: "Type it" });
    start.addEventListener("click", () => begin(canary.known));
    const sequence = element("td", { className: "sequence" }, `${canary.known.join(" ")} … `, element("b", { textContent: canary.secret.join(" ") }));
    rows.push(element("tr", {}, sequence, ...cells, element("td", {}, start)));
  }
  const heads = ["Planted", ...models.map((model) => model.manifest.name), ""];
  find("secrets").tHead.replaceChildren(element("tr", {}, ...heads.map((head) => element("th", { scope: "col", textContent: head }))));
  find("secrets").tBodies[0].replaceChildren(...rows);
  find("canaries").dataset.asked = "yes";
}

async function placesOf({ known, secret }, holders, model) {
  const places = await model.ranks(known, secret);
  if (!places) return element("td", { className: "quiet", textContent: "not in its vocabulary" });
  const away = places.every((place) => place <= suggestions);
  const verdict = element("span", { className: away ? "given" : "kept", textContent: away ? "given away" : "not offered" });
  const among = model.vocabulary.isWord.filter(Boolean).length.toLocaleString("en");
  const wrote = holders === null ? "not planted in it" : `written by ${countOf(holders, "user")}`;
  const detail = element("small", { textContent: `places ${places.join(", ")} of ${among}; ${wrote}` });
  const cell = element("td", {}, verdict, detail);
  cell.dataset.model = model.manifest.name;
  return cell;
}

function begin(words) {
  text = words.map((word) => `${word} `).join("");
  given = new Array(text.length).fill(false);
  space = done = -1;
  field.value = text;
  field.focus();
  field.setSelectionRange(text.length, text.length);
  field.scrollIntoView({ block: "center" });
  show();
}

async function load() {
  const answer = await fetch("models.json");
  if (!answer.ok) throw new Error(`the list of models could not be loaded (${answer.status})`);
  const { models: manifests, canaries, suggestions: shown, offline } = await answer.json();
  suggestions = shown;
  models = (await Promise.all(manifests.map((manifest, number) => loadModel(number, manifest)))).map(keysOf);
  if (models.length > 1) document.querySelector("h1").textContent = `Type with ${models.length} models`;
  if (offline) navigator.serviceWorker?.register("offline.js").catch(() => {}); // the page works without it
  board = drawBoard(find("board"), press);
  small.addEventListener("change", useBoard);
  find("own").addEventListener("click", () => {
    find("own").ariaPressed = String(find("own").ariaPressed !== "true");
    useBoard();
    field.focus();
  });
  useBoard();
  find("canaries").hidden = !canaries.length;
  find("canaries").addEventListener("toggle", () => find("canaries").open && ask(canaries), { once: true });
  find("clear").addEventListener("click", () => begin([]));
  field.addEventListener("input", edited);
  field.addEventListener("keydown", pressed);
  document.addEventListener("selectionchange", moved);
  find("state").hidden = true; // the counter is not read out: it changes with every letter
  field.disabled = false;
  text = field.value;
  given = new Array(text.length).fill(false);
  field.focus();
  await show();
}

load().catch((error) => {
  find("trouble").textContent = `The model could not be loaded: ${error.message}. Is its server still running?`;
  find("trouble").hidden = false;
  find("state").hidden = true;
});
