"""The curator's ledger: the same records are recognised, other ones of the same name are not."""

import itertools
import json
import os
import pathlib
import shutil
import warnings

import numpy as np
import pytest

from dpjax import accounting
from dpjax.releases import ledger
from dpjax.releases.ledger import Ledger, SeenData
from dpjax.releases.release import sealed
from dpjax.releases.unit_of_privacy import unit_of


def _records(number=2000, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(number, 4)).astype(np.float32), generator.integers(0, 2, number)


def _known(beside, run, seen):
    """Runs that the ledger names to this one, which is then written beside."""
    earlier = ledger.earlier_runs(beside, seen)
    folder = beside / run / "curator"
    folder.mkdir(parents=True)
    ledger.write_ledger(folder, earlier.entries, run=run, seen=seen, epsilon=1.0, delta=1e-5)
    return [entry["run"] for entry in earlier.entries]


def test_one_name_is_one_data_set_whatever_part_of_it(tmp_path):
    assert _known(tmp_path, "one", SeenData.of("digits", _records(seed=1))) == []
    assert _known(tmp_path, "two", SeenData.of("digits", _records(seed=2))) == ["one"]
    assert _known(tmp_path, "other", SeenData.of("mnist", _records(seed=3))) == []
    assert _known(tmp_path, "three", SeenData.of("digits", _records(seed=4))) == ["one", "two"]
    lines = (tmp_path / "three" / "curator" / "ledger.jsonl").read_text().splitlines()
    assert "NOT PRIVATE" in lines[0] and len(lines) == 4


def _file(folder, arrays):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "train.npz", inputs=arrays[0], labels=arrays[1])
    return str(folder / "train.npz")


def test_files_are_known_by_path_and_by_records_not_by_their_last_name(tmp_path, monkeypatch):
    runs, mine = tmp_path / "runs", _records(seed=1)
    path = _file(tmp_path / "a", mine)
    assert _known(runs, "one", SeenData.of(path, mine)) == []
    # Another file of the same name with other records: not the same data.
    other = _records(seed=2)
    elsewhere = _file(tmp_path / "b", other)
    assert _known(runs, "two", SeenData.of(elsewhere, other)) == []
    # The first path by another spelling or a link, even where its content was replaced.
    monkeypatch.chdir(tmp_path)
    replaced = _records(seed=3)
    assert _known(runs, "three", SeenData.of(os.path.join("a", "train.npz"), replaced)) == ["one"]
    os.symlink(path, tmp_path / "link.npz")
    found = _known(runs, "four", SeenData.of(str(tmp_path / "link.npz"), _records(seed=4)))
    assert found == ["one", "three"]
    # A copy elsewhere, in another order, with records added, changed or left out: the records tell.
    order = np.random.default_rng(5).permutation(2000)[:1500]
    more = tuple(np.concatenate([a[order], b]) for a, b in zip(mine, _records(300, seed=6)))
    assert _known(runs, "five", SeenData.of(_file(tmp_path / "c", more), more)) == ["one"]


def test_a_folder_is_known_by_its_path_and_a_set_of_tfds_whatever_its_version(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    whole = f"folder:{tmp_path / 'pets'}"
    assert _known(tmp_path, "one", SeenData.of("folder:pets", _records(seed=1))) == []
    assert _known(tmp_path, "two", SeenData.of(whole, _records(seed=2))) == ["one"]
    assert _known(tmp_path, "other", SeenData.of("folder:pets2", _records(seed=3))) == []
    assert _known(tmp_path, "old", SeenData.of("tfds:mine:1.0.0", _records(seed=4))) == []
    assert _known(tmp_path, "new", SeenData.of("tfds:mine", _records(seed=5))) == ["old"]


def test_a_twentieth_of_shared_records_is_enough():
    first = _records(seed=7)
    for seed in range(20):  # A miss has probability 2e-6 each.
        second = tuple(
            np.concatenate([a[:200], b]) for a, b in zip(first, _records(2200, seed=100 + seed))
        )
        entry = {"data": "x", "data_set": "x"}
        entry["smallest_hashes"] = SeenData.of("y", second).smallest_hashes
        assert SeenData.of("z", first).is_in(entry)
        entry["smallest_hashes"] = SeenData.of("y", _records(2200, seed=200 + seed)).smallest_hashes
        assert not SeenData.of("z", first).is_in(entry)


@pytest.mark.parametrize("number", [1, 3, 200])
def test_each_single_record_of_a_small_data_set_is_known_wherever_it_stands(number):
    """Of up to 256 records all hashes are kept: the first, the last and every other one tell."""
    mine, others = _records(number, seed=8), _records(number, seed=9)
    seen = SeenData.of("mine", mine)
    assert len(seen.smallest_hashes) == number
    for place in range(number):
        for stands_at in {0, place, number - 1}:
            theirs = tuple(rows.copy() for rows in others)
            for own, rows in zip(theirs, mine, strict=True):
                own[stands_at] = rows[place]
            entry = {"data": "x", "data_set": "x"}
            entry["smallest_hashes"] = SeenData.of("theirs", theirs).smallest_hashes
            assert seen.is_in(entry), (place, stands_at)
    entry["smallest_hashes"] = SeenData.of("theirs", others).smallest_hashes
    assert not seen.is_in(entry)


def test_kept_hashes_are_the_smallest_of_all_records_in_any_order():
    inputs, labels = _records(3000, seed=10)
    kept = SeenData.of("a", (inputs, labels)).smallest_hashes
    assert len(kept) == 256 and list(kept) == sorted(kept)
    # What the smallest hashes are of may stand anywhere: in either half, and last.
    halves = [
        SeenData.of("a", (inputs[rows], labels[rows])) for rows in np.split(np.arange(3000), 2)
    ]
    assert list(kept) == sorted({*halves[0].smallest_hashes, *halves[1].smallest_hashes})[:256]
    assert SeenData.of("a", (inputs[::-1], labels[::-1])).smallest_hashes == kept


def test_a_label_is_part_of_a_record():
    inputs, labels = _records(50)
    flipped = SeenData.of("b", (inputs, 1 - labels))
    assert set(SeenData.of("a", (inputs, labels)).smallest_hashes).isdisjoint(
        flipped.smallest_hashes
    )


def test_ledgers_from_before_hashes_were_kept_still_warn(tmp_path):
    folder = tmp_path / "old" / "curator"
    folder.mkdir(parents=True)
    entry = {
        "run": "old",
        "time": "2026",
        "data_set": "train",
        "data": "f",
        "epsilon": 1,
        "delta": 0,
    }
    (folder / "ledger.jsonl").write_text(f"{{}}\n{json.dumps(entry)}\n")
    for name, number in (("/any/where/train.npz", 1), ("train", 1), ("/any/test.npz", 0)):
        assert len(ledger.earlier_runs(tmp_path, SeenData(name, "g", ("a",))).entries) == number
    assert len(ledger.earlier_runs(tmp_path, SeenData("else", "f", ())).entries) == 1


def test_the_warning_counts():
    assert ledger.EarlierRuns([], []).warnings("digits") == []
    (line,) = ledger.EarlierRuns([{}, {}], []).warnings("digits")
    assert line.startswith("2 earlier run(s) on digits")


GOOD = {
    "run": "r",
    "time": "2026",
    "data_set": "train",
    "data": "f",
    "smallest_hashes": ["a"],
    "epsilon": 1.0,
    "delta": 1e-5,
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}\n",
        b'{}\n{"run": ',
        b"{}\n[]\n",
        b"{}\n3\n",
        b"{}\nnull\n",
        b"{}\n\xff\xfe\n",
        b"{}\n" + b"[" * 100_000 + b"\n",
        b"{}\n" + b"7" * 3_000_000,
        *(
            b"{}\n" + json.dumps(GOOD | {name: odd}).encode() + b"\n"
            for name, odd in [
                ("run", ["r"]),
                ("time", 3),
                ("data", None),
                ("data_set", {}),
                ("smallest_hashes", "a"),
                ("smallest_hashes", [[1]]),
                ("delta", None),
                ("epsilon", ""),
                ("epsilon", float("nan")),
                ("epsilon", 10**400),
                ("unit", {"of": "records"}),
                ("unit", 3),
            ]
        ),
        json.dumps(GOOD).encode() + b"\n" + json.dumps(GOOD | {"epsilon": 2.0}).encode() + b"\n",
    ],
)
def test_a_damaged_ledger_is_named_and_stops_nothing(tmp_path, content):
    """What comes before the damage counts, and so do the other ledgers."""
    good = json.dumps(GOOD).encode()
    for run, written in (("a", content), ("b", b"{}\n" + good + b"\n")):
        (tmp_path / run / "curator").mkdir(parents=True)
        (tmp_path / run / "curator" / "ledger.jsonl").write_bytes(written)
    found = ledger.earlier_runs(tmp_path, SeenData("train", "f", ("a",)))
    assert [entry["run"] for entry in found.entries] == ["r"]
    assert found.unreadable == [str(tmp_path / "a" / "curator" / "ledger.jsonl")]
    first, second = found.warnings("train")
    assert found.unreadable[0] in first and "1 earlier run(s)" in second


def test_a_pipe_or_a_folder_in_place_of_a_ledger_stops_nothing(tmp_path):
    for run in "abc":
        (tmp_path / run / "curator").mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / "curator" / "ledger.jsonl")
    (tmp_path / "b" / "curator" / "ledger.jsonl").mkdir()
    (tmp_path / "c" / "curator" / "ledger.jsonl").symlink_to(os.devnull)
    found = ledger.earlier_runs(tmp_path, SeenData("train", "f", ("a",)))
    assert found.entries == [] and len(found.unreadable) == 3


def _written(beside, run, seen, epsilon, delta=1e-5):
    folder = beside / run / "curator"
    folder.mkdir(parents=True)
    name = str(beside / run)
    ledger.write_ledger(folder, [], run=name, seen=seen, epsilon=epsilon, delta=delta)


def test_runs_on_the_same_records_are_listed_and_added_up(tmp_path):
    mine, other = _records(seed=1), _records(seed=2)
    _written(tmp_path, "one", SeenData.of("mine", mine), 1.0)
    _written(tmp_path, "two", SeenData.of("copy", mine), 2.0, 1e-6)
    _written(tmp_path, "far", SeenData.of("other", other), 4.0)
    groups = ledger.runs_on_the_same_data(tmp_path)
    assert sorted(len(group) for group in groups) == [1, 2]
    (pair,) = [group for group in groups if len(group) == 2]
    # Without their releases, the stated numbers are added.
    assert ledger.together(pair) == (3.0, pytest.approx(1.1e-5))
    assert ledger.over_budget(pair, None) is ledger.over_budget(pair, 3.0) is None
    assert "2 release(s) on these records cost epsilon 3" in ledger.over_budget(pair, 2.9)
    with pytest.raises(ValueError, match="no run in .* has a ledger"):
        ledger.runs_on_the_same_data(tmp_path / "nowhere")


@pytest.mark.filterwarnings("ignore::dpjax.releases.ledger.EarlierRunsWarning")
def test_a_renamed_run_and_the_next_of_its_name_are_two(tmp_path):
    """As are runs of two containers, in which both have one path."""
    records = _records()
    for place in range(3):
        Ledger(tmp_path / "mine", "mine", records).note(1.0 + place, 1e-5, "one record")
        (tmp_path / "mine").rename(tmp_path / f"kept_{place}")
        path = tmp_path / f"kept_{place}" / "curator" / "ledger.jsonl"
        assert len(path.read_text().splitlines()) == 1 + place + 1
    shutil.copytree(tmp_path / "kept_0", tmp_path / "copy")  # One run, twice there.
    (entries,) = ledger.runs_on_the_same_data(tmp_path)
    assert [entry["epsilon"] for entry in entries] == [1.0, 2.0, 3.0]
    assert {entry["run"] for entry in entries} == {str(tmp_path / "mine")}
    assert ledger.together(entries) == (6.0, pytest.approx(3e-5))
    assert len(ledger.earlier_runs(tmp_path, SeenData.of("mine", records)).entries) == 3


@pytest.mark.filterwarnings("ignore::dpjax.releases.ledger.EarlierRunsWarning")
def test_runs_of_containers_that_began_together_are_as_many_as_they_are(tmp_path):
    """They have one path, one data set, one cost and one second; copies of one ledger are one."""
    records = _records()
    for place in range(3):
        Ledger(tmp_path / "job" / "run", "mine", records).note(1.0, 1e-5, "one record")
        (tmp_path / "job").rename(tmp_path / f"container_{place}")
    shutil.copytree(tmp_path / "container_0", tmp_path / "copy")
    (entries,) = ledger.runs_on_the_same_data(tmp_path)
    assert ledger.together(entries) == (3.0, pytest.approx(3e-5))
    # The next run sees all of them, and hands them on.
    for place in range(3):
        (tmp_path / f"container_{place}" / "run").rename(tmp_path / f"run_{place}")
    Ledger(tmp_path / "next", "mine", records).note(1.0, 1e-5, "one record")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "next").rename(tmp_path / "elsewhere" / "next")
    (entries,) = ledger.runs_on_the_same_data(tmp_path / "elsewhere")
    assert ledger.together(entries)[0] == 4.0


def test_of_two_processes_with_one_ledger_one_draws(tmp_path):
    """The other one notes its cost after this one has looked: this one is refused."""
    records = _records()
    one, other = (Ledger(tmp_path / "mine", "mine", records) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Ledger(tmp_path / "earlier", "mine", records).note(1.0, 1e-5, "one record")
        warnings.simplefilter("always")
        # The warning of the earlier run comes between looking and noting.
        meanwhile = iter([lambda: other.note(2.0, 1e-5, "one record")])
        warnings.showwarning = lambda *_: next(meanwhile, lambda: None)()
        with pytest.raises(ValueError, match="is another run's: pass a ledger of another folder"):
            one.note(4.0, 1e-5, "one record")
    (entries,) = ledger.runs_on_the_same_data(tmp_path)
    assert ledger.together(entries)[0] == 3.0


def test_a_run_in_a_hidden_folder_counts(tmp_path):
    seen = SeenData.of("mine", _records())
    _written(tmp_path, ".old", seen, 1.0)
    _written(tmp_path, "new", seen, 2.0)
    assert len(ledger.earlier_runs(tmp_path, seen).entries) == 2
    (entries,) = ledger.runs_on_the_same_data(tmp_path)
    assert ledger.together(entries)[0] == 3.0
    (tmp_path / ".third" / "release").mkdir(parents=True)
    (tmp_path / ".third" / "release" / "guarantee.json").write_text("{}")
    assert ledger.without_a_ledger(tmp_path) == [str(tmp_path / ".third" / "release")]


CHAIN = {"a": "1", "ab": "12", "bc": "23", "c": "3"}
"""Runs, and the records that each is on: the ends have none in common."""


@pytest.mark.parametrize("order", [*itertools.permutations(CHAIN)], ids="-".join)
@pytest.mark.parametrize("by", ["records", "name", "content"])
def test_runs_that_share_records_through_others_are_one_group(tmp_path, order, by):
    """Whichever run came first or last, and by whatever two of them are known to be alike."""
    apart = SeenData("apart", "apart", ("9",))
    _written(tmp_path, "0", apart, 8.0)
    for place, run in enumerate(order, start=1):
        own = tuple(CHAIN[run])
        same = CHAIN["ab"] if run in ("a", "ab") else run
        seen = SeenData(run, run, own)
        if by == "name":
            seen = SeenData(same, run, own if run != "a" else ("8",))
        if by == "content":
            seen = SeenData(run, same, own if run != "a" else ("8",))
        _written(tmp_path, str(place), seen, 2.0**-place)
    groups = ledger.runs_on_the_same_data(tmp_path)
    assert sorted(map(len, groups)) == [1, 4]
    (chain,) = [group for group in groups if len(group) == 4]
    assert ledger.together(chain)[0] == 0.5 + 0.25 + 0.125 + 0.0625
    # A run's own records pay for those that it shares records with, and for no others.
    seen = SeenData("new", "new", ("3",))
    sharing = ledger.earlier_runs(tmp_path, seen).entries
    named = {str(tmp_path / str(order.index(run) + 1)) for run in ("bc", "c")}
    assert {entry["run"] for entry in sharing} == named


def test_guarantees_of_different_units_do_not_add_up():
    of_records = unit_of("add_or_remove_one")
    of_users = unit_of("add_or_remove_one", "one user with all of its records")
    replaced = unit_of("replace_one")
    entry = {"epsilon": 1.0, "delta": 1e-6, "run": "nowhere"}
    for one, other in ((of_records, of_users), (of_users, of_records), (of_records, replaced)):
        pair = [entry | {"unit": one}, entry | {"unit": other}]
        assert ledger.together(pair)[0] == float("inf") and len(ledger.by_unit(pair)) == 2
        assert "do not add up" in ledger.over_budget(pair, 100.0)
    assert ledger.together([entry | {"unit": of_users}] * 2)[0] == 2.0
    # What an earlier ledger does not say, and no release, is another unit than any.
    assert ledger.together([entry, entry | {"unit": of_records}])[0] == float("inf")


def test_a_release_says_its_unit_where_its_ledger_does_not(tmp_path):
    """By relation and by what is protected: of four that differ in either no two add up."""
    entries = []
    for relation in ("add_or_remove_one", "replace_one"):
        for protected in ("one record", "one user with all of its records"):
            run = tmp_path / str(len(entries))
            (run / "release").mkdir(parents=True)
            said = {"neighbouring_relation": relation, "unit_of_privacy": protected}
            files = {"hyperparameters.json": b"{}"}
            for name, content in sealed(files, said | {"private": True}).items():
                (run / "release" / name).write_bytes(content)
            entries.append({"run": str(run), "epsilon": 1.0, "delta": 1e-6})
            assert list(ledger.by_unit(entries[-1:])) == [unit_of(relation, protected)]
    for pair in itertools.combinations(entries, 2):
        assert ledger.together(pair)[0] == float("inf")
    for one in entries:
        assert ledger.together([one, one])[0] == 2.0


def test_releases_without_a_ledger_are_named(tmp_path):
    _written(tmp_path, "one", SeenData.of("mine", _records()), 1.0)
    for run in ("one", "two"):
        (tmp_path / run / "release").mkdir(parents=True)
        (tmp_path / run / "release" / "guarantee.json").write_text("{}")
    assert ledger.without_a_ledger(tmp_path) == [str(tmp_path / "two" / "release")]


def test_where_the_releases_are_their_mechanisms_are_composed(tmp_path):
    frozen = pathlib.Path(__file__).parents[1] / "frozen" / "untuned_plain"
    claim = json.loads((frozen / "guarantee.json").read_text())
    epsilon, delta = claim["epsilon"], claim["delta"]
    for run in ("one", "two", "three"):
        _written(tmp_path, run, SeenData.of("mine", _records()), epsilon, delta)
        shutil.copytree(frozen, tmp_path / run / "release")
    (entries,) = ledger.runs_on_the_same_data(tmp_path)
    assert ledger.together(entries) == (3 * epsilon, pytest.approx(3 * delta))
    found = ledger.together_if_fixed(entries)
    one = accounting.from_provenance(claim["mechanism"])
    assert epsilon < found < 2.5 * epsilon
    assert found == pytest.approx(accounting.compose(one, one, one).epsilon(3 * delta))
    # A budget is kept as far as a filter admits the mechanisms: later runs may have been chosen by
    # what earlier ones released, so what they would cost had all been fixed is not enough.
    assert ledger.over_budget(entries, 3 * epsilon) is None
    failures = 3 * one.renyi.failure_mass
    for budget, within in ((2.0 * epsilon, True), (1.5 * epsilon, False)):
        kept = accounting.PrivacyFilter(budget, delta + failures, one, failures=failures)
        assert found < budget < 3 * epsilon and kept.admits(one, 3) == within
        words = ledger.over_budget(entries, budget)
        assert (words is None) == within
    assert "and no filter admits them" in words
    # Another release of this price stands where the first one stood: nothing is known of that.
    renamed = entries[0] | {"time": "2026-01-01T00:00:00Z"}
    assert ledger.unread([renamed, *entries[1:]]) == [entries[0]["run"]]
    # A release that is not what the ledger says that it cost is not taken for it.
    other = entries[0] | {"delta": 2.0 * delta}
    assert ledger.together_if_fixed([other, *entries[1:]]) == pytest.approx(3 * epsilon)
    path = tmp_path / "two" / "release" / "guarantee.json"
    # Of one that was changed nobody knows the unit.
    path.write_text(json.dumps(claim | {"private": False}))
    assert ledger.together(entries)[0] == float("inf")
    path.write_text(json.dumps(claim))
    assert ledger.together_if_fixed(entries) == found
    entries[0]["epsilon"] = 9.0
    assert ledger.together_if_fixed(entries) == pytest.approx(9.0 + 2 * epsilon)
    assert ledger.together(entries)[0] == pytest.approx(9.0 + 2 * epsilon)
    assert ledger.together([*entries, entries[0] | {"epsilon": None}])[0] == float("inf")


def test_of_selections_the_sum_is_quick_and_no_less_than_their_composition(tmp_path):
    frozen = pathlib.Path(__file__).parents[1] / "frozen" / "random_repetitions_plain"
    claim = json.loads((frozen / "guarantee.json").read_text())
    for run in ("one", "two"):
        _written(tmp_path, run, SeenData.of("mine", _records()), claim["epsilon"], claim["delta"])
        shutil.copytree(frozen, tmp_path / run / "release")
    (entries,) = ledger.runs_on_the_same_data(tmp_path)
    one = accounting.from_provenance(claim["mechanism"])
    composed = accounting.compose(one, one)
    at, found = ledger.together(entries)[1], ledger.together_if_fixed(entries)
    assert composed.epsilon(at) <= found <= 1.1 * composed.epsilon(at) < 2 * claim["epsilon"]
    assert found == pytest.approx(composed.rough_epsilon(at))
