
// Cells of batches that a device of the given memory has room for are marked.
const memory = document.getElementById("device-memory");

function markWhatFits() {
  const bytes = memory.valueAsNumber * 2 ** 30;
  const cells = [...document.querySelectorAll("#what-if-table td")];
  for (const cell of cells) {
    cell.classList.toggle("fits", Number(cell.dataset.value) <= bytes);
    cell.classList.toggle("beyond", Number(cell.dataset.value) > bytes);
  }
  const fitting = cells.filter((cell) => cell.classList.contains("fits")).length;
  memory.parentElement.querySelector("[role=status]").textContent =
    Number.isNaN(bytes) ? "" : `${fitting} of ${cells.length} fit`;
}

if (memory) {
  memory.parentElement.hidden = false;
  memory.addEventListener("input", markWhatFits);
}
