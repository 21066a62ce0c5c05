"""How kasync looks in a notebook and at a prompt: short words, pictures, progress, completion."""

import base64
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import kasync
from kasync import data, models, notebook, rules, timelines
from kasync.experiments import display


@pytest.fixture(scope="module")
def held():
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(60, 3)), rng.integers(0, 4, 60)
    parts = [np.arange(10), np.arange(10, 40), np.arange(40, 50)]
    return data.from_arrays(inputs, labels, inputs, labels, parts=parts, name="small")


def pictures(page: str) -> list[bytes]:
    return [base64.b64decode(found) for found in re.findall(r'base64,([^"]+)"', page)]


def test_data_and_timelines_say_what_they_are_in_one_line(held):
    clients = "3 clients with 10 to 30 of 60 training samples"
    assert repr(held) == f"FederatedData('small': {clients}, 60 test samples, 4 classes)"
    assert repr(timelines.uniform(30, 3, 20)) == "Timeline(uniform: 20 steps, 3 of 30 clients at each)"


def test_data_and_timelines_show_a_picture(held):
    regression = data.from_arrays(
        np.ones((4, 2)), np.full(4, 0.5), np.ones((2, 2)), np.full(2, 0.5), parts=[[0, 1], [2, 3]]
    )
    for thing in (held, regression, timelines.uniform(30, 3, 20)):
        page = thing._repr_html_()
        assert repr(thing).split("(")[0] in page
        (picture,) = pictures(page)
        assert picture.startswith(b"\x89PNG")


def test_a_run_says_how_far_it_is_and_shows_its_accuracy(held):
    line = timelines.uniform(3, 2, 6, seed=0)
    run = kasync.simulate(models.mlp(3, 4, classes=4), held, rules.fedbuff(0.5), line, evaluate_every=2)
    assert repr(run) == "Simulation(fedbuff: step 0 of 6)"
    assert not pictures(run._repr_html_())
    records = list(run)
    assert repr(run) == f"Simulation(fedbuff: step 6 of 6, accuracy {records[-1].accuracy:.4f})"
    page = run._repr_html_()
    assert "chain backend" in page
    (picture,) = pictures(page)
    assert picture.startswith(b"\x89PNG")


def test_without_matplotlib_the_words_remain(held, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert held._repr_html_().startswith("<p>FederatedData")
    assert not pictures(held._repr_html_())


def test_words_are_escaped():
    assert "&lt;b&gt;" in notebook.card("<b>", lambda figure: figure.subplots())


def test_a_fresh_import_lists_everything_it_offers_without_loading_it():
    program = "import kasync, sys; print(*dir(kasync)); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    names, loaded = ran.stdout.splitlines()
    assert set(names.split()) == {*kasync.__all__, "__version__"}
    assert loaded == "False"
    for name in kasync.__all__:
        assert getattr(kasync, name) is not None


def test_completion_knows_the_names_of_a_fresh_import():
    program = (
        "import kasync, rlcompleter; c = rlcompleter.Completer({'kasync': kasync}); "
        "print([c.complete('kasync.comp', n) for n in range(2)])"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "kasync.compare" in ran.stdout


def test_progress_in_a_notebook_is_one_bar_renewed_in_place(monkeypatch):
    told = []

    class Handle:
        def update(self, page):
            told.append(page)

    def show(page, display_id):
        assert display_id
        told.append(page)
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=show))
    cell = display.Cell()
    cell.begin(3, 1)
    cell.start("mine", 50)
    cell.shown = 0.0
    cell.step("mine", SimpleNamespace(step=25, accuracy=0.5))
    assert 'value="1.500" max="3"' in told[-1]
    assert "mine: step 25/50, accuracy 0.5000" in told[-1]
    cell.done("mine", {})
    cell.start("other", 50)
    cell.failed("other", "on purpose")
    assert "3 of 3 runs, 1 failed" in told[-1]
    cell.end()


def test_outside_a_notebook_nothing_is_shown_there():
    assert not notebook.running()
    assert not isinstance(display.fitting(), display.Cell)
