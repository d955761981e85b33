// Tables of many rows: filter, sort by a column, a page at a time. Rows are numbers into columns of the data.

const PAGE_SIZES = [15, 50, 250];

// Kinds of columns: how a value reads, and whether it stands right.
const KINDS = {
  text: { show: (value) => (value === null || value === undefined || value === "" ? NONE : String(value)) },
  count: { show: count, right: true },
  bytes: { show: bytes, right: true, exact: (value) => count(value) + " bytes" },
  percent: { show: percent, right: true },
  factor: { show: (value) => (value === null ? NONE : value.toFixed(1) + "×"), right: true },
  time: { show: time, exact: ago },
};

/* columns: {name, kind, get(row), tip?, bar?, minor?}; bar draws the value to the scale of the column's largest; narrow
   windows show minor columns on request.
   options: {label, rows, columns, sort: [column, direction], size?, onRow?, folded?: {isFolded(row), name}};
   folded rows are shown on request, and where a filter matches them. */
function dataTable(options) {
  const { columns, label } = options;
  const state = { rows: [], page: 0, size: options.size || PAGE_SIZES[0], sort: options.sort, filter: "", opened: false };
  const folded = options.folded ? options.rows.filter(options.folded.isFolded).length : 0;
  const searched = columns.filter((column) => column.kind === "text");
  const largest = columns.map((column) =>
    column.bar ? options.rows.reduce((most, row) => Math.max(most, column.get(row) || 0), 0) : 0);

  const filter = el("input", {
    type: "search", placeholder: "Filter…", "aria-label": `Filter ${label}`, spellcheck: "false",
    input: () => { state.filter = filter.value.trim().toLowerCase(); state.page = 0; refresh(); },
  });
  const body = el("tbody");
  const heads = columns.map((column, at) => {
    const button = el("button", { type: "button", "data-tip": column.tip, click: () => sortBy(at) }, column.name);
    return el("th", { scope: "col", class: classOf(column) }, button);
  });
  const status = el("span", { class: "status", role: "status" });
  const previous = el("button", { type: "button", click: () => turn(-1), "aria-label": "Previous page" }, "‹");
  const next = el("button", { type: "button", click: () => turn(1), "aria-label": "Next page" }, "›");
  const size = el("select", {
    "aria-label": "Rows a page",
    change: () => { state.size = Number(size.value); state.page = 0; draw(); },
  }, PAGE_SIZES.map((each) => el("option", { value: each, selected: each === state.size }, `${each} rows`)));

  function sortBy(at) {
    const falling = KINDS[columns[at].kind].right || columns[at].kind === "time";
    const [column, direction] = state.sort;
    state.sort = [at, column === at ? -direction : falling ? -1 : 1];
    state.page = 0;
    refresh();
  }

  function turn(by) {
    state.page += by;
    draw();
  }

  function matches(row) {
    if (!state.filter) return state.opened || !folded || !options.folded.isFolded(row);
    const text = searched.map((column) => String(column.get(row) ?? "").toLowerCase()).join("\n");
    return state.filter.split(/\s+/).every((word) => text.includes(word));
  }

  function refresh() {
    const [at, direction] = state.sort;
    const key = columns[at].get;
    state.rows = options.rows.filter(matches);
    // What has no value comes last, whichever way.
    state.rows.sort((left, right) => {
      const [one, other] = [key(left), key(right)];
      if (one === other) return left - right;
      if (one === null || one === undefined) return 1;
      if (other === null || other === undefined) return -1;
      const order = typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
      return direction * order || left - right;
    });
    heads.forEach((head, number) =>
      head.setAttribute("aria-sort", number !== at ? "none" : direction > 0 ? "ascending" : "descending"));
    draw();
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(state.rows.length / state.size));
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const first = state.page * state.size;
    const shown = state.rows.slice(first, first + state.size);
    body.replaceChildren(...shown.map(line));
    if (!shown.length) {
      const nothing = state.filter ? "Nothing matches the filter." : "None.";
      body.append(el("tr", {}, el("td", { colspan: columns.length, class: "nothing" }, nothing)));
    }
    const all = options.rows.length;
    const of = !state.filter || state.rows.length === all ? count(state.rows.length) : `${count(state.rows.length)} (of ${count(all)})`;
    status.textContent = shown.length ? `${count(first + 1)} to ${count(first + shown.length)} of ${of}` : `0 of ${of}`;
    previous.disabled = state.page === 0;
    next.disabled = state.page >= pages - 1;
  }

  function line(row) {
    const cells = columns.map((column, at) => cell(column, row, largest[at]));
    if (!options.onRow) return el("tr", {}, cells);
    const name = cells[0].firstChild;
    cells[0].replaceChildren(el("button", { type: "button", class: "link", click: () => options.onRow(row) }, name));
    return el("tr", {}, cells);
  }

  function cell(column, row, most) {
    const kind = KINDS[column.kind];
    const value = column.get(row);
    const has = value !== null && value !== undefined;
    const node = el("td", { class: classOf(column), "data-tip": has && kind.exact ? kind.exact(value) : null });
    const text = kind.show(value);
    node.append(el("span", {}, column.kind === "text" ? breakable(text) : text));
    if (column.bar && value > 0) {
      const bar = el("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--part", (value / most).toFixed(4));
      node.append(bar);
    }
    return node;
  }

  refresh();
  const isShort = options.rows.length <= PAGE_SIZES[0];
  const table = el("table", {}, el("caption", { class: "unseen" }, label), el("thead", {}, el("tr", {}, heads)), body);
  const wider = columns.some((column) => column.minor)
    ? fold("All columns", "Fewer columns", (opens) => table.classList.toggle("whole", opens)) : null;
  if (wider) wider.classList.add("wider");
  const more = folded ? fold(`Show ${counted(folded, options.folded.name)}`, `Hide ${counted(folded, options.folded.name)}`,
    (opens) => { state.opened = opens; state.page = 0; refresh(); }) : null;
  return el("div", { class: "data-table" },
    isShort ? null : el("div", { class: "table-tools" }, filter, el("span", { class: "spacer" }), el("span", { class: "pager" }, status, previous, next, size)),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table),
    more || wider ? el("div", { class: "folds" }, more, wider) : null);
}

function classOf(column) {
  return (KINDS[column.kind].right ? "right" : column.kind) + (column.minor ? " minor" : "");
}

function rowsOf(columns) {
  const lists = Object.values(columns);
  return lists.length ? lists[0].map((_, row) => row) : [];
}
