"""A second program proves what releases state, and nothing else: lines, edits, soundness."""

import ast
import io
import json
import math
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tokenize

import mpmath
import numpy as np
import pytest
from processes import python

from dpjax import accounting, certificate
from dpjax.releases import certificates, release

WRITES_CERTIFICATES = True
RUN = accounting.dp_sgd(0.1, 2.0, 200)
LARGEST = 925
"""Lines of code of the program."""
SOURCE = pathlib.Path(certificate.__file__)


def _bounds(guarantee, order, *, step=12, fine=10, exact=1, case=0, lost=1e-18):
    """Of the tree alone: whether words mean it is asked elsewhere."""
    hints = {"step": step, "fine": fine, "exact": exact}
    return certificate.bounds(guarantee.provenance, case, order, lost, hints)


def test_it_is_small_and_independent():
    """Lines of code: neither blank nor docstring nor comment."""
    text = SOURCE.read_text()
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    described = set()
    for node in nodes:
        if ast.get_docstring(node) is not None:
            described |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout | {tokenize.ENDMARKER}:
            code |= set(range(token.start[0], token.end[0] + 1))
    assert len(code - described) <= LARGEST
    imports = (
        "import sys, dpjax.certificate; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    )
    found = python("-c", imports, check=True)
    names = set(found.stdout.split())
    assert {"numpy", "mpmath", "dpjax"} <= names
    assert not names & {"scipy", "jax", "dp_accounting", "flax"}
    found = (
        "import sys, dpjax.certificate; print([n for n in sys.modules if n.startswith('dpjax.')])"
    )
    found = python("-c", found, check=True)
    assert ast.literal_eval(found.stdout) == ["dpjax.certificate"]


@pytest.mark.parametrize("noise", [0.7, 2.0, 20.0])
def test_a_gaussian_is_bounded_from_above_and_closely(noise):
    """Against 40 digits."""
    for steps in (1, 9):
        scale = mpmath.mpf(math.sqrt(steps)) / noise
        for order in (0.0, 0.5 * float(scale), 2.0 * float(scale)):
            with mpmath.workdps(40):
                low = mpmath.ncdf(-scale / 2 - order / scale)
                true = mpmath.ncdf(scale / 2 - order / scale) - mpmath.exp(order) * low
            guarantee = accounting.dp_sgd(1.0, noise, steps)
            for found in _bounds(guarantee, order, step=13):
                assert true < found < true * (1 + 1e-4) + 1e-17


def _composed_by_hand(share, noise, steps, order):
    """H(P^n || Q^n) of the sampled Gaussian by a fine sum over outcomes of two steps."""
    points = 1501 if steps == 2 else 1_000_001
    x = np.linspace(-9.0 * noise, 9.0 * noise + 1.0, points)
    q = np.exp(-0.5 * (x / noise) ** 2)
    q /= q.sum()
    ratio = 1.0 - share + share * np.exp((2.0 * x - 1.0) / (2.0 * noise**2))
    t = math.exp(order)
    both = ratio[:, None] * ratio if steps == 2 else ratio
    mass = q[:, None] * q if steps == 2 else q
    return float((mass * np.maximum(both - t, 0.0)).sum()), float(
        (mass * np.maximum(1.0 - t * both, 0.0)).sum()
    )


@pytest.mark.parametrize("share, noise", [(0.1, 1.0), (0.5, 0.8), (0.004, 1.1)])
@pytest.mark.parametrize("steps", [1, 2])
def test_sampled_lots_in_both_directions(share, noise, steps):
    for order in (0.0, 0.05, 0.3):
        true = _composed_by_hand(share, noise, steps, order)
        found = _bounds(accounting.dp_sgd(share, noise, steps), order, step=13)
        for one, other in zip(true, found):
            assert one * (1 - 2e-5) - 1e-9 < other < one * (1 + 1e-3) + 1e-8


@pytest.mark.parametrize(
    "guarantee, delta",
    [
        # The last two are computed without a grid: here they are proved to one part in a million.
        (accounting.dp_sgd(256 / 60000, 1.1, 14062), 1e-5),
        (RUN, 1e-5),
        (accounting.dp_sgd_fixed_lots(10_000, 500, 1.5, 1000), 1e-6),
        (accounting.compose(accounting.pure(0.5), RUN), 1e-5),
        (
            accounting.compose(
                accounting.exponential_mechanism(1.0), accounting.dp_sgd(0.1, 2.0, 99)
            ),
            1e-5,
        ),
        (accounting.discrete_gaussian(11.4, 1), 1e-5),
        (accounting.doubling_loop(0.1, 19), 1e-5),
    ],
    ids=lambda one: repr(one)[:40],
)
def test_it_proves_what_is_stated_and_hardly_more(guarantee, delta):
    stated = guarantee.epsilon(delta)
    if guarantee.provenance["mechanism"] in ("discrete_gaussian", "doubling_loop"):
        stated *= 1 + 1e-6
    for step, fine in certificates.GRIDS:
        if max(_bounds(guarantee, stated, step=step, fine=fine, lost=delta * 1e-9)) <= delta:
            break
    else:
        pytest.fail("not proved")
    lost = delta * 1e-9
    assert max(_bounds(guarantee, stated * 0.999, step=step, fine=fine, lost=lost)) > delta


def _gaussian_selection(law):
    return accounting.best_of(accounting.dp_sgd(1.0, math.sqrt(5.0), 1), law)


@pytest.mark.parametrize(
    "law, worst, stated",
    [
        (accounting.TruncatedNegativeBinomial(-0.5, 10), 2.6251, 2.6265),
        (accounting.Logarithmic(10), 2.7382, 2.7401),
        (accounting.Geometric(10), 2.8893, 2.8918),
        (accounting.Poisson(10), 3.6495, 3.6522),
    ],
    ids=repr,
)
def test_a_selection_lies_between_an_order_and_what_is_stated(law, worst, stated):
    """Epsilons of docs/envelope_bound.md: an explicit order's, from below, and the stated one."""
    guarantee = _gaussian_selection(law)
    assert max(_bounds(guarantee, worst - 1e-3, exact=0)) > 1e-6
    assert max(_bounds(guarantee, stated + 1e-4, exact=0)) <= 1e-6


@pytest.mark.parametrize(
    "law, worst, stated",
    [
        (accounting.Poisson(100), 12.2197, 12.2471),
        (accounting.Fixed(20), 8.1256, 8.1442),
        (accounting.Fixed(5), 4.544, 4.558),
    ],
    ids=repr,
)
def test_the_exact_bound_lies_between_an_order_and_what_is_stated(law, worst, stated):
    guarantee = _gaussian_selection(law)
    assert max(_bounds(guarantee, worst - 2e-3)) > 1e-6
    assert max(_bounds(guarantee, stated + 1e-3)) <= 1e-6


def test_laws_of_k_are_those_of_the_accounting():
    y = np.array([0.0, 1e-6, 0.01, 0.3, 0.999, 1.0])
    for law in (
        accounting.Geometric(10),
        accounting.Logarithmic(30),
        accounting.TruncatedNegativeBinomial(-0.5, 3.0),
        accounting.TruncatedNegativeBinomial(2.5, 7.0),
        accounting.Poisson(0.7),
        accounting.Binomial(12, 0.25),
        accounting.Fixed(3),
        accounting.AtMost(accounting.Geometric(10), 64),
        accounting.AtMost(accounting.Logarithmic(4), 5),
        accounting.AtMost(accounting.Poisson(4), 9),
        accounting.AtMost(accounting.Binomial(5, 0.2), 3),
    ):
        found = certificate.law_of(law.to_dict())
        np.testing.assert_allclose(found.first(y), law.derivative(y), rtol=1e-11, atol=1e-15)
        np.testing.assert_allclose(
            found.second(y), law.second_derivative(y), rtol=1e-11, atol=1e-14
        )
        assert found.mean == pytest.approx(law.mean, rel=1e-11)


@pytest.mark.parametrize(
    "law",
    [
        {"law": "geometric", "mean": 0.5},
        {"law": "geometric", "mean": float("nan")},
        {"law": "truncated_negative_binomial", "shape": -1.0, "mean": 3.0},
        {"law": "poisson", "mean": -1.0},
        {"law": "binomial", "trials": 4, "probability": 2.0},
        {"law": "at_most", "inner": {"law": "geometric", "mean": 0.1}, "cap": 3},
        {"law": "at_most", "inner": {"law": "geometric", "mean": 2.0}, "cap": 2.5},
        {"law": "fixed", "k": 0},
        {
            "law": "at_most",
            "inner": {"law": "binomial", "trials": 0.1, "probability": 0.5},
            "cap": 3,
        },
        # Two laws in one: K = 8 to who reads it, hardly ever a run to who adds it up.
        {"law": "fixed", "k": 8, "inner": {"law": "poisson", "mean": 0.01}},
        {"law": "binomial", "trials": 8, "probability": 0.5, "inner": {"law": "fixed", "k": 1}},
        {"law": "at_most", "inner": {"law": "geometric", "mean": 2.0, "shape": -0.5}, "cap": 3},
        {"law": "zipf", "mean": 2.0},
        {},
    ],
)
def test_laws_that_are_none_are_refused(law):
    with pytest.raises((certificate.Unproved, KeyError)):
        certificate.law_of(law)


@pytest.mark.parametrize(
    "guarantee, changes",
    [
        (RUN, {"steps": -1}),
        (RUN, {"steps": 0}),
        (RUN, {"steps": 2.0}),
        (RUN, {"noise_multiplier": -2.0}),
        (RUN, {"noise_multiplier": 1e-9}),
        (accounting.stop_at_threshold(RUN, 0.5), {"halting_probability": 1.5}),
        (accounting.stop_at_threshold(RUN, 0.5), {"halting_probability": 0.0}),
        (accounting.doubling_loop(0.1, 19), {"iterations": 0}),
        (accounting.pure(0.1), {"epsilon": -0.1}),
    ],
    ids=repr,
)
def test_numbers_that_are_none_are_refused(guarantee, changes):
    tree = guarantee.provenance
    tree["parameters"] |= changes
    hints = {"step": 12, "fine": 10, "exact": 1}
    with pytest.raises(certificate.Unproved):
        certificate.bounds(tree, 0, 1.0, 1e-14, hints)


def test_lots_that_overflow_are_what_the_accounting_charges():
    for arguments in ((120, 0.125, 42, 2), (60_000, 0.004, 380, 5000), (50, 0.5, 50, 3)):
        size, chance, capacity, steps = arguments
        found = certificate.overflow(size, chance, capacity, steps)
        charged = accounting.truncation_probability(size, chance, capacity, steps)
        assert found <= charged <= found * (1 + 1e-6)


def _statement(law=None, *, noise=2.0, steps=50, lot=20, delta=1e-5, score=8.0):
    """The words that the program reads, of the best of K runs or of one."""
    capacity = accounting.lot_capacity(420, lot / 400, steps, 1e-9)
    failed = accounting.truncation_probability(420, lot / 400, capacity, steps)
    run = accounting.dp_sgd(lot / 400, noise, steps, failure_probability=failed)
    one, choice = (
        run,
        {"rule": certificate.PUBLIC},
    )
    if law is not None:
        count = accounting.discrete_gaussian(score, 1)
        one = accounting.best_of(accounting.parallel(run, count), law)
        choice = {"rule": "best of K runs", "law_of_K": law.to_dict()}
    row = {"lot_size": lot, "steps": steps, "noise_multiplier": noise, "probability": 1}
    return {
        "private": True,
        "selection": choice,
        "score": {"noise_standard_deviation_in_records": score, "validation_is_public": False},
        "training": [row | {"sampling": "poisson", "capacity": capacity}],
        "training_records": {"public_size": 400, "size_bound": 420, "number": None},
        "neighbouring_relation": "add_or_remove_one",
        "mechanism": one.provenance,
        "epsilon": one.epsilon(delta),
        "delta": delta,
    }


def _saved(folder, words):
    release.Release({"kernel": np.zeros(2)}, {"learning_rate": 0.5}, words).save(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A release of the best of K runs, its certificate written."""
    words = _statement(accounting.Geometric(10))
    return _saved(tmp_path_factory.mktemp("saved") / "release", words)


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "release")
    return tmp_path / "release"


def _verdict(folder, capsys):
    code = certificate.main([str(folder)])
    words = capsys.readouterr().out
    assert len(words.splitlines()) == 1 and words.isprintable() or words.endswith("\n")
    return code, words


def test_a_release_is_proved(folder, capsys):
    code, words = _verdict(folder, capsys)
    assert code == 0 and words.startswith("PROVED: epsilon ")
    assert (folder / "certificate.json").stat().st_size < 400_000
    assert len(json.loads((folder / "certificate.json").read_text())["cases"]) == 2
    claim = json.loads((folder / "guarantee.json").read_text())
    assert set(claim["sha256"]) == {
        "certificate.json",
        "hyperparameters.json",
        "model.msgpack",
        "this_statement_without_this_line",
    }


@pytest.mark.parametrize(
    ("changed", "less", "why"),
    [
        ({}, 1.0, "it was saved without one"),
        ({}, 0.9, "none was found, and on coarse grids delta is at most 6.5\\d+e-05, not as"),
        ({"noise": 8.0, "score": 2.0}, 0.9, "none was found"),
        ({"noise": 0.02, "steps": 1}, 1.0, "noise multiplier 0.02 is less than this program can"),
    ],
)
def test_a_release_without_a_certificate_says_why(tmp_path, capsys, changed, less, why):
    words = _statement(accounting.Geometric(10), **changed)
    words["epsilon"] = min(words["epsilon"], 500.0) * less
    made = release.Release({"kernel": np.zeros(2)}, {"learning_rate": 0.5}, words)
    made.save(tmp_path / "release", certificate=False)
    code, said = _verdict(tmp_path / "release", capsys)
    assert code == 2 and re.search(why, said), said


@pytest.mark.parametrize("name", ["model.msgpack", "hyperparameters.json", "certificate.json"])
def test_another_file_in_its_place_is_refused(folder, capsys, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    code, words = _verdict(folder, capsys)
    assert code == 2 and f"{name} is not the file that was released" in words
    (folder / name).unlink()
    assert _verdict(folder, capsys)[0] == 2


def _sealed_anew(folder, claim, certified=None):
    """Whoever edits a file can write the hashes too, and the certificate's of the statement."""
    words = {name: value for name, value in claim.items() if name != "sha256"}
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    content.pop("guarantee.json")
    if certified is not None:
        certified["statement"] = certificate.digest(words)
        content["certificate.json"] = release.json_bytes(certified)
    for name, data in release.sealed(content, words).items():
        (folder / name).write_bytes(data)


def _with_certificate(folder):
    """The claim, and its certificate."""
    return [
        json.loads((folder / name).read_text()) for name in ("guarantee.json", "certificate.json")
    ]


@pytest.mark.parametrize("share", [1.0 - 1e-4, 1.0 + 1e-4])
@pytest.mark.parametrize("case", [0, 1])
@pytest.mark.parametrize("place", [0, 1])
def test_every_sum_of_every_case_is_found_again(folder, capsys, case, place, share):
    """A record that is trained on is one case, one that is validated on another; either alone."""
    claim, certified = _with_certificate(folder)
    certified["cases"][case]["sums"][place] *= share
    _sealed_anew(folder, claim, certified)
    code, words = _verdict(folder, capsys)
    assert code != 0 and "the sums of certificate.json are not what they are found" in words


@pytest.mark.parametrize("case", [0, 1])
def test_no_case_is_left_out(folder, capsys, case):
    claim, certified = _with_certificate(folder)
    whole = certified["cases"]
    for cases in (whole[:case] + whole[case + 1 :], [*whole, whole[case]], []):
        _sealed_anew(folder, claim, certified | {"cases": cases})
        code, words = _verdict(folder, capsys)
        assert code != 0 and "leaves out a case of neighbours" in words


def _digits(text, names):
    """Places of digits of the numbers that stand behind one of these names."""
    for found in re.finditer(rf'"({names})": (-?[0-9.]+(?:e-?[0-9]+)?)', text):
        start, end = found.span(2)
        yield from ((place, found[1]) for place in range(start, end) if text[place].isdigit())


NUMBERS = (
    "epsilon|delta|noise_multiplier|steps|lot_size|mean|capacity|public_size|size_bound|noise_std"
    "|noise_standard_deviation_in_records|sampling_probability|failure_probability|probability"
)


def _edited(folder, text, place, digit):
    new = text[:place] + digit + text[place + 1 :]
    (folder / "guarantee.json").write_text(new)
    return new


def test_no_digit_can_be_edited(folder, capsys):
    """Nor with the hashes made anew, of the statement alone or in the certificate too."""
    _no_digit_can_be_edited(folder, capsys, 60)


def test_no_digit_of_hundreds_can_be_edited(folder, capsys):
    _no_digit_can_be_edited(folder, capsys, 500)


def _no_digit_can_be_edited(folder, capsys, edits):
    text = (folder / "guarantee.json").read_text()
    stated = json.loads((folder / "certificate.json").read_text())
    kept = (folder / "certificate.json").read_bytes()
    source = random.Random(edits)
    places = sorted(_digits(text, NUMBERS))
    tried = 0
    while tried < edits:
        place, name = source.choice(places)
        digit = source.choice([one for one in "0123456789" if one != text[place]])
        try:
            claim = json.loads(text[:place] + digit + text[place + 1 :])
        except json.JSONDecodeError:
            continue
        if claim == json.loads(text):
            continue
        tried += 1
        _edited(folder, text, place, digit)
        assert _verdict(folder, capsys)[0] == 2
        _sealed_anew(folder, claim)
        assert _verdict(folder, capsys)[0] == 2
        # True claims: a larger delta or epsilon, or one smaller by what the proof has left; another
        # rounding of the chance that lots overflow.
        if name not in ("delta", "epsilon", "failure_probability"):
            _sealed_anew(folder, claim, dict(stated))
            code, words = _verdict(folder, capsys)
            assert code == 2, (text[place - 40 : place + 10], words)
        (folder / "certificate.json").write_bytes(kept)


def _all(tree, **changes):
    """The tree with these parameters changed wherever they stand."""
    if isinstance(tree, dict):
        return {
            key: changes[key](value) if key in changes else _all(value, **changes)
            for key, value in tree.items()
        }
    return [_all(one, **changes) for one in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(
    "changes",
    [
        dict(epsilon=lambda one: one * 0.9),
        dict(delta=lambda one: one * 0.95),
        dict(steps=lambda one: one + 1),
        dict(mean=lambda one: one + 0.2),
        dict(noise_multiplier=lambda one: one * 0.995),
        dict(public_size=lambda one: one - 4),
        dict(capacity=lambda one: one - 18),
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_costs_more_is_refused_by_the_numbers(folder, capsys, changes):
    """Edited wherever it stands, hashes, lines and sums made anew: the proof fails."""
    claim = json.loads((folder / "guarantee.json").read_text())
    words = _all({name: value for name, value in claim.items() if name != "sha256"}, **changes)
    words["mechanism"] = certificate.tree_of(words)
    hints = {"step": 12, "fine": 10, "exact": 0}
    cases = [certificate.prove(words, case, hints) for case in (0, 1)]
    assert max(max(sums) for sums in cases) > words["delta"]
    if "epsilon" in changes:
        with pytest.raises(certificate.Unproved, match="at the stated epsilon"):
            certificates.certified(words)


def test_grids_and_cases_are_not_trusted(folder, capsys):
    claim = json.loads((folder / "guarantee.json").read_text())
    for edit in (
        lambda one: one["cases"][0].update(step=2),
        lambda one: one["cases"][0].update(fine=30),
        lambda one: one["cases"][0].update(step=12.5),
        lambda one: one["cases"].pop(),
        lambda one: one["cases"].append(one["cases"][0]),
        lambda one: one["cases"][0].update(sums=[1e-7, 1e-7]),
        lambda one: one.pop("cases"),
        lambda one: one.update(cases=[]),
    ):
        certified = json.loads((folder / "certificate.json").read_text())
        edit(certified)
        kept = (folder / "certificate.json").read_bytes()
        _sealed_anew(folder, claim, certified)
        assert _verdict(folder, capsys)[0] == 2
        (folder / "certificate.json").write_bytes(kept)


def test_words_that_are_not_the_mechanism_are_refused(folder, capsys):
    """Every leaf of the words that a cost depends on, the hashes made anew."""
    claim = json.loads((folder / "guarantee.json").read_text())
    certified = json.loads((folder / "certificate.json").read_text())
    for name, edit in {
        "bound": lambda one: one["training_records"].update(size_bound=500),
        "lot": lambda one: one["training"][0].update(lot_size=19),
        "sampling": lambda one: one["training"][0].update(sampling="fixed"),
        "capacity": lambda one: one["training"][0].update(capacity=60),
        "score noise": lambda one: one["score"].update(noise_standard_deviation_in_records=9.0),
        "validation": lambda one: one["score"].update(validation_is_public=True),
        "law": lambda one: one["selection"]["law_of_K"].update(mean=9),
        "rule": lambda one: one["selection"].update(rule="none: one private run"),
        "relation": lambda one: one.update(neighbouring_relation="replace_one"),
        "private": lambda one: one.update(private=1),
        "missing": lambda one: one["training"][0].pop("capacity"),
        "no law": lambda one: one["selection"].pop("law_of_K"),
        "two runs": lambda one: one["training"].append(one["training"][0]),
        "method": lambda one: one["mechanism"]["parameters"].update(method="rdp"),
        "true": lambda one: one["mechanism"]["parts"][0]["parts"][0]["parameters"].update(
            steps=True
        ),
    }.items():
        edited = json.loads(json.dumps(claim))
        edit(edited)
        _sealed_anew(folder, edited, dict(certified))
        assert _verdict(folder, capsys)[0] == 2, name


def test_the_chance_of_a_lot_that_overflows_is_computed_anew():
    """It is stated as the accounting rounds it up, and no lower."""
    size, chance, capacity, steps = 120, 0.125, 42, 2
    stated = accounting.truncation_probability(size, chance, capacity, steps)
    meant = {"failure_probability": certificate.overflow(size, chance, capacity, steps)}
    certificate.check_same({"failure_probability": stated}, meant)
    for factor in (0.999, 1.001):
        with pytest.raises(certificate.Unproved, match="failure_probability"):
            certificate.check_same({"failure_probability": stated * factor}, meant)


def test_what_it_cannot_prove_it_says_in_one_line(tmp_path, capsys):
    run = accounting.dp_sgd(0.05, 2.0, 50)
    law = accounting.Geometric(3)
    nested = accounting.compose(accounting.best_of(run, law), run)
    words = _statement()
    rule = "a line through the best of K runs at several small epsilons, then private training"
    for index, edited in enumerate(
        (
            words | {"selection": {"rule": rule}, "mechanism": nested.provenance},
            words | {"epsilon": words["epsilon"] * 0.99},
            words | {"selection": {"rule": "a vote"}},
        )
    ):
        folder = _saved(tmp_path / str(index), edited)
        assert not (folder / "certificate.json").exists()
        code, line = _verdict(folder, capsys)
        assert code == 2 and line.startswith("NOT PROVED: ")
    for index, words in enumerate(({}, {"private": True}, {"private": False})):
        _saved(tmp_path / f"short {index}", words)


def test_a_folder_that_is_none_and_no_argument(tmp_path, capsys):
    for path in (tmp_path / "missing", tmp_path):
        code, line = _verdict(path, capsys)
        assert code == 2 and line.startswith("NOT PROVED: ")
    assert certificate.main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_one_run_from_the_command_line(tmp_path):
    folder = _saved(tmp_path / "release", _statement())
    command = [sys.executable, "-m", "dpjax.certificate", str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and found.stdout.startswith("PROVED"), found


DEAR = {
    *("subset tuning", "subset tuning, trained on all", "doubling", "doubling, segments"),
    *("exponential", "permute_and_flip", "extrapolation"),
}
"""Whose proofs take the longest to find: tests/tuning/test_statements_elsewhere.py finds those of
other statements, tests/test_certificates_of_tuners.py those of their words, and in tests/frozen
there are some."""


def test_releases_of_every_tuner(tmp_path, capsys, monkeypatch):
    """Those of `tests/releases/test_verification.py`, and which of them is beyond the program."""
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent / "releases"))
    import test_verification

    refused, names = set(), [*test_verification.RELEASES]
    assert {*names} > DEAR
    for name in [one for one in names if one not in DEAR]:
        folder = tmp_path / name
        test_verification._release(name).save(folder)
        code, line = _verdict(folder, capsys)
        if code:
            refused.add(name)
            assert "beyond this program" in line or "carries no certificate" in line
    assert not refused


@pytest.mark.parametrize("law", [accounting.Fixed(5), accounting.Poisson(10)], ids=repr)
def test_coarse_cells_and_columns_only_add_to_the_exact_bound(law, monkeypatch):
    """Chords, tangents and charges: the coarser they are the larger is what they bound."""
    hints = {"step": 10, "fine": 10, "exact": 1}
    pair = certificate.pair_of(accounting.gaussian(3.0).provenance, 0, 1e-14, hints)
    orders, law = np.array([0.2, 0.6, 1.2]), certificate.law_of(law.to_dict())
    fine = certificate.optimal_order_bound(pair, law, orders, 1e-14, 300, 40.0)
    for move, cells, knots in ((0.4, 300, 40.0), (0.1, 12, 40.0), (0.1, 300, 5.0), (0.4, 40, 10.0)):
        monkeypatch.setattr(certificate, "MOVE", move)
        certificate.Work.done = 0.0
        coarse = certificate.optimal_order_bound(pair, law, orders, 1e-14, cells, knots)
        assert np.all(coarse > 0.999 * fine), (move, cells, knots)
    monkeypatch.undo()
    for one, order in zip(fine, orders):
        certificate.Work.done = 0.0
        assert certificate.optimal_order_bound(pair, law, order, 1e-14, 300, 40.0) == pytest.approx(
            one, rel=1e-9
        )


def test_noise_in_whole_numbers_is_bounded_on_any_grid_as_closely():
    """The trade-off is straight between few corners, and cells within one piece lie on it."""
    law = certificate.law_of(accounting.Geometric(10).to_dict())
    found = []
    for step in (12, 13, 14):
        hints = {"step": step, "fine": 10, "exact": 1}
        tree = accounting.discrete_gaussian(97.143625).provenance
        pair = certificate.pair_of(tree, 0, 1e-14, hints)
        found.append(
            certificate.optimal_order_bound(
                pair, law, np.array([0.0, 0.02, 0.05]), 1e-14, 200, 40.0
            )
        )
    assert np.all(np.max(found, axis=0) < 1.02 * np.min(found, axis=0)), found


def test_the_line_that_the_guide_shows_is_what_is_printed(tmp_path, capsys):
    statement = (
        SOURCE.parents[1] / "tests/releases/statements/Adult-2-random_repetitions_prior.json"
    )
    folder = _saved(tmp_path / "release", json.loads(statement.read_text()))
    code, line = _verdict(folder, capsys)
    guide = (SOURCE.parents[1] / "docs/certificates.md").read_text()
    shown = re.search(r"^    (PROVED: .*\n)", guide, re.MULTILINE)[1]
    # Sums of laws differ in their last bits by machine.
    digits = r"(delta is at most \S{6})[^;]*"
    assert code == 0 and re.sub(digits, r"\1", line) == re.sub(digits, r"\1", shown)
