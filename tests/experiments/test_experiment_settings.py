"""Settings are complete, checked, and the same after writing and reading a file."""

import re
from dataclasses import replace
from typing import get_type_hints

import pytest

from kasync import files, optimizers, rules, timelines
from kasync.errors import UserError
from kasync.experiments.build import ready, rule_of, timeline_of
from kasync.experiments.settings import Choice, RunSettings

EXTRA = {  # settings without a default that only the person can know
    "krum": {"byzantine": 1},
    "centered_clip": {"radius": 1.0},
    "fedasync": {"mixing": 0.5},
    "wkafl": {"without": ["SelectConsistent"]},
}


def chosen(kind: str) -> Choice:
    lr = {} if kind == "fedasync" else {"lr": 0.1}
    return Choice(kind, {**lr, **EXTRA.get(kind, {})})


@pytest.mark.parametrize("kind", [*rules.RULES, "fresh"])
def test_every_rule_is_completed_written_read_and_built_the_same(small, kind, tmp_path):
    settings = replace(small, rule=chosen(kind)).resolved()
    path = tmp_path / "run.toml"
    path.write_text(files.toml_text(settings.table() | {"made": {"kasync": "any"}}))
    again = RunSettings.read(path).resolved()
    assert again == settings
    assert again.identity == settings.identity
    built = ready(settings).rule if "server_samples" in settings.rule.settings else rule_of(settings, None)
    assert built.name.startswith(kind if kind != "fresh" else "kasync_sgd")


def test_gsgm_brings_its_own_timeline(with_rule):
    assert with_rule("gsgm").resolved().arrivals.kind == "once_per_round"
    assert with_rule("twafl").resolved().arrivals.kind == "uniform"


def test_the_fresh_limit_is_kasync_sgd_without_staleness(with_rule):
    settings = replace(with_rule("fresh"), staleness="published-code").resolved()
    assert settings.staleness == "none"
    assert ready(settings).rule.name == "kasync_sgd"


def test_what_follows_from_the_run_is_filled_in(with_rule):
    assert with_rule("ca2fl").resolved().rule.settings["clients"] == 20
    assert with_rule("delay_adaptive").resolved().rule.settings["concurrency"] == pytest.approx(5.0)
    assert with_rule("ringmaster").resolved().rule.settings["max_staleness"] == pytest.approx(5.0)
    assert with_rule("wkafl").resolved().model == "logistic"


def test_where_a_run_is_made_does_not_change_which_run_it_is(small):
    assert replace(small, root="/somewhere", hold="versions").resolved().identity == small.resolved().identity
    assert replace(small, seed=1).resolved().identity != small.resolved().identity


def test_an_ablation_leaves_the_part_out(with_rule):
    settings = with_rule("wkafl", without=["SelectConsistent"]).resolved()
    assert "SelectConsistent" not in [type(part).__name__ for part in ready(settings).rule.parts]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rule": Choice("wkalf", {"lr": 0.1})}, "did you mean 'wkafl'"),
        ({"rule": Choice("wkafl", {"lr": 0.1, "treshold": 0.3})}, "did you mean 'threshold'"),
        ({"rule": Choice("wkafl")}, "needs lr"),
        ({"rule": Choice("wkafl", {"lr": "much"})}, "lr = 'much'"),
        ({"rule": Choice("wkafl", {"lr": 0.1, "without": ["SelectConsistend"]})}, "did you mean 'SelectConsistent'"),
        ({"rule": Choice("twafl", {"lr": 0.1, "server_samples": 5})}, "unknown setting of twafl"),
        ({"k": 21}, "k = 21 is more than clients = 20"),
        ({"k": 0}, "k = 0"),
        ({"steps": 0}, "steps = 0"),
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"model": "lenett"}, "did you mean 'lenet'"),
        ({"scale": "rew"}, "did you mean 'raw'"),
        ({"staleness": "published_code"}, "did you mean 'published-code'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"hold": "gradient"}, "did you mean 'gradients'"),
        ({"device": "gpu"}, "'cuda' for a GPU"),
        ({"device": "cuda:99"}, "CUDA GPUs here"),
        ({"validation": 1.5}, "validation = 1.5"),
        ({"partition": Choice("label", {})}, "did you mean 'labels'"),
        ({"partition": Choice("labels", {"per_clients": 1})}, "did you mean 'per_client'"),
        ({"arrivals": Choice("unifrom")}, "did you mean 'uniform'"),
        ({"arrivals": Choice("clock", {"duration": "pareto"})}, "did you mean 'durations'"),
        ({"arrivals": Choice("clock", {"durations": {"kind": "paretto"}})}, "did you mean 'pareto'"),
        ({"arrivals": Choice("clock", {"durations": {"kind": "pareto", "shap": 1.0}})}, "did you mean 'shape'"),
        ({"arrivals": Choice("clock", {"dropouts": {"chanse": 0.1}})}, "did you mean 'chance'"),
        ({"arrivals": Choice("file", {"path": "nowhere.npz"})}, "nowhere.npz does not exist"),
        ({"work": Choice("gradients", {})}, "did you mean 'gradient'"),
        ({"work": Choice("gradient", {"batchsize": 1})}, "did you mean 'batch_size'"),
        ({"work": Choice("local_sgd", {"batch_size": 1})}, "needs steps and lr"),
    ],
)
def test_a_mistake_is_one_sentence_that_helps(small, change, sentence):
    with pytest.raises(UserError) as refusal:
        replace(small, **change).resolved()
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"clinets": 3}, "did you mean 'clients'"),
        ({"clients": "many"}, "clients = 'many': give a whole number"),
        ({"clients": True}, "clients = True"),
        ({"rule": {"lr": 0.1}}, "says no kind"),
        ({"data": 3}, "data = 3: give a table"),
    ],
)
def test_a_file_with_a_misspelt_key_is_refused(table, sentence):
    with pytest.raises(UserError) as refusal:
        RunSettings.of(table)
    assert sentence in str(refusal.value)


def test_a_clock_with_everything_becomes_a_timeline(small):
    clock = {
        "durations": {"kind": "log_normal", "median": 1.0, "spread": 0.5},
        "speeds": {"kind": "exponential", "mean": 1.0},
        "dropouts": {"chance": 0.05, "away": "exponential"},
        "availability": {"length": 5.0, "every": 8.0},
        "lost": 0.05,
    }
    made = ready(replace(small, arrivals=Choice("clock", clock)).resolved()).timeline
    assert made.kind == "clock, async"
    assert made.steps == 40


def test_a_saved_timeline_is_replayed_and_known_by_its_content(small, tmp_path):
    saved = timelines.uniform(20, 4, 40, seed=5)
    places = [tmp_path / "one.npz", tmp_path / "two.npz"]
    for place in places:
        timelines.save(saved, place)
    one, two = (replace(small, arrivals=Choice("file", {"path": str(place)})).resolved() for place in places)
    assert one.identity == two.identity
    assert ready(one).timeline.fingerprint() == saved.fingerprint()
    timelines.save(timelines.uniform(20, 4, 40, seed=6), places[0])
    with pytest.raises(UserError, match="fingerprint differs"):
        one.resolved()


def test_the_validation_split_takes_samples_away_from_training(small):
    held = ready(replace(small, validation=0.1).resolved()).data
    whole = ready(small.resolved()).data
    assert len(held.train.labels) + len(held.test.labels) == len(whole.train.labels)


def test_rules_that_are_compared_share_the_timeline_and_its_making(small):
    clock = replace(small, arrivals=Choice("clock", {"durations": "exponential"}))
    one, other = (timeline_of(replace(clock, rule=Choice(kind, {"lr": 0.1})).resolved()) for kind in ("sasgd", "fadas"))
    assert one is other
    assert timeline_of(replace(clock, seed=clock.seed + 1).resolved()).fingerprint() != one.fingerprint()


def test_precision_and_kind_of_device_are_part_of_which_run_it_is(small):
    names = {replace(small, **change).name for change in ({}, {"precision": "tf32"}, {"device": "cuda"})}
    assert len(names) == 3
    assert replace(small, device="cuda:0").name == replace(small, device="cuda:1").name


def test_rounding_needs_a_gpu(small):
    with pytest.raises(UserError, match="precision = 'tf32' on device 'cpu'"):
        replace(small, precision="tf32").resolved()
    with pytest.raises(UserError, match="did you mean 'float32'"):
        replace(small, precision="float23").resolved()


def test_the_words_of_the_optimizer_setting_name_them_all():
    (words,) = get_type_hints(RunSettings, include_extras=True)["optimizer"].__metadata__
    assert optimizers.NAMED.keys() <= set(re.findall(r"\w+", words))
