"""Clients vote for hyperparameters, then train; the server sees noisy sums and releases the result.

DP-HYPE (Liebenow, Peinemann & Mohammadi, 2025, arXiv:2510.04902) on Flower, with Flower's own
secure aggregation (SecAgg+), which its authors left out. Every client trains all candidates on its
own records, votes for its k best, adds its share of integer noise, and the sum of all votes is
unmasked. With --train_rounds all of them train with the winner by federated averaging under the
same kind of noise and sum, and --total_epsilon covers both. The unit of privacy is a client with
all of its records. Writes

  <out_dir>/release/   hyperparameters.json, guarantee.json, model.msgpack: may be published
  <out_dir>/curator/   the noisy counts and who took part: not part of the release

  python -m experiments.federated_vote                       # 50 clients in this process
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

from dpjax import models
from dpjax.commands import command_line, derived_flags, run_folder
from dpjax.commands import config as saved_config
from dpjax.federated.federation_settings import Averaging, LocalTraining
from dpjax.federated.voting import RATES, VoteSettings
from dpjax.releases import statement_page
from experiments.federation import data_split, offline
from experiments.federation.data_split import DataSplit

_VOTE = derived_flags.Group(VoteSettings, clients=50)
_LOCAL = derived_flags.Group(
    LocalTraining,
    model={"choices": models.NAMES},
    classes={"default": None, "words": "Number of classes; the data set's unless --folders."},
    batch_size=8,
)
_AVERAGING = derived_flags.Group(Averaging)
_SPLIT = derived_flags.Group(DataSplit, "clients")
_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "in_process",
    ["in_process", "simulation"],
    "How the clients run: as Flower's apps, or without messages and masks.",
)
_FOLDERS = flags.DEFINE_list(
    "folders", None, "One folder of .npz files (inputs, labels) a client, instead of --dataset."
)
_CANDIDATES = flags.DEFINE_string(
    "candidates",
    "artifact",
    "What is voted on: a named list (artifact, table_iii, log_spaced: 100 each), or the path of a "
    "JSON file with a list of {learning_rate, decay, momentum}.",
)
_CHUNK_SIZE = flags.DEFINE_integer(
    "chunk_size", 0, "Candidates trained at once, the memory knob; 0: all."
)
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make. Default: runs/<name>-<time>.")
_TIMEOUT = flags.DEFINE_float("timeout_seconds", 600.0, "Wait for the clients' replies.")

_MESSAGES_PER_PHASE = 5  # One to train, four stages of the secure sum.


def check_flags() -> None:
    """Refuses flags of what was not chosen."""
    derived_flags.refuse_others({"widths": ["mlp"]}, [_LOCAL.model], "model")
    if _FOLDERS.value:
        split = ["clients", *_SPLIT.names.values()]
        derived_flags.refuse(split, "belongs to --dataset, and --folders are given: drop it")
    if not _AVERAGING.rounds:
        rounds = sorted({*_AVERAGING.names.values()} - {"train_rounds"})
        derived_flags.refuse(rounds, "belongs to --train_rounds: pass these too, or drop it")


def candidates() -> str:
    """--candidates: a name, or what a file holds."""
    if not _CANDIDATES.value.endswith(".json"):
        return _CANDIDATES.value
    try:
        with open(_CANDIDATES.value, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(
            f"--candidates={_CANDIDATES.value} cannot be read ({why}): pass {' or '.join(RATES)}, "
            "or a JSON file with a list of {learning_rate, decay, momentum}"
        ) from None


def settings() -> dict[str, str | int | float]:
    """The flags as the flat configuration that the apps read."""
    from dpjax.federated.flower.election import Election

    parts = (_VOTE, _LOCAL, _AVERAGING, _SPLIT)
    rules = {"candidates": candidates()}
    for part in parts:
        rules |= part.values()
    if _FOLDERS.value:
        rules["clients"] = len(_FOLDERS.value)
        if rules["classes"] is None:
            raise ValueError("--folders needs the public number of classes: pass --classes")
        if rules["rounds"] and not rules["input_shape"]:
            raise ValueError(
                "training needs the public shape of an example: pass --input_shape, as in 28,28,1"
            )
    else:
        loaded = _SPLIT.made(DataSplit, _VOTE.clients).load()
        rules["classes"] = loaded.classes if rules["classes"] is None else rules["classes"]
        rules["input_shape"] = rules["input_shape"] or loaded.train.input_shape
    config = {
        name.replace("_", "-"): ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in rules.items()
    }
    with derived_flags.named_as_flags({k: v for part in parts for k, v in part.names.items()}):
        config |= Election.from_config(config).config()
    return config | {"timeout-seconds": _TIMEOUT.value, "chunk-size": _CHUNK_SIZE.value}


def node_configs(clients: int) -> list[dict[str, str | int | bool]]:
    """What each simulated node knows of itself."""
    numbered: list[dict[str, str | int | bool]] = [
        {"partition-id": number} for number in range(clients)
    ]
    if math.isinf(_AVERAGING.total_epsilon):
        from dpjax.federated.flower.storage import ALLOW_WITHOUT_NOISE

        # Whoever simulates owns every node, and has asked for it.
        numbered = [own | {ALLOW_WITHOUT_NOISE: True} for own in numbered]
    if not _FOLDERS.value:
        return numbered
    return [own | {"data": folder} for own, folder in zip(numbered, _FOLDERS.value)]


def check_all_records(
    config: Mapping[str, Any], nodes: list[dict[str, str | int | bool]], console: Console
) -> None:
    """Whoever simulates may look at all records: names the clients that will vote by lot."""
    from dpjax.federated.flower import noisy_vectors, storage

    parts = None if _FOLDERS.value else data_split.divided_as(config)
    odd = {}
    for number, node in enumerate(nodes):
        try:
            held = parts[number] if parts else storage.read_folder(str(node["data"]))
            noisy_vectors.check_records(held, int(config["classes"]))
        except storage.SetupError as error:
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
    from dpjax.federated import local_training

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
    test = _SPLIT.made(DataSplit, _VOTE.clients).load().test
    found = local_training.accuracy(
        election.model, outcome.params, np.asarray(test.inputs), np.asarray(test.labels)
    )
    table.add_row("the model's accuracy on test data (not in the release)", f"{found:.4f}")
    return {"test_accuracy": found}


def main() -> int:
    """Checks what was asked, claims a folder, holds the vote; returns the exit code."""
    offline.stay_offline()
    try:
        from dpjax.federated.flower import storage  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise ValueError(str(error)) from None

    check_flags()
    console = Console(highlight=False, soft_wrap=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = settings()
    nodes = node_configs(int(config["clients"]))
    check_all_records(config, nodes, console)
    # Clients' own logs; what they say was just said of all of them.
    logging.getLogger("dpjax.federated").setLevel(logging.ERROR)
    name = "folders" if _FOLDERS.value else os.path.basename(_SPLIT.dataset)
    with run_folder.claimed(_OUT_DIR.value, f"vote-{name}") as folder:
        return hold(folder, config, nodes, console)


def hold(folder: str, config: Mapping[str, Any], nodes: list[dict], console: Console) -> int:
    """Holds the vote, trains and writes into a claimed folder; returns the exit code."""
    from dpjax import federated
    from dpjax.federated.flower import storage

    load = storage.records_in_folder if _FOLDERS.value else data_split.parts_of_data_set(config)
    client_app = federated.make_client_app(load, config)
    accuracies = None
    if _RUNTIME.value == "simulation":
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
        phases = 1 + _AVERAGING.rounds
        with command_line.progress_bar(console) as bar:
            total = _MESSAGES_PER_PHASE * phases * len(nodes)
            line = bar.add_task("messages answered", total=total)
            outcome, accuracies = federated.run_in_process(
                client_app, config, nodes, advance=lambda _: bar.advance(line)
            )
    findings = report(outcome, accuracies, console)
    federated.save_outcome(outcome, folder, findings)
    if os.path.isdir(os.path.join(folder, "release")):
        statement_page.write(folder)
    saved_config.save(os.path.join(folder, "curator"))
    console.print(f"release (may be published):  {os.path.join(folder, 'release')}")
    console.print(f"curator (never publish):     {os.path.join(folder, 'curator')}")
    return 0


if __name__ == "__main__":
    command_line.run(main)
