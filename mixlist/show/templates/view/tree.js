// Show the groups and nodes as a tree with the same folding as the graph, for the keyboard and for screen readers
// (ARIA authoring practices: tree view).

class Tree {
  // `actions`: select(target), toggle(group), isOpen(group).
  constructor(box, model, actions) {
    Object.assign(this, { box, model, actions, current: null, rows: [] });
    box.addEventListener("keydown", event => this.key(event));
    box.addEventListener("click", event => {
      const row = event.target.closest("[role=treeitem]");
      if (!row) return;
      const member = Number(row.dataset.member);
      this.current = member;
      if (event.target.closest(".sign")) this.actions.toggle(groupOf(member));
      else this.actions.select({ member }, true);
    });
  }

  // Show all members of unfolded groups. `swatch(node)` returns the CSS variable of a node's color.
  show(selected, swatch) {
    const { model, actions } = this, rows = [];
    const hadFocus = this.box.contains(document.activeElement);
    const add = (group, level) => {
      const members = model.shownMembers(group);
      members.forEach((member, index) => {
        rows.push({ member, level, index, siblings: members.length });
        if (isGroup(member) && actions.isOpen(groupOf(member))) add(groupOf(member), level + 1);
      });
    };
    add(0, 1);
    this.rows = rows;
    if (!rows.some(row => row.member === this.current)) this.current = rows.some(row => row.member === selected) ? selected : rows[0]?.member ?? null;
    const fragment = document.createDocumentFragment();
    for (const row of rows) fragment.append(this.row(row, selected, swatch));
    this.box.replaceChildren(fragment);
    if (hadFocus) this.focus(this.current);
  }

  row({ member, level, index, siblings }, selected, swatch) {
    const { model, actions } = this, group = isGroup(member), open = group && actions.isOpen(groupOf(member));
    const texts = group
      ? [make("span", { class: "sign", "aria-hidden": "true" }, open ? "−" : "+"), make("b", {}, shorten(model.label(member), 60)), make("span", { class: "quiet" }, ` ${model.data.groups.kind[groupOf(member)] === "terminals" ? "" : countNodes(model, groupOf(member))}`)]
      : [make("i", { class: "swatch", style: `background: var(${swatch(member)})` }), make("span", {}, shorten(model.label(member), 60)), make("span", { class: "quiet" }, ` ${subtitle(model, member)}`)];
    return make("div", {
      role: "treeitem", "data-member": member, "aria-level": level, "aria-posinset": index + 1, "aria-setsize": siblings,
      "aria-expanded": group ? String(open) : null, "aria-selected": String(member === selected), tabindex: member === this.current ? 0 : -1,
      style: `padding-left: ${0.4 + 0.9 * (level - 1)}rem`, title: group ? model.label(member) : model.name(member),
    }, texts);
  }

  // Mark the row of a member as selected, without drawing the rows again.
  select(member) {
    this.box.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    this.element(member)?.setAttribute("aria-selected", "true");
  }

  element(member) { return this.box.querySelector(`[data-member="${member}"]`); }

  focus(member) {
    const before = this.element(this.current), after = this.element(member);
    if (before) before.tabIndex = -1;
    if (!after) return;
    this.current = member;
    after.tabIndex = 0;
    after.focus({ preventScroll: true });
    after.scrollIntoView({ block: "nearest" });
  }

  // Scroll the tree, not the page, to a row.
  reveal(member) {
    const row = this.element(member);
    if (row) this.box.scrollTop = Math.max(0, row.offsetTop - this.box.offsetTop - this.box.clientHeight / 2);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const index = this.rows.findIndex(row => row.member === this.current), member = this.current;
    if (index < 0) return;
    const group = isGroup(member), open = group && this.actions.isOpen(groupOf(member));
    const parent = this.model.parentOf(member);
    const go = target => { if (this.rows[target]) this.focus(this.rows[target].member); };
    if (event.key === "ArrowDown") go(index + 1);
    else if (event.key === "ArrowUp") go(index - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(this.rows.length - 1);
    else if (event.key === "ArrowRight" && group) open ? go(index + 1) : this.actions.toggle(groupOf(member));
    else if (event.key === "ArrowLeft") {
      if (open) this.actions.toggle(groupOf(member));
      else if (parent > 0) this.focus(memberOf(parent));
    } else if (event.key === "Enter" || event.key === " ") this.actions.select({ member }, true, true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
