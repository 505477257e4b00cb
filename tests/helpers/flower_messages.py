"""Flower's contexts and messages, as tests of federations make and read them."""

import numpy as np

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower import messages


def context(run_id=1, node_id=1, node_config=None, run_config=None):
    """Of the server, or of a node with its configuration."""
    return flower.Context(
        run_id=run_id,
        node_id=node_id,
        node_config=node_config or {},
        state=flower.RecordDict(),
        run_config=run_config or {},
    )


def stage(message):
    """The stage of SecAgg+ that a message belongs to, or None."""
    records = message.content.config_records
    return records.get(flower.RECORD_KEY_CONFIGS, {}).get(flower.Key.STAGE)


def phase(message):
    """The phase of the run that a message belongs to, or None."""
    return message.content.config_records.get(messages.ELECTION_RECORD, {}).get(messages.PHASE)


class Wire:
    """Everything sent, and the vectors that clients keep for the masks, if it watches their app.

    A vector stands in the node's own state from the reply to a request for it until it is masked.
    """

    def __init__(self):
        self.sent, self._states, self._vectors = [], {}, {}

    def watching(self, load):
        """The same function of a client's records, which tells the wire whose state that is."""

        def loaded(context):
            self._states[context.node_id] = context.state
            return load(context)

        return loaded

    def observe(self, traffic):
        """Notes a message, and what its node keeps by then."""
        self.sent.append(traffic)
        state = self._states.get(traffic.node_id, flower.RecordDict())
        if messages.NOISY_VECTOR in state.array_records:
            phase = state.config_records[messages.PREPARED][messages.PHASE]
            (vector,) = state.array_records[messages.NOISY_VECTOR].to_numpy_ndarrays()
            self._vectors[phase, traffic.node_id] = vector

    @property
    def vectors(self):
        """Of the vote and then of each round, in the nodes' order."""
        return [self._vectors[place] for place in sorted(self._vectors)]

    def parsed(self, senders=(True,)):
        """(traffic, message) of the clients; with both `senders` of the server too."""
        for traffic in self.sent:
            if traffic.from_client in senders:
                message = flower.MessageProto()
                message.ParseFromString(traffic.content)
                yield traffic, message

    def holds(self, vector, clip):
        """Whether any message holds the vector in a form that a reader would recognise.

        Zeros alone are no find: they stand in any message. Noise makes one of a vote in 60,000.
        """
        if not np.any(vector):
            return False
        shifted = np.asarray(vector).astype(np.int64) + clip
        forms = [
            form.astype(kind).tobytes()
            for form in (np.asarray(vector), shifted)
            for kind in (np.int32, np.int64, np.float32, np.float64)
        ]
        if np.size(vector) > 7:  # Four bytes may stand anywhere by chance.
            forms += [np.asarray(vector).astype(np.int8).tobytes()]
        return any(form in traffic.content for traffic in self.sent for form in forms)

    def forms(self):
        """Of each message: whose, which way, its type, whether an error, its size."""
        found = []
        for traffic, message in self.parsed((True, False)):
            kind = (message.metadata.message_type, message.HasField("error"))
            message.metadata.run_id = 0  # Drawn at random: of 9 bytes, and once in 128 of fewer.
            found.append((traffic.node_id, traffic.from_client, *kind, message.ByteSize()))
        return found
