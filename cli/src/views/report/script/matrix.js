// ---- The matrix: a grid of which only the visible part is in the document.

const grid = byId('grid'), canvas = byId('canvas');
const CELL = 26, SPARE = 4;
// The size of the headers: as long as the longest name, if there is room for it.
let HEAD = 150, SIDE = 260;
const measureHeaders = () => {
  const letters = (it) => (it.end ? it.end.name.length + 3 : it.place.name.length + 9);
  const longest = axes.to.concat(axes.from).reduce((most, it) => Math.max(most, letters(it)), 12);
  HEAD = Math.round(Math.min(longest * 7 + 16, 210, innerHeight / 3));
  SIDE = Math.round(Math.min(longest * 7 + 40, 280, innerWidth * 0.4));
  document.documentElement.style.setProperty('--head', `${HEAD}px`);
  document.documentElement.style.setProperty('--side', `${SIDE}px`);
};
let active = [0, 0]; // -1 is the header.
let chosen;
let drawn;
const layout = () => {
  measureHeaders();
  canvas.style.width = `${SIDE + axes.to.length * CELL + 8}px`;
  const height = HEAD + axes.from.length * CELL + 8;
  canvas.style.height = `${height}px`;
  // A small matrix needs no more room than it has cells.
  grid.parentNode.style.setProperty('--grid', `${Math.max(height + 20, 280)}px`);
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
  const kind = item.end ? 'inner' : 'place';
  const node = tag(make('span', { role, class: `${style} ${kind}`, title: itemName(item) }), r, c);
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
  const node = tag(make('span', { role: 'gridcell', class: `cell ${style}`, 'aria-label': name }, glyph), r, c);
  node.style.left = `${SIDE + c * CELL}px`;
  if (chosen && chosen[0] === from && chosen[1] === to) {
    node.classList.add('chosen');
    node.setAttribute('aria-selected', 'true');
  }
  return node;
};
// The names of a cell or header in full, because headers may be cut.
const readOut = (node) => { byId('readout').textContent = node.getAttribute('aria-label') || node.title || ''; };
const focusActive = () => {
  const node = canvas.querySelector(`[data-r="${active[0]}"][data-c="${active[1]}"]`);
  if (node) node.focus({ preventScroll: true });
  if (node) readOut(node);
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

const refresh = () => {
  axes = { from: axis('from'), to: axis('to') };
  sums = new Map();
  const count = (which) => axes[which].filter((it) => !it.end).reduce((sum, it) => sum + it.ends.length, 0);
  const none = filters.changed && !axes.from.length ? 'no pair of workloads changes; ' : '';
  byId('status').textContent = `${none}${plural(count('from'), 'source')}, ${plural(count('to'), 'destination')}`;
  active = [Math.min(active[0], axes.from.length - 1), Math.min(active[1], axes.to.length - 1)];
  layout();
};

grid.addEventListener('scroll', () => requestAnimationFrame(draw));
addEventListener('resize', layout);
grid.addEventListener('pointerover', (event) => {
  const node = event.target.closest('[data-r]');
  if (node) readOut(node);
});
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
  const typing = event.target.matches && event.target.matches('input, select, textarea');
  if (event.key === '/' && !typing) {
    byId('from').focus();
    event.preventDefault();
  } else if (event.key === 'Escape' && byId('details').contains(event.target)) move(...active);
});

// ---- Filters.

const filter = () => {
  const [from, to] = ['from', 'to'].map((id) => byId(id).value.trim().toLowerCase());
  filters = { from, to, changed: isDiff && byId('changed').checked };
  const asked = parsePort(byId('port').value);
  byId('port').setAttribute('aria-invalid', asked === null);
  port = asked || undefined;
  mask = maskOf(port);
  kinds = new Map();
  marks = [];
  chosen = undefined;
  [grid.scrollTop, grid.scrollLeft] = [0, 0];
  refresh();
  if (asked === null) byId('status').textContent = 'write a port as 443/tcp, or icmp';
};
const openAll = (open) => () => {
  places.forEach((it) => { it.open = open; });
  refresh();
};

// ---- Paper: a table of what is open now, or of namespaces if that is too wide.

const MOST_COLUMNS = 60;
const printTable = () => {
  const fits = Math.max(axes.from.length, axes.to.length) <= MOST_COLUMNS;
  const keep = (item) => fits || !item.end;
  const [from, to] = [axes.from.filter(keep), axes.to.filter(keep)];
  const titles = to.map((item) => make('th', { scope: 'col' }, make('span', {}, itemName(item))));
  const line = (source) => {
    const cells = to.map((item) => {
      const { style, glyph } = look(source, item);
      return make('td', { class: style }, glyph);
    });
    return make('tr', {}, make('th', { scope: 'row' }, itemName(source)), ...cells);
  };
  const table = make('table', {},
    make('thead', {}, make('tr', {}, make('th', {}, 'from \\ to'), ...titles)),
    make('tbody', {}, ...from.map(line)));
  const note = fits ? [] : [make('p', {}, 'By namespace: the workloads do not fit on the page.')];
  byId('print').replaceChildren(table, ...note);
};

const startMatrix = () => {
  byId('controls').addEventListener('input', paused(filter));
  byId('controls').addEventListener('submit', (event) => event.preventDefault());
  byId('changed').checked = filters.changed;
  byId('open').addEventListener('click', openAll(true));
  byId('close').addEventListener('click', openAll(false));
  const filled = places.filter((it) => it.ends.length);
  if (filled.length <= 6 && ends.length <= 60) places.forEach((it) => { it.open = true; });
  refresh();
};
