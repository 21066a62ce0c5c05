"""Damaged, cut and lying files give samples or one clear sentence; never a crash, nor memory they are not worth."""

import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_files import BATCHES, binary, characters, cifar_batches, idx, leaf, pickled, picture, python2_pickle, tar

from kasync.data import cifar10, femnist
from kasync.data.celeba import Pictures, read_lists
from kasync.data.cifar10 import read_pickle
from kasync.data.dataset import Samples
from kasync.data.leaf import Leaf
from kasync.data.mnist import read_idx
from kasync.errors import UserError

QUICK = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
IMAGES = idx(np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28))
SMALL = cifar_batches(1)
MEMBERS = {f"b/{name}.bin": binary(*batch) for name, batch in SMALL.items()}
LEAF = leaf({"a": characters(1, 0)[1:], "b": characters(1, 1)[1:]}).encode()


@st.composite
def damaged(draw, content: bytes, header: int = 64):
    """The content with bits flipped (in its header above all), cut, extended, or with a huge number written over it."""
    broken = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        last = draw(st.sampled_from([min(header, len(broken)), len(broken)])) - 1
        broken[draw(st.integers(0, last))] ^= 1 << draw(st.integers(0, 7))
    if draw(st.booleans()):
        at = draw(st.integers(0, header))
        broken[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4, b"\xff\xff\xff\x7f"]))
    end = draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))
    return bytes(broken[:end]) + draw(st.sampled_from([b"", b"\0", b"more"]))


def read_safely(read, size: int) -> None:
    """Runs the reader: samples or a sentence, and memory of the file's own size class."""
    sentence = ""
    tracemalloc.start()
    try:
        read()
    except UserError as refused:
        sentence = str(refused)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < (8 << 20) + 64 * size
    assert "\n" not in sentence
    assert len(sentence) < 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@QUICK
@given(content=damaged(IMAGES, 16))
def test_damaged_idx_files(folder, content):
    path = folder / "images"
    path.write_bytes(content)
    read_safely(lambda: read_idx(path, "uint8", (None, 28, 28)), len(content))


@QUICK
@given(content=damaged(IMAGES, 16).map(gzip.compress) | damaged(gzip.compress(IMAGES), 24))
def test_damaged_packed_idx_files(folder, content):
    path = folder / "images.gz"
    path.write_bytes(content)
    read_safely(lambda: read_idx(path, "uint8", (None, 28, 28)), len(content))


@QUICK
@given(content=st.binary(max_size=300), shape=st.sampled_from([(None,), (None, 28, 28), (None, 8)]))
def test_any_bytes_as_idx_files(folder, content, shape):
    path = folder / "any"
    path.write_bytes(content)
    read_safely(lambda: read_idx(path, "int32" if len(shape) == 2 else "uint8", shape), len(content))


@pytest.mark.parametrize("sizes", [(2**32 - 1, 28, 28), (2**31, 28, 28), (10**6, 28, 28)])
@pytest.mark.parametrize("packed", [True, False])
def test_a_header_that_claims_the_moon_is_refused_before_room_is_made(tmp_path, sizes, packed):
    content = struct.pack(">BBBB3I", 0, 0, 8, 3, *sizes) + bytes(100)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    with pytest.raises(UserError, match="more than the file can hold"):
        read_idx(path, "uint8", (None, 28, 28))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_gzip_bomb_is_read_no_further_than_its_header_says(tmp_path):
    path = tmp_path / "images"
    pack = zlib.compressobj(wbits=31)
    chunks = [pack.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 1, 28, 28))]
    chunks += [pack.compress(bytes(1 << 20)) for _ in range(200)]  # 200 MB in 200 kB
    path.write_bytes(b"".join([*chunks, pack.flush()]))
    tracemalloc.start()
    with pytest.raises(UserError, match="it holds more than the 784 bytes"):
        read_idx(path, "uint8", (None, 28, 28))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


@QUICK
@given(content=damaged(binary(*SMALL["test_batch"])))
def test_damaged_binary_batches(content):
    contents = {f"{name}.bin": binary(*batch) for name, batch in SMALL.items()} | {"test_batch.bin": content}
    read_safely(lambda: cifar10.decode(contents), 6 * 3073)


@QUICK
@given(
    content=damaged(tar(MEMBERS, packed=False), 512)
    | damaged(tar(MEMBERS), 64)
    | damaged(tar(MEMBERS, False), 512).map(gzip.compress)
)
def test_damaged_archives(folder, content):
    path = folder / "cifar-10-binary.tar.gz"
    path.write_bytes(content)
    read_safely(lambda: cifar10.read_archive(path), 20 * 3073)


@QUICK
@given(
    content=damaged(python2_pickle(*SMALL["test_batch"]), 160)
    | damaged(pickled(*SMALL["test_batch"]), 250)
    | st.binary(max_size=200)
)
def test_damaged_and_random_pickles(content):
    read_safely(lambda: read_pickle(content, "test_batch"), len(content))


@QUICK
@given(content=damaged(LEAF, 100) | damaged(LEAF, len(LEAF)))
def test_damaged_leaf_files(folder, content):
    path = folder / "all_data.json"
    path.write_bytes(content)
    read_safely(lambda: femnist.read(Leaf(everything=(path,))), len(content))


@pytest.mark.parametrize(
    "content", [b"[" * 10**5, b'{"user_data":' * 10**5, b'{"a":1e400}', b'{"a":' + b"9" * 10**5 + b"}", b"\xff\xfe"]
)
def test_json_made_to_hurt_a_parser_is_refused(tmp_path, content):
    path = tmp_path / "all_data.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"all_data.json is not LEAF json"):
        femnist.read(Leaf(everything=(path,)))


@QUICK
@given(
    lists=st.tuples(
        damaged(b"1.jpg 7\n" * 2 + b"2.jpg 7\n3.jpg 7\n4.jpg 7\n5.jpg 7\n"), damaged(b"1\nBald Smiling\n1.jpg 1 -1\n")
    )
)
def test_damaged_lists_of_celeba(folder, lists):
    paths = [folder / "identity_CelebA.txt", folder / "list_attr_celeba.txt"]
    for path, content in zip(paths, lists, strict=True):
        path.write_bytes(content)
    read_safely(lambda: read_lists(*paths), 1000)


def _zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("img_align_celeba/1.jpg", picture(3))
    return content.getvalue()


@QUICK
@given(content=damaged(_zip(), len(_zip())))
def test_damaged_zip_files_of_pictures(folder, content):
    path = folder / "img_align_celeba.zip"
    path.write_bytes(content)
    read_safely(lambda: Pictures(path).read(["1.jpg"], Path("list")), len(content))


def test_a_zip_member_that_says_it_is_huge_is_refused_before_room_is_made(tmp_path):
    content = bytearray(_zip())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 20 : entry + 24] = struct.pack("<I", 1 << 30)  # its packed size in the directory
    (tmp_path / "p.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"1.jpg is not a picture of CelebA: it has 1073741824 bytes"):
        Pictures(tmp_path / "p.zip").read(["1.jpg"], Path("list"))


def test_what_the_fuzzed_files_are_made_of_is_right_when_left_alone(tmp_path):
    (tmp_path / "images").write_bytes(IMAGES)
    assert len(read_idx(tmp_path / "images", "uint8", (None, 28, 28))) == 3
    (tmp_path / "a.tar.gz").write_bytes(tar(MEMBERS))
    assert len(cifar10.read_archive(tmp_path / "a.tar.gz").train) == len(BATCHES) - 1
    (tmp_path / "a.json").write_bytes(LEAF)
    assert len(femnist.read(Leaf(everything=(tmp_path / "a.json",))).train) == 2
    (tmp_path / "p.zip").write_bytes(_zip())
    assert isinstance(
        Samples(Pictures(tmp_path / "p.zip").read(["1.jpg"], Path("list")), np.zeros(1, np.int64)), Samples
    )
