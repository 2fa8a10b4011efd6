// A model in this page whose words have several tokens. Whole words are searched when typing pauses; what was read for
// one search is kept for the next, which nearly always goes on from it.

import { Pieces, cut, lettersToType, likeliest, logChances, toText } from "./pieces.js";
import { feedsOf, fetched, initialState, openSession, sizeOf } from "./runtime.js";
import { lengthOf, written } from "./tokens.js";

const PAUSE = 60; // ms without a key after which words are searched
const KEPT = 64; // tokens of a text whose states are kept: that of a transformer is large
const MOST_READ = 512; // tokens before the caret that are read

// Let the page handle what a person did meanwhile.
const channel = new MessageChannel(), waiting = [];
channel.port1.onmessage = () => waiting.shift()();
const breathe = () => new Promise((resolve) => {
  waiting.push(resolve);
  channel.port2.postMessage(0);
});

export class PieceModel {
  static async load(folder, manifest) {
    const [facts, file, session] = await Promise.all([
      fetched(`${folder}/${manifest.pieces.file}`).then((answer) => answer.json()),
      fetched(`${folder}/${manifest.vocabulary.file}`).then((answer) => answer.json()),
      openSession(`${folder}/batch.onnx`),
    ]);
    return new PieceModel(manifest, new Pieces(facts, file, manifest.special_tokens), session);
  }

  constructor(manifest, pieces, session) {
    Object.assign(this, { manifest, pieces, session, latin: pieces.latin, spaced: true, alike: true });
    this.begin = pieces.bos; // or the token of what is known of the writer
    this.read = []; // a node for each token that was read
    this.turn = Promise.resolve();
  }

  typedIn({ before }) {
    return cut(before).typed;
  }

  // The words that are offered at the caret; null where `stale` says that the answer is not wanted any more.
  async suggest({ before }, count, stale = () => false) {
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    return stale() ? null : this.#alone(() => this.#suggest(before, count, stale));
  }

  async #suggest(before, count, stale) {
    const { done, typed } = cut(before);
    const words = await this.#search(done, typed, count, stale);
    if (words && !words.length && /['’]$/.test(typed)) return this.#suggest(`${before} `, count, stale); // a closing quote
    return words && { offered: words.map(([word, score]) => ({ word: this.#written(word, done, typed), chance: Math.exp(score) })), typed };
  }

  async #search(done, typed, count, stale) {
    const ids = this.#encode(done);
    const node = await this.#follow(ids, stale);
    const words = this.pieces.wordsOf(ids), afterWord = words.length > 0 && words.at(-1).end === ids.length;
    return node && likeliest(node, this.pieces, { afterWord, count, typed: this.pieces.asRead(typed), grow: this.#grower(stale) });
  }

  // What is typed stays as it is; a tokenizer without capitals leaves those of sentences to the page.
  #written(word, before, typed) {
    const text = toText(word);
    return this.pieces.lowers ? written(text, before, typed, false) : text;
  }

  // What the finished words would have cost somebody who takes every suggestion as soon as it is shown. Words that were
  // never near the caret, as in a text that was pasted, are left out; null as above.
  async potential({ before }, count, stale = () => false) {
    return this.#alone(async () => {
      const ids = this.#encode(cut(before).done);
      if (stale() || !(await this.#follow(ids, stale))) return null;
      const text = this.pieces.placeholders.reduce((rest, name) => rest.replaceAll(name, ""), cut(before).done);
      const sum = { characters: lengthOf(text.replace(/\s/gu, "")), typed: 0 };
      sum.typed = sum.characters;
      for (const { place, text: word, afterWord, known } of this.pieces.wordsOf(ids)) {
        if (!known) continue;
        const node = this.read[place], letters = lengthOf(toText(word));
        if (!node.costs.has(word) && node.state) {
          const cost = await lettersToType(node, this.pieces, word, { afterWord, count, grow: this.#grower(stale) });
          if (cost === null) return null;
          node.costs.set(word, cost);
        }
        if (node.costs.has(word)) sum.typed -= letters - node.costs.get(word);
        else for (const side of ["characters", "typed"]) sum[side] -= letters;
      }
      for (const node of this.read.slice(0, -1)) node.children.clear();
      return sum;
    });
  }

  // Canaries are words of a vocabulary.
  async ranks() {
    return null;
  }

  #encode(text) {
    return this.pieces.encode(text.trimEnd()).slice(-MOST_READ); // the space before the next word belongs to it
  }

  // One caller at a time.
  #alone(work) {
    const next = this.turn.then(work);
    this.turn = next.catch(() => {});
    return next;
  }

  // Read a text; the node of its last token.
  async #follow(ids, stale) {
    const all = [this.begin, ...ids];
    let same = 0;
    while (same < Math.min(all.length, this.read.length) && this.read[same].id === all[same]) same += 1;
    if (same && !this.read[same - 1].state) same = 0;
    this.read.length = same;
    for (const id of all.slice(same)) {
      if (stale()) return null;
      const [node] = await this.#step([id], [this.read.at(-1)?.state ?? initialState(this.manifest)]);
      this.read.push(node);
      const old = this.read.at(-1 - KEPT);
      if (old) old.state = null;
      await breathe();
    }
    return this.read.at(-1);
  }

  // Gives the nodes that follow some nodes; those that were never read are read together.
  #grower(stale) {
    return async (pairs) => {
      const missing = pairs.filter(([node, token]) => !node.children.has(token));
      if (missing.length) {
        await breathe();
        if (stale()) return null;
        const nodes = await this.#step(missing.map(([, token]) => token), missing.map(([node]) => node.state));
        missing.forEach(([node, token], place) => node.children.set(token, nodes[place]));
      }
      return pairs.map(([node, token]) => node.children.get(token));
    };
  }

  // Read one token after each of some states.
  async #step(ids, states) {
    const together = this.manifest.state.map(({ shape }, part) => {
      const size = sizeOf(shape), all = new Float32Array(size * ids.length);
      states.forEach((state, place) => all.set(state[part], size * place));
      return all;
    });
    const results = await this.session.run(feedsOf(this.manifest, ids, together, [ids.length]));
    const row = (values, place) => values.subarray((values.length / ids.length) * place, (values.length / ids.length) * (place + 1));
    return ids.map((id, place) => ({
      id,
      ...logChances(row(results.scores.data, place), this.pieces.joins),
      state: this.manifest.state.map(({ output }) => row(results[output].data, place)),
      children: new Map(),
      costs: new Map(),
    }));
  }
}
