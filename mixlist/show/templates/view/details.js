// Write the details of the selected node, group or edge, and of the whole model if nothing is selected. Names of the model
// become text nodes, never markup.

// Return an element. `attributes` may have listeners (onclick) and ARIA attributes; children are elements or texts.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return node;
}

// Return a number with four digits, as the other pages show it (number_text.py): 287513, 0.0008546, 8.266e10.
const formatNumber = value => {
  const number = toNumber(value);
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  if (!Number.isFinite(number)) return String(number).toLowerCase().replace("infinity", "inf");
  if (size >= 1 && size < 999999.5) return String(Number(number.toFixed(Math.max(0, 4 - String(Math.trunc(size)).length))));
  if (size === 0 || (size >= 1e-4 && size < 1)) return String(Number(number.toPrecision(4)));
  const [digits, exponent] = number.toExponential(3).split("e");
  return `${Number(digits)}e${Number(exponent)}`;
};

class Details {
  // `actions`: select(target), toggle(group), isOpen(group).
  constructor(box, model, results, kinds, actions) { Object.assign(this, { box, model, results, kinds, actions }); }

  show(...content) { this.box.replaceChildren(...content.flat(Infinity).filter(Boolean)); this.box.scrollTop = 0; }

  link(member, text) {
    const follow = () => {
      const isInside = this.box.contains(document.activeElement);
      this.actions.select({ member }, true);
      if (isInside) this.box.focus({ preventScroll: true }); // the button with the focus is gone
    };
    return make("button", { class: "link name", type: "button", onclick: follow }, text ?? (isGroup(member) ? this.model.label(member) : this.model.name(member)));
  }

  facts(rows) {
    return make("dl", {}, rows.filter(row => row[1] !== null && row[1] !== "" && row[1] !== undefined).map(([title, value]) => [make("dt", {}, title), make("dd", {}, value)]));
  }

  path(member) {
    const groups = this.model.ancestors(member);
    return groups.length ? make("p", { class: "quiet path" }, groups.map((group, k) => [k ? " › " : "", this.link(memberOf(group))]).flat()) : null;
  }

  // --- node ---

  node(node) {
    const { model } = this, text = column => model.text(column, node), terminal = model.isTerminal(node);
    const changed = model.data.nodes.changed[node] ? "changed by the lists" : "as authored";
    this.show(
      make("h2", { class: "name" }, model.name(node)), this.path(node),
      this.facts([
        ["operator", text("op")], ["scope", text("scope")], ["list", terminal ? "" : text("list")],
        ["precision", text("precision") + (terminal || text("precision") === "none" ? "" : ` (${changed})`)],
        ["rule", text("rule")], ["reason", text("reason")],
      ]),
      this.chain(node), this.difference(node), this.checkOf(node), this.inputs(node), this.outputsOf(node),
    );
  }

  chain(node) {
    const chain = this.model.chain(node);
    if (chain.length < 2) return null;
    const items = chain.slice(1).map(follower => make("li", {}, this.link(follower), make("span", { class: "quiet" }, ` ${this.model.text("op", follower)} · ${this.model.text("precision", follower)}`), make("div", { class: "quiet" }, this.model.text("reason", follower))));
    return [make("h3", {}, "It follows"), make("ol", { class: "chain" }, items)];
  }

  difference(node) {
    const entry = this.model.data.differences?.nodes.find(other => other.node === node);
    if (!entry) return null;
    const texts = this.model.texts;
    return [make("h3", {}, "Under the other list"), this.facts([["list", texts[entry.list]], ["precision", texts[entry.precision]], ["rule", texts[entry.rule]], ["reason", texts[entry.reason]]])];
  }

  checkOf(node) {
    const result = this.results.get(node);
    if (!result) return null;
    const parts = [make("h3", {}, "In the check")];
    for (const finding of result.findings) {
      const kind = this.kinds[finding.kind];
      parts.push(make("p", {}, make("span", { class: `tag ${kind?.severity ?? "note"}` }, finding.kind), finding.first ? " first offender: overflow starts here" : "", make("span", { class: "quiet" }, kind ? ` ${kind.text}` : "")));
      parts.push(this.facts([
        [finding.is_input ? "converted input" : "output", finding.tensor], [finding.is_input ? "before its conversion" : "float32", `up to ${formatNumber(finding.reference)}`], ["mixed", `up to ${formatNumber(finding.mixed)}`],
        ["batches", String(finding.batches)], ["low by", finding.source], ["keep it high", finding.suggestion],
      ]));
    }
    if (result.error) parts.push(this.facts([["adds an error of", `${formatNumber(result.error.error)} (normalized)`], ["keep it high", result.findings.some(finding => finding.suggestion === result.error.suggestion) ? "" : result.error.suggestion]]));
    for (const range of result.ranges) parts.push(this.facts([["range", [make("span", { class: "name" }, this.model.data.tensors.name[range.tensor]), `: up to ${formatNumber(range.reference)} in float32, ${formatNumber(range.mixed)} in the mixed model`]]]));
    return parts;
  }

  tensor(tensor) {
    const shape = this.model.tensorShape(tensor);
    return [make("span", { class: "name" }, this.model.data.tensors.name[tensor]), ` ${this.model.tensorType(tensor)} ${shape || "shape unknown"}`];
  }

  inputs(node) {
    const { model } = this, edges = model.incoming[node];
    if (!edges.length) return null;
    const items = edges.map(edge => {
      const tensor = model.data.edges.tensor[edge], producer = model.producer(edge), cast = model.data.edges.cast[edge];
      const read = cast ? make("span", { class: "tag cast" }, `${cast === NEW_CAST ? "Cast" : "converted"} to ${model.readType(edge)}`) : null;
      const origin = producer >= 0 ? ["from ", this.link(producer), model.isBodyInput(tensor) ? ", an input of its body" : ""] : ["a constant"];
      return make("li", {}, this.tensor(tensor), " ", read, make("div", { class: "quiet" }, ...origin));
    });
    return [make("h3", {}, `Reads ${plural(edges.length, "tensor")}`), make("ul", {}, items)];
  }

  outputsOf(node) {
    const { model } = this, shown = 12;
    const items = model.outputs[node].map(tensor => {
      const edges = model.outgoing[node].filter(edge => model.data.edges.tensor[edge] === tensor);
      const readers = edges.slice(0, shown).flatMap((edge, k) => [k ? ", " : "read by ", this.link(model.reader(edge)), model.isCast(edge) ? make("span", { class: "tag cast" }, `as ${model.readType(edge)}`) : null]);
      return make("li", {}, this.tensor(tensor), make("div", { class: "quiet" }, readers.length ? readers : "read by no node", edges.length > shown ? ` and ${edges.length - shown} more` : ""));
    });
    return items.length ? [make("h3", {}, "Makes"), make("ul", {}, items)] : null;
  }

  // --- group, edge, model ---

  group(group) {
    const { model, actions } = this, open = actions.isOpen(group);
    this.show(
      make("h2", { class: "name" }, model.label(memberOf(group))), this.path(memberOf(group)),
      make("p", {}, make("button", { type: "button", id: "toggle-group", onclick: () => actions.toggle(group) }, open ? "Fold" : "Unfold")),
      this.summary(model.nodesUnder(group).filter(node => !model.isTerminal(node)), model.casts[group]),
    );
  }

  edge(edge) {
    const { model } = this, shown = 100;
    const items = edge.edges.slice(0, shown).map(number => make("li", {}, this.tensor(model.data.edges.tensor[number]), " ", model.isCast(number) ? make("span", { class: "tag cast" }, `Cast to ${model.readType(number)}`) : null, make("div", { class: "quiet" }, "from ", this.link(model.producer(number)), " to ", this.link(model.reader(number)))));
    this.show(make("h2", {}, plural(edge.tensors, "tensor")), make("p", { class: "quiet" }, edge.casts ? `${plural(edge.casts, "Cast")} would be inserted here.` : "No Cast would be inserted here."), make("ul", {}, items), edge.edges.length > shown ? make("p", { class: "quiet" }, `and ${edge.edges.length - shown} more`) : null);
  }

  // Return counts by precision, list and operator, and the worst findings, of some nodes.
  summary(nodes, casts) {
    const { model } = this;
    const count = column => {
      const counts = new Map();
      for (const node of nodes) counts.set(model.text(column, node), (counts.get(model.text(column, node)) ?? 0) + 1);
      return [...counts].sort((a, b) => b[1] - a[1]);
    };
    const listed = (column, most = 99) => { const all = count(column); return all.slice(0, most).map(([name, number]) => `${number} ${name}`).join(", ") + (all.length > most ? ` and ${all.length - most} more` : ""); };
    const findings = nodes.flatMap(node => this.results.get(node)?.findings ?? []);
    const rank = finding => SEVERITIES.indexOf(this.kinds[finding.kind]?.severity) * 2 + !finding.first;
    findings.sort((a, b) => rank(a) - rank(b));
    const items = findings.slice(0, 20).map(finding => make("li", {}, make("span", { class: `tag ${this.kinds[finding.kind]?.severity ?? "note"}` }, finding.kind), " ", this.link(finding.node), finding.first ? make("span", { class: "quiet" }, " first offender") : null));
    return [
      this.facts([["nodes", String(nodes.length)], ["precision", listed("precision")], ["list", listed("list")], ["rule", listed("rule", 6)], ["operators", listed("op", 8)], ["new Casts", String(casts)]]),
      findings.length ? [make("h3", {}, `Findings of the check (${findings.length})`), make("ul", { class: "findings" }, items), findings.length > 20 ? make("p", { class: "quiet" }, `and ${findings.length - 20} more: step through them above`) : null].flat() : null,
    ].flat();
  }

  wholeModel() {
    const { model } = this, { check, differences } = model.data;
    const nodes = Array.from({ length: model.nodeCount }, (_, node) => node);
    const counts = differences && Object.entries(differences.counts).map(([name, number]) => `${number} ${name}`).join(", ");
    this.show(
      make("h2", {}, "The whole model"), this.summary(nodes, model.castTotal),
      differences ? [make("h3", {}, "Under the other list"), this.facts([["differ", plural(differences.nodes.length, "node")], ["precision", counts], ["new Casts", String(differences.casts)]])] : null,
      check ? [make("h3", {}, "The check"), this.facts([["verdict", check.verdict], ["because", check.reasons.join("; ")], ...check.outputs.map(output => [output.name, `${output.passed ? "passes" : "does not pass"}, normalized error ${formatNumber(output.error)}`])]), check.warnings.map(warning => make("p", { class: "tag warning wraps" }, warning))].flat() : null,
      make("h3", {}, "How to use this page"),
      make("p", { class: "quiet" }, "A box is filled with the colors of its nodes, in proportion. Click a box or an edge for its details. + unfolds a group, − folds it; a double click does the same. Drag to move, turn the wheel or pinch to zoom. A click on a color of the legend hides its nodes. The address has the chosen node."),
      make("p", { class: "quiet" }, "Keys: / search, n and p next and previous, arrows move the graph, + − 0 zoom, Enter unfolds, Esc clears the selection. Amber edges get a Cast. A short arrow at a box leads into or out of its group. Constant nodes are not drawn; the tree has them."),
    );
  }
}
