"""What tuning is worth: registered first, priced in whole, and the pages say what the rows do."""

import pathlib

import jax
import numpy as np
import pytest

from dpjax import accounting, tuning
from experiments.data_sets import word_vectors
from experiments.figures.leaderboard import laws_of_k, numbers, worth, worth_tasks
from experiments.figures.leaderboard.worth_registration import (
    CONTESTANTS,
    DELTA,
    EPSILONS,
    EXAMPLES,
    LONG,
    RATES,
    RELEASES,
    SCORE_NOISE,
    SHARE_OF_A_LOT,
    SPACE,
    SPLITS,
    STEPS,
    TASKS,
)
from experiments.figures.rows import RowFolder, distinct, read_rows, select

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "figures" / "leaderboard"
ROWS, OF_NUMBERS = (read_rows(FOLDER / f"{name}.csv") for name in ("worth", "numbers"))


def test_every_row_was_made_under_the_registration_as_it_stands():
    assert distinct(ROWS, "registration") == [worth.fingerprint()]
    made = [(row["task"], row["split"], row["epsilon"], row["contestant"]) for row in ROWS]
    asked = [
        (name, split, epsilon, contestant)
        for name, task in TASKS.items()
        for split in range(SPLITS)
        for epsilon in EPSILONS
        for contestant in CONTESTANTS
        if contestant != worth.CURVATURE
        or (epsilon == worth.PRIMARY and task.kind == "table" and task.target_range is None)
    ]
    assert sorted(made) == sorted(asked)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_contestant_pays_for_what_it_does(epsilon):
    own = select(ROWS, epsilon=epsilon)

    def noise(contestant):
        (found,) = distinct(select(own, contestant=contestant), "noise_multiplier")
        return found

    law = tuning.fitting_law(SPACE)
    for contestant in (worth.BEST_OF_K, worth.EXACT, worth.CEILING):
        run = accounting.dp_sgd(SHARE_OF_A_LOT, noise(contestant), STEPS)
        both = accounting.compose(run, accounting.gaussian(SCORE_NOISE))
        assert accounting.best_of(both, law).epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)
    for steps, contestants in (
        (LONG, (*EXAMPLES, worth.DEFAULT)),
        (STEPS, (worth.FREE_RATE, worth.CHEAP_CEILING)),
    ):
        for contestant in contestants:
            run = accounting.dp_sgd(SHARE_OF_A_LOT, noise(contestant), steps)
            assert run.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)


def test_ceilings_and_rates_are_what_they_are_called():
    for epsilon in EPSILONS:
        for name, task in TASKS.items():
            own = select(ROWS, task=name, epsilon=epsilon)
            for library, values in EXAMPLES.items():
                rates = distinct(select(own, contestant=library), "learning_rate")
                assert rates == [values[task.kind].learning_rate]
            # One rate for all splits: a ceiling that no selection by splits can pass on average.
            for ceiling in (worth.CEILING, worth.CHEAP_CEILING):
                (rate,) = distinct(select(own, contestant=ceiling), "learning_rate")
                assert np.abs(np.log(RATES / rate)).min() < 1e-4
            best, found = (
                worth.mean(own, name, one, epsilon) for one in (worth.CEILING, worth.BEST_OF_K)
            )
            low, high = (
                worth.mean(own, name, worth.BEST_OF_K, epsilon, f"{end}_tenth")
                for end in ("lowest", "highest")
            )
            assert low <= high and found <= best + 1.0


def test_releases_and_prices_are_as_registered():
    """They are made by the program of the laws of K."""
    ours = laws_of_k.RELEASES, laws_of_k.SHARE_OF_A_LOT, laws_of_k.DELTA
    assert ours == (RELEASES, SHARE_OF_A_LOT, DELTA)


def test_the_winner_has_the_best_noisy_score_of_k_draws():
    scores = np.arange(len(RATES)) * 1e3
    values = np.zeros(len(RATES))
    values[-1] = 1.0
    found = worth.released(scores, values, SCORE_NOISE, seed=1).mean()
    held = float(tuning.fitting_law(SPACE).success_probability(1 / len(RATES)))
    assert found == pytest.approx(held, abs=0.02)
    # Noise that hides every score leaves a draw by lot.
    lot = worth.released(scores, values, 1e9, seed=1).mean()
    assert lot == pytest.approx(1 / len(RATES), abs=0.02)


@pytest.mark.parametrize("name", ["insured", "loans", "deliveries"])
def test_a_record_moves_a_score_by_one_at_most(name):
    learner = worth_tasks.learner_of(name)
    _, answers = worth_tasks.split_of(name, 0).train
    outputs = max(2, len(TASKS[name].values)) if TASKS[name].target_range is None else 1
    for size in (0.0, 1.0, 1e4, np.inf, np.nan):
        given = np.full((1, outputs), size, np.float32)
        given[0, 0] = -size
        found = float(learner.score(given, answers[:1]))
        assert 0 <= found <= 1
    right = np.full((1, outputs), -20, np.float32)
    if outputs > 1:
        right[0, answers[0]] = 20
        assert float(learner.score(right, answers[:1])) == pytest.approx(1, abs=1e-3)


def test_average_precision_of_an_exact_case():
    scores = np.array([0.9, 0.8, 0.7, np.nan, 0.6])
    positive = np.array([True, False, True, True, False])
    # The places of positives are 1, 3 and, not a number, last.
    expected = (1 / 1 + 2 / 3 + 3 / 5) / 3
    assert worth_tasks.average_precision(scores, positive) == pytest.approx(expected)
    assert worth_tasks.average_precision(scores, np.zeros(5, bool)) == 0


def test_texts_are_read_by_public_rules():
    (words,) = worth_tasks.words_of(["Hit a GULL, a gull."])
    assert words[2] == words[4] > 0 and words[1] == words[3] and (words[5:] == 0).all()
    (letters,) = worth_tasks.letters_of(["Zoë"], 5)
    assert letters.tolist() == [0, 0, 26, 15, 27]


def test_the_models_forward_pass_is_that_of_a_recurrent_layer():
    generator = np.random.default_rng(3)
    kernel, back, bias = (
        generator.normal(size=size).astype(np.float32) for size in ((2, 8), (2, 8), (8,))
    )
    steps = generator.normal(size=(1, 3, 2)).astype(np.float32)
    state, cell = np.zeros(2), np.zeros(2)
    for step in steps[0]:
        gates = step @ kernel + state @ back + bias
        entering, kept, new, leaving = gates[:2], gates[2:4], gates[4:6], gates[6:]
        hard = [min(max(0.2 * x + 0.5, 0), 1) for x in (*entering, *kept, *leaving)]
        cell = np.array(hard[2:4]) * cell + np.array(hard[:2]) * np.tanh(new)
        state = np.array(hard[4:]) * np.tanh(cell)
    found = word_vectors.lstm(steps, kernel, back, bias)
    np.testing.assert_allclose(found[0, -1], state, atol=1e-5)


def test_the_decision_on_numbers_follows_from_its_rule():
    assert len(OF_NUMBERS) == len(list(numbers.settings()))
    entering = [read for read in numbers.READ[1:] if numbers.enters(OF_NUMBERS, read)]
    assert entering == []  # The default reads the encoded table alone.
    inputs = np.array([[0.5, 0, 1, 0], [0.999, 0, 0, 1]], np.float32)
    inputs = np.pad(inputs, ((0, 0), (0, 61)))  # 29 numbers, each with one more, and 7 days.
    beside = numbers.read_as(numbers.BINNED, "deliveries", inputs)
    count = len(worth_tasks.ranges_of(TASKS["deliveries"]))
    assert beside.shape == (2, inputs.shape[1] + count * numbers.BINS)
    assert beside[0, inputs.shape[1] :][: numbers.BINS].argmax() == 8
    assert beside[1, inputs.shape[1] :][: numbers.BINS].argmax() == 15
    logarithms = numbers.read_as(numbers.LOGARITHM, "deliveries", inputs)
    assert logarithms[0, inputs.shape[1]] == pytest.approx(np.log(500.5) / np.log(1000))


def test_the_quick_size_makes_rows_once(tmp_path):
    made = []
    folder = RowFolder(str(tmp_path), "quick", made.append)
    worth.train(folder, worth.Options())
    rows = folder.read("worth")
    assert distinct(rows, "contestant") and {row["contestant"] for row in rows} == {*CONTESTANTS}
    assert distinct(rows, "train") == [600] and distinct(rows, "split") == [0, 1]
    assert all(0 < row["value"] <= 100 for row in rows)
    worth.train(folder, worth.Options())
    assert len(made) == 1
    assert worth.draw(rows).axes[0].get_xlabel()


def test_the_default_is_the_librarys_on_the_whole_training_part():
    name = "deliveries"
    split = worth_tasks.split_of(name, 0)
    trainer = worth.Trainer(worth_tasks.learner_of(name), [split])
    public = trainer.default(2.0)
    (rate,) = distinct(
        select(ROWS, task=name, contestant=worth.DEFAULT, epsilon=2.0), "learning_rate"
    )
    assert public.learning_rate == pytest.approx(rate, rel=1e-5)
    # A run at noise that hides everything learns nothing; the default's own learns.
    assert trainer.of_default(0, public, 2.0) > 10
    given = {"learning_rate": [1e3], "clip_norm": [1.0], "noise_multiplier": [1e3], "momentum": [0]}
    _, values = trainer.runs(0, "sgd", STEPS, given)
    assert values[0] == 0
    assert jax.tree.leaves(public)
