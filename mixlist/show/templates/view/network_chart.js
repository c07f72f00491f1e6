// Draw a value of each node along the network, on a log scale: the error that the node adds, or the largest magnitude of
// its outputs. A click goes to the node.

class NetworkChart {
  constructor(canvas, caption, drawing, points, limit, choose) {
    Object.assign(this, { canvas, caption, drawing, points, limit, choose });
    const powers = points.map(point => point.power).filter(Number.isFinite);
    if (limit) powers.push(Math.log10(limit));
    // The axis has whole decades, with some room above and below.
    this.low = Math.floor(powers.reduce((a, b) => Math.min(a, b), powers[0] ?? 0) - 0.2);
    const high = Math.ceil(powers.reduce((a, b) => Math.max(a, b), this.low + 1) + 0.2);
    this.step = Math.max(1, Math.ceil((high - this.low) / 4));
    this.high = this.low + Math.ceil((high - this.low) / this.step) * this.step;
    this.hasInfinity = points.some(point => !Number.isFinite(point.power) && point.power !== -Infinity);
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", event => { const point = this.nearest(event); if (point) caption.textContent = point.text; });
    canvas.addEventListener("click", event => { const point = this.nearest(event); if (point) choose(point.node); });
  }

  place(index) { return 46 + (index + 0.5) / this.points.length * (this.canvas.clientWidth - 54); }
  height(power) {
    const part = (Math.max(this.low, Math.min(this.high, power)) - this.low) / (this.high - this.low);
    return 6 + (1 - part) * (this.canvas.clientHeight - 18);
  }

  nearest(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.points[Math.max(0, Math.min(this.points.length - 1, Math.floor((x - 46) / (this.canvas.clientWidth - 54) * this.points.length)))];
  }

  draw(selected = this.selected) {
    this.selected = selected;
    const { canvas } = this, context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1, palette = this.drawing.palette;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(canvas.clientHeight * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = `12px ${this.drawing.font}`;
    context.textAlign = "right";
    for (let power = this.low; power <= this.high; power += this.step) {
      context.fillStyle = palette.quiet;
      context.fillText(this.hasInfinity && power === this.high ? "inf" : `1e${power}`, 40, this.height(power) + 4);
      context.fillStyle = palette.line;
      context.fillRect(46, this.height(power), canvas.clientWidth - 54, 1);
    }
    const width = Math.max(1, Math.min(8, (canvas.clientWidth - 54) / this.points.length - 0.5)), base = canvas.clientHeight - 12;
    this.points.forEach((point, index) => {
      const top = this.height(point.power === Infinity || Number.isNaN(point.power) ? this.high : point.power);
      context.fillStyle = point.node === selected ? palette.link : this.drawing.color(point.color);
      context.fillRect(this.place(index) - width / 2, top, width, Math.max(2, base - top));
    });
    if (this.limit) {
      context.fillStyle = palette.failing;
      context.fillRect(46, this.height(Math.log10(this.limit)), canvas.clientWidth - 54, 1.5);
    }
  }
}

// Return the points of the chart in topological order, or null if the check has neither errors nor ranges.
function chartPoints(model, results, mode) {
  const points = [], isError = mode.name === "error";
  for (let node = 0; node < model.nodeCount; node++) {
    const result = results.get(node);
    const values = isError ? (result?.error ? [toNumber(result.error.error)] : []) : (result?.ranges ?? []).map(range => toNumber(range.reference));
    if (!values.length) continue;
    const value = values.some(Number.isNaN) ? NaN : Math.max(...values);
    const text = `${formatNumber(value)}: ${model.name(node)} (${model.text("op", node)})`;
    points.push({ node, power: Math.log10(value), text, color: mode.categories[mode.of(node)].color });
  }
  return points;
}
