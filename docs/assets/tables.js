// Marks the tables that are too wide for a phone, and gives each of their cells the name of its column: minerva.css then
// shows a row as a paragraph there. Columns of prose need no name.
document.addEventListener("DOMContentLoaded", () => {
  const prose = ["what it does", "what it is", "what is different", "how to read it", "differences", "message", "note"]
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const names = [...table.querySelectorAll("thead th")].map(cell => cell.textContent.trim())
    const rows = [...table.querySelectorAll("tbody tr")].map(row => [...row.cells])
    const [first, second] = [0, 1].map(k => Math.max(...rows.map(cells => cells[k].textContent.trim().length)))
    if (table.closest(".symbols") || (names.length < 3 && (first < 16 || second < 16))) continue
    table.dataset.stacked = ""
    for (const cells of rows) {
      cells.forEach((cell, k) => {
        if (k > 0 && names[k] && !prose.includes(names[k]) && cell.textContent.trim()) cell.dataset.label = names[k]
      })
    }
  }
})
