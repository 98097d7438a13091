"use strict";
// The nodes of a graph in a list that holds only what is seen, folded by phase and module.
const NODES = JSON.parse(document.getElementById("data").textContent).nodes, ROW = 24;
const [TEXT, LINE, MODULE, PHASE, TYPE, GRAD] = [0, 1, 2, 3, 4, 5];
const byId = (id) => document.getElementById(id);

function make(tag, fields, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

class Graph {
  constructor(box) {
    this.box = box;
    this.all = box.querySelector(".all");
    this.blocks = [];
    NODES.forEach((node, index) => {  // a block: neighbours of one phase and module
      const block = this.blocks[this.blocks.length - 1];
      if (block && block.phase === node[PHASE] && block.module === node[MODULE]) block.nodes.push(index);
      else this.blocks.push({ phase: node[PHASE], module: node[MODULE], nodes: [index] });
    });
    this.hidden = new Set();
    this.folded = new Set(NODES.length > 2000 ? this.blocks.keys() : []);
    this.only = false;
    box.addEventListener("scroll", () => this.draw());
    this.lay();
  }

  lay() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (node) => (!this.only || isCall(node)) && words.every((word) => node.some((cell) => cell.toLowerCase().includes(word)));
    const searching = words.length > 0 || this.only;
    this.list = [];
    let count = 0;
    this.blocks.forEach((block, index) => {
      if (this.hidden.has(block.phase)) return;
      const found = searching ? block.nodes.filter((at) => fits(NODES[at])) : block.nodes;
      if (!found.length) return;
      count += found.length;
      this.list.push({ block, index, count: found.length });
      if (searching || !this.folded.has(index)) for (const at of found) this.list.push({ at });
    });
    byId("count").textContent = `${count} of ${NODES.length} nodes`;
    this.all.style.height = `${this.list.length * ROW}px`;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 10), rows = [];
    const until = Math.min(this.list.length, first + Math.ceil(this.box.clientHeight / ROW) + 20);
    for (let place = first; place < until; place++) rows.push(this.row(this.list[place], place));
    this.all.replaceChildren(...rows);
  }

  row(one, place) {
    const style = `top: ${place * ROW}px`;
    if (one.block) {
      const open = !this.folded.has(one.index), phase = one.block.phase || "inputs and outputs";
      const button = make("button", { type: "button", class: "block", style, "aria-expanded": String(open) },
        `${open ? "\u25be" : "\u25b8"} ${phase}  ${one.block.module || ""}  (${one.count})`);
      button.addEventListener("click", () => {
        if (!this.folded.delete(one.index)) this.folded.add(one.index);
        this.lay();
      });
      return button;
    }
    const node = NODES[one.at], cell = (text, of = "") => make("span", { title: text, class: of }, text);
    return make("div", { class: isCall(node) ? "node call" : "node", style },
      cell(node[TEXT]), cell(node[TYPE]), cell(node[GRAD] && `gradient ${node[GRAD]}`), cell(node[LINE], "at"));
  }
}

const isCall = (node) => node[TEXT].includes("_c10d_functional") && !node[TEXT].includes("wait_tensor");

if (byId("graph")) {
  const graph = new Graph(byId("graph"));
  const toggle = (button, change) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    change();
    graph.lay();
  });
  for (const phase of new Set(NODES.map((node) => node[PHASE]))) {
    const button = make("button", { type: "button", "aria-pressed": "true" }, phase || "inputs");
    toggle(button, () => { if (!graph.hidden.delete(phase)) graph.hidden.add(phase); });
    byId("phases").append(button);
  }
  toggle(byId("only"), () => { graph.only = !graph.only; });
  byId("search").addEventListener("input", () => { graph.box.scrollTop = 0; graph.lay(); });
  byId("fold").addEventListener("click", () => { graph.folded = new Set(graph.blocks.keys()); graph.lay(); });
  byId("unfold").addEventListener("click", () => { graph.folded.clear(); graph.lay(); });
  for (const button of document.querySelectorAll(".find")) {
    button.addEventListener("click", () => {
      byId("search").value = button.dataset.find;
      graph.lay();
      graph.box.scrollIntoView({ block: "center" });
      graph.box.focus({ preventScroll: true });
    });
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
});
