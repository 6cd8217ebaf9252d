'use strict';
// Numbers, ticks and scales. Nothing here touches the page.

// digits writes x with at most n significant digits and no exponent.
function digits(x, n) {
  if (x === 0) return '0';
  if (Math.abs(x) >= 1e15 || Math.abs(x) < 1e-9) return x.toExponential(n - 1);
  return String(Number(x.toPrecision(n))).replace(/^(-?\d+)/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ','));
}

const largeUnits = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

// format writes a value for people: four digits and the unit that fits.
function format(x, unit, n = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return '–';
  const size = Math.abs(x);
  if (unit === '%') return digits(Number((x * 100).toFixed(3)), Math.max(n, 4)) + '%';
  if (unit === 's') {
    if (size === 0) return '0 s';
    if (size >= 7200) return digits(x / 3600, n) + ' h';
    if (size >= 1) return digits(x, n) + ' s';
    if (size >= 1e-3) return digits(x * 1e3, n) + ' ms';
    if (size >= 1e-6) return digits(x * 1e6, n) + ' µs';
    return digits(x * 1e9, n) + ' ns';
  }
  const tail = unit === 'B' ? 'B' : unit === '/s' ? '/s' : '';
  for (const [factor, letter] of largeUnits) {
    if (size >= factor && (unit === 'B' || size >= 1e5)) return digits(x / factor, n) + (tail === '/s' ? '' : ' ') + letter + tail;
  }
  return digits(x, n) + (unit === 'B' ? ' B' : tail);
}

// ticks returns about count round numbers from low to high.
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

// logTicks returns powers of ten, with 2 and 5 between when there is room.
function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  const steps = decades < count / 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / count));
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
    if (e % every) continue;
    for (const m of steps) {
      const v = m * 10 ** e;
      if (v >= low * 0.999999 && v <= high * 1.000001) out.push(v);
    }
  }
  return out.length > 1 ? out : [low, high];
}

// scale maps values from [low, high] to pixels from [from, to].
function scale(low, high, from, to, log) {
  if (log) {
    const a = Math.log(low), b = Math.log(high) - a || 1;
    return { low, high, log, at: (v) => from + (to - from) * (Math.log(Math.max(v, low * 1e-3)) - a) / b, value: (p) => Math.exp(a + b * (p - from) / (to - from)) };
  }
  const b = high - low || 1;
  return { low, high, log, at: (v) => from + (to - from) * (v - low) / b, value: (p) => low + b * (p - from) / (to - from) };
}

// nearest returns the index of the value of the ascending xs next to x.
function nearest(xs, x) {
  let a = 0, b = xs.length - 1;
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (xs[m] <= x) a = m; else b = m;
  }
  return b >= 0 && Math.abs(xs[b] - x) < Math.abs(xs[a] - x) ? b : Math.max(a, 0);
}

// atOrBefore returns the index of the last value of the ascending xs that is not
// above x, -1 if there is none.
function atOrBefore(xs, x) {
  let a = -1, b = xs.length;
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (xs[m] <= x) a = m; else b = m;
  }
  return a;
}

// shade mixes for cells of a heat map: the share of the strongest colour.
function shade(v, low, high) {
  return high > low ? Math.min(Math.max((v - low) / (high - low), 0), 1) : 0.5;
}
