"""The site: Sphinx with furo and myst-nb. `make docs` builds it; a warning is an error.

Sphinx rather than MkDocs: docstrings and cross references of a Python library are its home ground, and myst-nb
executes pages while they are built.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(HERE)]

import figures  # noqa: E402 - found by the path above
import hatch_build  # noqa: E402 - as above
import readme  # noqa: E402 - as above

import rlploss  # noqa: E402 - as above

settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HOME = hatch_build.urls(settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]["owner"])["Repository"]

project, author, copyright = "rlploss", "rlploss contributors", "rlploss contributors"
version = release = rlploss.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode",
              "sphinx_copybutton"]  # fmt: skip
exclude_patterns = ["_parts/*", "results/*/*"]

html_theme, html_title = "furo", "rlploss"
html_theme_options = {"source_repository": HOME, "source_branch": "main", "source_directory": "docs/"}
templates_path = ["_templates"]
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "attrs_inline", "attrs_block", "deflist", "html_image"]
myst_heading_anchors = 3
nb_execution_mode, nb_execution_raise_on_error, nb_execution_timeout = "auto", True, 300
nb_merge_streams = True

autosummary_generate = True
autodoc_typehints = "none"  # signatures without them are readable at 360 px; the docstrings say what goes in
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = napoleon_numpy_docstring = True
add_module_names = False


def departures() -> str:
    """Every NOTE[DIFF] of the source: its place, and what it says up to the end of its sentence."""
    rows = ["| where | what differs, and why |", "|---|---|"]
    for path in sorted((ROOT / "src").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            if "NOTE[DIFF]" not in line:
                continue
            said = line.partition("NOTE[DIFF]")[2].lstrip(": ")
            for more in lines[number:]:
                if said.endswith(".") or not more.strip(' #"'):
                    break
                said += " " + more.strip(' #"')
            place = f"{path.relative_to(ROOT).as_posix()}#L{number}"
            rows.append(f"| [{path.name}]({HOME}/blob/main/{place}) | {said.replace('|', '&#124;')} |")
    return "\n".join(rows)


def verdict_table() -> str:
    """Every claim with its verdict."""
    shown = ((" ".join(text.split()).replace("|", "&#124;"), verdict) for text, verdict in readme.verdicts().values())
    return "\n".join(["| claim | verdict |", "|---|---|", *(f"| {text} | {verdict} |" for text, verdict in shown)])


def write_if_new(path: Path, text: str) -> None:
    """Files that have not changed are not read again."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def prepare(app: object) -> None:
    """Draw the figures, and collect what pages include."""
    figures.draw()
    write_if_new(HERE / "_parts" / "departures.md", departures())
    write_if_new(HERE / "_parts" / "verdicts.md", verdict_table())


def outside(app: object, document: str, source: list[str]) -> None:
    """Relative links that leave docs/ lead to the repository."""
    folder = (HERE / document).parent

    def lead(match: re.Match[str]) -> str:
        target = match[2]
        if target.startswith(("http", "#", "mailto:")):
            return match[0]
        path = (folder / target.partition("#")[0]).resolve()
        page = path.suffix == ".md" and path.is_relative_to(HERE) and len(path.relative_to(HERE).parts) <= 2
        if page or not path.exists():
            return match[0]
        return f"{match[1]}({HOME}/{'tree' if path.is_dir() else 'blob'}/main/{path.relative_to(ROOT).as_posix()})"

    source[0] = re.sub(r"(\])\(([^)\s]+)\)", lead, source[0])


def plain(app: object, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with `code`, |J| and *: make them what reStructuredText means by that."""
    text, parts = "\n".join(lines), []
    for i, part in enumerate(text.split("`")):
        parts.append(part if i % 2 else part.replace("|", "\\|").replace("*", "\\*"))
    lines[:] = "``".join(parts).split("\n")


def setup(app: Any) -> None:
    """Connect the three."""
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    app.connect("builder-inited", prepare)
    app.connect("source-read", outside)
