import csv
import io
import re
from html.parser import HTMLParser

import pytest
from tests.lab.test_figures import panel

from rlploss._files import write_text
from rlploss.lab import report
from rlploss.lab.figures import Figure
from rlploss.lab.report import Claim, Report, Section, Table, Text
from rlploss.lab.text import csv_text, markdown_text

NASTY = '</style><script>alert("x")</script>=1+1'


def make(text="plain"):
    table = Table(
        "t1", f"Table {text}", ("dataset", "value"), (("Linear", Text("0.2", "good")), (text, "0.3")),
        data_header=("dataset", "value"), data_rows=(("linear", 0.1 + 0.2), (text, 3)), notes=(text,),
    )  # fmt: skip
    figure = Figure("f1", f"Figure {text}", text, (panel(), panel(text)))
    section = Section(
        "s1",
        f"Section {text}",
        "s",
        (text,),
        (table,),
        (figure,),
        (("Seeds", text),),
        f"run {text}",
    )
    claim = Claim("c1", text, "reproduced", "good", text, text)
    return Report(f"Title {text}", (text,), (section,), (claim,), footer=(text,))


class Checker(HTMLParser):
    """Counts open and closed elements and collects what a page would load."""

    VOID = ("meta", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.ids, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        for name in ("src", "href", "xlink:href"):
            value = attrs.get(name, "")
            if tag != "a" and value and not value.startswith(("#", "data:")):
                self.loads.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


def test_the_page_is_well_formed_and_loads_nothing():
    page = checked(report.html(make()))
    assert page.loads == []
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert page.tags.count("svg") >= 2
    assert page.tags.count("h1") == 1


def test_everything_shown_is_escaped():
    text = report.html(make(NASTY))
    page = checked(text)
    assert "script" not in page.tags
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_tables_have_headers_for_screen_readers_and_links_have_targets():
    text = report.html(make())
    assert text.count('<th scope="row"') == 2
    assert text.count('<th scope="col"') == 2
    ids = set(checked(text).ids)
    assert set(re.findall(r'<a[^>]*href="#([^"]+)"', text)) <= ids


def test_the_legend_shows_each_line_as_it_is_drawn():
    figure = Figure("f1", "Figure", "", (panel(levels=(("published", 0.2, "green"),)),))
    text = report.html(Report("Title", (), (Section("s1", "Section", figures=(figure,)),)))
    assert re.findall(r'stroke-dasharray="([^"]*)" style="stroke: var\(--(\w+)', text) == [
        ("", "blue"), ("", "vermillion"), ("1.5,2", "green")
    ]  # fmt: skip


def test_write_gives_every_table_and_figure_as_files(tmp_path):
    written = report.write(make(), tmp_path)
    assert written[0] == tmp_path / "report.html"
    names = sorted(p.relative_to(tmp_path).as_posix() for p in written[1:])
    assert names == ["figures/f1.csv", "figures/f1.svg", "tables/t1.csv", "tables/t1.md"]
    rows = list(csv.reader(io.StringIO((tmp_path / "tables/t1.csv").read_text())))
    assert rows[1] == ["linear", repr(0.1 + 0.2)]
    text = (tmp_path / "report.html").read_text()
    for name in names:
        if not name.endswith(".md"):
            assert f'href="{name}"' in text
    before = {p: p.read_bytes() for p in written}
    assert {p: p.read_bytes() for p in report.write(make(), tmp_path)} == before


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"table 't' has 2 columns, got a row of 1: \('x',\)"):
        Table("t", "t", ("a", "b"), (("x",),))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_cells_are_never_formulas(start):
    text = csv_text(("h",), [(f"{start}cmd|' /C calc'!A0",), (-1.5,), (3,), (None,)])
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[1][0].startswith("'")
    assert rows[2:] == [["-1.5"], ["3"], [""]] or rows[2:] == [["-1.5"], ["3"], []]


def test_markdown_cells_stay_in_their_cells():
    text = markdown_text(("a", "b"), [("x|y\nz", "<b>")])
    assert text.splitlines()[2] == "| x\\|y z | &lt;b> |"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
