"""Which law of K fits a space: what is released, by law, on development tables.

`tuning.fitting_law` takes a negative binomial law of some shape whose K holds a candidate within
half a decade of the space's middle with some chance. Shape and chance were chosen here, by a rule
that was written before a row was made: of `RULES`, the pair with the largest mean, over all
problems, of the average released accuracy and of its lowest tenth; of those within 0.1 points of
it, the one of least mean.

A problem is a table, a total epsilon and a width of the law of Adam's learning rate, which is
centred at 10^-1.5. Of each noise that a law's price asks for `POOL` candidates are drawn and
trained, and `RELEASES` releases are drawn from them: K from the law, K candidates with replacement,
the best by the count of correct predictions on training records, with noise of standard deviation
10 that is priced.

  python -m experiments.figures.leaderboard.laws_of_k \\
      --out=docs/figures/leaderboard/laws_of_k.csv

Rows that the file holds are not made again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import experiments.data_sets  # noqa: F401 - registers the tables.
from dpjax import accounting, data, models, training
from dpjax.tuning.problem import fitting_law
from dpjax.tuning.problem.space import LogUniform, Space
from experiments.figures import row_program

TABLES = ("species", "digits", "nass_cds", "tv16", "flights")
PROBLEMS = ((1.0, 3.0), (2.0, 3.0), (8.0, 3.0), (2.0, 1.0))
"""Total epsilons, and decades of the learning rate's law."""
RULES = tuple(itertools.product((1.0, 2.0, 3.0), (0.8, 0.9, 0.95)))
"""Shapes of the negative binomial law (1 is geometric), and chances to hold a good candidate."""

DELTA, STEPS, SHARE_OF_A_LOT, MOST_RECORDS = 1e-5, 60, 1 / 16, 30_000
MIDDLE, POOL, RELEASES, SCORE_NOISE = 10**-1.5, 64, 4_000, 10.0
COLUMNS = (
    "table",
    "epsilon",
    "decades",
    "law",
    "mean_k",
    "noise_multiplier",
    "average",
    "lowest_tenth",
    "median",
    "highest_tenth",
)
"""Of a row: the law in words, the mean of K, a run's noise multiplier, and the test accuracy of
what is released: its average and its quantiles at 0.1, 0.5 and 0.9."""


def space_of(decades: float) -> Space:
    """Returns a law of learning rates that is so wide."""
    reach = 10 ** (decades / 2)
    return Space(learning_rate=LogUniform(MIDDLE / reach, MIDDLE * reach), clip_norm=1.0)


def laws(decades: float) -> dict[str, accounting.RepetitionLaw]:
    """Returns the laws that are compared, by their words."""
    made: dict[str, accounting.RepetitionLaw] = {
        "logarithmic, mean 4": accounting.Logarithmic(4),
        "geometric, mean 10": accounting.Geometric(10),
    }
    for shape, chance in RULES:
        made[f"shape {shape:g}, chance {chance:g}"] = fitting_law.of_shape(
            space_of(decades), shape, chance
        )
    return made


def settings(**_: Any) -> Iterator[dict[str, Any]]:
    """What is compared, as the first columns of its row."""
    for table, (epsilon, decades) in itertools.product(TABLES, PROBLEMS):
        for law in laws(decades):
            yield {"table": table, "epsilon": epsilon, "decades": decades, "law": law}


def row_of(setting: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Returns the row of a setting."""
    law = laws(setting["decades"])[setting["law"]]
    noise = noise_for(law, setting["epsilon"], STEPS, accounting.gaussian(SCORE_NOISE))
    # Noises that differ by less than 2% share their candidates.
    shared = math.exp(round(math.log(noise) / 0.04) * 0.04)
    scores, accuracies = pool(setting["table"], setting["decades"], shared)
    released = releases(law, scores, accuracies)
    low, middle, high = np.quantile(released, (0.1, 0.5, 0.9))
    return {
        **setting,
        "mean_k": float(f"{law.mean:.4g}"),
        "noise_multiplier": float(f"{noise:.4g}"),
        "average": round(float(released.mean()), 4),
        "lowest_tenth": round(float(low), 4),
        "median": round(float(middle), 4),
        "highest_tenth": round(float(high), 4),
    }


def releases(
    law: accounting.RepetitionLaw,
    scores: np.ndarray,
    accuracies: np.ndarray,
    noise: float = SCORE_NOISE,
    seed: int | Sequence[int] = 27,
) -> np.ndarray:
    """Draws K and K candidates of a pool again and again; returns the winners' accuracies.

    `noise` is the standard deviation of what is added to a score.
    """
    generator = np.random.default_rng(seed)
    found = np.empty(RELEASES)
    for place, number in enumerate(law.sample(RELEASES, source=generator)):
        drawn = generator.integers(len(scores), size=number)
        noisy = scores[drawn] + noise * generator.normal(size=number)
        found[place] = accuracies[drawn[noisy.argmax()]]
    return found


def noise_for(
    law: accounting.RepetitionLaw, epsilon: float, steps: int, *scores: accounting.Guarantee
) -> float:
    """Returns the noise multiplier at which the best of K runs, with `scores`, costs epsilon."""

    def price(noise: float) -> accounting.Guarantee:
        run = accounting.dp_sgd(
            sampling_probability=SHARE_OF_A_LOT, noise_multiplier=noise, steps=steps
        )
        return accounting.best_of(accounting.compose(run, *scores) if scores else run, law)

    return accounting.calibrate(price, epsilon=epsilon, delta=DELTA)


def poisson_lots(number: int, share: float, steps: int) -> training.PoissonLots:
    """Returns lots of a share of so many records; a place is missing once in 10^8 runs."""
    return training.PoissonLots(number, share, accounting.lot_capacity(number, share, steps, 1e-8))


@functools.lru_cache(maxsize=1)
def records_of(table: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns inputs and labels of training and test records, shuffled, and the classes."""
    found = data.load(table)
    assert found.test is not None
    parts = []
    for part, most in ((found.train, MOST_RECORDS), (found.test, 10_000)):
        order = np.random.default_rng(27).permutation(len(part.labels))[:most]
        inputs = np.asarray(part.inputs, np.float32).reshape(len(part.labels), -1)
        parts += [inputs[order], np.asarray(part.labels, np.int32)[order]]
    return (*parts, found.classes)


@functools.lru_cache(maxsize=1)
def program_of(table: str, steps: int) -> tuple[Any, Any]:
    """Returns a table's model, and how one candidate is trained for so many steps."""
    inputs, _, _, _, classes = records_of(table)
    number = len(inputs)
    model = models.MLP((64,), classes) if number >= 10_000 else models.LogisticRegression(classes)

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        return models.cross_entropy(model.apply(params, example[0][None])[0], example[1])

    config = training.TrainConfig(
        loss_fn=loss,
        lots=poisson_lots(number, SHARE_OF_A_LOT, steps),
        steps=steps,
        expected_lot_size=number * SHARE_OF_A_LOT,
        optimizer=training.adam(),
    )
    train = training.make_train(config)

    def run(key: jax.Array, given: dict[str, jax.Array], rows: Any) -> Any:
        return train(key, given, model.init(jax.random.fold_in(key, 1), rows[0][:1]), rows)

    return model, run


def trained(
    table: str, steps: int, given: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Trains candidates; returns correct predictions on training records and test accuracies."""
    inputs, labels, test_inputs, test_labels, _ = records_of(table)
    model, run = program_of(table, steps)
    number = len(given["learning_rate"])
    scores, accuracies = np.zeros(number), np.zeros(number)
    keys = training.candidate_keys(number, seed=27)
    for places, outcomes in training.sweep(run, keys, given, (inputs, labels)):
        for row, place in enumerate(places):
            params = jax.tree.map(lambda leaf, row=row: leaf[row], outcomes)
            scores[place] = (model.apply(params, inputs).argmax(-1) == labels).sum()
            accuracies[place] = (model.apply(params, test_inputs).argmax(-1) == test_labels).mean()
    return scores, accuracies


@functools.lru_cache(maxsize=32)
def pool(table: str, decades: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Draws and trains candidates of one noise multiplier, as `trained` returns them."""
    drawn = space_of(decades).sample(POOL, np.random.default_rng(27))
    given = {name: values.astype(np.float32) for name, values in drawn.items()}
    return trained(table, STEPS, {**given, "noise_multiplier": np.full(POOL, noise, np.float32)})


def chosen(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns shape and chance by the rule above."""

    def of(rule: tuple[float, float]) -> tuple[float, float]:
        mine = [row for row in rows if row["law"] == f"shape {rule[0]:g}, chance {rule[1]:g}"]
        worth = [(row["average"] + row["lowest_tenth"]) / 2 for row in mine]
        return float(np.mean(worth)), float(np.mean([row["mean_k"] for row in mine]))

    found = {rule: of(rule) for rule in RULES}
    best = max(worth for worth, _ in found.values())
    near = [rule for rule, (worth, _) in found.items() if worth >= best - 0.001]
    return min(near, key=lambda rule: found[rule][1])


def main() -> None:
    """Makes the rows, and prints what the rule chooses."""
    _, rows = row_program.run(COLUMNS, settings, row_of)
    print("shape and chance:", chosen(rows))


if __name__ == "__main__":
    main()
