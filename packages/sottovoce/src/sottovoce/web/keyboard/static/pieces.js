// Words of several tokens: text to tokens, and the likeliest whole words, as `evaluation/pieces.py` and
// `evaluation/whole_words.py` have it; a test compares the two. Bytes are kept as strings with a character for each byte.

import { Tokenizer } from "./vendor/tokenizers.js";

const LETTER = "[\\p{L}\\p{N}\\p{M}\\u200c\\u200d]";
const UNFINISHED = new RegExp(`${LETTER}+(?:['’]${LETTER}+)*['’]?$`, "u"); // a word that is still being typed
const MOST_TYPED = 24; // letters after which no more words are counted as offered

export const toBytes = (text) => Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
export const toText = (bytes) => new TextDecoder().decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)));

const bits = (digits) => Uint8Array.from(digits, Number);

export class Pieces {
  // `facts` is pieces.json, `file` is tokenizer.json. What a person types never becomes a special token.
  constructor(facts, file, specials) {
    Object.assign(this, { width: facts.width, most: facts.most, bytes: facts.bytes, placeholders: facts.placeholders });
    this.bos = specials["<bos>"];
    this.unk = specials["<unk>"];
    this.specials = new Set([this.bos, specials["<eos>"]]);
    this.texts = this.bytes.map((bytes) => bytes.replace(/^[\t-\r ]+/, ""));
    this.white = Uint8Array.from(this.bytes, (bytes, id) => (bytes && !this.texts[id] ? 1 : 0));
    this.starts = bits(facts.starts);
    this.joins = bits(facts.joins);
    this.opens = bits(facts.opens);
    const ids = this.bytes.map((_, id) => id);
    this.joining = ids.filter((id) => this.joins[id]);
    this.beginning = ids.filter((id) => this.starts[id] || this.opens[id] || this.white[id]);
    const added = (file.added_tokens ?? []).filter((token) => !token.special);
    this.tokenizer = new Tokenizer({ ...file, added_tokens: added, post_processor: null }, {});
    this.small = facts.small; // it writes no capitals
    this.folds = this.encode("A").map((id) => this.texts[id]).join("") === "a"; // it makes all letters small
    this.lowers = this.small || this.folds;
    this.latin = 2 * this.texts.filter((text) => /^[A-Za-z']+$/.test(text)).length > this.texts.filter(Boolean).length;
  }

  encode(text) {
    // JavaScript makes another letter of a Σ at the end of a word, Rust does not.
    const read = this.folds ? text.replaceAll("Σ", "σ") : text;
    const { ids } = this.tokenizer.encode(read, { add_special_tokens: false });
    return ids.filter((id) => !this.specials.has(id));
  }

  // The bytes of typed letters as the tokenizer reads them. Not each tokenizer can write a part of a word.
  asRead(typed) {
    const ids = this.encode(typed.trim());
    if (!ids.includes(this.unk)) return ids.map((id) => this.bytes[id]).join("").replace(/^[\t-\r ]+|[\t-\r ]+$/g, "");
    return toBytes((this.small ? typed.toLowerCase() : typed).trim());
  }

  // The words of some tokens, in order: see `words_of` in Python.
  wordsOf(ids) {
    const found = [], hidden = this.#hidden(ids);
    let word = null, gap = 0;
    const end = () => {
      if (word) found.push(word);
      word = null;
    };
    ids.forEach((id, at) => {
      if (this.white[id]) return end();
      const joins = !hidden[at] && this.joins[id] && word;
      const starts = !hidden[at] && (this.starts[id] || id === this.unk || (this.opens[id] && !word));
      if (!joins) end();
      if (starts) {
        word = { place: gap, end: at + 1, text: this.texts[id], afterWord: found.at(-1)?.end === gap, known: id !== this.unk };
      } else if (joins) {
        word.end = at + 1;
        word.text += this.texts[id];
      }
      gap = at + 1;
    });
    end();
    return found;
  }

  // Which tokens are part of a placeholder such as <url>: what was typed there is not known.
  #hidden(ids) {
    const hidden = new Uint8Array(ids.length), text = ids.map((id) => this.bytes[id]).join("");
    for (const name of this.placeholders) {
      for (let start = text.indexOf(name); start >= 0; start = text.indexOf(name, start + name.length)) {
        let end = 0;
        ids.forEach((id, at) => {
          const begin = end;
          end += this.bytes[id].length;
          if (end > start && begin < start + name.length) hidden[at] = 1;
        });
      }
    }
    return hidden;
  }
}

// The text before the caret as what is done and the word being typed.
export function cut(before) {
  const typed = before.match(UNFINISHED)?.[0] ?? "";
  return { done: before.slice(0, before.length - typed.length), typed };
}

// Log-probabilities of the next token, and of the end of a word: that the next token does not join.
export function logChances(scores, joins) {
  let largest = -Infinity, sum = 0, ending = 0;
  for (const score of scores) if (!(score <= largest)) largest = score;
  scores.forEach((score, id) => {
    const power = Math.exp(score - largest);
    sum += power;
    if (!joins[id]) ending += power;
  });
  if (Number.isNaN(sum)) return { chances: new Float32Array(scores.length).fill(-Infinity), ends: -Infinity };
  const all = largest + Math.log(sum);
  return { chances: scores.map((score) => score - all), ends: Math.log(ending) - Math.log(sum) };
}

// The likeliest words at a place, as pairs of bytes and score; the rule is that of `whole_words.py`. A node has `chances`
// and `ends`. `grow` gives the nodes that follow pairs of a node and a token; null where the answer is not wanted any more.
export async function likeliest(node, pieces, { afterWord, count = 3, typed = "", grow }) {
  const found = new Map(), width = Math.max(pieces.width, count);
  let live = [{ score: 0, text: "", node }];
  for (let step = 0; step <= pieces.most && live.length; step += 1) {
    const ended = step === 0 && afterWord; // the word before
    for (const one of live) {
      if (ended && one.node.ends > -Infinity) one.score -= one.node.ends;
      const whole = one.score + one.node.ends;
      if (one.text.startsWith(typed) && one.text && whole > (found.get(one.text) ?? -Infinity)) found.set(one.text, whole);
    }
    if (step === pieces.most) break;
    const floor = best(found, count).at(count - 1)?.[1] ?? -Infinity; // scores only fall: what is below stays below
    const kept = [];
    for (const one of live) {
      for (const token of one.text ? pieces.joining : pieces.beginning) {
        const score = one.score + one.node.chances[token];
        if (!(score > floor) || (kept.length === width && !(score > kept.at(-1).score))) continue;
        if (ended && pieces.joins[token]) continue;
        if (!agrees(pieces.texts[token], typed.slice(one.text.length))) continue;
        let place = kept.length;
        while (place > 0 && score > kept[place - 1].score) place -= 1;
        kept.splice(place, 0, { score, text: one.text + pieces.texts[token], node: one.node, token });
        if (kept.length > width) kept.pop();
      }
    }
    const grown = kept.length ? await grow(kept.map((one) => [one.node, one.token])) : [];
    if (!grown) return null;
    live = kept.map((one, place) => ({ score: one.score, text: one.text, node: grown[place] }));
  }
  return best(found, count);
}

const best = (found, count) => [...found].sort((one, two) => two[1] - one[1]).slice(0, count);

const agrees = (piece, typed) => piece.startsWith(typed) || typed.startsWith(piece);

// The letters of one word that must be typed before it is among the suggestions; null as above.
export async function lettersToType(node, pieces, word, options) {
  const letters = Array.from(toText(word));
  for (let typed = 0; typed < Math.min(letters.length, MOST_TYPED + 1); typed += 1) {
    const offered = await likeliest(node, pieces, { ...options, typed: toBytes(letters.slice(0, typed).join("")) });
    if (!offered) return null;
    if (offered.some(([text]) => text === word)) return typed;
  }
  return letters.length;
}
