"""The figure of audits: what is run, what a row says, what stands in the committed rows."""

import pathlib

import pytest
from marked_rows import marked

from dpjax import accounting
from dpjax.auditing.audits import FAILURE
from dpjax.tuning.tuner import registered_tuners
from experiments.figures.auditing import audit, cases, worst_order
from experiments.figures.rows import read_rows

COMMITTED = pathlib.Path(__file__).parents[3] / "docs" / "figures" / "auditing" / "audit.csv"


def test_every_tuner_is_a_case():
    audited = {type(case.tuner()) for case in cases.CASES.values()}
    # Other tests of this process may have registered tuners of their own.
    known = ("dpjax.", "experiments.")
    own = {one for one in registered_tuners().values() if one.__module__.startswith(known)}
    assert audited == own and len(own) == 7


def test_cases_of_a_size():
    every = audit.Options()
    full = [words for words, _ in audit.cases("full", every)]
    quick = [words for words, _ in audit.cases("quick", every)]
    assert len({(words["method"], words["canary"]) for words in full}) == len(full) > len(quick) > 5
    assert {words["method"] for words in full} == set(audit._METHODS)
    one = audit.Options(method=("subset tuning",))
    assert [words["method"] for words, _ in audit.cases("quick", one)] == ["subset tuning"]


@pytest.mark.parametrize("law", audit.ORDERS.values(), ids=list(audit.ORDERS))
def test_the_worst_order_nearly_costs_what_is_claimed_and_no_more(law):
    found = worst_order.audited(law, 1.5, cases.DELTA, 100_000, failure_probability=1e-6, seed=1)
    assert found.stands
    assert 0.7 * found.claimed <= found.seen.value <= found.claimed
    # A claim of one run alone would be far too small.
    assert found.seen.value > accounting.gaussian(1.5).epsilon(cases.DELTA)


def test_rows_are_written_as_they_come_and_not_made_twice(tmp_path, monkeypatch):
    # Nothing is seeded. No counts of 10 executions refute an untuned run, and those of the worst
    # order do with probability 1e-38; of 100 executions a true claim is refuted once in 10^6.
    monkeypatch.setitem(audit.NUMBERS, "quick", (20, 20, 1_000))
    options = audit.Options(method=("untuned", "worst order, geometric, mean 10"))
    audit.FIGURE.produce(tmp_path, "quick", options=options)
    rows = read_rows(tmp_path / "audit.csv")
    assert [row["canary"] for row in rows] == [
        "gradient",
        "rare feature",
        "mislabelled record",
        "gradient",
    ]
    assert all(row["seen"] <= row["claimed"] and row["refuted"] == "no" for row in rows)
    rows = marked(tmp_path / "audit.csv", "seen")
    audit.FIGURE.produce(tmp_path, "quick", options=options)
    assert read_rows(tmp_path / "audit.csv") == rows


def test_committed_rows_stand_and_the_worst_orders_are_nine_tenths():
    rows = read_rows(COMMITTED)
    assert {row["method"] for row in rows} == set(audit._METHODS)
    for row in rows:
        assert row["seen"] <= row["claimed"] and row["refuted"] == "no"
        assert row["executions"] >= 2 * audit.NUMBERS["full"][1]
        if row["method"].startswith(audit.ORDER):
            assert row["seen"] >= 0.9 * row["claimed"]
    assert FAILURE == 1e-3  # What the picture says of its bounds.
