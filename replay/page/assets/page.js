// The page: the tooltip, the buttons at the top, tables that sort, and the
// charts from the data in the file.

function tip(content, px, py) {
  const t = document.getElementById('tip');
  t.hidden = !content;
  if (!content) return;
  t.replaceChildren(...content);
  const w = t.offsetWidth || 0, h = t.offsetHeight || 0;
  t.style.left = `${Math.max(4, px + 16 + w > innerWidth ? px - w - 16 : px + 16)}px`;
  t.style.top = `${Math.max(4, Math.min(py + 12, innerHeight - h - 8))}px`;
}

function startTheme() {
  const b = document.getElementById('theme');
  const root = document.documentElement;
  const set = (dark) => {
    root.setAttribute('data-theme', dark ? 'dark' : 'light');
    b.textContent = dark ? 'Light' : 'Dark';
  };
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = false;
  set(system.matches);
  system.addEventListener('change', (e) => { if (!chosen) set(e.matches); });
  b.addEventListener('click', () => { chosen = true; set(root.getAttribute('data-theme') !== 'dark'); });
  b.hidden = false;
  const print = document.getElementById('print');
  print.addEventListener('click', () => window.print());
  print.hidden = false;
}

// sortable lets a click on a table's head sort it by that column: first
// descending for numbers, ascending for words, then the other way round.
function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, c) => {
    const b = html('button', { type: 'button' }, head.textContent);
    head.replaceChildren(b);
    b.addEventListener('click', () => {
      const key = (row) => row.cells[c].getAttribute('data-sort');
      const rows = [...body.rows];
      const numbers = rows.some((r) => key(r) !== null);
      const was = head.getAttribute('aria-sort');
      const down = was ? was === 'ascending' : numbers;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      rows.sort((a, b) => {
        const order = numbers ? (key(a) ?? -Infinity) - (key(b) ?? -Infinity) : a.cells[c].textContent.localeCompare(b.cells[c].textContent, 'en', { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}

const charts = [];

function start() {
  const data = JSON.parse(document.getElementById('data').textContent);
  startTheme();
  for (const place of document.querySelectorAll('.charts')) {
    for (const spec of data[place.getAttribute('data-section')]) charts.push(new Chart(spec, place));
  }
  document.getElementById('help').hidden = charts.length === 0;
  for (const table of document.querySelectorAll('main table')) if (table.tHead) sortable(table);
  const redraw = () => { for (const c of charts) if (c.svg.clientWidth && c.svg.clientWidth !== c.width) c.draw(); };
  window.addEventListener('resize', redraw);
  window.addEventListener('beforeprint', redraw);
}

start();
