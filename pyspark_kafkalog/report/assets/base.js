// Elements, numbers and times for people, tooltips, colours. Text from the data only ever becomes text nodes.

const data = JSON.parse(document.getElementById("data").textContent);
const topics = data.topics;
const NONE = "–";

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// A name with places to break it after its separators, so that lines do not end within a word.
function breakable(name) {
  return name.split(/(?<=[._\/-])(?=[^._\/-])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
}

// Numbers

const grouped = new Intl.NumberFormat("en-US");

function count(number) {
  return number === null || number === undefined ? NONE : grouped.format(number);
}

function counted(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many || one + "s"}`;
}

function short(number) {
  if (number === null || number === undefined) return NONE;
  for (const [factor, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(number) >= factor) return significant(number / (unit === "k" ? 1e3 : factor)) + " " + unit;
  }
  return count(number);
}

function bytes(size) {
  if (size === null || size === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (Math.abs(size) >= 1023.5 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return (at ? significant(size) : String(size)) + " " + units[at];
}

function significant(number) {
  return number.toFixed(Math.abs(number) >= 100 ? 0 : 1);
}

function percent(number) {
  return number === null || number === undefined ? NONE : number.toFixed(1) + " %";
}

// Times, all of them UTC

function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return NONE;
  const moment = new Date(ms);
  return Number.isNaN(moment.getTime()) ? count(ms) + " ms" : moment.toISOString().slice(0, 16).replace("T", " ");
}

function duration(ms) {
  const units = [[365.25 * 864e5, "year", "years"], [864e5, "day", "days"], [36e5, "hour", "hours"], [6e4, "min", "min"], [1e3, "s", "s"]];
  for (const [length, one, many] of units) {
    if (ms >= 2 * length || (ms >= length && ms % length === 0) || one === "s") return counted(Math.round(ms / length), one, many);
  }
}

function ago(ms) {
  if (ms === null || ms < 0) return NONE;
  const past = data.root.now - ms;
  return past < 0 ? `in ${duration(-past)}` : `${duration(past)} ago`;
}

// Tooltips: whatever has a data-tip, under the pointer or with the focus

const tooltip = document.getElementById("tooltip");

function placeTooltip(x, y) {
  const box = tooltip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
  const top = y + 16 + box.height > innerHeight ? y - 10 - box.height : y + 16;
  tooltip.style.left = Math.max(4, left) + "px";
  tooltip.style.top = Math.max(4, top) + "px";
}

function showTooltip(text, x, y) {
  tooltip.hidden = !text;
  if (!text) return;
  if (tooltip.textContent !== text) tooltip.textContent = text;
  placeTooltip(x, y);
}

function watchTooltips() {
  const tipOf = (target) => (target instanceof Element ? target.closest("[data-tip]") : null);
  document.addEventListener("pointermove", (event) => {
    const holder = tipOf(event.target);
    showTooltip(holder && holder.getAttribute("data-tip"), event.clientX, event.clientY);
  });
  document.addEventListener("focusin", (event) => {
    const holder = tipOf(event.target);
    const box = holder && holder.getBoundingClientRect();
    showTooltip(holder && holder.getAttribute("data-tip"), box ? box.left : 0, box ? box.bottom : 0);
  });
  document.addEventListener("focusout", () => showTooltip(null));
  document.addEventListener("pointerleave", () => showTooltip(null));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") showTooltip(null);
  });
}

// Light, dark, or as the system says

function watchTheme() {
  document.getElementById("theme").hidden = false;
  const buttons = [...document.querySelectorAll("[data-theme-choice]")];
  const choose = (choice) => {
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.themeChoice === choice));
  };
  let kept = null;
  try {
    kept = localStorage.getItem("kafkalog-report-theme");
  } catch {
    // Pages from files may have no storage: then the choice is for this visit.
  }
  choose(["light", "dark"].includes(kept) ? kept : "auto");
  for (const each of buttons) {
    each.addEventListener("click", () => {
      choose(each.dataset.themeChoice);
      try {
        localStorage.setItem("kafkalog-report-theme", each.dataset.themeChoice);
      } catch {
        // As above.
      }
    });
  }
}

// A button that shows more, and hides it again

function fold(showText, hideText, onToggle) {
  const button = el("button", { type: "button", class: "fold", "aria-expanded": "false", click: () => {
    const opens = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(opens));
    button.textContent = opens ? hideText : showText;
    onToggle(opens);
  } }, showText);
  return button;
}

// A few choices, one of them taken

function choices(label, options, chosen, onChoose) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === chosen), click: () => take(value) }, text));
  const take = (value) => {
    options.forEach(([each], at) => buttons[at].setAttribute("aria-pressed", String(each === value)));
    onChoose(value);
  };
  return el("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

function topicSelect(label, numbers, chosen, onChoose) {
  const select = el("select", { "aria-label": label, change: () => onChoose(Number(select.value)) },
    numbers.map((number) => el("option", { value: number, selected: number === chosen },
      number < 0 ? "All topics" : topics.name[number])));
  return select;
}
