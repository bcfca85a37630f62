'use strict';
// The report's page. What it shows is in the element `data`; nothing is fetched, and no text of the input is ever HTML.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const CELL = 24, HEAD = 150, SIDE = 260, SPARE = 4;
  const VOID = 0, NONE = 1, PART = 2, FULL = 3;
  const ADDED = 1, REMOVED = 2;
  const byId = (id) => document.getElementById(id);
  const make = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const plural = (number, word) => `${number} ${word}${number === 1 ? '' : 's'}`;

  // ---- What passes. Sets of port atoms are numbers whose bits are the atoms.
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
  const changes = data.changes || [];
  const changesFrom = ends.map(() => []);
  changes.forEach((change) => {
    change.toSet = new Set(change.to);
    change.from.forEach((index) => changesFrom[index].push(change));
  });
  let port; // What is asked for, if anything: {protocol, number}.
  const speaksOf = (change) => !port || (port.protocol
    ? change.ranges.some(([name, first, last]) => name === port.protocol && first <= port.number && port.number <= last)
    : change.portless);
  const changesOf = (from, to) =>
    changesFrom[from.index].filter((it) => it.toSet.has(to.index) && speaksOf(it));
  const changeMark = (from, to) => {
    let mark = 0;
    for (const change of changesFrom[from.index]) {
      if (change.toSet.has(to.index) && speaksOf(change)) mark |= change.change === 'added' ? ADDED : REMOVED;
    }
    return mark;
  };

  // ---- Ports in words.
  const NAMES = { tcp: 'TCP', udp: 'UDP', sctp: 'SCTP' };
  const words = (set) => {
    if (set === all) return 'everything';
    const rest = (set & 1n) === 1n;
    const texts = [];
    for (const protocol of Object.values(NAMES)) {
      const found = [];
      for (const [name, first, last, atom] of data.intervals) {
        if (name !== protocol || ((set >> BigInt(atom)) & 1n) === (rest ? 1n : 0n)) continue;
        const before = found[found.length - 1];
        if (before && before[1] + 1 === first) before[1] = last; else found.push([first, last]);
      }
      const whole = found.length === 1 && found[0][0] <= 1 && found[0][1] === 65535;
      const list = found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(', ');
      if (found.length) texts.push(whole ? `all ${protocol}` : `${protocol} ${list}`);
    }
    const text = texts.join('; ');
    return rest ? `everything but ${text}` : text || 'nothing';
  };
  const wordsOf = ([v4, v6]) => {
    if (v4 === undefined || v6 === undefined || v4 === v6) return words(v4 === undefined ? v6 : v4);
    return `${words(v4)} over IPv4, ${words(v6)} over IPv6`;
  };
  // Undefined is every port, null is no port.
  const parsePort = (text) => {
    const parts = text.trim().toLowerCase().split(/[\s/]+/).filter(Boolean);
    if (!parts.length) return undefined;
    if (parts.length === 1 && parts[0] === 'icmp') return {};
    const number = parts.map(Number).find((it) => Number.isInteger(it) && it >= 0 && it <= 65535);
    const known = parts.every((it) => it in NAMES || Number(it) === number);
    if (number === undefined || parts.length > 2 || !known) return null;
    return { protocol: NAMES[parts.find((it) => it in NAMES) || 'tcp'], number };
  };
  const maskOf = (wanted) => {
    if (!wanted) return all;
    const holds = ([name, first, last]) => name === wanted.protocol && first <= wanted.number && wanted.number <= last;
    const found = data.intervals.find(holds);
    return 1n << BigInt(found ? found[3] : 0);
  };

  // ---- What is shown: places, and the ends of those that are open.
  const places = data.namespaces.map((name) => ({ name, ends: [], open: false }));
  const outside = { name: 'outside the cluster', ends: data.zones, open: false };
  data.parties.forEach((party) => places[party.n].ends.push(party));
  places.push(outside);
  places.forEach((place, index) => {
    place.index = index;
    place.ends.forEach((end) => { end.place = place; });
  });
  const nameOf = (end) => (end.n === null ? end.name : `${end.place.name}/${end.name}`);
  const textOf = (end) => `${nameOf(end)} ${end.kind} ${end.pods.join(' ')}`.toLowerCase();
  ends.forEach((end) => { end.text = textOf(end); });
  let axes = { from: [], to: [] };
  let filters = { from: '', to: '', changed: false };
  const matches = (end, filter) => filter.split(/\s+/).every((word) => end.text.includes(word));
  const touched = { from: new Set(), to: new Set() };
  changes.forEach((change) => {
    change.from.forEach((it) => touched.from.add(it));
    change.to.forEach((it) => touched.to.add(it));
  });
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
  const refresh = () => {
    axes = { from: axis('from'), to: axis('to') };
    sums = new Map();
    const count = (which) => axes[which].filter((it) => !it.end).reduce((sum, it) => sum + it.ends.length, 0);
    byId('status').textContent = `${plural(count('from'), 'source')}, ${plural(count('to'), 'destination')}`;
    active = [Math.min(active[0], axes.from.length - 1), Math.min(active[1], axes.to.length - 1)];
    layout();
  };

  // ---- Sums of pairs, for cells of namespaces.
  let sums = new Map();
  const sum = (from, to) => {
    const key = from.index * 1e6 + to.index;
    let found = sums.get(key);
    if (!found) {
      found = { kinds: [0, 0, 0, 0], added: 0, removed: 0 };
      for (const source of from.ends) {
        for (const destination of to.ends) {
          found.kinds[kind(source, destination)] += 1;
          if (changesFrom[source.index].length) {
            const mark = changeMark(source, destination);
            found.added += mark & ADDED ? 1 : 0;
            found.removed += mark & REMOVED ? 1 : 0;
          }
        }
      }
      sums.set(key, found);
    }
    return found;
  };
  const look = (from, to) => {
    const { kinds: counts, added, removed } = sum(from, to);
    const [nothing, part, full] = [counts[NONE], counts[PART], counts[FULL]];
    const pairs = nothing + part + full;
    // What is gone has no pairs left, and may still have lost something.
    const state = !pairs ? VOID : !part && !full ? NONE : !part && !nothing ? FULL : PART;
    const change = added && removed ? 'both' : added ? 'added' : removed ? 'removed' : '';
    // Of many pairs, how many: the fuller the circle, the more.
    const share = from.end && to.end ? 1 : Math.min(2, Math.floor((3 * (part + full)) / pairs));
    const style = change || ['void', 'none', `part share${share}`, 'full'][state];
    const glyph = { added: '+', removed: '−', both: '±' }[change] || ['', '·', '◔◐◕'[share], '●'][state];
    return { style, glyph, text: describe(from, to, { nothing, part, full, pairs, added, removed }) };
  };
  const describe = (from, to, { part, full, pairs, added, removed }) => {
    let text;
    if (!pairs) text = 'not decided by policy';
    else if (from.end && to.end) text = wordsOf(passes(from.end, to.end));
    else text = `allowed for ${part + full} of ${plural(pairs, 'pair')}, everything for ${full}`;
    if (from.end && to.end) return text + (added ? ', added' : '') + (removed ? ', removed' : '');
    return text + (added ? `, ${added} added` : '') + (removed ? `, ${removed} removed` : '');
  };
  const itemName = (item) => (item.end ? nameOf(item.end) : item.place.name);

  // ---- The grid: only what can be seen is in the document.
  const grid = byId('grid'), canvas = byId('canvas');
  document.documentElement.style.setProperty('--head', `${HEAD}px`);
  document.documentElement.style.setProperty('--side', `${SIDE}px`);
  let active = [0, 0]; // -1 is the header.
  let chosen;
  let drawn;
  const layout = () => {
    canvas.style.width = `${SIDE + axes.to.length * CELL + 8}px`;
    canvas.style.height = `${HEAD + axes.from.length * CELL + 8}px`;
    grid.setAttribute('aria-rowcount', axes.from.length + 1);
    grid.setAttribute('aria-colcount', axes.to.length + 1);
    drawn = undefined;
    draw();
  };
  const range = (offset, size, count) => {
    const first = Math.max(0, Math.floor(offset / CELL) - SPARE);
    return [first, Math.min(count, Math.ceil((offset + size) / CELL) + SPARE)];
  };
  const tag = (node, r, c) => {
    node.dataset.r = r;
    node.dataset.c = c;
    node.tabIndex = r === active[0] && c === active[1] ? 0 : -1;
    node.setAttribute('aria-colindex', c + 2);
    return node;
  };
  const header = (item, role, style, r, c) => {
    const node = tag(make('span', { role, class: `${style} ${item.end ? 'inner' : 'place'}`, title: itemName(item) }), r, c);
    if (item.end) node.textContent = item.end.name;
    else {
      const open = item.place.open || Boolean(filters[role === 'rowheader' ? 'from' : 'to']);
      node.textContent = `${open ? '▾' : '▸'} ${item.place.name} (${item.ends.length})`;
      node.setAttribute('aria-expanded', open);
    }
    return node;
  };
  const draw = () => {
    const [r0, r1] = range(grid.scrollTop, grid.clientHeight - HEAD, axes.from.length);
    const [c0, c1] = range(grid.scrollLeft, grid.clientWidth - SIDE, axes.to.length);
    const key = [r0, r1, c0, c1, active, chosen].join();
    if (key === drawn) return;
    drawn = key;
    const had = grid.contains(document.activeElement) && document.activeElement !== grid;
    const head = make('div', { role: 'row', class: 'head', 'aria-rowindex': 1 });
    head.append(make('span', { role: 'columnheader', class: 'corner', 'aria-colindex': 1 }, 'from ↓ to →'));
    for (let c = c0; c < c1; c += 1) {
      const node = header(axes.to[c], 'columnheader', 'column', -1, c);
      node.style.left = `${SIDE + c * CELL}px`;
      head.append(node);
    }
    const lines = [head];
    for (let r = r0; r < r1; r += 1) {
      const line = make('div', { role: 'row', class: 'line', 'aria-rowindex': r + 2 });
      line.style.top = `${HEAD + r * CELL}px`;
      line.style.width = canvas.style.width;
      line.append(header(axes.from[r], 'rowheader', 'side', r, -1));
      for (let c = c0; c < c1; c += 1) line.append(cell(r, c));
      lines.push(line);
    }
    canvas.replaceChildren(...lines);
    if (had) focusActive();
  };
  const cell = (r, c) => {
    const [from, to] = [axes.from[r], axes.to[c]];
    const { style, glyph, text } = look(from, to);
    const name = `${itemName(from)} to ${itemName(to)}: ${text}`;
    const node = tag(make('span', { role: 'gridcell', class: `cell ${style}`, 'aria-label': name, title: name }, glyph), r, c);
    node.style.left = `${SIDE + c * CELL}px`;
    if (chosen && chosen[0] === from && chosen[1] === to) {
      node.classList.add('chosen');
      node.setAttribute('aria-selected', 'true');
    }
    return node;
  };
  const focusActive = () => {
    const node = canvas.querySelector(`[data-r="${active[0]}"][data-c="${active[1]}"]`);
    if (node) node.focus({ preventScroll: true });
  };
  const move = (r, c) => {
    active = [Math.max(-1, Math.min(axes.from.length - 1, r)), Math.max(-1, Math.min(axes.to.length - 1, c))];
    if (active[0] < 0 && active[1] < 0) active[1] = 0;
    const [top, left] = [active[0] * CELL, active[1] * CELL];
    const [height, width] = [grid.clientHeight - HEAD, grid.clientWidth - SIDE];
    if (active[0] >= 0) grid.scrollTop = Math.min(top, Math.max(grid.scrollTop, top + 2 * CELL - height));
    if (active[1] >= 0) grid.scrollLeft = Math.min(left, Math.max(grid.scrollLeft, left + 2 * CELL - width));
    draw();
    focusActive();
  };
  const toggle = (item) => {
    if (!item || item.end) return;
    item.place.open = !item.place.open;
    refresh();
    focusActive();
  };
  const activate = () => {
    const [r, c] = active;
    if (r < 0) return toggle(axes.to[c]);
    if (c < 0) return toggle(axes.from[r]);
    chosen = [axes.from[r], axes.to[c]];
    show(chosen[0], chosen[1]);
    draw();
    byId('details').focus();
  };
  grid.addEventListener('scroll', () => requestAnimationFrame(draw));
  addEventListener('resize', draw);
  grid.addEventListener('click', (event) => {
    const node = event.target.closest('[data-r]');
    if (!node) return;
    active = [Number(node.dataset.r), Number(node.dataset.c)];
    activate();
  });
  grid.addEventListener('keydown', (event) => {
    if (!event.target.dataset.r) return;
    const [r, c] = active;
    const page = Math.max(1, Math.floor((grid.clientHeight - HEAD) / CELL) - 1);
    const steps = {
      ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1],
      PageUp: [Math.max(0, r - page), c], PageDown: [r + page, c],
      Home: [event.ctrlKey ? 0 : r, 0], End: [event.ctrlKey ? axes.from.length : r, axes.to.length],
    };
    if (event.key in steps) move(...steps[event.key]);
    else if (event.key === 'Enter' || event.key === ' ') activate();
    else return;
    event.preventDefault();
  });
  addEventListener('keydown', (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === '/' && !typing) {
      byId('from').focus();
      event.preventDefault();
    } else if (event.key === 'Escape' && byId('details').contains(event.target)) move(...active);
  });

  // ---- Details.
  const side = (direction, end, other, family) => {
    const title = make('h3', {}, `${direction} of ${nameOf(end)}`);
    if (end.s < 0) return [title, make('p', {}, 'No policy applies to it.')];
    const subject = data.subjects[end.s];
    const held = new Set(data.peers[other.p[family]]);
    const denies = subject.lists.map((id) => data.lists[id]).find((list) => list[direction] && held.has(list.predicate));
    if (denies && denies.action === 'Deny') {
      return [title, make('p', {}, `The address list ${denies.name} denies everything.`), place(denies.at)];
    }
    const policies = subject.policies.map((id) => data.policies[id]).filter((policy) => policy[direction]);
    if (!policies.length) return [title, make('p', {}, 'No policy isolates it in this direction: everything passes.')];
    const rules = policies.flatMap((policy) => policy[direction]
      .filter((rule) => !rule.p || rule.p.some((it) => held.has(it)))
      .map((rule) => make('li', { class: 'rule' }, `${policy.name} ${rule.path}: ${rule.ports}`, place(rule.at))));
    const isolates = policies.map((policy) => make('li', {}, policy.name, place(policy.at)));
    const list = rules.length
      ? [make('p', {}, 'Allowed by:'), make('ul', {}, ...rules)]
      : [make('p', {}, 'Denied: no rule of the policies that isolate it allows this traffic:'), make('ul', {}, ...isolates)];
    return [title, ...list];
  };
  const place = (at) => (at ? make('div', {}, make('code', { class: 'at' }, at)) : '');
  const showPair = (from, to) => {
    const nodes = [make('h2', {}, `${nameOf(from)} → ${nameOf(to)}`)];
    const sets = passes(from, to);
    if (sets.every((it) => it === undefined)) {
      const why = 'Not decided by policy: one end does not exist now, both are outside, or they have no address family in common.';
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
  const showSum = (from, to) => {
    const { kinds: counts, added, removed } = sum(from, to);
    const [nothing, part, full] = [counts[NONE], counts[PART], counts[FULL]];
    const nodes = [
      make('h2', {}, `${itemName(from)} → ${itemName(to)}`),
      make('p', { class: 'passes' }, `Of ${plural(nothing + part + full, 'pair')}, ${full} allow everything, ${part} some traffic, ${nothing} nothing.`),
    ];
    if (added || removed) nodes.push(make('p', {}, `Traffic is added for ${added} pairs and removed for ${removed} pairs.`));
    const most = 100;
    const list = make('ul', {});
    let more = 0;
    for (const source of from.ends) {
      for (const destination of to.ends) {
        const mark = changeMark(source, destination);
        const passing = kind(source, destination);
        if (passing < PART && !mark) continue;
        if (list.childElementCount >= most) { more += 1; continue; }
        const what = passing === VOID ? 'not decided by policy' : wordsOf(passes(source, destination));
        const text = `${nameOf(source)} → ${nameOf(destination)}: ${what}`;
        list.append(make('li', {}, text + (mark & ADDED ? ' (+)' : '') + (mark & REMOVED ? ' (−)' : '')));
      }
    }
    nodes.push(list);
    if (more) nodes.push(make('p', {}, `and ${more} more pairs: open the namespaces to see them.`));
    return nodes;
  };
  const show = (from, to) => {
    byId('details').replaceChildren(...(from.end && to.end ? showPair(from.end, to.end) : showSum(from, to)));
  };
  const showChange = (change) => {
    const node = make('div', { class: `change ${change.change}` });
    node.append(make('strong', {}, `${change.change === 'added' ? '+ newly allowed' : '− no longer allowed'}: ${change.ports}`));
    node.append(make('div', {}, change.text));
    change.reasons.forEach((it) => node.append(make('div', { class: 'rule' }, it)));
    if (change.witness) node.append(make('pre', { class: 'witness' }, change.witness));
    return node;
  };

  // ---- Filters.
  let pending;
  const filter = () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const [from, to] = ['from', 'to'].map((id) => byId(id).value.trim().toLowerCase());
      filters = { from, to, changed: byId('changed').checked };
      const asked = parsePort(byId('port').value);
      byId('port').setAttribute('aria-invalid', asked === null);
      port = asked || undefined;
      mask = maskOf(port);
      kinds = new Map();
      chosen = undefined;
      [grid.scrollTop, grid.scrollLeft] = [0, 0];
      refresh();
      if (asked === null) byId('status').textContent = 'write a port as 443/tcp, or icmp';
    }, 80);
  };
  byId('controls').addEventListener('input', filter);
  byId('controls').addEventListener('submit', (event) => event.preventDefault());
  const openAll = (open) => () => {
    places.forEach((it) => { it.open = open; });
    refresh();
  };
  byId('open').addEventListener('click', openAll(true));
  byId('close').addEventListener('click', openAll(false));

  // ---- Paper: a table of what is open now, or of namespaces if that is too wide.
  const MOST_COLUMNS = 60;
  addEventListener('beforeprint', () => {
    const fits = Math.max(axes.from.length, axes.to.length) <= MOST_COLUMNS;
    const keep = (item) => fits || !item.end;
    const [from, to] = [axes.from.filter(keep), axes.to.filter(keep)];
    const table = make('table', {});
    const titles = to.map((item) => make('th', { scope: 'col' }, make('span', {}, itemName(item))));
    table.append(make('thead', {}, make('tr', {}, make('th', {}, 'from \\ to'), ...titles)));
    const body = make('tbody', {});
    from.forEach((source) => {
      const cells = to.map((item) => {
        const { style, glyph } = look(source, item);
        return make('td', { class: style }, glyph);
      });
      body.append(make('tr', {}, make('th', { scope: 'row' }, itemName(source)), ...cells));
    });
    table.append(body);
    const note = fits ? [] : [make('p', {}, 'By namespace: the workloads do not fit on the page.')];
    byId('print').replaceChildren(table, ...note);
  });

  // ---- Beginning.
  byId('title').textContent = data.title;
  document.title = `Weir: ${data.title}`;
  byId('summary').textContent = data.summary;
  data.notes.forEach((note) => byId('notes').append(make('p', {}, note)));
  if (data.changes) {
    document.body.classList.add('diff');
    byId('changed-label').hidden = false;
    byId('changes').hidden = false;
    data.facts.forEach((fact) => byId('facts').append(make('p', {}, fact)));
    changes.forEach((change) => {
      const button = make('button', { type: 'button' }, showChange(change));
      button.addEventListener('click', () => {
        byId('details').replaceChildren(make('h2', {}, 'Change'), showChange(change));
        byId('details').focus();
      });
      byId('change-list').append(make('li', {}, button));
    });
    if (!changes.length) byId('change-list').append(make('li', {}, 'The same traffic is allowed.'));
  }
  if (places.filter((it) => it.ends.length).length <= 6 && ends.length <= 60) places.forEach((it) => { it.open = true; });
  refresh();
})();
