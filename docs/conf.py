"""The documentation site: `make docs` builds it into site/, warnings as errors, without a network.

Pages are the markdown files of docs/ and third_party_notes/, which read on GitHub as they are; the
site's root is the repository's, so that a link means the same in both places. The reference is made
of docstrings, notebooks (docs/notebooks) are executed: DPJAX_DOCS_NOTEBOOKS=off leaves that out.
"""

import datetime
import os
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)  # Of the notebooks' processes.

import redirects  # noqa: E402  docs/redirects.py
import reference  # noqa: E402  docs/reference.py

project = "dpjax"
author = "the dpjax authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
version = release
copyright = f"{datetime.date.today().year}, {author}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**/*.md",
    "docs/*.md",
    "third_party_notes/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = ["site", ".venv", "runs", "build", "jupyter_execute"]

html_theme = "sphinx_book_theme"
html_title = "dpjax"
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": True,
}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["menu.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

nb_execution_mode = "off" if os.environ.get("DPJAX_DOCS_NOTEBOOKS") == "off" else "force"
nb_execution_timeout = int(os.environ.get("DPJAX_DOCS_CELL_SECONDS", "90"))  # On two cores.
# One that fails is a warning, so the other pages are built, and `make docs` fails in the end.
nb_execution_raise_on_error = False
nb_merge_streams = True

napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # The signature above says them, by their short names.
napoleon_custom_sections = ["Formal guarantees"]
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
default_role = "code"
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 60


def setup(app):
    """Docstrings are plain text with a little markdown; autodoc reads reStructuredText."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
    app.connect("autodoc-process-signature", _without_private_names)
    app.connect("source-read", _write_reference)
    app.connect("builder-inited", _name_fields)
    app.connect("build-finished", _name_failed_notebooks)
    app.connect("build-finished", _write_redirects)


def _name_fields(app):
    """Fields of a class stand under "Attributes"."""
    from sphinx.domains.python import PyObject  # A test reads this file without Sphinx.

    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"


def _write_redirects(app, error):
    """Old addresses lead on."""
    redirects.write(pathlib.Path(app.outdir, "docs"))


def _write_reference(app, name, source):
    """A page of the reference opens with a summary and with what a user calls first."""
    source[0] = reference.page(source[0], _escaped)


def _without_private_names(app, what, name, obj, options, arguments, returned):
    return tuple(reference.signature(obj, text) for text in (arguments, returned))


def _name_failed_notebooks(app, error):
    """Says which notebooks did not run, where the rest of the site is, and what to do."""
    ran = getattr(app.env, "nb_metadata", {})
    failed = [
        name
        for name, found in sorted(ran.items())
        if (found.get("exec_data") or {}).get("succeeded") is False
    ]
    if failed:
        print(
            f"not executed: {', '.join(f'{name}.md' for name in failed)} (a cell failed, or took "
            f"over {nb_execution_timeout} s). All other pages are in {app.outdir}. On a slow "
            "machine:  DPJAX_DOCS_CELL_SECONDS=600 make docs ; without notebooks:  "
            "DPJAX_DOCS_NOTEBOOKS=off make docs",
            file=sys.stderr,
        )


def _as_restructured_text(app, what, name, obj, options, lines):
    """Markdown's fences, tables and indented formulas, as reStructuredText means them."""
    if what == "module":
        lines[:] = reference.rest_of_module(lines)
    rewritten: list[str] = []
    fenced = items = shown = False  # In a fence; in a section of items, which napoleon reads.
    table: list[str] = []
    literal: int | None = None  # The indentation of a block that is set as it stands.
    before = 0  # The indentation of the last line of text.
    for line in [*_joined(lines), ""]:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if text.startswith("```"):
            fenced = not fenced
            rewritten += ["", " " * indent + ".. code-block:: python", ""] if fenced else [""]
            continue
        if fenced:
            rewritten.append("    " + line)
            continue
        if text.startswith("|"):
            table.append(line)
            continue
        if table:
            rewritten += ["", *_table(table), ""]
            table = []
        if not text:
            rewritten.append("")
            continue
        shown = text.startswith(">>>") or (shown and bool(rewritten[-1].strip()))
        if shown:  # A session at the prompt, with what it printed.
            rewritten.append(line)
            continue
        if literal is not None and indent >= literal:
            rewritten.append(line)
            continue
        literal = None
        blank = not rewritten or not rewritten[-1].strip()
        if indent == 0:
            items = text in ITEMS
        if not items and not text.startswith((">>>", "...")):
            bullet = re.match(r"(- |\* |\d+\. )", text)
            if blank and indent >= before + 4 and not bullet:
                rewritten += [" " * before + "::", "", line]
                literal = indent
                continue
            if not blank and indent != before and rewritten[-1].strip() not in SECTIONS:
                rewritten.append("")
            before = indent + (len(bullet.group()) if bullet else 0)
        else:
            before = indent
        rewritten.append(_escaped(line))
    if what in ("attribute", "data", "property"):
        # Of these napoleon reads a first line "text: more" as a type and its description. Ours is
        # a comment, which is not shown; no type is ever written there.
        rewritten[:0] = ["..", ""]
    lines[:] = rewritten


def _joined(lines: list[str]) -> list[str]:
    """Joins what must stand on one line: code in backticks, and the names before a colon."""
    joined: list[str] = []
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        before = joined[-1] if joined else ""
        names = re.fullmatch(r"  ( *\w+,)+ *", before) and before[:2] == "  "
        if not fenced and not fence and before.strip() and (before.count("`") % 2 or names):
            joined[-1] = f"{before.rstrip()} {line.strip()}"
        else:
            joined.append(line)
    return joined


ITEMS = ("Args:", "Attributes:", "Returns:", "Raises:", "Warns:", "Yields:")
SECTIONS = (*ITEMS, "Formal guarantees:", "Example:")


def _escaped(line: str) -> str:
    if line.lstrip().startswith((">>>", "...")):
        return line
    bullet, text = re.match(r"(\s*(?:[-*] )?)(.*)", line).groups()
    pieces = re.split(r"(`+[^`]+`+|(?<!\S)\*\w[^*]*\w[.]?\*(?!\w))", text)
    for i, piece in enumerate(pieces):
        if i % 2 and piece.startswith("`"):
            pieces[i] = f"``{piece.strip('`')}``"
        elif i % 2 == 0:
            pieces[i] = re.sub(r"([*|`\\])", r"\\\1", re.sub(r"_(?=\W|$)", r"\\_", piece))
            # A literal must not touch a word: 2^`n` reads as text.
            if i + 1 < len(pieces) and re.search(r"\w$", piece):
                pieces[i] += "\\ "
            if i and re.match(r"\w", piece):
                pieces[i] = "\\ " + pieces[i]
    return bullet + "".join(pieces)


def _table(rows: list[str]) -> list[str]:
    indent = " " * (len(rows[0]) - len(rows[0].lstrip()))
    cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (cells[0], *cells[2:]):
        for i, cell in enumerate(row):
            lines.append(f"   {'* ' if i == 0 else '  '}- {_escaped(cell)}")
    return [indent + line for line in lines]
