"""What is written as TOML is read back the same."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kasync import files
from kasync.errors import UserError

numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False)
plain = numbers | st.booleans() | st.text(st.characters(exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
inline = st.dictionaries(names, plain, max_size=3)
values = plain | st.lists(plain, max_size=3)
tables = st.dictionaries(names, values | inline, max_size=4)
documents = st.dictionaries(names, values | tables | st.lists(tables, min_size=1, max_size=3), max_size=5)


@given(documents)
def test_what_is_written_is_read_back(document):
    assert tomllib.loads(files.toml_text(document)) == document


def test_a_setting_without_a_value_is_left_out():
    assert files.toml_text({"a": None, "b": 1}) == "b = 1\n"


@pytest.mark.parametrize(
    ("content", "word"), [(None, "does not exist"), (b"a = ", "not valid TOML"), (b"\xff\xfe", "cannot be read")]
)
def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path, content, word):
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=word) as refusal:
        files.read_toml(path)
    assert str(path) in str(refusal.value)
