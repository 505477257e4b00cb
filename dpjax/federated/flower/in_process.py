"""Runs a federation in one process: the same apps, every message serialised as on the wire.

It is for simulations and tests, without Ray and without a network; deployments are Flower's. Each
node keeps its own context, and what a ClientApp raises becomes an error reply, as in a deployment.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.federated.federation_settings import Config
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.messages import LOCAL_SCORES
from dpjax.federated.flower.server import Outcome, make_server_app
from dpjax.federated.flower.storage import LEDGER

_SERVER_NODE_ID = 1
_APP_RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Holds one message as it was sent."""

    node_id: int  # where it went to, or came from
    from_client: bool
    content: bytes  # serialised


class InProcessGrid(flower.Grid):
    """Calls a ClientApp for each message to a node, one by one: a Flower grid in this process."""

    def __init__(
        self,
        client_app: flower.ClientApp,
        node_configs: Iterable[Mapping[str, Any]],
        *,
        is_lost: Callable[[int, flower.Message], bool] | None = None,
        observe: Callable[[Traffic], None] | None = None,
        advance: Callable[[flower.Message], None] | None = None,
    ):
        """Makes the nodes.

        Args:
          client_app: the app that every node runs.
          node_configs: one mapping per node, its `context.node_config`; a node that names no
            `ledger` gets one that is deleted with this object.
          is_lost: `is_lost(index, message)`: whether the node's reply to this message never
            arrives; for tests.
          observe: called with every message as sent, for tests.
          advance: called with every request that was answered, for a progress display.
        """
        # Flower stamps messages with the identity of the process, which a SuperLink would set.
        identity = flower.TaskIdentity
        self.run_id = secrets.randbits(62)
        identity.task_id, identity.run_id, identity.node_id = 1, self.run_id, _SERVER_NODE_ID
        ledgers = tempfile.mkdtemp(prefix="dpjax_ledgers_")
        weakref.finalize(self, shutil.rmtree, ledgers, ignore_errors=True)
        self._app = client_app
        self._is_lost = is_lost or (lambda index, message: False)
        self._observe = observe or (lambda traffic: None)
        self._advance = advance or (lambda message: None)
        self._contexts: dict[int, flower.Context] = {}
        for index, config in enumerate(node_configs):
            node_id = 1000 + index
            self._contexts[node_id] = flower.Context(
                run_id=self.run_id,
                node_id=node_id,
                node_config={LEDGER: os.path.join(ledgers, str(index))} | dict(config),
                state=flower.RecordDict(),
                run_config={},
            )
        self._indices = {node_id: index for index, node_id in enumerate(self._contexts)}

    @property
    def states(self) -> list[flower.RecordDict]:
        """Returns every node's own state, in order, which only a simulation can see."""
        return [context.state for context in self._contexts.values()]

    def set_run(self, run: Any) -> None:
        """Does nothing: there is one run only."""

    @property
    def run(self) -> Any:
        """Refuses: there is no run record."""
        raise NotImplementedError("an in-process federation keeps no run record")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        """Makes a message, as Flower's deprecated method of this name."""
        return flower.Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def get_node_ids(self) -> list[int]:
        """Returns every node's id."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[flower.Message]) -> list[str]:
        """Refuses: requests are answered at once."""
        raise NotImplementedError("an in-process federation answers at once: send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> list[flower.Message]:
        """Refuses: requests are answered at once."""
        raise NotImplementedError("an in-process federation answers at once: send_and_receive")

    def send_and_receive(
        self, messages: Iterable[flower.Message], *, timeout: float | None = None
    ) -> list[flower.Message]:
        """Returns the replies; one that is lost is missing, as after a time-out."""
        replies = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            # As Flower's own grids do it: the process may hold several federations.
            message.metadata.__dict__["_run_id"] = self.run_id
            # A copy over the wire: handlers change what they are given.
            request = self._carried(message, node_id, from_client=False)
            try:
                reply = self._app(request, self._contexts[node_id])
            except Exception as error:
                # As a SuperNode reports it, text included: errors are sent unencrypted.
                reason = f"{type(error)}:<'{error}'>"
                reply = flower.Message(flower.Error(_APP_RAISED, reason), reply_to=request)
            if not self._is_lost(self._indices[node_id], message):
                replies.append(self._carried(reply, node_id, from_client=True))
            self._advance(message)
        return replies

    def _carried(
        self, message: flower.Message, node_id: int, *, from_client: bool
    ) -> flower.Message:
        """Returns a message as it arrives: serialised, shown to the observer, and read again."""
        content = flower.message_to_proto(message).SerializeToString()
        self._observe(Traffic(node_id=node_id, from_client=from_client, content=content))
        received = flower.MessageProto()
        received.ParseFromString(content)
        return flower.message_from_proto(received)


def run_in_process(
    client_app: flower.ClientApp,
    config: Config,
    node_configs: Sequence[Mapping[str, Any]],
    **grid_options: Any,
) -> tuple[Outcome, np.ndarray]:
    """Holds a vote, and the rounds after it, among simulated nodes in this process, one by one.

    Example:
      >>> import json
      >>> import pathlib
      >>> import numpy as np
      >>> from dpjax import federated
      >>> rng = np.random.default_rng(0)  # Made up, to try it out; a useful vote needs many more.
      >>> hospitals = [(rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for _ in range(3)]
      >>> rates = [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (0.1, 0.3)]
      >>> config = {
      ...     "clients": 3, "candidates": json.dumps(rates), "votes": 1, "epsilon": 20.0,
      ...     "missing-fraction": 0.34, "classes": 2, "model": "logistic_regression", "epochs": 1,
      ...     "rounds": 2, "total-epsilon": 60.0, "input-shape": "3",
      ... }
      >>> def load(own):
      ...     return hospitals[own.node_config["partition-id"]]
      >>> app = federated.make_client_app(load, config)
      >>> nodes = [{"partition-id": number} for number in range(3)]
      >>> outcome, accuracies = federated.run_in_process(app, config, nodes)
      >>> outcome.winner in (0, 1), outcome.survivors, outcome.lost, accuracies.shape
      (True, 3, 0, (3, 2))
      >>> outcome.params.shape, outcome.round_survivors
      ((4,), (3, 3))
      >>> federated.save_outcome(outcome, "vote")
      >>> sorted(path.name for path in pathlib.Path("vote/release").iterdir())
      ['guarantee.json', 'hyperparameters.json', 'model.msgpack']

    Args:
      client_app: what every node runs.
      config: of the election and the run, flat.
      node_configs: one per node.
      **grid_options: of `InProcessGrid`.

    Returns:
      The outcome; and every client's accuracies (n, p), or losses if clients have a judge of their
      own, NaN where a client could not judge. Only a simulation can see these numbers.

    Raises:
      SumAborted, VoteAborted: see `run_election`.
    """
    outcomes: list[Outcome] = []
    server_app = make_server_app(config, lambda outcome, _: outcomes.append(outcome))
    grid = InProcessGrid(client_app, node_configs, **grid_options)
    context = flower.Context(
        run_id=grid.run_id, node_id=1, node_config={}, state=flower.RecordDict(), run_config={}
    )
    server_app(grid, context)
    (outcome,) = outcomes
    unknown = np.full(len(outcome.election.candidates), np.nan)
    seen = [state.array_records.get(LOCAL_SCORES) for state in grid.states]
    accuracies = [unknown if kept is None else kept.to_numpy_ndarrays()[0] for kept in seen]
    return outcome, np.stack(accuracies)
