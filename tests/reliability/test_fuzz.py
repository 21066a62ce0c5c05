"""Every damaged input is read or refused in a sentence; a few of each kind, ten thousand with `make fuzz`."""

import math
from random import Random

import numpy as np
import pytest
from fuzz_settings import Settings
from fuzz_targets import TARGETS
from fuzzing import fuzz
from mutations import Canary, spoilt_bytes, spoilt_fields

from kasync import checks, files, timelines
from kasync.errors import UserError, unknown
from kasync.experiments.settings import RunSettings
from kasync.live.flower_messages import plain

MOST_REFUSED = 0.97


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_a_hundred_spoilt_inputs_are_read_or_refused_in_a_sentence(name, tmp_path):
    if name == "replies":
        pytest.importorskip("flwr")
    told = fuzz(TARGETS[name](tmp_path), 100, tmp_path / "canary", first=50_000)
    assert told.wrong == []
    assert told.read >= (1 - MOST_REFUSED) * 100, "a generator whose inputs are all refused tests little"
    assert told.refused >= 20


def test_the_canary_sings_when_a_pickle_is_run(tmp_path):
    np.save(tmp_path / "x.npy", np.array([Canary(tmp_path / "canary")], dtype=object))
    np.load(tmp_path / "x.npy", allow_pickle=True)
    assert (tmp_path / "canary").exists()


def test_what_breaks_is_noticed(tmp_path):
    class Broken(Settings):
        def read(self, made):
            raise ZeroDivisionError

    assert len(fuzz(Broken(tmp_path), 5, tmp_path / "canary").wrong) == 5


def test_a_name_of_ten_thousand_letters_is_not_quoted_in_full():
    assert len(str(unknown("hold", "x" * 10_000, ["gradients", "versions"]))) < 300


def test_spoiling_is_a_function_of_its_seed():
    table = {"a": 1, "b": {"c": [1, 2], "d": "text"}}
    assert [str(spoilt_fields(Random(seed), table)) for seed in range(50)] == [
        str(spoilt_fields(Random(seed), table)) for seed in range(50)
    ]
    assert len({spoilt_bytes(Random(seed), b"0123456789" * 9) for seed in range(50)}) > 30
    assert table == {"a": 1, "b": {"c": [1, 2], "d": "text"}}


@pytest.mark.parametrize("text", [f"k = {'9' * 5000}", f"x = {'[' * 5000}", "k = ", "\x00"])
def test_toml_made_to_hurt_a_parser_is_one_sentence(text, tmp_path):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UserError, match="is not valid TOML"):
        files.read_toml(tmp_path / "run.toml")


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"a": {"9" * 5000}}}', "{", "\x00"])
def test_json_made_to_hurt_a_parser_is_one_sentence(text, tmp_path):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        files.read_json(tmp_path / "summary.json")


@pytest.mark.parametrize("clients", [2**31, 10**30, 10**400])
def test_more_clients_than_there_are_numbers_for_are_refused(clients):
    with pytest.raises(UserError, match="clients"):
        RunSettings.of({"clients": clients, "rule": {"kind": "wkafl", "lr": 0.1}}).resolved()


@pytest.mark.parametrize("name", ["server_samples", "server_classes"])
@pytest.mark.parametrize("value", [0, "many", [], 10**30])
def test_a_server_that_holds_an_impossible_sample_is_refused_before_data_is_read(name, value):
    with pytest.raises(UserError, match=name):
        RunSettings.of({"rule": {"kind": "zeno", "lr": 0.1, name: value}}).resolved()


@pytest.mark.parametrize("check", ["at_least", "above", "limit", "between", "finite", "count"])
@pytest.mark.parametrize("value", [2**63, 10**400])
def test_a_whole_number_that_no_tensor_can_hold_is_refused(check, value):
    bounds = {"at_least": (0,), "above": (0,), "between": (0, math.inf)}.get(check, ())
    with pytest.raises(ValueError, match="lr = "):
        getattr(checks, check)("lr", value, *bounds)


def test_infinity_is_still_no_limit():
    checks.limit("max_norm", math.inf)


@pytest.mark.parametrize("population", [b"Infinity", b"1e400", b"9223372036854775807", b"2147483648"])
def test_a_timeline_of_too_many_clients_is_inconsistent(population, tmp_path):
    timelines.save(timelines.uniform(6, 2, 5), tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as stored:
        arrays = dict(stored)
    text = arrays["about"].tobytes().replace(b'"population": 6', b'"population": ' + population)
    np.savez(tmp_path / "t.npz", **{**arrays, "about": np.frombuffer(text, dtype=np.uint8)})
    with pytest.raises(UserError, match="is inconsistent"):
        timelines.load(tmp_path / "t.npz")


def test_times_of_another_shape_are_inconsistent(tmp_path):
    timelines.save(timelines.uniform(6, 2, 5), tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "t.npz", **{**arrays, "times": arrays["times"].reshape(-1, 1)})
    with pytest.raises(UserError, match="is inconsistent"):
        timelines.load(tmp_path / "t.npz")


@pytest.mark.parametrize("table", [{"validation": 10**400}, {"rule": {"kind": "zeno", "lr": 0.1, "penalty": 10**30}}])
def test_settings_with_numbers_beyond_all_measure_are_refused(table):
    with pytest.raises(UserError, match=" = 10000"):
        RunSettings.of({"rule": {"kind": "wkafl", "lr": 0.1}, **table}).resolved()


def test_what_a_stranger_writes_cannot_begin_a_line_of_the_log():
    assert plain("crashed\nclient 7 delivered\x1b[2J") == "crashed client 7 delivered [2J"
