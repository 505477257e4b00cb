r"""Size of a client's messages in a vote, measured: against candidates p and against clients n.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", arXiv:2510.04902, figure 3 of the preprint, which the
published version leaves out. It counts the entries of ballots, p of each client, without secure
summation. Here every vote is really held, by the apps of a deployment in one process under Flower's
SecAgg+, and sizes are those of the messages as serialised for the wire:
  train       the reply to the request to train: the fingerprint of the rules, nothing else;
  keys        public keys (stage "setup");
  shares      shares of the keys for up to ten others, encrypted (stage "share_keys");
  ballot      the masked noisy ballot (stage "collect_masked_vectors");
  unmask      shares that remove the masks from the sum (stage "unmask").

What it shows: a ballot has 8 bytes a candidate and 495 more, whatever n; the four other messages
do not depend on p, nor on n from 11 clients on, since keys are shared among 11. What the server
receives is n times as much. No size depends on records, as `tests/federated` checks, so each client
holds ten random ones and trains one pass of logistic regression.

Left out: the run's number, drawn at random, in every message twice the same; it takes 10 bytes with
its tag, and once in 128 runs fewer. What the transport adds (gRPC, TLS) is not counted. Nodes are
numbered from 1000 here; a deployment's numbers are 64 random bits, so that each mention takes 8
bytes more.

  python -m experiments.figures.dp_hype.figure_communication --out_dir=docs/figures/dp_hype

Full size takes two minutes of one core, --quick ten seconds. Needs the extra `federated`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.federation import offline
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import new_panels
from experiments.figures.rows import distinct, select

CLIENTS = (5, 10, 50, 100, 250)
CANDIDATES = (10, 30, 100, 300, 1000)
QUICK_CLIENTS, QUICK_CANDIDATES = (4, 12), (10, 100)
EPSILON, VOTES = 1.0, 5
MESSAGES = ("train", "keys", "shares", "ballot", "unmask")
COLUMNS = {
    "clients": "clients", "candidates": "candidates", "sender": "name", "message": "name",
    "messages": "messages", "least": "bytes", "most": "bytes",
}  # fmt: skip

_RECORDS, _FEATURES, _CLASSES = 10, 3, 2
_SHOWN_CLIENTS, _SHOWN_CANDIDATES = 50, 100
"""Where the other number varies, if a vote of this size was held."""


def compute(size: str) -> list[dict]:
    """Holds a vote of every size; one row a kind of message and its direction."""
    clients, candidates = (
        (QUICK_CLIENTS, QUICK_CANDIDATES) if size == QUICK else (CLIENTS, CANDIDATES)
    )
    return [row for n in clients for p in candidates for row in message_rows(n, p)]


def message_rows(clients: int, candidates: int) -> list[dict]:
    """Holds one vote of n clients, at least 3, on p candidates; returns its messages' rows."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for sender, kind, number in _messages(clients, candidates):
        sizes.setdefault((sender, kind), []).append(number)
    return [
        {
            "clients": clients,
            "candidates": candidates,
            "sender": sender,
            "message": kind,
            "messages": len(sizes[sender, kind]),
            "least": min(sizes[sender, kind]),
            "most": max(sizes[sender, kind]),
        }
        for sender in ("client", "server")
        for kind in MESSAGES
    ]


def _messages(clients: int, candidates: int) -> Iterator[tuple[str, str, int]]:
    """Sender, kind and bytes of every message of a vote, without the run's random number."""
    offline.stay_offline()  # Before Flower is imported.
    from dpjax import federated
    from dpjax.federated.flower import internals as flower

    rates = np.geomspace(1e-6, 0.5, candidates)
    config = {
        "clients": clients,
        "candidates": json.dumps(
            [{"learning_rate": float(rate), "decay": 1.0, "momentum": 0.0} for rate in rates]
        ),
        "votes": VOTES,
        "epsilon": EPSILON,
        "model": "logistic_regression",
        "classes": _CLASSES,
        "epochs": 1,
        "batch-size": 8,
    }
    nodes = [{"partition-id": index} for index in range(clients)]
    sent: list[Any] = []
    with _quiet():
        federated.run_in_process(
            federated.make_client_app(_records, config), config, nodes, observe=sent.append
        )
    kinds = {
        flower.Stage.SETUP: "keys",
        flower.Stage.SHARE_KEYS: "shares",
        flower.Stage.COLLECT_MASKED_VECTORS: "ballot",
        flower.Stage.UNMASK: "unmask",
    }
    asked: dict[int, str] = {}
    for traffic in sent:
        message = flower.MessageProto()
        message.ParseFromString(traffic.content)
        if message.HasField("error"):
            raise RuntimeError(f"node {traffic.node_id} answered with an error: nothing to measure")
        if not traffic.from_client:
            records = flower.message_from_proto(message).content.config_records
            stage = records.get(flower.RECORD_KEY_CONFIGS, {}).get(flower.Key.STAGE)
            # A reply names no stage: it is that of the request before it.
            asked[traffic.node_id] = kinds.get(stage, "train")
        message.metadata.run_id = 0
        sender = "client" if traffic.from_client else "server"
        yield sender, asked[traffic.node_id], message.ByteSize()


def _records(context: Any) -> tuple[np.ndarray, np.ndarray]:
    """A client's records: no message's size depends on them."""
    source = np.random.default_rng(context.node_config["partition-id"])
    inputs = source.standard_normal((_RECORDS, _FEATURES), dtype=np.float32)
    return inputs, source.integers(0, _CLASSES, _RECORDS)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Flower logs every stage of every vote."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def bytes_sent(rows: Sequence[Mapping], **vote: int) -> dict[str, int]:
    """Bytes of each message that a client of one vote sends, the longest of all clients'."""
    return {row["message"]: row["most"] for row in select(rows, sender="client", **vote)}


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws bytes against candidates, and against clients."""
    figure, (left, right) = new_panels(2, height=4.4)
    clients, candidates = distinct(rows, "clients"), distinct(rows, "candidates")
    n = _SHOWN_CLIENTS if _SHOWN_CLIENTS in clients else max(clients)
    p = _SHOWN_CANDIDATES if _SHOWN_CANDIDATES in candidates else max(candidates)
    by_candidates = [bytes_sent(rows, clients=n, candidates=value) for value in candidates]
    by_clients = [bytes_sent(rows, clients=value, candidates=p) for value in clients]
    for axes, places, found in (
        (left, candidates, by_candidates),
        (right, clients, by_clients),
    ):
        whole = [sum(sizes.values()) for sizes in found]
        axes.plot(places, whole, "-s", color=plotting.PALETTE[1], label="all five from a client")
        ballots = [sizes["ballot"] for sizes in found]
        axes.plot(places, ballots, "-o", color=plotting.PALETTE[0], label="a client's ballot")
        _logarithmic(axes, places)
    received = [value * sum(sizes.values()) for value, sizes in zip(clients, by_clients)]
    right.plot(clients, received, "-^", color=plotting.PALETTE[2], label="all that the server gets")
    for value in (one for one in clients if one != n):
        found = [bytes_sent(rows, clients=value, candidates=one)["ballot"] for one in candidates]
        left.plot(candidates, found, "x", color="#333333", markersize=6)
    left.plot([], [], "x", color="#333333", markersize=6, label="a ballot at each other n")
    left.plot(
        candidates, [8 * value for value in candidates], ":", color="#333333",
        label="8 bytes a candidate",
    )  # fmt: skip
    left.set_title(f"n = {n} clients")
    left.set_xlabel("candidates $p$")
    left.set_ylabel("bytes")
    right.set_title(f"p = {p} candidates")
    right.set_xlabel("clients $n$")
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17))
    figure.suptitle(
        f"measured messages of {len(clients) * len(candidates)} votes under SecAgg+, k = {VOTES}"
    )
    return figure


def _logarithmic(axes: Axes, places: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()


def summary(rows: Sequence[Mapping]) -> list[str]:
    """What one more candidate, and one more client, adds."""
    clients, candidates = distinct(rows, "clients"), distinct(rows, "candidates")
    first, last = candidates[0], candidates[-1]
    few, many = (
        bytes_sent(rows, clients=clients[-1], candidates=value)["ballot"] for value in (first, last)
    )
    slope = (many - few) / (last - first)
    whole = bytes_sent(rows, clients=clients[-1], candidates=last)
    others = sum(whole.values()) - whole["ballot"]
    return [
        f"a ballot of p candidates: {slope:g} p + {few - slope * first:g} bytes",
        f"a client's other messages at n = {clients[-1]}: {others} bytes",
    ]


FIGURE = FigureSpec(
    "dp_hype",
    "figure_communication",
    COLUMNS,
    {FULL: "two minutes", QUICK: "10 s"},
    draw,
    rows=compute,
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
