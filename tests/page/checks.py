"""What a page must show and do, each as a line that holds or does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.page.browser import NARROW, WIDE, Browser

Row = tuple[str, bool]


def looks(browser: Browser, path: Path, name: str) -> Iterator[Row]:
    """Light and dark, narrow and wide: nothing complained, nothing overflows, nothing fetched."""
    grounds = {}
    for scheme in ("light", "dark"):
        for size in (NARROW, WIDE):
            browser.prefer(scheme)
            browser.resize(size)
            browser.open(path)
            how = f"{name}, {scheme}, {size[0]} wide"
            yield f"{how}: the console is empty", browser.complaints() == []
            wide = browser.ask("document.documentElement.scrollWidth")
            yield f"{how}: nothing is wider than the window", wide <= size[0]
            grounds[scheme] = browser.ask("getComputedStyle(document.body).backgroundColor")
    yield f"{name}: light and dark differ", grounds["light"] != grounds["dark"]
    browser.click("#theme")
    now = browser.ask("getComputedStyle(document.body).backgroundColor")
    yield f"{name}: the button switches", now == grounds["light"]
    fetched = browser.ask("performance.getEntriesByType('resource').length")
    yield f"{name}: nothing is fetched", fetched == 0
    browser.prefer("light")
    browser.open(path)


def shows(browser: Browser) -> Iterator[Row]:
    """What the page of a two-rank run must show."""
    tiles = browser.ask(
        "Object.fromEntries([...document.querySelectorAll('.tiles div')].map("
        "(d) => [d.querySelector('dt').textContent, d.querySelector('dd').textContent]))"
    )
    yield "one build, one load", (tiles["built"], tiles["loaded"]) == ("1", "1")
    cells = browser.ask(
        "[...document.querySelectorAll('.ranks tbody tr')].map("
        "(r) => [r.cells[0].textContent, r.cells[2].textContent.trim().split(' ')[0], "
        "r.querySelector('code').title])"
    )
    yield "both ranks", sorted(row[:2] for row in cells) == [["0", "built"], ["1", "loaded"]]
    yield "equal digests", len({row[2] for row in cells}) == 1 and len(cells[0][2]) == 64
    yield "it says so", "ran the same code" in browser.ask("document.body.innerText")
    rows = browser.ask("document.querySelectorAll('.timeline .row').length")
    bars = browser.ask("document.querySelectorAll('.timeline .bar').length")
    yield "a timeline of both ranks", rows == 2 and bars >= 8
    curve = browser.ask(
        "[...document.querySelectorAll('.chart')].filter((c) => c.textContent.startsWith('loss'))"
        ".map((c) => c.querySelector('path').getAttribute('d').split('L').map("
        "(p) => +p.split(' ')[1]))[0]"
    )
    yield "a loss curve that falls", bool(curve) and len(curve) > 5 and curve[-1] > curve[0]
    yield (
        "collectives by axis",
        browser.ask("document.querySelectorAll('.collectives tbody tr').length") > 0,
    )
    yield "the check", browser.ask("document.querySelectorAll('.check li').length") > 0
    command = browser.ask("document.querySelector('.copy code').textContent")
    yield "a line that reproduces it", "torchrun --nproc-per-node 2 " in command


def clicks(browser: Browser) -> Iterator[Row]:
    """What the page does when it is clicked through, and by keys alone."""
    bars = "document.querySelectorAll('.timeline .bar').length"
    before, axis = browser.ask(bars), browser.ask("document.querySelector('.axis').textContent")
    browser.click(".keys button[aria-pressed]")
    yield "a phase can be hidden", browser.ask(bars) < before
    browser.click(".keys button[aria-pressed]")
    yield "and shown again", browser.ask(bars) == before
    browser.click("button[aria-label='zoom in']")
    yield "it zooms", browser.ask("document.querySelector('.axis').textContent") != axis
    browser.click("button[aria-label='show all times']")
    yield "and back", browser.ask("document.querySelector('.axis').textContent") == axis
    browser.click(".copies")
    text = browser.ask("document.querySelector('.copies').textContent")
    yield "the line is copied", text in ("copied", "selected")
    browser.driver.execute_script("document.activeElement.blur()")
    seen: list[str] = []
    here = (
        "(document.activeElement.id || '') + ' ' + document.activeElement.getAttribute('class') + "
        "' ' + document.activeElement.tagName"
    )
    for _ in range(40):
        browser.press("TAB")
        seen.append(browser.ask(here))
    whole = " ".join(seen)
    for part, word in (
        ("the theme", "theme "), ("the timeline", "row "), ("a table", "scroll "),
        ("a curve", "svg"), ("the copy", "copies"),
    ):  # fmt: skip
        yield f"Tab reaches {part}", word in whole
    browser.driver.execute_script("document.querySelector('.row[tabindex=\"0\"]').focus()")
    browser.press("ARROW_DOWN")
    told = browser.ask("document.querySelector('.timeline .tell').textContent")
    yield "arrows move between ranks, and tell their times", told.startswith("rank 1: ")
    browser.driver.execute_script("document.querySelector('.chart svg').focus()")
    browser.press("HOME", "ARROW_RIGHT")
    told = browser.ask("document.querySelector('.chart .tell').textContent")
    yield "arrows move along a curve", told.startswith("step 2: ")
    yield "the console is still empty", browser.complaints() == []


def many(browser: Browser, world: int) -> Iterator[Row]:
    """A run of very many ranks: they are groups, which open."""
    rows = "document.querySelectorAll('.timeline .row').length"
    yield "ranks that did alike are one row", browser.ask(rows) == 2
    browser.click(".row[aria-expanded='false']")
    yield "a group opens, and only what is seen is drawn", 10 < browser.ask(rows) < 60
    browser.driver.execute_script("document.querySelector('.row[data-at=\"1\"]').focus()")
    browser.press("END")
    told = browser.ask("document.querySelector('.timeline .tell').textContent")
    yield "its last rank is one key away", told.startswith(f"rank {world - 1}: ")
    yield "the console is empty", browser.complaints() == []


def graph(browser: Browser) -> Iterator[Row]:
    """The page of an artifact: folded, searched, its collectives marked."""
    browser.click("#unfold")
    spent = browser.ask(
        "(() => { const at = performance.now(), s = document.getElementById('search'); "
        "s.value = 'layers.31.attention.wo all_reduce'; s.dispatchEvent(new Event('input')); "
        "document.getElementById('graph').offsetHeight; return performance.now() - at })()"
    )
    told = browser.ask("document.getElementById('count').textContent")
    yield f"a search of all nodes takes {spent:.0f} ms, 200 at most", spent <= 200
    yield f"it finds what it should ({told})", told.startswith("2 of ")
    yield (
        "collectives are marked",
        browser.ask("document.querySelectorAll('.node.call').length") == 2,
    )
    drawn = browser.ask("document.querySelectorAll('.node').length")
    browser.ask("(() => { const s = document.getElementById('search'); s.value = ''; "
                "s.dispatchEvent(new Event('input')) })()")  # fmt: skip
    all_drawn = browser.ask("document.querySelectorAll('.node').length")
    yield "only what is seen is drawn", drawn == 2 and all_drawn < 100
    browser.click(".find")
    yield "a line leads to its nodes", browser.ask("document.getElementById('search').value") != ""
    yield "the console is empty", browser.complaints() == []
