"""The site: Sphinx with furo and myst-nb. `make docs` builds it; a warning is an error.

Sphinx rather than MkDocs: docstrings and cross references of a Python library are its home ground,
and myst-nb executes pages while they are built.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any
from uuid import uuid4

import jupyter_client
import nbformat
import typer
from docutils import nodes
from jupyter_core.paths import jupyter_runtime_dir
from traitlets import default

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(HERE)]

import figures  # noqa: E402 - found by the path above
import hatch_build  # noqa: E402 - as above
import notes  # noqa: E402 - as above
import readme  # noqa: E402 - as above

import rlploss  # noqa: E402 - as above
from rlploss.cli import make_app  # noqa: E402 - as above

settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OWNER = settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]["owner"]
HOME, SITE = (hatch_build.urls(OWNER)[name] for name in ("Repository", "Documentation"))

logging.getLogger("traitlets").setLevel(
    "WARNING"
)  # a theme of Pygments, once imported, shows what others remark

project, author, copyright = "rlploss", "rlploss contributors", "rlploss contributors"
version = release = rlploss.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # ships MathJax with the site: no page needs the network
    "sphinx_copybutton",
]
exclude_patterns = ["_parts/*", "results/*/tables/*"]

html_theme, html_title = "furo", "rlploss"
html_theme_options = {
    "source_repository": HOME,
    "source_branch": "main",
    "source_directory": "docs/",
}
templates_path = ["_templates"]
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_sphinx = False

myst_enable_extensions = [
    "colon_fence",
    "attrs_inline",
    "attrs_block",
    "deflist",
    "dollarmath",
    "html_image",
]
myst_dmath_allow_digits = False  # "$5 and $6" is no formula
myst_heading_anchors = 3
# site: is a file of the site that is no page
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": {"url": "{{path}}"}}
nb_execution_mode, nb_execution_raise_on_error, nb_execution_timeout = "auto", True, 300
nb_merge_streams = True
# The notebook is written after the links are checked. While nobody owns the project its own
# addresses lead nowhere.
linkcheck_ignore = [
    r"tour\.ipynb",
    *(f"{re.escape(url)}.*" for url in (HOME, SITE) if OWNER == "OWNER"),
]

autosummary_generate = True
autodoc_typehints = "signature"
autodoc_type_aliases = {  # shown by their names instead of what they stand for
    name: name
    for name in (
        "Array",
        "ArrayLike",
        "Callback",
        "ChosenMetrics",
        "ChosenOptimizer",
        "MetricFunction",
        "NDArray",
        "ProgressFunction",
    )
}
autodoc_inherit_docstrings = False  # torch's and scikit-learn's own texts are in their own docs
python_maximum_signature_line_length = 72  # longer ones get a line for each argument
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = napoleon_numpy_docstring = True
add_module_names = False


class LocalKernels(jupyter_client.AsyncKernelManager):
    """Kernels that are spoken to over a local socket: over TCP each warns that anybody may
    listen.
    """

    @default("transport")
    def _local(self) -> str:
        return "ipc" if os.name == "posix" else "tcp"

    def _ip_default(self) -> str:
        if self.transport == "tcp":
            return super()._ip_default()
        room = Path(
            jupyter_runtime_dir()
        )  # a kernel has a working directory of its own: the path is absolute
        room.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(room / uuid4().hex)


jupyter_client.AsyncKernelManager = LocalKernels  # what executes notebooks has no setting for it


def verdict_table() -> str:
    """Every claim with its number on the map, its verdict, where that holds, and the evidence,
    folded.
    """
    rows = ["| | claim | verdict | evidence |", "|---|---|---|---|"]
    for number, row in enumerate(readme.read(readme.PAPER / "claims.csv"), 1):
        verdict = ", ".join(
            filter(
                None, (f"{readme.SIGNS.get(row['verdict'], '–')} {row['verdict']}", row["scope"])
            )
        )
        evidence = f"<details><summary>show</summary>{cell(row['evidence'])}</details>"
        rows.append(f"| {number} | {cell(row['text'])} | {cell(verdict)} | {evidence} |")
    return "\n".join(rows)


def verdict_tiles() -> str:
    """A tile for each claim, which wraps where the page is narrow, and what its colours mean."""
    verdicts = [verdict for _, verdict in readme.verdicts().values()]

    def tile(verdict: str, text: str) -> str:
        tone, sign = figures.TONES.get(verdict, figures.OTHER), readme.SIGNS.get(verdict, "–")
        return f'<span class="tile" style="background: {tone}">{text}<b>{sign}</b></span>'

    tiles = [
        tile(verdict, f"{number} {name}")
        for number, (name, verdict) in enumerate(zip(readme.verdicts(), verdicts, strict=True), 1)
    ]
    keys = [tile(verdict, verdict) for verdict in dict.fromkeys(verdicts)]
    rows = (f'<div class="{kind}">{"".join(row)}</div>' for kind, row in
            (("tiles", tiles), ("tiles tile-keys", keys)))  # fmt: skip
    return "\n\n".join(rows)


def compare_times() -> str:
    """What `compare` takes on tables of several shapes, from the benchmarks."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^\| compare ([^|/:]+) / [^|]*\|[^|]*\|[^|]*\|[^|]*\| ([\d.]+) s,", text, re.M
    )
    return "\n".join(
        [
            "| rows × columns | seconds |",
            "|---|---|",
            *(f"| {shape} | {time} |" for shape, time in found),
        ]
    )


def commands() -> str:
    """Every command of the command line with its arguments and options, as its --help has them."""
    parts: list[str] = []

    def add(command: Any, above: Any, name: str) -> None:
        context = typer.Context(command, info_name=name, parent=above)
        path = context.command_path
        usage = " ".join(
            re.sub(r"\{(\w+)\}", r"\1", piece) for piece in command.collect_usage_pieces(context)
        )
        parts.append(f"## {path}\n{command.help}\n\n```console\n$ {path} {usage}\n```")
        records = [param.get_help_record(context) for param in command.get_params(context)]
        said = {
            names: re.sub(r"(?<![\w-])(--[\w-]+)", r"`\1`", cell(text))
            for names, text in filter(None, records)
        }
        lines = [f"| `{names}` | {text} |" for names, text in said.items() if "--help" not in names]
        parts.append("\n".join(["| argument or option | |", "|---|---|", *lines]) if lines else "")
        shown = (command.epilog or "").replace("For example: ", "")
        examples = [f"$ {line}" for line in shown.split("\n") if path in line]
        parts.append(
            "\n".join(["For example:", "```console", *examples, "```"]) if examples else ""
        )
        for each, one in getattr(command, "commands", {}).items():
            add(one, context, each)

    add(typer.main.get_command(make_app()), None, "rlploss")
    return "\n\n".join(filter(None, parts))


def cell(text: str) -> str:
    """Text as it stands in a cell of a Markdown table."""
    return " ".join(text.split()).replace("&", "&amp;").replace("|", "&#124;").replace("<", "&lt;")


def write_if_new(path: Path, text: str) -> None:
    """Files that have not changed are not read again."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def prepare(app: object) -> None:
    """Draw the figures, and collect what pages include."""
    figures.draw()
    write_if_new(HERE / "_parts" / "departures.md", notes.departures(HOME))
    write_if_new(HERE / "_parts" / "verdicts.md", verdict_table())
    write_if_new(HERE / "_parts" / "tiles.md", verdict_tiles())
    write_if_new(HERE / "_parts" / "commands.md", commands())
    write_if_new(HERE / "_parts" / "compare-times.md", compare_times())


def outside(app: object, document: str, source: list[str]) -> None:
    """Relative links that leave docs/ lead to the repository; those to a report, to the site's copy
    of it.
    """
    folder = (HERE / document).parent

    def lead(match: re.Match[str]) -> str:
        target = match[2]
        if target is None or target.startswith(("http", "#", "mailto:", "site:")):  # None: an image
            return match[0]
        path = (folder / target.partition("#")[0]).resolve()
        page = path.suffix == ".md" and path.is_relative_to(HERE) and "tables" not in path.parts
        if page or not path.exists():
            return match[0]
        if path.name == "report.html":
            return f"{match[1]}(site:{target})"
        kind, name = "tree" if path.is_dir() else "blob", path.relative_to(ROOT).as_posix()
        return f"{match[1]}({HOME}/{kind}/main/{name})"

    source[0] = re.sub(r"!\[[^\]]*\]\([^)]*\)|(\])\(([^)\s]+)\)", lead, source[0])


def reports(app: Any, error: Exception | None) -> None:
    """Put the stored reports on the site, with the tables and figures that they link to."""
    for page in sorted((HERE / "results").glob("*/report.html")) if error is None else ():
        there = Path(app.outdir) / page.parent.relative_to(HERE)
        for path in (page, *(page.parent / name for name in linked(page))):
            copy = there / path.relative_to(page.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def notebook(app: Any, error: Exception | None) -> None:
    """Put the tour on the site as a notebook with its outputs; its links lead back to the site."""
    made = Path(app.outdir).parent / "jupyter_execute" / "tour.ipynb"
    if error is None and made.exists():
        tour = nbformat.read(made, as_version=4)
        for part in tour.cells:
            if part.cell_type == "markdown":
                part.source = re.sub(r"\]\((\w+)\.md", rf"]({SITE}\1.html", part.source).replace(
                    "](site:", f"]({SITE}"
                )
        nbformat.write(tour, Path(app.outdir) / made.name)


def scrolling(app: object, tree: nodes.document) -> None:
    """Put every picture into a box that scrolls on a narrow screen."""
    for image in list(tree.findall(nodes.image)):
        if isinstance(image.parent, nodes.paragraph):
            image.parent["classes"].append("scrolls")
        else:
            image.replace_self(nodes.container("", image.deepcopy(), classes=["scrolls"]))


def buttons(app: object, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Pages that the build writes cannot be edited, or viewed, in the repository."""
    if page.startswith("api/"):
        context["theme_top_of_page_buttons"] = []


def linked(page: Path) -> list[str]:
    """The files beside a report that it links to."""
    found = dict.fromkeys(
        re.findall(r'href="((?:tables|figures)/[^"#]+)"', page.read_text(encoding="utf-8"))
    )
    return [name for name in found if (page.parent / name).exists()]


def plain(
    app: object, what: str, name: str, item: object, options: object, lines: list[str]
) -> None:
    """Docstrings are plain text with `code`, |J| and *: make them what reStructuredText means by
    that.
    """
    text, parts = "\n".join(lines), []
    for i, part in enumerate(text.split("`")):
        parts.append(part if i % 2 else part.replace("|", "\\|").replace("*", "\\*"))
    lines[:] = "``".join(parts).split("\n")


def short_types(
    app: object,
    what: str,
    name: str,
    item: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Show aliases of types by their names, wherever in a type they stand."""

    def shorten(text: str | None) -> str | None:
        return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)

    return shorten(signature), shorten(returns)


def setup(app: Any) -> None:
    """Connect all of them."""
    app.connect("autodoc-process-signature", short_types)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    app.connect("builder-inited", prepare)
    app.connect("source-read", outside)
    app.connect("doctree-read", scrolling)
    app.connect("html-page-context", buttons)
    app.connect("build-finished", reports)
    app.connect("build-finished", notebook)
