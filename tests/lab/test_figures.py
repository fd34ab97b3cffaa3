import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from rlploss.lab.figures import STYLES, Drawing, Figure, Line, Panel, data_rows, inline_svg, svg
from rlploss.lab.text import number


def line(label="MSE", style="blue", scale=1.0, band=True):
    x = np.arange(1.0, 30.0)
    y = scale * np.exp(-x / 10.0)
    return Line(label, style, x, y, *((0.8 * y, 1.2 * y) if band else ()))


def panel(title="Linear", **options):
    return Panel(title, "epochs", "test MSE", (line(), line("RLP", "vermillion", 0.1)), **options)


def picture(axes):
    axes.imshow(np.eye(4), cmap="gray")


@pytest.mark.parametrize(
    "shown", [panel(), panel(x_log=True, y_log=True), Drawing("d", picture, "an identity")]
)
def test_inline_svg_is_well_formed_described_and_self_contained(shown):
    text = inline_svg(shown, "fig-1")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert shown.describe() in root.get("aria-label")
    assert root.get("width") is None
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids
    assert all(i.startswith("fig-1-") for i in ids)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text):
        assert "".join(target) in ids
    outside = [u for u in re.findall(r'(?:href|src)="([^"#]+)"', text) if not u.startswith("data:")]
    assert outside == []


def test_ids_of_two_panels_do_not_clash():
    a, b = (set(re.findall(r'\bid="([^"]+)"', inline_svg(panel(), p))) for p in ("a", "b"))
    assert a.isdisjoint(b)


def test_colours_follow_the_page():
    text = inline_svg(panel(), "x")
    for style in ("blue", "vermillion"):
        assert f"var(--{style}, {STYLES[style][0]})" in text
    assert "var(--ink" in text


def test_text_is_escaped_and_stays_text():
    nasty = '<script>alert("x")</script> & more'
    text = inline_svg(panel(nasty), "x")
    assert "<script" not in text
    root = ElementTree.fromstring(text)
    assert nasty in root.get("aria-label")
    assert any(e.text == nasty for e in root.iter() if e.tag.endswith("text"))


def test_files_are_the_same_every_time():
    figure = Figure(
        "f", "title", "caption", (panel(), panel("Wine", levels=(("published", 0.2, "grey"),)))
    )
    assert svg(figure) == svg(figure)
    assert svg(Figure("f", "title", "caption", (panel(),))) != svg(figure)


def test_drawing_leaves_the_settings_of_matplotlib_alone(tmp_path):
    before = dict(mpl.rcParams)
    inline_svg(panel(), "x")
    svg(Figure("f", "t", "c", (panel(),)))
    assert dict(mpl.rcParams) == before


def test_a_panel_without_data_says_why():
    empty = Panel("MNIST", "epochs", "test MSE", note="not tested: no source")
    assert "not tested: no source" in empty.describe()
    assert "not tested: no source" in inline_svg(empty, "x")


def test_legend_has_every_line_once():
    figure = Figure("f", "t", "c", (panel(), panel(levels=(("published", 0.2, "grey"),))))
    assert figure.legend() == [
        ("MSE", "blue", False),
        ("RLP", "vermillion", False),
        ("published", "grey", True),
    ]


def test_data_rows_hold_what_is_drawn():
    rows = data_rows(Figure("f", "t", "c", (panel(), Drawing("d", picture, "alt"))))
    assert len(rows) == 2 * 29
    name, label, x, mean, low, high = rows[0]
    assert (name, label, x) == ("Linear", "MSE", 1.0)
    assert low < mean < high


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (2.6e-6, "2.60e-6"), (0.2271, "0.227"), (12.345, "12.3"), (4100, "4,100"), (float("nan"), "–"),
     (1e7, "1.00e7"), (-0.02, "-0.0200"), (0.99996, "1.00"), (999.9, "1,000")],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text


def test_a_number_needs_no_matplotlib():
    code = (
        "import sys; from rlploss.lab.text import number; print(number(0.5), 'matplotlib' in"
        " sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "0.500 False\n"


def test_a_long_title_stays_above_its_panel():
    def size(title):
        drawn = next(
            line
            for line in inline_svg(panel(title), "fig-1").splitlines()
            if f">{title}</text>" in line
        )
        return float(re.search(r"font(?:-size)?: (?:\w+ )?([\d.]+)px", drawn)[1])

    usual, long = size("Linear"), "MNIST, 5000 examples, mixup, accuracy, equal epochs"
    assert size("Wine, equal steps") == usual
    assert size(long) * 0.6 * len(long) < 72 * 3.0 < usual * 0.6 * len(long)
