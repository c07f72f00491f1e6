"use strict";
// Long lists, drawn a piece at a time. Names go in as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const STEP = 50;

function element(tag, classes, text) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// A table body that shows `rows` a piece at a time; the button, or scrolling near it, adds the next.
function pager(body, button, draw) {
  let rows = [], shown = 0;
  const more = () => {
    const piece = document.createDocumentFragment();
    for (const row of rows.slice(shown, shown + STEP)) piece.append(draw(row));
    shown = Math.min(shown + STEP, rows.length);
    body.append(piece);
    button.hidden = shown >= rows.length;
    button.textContent = `Show more (${rows.length - shown} left)`;
  };
  button.addEventListener("click", more);
  new IntersectionObserver(seen => { if (seen[0].isIntersecting && shown) more(); }).observe(button);
  return found => { rows = found; shown = 0; body.replaceChildren(); more(); };
}

function later(work) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(work, 80); };
}

const words = field => field.value.toLowerCase().split(/\s+/).filter(Boolean);
const holds = (text, wanted) => wanted.every(word => text.includes(word));

function rangeRow(row) {
  const made = element("tr");
  const name = element("th", "", undefined);
  name.scope = "row";
  name.append(element("span", "name", row.tensor));
  if (row.counted) name.append(document.createElement("br"), element("span", "quiet", row.counted));
  const scale = element("td", "scale");
  const svg = shape("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const at of data.limits) svg.append(shape("line", { class: "limit", x1: at, x2: at, y1: 0, y2: 20 }));
  if (row.high !== null) {
    const from = row.low === null ? 0 : row.low, width = Math.max(row.high - from, 4);
    svg.append(shape("rect", { class: row.look + (row.low === null ? " open" : ""), x: from, y: 6, width, height: 8 }));
    if (row.low === null) svg.append(shape("rect", { class: row.look, x: Math.max(row.high - 6, 0), y: 4, width: 6, height: 12 }));
    if (row.beyond) svg.append(shape("path", { class: row.look, d: "M985 2 1000 10 985 18z" }));
  }
  scale.append(svg);
  const kind = element("td");
  if (row.kind) kind.append(element("span", "tag " + row.weight, row.kind));
  made.append(name, element("td", "", row.operator), element("td", "number", row.reference), element("td", "number", row.mixed));
  if (data.counted) made.append(element("td", "number", row.smallest));
  made.append(kind, scale);
  return made;
}

function ranges() {
  const get = id => document.getElementById(id);
  const search = get("range-search");
  if (!search) return;
  const all = data.tensors, show = get("range-show"), order = get("range-order"), count = get("range-count");
  for (const row of all) row.text = [row.tensor, row.node, row.operator, row.kind].join(" ").toLowerCase();
  const fill = pager(get("range-table").tBodies[0], get("range-more"), rangeRow);
  const update = () => {
    const wanted = words(search);
    let rows = all.filter(row => holds(row.text, wanted) && (show.value === "all" || (show.value === "low" ? row.is_low : row.kind)));
    const size = row => row.high === null ? -1 : row.power;
    if (order.value === "large") rows = [...rows].sort((a, b) => size(b) - size(a));
    if (order.value === "small") rows = [...rows].sort((a, b) => size(a) - size(b));
    count.textContent = `${rows.length} of ${all.length} tensors`;
    fill(rows);
  };
  search.addEventListener("input", later(update));
  for (const select of [show, order]) select.addEventListener("change", update);
  update();
  overview(row => { get("range-list").open = true; search.value = row.tensor; show.value = "all"; update(); search.focus(); });
}

// The tensor under the pointer, and a click that looks it up in the list.
function overview(choose) {
  const svg = document.getElementById("overview"), cursor = document.getElementById("cursor");
  const told = document.getElementById("under-cursor"), all = data.tensors;
  const at = event => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return point.x < 0 || point.x >= 1100 ? -1 : Math.floor(point.x / 1100 * all.length);
  };
  svg.addEventListener("pointermove", event => {
    const index = at(event), row = all[index];
    cursor.toggleAttribute("hidden", !row);
    told.textContent = row ? `${row.tensor}: ${row.reference} in float32, ${row.mixed} in the mixed model` : "";
    if (row) for (const end of ["x1", "x2"]) cursor.setAttribute(end, (index + 0.5) / all.length * 1100);
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("hidden", ""); told.textContent = ""; });
  svg.addEventListener("click", event => { if (all[at(event)]) choose(all[at(event)]); });
}

function findingRow(row) {
  const made = element("tr");
  const name = element("th", "", undefined);
  name.scope = "row";
  name.append(element("span", "name", row.node));
  if (row.place === "input") name.append(element("span", "quiet", " converted input " + row.tensor));
  if (row.suggestion) name.append(document.createElement("br"), element("span", "quiet", "keep it high: " + row.suggestion));
  made.append(name, element("td", "", row.operator));
  for (const text of [row.reference, row.mixed, row.count]) made.append(element("td", "number", text));
  made.append(element("td", "", row.batches), element("td", "", row.low_by));
  return made;
}

function findings() {
  const search = document.getElementById("finding-search");
  if (!search) return;
  const count = document.getElementById("finding-count"), all = data.findings;
  for (const row of all) row.text = [row.node, row.operator, row.tensor, row.low_by, row.kind].join(" ").toLowerCase();
  const groups = [...document.querySelectorAll("details.kind")].map(box => {
    const group = { box, rows: [], drawn: false, fill: pager(box.querySelector("tbody"), box.querySelector("button"), findingRow) };
    group.draw = () => { if (box.open && !group.drawn) { group.drawn = true; group.fill(group.rows); } };
    box.addEventListener("toggle", group.draw);
    return group;
  });
  const update = () => {
    const wanted = words(search), rows = all.filter(row => holds(row.text, wanted));
    count.textContent = `${rows.length} of ${all.length} findings`;
    for (const group of groups) {
      group.rows = rows.filter(row => row.kind === group.box.dataset.kind);
      group.drawn = false;
      group.box.querySelector(".found").textContent = group.rows.length;
      group.box.hidden = !group.rows.length;
      if (wanted.length && group.rows.length && rows.length <= STEP) group.box.open = true;
      group.draw();
    }
  };
  search.addEventListener("input", later(update));
  update();
}

ranges();
findings();
window.addEventListener("beforeprint", () => { for (const box of document.querySelectorAll("details")) box.open = true; });
