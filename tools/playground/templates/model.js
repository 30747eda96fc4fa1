// A model that answers in the page: its ONNX graph in onnxruntime-web, one token at a time with the cache.

const find = id => document.getElementById(id);
const say = text => { find("status").textContent = text; };
const read = async (name, kind) => {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name} is not there (${answer.status})`);
  return answer[kind]();
};

// Numbers in [0, 1) that a seed determines, by a linear congruential generator modulo 2**32. The
// first are thrown away: those of neighbouring seeds are alike.
function uniform(seed) {
  let state = seed >>> 0;
  const next = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  for (let n = 0; n < 8; n++) next();
  return next;
}

// The place of the largest logit at temperature 0, else a draw from softmax(logits/temperature).
function chosen(logits, temperature, random) {
  let best = 0;
  for (let n = 1; n < logits.length; n++) if (logits[n] > logits[best]) best = n;
  if (temperature === 0) return best;
  const weights = Array.from(logits, logit => Math.exp((logit - logits[best]) / temperature));
  let rest = random() * weights.reduce((a, b) => a + b, 0);
  for (let n = 0; n < weights.length; n++) if ((rest -= weights[n]) < 0) return n;
  return best;
}

class Model {
  constructor(ort, session, config) {
    this.ort = ort;
    this.session = session;
    this.caches = session.inputNames.filter(name => name.startsWith("past_key_values."));
    this.empty = new ort.Tensor("float32", new Float32Array(0), [1, config.num_key_value_heads, 0, config.head_dim]);
  }

  // Ids after `prompt`, as they are drawn; ends at an id of `ends`.
  async* answer(prompt, most, ends, pick) {
    let given = Object.fromEntries(this.caches.map(name => [name, this.empty]));
    let ids = prompt, past = 0;
    for (let made = 0; made < most; made++) {
      const integers = (from, count) => new this.ort.Tensor("int64", BigInt64Array.from({length: count}, (_, n) => BigInt(from(n))), [1, count]);
      const outputs = await this.session.run({
        input_ids: integers(n => ids[n], ids.length),
        attention_mask: integers(() => 1, past + ids.length),
        position_ids: integers(n => past + n, ids.length),
        ...given,
      });
      const {data, dims} = outputs.logits;
      past += ids.length;
      given = Object.fromEntries(this.caches.map(name => [name, outputs[name.replace("past_key_values", "present")]]));
      const id = pick(data.subarray(data.length - dims[2]));
      if (ends.includes(id)) return;
      yield id;
      ids = [id];
    }
  }
}

async function start() {
  if (typeof WebAssembly !== "object") {
    say("This browser has no WebAssembly, which the model needs: it may be switched off in the settings.");
    return;
  }
  say("Loading the model…");
  const ort = await import("./ort.wasm.min.mjs");
  ort.env.wasm.numThreads = 1;  // more need a server that isolates the page
  const [plain, config, ending, graph, weights] = await Promise.all([
    read("tokenizer.json", "json"), read("config.json", "json"), read("generation_config.json", "json"),
    read("model.onnx", "arrayBuffer"), read("model.onnx_data", "arrayBuffer"),
  ]);
  const externalData = [{path: "model.onnx_data", data: new Uint8Array(weights)}];
  const session = await ort.InferenceSession.create(graph, {executionProviders: ["wasm"], externalData});
  const tokenizer = new Tokenizer(plain), model = new Model(ort, session, config), ends = [ending.eos_token_id].flat();
  let halted = false;
  find("temperature").addEventListener("input", () => {
    find("heat").textContent = Number(find("temperature").value) ? find("temperature").value : "0: greedy";
  });
  find("stop").addEventListener("click", () => { halted = true; });
  find("ask").addEventListener("submit", async event => {
    event.preventDefault();
    const prompt = [config.bos_token_id, ...tokenizer.encode(find("prompt").value)], answer = [];
    const room = config.max_position_embeddings - prompt.length, wanted = Math.max(1, Number(find("count").value) | 0);
    if (room < 1) { say(`The text has ${prompt.length} tokens and the model reads ${config.max_position_embeddings}: shorten it.`); return; }
    const random = uniform(Number(find("seed").value)), temperature = Number(find("temperature").value), begun = performance.now();
    halted = false;
    find("continue").disabled = true;
    find("answer").textContent = "";
    say("Writing…");
    try {
      for await (const id of model.answer(prompt, Math.min(room, wanted), ends, logits => chosen(logits, temperature, random))) {
        answer.push(id);
        find("answer").textContent = tokenizer.decode(answer);
        await new Promise(resolve => setTimeout(resolve));  // the page stays responsive
        if (halted) break;
      }
      say(`${answer.length} tokens in ${((performance.now() - begun) / 1000).toFixed(2)} s${answer.length < wanted && !halted ? "; the model ended the text or its context is full" : ""}.`);
    } catch (error) { say(`The model stopped: ${error.message}`); }
    find("continue").disabled = false;
  });
  for (const button of document.querySelectorAll("button")) button.disabled = false;
  say(`Ready: ${config.num_hidden_layers} layers of width ${config.hidden_size}, ${config.vocab_size} tokens, context ${config.max_position_embeddings}.`);
}

start().catch(error => say(`The model could not be loaded: ${error.message}`));
