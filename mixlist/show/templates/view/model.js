// Read the data of the page (mixlist/show/graph_page.py): groups, nodes, tensors and edges in columns.
//
// A *member* of a group is one number: a node i is i, and a group g is -1 - g. So a member is a group if it is negative.
// Group 0 is the top of the tree. `Constant` nodes are not drawn: they are in the tree and in the details of their readers.

const isGroup = member => member < 0;
const groupOf = member => -1 - member;
const memberOf = group => -1 - group;
const NEW_CAST = 1;

class Model {
  constructor(data) {
    this.data = data;
    this.texts = data.texts;
    this.nodeCount = data.node_count;
    this.parent = data.groups.parent;
    this.members = this.parent.map(() => []);
    this.size = this.parent.map(() => 0);
    this.incoming = data.nodes.name.map(() => []);
    this.outgoing = data.nodes.name.map(() => []);
    this.outputs = data.nodes.name.map(() => []);
    data.nodes.group.forEach((group, node) => {
      this.members[group].push(node);
      if (node < this.nodeCount) for (let g = group; g >= 0; g = this.parent[g]) this.size[g]++;
    });
    this.parent.forEach((parent, group) => { if (parent >= 0) this.members[parent].push(memberOf(group)); });
    // The data have the inputs and outputs of the model last. The inputs come first.
    const isInput = member => (isGroup(member) ? data.groups.kind[groupOf(member)] === "terminals" && data.groups.label[groupOf(member)] === "inputs" : member >= this.nodeCount && member < this.nodeCount + data.input_count);
    const order = member => (isGroup(member) ? data.groups.order[groupOf(member)] : data.nodes.order[member]) - (isInput(member) ? 1e9 : 0);
    for (const members of this.members) members.sort((a, b) => order(a) - order(b));
    data.tensors.producer.forEach((node, tensor) => { if (node >= 0 && !this.isBodyInput(tensor)) this.outputs[node].push(tensor); });
    data.edges.tensor.forEach((tensor, edge) => {
      this.incoming[data.edges.node[edge]].push(edge);
      const producer = data.tensors.producer[tensor];
      if (producer >= 0) this.outgoing[producer].push(edge);
    });
    this.casts = this.countCasts();
    this.highSize = this.countByGroup(node => node < this.nodeCount && this.text("precision", node) === "float32");
    this.filter(null);
  }

  text(column, node) { return this.texts[this.data.nodes[column][node]]; }
  name(node) { return this.data.nodes.name[node]; }
  isTerminal(node) { return node >= this.nodeCount; }
  isConstant(node) { return this.text("op", node) === "Constant"; }
  isDrawn(member) { return isGroup(member) ? this.drawnSize[groupOf(member)] > 0 : !this.isConstant(member) && this.isShown(member); }
  // A filter hides a node in the graph and in the tree.
  isShown(member) { return isGroup(member) ? this.shownSize[groupOf(member)] > 0 : !this.filtered || this.filtered(member); }
  shownMembers(group) { return this.filtered ? this.members[group].filter(member => this.isShown(member)) : this.members[group]; }

  // Show only the nodes for which `filtered(node)` is true; all nodes if it is null.
  filter(filtered) {
    this.filtered = filtered;
    this.drawnSize = this.countByGroup(node => this.isDrawn(node));
    this.shownSize = this.countByGroup(node => this.isShown(node));
    this.shownNodes = this.countByGroup(node => node < this.nodeCount && this.isShown(node));
  }

  // Return, for each group, the number of nodes in it for which `counts(node)` is true.
  countByGroup(counts) {
    const sizes = this.parent.map(() => 0);
    this.data.nodes.group.forEach((group, node) => { if (counts(node)) for (let g = group; g >= 0; g = this.parent[g]) sizes[g]++; });
    return sizes;
  }
  producer(edge) { return this.data.tensors.producer[this.data.edges.tensor[edge]]; }
  // A Loop or Scan gives its body this tensor: the data have the Loop or Scan as the producer.
  isBodyInput(tensor) { return this.data.tensors.body_input[tensor] === 1; }
  reader(edge) { return this.data.edges.node[edge]; }
  tensorType(tensor) { return this.texts[this.data.tensors.type[tensor]]; }
  tensorShape(tensor) { return this.texts[this.data.tensors.shape[tensor]]; }
  readType(edge) { return this.texts[this.data.edges.type[edge]]; }
  isCast(edge) { return this.data.edges.cast[edge] === NEW_CAST; }
  // A Cast is one tensor in one type, however many nodes read it.
  castKey(edge) { return this.data.edges.tensor[edge] * this.texts.length + this.data.edges.type[edge]; }

  parentOf(member) { return isGroup(member) ? this.parent[groupOf(member)] : this.data.nodes.group[member]; }

  label(member) {
    if (isGroup(member)) return this.data.groups.label[groupOf(member)];
    const name = this.name(member);
    return name.slice(this.data.nodes.label_offset[member]).replace(/^[/.]+/, "") || name;
  }

  // Return the groups around a member, the outermost first, without the top of the tree.
  ancestors(member) {
    const groups = [];
    for (let g = this.parentOf(member); g > 0; g = this.parent[g]) groups.unshift(g);
    return groups;
  }

  // Return the member of `group` that holds a node, or null if the node is not in the group.
  memberUnder(node, group) {
    let member = node, parent = this.data.nodes.group[node];
    while (parent !== group) {
      if (parent < 0) return null;
      member = memberOf(parent);
      parent = this.parent[parent];
    }
    return member;
  }

  // Return the nodes in a group and in the groups below it, terminals included.
  nodesUnder(group) {
    const nodes = [], pending = [group];
    while (pending.length) for (const member of this.members[pending.pop()]) isGroup(member) ? pending.push(groupOf(member)) : nodes.push(member);
    return nodes;
  }

  // Return the number of Casts that apply would insert, per group: a Cast belongs to the node that makes its input,
  // or to the reader if no node of the same body makes it.
  countCasts() {
    const casts = this.parent.map(() => 0), seen = new Set();
    this.data.edges.tensor.forEach((tensor, edge) => {
      if (!this.isCast(edge) || seen.has(this.castKey(edge))) return;
      seen.add(this.castKey(edge));
      const node = this.producer(edge) >= 0 && !this.isBodyInput(tensor) ? this.producer(edge) : this.reader(edge);
      for (let g = this.data.nodes.group[node]; g >= 0; g = this.parent[g]) casts[g]++;
    });
    this.castTotal = seen.size;
    return casts;
  }

  // Return the nodes from `node` to the one that decided its precision.
  chain(node) {
    const chain = [node], visited = new Set(chain), { follows, decider } = this.data.nodes;
    for (let last = node; follows[last] >= 0 && last !== decider[node] && !visited.has(follows[last]); ) {
      last = follows[last];
      chain.push(last);
      visited.add(last);
    }
    return chain;
  }
}
