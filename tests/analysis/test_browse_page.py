"""The page of `grpobench browse` in a real browser: clicks lead to texts, and a text stays text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import Browser, browsing, installed
from helpers.hostile import HOSTILE, LONG
from helpers.many_texts import completion, pack, write_run
from helpers.served import served

from grpobench.analysis.browse.browsing import write_page
from grpobench.analysis.browse.store import Filters
from grpobench.analysis.tools.text import visible

COMMAND = installed()
pytestmark = pytest.mark.skipif(
    COMMAND is None, reason="no Chromium is installed (Debian: apt install chromium)"
)
SAME, WRONG = "the sum of 2 and 3 is 5", "the sum of 2 and 3 is 6"


def numbers_of(text: str) -> dict[str, list[float | None]]:
    """A token per character: each fourth one unlikely, each fifth one the environment's, all pushed down."""
    logp = [None if n % 5 == 4 else -3.0 if n % 4 == 0 else -0.1 for n in range(len(text))]
    return {"characters": [1] * len(text), "logp": logp, "advantage": [-1.25] * len(text)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arm `a` loses problem p0 from step 1 to 4; at step 9 problem h is answered by hostile texts."""
    folder = tmp_path_factory.mktemp("results") / "small"
    for arm, last in (("a", WRONG), ("b", SAME)):
        run = write_run(folder, arm, 1)
        for step, text in ((1, SAME), (4, last)):
            rows = [
                {
                    "problem": f"p{n}",
                    "prompt": "2 + 3?",
                    "completions": [completion(text if n == 0 else SAME, float(n > 0 or text == SAME))],
                }
                for n in range(20)
            ]
            pack(run / "rollouts" / f"step-{step}.jsonl.zst", rows)
    measured = {
        "problem": "t",
        "prompt": "2 + 3?",
        "completions": [
            completion(text, 0.0, token_numbers=numbers_of(text))
            for text in (SAME, *HOSTILE[:3], "\U0001f600!")
        ],
    }
    pack(folder / "a-sums-s1" / "rollouts" / "step-8.jsonl.zst", [measured])
    hostile = {
        "problem": "h",
        "prompt": HOSTILE[0],
        "completions": [completion(text, 0.0, failed_test=text[:300]) for text in HOSTILE],
    }
    pack(folder / "a-sums-s1" / "rollouts" / "step-9.jsonl.zst", [hostile])
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert COMMAND is not None
    with browsing(COMMAND, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module", params=["file", "server"])
def page(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path | str]:
    """One file with the rows inside, and the page of a server."""
    if request.param == "file":
        path = tmp_path_factory.mktemp("page") / "page.html"
        write_page(root, Filters(), path)
        yield path
        return
    with served(root) as address:
        yield address


def wait(browser: Browser, condition: str) -> Any:
    """The first value of an expression that is true, within ten seconds."""
    return browser.ask(
        "(async () => { for (let i = 0; i < 500; i++) { const value = (() => { try { return "
        f"{condition}; }} catch {{ return null; }} }})(); if (value) return value; "
        "await new Promise(done => setTimeout(done, 20)); } })()"
    )


def choose(browser: Browser, label: str, value: Any, count: int) -> None:
    """Set a filter as a user does, and wait until so many completions are left."""
    assert wait(browser, "document.querySelectorAll('#texts tbody tr').length")  # a server has answered
    browser.ask(
        f"(() => {{ const field = document.querySelector('[aria-label=\"{label}\"]'); field.value = "
        f"{json.dumps(value if isinstance(value, str) else json.dumps(value))};"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert wait(browser, f"document.querySelector('#state').textContent === '{count} completions'")


def click(browser: Browser, selector: str, text: str = "") -> None:
    assert wait(
        browser,
        f"(one => one && (one.click(), true))([...document.querySelectorAll('{selector}')]"
        f".find(one => one.textContent.includes({json.dumps(text)})))",
    )


def texts(browser: Browser, selector: str) -> list[str]:
    shown: list[str] = browser.ask(
        f"[...document.querySelectorAll('{selector}')].map(one => one.textContent)"
    )
    return shown


def test_a_lost_answer_is_four_clicks_away_with_its_difference_marked(
    browser: Browser, page: Path | str
) -> None:
    browser.show(page, 1400, "light")
    assert wait(browser, "document.querySelectorAll('#texts tbody tr').length") == 15  # of 92
    choose(browser, "since the first step", ["lost"], 1)
    click(browser, "#texts tbody tr")
    click(browser, "#detail button", "step 1: right")
    assert wait(browser, "document.querySelectorAll('.pair pre').length === 2")
    assert texts(browser, ".pair pre") == [WRONG, SAME] and texts(browser, ".pair mark") == ["6", "5"]
    click(browser, "#detail button", "b: right")
    assert wait(browser, "document.querySelector('.pair div:nth-child(2) h2').textContent.startsWith('b, ')")
    assert texts(browser, ".pair mark") == ["6", "5"] and "2 + 3?" in texts(browser, "#detail pre")
    assert "right" in texts(browser, ".pair dd") and "wrong" in texts(browser, ".pair dd")
    click(browser, "#detail button", "at every step")
    assert wait(browser, "document.querySelector('#state').textContent === '2 completions'")
    assert [text[:2] for text in texts(browser, "#texts tbody tr")] == ["as", "as"]  # arm a, task sums
    assert browser.errors == []


def test_hostile_texts_are_shown_as_text(browser: Browser, page: Path | str) -> None:
    browser.show(page, 1400, "dark")
    choose(browser, "step", [9], len(HOSTILE))
    title = browser.ask("document.title")
    for number, text in enumerate(HOSTILE):
        browser.ask(f"document.querySelectorAll('#texts tbody tr')[{number}].click()")
        assert wait(browser, f"document.querySelector('.pair h2').textContent.endsWith('sample {number}')")
        if text == LONG:
            assert len(texts(browser, ".pair pre")[0]) < len(LONG)
            click(browser, "#detail button", "show all 1,000,000 characters")
        assert texts(browser, ".pair pre") == [visible(text)]
        assert texts(browser, "#detail pre")[0] == HOSTILE[0]  # the prompt
        assert visible(text[:300]) in texts(browser, ".pair dd")  # the failed test
    assert browser.ask("[document.title, document.images.length, document.scripts.length]") == [title, 0, 2]
    assert browser.errors == []


def test_tokens_are_colored_by_what_is_stored_and_hostile_ones_stay_text(
    browser: Browser, page: Path | str
) -> None:
    browser.show(page, 1400, "light")
    choose(browser, "step", [8], 5)
    title = browser.ask("document.title")
    browser.ask("document.querySelectorAll('#texts tbody tr')[0].click()")
    assert wait(browser, "!!document.querySelector('#colors')")
    assert texts(browser, "#colors button") == ["log-probability", "advantage"]  # no entropy, no ratio
    assert texts(browser, ".pair .token") == []
    click(browser, "#colors button", "log-probability")
    assert wait(browser, "document.querySelectorAll('.pair .token').length")
    unlikely = [n for n in range(len(SAME)) if n % 4 == 0 and n % 5 != 4]
    assert texts(browser, ".pair .high3") == [SAME[n] for n in unlikely]  # 3 nats: from 2 on, below 4
    assert len(texts(browser, ".pair .token")) == sum(n % 5 != 4 for n in range(len(SAME)))
    assert (
        browser.ask("document.querySelector('.pair .token').title") == "log-probability -3\nadvantage -1.25"
    )
    shades = browser.ask(
        "[...document.querySelectorAll('.pair .token')].slice(0, 2)"
        ".map(one => getComputedStyle(one).backgroundColor)"
    )
    assert shades[0] != shades[1] and browser.barriers() == []
    click(browser, "#colors button", "advantage")
    assert wait(browser, "document.querySelectorAll('.pair .low4').length")
    assert texts(browser, ".pair .high3") == []
    for number, text in enumerate((SAME, *HOSTILE[:3], "\U0001f600!")):
        browser.ask(f"document.querySelectorAll('#texts tbody tr')[{number}].click()")
        assert wait(browser, f"document.querySelector('.pair h2').textContent.endsWith('sample {number}')")
        assert texts(browser, ".pair pre") == [visible(text)]  # the choice of a color stays
    assert texts(browser, ".pair .low4") == ["\U0001f600", "!"]
    assert browser.ask("[document.title, document.images.length, document.scripts.length]") == [title, 0, 2]
    choose(browser, "step", [9], len(HOSTILE))
    browser.ask("document.querySelectorAll('#texts tbody tr')[0].click()")
    assert wait(
        browser, "document.querySelector('#colors').textContent.includes('train.log_tokens = \"last\"')"
    )
    assert texts(browser, ".pair .token") == [] and browser.errors == []


def test_the_policy_of_the_page_stops_even_an_element(browser: Browser, page: Path | str) -> None:
    """What the test above cannot show: nothing runs even if a mistake made an element of a text."""
    browser.show(page, 1400, "light")
    title = browser.ask("document.title")
    browser.ask(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE[0])})")
    browser.ask(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'}))"
    )
    assert wait(browser, "document.images.length === 1")
    browser.ask("new Promise(done => setTimeout(done, 200))")
    assert browser.ask("document.title") == title
    assert browser.errors  # the refusals


def test_a_wrong_pattern_says_so_and_a_right_one_counts(browser: Browser, page: Path | str) -> None:
    browser.show(page, 1400, "light")
    browser.ask("fields.pattern.value = '('; form.dispatchEvent(new Event('input'))")
    assert wait(browser, "/regular expression/i.test(document.querySelector('#state').textContent)")
    choose(browser, "pattern", "is 6$", 1)
    choose(browser, "pattern", "", 92)
    choose(browser, "text contains", "SUM OF", 81)
    choose(browser, "reward to", "0.5", 2)


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (390, "dark")])
def test_axe_finds_nothing_and_nothing_is_clipped(
    browser: Browser, root: Path, tmp_path: Path, width: int, theme: str
) -> None:
    write_page(root, Filters(step=[1, 4]), tmp_path / "page.html")
    browser.show(tmp_path / "page.html", width, theme)
    click(browser, "#texts tbody tr")
    click(browser, "#detail button", "b: right")
    assert wait(browser, "document.querySelectorAll('.pair pre').length === 2")
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    assert browser.barriers() == []
    assert browser.errors == []
