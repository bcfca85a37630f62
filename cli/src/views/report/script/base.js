'use strict';
// The report's page. The matrix and the graph show the tables in the element `data`; nothing is fetched, and no text of
// the input is ever HTML. This part has the functions that all other parts use.

const data = JSON.parse(document.getElementById('data').textContent);
const byId = (id) => document.getElementById(id);

const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
};
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const makeSvg = (tag, attributes, ...children) =>
  fill(document.createElementNS(byId('graph-picture').namespaceURI, tag), attributes, children);

const plural = (number, word) => {
  const words = number === 1 ? word : word.replace(/y$/, 'ie') + 's';
  return `${number} ${words}`;
};

// A file and line, as a link if a web page shows it.
const placeOf = (at) => {
  if (!at) return '';
  const code = make('code', { class: 'at' }, at.text);
  return at.href ? make('a', { href: at.href, rel: 'noreferrer' }, code) : code;
};

// Calls a function once input pauses.
const paused = (act) => {
  let pending;
  return () => {
    clearTimeout(pending);
    pending = setTimeout(act, 80);
  };
};
