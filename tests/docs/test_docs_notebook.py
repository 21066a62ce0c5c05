"""The notebook of the examples, run from top to bottom by a real Jupyter kernel; the same from the command line."""

import json
import os
import sys
from pathlib import Path

import pytest
from pages import ROOT

pytestmark = pytest.mark.slow  # a kernel, fifteen runs and a small search
NOTEBOOK = ROOT / "examples" / "compare.ipynb"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The notebook after a kernel has executed it, and the folder in which it did."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    kernels = pytest.importorskip("jupyter_client.kernelspec")
    folder = tmp_path_factory.mktemp("notebook")
    spec = folder / "kernels" / "kasync"
    spec.mkdir(parents=True)
    words = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "kasync"}
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "KASYNC_CACHE": str(folder)}
    (spec / "kernel.json").write_text(json.dumps(words | {"language": "python", "env": environment}))
    client = nbclient.NotebookClient(
        nbformat.read(NOTEBOOK, as_version=4),
        timeout=300,
        kernel_name="kasync",
        resources={"metadata": {"path": str(folder)}},
    )
    client.km = client.create_kernel_manager()
    client.km.kernel_spec_manager = kernels.KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    return client.execute(), folder


def outputs(cell, kind: str) -> list[str]:
    """What a cell shows in this form."""
    found = [output.get("data", {}).get(kind) or output.get("text") for output in cell.outputs]
    return [text for text in found if text]


def cell_with(book, words: str):
    (found,) = (cell for cell in book.cells if words in cell.source)
    return found


def test_it_has_fifteen_cells_and_is_kept_without_outputs():
    book = json.loads(NOTEBOOK.read_text())
    assert len(book["cells"]) == 15
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book["cells"])


def test_data_and_arrivals_are_shown_with_pictures(run):
    book, _ = run
    for words, said in (("data.from_arrays", "FederatedData"), ("def arrivals", "Timeline(clock")):
        (page,) = outputs(cell_with(book, words), "text/html")
        assert said in page
        assert "data:image/png;base64," in page


def test_the_comparison_shows_progress_verdict_table_and_curves(run):
    book, _ = run
    cell = cell_with(book, "comparison = kasync.compare(Gated, clients, chosen")
    progress, shown = outputs(cell, "text/html")
    assert "15 of 15 runs" in progress
    assert "final accuracy" in shown
    assert "<table" in shown
    assert "data:image/png;base64," in shown
    (picture,) = outputs(cell_with(book, "comparison.plot"), "image/png")
    assert len(picture) > 1000


def test_the_verdict_is_printed_and_speaks_of_five_seeds(run):
    book, _ = run
    (said,) = outputs(cell_with(book, "print(comparison.verdict)"), "text/plain")
    assert "5 seeds" in said
    assert "significantly from" in said


def test_tuning_gives_each_rule_its_tries(run):
    book, _ = run
    (said,) = outputs(cell_with(book, 'tuned.about["settings"]'), "text/plain")
    assert "favour" in said
    assert "power" in said


def test_everything_is_exported(run):
    book, folder = run
    assert outputs(book.cells[-1], "text/plain") == ["True"]
    lines = (folder / "curves.csv").read_text().splitlines()
    assert lines[0].startswith("rule,seed,step,time,updates,accuracy")
    assert len(lines) == 1 + 3 * 5 * 50
    assert "FedBuff" in (folder / "comparison.html").read_text()
    assert Path(folder / "kasync-runs").is_dir()
