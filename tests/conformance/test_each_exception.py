"""Each kind of exception that is caught in a list is raised alone, and ends as the list says.

The lists are found in the source (`helpers/mistake_kinds.py`): a new one, or a new element, fails
here until it has a case, or is free by name.
"""

import concurrent.futures
import functools
import importlib
import inspect
import json
import math
import tempfile
import types

import frozen
import mistake_kinds
import pytest
from processes import python

from dpjax import accounting, checks, private_files
from dpjax.accounting import provenance
from dpjax.releases import (
    certificates,
    ledger,
    release_files,
    statement_page,
    verification,
)
from dpjax.releases.release import sealed
from dpjax.tuning.problem import inspection
from dpjax.tuning.problem.space import parse_law

WRITES_CERTIFICATES = True

DEEP = "[" * 100_000


def _refused(message, call, kind=ValueError):
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


# ---- trees of mechanisms

BEST_OF = accounting.best_of(accounting.gaussian(3.0), accounting.Geometric(2.0)).provenance

EVENT = {"event": {"name": "GaussianDpEvent", "fields": [1.0]}, "relation": "replace_one"}


def _tree(mechanism, parameters, parts=()):
    def case():
        tree = dict(mechanism=mechanism, parameters=parameters, parts=list(parts))
        _refused("lacks or misnames a field", lambda: accounting.from_provenance(tree))

    return case


def _divided_by_nothing():
    """A mechanism of somebody's own, which is forgotten afterwards."""

    @accounting.mechanism
    def of_my_own(scale: float) -> accounting.Guarantee:
        return accounting.pure(1.0 / scale)

    try:
        _tree("of_my_own", {"scale": 0.0})()
    finally:
        provenance._REBUILDERS.pop("of_my_own")


# ---- ledgers


STATED = {"private": True, "epsilon": 0.5, "delta": 1e-6, "mechanism": {}}
STATED |= {"neighbouring_relation": "replace_one", "unit_of_privacy": "one record"}


def _entry(tmp_path, changed, left_out=(), last=True):
    """An entry of a ledger, without a unit, whose release is sealed; None: there is no release.

    The ledger beside it ends with it; has no other line, if `last` is None; or is `last`.
    """
    if changed is not None:
        claim = {name: one for name, one in STATED.items() if name not in left_out} | changed
        (tmp_path / "release").mkdir()
        for name, content in sealed({"hyperparameters.json": b"{}"}, claim).items():
            (tmp_path / "release" / name).write_bytes(content)
        assert release_files.sealed_claim(tmp_path / "release")["private"]
    entry = {"run": str(tmp_path), "time": "now", "data_set": "a", "data": "b"}
    entry |= {"smallest_hashes": [], "epsilon": 0.5, "delta": 1e-6}
    if last is not None:
        (tmp_path / "curator").mkdir()
        line = json.dumps(entry) if last is True else last
        (tmp_path / "curator" / "ledger.jsonl").write_text(f"head\n{line}\n")
    return entry


def _mechanism(*release, last=True):
    def case(tmp_path):
        assert ledger.unread([_entry(tmp_path, *release, last=last)]) == [str(tmp_path)]

    return case


def _unit(*release):
    def case(tmp_path):
        assert list(ledger.by_unit([_entry(tmp_path, *release)])) == ["unknown"]

    return case


def _unreadable(content, *, all_of_them):
    def case(tmp_path):
        place = tmp_path / "run" / "curator"
        place.mkdir(parents=True)
        if content is None:
            (place / "ledger.jsonl").mkdir()
        else:
            (place / "ledger.jsonl").write_text(f"head\n{content}\n")
        if all_of_them:
            _refused("ledger .* cannot be read", lambda: ledger.runs_on_the_same_data(tmp_path))
        else:
            found = ledger.earlier_runs(tmp_path, ledger.SeenData("a", "b", ()))
            assert len(found.unreadable) == 1 and not found.entries

    return case


LEDGERS = {
    f"releases/ledger.{function}: {error}": _unreadable(content, all_of_them=every)
    for function, every in (("earlier_runs", False), ("runs_on_the_same_data", True))
    for error, content in (("OSError", None), ("ValueError", "{"), ("RecursionError", DEEP))
}

# ---- files of a release


def _read_json(content):
    def case(tmp_path):
        (tmp_path / "guarantee.json").write_bytes(content)
        path = str(tmp_path / "guarantee.json")
        _refused("is not JSON; pass that of a release", lambda: release_files.read_json(path))

    return case


def _sealed(name):
    """A release of which a file is sealed that is not beside it, or cannot be."""

    def case(tmp_path):
        from dpjax.releases.release import SEAL, json_bytes, sha256

        (tmp_path / "hyperparameters.json").write_text("{}")
        claim = {"private": True, SEAL: {"hyperparameters.json": sha256(b"{}"), name: "1"}}
        whole = claim[SEAL] | {release_files.THIS_STATEMENT: sha256(json_bytes(claim))}
        (tmp_path / "guarantee.json").write_text(json.dumps(claim | {SEAL: whole}))
        _refused(
            "model.* is not beside it, or cannot be read",
            lambda: verification.verify_release(tmp_path / "guarantee.json"),
            verification.NotVerified,
        )

    return case


# ---- statements


def _uncertified(**changed):
    """A statement that no program can prove."""

    def case():
        claim = json.loads((frozen.FOLDER / "untuned_plain" / "guarantee.json").read_text())
        del claim["sha256"]
        assert certificates.found(json.dumps(claim | changed).encode()) is None

    return case


def _in_words(mechanism):
    def case():
        claim = {"epsilon": 1.0, "delta": 1e-6, "mechanism": mechanism}
        words = statement_page._tuning_in_words(claim)
        assert words.startswith("Epsilon 1.00 covers the whole") and "would have" not in words

    return case


# ---- others


def _law(text):
    return lambda: _refused("cannot read .*: write ", lambda: parse_law(text))


class _NoArray:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("no array")


def _array(value):
    return lambda: _refused(
        "rows must be an array, and NumPy", lambda: checks.plain_array("rows", value)
    )


def _loss(kind):
    """A loss whose arguments nobody can tell is not refused for them."""

    class Silent:
        @property
        def __signature__(self):
            raise kind("no signature")

        def __call__(self, params, example):
            return 0.0

    def case():
        silent = Silent()
        with pytest.raises(kind):
            inspect.signature(silent)
        task = types.SimpleNamespace(loss=silent, with_rng=False, loss_reads=())
        assert inspection._check_arguments(task) is None

    return case


def _locked(tmp_path):
    """Another thread, which may not take it again, is told at once."""

    def also():
        with private_files.locked(tmp_path / "spent", "the ledger"):
            pass

    threads = concurrent.futures.ThreadPoolExecutor(1)
    with threads, private_files.locked(tmp_path / "spent", "the ledger"):
        found = threads.submit(also).exception()
    assert isinstance(found, private_files.InUseError) and "the ledger" in str(found)


def _of_flower(module, call, message):
    def case(tmp_path):
        pytest.importorskip("flwr", reason="the extra federated is not installed")
        found = importlib.import_module(f"dpjax.federated.flower.{module}")
        _refused(message, lambda: call(found, tmp_path))

    return case


def _candidates(text):
    return _of_flower("election", lambda found, _: found.parse_candidates(text), "^candidates ")


def _copied(value):
    candidates = [{"depth": 1}, {"depth": value}]
    return _of_flower(
        "election", lambda found, _: found._copied(candidates), "^candidate 1 is .*what JSON holds"
    )


def _nested(depth):
    """A list in a list in a list, and so on."""
    found = []
    for _ in range(depth):
        found = [found]
    return found


def _line(text):
    def read(found, tmp_path):
        (tmp_path / "spent.jsonl").write_text(text)
        with open(tmp_path / "spent.jsonl", "rb") as file:
            found._read(file.fileno(), tmp_path / "spent.jsonl")

    return _of_flower("storage", read, "is not a ledger .line 1.")


# Flags are global, so commands run in a process of their own.
_OF_COMMANDS = r"""
import pathlib, sys
from absl import flags
from dpjax.commands import command_line, config, console, price
from dpjax.releases import curator_page

folder = pathlib.Path(sys.argv[1])
flags.FLAGS(["a binary"])

def raises(kind):
    def call(*_):
        raise kind("said")
    return call

def refused(call):
    try:
        return call()
    except (ValueError, flags.Error) as error:
        return str(error)

(folder / "bad.json").write_text("{")
for kind, name in (("OSError", "none.json"), ("ValueError", "bad.json")):
    found = refused(lambda: config._read(str(folder / name)))
    print("commands/config._read:", kind, "cannot be read" in found)
for kind, content in (
    ("IndexError", "order,epsilon\n2\n"),
    ("ValueError", "order,epsilon\ntwo,3\n"),
    ("csv.Error", "order,epsilon\n" + "7" * 200_000),
):
    (folder / "curve.csv").write_text(content)
    found = refused(lambda: price.read_rdp_csv(str(folder / "curve.csv")))
    print("commands/price.read_rdp_csv:", kind, "holds no Renyi curve" in found)
for kind in (OSError, ValueError):
    print("commands/command_line.guarded:", kind.__name__, command_line.guarded(raises(kind)) == 2)
(folder / "curator").mkdir()
(folder / "release").mkdir()
(folder / "release" / "guarantee.json").write_text("{")
nowhere = [str(folder / "nowhere.csv"), str(folder / "schema.json")]
for kind, command, paths in (
    ("OSError", "schema", nowhere), ("ValueError", "report", [str(folder)])
):
    said = console._run_small(command, paths) == 2
    print("commands/console._run_small:", kind, said)
for kind, unscored in (("KeyError", {}), ("ValueError", {"score": ""})):
    rows = [{"a": "1"} | unscored, {"a": "2", "score": "0.5"}]
    found = curator_page._candidates(rows, {})
    last = found.index("<td>2") < found.index("<td>1")
    print("releases/curator_page._candidates.rank:", kind, last)
"""


@functools.cache
def _said():
    """Name -> whether it was caught, of what commands catch."""
    with tempfile.TemporaryDirectory() as folder:
        done = python("-c", _OF_COMMANDS, folder)
    lines = [line.rsplit(maxsplit=1) for line in done.stdout.splitlines()]
    return {name: caught == "True" for name, caught in lines}


def _of_commands(name):
    def case():
        assert _said().get(name), _said()

    return case


COMMANDS = {
    name: _of_commands(name)
    for name in (
        "commands/command_line.guarded: OSError",
        "commands/command_line.guarded: ValueError",
        "commands/config._read: OSError",
        "commands/config._read: ValueError",
        "commands/console._run_small: OSError",
        "commands/console._run_small: ValueError",
        "commands/price.read_rdp_csv: IndexError",
        "commands/price.read_rdp_csv: ValueError",
        "commands/price.read_rdp_csv: csv.Error",
        "releases/curator_page._candidates.rank: KeyError",
        "releases/curator_page._candidates.rank: ValueError",
    )
}


CASES = (
    {
        "accounting/provenance._rebuilt: ArithmeticError": _divided_by_nothing,
        "accounting/provenance._rebuilt: AttributeError": _tree("dp_accounting_event", EVENT),
        "accounting/provenance._rebuilt: LookupError": _tree(
            "dp_accounting_event", {"event": {"name": "GaussianDpEvent"}, "relation": "replace_one"}
        ),
        "accounting/provenance._rebuilt: TypeError": _tree("pure", {}),
        "checks.plain_array: TypeError": _array(_NoArray()),
        "checks.plain_array: ValueError": _array([[1.0], [1.0, 2.0]]),
        "releases/certificates.found: LookupError": _uncertified(mechanism={}),
        "releases/certificates.found: TypeError": _uncertified(mechanism=3),
        "releases/certificates.found: ValueError": _uncertified(training=[]),
        "releases/ledger._mechanism: OSError": _mechanism({}, last=None),
        "releases/ledger._mechanism: RecursionError": _mechanism({}, last="[" * 100_000),
        "releases/ledger._mechanism: ValueError": _mechanism(None),
        "releases/ledger._mechanism: KeyError": _mechanism({}, ["mechanism"]),
        "releases/ledger._mechanism: TypeError": _mechanism({"epsilon": "0.5"}),
        "releases/ledger._released_unit: ValueError": _unit(None),
        "releases/ledger._released_unit: KeyError": _unit({}, ["unit_of_privacy"]),
        "releases/ledger._released_unit: AttributeError": _unit({"neighbouring_relation": 3}),
        "tuning/problem/inspection._check_arguments: TypeError": _loss(TypeError),
        "tuning/problem/inspection._check_arguments: ValueError": _loss(ValueError),
        "tuning/problem/space.parse_law: KeyError": _law("normal(0,1)"),
        "tuning/problem/space.parse_law: ValueError": _law("one"),
        "releases/statement_page._tuning_in_words: KeyError": _in_words({"mechanism": "split"}),
        "releases/statement_page._tuning_in_words: IndexError": _in_words(BEST_OF | {"parts": []}),
        "releases/statement_page._tuning_in_words: TypeError": _in_words(None),
        "releases/statement_page._tuning_in_words: ValueError": _in_words(
            BEST_OF | {"parts": [{"mechanism": "unheard of", "parameters": {}, "parts": []}]}
        ),
        "releases/release_files.sealed_files: OSError": _sealed("model.msgpack"),
        "releases/release_files.sealed_files: ValueError": _sealed("model\0"),
        "releases/release_files.read_json: json.JSONDecodeError": _read_json(b"{"),
        "releases/release_files.read_json: UnicodeDecodeError": _read_json(b'{"a": "\xff"}'),
        "private_files._lock: BlockingIOError": _locked,
        "federated/flower/election._listed: ValueError": _candidates("[1"),
        "federated/flower/election._listed: RecursionError": _candidates(DEEP),
        "federated/flower/election.parse_candidates: ValueError": _candidates('[{"decay": "x"}]'),
        "federated/flower/election.parse_candidates: OverflowError": _candidates(
            '[{"decay": 1' + "0" * 400 + "}]"
        ),
        "federated/flower/election._copied: TypeError": _copied(object()),
        "federated/flower/election._copied: ValueError": _copied(math.nan),
        "federated/flower/election._copied: RecursionError": _copied(_nested(10**5)),
        "federated/flower/election.parse_candidates: TypeError": _candidates('[{"decay": null}]'),
        "federated/flower/election.parse_candidates: AttributeError": _candidates("[1]"),
        "federated/flower/storage._read: ValueError": _line("{"),
        "federated/flower/storage._read: KeyError": _line("{}"),
        "federated/flower/storage._read: RecursionError": _line(DEEP),
    }
    | LEDGERS
    | COMMANDS
)
"""Place and kind -> a case; it takes tmp_path if it needs a folder."""


def test_every_kind_that_is_caught_has_a_case_or_is_free():
    assert {place.name for place in mistake_kinds.exceptions()} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_caught(name, tmp_path):
    case = CASES[name]
    case(*([tmp_path] if inspect.signature(case).parameters else []))
