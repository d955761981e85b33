// The sections of the page, from top to bottom.

const main = document.getElementById("main");
const contents = document.getElementById("contents");

function section(id, title, hint, ...children) {
  contents.append(el("a", { href: "#" + id }, title));
  const node = el("section", { id, "aria-labelledby": id + "-title" },
    el("h2", { id: id + "-title" }, title), hint ? el("p", { class: "hint" }, hint) : null, children);
  main.append(node);
  return node;
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

// What it is, and its measures

function masthead() {
  const { root, totals } = data;
  document.getElementById("kicker").textContent = root.foreign ? "A Kafka broker's log directory" : "Log directory";
  document.getElementById("path").textContent = root.path;
  const parts = [`as of ${time(root.now)} UTC`];
  if (root.cluster) parts.push(`cluster ${root.cluster}`);
  if (root.node !== null) parts.push(`node ${root.node}`);
  if (root.following) parts.push(root.following);
  document.getElementById("facts-line").textContent = parts.join(" · ");
  const tile = (name, value, more, exact) =>
    el("div", { class: "tile", "data-tip": exact }, el("dt", {}, name), el("dd", {}, value), more ? el("dd", { class: "more" }, more) : null);
  main.append(el("dl", { class: "tiles" },
    tile("Topics", count(totals.topics)),
    tile("Partitions", count(totals.partitions)),
    tile("Records", short(totals.offsets), "offsets, at most so many records", count(totals.offsets)),
    tile("Log size", bytes(totals.bytes), counted(totals.segments, "segment"), count(totals.bytes) + " bytes"),
    tile("Newest record", totals.last < 0 ? NONE : ago(totals.last), totals.first < 0 ? null : `oldest ${ago(totals.first)}`, `${time(totals.first)} to ${time(totals.last)}`),
    totals.groups ? tile("Group lag", short(totals.lag), counted(totals.groups, "consumer group"), count(totals.lag) + " records") : null));
}

function findings() {
  const names = { problem: "Problem", warning: "Warning", note: "Note" };
  const kinds = new Map();
  for (const each of data.findings) {
    const kind = each[0] + " " + each[1];
    kinds.set(kind, [...(kinds.get(kind) || []), each]);
  }
  const words = (those, withTopic) => those.map(([, , sentence, topic]) =>
    el("p", {}, withTopic && topic ? [el("span", { class: "topic-name" }, breakable(topic)), ": "] : null, sentence));
  const item = (those) => {
    const [severity, title, , topic] = those[0];
    const about = those.length > 1 ? ` in ${counted(those.length, "case")}` : topic ? [" in ", el("span", { class: "topic-name" }, breakable(topic))] : null;
    const head = [el("strong", {}, title), about];
    return el("li", { class: `finding ${severity}` }, el("span", { class: "severity" }, names[severity]),
      those.length > 3
        ? el("details", {}, el("summary", {}, head), el("div", { class: "many" }, words(those, true)))
        : el("div", {}, head, words(those, those.length > 1)));
  };
  const { all_well, read, unread } = data.coverage;
  section("findings", "Findings", null, kinds.size ? el("ul", { class: "findings" }, [...kinds.values()].map(item)) : el("p", { class: "all-well" }, all_well),
    read.length ? el("p", { class: "hint coverage" }, `Read: ${read.join("; ")}.`) : null,
    unread.length ? el("p", { class: "hint coverage" }, `Not read: ${unread.join("; ")}.`) : null);
}

// Topics, and one of them

let chooseTopic = () => {};

function topicsSection() {
  const columns = [
    column("Topic", "text", topics.name),
    column("Partitions", "count", topics.partitions),
    column("Records", "count", topics.offsets, { tip: "Offsets from log start to high watermark.\nCompaction and transactions leave gaps in them." }),
    column("Size", "bytes", topics.bytes, { bar: true }),
    column("Segments", "count", topics.segments),
    column("Skew", "factor", topics.skew, { tip: "The largest partition's size to the average one's" }),
    column("Cleanup", "text", topics.policy, { tip: "cleanup.policy" }),
    { name: "Oldest", kind: "time", get: time0(topics.first), tip: "Time of the first record, UTC" },
    { name: "Newest", kind: "time", get: time0(topics.last), tip: "Largest timestamp, UTC" },
  ];
  const table = dataTable({ label: "topics", rows: rowsOf(topics), columns, sort: [3, -1], onRow: (row) => {
    chooseTopic(row);
    document.getElementById("timeline").scrollIntoView();
  } });
  section("topics", "Topics", leftOut("topics"), table.node);
}

function leftOut(what) {
  const number = data.left_out[what];
  return number ? `The page has no room for ${counted(number, what.slice(0, -1))} more, the smallest ones.` : null;
}

function timelineSection() {
  if (!topics.name.length) return;
  const numbers = rowsOf(topics).sort((one, other) => topics.bytes[other] - topics.bytes[one]);
  const state = { topic: topics.name.length > 1 ? -1 : 0, scale: "time", page: 0 };
  const shown = () => (state.topic < 0 ? numbers : rowsByTopic[state.topic]);
  const picture = fitted((width) => {
    const lanes = shown().slice(state.page * LANES, (state.page + 1) * LANES);
    if (!lanes.length) return el("p", { class: "nothing" }, "The page has no room for its partitions.");
    return state.topic < 0 ? overviewTimeline(width, lanes, chooseTopicHere) : topicTimeline(width, state.topic, lanes, state.scale);
  }, "Segments over time");
  const detail = el("div", { class: "detail" });
  const words = el("p", { class: "hint" });
  const keys = el("div", {});
  const status = el("span", { class: "status", role: "status" });
  const previous = el("button", { type: "button", "aria-label": "Previous lanes", click: () => turn(-1) }, "‹");
  const next = el("button", { type: "button", "aria-label": "Next lanes", click: () => turn(1) }, "›");
  const select = topicSelect("Topic to draw", topics.name.length > 1 ? [-1, ...rowsOf(topics)] : rowsOf(topics), state.topic, chooseTopicHere);
  const scale = choices("Scale", [["time", "By time"], ["size", "By size"], ["offset", "By offset"]], "time", (value) => { state.scale = value; show(); });

  function chooseTopicHere(topic) {
    state.topic = topic;
    state.page = 0;
    select.value = String(topic);
    show();
  }

  function turn(by) {
    state.page += by;
    show();
  }

  function show() {
    const lanes = shown().length;
    const pages = Math.max(1, Math.ceil(lanes / LANES));
    scale.hidden = state.topic < 0;
    previous.hidden = next.hidden = pages < 2;
    previous.disabled = state.page === 0;
    next.disabled = state.page >= pages - 1;
    const first = state.page * LANES;
    status.textContent = `${state.topic < 0 ? "topics" : "partitions"} ${count(first + 1)} to ${count(Math.min(first + LANES, lanes))} of ${count(lanes)}`;
    words.textContent = state.topic < 0
      ? "Bytes by record time, a lane for each topic, the largest first; height to each lane's own scale. Choose one to see its segments."
      : { time: "Each segment from its first record's time to its largest timestamp; the higher, the larger.",
        size: "Segments end to end, as wide as their bytes.",
        offset: "Segments by the offsets they hold. Marks: log start, high watermark, and last stable offset where a transaction is open." }[state.scale];
    const compacted = state.topic >= 0 && topics.dirty[state.topic] !== null;
    keys.replaceChildren(state.topic < 0 ? "" : legend([["active", "active segment"], ...(compacted ? [["clean", "cleaned"], ["dirty", "not cleaned"]] : [["closed", "closed"]])]));
    detail.replaceChildren(...(state.topic < 0 ? [] : topicDetail(state.topic)));
    picture.redraw();
  }

  section("timeline", "Segments", null, words, el("div", { class: "table-tools" }, select, scale, el("span", { class: "spacer" }), status, previous, next), picture.node, keys, detail);
  chooseTopic = chooseTopicHere;
  show();
}

function topicDetail(topic) {
  const rows = rowsByTopic[topic];
  const parts = [];
  if (rows.length > 1) {
    const each = Math.ceil(rows.length / 120);
    const bars = [];
    for (let at = 0; at < rows.length; at += each) {
      const those = rows.slice(at, at + each);
      const largest = those.reduce((most, row) => (data.partitions.bytes[row] > data.partitions.bytes[most] ? row : most), those[0]);
      const number = data.partitions.partition[largest];
      const more = those.length > 1 ? `\nthe largest of ${those.length} neighbours` : "";
      bars.push({ label: String(number), value: data.partitions.bytes[largest], tip: `partition ${number}\n${bytes(data.partitions.bytes[largest])}, ${count(data.partitions.end[largest] - data.partitions.start[largest])} records${more}` });
    }
    parts.push(el("div", {}, el("h3", {}, "Size by partition"), barChart("Size by partition", bars, bytes, 1024, { height: 170, mean: topics.bytes[topic] / topics.partitions[topic] })));
  }
  const configs = Object.entries(topics.configs[topic]);
  parts.push(el("div", {}, el("h3", {}, "Configuration"),
    el("dl", { class: "configs" },
      el("div", {}, el("dt", {}, "topic id"), el("dd", {}, topics.id[topic] || NONE)),
      configs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value || "(empty)")))),
    configs.length ? null : el("p", { class: "hint" }, "Defaults, with nothing set for the topic itself.")));
  return parts;
}

function partitionsSection() {
  const list = data.partitions;
  const errors = list.error.some((each) => each !== null);
  const columns = [
    { name: "Topic", kind: "text", get: byTopic(list.topic) },
    column("Partition", "count", list.partition),
    column("Log start", "count", list.start, { tip: "First offset that can be read" }),
    column("Last stable", "count", list.stable, { tip: "Where read_committed ends: below the high watermark\nwhile a transaction is open" }),
    column("High watermark", "count", list.end, { tip: "The offset after the last committed one" }),
    { name: "Records", kind: "count", get: (row) => list.end[row] - list.start[row], tip: "Offsets that can be read" },
    column("Size", "bytes", list.bytes, { bar: true }),
    column("Segments", "count", list.segments),
    column("Epoch", "count", list.epoch, { tip: "Leader epoch" }),
    { name: "Oldest", kind: "time", get: time0(list.first) },
    { name: "Newest", kind: "time", get: time0(list.last) },
    ...(errors ? [column("Error", "text", list.error)] : []),
  ];
  const table = dataTable({ label: "partitions", rows: rowsOf(list), columns, sort: [6, -1] });
  section("partitions", "Partitions", leftOut("partitions"), table.node);
}

function sizesSection() {
  if (!data.sizes.length) return;
  // Empty segments, then from the smallest others on.
  const filled = data.sizes.map(([bits]) => bits).filter((bits) => bits > 0);
  const [low, high] = filled.length ? [filled[0], filled[filled.length - 1]] : [1, 0];
  const found = new Map(data.sizes.map(([bits, segments, size]) => [bits, [segments, size]]));
  const bars = [];
  const steps = Array.from({ length: high - low + 1 }, (_, at) => low + at);
  for (const bits of found.has(0) ? [0, ...steps] : steps) {
    const [segments, size] = found.get(bits) || [0, 0];
    const range = bits === 0 ? "empty" : `${bytes(2 ** (bits - 1))} to ${bytes(2 ** bits)}`;
    bars.push({ label: bits === 0 ? "empty" : bytes(2 ** (bits - 1)).replace(".0", ""), value: segments, tip: `${range}\n${counted(segments, "segment")}, ${bytes(size)} in all` });
  }
  section("sizes", "Segment sizes", "Number of segments by size, from each power of two up to the next.", barChart("Segments by size", bars, short, 10));
}

function historySection() {
  const history = data.history;
  if (!history) {
    const why = data.root.foreign ? "A broker's directory does not tell who wrote what, and when." : "It cannot be read; see the end of the page.";
    section("history", "Write history", why);
    return;
  }
  if (!history.series) return;
  const series = history.series;
  let measure = "records";
  const layers = () => (measure === "commits" ? [{ name: "commits", values: series.commits }]
    : series.topics.map((name, at) => ({ name: name || "other topics", values: series[measure][at] })));
  const picture = fitted((width) => stackedOverTime(`${measure} over time`, series, layers(), measure === "bytes" ? bytes : short, measure === "bytes" ? 1024 : 10)(width), "Writes over time");
  const names = el("div", {});
  const show = () => {
    names.replaceChildren(legend(layers().map((layer, at) => [`layer-${at}`, layer.name])));
    picture.redraw();
  };
  const table = dataTable({ label: "commits", rows: rowsOf(history.newest), sort: [0, -1], columns: [
    column("Commit", "count", history.newest.offset, { tip: "Offset in the metadata log" }),
    column("Time", "time", history.newest.time),
    column("Operation", "text", history.newest.operation),
    column("Topics", "text", history.newest.topics),
    column("Records", "count", history.newest.records),
    column("Bytes", "bytes", history.newest.bytes, { bar: true }),
    column("Transactional id", "text", history.newest.id),
    column("Version", "count", history.newest.version),
  ] });
  const all = history.whole ? "all that are kept" : "the newest";
  section("history", "Write history", `From ${counted(history.commits, "commit")}, ${all}. A bar is ${duration(series.width)}.`,
    el("div", { class: "table-tools" }, choices("Measure", [["records", "Records"], ["bytes", "Bytes"], ["commits", "Commits"]], measure, (value) => { measure = value; show(); })),
    picture.node, names, el("h3", {}, "Newest commits"), table.node);
  show();
}

function groupsSection() {
  const list = data.groups;
  const rows = rowsOf(list);
  if (!rows.length) {
    section("groups", "Consumer groups", "No group has committed offsets.");
    return;
  }
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
    column("Committed", "count", list.committed),
    column("End", "count", list.end, { tip: "High watermark; – where the partition is not in this directory" }),
    column("Lag", "count", list.lag, { bar: true, tip: "Offsets still to be read" }),
    { name: "Committed at", kind: "time", get: time0(list.time) },
  ] });
  section("groups", "Consumer groups", leftOut("groups") || "Lag by group: offsets between what it has committed and the end.",
    barList("Lag by group", largest.map(([name, { lag, partitions, topics: read }]) => ({
      name, value: lag, plain: true, tip: `${name}\n${count(lag)} behind in ${counted(partitions, "partition")} of ${[...read].slice(0, 8).join(", ")}`,
    })), count), table.node);
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
    ] }).node);
  }
  if (due.length) {
    parts.push(el("h3", {}, "What retention would take now"), dataTable({ label: "topics with retention due", rows: due, sort: [2, -1], columns: [
      column("Topic", "text", topics.name),
      column("Size", "bytes", topics.bytes),
      column("Due", "bytes", topics.due, { bar: true }),
    ] }).node);
  }
  const events = data.history && data.history.maintenance;
  if (events && events.offset.length) {
    parts.push(el("h3", {}, "Commits of retention and delete-records"), dataTable({ label: "maintenance commits", rows: rowsOf(events), sort: [0, -1], columns: [
      column("Time", "time", events.time), column("Operation", "text", events.operation), column("Topics", "text", events.topics), column("Commit", "count", events.offset),
    ] }).node);
  }
  if (Object.keys(data.maintenance).length) parts.push(el("h3", {}, "Runs of maintenance jobs"), runsChart() || [], runsTable().node);
  section("maintenance", "Cleaner and retention", parts.length ? null : "No topic is compacted, and retention has taken nothing that is on record.", parts);
}

// What each run took away, the newest runs, oldest first.
function runsChart() {
  const list = data.maintenance;
  if (!list.run_id || !list.bytes_dropped) return null;
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

// The table of runs has the columns of whatever wrote it.
function runsTable() {
  const names = Object.keys(data.maintenance).filter((name) => name !== "run_id");
  const columns = names.map((name) => {
    const values = data.maintenance[name];
    const isNumber = values.every((value) => value === null || typeof value === "number");
    const kind = !isNumber ? "text" : name.startsWith("bytes_") ? "bytes" : name.endsWith("_percent") ? "percent" : "count";
    return column(name.replaceAll("_", " "), kind, values);
  });
  return dataTable({ label: "maintenance runs", rows: rowsOf(data.maintenance), columns, sort: [Math.max(names.indexOf("timestamp"), 0), -1] });
}

function keysSection() {
  if (!data.keys.length) return;
  const box = el("div", { class: "two" });
  const words = el("p", { class: "hint" });
  const select = el("select", { "aria-label": "Topic of the keys", change: () => show(data.keys[Number(select.value)]) },
    data.keys.map((sample, at) => el("option", { value: at }, topics.name[sample.topic])));
  const list = (title, rows, at, format, all) => el("div", {}, el("h3", {}, title), barList(title, rows.map((row) => ({
    name: row[0] === null ? "without a key" : row[0] === "" ? "(empty)" : row[0], plain: row[0] !== null && row[0] !== "", value: row[at],
    tip: `${row[0] === null ? "records without a key" : row[0]}\n${count(row[1])} records, ${bytes(row[2])}\n${percent((100 * row[at]) / all)} of the sample`,
  })), format));
  const show = (sample) => {
    const error = sample.error ? ` Counts may be up to ${count(sample.error)} too low.` : "";
    words.textContent = `A sample: the newest ${counted(sample.records, "record")} (${bytes(sample.bytes)} of keys and values) of ${counted(sample.partitions, "partition")} out of ${count(topics.partitions[sample.topic])}, with ${sample.error ? "about " : ""}${counted(sample.distinct, "distinct key")}.${error}`;
    box.replaceChildren(list("Most records", sample.by_records, 1, count, sample.records), list("Most bytes", sample.by_bytes, 2, bytes, sample.bytes));
  };
  section("keys", "Largest keys", null, el("div", { class: "table-tools" }, select), words, box);
  show(data.keys[0]);
}

function colophon() {
  const node = document.getElementById("colophon");
  for (const note of data.notes) node.append(el("p", {}, note));
  for (const what of ["findings"]) if (data.left_out[what]) node.append(el("p", {}, `${counted(data.left_out[what], "finding")} more are not shown.`));
  node.append(el("p", {}, "Times are UTC. Made by kafkalog report from the files alone; nothing was changed."));
}

watchTheme();
watchTooltips();
masthead();
findings();
topicsSection();
timelineSection();
partitionsSection();
sizesSection();
historySection();
groupsSection();
maintenanceSection();
keysSection();
colophon();
document.documentElement.dataset.ready = "";
