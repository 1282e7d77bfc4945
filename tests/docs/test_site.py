"""The built site as a reader without internet has it: its files in a headless browser (`make test-docs`)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.docs.made import SITE

webdriver = pytest.importorskip("selenium.webdriver")
#: 404.html is for servers: it has addresses from their root on.
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if path.name != "404.html")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """Chromium of the system; no host can be found, and what a page asks for is logged."""
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--window-size=1400,1000", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(word)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver") or "")
    with webdriver.Chrome(options=options, service=service) as browser:
        browser.implicitly_wait(10)
        yield browser


@pytest.fixture
def browser(driver: Any) -> Iterator[Any]:
    """A test's; at its end no page has complained or asked another host."""
    driver.get_log("browser"), driver.get_log("performance")
    yield driver
    assert [line["message"] for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []
    assert [address for address in requests(driver) if not address.startswith(("file:", "data:", "blob:"))] == []


def requests(driver: Any) -> list[str]:
    found = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in found if one["method"] == "Network.requestWillBeSent"]
    return [address for address in sent if not address.startswith("chrome")]


def visit(driver: Any, page: str) -> None:
    driver.get(f"file://{SITE}/{page}")


def test_a_request_to_another_host_would_be_seen(driver: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://example.invalid/a.png"><script>missing();</script>')
    driver.get(f"file://{page}")

    assert "http://example.invalid/a.png" in requests(driver)
    assert any("missing is not defined" in line["message"] for line in driver.get_log("browser"))


def test_search_finds_a_page_and_opens_it(browser: Any) -> None:
    visit(browser, "index.html")
    field = browser.find_element("css selector", ".md-search__input")
    field.click()
    field.send_keys("pod gets share pictures")
    # Results come while it is typed, and change until the last letter.
    found = "//li[contains(@class,'md-search-result__item')]/a[contains(@href,'how-it-works.html')]"
    browser.find_element("xpath", found).click()
    assert browser.find_element("css selector", "h1").text.startswith("How it works")


def test_a_reader_gets_from_the_start_to_an_engine(browser: Any) -> None:
    visit(browser, "index.html")
    for section in ("Engines", "Kubernetes", "Reference", "Internals"):
        link = browser.find_element("xpath", f"//*[contains(@class,'md-tabs')]//a[normalize-space()='{section}']")
        link.click()
        assert browser.find_element("css selector", ".md-tabs__item--active").text == section
        assert browser.find_element("css selector", "h1").is_displayed()


def test_the_quick_start_leads_to_the_pages_it_names(browser: Any) -> None:
    visit(browser, "index.html")
    browser.find_element("css selector", ".md-content a[href$='user/installing.html']").click()
    assert browser.find_element("css selector", "h1").text.startswith("Installing")
    browser.back()
    browser.find_element("css selector", ".md-content a[href*='kubernetes/index.html#quick-start-on-one-node']").click()
    heading = browser.find_element("id", "quick-start-on-one-node")
    assert heading.is_displayed() and heading.rect["y"] > 0


def test_every_picture_is_drawn(browser: Any) -> None:
    for page in ("index.html", "user/how-it-works.html", "user/screens.html"):
        visit(browser, page)
        images = browser.find_elements("css selector", "article img")
        widths = [browser.execute_script("return arguments[0].naturalWidth", image) for image in images]
        assert images and all(widths), (page, widths)


@pytest.mark.timeout(900)
def test_pages_load_without_a_complaint(browser: Any) -> None:
    """Every page once; what they log is looked at when all were open."""
    for page in PAGES:
        visit(browser, page)
        assert browser.find_elements("css selector", "h1"), page


def test_no_page_names_a_file_of_another_host() -> None:
    wrong = []
    for page in PAGES:
        text = (SITE / page).read_text(encoding="utf-8")
        wrong += [
            (page, one) for one in re.findall(r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//[^"]*', text)
        ]
        wrong += [
            (page, one) for one in re.findall(r'<link[^>]+href="(?:https?:)?//[^"]*', text) if "canonical" not in one
        ]
    assert wrong == []


def test_pictures_have_no_font_of_another_host() -> None:
    pictures = [*SITE.rglob("*.svg")]
    assert pictures
    assert [
        path.name for path in pictures if re.search(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", path.read_text())
    ] == []
