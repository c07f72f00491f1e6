// Draw the scene on a canvas, and turn pointer, wheel and keys into moves and clicks. Only what is inside the window is
// drawn. Text appears from TEXT_SCALE on, and is whole from READABLE_SCALE on, with 12 pixels.

const TEXT_SCALE = 0.35, READABLE_SCALE = 0.93, MIN_SCALE = 0.02, MAX_SCALE = 3, CLICK_DISTANCE = 5, MAX_FIT = 1.5;
// Below TWO_LINES, a box has one line in a larger font, of LEAST_FONT pixels on the screen down to SMALLEST_FIT;
// from WHOLE_NAMES on, its box has room for that (Layout, sizeOf).
const TWO_LINES = 0.92, WHOLE_NAMES = 0.6, SMALLEST_FIT = 0.4, LEAST_FONT = 12, LARGEST_FONT = 30;
const NARROW = 500, PALE = 0.4, MIN_STRONG_WIDTH = 8;

class Drawing {
  // `actions`: select(target), toggle(group). A target is {member} or {edge}, or null for the background.
  constructor(canvas, model, actions) {
    Object.assign(this, { canvas, model, actions, scale: 1, x: 0, y: 0, scene: null, pending: false, widths: new Map() });
    this.context = canvas.getContext("2d");
    this.font = getComputedStyle(document.body).fontFamily;
    this.state = { selected: null, matches: new Set(), matchCounts: null, chain: new Set(), edges: new Set(), mode: null, counts: null };
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.listen();
    this.readColors();
  }

  measure(text) {
    this.context.font = `13px ${this.font}`;
    return this.context.measureText(text).width;
  }

  // Return the width of a label with 13 pixels, which is measured once.
  widthOf(text, weight) {
    const key = weight + text;
    if (!this.widths.has(key)) this.widths.set(key, this.measure(text) * (weight ? 1.12 : 1));
    return this.widths.get(key);
  }

  readColors() {
    const style = getComputedStyle(document.documentElement), colors = new Map();
    this.color = name => {
      if (!colors.has(name)) colors.set(name, style.getPropertyValue(name).trim());
      return colors.get(name);
    };
    this.palette = Object.fromEntries(["page", "card", "ink", "quiet", "line", "link", "amber", "failing", "group-1", "group-2", "match", "on-amber"].map(name => [name, this.color(`--${name}`)]));
    this.request();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.draw();
    this.onResize?.();
  }

  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  // --- moves ---

  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas, scene = this.scene;
    if (!scene || !width) return;
    this.scale = Math.max(MIN_SCALE, Math.min(MAX_FIT, (width - 20) / scene.width, (height - 20) / scene.height));
    // A large graph begins at its inputs at a scale at which it can be read; on a phone with whole names.
    if (this.isNarrow()) this.scale = Math.max(WHOLE_NAMES, Math.min(1, (width - 20) / scene.width));
    else if (this.scale < SMALLEST_FIT) this.scale = Math.min(READABLE_SCALE, Math.max(SMALLEST_FIT, (width - 20) / scene.width));
    const first = scene.boxes.reduce((one, other) => other.y < one.y ? other : one);
    const beyond = width - scene.width * this.scale;
    this.x = beyond >= 0 ? beyond / 2 : Math.min(10, Math.max(beyond - 10, width / 2 - (first.x + first.width / 2) * this.scale));
    this.y = Math.max(10, (height - scene.height * this.scale) / 2);
    this.request();
  }

  isNarrow() { return this.canvas.clientWidth < NARROW; }

  overview() {
    const { clientWidth: width, clientHeight: height } = this.canvas, scene = this.scene;
    this.scale = Math.max(MIN_SCALE, Math.min(MAX_FIT, (width - 20) / scene.width, (height - 20) / scene.height));
    this.x = (width - scene.width * this.scale) / 2;
    this.y = (height - scene.height * this.scale) / 2;
    this.request();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.max(MIN_SCALE, Math.min(MAX_SCALE, this.scale * factor));
    this.x = x - (x - this.x) * scale / this.scale;
    this.y = y - (y - this.y) * scale / this.scale;
    this.scale = scale;
    this.request();
  }

  pan(dx, dy) { this.x += dx; this.y += dy; this.request(); }

  center(member) {
    const box = this.scene?.byMember.get(member);
    if (!box) return;
    this.scale = Math.max(this.scale, READABLE_SCALE);
    this.x = this.canvas.clientWidth / 2 - (box.x + box.width / 2) * this.scale;
    this.y = this.canvas.clientHeight / 2 - (box.y + Math.min(box.height / 2, 200)) * this.scale;
    this.request();
  }

  // Show a new scene; the upper left corner of `anchor` stays where it is.
  show(scene, anchor) {
    const before = this.scene?.byMember.get(anchor), after = scene.byMember.get(anchor);
    if (before && after) {
      this.x += (before.x - after.x) * this.scale;
      this.y += (before.y - after.y) * this.scale;
    }
    this.scene = scene;
    this.request();
  }

  // --- input ---

  listen() {
    const canvas = this.canvas, pointers = new Map();
    let moved = 0, last = null;
    const position = event => { const r = canvas.getBoundingClientRect(); return { x: event.clientX - r.left, y: event.clientY - r.top }; };
    const middle = () => { const all = [...pointers.values()]; return { x: all.reduce((s, p) => s + p.x, 0) / all.length, y: all.reduce((s, p) => s + p.y, 0) / all.length, spread: all.length > 1 ? Math.hypot(all[0].x - all[1].x, all[0].y - all[1].y) : 0 }; };
    canvas.addEventListener("pointerdown", event => {
      if (event.button !== 0) return;
      canvas.setPointerCapture?.(event.pointerId);
      pointers.set(event.pointerId, position(event));
      if (pointers.size === 1) moved = 0;
      last = middle();
    });
    canvas.addEventListener("pointermove", event => {
      if (!pointers.has(event.pointerId)) {
        canvas.style.cursor = this.hit(position(event)) ? "pointer" : "grab";
        return;
      }
      pointers.set(event.pointerId, position(event));
      const now = middle();
      moved += Math.hypot(now.x - last.x, now.y - last.y);
      if (moved > CLICK_DISTANCE) this.pan(now.x - last.x, now.y - last.y);
      if (now.spread && last.spread) this.zoom(now.spread / last.spread, now.x, now.y);
      last = now;
    });
    const end = event => {
      if (!pointers.delete(event.pointerId)) return;
      last = pointers.size ? middle() : null;
      if (!pointers.size && moved <= CLICK_DISTANCE && event.type === "pointerup") this.click(position(event));
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("dblclick", event => { const target = this.hit(position(event)); if (target && isGroup(target.member ?? 0)) this.actions.toggle(groupOf(target.member)); });
    canvas.addEventListener("wheel", event => {
      // In a report, the wheel scrolls the report until the reader has clicked the graph.
      if (window !== parent && document.activeElement !== canvas) return;
      event.preventDefault();
      const { x, y } = position(event);
      if (event.shiftKey) this.pan(-event.deltaY, 0);
      else this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), x, y);
    }, { passive: false });
    canvas.addEventListener("keydown", event => this.key(event));
  }

  key(event) {
    const step = 60, moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.overview();
    else if (event.key === "Enter" && this.state.selected !== null && isGroup(this.state.selected)) this.actions.toggle(groupOf(this.state.selected));
    else return;
    event.preventDefault();
  }

  click(point) {
    const target = this.hit(point);
    if (target?.sign) this.actions.toggle(groupOf(target.member));
    else this.actions.select(target);
  }

  // Return the box or edge at a point of the canvas: {member, sign}, {edge}, or null. `sign`: on the sign + or -.
  hit(point) {
    if (!this.scene) return null;
    const x = (point.x - this.x) / this.scale, y = (point.y - this.y) / this.scale;
    for (let k = this.scene.boxes.length - 1; k >= 0; k--) {
      const box = this.scene.boxes[k];
      if (x < box.x || x > box.x + box.width || y < box.y || y > box.y + box.height) continue;
      // The inside of an unfolded group is background; its head is the group.
      if (box.open && y > box.y + HEAD_HEIGHT) break;
      return { member: box.member, sign: isGroup(box.member) && (box.open || this.scale > TWO_LINES) && x > box.x + box.width - 30 && y < box.y + 32 };
    }
    const reach = 5 / this.scale;
    for (const edge of this.scene.edges) {
      const { left, right, top, bottom } = edge.box;
      if (x < left - reach || x > right + reach || y < top - reach || y > bottom + reach) continue;
      if (nearLine(edge.points, x, y, reach) || (this.scale > TWO_LINES && Math.abs(y - edge.at.y) < 8 && Math.abs(x - edge.at.x) < this.measure(edge.label) / 2)) return { edge };
    }
    return null;
  }

  // --- drawing ---

  draw() {
    const { context, canvas, scene } = this, ratio = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!scene) return;
    context.setTransform(ratio * this.scale, 0, 0, ratio * this.scale, ratio * this.x, ratio * this.y);
    const left = -this.x / this.scale, top = -this.y / this.scale;
    const right = left + canvas.clientWidth / this.scale, bottom = top + canvas.clientHeight / this.scale;
    const isVisible = box => box.x < right && box.x + box.width > left && box.y < bottom && box.y + box.height > top;
    const boxes = scene.boxes.filter(isVisible);
    boxes.filter(box => box.open).forEach((box, depth) => this.drawOpenGroup(box, depth));
    const edges = scene.edges.filter(({ box }) => box.left < right && box.right > left && box.top < bottom && box.bottom > top);
    this.drawEdges(edges);
    for (const box of boxes) if (!box.open) isGroup(box.member) ? this.drawGroup(box) : this.drawNode(box);
    this.drawDots();
  }

  text(text, x, y, { size = 13, color = "ink", weight = "", align = "left" } = {}) {
    const context = this.context;
    context.font = `${weight} ${size}px ${this.font}`;
    context.fillStyle = this.palette[color];
    context.textAlign = align;
    context.fillText(text, x, y);
  }

  frame(box, fill, stroke, width = 1, radius = 6) {
    const context = this.context;
    context.beginPath();
    context.roundRect(box.x, box.y, box.width, box.height, radius);
    if (fill) { context.fillStyle = fill; context.fill(); }
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.stroke();
  }

  // Draw the frame that shows the selection, the chain to the deciding node, or a match of the search.
  drawMarks(box) {
    const { selected, chain, matches, matchCounts } = this.state, wide = Math.min(4, 2 / this.scale);
    const mark = color => this.frame({ x: box.x - 3, y: box.y - 3, width: box.width + 6, height: box.height + 6 }, null, this.palette[color], wide, 8);
    if (matches.has(box.member) || (isGroup(box.member) && !box.open && matchCounts?.[groupOf(box.member)])) mark("match");
    if (chain.has(box.member)) mark("amber");
    if (selected === box.member) mark("link");
  }

  drawOpenGroup(box) {
    const depth = this.model.ancestors(box.member).length;
    this.frame(box, this.palette[depth % 2 ? "group-2" : "group-1"], this.palette.line, 1.5, 10);
    if (this.scale > TEXT_SCALE / 2) {
      this.text(this.model.label(box.member), box.x + PADDING, box.y + 20, { weight: "600" });
      this.drawSign(box, "−");
    }
    this.drawMarks(box);
  }

  drawSign(box, sign) {
    this.frame({ x: box.x + box.width - 26, y: box.y + 7, width: 18, height: 18 }, this.palette.card, this.palette.quiet, 1, 4);
    this.text(sign, box.x + box.width - 17, box.y + 21, { size: 15, align: "center" });
  }

  drawNode(box) {
    const { context, model, state } = this, node = box.member, terminal = model.isTerminal(node);
    const category = terminal ? null : state.mode.categories[state.mode.of(node)];
    const color = terminal ? this.palette.quiet : this.color(category.color);
    this.frame(box, this.palette.card, color, 1.5, terminal ? 20 : 6);
    if (!terminal) {
      this.fill(box, [[category, 1]]);
      context.fillStyle = color;
      context.fillRect(box.x, box.y + 6, 4, box.height - 12);
    }
    if (this.scale > TEXT_SCALE) this.writeLines(box, shortenLabel(model, node), subtitle(model, node));
    const result = this.results.get(node);
    if (result?.severity < 2) this.drawBadge(box, result.severity);
    this.drawMarks(box);
  }

  // Fill a box from left to right with the colors of categories, in proportion to their counts.
  fill(box, counts) {
    const context = this.context, parts = counts.filter(([, count]) => count);
    // A strong color is visible however few the nodes are.
    const weights = parts.map(([{ strong }, count]) => [count, strong ? MIN_STRONG_WIDTH : 0]);
    const total = weights.reduce((sum, [count]) => sum + count, 0);
    const widths = weights.map(([count, least]) => Math.max(count / total * box.width, least));
    const stretch = box.width / widths.reduce((a, b) => a + b, 0);
    context.save();
    context.beginPath();
    context.roundRect(box.x, box.y, box.width, box.height, 6);
    context.clip();
    let x = box.x;
    parts.forEach(([category], k) => {
      context.globalAlpha = category.strong ? 1 : PALE;
      context.fillStyle = this.color(category.color);
      context.fillRect(x, box.y, widths[k] * stretch, box.height);
      x += widths[k] * stretch;
    });
    context.restore();
  }

  // Write a label and a second line into a box; only the label if the scale is small.
  writeLines(box, label, second, weight = "") {
    const x = box.x + 11;
    if (this.scale > TWO_LINES) {
      this.text(label, x, box.y + 18, { weight });
      this.text(second, x, box.y + 35);
      return;
    }
    const room = box.width - 12, size = Math.min(LARGEST_FONT, LEAST_FONT / this.scale);
    const fits = text => this.widthOf(text, weight) * size / 13 <= room;
    // The end of a name says most about a node, and both ends of a label about a group: "block ×12", "model.23".
    const cut = length => (isGroup(box.member) ? shorten(label, Math.max(length, 3)) : `…${label.slice(-length)}`);
    let text = label, length = Math.floor(label.length * room / (size * this.widthOf(label, weight) / 13));
    while (!fits(text) && length > 2) text = cut(--length);
    this.text(text, box.x + 7, box.y + box.height / 2 + size * 0.36, { weight, size });
  }

  drawBadge(box, severity) {
    const context = this.context, x = box.x + box.width - 2, y = box.y + 2;
    context.beginPath();
    context.arc(x, y, 8, 0, 7);
    context.fillStyle = this.palette[severity ? "amber" : "failing"];
    context.fill();
    this.text(severity ? "!" : "✕", x, y + 4, { size: 11, color: severity ? "on-amber" : "card", weight: "700", align: "center" });
  }

  drawGroup(box) {
    const { context, model, state, palette } = this, group = groupOf(box.member);
    this.frame({ ...box, x: box.x + 4, y: box.y + 4 }, palette.card, palette.line);
    this.frame(box, palette.card, palette.quiet, 1.2);
    this.fill(box, state.counts[group].map((count, number) => [state.mode.categories[number], count]));
    if (this.scale > TWO_LINES) this.drawSign(box, "+");
    if (this.scale > TEXT_SCALE) {
      this.writeLines(box, shortenLabel(model, box.member), groupSubtitle(model, group), "600");
      const matches = state.matchCounts?.[group];
      if (matches) this.text(`${matches} found`, box.x + 4, box.y - 7, { color: "match", weight: "600" });
    }
    const severity = this.groupSeverity[group];
    if (severity < 2) this.drawBadge(box, severity);
    this.drawMarks(box);
  }

  drawEdges(edges) {
    const { context, palette, state } = this;
    const trace = edge => {
      const points = edge.points;
      context.moveTo(points[0].x, points[0].y);
      for (let k = 1; k < points.length - 1; k++) {
        const next = points[k + 1], last = k === points.length - 2;
        context.quadraticCurveTo(points[k].x, points[k].y, last ? next.x : (points[k].x + next.x) / 2, last ? next.y : (points[k].y + next.y) / 2);
      }
      if (points.length === 2) context.lineTo(points[1].x, points[1].y);
    };
    const paint = (list, color, width) => {
      context.beginPath();
      list.forEach(trace);
      context.strokeStyle = color;
      context.lineWidth = Math.max(width, 0.7 / this.scale); // visible at every scale
      context.stroke();
      if (this.scale > 0.2) list.forEach(edge => edge.toDot || this.drawArrow(edge, color));
    };
    const isMarked = edge => edge === state.edge || edge.edges.some(number => state.edges.has(number));
    const marked = edges.filter(isMarked);
    paint(edges.filter(edge => !edge.casts && !isMarked(edge)), palette.quiet, 1);
    paint(edges.filter(edge => edge.casts && !isMarked(edge)), palette.amber, 1.6);
    paint(marked, palette.link, 2.4);
    for (const edge of edges) this.drawEdgeText(edge);
  }

  drawArrow(edge, color) {
    const [from, to] = edge.points.slice(-2), angle = Math.atan2(to.y - from.y, to.x - from.x), context = this.context;
    context.beginPath();
    context.moveTo(to.x, to.y);
    for (const side of [-0.4, 0.4]) context.lineTo(to.x - 9 * Math.cos(angle + side), to.y - 9 * Math.sin(angle + side));
    context.fillStyle = color;
    context.fill();
  }

  // Write the type and shape on an edge. An edge with Casts has an amber mark at every scale.
  drawEdgeText(edge) {
    if (edge.isStub || !edge.label) return;
    const { x, y } = edge.at;
    if (this.scale <= TWO_LINES) {
      if (edge.casts) this.frame({ x: x - 5, y: y - 5, width: 10, height: 10 }, this.palette.amber, this.palette.card, 1, 2);
      return;
    }
    const width = this.measure(edge.label);
    const back = { x: x - width / 2 - 4, y: y - 8, width: width + 8, height: 16 };
    if (edge.casts) this.frame(back, this.palette.amber, this.palette.amber, 1, 8);
    else { this.context.fillStyle = this.palette.page; this.context.globalAlpha = 0.75; this.context.fillRect(back.x, back.y, back.width, back.height); this.context.globalAlpha = 1; }
    this.text(edge.label, x, y + 4, { align: "center", color: edge.casts ? "on-amber" : "quiet" });
  }

  drawDots() {
    const context = this.context;
    context.fillStyle = this.palette.quiet;
    for (const { x, y } of this.scene.dots) {
      context.beginPath();
      context.arc(x, y, 4, 0, 7);
      context.fill();
    }
  }
}

function nearLine(points, x, y, reach) {
  return points.some((to, k) => {
    if (!k) return false;
    const from = points[k - 1], dx = to.x - from.x, dy = to.y - from.y;
    const along = Math.max(0, Math.min(1, ((x - from.x) * dx + (y - from.y) * dy) / (dx * dx + dy * dy || 1)));
    return Math.hypot(x - from.x - along * dx, y - from.y - along * dy) <= reach;
  });
}
