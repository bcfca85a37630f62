// ---- The graph around one workload: on the left who reaches it, on the right whom it reaches, drawn on demand. Many
// neighbours are shown as namespaces, which a click opens.

const BOX = { width: 250, height: 40, gap: 10, middle: 190 };
const MOST_NEIGHBOURS = 24;
const MOST_DRAWN = 60;
const MOST_FOUND = 12;
const picture = byId('graph-picture');
const graph = { centre: undefined, opened: new Set(), before: [] };

const neighbour = (from, to, end) => {
  const sets = passes(from, to);
  const isOpen = sets.some((it) => it !== undefined && it !== 0n);
  const mark = changeMark(from, to);
  if (!isOpen && !mark) return undefined;
  const now = isOpen ? wordsOf(sets) : 'nothing';
  const texts = changesOf(from, to).map((it) => `${it.change === 'added' ? '+' : '−'} ${it.ports}`);
  return { end, mark, isOpen, now, words: [...new Set(texts)].join('; ') || now };
};
// The neighbours on one side, those with changes first.
const neighbours = (centre, side) => {
  const one = (end) => (side === 'from' ? neighbour(end, centre, end) : neighbour(centre, end, end));
  const weight = (it) => (it.mark & ADDED ? 0 : it.mark ? 1 : 2);
  return ends.map(one).filter(Boolean).sort((a, b) => weight(a) - weight(b));
};

// Boxes of one side: neighbours, or namespaces with a number if there are too many.
const boxes = (centre, side) => {
  const found = neighbours(centre, side);
  if (found.length <= MOST_NEIGHBOURS) return { found, items: found.map((it) => ({ ...it, title: nameOf(it.end) })) };
  const groups = new Map();
  found.forEach((it) => {
    if (!groups.has(it.end.place)) groups.set(it.end.place, []);
    groups.get(it.end.place).push(it);
  });
  const items = [];
  groups.forEach((members, place) => {
    if (members.length === 1 || graph.opened.has(place)) {
      members.forEach((it) => items.push({ ...it, title: nameOf(it.end) }));
      return;
    }
    const mark = members.reduce((mark, it) => mark | it.mark, 0);
    const same = members.every((it) => it.words === members[0].words);
    const text = same ? members[0].words : 'different ports';
    const isOpen = members.some((it) => it.isOpen);
    items.push({ place, mark, isOpen, words: text, title: `${place.name} (${members.length})` });
  });
  return { found, items };
};

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
// It begins with the text in the box, so that people who see it and use speech can say it.
const boxLabel = (item, side, shown) => {
  const verb = side === 'from' ? `source of ${nameOf(graph.centre)}` : `destination of ${nameOf(graph.centre)}`;
  const change = item.mark ? `, ${markWords(item.mark)}` : '';
  const whole = `${item.title}, ${item.words}`;
  return `${shown.join(' ')}: ${whole}, ${verb}${change}; ${item.place ? 'opens the namespace' : 'moves there'}`;
};
const activateBox = (item) => {
  if (item.place) {
    graph.opened.add(item.place);
    drawGraph();
  } else showGraph(item.end);
  byId('graph-centre').focus({ preventScroll: true });
};
const drawBox = (item, side, x, y) => {
  const style = markStyle(item.mark) || 'plain';
  const sign = { added: '+ ', removed: '− ', both: '± ' }[style] || '';
  const shown = [cut(sign + item.title, 32), cut(item.words, 38)];
  const label = boxLabel(item, side, shown);
  const node = makeSvg('g', { role: 'button', tabindex: 0, class: `box ${style}`, 'aria-label': label },
    makeSvg('rect', { x, y, width: BOX.width, height: BOX.height, rx: 5 }),
    makeSvg('text', { x: x + 10, y: y + 17, class: 'name' }, shown[0]), ' ',
    makeSvg('text', { x: x + 10, y: y + 33, class: 'ports' }, shown[1]));
  node.addEventListener('click', () => activateBox(item));
  node.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    activateBox(item);
  });
  return node;
};
const drawEdge = (item, from, to) => {
  const half = (to[0] - from[0]) / 2;
  const path = `M${from} C${[from[0] + half, from[1]]} ${[to[0] - half, to[1]]} ${to}`;
  return makeSvg('path', { d: path, class: `edge ${markStyle(item.mark) || 'plain'}`, 'marker-end': 'url(#arrow)' });
};

const drawGraph = () => {
  const { centre } = graph;
  const sides = ['from', 'to'].map((side) => ({ side, ...boxes(centre, side) }));
  const step = BOX.height + BOX.gap;
  const lines = Math.max(1, ...sides.map((it) => Math.min(it.items.length, MOST_DRAWN)));
  const [top, height] = [28, lines * step + 44];
  const middle = top + (lines * step - BOX.gap) / 2;
  const left = BOX.width + BOX.middle;
  const width = 3 * BOX.width + 2 * BOX.middle;
  const arrow = makeSvg('defs', {}, makeSvg('marker', {
    id: 'arrow', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: 'auto',
    markerUnits: 'userSpaceOnUse',
  }, makeSvg('path', { d: 'M0 0 8 4 0 8z', class: 'tip' })));
  const parts = [arrow];
  const boxesOfSides = [];
  sides.forEach(({ side, items }) => {
    const x = side === 'from' ? 0 : 2 * left;
    const title = side === 'from' ? 'reach it' : 'it reaches';
    parts.push(makeSvg('text', { x: x + 2, y: 16, class: 'side-title' }, title));
    const start = middle - (Math.min(items.length, MOST_DRAWN) * step - BOX.gap) / 2;
    items.slice(0, MOST_DRAWN).forEach((item, index) => {
      const y = start + index * step;
      const at = y + BOX.height / 2;
      if (side === 'from') parts.push(drawEdge(item, [BOX.width, at], [left, middle]));
      else parts.push(drawEdge(item, [left + BOX.width, middle], [2 * left, at]));
      boxesOfSides.push(drawBox(item, side, x, y));
    });
  });
  parts.push(makeSvg('g', { class: 'centre', 'aria-hidden': 'true' },
    makeSvg('rect', { x: left, y: middle - 24, width: BOX.width, height: 48, rx: 5 }),
    makeSvg('text', { x: left + 10, y: middle + 5, class: 'name' }, cut(nameOf(centre), 32))));
  picture.replaceChildren(...parts, ...boxesOfSides);
  picture.setAttribute('viewBox', `-3 0 ${width + 6} ${height}`);
  picture.style.aspectRatio = `${width + 6} / ${height}`;
  byId('graph-centre').textContent = nameOf(centre);
  byId('graph-back').disabled = !graph.before.length;
  const [into, out] = sides.map((it) => it.found.length);
  const more = sides.some((it) => it.items.length > MOST_DRAWN) ? '; the table and the matrix have all of them' : '';
  byId('graph-status').textContent = `${into} reach it, it reaches ${out}${more}`;
  drawTable(sides);
};

// The same for readers that do not see the picture. Written only while it is open.
const drawTable = (sides) => {
  if (!byId('graph-table').open) return;
  const line = (side) => (it) => make('tr', {},
    make('td', {}, side === 'from' ? 'reaches it' : 'is reached'), make('th', { scope: 'row' }, nameOf(it.end)),
    make('td', {}, it.now), ...(isDiff ? [make('td', {}, it.mark ? it.words : 'unchanged')] : []));
  const titles = ['Direction', 'Workload or addresses', 'Traffic now', ...(isDiff ? ['Change'] : [])];
  const most = 200;
  const all = sides.flatMap(({ side, found }) => found.map(line(side)));
  const rest = all.length > most ? [make('p', {}, `and ${all.length - most} more, which the matrix shows`)] : [];
  byId('graph-rows').replaceChildren(make('table', {},
    make('caption', {}, `Neighbours of ${nameOf(graph.centre)}`),
    make('thead', {}, make('tr', {}, ...titles.map((it) => make('th', { scope: 'col' }, it)))),
    make('tbody', {}, ...all.slice(0, most))), ...rest);
};

const showGraph = (end, isBack) => {
  if (graph.centre && !isBack && graph.centre !== end) graph.before.push(graph.centre);
  graph.centre = end;
  graph.opened = new Set();
  drawGraph();
};

const searchGraph = () => {
  const wanted = byId('graph-search').value.trim().toLowerCase();
  const found = wanted ? ends.filter((end) => matches(end, wanted)) : [];
  const button = (end) => {
    const node = make('button', { type: 'button' }, nameOf(end));
    node.addEventListener('click', () => {
      byId('graph-search').value = '';
      byId('graph-found').replaceChildren();
      showGraph(end);
      byId('graph-centre').focus({ preventScroll: true });
    });
    return make('li', {}, node);
  };
  const more = found.length > MOST_FOUND ? [make('li', {}, `and ${found.length - MOST_FOUND} more`)] : [];
  byId('graph-found').replaceChildren(...found.slice(0, MOST_FOUND).map(button), ...more);
  if (wanted) byId('graph-status').textContent = `${plural(found.length, 'workload')} found`;
};

const startGraph = () => {
  if (!ends.length) {
    byId('graph').hidden = true;
    return;
  }
  byId('graph-search').addEventListener('input', paused(searchGraph));
  byId('graph-controls').addEventListener('submit', (event) => {
    event.preventDefault();
    const first = byId('graph-found').querySelector('button');
    if (first) first.click();
  });
  byId('graph-back').addEventListener('click', () => showGraph(graph.before.pop(), true));
  byId('graph-table').addEventListener('toggle', drawGraph);
  // Where most changes arrive, first of all new traffic; or the first workload.
  const busiest = new Map();
  const weight = (change) => (change.change === 'added' ? 1e6 : 1);
  changes.forEach((change) => change.to.forEach((it) => busiest.set(it, (busiest.get(it) || 0) + weight(change))));
  const [most] = [...busiest].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  showGraph(ends[most ? most[0] : 0]);
};
