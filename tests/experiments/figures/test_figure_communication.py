"""DP-HYPE's messages as committed, and one small vote measured again."""

import importlib.util
import pathlib

import pytest

from experiments.figures.dp_hype import figure_communication as figure
from experiments.figures.figure import FULL
from experiments.figures.rows import RowFolder, distinct, select

with_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="needs the federated extra"
)
COMMITTED = pathlib.Path(__file__).parents[3] / "docs" / "figures" / "dp_hype"


@pytest.fixture(scope="module")
def rows():
    return RowFolder(str(COMMITTED), FULL).read("figure_communication")


@with_flower
def test_a_small_vote_measures_as_committed(rows):
    """To the byte, though the run's number, masks, keys and noise are drawn anew."""
    assert figure.message_rows(5, 10) == select(rows, clients=5, candidates=10)


def test_what_a_message_depends_on(rows):
    assert distinct(rows, "clients") == list(figure.CLIENTS)
    assert distinct(rows, "candidates") == list(figure.CANDIDATES)
    # Every client is asked, and answers, once for each kind; all clients with as many bytes.
    assert all(row["messages"] == row["clients"] for row in rows)
    assert all(row["least"] == row["most"] for row in rows)
    for row in select(rows, sender="client", message="ballot"):
        assert row["most"] == 8 * row["candidates"] + 495
    for name in set(figure.MESSAGES) - {"ballot"}:
        for n in figure.CLIENTS:
            found = select(rows, sender="client", message=name, clients=n)
            assert len(distinct(found, "most")) == 1
        many = [row for row in select(rows, sender="client", message=name) if row["clients"] >= 11]
        assert len(distinct(many, "most")) == 1


def test_summary_and_picture(rows):
    assert figure.summary(rows)[0] == "a ballot of p candidates: 8 p + 495 bytes"
    left, right = figure.draw(rows).axes
    (line,) = [line for line in right.lines if line.get_label() == "all that the server gets"]
    sizes = figure.bytes_sent(rows, clients=250, candidates=100)
    assert line.get_ydata()[-1] == 250 * sum(sizes.values())
    assert left.get_title() == "n = 50 clients" and right.get_title() == "p = 100 candidates"


@with_flower
def test_an_error_is_no_measurement(monkeypatch):
    """A client that stays away answers with its error's text: other bytes than a vote's."""
    from dpjax.federated.flower.storage import SetupError

    records = figure._records

    def without_the_first(context):
        if context.node_config["partition-id"] == 0:
            raise SetupError("no records")
        return records(context)

    monkeypatch.setattr(figure, "_records", without_the_first)
    with pytest.raises(RuntimeError, match="node 1000 answered with an error"):
        figure.message_rows(10, 10)
