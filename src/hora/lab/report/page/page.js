// Plots come alive, legends hide series, tables sort. Colours are the page's own variables, so that a change of scheme
// needs no drawing.
"use strict";

// A grid of plots is as wide as its place: Vega does that for single plots only.
const PANEL = 130, AXIS = 74, GAP = 18;
function spread(spec, width) {
  spec.columns = Math.max(1, Math.min(spec.columns, Math.floor((width - AXIS + GAP) / (PANEL + GAP))));
  spec.spec.width = Math.min(360, Math.floor((width - AXIS - GAP * (spec.columns - 1)) / spec.columns));
}

async function draw(figure) {
  const plot = figure.querySelector(".plot");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  if (spec.facet) spread(spec, plot.clientWidth);
  const { view } = await vegaEmbed(plot, spec, {
    renderer: "svg", actions: false, tooltip: { theme: "page" }, config: CONFIG,
  });
  const hidden = new Set();
  for (const button of figure.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const name = button.dataset.series;
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      view.signal("hidden", [...hidden]).runAsync();
    });
  }
}

function sortBy(table, column, direction) {
  const rows = [...table.tBodies[0].rows];
  const value = (row) => row.cells[column].dataset.sort;
  const numeric = table.tHead.rows[0].cells[column].classList.contains("number");
  rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // what is not there stays last
    return direction * (numeric ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true }));
  });
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortBy(table, column, ascending ? 1 : -1);
    });
  });
}

// A table that is wider than its place becomes a list of cards, with the headings inside.
function fit() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.remove("cards");
    if (box.clientWidth && box.scrollWidth > box.clientWidth) box.classList.add("cards");
  }
}
let fitted = 0;
new ResizeObserver(() => {
  if (fitted !== document.body.clientWidth) { fitted = document.body.clientWidth; fit(); }
}).observe(document.body);
for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", fit);

document.documentElement.dataset.plots = "drawing";
Promise.all([...document.querySelectorAll("figure")].map(draw)).then(
  () => { document.documentElement.dataset.plots = "drawn"; },
  (error) => { document.documentElement.dataset.plots = "failed"; console.error(error); },
);
