// Show the list of the nodes whose precision differs (diff_html.py).

function nodeRow(cells) {
  const tableRow = element("tr"), name = element("th", "name", cells[0]);
  name.scope = "row";
  tableRow.append(name, ...cells.slice(1).map((text, at) => cell(data.columns[at + 1], text)));
  return tableRow;
}

function setUpNodes() {
  const search = document.getElementById("node-search"), count = document.getElementById("node-count");
  const texts = data.nodes.map(cells => cells.join(" ").toLowerCase());
  const fill = pager(document.getElementById("node-table").tBodies[0], document.getElementById("node-more"), nodeRow);
  const update = () => {
    const queryWords = words(search), rows = data.nodes.filter((_, at) => includesAll(texts[at], queryWords));
    count.textContent = `${rows.length} of ${data.nodes.length} nodes`;
    fill(rows);
  };
  search.addEventListener("input", debounce(update));
  update();
}

setUpNodes();
