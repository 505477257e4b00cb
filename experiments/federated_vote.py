"""Clients vote for hyperparameters, then train; the server sees noisy sums and releases the result.

DP-HYPE (Liebenow, Peinemann & Mohammadi, 2025, arXiv:2510.04902) on Flower, with Flower's own
secure aggregation (SecAgg+), which its authors left out. Every client trains all candidates on its
own records, votes for its k best, adds its share of integer noise, and the sum of all votes is
unmasked. With --train_rounds all of them train with the winner by federated averaging under the
same kind of noise and sum, and --total_epsilon covers both. The unit of privacy is a client with
all of its records. Writes

  <out_dir>/release/   hyperparameters.json, guarantee.json, model.msgpack: may be published
  <out_dir>/curator/   the noisy counts and who took part: not part of the release

  python -m experiments.federated_vote                       # 50 clients in this process, no Ray
  python -m experiments.federated_vote --runtime=ray         # the same apps in Ray's processes
  python -m experiments.federation.deploy                    # the same apps, really deployed
  python -m experiments.federated_vote --model=logistic_regression --train_rounds=10
  python -m experiments.federated_vote --runtime=simulation --clients=1000 --dataset=mnist \\
      --model=logistic_regression --train_rounds=10 --total_epsilon=2
  python -m experiments.federated_vote --dataset=mnist --clients=50 --concentration=0.5
  python -m experiments.federated_vote --folders=a,b,c --classes=2 --missing_fraction=0.34

The default takes about ten seconds on 4 CPU cores. Needs the extra: pip install -e '.[federated]'.
--runtime=simulation runs the mechanisms alone, vectorised over the clients, without Flower's
messages and masks, and releases nothing. --total_epsilon=inf trains without noise, which is NOT
private: the model is then the curator's. In a simulation the accuracy of every candidate is known;
it is shown, and saved with the curator.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax.commands import command_line, data_flags, run_folder
from experiments.federation import offline

_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "in_process",
    ["in_process", "ray", "simulation"],
    "Where the clients run: here, in Ray's processes, or here without messages and masks.",
)
_CLIENTS = flags.DEFINE_integer("clients", 50, "Number of clients, at least 3.")
_DATASET = flags.DEFINE_string("dataset", "digits", "Data set to split over the clients.")
_FOLDERS = flags.DEFINE_list(
    "folders", None, "One folder of .npz files (inputs, labels) a client, instead of --dataset."
)
_DATA_DIR, _CACHE_DIR = data_flags.define_folders(
    "", "Where downloads and caches go, if elsewhere."
)
_CONCENTRATION = flags.DEFINE_float(
    "concentration", 0.0, "Dirichlet alpha of label and size skew between clients; 0: none."
)
_MINIMUM_SIZE = flags.DEFINE_integer("minimum_size", 10, "Fewest records of a client.")
_PARTITION_SEED = flags.DEFINE_integer("partition_seed", 0, "Public seed of the split.")
_CLASSES = flags.DEFINE_integer(
    "classes", None, "Number of classes, public; the data set's unless --folders."
)
_CANDIDATES = flags.DEFINE_string(
    "candidates",
    "artifact",
    "What is voted on: a named list (artifact, log_spaced: 100 each), or the path of a JSON file "
    "with a list of {learning_rate, decay, momentum}.",
)
_VOTES = flags.DEFINE_integer("votes", 5, "How many candidates each client names.")
_EPSILON = flags.DEFINE_float("epsilon", 1.0, "Target of the whole vote.")
_DELTA = flags.DEFINE_float("delta", 1e-5, "Target of the whole vote.")
_MISSING_FRACTION = flags.DEFINE_float(
    "missing_fraction", 0.1, "Largest fraction of clients that drop out or collude."
)
_NOISE = flags.DEFINE_enum("noise", "skellam", ["skellam", "discrete_gaussian"], "Kind of noise.")
_SCALE = flags.DEFINE_integer("scale", 1, "Factor of votes before noise is added.")
_MODEL = flags.DEFINE_string(
    "model",
    "mlp",
    "What clients train: mlp, logistic_regression, ..., or DP-HYPE's conv_pool (MNIST) and "
    "conv_blocks (CIFAR-10).",
)
_CHUNK_SIZE = flags.DEFINE_integer(
    "chunk_size", 0, "Candidates trained at once, the memory knob; 0: all."
)
_WIDTHS = flags.DEFINE_string("widths", "64", "Widths of an mlp's hidden layers.")
_EPOCHS = flags.DEFINE_integer("epochs", 5, "Local epochs.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Local batch size (the paper's is 64).")
_TRAIN_ROUNDS = flags.DEFINE_integer(
    "train_rounds", 0, "Rounds of federated averaging with the winner; 0: the vote alone."
)
_TOTAL_EPSILON = flags.DEFINE_float(
    "total_epsilon",
    8.0,
    "Target of the vote and the training together; inf: no noise, NOT private.",
)
_CLIP_NORM = flags.DEFINE_float("clip_norm", 1.0, "Longest update of a client in a round.")
_SERVER_RATE = flags.DEFINE_float("server_rate", 1.0, "Factor of the averaged update.")
_INPUT_SHAPE = flags.DEFINE_string(
    "input_shape",
    None,
    "Public shape of one example, as in 28,28,1; the data set's unless --folders.",
)
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make. Default: runs/<name>-<time>.")
_TIMEOUT = flags.DEFINE_float("timeout_seconds", 600.0, "Wait for the clients' replies.")

_MESSAGES_PER_PHASE = 5  # One to train, four stages of the secure sum.


def settings() -> dict[str, str | int | float]:
    """The flags as the flat configuration that the apps read."""
    from dpjax import data
    from dpjax.federated.flower.election import Election

    candidates = _CANDIDATES.value
    if candidates.endswith(".json"):
        with open(candidates, encoding="utf-8") as file:
            candidates = file.read()
    folders = _FOLDERS.value
    classes, shape = _CLASSES.value, _INPUT_SHAPE.value
    if folders:
        if classes is None:
            raise ValueError("--folders needs the public number of classes: pass --classes")
        if _TRAIN_ROUNDS.value and not shape:
            raise ValueError(
                "training needs the public shape of an example: pass --input_shape, as in 28,28,1"
            )
    else:
        loaded = data.load(
            _DATASET.value, _DATA_DIR.value or None, cache_dir=_CACHE_DIR.value or None
        )
        classes = loaded.classes if classes is None else classes
        shape = shape or ",".join(map(str, np.shape(loaded.train.inputs)[1:]))
    config = {
        "clients": len(folders) if folders else _CLIENTS.value,
        "candidates": candidates,
        "votes": _VOTES.value,
        "epsilon": _EPSILON.value,
        "delta": _DELTA.value,
        "missing-fraction": _MISSING_FRACTION.value,
        "noise": _NOISE.value,
        "scale": _SCALE.value,
        "model": _MODEL.value,
        "classes": classes,
        "widths": _WIDTHS.value,
        "epochs": _EPOCHS.value,
        "batch-size": _BATCH_SIZE.value,
        "rounds": _TRAIN_ROUNDS.value,
        "total-epsilon": _TOTAL_EPSILON.value,
        "clip-norm": _CLIP_NORM.value,
        "server-rate": _SERVER_RATE.value,
        "input-shape": shape or "",
    }
    # What is wrong is said now, not by fifty clients.
    config = Election.from_config(config).config()
    return config | {
        "dataset": _DATASET.value,
        "data-dir": _DATA_DIR.value,
        "cache-dir": _CACHE_DIR.value,
        "concentration": _CONCENTRATION.value,
        "minimum-size": _MINIMUM_SIZE.value,
        "partition-seed": _PARTITION_SEED.value,
        "timeout-seconds": _TIMEOUT.value,
        "chunk-size": _CHUNK_SIZE.value,
    }


def node_configs(clients: int) -> list[dict[str, str | int | bool]]:
    """What each simulated node knows of itself."""
    numbered: list[dict[str, str | int | bool]] = [
        {"partition-id": number} for number in range(clients)
    ]
    if math.isinf(_TOTAL_EPSILON.value):
        from dpjax.federated.flower.node_settings import ALLOW_WITHOUT_NOISE

        # Whoever simulates owns every node, and has asked for it.
        numbered = [own | {ALLOW_WITHOUT_NOISE: True} for own in numbered]
    if not _FOLDERS.value:
        return numbered
    return [own | {"data": folder} for own, folder in zip(numbered, _FOLDERS.value)]


def check_all_records(
    config: Mapping[str, Any], nodes: list[dict[str, str | int | bool]], console: Console
) -> None:
    """Whoever simulates may look at all records: names the clients that will vote by lot.

    Raises:
      ValueError: for a client whose set-up is wrong, or if no client can judge anything.
    """
    from dpjax.federated.flower import local_training, records

    parts = None if _FOLDERS.value else records.divided_as(config)
    odd = {}
    for number, node in enumerate(nodes):
        try:
            held = parts[number] if parts else records.read_folder(str(node["data"]))
            local_training.check_records(held, int(config["classes"]))
        except records.SetupError as error:
            raise ValueError(f"client {number}: {error}") from None
        except ValueError as error:
            odd[number] = str(error)
    if len(odd) == len(nodes):
        raise ValueError(f"no client can judge candidates; client 0: {odd[0]}")
    for number, reason in odd.items():
        console.print(f"client {number} votes by lot, as the server cannot tell: {reason}")


def report(
    outcome, accuracies: np.ndarray | None, console: Console, title: str = "was released"
) -> dict[str, Any]:
    """Prints what was released and what it cost; returns a simulation's findings."""
    election = outcome.election
    plan = election.plan
    table = Table(title=f"What {title}, and what it cost", show_header=False)
    for name, value in election.candidates[outcome.winner].items():
        table.add_row(name, f"{value:g}")
    findings = {}
    if accuracies is not None:
        mean = np.nanmean(accuracies, axis=0)
        findings = {
            "simulation_only": "from all clients' test records, without noise; never publish",
            "mean_local_accuracy_of_winner": float(mean[outcome.winner]),
            "mean_local_accuracy_of_best": float(mean.max()),
            "mean_local_accuracy_of_a_random_candidate": float(mean.mean()),
        }
        table.add_row(
            "its local accuracy, mean over clients (not in the release)",
            f"{mean[outcome.winner]:.4f}; best candidate {mean.max():.4f}, a random one "
            f"{mean.mean():.4f}",
        )
    settings = election.settings
    table.add_row("votes in the sum", f"{outcome.survivors} of {settings.clients} clients")
    table.add_row("noise on a count, standard deviation", f"{plan.standard_deviation:.2f} votes")
    if outcome.params is not None:
        findings |= _report_training(outcome, table)
    table.add_row(
        "[bold]the whole vote",
        f"[bold]epsilon {plan.guarantee.epsilon(settings.delta):.4f} at delta {settings.delta:g}",
    )
    if outcome.params is not None:
        total = election.averaging_plan.total
        table.add_row(
            "[bold]vote and training together",
            "[bold]NOT PRIVATE: trained without noise, the model is the curator's"
            if total is None
            else f"[bold]epsilon {total.epsilon(settings.delta):.4f} at delta {settings.delta:g}",
        )
    table.add_row("unit of privacy", "one client with all of its records, replaced")
    console.print(table)
    return findings


def _report_training(outcome, table: Table) -> dict[str, Any]:
    """Rows about the trained model; returns findings."""
    from dpjax import data
    from dpjax.federated import local_updates

    election = outcome.election
    plan = election.averaging_plan
    settings = plan.settings
    step = plan.standard_deviation * math.sqrt(settings.dimension) / settings.clip_norm
    table.add_row(
        "rounds of training, parameters", f"{settings.rounds} rounds, {settings.dimension}"
    )
    table.add_row("noise of an average, in clip norms", f"{step:.2f}")
    if _FOLDERS.value:
        return {}
    test = data.load(
        _DATASET.value, _DATA_DIR.value or None, cache_dir=_CACHE_DIR.value or None
    ).test
    found = local_updates.accuracy(
        election.model, outcome.params, np.asarray(test.inputs), np.asarray(test.labels)
    )
    table.add_row("the model's accuracy on test data (not in the release)", f"{found:.4f}")
    return {"test_accuracy": found}


def main() -> int:
    """Checks what was asked, claims a folder, holds the vote; returns the exit code."""
    offline.stay_offline()
    try:
        from dpjax import federated  # noqa: F401 (whether it is there)
        from dpjax.federated.flower import records  # noqa: F401
    except ImportError as error:
        raise ValueError(str(error)) from None

    console = Console(highlight=False, soft_wrap=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = settings()
    nodes = node_configs(int(config["clients"]))
    check_all_records(config, nodes, console)
    # Clients' own logs; what they say was just said of all of them.
    logging.getLogger("dpjax.federated").setLevel(logging.ERROR)
    name = "folders" if _FOLDERS.value else os.path.basename(_DATASET.value)
    with run_folder.claimed(_OUT_DIR.value, f"vote-{name}") as folder:
        return hold(folder, config, nodes, console)


def hold(folder: str, config: Mapping[str, Any], nodes: list[dict], console: Console) -> int:
    """Holds the vote, trains and writes.

    Args:
      folder: of the run, claimed by this process.
      config: of `settings`.
      nodes: of `node_configs`.
      console: where to say what was found.

    Returns:
      The exit code.
    """
    from dpjax import federated
    from dpjax.federated.flower import records

    load = records.records_in_folder if _FOLDERS.value else records.parts_of_data_set(config)
    client_app = federated.make_client_app(load, config)
    accuracies = None
    if _RUNTIME.value == "ray":
        if _FOLDERS.value or math.isinf(_TOTAL_EPSILON.value):
            raise ValueError(
                "Ray's nodes know their number only: use --runtime=in_process, or "
                "experiments.federation.deploy"
            )
        outcome = federated.run_in_ray(client_app, config)
    elif _RUNTIME.value == "simulation":
        from experiments.federation import simulation

        if _FOLDERS.value:
            raise ValueError("--runtime=simulation splits a data set: pass --dataset, no --folders")
        with command_line.progress_bar(console) as bar:
            outcome, accuracies = simulation.simulate(config, bar)
        findings = report(outcome, accuracies, console, "would be released")
        simulation.save(folder, findings)
        console.print(f"nothing is released; curator:  {os.path.join(folder, 'curator')}")
        return 0
    else:
        phases = 1 + _TRAIN_ROUNDS.value
        with command_line.progress_bar(console) as bar:
            total = _MESSAGES_PER_PHASE * phases * len(nodes)
            line = bar.add_task("messages answered", total=total)
            outcome, accuracies = federated.run_in_process(
                client_app, config, nodes, advance=lambda _: bar.advance(line)
            )
    findings = report(outcome, accuracies, console)
    federated.save_outcome(outcome, folder, findings)
    console.print(f"release (may be published):  {os.path.join(folder, 'release')}")
    console.print(f"curator (never publish):     {os.path.join(folder, 'curator')}")
    return 0


if __name__ == "__main__":
    command_line.run(main)
