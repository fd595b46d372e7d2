"use strict";
// Titles become one tooltip that follows the pointer; without this script the browser shows them itself.
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;
for (const title of document.querySelectorAll("svg g > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.parentNode.setAttribute("aria-label", title.textContent);
  title.remove();
}
const show = (event) => {
  const marked = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.hidden = !marked;
  if (!marked) return;
  tip.textContent = marked.dataset.tip;
  const left = event.clientX + 14, top = event.clientY + 16;
  tip.style.left = Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (top + tip.offsetHeight > innerHeight - 8 ? Math.max(8, event.clientY - tip.offsetHeight - 12) : top) + "px";
};
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, true);

for (const table of document.querySelectorAll("table[data-first]")) {
  const body = table.tBodies[0], first = Number(table.dataset.first), button = document.createElement("button");
  const headers = [...table.tHead.rows[0].cells];
  let all = body.rows.length <= first;
  const fold = () => {
    [...body.rows].forEach((row, index) => { row.hidden = !all && index >= first; });
    button.textContent = all ? `Show the first ${first}` : `Show all ${body.rows.length}`;
  };
  if (!all) {
    button.className = "toggle";
    button.type = "button";
    button.addEventListener("click", () => { all = !all; fold(); });
    table.parentNode.after(button);
  }
  headers.forEach((header, column) => {
    const label = document.createElement("button");
    label.type = "button";
    const words = "words" in header.dataset;
    label.append(...header.childNodes);
    header.append(label);
    label.addEventListener("click", () => {
      const down = header.getAttribute("aria-sort") ? header.getAttribute("aria-sort") !== "descending" : !words;
      const key = (row) => row.cells[column].dataset.v;
      const rows = [...body.rows].sort((one, other) => {
        const a = key(one), b = key(other);
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        const order = words ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
        return down ? -order : order;
      });
      headers.forEach((each) => each.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...rows);
      fold();
    });
  });
  fold();
}
