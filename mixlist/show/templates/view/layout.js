// Place the boxes of all groups that are unfolded. dagre lays out one group at a time: its members are boxes, an unfolded
// member is a large box. So a layout has few boxes (scope_tree.py), and is computed again only when the size of a member
// has changed. A long layout is broken into columns, so that it fills the window. Edges that cross the border of a group go through its inlet or outlet, a small dot. If there
// are many of them, each is a stub, a short arrow at its box: long edges take most of the time, and hide the others.

const INLET = "in", OUTLET = "out";
const ROOM = 2, NODE_HEIGHT = 42, GROUP_HEIGHT = 46, COLUMN_GAP = 56, MAX_COLUMNS = 8, LEAST_BROKEN = 640, HEAD_HEIGHT = 30, PADDING = 14, SHELF_WIDTH = 1400, MAX_ROUTED = 5, STUB = 14;

class Layout {
  // `measure(text)` returns the width of a text in pixels. `isOpen(group)` says whether a group is unfolded. `aspect()`
  // returns the width of the window, divided by its height.
  constructor(model, measure, isOpen, aspect) {
    Object.assign(this, { model, measure, isOpen, aspect });
    this.forget();
  }

  // Forget all layouts, because other nodes are shown.
  forget() { Object.assign(this, { cache: new Map(), links: new Map() }); }

  // Return the size of a member's box. For an unfolded group this computes its layout.
  sizeOf(member) {
    if (isGroup(member) && this.isOpen(groupOf(member))) {
      const { width, height } = this.layoutOf(groupOf(member));
      return { width, height };
    }
    const label = shortenLabel(this.model, member);
    const second = this.measure(isGroup(member) ? groupSubtitle(this.model, groupOf(member)) : subtitle(this.model, member)) + 24;
    // A box has room for its label in the larger font of a small scale (writeLines).
    const width = this.measure(label) * ROOM * (isGroup(member) ? 1.12 : 1) + 14; // the label of a group is bold
    return { width: Math.max(90, width, second), height: isGroup(member) ? GROUP_HEIGHT : NODE_HEIGHT };
  }

  // Return the layout of one group; positions are relative to the upper left corner of its box.
  layoutOf(group) {
    const members = this.model.members[group].filter(member => this.model.isDrawn(member));
    const sizes = new Map(members.map(member => [member, this.sizeOf(member)]));
    const key = members.map(member => `${sizes.get(member).width}x${sizes.get(member).height}`).join();
    const cached = this.cache.get(group);
    if (cached?.key === key) return cached;
    const layout = this.compute(group, members, sizes);
    this.cache.set(group, Object.assign(layout, { key }));
    return layout;
  }

  compute(group, members, sizes) {
    const all = this.linksOf(group);
    const stubEnds = [INLET, OUTLET].filter(end => all.filter(link => link.from === end || link.to === end).length > MAX_ROUTED);
    const isStub = link => stubEnds.includes(link.from) || stubEnds.includes(link.to);
    const links = all.filter(link => !isStub(link)), linked = new Set(links.flatMap(link => [link.from, link.to]));
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 20, ranksep: 26, edgesep: 10, ranker: "tight-tree" });
    for (const end of [INLET, OUTLET]) if (linked.has(end)) graph.setNode(end, { width: 10, height: 10 });
    for (const member of members) if (linked.has(member)) graph.setNode(String(member), { ...sizes.get(member) });
    for (const link of links) {
      graph.setEdge(String(link.from), String(link.to), { width: this.measure(link.label) + 8, height: 14, labelpos: "c", weight: 1 });
    }
    if (graph.nodeCount()) dagre.layout(graph);
    const top = group === 0 ? PADDING : HEAD_HEIGHT + PADDING;
    const layout = { boxes: new Map(), dots: {}, edges: [], width: 0, height: top };
    for (const id of [INLET, OUTLET, ...members]) {
      if (!graph.hasNode(String(id))) continue;
      const { x, y, width, height } = graph.node(String(id));
      const box = { x: x - width / 2 + PADDING, y: y - height / 2 + top, width, height };
      if (id === INLET || id === OUTLET) layout.dots[id] = { x: x + PADDING, y: y + top };
      else layout.boxes.set(id, box);
      layout.width = Math.max(layout.width, box.x + width);
      layout.height = Math.max(layout.height, box.y + height);
    }
    for (const link of links) {
      const edge = graph.edge(String(link.from), String(link.to));
      const move = point => ({ x: point.x + PADDING, y: point.y + top });
      layout.edges.push({ ...link, points: edge.points.map(move), at: move(edge), labelWidth: edge.width });
      for (const point of edge.points) layout.width = Math.max(layout.width, point.x + PADDING);
      layout.width = Math.max(layout.width, edge.x + edge.width / 2 + PADDING); // its label
    }
    breakIntoColumns(layout, top, this.aspect());
    this.placeOnShelves(layout, members.filter(member => !linked.has(member)), sizes);
    for (const link of all.filter(isStub)) layout.edges.push({ ...link, label: "", ...placeStub(layout, link) });
    layout.width = Math.max(layout.width + PADDING, this.measure(this.model.label(memberOf(group))) + 84);
    layout.height += PADDING;
    return layout;
  }

  // Place members without edges in rows below the others. dagre would put all of them into one long row.
  placeOnShelves(layout, members, sizes) {
    let x = PADDING, y = layout.height + (layout.boxes.size ? 24 : 0), rowHeight = 0;
    for (const member of members) {
      const { width, height } = sizes.get(member);
      if (x > PADDING && x + width > Math.max(SHELF_WIDTH, layout.width)) [x, y, rowHeight] = [PADDING, y + rowHeight + 24, 0];
      layout.boxes.set(member, { x, y, width, height });
      layout.width = Math.max(layout.width, x + width);
      layout.height = Math.max(layout.height, y + height);
      x += width + 24;
      rowHeight = Math.max(rowHeight, height);
    }
  }

  // Return the edges between the members of a group, those between the same two members merged into one.
  linksOf(group) {
    if (this.links.has(group)) return this.links.get(group);
    const model = this.model, links = new Map();
    const add = (from, to, edge) => {
      const key = `${from}>${to}`;
      if (!links.has(key)) links.set(key, { from, to, edges: [] });
      links.get(key).edges.push(edge);
    };
    for (const node of model.nodesUnder(group)) {
      if (!model.isDrawn(node)) continue;
      const member = model.memberUnder(node, group);
      for (const edge of model.incoming[node]) {
        const producer = model.producer(edge);
        if (producer < 0 || !model.isDrawn(producer)) continue;
        const from = model.memberUnder(producer, group) ?? INLET;
        if (from !== member) add(from, member, edge);
      }
      for (const edge of model.outgoing[node]) if (model.isDrawn(model.reader(edge)) && model.memberUnder(model.reader(edge), group) === null) add(member, OUTLET, edge);
    }
    const result = [...links.values()].map(link => ({ ...link, ...describeLink(model, link) }));
    this.links.set(group, result);
    return result;
  }

  // Return the boxes and edges of everything that is visible, with positions in the whole drawing. Outer boxes come first.
  scene() {
    const scene = { boxes: [], edges: [], dots: [], byMember: new Map() };
    const place = (group, x0, y0) => {
      const layout = this.layoutOf(group), dots = new Map();
      const start = scene.edges.length;
      for (const [member, box] of layout.boxes) {
        const open = isGroup(member) && this.isOpen(groupOf(member));
        const placed = { member, open, x: x0 + box.x, y: y0 + box.y, width: box.width, height: box.height };
        scene.boxes.push(placed);
        scene.byMember.set(member, placed);
        if (open) dots.set(member, place(groupOf(member), placed.x, placed.y));
      }
      const shift = point => ({ x: x0 + point.x, y: y0 + point.y });
      const edges = layout.edges.map(edge => {
        // An edge of an unfolded group goes on to the group's inlet or outlet.
        const from = dots.get(edge.from)?.[OUTLET], to = dots.get(edge.to)?.[INLET];
        const outside = edge.points.map(shift), last = outside.length - 1;
        const leaving = from ? [from, ...alongSide(scene.byMember.get(edge.from), from, outside[0])] : [];
        const entering = to ? [to, ...alongSide(scene.byMember.get(edge.to), to, outside[last])].reverse() : [];
        const points = [...leaving, ...outside, ...entering];
        return { ...edge, points, at: shift(edge.at), box: bounds(points), toDot: !edge.isStub && (edge.to === OUTLET || Boolean(to)) };
      });
      scene.edges.splice(start, 0, ...edges);
      const own = {};
      for (const [end, point] of Object.entries(layout.dots)) scene.dots.push(own[end] = shift(point));
      return own;
    };
    place(0, 0, 0);
    const { width, height } = this.layoutOf(0);
    return Object.assign(scene, { width, height });
  }
}

// Break a layout into columns side by side, as many as make it largest in a window with this aspect. Columns are broken
// between boxes, where few edges cross. Such an edge goes around: below its column, up in the gap, and into the next column.
function breakIntoColumns(layout, top, aspect) {
  if (layout.height < LEAST_BROKEN) return;
  const boxes = [...layout.boxes.values()].sort((a, b) => a.y - b.y), height = layout.height - top, gaps = [];
  let bottom = top;
  for (const box of boxes) {
    if (box.y > bottom && bottom > top) gaps.push((bottom + box.y) / 2);
    bottom = Math.max(bottom, box.y + box.height);
  }
  const crossing = new Map(gaps.map(y => [y, layout.edges.filter(({ points }) => points[0].y < y !== points[points.length - 1].y < y).length]));
  let best = { scale: Math.min(aspect / layout.width, 1 / layout.height) };
  for (let count = 2; count <= Math.min(MAX_COLUMNS, gaps.length + 1); count++) {
    const breaks = [];
    for (let k = 1; k < count; k++) {
      const wanted = top + height * k / count, cost = y => crossing.get(y) * NODE_HEIGHT / 2 + Math.abs(y - wanted);
      const near = gaps.filter(y => y > (breaks[k - 2] ?? 0)).sort((a, b) => cost(a) - cost(b));
      if (near.length) breaks.push(near[0]);
    }
    const columns = placeColumns(layout, top, breaks);
    const scale = Math.min(aspect / columns.width, 1 / columns.height);
    if (scale > best.scale * 1.05) best = { scale, columns };
  }
  if (best.columns) moveIntoColumns(layout, top, best.columns);
}

// Return the columns that begin at the breaks, with how far each moves, and their common width and height.
function placeColumns(layout, top, breaks) {
  const of = y => breaks.filter(at => at < y).length;
  const columns = [top, ...breaks].map(start => ({ start, left: Infinity, right: -Infinity, first: Infinity, bottom: 0 }));
  const extend = (x, y, width, below) => {
    const column = columns[of(y)];
    column.left = Math.min(column.left, x - width / 2);
    column.right = Math.max(column.right, x + width / 2);
    column.bottom = Math.max(column.bottom, below);
    if (below) column.first = Math.min(column.first, y);
  };
  for (const box of layout.boxes.values()) extend(box.x + box.width / 2, box.y, box.width, box.y + box.height);
  for (const dot of Object.values(layout.dots)) extend(dot.x, dot.y, 10, dot.y);
  for (const edge of layout.edges) {
    extend(edge.at.x, edge.at.y, edge.labelWidth, 0);
    for (const point of edge.points) extend(point.x, point.y, 0, 0);
  }
  let x = PADDING;
  for (const column of columns) {
    column.dx = x - column.left;
    column.dy = top + COLUMN_GAP / 2 + 6 - Math.min(column.first, column.start + COLUMN_GAP);
    x += column.right - column.left + COLUMN_GAP;
  }
  const height = Math.max(...columns.map(column => column.bottom + column.dy)) + COLUMN_GAP / 4;
  return { of, columns, width: x - COLUMN_GAP, height };
}

// Return a corner of an edge with two points close to it: the edge is then straight up to there.
function sharpenCorner(corner, k, points) {
  const near = other => {
    const distance = Math.hypot(other.x - corner.x, other.y - corner.y), part = Math.min(0.5, 14 / (distance || 1));
    return { x: corner.x + (other.x - corner.x) * part, y: corner.y + (other.y - corner.y) * part };
  };
  return k && k < points.length - 1 ? [near(points[k - 1]), corner, near(points[k + 1])] : [corner];
}

// Move boxes, dots and edges into columns.
function moveIntoColumns(layout, top, { of: columnOf, columns, width, height: floor }) {
  const move = ({ x, y }) => ({ x: x + columns[columnOf(y)].dx, y: y + columns[columnOf(y)].dy });
  for (const box of layout.boxes.values()) Object.assign(box, move(box));
  for (const dot of Object.values(layout.dots)) Object.assign(dot, move(dot));
  let lane = 0; // edges in one gap lie side by side
  for (const edge of layout.edges) {
    const points = [], ends = [edge.points[0], edge.points[edge.points.length - 1]];
    // An edge goes straight to the border of a column: not by its corners above or below the boxes of the column.
    const isInside = ({ y }) => y >= columns[columnOf(y)].first && y <= columns[columnOf(y)].bottom;
    const isBroken = columnOf(ends[0].y) !== columnOf(ends[1].y);
    const corners = isBroken ? edge.points.filter(point => ends.includes(point) || isInside(point)) : edge.points;
    corners.forEach((point, k) => {
      const before = k ? columnOf(corners[k - 1].y) : columnOf(point.y), here = columnOf(point.y);
      const step = Math.sign(here - before);
      for (let column = before; column !== here; column += step) {
        const last = points[points.length - 1], next = column + step === here ? move(point).x : undefined;
        const right = columns[Math.max(column, column + step)], shift = lane++ % 5 * 5 - 10;
        const gutter = right.left + right.dx - COLUMN_GAP / 2 + shift, sides = [floor - shift / 2, top + COLUMN_GAP / 4 + shift / 2];
        const [from, to] = step > 0 ? sides : sides.reverse();
        points.push({ x: last.x, y: from }, { x: gutter, y: from }, { x: gutter, y: to }, { x: next ?? gutter + step * COLUMN_GAP, y: to });
      }
      points.push(move(point));
    });
    const middle = { x: (points[0].x + points[1].x) / 2, y: (points[0].y + points[1].y) / 2 };
    Object.assign(edge, { points: isBroken ? points.flatMap(sharpenCorner) : points, at: isBroken && !isInside(edge.at) ? middle : move(edge.at) });
  }
  // What leaves the group leaves it at the bottom, in whichever column it is made.
  const outlet = layout.dots[OUTLET];
  if (outlet) {
    outlet.y = floor;
    for (const edge of layout.edges) if (edge.to === OUTLET) edge.points.push({ ...outlet });
  }
  Object.assign(layout, { width, height: floor });
}

// Return the corners of the way along the left side of an unfolded group. An edge against the direction of the layout needs
// them, such as one from the body of a Loop back to the Loop: it would cross the boxes between its `end` and the inlet or
// outlet of the group (`dot`). Any other edge needs none.
function alongSide(box, dot, end) {
  const isAcross = Math.abs(end.y - dot.y) > box.height / 2, x = box.x + PADDING / 2;
  return isAcross ? [{ x, y: dot.y }, { x, y: end.y }] : [];
}

// Return the points of a stub: into the upper left corner of a box, or out of its lower right corner.
function placeStub(layout, { from, to }) {
  const isIn = from === INLET, box = layout.boxes.get(isIn ? to : from);
  const x = isIn ? box.x + 16 : box.x + box.width - 16, y = isIn ? box.y - STUB : box.y + box.height;
  return { points: [{ x, y }, { x, y: y + STUB }], at: { x, y: y + STUB / 2 }, isStub: true };
}

// Return the label of a merged edge, the number of different tensors, and the number of Casts on it. A Cast is marked once:
// not on the edges from an inlet or to an outlet, but between the two boxes outside.
function describeLink(model, { from, to, edges }) {
  const tensors = new Set(edges.map(edge => model.data.edges.tensor[edge]));
  const isInner = from !== INLET && to !== OUTLET;
  const casts = new Set(edges.filter(edge => isInner && model.isCast(edge)).map(edge => model.castKey(edge)));
  const [edge] = edges, tensor = model.data.edges.tensor[edge], cast = edges.find(e => isInner && model.isCast(e));
  let label = casts.size ? plural(casts.size, "Cast") : "";
  if (tensors.size === 1 && cast !== undefined && casts.size === 1) label = `${model.tensorType(tensor)} → ${model.readType(cast)} ${model.tensorShape(tensor)}`;
  else if (tensors.size === 1) label = `${from === INLET ? model.readType(edge) : model.tensorType(tensor)} ${model.tensorShape(tensor)}`;
  return { label: shorten(label.trim(), 36), tensors: tensors.size, casts: casts.size };
}

function bounds(points) {
  const xs = points.map(point => point.x), ys = points.map(point => point.y);
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
// The end of a name says most about a node, and the beginning of a label about a group.
const shortenLabel = (model, member) => (isGroup(member) ? shorten(model.label(member), 44) : keepEnd(model.label(member), 30));
const keepEnd = (text, length) => (text.length <= length ? text : `…${text.slice(1 - length)}`);
const shorten = (text, length = 30) => (text.length <= length ? text : `${text.slice(0, Math.ceil(length / 2) - 1)}…${text.slice(1 - Math.ceil(length / 2))}`);

// Return the second line of a folded group's box.
function groupSubtitle(model, group) {
  if (model.data.groups.kind[group] === "terminals") return plural(model.nodesUnder(group).length, "tensor");
  const high = model.highSize[group] ? ` · ${model.highSize[group]} float32` : "";
  const casts = model.casts[group] ? ` · ${plural(model.casts[group], "Cast")}` : "";
  return `${countNodes(model, group)} node${model.size[group] === 1 ? "" : "s"}${high}${casts}`;
}

// Return the number of nodes in a group; if a filter hides some, "3 of 12".
function countNodes(model, group) {
  const shown = model.shownNodes[group], size = model.size[group];
  return shown === size ? String(size) : `${shown} of ${size}`;
}

// Return the second line of a node's box.
function subtitle(model, node) {
  const op = model.text("op", node), precision = model.text("precision", node);
  return precision === "none" ? shorten(op) : `${shorten(op)} · ${precision}`;
}
