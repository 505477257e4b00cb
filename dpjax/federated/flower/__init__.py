"""The vote, and training after it, as a Flower federation; the extra `federated`.

The public names are found in `dpjax.federated`.

| module | what |
|---|---|
| `election` | everything public about vote and training, and its fingerprint |
| `messages` | what both sides agree on: the rules of a masked sum, the names of messages |
| `client` | a client's app: under masks, once a phase; every trap of Flower's SecAgg+ refused |
| `noisy_vectors` | what a client makes of its records: a ballot or an update, with its noise |
| `storage` | what lies on a node: its owner's settings, its records, the ledger of its answers |
| `server` | the server's app: secure sums, the vote, rounds of averaging |
| `in_process` | the same apps in one process |
| `vote_release` | what may be published |
| `internals` | every import from Flower, one tested version |
"""

# Without Flower this import fails at once, with one clear line.
from dpjax.federated.flower import internals as internals
