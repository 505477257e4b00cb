"""The page of attacks is what its command writes from its rows, and names what is there."""

import csv
import pathlib

import pytest

from experiments.benchmarks import proofs


def test_the_page_is_written_from_its_rows():
    with proofs.NUMBERS.open(newline="") as file:
        rows = list(csv.reader(file))
    assert proofs.PAGE.read_text() == proofs.page(rows)
    for *_, stated, reached in rows:
        assert float(reached) <= float(stated) * (1 + 1e-4)


@pytest.mark.parametrize("row", proofs.ROWS, ids=lambda row: f"{row.theorem}, {row.setting}")
def test_a_test_that_attacks_it_is_there(row):
    file, _, name = row.test.partition("::")
    text = (proofs.ROOT / file).read_text()
    assert f"def {name.partition('[')[0]}(" in text if name else "def test_" in text
    assert f"\n{row.symbol}" in (proofs.ROOT / row.code).read_text()
    assert (proofs.ROOT / "docs" / "proofs" / pathlib.Path(row.proof.split("#")[0])).exists()
