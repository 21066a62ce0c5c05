"""The figures are drawn, with what a reader needs to read them."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kasync import rules as known
from kasync.experiments.experiment import Contender
from kasync.experiments.settings import FRESH, built_in
from kasync.report import results as reading
from kasync.report.figures import COLOURS, figures_of, logarithmic, looks, panels, save


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_every_experiment_has_its_figures(experiments):
    names = {name for experiment in experiments.values() for name, _ in figures_of(experiment)}
    assert names == {
        "appendix-d-quick-held",
        "motivation-quick-motivation",
        "motivation-quick-motivation-accuracy",
        "staleness-quick-digits-accuracy",
        "staleness-quick-digits-final",
    }


def test_a_figure_has_a_panel_for_each_task_and_semantics_with_axes_legend_and_bands(experiments):
    figures = dict(figures_of(experiments["staleness-quick"]))
    figure = figures["staleness-quick-digits-accuracy"]
    titles = [panel.get_title() for panel in figure.axes]
    assert len(titles) == 4
    assert sum("published code" in title for title in titles) == 2
    assert labels(figure) == ["WKAFL", "TWAFL", "no staleness", "range of the seeds"]
    for panel in figure.axes:
        assert len(panel.lines) == 3
        assert len(panel.collections) >= 3  # the bands
        assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in panel.lines}) == 3
    assert {panel.get_ylabel() for panel in figure.axes} == {"test accuracy", ""}
    assert "step" in {panel.get_xlabel() for panel in figure.axes}


def test_a_logarithmic_axis_has_plain_numbers():
    figure, axes = panels(1, 1)
    logarithmic(axes.flat[0])
    axes.flat[0].set_xlim(1.0, 200.0)
    figure.canvas.draw()
    assert {"2", "5", "10", "20", "50", "100"} <= {text.get_text() for text in axes.flat[0].get_xticklabels()}


def test_the_final_accuracy_has_the_papers_numbers_hollow(experiments):
    figure = dict(figures_of(experiments["staleness-quick"]))["staleness-quick-digits-final"]
    assert "printed in the paper" in labels(figure)
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert {value for line in hollow for value in line.get_ydata()} == {0.9734, 0.962}


def test_the_motivation_figure_shows_shares_of_steps_and_staleness_that_grows(experiments):
    figure = dict(figures_of(experiments["motivation-quick"]))["motivation-quick-motivation"]
    histogram, scatter = figure.axes[:2]
    heights = [bar.get_height() for bar in histogram.patches]
    assert sum(heights) == pytest.approx(2.0)  # one for each of the two rules
    for line in scatter.lines:
        assert (np.diff(line.get_xdata()) >= 0).all()  # a larger mu counts more gradients


def test_files_are_written_in_both_formats_and_are_the_same_twice(small, tmp_path):
    whole = reading.read(small)
    results = replace(whole, experiments=whole.experiments[:2])
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save(results, tmp_path / name)
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert sum(name.endswith(".pdf") for name in written[0]) == 3
    for path in (tmp_path / "one").glob("*.png"):
        with Image.open(path) as picture:
            assert min(picture.size) > 400
            assert len(set(picture.convert("L").tobytes())) > 20  # not a blank page


def test_a_well_known_rule_looks_the_same_in_every_experiment_and_no_colour_comes_twice():
    rules = [Contender(label, label) for label in (*known.RULES, FRESH, *"abcdefghij")]
    look = looks(rules)
    assert len({each.colour for each in look.values()}) == len(rules)
    assert len({each.dark for each in look.values()}) == len(rules)
    assert look["twafl"] == looks([Contender("x", "x"), Contender("twafl", "twafl")])["twafl"]
    places = {facts.place: look[label].colour for label in look if (facts := built_in(label))}
    assert [places[place] for place in range(8)] == [colour for colour, _ in COLOURS[:8]]
