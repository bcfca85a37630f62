// ---- Details of a cell.

const side = (direction, end, other, family) => {
  const title = make('h4', {}, `${direction} of ${nameOf(end)}`);
  if (end.s < 0) return [title, make('p', {}, 'No policy applies to it.')];
  const subject = data.subjects[end.s];
  const held = new Set(data.peers[other.p[family]]);
  const lists = subject.lists.map((id) => data.lists[id]);
  const denies = lists.find((list) => list[direction] && held.has(list.predicate));
  if (denies && denies.action === 'Deny') {
    return [title, make('p', {}, `The address list ${denies.name} denies everything.`), placeLine(denies.at)];
  }
  const policies = subject.policies.map((id) => data.policies[id]).filter((policy) => policy[direction]);
  if (!policies.length) return [title, make('p', {}, 'No policy isolates it in this direction: everything passes.')];
  const rules = policies.flatMap((policy) => policy[direction]
    .filter((rule) => !rule.p || rule.p.some((it) => held.has(it)))
    .map((rule) => make('li', { class: 'rule' }, `${policy.name} ${rule.path}: ${rule.ports}`, placeLine(rule.at))));
  const isolates = policies.map((policy) => make('li', {}, policy.name, placeLine(policy.at)));
  const list = rules.length
    ? [make('p', {}, 'Allowed by:'), make('ul', {}, ...rules)]
    : [
      make('p', {}, 'Denied: no rule of the policies that isolate it allows this traffic:'),
      make('ul', {}, ...isolates),
    ];
  return [title, ...list];
};
const placeLine = (at) => (at ? make('div', {}, placeOf(at)) : '');

const showPair = (from, to) => {
  const nodes = [make('h3', {}, `${nameOf(from)} → ${nameOf(to)}`)];
  const sets = passes(from, to);
  if (sets.every((it) => it === undefined)) {
    const why = 'Not decided by policy: one end does not exist now, both are outside, or they have no address family ' +
      'in common.';
    return [...nodes, make('p', {}, why), ...changesOf(from, to).map(showChange)];
  }
  nodes.push(make('p', { class: 'passes' }, `${changes.length ? 'Allowed now' : 'Allowed'}: ${wordsOf(sets)}`));
  changesOf(from, to).forEach((change) => nodes.push(showChange(change)));
  const family = sets[0] === undefined ? 1 : 0;
  nodes.push(...side('egress', from, to, family), ...side('ingress', to, from, family));
  if (from.pods.length) nodes.push(make('p', {}, `From: ${members(from)}`));
  if (to.pods.length) nodes.push(make('p', {}, `To: ${members(to)}`));
  return nodes;
};
const members = (end) => `${end.kind} ${end.name}: ${end.pods.join(', ')}${end.more ? ` and ${end.more} more` : ''}`;

// The pairs of two namespaces, and those of them that have traffic or a change.
const MOST_PAIRS = 100;
const pairLine = (from, to) => {
  const mark = changeMark(from, to);
  const passing = kind(from, to);
  if (passing < PART && !mark) return undefined;
  const traffic = passing === VOID ? 'not decided by policy' : wordsOf(passes(from, to));
  const signs = (mark & ADDED ? ' (+)' : '') + (mark & REMOVED ? ' (−)' : '');
  return `${nameOf(from)} → ${nameOf(to)}: ${traffic}${signs}`;
};
const showSum = (from, to) => {
  const { kinds: counts, added, removed } = sum(from, to);
  const [nothing, part, full] = [counts[NONE], counts[PART], counts[FULL]];
  const numbers = `${full} allow everything, ${part} some traffic, ${nothing} nothing`;
  const nodes = [
    make('h3', {}, `${itemName(from)} → ${itemName(to)}`),
    make('p', { class: 'passes' }, `Of ${plural(nothing + part + full, 'pair')}, ${numbers}.`),
  ];
  if (added || removed) {
    const text = `Traffic is newly allowed for ${plural(added, 'pair')} and no longer allowed for ${removed}.`;
    nodes.push(make('p', {}, text));
  }
  const lines = from.ends.flatMap((source) => to.ends.map((destination) => pairLine(source, destination)));
  const shown = lines.filter(Boolean);
  nodes.push(make('ul', {}, ...shown.slice(0, MOST_PAIRS).map((line) => make('li', {}, line))));
  const more = shown.length - MOST_PAIRS;
  if (more > 0) nodes.push(make('p', {}, `and ${more} more pairs: open the namespaces to see them.`));
  return nodes;
};

const show = (from, to) => {
  byId('details').replaceChildren(...(from.end && to.end ? showPair(from.end, to.end) : showSum(from, to)));
};

const showChange = (change) => {
  const node = make('div', { class: `change ${change.change}` });
  const title = change.change === 'added' ? '+ newly allowed' : '− no longer allowed';
  node.append(make('strong', {}, `${title}: ${change.ports}`));
  node.append(make('div', {}, change.text));
  change.reasons.forEach((it) => node.append(make('div', { class: 'rule' }, it)));
  if (change.witness) node.append(make('pre', { class: 'witness' }, change.witness));
  return node;
};
