"""How Sphinx builds the site (`make docs`). Pages are Markdown; what is made from the code is in ``reference.py``."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock  # type: ignore[attr-defined]  # some releases do not say that they export it

sys.path.insert(0, str(Path(__file__).parent))
import reference

import hora

project = "Hora"
author = "The Hora developers"
copyright = "The Hora developers"
version = release = hora.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
# Headings of the first four levels can be linked to, by the names that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # a page may begin at any level: parts of it are included

# Front-ends are imported with their frameworks; MXNet's, which needs an environment of its own, with an empty one.
autodoc_mock_imports = [] if importlib.util.find_spec("mxnet") else ["mxnet"]
autodoc_typehints = "none"  # signatures have the defaults; types are in the text where they are not obvious
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
add_module_names = False

smartquotes = False  # --np is an option, not a dash

html_theme = "furo"
html_title = "Hora"
html_static_path = ["static"]
html_css_files = ["hora.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # whose greetings look like warnings
with mock(autodoc_mock_imports):
    for front_end in reference.FRONT_ENDS:
        importlib.import_module(front_end)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = reference.filled(source[0])


def as_written(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Ours are Google-style, but a section of one sentence may stand on its heading's line."""
    lines[:] = [re.sub(r"^(Returns|Gradient|Raises|Example): (?=\S)", r"**\1:** ", line) for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_written)
