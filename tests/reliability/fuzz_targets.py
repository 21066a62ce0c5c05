"""Which inputs are fuzzed? Settings, timelines, checkpoints, traces, data sets and Flower's replies."""

from __future__ import annotations

import gzip
import io
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import BYTES, ODD, Canary, spoilt_bytes, spoilt_fields
from official_files import binary, characters, cifar_batches, idx, leaf, pickled, picture, python2_pickle, tar
from safetensors.torch import save_file
from small_worlds import CLIENTS, mlp, vectors

from kasync import Gradient, rules, simulate, timelines
from kasync.checkpoint import Checkpoint, checksum, identity_of
from kasync.data import cifar10, femnist
from kasync.data.celeba import read_lists
from kasync.data.idx import read_idx
from kasync.data.leaf import Leaf
from kasync.data.pickles import read_pickle
from kasync.data.pictures import Pictures
from kasync.errors import UserError
from kasync.experiments import toml
from kasync.experiments.build import ready
from kasync.experiments.settings import RunSettings
from kasync.live.deliveries import Delivery
from kasync.timelines import durations

WORDS = ("", "crashed", "a\nclient 7 delivered", "\x1b[2J", "x" * 100_000)
TINY = 60  # clients and steps of settings that are also run


class Settings:
    """A TOML file of a run; what is accepted and small is also run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.toml"
        trace = folder / "trace.csv"
        trace.write_text("client,seconds\n0,1.5\n1,2\n")
        pareto = {"kind": "pareto", "least": 1.0, "shape": 2.0}
        local = {"kind": "local_sgd", "steps": 2, "lr": 0.1, "batch_size": 2}
        leaving = {"kind": "clock", "dropouts": {"chance": 0.1}}
        dirichlet = {"kind": "dirichlet", "alpha": 1.0}
        base = {"dataset": "synthetic", "clients": 8, "k": 2, "steps": 4, "seed": 3, "partition": {"kind": "iid"}}
        clock = {"kind": "clock", "durations": pareto, "speeds": {"kind": "constant", "each": 2.0}, "lost": 0.1}
        traced = {"kind": "clock", "mode": "async", "durations": {"kind": "trace", "source": str(trace)}}
        self.tables = [
            RunSettings.of({**base, **more}).resolved().table()
            for more in (
                {"rule": {"kind": "wkafl", "lr": 0.1}},
                {"rule": {"kind": "fedasync", "mixing": 0.5}, "arrivals": clock},
                {"rule": {"kind": "ca2fl", "lr": 0.1}, "work": local},
                {"rule": {"kind": "zeno", "lr": 0.1}, "optimizer": "adam", "schedule": "cosine", "validation": 0.2},
                {"rule": {"kind": "gsgm", "lr": 0.1}, "arrivals": traced, "partition": dirichlet},
                {"rule": {"kind": "krum", "lr": 0.1, "byzantine": 0}, "arrivals": leaving},
            )
        ]

    def make(self, draw: Random) -> Path:
        table = draw.choice(self.tables)
        if draw.random() < 0.7:
            table = spoilt_fields(draw, table)
        text = toml.dumps(table).encode()
        self.path.write_bytes(text if draw.random() < 0.6 else spoilt_bytes(draw, text, len(text)))
        return self.path

    def read(self, made: Path) -> None:
        settings = RunSettings.read(made).resolved()
        sizes = (settings.clients, settings.steps, settings.work.settings.get("steps", 1))
        if max(*sizes, settings.work.settings.get("batch_size", 1)) > TINY or settings.data or settings.root:
            return
        parts = ready(settings)
        for _ in simulate(
            parts.model,
            parts.data,
            parts.rule,
            parts.timeline,
            parts.work,
            seed=settings.seed,
            hold=settings.hold,
            staleness=settings.staleness,
            evaluate_every=settings.evaluate_every,
        ):
            pass


class Timelines:
    """A npz file with a timeline."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "timeline.npz"
        timelines.save(timelines.uniform(6, 2, 20, seed=1), self.path)
        self.whole = self.path.read_bytes()
        with np.load(self.path, allow_pickle=False) as stored:
            self.arrays = {name: stored[name] for name in stored}

    def make(self, draw: Random) -> Path:
        if draw.random() < 0.4:
            self.path.write_bytes(spoilt_bytes(draw, self.whole))
            return self.path
        arrays: dict[str, Any] = dict(self.arrays)
        for _ in range(draw.choice((1, 1, 2))):
            name = draw.choice(list(arrays))
            if name == "about" and draw.random() < 0.7:
                arrays[name] = self._about(draw)
            else:
                arrays[name] = spoilt_array(draw, arrays[name], self.folder / "canary")
            if draw.random() < 0.1:
                del arrays[draw.choice(list(arrays))]
        with open(self.path, "wb") as file:
            (np.savez_compressed if draw.random() < 0.5 else np.savez)(file, **arrays)
        return self.path

    def _about(self, draw: Random) -> np.ndarray:
        about = spoilt_fields(draw, json.loads(self.arrays["about"].tobytes()))
        text = json.dumps(about).encode()
        return np.frombuffer(text if draw.random() < 0.7 else spoilt_bytes(draw, text, len(text)), dtype=np.uint8)

    def read(self, made: Path) -> None:
        found = timelines.load(made)
        if found.population < 10**6:  # a summary counts something for every client
            found.summary()


class Checkpoints:
    """A checkpoint of a simulation; spoilt by a person, its checksum differs, and by an enemy it does not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "run.ckpt"
        self.timeline = timelines.uniform(CLIENTS, 3, 12, seed=4)
        for record in self.simulation():
            if record.step == 8:
                break
        self.whole = self.path.read_bytes()
        found = Checkpoint(self.path, {}).load()
        assert found is not None
        self.step, self.tensors = found[0], {name: value.clone() for name, value in found[1].items()}
        self.identity = dict(self.simulation().checkpoint.identity)  # type: ignore[union-attr]

    def simulation(self) -> Any:
        options: dict[str, Any] = {"evaluate_every": 4, "checkpoint": self.path, "checkpoint_every": 0.0}
        return simulate(mlp(), vectors(), rules.wkafl(0.05), self.timeline, Gradient(2), **options)

    def make(self, draw: Random) -> Path:
        way = draw.random()
        if way < 0.4:
            self.path.write_bytes(spoilt_bytes(draw, self.whole, 2000))
        elif way < 0.45:
            self.path.write_bytes(Canary.pickled(self.folder / "canary", draw.randrange(6)))
        elif way < 0.5:
            torch.save({"x": Canary(self.folder / "canary")}, self.path)
        else:
            self._by_fields(draw)
        return self.path

    def _by_fields(self, draw: Random) -> None:
        about: dict[str, Any] = {"version": 1, "step": self.step, "identity": self.identity}
        tensors = dict(self.tensors)
        if draw.random() < 0.6:
            about = spoilt_fields(draw, about)
        if draw.random() < 0.6:
            name = draw.choice(list(tensors))
            match draw.randrange(3):
                case 0:
                    del tensors[name]
                case 1:
                    tensors[f"{name}x"] = tensors.pop(name)
                case 2:
                    tensors[name] = spoilt_tensor(draw, tensors[name])
        try:
            about["checksum"] = checksum(about, tensors)
        except (TypeError, ValueError, OverflowError):
            about["checksum"] = "0" * 64
        text = json.dumps(about) if draw.random() < 0.9 else draw.choice(BYTES).decode(errors="replace")
        save_file(tensors, self.path, metadata={"kasync": text})

    def read(self, made: Path) -> None:
        identity_of(made)
        Checkpoint(made, self.identity).load()  # most are refused here, before a model is built
        for _ in self.simulation():
            pass


class Traces:
    """A csv file with measured seconds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace.csv"
        self.rows = [["client", "seconds"], *([str(row % 4), f"{1 + row / 7:.3f}"] for row in range(20))]

    def make(self, draw: Random) -> Path:
        rows = [list(row) for row in self.rows]
        for _ in range(draw.choice((0, 1, 1, 2, 5))):
            row = draw.choice(rows)
            match draw.randrange(5):
                case 0:
                    row[draw.randrange(len(row)) if row else 0 :] = [str(draw.choice(ODD))[:9000]]
                case 1:
                    row.append(str(draw.choice(ODD))[:50])
                case 2:
                    row.clear()
                case 3:
                    rows.insert(draw.randrange(len(rows)), list(draw.choice(rows)))
                case 4:
                    rows.remove(row)
            if not rows:
                break
        comma = draw.choice((",",) * 9 + (";",))
        text = "\n".join(comma.join(row) for row in rows).encode(errors="replace")
        self.path.write_bytes(text if draw.random() < 0.5 else spoilt_bytes(draw, text, len(text)))
        return self.path

    def read(self, made: Path) -> None:
        found = durations.trace(made)
        timelines.clock(6, 2, 5, found)


class Datasets:
    """Files of every official format."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        batches = cifar_batches(1)
        images = idx(np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28))
        members = {f"b/{name}.bin": binary(*batch) for name, batch in batches.items()}
        written = leaf({"a": characters(1, 0)[1:], "b": characters(1, 1)[1:]})
        shape = (None, 28, 28)
        lists = (b"1.jpg 7\n2.jpg 7\n3.jpg 7\n4.jpg 7\n5.jpg 7\n", b"1\nBald Smiling\n1.jpg 1 -1\n")
        (folder / "list_attr_celeba.txt").write_bytes(lists[1])
        self.kinds: list[tuple[str, bytes, Callable[[Path], object]]] = [
            ("images", images, lambda path: read_idx(path, "uint8", shape)),
            ("images.gz", gzip.compress(images), lambda path: read_idx(path, "uint8", shape)),
            ("cifar-10-binary.tar.gz", tar(members), cifar10.read_archive),
            ("cifar.tar", tar(members, packed=False), cifar10.read_archive),
            ("new", pickled(*batches["test_batch"]), lambda path: read_pickle(path.read_bytes(), "test_batch")),
            ("old", python2_pickle(*batches["test_batch"]), lambda path: read_pickle(path.read_bytes(), "test_batch")),
            ("all_data.json", written.encode(), lambda path: femnist.read(Leaf(everything=(path,)))),
            ("identity_CelebA.txt", lists[0], lambda path: read_lists(path, folder / "list_attr_celeba.txt")),
            ("img.zip", zipped(picture(3)), lambda path: Pictures(path).read(["1.jpg"], Path("list"))),
        ]

    def make(self, draw: Random) -> tuple[Path, Callable[[Path], object]]:
        name, content, read = draw.choice(self.kinds)
        path = self.folder / name
        if name == "all_data.json" and draw.random() < 0.5:
            content = json.dumps(spoilt_fields(draw, json.loads(content))).encode()
        elif name in ("old", "new") and draw.random() < 0.2:
            content = Canary.pickled(self.folder / "canary", draw.randrange(6))
        elif name.endswith(".gz") and draw.random() < 0.5:
            content = gzip.compress(spoilt_bytes(draw, gzip.decompress(content)))
        else:
            content = spoilt_bytes(draw, content)
        path.write_bytes(content)
        return path, read

    def read(self, made: tuple[Path, Callable[[Path], object]]) -> None:
        path, read = made
        read(path)


def zipped(content: bytes) -> bytes:
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("img_align_celeba/1.jpg", content)
    return held.getvalue()


def spoilt_array(draw: Random, array: np.ndarray, canary: Path) -> np.ndarray:
    """Another shape, another type, other numbers; or a pickle in the guise of an array."""
    if array.dtype.kind not in "uif" or array.size == 0 or array.ndim == 0:
        return array  # it is spoilt already
    match draw.randrange(7):
        case 0:
            return array[: draw.randrange(len(array) + 1)]
        case 1:
            kind = draw.choice(("int8", "int64", "float16", "float64", "bool", "complex64", "S3", "datetime64[s]"))
            return array.astype(kind) if kind != "datetime64[s]" else array.astype("int64").astype(kind)
        case 2:
            return array.reshape(draw.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
        case 3:
            changed = array.astype("float64")
            changed.flat[draw.randrange(changed.size)] = draw.choice((np.nan, np.inf, -1, 2**31, 1e18, 3))
            return changed if array.dtype.kind == "f" or draw.random() < 0.3 else changed.astype("int64")
        case 4:
            changed = array.copy()
            changed.flat[draw.randrange(changed.size)] = draw.choice((0, 1, 5, 6, 100))
            return changed
        case 5:
            return np.array([Canary(canary)], dtype=object)
        case _:
            return np.array(draw.choice((0, 1.5, "text")))


def spoilt_tensor(draw: Random, tensor: torch.Tensor) -> torch.Tensor:
    match draw.randrange(5):
        case 0:
            kinds = (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
            return tensor.to(draw.choice(kinds))
        case 1:
            return tensor.reshape(-1)[: draw.randrange(tensor.numel() + 1)].clone()
        case 2:
            return torch.full_like(tensor, draw.choice((0, 1, 100)))
        case 3:
            return tensor.reshape(1, -1).clone()
        case _:
            return torch.zeros(0, dtype=tensor.dtype)


class Remembering(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Replies:
    """What a Flower client sends back."""

    def __init__(self, folder: Path) -> None:
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.app.error import Error
        from flwr.supercore.task_identity import TaskIdentity

        from kasync.live.flower_replies import Reader
        from kasync.live.layout import Layout
        from kasync.live.loop import Federation
        from kasync.live.terms import Terms

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a message is written by somebody
        self.flwr = (Array, ArrayRecord, Message, MetricRecord, RecordDict, Error)
        self.canary = folder / "canary"
        self.arrays = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float64), "n": np.array([7])}
        layout = Layout.of(self.arrays)
        self.reader = Reader(layout, "num-examples")
        terms = Terms(k=1, offences=None, rest=0.0, longest_rest=0.0)
        self.federation = Federation(rules.kasync_sgd(0.1), layout.vector(self.arrays), terms)
        self.federation.present([0], 0.0)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self.logged: list[str] = []
        log = logging.getLogger("kasync.live")
        log.addHandler(Remembering(self.logged))
        log.propagate = False

    def make(self, draw: Random) -> Any:
        _, ArrayRecord, Message, MetricRecord, RecordDict, Error = self.flwr
        arrays = {name: self._array(draw, name, array) for name, array in self.arrays.items()}
        for _ in range(draw.choice((0, 0, 1))):
            name = draw.choice(list(arrays))
            arrays[draw.choice(("x", "", "w.", "b", name * 500))] = arrays.pop(name)
        metrics: dict[str, Any] = {"num-examples": 4, "train_loss": 0.5}
        if draw.random() < 0.5:
            metrics = spoilt_fields(draw, metrics)
        content: Any = RecordDict({"arrays": ArrayRecord(arrays)})
        try:
            content["metrics"] = MetricRecord(metrics)
        except (TypeError, ValueError, OverflowError):  # Flower itself lets no such thing be sent
            content["metrics"] = MetricRecord({"train_loss": draw.choice((1.0, float("nan"), -1e300))})
        if draw.random() < 0.1:
            content[draw.choice(("arrays", "more", "metrics"))] = draw.choice(
                (ArrayRecord(arrays), MetricRecord({"a": [1.0, 2.0]}))
            )
        asked = Message(RecordDict(), dst_node_id=0, message_type="train")
        asked.metadata.__dict__["_message_id"] = "asked"
        if draw.random() < 0.05:
            return Message(Error(code=draw.choice((0, 5, 8, 99)), reason=draw.choice(WORDS)), reply_to=asked)
        return Message(content, reply_to=asked)

    def _array(self, draw: Random, name: str, array: np.ndarray) -> Any:
        Array = self.flwr[0]
        if draw.random() < 0.5:
            return Array(array)
        shown = spoilt_array(draw, array, self.canary) if draw.random() < 0.5 else array
        held = io.BytesIO()
        np.save(held, shown, allow_pickle=True)
        data = held.getvalue()
        if draw.random() < 0.4:
            data = spoilt_bytes(draw, data, 128)
        if draw.random() < 0.05:
            data = Canary.pickled(self.canary) * draw.choice((1, 1, 5000))
        shape = draw.choice((array.shape, array.shape, shown.shape, (10**9, 10**9), (-1,), ()))
        kind = draw.choice((str(array.dtype), str(array.dtype), str(shown.dtype), "object", "float32" * 50))
        return Array(kind, tuple(shape), draw.choice(("numpy.ndarray",) * 4 + ("pickle", "x" * 9000)), data)

    def read(self, made: Any) -> None:
        """Nothing may be raised by them; what is accepted is finite, and what is not says why."""
        orders = self.federation.dispatch(0.0)
        brought = self.reader.read(made)
        ended = [self.federation.collect(order.ticket, order.node, brought, 0.0) for order in orders]
        assert set(ended) <= {"accepted", "refused", "failed"}, ended
        assert all(line.isprintable() and len(line) < 1000 for line in self.logged), self.logged
        self.logged.clear()
        self.federation.step(0.0)
        assert bool(torch.isfinite(self.federation.server.params).all())
        self.federation.server = replace(self.federation.server, params=torch.zeros(9, dtype=torch.float64))
        if not isinstance(brought, Delivery) or ended == ["refused"]:
            raise UserError(f"refused: {getattr(brought, 'reason', 'its numbers')}")


TARGETS: dict[str, Callable[[Path], Any]] = {
    "settings": Settings,
    "timelines": Timelines,
    "checkpoints": Checkpoints,
    "traces": Traces,
    "data sets": Datasets,
    "replies": Replies,
}
