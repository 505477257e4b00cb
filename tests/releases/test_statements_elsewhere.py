"""What was stated on one machine is verified on another.

`docs/figures/leaderboard/guarantees` was written on a processor with AVX2 and no AVX-512 (NumPy
2.4.6, SciPy 1.17.1) by a version that did not round; `statements/` on an AMD EPYC with AVX-512 by
this one. Each is priced anew by this machine's arithmetic and by others'.
"""

import contextlib
import json
import pathlib

import other_arithmetic
import pytest

from dpjax import certificate
from dpjax.releases import certificates, release, verification
from dpjax.releases.release import SEAL
from dpjax.releases.rules import rebuilt
from experiments.figures.leaderboard import extrapolation, subset_tuning  # noqa: F401 (register)

WRITES_CERTIFICATES = True
ROOT = pathlib.Path(__file__).parents[2]
EARLIER = sorted((ROOT / "docs" / "figures" / "leaderboard" / "guarantees").glob("*.json"))
HERE = sorted((pathlib.Path(__file__).parent / "statements").glob("*.json"))


def _words(path):
    return {name: value for name, value in json.loads(path.read_text()).items() if name != SEAL}


def _one_of_each_rule():
    found = {}
    for path in EARLIER:
        words = _words(path)
        key = (words["selection"]["rule"], "records" in words["score"], words["epsilon"] > 2.0)
        found.setdefault(key, path)
    return list(found.values())


def _recomputed(words, seed):
    arithmetic = contextlib.nullcontext() if seed is None else other_arithmetic.jittered(seed)
    with arithmetic:
        return verification.check_words(words, rebuilt(words).statement)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_a_statement_of_this_version_is_verified_by_any_arithmetic(path, seed):
    words = _words(path)
    assert _recomputed(words, seed) == pytest.approx(words["epsilon"], rel=1.1e-5)


@pytest.mark.parametrize("path", _one_of_each_rule(), ids=lambda path: path.stem)
def test_an_earlier_one_is_verified_too_and_never_found_to_cost_more(path):
    """Elsewhere; here all of them are, below."""
    words = _words(path)
    assert _recomputed(words, 3) <= words["epsilon"] * (1.0 + 1.1e-5)


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_its_certificate_found_here_is_proved_by_any_arithmetic(path, tmp_path):
    words = _words(path)
    proof = certificates.found(release.json_bytes(words))
    if proof is None:
        # Of an extrapolation the second program bounds delta a thousandth above what is claimed.
        assert "extrapolation" in path.stem
        return
    contents = {"hyperparameters.json": b"{}", certificate.CERTIFICATE: release.json_bytes(proof)}
    for name, content in release.sealed(contents, words).items():
        (tmp_path / name).write_bytes(content)
    # By this arithmetic it was proved when it was found.
    for seed in (0, 1):
        with other_arithmetic.jittered(seed):
            verdict = certificate.check(str(tmp_path))
        assert verdict.startswith("PROVED"), verdict


def test_every_earlier_one_is_verified_here():
    for path in EARLIER:
        words = _words(path)
        assert _recomputed(words, None) <= words["epsilon"] * (1.0 + 1.1e-5)


def test_there_is_one_of_each_rule_here_too():
    rules = {_words(path)["selection"]["rule"] for path in EARLIER}
    assert {_words(path)["selection"]["rule"] for path in HERE} == rules


@pytest.mark.parametrize("path", HERE[:2], ids=lambda path: path.stem)
def test_a_claim_one_digit_off_is_refused_either_way(path):
    words = _words(path)
    again = rebuilt(words).statement
    for share in (1.0 - 2e-5, 1.0 + 3e-5):
        with pytest.raises(verification.NotVerified, match="claim"):
            verification.check_words(words | {"epsilon": words["epsilon"] * share}, again)
    earlier = {name: value for name, value in words.items() if name != "epsilon_is"}
    for share in (1.0 - 2e-5, 1.01):
        with pytest.raises(verification.NotVerified, match="claim"):
            verification.check_words(earlier | {"epsilon": words["epsilon"] * share}, again)
