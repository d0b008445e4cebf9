"""A table as text: Markdown, LaTeX, CSV."""

from convdkm.lab.studies.rendering.comma import comma_separated
from convdkm.lab.studies.rendering.latex import latex
from convdkm.lab.studies.rendering.markdown import markdown

FORMATS = {"markdown": (markdown, "md"), "latex": (latex, "tex"), "csv": (comma_separated, "csv")}
