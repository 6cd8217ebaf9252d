// Runs the page's script against a small stand-in for a browser and uses the
// charts as a reader would. Called with the script and the data as files.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const vm = require('node:vm');

class Node {
  constructor(name) {
    Object.assign(this, { name, attributes: {}, children: [], listeners: {}, style: {}, hidden: false, text: '', clientWidth: name === 'svg' ? 600 : 0 });
  }
  setAttribute(k, v) { this.attributes[k] = String(v); }
  getAttribute(k) { return k in this.attributes ? this.attributes[k] : null; }
  removeAttribute(k) { delete this.attributes[k]; }
  append(...nodes) {
    for (const n of nodes) {
      const child = typeof n === 'string' ? Object.assign(new Node('#text'), { text: n }) : n;
      const old = this.children.indexOf(child);
      if (old >= 0) this.children.splice(old, 1);
      this.children.push(child);
    }
  }
  replaceChildren(...nodes) { this.children = []; this.append(...nodes); }
  addEventListener(type, f) { (this.listeners[type] ||= []).push(f); }
  fire(type, e = {}) { for (const f of this.listeners[type] || []) f({ preventDefault() {}, button: 0, target: this, ...e }); }
  getBoundingClientRect() { return { left: 0, top: 0, width: this.clientWidth, height: 260 }; }
  set textContent(t) { this.children = []; this.text = t; }
  get textContent() { return this.text + this.children.map((c) => c.textContent).join(''); }
  get cells() { return this.children.filter((c) => c.name === 'td' || c.name === 'th'); }
  get rows() { return this.children.filter((c) => c.name === 'tr'); }
  all(name) { return [...(this.name === name ? [this] : []), ...this.children.flatMap((c) => c.all(name))]; }
}

const [script, dataFile] = process.argv.slice(2);
const ids = {};
for (const id of ['tip', 'theme', 'print', 'help', 'data']) ids[id] = new Node('div');
ids.data.textContent = fs.readFileSync(dataFile, 'utf8');
const sections = JSON.parse(ids.data.textContent).map((_, i) => {
  const place = new Node('div');
  place.setAttribute('data-section', i);
  return place;
});

const table = new Node('table');
const row = (cell, texts, sort) => {
  const tr = new Node('tr');
  texts.forEach((t, i) => {
    const td = new Node(cell);
    td.textContent = t;
    if (sort && i > 0) td.setAttribute('data-sort', sort);
    tr.append(td);
  });
  return tr;
};
table.tHead = new Node('thead');
table.tHead.append(row('th', ['name', 'time']));
const body = new Node('tbody');
body.append(row('td', ['b', '9 s'], '9'), row('td', ['a', '80 ms'], '0.08'), row('td', ['c', '10 s'], '10'));
table.tBodies = [body];

let media;
const window = { listeners: {}, addEventListener: Node.prototype.addEventListener, print() {} };
const world = vm.createContext({
  window, innerWidth: 1280, innerHeight: 900,
  matchMedia: () => (media = Object.assign(new Node('media'), { matches: false })),
  document: {
    documentElement: new Node('html'),
    createElement: (name) => new Node(name), createElementNS: (_, name) => new Node(name),
    getElementById: (id) => ids[id],
    querySelectorAll: (what) => (what === '.charts' ? sections : [table]),
  },
});
vm.runInContext(fs.readFileSync(script, 'utf8') + '\nglobalThis.test = { charts, format, ticks, logTicks, nearest, atOrBefore };', world);
const { charts, format, ticks, logTicks, nearest, atOrBefore } = world.test;
const plain = (x) => JSON.parse(JSON.stringify(x));

// Numbers.
for (const [got, want] of [
  [format(0.0123, 's'), '12.3 ms'], [format(0, 's'), '0 s'], [format(90, 's'), '90 s'], [format(1e4, 's'), '2.778 h'], [format(3e-9, 's'), '3 ns'],
  [format(0.905, '%'), '90.5%'], [format(1, '%'), '100%'], [format(2.5e9, 'B'), '2.5 GB'], [format(12, 'B'), '12 B'],
  [format(40.254, '/s'), '40.25/s'], [format(123456, ''), '123.5 k'], [format(12345, ''), '12,350'], [format(null, 's'), '–'], [format(NaN, 's'), '–'],
]) assert.strictEqual(got, want);
assert.deepStrictEqual(plain(ticks(0, 10, 5)), [0, 2, 4, 6, 8, 10]);
assert.deepStrictEqual(plain(ticks(3, 3, 5)), [3]);
assert.deepStrictEqual(plain(logTicks(1, 1000, 4)), [1, 10, 100, 1000]);
assert.strictEqual(nearest([1, 2, 4], 3.5), 2);
assert.strictEqual(nearest([1], 9), 0);
assert.strictEqual(atOrBefore([1, 2, 4], 3.9), 1);
assert.strictEqual(atOrBefore([1, 2, 4], 0), -1);

// Everything is drawn, and every chart says what it is.
assert.ok(charts.length >= 5, `${charts.length} charts`);
for (const c of charts) {
  assert.ok(c.svg.children.length > 0, c.spec.title);
  assert.ok(c.svg.getAttribute('aria-label').includes(c.spec.title));
  assert.strictEqual(c.svg.getAttribute('tabindex'), '0');
  for (const path of c.svg.all('path')) assert.ok(!/NaN|undefined|Infinity/.test(path.getAttribute('d')), `${c.spec.title}: ${path.getAttribute('d')}`);
  for (const shape of [...c.svg.all('line'), ...c.svg.all('rect'), ...c.svg.all('text')]) {
    for (const v of Object.values(shape.attributes)) assert.ok(!/NaN|undefined|Infinity/.test(v), `${c.spec.title}: ${shape.name} ${v}`);
  }
}
const of = (kind) => charts.find((c) => c.spec.kind === kind);
const lines = of('lines');
assert.strictEqual(lines.svg.all('path').length, lines.spec.series.filter((s) => !s.hidden).length);

// The tooltip has all series; the cross stands in all charts of the group.
lines.svg.fire('pointermove', { clientX: 300, clientY: 100 });
assert.strictEqual(ids.tip.hidden, false);
for (const s of lines.spec.series) assert.ok(ids.tip.textContent.includes(s.name), ids.tip.textContent);
for (const c of lines.peers) assert.strictEqual(c.over.children.length, 1, c.spec.title);
assert.ok(lines.peers.length > 1);
lines.svg.fire('pointerleave');
assert.strictEqual(ids.tip.hidden, true);
for (const c of lines.peers) assert.strictEqual(c.over.children.length, 0);

// A drag zooms all charts of the group; a double click shows everything.
const zoomed = () => lines.peers.filter((c) => c.zoom).length;
lines.svg.fire('pointerdown', { clientX: 200 });
lines.svg.fire('pointermove', { clientX: 300 });
lines.svg.fire('pointerup', { clientX: 300 });
assert.strictEqual(zoomed(), lines.peers.length);
assert.ok(lines.x.low > lines.span()[0] && lines.x.high < lines.span()[1]);
assert.strictEqual(lines.all.hidden, false);
lines.svg.fire('dblclick');
assert.strictEqual(zoomed(), 0);
assert.strictEqual(lines.all.hidden, true);
lines.svg.fire('pointerdown', { clientX: 200 }); // a click is no zoom
lines.svg.fire('pointerup', { clientX: 202 });
assert.strictEqual(zoomed(), 0);

// The keyboard does the same.
lines.svg.fire('keydown', { key: 'ArrowRight' });
const first = lines.cursor;
lines.svg.fire('keydown', { key: 'ArrowRight' });
assert.ok(lines.cursor > first && ids.tip.hidden === false);
lines.svg.fire('keydown', { key: '+' });
assert.strictEqual(zoomed(), lines.peers.length);
const low = lines.zoom[0];
lines.svg.fire('keydown', { key: 'ArrowLeft', shiftKey: true });
assert.ok(lines.zoom[0] < low);
lines.svg.fire('keydown', { key: '0' });
assert.strictEqual(zoomed(), 0);
lines.svg.fire('keydown', { key: 'Escape' });
assert.strictEqual(ids.tip.hidden, true);

// A turn of the wheel scrolls the page, with Ctrl it zooms.
lines.svg.fire('wheel', { deltaY: -1, clientX: 300 });
assert.strictEqual(zoomed(), 0);
lines.svg.fire('wheel', { deltaY: -1, clientX: 300, ctrlKey: true });
assert.strictEqual(zoomed(), lines.peers.length);
lines.range(null);

// The legend turns series off: of a stack the rest moves down.
const areas = of('areas');
const legend = areas.figure.all('ul')[0].all('button');
const top = Math.max(...areas.stacked.at(-1));
legend[0].fire('click');
assert.strictEqual(legend[0].getAttribute('aria-pressed'), 'false');
assert.ok(Math.max(...areas.stacked.at(-1)) < top);
legend[0].fire('click');
assert.strictEqual(Math.max(...areas.stacked.at(-1)), top);

// Logarithmic axes.
const steps = charts.find((c) => c.spec.kind === 'steps' && c.spec.x.canLog);
const log = steps.caption.all('button').find((b) => b.textContent === 'log x');
const before = steps.x.log;
log.fire('click');
assert.strictEqual(steps.x.log, !before);

// Cells and bars have tooltips of their own.
for (const c of [of('bars'), of('heat')]) {
  const cell = c.svg.all('rect').find((r) => r.getAttribute('data-tip'));
  c.svg.fire('pointermove', { target: cell, clientX: 10, clientY: 10 });
  assert.strictEqual(ids.tip.textContent, cell.getAttribute('data-tip'));
}

// Light and dark: the system's choice until the reader makes one.
const theme = () => world.document.documentElement.getAttribute('data-theme');
assert.strictEqual(theme(), 'light');
media.fire('change', { matches: true });
assert.strictEqual(theme(), 'dark');
ids.theme.fire('click');
assert.strictEqual(theme(), 'light');
media.fire('change', { matches: true });
assert.strictEqual(theme(), 'light');

// Tables sort by number where there is one, by name otherwise.
const names = () => body.rows.map((r) => r.cells[0].textContent).join('');
const sort = (c) => table.tHead.children[0].cells[c].children[0].fire('click');
sort(1);
assert.strictEqual(names(), 'cba');
sort(1);
assert.strictEqual(names(), 'abc');
sort(0);
assert.strictEqual(names(), 'abc');
sort(0);
assert.strictEqual(names(), 'cba');

// A narrower window draws anew.
for (const c of charts) c.svg.clientWidth = 400;
for (const f of window.listeners.resize) f();
for (const c of charts) assert.strictEqual(c.width, 400);

console.log('ok');
