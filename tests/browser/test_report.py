"""The page of `kafkalog report` in a real browser: it renders, can be used, and runs and fetches nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path

import pytest
from builders.report_roots import HOSTILE, NOW_MS, hostile_facts, lively_root, many_partitions
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.report.page import PAGE_BYTES_MAX, render
from pyspark_kafkalog.units import printable
from tests.browser.page import BrowserPage

Show = Callable[[str], BrowserPage]
_SECTIONS = ["findings", "topics", "timeline", "partitions", "sizes", "history", "groups", "maintenance", "keys"]


@pytest.fixture(scope="module")
def lively_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("report") / "root"
    lively_root(root)
    return render(gather(LogDir.open(root).root, GatherOptions(), clock=lambda: NOW_MS))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_renders_without_errors(show: Show, lively_page: str, dark: bool, width: int) -> None:
    page = show(lively_page)
    page.set_up(dark=dark, width=width)
    page.driver.refresh()

    assert page.js("return 'ready' in document.documentElement.dataset")
    assert page.js("return [...document.querySelectorAll('main section')].map((each) => each.id)") == _SECTIONS
    assert not overflows(page), "wider than the window"
    red = page.js("return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert red < 64 if dark else red > 192
    assert not re.search(r"undefined|NaN|\[object|Infinity", page.text("body"))
    assert page.console() == []


def overflows(page: BrowserPage) -> bool:
    """Whether the page is wider than the window."""
    return bool(page.js("return document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_without_topics_has_findings_and_reasons_alone(show: Show, tmp_path: Path, dark: bool) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    page = show(render(gather(log_dir.root, GatherOptions())))
    page.set_up(dark=dark, width=390)
    page.driver.refresh()

    assert page.js("return [...document.querySelectorAll('main section')].map((each) => each.id)") == [
        "findings",
        "history",
    ]
    assert page.js("return document.querySelectorAll('svg, .tiles').length") == 0
    assert page.text("#colophon p") == "There are no topics."
    assert not overflows(page)
    assert page.console() == []


def test_title_is_first_on_a_phone_and_findings_follow_it(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    page.set_up(dark=False, width=390)
    page.driver.refresh()

    assert re.fullmatch(r"\d+ findings? · .*/root", page.driver.title)
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    tops = [page.js(top, each) for each in ("h1", "#contents", "#findings", ".tiles", "#topics")]
    assert tops == sorted(tops)
    assert tops[2] < 300


@pytest.mark.parametrize("topic", ["orders", "idle"])
def test_headings_tables_drawings_and_controls_are_named(show: Show, lively_page: str, topic: str) -> None:
    page = show(lively_page)
    choose(page, topic)

    levels = page.js("return [...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.js(
        "return [...document.querySelectorAll('table')].every((each) => each.caption && each.caption.textContent)"
    )
    assert page.js("return [...document.querySelectorAll('svg')].every((each) => each.getAttribute('aria-label'))")
    named = "(each) => each.getAttribute('aria-label') || each.textContent.trim()"
    assert page.js(f"return [...document.querySelectorAll('button, input, select, a, section')].every({named})")


def choose(page: BrowserPage, topic: str) -> None:
    page.js(
        "[...document.querySelectorAll('#topics .link')].find((each) => each.textContent === arguments[0]).click()",
        topic,
    )


def test_empty_partitions_are_folded_and_can_be_opened(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    fold = page.driver.find_element(
        By.XPATH, "//section[@id='partitions']//button[contains(text(), 'empty partitions')]"
    )
    assert "idle" not in page.text("#partitions tbody")
    assert fold.get_attribute("aria-expanded") == "false"

    fold.send_keys(Keys.ENTER)
    assert fold.get_attribute("aria-expanded") == "true"
    page.driver.find_element(By.CSS_SELECTOR, "#partitions th:nth-child(1) button").click()
    opened = page.text("#partitions .status")
    fold.click()
    assert page.text("#partitions .status") != opened
    page.driver.find_element(By.CSS_SELECTOR, "#partitions input").send_keys("idle")
    assert "1 to 15 of 30" in page.text("#partitions .status"), "a filter finds folded rows too"


def test_empty_lanes_are_folded_and_can_be_opened(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    lanes = "return [...document.querySelectorAll('#timeline .lane-name')].map((each) => each.textContent)"
    assert "idle" not in page.js(lanes)
    page.driver.find_element(By.CSS_SELECTOR, "#timeline .fold").click()
    assert "idle" in page.js(lanes)

    choose(page, "orders")
    assert page.js(lanes) == ["1", "0", "3", "2"], "the largest partition is first"
    choose(page, "idle")
    assert page.js("return document.querySelectorAll('#timeline svg').length") == 0
    page.driver.find_element(By.CSS_SELECTOR, "#timeline .fold").click()
    assert len(page.js(lanes)) == 24


def test_narrow_window_shows_main_columns_and_others_on_request(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    page.set_up(dark=False, width=390)
    page.driver.refresh()
    shown = "return [...document.querySelectorAll('#topics th')].filter((each) => each.offsetWidth).length"
    assert page.js(shown) == 3
    assert (
        page.js(
            "return [...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
            ".map((each) => each.getAttribute('aria-label'))"
        )
        == []
    )

    for each in page.driver.find_elements(By.CSS_SELECTOR, ".fold.wider"):
        page.js("arguments[0].click()", each)
    assert page.js(shown) == 9
    assert not overflows(page)


def test_page_fetches_nothing(show: Show, lively_page: str) -> None:
    page = show(lively_page)

    assert [url for url in page.requests() if not url.startswith("file:")] == []
    assert page.js("return performance.getEntriesByType('resource').length") == 0


def test_links_in_frame_of_notebook_stay_in_it(show: Show, lively_page: str) -> None:
    page = show(f'<!DOCTYPE html><iframe width="900" height="500" srcdoc="{escape(lively_page)}"></iframe>')
    page.driver.switch_to.frame(0)
    try:
        page.driver.find_element(By.CSS_SELECTOR, "#contents a[href='#partitions']").click()

        assert page.js("return location.href") == "about:srcdoc"
        assert page.js("return Math.abs(document.getElementById('partitions').getBoundingClientRect().top) < 100")
    finally:
        page.driver.switch_to.default_content()


def test_broker_directory_renders(show: Show, kafka_fixtures: Path) -> None:
    for name in ("transactions", "consumer-offsets", "compacted-2-cleaned"):
        page = show(render(gather(LogDir.open(kafka_fixtures / name).root, GatherOptions())))

        assert page.js("return 'ready' in document.documentElement.dataset")
        assert page.text(".kicker") == "A Kafka broker's log directory"
        assert page.console() == []


def test_theme_can_be_chosen(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    background = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(background)

    page.driver.find_element(By.CSS_SELECTOR, "[data-theme-choice=dark]").click()

    assert page.js(background) != light
    page.driver.find_element(By.CSS_SELECTOR, "[data-theme-choice=light]").click()
    assert page.js(background) == light
    page.driver.find_element(By.CSS_SELECTOR, "[data-theme-choice=auto]").click()


def test_print_is_white_in_dark_theme(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    page.driver.find_element(By.CSS_SELECTOR, "[data-theme-choice=dark]").click()
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert page.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.js("return getComputedStyle(document.querySelector('.table-tools')).display") == "none"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        page.js("document.querySelector('[data-theme-choice=auto]').click()")


def test_tables_filter_sort_and_page(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    driver = page.driver
    column = "#partitions tbody td:nth-child({})"
    driver.find_element(By.CSS_SELECTOR, "#partitions .fold:not(.wider)").click()

    assert page.text("#partitions .status").startswith("1 to 15 of ")
    driver.find_element(By.CSS_SELECTOR, "#partitions button[aria-label='Next page']").click()
    assert page.text("#partitions .status").startswith("16 to 30 of ")

    driver.find_element(By.CSS_SELECTOR, "#partitions input").send_keys("orders")
    assert set(page.texts(column.format(1))) == {"orders"}
    assert page.text("#partitions .status").startswith("1 to 4 of 4 ")

    heads = driver.find_elements(By.CSS_SELECTOR, "#partitions th button")
    heads[1].click()
    assert page.texts(column.format(2)) == ["3", "2", "1", "0"]
    heads[1].click()
    assert page.texts(column.format(2)) == ["0", "1", "2", "3"]
    assert driver.find_elements(By.CSS_SELECTOR, "#partitions th")[1].get_attribute("aria-sort") == "ascending"

    driver.find_element(By.CSS_SELECTOR, "#partitions input").send_keys(" nowhere")
    assert page.text("#partitions tbody") == "Nothing matches the filter."


def test_chosen_topic_shows_its_segments(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    choose(page, "orders")

    assert page.js("return document.querySelectorAll('#timeline .lane').length") == 4
    assert page.js("return document.querySelectorAll('#timeline rect.segment.active').length") == 4
    assert page.js("return document.querySelectorAll('#timeline rect.segment.closed').length") > 8
    assert "retention.ms" in page.text("#timeline .configs")
    for scale in ("By size", "By offset"):
        page.driver.find_element(By.XPATH, f"//section[@id='timeline']//button[text()='{scale}']").click()
        assert page.js("return document.querySelectorAll('#timeline rect.segment').length") > 12
    assert page.js("return document.querySelectorAll('#timeline .watermark').length") == 8
    assert page.console() == []


def test_segments_are_drawn_to_scale(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    choose(page, "orders")
    page.driver.find_element(By.XPATH, "//section[@id='timeline']//button[text()='By offset']").click()

    marks = page.js(
        "return [...document.querySelectorAll('#timeline .lane:first-of-type rect.segment')]"
        ".map((each) => [Number(each.getAttribute('x')), Number(each.getAttribute('width')), each.dataset.tip])"
    )

    offsets = [
        tuple(int(each.replace(",", "")) for each in re.search(r"offsets (\S+) to (\S+)", tip).groups())
        for _, _, tip in marks
    ]
    scale = (marks[-1][0] - marks[0][0]) / (offsets[-1][0] - offsets[0][0])
    for (x, width, _), (start, end) in zip(marks, offsets, strict=True):
        assert x - marks[0][0] == pytest.approx(scale * (start - offsets[0][0]), abs=0.5)
        assert width == pytest.approx(scale * (end - start), abs=1.5)


def test_keyboard_reaches_segments_and_tooltips(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    choose(page, "orders")
    first = page.driver.find_element(By.CSS_SELECTOR, "#timeline rect.segment[tabindex='0']")
    page.js("arguments[0].focus()", first)
    assert page.text("#tooltip").startswith("partition 1")

    first.send_keys(Keys.ARROW_RIGHT)
    here = page.js("return document.activeElement.dataset.tip")
    assert here != first.get_attribute("data-tip")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert page.js("return document.activeElement.dataset.tip").startswith("partition 0")
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.js("return document.getElementById('tooltip').hidden")


def test_10000_partitions_load_and_are_searched(show: Show) -> None:
    html = render(many_partitions(200, 50))
    assert len(html.encode()) < PAGE_BYTES_MAX

    page = show(html)
    assert page.js("return 'ready' in document.documentElement.dataset")
    assert page.text("#partitions .status") == "1 to 15 of 10,000"
    page.driver.find_element(By.CSS_SELECTOR, "#partitions input").send_keys("events.0199")
    assert page.text("#partitions .status") == "1 to 15 of 50 (of 10,000)"
    assert page.console() == []


def test_hostile_names_are_shown_and_not_run(show: Show) -> None:
    page = show(render(hostile_facts()))
    page.js("document.querySelector('#topics .link').click()")

    assert page.js("return 'ready' in document.documentElement.dataset")
    assert page.js("return window.pwned === undefined && document.images.length === 0")
    assert page.js("return document.querySelector('#topics tbody td').textContent") == printable(HOSTILE)
    assert page.js("return document.querySelectorAll('script').length") == 2
    assert page.console() == []


def test_added_scripts_and_images_are_refused(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    page.js(
        "const script = document.createElement('script'); script.textContent = 'window.pwned = 1';"
        "document.body.append(script);"
        "const image = document.createElement('img'); image.setAttribute('onerror', 'window.pwned = 2');"
        "image.src = 'https://kafkalog.invalid/x.png'; document.body.append(image);"
    )
    time.sleep(0.1)

    assert page.js("return window.pwned === undefined")
    refused = page.console()
    assert all("Content Security Policy" in message for message in refused)
    assert any("kafkalog.invalid/x.png" in message for message in refused)


def test_topic_names_break_after_separators_only(show: Show, tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("payments.europe-west.card_authorisations.by-merchant.aggregated_daily", 1)
    page = show(render(gather(LogDir.open(log_dir.path).root, GatherOptions())))
    page.set_up(dark=False, width=390)
    page.driver.refresh()

    lines = page.js(
        """
        const name = document.querySelector('#topics tbody td span'), lines = [];
        for (const part of name.childNodes) {
          if (part.nodeType !== Node.TEXT_NODE) continue;
          const range = document.createRange();
          range.selectNodeContents(part);
          const boxes = [...range.getClientRects()];
          if (boxes.length > 1) return ['broken within ' + part.textContent];
          if (!lines.length || lines.at(-1).top < boxes[0].top) lines.push({ top: boxes[0].top, text: '' });
          lines.at(-1).text += part.textContent;
        }
        return lines.map((each) => each.text);
        """
    )

    assert len(lines) > 1
    assert "".join(lines) == "payments.europe-west.card_authorisations.by-merchant.aggregated_daily"
    assert all(line[-1] in "._-" for line in lines[:-1])


def test_table_that_is_wider_than_window_shows_shadow_at_its_edge(show: Show, lively_page: str) -> None:
    page = show(lively_page)
    page.set_up(dark=False, width=390)
    page.driver.refresh()
    page.js("document.querySelector('#topics .fold.wider').click()")

    assert page.js("const box = document.querySelector('#topics .scroll'); return box.scrollWidth > box.clientWidth")
    assert "linear-gradient" in page.js(
        "return getComputedStyle(document.querySelector('#topics .scroll')).backgroundImage"
    )
