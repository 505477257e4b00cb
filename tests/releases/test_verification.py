"""A release is verified as a whole: no place of its statement can be edited, no file exchanged."""

import copy
import functools
import json
import os
import re
from unittest import mock

import flat_call
import frozen
import jax
import numpy as np
import pytest
import small_tasks

from dpjax import accounting, bridges, certificate, training, tuning
from dpjax.accounting import stated_epsilon
from dpjax.releases import release, rules, verification
from dpjax.tuning import private_runs
from dpjax.tuning.problem import inspection
from dpjax.tuning.tuners import partition_models
from experiments.figures.leaderboard.extrapolation import Extrapolation
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

SPACE = tuning.Space(learning_rate=tuning.LogUniform(0.01, 1.0), clip_norm=1.0)
MIXED = tuning.Space(
    learning_rate=tuning.Uniform(0.1, 1.0),
    lot_size=tuning.Choice([8, 16.4]),
    epochs=tuning.Choice([1, 2], [0.25, 0.75]),
)
COMMON = dict(delta=1e-6, optimizer=training.sgd(), seed=5)
RUN = COMMON | dict(noise_multiplier=2.0, lot_size=10, steps=2)
PARTITIONED = RUN | dict(candidates=3, partitions=4, selection_epsilon=8.0)


def _task(**options):
    return small_tasks.linear(small_tasks.parts(**options))


def _random_repetitions(space=SPACE, task=None, **more):
    law = accounting.AtMost(accounting.Geometric(mean=2), cap=3)
    arguments = dict(repetitions=law) | RUN | more
    return flat_call.tune(tuning.RandomRepetitions, task or _task(), space, **arguments).release


def _own_optimizer():
    """As a command line gives a registered optimiser its settings."""
    made = training.sgd()
    made.description = {"name": "decayed", "weight_decay": "0.5"}
    return _random_repetitions(optimizer=made)


def _extrapolation(**more):
    law = accounting.AtMost(accounting.Geometric(mean=2), cap=3)
    arguments = dict(repetitions=law, stage_noise=(8.0, 4.0)) | RUN | more
    return flat_call.tune(Extrapolation, _task(), SPACE, **arguments).release


def _mixed():
    drawn = dict(lot_size=None, steps=None)
    return _random_repetitions(MIXED, repetitions=accounting.Poisson(2), **drawn)


def _fixed_lots():
    return _random_repetitions(task=_task(identified_by="slot"), sampling="fixed")


def _threshold_stopping():
    return flat_call.tune(
        tuning.ThresholdStopping, _task(), SPACE, threshold=0.6, halting_probability=0.4, **RUN
    ).release


def _subset_tuning(**more):
    return flat_call.tune(
        SubsetTuning,
        _task(),
        SPACE,
        probability=0.3,
        repetitions=accounting.Geometric(3),
        **RUN,
        **more,
    ).release


def _any_run(**more):
    space = bridges.Candidates(SPACE, {"optimizer": ["sgd", "adam"]})
    arguments = dict(
        base=accounting.dp_sgd(0.1, 2.0, 10),
        score=bridges.CountedScore("disjoint", 50, noise=3.0),
        repetitions=accounting.AtMost(accounting.Geometric(mean=2), cap=3),
        delta=1e-3,
        seed=5,
    )
    return bridges.tune(lambda seed, h: ({"w": np.ones(2)}, 9), space, **arguments | more).release


RELEASES = {
    "random repetitions": _random_repetitions,
    "a mixed space": _mixed,
    "an optimizer with settings of its own": _own_optimizer,
    "scored on the records trained on": lambda: _random_repetitions(score_on_training=True),
    "fixed lots": _fixed_lots,
    "calibrated, public validation": lambda: _random_repetitions(
        validation_is_public=True,
        repetitions=accounting.Fixed(1),
        noise_multiplier=None,
        epsilon=3.0,
    ),
    "threshold stopping": _threshold_stopping,
    "untuned": lambda: (
        flat_call.tune(
            tuning.Untuned, _task(), tuning.Space(learning_rate=0.5, clip_norm=1.0), **RUN
        ).release
    ),
    "exponential": lambda: (
        flat_call.tune(tuning.Exponential, _task(), SPACE, **PARTITIONED).release
    ),
    "permute_and_flip": lambda: (
        flat_call.tune(
            tuning.Exponential, _task(), SPACE, mechanism="permute_and_flip", **PARTITIONED
        ).release
    ),
    "subset tuning": _subset_tuning,
    "subset tuning, trained on all": lambda: _subset_tuning(final_on="all"),
    "doubling": lambda: (
        flat_call.tune(tuning.Doubling, _task(), SPACE, granularity=0.2, **PARTITIONED).release
    ),
    "doubling, segments": lambda: (
        flat_call.tune(
            tuning.Doubling,
            _task(),
            SPACE,
            granularity=0.2,
            variant="segments",
            hits=3,
            **PARTITIONED,
        ).release
    ),
    "extrapolation": _extrapolation,
    "extrapolation, calibrated, public validation": lambda: _extrapolation(
        noise_multiplier=None,
        epsilon=3.0,
        stage_noise=None,
        validation_is_public=True,
        repetitions=accounting.Fixed(1),
    ),
    "runs of any function": _any_run,
    "runs of any function, scored on training records": lambda: _any_run(
        score=bridges.CountedScore("training", 50)
    ),
}

FREE = (
    r"model|optimizer(\..*)?|trained_parameters\..*|trained_parameters|library_versions\..*"
    # Ranges that no cost depends on, within which the released candidate still lies.
    r"|candidates_drawn_from\.(space\.)?learning_rate\.(low|high)"
    r"|candidates_drawn_from\.labels\.optimizer\.\d"
    r"|candidates_drawn_from\.(space\.)?clip_norm\.values\.0|selection\.candidates.*"
    # Rounded where they are used.
    r"|candidates_drawn_from\.(lot_size|epochs)\.values\.\d"
    r"|selection\.(granularity|lower_bound)"
    # Numbers and words that nothing else in the release depends on.
    r"|selection\.threshold|score\.public_size"
    r"|training_records\.public_size|run_options\.epochs"
)
"""Words of which another choice is another run's true statement. The hash alone holds them."""


def test_a_release_is_found_by_its_file_its_folder_or_the_runs(tmp_path):
    RELEASES["untuned"]().save(tmp_path / "run" / "release")
    folder = tmp_path / "run" / "release"
    for path in (folder / "guarantee.json", folder, str(folder.parent), f"{folder.parent}/"):
        assert verification.verify_release(path).epsilon > 0
    (folder / "stray").write_text("x")
    for path in (folder, folder.parent):
        with pytest.raises(verification.NotVerified, match="stray lies beside it"):
            verification.verify_release(path)
    with pytest.raises(ValueError, match="holds no release: pass a run's folder, or its"):
        verification.verify_release(tmp_path)


def _edits(document):
    """Yields (place, edited copy) for every leaf, list and object of JSON values."""
    for path, value in _places(document):
        for changed in _changes(value):
            yield ".".join(map(str, path)), _with(document, path, changed)


def _changes(value):
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int):
        return [value + 1, str(value)]
    if isinstance(value, float):
        return [value * 1.001, str(value)] if value else [0.5, -1.0]
    if isinstance(value, str):
        return [value[1:], 3]
    if value is None:
        return [1, "none"]
    if isinstance(value, list):
        return [value[1:], value + value[-1:], {}] if value else [[1], {}]
    return [
        *({key: item for key, item in value.items() if key != gone} for gone in value),
        value | {"extra": 1},
    ]


def _places(value, path=()):
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from _places(item, (*path, key))
        else:
            yield (*path, key), item


def _with(document, path, changed):
    if not path:
        return changed
    edited = copy.deepcopy(document)
    inner = edited
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = changed
    return edited


def _write(folder, document, *, seal):
    """Writes a statement beside the other files of a release; with `seal`, hashes made anew."""
    if seal:
        files = {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.name != release.GUARANTEE_FILE
        }
        words = {name: value for name, value in document.items() if name != release.SEAL}
        content = release.sealed(files, words)[release.GUARANTEE_FILE]
    else:
        content = json.dumps(document).encode()
    (folder / release.GUARANTEE_FILE).write_bytes(content)


def _federation(folder, rounds):
    """A vote among three, and a model of one parameter a class, as its server writes them."""
    federated = pytest.importorskip("dpjax.federated")
    federated.save_outcome(frozen.vote(rounds), folder / "run")
    return folder / "run" / "release"


FEDERATED = frozen.VOTES


def _not_trained(plan, material, hyperparameters, keys, members, chunk_size, job):
    """In the place of `private_runs.trained_runs`: what is stated depends on no training."""
    initial = jax.device_get(material.task.initial(jax.random.key(0)))
    params = jax.tree.map(lambda leaf: np.repeat(leaf[None], len(members), axis=0), initial)
    ones = np.ones(len(members), int)
    yield members, {"params": params, "units": ones, "finite": ones > 0}


def _not_counted(material, records, lots, steps, hyperparameters, keys, **more):
    """In the place of `partition_models.partition_counts`."""
    return np.ones((len(hyperparameters["clip_norm"]), len(records.sizes)), int)


@functools.cache
def _release(name):
    return _untrained(RELEASES[name])


def _untrained(make, **arguments):
    with (
        mock.patch.object(private_runs, "trained_runs", _not_trained),
        mock.patch.object(partition_models, "partition_counts", _not_counted),
    ):
        return make(**arguments)


@pytest.fixture(params=[*RELEASES, *FEDERATED])
def folder(request, tmp_path):
    if request.param in FEDERATED:
        return _federation(tmp_path, FEDERATED[request.param])
    _release(request.param).save(tmp_path / "release")
    return tmp_path / "release"


def _verify(folder):
    """As the command line: the words of a federation are rebuilt by its own module."""
    path = os.fspath(folder / "guarantee.json")
    if b'"fingerprint"' in (folder / "guarantee.json").read_bytes():
        from dpjax.federated.flower import vote_release

        return verification.verify_release(path, vote_release.rebuilt)
    return verification.verify_release(path)


@pytest.fixture
def priced_once(monkeypatch, folder):
    """Epsilons of the untouched release are computed; any other guarantee has another number."""
    known, original = {}, accounting.Guarantee.epsilon

    def key(guarantee, delta):
        return json.dumps([guarantee.provenance, delta], sort_keys=True)

    def learnt(self, delta=0.0, method="tight"):
        if learning:
            known[key(self, delta)] = original(self, delta, method)
        return known.get(key(self, delta), 1e6)

    monkeypatch.setattr(accounting.Guarantee, "epsilon", learnt)
    learning = True
    _verify(folder)
    learning = False


def test_every_release_verifies(folder):
    found = _verify(folder)
    claim = json.loads((folder / "guarantee.json").read_text())
    assert found.epsilon == found.recomputed == claim["epsilon"] and found.delta == claim["delta"]
    assert found.relation == claim["neighbouring_relation"]
    assert found.secret == claim["randomness"]["secret"]


def test_no_edit_passes(folder):
    """Every leaf, list and object edited in every way; the hash left as it was."""
    claim = json.loads((folder / "guarantee.json").read_text())
    _all_refused(folder, list(_edits(claim)), seal=False)


def test_no_edit_passes_with_its_hash_made_anew(folder, priced_once):
    """All but the words that another run, or an earlier version, would truly state."""
    claim = json.loads((folder / "guarantee.json").read_text())
    claim.pop("sha256")
    of_earlier_versions = {
        name: value for name, value in claim.items() if name != stated_epsilon.FIELD
    }
    tried = [
        (place, edited)
        for place, edited in _edits(claim)
        if not re.fullmatch(FREE, place)
        and isinstance(edited, dict)
        and edited != of_earlier_versions
    ]
    _all_refused(folder, tried, seal=True)


def _all_refused(folder, tried, *, seal):
    passed = []
    for place, edited in tried:
        _write(folder, edited, seal=seal)
        try:
            # What warns of a stand-in's loss refuses nothing, and is most of a verification.
            with mock.patch.object(inspection, "warn_of_loss", lambda task: None):
                _verify(folder)
        except ValueError as refused:
            assert len(str(refused).splitlines()) == 1, place
        else:
            passed.append((place, edited))
    assert not passed, [place for place, _ in passed]
    assert len(tried) > 120


def _saved(tmp_path):
    folder = tmp_path / "release"
    _release("random repetitions").save(folder)
    return folder


def test_the_files_of_a_release_are_bound_to_it(tmp_path):
    folder = _saved(tmp_path)
    for name in ("model.msgpack", "hyperparameters.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b" ")
        with pytest.raises(verification.NotVerified, match=f"{name} is not the file"):
            _verify(folder)
        (folder / name).unlink()
        with pytest.raises(verification.NotVerified, match=f"{name} is not beside it"):
            _verify(folder)
        os.mkfifo(folder / name)
        with pytest.raises(verification.NotVerified, match=f"{name} is not beside it"):
            _verify(folder)
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    (folder / "losers.csv").write_text("learning_rate\n")
    with pytest.raises(verification.NotVerified, match=r"losers.csv lies beside it"):
        _verify(folder)
    (folder / "losers.csv").unlink()
    assert _verify(folder)


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"learning_rate": 2.0, "clip_norm": 1.0},
        {"learning_rate": 0.5, "clip_norm": 1.5},
        {"learning_rate": None, "clip_norm": 1.0},
        {"learning_rate": "0.5", "clip_norm": 1.0},
        {"learning_rate": [0.5], "clip_norm": 1.0},
        {"learning_rate": True, "clip_norm": 1.0},
        {"learning_rate": 0.5},
        {"learning_rate": 0.5, "clip_norm": 1.0, "winner": 3},
        {},
        [],
        7,
    ],
)
def test_only_what_the_procedure_can_release_is_released(tmp_path, hyperparameters):
    folder = _saved(tmp_path)
    claim = json.loads((folder / "guarantee.json").read_text())
    for allowed in (
        {"learning_rate": 0.01, "clip_norm": 1.0},
        {"learning_rate": None, "clip_norm": None},
    ):
        (folder / "hyperparameters.json").write_text(json.dumps(allowed))
        _write(folder, claim, seal=True)
        assert _verify(folder)
    (folder / "hyperparameters.json").write_text(json.dumps(hyperparameters))
    _write(folder, claim, seal=True)
    with pytest.raises(verification.NotVerified):
        _verify(folder)


def test_a_claim_that_is_too_small_and_one_that_is_too_large(tmp_path):
    folder = _saved(tmp_path)
    claim = json.loads((folder / "guarantee.json").read_text())
    for factor, words in ((0.999, "THE CLAIM IS TOO SMALL"), (1.001, "the claim is another one")):
        _write(folder, claim | {"epsilon": claim["epsilon"] * factor}, seal=True)
        with pytest.raises(verification.NotVerified, match=words):
            _verify(folder)


def test_an_unknown_law_cannot_be_rebuilt_and_another_version_is_named(tmp_path):
    folder = _saved(tmp_path)
    claim = json.loads((folder / "guarantee.json").read_text())
    selection = claim["selection"] | {"law_of_K": {"law": "mine", "mean": 2.0}}
    _write(folder, claim | {"selection": selection}, seal=True)
    with pytest.raises(verification.NotVerified, match="selection.law_of_K.law|unknown law 'mine'"):
        _verify(folder)
    versions = claim["library_versions"] | {"dpjax": "0.0.1"}
    _write(folder, claim | {"model": 3, "library_versions": versions}, seal=True)
    with pytest.raises(verification.NotVerified, match="dpjax 0.0.1 wrote it.*that version"):
        _verify(folder)


@pytest.mark.parametrize(
    "place, word, version",
    [(place, *one) for place, words in verification.REMOVED.items() for one in words.items()],
)
def test_a_release_of_what_was_removed_names_the_version_that_priced_it(
    tmp_path, place, word, version
):
    folder = _saved(tmp_path)
    inner = claim = json.loads((folder / "guarantee.json").read_text())
    for name in place[:-1]:
        inner = inner.setdefault(name, {})
    inner[place[-1]] = word
    _write(folder, claim, seal=True)
    wanted = f"^dpjax {version} was the last to price .*{re.escape(word)}.*: verify with that"
    with pytest.raises(verification.NotVerified, match=wanted):
        _verify(folder)
    _refused_in_one_line(folder / "guarantee.json")
    if place == ("selection", "rule"):
        assert word not in rules._REBUILDERS
        with pytest.raises(certificate.Unproved, match="beyond this program"):
            certificate.tree_of(claim)


def test_a_run_without_noise_is_not_verified(tmp_path):
    arguments = dict(noise_multiplier=0.0, not_private=True, repetitions=accounting.Fixed(1))
    _untrained(_random_repetitions, **arguments).save(tmp_path / "open")
    with pytest.raises(verification.NotVerified, match="no claim of privacy"):
        _verify(tmp_path / "open")


_GARBAGE = {
    "empty": b"",
    "binary": bytes(range(256)) * 9,
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"private":' * 200_000,
    "closed deep lists": b"[" * 50_000 + b"]" * 50_000,
    "nan": b'{"private": true, "epsilon": NaN}',
    "infinity": b'{"private": true, "epsilon": -Infinity}',
    "overflow": b'{"private": true, "epsilon": 1e999}',
    "an integer that no float holds": b'{"private": true, "epsilon": 1' + b"0" * 400 + b"}",
    "long integer": b'{"private": true, "epsilon": ' + b"9" * 100_000 + b"}",
    "a name twice": b'{"private": true, "private": false}',
    "utf-16": '{"private": true}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"private": true}',
    "lone surrogate": b'{"private": true, "sha256": {"\\ud800": "\\udfff"}}',
    "control characters": b'{"private": true, "\\u001b[2J\\n": 1}',
    "a list": b"[1, 2]",
    "a number": b"1",
    "null": b"null",
    "not said": b"{}",
    "a word for truth": b'{"private": "yes"}',
    "nothing else": b'{"private": true}',
}


@pytest.mark.parametrize("content", _GARBAGE.values(), ids=_GARBAGE)
@pytest.mark.parametrize("name", ["guarantee.json", "hyperparameters.json"])
def test_malformed_files_are_one_line(tmp_path, content, name):
    folder = _saved(tmp_path)
    claim = json.loads((folder / "guarantee.json").read_text())
    (folder / name).write_bytes(content)
    if name != "guarantee.json":
        _write(folder, claim, seal=True)
    _refused_in_one_line(folder / "guarantee.json")


def test_truncated_and_spliced_files_are_one_line(tmp_path):
    folder = _saved(tmp_path)
    path = folder / "guarantee.json"
    content, generator = path.read_bytes(), np.random.default_rng(0)
    for cut in generator.integers(0, len(content) - 1, 60):
        path.write_bytes(content[:cut])
        _refused_in_one_line(path)
    for place, byte in zip(generator.integers(0, len(content), 200), generator.bytes(200)):
        if content[place] != byte:
            path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
            if path.read_bytes().split() != content.split():
                _refused_in_one_line(path)


def test_what_is_no_file_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.symlink("nowhere", tmp_path / "dangling")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "large", "wb") as file:
        file.truncate(100 << 20)
    names = ["pipe", "dangling", "folder", "large", "missing", "nul\0", "large/below"]
    for path in (*(tmp_path / name for name in names), "/dev/zero", "/dev/null"):
        _refused_in_one_line(path)


def test_statements_that_ask_for_too_much_are_refused_at_once(tmp_path):
    """Numbers that would take hours to price, under a hash that is right."""
    folder = _saved(tmp_path)
    claim = json.loads((folder / "guarantee.json").read_text())
    options, law = claim["run_options"], claim["selection"]["law_of_K"]
    for edited in (
        claim | {"run_options": options | {"steps": 10**12}},
        claim | {"run_options": options | {"steps": 1e300}},
        claim | {"run_options": options | {"noise_multiplier": 1e-300}},
        claim | {"selection": claim["selection"] | {"law_of_K": law | {"cap": 10**30}}},
        claim | {"delta": 1e-300},
    ):
        _write(folder, edited, seal=True)
        _refused_in_one_line(folder / "guarantee.json")


def _refused_in_one_line(path):
    with pytest.raises(ValueError) as refused:
        verification.verify_release(os.fspath(path))
    words = str(refused.value)
    assert 0 < len(words) < 600 and len(words.splitlines()) == 1 and words.isprintable()


def _nudged(words, share):
    """A statement of which every number but epsilon is larger by a share of it."""
    if isinstance(words, dict):
        return {
            name: one if name == "epsilon" else _nudged(one, share) for name, one in words.items()
        }
    if isinstance(words, list):
        return [_nudged(one, share) for one in words]
    return words * (1.0 + share) if isinstance(words, float) else words


def test_a_last_digit_is_another_machines_and_no_more():
    """Each number alone, those of the mechanism and those of the parts' epsilons too."""
    claim = json.loads((frozen.FOLDER / "doubling_plain" / "guarantee.json").read_text())
    words = {name: one for name, one in claim.items() if name not in ("sha256", "context")}
    near, far = (_nudged(words, share * verification.TOLERANCE) for share in (0.4, 4.0))
    assert verification.check_words(near, words) == words["epsilon"]
    numbers = 0
    for name, value in words.items():
        if far[name] != value:
            numbers += 1
            with pytest.raises(verification.NotVerified, match=f"^{name}.* is not what its own"):
                verification.check_words(words | {name: far[name]}, words)
    assert numbers >= 4


def test_the_parts_of_an_earlier_claim_are_not_too_small_either():
    """Earlier versions priced them less tightly: a little more is allowed, less is not."""
    claim = json.loads((frozen.FOLDER / "doubling_plain" / "guarantee.json").read_text())
    of_now = {name: one for name, one in claim.items() if name not in ("sha256", "context")}
    words = {name: one for name, one in of_now.items() if name != stated_epsilon.FIELD}

    def checked(part, factor):
        parts = words["epsilon_of_parts"]
        changed = words | {"epsilon_of_parts": parts | {part: parts[part] * factor}}
        return verification.check_words(changed, of_now)

    for part in ("selection_alone", "final_training_alone"):
        assert checked(part, 1.002) == checked(part, 1.0) == claim["epsilon"]
        for factor in (0.998, 1.004):
            with pytest.raises(verification.NotVerified, match=f"epsilon_of_parts.{part}"):
                checked(part, factor)
