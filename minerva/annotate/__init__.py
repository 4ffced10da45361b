"""Math-annotated source: formulas in comments, shown next to the code that computes them and covered by tests."""

from minerva.annotate.claims import Claim
from minerva.annotate.engine import find_node
from minerva.annotate.pages import SCRIPTS, STYLESHEETS, make_pages, refuse_places, write_pages, write_single_file
from minerva.annotate.report import Report, examine
from minerva.annotate.source import Formula, Module, Problem, read_source

__all__ = [
    "SCRIPTS",
    "STYLESHEETS",
    "Claim",
    "Formula",
    "Module",
    "Problem",
    "Report",
    "examine",
    "find_node",
    "make_pages",
    "read_source",
    "refuse_places",
    "write_pages",
    "write_single_file",
]
