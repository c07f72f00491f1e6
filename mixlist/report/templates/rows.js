"use strict";
// Show long lists of the page's data, with a search. The script draws STEP rows at a time, because a large model has very many
// nodes and tensors. Names of the model become text nodes, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const STEP = 50;

function element(tag, classes, text) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Return a cell of a table. On a phone, which has no row of column titles, the page shows `label` in front of the text.
function cell(label, text, classes) {
  const node = element("td", classes, text);
  node.dataset.label = label;
  return node;
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

const words = field => field.value.toLowerCase().split(/\s+/).filter(Boolean);
const includesAll = (text, queryWords) => queryWords.every(word => text.includes(word));

// Paper has no buttons: print every group open.
window.addEventListener("beforeprint", () => { for (const box of document.querySelectorAll("details")) box.open = true; });
