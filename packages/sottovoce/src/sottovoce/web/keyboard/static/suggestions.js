// The rule of the keystroke metric (`evaluation/suggestions.py`, `evaluation/keystrokes.py`), in the browser.

import { ENGLISH, isPlaceholder, isWord, lengthOf } from "./tokens.js";

export class Vocabulary {
  constructor(words, specials, rules = ENGLISH) {
    this.rules = rules; // of its language
    this.words = words;
    this.isWord = words.map(isWord);
    this.specials = specials;
    const first = Object.keys(specials).length;
    // Without the specials: what a person types never becomes one.
    this.ids = new Map(words.map((word, id) => [word, id]).slice(first));
    this.english = this.ids.has("i'm"); // where "I" is written with a capital
    this.latin = 2 * words.filter((word) => /^[a-z']+$/.test(word)).length > words.length; // a QWERTY board can type it
    this.begins = (typed) => words.some((word, id) => this.isWord[id] && word.startsWith(typed));
  }

  encode(tokens) {
    return tokens.map((token) => this.ids.get(token) ?? this.specials["<unk>"]);
  }
}

// The ids of the likeliest words that begin with the letters typed so far. Of equal scores the lower id comes first;
// what has no score is not offered.
export function offer(scores, vocabulary, typed = "", count = 3) {
  const best = [];
  vocabulary.words.forEach((word, id) => {
    if (!vocabulary.isWord[id] || Number.isNaN(scores[id]) || !word.startsWith(typed)) return;
    let place = best.length;
    while (place > 0 && scores[id] > scores[best[place - 1]]) place -= 1;
    if (place < count) best.splice(place, 0, id);
    if (best.length > count) best.pop();
  });
  return best;
}

// The letters of one word that must be typed before it is among the suggestions.
export function lettersToType(id, scores, vocabulary, count = 3) {
  const letters = Array.from(vocabulary.words[id]);
  for (let typed = 0; typed < letters.length; typed += 1) {
    if (offer(scores, vocabulary, letters.slice(0, typed).join(""), count).includes(id)) return typed;
  }
  return letters.length;
}

// The characters of a token that count, and how many of them must be typed.
export function keystrokesOf(token, scores, vocabulary, count = 3) {
  if (isPlaceholder(token)) return { characters: 0, typed: 0 };
  const characters = Math.min(lengthOf(token), 255);
  const id = vocabulary.ids.get(token);
  const known = id !== undefined && vocabulary.isWord[id];
  return { characters, typed: known ? lettersToType(id, scores, vocabulary, count) : characters };
}

// Chances of all tokens: what is not offered is left out of the keys, not out of the chances.
export function chances(scores) {
  let largest = -Infinity;
  for (const score of scores) if (score > largest) largest = score;
  const powers = Float64Array.from(scores, (score) => Math.exp(score - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

// How many words the model finds likelier than this one, and one more.
export function rankOf(id, scores, vocabulary) {
  let rank = 1;
  vocabulary.words.forEach((_, other) => {
    const likelier = scores[other] > scores[id] || (scores[other] === scores[id] && other < id);
    if (vocabulary.isWord[other] && likelier) rank += 1;
  });
  return rank;
}

// What was typed by hand and what a suggestion filled in, of the text as it stands. `given` marks its UTF-16 units.
export function count(text, given) {
  let characters = 0;
  let saved = 0;
  let place = 0;
  for (const character of text) {
    if (/\S/u.test(character)) {
      characters += 1;
      if (given[place]) saved += 1;
    }
    place += character.length;
  }
  return { characters, saved, typed: characters - saved };
}

// The marks of a text after it was edited: what stood before and still stands keeps its own; what is new was typed.
export function carryOver(before, given, after) {
  let head = 0;
  while (head < Math.min(before.length, after.length) && before[head] === after[head]) head += 1;
  let tail = 0;
  const most = Math.min(before.length, after.length) - head;
  while (tail < most && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail += 1;
  const typed = new Array(after.length - head - tail).fill(false);
  return [...given.slice(0, head), ...typed, ...given.slice(before.length - tail)];
}
