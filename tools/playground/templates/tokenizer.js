// Byte-level BPE from a tokenizer.json of stamm, as src/stamm/tokenizer/tokenizer.py has it: control
// tokens are never read from a text, the others of the added tokens are.

// The letter of each byte in the alphabet of GPT-2: itself where it is visible in Latin-1.
function byteLetters() {
  let others = 0x100;
  const visible = byte => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  return [...Array(256).keys()].map(byte => String.fromCharCode(visible(byte) ? byte : others++));
}

// Numbers, of which the smallest comes first.
class Heap {
  numbers = [];

  push(number) {
    const numbers = this.numbers;
    let n = numbers.length;
    for (let above; n > 0 && numbers[above = (n - 1) >> 1] > number; n = above) numbers[n] = numbers[above];
    numbers[n] = number;
  }

  // undefined from an empty heap.
  pop() {
    const numbers = this.numbers, [first] = numbers, last = numbers.pop();
    if (numbers.length === 0) return first;
    let n = 0;
    for (let below; (below = 2 * n + 1) < numbers.length; n = below) {
      if (numbers[below + 1] < numbers[below]) below++;
      if (numbers[below] >= last) break;
      numbers[n] = numbers[below];
    }
    numbers[n] = last;
    return first;
  }
}

class Tokenizer {
  // Throws an Error for a tokenizer of another kind.
  constructor(plain) {
    const [split, bytes] = plain.pre_tokenizer?.pretokenizers ?? [];
    const own = plain.model.type === "BPE" && plain.normalizer === null && split?.behavior === "Isolated"
      && bytes?.type === "ByteLevel" && !bytes.add_prefix_space && !bytes.use_regex;
    if (!own) throw new Error("the tokenizer is not byte-level BPE in the form that stamm trains");
    // \s of the tokenizers library is the property of Unicode; that of JavaScript has U+FEFF too.
    const pattern = split.pattern.Regex.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}");
    this.words = new RegExp(pattern, "gu");
    this.letters = byteLetters();
    this.ids = new Map(Object.entries(plain.model.vocab));
    this.ranks = new Map(plain.model.merges.map((pair, rank) => [(Array.isArray(pair) ? pair : pair.split(" ")).join(" "), rank]));
    this.known = new Map();
    const inText = plain.added_tokens.filter(token => !token.special);
    this.added = new Map(inText.map(token => [token.content, token.id]));
    const escaped = [...this.added.keys()].sort((a, b) => b.length - a.length).map(text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.marks = escaped.length ? new RegExp(`(${escaped.join("|")})`) : /(?!)/;
    const bytesOf = new Map(this.letters.map((letter, byte) => [letter, byte]));
    this.bytes = [];
    for (const [word, id] of this.ids) this.bytes[id] = [...word].map(letter => bytesOf.get(letter));
    for (const {content, id} of plain.added_tokens) this.bytes[id] = new TextEncoder().encode(content);
  }

  // The ids of a text, without <s>.
  encode(text) {
    const ids = [];
    text.toWellFormed().split(this.marks).forEach((part, n) => {
      if (n % 2) { ids.push(this.added.get(part)); return; }
      let end = 0;
      for (const word of part.matchAll(this.words)) {
        if (word.index > end) ids.push(...this.merged(part.slice(end, word.index)));
        ids.push(...this.merged(word[0]));
        end = word.index + word[0].length;
      }
      if (end < part.length) ids.push(...this.merged(part.slice(end)));
    });
    return ids;
  }

  // The ids of a word: the pair that is first in the list of merges is joined, the leftmost of equals.
  merged(word) {
    if (this.known.has(word)) return this.known.get(word);
    const parts = [...new TextEncoder().encode(word)].map(byte => this.letters[byte]);
    const count = parts.length, after = parts.map((_, n) => n + 1), before = parts.map((_, n) => n - 1);
    const pairs = new Heap();  // rank and place in one number; those of parts since joined are passed over
    const rank = n => this.ranks.get(`${parts[n]} ${parts[after[n]]}`);
    const add = n => { if (after[n] < count && rank(n) !== undefined) pairs.push(rank(n) * count + n); };
    for (let n = 0; n < count; n++) add(n);
    for (let first; (first = pairs.pop()) !== undefined;) {
      const n = first % count, right = after[n];
      if (parts[n] === "" || right >= count || rank(n) !== (first - n) / count) continue;
      parts[n] += parts[right];
      parts[right] = "";
      after[n] = after[right];
      if (after[n] < count) before[after[n]] = n;
      if (before[n] >= 0) add(before[n]);
      add(n);
    }
    const ids = parts.filter(part => part !== "").map(part => this.ids.get(part));
    if (this.known.size < 10000) this.known.set(word, ids);
    return ids;
  }

  // The text of ids; bytes that end inside a character become U+FFFD.
  decode(ids) {
    return new TextDecoder("utf-8", {ignoreBOM: true}).decode(Uint8Array.from(ids.flatMap(id => [...this.bytes[id] ?? []])));
  }
}
