// Charts, drawn as SVG. One Chart per figure; charts of a group share their
// range of x and the place of the reader's cross.

const palette = 8;
const groups = new Map();

function make(name, attributes, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  e.append(...children);
  return e;
}

function html(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  e.append(...children);
  return e;
}

const color = (s) => `var(--c${s.color % palette})`;

class Chart {
  constructor(spec, parent) {
    this.spec = spec;
    this.log = { x: !!spec.x.log, y: !!spec.y.log };
    this.on = spec.series.map((s) => !s.hidden);
    this.zoom = null; // [low, high] of x, null: everything
    this.cursor = null; // x under the cross
    this.xs = spec.series.map((s) => s.xs || s.ys.map((_, i) => spec.start + spec.step * i));
    this.buttons();
    this.svg = make('svg', { role: 'img', tabindex: '0', 'aria-label': this.describe() });
    this.figure = html('figure', spec.wide ? { class: 'wide' } : {}, this.caption, this.svg);
    if (spec.kind !== 'heat' && spec.series.length > 1) this.figure.append(this.legend());
    if (spec.note) this.figure.append(html('p', { class: 'note' }, spec.note));
    parent.append(this.figure);
    const key = spec.group || this;
    if (!groups.has(key)) groups.set(key, []);
    this.peers = groups.get(key);
    this.peers.push(this);
    if (this.plane()) this.listen();
    else this.listenCells();
    this.draw();
  }

  plane() { return this.spec.kind === 'lines' || this.spec.kind === 'steps' || this.spec.kind === 'areas'; }

  describe() {
    const s = this.spec;
    const names = s.series.map((x) => x.name).join(', ');
    return `${s.title}. ${s.note || ''} Shows ${names}${s.x.label ? ` over ${s.x.label}` : ''}.`;
  }

  buttons() {
    this.caption = html('figcaption', {}, html('span', {}, this.spec.title));
    for (const axis of ['x', 'y']) {
      if (!this.spec[axis].canLog) continue;
      const b = html('button', { type: 'button', 'aria-pressed': String(this.log[axis]) }, `log ${axis}`);
      b.addEventListener('click', () => {
        this.log[axis] = !this.log[axis];
        b.setAttribute('aria-pressed', String(this.log[axis]));
        this.draw();
      });
      this.caption.append(b);
    }
    if (!this.plane()) return;
    this.all = html('button', { type: 'button' }, 'show all');
    this.all.hidden = true;
    this.all.addEventListener('click', () => this.range(null));
    this.caption.append(this.all);
  }

  legend() {
    const list = html('ul', { class: 'legend' });
    this.spec.series.forEach((s, i) => {
      const area = this.spec.kind === 'areas' || this.spec.kind === 'bars' && i === 0;
      const sample = area
        ? make('rect', { width: 22, height: 10, rx: 2, fill: color(s) })
        : this.spec.kind === 'bars'
          ? make('line', { x1: 11, x2: 11, y1: 0, y2: 10, stroke: color(s), 'stroke-width': 3 })
          : make('line', { x1: 0, x2: 22, y1: 5, y2: 5, stroke: color(s), 'stroke-width': 2.5, 'stroke-dasharray': s.dash ? '6 4' : 'none' });
      const b = html('button', { type: 'button', 'aria-pressed': String(this.on[i]) }, make('svg', { 'aria-hidden': 'true', viewBox: '0 0 22 10' }, sample), s.name);
      b.addEventListener('click', () => {
        this.on[i] = !this.on[i];
        b.setAttribute('aria-pressed', String(this.on[i]));
        this.draw();
      });
      list.append(html('li', {}, b));
    });
    return list;
  }

  // --- what is visible

  span() { // all of x
    let low = Infinity, high = -Infinity;
    this.xs.forEach((xs, i) => {
      for (const x of xs) {
        if (x === null || this.log.x && !(x > 0)) continue;
        if (this.spec.series[i].hidden && !this.on[i]) continue;
        low = Math.min(low, x); high = Math.max(high, x);
      }
    });
    for (const m of this.spec.marks || []) if (m.axis === 'x' && (!this.log.x || m.at > 0)) { low = Math.min(low, m.at); high = Math.max(high, m.at); }
    if (!(high >= low)) return [0, 1];
    if (this.spec.kind === 'areas' || this.spec.step) high += this.spec.step || 0;
    return high > low ? [low, high] : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  }

  heights(low, high) { // of what is visible
    let bottom = this.log.y ? Infinity : 0, top = -Infinity;
    const note = (y) => { if (y !== null && (!this.log.y || y > 0)) { bottom = Math.min(bottom, y); top = Math.max(top, y); } };
    this.spec.series.forEach((s, i) => {
      if (!this.on[i]) return;
      this.xs[i].forEach((x, k) => { if (x >= low && x <= high) note(this.stacked ? this.stacked[i][k] : s.ys[k]); });
    });
    for (const m of this.spec.marks || []) if (m.axis === 'y') note(m.at);
    if (!(top >= bottom)) return [this.log.y ? 0.1 : 0, 1];
    // Shares show all of 100 %, unless the reader turned off a part of a stack.
    if (this.spec.y.unit === '%' && !this.log.y && !(this.stacked && this.on.includes(false))) return [0, Math.max(1, top)];
    if (this.log.y) return [bottom * 0.9, top > bottom ? top * 1.1 : bottom * 10];
    return [bottom, top > bottom ? top + (top - bottom) * 0.04 : bottom + 1];
  }

  stack() { // upper edges, by series
    this.stacked = null;
    if (this.spec.kind !== 'areas') return;
    const sum = [];
    this.stacked = this.spec.series.map((s, i) => s.ys.map((y, k) => (sum[k] = (sum[k] || 0) + (this.on[i] ? y || 0 : 0))));
  }

  // --- drawing

  draw() {
    this.width = this.svg.clientWidth || 600;
    this.svg.replaceChildren();
    if (this.spec.kind === 'bars') drawBars(this);
    else if (this.spec.kind === 'heat') drawHeat(this);
    else this.drawPlane();
  }

  drawPlane() {
    const height = this.spec.wide ? 240 : 260;
    const box = this.box = { left: 62, right: this.width - 14, top: 12, bottom: height - 38 };
    this.svg.setAttribute('viewBox', `0 0 ${this.width} ${height}`);
    this.svg.setAttribute('height', height);
    this.stack();
    const [low, high] = this.zoom || this.span();
    this.x = scale(low, high, box.left, box.right, this.log.x);
    this.y = scale(...this.heights(low, high), box.bottom, box.top, this.log.y);
    this.axes();
    const clip = `clip-${Chart.clips = (Chart.clips || 0) + 1}`;
    this.svg.append(make('clipPath', { id: clip }, make('rect', { x: box.left, y: box.top - 2, width: Math.max(box.right - box.left, 1), height: box.bottom - box.top + 4 })));
    const inside = make('g', { 'clip-path': `url(#${clip})` });
    this.spec.series.forEach((s, i) => { if (this.on[i]) inside.append(...this.path(s, i)); });
    this.svg.append(inside);
    this.marks();
    this.over = make('g', {});
    this.svg.append(this.over);
    this.all.hidden = !this.zoom;
    this.cross();
  }

  axes() {
    const { box, spec, x, y } = this;
    const some = (s, n) => (s.log ? logTicks(s.low, s.high, n) : ticks(s.low, s.high, n));
    for (const v of some(y, 5)) {
      const at = y.at(v);
      this.svg.append(make('line', { class: 'gridline', x1: box.left, x2: box.right, y1: at, y2: at }));
      this.svg.append(make('text', { x: box.left - 8, y: at + 4, 'text-anchor': 'end' }, format(v, spec.y.unit, 3)));
    }
    const across = some(x, Math.max(2, Math.floor((box.right - box.left) / 85)));
    across.forEach((v) => {
      const at = x.at(v);
      this.svg.append(make('line', { class: 'axis', x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
      this.svg.append(make('text', { x: at, y: box.bottom + 17, 'text-anchor': 'middle' }, format(v, spec.x.unit, this.zoom ? 5 : 3)));
    });
    this.svg.append(make('line', { class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    if (spec.x.label) this.svg.append(make('text', { x: box.right, y: box.bottom + 33, 'text-anchor': 'end' }, spec.x.label));
    if (spec.y.label) this.svg.append(make('text', { x: 0, y: box.bottom + 33 }, spec.y.label));
  }

  path(s, i) {
    const { x, y } = this;
    const xs = this.xs[i];
    const kind = this.spec.kind;
    const n = (v) => Math.round(v * 10) / 10;
    if (kind === 'areas') {
      const upper = [], lower = [];
      const by = this.coarse(xs);
      for (let k = 0; k < xs.length; k += by) {
        const next = xs[Math.min(k + by, xs.length) - 1] + this.spec.step;
        if (next < x.low || xs[k] > x.high) continue;
        const a = n(x.at(xs[k])), b = n(x.at(next));
        const over = n(y.at(this.merged(this.stacked[i], k, by))), under = n(y.at(i > 0 ? this.merged(this.stacked[i - 1], k, by) : 0));
        upper.push(`${a},${over}`, `${b},${over}`);
        lower.push(`${a},${under}`, `${b},${under}`);
      }
      return upper.length ? [make('path', { d: `M${upper.join('L')}L${lower.reverse().join('L')}Z`, fill: color(s) })] : [];
    }
    const points = [];
    let d = '', gap = true, last = null;
    const by = this.coarse(xs);
    for (let k = 0; k < xs.length; k += by) {
      const v = by > 1 ? this.merged(s.ys, k, by) : s.ys[k];
      if (v === null || this.log.y && !(v > 0) || this.log.x && !(xs[k] > 0)) { gap = gap || !this.spec.join; continue; }
      const a = n(x.at(xs[k] + by * (this.spec.step || 0) / 2)), b = n(y.at(v));
      if (gap) d += `M${a},${b}`;
      else d += kind === 'steps' ? `L${a},${last}L${a},${b}` : `L${a},${b}`;
      gap = false; last = b;
      points.push([a, b]);
    }
    if (kind === 'steps' && points.length) d += `L${n(this.box.right)},${last}`; // nothing comes after the largest
    const out = [make('path', { d: d || 'M0,0', fill: 'none', stroke: color(s), 'stroke-width': 1.8, 'stroke-linejoin': 'round', 'stroke-dasharray': s.dash ? '6 4' : 'none' })];
    if (s.dots || points.length === 1) for (const [a, b] of points) out.push(make('circle', { cx: a, cy: b, r: 3.2, fill: color(s) }));
    return out;
  }

  // coarse returns how many neighbours in time become one point, so that points
  // are two pixels apart; zooming in shows them all.
  coarse(xs) {
    if (!this.spec.step || this.spec.kind === 'steps') return 1;
    const visible = Math.min(xs.length, (this.x.high - this.x.low) / this.spec.step);
    return Math.max(1, 2 ** Math.ceil(Math.log2(visible * 2 / (this.box.right - this.box.left))));
  }

  // merged is their mean, or the largest of percentiles.
  merged(ys, k, by) {
    const part = ys.slice(k, k + by).filter((v) => v !== null);
    if (!part.length) return null;
    return this.spec.join ? Math.max(...part) : part.reduce((a, b) => a + b) / part.length;
  }

  marks() {
    for (const m of this.spec.marks || []) {
      const { box } = this;
      const at = m.axis === 'x' ? this.x.at(m.at) : this.y.at(m.at);
      if (m.axis === 'x' ? at < box.left || at > box.right : at < box.top || at > box.bottom) continue;
      const line = m.axis === 'x' ? { x1: at, x2: at, y1: box.top, y2: box.bottom } : { x1: box.left, x2: box.right, y1: at, y2: at };
      const right = m.axis === 'y' || at > box.right - 120;
      this.svg.append(make('line', { class: 'mark', ...line }));
      this.svg.append(make('text', { class: 'limit', x: m.axis === 'x' ? at + (right ? -5 : 5) : box.right - 4, y: m.axis === 'x' ? box.bottom - 8 : at - 5, 'text-anchor': right ? 'end' : 'start' }, m.label));
    }
  }

  // --- reading and zooming

  range(zoom) {
    const [low, high] = this.span();
    if (zoom) {
      let [a, b] = [Math.max(Math.min(...zoom), low), Math.min(Math.max(...zoom), high)];
      if (!(b - a > (high - low) * 1e-6)) return;
      zoom = a <= low && b >= high ? null : [a, b];
    }
    for (const c of this.peers) { c.zoom = zoom; c.draw(); }
  }

  point(x) {
    for (const c of this.peers) { c.cursor = x; c.cross(); }
    if (x === null) tip(null);
  }

  cross() {
    if (!this.over) return;
    this.over.replaceChildren();
    const { box, cursor } = this;
    if (cursor === null) return;
    const at = this.x.at(cursor);
    if (at >= box.left - 1 && at <= box.right + 1) this.over.append(make('line', { class: 'cross', x1: at, x2: at, y1: box.top, y2: box.bottom }));
  }

  // readings returns x and what each visible series has there.
  readings(x) {
    const lookup = this.spec.kind === 'lines' && !this.spec.step ? nearest : atOrBefore;
    return this.spec.series.map((s, i) => {
      const k = lookup(this.xs[i], x), by = this.coarse(this.xs[i]);
      const y = k < 0 || k >= s.ys.length ? null : by > 1 ? this.merged(s.ys, k - k % by, by) : s.ys[k];
      return { s, on: this.on[i], x: this.xs[i][k], y };
    }).filter((r) => r.on);
  }

  tell(x, px, py) {
    this.point(x);
    const rows = this.readings(x).map((r) => html('tr', {},
      html('td', {}, html('i', { style: `background:${color(r.s)}` }), r.s.name),
      html('td', {}, html('strong', {}, format(r.y, this.spec.y.unit))),
      ...(this.spec.series[0].xs && this.spec.kind === 'lines' ? [html('td', {}, `at ${format(r.x, this.spec.x.unit)}`)] : [])));
    tip([html('div', {}, `${this.spec.x.label || 'x'}: ${format(x, this.spec.x.unit, 5)}`), html('table', {}, ...rows)], px, py);
  }

  listen() {
    const where = (e) => {
      const r = this.svg.getBoundingClientRect();
      return (e.clientX - r.left) * this.width / (r.width || this.width);
    };
    const inside = (p) => Math.min(Math.max(p, this.box.left), this.box.right);
    let from = null;
    this.svg.addEventListener('pointerdown', (e) => {
      if (e.button) return;
      from = inside(where(e));
      if (this.svg.setPointerCapture && e.pointerId !== undefined) this.svg.setPointerCapture(e.pointerId);
    });
    this.svg.addEventListener('pointermove', (e) => {
      const p = inside(where(e));
      this.tell(this.x.value(p), e.clientX, e.clientY);
      if (from !== null) this.over.append(make('rect', { class: 'select', x: Math.min(from, p), y: this.box.top, width: Math.abs(p - from), height: this.box.bottom - this.box.top }));
    });
    this.svg.addEventListener('pointerup', (e) => {
      const p = inside(where(e));
      if (from !== null && Math.abs(p - from) > 6) this.range([this.x.value(from), this.x.value(p)]);
      from = null;
    });
    this.svg.addEventListener('pointercancel', () => { from = null; });
    this.svg.addEventListener('pointerleave', () => this.point(null));
    this.svg.addEventListener('blur', () => this.point(null));
    this.svg.addEventListener('dblclick', () => this.range(null));
    this.svg.addEventListener('wheel', (e) => {
      if (!e.ctrlKey && !e.metaKey) return; // plain turns scroll the page
      e.preventDefault();
      this.nearer(e.deltaY < 0 ? 0.7 : 1 / 0.7, inside(where(e)));
    }, { passive: false });
    this.svg.addEventListener('keydown', (e) => this.key(e));
  }

  // nearer scales the range by a factor around a pixel.
  nearer(factor, p) {
    const { left, right } = this.box;
    this.range([this.x.value(p - (p - left) * factor), this.x.value(p + (right - p) * factor)]);
  }

  key(e) {
    const { left, right, top } = this.box;
    const at = this.cursor === null ? (left + right) / 2 : this.x.at(this.cursor);
    const go = (p) => {
      p = Math.min(Math.max(p, left), right);
      const r = this.svg.getBoundingClientRect();
      this.tell(this.x.value(p), r.left + p * (r.width || this.width) / this.width, r.top + top);
    };
    const move = (by) => {
      const d = (right - left) * by;
      const [a, b] = [this.x.value(left + d), this.x.value(right + d)], all = this.span();
      if (a >= all[0] && b <= all[1]) this.range([a, b]);
    };
    const does = {
      ArrowLeft: () => (e.shiftKey ? move(-0.2) : go(at - (right - left) / 100)),
      ArrowRight: () => (e.shiftKey ? move(0.2) : go(at + (right - left) / 100)),
      Home: () => go(left), End: () => go(right),
      '+': () => this.nearer(0.5, at), '=': () => this.nearer(0.5, at), '-': () => this.nearer(2, at),
      0: () => this.range(null), Escape: () => this.point(null),
    }[e.key];
    if (!does) return;
    e.preventDefault();
    does();
  }

  listenCells() {
    this.svg.addEventListener('pointermove', (e) => {
      const text = e.target.getAttribute && e.target.getAttribute('data-tip');
      tip(text ? [html('div', {}, text)] : null, e.clientX, e.clientY);
    });
    this.svg.addEventListener('pointerleave', () => tip(null));
  }
}

// names is the room that the longest name of a row needs.
function names(rows, width) {
  return Math.min(width * 0.45, Math.max(40, 18 + 7 * Math.max(0, ...rows.map((r) => r.length))));
}

// drawBars draws a bar for each row from the first series, and marks from the
// others.
function drawBars(chart) {
  const { spec, svg, width } = chart;
  const row = 26, left = names(spec.rows, width), right = width - 70, top = 6;
  const height = top + spec.rows.length * row + 34;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('height', height);
  let most = 0;
  spec.series.forEach((s, i) => { if (chart.on[i]) for (const v of s.ys) most = Math.max(most, v || 0); });
  const x = scale(0, most || 1, left, right);
  for (const v of ticks(0, most || 1, Math.max(2, Math.floor((right - left) / 90)))) {
    svg.append(make('line', { class: 'gridline', x1: x.at(v), x2: x.at(v), y1: top, y2: height - 30 }));
    svg.append(make('text', { x: x.at(v), y: height - 14, 'text-anchor': 'middle' }, format(v, spec.x.unit, 3)));
  }
  spec.rows.forEach((name, k) => {
    const y = top + k * row;
    const words = spec.series.map((s) => `${s.name} ${format(s.ys[k], spec.x.unit)}`).join(', ');
    svg.append(make('text', { class: 'strong', x: left - 10, y: y + 17, 'text-anchor': 'end' }, name));
    spec.series.forEach((s, i) => {
      if (!chart.on[i] || s.ys[k] === null) return;
      svg.append(i === 0
        ? make('rect', { x: left, y: y + 5, width: Math.max(x.at(s.ys[k]) - left, 0), height: row - 10, rx: 2, fill: color(s) })
        : make('line', { x1: x.at(s.ys[k]), x2: x.at(s.ys[k]), y1: y + 3, y2: y + row - 3, stroke: color(s), 'stroke-width': 3 }));
    });
    if (chart.on[0]) svg.append(make('text', { x: right + 8, y: y + 17 }, format(spec.series[0].ys[k], spec.x.unit, 3)));
    svg.append(make('rect', { x: 0, y, width, height: row, fill: 'transparent', 'data-tip': `${name}: ${words}` }));
  });
}

// drawHeat draws a cell for each row and column, with its value in it.
function drawHeat(chart) {
  const { spec, svg, width } = chart;
  const left = names(spec.rows, width), top = 24, row = 30;
  const cell = Math.min((width - left - 4) / Math.max(spec.cols.length, 1), 110);
  const height = top + spec.rows.length * row + 26;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('height', height);
  const all = spec.series.flatMap((s) => s.ys).filter((v) => v !== null);
  const low = Math.min(...all), high = Math.max(...all);
  spec.cols.forEach((name, c) => svg.append(make('text', { x: left + cell * (c + 0.5), y: top - 8, 'text-anchor': 'middle' }, name)));
  spec.rows.forEach((name, r) => {
    const y = top + r * row;
    svg.append(make('text', { class: 'strong', x: left - 8, y: y + 19, 'text-anchor': 'end' }, name));
    spec.cols.forEach((col, c) => {
      const v = spec.series[r].ys[c];
      if (v === null) return;
      const share = shade(v, low, high);
      svg.append(make('rect', { x: left + cell * c + 1, y: y + 1, width: cell - 2, height: row - 2, rx: 3, fill: `color-mix(in srgb, var(--c0) ${Math.round(10 + share * 60)}%, var(--panel))` }));
      const label = make('text', { class: 'cell', x: left + cell * (c + 0.5), y: y + 19, 'text-anchor': 'middle' }, format(v, spec.y.unit, cell < 56 ? 2 : 3));
      if (v === high) label.setAttribute('font-weight', '700');
      svg.append(label);
      svg.append(make('rect', { x: left + cell * c, y, width: cell, height: row, fill: 'transparent', 'data-tip': `${spec.y.label} ${name}, ${spec.x.label} ${col}: ${format(v, spec.y.unit)}` }));
    });
  });
  svg.append(make('text', { x: left + cell * spec.cols.length, y: height - 8, 'text-anchor': 'end' }, spec.x.label || ''));
  svg.append(make('text', { x: 0, y: height - 8 }, spec.y.label || ''));
}
