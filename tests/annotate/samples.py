"""Source that tries to break pages, and an independent parser of pages."""

import re
from html.parser import HTMLParser

HOSTILE = '''\
# -*- coding: utf-8 -*-
"""</code></pre></div><script>window.pwned = 1</script>

```python
fence
```

~~~
{{ config.site_name }} {% raw %} {# no #}
--8<-- "/etc/hostname"
::: minerva.api
!!! note
*[HTML]: abbreviation
[^1]: footnote
$$ x $$ \\\\( y \\\\) $z$
&lt; &amp; &#60; &nosuch; <b>bold</b> <!-- comment --> <![CDATA[ x ]]> <?php ?>
# LaTeX: not a marker </script>
"""
import os


@decorated("<img src=x onerror='window.pwned = 2'>")
class A:
\tx = 1  \t
   \n
\tdef f(self, a: "int" = 1) -> str:  # a comment with `ticks` & <tags>
\t\t# LaTeX[<i>Paper</i> & "co", eq. '1']: a < b \\text{</span><script>window.pwned = 3</script>} & c
\t\ty = {"k": f"{a!r:>{10}}"} if a < 1 and a > 0 else '"'
\t\tz = "ünïcödé 数学 \U0001d53c \u200b \u2028 \x85 \x02 \x03 \x0c"  # LaTeX: z = \\alpha
\t\treturn f"""{y}
# LaTeX: not a marker either
</pre>{z}"""
\f
# LaTeX: \\{\\{ x \\}\\} `tick` $
print(A)
'''
# The formulas above, by their line of code.
HOSTILE_FORMULAS = {
    29: "a < b \\text{</span><script>window.pwned = 3</script>} & c",
    30: "z = \\alpha",
    36: "\\{\\{ x \\}\\} `tick` $",
}


def without_markers(source: str) -> list[str]:
    """Return the lines of the first view; lines with "not a marker" in them are kept."""
    lines = source.removesuffix("\n").split("\n")
    kept = [line for line in lines if not re.match(r"\s*# LaTeX(\[[^\]]*\])?: ", line) or "not a marker" in line]
    return [re.sub(r"(?<=\S)\s+# LaTeX(\[[^\]]*\])?: .*", "", line) for line in kept]


class Page(HTMLParser):
    """Parse a page into blocks of code (lists of lines and formulas), tags and ids."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.blocks: list[list[tuple[str, str]]] = []
        self.tags: set[str] = set()
        self.handlers: set[str] = set()
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = {name: value or "" for name, value in attrs}
        self.handlers |= {name for name in names if name.startswith("on")}
        if "id" in names:
            self.ids.append(names["id"])
        if tag in ("meta", "img", "br", "link", "input"):
            return
        kind = names.get("class", "")
        self._open.append(kind or tag)
        if kind == "mn-source":
            self.blocks.append([])
        elif kind == "mn-line":
            self.blocks[-1].append((names["data-n"], ""))
        elif kind == "mn-math" and "mn-source" in self._open:
            self.blocks[-1].append(("formula", ""))

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if {"mn-line", "mn-math"} & set(self._open) and "mn-source" in self._open:
            kind, text = self.blocks[-1].pop()
            self.blocks[-1].append((kind, text + data))

    def handle_charref(self, name: str) -> None:
        self.handle_data(chr(int(name)))  # as a browser does; Python's own drops control characters

    def lines(self, block: int = 0) -> list[str]:
        """Return the text of a block's lines of code."""
        return [text for kind, text in self.blocks[block] if kind != "formula"]
