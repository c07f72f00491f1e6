"""Examinations of pages: of the tags in Python, and JavaScript expressions for the browser."""

from __future__ import annotations

from html.parser import HTMLParser


class TagChecker(HTMLParser):
    """Check that tags nest, and collect the tags that can run or load something."""

    VOID = ("meta", "img", "br", "input", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "link", "iframe") or any(name.startswith("on") for name, _ in attrs):
            self.active.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


PHONE_WIDTH = 380  # CSS pixels

# The worst contrast of a text to its background, as WCAG computes it, and the number of texts.
CONTRAST = """(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = channels(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                       return .2126 * r + .7152 * g + .0722 * b; };
  const found = {ratio: 99, checked: 0};
  for (const node of document.querySelectorAll("body *:not(script):not(svg *)")) {
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
    if (!node.checkVisibility()) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    found.checked++;
    const ratio = (a + .05) / (b + .05);
    if (ratio < found.ratio) Object.assign(found, {ratio, text: node.textContent.slice(0, 60)});
  }
  return found;
})()"""

# The labels of charts that another label or the edge of the screen covers, in part or fully.
HIDDEN_LABELS = """(() => {
  const boxes = [...document.querySelectorAll(".plot div > span")].filter(span => span.checkVisibility())
    .map(span => [span.textContent, span.getBoundingClientRect()]);
  const cover = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return boxes.filter(([text, box], at) => box.left < 0 || box.right > innerWidth
    || boxes.some(([, other], index) => index > at && cover(box, other))).map(([text]) => text);
})()"""

# The data cells of tables that have neither a title of their column nor a title of their row.
CELLS_WITHOUT_TITLE = """[...document.querySelectorAll("td")].filter(cell =>
  !cell.parentElement.querySelector("th[scope=row]")).map(cell => cell.textContent)"""
