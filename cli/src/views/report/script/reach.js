// ---- What passes between two ends. Sets of port atoms are numbers whose bits are the atoms.

const VOID = 0, NONE = 1, PART = 2, FULL = 3;
const ADDED = 1, REMOVED = 2;

const sets = data.sets.map((text) => BigInt('0x' + text));
const all = (1n << BigInt(data.atoms)) - 1n;
let mask = all;
const rows = { egress: [], ingress: [] };

const row = (direction, subject) => {
  let found = rows[direction][subject];
  if (!found) {
    const [standard, ...entries] = data[direction][subject];
    found = new Int32Array(data.peers.length).fill(standard);
    for (let at = 0; at < entries.length; at += 2) found[entries[at]] = entries[at + 1];
    rows[direction][subject] = found;
  }
  return found;
};

const ends = data.parties.concat(data.zones);
ends.forEach((end, index) => { end.index = index; });

const entry = (direction, end, peer) => (end.s < 0 ? -1 : row(direction, end.s)[peer]);
// The numbers of both ends' sets, for IPv4 and IPv6: undefined if policies do not decide the pair.
const gates = (from, to, family) => {
  const [source, destination] = [from.p[family], to.p[family]];
  if (source < 0 || destination < 0) return undefined;
  const [out, into] = [entry('egress', from, destination), entry('ingress', to, source)];
  return out < 0 && into < 0 ? undefined : [out < 0 ? into : out, into < 0 ? out : into];
};
const passes = (from, to) => [0, 1].map((family) => {
  const both = gates(from, to, family);
  return both && (sets[both[0]] & sets[both[1]]);
});

let kinds = new Map();
const kindOfSets = (out, into) => {
  const key = out * sets.length + into;
  let kind = kinds.get(key);
  if (kind === undefined) {
    const set = sets[out] & sets[into] & mask;
    kind = set === 0n ? NONE : set === mask ? FULL : PART;
    kinds.set(key, kind);
  }
  return kind;
};
const kind = (from, to) => {
  let found = VOID;
  for (const family of [0, 1]) {
    const both = gates(from, to, family);
    if (!both) continue;
    const here = kindOfSets(both[0], both[1]);
    found = found === VOID || found === here ? here : PART;
  }
  return found;
};

// ---- Changes: which of them lie between two ends.

const isDiff = Boolean(data.changes);
const changes = data.changes || [];
const changesFrom = ends.map(() => []);
changes.forEach((change, number) => {
  change.number = number;
  change.toSet = new Set(change.to);
  change.from.forEach((index) => changesFrom[index].push(change));
});
let port; // What is asked for, if anything: {protocol, number}.
const speaksOf = (change) => !port || (port.protocol
  ? change.ranges.some(([name, first, last]) => name === port.protocol && first <= port.number && port.number <= last)
  : change.portless);
const changesOf = (from, to) =>
  changesFrom[from.index].filter((it) => it.toSet.has(to.index) && speaksOf(it));
// The marks of one source towards all ends, computed once for each source and port.
let marks = [];
const marksFrom = (from) => {
  let found = marks[from.index];
  if (!found) {
    found = new Uint8Array(ends.length);
    for (const change of changesFrom[from.index].filter(speaksOf)) {
      const bit = change.change === 'added' ? ADDED : REMOVED;
      for (const to of change.to) found[to] |= bit;
    }
    marks[from.index] = found;
  }
  return found;
};
const changeMark = (from, to) => (changesFrom[from.index].length ? marksFrom(from)[to.index] : 0);
const markWords = (mark) => ['', 'newly allowed', 'no longer allowed', 'partly newly allowed, partly no longer'][mark];
const markStyle = (mark) => ['', 'added', 'removed', 'both'][mark];
