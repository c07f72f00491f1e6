// The ways to color nodes. A mode has categories, each with a name and a CSS variable of view.css, and a function that
// returns the number of a node's category. A folded group is filled with the colors of its nodes, in proportion. A
// category with `strong` has its full color, the others have a paler one: what stays float32 is the most visible.

const SEVERITIES = ["failing", "warning", "note"];
// The largest finite value of the low types, for the mode "range".
const LARGEST = { float16: 65504, bfloat16: 3.3895313892515355e38 };
const toNumber = value => ({ inf: Infinity, "-inf": -Infinity, nan: NaN })[value] ?? value;

// Return the results of the check by node: findings, worst severity, error, and range of the outputs.
function checkByNode(model, severities) {
  const results = new Map(), check = model.data.check;
  const of = node => { if (!results.has(node)) results.set(node, { findings: [], ranges: [] }); return results.get(node); };
  if (!check) return results;
  for (const finding of check.findings) {
    const result = of(finding.node);
    result.findings.push(finding);
    const rank = SEVERITIES.indexOf(severities[finding.kind] ?? "note");
    result.severity = Math.min(result.severity ?? 9, rank);
    result.first = result.first || finding.first;
  }
  for (const entry of check.errors) of(entry.node).error = entry;
  for (const entry of check.ranges) {
    const node = model.data.tensors.producer[entry.tensor];
    if (node >= 0 && !model.isBodyInput(entry.tensor)) of(node).ranges.push(entry);
  }
  return results;
}

function textMode(model, name, column, categories) {
  const used = new Set(model.data.nodes[column].slice(0, model.nodeCount).map(number => model.texts[number]));
  const listed = categories.filter(category => used.has(category.name));
  const index = new Map(listed.map((category, number) => [category.name, number]));
  return { name, categories: listed, of: node => index.get(model.text(column, node)) ?? listed.length - 1 };
}

function colorModes(model, results) {
  const modes = {
    precision: textMode(model, "precision", "precision", [
      { name: model.data.low, color: "--low" }, { name: model.data.low === "float16" ? "bfloat16" : "float16", color: "--other-low" },
      { name: "float32", color: "--float32", strong: true }, { name: "float64", color: "--double" }, { name: "none", color: "--no-precision" },
    ]),
    list: textMode(model, "list", "list", [
      { name: "white", color: "--low" }, { name: "black", color: "--black-list" }, { name: "gray", color: "--high" }, { name: "none", color: "--no-precision" },
    ]),
  };
  if (model.data.check) {
    modes.finding = {
      name: "finding", of: node => results.get(node)?.severity ?? 3,
      categories: [{ name: "failing", color: "--failing" }, { name: "warning", color: "--amber" }, { name: "note", color: "--propagated" }, { name: "no finding", color: "--no-precision" }],
    };
  }
  if (model.data.check?.errors.length) modes.error = errorMode(results);
  if (model.data.check?.ranges.length) modes.range = rangeMode(results, LARGEST[model.data.low]);
  if (model.data.differences) modes.difference = differenceMode(model);
  return modes;
}

// The decade of the largest error and the two below it have a color each, and so have all smaller errors.
function errorMode(results) {
  const errors = [...results.values()].filter(result => result.error).map(result => toNumber(result.error.error));
  const largest = errors.filter(error => Number.isFinite(error)).reduce((a, b) => Math.max(a, b), 1e-12);
  const top = Math.floor(Math.log10(largest));
  const limits = [top, top - 1, top - 2];
  const of = node => {
    const error = results.get(node)?.error;
    if (!error) return 4;
    const place = limits.findIndex(limit => !(toNumber(error.error) < 10 ** limit));
    return place < 0 ? 3 : place;
  };
  const names = limits.map(limit => `error ≥ 1e${limit}`);
  const colors = ["--error-1", "--error-2", "--error-3", "--error-4", "--no-precision"];
  return { name: "error", of, categories: [...names, `error < 1e${limits[2]}`, "not measured"].map((name, number) => ({ name, color: colors[number] })) };
}

function rangeMode(results, largest) {
  const of = node => {
    const ranges = results.get(node)?.ranges ?? [];
    if (!ranges.length) return 3;
    const magnitudes = ranges.map(range => toNumber(range.reference));
    if (magnitudes.some(value => !(value <= largest))) return 0;
    return magnitudes.some(value => value > largest / 2) ? 1 : 2;
  };
  const names = [`beyond ${largest.toPrecision(5)}`, "within a factor of 2 of it", "in range", "not measured"];
  const colors = ["--failing", "--amber", "--low", "--no-precision"];
  return { name: "range", of, categories: names.map((name, number) => ({ name, color: colors[number] })) };
}

function differenceMode(model) {
  const low = model.data.low, other = new Map(model.data.differences.nodes.map(entry => [entry.node, model.texts[entry.precision]]));
  const of = node => (!other.has(node) ? 3 : model.text("precision", node) === low ? 0 : other.get(node) === low ? 1 : 2);
  const names = [`${low} only in this policy`, `${low} only in the other`, "another difference", "the same"];
  const colors = ["--low", "--amber", "--propagated", "--no-precision"];
  return { name: "difference", of, categories: names.map((name, number) => ({ name, color: colors[number] })) };
}

// Return, for each group, the number of its nodes in each category of a mode, without those that a filter hides.
function countCategories(model, mode) {
  const counts = model.parent.map(() => new Array(mode.categories.length).fill(0));
  for (let node = 0; node < model.nodeCount; node++) {
    if (!model.isShown(node)) continue;
    const category = mode.of(node);
    for (let g = model.data.nodes.group[node]; g >= 0; g = model.parent[g]) counts[g][category]++;
  }
  return counts;
}
