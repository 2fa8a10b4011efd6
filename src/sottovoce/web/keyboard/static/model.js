// A model in this page: onnxruntime reads one token after another, and what was read before is kept.

import * as ort from "./vendor/ort.js";
import { Vocabulary, keystrokesOf } from "./suggestions.js";

ort.env.wasm.wasmPaths = { wasm: new URL("vendor/ort.wasm", import.meta.url).href };
ort.env.wasm.numThreads = 1; // one step of a small model: more threads would cost more than they give
ort.env.logLevel = "error";

async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} could not be loaded (${answer.status})`);
  return answer;
}

export class Model {
  static async load(number, manifest) {
    const [words, graph] = await Promise.all([
      fetched(`models/${number}/${manifest.vocabulary.file}`).then((answer) => answer.text()),
      fetched(`models/${number}/step.onnx`).then((answer) => answer.arrayBuffer()),
    ]);
    const session = await ort.InferenceSession.create(new Uint8Array(graph), {
      executionProviders: ["wasm"],
      logSeverityLevel: 3, // errors; a warning that a constant was folded is of no use here
      extra: { session: { disable_quant_qdq: "1" } }, // 8-bit weights become numbers once, not at every step
    });
    const lines = words.trimEnd().split("\n");
    const listed = lines[0].startsWith("# ") ? lines.slice(1) : lines; // after the language, where it names one
    return new Model(manifest, new Vocabulary(listed, manifest.special_tokens, manifest.vocabulary.rules), session);
  }

  constructor(manifest, vocabulary, session) {
    this.manifest = manifest;
    this.vocabulary = vocabulary;
    this.session = session;
    this.read = []; // for each token that was read: its id, the scores and the state after it, what words cost there
    this.turn = Promise.resolve();
  }

  // Read a text: what is known before its first token, after the first, ... One caller at a time.
  follow(ids) {
    const next = this.turn.then(() => this.#follow([this.manifest.special_tokens["<bos>"], ...ids]));
    this.turn = next.catch(() => {});
    return next;
  }

  async #follow(ids) {
    let same = 0;
    while (same < Math.min(ids.length, this.read.length) && this.read[same].id === ids[same]) same += 1;
    this.read.length = same;
    for (const id of ids.slice(same)) {
      const feeds = { tokens: new ort.Tensor("int32", Int32Array.of(id), [1]) };
      const before = this.read.at(-1)?.state ?? this.#start();
      this.manifest.state.forEach((part, place) => (feeds[part.input] = before[place]));
      const results = await this.session.run(feeds);
      const state = this.manifest.state.map((part) => results[part.output]);
      this.read.push({ id, scores: results.scores.data, state, costs: new Map() });
    }
    return [...this.read];
  }

  // What some finished tokens would have cost somebody who takes every suggestion as soon as it is shown.
  potential(tokens, read, suggestions) {
    const sum = { characters: 0, typed: 0 };
    tokens.forEach((token, place) => {
      const { costs, scores } = read[place];
      if (!costs.has(token)) costs.set(token, keystrokesOf(token, scores, this.vocabulary, suggestions));
      sum.characters += costs.get(token).characters;
      sum.typed += costs.get(token).typed;
    });
    return sum;
  }

  #start() {
    return this.manifest.state.map(({ shape, start }) => {
      const size = shape.reduce((product, side) => product * side, 1);
      const values = Array.isArray(start) ? Float32Array.from(start) : new Float32Array(size).fill(start);
      return new ort.Tensor("float32", values, shape);
    });
  }
}
