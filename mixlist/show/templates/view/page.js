// Connect the parts of the page: which groups are unfolded, what is selected, search, colors, and stepping through nodes.

// A filter that leaves at most MAX_UNFOLDED nodes unfolds the groups around them. A narrow window opens without the
// tree. MAX_FIRST counts the frame of an unfolded group, too.
const MAX_VISIBLE = 2000, MAX_RESULTS = 200, MAX_UNFOLDED = 60, MAX_FIRST = 31, FEW = 8, WIDE = 1600, STACKED = 720;

const get = id => document.getElementById(id);

class Page {
  constructor() {
    const data = JSON.parse(get("data").textContent);
    this.model = new Model(data.graph);
    this.kinds = data.kinds;
    const severities = Object.fromEntries(Object.entries(data.kinds).map(([kind, { severity }]) => [kind, severity]));
    this.results = checkByNode(this.model, severities);
    this.modes = colorModes(this.model, this.results);
    this.open = new Set();
    this.selected = null;
    const actions = { select: (...a) => this.select(...a), toggle: group => this.toggle(group), isOpen: group => this.open.has(group) };
    this.drawing = new Drawing(get("graph"), this.model, actions);
    this.drawing.results = this.results;
    this.drawing.groupSeverity = this.worstByGroup();
    // A narrow window shows one column, in which names are whole.
    const aspect = () => (this.drawing.isNarrow() ? 0 : get("graph").clientWidth / Math.max(1, get("graph").clientHeight));
    this.layout = new Layout(this.model, text => this.drawing.measure(text), actions.isOpen, aspect);
    this.details = new Details(get("details"), this.model, this.results, this.kinds, actions);
    this.tree = new Tree(get("tree"), this.model, actions);
    this.openSingleGroups();
    this.hidden = new Set();
    this.address = new Address(this.model);
    this.setUpPanels();
    this.setUpControls();
    this.setMode(data.color || (this.model.data.differences ? "difference" : [...this.results.values()].some(result => result.severity < 2) ? "finding" : "precision"));
    this.details.wholeModel();
  }

  // The layout comes after the first paint, which shows everything but the graph.
  start() {
    this.refresh();
    this.drawing.fit();
    this.showAddress();
    addEventListener("hashchange", () => this.showAddress());
    this.drawing.draw();
    performance.mark("graph-drawn");
  }

  // --- folding ---

  visibleCount(extra) {
    const isOpen = group => group === 0 || this.open.has(group) || extra?.has(group);
    let count = 0;
    const pending = [0];
    while (pending.length) {
      for (const member of this.model.shownMembers(pending.pop())) {
        count++;
        if (isGroup(member) && isOpen(groupOf(member))) pending.push(groupOf(member));
      }
    }
    return count;
  }

  // A model whose nodes are almost all in one group opens with this group unfolded, and so do the groups in it.
  openSingleGroups() {
    const { model } = this;
    for (let group = 0; ; ) {
      const largest = model.members[group].filter(isGroup).map(groupOf).sort((a, b) => model.drawnSize[b] - model.drawnSize[a])[0];
      if (largest === undefined || model.drawnSize[largest] < 0.8 * model.drawnSize[group]) return;
      // The label of a part says what it holds. Among few boxes it is unfolded, too.
      if (model.data.groups.kind[largest] === "part" && model.members[group].length > FEW) return;
      if (this.visibleCount(new Set([largest])) > MAX_FIRST) return;
      group = largest;
      this.open.add(group);
    }
  }

  // Unfold groups; return false, and say why, if too much would be visible.
  unfold(groups) {
    const count = this.visibleCount(new Set(groups));
    if (count > MAX_VISIBLE) {
      this.say(`This would show ${count} boxes; the page draws at most ${MAX_VISIBLE}. Fold other groups first.`);
      return false;
    }
    for (const group of groups) this.open.add(group);
    return true;
  }

  toggle(group) {
    if (this.open.has(group)) this.open.delete(group);
    else if (!this.unfold([group])) return;
    this.tree.current = memberOf(group);
    this.refresh(memberOf(group));
    if (this.selected !== memberOf(group)) return;
    const hadFocus = document.activeElement?.id === "toggle-group";
    this.details.group(group);
    if (hadFocus) get("toggle-group").focus();
  }

  unfoldAll() {
    const groups = this.model.parent.map((_, group) => group).filter(group => group > 0);
    if (this.unfold(groups)) { this.refresh(); this.drawing.overview(); }
  }

  foldAll() { this.open.clear(); this.openSingleGroups(); this.refresh(); this.drawing.fit(); }

  refresh(anchor) {
    this.drawing.show(this.layout.scene(), anchor);
    this.showTree();
  }

  showTree() {
    this.tree.show(this.selected, node => (this.model.isTerminal(node) ? "--line" : this.mode.categories[this.mode.of(node)].color));
  }

  // --- selection ---

  // Select {member}, {edge} or null. `center`: unfold the groups around it, and move the graph to it.
  select(target, center = false, keepFocus = false) {
    const { drawing, model } = this, member = target?.member ?? null;
    this.selected = member;
    Object.assign(drawing.state, { selected: member, chain: new Set(), edges: new Set(), edge: target?.edge ?? null });
    if (member !== null && !isGroup(member)) {
      drawing.state.chain = new Set(model.chain(member).slice(1));
      drawing.state.edges = new Set([...model.incoming[member], ...model.outgoing[member]]);
    }
    if (center && member !== null) this.reveal(member);
    else this.tree.select(member);
    if (target?.edge) this.details.edge(target.edge);
    else if (member === null) this.details.wholeModel();
    else isGroup(member) ? this.details.group(groupOf(member)) : this.details.node(member);
    this.chart?.draw(member);
    this.address.setNode(member !== null && !isGroup(member) ? member : null);
    drawing.request();
    if (keepFocus) this.tree.focus(member);
  }

  reveal(member) {
    if (!this.model.isShown(member)) {
      this.say("A filter hides this node.");
      return;
    }
    const folded = this.model.ancestors(member).filter(group => !this.open.has(group));
    // If the groups around it do not fit, fold all others.
    if (folded.length && this.visibleCount(new Set(folded)) > MAX_VISIBLE) this.open.clear();
    for (const group of this.model.ancestors(member)) this.open.add(group);
    if (folded.length) this.refresh();
    else this.tree.select(member);
    this.drawing.center(member);
    this.tree.reveal(member);
  }

  say(sentence) { get("status").textContent = sentence; }

  // --- panels and address ---

  setUpPanels() {
    const isStacked = innerWidth <= STACKED;
    for (const [panel, isOpen] of [["side", isStacked || innerWidth >= WIDE], ["details", true]]) {
      this.showPanel(panel, this.address.panel(panel) ?? isOpen);
      get(`toggle-${panel}`).addEventListener("click", () => {
        const open = get(panel).hidden;
        this.showPanel(panel, open);
        this.address.setPanel(panel, open);
      });
    }
  }

  showPanel(panel, isOpen) {
    get(panel).hidden = !isOpen;
    get("panes").classList.toggle(`without-${panel}`, !isOpen);
    get(`toggle-${panel}`).setAttribute("aria-expanded", String(isOpen));
  }

  // Show the node that the address names: after a reload, and on the way back.
  showAddress() {
    const node = this.address.readNode();
    if (node !== null && node !== this.selected) this.select({ member: node }, true);
    else if (node === null && this.selected !== null && !isGroup(this.selected)) this.select(null);
  }

  // --- filters ---

  // Hide what the filters hide: the nodes of some categories, and with "only these" all nodes that the search did not find.
  applyFilters() {
    const { model, mode, hidden, drawing } = this, { matches, matchCounts } = drawing.state;
    const only = get("only").checked && matchCounts !== null, wasFiltered = model.filtered !== null;
    const isShown = node => (model.isTerminal(node) ? !only : !hidden.has(mode.of(node)) && (!only || matches.has(node)));
    if (!only && !hidden.size && !wasFiltered) return;
    if (!wasFiltered) this.openBefore = new Set(this.open);
    model.filter(only || hidden.size ? isShown : null);
    this.open = new Set(this.openBefore);
    if (model.filtered && model.shownNodes[0] <= MAX_UNFOLDED) model.parent.forEach((_, group) => { if (group && model.drawnSize[group]) this.open.add(group); });
    this.layout.forget();
    drawing.state.counts = countCategories(model, mode);
    get("filter-count").textContent = model.filtered ? `${model.shownNodes[0]} of ${model.nodeCount} shown` : "";
    this.showLegend();
    this.refresh();
    drawing.fit();
  }

  toggleCategory(category) {
    if (!this.hidden.delete(category)) this.hidden.add(category);
    this.applyFilters();
    get("legend").querySelectorAll("button")[category].focus();
  }

  // --- colors ---

  setMode(name) {
    this.mode = this.modes[name];
    get("color").value = name;
    this.hidden.clear();
    this.applyFilters();
    Object.assign(this.drawing.state, { mode: this.mode, counts: countCategories(this.model, this.mode) });
    this.totals = this.mode.categories.map(() => 0);
    for (let node = 0; node < this.model.nodeCount; node++) this.totals[this.mode.of(node)]++;
    this.showLegend();
    this.setUpChart(name);
    this.drawing.request();
    if (this.drawing.scene) this.showTree();
  }

  // Each category is a button that hides its nodes, or shows them again.
  showLegend() {
    const keys = this.mode.categories.map((category, k) => make(
      "button", { type: "button", class: "key", "aria-pressed": String(!this.hidden.has(k)), title: this.hidden.has(k) ? "Show these nodes" : "Hide these nodes", onclick: () => this.toggleCategory(k) },
      make("i", { class: category.strong ? "strong" : "pale", style: `--key: var(${category.color})` }), `${category.name} ${this.totals[k]}`));
    get("legend").replaceChildren(...keys, make("span", { class: "key" }, make("i", { class: "cast-key" }), plural(this.model.castTotal, "new Cast")));
  }

  worstByGroup() {
    const worst = this.model.parent.map(() => 9);
    for (const [node, { severity = 9 }] of this.results) {
      for (let g = this.model.data.nodes.group[node]; g >= 0; g = this.model.parent[g]) worst[g] = Math.min(worst[g], severity);
    }
    return worst;
  }

  setUpChart(name) {
    const chartMode = name === "range" ? this.modes.range : this.modes.error ?? this.modes.range;
    get("chart-box").hidden = !chartMode;
    if (!chartMode || this.chart?.mode === chartMode) return;
    get("chart").replaceWith(make("canvas", { id: "chart", "aria-label": "Chart of the values along the network. Stepping through the largest errors shows the same." }));
    const isError = chartMode.name === "error", limit = isError ? 0 : LARGEST[this.model.data.low];
    get("chart-title").textContent = isError ? "Error that each node adds, along the network" : `Largest magnitudes in float32; the line is the limit of ${this.model.data.low}`;
    this.chart = new NetworkChart(get("chart"), get("chart-caption"), this.drawing, chartPoints(this.model, this.results, chartMode), limit, node => this.select({ member: node }, true));
    this.chart.mode = chartMode;
    this.chart.draw(this.selected);
  }

  // --- search and stepping ---

  // Return the nodes that contain every word. `op:Conv` looks in one column, any other word in all of them.
  find(query) {
    const { model } = this, columns = ["name", "op", "list", "rule", "precision"];
    this.searchTexts ??= Array.from({ length: model.nodeCount }, (_, node) => Object.fromEntries(columns.map(column => [column, (column === "name" ? model.name(node) : model.text(column, node)).toLowerCase()])));
    this.joinedTexts ??= this.searchTexts.map(texts => columns.map(column => texts[column]).join(" "));
    const words = query.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
      const [column, rest] = word.split(/:(.*)/s);
      return columns.includes(column) && rest ? { column, word: rest } : { word };
    });
    if (!words.length) return [];
    const matches = [];
    for (let node = 0; node < model.nodeCount; node++) {
      if (words.every(({ column, word }) => (column ? this.searchTexts[node][column] : this.joinedTexts[node]).includes(word))) matches.push(node);
    }
    return matches;
  }

  search() {
    const query = get("search").value.trim(), matches = this.find(query), { model, drawing } = this;
    const counts = model.parent.map(() => 0);
    for (const node of matches) for (let g = model.data.nodes.group[node]; g >= 0; g = model.parent[g]) counts[g]++;
    Object.assign(drawing.state, { matches: new Set(matches), matchCounts: query ? counts : null });
    get("results").hidden = !query;
    get("result-count").textContent = `${matches.length} of ${model.nodeCount} nodes`;
    get("result-list").replaceChildren(...matches.slice(0, MAX_RESULTS).map(node => make("li", {}, this.details.link(node), make("span", { class: "quiet" }, ` ${subtitle(model, node)}`))));
    get("result-more").textContent = matches.length > MAX_RESULTS ? `and ${matches.length - MAX_RESULTS} more: add a word to the search` : "";
    if (query) this.setSteps("search", matches);
    else if (this.steps.name === "search") this.setSteps(get("steps").options[1]?.value ?? "search");
    if (get("only").checked) this.applyFilters();
    drawing.request();
  }

  // Return the lists of nodes that the page can step through, by name.
  stepLists() {
    const { model, results } = this, byNode = (filter, order) => { const nodes = [...results.keys()].filter(node => filter(results.get(node))); return order ? nodes.sort(order) : nodes.sort((a, b) => a - b); };
    const error = node => { const value = toNumber(results.get(node).error.error); return Number.isNaN(value) ? Infinity : value; };
    const readers = new Set(model.data.edges.node.filter((_, edge) => model.isCast(edge)));
    const all = Array.from({ length: model.nodeCount }, (_, node) => node);
    return {
      differences: model.data.differences?.nodes.map(entry => entry.node) ?? [],
      "first offenders": byNode(result => result.first),
      findings: byNode(result => result.findings.length && result.severity < 2),
      "largest errors": byNode(result => result.error, (a, b) => error(b) - error(a)),
      "readers of Casts": [...readers].sort((a, b) => a - b),
      "changed nodes": all.filter(node => model.data.nodes.changed[node]),
      "float32 nodes": all.filter(node => model.text("precision", node) === "float32"),
    };
  }

  setSteps(name, nodes = this.lists[name] ?? []) {
    this.steps = { name, nodes, at: -1 };
    get("steps").value = name;
    this.showStep();
  }

  step(by) {
    const { nodes } = this.steps;
    if (!nodes.length) return;
    this.steps.at = this.steps.at < 0 && by < 0 ? nodes.length - 1 : (this.steps.at + by + nodes.length) % nodes.length;
    this.showStep();
    this.select({ member: nodes[this.steps.at] }, true);
  }

  showStep() {
    const { nodes, at } = this.steps;
    get("step-count").textContent = nodes.length ? `${at < 0 ? "–" : at + 1} of ${nodes.length}` : "none";
    for (const id of ["previous", "next"]) get(id).disabled = !nodes.length;
  }

  setUpControls() {
    const option = (value, text = value) => make("option", { value }, text);
    get("color").append(...Object.keys(this.modes).map(name => option(name)));
    get("color").addEventListener("change", () => this.setMode(get("color").value));
    this.lists = this.stepLists();
    const names = Object.keys(this.lists).filter(name => this.lists[name].length);
    get("steps").append(option("search", "search results"), ...names.map(name => option(name, `${name} (${this.lists[name].length})`)));
    get("steps").addEventListener("change", () => (get("steps").value === "search" ? this.setSteps("search", [...this.drawing.state.matches]) : this.setSteps(get("steps").value)));
    this.setSteps(names[0] ?? "search");
    get("only").addEventListener("change", () => this.applyFilters());
    let timer;
    get("search").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => this.search(), 60); });
    get("search").addEventListener("keydown", event => { if (event.key === "Enter") { clearTimeout(timer); if (this.steps.name !== "search" || !this.steps.nodes.length) this.search(); this.step(event.shiftKey ? -1 : 1); } });
    const clicks = { previous: () => this.step(-1), next: () => this.step(1), "zoom-in": () => this.drawing.zoom(1.3), "zoom-out": () => this.drawing.zoom(1 / 1.3), fit: () => this.drawing.overview(), "unfold-all": () => this.unfoldAll(), "fold-all": () => this.foldAll() };
    for (const [id, action] of Object.entries(clicks)) get(id).addEventListener("click", () => { this.say(""); action(); });
    document.addEventListener("keydown", event => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.drawing.readColors(); this.chart?.draw(); });
  }

  key(event) {
    if (event.key === "Escape") {
      if (get("search").value) { get("search").value = ""; this.search(); }
      this.say("");
      this.select(null);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (event.key === "/") { event.preventDefault(); get("search").focus(); }
    else if (event.key === "n") this.step(1);
    else if (event.key === "p") this.step(-1);
  }
}

const view = new Page();
requestAnimationFrame(() => setTimeout(() => view.start()));
