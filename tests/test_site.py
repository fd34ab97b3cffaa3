"""The built site, looked at in a browser: `make docs` builds it."""

from pathlib import Path

import pytest
from tests.browser import Browser, find

SITE = Path(__file__).parents[1] / "site"
PAGES = ("index", "quickstart", "compare", "holds")
# What is cut at the right edge: it reaches past the window, and nothing around it scrolls.
CUT = """[...document.querySelectorAll('article *')].filter(element => {
  const box = element.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 1) return false;
  for (let parent = element; parent.tagName != 'ARTICLE'; parent = parent.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(parent).overflowX)) return false;
  return true;
}).map(element => element.tagName + ' ' + element.textContent.slice(0, 40))"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SITE.exists(), reason="the site is not built: make docs"),
    pytest.mark.skipif(find() is None, reason="no chromium on this machine"),
]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_that_matters_is_cut(chromium, name, width):
    page = chromium.open((SITE / f"{name}.html").as_uri(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []
    assert not [event for event in chromium.events if event["method"] == "Runtime.exceptionThrown"]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_tiles_wrap_and_can_be_read(chromium, width):
    page = chromium.open((SITE / "holds.html").as_uri(), width=width)
    tiles = "[...document.querySelectorAll('.tiles:not(.tile-keys) .tile')]"
    assert page.evaluate(f"{tiles}.length") >= 29
    assert (
        page.evaluate(
            f"Math.min(...{tiles}.map(tile => parseFloat(getComputedStyle(tile).fontSize)))"
        )
        >= 12
    )
    lines = page.evaluate(f"new Set({tiles}.map(tile => tile.getBoundingClientRect().top)).size")
    assert lines > (10 if width == 390 else 4)


def test_the_result_of_the_quickstart_fits_a_phone(chromium):
    page = chromium.open((SITE / "quickstart.html").as_uri(), width=390)
    output = "document.querySelector('.cell_output pre')"
    assert page.evaluate(f"{output}.scrollWidth <= {output}.clientWidth")
    assert "MSE with weight decay" in page.evaluate(f"{output}.textContent")


def test_formulas_need_no_network(chromium):
    chromium.open((SITE / "theory.html").as_uri(), width=1280)
    asked = [
        event["params"]["request"]["url"]
        for event in chromium.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


def test_the_sidebar_has_five_groups_of_at_most_twelve_pages(chromium):
    page = chromium.open((SITE / "index.html").as_uri(), width=1280)
    assert page.evaluate("document.querySelectorAll('.sidebar-tree .caption').length") == 5
    assert page.evaluate("document.querySelectorAll('.sidebar-tree > ul > li').length") <= 12
