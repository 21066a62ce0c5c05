"""Ten mistakes of a user: each gets a sentence that helps and exit code 2; where the others are tested.

Here: a typo in a rule, k > clients, missing data, a results folder that is none, an unwritable folder, a GPU that is
not there, a full disk, an old checkpoint. In real processes: two runs into one folder (test_two_processes.py,
tests/cli/test_cli.py) and Ctrl-C (tests/cli/test_cli.py).
"""

import json

import pytest
import torch
from safetensors.torch import save_file

SMALL = ["--dataset", "synthetic", "--clients", "20", "-k", "4", "--partition", "iid", "--steps", "30", "--lr", "0.05"]


def remedy(told: str) -> bool:
    """One line, from kasync, that names what to do."""
    return told.startswith("kasync: ") and told.count("\n") == 1 and ":" in told[8:]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "--rule", "wkalf"], "did you mean 'wkafl'?"),
        (["run", "--clients", "5", "-k", "9"], "k = 9 is more than clients = 5: lower k or raise clients"),
        (["run", "--dataset", "cifar10", "--root", "."], "kasync data get cifar10"),
        (["report", "."], "is not a results folder"),
        (["run", *SMALL, "--out", "/proc/kasync"], "choose another folder with --out"),
        (["run", *SMALL, "--device", "cuda:99"], "use --device cpu"),
    ],
    ids=["a typo in a rule", "k above clients", "missing data", "no results folder", "an unwritable folder", "no GPU"],
)
def test_a_mistake_is_one_line_with_its_remedy(words, named, kasync, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, told = kasync(*words)
    assert (code, printed) == (2, "")
    assert named in told
    assert remedy(told)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_says_how_to_go_on(disk, kasync):
    disk.fill()
    code, _, told = kasync("run", *SMALL, "--out", disk.place / "run")
    assert code == 2
    assert "No space left on device" in told
    assert remedy(told)


@pytest.mark.parametrize("version", [0, 2, "1.0"])
def test_an_old_checkpoint_is_refused_by_name_and_version(version, kasync, tmp_path):
    about = {"version": version, "step": 3, "identity": {}, "checksum": ""}
    place = tmp_path / "run" / "checkpoint.safetensors"
    place.parent.mkdir()
    save_file({"x": torch.zeros(3)}, place, metadata={"kasync": json.dumps(about)})
    code, _, told = kasync("run", *SMALL, "--out", tmp_path / "run")
    assert code == 2
    assert f"checkpoint {place} has version {version}, not 1: delete it to start again" in told
    assert remedy(told)
    assert place.exists()


def test_a_checkpoint_of_other_data_is_refused_by_what_differs(kasync, tmp_path):
    about = {"version": 1, "step": 3, "identity": {"model": "another"}}
    from kasync.checkpoint import checksum

    tensors = {"x": torch.zeros(3)}
    place = tmp_path / "run" / "checkpoint.safetensors"
    place.parent.mkdir()
    save_file(tensors, place, metadata={"kasync": json.dumps(about | {"checksum": checksum(about, tensors)})})
    code, _, told = kasync("run", *SMALL, "--out", tmp_path / "run")
    assert code == 2
    assert "belongs to another run: its model is another" in told
