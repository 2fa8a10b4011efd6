// Text to tokens, as `data/words.py` does it; a test compares the two on every character, and on sentences of every
// language. The rules of a language come with the model, in its manifest: no table is written twice.

export const ENGLISH = { form: "NFC", letters: [], drops_marks: false, elides: false, segmented: false };

const LETTER = "[\\p{L}\\p{Nl}\\p{No}]"; // Python's [^\W\d_]
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"; // Python's \s
// Letters with their marks; a joiner belongs to the word where a letter or a mark follows.
const RUN = `${LETTER}+(?:(?:\\p{M}|[\\u200c\\u200d]+(?=${LETTER}|\\p{M}))+${LETTER}*)*`;
const INSIDE = `(?:'|(?<=[א-ת])"(?=[א-ת])|(?<=l)·(?=l))`;
const WORD = `${RUN}(?:${INSIDE}${RUN})*`;
const TOKEN = new RegExp(`<[a-z]+>|${WORD}|\\p{Nd}+|[^\\p{L}\\p{N}_${SPACE}]|_`, "gu");
// What may be a word that is still being typed: "don'" goes on to "don't".
const UNFINISHED = new RegExp(`(?:${WORD}'?|\\p{Nd}+)$`, "u");
const ELIDED = new RegExp(`^(${LETTER}|qu)'(.+)$`, "su");
const PLACEHOLDER = /^<[a-z]+>$/;
const IS_WORD = /^[\p{L}\p{N}]/u;
const SEGMENTER = globalThis.Intl?.Segmenter ? new Intl.Segmenter("en", { granularity: "word" }) : null;

export function normalise(text, rules = ENGLISH) {
  if (rules.letters.length || rules.drops_marks || rules.form !== "NFC") {
    text = text.normalize(rules.form);
    for (const [letter, folded] of rules.letters) text = text.replaceAll(letter, folded);
    if (rules.drops_marks) text = text.replace(/[\p{Mn}\u0640]/gu, "");
  }
  return text.toLowerCase().normalize(rules.form).replace(/[’ʼ]/g, "'");
}

export const tokenise = (text, rules = ENGLISH) =>
  (normalise(text, rules).match(TOKEN) ?? []).flatMap((token) => partsOf(token, rules));

// A token as the language has it: "l'homme" is two words, and a run without spaces may be many.
function partsOf(token, rules) {
  const parts = [];
  for (let found; rules.elides && (found = token.match(ELIDED)); token = found[2]) parts.push(found[1], "'");
  parts.push(token);
  return rules.segmented ? parts.flatMap((part) => segmented(part, new RegExp(rules.without_spaces, "u"))) : parts;
}

function segmented(token, withoutSpaces) {
  const found = SEGMENTER && withoutSpaces.test(token) ? Array.from(SEGMENTER.segment(token), (one) => one.segment) : [token];
  if (found.length === 1) return [token];
  return found.flatMap((part) => part.match(TOKEN) ?? []).flatMap((part) => segmented(part, withoutSpaces));
}

// Does this browser cut a sentence as the model's text was cut? Only languages without spaces have one to check.
export const cutsAlike = (rules) =>
  !rules?.segmented || tokenise(rules.sample.text, rules).join(" ") === rules.sample.tokens.join(" ");

export const isWord = (token) => IS_WORD.test(token) && !PLACEHOLDER.test(token);

export const isPlaceholder = (token) => PLACEHOLDER.test(token);

// Characters are code points, as in Python.
export const lengthOf = (text) => Array.from(text).length;

// The text before the caret as the tokens that are done and the letters of the word being typed.
// An apostrophe at the end belongs to the word only where some known word goes on after it. Where no space ends a word,
// `finished` says that the last one is done.
export function split(before, begins, rules = ENGLISH, finished = false) {
  const text = normalise(before, rules);
  if (finished) return { tokens: tokenise(text, rules), typed: "" };
  let run = text.match(UNFINISHED)?.[0] ?? "";
  if (run.endsWith("'") && !begins(run)) run = "";
  const parts = run ? partsOf(run, rules) : [""];
  const typed = parts.pop();
  return { tokens: [...tokenise(text.slice(0, text.length - run.length), rules), ...parts], typed };
}

// A suggested word as it is written: what was typed keeps its capitals; else one at the beginning of a sentence, and
// in English for "I". `before` is the text before the word, `raw` the letters of it that were typed.
export function written(word, before, raw, english) {
  if (raw !== raw.toLowerCase()) return raw.length <= word.length ? raw + word.slice(raw.length) : word;
  const first = /(^|[.!?…][)"'”’]*\s+|\n\s*)$/u.test(before) || (english && /^i(?:'|$)/.test(word));
  return first ? word.replace(/^./u, (letter) => letter.toUpperCase()) : word;
}
