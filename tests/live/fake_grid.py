"""A Flower grid in memory: messages go in, replies come out when a script says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

try:
    from flwr.app import Error
except ImportError:
    from flwr.app.error import Error
with contextlib.suppress(ImportError):  # since 1.40 a message is written by somebody
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
Answer = Callable[[Message], "list[Message]"]


class FakeGrid(Grid):
    """`answer` gets each message and returns its replies; `due` says whether a reply may be fetched already."""

    def __init__(self, nodes: Iterable[int], answer: Answer, due: Callable[[Message], bool] = lambda reply: True):
        self.nodes, self.answer, self.due = list(nodes), answer, due
        self.replies: list[Message] = []
        self.sent: list[Message] = []
        self.unreachable: set[int] = set()
        self.newest = 0  # the newest version that was sent to anybody

    def set_run(self, run) -> None:
        pass

    @property
    def run(self):
        return None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        """As FedAvg does it: wait for everybody."""
        return self.pull_messages(self.push_messages(messages))

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            if message.metadata.dst_node_id in self.unreachable:
                continue  # as Flower's in-memory grid does
            name = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            if message.metadata.group_id:
                self.newest = max(self.newest, int(message.metadata.group_id))
            for number, reply in enumerate(self.answer(message)):
                reply.metadata.__dict__["_message_id"] = f"reply {number} to {name}"
                self.replies.append(reply)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = set(message_ids)
        found = [reply for reply in self.replies if self.is_for(reply, asked) and self.due(reply)]
        self.replies = [reply for reply in self.replies if all(reply is not each for each in found)]
        return found

    @staticmethod
    def is_for(reply: Message, asked: set[str]) -> bool:
        return reply.metadata.reply_to_message_id in asked


def crashed(message: Message) -> list[Message]:
    """The reply of a ClientApp that raised."""
    return [Message(Error(code=8, reason="ClientApp raised"), reply_to=message)]
