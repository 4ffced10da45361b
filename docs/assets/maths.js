// Renders every formula of the page with the KaTeX that lies beside this file. Nothing is fetched from anywhere else.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const displayMode = element.tagName === "DIV"
    const tex = element.textContent.trim().replace(/^\\[[(]/, "").replace(/\\[\])]$/, "")
    katex.render(tex, element, { displayMode, throwOnError: false })
  }
})
