// Text to tokens, as `data/tokenizer.py` does it; a test compares the two on every character.

const LETTER = "[\\p{L}\\p{Nl}\\p{No}]"; // Python's [^\W\d_]
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"; // Python's \s
const TOKEN = new RegExp(`<[a-z]+>|${LETTER}+(?:'${LETTER}+)*|\\p{Nd}+|[^\\p{L}\\p{N}_${SPACE}]|_`, "gu");
// What may be a word that is still being typed: "don'" goes on to "don't".
const UNFINISHED = new RegExp(`(?:${LETTER}+(?:'${LETTER}+)*'?|\\p{Nd}+)$`, "u");
const PLACEHOLDER = /^<[a-z]+>$/;
const WORD = /^[\p{L}\p{N}]/u;

export const normalise = (text) => text.toLowerCase().normalize("NFC").replace(/[’ʼ]/g, "'");

export const tokenise = (text) => normalise(text).match(TOKEN) ?? [];

export const isWord = (token) => WORD.test(token) && !PLACEHOLDER.test(token);

export const isPlaceholder = (token) => PLACEHOLDER.test(token);

// Characters are code points, as in Python.
export const lengthOf = (text) => Array.from(text).length;

// The text before the caret as the tokens that are done and the letters of the word being typed.
// An apostrophe at the end belongs to the word only where some known word goes on after it.
export function split(before, begins) {
  const text = normalise(before);
  let typed = text.match(UNFINISHED)?.[0] ?? "";
  if (typed.endsWith("'") && !begins(typed)) typed = "";
  return { tokens: tokenise(text.slice(0, text.length - typed.length)), typed };
}

// A suggested word as it is written: what was typed keeps its capitals; else one at the beginning of a sentence, and
// in English for "I". `before` is the text before the word, `raw` the letters of it that were typed.
export function written(word, before, raw, english) {
  if (raw !== raw.toLowerCase()) return raw.length <= word.length ? raw + word.slice(raw.length) : word;
  const first = /(^|[.!?…][)"'”’]*\s+|\n\s*)$/u.test(before) || (english && /^i(?:'|$)/.test(word));
  return first ? word.replace(/^./u, (letter) => letter.toUpperCase()) : word;
}
