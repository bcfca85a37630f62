// ---- The list. It can be read without this part, which adds a filter, an order, and the entries of a long list that
// the document does not have yet.

const list = byId('change-list');
const listEntries = () => [...list.children];

const showAllEntries = () => {
  document.querySelectorAll('template.more-changes').forEach((part) => {
    list.append(part.content);
    part.remove();
  });
  listMore();
};
const showMoreEntries = () => {
  const part = document.querySelector('template.more-changes');
  if (part) {
    const first = part.content.firstElementChild;
    list.append(part.content);
    part.remove();
    first.tabIndex = -1;
    first.focus();
  }
  listMore();
};
const listMore = () => {
  const left = [...document.querySelectorAll('template.more-changes')]
    .reduce((sum, part) => sum + part.content.childElementCount, 0);
  const line = document.querySelector('.more');
  if (!line) return;
  if (left) line.lastChild.textContent = ` ${left} more entries are not shown yet.`;
  else line.remove();
};

const filterList = () => {
  const wanted = byId('list-filter').value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length) showAllEntries();
  let shown = 0;
  listEntries().forEach((entry) => {
    const text = entry.textContent.toLowerCase();
    entry.hidden = !wanted.every((word) => text.includes(word));
    shown += entry.hidden ? 0 : 1;
  });
  byId('list-status').textContent = wanted.length ? `${shown} of ${listEntries().length} shown` : '';
};

const sortList = () => {
  showAllEntries();
  const by = byId('list-sort').value;
  const key = (entry) => {
    const part = by && entry.querySelector(`.${by}`);
    return part ? part.textContent : '';
  };
  listEntries().forEach((entry, index) => {
    if (entry.dataset.place === undefined) entry.dataset.place = index;
  });
  const place = (entry) => Number(entry.dataset.place);
  const natural = new Intl.Collator('en', { numeric: true });
  list.append(...listEntries().sort((a, b) =>
    (by && natural.compare(key(a), key(b))) || place(a) - place(b)));
};

// From an entry to the graph around its destination.
const listClick = (event) => {
  const entry = event.target.closest('[data-change]');
  if (!entry || !event.target.closest('.show-graph')) return;
  const change = changes[entry.dataset.change];
  showGraph(ends[change.to.length ? change.to[0] : change.from[0]]);
  byId('graph-centre').focus();
};
const addGraphButtons = () => {
  list.addEventListener('toggle', (event) => {
    const entry = event.target.closest('[data-change]');
    const change = entry && changes[entry.dataset.change];
    if (!change || !(change.to.length || change.from.length) || entry.querySelector('.show-graph')) return;
    event.target.append(make('button', { type: 'button', class: 'show-graph' }, 'Show in the graph'));
  }, true);
  list.addEventListener('click', listClick);
};

const startList = () => {
  if (!list) return;
  byId('list-controls').hidden = false;
  byId('list-controls').addEventListener('submit', (event) => event.preventDefault());
  byId('list-filter').addEventListener('input', paused(filterList));
  byId('list-sort').addEventListener('change', sortList);
  if (byId('more')) {
    byId('more').hidden = false;
    byId('more').addEventListener('click', showMoreEntries);
  }
  addGraphButtons();
};
