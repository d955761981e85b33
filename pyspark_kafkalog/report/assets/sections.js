// The sections of the page after its findings, from top to bottom. `data.sections` names those that have something to show.

const main = document.getElementById("main");
const contents = document.getElementById("contents");

function link(id, title) {
  const follow = (event) => {
    if (location.protocol !== "about:") return;
    // In a frame of a notebook: links of about:srcdoc lead to the page around it.
    event.preventDefault();
    document.getElementById(id).scrollIntoView();
  };
  contents.append(el("a", { href: "#" + id, click: follow }, title));
}

function section(id, title, hint, ...children) {
  link(id, title);
  const node = el("section", { id, "aria-labelledby": id + "-title" },
    el("h2", { id: id + "-title" }, title), hint ? el("p", { class: "hint" }, hint) : null, children);
  main.append(node);
}

function byTopic(list) {
  return (row) => topics.name[list[row]];
}

function column(name, kind, list, more) {
  return { name, kind, get: (row) => list[row], ...more };
}

function time0(list) {
  // No time sorts last.
  return (row) => (list[row] < 0 ? null : list[row]);
}

// Its measures

function tiles() {
  const { totals } = data;
  const tile = (name, value, more, exact) =>
    el("div", { class: "tile", "data-tip": exact }, el("dt", {}, name), el("dd", {}, value), more ? el("dd", { class: "more" }, more) : null);
  main.append(el("dl", { class: "tiles", "aria-label": "Measures" },
    tile("Topics", count(totals.topics)),
    tile("Partitions", count(totals.partitions)),
    tile("Records", short(totals.offsets), "counted by offset", count(totals.offsets)),
    tile("Log size", bytes(totals.bytes), counted(totals.segments, "segment"), count(totals.bytes) + " bytes"),
    totals.last < 0 ? null : tile("Newest record", ago(totals.last), `oldest ${ago(totals.first)}`, `${time(totals.first)} to ${time(totals.last)}`),
    totals.groups ? tile("Group lag", short(totals.lag), counted(totals.groups, "consumer group"), count(totals.lag) + " records") : null));
}

// Topics, and one of them

let chooseTopic = () => {};

function topicsSection() {
  const columns = [
    column("Topic", "text", topics.name),
    column("Partitions", "count", topics.partitions, { minor: true }),
    column("Records", "count", topics.offsets, { tip: "Offsets from log start to high watermark.\nCompaction and transactions leave gaps in them." }),
    column("Size", "bytes", topics.bytes, { bar: true }),
    column("Segments", "count", topics.segments, { minor: true }),
    column("Skew", "factor", topics.skew, { minor: true, tip: "The largest partition's size to the average one's" }),
    column("Cleanup", "text", topics.policy, { minor: true, tip: "cleanup.policy" }),
    { name: "Oldest", kind: "time", get: time0(topics.first), minor: true, tip: "Time of the first record, UTC" },
    { name: "Newest", kind: "time", get: time0(topics.last), minor: true, tip: "Largest timestamp, UTC" },
  ];
  const table = dataTable({ label: "topics", rows: rowsOf(topics), columns, sort: [3, -1], onRow: data.sections.includes("timeline") && ((row) => {
    chooseTopic(row);
    document.getElementById("timeline").scrollIntoView();
  }) });
  section("topics", "Topics", leftOut("topics"), table);
}

function leftOut(what) {
  const number = data.left_out[what];
  return number ? `The page has no room for ${counted(number, what.slice(0, -1))} more, the smallest ones.` : null;
}

function timelineSection() {
  const numbers = rowsOf(topics).sort((one, other) => topics.bytes[other] - topics.bytes[one]);
  const state = { topic: topics.name.length > 1 ? -1 : 0, scale: "time", page: 0, opened: false };
  const lanesOf = (opened) => (state.topic < 0
    ? numbers.filter((topic) => opened || topics.bytes[topic] > 0)
    : rowsByTopic[state.topic].filter((row) => opened || row < data.filled));
  const picture = fitted((width) => {
    const lanes = lanesOf(state.opened).slice(state.page * LANES, (state.page + 1) * LANES);
    if (!lanes.length) return el("p", { class: "nothing" }, lanesOf(true).length ? "No partition holds records." : "The page has no room for its partitions.");
    return state.topic < 0 ? overviewTimeline(width, lanes, chooseTopicHere) : topicTimeline(width, state.topic, lanes, state.scale);
  }, "Segments over time");
  const detail = el("div", { class: "detail" });
  const words = el("p", { class: "hint" });
  const keys = el("div", {});
  const folds = el("div", { class: "folds" });
  const status = el("span", { class: "status", role: "status" });
  const previous = el("button", { type: "button", "aria-label": "Previous lanes", click: () => turn(-1) }, "‹");
  const next = el("button", { type: "button", "aria-label": "Next lanes", click: () => turn(1) }, "›");
  const pager = el("span", { class: "pager" }, status, previous, next);
  const select = topicSelect("Topic to draw", topics.name.length > 1 ? [-1, ...rowsOf(topics)] : rowsOf(topics), state.topic, chooseTopicHere);
  const scale = choices("Scale", [["time", "By time"], ["size", "By size"], ["offset", "By offset"]], "time", (value) => { state.scale = value; show(); });

  function chooseTopicHere(topic) {
    Object.assign(state, { topic, page: 0, opened: false });
    select.value = String(topic);
    show();
    drawFold();
  }

  function turn(by) {
    state.page += by;
    show();
  }

  function drawFold() {
    const folded = lanesOf(true).length - lanesOf(false).length;
    const those = counted(folded, state.topic < 0 ? "empty topic" : "empty partition");
    folds.replaceChildren(...(folded ? [fold(`Show ${those}`, `Hide ${those}`, (opens) => { Object.assign(state, { page: 0, opened: opens }); show(); })] : []));
  }

  function show() {
    const lanes = lanesOf(state.opened).length;
    const pages = Math.ceil(lanes / LANES);
    scale.hidden = state.topic < 0;
    pager.hidden = pages < 2;
    previous.disabled = state.page === 0;
    next.disabled = state.page >= pages - 1;
    const first = state.page * LANES;
    status.textContent = `${count(first + 1)} to ${count(Math.min(first + LANES, lanes))} of ${counted(lanes, state.topic < 0 ? "topic" : "partition")}`;
    words.textContent = state.topic < 0
      ? "Bytes by record time, a lane for each topic, the largest first; height to each lane's own scale. Choose one to see its segments."
      : { time: "A lane for each partition, the largest first. Each segment from its first record's time to its largest timestamp; the higher, the larger.",
        size: "A lane for each partition, the largest first. Segments end to end, as wide as their bytes.",
        offset: "A lane for each partition, the largest first. Segments by the offsets they hold. Marks: log start, high watermark, and last stable offset where a transaction is open." }[state.scale];
    const compacted = state.topic >= 0 && topics.dirty[state.topic] !== null;
    keys.replaceChildren(state.topic < 0 || !lanes ? "" : legend([["active", "active segment"], ...(compacted ? [["clean", "cleaned"], ["dirty", "not cleaned"]] : [["closed", "closed"]])]));
    detail.replaceChildren(...(state.topic < 0 ? [] : topicDetail(state.topic)));
    picture.redraw();
  }

  section("timeline", "Segments", null, words, el("div", { class: "table-tools" }, select, scale, el("span", { class: "spacer" }), pager), picture.node, keys, folds, detail);
  chooseTopic = chooseTopicHere;
  chooseTopicHere(state.topic);
}

function topicDetail(topic) {
  const rows = rowsByTopic[topic].filter((row) => data.partitions.bytes[row] > 0);
  const parts = [];
  if (rows.length > 1) {
    const each = Math.ceil(rows.length / 120);
    const bars = [];
    for (let at = 0; at < rows.length; at += each) {
      const those = rows.slice(at, at + each);
      const number = data.partitions.partition[rows[at]];
      const more = those.length > 1 ? `\nthe largest of ${those.length} of about this size` : "";
      bars.push({ label: String(number), value: data.partitions.bytes[rows[at]], tip: `partition ${number}\n${bytes(data.partitions.bytes[rows[at]])}, ${count(data.partitions.end[rows[at]] - data.partitions.start[rows[at]])} records${more}` });
    }
    parts.push(el("div", {}, el("h3", {}, "Size by partition, the largest first"), barChart("Size by partition", bars, bytes, 1024, { height: 170, mean: topics.bytes[topic] / topics.partitions[topic] })));
  }
  const configs = Object.entries(topics.configs[topic]);
  parts.push(el("div", {}, el("h3", {}, "Configuration"),
    el("dl", { class: "configs" },
      el("div", {}, el("dt", {}, "topic id"), el("dd", {}, topics.id[topic] || NONE)),
      configs.map(([name, value]) => el("div", {}, el("dt", {}, breakable(name)), el("dd", {}, value || "(empty)")))),
    configs.length ? null : el("p", { class: "hint" }, "Defaults, with nothing set for the topic itself.")));
  return parts;
}

function partitionsSection() {
  const list = data.partitions;
  const rows = rowsOf(list);
  const differs = (values, others) => rows.some((row) => values[row] !== others(row));
  const columns = [
    { name: "Topic", kind: "text", get: byTopic(list.topic) },
    column("Partition", "count", list.partition),
    column("Log start", "count", list.start, { minor: true, tip: "First offset that can be read" }),
    ...(differs(list.stable, (row) => list.end[row]) ? [column("Last stable", "count", list.stable, { minor: true, tip: "Where read_committed ends: below the high watermark\nwhile a transaction is open" })] : []),
    column("High watermark", "count", list.end, { minor: true, tip: "The offset after the last committed one" }),
    { name: "Records", kind: "count", get: (row) => list.end[row] - list.start[row], tip: "Offsets that can be read" },
    column("Size", "bytes", list.bytes, { bar: true }),
    column("Segments", "count", list.segments, { minor: true }),
    ...(differs(list.epoch, () => list.epoch[0]) ? [column("Epoch", "count", list.epoch, { minor: true, tip: "Leader epoch" })] : []),
    { name: "Oldest", kind: "time", get: time0(list.first), minor: true },
    { name: "Newest", kind: "time", get: time0(list.last), minor: true },
    ...(differs(list.error, () => null) ? [column("Error", "text", list.error)] : []),
  ];
  const size = columns.findIndex((each) => each.name === "Size");
  const table = dataTable({ label: "partitions", rows, columns, sort: [size, -1], folded: { isFolded: (row) => row >= data.filled, name: "empty partition" } });
  section("partitions", "Partitions", leftOut("partitions"), table);
}

function sizesSection() {
  // From the smallest that is not empty on.
  const filled = data.sizes.filter(([bits]) => bits > 0);
  const empty = data.sizes.filter(([bits]) => bits === 0).reduce((sum, [, segments]) => sum + segments, 0);
  const found = new Map(filled.map(([bits, segments, size]) => [bits, [segments, size]]));
  const bars = [];
  for (let bits = filled[0][0]; bits <= filled[filled.length - 1][0]; bits += 1) {
    const [segments, size] = found.get(bits) || [0, 0];
    bars.push({ label: bytes(2 ** (bits - 1)).replace(".0", ""), value: segments, tip: `${bytes(2 ** (bits - 1))} to ${bytes(2 ** bits)}\n${counted(segments, "segment")}, ${bytes(size)} in all` });
  }
  const without = empty ? ` ${counted(empty, "empty segment")} ${empty === 1 ? "is" : "are"} not drawn.` : "";
  section("sizes", "Segment sizes", `Number of segments by size, from each power of two up to the next.${without}`, barChart("Segments by size", bars, short, 10));
}

function historySection() {
  const history = data.history;
  const table = dataTable({ label: "commits", rows: rowsOf(history.newest), sort: [0, -1], columns: [
    column("Commit", "count", history.newest.offset, { minor: true, tip: "Offset in the metadata log" }),
    column("Time", "time", history.newest.time),
    column("Operation", "text", history.newest.operation, { minor: true }),
    column("Topics", "text", history.newest.topics),
    column("Records", "count", history.newest.records),
    column("Bytes", "bytes", history.newest.bytes, { minor: true, bar: true }),
    ...(history.newest.id.some((each) => each !== null) ? [
      column("Transactional id", "text", history.newest.id, { minor: true }), column("Version", "count", history.newest.version, { minor: true })] : []),
  ] });
  const all = history.whole ? "all that are kept" : "the newest";
  const width = history.series ? ` A bar is ${duration(history.series.width)}.` : "";
  section("history", "Write history", `From ${counted(history.commits, "commit")}, ${all}.${width}`,
    history.series ? historyChart(history.series) : null, el("h3", {}, "Newest commits"), table);
}

function historyChart(series) {
  let [measure] = series.measures;
  const layers = () => (measure === "commits" ? [{ name: "commits", values: series.commits }]
    : series.topics.map((name, at) => ({ name: name || "other topics", values: series[measure][at] })));
  const picture = fitted((width) => stackedOverTime(`${measure} over time`, series, layers(), measure === "bytes" ? bytes : short, measure === "bytes" ? 1024 : 10)(width), "Writes over time");
  const names = el("div", {});
  const show = () => {
    names.replaceChildren(legend(layers().map((layer, at) => [`layer-${at}`, layer.name])));
    picture.redraw();
  };
  show();
  const words = { records: "Records", bytes: "Bytes", commits: "Commits" };
  const measures = choices("Measure", series.measures.map((each) => [each, words[each]]), measure, (value) => { measure = value; show(); });
  return [el("div", { class: "table-tools" }, measures), picture.node, names];
}

function groupsSection() {
  const list = data.groups;
  const rows = rowsOf(list);
  const sums = new Map();
  for (const row of rows) {
    const found = sums.get(list.group[row]) || { lag: 0, partitions: 0, topics: new Set() };
    found.lag += Math.max(list.lag[row] || 0, 0);
    found.partitions += 1;
    found.topics.add(list.topic[row]);
    sums.set(list.group[row], found);
  }
  const largest = [...sums].sort((one, other) => other[1].lag - one[1].lag).slice(0, 12);
  const table = dataTable({ label: "offsets of consumer groups", rows, sort: [5, -1], columns: [
    column("Group", "text", list.group),
    column("Topic", "text", list.topic),
    column("Partition", "count", list.partition),
    column("Committed", "count", list.committed, { minor: true }),
    column("End", "count", list.end, { minor: true, tip: "High watermark; – where the partition is not in this directory" }),
    column("Lag", "count", list.lag, { bar: true, tip: "Offsets still to be read" }),
    { name: "Committed at", kind: "time", get: time0(list.time), minor: true },
  ] });
  const lagging = largest.filter(([, { lag }]) => lag > 0);
  section("groups", "Consumer groups", leftOut("groups") || (lagging.length ? "Lag by group: offsets between what it has committed and the end." : "No group has anything left to read."),
    lagging.length ? barList("Lag by group", lagging.map(([name, { lag, partitions, topics: read }]) => ({
      name, value: lag, tip: `${name}\n${count(lag)} behind in ${counted(partitions, "partition")} of ${[...read].slice(0, 8).join(", ")}`,
    })), count) : null, table);
}

function maintenanceSection() {
  const compacted = rowsOf(topics).filter((row) => topics.dirty[row] !== null);
  const due = rowsOf(topics).filter((row) => topics.due[row] > 0);
  const parts = [];
  const last = data.last_cleaning;
  if (last) {
    const recopied = last.bytes_read ? `, ${percent((100 * last.bytes_written) / last.bytes_read)} of ${bytes(last.bytes_read)} written again` : "";
    const failed = last.partitions_failed ? `, ${count(last.partitions_failed)} failed` : "";
    parts.push(el("p", { class: "hint" }, `The cleaner last ran ${ago(last.ended_ms)}, for ${duration(last.ended_ms - last.began_ms)}: ${counted(last.partitions_cleaned, "partition")} cleaned${failed}${recopied}.`));
  }
  if (compacted.length) {
    parts.push(el("h3", {}, "Compacted topics"), dataTable({ label: "compacted topics", rows: compacted, sort: [2, -1], columns: [
      column("Topic", "text", topics.name),
      column("Size", "bytes", topics.bytes),
      column("Dirty", "percent", topics.dirty, { bar: true, tip: "Of what the cleaner would read, how much it has not cleaned yet" }),
    ] }));
  }
  if (due.length) {
    parts.push(el("h3", {}, "What retention would take now"), dataTable({ label: "topics with retention due", rows: due, sort: [2, -1], columns: [
      column("Topic", "text", topics.name),
      column("Size", "bytes", topics.bytes),
      column("Due", "bytes", topics.due, { bar: true }),
    ] }));
  }
  const events = data.history && data.history.maintenance;
  if (events && events.offset.length) {
    parts.push(el("h3", {}, "Commits of retention and delete-records"), dataTable({ label: "maintenance commits", rows: rowsOf(events), sort: [0, -1], columns: [
      column("Time", "time", events.time), column("Operation", "text", events.operation), column("Topics", "text", events.topics), column("Commit", "count", events.offset, { minor: true }),
    ] }));
  }
  if (Object.keys(data.maintenance).length) parts.push(el("h3", {}, "Runs of maintenance jobs"), runsChart() || [], runsTable());
  section("maintenance", "Cleaner and retention", null, parts);
}

// What each run took away, the newest runs, oldest first.
function runsChart() {
  const list = data.maintenance;
  if (!list.run_id || !list.bytes_dropped || !list.bytes_dropped.some((size) => size > 0)) return null;
  const runs = new Map();
  for (const row of rowsOf(list)) {
    const run = runs.get(list.run_id[row]) || { action: list.action && list.action[row], at: list.timestamp && list.timestamp[row], dropped: 0, partitions: 0, failed: 0 };
    run.dropped += list.bytes_dropped[row] || 0;
    run.partitions += 1;
    run.failed += list.error && list.error[row] !== null ? 1 : 0;
    runs.set(list.run_id[row], run);
  }
  const bars = [...runs.values()].slice(0, 60).reverse().map((run) => ({
    label: run.at ? run.at.slice(5, 10) : "", value: run.dropped, mark: run.failed > 0,
    tip: `${run.action || "run"}${run.at ? " at " + run.at : ""}\n${bytes(run.dropped)} dropped in ${counted(run.partitions, "partition")}${run.failed ? `\n${count(run.failed)} failed` : ""}`,
  }));
  return [el("p", { class: "hint" }, "Bytes that each run dropped, by its day; red where a partition failed."), barChart("Bytes dropped by each run", bars, bytes, 1024, { height: 170 })];
}

// The table of runs has the columns of whatever wrote it. Narrow windows show these.
const MAIN_RUN_COLUMNS = ["timestamp", "topic", "partition", "error"];

function runsTable() {
  const names = Object.keys(data.maintenance).filter((name) => name !== "run_id");
  const columns = names.map((name) => {
    const values = data.maintenance[name];
    const isNumber = values.every((value) => value === null || typeof value === "number");
    const kind = !isNumber ? "text" : name.startsWith("bytes_") ? "bytes" : name.endsWith("_percent") ? "percent" : "count";
    return column(name.replaceAll("_", " "), kind, values, { minor: !MAIN_RUN_COLUMNS.includes(name) });
  });
  return dataTable({ label: "maintenance runs", rows: rowsOf(data.maintenance), columns, sort: [Math.max(names.indexOf("timestamp"), 0), -1] });
}

function keysSection() {
  const list = data.keys;
  const errors = list.error.some((each) => each > 0);
  const table = dataTable({ label: "keys that stand out", rows: rowsOf(list), sort: [3, -1], columns: [
    { name: "Topic", kind: "text", get: byTopic(list.topic) },
    column("Key", "text", list.key),
    column("Records", "count", list.records, { minor: true }),
    column("Of records", "percent", list.records_percent, { bar: true, tip: "The key's records in percent of the sample's" }),
    column("Bytes", "bytes", list.bytes, { minor: true, tip: "Keys and values, uncompressed" }),
    column("Of bytes", "percent", list.bytes_percent, { minor: true, bar: true, tip: "The key's bytes in percent of the sample's" }),
    column("Sample", "count", list.sample, { minor: true, tip: "The newest records of the topic that were read" }),
    ...(errors ? [column("Missed", "count", list.error, { minor: true, tip: "Records by which the count may be too low, at most" })] : []),
  ] });
  section("keys", "Largest keys", data.key_rule, table);
}

function colophon() {
  const lines = [...data.absent, ...data.notes, "Times are UTC. kafkalog report read the files and changed nothing."];
  document.getElementById("colophon").prepend(...lines.map((line) => el("p", {}, line)));
}

const SECTIONS = {
  topics: topicsSection, timeline: timelineSection, partitions: partitionsSection, sizes: sizesSection, history: historySection,
  groups: groupsSection, maintenance: maintenanceSection, keys: keysSection,
};

watchTheme();
watchTooltips();
link("findings", "Findings");
if (data.totals) tiles();
for (const name of data.sections) SECTIONS[name]();
contents.hidden = !data.sections.length;
colophon();
document.documentElement.dataset.ready = "";
