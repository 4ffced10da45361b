// Shows one view at a time: the one that holds the address's anchor, else the index, or the only module there is.
(() => {
  "use strict";
  const views = Array.from(document.querySelectorAll(".mn-view"));

  function addressed() {
    try {
      return document.getElementById(decodeURIComponent(location.hash.slice(1)));
    } catch {
      return null; // an anchor that is not percent-encoded text
    }
  }

  function show() {
    const target = addressed();
    const shown = (target && target.closest(".mn-view")) || (views.length === 3 ? views[1] : views[0]);
    for (const view of views) {
      view.hidden = view !== shown;
    }
    if (target === shown) {
      scrollTo(0, 0);
    } else if (target) {
      target.scrollIntoView();
    }
  }

  addEventListener("hashchange", show);
  addEventListener("DOMContentLoaded", show);
})();
