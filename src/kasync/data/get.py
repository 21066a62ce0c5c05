"""Downloads of data sets: the hub's own loaders fetch them, and the official layout is written."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from kasync.data import write
from kasync.data.catalogue import names
from kasync.data.files import roots
from kasync.errors import UserError, unknown

IDX_FILES = tuple(
    f"{part}-{stem}.gz" for part in ("train", "test") for stem in ("images-idx3-ubyte", "labels-idx1-ubyte")
)


@dataclass(frozen=True)
class Hub:
    """A dataset on the Hugging Face hub: `writer` makes official files of its splits, or `files` already are."""

    repository: str
    writer: Callable[[Mapping[str, Any], Path], None] | None = None
    files: tuple[str, ...] = ()


HUBS = {
    "mnist": Hub("ylecun/mnist", write.mnist),
    "cifar10": Hub("uoft-cs/cifar10", write.cifar10),
    "celeba": Hub("flwrlabs/celeba", write.celeba),
    "femnist": Hub("flwrlabs/femnist", write.femnist),
    "shakespeare": Hub("flwrlabs/shakespeare", write.shakespeare),
    "emnist-mnist": Hub("tanganke/emnist_mnist", files=tuple(f"raw/emnist-mnist-{file}" for file in IDX_FILES)),
    "emnist-byclass": Hub("Royc30ne/emnist-byclass", files=tuple(f"emnist-byclass-{file}" for file in IDX_FILES)),
}
BY_HAND = {
    "mnist": "the four files train-images-idx3-ubyte.gz ... t10k-labels-idx1-ubyte.gz",
    "cifar10": "cifar-10-binary.tar.gz",
    "celeba": "img_align_celeba.zip, identity_CelebA.txt and list_attr_celeba.txt",
    "femnist": "the folders train and test of LEAF's json",
    "shakespeare": "the folders train and test of LEAF's json",
    "emnist-mnist": "the four files emnist-mnist-train-images-idx3-ubyte.gz ... emnist-mnist-test-labels-idx1-ubyte.gz",
    "emnist-byclass": "the four files emnist-byclass-train-images-idx3-ubyte.gz ... -test-labels-idx1-ubyte.gz",
}


def get(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Fetch a dataset into root/name, in the layout `load` reads, with the hub's progress bar; the folder it is in."""
    if name not in names():
        raise unknown("dataset", name, HUBS)
    if name == "newsgroups":
        raise UserError("newsgroups by author is on no hub: docs/data.md says how its file is made.")
    if name not in HUBS:
        raise UserError(f"{name} needs no download: kasync.data.load({name!r}) makes it where it is.")
    places = roots(root)
    if not places:
        raise UserError(f"there is no folder to put {name} in: name one in $KASYNC_DATA (or root).")
    folder = places[0] / name
    hub = HUBS[name]
    _check_network(name, hub.repository, folder)
    if hub.writer is None:
        fetched = [(Path(file).name, _file(name, hub.repository, file, folder)) for file in hub.files]
        for file, source in fetched:
            write.copy(source, folder / file)
    else:
        hub.writer(_splits(name, hub.repository, folder), folder)
    return folder


def _check_network(name: str, repository: str, folder: Path) -> None:
    """Say at once what the hub's clients say after half a minute; a proxy or their own cache may do without."""
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    if getproxies() or os.environ.get("HF_HUB_OFFLINE"):
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise _without_network(name, repository, folder, error) from None


def _splits(name: str, repository: str, folder: Path) -> Mapping[str, Any]:
    """The splits of a dataset, through Hugging Face `datasets`."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise _without_extra(name, folder) from None
    try:
        return load_dataset(repository)
    except Exception as error:  # the library lets through whatever its many transports raise
        raise _without_network(name, repository, folder, error) from None


def _file(name: str, repository: str, file: str, folder: Path) -> Path:
    """One official file, through Hugging Face's hub client (which comes with `datasets`)."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise _without_extra(name, folder) from None
    try:
        return Path(hf_hub_download(repository, file, repo_type="dataset"))
    except Exception as error:  # as above
        raise _without_network(name, repository, folder, error) from None


def _without_extra(name: str, folder: Path) -> UserError:
    return UserError(f"getting {name} needs pip install 'kasync[data]'; or put {BY_HAND[name]} in {folder} yourself.")


def _without_network(name: str, repository: str, folder: Path, error: Exception) -> UserError:
    return UserError(
        f"{name} could not be fetched from huggingface.co/datasets/{repository} ({type(error).__name__}): "
        f"put {BY_HAND[name]} in {folder} yourself, or try again where there is a network."
    )
