// Tables sort by the head that is clicked, and long ones have a filter. Without this script they are only read.
const byText = new Intl.Collator(undefined, { numeric: true }).compare;

function keyOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
}

// Numbers compare as numbers; what is empty comes last in either order.
function compare(a, b, sign) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const difference = Number(a) - Number(b);
  return sign * (Number.isNaN(difference) ? byText(a, b) : difference);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows];
      rows.sort((a, b) => compare(keyOf(a, column), keyOf(b, column), sign));
      body.append(...rows);
    });
  });
}

function makeFilter(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 10) return;
  const bar = document.createElement("div");
  const input = document.createElement("input");
  const count = document.createElement("span");
  bar.className = "filter";
  input.type = "search";
  input.placeholder = "Filter";
  input.setAttribute("aria-label", "Filter the table");
  count.className = "dim";
  count.setAttribute("role", "status");
  const update = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  input.addEventListener("input", update);
  bar.append(input, count);
  table.parentElement.before(bar);
  update();
}

for (const table of document.querySelectorAll("table[data-sortable]")) {
  makeSortable(table);
  makeFilter(table);
}
