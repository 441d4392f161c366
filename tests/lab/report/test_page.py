"""The page in a real Chromium: it renders, asks the network for nothing, sorts, hides, and fits every screen."""

from __future__ import annotations

import base64
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.report import samples
from tests.lab.report.browser import CHROMIUM, Browser

from hora.lab.report.write import Written, write

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

PHONE = 390


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Everything there is, on one page."""
    place = tmp_path_factory.mktemp("report")
    for make in (samples.scaling, samples.throughput, samples.quality, samples.sweep, samples.study, samples.gan):
        make(place / "runs" / make.__name__)
    samples.run(place / "runs" / "alone-1", 1)
    samples.run(place / "runs" / "alone-2", 2)
    return write([place / "runs", samples.bench(place / "bench.json")], place / "report.html")


@pytest.fixture(scope="module")
def browser(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.look()
        opened.open(written.page)
        yield opened


def test_it_renders_without_a_complaint_and_without_a_request(browser: Browser, written: Written) -> None:
    figures = browser.value("document.querySelectorAll('figure').length")
    assert figures == len(written.plots) / 4 > 8
    assert browser.value("[...document.querySelectorAll('figure')].every(f => f.querySelector('.plot svg path'))")
    assert browser.complaints == []
    assert browser.requests == [written.page.resolve().as_uri()]
    assert written.page.stat().st_size < 1_500_000


def test_nothing_could_fetch_anything(browser: Browser) -> None:
    """Not that it only does not today: the page's own policy forbids it."""
    refused = "fetch('https://example.org/').then(() => 'fetched', () => 'refused')"
    assert browser.value(refused) == "refused"
    browser.complaints.clear()  # the browser says so, as it should


def column(browser: Browser, table: str, number: int) -> list[float]:
    found = browser.value(f"[...{table}.tBodies[0].rows].map(row => row.cells[{number}].dataset.sort)")
    return [float(value) for value in found]


def test_tables_sort_by_click_and_by_key(browser: Browser) -> None:
    table = "[...document.querySelectorAll('#throughput table')][0]"
    headings = browser.value(f"[...{table}.tHead.rows[0].cells].map(cell => cell.innerText.trim())")
    number = headings.index("images/s")
    heading = f"{table}.tHead.rows[0].cells[{number}]"
    before = column(browser, table, number)
    assert before != sorted(before)
    browser.value(f"{heading}.querySelector('button').click()")
    assert column(browser, table, number) == sorted(before)
    assert browser.value(f"{heading}.getAttribute('aria-sort')") == "ascending"
    browser.value(f"{heading}.querySelector('button').focus()")
    browser.press("Enter")
    assert column(browser, table, number) == sorted(before, reverse=True)
    assert browser.value(f"{heading}.getAttribute('aria-sort')") == "descending"
    # whole rows move, and only one column says that it is sorted
    rates = browser.value(f"[...{table}.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText))")
    assert (rates[0][headings.index("workers")], rates[0][headings.index("batch")]) == ("4", "128")
    assert browser.value(f"{table}.querySelectorAll('[aria-sort]').length") == 1


def test_the_legend_hides_a_series_and_shows_it_again(browser: Browser) -> None:
    figure = "document.querySelector('#plot-throughput-by-batch')"
    marks = f"{figure}.querySelectorAll('.mark-symbol path').length"
    button = f"{figure}.querySelector('.legend button')"
    everything = browser.value(marks)
    assert everything == 9  # three batches on three numbers of workers
    browser.value(f"{button}.click()")
    browser.wait_for(f"{marks} === {everything - 3}")
    assert browser.value(f"{button}.getAttribute('aria-pressed')") == "false"
    browser.value(f"{button}.focus()")
    browser.press("Enter")
    browser.wait_for(f"{marks} === {everything}")
    assert browser.value(f"{button}.getAttribute('aria-pressed')") == "true"


@pytest.mark.parametrize("width", [PHONE, 800, 1300])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_every_screen(browser: Browser, width: int, dark: bool) -> None:
    browser.look(width=width, dark=dark)
    browser.wait_for(f"innerWidth === {width}")
    assert browser.value("document.documentElement.scrollWidth") <= width
    # what is wider than the page scrolls inside a box of its own
    inside = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg, details'))"
    over = f"{inside}.filter(e => e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))"
    browser.wait_for(f"{over}.length === 0")
    tables = "[...document.querySelectorAll('.scroll')].filter(box => box.clientWidth)"
    browser.wait_for(f"{tables}.every(box => box.scrollWidth <= box.clientWidth)")  # no table scrolls either
    cards = browser.value(f"{tables}.filter(box => box.classList.contains('cards')).length")
    assert (cards > 0) == (width < 1300)  # on a phone, lists of cards; on a desk, tables
    browser.look()


def test_a_table_is_cards_on_a_phone_and_a_table_again(browser: Browser) -> None:
    box = "document.querySelector('#scaling .scroll')"
    browser.look(width=PHONE)
    browser.wait_for(f"{box}.classList.contains('cards')")
    cell = f"{box}.querySelector('td[data-label=\\'images/s\\']')"
    assert browser.value(f"getComputedStyle({cell}, '::before').content") == '"images/s"'
    browser.look(width=1300)
    browser.wait_for(f"!{box}.classList.contains('cards')")
    browser.look()


def test_predictions_are_hollow_and_dotted(browser: Browser) -> None:
    figure = "document.querySelector('#plot-study-speed-up-1')"
    fills = f"[...{figure}.querySelectorAll('.mark-symbol path')].map(path => getComputedStyle(path).fill)"
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert browser.value(fills).count(paper) == 4  # two series on four and on eight workers
    dashes = browser.value(
        f"[...{figure}.querySelectorAll('.mark-line path')].map(path => path.getAttribute('stroke-dasharray'))"
    )
    assert dashes.count("1,4") == 2
    row = "document.querySelector('#study tr.predicted')"
    assert "≈" in browser.value(f"{row}.innerText") and "predicted" in browser.value(f"{row}.innerText")


def test_the_way_from_ideal_to_measured_is_drawn(browser: Browser) -> None:
    """Each bar begins where the one before it ends, and has its figure beside it."""
    figure = "document.querySelector('#plot-way-scaling-weak')"
    bars = f"[...{figure}.querySelectorAll('.mark-rect path')].map(path => path.getBoundingClientRect())"
    edges = browser.value(f"{bars}.map(box => [box.left, box.right])")
    assert len(edges) == 6
    for (_, end), (begin, _) in itertools.pairwise(edges[:5]):
        assert abs(end - begin) < 2
    words = browser.value(f"{figure}.querySelector('svg').textContent")
    assert "waiting" in words and "8.3 %" in words and "a step" in words


def test_words_and_marks_can_be_read_in_both_schemes(browser: Browser) -> None:
    """By the WCAG's formula: 4.5 for words, 3 for marks."""
    script = """(() => {
      const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(c => c / 255)
          .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const paper = light(getComputedStyle(document.body).backgroundColor);
      const low = [];
      for (const element of document.querySelectorAll('h1, p, td, dt, th button, nav a'))
        if (contrast(light(getComputedStyle(element).color), paper) < 4.5) low.push(element.outerHTML.slice(0, 60));
      for (const mark of document.querySelectorAll('.mark-symbol path'))
      {
        const style = getComputedStyle(mark);  // what is predicted is hollow: its rim counts
        const hollow = style.fill === getComputedStyle(document.body).backgroundColor;
        const seen = hollow ? style.stroke : style.fill;
        if (contrast(light(seen), paper) < 3) low.push(seen);
      }
      return [...new Set(low)].slice(0, 5);
    })()"""
    for dark in (False, True):
        browser.look(dark=dark)
        browser.wait_for(f"matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
        assert browser.value(script) == []
    browser.look()


def test_it_prints_on_white_paper(browser: Browser, tmp_path: Path) -> None:
    browser.look(dark=True)
    made = browser("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
    pdf = base64.b64decode(made)
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000
    browser.look(media="print", dark=True)
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.look()


def test_the_plots_are_files_too(written: Written) -> None:
    kinds = {path.suffix for path in written.plots}
    assert kinds == {".svg", ".png", ".pdf", ".csv"} and written.plots[0].parent.name == "report-plots"
    for path in written.plots:
        if path.suffix == ".svg":
            root = ET.parse(path).getroot()
            assert root.tag.endswith("svg") and float(root.get("width", "0")) > 300
            assert len([e for e in root.iter() if e.tag.endswith("path")]) > 3
            assert "var(--" not in path.read_text()  # nobody but the page knows these colours
        elif path.suffix == ".csv":
            first, *rows = path.read_text().splitlines()
            assert "series" in first or ("row" in first and rows)
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")
        else:
            assert path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 5_000


def test_what_comes_from_outside_is_words_and_not_markup(browser: Browser) -> None:
    assert browser.value("document.querySelector('.findings code').innerText") == "hora doctor"
    assert "<logging> &" in browser.value("document.querySelector('.findings').innerText")
