// Run by Node: formulas come in as a JSON array, what KaTeX says against each (or null) goes out as another.
"use strict";
const fs = require("fs");

// Not require(): a package.json somewhere above this file could declare it to be an ES module.
const library = { exports: {} };
new Function("module", "exports", fs.readFileSync(process.argv[1], "utf8"))(library, library.exports);
const katex = library.exports;

// Links, images and HTML in a formula would be shown as the text of their command.
function trust({ command }) {
  throw new Error(`${command} is not shown in pages`);
}

function complaint(latex) {
  try {
    katex.renderToString(latex, { displayMode: true, throwOnError: true, strict: "error", trust });
    return null;
  } catch (error) {
    return String(error.message);
  }
}

const formulas = JSON.parse(fs.readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(formulas.map(complaint)));
