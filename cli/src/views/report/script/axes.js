// ---- What the matrix shows: places, and the ends of those that are open.

const places = data.namespaces.map((name) => ({ name, ends: [], open: false }));
data.parties.forEach((party) => places[party.n].ends.push(party));
places.push({ name: 'outside the cluster', ends: data.zones, open: false });
places.forEach((place, index) => {
  place.index = index;
  place.ends.forEach((end) => { end.place = place; });
});
const nameOf = (end) => (end.n === null ? end.name : `${end.place.name}/${end.name}`);
ends.forEach((end) => { end.text = `${nameOf(end)} ${end.kind} ${end.pods.join(' ')}`.toLowerCase(); });

let axes = { from: [], to: [] };
let filters = { from: '', to: '', changed: isDiff };
const matches = (end, filter) => filter.split(/\s+/).every((word) => end.text.includes(word));
const touched = { from: new Set(), to: new Set() };
changes.forEach((change) => {
  change.from.forEach((it) => touched.from.add(it));
  change.to.forEach((it) => touched.to.add(it));
});

// The rows or columns: places, each followed by its ends if it is open.
const axis = (which) => {
  const items = [];
  for (const place of places) {
    const filter = filters[which];
    const kept = place.ends.filter((end) =>
      (!filter || matches(end, filter)) && (!filters.changed || touched[which].has(end.index)));
    if (!kept.length) continue;
    items.push({ place, ends: kept });
    if (place.open || filter) kept.forEach((end) => items.push({ place, end, ends: [end] }));
  }
  items.forEach((item, index) => { item.index = index; });
  return items;
};
const itemName = (item) => (item.end ? nameOf(item.end) : item.place.name);

// ---- Sums of pairs, for cells of namespaces.

// Ends of one class pass the same, so a pair of classes is judged once for all their ends.
const classesOf = (item) => {
  if (!item.classes) {
    const found = new Map();
    for (const end of item.ends) {
      const key = `${end.s} ${end.p}`;
      const known = found.get(key);
      if (known) known.count += 1; else found.set(key, { end, count: 1 });
    }
    item.classes = [...found.values()];
  }
  return item.classes;
};

let sums = new Map();
const sum = (from, to) => {
  const key = from.index * 1e6 + to.index;
  let found = sums.get(key);
  if (!found) {
    found = { kinds: [0, 0, 0, 0], added: 0, removed: 0 };
    for (const source of classesOf(from)) {
      for (const destination of classesOf(to)) {
        found.kinds[kind(source.end, destination.end)] += source.count * destination.count;
      }
    }
    for (const source of from.ends) {
      if (!changesFrom[source.index].length) continue;
      const marked = marksFrom(source);
      for (const destination of to.ends) {
        found.added += marked[destination.index] & ADDED ? 1 : 0;
        found.removed += marked[destination.index] & REMOVED ? 1 : 0;
      }
    }
    sums.set(key, found);
  }
  return found;
};

// A cell's style, glyph and description.
const look = (from, to) => {
  const { kinds: counts, added, removed } = sum(from, to);
  const [nothing, part, full] = [counts[NONE], counts[PART], counts[FULL]];
  const pairs = nothing + part + full;
  // What is gone has no pairs left, and may still have lost something.
  const state = !pairs ? VOID : !part && !full ? NONE : !part && !nothing ? FULL : PART;
  const change = markStyle((added ? ADDED : 0) | (removed ? REMOVED : 0));
  // Of many pairs, how many: the fuller the circle, the more.
  const share = from.end && to.end ? 1 : Math.min(2, Math.floor((3 * (part + full)) / pairs));
  const style = change || ['void', 'none', `part share${share}`, 'full'][state];
  const glyph = { added: '+', removed: '−', both: '±' }[change] || ['', '·', '◔◐◕'[share], '●'][state];
  return { style, glyph, text: describe(from, to, { part, full, pairs, added, removed }) };
};
const describe = (from, to, { part, full, pairs, added, removed }) => {
  const single = from.end && to.end;
  let text;
  if (!pairs) text = 'not decided by policy';
  else if (single) text = wordsOf(passes(from.end, to.end));
  else text = `allowed for ${part + full} of ${plural(pairs, 'pair')}, everything for ${full}`;
  const note = (number, word) => (!number ? '' : single ? `, ${word}` : `, ${number} ${word}`);
  return text + note(added, 'newly allowed') + note(removed, 'no longer allowed');
};
