"""How the site is built: `make docs`. Pages in `examples/` are scripts, run at build time by sphinx-gallery."""

import emflow

project = "emflow"
author = copyright = "The emflow developers"  # noqa: A001
version = release = emflow.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "examples", "guide/index.rst"]  # index.md has the navigation
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!emflow\.).*")]  # types of other projects, and the prose in those of docstrings
default_role = "literal"  # `x` in a docstring is code, as in Markdown

html_theme = "furo"
html_title = f"emflow {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"  # the docstrings have them
autodoc_class_signature = "mixed"
maximum_signature_line_length = 100
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "guide",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "ignore_repr_types": r"list|tuple|matplotlib",  # what calls that draw return
    "image_srcset": ["2x"],
    "download_all_examples": False,
    "notebook_extensions": set(),
    "write_computation_times": False,
    "min_reported_time": 10**6,
    "show_signature": False,
}


def skip(app, what, name, member, skips, options):
    """Leave out what every estimator of scikit-learn has."""
    return True if str(getattr(member, "__module__", "")).startswith("sklearn.") else None


def setup(app):
    """Connect the above; Sphinx calls this."""
    app.connect("autodoc-skip-member", skip)
