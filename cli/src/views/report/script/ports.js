// ---- Ports in words, and the port that the reader asks for.

const NAMES = { tcp: 'TCP', udp: 'UDP', sctp: 'SCTP' };

const portRanges = (set, protocol, rest) => {
  const found = [];
  for (const [name, first, last, atom] of data.intervals) {
    if (name !== protocol || ((set >> BigInt(atom)) & 1n) === (rest ? 1n : 0n)) continue;
    const before = found[found.length - 1];
    if (before && before[1] + 1 === first) before[1] = last; else found.push([first, last]);
  }
  return found;
};

const words = (set) => {
  if (set === all) return 'everything';
  const rest = (set & 1n) === 1n;
  const texts = [];
  for (const protocol of Object.values(NAMES)) {
    const found = portRanges(set, protocol, rest);
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
