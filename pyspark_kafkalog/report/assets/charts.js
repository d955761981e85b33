// Drawings: axes, bars, stacked bars. Each fits its width, and is drawn anew when that changes.

// Draws draw(width) into a box, again whenever the box gets another width.
function fitted(draw, label) {
  const box = el("figure", { class: "chart", "aria-label": label });
  let width = 0;
  const redraw = () => {
    // Not laid out yet: a usual width, until the observer tells the true one.
    const found = Math.round(box.clientWidth) || 960;
    width = found;
    box.replaceChildren(draw(found));
  };
  new ResizeObserver(() => { if (Math.round(box.clientWidth) !== width) redraw(); }).observe(box);
  redraw();
  return { node: box, redraw };
}

function canvas(width, height, label, role = "img") {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role, "aria-label": label });
}

// The width of a text of SVG in pixels, as measured in the font of the page.
const ruler = document.createElement("canvas").getContext("2d");

function textWidth(words, size) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(words).width;
}

const AXIS_SIZE = 12;
const DRAWN_IN_WORDS_MAX = 40;

function text(x, y, words, anchor, kind) {
  return svg("text", { x, y, "text-anchor": anchor || "start", class: kind || null }, words);
}

// A round value on an axis.
function tickText(format, value) {
  return format(value).replace(".0 ", " ");
}

// Round values from 0 up to at least `most`, some five of them.
function ticksTo(most, base) {
  const unit = base === 1024 ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024))) : 1;
  const rough = most / unit / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((each) => each * power >= rough) * power * unit, base === 1024 || most < 5 ? 1 : 0);
  const ticks = [];
  for (let value = 0; value < most + step; value += step) ticks.push(value);
  return ticks;
}

const TIME_STEPS = [1e3, 5e3, 15e3, 6e4, 3e5, 9e5, 36e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 2592e5, 6048e5, 12096e5, 24192e5, 72576e5, 314496e5];

function timeTicks(start, end, room) {
  const step = TIME_STEPS.find((each) => (end - start) / each <= room) || Math.ceil((end - start) / room / 314496e5) * 314496e5;
  const ticks = [];
  for (let at = Math.ceil(start / step) * step; at <= end && ticks.length < 50; at += step) ticks.push(at);
  return { ticks, step };
}

function timeLabel(ms, step) {
  const moment = time(ms);
  if (moment === NONE || moment.endsWith("ms")) return moment;
  if (step < 6e4) return new Date(ms).toISOString().slice(11, 19);
  if (step >= 24192e5) return moment.slice(0, 7);
  const day = moment.slice(5, 10);
  return step >= 864e5 || moment.endsWith("00:00") ? day : moment.slice(11);
}

function timeAxis(picture, start, end, left, right, top, bottom) {
  const span = Math.max(end - start, 1);
  const x = (ms) => left + ((ms - start) / span) * (right - left);
  const { ticks, step } = timeTicks(start, end, Math.max(2, Math.floor((right - left) / 68)));
  for (const tick of ticks) {
    picture.append(svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }));
    const label = timeLabel(tick, step);
    const half = textWidth(label, AXIS_SIZE) / 2;
    picture.append(text(Math.max(half, Math.min(x(tick), right + 4 - half)), bottom + 16, label, "middle", "axis"));
  }
  return x;
}

/* Bars side by side: bars = [{label, value, tip, mark?}], format for values, mean draws a line there. */
function barChart(label, bars, format, base, options = {}) {
  // Readers of screens hear the values.
  const words = bars.length > DRAWN_IN_WORDS_MAX ? label : `${label}: ${bars.map((bar) => bar.tip.replaceAll("\n", ", ")).join("; ")}`;
  return fitted((width) => {
    const [height, left, bottom] = [options.height || 200, 64, 26];
    const picture = canvas(width, height, words);
    const most = Math.max(...bars.map((bar) => bar.value), 1);
    const ticks = ticksTo(most, base);
    const top = ticks[ticks.length - 1];
    const y = (value) => height - bottom - (value / top) * (height - bottom - 12);
    for (const tick of ticks) {
      picture.append(svg("line", { x1: left, x2: width, y1: y(tick), y2: y(tick), class: "grid" }));
      picture.append(text(left - 8, y(tick) + 4, tickText(format, tick), "end", "axis"));
    }
    const step = (width - left - 8) / bars.length;
    const gap = Math.max(Math.min(step * 0.25, 6), step - 72);
    const widest = Math.max(...bars.map((bar) => textWidth(bar.label, AXIS_SIZE)));
    const each = Math.max(1, Math.ceil((widest + 8) / step));
    bars.forEach((bar, at) => {
      const x = left + 4 + at * step;
      const shown = bar.value ? Math.max(y(0) - y(bar.value), 1.5) : 0;
      picture.append(svg("rect", { x: x + gap / 2, y: y(0) - shown, width: Math.max(step - gap, 1), height: shown, rx: Math.min(2, step / 4), class: "bar-mark" + (bar.mark ? " marked" : "") }));
      // The whole height takes the pointer: bars can be very low.
      picture.append(svg("rect", { x, y: 0, width: step, height: height - bottom, class: "catch", "data-tip": bar.tip }));
      const middle = Math.min(x + step / 2, width - textWidth(bar.label, AXIS_SIZE) / 2);
      if (at % each === 0) picture.append(text(middle, height - 8, bar.label, "middle", "axis"));
    });
    if (options.mean) {
      picture.append(svg("line", { x1: left, x2: width, y1: y(options.mean), y2: y(options.mean), class: "mean" }));
      picture.append(text(width - 4, y(options.mean) - 5, "mean", "end", "axis over"));
    }
    return picture;
  }, label).node;
}

/* Bars over time, one on top of the other: series = {start, width, buckets}, layers = [{name, values}]. */
function stackedOverTime(label, series, layers, format, base) {
  return (width) => {
    const [height, left, bottom, right] = [260, 64, 26, width - 4];
    const picture = canvas(width, height, label);
    const end = series.start + series.width * series.buckets;
    const totals = Array.from({ length: series.buckets }, (_, at) => layers.reduce((sum, layer) => sum + layer.values[at], 0));
    const ticks = ticksTo(Math.max(...totals, 1), base);
    const most = ticks[ticks.length - 1];
    const y = (value) => height - bottom - (value / most) * (height - bottom - 12);
    const x = timeAxis(picture, series.start, end, left, right, 6, height - bottom);
    for (const tick of ticks) {
      picture.append(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }));
      picture.append(text(left - 8, y(tick) + 4, tickText(format, tick), "end", "axis"));
    }
    for (let at = 0; at < series.buckets; at += 1) {
      const [from, to] = [x(series.start + at * series.width), x(series.start + (at + 1) * series.width)];
      let below = 0;
      const lines = [];
      layers.forEach((layer, number) => {
        const value = layer.values[at];
        if (!value) return;
        const [high, low] = [y(below + value), y(below)];
        picture.append(svg("rect", { x: from + 0.5, y: high, width: Math.max(to - from - 1, 1), height: Math.max(low - high - 0.5, 0.5), class: `layer-${number}` }));
        below += value;
        lines.push(`${layer.name}: ${format(value)}`);
      });
      const tip = [`${time(series.start + at * series.width)} + ${duration(series.width)}`, ...lines.reverse(), lines.length > 1 ? `all: ${format(below)}` : null];
      picture.append(svg("rect", { x: from, y: 6, width: Math.max(to - from, 1), height: height - bottom - 6, class: "catch", "data-tip": tip.filter(Boolean).join("\n") }));
    }
    return picture;
  };
}

function legend(names) {
  return el("ul", { class: "legend" }, names.map(([kind, name]) => el("li", {}, el("span", { class: `swatch ${kind}` }), name)));
}

/* Names with bars beside: rows = [{name, value, tip}]. */
function barList(label, rows, format) {
  const most = Math.max(...rows.map((row) => row.value), 1);
  return el("ol", { class: "bar-list", "aria-label": label }, rows.map((row) => {
    const bar = el("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--part", (row.value / most).toFixed(4));
    return el("li", { "data-tip": row.tip },
      el("span", { class: "key" }, row.name), el("span", { class: "number" }, format(row.value)), bar);
  }));
}
