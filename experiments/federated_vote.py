"""Clients vote for hyperparameters; the server sees one noisy sum and releases the winner.

DP-HYPE (Liebenow, Peinemann & Mohammadi, 2025, arXiv:2510.04902) on Flower, with Flower's own
secure aggregation (SecAgg+), which its authors left out. Every client trains all candidates on its
own records, votes for its k best, adds its share of integer noise, and the sum of all votes is
unmasked. The unit of privacy is a client with all of its records. Writes

  <out_dir>/release/   hyperparameters.json, guarantee.json: may be published
  <out_dir>/curator/   the noisy counts and who took part: not part of the release

  python -m experiments.federated_vote                       # 50 clients in this process, no Ray
  python -m experiments.federated_vote --runtime=ray         # the same apps in Ray's processes
  python -m experiments.federation.deploy                    # the same apps, really deployed
  python -m experiments.federated_vote --dataset=mnist --clients=50 --concentration=0.5
  python -m experiments.federated_vote --folders=a,b,c --classes=2 --missing_fraction=0.34

The default takes about ten seconds on 4 CPU cores. Needs the extra: pip install '.[federated]'.
In a simulation the accuracy of every candidate is known; it is shown, and saved with the curator.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from experiments import command_line, data_flags, run_folder
from experiments.federation import offline

_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "in_process",
    ["in_process", "ray"],
    "Where the clients run: here, or in Ray's processes.",
)
_CLIENTS = flags.DEFINE_integer("clients", 50, "Number of clients, at least 3.")
_DATASET = flags.DEFINE_string("dataset", "digits", "Data set to split over the clients.")
_FOLDERS = flags.DEFINE_list(
    "folders", None, "One folder of .npz files (inputs, labels) a client, instead of --dataset."
)
_DATA_DIR, _CACHE_DIR = data_flags.define_folders("", "Where prepared data goes, if elsewhere.")
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
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make. Default: runs/<name>-<time>.")
_TIMEOUT = flags.DEFINE_float("timeout_seconds", 600.0, "Wait for the clients' replies.")

_MESSAGES_PER_CLIENT = 5


def settings() -> dict[str, str | int | float]:
    """The flags as the flat configuration that the apps read."""
    from dpjax import data
    from dpjax.federated.election import Election

    candidates = _CANDIDATES.value
    if candidates.endswith(".json"):
        with open(candidates, encoding="utf-8") as file:
            candidates = file.read()
    folders = _FOLDERS.value
    classes = _CLASSES.value
    if classes is None:
        if folders:
            raise ValueError("--folders needs the public number of classes: pass --classes")
        classes = data.load(
            _DATASET.value, _DATA_DIR.value or None, cache_dir=_CACHE_DIR.value or None
        ).classes
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


def node_configs(clients: int) -> list[dict[str, str | int]]:
    """What each simulated node knows of itself."""
    numbered = [{"partition-id": number} for number in range(clients)]
    if not _FOLDERS.value:
        return numbered
    return [own | {"data": folder} for own, folder in zip(numbered, _FOLDERS.value)]


def check_all_records(config: Mapping[str, Any], nodes: list[dict[str, str | int]]) -> None:
    """Whoever simulates may look at all records: finds the client that could not take part."""
    from dpjax.federated import local_training, records

    parts = None if _FOLDERS.value else records.divided_as(config)
    for number, node in enumerate(nodes):
        held = parts[number] if parts else records.read_folder(node["data"])
        try:
            local_training.check_records(held, int(config["classes"]))
        except ValueError as error:
            raise ValueError(f"client {number}: {error}") from None


def report(outcome, accuracies: np.ndarray | None, console: Console) -> dict[str, Any]:
    """Prints what was released and what it cost; returns a simulation's findings."""
    election = outcome.election
    plan = election.plan
    table = Table(title="What was released, and what it cost", show_header=False)
    for name, value in election.candidates[outcome.winner].items():
        table.add_row(name, f"{value:g}")
    findings = {}
    if accuracies is not None:
        mean = accuracies.mean(axis=0)
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
    table.add_row(
        "[bold]the whole vote",
        f"[bold]epsilon {plan.guarantee.epsilon(settings.delta):.4f} at delta {settings.delta:g}",
    )
    table.add_row("unit of privacy", "one client with all of its records, replaced")
    console.print(table)
    return findings


def main() -> int:
    """Holds the vote; returns the exit code."""
    offline.stay_offline()
    try:
        from dpjax import federated
        from dpjax.federated import records
    except ImportError as error:
        raise ValueError(str(error)) from None

    console = Console(highlight=False, soft_wrap=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = settings()
    nodes = node_configs(int(config["clients"]))
    check_all_records(config, nodes)
    name = "folders" if _FOLDERS.value else os.path.basename(_DATASET.value)
    folder = run_folder.choose(_OUT_DIR.value, f"vote-{name}")
    load = records.records_in_folder if _FOLDERS.value else records.parts_of_data_set(config)
    client_app = federated.make_client_app(load, config)
    accuracies = None
    if _RUNTIME.value == "ray":
        if _FOLDERS.value:
            raise ValueError(
                "Ray's nodes know their number only: use --runtime=in_process, or "
                "experiments.federation.deploy"
            )
        outcome = federated.run_in_ray(client_app, config)
    else:
        with command_line.progress_bar(console) as bar:
            line = bar.add_task("messages answered", total=_MESSAGES_PER_CLIENT * len(nodes))
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
