// Renders the formulas of a page, and puts their markers back into what is copied.
(() => {
  "use strict";

  function render() {
    for (const node of document.querySelectorAll(".mn-math")) {
      if (node.firstElementChild === null) {
        katex.render(node.textContent, node, { displayMode: true, throwOnError: false, strict: "ignore" });
      }
    }
  }

  // Code is copied as it stands in the file: each formula as the comment that it was written as.
  function copy(event) {
    const selection = document.getSelection();
    const range = selection.rangeCount === 1 ? selection.getRangeAt(0) : null;
    const within = range && (range.commonAncestorContainer.closest ? range.commonAncestorContainer : range.commonAncestorContainer.parentElement);
    if (!within || !within.closest(".mn-source")) {
      return;
    }
    const copied = range.cloneContents();
    for (const node of copied.querySelectorAll(".mn-formula, [data-marker]")) {
      node.replaceWith(node.dataset.marker || "");
    }
    if (copied.textContent) {
      event.clipboardData.setData("text/plain", copied.textContent);
      event.preventDefault();
    }
  }

  document.addEventListener("copy", copy);
  if (typeof document$ !== "undefined") {
    document$.subscribe(render); // Material for MkDocs, which may change pages without loading them
  } else if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", render);
  } else {
    render();
  }
})();
