// Run by the test, never in a report: looks at each frame once all have loaded, and writes what is
// wrong with it, a line each.
"use strict";
const wrong = [];
let charts = 0;

function inspect(frame) {
  const width = frame.contentWindow.innerWidth;
  const page = frame.contentDocument;
  const complain = (what, element) => {
    const text = (element.textContent || "").trim().slice(0, 40);
    wrong.push(`${frame.name}: ${what}: ${element.tagName}.${element.getAttribute("class")} ${text}`);
  };
  const top = page.documentElement;
  if (top.scrollWidth > width) complain(`scrolls sideways to ${top.scrollWidth}`, page.body);
  const style = (element) => frame.contentWindow.getComputedStyle(element);

  for (const element of page.body.querySelectorAll("*")) {
    if (element.closest(".scroll > *")) continue;
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.left < -0.5 || box.right > width + 0.5)) complain("outside", element);
  }
  for (const figure of page.querySelectorAll("figure.chart")) {
    charts += 1;
    const frame = figure.getBoundingClientRect();
    const marks = [...figure.querySelectorAll(".dot, .area .mark path, .on circle, .off")];
    if (marks.length === 0) complain("no data", figure);
    for (const mark of marks) {
      const box = mark.getBoundingClientRect();
      const middle = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
      const isInside = middle[0] >= frame.left && middle[0] <= frame.right + 1
        && middle[1] >= frame.top && middle[1] <= frame.bottom;
      if (!(box.width >= 4 && box.height >= 4 && isInside)) complain("mark not in its chart", mark);
    }
    for (const axis of figure.querySelectorAll(".scale, .below")) {
      const shown = [...axis.querySelectorAll("text")].filter((text) => style(text).display !== "none");
      const boxes = shown.map((text) => text.getBoundingClientRect());
      boxes.sort((a, b) => a.left - b.left);
      for (let n = 1; n < boxes.length; n += 1) {
        if (boxes[n - 1].right > boxes[n].left) complain("texts of an axis overlap", axis);
      }
    }
  }
  const channels = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  const luminance = (colour) => {
    const part = channels(colour).map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const contrast = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = style(page.body).backgroundColor;
  const isDark = luminance(paper) < 0.2;
  if (isDark !== (frame.name.startsWith("dark"))) complain("wrong scheme", page.body);
  for (const element of page.body.querySelectorAll("p, td, th, dt, dd, li, h1, h2, b, span, .label, .value, svg text")) {
    if (!element.textContent.trim()) continue;
    const behind = element.closest(".warning, .command, .badge, tr.chosen td");
    const ground = behind ? style(behind).backgroundColor : paper;
    const isMark = element.closest("g.chosen") && !element.classList.contains("says");
    const drawn = element.namespaceURI.includes("svg") ? style(element).fill : style(element).color;
    const under = isMark ? style(element.parentNode.querySelector("circle")).fill : ground;
    if (contrast(drawn, under) < 4.5) complain(`contrast ${contrast(drawn, under).toFixed(2)}`, element);
  }
  if (page.title === "broken" || page.querySelector("script")) complain("a name was run", page.body);
}

window.onload = () => {
  for (const frame of document.querySelectorAll("iframe")) inspect(frame);
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = `charts ${charts}\n${wrong.join("\n")}`;
  document.body.append(found);
};
