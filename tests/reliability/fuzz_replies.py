"""Damaged replies of Flower clients, and their readers."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import Canary, spoilt_bytes, spoilt_fields
from spoilt_numbers import spoilt_array

from kasync import rules
from kasync.errors import UserError
from kasync.live.deliveries import Delivery

WORDS = ("", "crashed", "a\nclient 7 delivered", "\x1b[2J", "x" * 100_000)


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

        from kasync.live.flower_messages import Layout, Reader
        from kasync.live.loop import Federation
        from kasync.live.terms import Terms

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a message is written by somebody
        self.flwr = (Array, ArrayRecord, Message, MetricRecord, RecordDict, Error)
        self.canary = folder / "canary"
        self.arrays = {
            "w": np.ones((2, 3), np.float32),
            "b": np.zeros(3, np.float64),
            "h": np.ones(2, np.float16),
            "running_var": np.ones(3, np.float32),
            "n": np.array([7]),
        }
        self.layout = layout = Layout.of(self.arrays)
        self.reader = Reader(layout, "num-examples")
        terms = Terms(k=1, offences=None, rest=0.0, longest_rest=0.0)
        arrays = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        self.start = (layout.vector(arrays), layout.buffer_vector(arrays))
        self.federation = Federation(rules.kasync_sgd(0.1), self.start[0], terms, buffers=self.start[1])
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
        if draw.random() < 0.7:
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
        """Nothing may be raised by them; what is accepted is finite, no variance below 0, and what is not says why."""
        orders = self.federation.dispatch(0.0)
        brought = self.reader.read(made)
        ended = [self.federation.collect(order.ticket, order.node, brought, 0.0) for order in orders]
        assert set(ended) <= {"accepted", "refused", "failed"}, ended
        assert all(line.isprintable() and len(line) < 1000 for line in self.logged), self.logged
        self.logged.clear()
        self.federation.step(0.0)
        params, buffers = self.federation.server.params, self.federation.buffers
        assert bool(torch.isfinite(params).all())
        assert bool(torch.isfinite(buffers).all())
        assert float(self.layout.arrays(params, buffers)["running_var"].min()) >= 0.0
        self.federation.server = replace(self.federation.server, params=self.start[0].clone())
        self.federation.buffers = self.start[1]
        if not isinstance(brought, Delivery) or ended == ["refused"]:
            raise UserError(f"refused: {getattr(brought, 'reason', 'its numbers')}")
