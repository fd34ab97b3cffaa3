import pytest
from tests import browser
from tests.lab.test_report import NASTY, make
from tests.paper import world

from rlploss.lab import report
from rlploss.lab.report import Report
from rlploss.paper import claims
from rlploss.paper.request import Request
from rlploss.paper.sections import section, summary
from rlploss.paper.studies import CATALOG

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        browser.find() is None, reason="no Chromium found (set RLPLOSS_CHROMIUM to its path)"
    ),
]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """The whole report: every table and figure, every claim."""
    request = Request("paper", seeds=3)
    results = world.results(request, "gone")
    judged = tuple(claims.all_claims(results))
    sections = tuple(section(results[name]) for name in CATALOG)
    made = Report(
        "Everything", (summary(results, judged, "quick"),), sections, judged, footer=("end",)
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report.html(made), encoding="utf-8")
    return path, sum(len(f.panels) for s in sections for f in s.figures)


@pytest.mark.parametrize("width", [360, 1280])
def test_every_figure_is_visible_and_nothing_overflows(chromium, page_file, width):
    path, panels = page_file
    page = chromium.open(path.as_uri(), width=width)
    assert page.errors() == []
    assert page.requests() == [path.as_uri()]
    boxes = page.evaluate(
        "[...document.querySelectorAll('.panel > svg')].map(s => { const b ="
        " s.getBoundingClientRect(); return [b.left, b.right, b.width, b.height] })"
    )
    assert len(boxes) == panels
    for left, right, wide, high in boxes:
        assert left >= 0
        assert right <= width + 1
        assert wide > 200
        assert high > 60
    # The page itself never scrolls sideways; wide tables scroll in their own box.
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_table_is_wider_than_the_page(chromium, page_file):
    page = chromium.open(page_file[0].as_uri(), width=1265)  # 1280 with a scroll bar of its own
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth)"
        ".map(s => s.getAttribute('aria-label') + ' ' + s.scrollWidth)"
    )
    assert wide == []


def test_every_claim_has_a_tile_that_leads_to_its_evidence(chromium, page_file):
    page = chromium.open(page_file[0].as_uri(), width=1280)
    tiles = page.evaluate("[...document.querySelectorAll('.map a')].map(a => a.innerText)")
    assert len(tiles) == 33
    untested = [tile for tile in tiles if "reproduced" not in tile and "undecided" not in tile]
    assert [tile.splitlines()[0] for tile in untested] == ["elapsed-time"]
    height = page.evaluate("document.querySelector('.map').getBoundingClientRect().bottom")
    assert height < 800  # one glance


@pytest.mark.parametrize("width", [360, 1280])
def test_text_in_figures_is_large_enough_to_read(chromium, page_file, width):
    page = chromium.open(page_file[0].as_uri(), width=width)
    sizes = page.evaluate(
        "[...document.querySelectorAll('.panel svg text')].map(t =>"
        " t.getBoundingClientRect().height).filter(h => h > 0)"
    )
    assert min(sizes) > 7


def test_every_figure_has_a_text_alternative_and_every_link_a_target(chromium, page_file):
    page = chromium.open(page_file[0].as_uri(), width=1280)
    named = (
        "[...document.querySelectorAll('.panel > svg')].every(s => s.getAttribute('role') ==="
        " 'img' &&"
    )
    assert page.evaluate(f"{named} s.getAttribute('aria-label').length > 20)")
    assert page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].every(a =>"
        " document.getElementById(a.hash.slice(1)))"
    )
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead)")


def _contrast(chromium, path, dark):
    page = chromium.open(path.as_uri(), width=1280, dark=dark)
    return page.evaluate("""(() => {
        const lum = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => { x /= 255;
            return x <= 0.03928 ? x / 12.92 : Math.pow((x + 0.055) / 1.055, 2.4) });
            return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
        const page = lum(getComputedStyle(document.body).backgroundColor); const ratio = c => { const l =
        lum(c); return (Math.max(l, page) + 0.05) / (Math.min(l, page) + 0.05) }; const text =
        [...document.querySelectorAll('p, h1, h2, td, th, .panel svg text')]
            .map(e => ratio(e instanceof SVGElement ? getComputedStyle(e).fill : getComputedStyle(e).color));
        const lines = [...document.querySelectorAll('.legend line')].map(e =>
        ratio(getComputedStyle(e).stroke));
        return [Math.min(...text), Math.min(...lines)] })()""")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_lines_stand_out_in_light_and_dark(chromium, page_file, dark):
    text, lines = _contrast(chromium, page_file[0], dark)
    assert text >= 4.5
    assert lines >= 3.0


def test_hostile_text_is_shown_as_text(chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report.html(make(NASTY)), encoding="utf-8")
    page = chromium.open(path.as_uri(), width=360)
    assert page.errors() == []
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.body.innerText.includes('<script>alert(\"x\")</script>')")
