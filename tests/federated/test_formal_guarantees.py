"""The "Formal guarantees" sections name what the code enforces; one cannot drift from the other."""

import inspect

import pytest

from dpjax.federated.flower import (
    client,
    noisy_vectors,
    server,
    storage,
)

CASES = {
    # function: words that its section must contain
    client.secure_sum_only: (
        "at most once in each phase",
        "at most once in a run",
        "before they leave",
        "minimum_survivors",
        "masked",
    ),
    client.make_client_app: (
        "noisy ballot",
        "noisy update",
        "reply to training is constant",
        "only after it is in the ledger",
        "whatever the records are",
        "own log",
    ),
    storage.charge: (
        "before the vote is sent",
        "before the first update",
        "one lock",
        "refused if epsilon or delta",
    ),
    storage.note_unmasking: ("at most once", "only after"),
    noisy_vectors.prepare_ballot: ("whatever the records are", "does not depend on them"),
    noisy_vectors.prepare_update: ("whatever the records are", "nothing without noise is stored"),
    server.run_rounds: ("minimum_survivors", "masked updates"),
    server.run_election: ("minimum_survivors", "masked votes"),
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_section_names_what_tests_enforce(function):
    documentation = inspect.getdoc(function)
    section = documentation.split("Formal guarantees:")[1].split("Args:")[0]
    section = " ".join(section.split())
    for words in CASES[function]:
        assert words in section
