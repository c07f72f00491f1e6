// Keep the chosen node and the folded panels in the part of the address behind "#", so that a reload, a bookmark and the way
// back show them again: #node=/model/layers.0/MatMul&side=0. A node of a body has its scope, too.

class Address {
  constructor(model) {
    this.model = model;
    this.numbers = new Map();
    for (let node = model.data.nodes.name.length - 1; node >= 0; node--) this.numbers.set(this.key(model.text("scope", node), model.name(node), model.isTerminal(node)), node);
  }

  // Nodes, inputs and outputs can share a name.
  key(scope, name, isTerminal) { return JSON.stringify([scope, name, isTerminal]); }

  read() { return new URLSearchParams(location.hash.slice(1)); }

  // Return the node that the address names, or null. A node whose name is not unique has its number.
  readNode() {
    const fields = this.read(), number = fields.get("number");
    if (number !== null && Number(number) in this.model.data.nodes.name) return Number(number);
    const isTerminal = fields.has("terminal"), name = fields.get("terminal") ?? fields.get("node");
    return this.numbers.get(this.key(fields.get("scope") ?? "", name, isTerminal)) ?? null;
  }

  setNode(node) {
    if (node === this.readNode()) return;
    const fields = this.read(), { model } = this;
    for (const name of ["node", "scope", "terminal", "number"]) fields.delete(name);
    if (node !== null) {
      const scope = model.text("scope", node), name = model.name(node), isTerminal = model.isTerminal(node);
      if (this.numbers.get(this.key(scope, name, isTerminal)) !== node) fields.set("number", node);
      else fields.set(isTerminal ? "terminal" : "node", name);
      if (scope && !fields.has("number")) fields.set("scope", scope);
    }
    location.hash = fields; // a new entry of the history
  }

  // Return whether the address says that a panel is open; null if it says nothing.
  panel(name) { return { 0: false, 1: true }[this.read().get(name)] ?? null; }

  setPanel(name, isOpen) {
    const fields = this.read();
    fields.set(name, isOpen ? 1 : 0);
    // Not `#...` alone: in the frame of a report, this is relative to the report.
    const address = new URL(location.href);
    address.hash = fields;
    location.replace(address);
  }
}
