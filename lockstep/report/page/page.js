"use strict";
// Draws what the page holds as data: a timeline of ranks, and curves. Nothing is fetched.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ROW = 26, COLORS = ["p2", "p4", "p6", "p3", "p5", "p7", "p0", "p1"];

function make(tag, fields = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name === "style") node.style.cssText = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(2)} s` : `${(ms / 60000).toFixed(1)} min`;
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= raw), found = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i++) found.push(+(i * step).toPrecision(12));
  return found;
}

// ---- the timeline

class Timeline {
  constructor(host, run) {
    this.run = run;
    this.end = run.rows.reduce((end, row) => Math.max(end, last(row)), 1);
    this.view = [0, this.end];
    this.hidden = new Set();
    this.groups = run.groups.map((name, index) => ({ name, rows: run.rows.filter((row) => row[1] === index) }));
    this.open = new Set(run.rows.length <= 16 ? this.groups.keys() : []);
    this.tell = make("p", { class: "tell", "aria-live": "polite" }, "Hover or focus a row for its times; arrow keys move between rows.");
    this.axis = make("div", { class: "axis", "aria-hidden": "true" });
    this.all = make("div", { class: "all" });
    this.lines = make("div", { class: "lines", role: "group", "aria-label": "timeline of ranks",
      onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, this.all);
    host.append(this.keys(), this.axis, this.lines, this.tell);
    this.lay();
  }

  keys() {
    const used = new Set(this.run.rows.flatMap((row) => row[2].map((span) => span[0])));
    const keys = [...used].sort((a, b) => a - b).map((phase) => make("button",
      { type: "button", "aria-pressed": "true", onclick: (event) => this.toggle(phase, event.currentTarget) },
      make("span", { class: "swatch", style: `background: var(--p${phase})` }), DATA.phases[phase]));
    const zoom = (name, label, by) => make("button", { type: "button", "aria-label": label, onclick: () => this.zoom(by) }, name);
    return make("div", { class: "keys" }, ...keys, zoom("+", "zoom in", 0.5), zoom("\u2212", "zoom out", 2),
      zoom("\u2190", "earlier", "left"), zoom("\u2192", "later", "right"), zoom("all", "show all times", "all"));
  }

  toggle(phase, button) {
    const hidden = !this.hidden.delete(phase) && this.hidden.add(phase) && true;
    button.setAttribute("aria-pressed", String(!hidden));
    this.draw();
  }

  zoom(by) {
    let [low, high] = this.view;
    const width = high - low;
    if (by === "all") [low, high] = [0, this.end];
    else if (by === "left" || by === "right") { low += (by === "left" ? -1 : 1) * width / 3; high = low + width; }
    else { const middle = (low + high) / 2, half = Math.max(width * by, 2) / 2; low = middle - half; high = middle + half; }
    const shift = low < 0 ? -low : high > this.end ? this.end - high : 0;
    this.view = [Math.max(0, low + shift), Math.min(this.end, high + shift)];
    this.draw();
  }

  lay() {  // the list of lines: a group is one, and its ranks where it is open or alone
    this.list = [];
    this.groups.forEach((group, index) => {
      if (group.rows.length > 1) this.list.push({ group, index, row: middle(group.rows) });
      if (group.rows.length === 1 || this.open.has(index)) for (const row of group.rows) this.list.push({ row });
    });
    this.all.style.height = `${this.list.length * ROW}px`;
    this.draw();
  }

  draw() {
    const [low, high] = this.view;
    this.axis.replaceChildren(...ticks(low, high, 6).map((at) =>
      make("span", { style: `left: ${100 * (at - low) / (high - low)}%` },
        high - low < 1000 ? `${at} ms` : `${+(at / 1000).toPrecision(5)} s`)));
    const first = Math.max(0, Math.floor(this.lines.scrollTop / ROW) - 4);
    const until = Math.min(this.list.length, first + Math.ceil((this.lines.clientHeight || 420) / ROW) + 8);
    const held = document.activeElement && this.all.contains(document.activeElement) ? +document.activeElement.dataset.at : -1;
    const rows = [];
    for (let at = first; at < until; at++) rows.push(this.line(this.list[at], at));
    this.all.replaceChildren(...rows);
    if (held >= first && held < until) this.all.querySelector(`[data-at="${held}"]`).focus({ preventScroll: true });
  }

  line(line, at) {
    const track = make("span", { class: "track" }), [low, high] = this.view;
    for (const [phase, begin, lasted, , open] of line.row[2]) {
      if (this.hidden.has(phase) || begin > high || begin + lasted < low) continue;
      const left = 100 * (begin - low) / (high - low), width = 100 * lasted / (high - low);
      track.append(make("span", { class: open ? "bar open" : "bar", style: `left: ${left}%; width: ${width}%; background: var(--p${phase})` }));
    }
    const text = this.words(line), opened = line.group ? this.open.has(line.index) : null;
    const name = line.group ? `${opened ? "\u25be" : "\u25b8"} ${line.group.name}` : `${this.groups[line.row[1]].rows.length > 1 ? "\u2003" : ""}rank ${line.row[0]}`;
    const show = () => { this.tell.textContent = text; };
    return make("button", { type: "button", class: "row", style: `top: ${at * ROW}px`, "data-at": at, "aria-label": text,
      tabindex: at === (this.at || 0) ? "0" : "-1", ...(line.group ? { "aria-expanded": String(opened) } : {}),
      onfocus: () => { this.at = at; show(); }, onclick: () => this.flip(line),
      onmousemove: (event) => { if (event.movementX || event.movementY) show(); } },  // not where rows scroll below it
      make("span", { class: "name" }, name), track);
  }

  words(line) {
    const spans = line.row[2].map(([phase, , lasted, program, open]) =>
      `${DATA.phases[phase]} ${seconds(lasted)}${open ? " (not ended)" : ""}${program > 0 ? ` (${this.run.programs[program]})` : ""}`);
    if (!line.group) return `rank ${line.row[0]}: ${spans.join(", ")}`;
    const slow = line.group.rows.reduce((a, b) => (last(b) > last(a) ? b : a));
    return `${line.group.name}; the one in the middle, rank ${line.row[0]}: ${spans.join(", ")}; the last, rank ${slow[0]}, ready at ${seconds(last(slow))}`;
  }

  flip(line) {
    if (!line.group) return;
    if (!this.open.delete(line.index)) this.open.add(line.index);
    this.lay();
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(this.list.length - 1, (this.at || 0) + step));
    const top = at * ROW, box = this.lines;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
    this.at = at;
    this.draw();
    this.all.querySelector(`[data-at="${at}"]`).focus({ preventScroll: true });
  }
}

const last = (row) => row[2].reduce((end, span) => Math.max(end, span[1] + span[2]), 0);
const middle = (rows) => [...rows].sort((a, b) => last(a) - last(b))[rows.length >> 1];

// ---- curves

const SVG = "http://www.w3.org/2000/svg", WIDE = 520, HIGH = 240, LEFT = 56, BOTTOM = 26, TOP = 10, RIGHT = 10;

function draw(tag, fields, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(fields)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const short = (value) => (Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1) : +value.toPrecision(4));

function chart(one) {
  const xs = one.series.flatMap((s) => s.x), ys = one.series.flatMap((s) => [...s.y, ...s.low, ...s.high]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const x = (value) => LEFT + (WIDE - LEFT - RIGHT) * (value - x0) / (x1 - x0 || 1);
  const y = (value) => HIGH - BOTTOM - (HIGH - BOTTOM - TOP) * (value - y0) / (y1 - y0 || 1);
  const ends = one.series.map((s) => `${s.label}: ${short(s.y[0])} at first, ${short(s.y[s.y.length - 1])} at last`).join("; ");
  const svg = draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, tabindex: "0", role: "img", "aria-label": `${one.name} by step. ${ends}` });
  for (const at of ticks(y0, y1, 5)) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y(at), y2: y(at) }),
      draw("text", { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }, short(at)));
  }
  for (const at of ticks(x0, x1, 6)) svg.append(draw("text", { x: x(at), y: HIGH - 8, "text-anchor": "middle" }, short(at)));
  const path = (xs, ys) => xs.map((at, i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}`).join("");
  one.series.forEach((s, i) => {
    const color = `var(--${COLORS[i % COLORS.length]})`;
    if (s.low.length) svg.append(draw("path", { class: "band", style: `fill: ${color}`,
      d: `${path(s.x, s.high)}${path([...s.x].reverse(), [...s.low].reverse()).replace("M", "L")}Z` }));
    svg.append(draw("path", { d: path(s.x, s.y), style: `stroke: ${color}` }));
  });
  const cursor = draw("line", { class: "cursor", y1: TOP, y2: HIGH - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  const tell = make("p", { class: "tell", "aria-live": "polite" }, ends);
  const steps = one.series[0].x;
  let at = steps.length - 1;
  const show = () => {
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(steps[at]));
    cursor.setAttribute("visibility", "visible");
    tell.textContent = `step ${short(steps[at])}: ` + one.series.map((s) => `${s.label} ${short(s.y[Math.min(at, s.y.length - 1)])}`).join(", ");
  };
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect(), value = x0 + (x1 - x0) * ((event.clientX - box.left) * WIDE / box.width - LEFT) / (WIDE - LEFT - RIGHT);
    at = steps.reduce((best, step, i) => (Math.abs(step - value) < Math.abs(steps[best] - value) ? i : best), 0);
    show();
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    at = Math.max(0, Math.min(steps.length - 1, at + by));
    show();
  });
  const key = one.series.map((s, i) => make("span", {}, make("span", { class: "swatch", style: `background: var(--${COLORS[i % COLORS.length]})` }), s.label));
  return make("div", { class: "chart" }, make("h4", {}, one.name), svg, make("div", { class: "keys" }, ...key), tell);
}

// ---- the page

for (const host of document.querySelectorAll(".run")) {
  const run = DATA.runs[+host.dataset.run];
  new Timeline(host.querySelector(".timeline"), run);
  const charts = host.querySelector(".charts");
  if (charts) charts.append(...run.charts.map(chart));
}

for (const button of document.querySelectorAll(".copies")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {  // not allowed here: it is selected, for a copy by hand
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
