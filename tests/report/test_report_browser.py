"""The page in a real browser: drawn, without errors, with toggles, dark, on a phone, and live."""

import threading
import time
from itertools import pairwise

import browser
import pytest
import small_results

from kasync.experiments import grid
from kasync.experiments.store import Store
from kasync.report import write
from kasync.report.page import sources
from kasync.serving import server


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    made = browser.start(tmp_path_factory.mktemp("profile"))
    yield made
    made.quit()


@pytest.fixture(scope="module")
def address(small, tmp_path_factory, driver):
    folder = tmp_path_factory.mktemp("report")
    return write(small, folder, figures=False).page.as_uri()


@pytest.fixture
def page(driver, address):
    """The staleness experiment, freshly opened, on a wide light screen."""
    browser.resize(driver, 1300, 900)
    browser.prefer(driver, "light")
    driver.get(address)
    driver.execute_script("localStorage.clear()")
    driver.get(address)
    choose(driver, "experiment", "staleness-quick")
    return driver


def choose(driver, field, value):
    driver.execute_script(f"""
        const field = document.getElementById("{field}");
        field.value = "{value}";
        field.dispatchEvent(new Event("change"));""")


def press(driver, rule):
    driver.find_element("css selector", f'button[data-rule="{rule}"]').click()


def wait_until(true, seconds=30.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def test_every_chart_is_drawn_and_the_console_is_silent(page):
    found = browser.charts(page)
    expected = {
        "accuracy",
        "loss",
        "overview",
        "staleness-time",
        "staleness-count",
        "selected",
        "weights",
        "similarity",
    }
    expected |= {"lr", "stage", "deliveries", "client-weight", "labels", "effective", "largest"}
    assert {f"figure-{name}" for name in expected} <= found.keys()
    assert browser.drawn(page, "figure-accuracy") == 6  # three rules, each a curve and its interval
    assert all(trace["points"] for traces in found.values() for trace in traces)
    assert browser.problems(page) == []


def test_a_rule_is_hidden_in_every_chart_and_table_at_once_and_comes_back(page):
    before = browser.charts(page)
    press(page, "twafl")
    for figure, traces in browser.charts(page).items():
        for trace in traces:
            assert trace["visible"] == (trace["rule"] != "twafl"), figure
    assert browser.drawn(page, "figure-accuracy") == 4
    assert "TWAFL" not in page.find_element("id", "numbers").find_element("tag name", "tbody").text
    assert "TWAFL" not in page.find_element("id", "settings").text
    press(page, "twafl")
    assert browser.charts(page) == before
    page.find_element("id", "intervals").click()
    assert browser.drawn(page, "figure-accuracy") == 3
    assert browser.problems(page) == []


def test_time_is_drawn_in_powers_of_ten_where_some_rules_take_many_times_as_long(page):
    ends = "[{ x: [1, 400] }, { x: [1, 60, 60, 1] }]"
    assert page.execute_script(f"return unequal({ends})")
    assert not page.execute_script(f"return unequal({ends.replace('60', '200')})")
    assert page.execute_script("return state.axis") == "step"  # what the experiment says that it is against
    page.execute_script("data.experiments.forEach((each) => { each.against = 'time'; })")
    page.execute_script("state.axis = null; history.replaceState(null, '', '#'); recall(); show();")
    assert page.execute_script("return state.axis") == "time"


def test_the_axis_task_and_semantics_can_be_chosen(page):
    title = "return document.querySelector('#figure-accuracy .chart').layout.xaxis.title.text"
    for value, words in (("time", "virtual time, seconds"), ("updates", "client updates")):
        page.find_element("css selector", f'input[value="{value}"]').click()
        assert page.execute_script(title) == words
    ends = "return document.querySelector('#figure-accuracy .chart').data.at(-1).x.at(-1)"
    assert page.execute_script(ends) == 36 * 5
    numbers = page.find_element("id", "numbers").text
    choose(page, "task", "digits-50")
    other = page.find_element("id", "numbers").text
    assert other != numbers
    choose(page, "staleness", "published-code")
    assert page.find_element("id", "numbers").text != other
    assert browser.problems(page) == []


@pytest.mark.parametrize(
    ("experiment", "figure"),
    [("appendix-d-quick", "held"), ("motivation-quick", "selected"), ("staleness-quick", "loss")],
)
def test_every_experiment_can_be_looked_at(page, experiment, figure):
    choose(page, "experiment", experiment)
    found = browser.charts(page)
    assert f"figure-{figure}" in found
    assert ("figure-held" in found) == (experiment == "appendix-d-quick")
    assert browser.problems(page) == []


def test_the_table_has_the_papers_numbers_and_paired_differences(page):
    text = page.find_element("id", "numbers").text
    assert "0.9734" in text
    assert "difference from WKAFL" in text
    own = "return [...document.querySelectorAll('#numbers tbody tr')].map((row) => row.cells[4].textContent)"
    from_wkafl = page.execute_script(own)
    choose(page, "reference", "twafl")
    from_twafl = page.execute_script(own)
    assert (from_wkafl[0], from_twafl[1]) == ("–", "–")
    assert from_wkafl[1].lstrip("+-") == from_twafl[0].lstrip("+-")  # the same pair, seen from the other side
    assert from_wkafl[1][0] != from_twafl[0][0]


def test_dark_follows_the_system_and_the_button(page, address):
    back = "return getComputedStyle(document.body).backgroundColor"
    axis = "return document.querySelector('#figure-accuracy .chart').layout.font.color"
    light = page.execute_script(back), page.execute_script(axis)
    browser.prefer(page, "dark")
    wait_until(lambda: page.execute_script(back) != light[0])
    assert page.execute_script(axis) != light[1]
    page.find_element("id", "theme").click()
    assert (page.execute_script(back), page.execute_script(axis)) == light
    page.get(address)  # what was chosen is remembered
    assert page.execute_script(back) == light[0]
    assert browser.problems(page) == []


def test_a_phone_needs_no_scrolling_sideways(page, address):
    browser.resize(page, 390, 844, mobile=True)
    page.get(address)
    choose(page, "experiment", "staleness-quick")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    widths = page.execute_script(
        "return [...document.querySelectorAll('figure svg.main-svg')].map((s) => s.clientWidth)"
    )
    assert max(widths) <= 390
    press(page, "wkafl")
    assert not any(trace["visible"] for trace in browser.charts(page)["figure-loss"] if trace["rule"] == "wkafl")


def test_what_is_seen_is_also_said(page):
    levels = page.execute_script("return [...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    spoken = page.find_element("css selector", "#figure-accuracy .chart").get_attribute("aria-label")
    assert spoken.startswith("Test accuracy. WKAFL from 0.")
    assert page.execute_script("return [...document.querySelectorAll('.chart')].every((c) => c.role === 'img')")
    page.find_element("css selector", "#figure-accuracy summary").click()
    wait_until(lambda: page.find_elements("css selector", "#figure-accuracy tbody tr"))
    assert "WKAFL" in page.find_element("css selector", "#figure-accuracy table").text
    chip = page.find_element("css selector", 'button[data-rule="wkafl"]')
    assert chip.get_attribute("aria-pressed") == "true"
    chip.send_keys(" ")  # by keyboard, and the focus stays
    focused = page.switch_to.active_element
    assert (focused.get_attribute("data-rule"), focused.get_attribute("aria-pressed")) == ("wkafl", "false")


def test_the_verdict_stands_on_top_and_changes_with_the_task(page):
    verdict = page.find_element("id", "verdict").text
    assert "final accuracy" in verdict
    assert "paired by seed" in verdict
    choose(page, "task", "digits-50")
    assert page.find_element("id", "verdict").text != verdict


def test_what_is_chosen_stands_in_the_address_and_a_link_shows_it_again(page, driver):
    choose(page, "task", "digits-50")
    press(page, "twafl")
    page.find_element("css selector", 'input[value="updates"]').click()
    link = page.current_url
    numbers = page.find_element("id", "numbers").text
    driver.get("about:blank")
    driver.get(link)
    assert driver.find_element("id", "numbers").text == numbers
    assert driver.find_element("css selector", 'button[data-rule="twafl"]').get_attribute("aria-pressed") == "false"
    title = "return document.querySelector('#figure-accuracy .chart').layout.xaxis.title.text"
    assert driver.execute_script(title) == "client updates"
    assert browser.problems(driver) == []


def test_tables_are_sorted_by_the_column_that_is_pressed(page):
    rows = "[...document.querySelectorAll('#numbers tbody tr')]"
    column = f"return {rows}.map((row) => parseFloat(row.cells[2].textContent))"
    press_head = "document.querySelector('#numbers thead th:nth-child(3) button').click()"
    page.execute_script(press_head)
    down = page.execute_script(column)
    page.execute_script(press_head)
    assert down == sorted(down, reverse=True)
    assert page.execute_script(column) == sorted(down)
    assert len(set(down)) > 1


def test_smoothing_makes_a_curve_flatter_and_leaves_its_length(page):
    curve = "return document.querySelector('#figure-accuracy .chart').data.at(-1).y"
    rough = page.execute_script(curve)
    page.execute_script(
        "const field = document.getElementById('smoothing'); field.value = 3; field.dispatchEvent(new Event('input'));"
    )
    smooth = page.execute_script(curve)
    assert len(smooth) == len(rough)
    assert max(smooth) - min(smooth) < max(rough) - min(rough)
    assert "smoothing=3" in page.current_url


def test_settings_that_are_the_same_are_hidden_until_they_are_asked_for(page):
    rows = "return document.querySelectorAll('#settings tbody tr').length"
    differing = page.execute_script(rows)
    assert differing == page.execute_script("return document.querySelectorAll('#settings tbody tr.differs').length") > 0
    page.execute_script("document.getElementById('same').click()")
    assert page.execute_script(rows) > differing + 5


def test_curves_that_lie_on_each_other_are_all_seen_and_named(page):
    made = page.execute_script("""
        const trace = (name) => ({ x: [1, 2], y: [3, 4], name, mode: "lines", line: { width: 2 } });
        const traces = [trace("a"), trace("b"), { ...trace("c"), y: [5, 6] }];
        const names = coinciding(traces);
        return [names, traces.map((each) => each.line.width)];""")
    assert made == [[["a", "b"]], [6, 2, 2]]


def test_a_wide_table_scrolls_by_itself(page):
    browser.resize(page, 500, 900)
    boxes = page.execute_script(
        "return [...document.querySelectorAll('.wide')].map((box) => getComputedStyle(box).overflowX)"
    )
    assert set(boxes) == {"auto"}
    wait_until(lambda: page.execute_script("return document.documentElement.scrollWidth") <= 500)


def test_the_live_page_grows_while_runs_are_made(driver, tmp_path):
    experiment = small_results.staleness(12)
    cells = experiment.cells(range(1))
    Store(tmp_path).record(experiment.key, experiment.record(), [cell.record() for cell in cells])
    with server(*sources(tmp_path)) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        driver.get(f"http://127.0.0.1:{served.server_address[1]}/")
        status = driver.find_element("id", "status")
        assert status.text == "0 of 6 runs finished, refreshing"
        assert browser.charts(driver).keys() == {"figure-overview"}  # what the paper prints
        grid.make([cells[0].settings], tmp_path)
        wait_until(lambda: status.text == "1 of 6 runs finished, refreshing")
        assert browser.drawn(driver, "figure-accuracy") == 1
        grid.make([cell.settings for cell in cells], tmp_path)
        wait_until(lambda: status.text == "6 of 6 runs finished")
        assert browser.drawn(driver, "figure-accuracy") == 3
        assert browser.problems(driver) == []
        served.shutdown()
    wait_until(lambda: "has stopped" in status.text)
