// A model in this page whose tokens are words: it reads one after another, and what was read before is kept.

import { PieceModel } from "./piece_model.js";
import { feedsOf, fetched, initialState, openSession } from "./runtime.js";
import { Vocabulary, chances, keystrokesOf, offer, rankOf } from "./suggestions.js";
import { cutsAlike, normalise, split, written } from "./tokens.js";

export const loadModel = (number, manifest) => (manifest.pieces ? PieceModel : Model).load(`models/${number}`, manifest);

export class Model {
  static async load(folder, manifest) {
    const [words, session] = await Promise.all([
      fetched(`${folder}/${manifest.vocabulary.file}`).then((answer) => answer.text()),
      openSession(`${folder}/step.onnx`),
    ]);
    const lines = words.trimEnd().split("\n");
    const listed = lines[0].startsWith("# ") ? lines.slice(1) : lines; // after the language, where it names one
    return new Model(manifest, new Vocabulary(listed, manifest.special_tokens, manifest.vocabulary.rules), session);
  }

  constructor(manifest, vocabulary, session) {
    this.manifest = manifest;
    this.vocabulary = vocabulary;
    this.latin = vocabulary.latin;
    this.spaced = !vocabulary.rules.segmented; // words have a space between them
    this.alike = cutsAlike(vocabulary.rules); // the browser finds the words that the model knows
    this.session = session;
    this.begin = manifest.special_tokens["<bos>"]; // or the token of what is known of the writer
    this.read = []; // for each token that was read: its id, the scores and the state after it, what words cost there
    this.turn = Promise.resolve();
  }

  // `place` is the text before the caret, and whether a suggestion finished its last word.
  #split({ before, finished }) {
    return split(before, this.vocabulary.begins, this.vocabulary.rules, finished);
  }

  // The end of the text before the caret that is the word being typed, as it was typed.
  typedIn(place) {
    const { before } = place, { typed } = this.#split(place);
    for (let length = 0; length <= Math.min(before.length, 3 * typed.length); length += 1) {
      const end = before.slice(before.length - length);
      if (normalise(end, this.vocabulary.rules) === typed) return end;
    }
    return "";
  }

  // The words that are offered at the caret, as they are written, and their chances.
  async suggest(place, count) {
    const { before } = place, { tokens, typed } = this.#split(place);
    const { scores } = (await this.follow(this.vocabulary.encode(tokens))).at(-1);
    const likely = chances(scores), raw = this.typedIn(place), start = before.slice(0, before.length - raw.length);
    const offered = offer(scores, this.vocabulary, typed, count).map((id) => ({
      word: written(this.vocabulary.words[id], start, raw, this.vocabulary.english),
      chance: likely[id],
    }));
    return { offered, typed: raw || typed };
  }

  // What the finished tokens would have cost somebody who takes every suggestion as soon as it is shown.
  async potential(place, count) {
    const { tokens } = this.#split(place);
    const read = await this.follow(this.vocabulary.encode(tokens));
    const sum = { characters: 0, typed: 0 };
    tokens.forEach((token, at) => {
      const { costs, scores } = read[at];
      if (!costs.has(token)) costs.set(token, keystrokesOf(token, scores, this.vocabulary, count));
      sum.characters += costs.get(token).characters;
      sum.typed += costs.get(token).typed;
    });
    return sum;
  }

  // The rank of each secret word among all words, after those before it; null where the model has not all of them.
  async ranks(known, secret) {
    const words = [...known, ...secret];
    if (!words.every((word) => this.vocabulary.ids.has(word))) return null;
    const ids = this.vocabulary.encode(words), read = await this.follow(ids);
    const places = secret.map((_, place) => known.length + place);
    return places.map((place) => rankOf(ids[place], read[place].scores, this.vocabulary));
  }

  // Read a text: what is known before its first token, after the first, ... One caller at a time.
  follow(ids) {
    const next = this.turn.then(() => this.#follow([this.begin, ...ids]));
    this.turn = next.catch(() => {});
    return next;
  }

  async #follow(ids) {
    let same = 0;
    while (same < Math.min(ids.length, this.read.length) && this.read[same].id === ids[same]) same += 1;
    this.read.length = same;
    for (const id of ids.slice(same)) {
      const before = this.read.at(-1)?.state ?? initialState(this.manifest);
      const results = await this.session.run(feedsOf(this.manifest, [id], before));
      const state = this.manifest.state.map((part) => results[part.output].data);
      this.read.push({ id, scores: results.scores.data, state, costs: new Map() });
    }
    return [...this.read];
  }
}
