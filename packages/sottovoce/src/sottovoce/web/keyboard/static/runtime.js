// onnxruntime in this page: graphs of a model, and its hidden state as tensors.

import * as ort from "./vendor/ort.js";

ort.env.wasm.wasmPaths = { wasm: new URL("vendor/ort.wasm", import.meta.url).href };
ort.env.wasm.numThreads = 1; // one step of a small model: more threads would cost more than they give
ort.env.logLevel = "error";

export async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} could not be loaded (${answer.status})`);
  return answer;
}

export async function openSession(address) {
  const graph = await (await fetched(address)).arrayBuffer();
  return ort.InferenceSession.create(new Uint8Array(graph), {
    executionProviders: ["wasm"],
    logSeverityLevel: 3, // errors; a warning that a constant was folded is of no use here
    extra: { session: { disable_quant_qdq: "1" } }, // 8-bit weights become numbers once, not at every step
  });
}

export const sizeOf = (shape) => shape.reduce((product, side) => product * side, 1);

// The arrays of the hidden state before any token is read.
export function initialState(manifest) {
  return manifest.state.map(({ shape, start }) =>
    Array.isArray(start) ? Float32Array.from(start) : new Float32Array(sizeOf(shape)).fill(start));
}

// What a session is given: tokens and the arrays of the state. `texts` is the axis of a batch, or [].
export function feedsOf(manifest, tokens, state, texts = []) {
  const feeds = { tokens: new ort.Tensor("int32", Int32Array.from(tokens), [tokens.length]) };
  manifest.state.forEach(({ input, shape }, place) => {
    feeds[input] = new ort.Tensor("float32", state[place], [...texts, ...shape]);
  });
  return feeds;
}
