// Renders the formulas that are written on a page, with the KaTeX of the annotated source and the options of its
// annotate.js, which renders those of the source. Nothing is fetched from anywhere else.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const displayMode = element.tagName === "DIV"
    const tex = element.textContent.trim().replace(/^\\[[(]/, "").replace(/\\[\])]$/, "")
    katex.render(tex, element, { displayMode, throwOnError: false, strict: "ignore" })
  }
})
