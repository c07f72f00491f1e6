"use strict";
// Show the long lists of the page's data (html_page.py), each with a search. The script draws STEP rows at a time, because a
// large model has very many nodes and tensors. Names of the model become text nodes, never markup.
const lists = JSON.parse(document.getElementById("data").textContent);
const STEP = 50;
const SHORT_CELL = 20, LONG_CELL = 30;  // as in html_page.py
const get = id => document.getElementById(id);

function element(tag, classes, text) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

function svgElement(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// A cell is a text; [text, level] of a mark; or {size, shapes} of a picture.
const textOf = cell => typeof cell === "string" ? cell : Array.isArray(cell) ? cell[0] : "";

function picture(cell, guides) {
  const [width, height] = cell.size;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const place of guides) svg.append(svgElement("path", { class: "limit", d: `M${width * place / 100} 0v${height}` }));
  for (const [style, d] of cell.shapes) svg.append(svgElement("path", { class: style, d }));
  return svg;
}

// Return the row of a table. On a phone, which has no row of column titles, the page shows the label in front of a text.
function drawRow(list, row) {
  const tableRow = element("tr"), name = element("th");
  name.scope = "row";
  tableRow.append(name);
  row.cells.forEach((cell, at) => {
    const { title, style, guides } = list.columns[at], text = textOf(cell);
    if (at === 0) { name.append(element("span", "name", text)); return; }
    if (style === "note") {
      if (text) name.append(document.createElement("br"), element("span", "quiet", `${title}: ${text}`));
      return;
    }
    const length = text.length <= SHORT_CELL ? "short" : text.length > LONG_CELL ? "long" : "";
    const node = element("td", style === "number" || style === "name" ? style : style === "picture" ? "scale" : length);
    if (style === "picture") node.append(picture(cell, guides));
    else {
      node.dataset.label = title;
      node.append(Array.isArray(cell) ? element("span", `tag ${cell[1]}`, text) : text);
    }
    tableRow.append(node);
  });
  return tableRow;
}

// Return a function that fills a table body with rows. It draws STEP of them; a click on the button, or scrolling to the
// button, draws the next STEP.
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
  new IntersectionObserver(entries => { if (entries[0].isIntersecting && shown) more(); }).observe(button);
  return newRows => { rows = newRows; shown = 0; body.replaceChildren(); more(); };
}

// Return a function that runs `work` once, 80 ms after its last call: a search waits until the user stops typing.
function debounce(work) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(work, 80); };
}

// A closed group gets its rows only when the user opens it.
function makeGroup(list, box) {
  const group = { box, rows: [], drawn: false };
  const fill = pager(box.querySelector("tbody"), box.querySelector("button"), row => drawRow(list, row));
  group.draw = () => { if (box.open && !group.drawn) { group.drawn = true; fill(group.rows); } };
  box.addEventListener("toggle", group.draw);
  return group;
}

function showInGroups(groups, rows, isSearched) {
  for (const group of groups) {
    group.rows = rows.filter(row => row.group === group.box.dataset.group);
    group.drawn = false;
    group.box.querySelector(".found").textContent = group.rows.length;
    group.box.hidden = !group.rows.length;
    // A search with few results opens the groups that have them.
    if (isSearched && group.rows.length && rows.length <= STEP) group.box.open = true;
    group.draw();
  }
}

function setUpList(list) {
  const search = get(`${list.id}-search`), show = get(`${list.id}-show`), order = get(`${list.id}-order`);
  for (const row of list.rows) row.text = [...row.cells.map(textOf), row.words ?? ""].join(" ").toLowerCase();
  const groups = [...document.querySelectorAll(`details[data-list="${list.id}"]`)].map(box => makeGroup(list, box));
  const table = get(`${list.id}-table`);
  const fill = table && pager(table.tBodies[0], get(`${list.id}-more`), row => drawRow(list, row));
  const update = () => {
    const queryWords = search.value.toLowerCase().split(/\s+/).filter(Boolean), filter = show ? show.value : "all";
    let rows = list.rows.filter(row => queryWords.every(word => row.text.includes(word))
      && (filter === "all" || (row.filters ?? []).includes(filter)));
    if (order && order.value === "large") rows = [...rows].sort((a, b) => b.size - a.size);
    if (order && order.value === "small") rows = [...rows].sort((a, b) => a.size - b.size);
    get(`${list.id}-count`).textContent = `${rows.length} of ${list.rows.length} ${list.noun}`;
    if (groups.length) showInGroups(groups, rows, queryWords.length > 0);
    else fill(rows);
  };
  search.addEventListener("input", debounce(update));
  for (const select of [show, order]) select?.addEventListener("change", update);
  update();
  return row => { search.value = textOf(row.cells[0]); if (show) show.value = "all"; update(); search.focus(); };
}

// Name the row of `list` under the pointer below a chart whose width the rows share evenly; on a click, `choose` the row.
function setUpChart(svg, list, choose) {
  const { width, height } = svg.viewBox.baseVal, caption = get("under-cursor"), all = list.rows;
  const cursor = svgElement("path", { class: "cursor" });
  svg.append(cursor);
  const indexAt = event => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return point.x < 0 || point.x >= width ? -1 : Math.floor(point.x / width * all.length);
  };
  const describe = row => `${textOf(row.cells[0])}: ` + row.cells.map((cell, at) => [list.columns[at], textOf(cell)])
    .filter(([column, text]) => column.style === "number" && text).map(([column, text]) => `${column.title} ${text}`).join(", ");
  svg.addEventListener("pointermove", event => {
    const index = indexAt(event), row = all[index];
    caption.textContent = row ? describe(row) : "";
    cursor.setAttribute("d", row ? `M${(index + 0.5) / all.length * width} 0v${height}` : "");
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("d", ""); caption.textContent = ""; });
  svg.addEventListener("click", event => { if (all[indexAt(event)]) choose(all[indexAt(event)]); });
}

for (const list of lists) {
  const choose = setUpList(list);
  for (const svg of document.querySelectorAll(`svg[data-list="${list.id}"]`)) setUpChart(svg, list, choose);
}
// Paper has no buttons: print every group open.
window.addEventListener("beforeprint", () => { for (const box of document.querySelectorAll("details")) box.open = true; });
