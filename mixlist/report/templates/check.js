// Show the lists of tensors and findings (check_html.py), and the tensor under the pointer in the picture of the ranges.

function svgElement(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function rangeRow(row) {
  const tableRow = element("tr");
  const name = element("th", "", undefined);
  name.scope = "row";
  name.append(element("span", "name", row.tensor));
  if (row.counted) name.append(document.createElement("br"), element("span", "quiet", row.counted));
  const scale = element("td", "scale");
  const svg = svgElement("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const x of data.limits) svg.append(svgElement("line", { class: "limit", x1: x, x2: x, y1: 0, y2: 20 }));
  if (row.high !== null) {
    // With an unknown smallest value, a pale bar goes to the left edge, and only a mark at the largest value has full color.
    const from = row.low === null ? 0 : row.low, width = Math.max(row.high - from, 4);
    svg.append(svgElement("rect", { class: row.style + (row.low === null ? " open" : ""), x: from, y: 6, width, height: 8 }));
    if (row.low === null && !row.beyond) svg.append(svgElement("rect", { class: row.style, x: Math.max(row.high - 6, 0), y: 4, width: 6, height: 12 }));
    // The largest value is outside the scale: an arrow.
    if (row.beyond) svg.append(svgElement("path", { class: row.style, d: "M960 2 1000 10 960 18z" }));
  }
  scale.append(svg);
  const kind = cell("finding", "");
  if (row.kind) kind.append(element("span", "tag " + row.severity, row.kind));
  tableRow.append(name, cell("operator", row.operator), cell("float32", row.reference, "number"), cell(data.precision, row.mixed, "number"));
  if (data.counted) tableRow.append(cell("smallest", row.smallest, "number"));
  tableRow.append(kind, scale);
  return tableRow;
}

function setUpRanges() {
  const get = id => document.getElementById(id);
  const search = get("range-search");
  if (!search) return;
  const all = data.tensors, show = get("range-show"), order = get("range-order"), count = get("range-count");
  for (const row of all) row.text = [row.tensor, row.node, row.operator, row.kind].join(" ").toLowerCase();
  const fill = pager(get("range-table").tBodies[0], get("range-more"), rangeRow);
  const update = () => {
    const queryWords = words(search);
    let rows = all.filter(row => includesAll(row.text, queryWords) && (show.value === "all" || (show.value === "low" ? row.is_low : row.kind)));
    const size = row => row.high === null ? -1 : row.log2Largest;
    if (order.value === "large") rows = [...rows].sort((a, b) => size(b) - size(a));
    if (order.value === "small") rows = [...rows].sort((a, b) => size(a) - size(b));
    count.textContent = `${rows.length} of ${all.length} tensors`;
    fill(rows);
  };
  search.addEventListener("input", debounce(update));
  for (const select of [show, order]) select.addEventListener("change", update);
  update();
  setUpOverview(row => { get("range-list").open = true; search.value = row.tensor; show.value = "all"; update(); search.focus(); });
}

// Name the tensor under the pointer below the picture; on a click, call `choose` with its row.
function setUpOverview(choose) {
  const svg = document.getElementById("overview"), cursor = document.getElementById("cursor");
  const caption = document.getElementById("under-cursor"), all = data.tensors;
  // Return the index of the tensor under the pointer, or -1. The plot is 1100 units wide (range_chart.WIDTH), and each tensor
  // has an equal part.
  const indexAt = event => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return point.x < 0 || point.x >= 1100 ? -1 : Math.floor(point.x / 1100 * all.length);
  };
  svg.addEventListener("pointermove", event => {
    const index = indexAt(event), row = all[index];
    cursor.toggleAttribute("hidden", !row);
    caption.textContent = row ? `${row.tensor}: ${row.reference} in float32, ${row.mixed} in the mixed model` : "";
    if (row) for (const end of ["x1", "x2"]) cursor.setAttribute(end, (index + 0.5) / all.length * 1100);
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("hidden", ""); caption.textContent = ""; });
  svg.addEventListener("click", event => { if (all[indexAt(event)]) choose(all[indexAt(event)]); });
}

function findingRow(row) {
  const tableRow = element("tr");
  const name = element("th", "", undefined);
  name.scope = "row";
  name.append(element("span", "name", row.node));
  if (row.place === "input") name.append(element("span", "quiet", " converted input " + row.tensor));
  if (row.suggestion) name.append(document.createElement("br"), element("span", "quiet", "to keep it high: " + row.suggestion));
  tableRow.append(name, cell("operator", row.operator));
  const numbers = { float32: row.reference, [data.precision]: row.mixed, values: row.count };
  for (const [label, text] of Object.entries(numbers)) tableRow.append(cell(label, text, "number"));
  tableRow.append(cell("batches", row.batches), cell("low by", row.low_by));
  return tableRow;
}

function setUpFindings() {
  const search = document.getElementById("finding-search");
  if (!search) return;
  const count = document.getElementById("finding-count"), all = data.findings;
  for (const row of all) row.text = [row.node, row.operator, row.tensor, row.low_by, row.kind].join(" ").toLowerCase();
  // One group for each kind of finding. A closed group gets its rows only when the user opens it.
  const groups = [...document.querySelectorAll("details.kind")].map(box => {
    const group = { box, rows: [], drawn: false, fill: pager(box.querySelector("tbody"), box.querySelector("button"), findingRow) };
    group.draw = () => { if (box.open && !group.drawn) { group.drawn = true; group.fill(group.rows); } };
    box.addEventListener("toggle", group.draw);
    return group;
  });
  const update = () => {
    const queryWords = words(search), rows = all.filter(row => includesAll(row.text, queryWords));
    count.textContent = `${rows.length} of ${all.length} findings`;
    for (const group of groups) {
      group.rows = rows.filter(row => row.kind === group.box.dataset.kind);
      group.drawn = false;
      group.box.querySelector(".found").textContent = group.rows.length;
      group.box.hidden = !group.rows.length;
      // A search with few results opens the groups that have them.
      if (queryWords.length && group.rows.length && rows.length <= STEP) group.box.open = true;
      group.draw();
    }
  };
  search.addEventListener("input", debounce(update));
  update();
}

setUpRanges();
setUpFindings();
