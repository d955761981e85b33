// Segments drawn to scale: a lane for each partition of a topic, by time, by size or by offset; or one for each topic.

const RUN_FIELDS = 5;
const LANES = 24;
const LANE_HEIGHT = 22;
const NAME_SIZE = 12.5;
// In narrower pictures names are above their lanes.
const NAMES_BESIDE_MIN = 520;
const BUCKETS = 240;

// The segment runs of a row of the table of partitions: each {base, segments, size, first, last, end, active}.
function runsOf(row) {
  const numbers = data.runs[row];
  const runs = [];
  for (let at = 0; at < numbers.length; at += RUN_FIELDS) {
    const [base, segments, size, first, last] = numbers.slice(at, at + RUN_FIELDS);
    const end = at + RUN_FIELDS < numbers.length ? numbers[at + RUN_FIELDS] : Math.max(data.partitions.end[row], base);
    runs.push({ base, segments, size, first: first < 0 ? last : Math.min(first, last < 0 ? first : last), last: Math.max(first, last), end, active: at + RUN_FIELDS >= numbers.length });
  }
  return runs;
}

const rowsByTopic = topics.name.map(() => []);
data.partitions.topic.forEach((topic, row) => rowsByTopic[topic].push(row));

function stateOf(row, run) {
  if (run.active) return "active";
  const cleanTo = data.partitions.clean_to[row];
  if (cleanTo === null) return "closed";
  return run.end <= cleanTo ? "clean" : "dirty";
}

function runTip(row, run) {
  const name = run.segments > 1 ? counted(run.segments, "segment") + " together" : "segment";
  return [
    `partition ${data.partitions.partition[row]} · ${stateOf(row, run)} ${name}`,
    `offsets ${count(run.base)} to ${count(run.end)}`,
    `${bytes(run.size)}`,
    run.last < 0 ? null : `${time(run.first)} to ${time(run.last)}`,
  ].filter(Boolean).join("\n");
}

// Lanes of {name, tip, draw(x, top, height)} with an axis below.
function lanesPicture(width, label, lanes, addAxis) {
  const isBeside = width >= NAMES_BESIDE_MIN || Math.max(...lanes.map((lane) => lane.name.length)) < 6;
  const room = isBeside ? Math.round(width * 0.3) : width - 12;
  const names = lanes.map((lane) => fitting(lane.name, room - 12));
  const left = isBeside ? Math.min(Math.max(40, ...names.map((name) => textWidth(name, NAME_SIZE) + 12)), room) : 2;
  const above = isBeside ? 0 : 17;
  const height = lanes.length * (LANE_HEIGHT + above) + 30;
  const picture = canvas(width, height, label, "group");
  const x = addAxis(picture, left, width - 6, 2, height - 26);
  lanes.forEach((lane, at) => {
    const top = at * (LANE_HEIGHT + above) + above + 4;
    const name = isBeside ? text(left - 8, top + LANE_HEIGHT - 8, names[at], "end", "lane-name") : text(left, top - 4, names[at], "start", "lane-name over");
    picture.append(svg("g", { class: "lane" },
      svg("line", { x1: left, x2: width - 6, y1: top + LANE_HEIGHT - 5.5, y2: top + LANE_HEIGHT - 5.5, class: "lane-line" }),
      svg("g", { "data-tip": lane.tip }, name), lane.draw(x, top, LANE_HEIGHT - 6)));
  });
  return picture;
}

function fitting(name, room) {
  if (textWidth(name, NAME_SIZE) <= room) return name;
  let fits = name.length - 1;
  while (fits > 1 && textWidth(name.slice(0, fits) + "…", NAME_SIZE) > room) fits -= 1;
  return name.slice(0, fits) + "…";
}

// Arrow keys go from segment to segment, up and down from lane to lane.
function walkByKeys(picture) {
  const marks = [...picture.querySelectorAll(".lane")].map((lane) => [...lane.querySelectorAll(".segment")]);
  const first = marks.flat()[0];
  if (first) first.setAttribute("tabindex", "0");
  picture.addEventListener("keydown", (event) => {
    const lane = marks.findIndex((those) => those.includes(document.activeElement));
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (lane < 0 || !by) return;
    const those = marks[lane + by[0]];
    const at = marks[lane].indexOf(document.activeElement) + by[1];
    const next = those && those[Math.min(Math.max(at, 0), those.length - 1)];
    if (!next) return;
    event.preventDefault();
    document.activeElement.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
  return picture;
}

function segmentMark(row, run, x, top, width, height, laneHeight) {
  return svg("rect", {
    x, y: top + laneHeight - height, width: Math.max(width, 2.5), height, class: `segment ${stateOf(row, run)}`,
    tabindex: "-1", "data-tip": runTip(row, run), role: "img", "aria-label": runTip(row, run),
  });
}

function linearAxis(format, base, most) {
  return (picture, left, right, top, bottom) => {
    const ticks = ticksTo(most, base).filter((tick) => tick <= most);
    const x = (value) => left + (value / Math.max(most, 1)) * (right - left);
    const each = Math.max(1, Math.ceil((ticks.length * 70) / (right - left)));
    ticks.forEach((tick, at) => {
      picture.append(svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }));
      const words = tickText(format, tick);
      if (at % each === 0) picture.append(text(Math.min(x(tick), right + 4 - textWidth(words, AXIS_SIZE) / 2), bottom + 16, words, at ? "middle" : "start", "axis"));
    });
    return x;
  };
}

function spanOf(rows) {
  let [start, end] = [Infinity, -Infinity];
  for (const row of rows) {
    const [first, last] = [data.partitions.first[row], data.partitions.last[row]];
    if (last < 0) continue;
    start = Math.min(start, first < 0 ? last : first);
    end = Math.max(end, last);
  }
  return start > end ? [data.root.now - 36e5, data.root.now] : [start, Math.max(end, start + 1000)];
}

function topicTimeline(width, topic, rows, scale) {
  const all = rowsByTopic[topic];
  const label = `Segments of ${topics.name[topic]} by ${scale}`;
  const [start, end] = spanOf(all);
  const largest = Math.max(...all.map((row) => Math.max(...runsOf(row).map((run) => run.size), 0)), 1);
  const axes = {
    time: (picture, left, right, top, bottom) => timeAxis(picture, start, end, left, right, top, bottom),
    size: linearAxis(bytes, 1024, Math.max(...all.map((row) => data.partitions.bytes[row]), 1)),
    offset: linearAxis(short, 10, Math.max(...all.map((row) => data.partitions.end[row]), 1)),
  };
  const lanes = rows.map((row) => ({
    name: String(data.partitions.partition[row]),
    tip: `partition ${data.partitions.partition[row]}: ${bytes(data.partitions.bytes[row])}, offsets ${count(data.partitions.start[row])} to ${count(data.partitions.end[row])}`,
    draw: (x, top, laneHeight) => {
      const group = svg("g", {});
      let sum = 0;
      for (const run of runsOf(row)) {
        const full = laneHeight - 1;
        if (scale === "time" && run.last >= 0) {
          // Height tells the size, of runs that of one segment on average.
          const part = run.size / run.segments / largest;
          group.append(segmentMark(row, run, x(run.first), top, x(run.last) - x(run.first) - 0.7, Math.max(3, part * full), laneHeight));
        } else if (scale === "size" && run.size > 0) {
          group.append(segmentMark(row, run, x(sum), top, x(sum + run.size) - x(sum) - 0.7, full, laneHeight));
          sum += run.size;
        } else if (scale === "offset" && run.end > run.base) {
          group.append(segmentMark(row, run, x(run.base), top, x(run.end) - x(run.base) - 0.7, full, laneHeight));
        }
      }
      if (scale === "offset") group.append(...watermarks(row, x, top, laneHeight));
      return group;
    },
  }));
  return walkByKeys(lanesPicture(width, label, lanes, axes[scale]));
}

function watermarks(row, x, top, height) {
  const columns = data.partitions;
  const marks = [["log start", columns.start[row]], ["high watermark", columns.end[row]]];
  if (columns.stable[row] < columns.end[row]) marks.push(["last stable offset", columns.stable[row]]);
  return marks.map(([name, offset]) => svg("path", {
    d: `M${x(offset)} ${top - 2}v${height + 3}m-3 ${-height - 3}h6l-3 4z`, class: name === "last stable offset" ? "watermark open" : "watermark",
    "data-tip": `${name} of partition ${columns.partition[row]}: ${count(offset)}`,
  }));
}

// Bytes by time of one topic, spread evenly over each run's span.
function densityOf(topic, start, end) {
  const sums = new Float64Array(BUCKETS);
  const place = (ms) => Math.min(BUCKETS - 1, Math.max(0, Math.floor(((ms - start) / (end - start)) * BUCKETS)));
  for (const row of rowsByTopic[topic]) {
    for (const run of runsOf(row)) {
      if (run.last < 0) continue;
      const [from, to] = [place(run.first), place(run.last)];
      for (let at = from; at <= to; at += 1) sums[at] += run.size / (to - from + 1);
    }
  }
  return sums;
}

function overviewTimeline(width, shown, onTopic) {
  const [start, end] = spanOf(data.partitions.topic.map((_, row) => row));
  const lanes = shown.map((topic) => ({
    name: topics.name[topic],
    tip: `${topics.name[topic]}: ${bytes(topics.bytes[topic])} in ${counted(topics.partitions[topic], "partition")}`,
    draw: (x, top, height) => {
      const sums = densityOf(topic, start, end);
      const most = Math.max(...sums, 1);
      const step = (end - start) / BUCKETS;
      let path = "";
      sums.forEach((sum, at) => {
        if (!sum) return;
        const high = Math.max(1.5, Math.sqrt(sum / most) * (height - 1));
        const [from, to] = [x(start + at * step), x(start + (at + 1) * step)];
        path += `M${from.toFixed(1)} ${top + height}v${(-high).toFixed(1)}h${(to - from + 0.2).toFixed(1)}v${high.toFixed(1)}z`;
      });
      const tip = `${topics.name[topic]}\n${bytes(topics.bytes[topic])}, ${time(topics.first[topic])} to ${time(topics.last[topic])}`;
      return svg("g", {
        class: "segment overview", tabindex: "-1", "data-tip": tip, role: "button", "aria-label": tip,
        click: () => onTopic(topic), keydown: (event) => { if (event.key === "Enter") onTopic(topic); },
      }, svg("rect", { x: x(start), y: top, width: Math.max(x(end) - x(start), 1), height, class: "catch" }), svg("path", { d: path }));
    },
  }));
  return walkByKeys(lanesPicture(width, "Bytes over time, a lane for each topic", lanes,
    (picture, left, right, top, bottom) => timeAxis(picture, start, end, left, right, top, bottom)));
}
