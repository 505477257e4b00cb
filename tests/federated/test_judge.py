"""A vote by clients' own functions: losses decide, and nobody can tell who has none."""

import json
import re

import flower_messages
import numpy as np
import pytest
from flower_messages import Wire

from dpjax import federated
from dpjax.federated import local_training, voting
from dpjax.federated.flower import storage, vote_release
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.messages import SumAborted
from dpjax.federated.flower.server import make_server_app
from dpjax.releases import statement_page, verification

CANDIDATES = [
    {"max_depth": None},
    {"max_depth": 3, "shape": [1, {"é": [True, 0.5]}]},
    {"optimizer": "adam"},
    {},
]
RULES = {
    "clients": 5,
    "judge": "by table",
    "candidates": json.dumps(CANDIDATES),
    "votes": 1,
    "epsilon": 45.0,
    "missing-fraction": 0.2,
}
"""At this epsilon a count is other than its votes once in 10^9 runs."""
NODES = [{"partition-id": number} for number in range(5)]


def _number(context):
    return context.node_config["partition-id"]


def _vote(judge, load=_number, nodes=NODES, **options):
    app = federated.make_client_app(load, RULES | options.pop("changes", {}), judge=judge)
    return federated.run_in_process(app, RULES | options.pop("server", {}), nodes, **options)


def test_every_clients_losses_decide_its_vote():
    """Clients 0 and 1 prefer the first candidate, the others the third."""
    table = np.array([[1, 2, 3, 4]] * 2 + [[3, 2, -1.5, 4]] * 3)
    asked = []

    def judge(records, candidates):
        asked.append((records, json.dumps(candidates)))
        candidates[2]["optimizer"] = candidates.pop()  # A judge's own copies.
        return table[records].tolist()

    outcome, losses = _vote(judge)
    assert outcome.winner == 2
    assert outcome.noisy_counts.tolist() == [2, 0, 3, 0]
    np.testing.assert_array_equal(losses, table)
    assert asked == [(number, json.dumps(CANDIDATES)) for number in range(5)]
    assert outcome.election.candidates == tuple(CANDIDATES)


def test_the_app_names_a_ledger_where_the_nodes_owner_does_not(tmp_path):
    """As in Flower's own simulation, whose nodes know their number alone."""
    owned = str(tmp_path / "owned")
    nodes = [
        {"partition-id": number, "ledger": owned if number == 4 else ""} for number in range(5)
    ]

    def losses(records, candidates):
        return [1.0, 2.0, 3.0, 4.0]

    app = federated.make_client_app(
        _number, RULES, judge=losses, ledger=lambda context: str(tmp_path / str(_number(context)))
    )
    outcome, _ = federated.run_in_process(app, RULES, nodes)
    assert outcome.winner == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "owned"]
    for path in tmp_path.iterdir():
        votes = [line for line in storage.entries(str(path)) if line["what"] == "vote"]
        assert [line["epsilon"] for line in votes] == pytest.approx(
            [outcome.election.total_epsilon]
        )
    with pytest.raises(ValueError, match="ledger must be a function, of a node's context"):
        federated.make_client_app(_number, RULES, judge=losses, ledger="votes")


@pytest.mark.parametrize("failed", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_ranks_last(failed):
    outcome, losses = _vote(lambda records, candidates: [failed, 1e300, failed, 2.0])
    assert outcome.noisy_counts.tolist() == [0, 0, 0, 5]
    assert np.isnan(losses[:, [0, 2]]).all()


def _raising(error):
    def judge(records, candidates):
        raise error

    return judge


UNABLE = {
    "no loss is finite": lambda records, candidates: [np.nan] * 9 + [np.inf],
    "ZeroDivisionError": lambda records, candidates: [1 / 0] * 10,
    "leaves": _raising(SystemExit("patient 4711")),
    "panics": _raising(type("Panic", (BaseException,), {})("patient 4711")),
    "a set-up that is said to be wrong": _raising(storage.SetupError("patient 4711")),
    "too few": lambda records, candidates: [0.0] * 9,
    "too many": lambda records, candidates: [0.0] * 11,
    "one for all": lambda records, candidates: 0.5,
    "nothing": lambda records, candidates: None,
    "texts": lambda records, candidates: ["0.5"] * 10,
    "a table": lambda records, candidates: [[0.5] * 10],
}


@pytest.mark.parametrize("judge", UNABLE.values(), ids=UNABLE)
def test_whoever_cannot_judge_votes_by_lot_and_not_for_the_first(judge, caplog):
    """15 ballots: 12 or more for one of ten candidates once in 10^8."""
    ten = {"candidates": json.dumps([{"rate": number} for number in range(10)])}
    counts = np.zeros(10)
    for _ in range(3):
        outcome, losses = _vote(judge, changes=ten, server=ten)
        assert (outcome.survivors, np.isnan(losses).all()) == (5, True)
        counts += outcome.noisy_counts
    assert counts.sum() == 15 and counts.max() < 12
    assert "drawn by lot" in caplog.text


def test_votes_that_no_loss_decides_are_drawn_among_the_failed():
    """Of three votes one has a finite loss; the others are as likely for any of four."""
    rules = {"votes": 3, "candidates": json.dumps([{"rate": number} for number in range(5)])}
    counts = np.zeros(5)
    for _ in range(8):
        outcome, _ = _vote(
            lambda records, candidates: [np.nan] * 3 + [7.0, np.inf], changes=rules, server=rules
        )
        counts += outcome.noisy_counts
    # Of 40 ballots each other candidate is on 20 on average: beyond 4 to 36 once in 10^7 runs.
    assert abs(counts[3] - 40) <= 2
    drawn = counts[[0, 1, 2, 4]]
    assert drawn.min() >= 4 and drawn.max() <= 36


def test_the_server_sees_nothing_different_and_a_judges_words_stay_with_the_client(caplog):
    def forms(judge):
        wire = Wire()
        outcome, _ = _vote(judge, observe=wire.sent.append)
        assert outcome.survivors == 5
        # Four digits alone stand in the 14,000 characters of encrypted shares once in 1,200 runs.
        assert all(b"patient 4711" not in traffic.content for traffic in wire.sent)
        return wire.forms()

    def failing(records, candidates):
        if records < 2:
            raise OSError("patient 4711: the disk is full")
        return [1.0, 2.0, 3.0, 4.0]

    usual = forms(lambda records, candidates: [3.0, 2.0, 1.0, 4.0])
    assert not any(error for *_, error, _ in usual)
    assert forms(failing) == usual
    assert "4711" in caplog.text


def test_a_vote_by_a_judge_is_charged_like_any(tmp_path):
    nodes = [
        node | {"ledger": str(tmp_path / str(number)), "max-epsilon": 50.0, "max-delta": 1e-4}
        for number, node in enumerate(NODES)
    ]
    outcome, _ = _vote(lambda records, candidates: [4.0, 3.0, 2.0, 1.0], nodes=nodes)
    for node in nodes:
        vote, unmasking = storage.entries(node["ledger"])
        assert (vote["epsilon"], vote["delta"], vote["what"]) == (45.0, 1e-5, "vote")
        assert vote["fingerprint"] == outcome.election.fingerprint
        assert unmasking["epsilon"] == 0.0
    with pytest.raises(SumAborted, match="it is 50 and 45 were spent before"):
        _vote(lambda records, candidates: [4.0, 3.0, 2.0, 1.0], nodes=nodes)


def test_a_release_names_the_judge_and_any_candidate_and_verifies(tmp_path):
    outcome, _ = _vote(lambda records, candidates: [2.0, 1.0, 3.0, 4.0])
    federated.save_outcome(outcome, tmp_path / "run")
    release = tmp_path / "run" / "release"
    assert json.loads((release / "hyperparameters.json").read_text()) == CANDIDATES[1]
    claim = json.loads((release / "guarantee.json").read_text())
    assert claim["judge"] == "by table" and "local_training" not in claim
    assert [json.loads(words) for words in claim["candidates"]] == CANDIDATES
    found = verification.verify_release(release, vote_release.rebuilt)
    assert found.epsilon == claim["epsilon"] <= 45.0
    # Losses change no price: the same rules without a judge cost the same.
    again = outcome.election.settings.plan().guarantee
    assert found.epsilon == pytest.approx(again.epsilon(1e-5), rel=1e-5)
    assert statement_page.write(release)
    # A function of winner and rules: losses, and who has none, do not show.
    other, _ = _vote(lambda records, candidates: [2.0, 0.5, 3.0, 10 / (4 - records)])
    assert other.winner == outcome.winner
    federated.save_outcome(other, tmp_path / "other")
    for path in release.iterdir():
        assert (tmp_path / "other" / "release" / path.name).read_bytes() == path.read_bytes()


def test_the_default_judge_is_training_the_named_model(federation):
    """Ballots follow from the public seeds: of every client, those of `train_clients`."""
    candidates = [
        {"learning_rate": float(rate), "decay": 1.0, "momentum": momentum}
        for rate in np.geomspace(1e-3, 1.0, 12)
        for momentum in (0.0, 0.9)
    ]
    # So little noise that the counts are the votes.
    changes = {"votes": 5, "epsilon": 200.0, "rounds": 0, "model": "mlp", "widths": "8"}
    config = federation.config | changes | {"candidates": json.dumps(candidates)}
    outcome = federation.run(config=config)
    training = outcome.election.training
    scores = local_training.train_clients(
        training.module(),
        [federation.records(number) for number in range(5)],
        candidates,
        epochs=training.epochs,
        batch_size=training.batch_size,
        test_fraction=training.test_fraction,
        seed=training.seed,
    )
    ballots = voting.ballots(scores.losses, scores.accuracies, 5)
    assert len(np.unique(ballots, axis=0)) > 1
    assert outcome.noisy_counts.tolist() == ballots.sum(axis=0).tolist()


# ---- what is refused, before a client is asked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 2}, "judge='by table' has no model to train: drop rounds"),
        ({"model": "mlp", "epochs": 5}, "no model to train: drop epochs, model"),
        ({"total-epsilon": 30.0, "input-shape": "3"}, "drop input-shape, total-epsilon"),
        ({"judge": 3}, "judge must be a str"),
        ({"judge": ""}, "pass one of artifact"),
        ({"candidates": "[1, 2]"}, "candidate 0 must be a mapping"),
        ({"candidates": '"abc"'}, "pass one of artifact"),
        ({"candidates": "[]"}, "pass one of artifact"),
        ({"candidates": "artifact"}, "pass one of artifact"),
        ({"candidates": "[" * 100_000}, "pass one of artifact"),
        ({"candidates": '[{"a": NaN}, {"a": 1}]'}, "candidate 0 is {'a': nan}: pass what JSON"),
        ({"candidates": '[{"a": 1}, {"a": [1e999]}]'}, "candidate 1 is"),
        ({"votes": 4}, "fewer than there are candidates"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused_before_a_client_is_asked(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_server_app(RULES | changes)(None, flower_messages.context())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [(1, 2), np.float32(0.5), np.nan, {1: 2}, {"a", "b"}, b"a"])
def test_candidates_that_json_would_change_are_refused(value):
    settings = voting.VoteSettings(clients=5, candidates=2, votes=1)
    with pytest.raises(ValueError, match="candidate 1 is .*: pass what JSON holds unchanged"):
        Election(settings, ({"a": 1}, {"a": value}), judge="ridge")
    with pytest.raises(ValueError, match="judge='ridge' has no model to train"):
        training = federated.LocalTraining(epochs=1)
        Election(settings, ({"a": 1}, {"a": 2}), training, judge="ridge")


def test_a_judge_and_its_name_go_together():
    judge = lambda records, candidates: [1.0] * len(candidates)  # noqa: E731
    with pytest.raises(SumAborted, match="judge='by table' and this client's app has none"):
        _vote(None)
    plain = {"judge": "", "candidates": "artifact"}
    with pytest.raises(SumAborted, match="judge='' and this client's app has one"):
        _vote(judge, changes=plain, server=plain)
    with pytest.raises(ValueError, match="judge must be a function"):
        federated.make_client_app(_number, judge="ridge")
    with pytest.raises(ValueError, match="5 of 5 clients hold other candidates or settings"):
        _vote(judge, changes={"judge": "by another table"})


def test_fingerprint_tells_any_difference_of_candidates_and_judge():
    elections = [
        Election.from_config(RULES | {"candidates": json.dumps([{"depth": value}, {}])})
        for value in (3, 3.0, True, "3", [3], None)
    ]
    elections += [Election.from_config(RULES | {"judge": "another"}), Election.from_config(RULES)]
    assert len({election.fingerprint for election in elections}) == len(elections)
    for election in elections:
        again = Election.from_config(election.config())
        assert again == election and again.fingerprint == election.fingerprint


# ---- the guide

EXAMPLES = {"numpy": 0, "sklearn": 1, "torch": 2}


@pytest.mark.parametrize("library", EXAMPLES)
def test_an_example_of_the_guide_runs_as_written(library, request, tmp_path, monkeypatch):
    pytest.importorskip(library)
    text = (request.config.rootpath / "docs" / "federated.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == len(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    known = {}
    for example in dict.fromkeys([examples[0], examples[EXAMPLES[library]]]):
        exec(compile(example, "docs/federated.md", "exec"), known)
    assert known["outcome"].survivors == 20
    assert np.isfinite(known["losses"]).all()
    mean = known["losses"].mean(axis=0)
    # The noise is of one vote: the winner is not much worse than the best.
    assert mean[known["outcome"].winner] < 1.2 * mean.min()
    if library == "numpy":
        assert (tmp_path / "vote" / "release" / "guarantee.json").exists()
