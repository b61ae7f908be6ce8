"""The studio in a browser: from an empty folder to a trained model of each task, even if the server is killed."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest

from penwright.run.folder import Run

from .conftest import eventually

TEXT = "".join(f"It was day {number}, and the rain fell on house {number * 7 % 31}.\n" for number in range(300))
NUMBERS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
PAIRS = "".join(
    f"{a} {b} {c}\t{NUMBERS[a]} {NUMBERS[b]} {NUMBERS[c]}\n" for a in NUMBERS for b in NUMBERS for c in NUMBERS
)
FILMS = "text\tlabel\n" + "".join(
    f"a {word} film number {n}\t{label}\n" for n in range(60) for word, label in (("fine", "good"), ("dull", "bad"))
)
DROP = """([target, name, text]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
  return document.querySelector(target).dispatchEvent(event);
}"""
STEPS = 8
# The penwright command, but plans time only one small step of each size. So do the processes that it starts: for them,
# `sys.executable` is a script that runs this code.
QUICK_COMMAND = """
import sys
from penwright.cli.main import main
from penwright.training.auto import throughput
throughput.STEPS, throughput.MOST_TOKENS = 1, 256
sys.executable = sys.argv[1]
del sys.argv[1:5]  # the script, and -P -m penwright
main()
"""
REPLACED = ("minutes", "choices")  # parts of a request that with_few_steps() replaces
SIZES = [("light", 1440, 900), ("dark", 390, 844)]


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


Start = Callable[[], "subprocess.Popen[bytes]"]


class Studio(NamedTuple):
    """A studio: its address, its folder, and a function that starts it with the command."""

    address: str
    folder: Path
    start: Start


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A studio that has not been started yet."""
    port, started, folder = free_port(), [], tmp_path_factory.mktemp("studio") / "new"
    address, script = f"http://127.0.0.1:{port}", folder.with_name("python")
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(QUICK_COMMAND)} "$0" "$@"\n')
    script.chmod(0o700)

    def answers() -> bool:
        try:
            return bool(urlopen(f"{address}/health", timeout=1).status == 200)
        except OSError:
            return False

    def start() -> "subprocess.Popen[bytes]":
        command = [str(script), "-P", "-m", "penwright", "studio", str(folder), "--port", str(port), "--no-open"]
        if not answers():
            started.append(subprocess.Popen([*command, "--set", "min_free_bytes=1"], env={**os.environ}))
        assert eventually(answers, 60)
        return started[-1]

    yield Studio(address, folder, start)
    for process in started:
        process.kill()
        process.wait()


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until this element has the focus."""
    for _ in range(100):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached with the keyboard")


def check_layout_and_accessibility(page: Any) -> None:
    """Check in both sizes and themes that the page fits the window and axe finds no violation."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    for scheme, width, height in SIZES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        rules = (
            {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
        )  # all other rules give the same result in both themes
        found = axe.Axe().run(page, options=rules).response["violations"]
        assert not found, [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]
    page.set_viewport_size({"width": 1440, "height": 900})


def add_text_by_keyboard(page: Any, text: str, task: str) -> None:
    """Paste a text, and wait for its plan."""
    tab_to(page, ".zone + details summary")
    page.keyboard.press("Enter")
    tab_to(page, ".train textarea")
    page.keyboard.insert_text(text)
    tab_to(page, ".zone + details button")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#task:has(option[value={task}]:checked)")
    page.wait_for_selector("#train")


def shorten_by_keyboard(page: Any) -> None:
    """Choose the shortest training time, without waiting for the new plan."""
    tab_to(page, "#minutes")
    page.keyboard.press("Home")
    assert page.inner_text("output[for=minutes]") == "20 seconds"


def write_by_keyboard(page: Any, run: Run) -> None:
    """Open the trained model, and let it continue a text."""
    page.wait_for_selector(f"#open-{run.folder.name}")
    page.focus(f"#open-{run.folder.name}")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready='write']")
    # the server may just be loading the last weights of a run that has ended
    page.wait_for_selector(f"#picker:has-text('step {run.checkpoints.best_step()}')")
    page.focus(".editor")
    page.keyboard.type("It was")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".editor .pw-token")


def with_few_steps(route: Any) -> None:
    """Train for a few steps instead: the shortest time on the slider is too long for a test."""
    body = {**json.loads(route.request.post_data), "size": "nano"}
    body["steps"] = STEPS if body["name"].startswith("pasted") else 4
    route.continue_(post_data=json.dumps({name: value for name, value in body.items() if name not in REPLACED}))


@pytest.fixture
def page(browser: Any, studio: Studio) -> Iterator[Any]:
    """A page that may only send requests to the studio and must raise no error."""
    foreign_requests: list[str] = []
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(180_000)
    context.on(
        "request",
        lambda request: None if request.url.startswith(studio.address) else foreign_requests.append(request.url),
    )
    opened = context.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.route("**/studio/train", with_few_steps)
    yield opened
    context.close()
    assert foreign_requests == [] and errors == []


def test_from_an_empty_folder_to_a_writer_by_keyboard(page: Any, studio: Studio) -> None:
    server = studio.start()
    page.goto(studio.address)
    page.wait_for_selector("main[data-ready='train']")
    if not (studio.folder / "runs").exists():
        tab_to(page, "button[title^='A tour']")
        page.keyboard.press("Enter")
        page.wait_for_selector(".alert:has-text('The tour shows a model of yours')")
        page.click(".alert button")
    add_text_by_keyboard(page, TEXT, "generate")
    assert "It was day" in page.inner_text(".passage") and page.locator(".passage span").count() > 20
    check_layout_and_accessibility(page)
    shorten_by_keyboard(page)
    name = page.input_value("#name")  # "pasted", unless another test has used this name
    tab_to(page, "#train")
    page.keyboard.press("Enter")
    page.wait_for_selector(".job.preparing, .job.training")
    server.send_signal(signal.SIGKILL)
    server.wait()
    page.wait_for_selector(f".machine:has-text('Training continues without it'):has-text('{studio.folder}')")
    studio.start()
    page.wait_for_selector(f".job.finished[aria-label='{name}']")
    run = Run(studio.folder / "runs" / name)
    assert run.is_finished and run.checkpoints.last_step() == STEPS
    said = page.inner_text(f".job[aria-label='{name}']")
    assert re.search("As unsure about the next .* as if choosing between", said)
    check_layout_and_accessibility(page)
    write_by_keyboard(page, run)


def test_several_columns_of_labels_are_shown_and_chosen(page: Any, studio: Studio) -> None:
    studio.start()
    page.goto(f"{studio.address}/#/train")
    page.wait_for_selector("main[data-ready='train']")
    rows = "".join(f"a film with words {n},{n % 2},{n % 3 // 2},{n % 5 // 4}\n" for n in range(60))
    page.evaluate(DROP, ["h1", "kinds.csv", f"text,war,love,sad\n{rows}"])
    label = ".columns select >> nth=1"
    page.wait_for_selector(f"{label} >> option:checked:has-text('war, love, sad')", state="attached")
    page.select_option(label, "several")
    page.uncheck(".columns fieldset:not([hidden]) label:has-text('love') input")
    check_layout_and_accessibility(page)
    page.click(".columns fieldset:not([hidden]) button")
    page.wait_for_selector(f"{label} >> option:checked:text-is('war, sad')", state="attached")
    page.select_option(label, "3")
    page.wait_for_selector(f"{label} >> option:checked:text-is('love')", state="attached")


def test_translator_by_mouse_and_classifier_by_keyboard_are_queued(page: Any, studio: Studio) -> None:
    studio.start()
    page.goto(f"{studio.address}/#/train")
    page.wait_for_selector("main[data-ready='train']")
    page.route("**/studio/plan", lambda route: route.abort())
    assert page.evaluate(DROP, ["h1", "pairs.tsv", PAIRS]) is False, "the browser does not open the file"
    page.wait_for_selector(".found .warning:has-text('does not answer')")
    page.unroute("**/studio/plan")
    page.wait_for_selector("#train")
    assert page.locator(".found .warning").count() == 0, "the plan is requested again once the server answers"
    assert page.input_value("#task") == "translate" and "eins" in page.inner_text(".preview")
    assert re.search("should translate .* as well as it can learn from this text", page.inner_text(".expected"))
    page.click("#train")
    page.wait_for_selector("article[aria-label='pairs']")
    add_text_by_keyboard(page, FILMS, "classify")
    assert re.search(r"should give about \d+ % of unseen texts the right label", page.inner_text(".expected"))
    tab_to(page, "#name")
    page.keyboard.press("Control+a")
    page.keyboard.type("films")
    tab_to(page, "#train")
    page.keyboard.press("Enter")
    page.wait_for_selector("article[aria-label='films']")
    page.wait_for_selector(".job.finished[aria-label='pairs']")
    answer = page.inner_text(".job[aria-label='pairs'] .sample")
    assert re.fullmatch(r"\w+ \w+ \w+ → .*", answer), "a sample of a translator shows what was translated"
    page.click("#open-pairs")
    page.wait_for_selector("main[data-ready='translate']")
    page.fill(".source textarea", "eins zwei")
    page.wait_for_selector(".way")
    page.goto(f"{studio.address}/#/train")
    page.wait_for_selector(".job.finished[aria-label='films']")
    tab_to(page, "#open-films")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready='classify']")
    tab_to(page, ".asked textarea")
    page.keyboard.insert_text("a fine film")
    page.wait_for_selector(".labels tbody tr >> nth=1")
    assert sorted(page.locator(".labels .pw-choose").all_inner_texts()) == ["bad", "good"]
