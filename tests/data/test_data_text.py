"""Text becomes windows of tokens by role or author, and nothing of a test text is trained on."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_files import leaf, write_by_role, write_newsgroups

from kasync import models
from kasync.data import Vocabulary, federate, from_texts, load, partition, write
from kasync.data.text import windows
from kasync.errors import UserError

TEXTS = {"romeo": "But soft, what light through yonder window breaks? " * 6, "juliet": "O Romeo, Romeo! " * 9}


def test_characters_are_encoded_and_decoded_without_loss():
    vocabulary = Vocabulary.characters(["héllo\n", "wörld 🙂"])
    text = "ööh 🙂\nlow"
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert vocabulary.encode("hé", length=4).tolist()[2:] == [0, 0]
    with pytest.raises(UserError, match="the character 'z' is not among the"):
        vocabulary.encode("z")


def test_words_are_numbered_by_how_often_they_come():
    vocabulary = Vocabulary.of_words(["The cat and the dog.", "THE cat's the cat"], size=5)
    assert vocabulary.tokens == ("", "<unknown>", "the", "cat", "and")
    assert vocabulary.encode("The dog, the cat!", length=6).tolist() == [2, 1, 2, 3, 0, 0]
    assert vocabulary.encode("the cat the cat the", length=2).tolist() == [2, 3]
    assert vocabulary.decode([2, 3, 0, 0]) == "the cat"
    with pytest.raises(UserError, match="size is 2"):
        Vocabulary.of_words(["a"], 2)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["each", "last"]))
def test_windows_are_those_of_a_plain_loop(count, length, stride, predict):
    ids = np.arange(100, 100 + count)
    starts = [s for s in range(0, count, stride) if s + length + 1 <= count]
    inputs, labels = windows(ids, length, stride, predict)
    assert inputs.tolist() == [ids[s : s + length].tolist() for s in starts]
    after = [ids[s + 1 : s + length + 1].tolist() for s in starts]
    assert labels.tolist() == (after if predict == "each" else [row[-1] for row in after])


def test_each_client_has_a_text_and_tests_on_its_end():
    data = from_texts(TEXTS, length=8)
    vocabulary = Vocabulary(data.class_names)
    assert (data.client_names, data.classes) == (("romeo", "juliet"), len(set("".join(TEXTS.values()))))
    for number, (client, text) in enumerate(TEXTS.items()):
        train = "".join(vocabulary.decode(row) for row in data.train.inputs[data.of(number)])
        test = "".join(vocabulary.decode(row) for row in data.test.inputs[data.test_clients == number])
        end = int(0.8 * len(text))
        assert text[:end].startswith(train), client
        assert text[end:].startswith(test), client
        assert len(train) > end - 17
    assert np.array_equal(data.train.inputs[:, 1:], data.train.labels[:, :-1])
    assert models.build("gpt", data).context == 8
    assert models.build("lstm", data).head.out_features == data.classes


def test_tokens_may_be_bytes_or_those_of_any_tokenizer():
    data = from_texts({"a": "é" * 40}, length=4, tokenizer="bytes")
    assert (data.classes, data.class_names, data.train.inputs[0].tolist()) == (256, None, [195, 169, 195, 169])

    class Halves:
        vocab_size = 7

        def encode(self, text):
            return [len(text) % 7] * (len(text) // 2)

    halves = from_texts(TEXTS, length=4, tokenizer=Halves(), predict="last")
    assert (halves.classes, halves.train.labels.ndim) == (7, 1)
    words = from_texts(TEXTS, length=4, tokenizer=Vocabulary.of_words(TEXTS.values(), 20))
    assert words.classes <= 20
    assert "<unknown>" in words.class_names


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"texts": ["a", "b"]}, "texts must be a dict with one text for each client"),
        ({"texts": {"a": 3}}, "texts must be a dict"),
        ({"texts": {"a": "short"}}, "the text of client 'a' has 5 tokens, but windows of 64 need about 82"),
        ({"length": 0}, "length is 0"),
        ({"stride": 1.5}, "stride is 1.5"),
        ({"predict": "eahc"}, "did you mean 'each'"),
        ({"test_fraction": 1}, "test_fraction is 1"),
        ({"tokenizer": 5}, "tokenizer is 5: leave it out for characters"),
    ],
)
def test_what_is_no_text_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        from_texts(**{"texts": TEXTS, **settings})


def test_shakespeare_is_read_by_role_once_and_then_from_the_cache(tmp_path, own_cache):
    roles = write_by_role(tmp_path / "shakespeare")
    plays = load("shakespeare", tmp_path, length=10)
    for _ in range(2):
        assert plays.train.group_names == ("HAMLET", "OPHELIA")  # the ghost says too little
        characters = {"\n", *"".join(line for lines in roles.values() for line in lines)}
        assert plays.classes == len(plays.vocabulary) == len(characters)
        own = plays.train.inputs[plays.train.groups == 1]
        text = "\n".join(roles["OPHELIA"])
        assert text.startswith("".join(plays.vocabulary.decode(row) for row in own))
        assert plays.vocabulary.decode(plays.train.labels[0]) == "\n".join(roles["HAMLET"])[1:11]
        assert plays.train.inputs.dtype == np.int16
        assert federate(plays, partition.natural()(plays)).clients == 2
        (kept,) = own_cache.glob("*.safetensors")
        before, plays = kept.read_bytes(), load("shakespeare", tmp_path, length=10)
        assert kept.read_bytes() == before
    assert load("shakespeare", tmp_path, length=10, predict="last").train.labels.ndim == 1
    assert load("shakespeare", tmp_path, length=10, fewest=20).train.group_names == ("HAMLET",)
    with pytest.raises(UserError, match="no role has 1 windows of 4000 characters for training"):
        load("shakespeare", tmp_path, length=4000)


def leaf_windows(text: str) -> tuple[list[str], list[str]]:
    starts = range(len(text) - 80)
    return [text[s : s + 80] for s in starts], [text[s + 80] for s in starts]


def test_shakespeare_is_read_from_leafs_json(tmp_path):
    text = "To be, or not to be, that is the question. " * 6
    train, test = leaf_windows(text[:140]), leaf_windows(text[140:])
    for part, rows in (("train", train), ("test", test)):
        (tmp_path / "shakespeare" / "data" / part).mkdir(parents=True)
        data = {"HAMLET": rows, "GHOST": ([], [])}
        (tmp_path / "shakespeare" / "data" / part / "all.json").write_text(leaf(data))
    plays = load("shakespeare", tmp_path, predict="last")
    assert (len(plays.train), len(plays.test), plays.train.group_names) == (60, len(test[0]), ("HAMLET",))
    assert plays.vocabulary.decode(plays.train.inputs[7]) == text[7:87]
    assert plays.vocabulary.decode(plays.train.labels[:5]) == text[80:85]
    each = load("shakespeare", tmp_path)
    assert plays.vocabulary.decode(each.train.labels[7]) == text[8:88]
    with pytest.raises(UserError, match="leave length and stride out"):
        load("shakespeare", tmp_path, length=20)


def test_leafs_windows_that_were_not_split_do_not_overlap_the_tests(tmp_path):
    datasets = pytest.importorskip("datasets")
    text = "".join(chr(200 + place) for place in range(580))  # no character comes twice
    windows_of = dict(zip(("x", "y"), leaf_windows(text), strict=True))
    rows = datasets.Dataset.from_dict({"character_id": ["HAMLET"] * 500, **windows_of})
    write.shakespeare({"train": rows}, tmp_path / "shakespeare")
    plays = load("shakespeare", tmp_path)
    trained = {*plays.train.inputs.ravel(), *plays.train.labels.ravel()}
    assert trained.isdisjoint({*plays.test.inputs.ravel(), *plays.test.labels.ravel()})
    assert (len(plays.train), len(plays.test)) == (320, 100)


def test_newsgroups_are_read_by_author(tmp_path):
    write_newsgroups(tmp_path / "newsgroups")
    news = load("newsgroups", tmp_path, fewest=5, length=4, words=8)
    assert news.class_names == ("rec.cats", "sci.space")
    assert sorted(set(news.train.groups)) == [3, 9]
    assert np.bincount(news.test.groups).tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 2]
    assert news.train.inputs.shape == (12, 4)
    assert len(news.vocabulary) == 8
    assert "purr" in news.vocabulary.decode(news.train.inputs[news.train.labels == 0][0])
    split = federate(news, partition.natural()(news))
    assert models.build("word_bag", split).head.out_features == 2
    with pytest.raises(UserError, match="no author has 50 messages, the most are 10: lower fewest"):
        load("newsgroups", tmp_path, fewest=50)


def test_newsgroups_pass_through_a_tokenizer_of_your_own(tmp_path):
    write_newsgroups(tmp_path / "newsgroups")

    def tokenizer(texts):
        ids = np.array([[len(text), 1] for text in texts])
        return {"input_ids": ids, "attention_mask": ids > 0}

    news = load("newsgroups", tmp_path, fewest=5, tokenizer=tokenizer)
    assert news.shape == {"input_ids": (2,), "attention_mask": (2,)}
    assert news.vocabulary is None
    with pytest.raises(UserError, match="the tokenizer makes 1 rows of 15 messages"):
        load("newsgroups", tmp_path, fewest=5, tokenizer=lambda texts: [[1, 2]])


def test_newsgroups_that_are_not_there_are_explained(tmp_path):
    with pytest.raises(UserError, match=r"newsgroups_by_author\.json\.gz: put it in .*newsgroups; docs/data\.md"):
        load("newsgroups", tmp_path)


ROLE = json.dumps({"users": ["A"], "lines": {"A": ["all the world is a stage, " * 20]}}).encode()
NEWS = json.dumps({"groups": ["g"], "author": [1] * 10, "label": [0] * 10, "text": ["one two"] * 10}).encode()
FORMS = {"shakespeare": ("by_role", ROLE), "newsgroups": ("newsgroups_by_author", NEWS)}


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), packed=st.booleans(), form=st.sampled_from(["shakespeare", "newsgroups"]))
def test_damaged_files_give_samples_or_a_sentence(tmp_path_factory, data, packed, form):
    stem, content = FORMS[form]
    broken = bytearray(gzip.compress(content) if packed else content)
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / f"{stem}.json.gz").write_bytes(bytes(broken[: data.draw(st.integers(0, len(broken)))]))
    sentence = ""
    try:
        assert len(load(form, folder).train)
    except UserError as refused:
        sentence = str(refused)
    assert "\n" not in sentence
    assert len(sentence) < 600


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shakespeare", []),
        ("shakespeare", {"users": ["A"], "lines": {}}),
        ("shakespeare", {"users": ["A"], "lines": {"A": [1]}}),
        ("shakespeare", {"users": [], "lines": {}}),
        ("newsgroups", {"groups": [], "author": [], "label": [], "text": []}),
        ("newsgroups", {"groups": ["g"], "author": [1], "label": [1], "text": ["t"]}),
        ("newsgroups", {"groups": ["g"], "author": [1.5], "label": [0], "text": ["t"]}),
        ("newsgroups", {"groups": ["g"], "author": [1], "label": [0], "text": [None]}),
        ("newsgroups", {"groups": ["g"], "author": [1, 2], "label": [0], "text": ["t"]}),
        ("newsgroups", "text"),
    ],
)
def test_files_that_hold_something_else_are_refused(tmp_path, name, content):
    file = {"shakespeare": "by_role.json", "newsgroups": "newsgroups_by_author.json"}[name]
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"is not json with"):
        load(name, tmp_path)
