() => {
  // Have screen readers announce status changes.
  document.getElementById("vt-status").setAttribute("aria-live", "polite");

  // Gradio's label names the button next to the field, and the disabled field is unreachable by keyboard.
  const translation = document.querySelector("#vt-translation textarea");
  translation.setAttribute("aria-label", "Translation");
  translation.disabled = false;
  translation.readOnly = true;

  // Arrow keys move between alternatives: Gradio makes each a radio group of its own.
  document.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 };
    if (!event.target.matches?.("#vt-alternatives input") || !(event.key in steps)) return;
    event.preventDefault();
    const radios = [...document.querySelectorAll("#vt-alternatives input")];
    const next = radios.at((radios.indexOf(event.target) + steps[event.key]) % radios.length);
    next.focus();
    next.click();
  });

  // Heat map: show the weight of the hovered or focused cell, and mark its tokens.
  const cellOf = (target) => target.closest?.(".vt-map tbody td");
  const marked = [];
  const mark = (cell) => {
    while (marked.length) marked.pop().classList.remove("vt-on");
    const table = cell.closest("table");
    const row = cell.parentElement.cells[0];
    const column = table.tHead.rows[0].cells[cell.cellIndex];
    for (const element of [cell, row, column]) {
      element.classList.add("vt-on");
      marked.push(element);
    }
    const weight = cell.textContent || "0";
    const reading = `${row.textContent} → ${column.textContent}: ${weight} %`;
    cell.title = reading;
    cell.setAttribute("aria-label", reading);
    table.closest(".vt-frame").querySelector("output").textContent = reading;
  };
  for (const type of ["pointerover", "focusin"]) {
    document.addEventListener(type, ({ target }) => {
      const cell = cellOf(target);
      if (cell) mark(cell);
    });
  }

  // One cell is a tab stop; arrow keys move to the others.
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.addEventListener("keydown", (event) => {
    const cell = cellOf(event.target);
    if (!cell) return;
    const row = cell.parentElement;
    const rows = row.parentElement.rows;
    let next;
    if (event.key in steps) {
      const [down, right] = steps[event.key];
      next = rows[row.sectionRowIndex + down]?.cells[cell.cellIndex + right];
    } else if (event.key === "Home") {
      next = row.cells[1];
    } else if (event.key === "End") {
      next = row.cells[row.cells.length - 1];
    }
    if (next?.tagName !== "TD") return;
    event.preventDefault();
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}
