"""Recipes: candidates that differ in features, model and optimiser, each at its own public rate.

A candidate draws a recipe, then a factor on the learning rate that the recipe's public rule gives
(`public_defaults`). Lots, steps and noise are those of all candidates, so a run costs the same
whatever it draws, and the selection's guarantee is that of any other `Space`. The runner trains the
candidates of one recipe together, in one compiled program, each from its own key.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks, models, training
from dpjax.training.clipping.clip_rules import rule_from_dict
from dpjax.tuning import release_files
from dpjax.tuning.problem import public_defaults as rules
from dpjax.tuning.problem.log_normal import LogNormal
from dpjax.tuning.problem.problem import Problem, RunOptions
from dpjax.tuning.problem.space import Law, Space, as_law, named_law
from dpjax.tuning.problem.stated_fields import is_number, text, whole
from dpjax.tuning.problem.task import Task

RECIPE, FACTOR, RATE = "recipe", "rate_factor", "learning_rate"
"""Hyperparameters: what a space of recipes draws, and what of a run the factor multiplies."""

RECIPES_FROM = 20_000
"""Training records below which the choice costs more than it gives (docs/howto/recipes.md)."""

SAME_RATE = 4e-4
"""Relative: rates follow from a search for noise, which ends as far from another version's."""

_FEATURES: dict[str, type[Features]] = {}


class Features:
    """A fixed map of inputs (batch, ...), in JAX: a frozen dataclass of public numbers.

    Subclasses are named by `named_features` and have `__call__`, which reads its inputs alone.
    """

    name: ClassVar[str]

    def __call__(self, inputs: jax.Array) -> jax.Array:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Returns name and numbers as JSON-able data; `features_from` rebuilds the map."""
        return json.loads(json.dumps({"name": self.name} | vars(self)))


def named_features(name: str) -> Callable[[type[Features]], type[Features]]:
    """Registers a feature map under the name that releases state it by."""

    def register(cls: type[Features]) -> type[Features]:
        if name in _FEATURES:
            raise ValueError(f"features named {name!r} are there already: choose another name")
        _FEATURES[name], cls.name = cls, name
        return cls

    return register


def features_from(description: Mapping[str, Any] | None) -> Features | None:
    """Rebuilds a feature map from its description, None from None."""
    if description is None:
        return None
    name, numbers = description["name"], dict(description)
    if name not in _FEATURES:
        raise ValueError(f"the features {name!r} are not known here: import what defines them")
    del numbers["name"]
    return _FEATURES[name](**numbers)


def _described(features: Features | None) -> dict[str, Any] | None:
    return None if features is None else features.describe()


@named_features("bins")
@dataclasses.dataclass(frozen=True)
class Bins(Features):
    """The inputs, and beside them in which of `number` equal bins of [0, 1] some `columns` are.

    Columns are places among the flattened inputs, such as those of a schema's numbers.
    """

    columns: Sequence[int]
    number: int = 16

    def __post_init__(self) -> None:
        columns = checks.listed("columns", self.columns, "whole numbers")
        columns = [checks.whole("each of the columns", one, 0) for one in columns]
        if not columns or len(set(columns)) < len(columns):
            raise ValueError(f"columns {columns}: pass one column or more, each once")
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "number", checks.whole("number", self.number, 2))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        flat = jnp.reshape(inputs, (len(inputs), -1))
        if max(self.columns) >= flat.shape[1]:
            raise ValueError(
                f"bins of column {max(self.columns)}, and records have {flat.shape[1]}: pass "
                "columns that they have"
            )
        places = jnp.floor(flat[:, np.asarray(self.columns)] * self.number)
        places = jnp.clip(places, 0, self.number - 1).astype(jnp.int32)
        one_hot = jax.nn.one_hot(places, self.number, dtype=flat.dtype)
        return jnp.concatenate([flat, one_hot.reshape(len(flat), -1)], axis=1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One way to train: fixed features, a model and an optimiser at its public default.

    Example:
      >>> from dpjax import models, tuning
      >>> tuning.Recipe("wide net", models.MLP((256,), 2), factor=0.5).name
      'wide net'

    Attributes:
      name: one line without "/", in the release.
      model: as in `classification`; None: the task's own.
      features: a fixed map that the model is given the inputs through, such as
        `recipes.Bins((0, 2))`; None: the inputs as they are.
      optimizer: "momentum" or "adam_bc", whose public default gives rate, clipping and average.
      factor: public, above 0: times the default's rate.
    """

    name: str
    model: Any = None
    features: Features | None = None
    optimizer: str = "momentum"
    factor: float = 1.0

    def __post_init__(self) -> None:
        name = checks.text("name", self.name)
        if not name.strip() or not name.isprintable() or "/" in name:
            raise ValueError(f"name {name!r}: pass one line of text without '/'")
        if self.features is not None:
            checks.instance("features", self.features, Features, "recipes.Bins((0, 2))")
        if checks.text("optimizer", self.optimizer) not in rules.RULES:
            names = " or ".join(rules.RULES)
            raise ValueError(f"optimizer {self.optimizer!r} has no public default: pass {names}")
        factor = checks.positive("factor", self.factor)
        object.__setattr__(self, "factor", checks.kept(self.factor, factor))

    def of(self, task: Task) -> Task:
        """Returns a task with the model and features of this recipe in the place of its own."""
        if self.model is None and self.features is None:
            return task
        if task.of_model is None:
            raise ValueError(
                f"recipe {self.name!r} has a model or features of its own, and the task is of "
                "plain functions: make it by tuning.classification or another ready task"
            )
        return task.of_model(task, self.model, self.features)


@dataclasses.dataclass(frozen=True)
class Recipes:
    """What candidates are drawn from in the place of a `Space`: a recipe each, and a rate.

    `tuning.tune` takes it for tuners that release one of many private runs, and for `Untuned` where
    it has one recipe and `factors` is a number. All recipes are equally likely.

    Formal guarantees:
      A candidate's cost is that of any run with the same lots, steps and noise, whatever its
      recipe: the guarantee is, number for number, that of the same tuner over a `Space`. Recipes
      and factors are drawn independently, with replacement, from laws that are fixed beforehand.

    Example:
      >>> from dpjax import accounting, data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> mine = tuning.Recipes([
      ...     tuning.Recipe("linear"), tuning.Recipe("net", models.MLP((32,), 10)),
      ... ])
      >>> tuner = tuning.RandomRepetitions(accounting.Fixed(2))
      >>> result = tuning.tune(task, mine, tuner, epsilon=4, run=tuning.RunOptions(steps=9))
      >>> result.release.hyperparameters["recipe"] in ("linear", "net")
      True

    Attributes:
      recipes: one or more, of different names.
      factors: public law, or number, of what a candidate's learning rate is multiplied by.
    """

    recipes: Sequence[Recipe]
    factors: Law | float = LogNormal(1.0, 2.5)

    def __post_init__(self) -> None:
        given = checks.listed("recipes", self.recipes, "tuning.Recipe")
        for one in given:
            checks.instance("each of the recipes", one, Recipe, "tuning.Recipe('linear')")
        if not given or len({one.name for one in given}) < len(given):
            raise ValueError("recipes: pass one or more, each with a name of its own")
        law = as_law(FACTOR, self.factors)
        if not law.lowest > 0:
            raise ValueError("factors must be above 0: pass a law of positive numbers")
        object.__setattr__(self, "recipes", tuple(given))
        object.__setattr__(self, "factors", law)

    @classmethod
    def for_tables(cls, classes: int, numbers: Sequence[int] = ()) -> Recipes:
        """Returns those of `--recipes=table`; bins are of `numbers`, columns in [0, 1], if any."""
        net = models.MLP((64,), classes)
        bins = [Recipe("bins and net 64", net, Bins(numbers), factor=2.0)] if numbers else []
        return cls(
            [
                Recipe("linear", models.LogisticRegression(classes)),
                Recipe("net 64", net, factor=2.0),
                Recipe("net 128-64", models.MLP(rules.WIDTHS, classes)),
                *bins,
            ]
        )

    @classmethod
    def for_images(cls, classes: int) -> Recipes:
        """Returns those of `--recipes=image`, for images with or without an axis of channels."""
        return cls(
            [
                Recipe("linear", models.LogisticRegression(classes)),
                Recipe("net 128-64", models.MLP(rules.WIDTHS, classes)),
                Recipe("convolutions", models.ConvPoolNet(classes, channels=(16, 32), width=64)),
            ]
        )

    def named(self, name: Any) -> Recipe:
        """Returns the recipe of this name; the first for None, which an untrained release has."""
        found = {None: self.recipes[0]} | {one.name: one for one in self.recipes}
        if name not in found:
            names = ", ".join(one.name for one in self.recipes)
            raise ValueError(f"there is no recipe {name!r}: pass one of {names}")
        return found[name]

    def problem(
        self,
        task: Task,
        run: RunOptions,
        epsilon: float | None,
        delta: float,
        validation_is_public: bool,
    ) -> Problem:
        """Returns the problem of a task whose candidates have these recipes; as `Problem.of`."""
        if epsilon is None or run.noise_multiplier is not None:
            raise ValueError("the recipes' rates go by epsilon: pass epsilon, no noise_multiplier")
        if run.epochs is not None:
            raise ValueError("the recipes' rates are for steps, not epochs: pass steps")
        asked = epsilon, delta, validation_is_public
        # Fixed before any recipe is looked at: the one price is of these lots and steps.
        shape = rules.shape_of(task.train.public_size, run.lot_size, run.steps)
        run = dataclasses.replace(run, lot_size=shape.lot_size, steps=shape.steps)
        problems, stated = [], []
        for recipe in self.recipes:
            own = recipe.of(task)
            numbers = rules.numbers_of(own)
            public = own.train.public_size, numbers, epsilon, delta, run
            default = _default(recipe.optimizer, *public, recipe.factor)
            clipping = run.clipping or default.clipping
            one = Problem.of(
                default.averaged(own),
                default.space(),
                dataclasses.replace(run, clipping=clipping),
                training.OPTIMIZERS[recipe.optimizer].make(),
                *asked,
            )
            problems.append(one)
            stated.append(
                {name: one.description()[name] for name in ("model", "optimizer")}
                | {"name": recipe.name, "features": _described(recipe.features)}
                | {"clipping": clipping.describe(), "rule": recipe.optimizer}
                | {"inputs": numbers[0], "outputs": numbers[1]}
                | {"factor": recipe.factor, RATE: default.learning_rate}
            )
        law = OneOfRecipes(stated, epsilon)
        made = Problem.of(
            _of_all(task, dict(zip(law.labels, problems))),
            Space({RECIPE: law, FACTOR: self.factors}),
            run,
            None,
            *asked,
        )
        names = [
            f"{name}/{trained}"
            for name, one in zip(law.labels, problems)
            for trained in one.description()["trained_parameters"]
        ]
        said = law.description(names, problems[0].description()["training_records"])
        # No optimiser: nothing can be trained as the whole, which is none of the recipes.
        return dataclasses.replace(
            made, optimizer=None, recipes=tuple(problems), stated_training=said
        )

    def served(self, folder: str | os.PathLike[str]) -> Callable[[Any], jax.Array]:
        """Returns the function inputs (n, ...) -> scores (n, classes) of a release of these.

        A release of other features, or of features with other numbers, is refused, and one whose
        hashes do not fit its files.
        """
        claim = release_files.sealed_claim(folder)
        chosen = release_files.read_json(os.path.join(folder, "hyperparameters.json"))
        recipe = self.named(chosen.get(RECIPE))
        law = claim["candidates_drawn_from"].get(RECIPE, {})
        stated = {one["name"]: one["features"] for one in law.get("recipes", [])}
        if recipe.model is None or stated.get(recipe.name, "") != _described(recipe.features):
            raise ValueError(
                f"{os.fspath(folder)} is not a release of the recipe {recipe.name!r} with this "
                "model and these features: pass the recipes that it states, each with its model"
            )
        with open(os.path.join(folder, "model.msgpack"), "rb") as held:
            params = flax.serialization.msgpack_restore(held.read())

        def scores(inputs: Any) -> jax.Array:
            rows = jnp.asarray(inputs)
            rows = rows if recipe.features is None else recipe.features(rows)
            return models.functional(recipe.model, rows[0]).apply(params, rows)

        return scores


def _default(
    rule: str,
    records: int,
    numbers: tuple[int, int | None],
    epsilon: float,
    delta: float,
    run: RunOptions,
    factor: float,
) -> rules.PublicDefaults | rules.AdamBcDefaults:
    """Returns what a rule gives, from public numbers alone: to train by, and to verify by."""
    inputs, outputs = numbers
    asked = {"lot_size": run.lot_size, "steps": run.steps}
    found: rules.PublicDefaults | rules.AdamBcDefaults
    if rule == "momentum":
        found = rules.public_defaults(records, inputs, epsilon, delta, outputs=outputs, **asked)
    elif rule == "adam_bc":
        found = rules.adam_bc_defaults(records, inputs, epsilon, delta, **asked)
    else:
        raise ValueError(f"the rule {rule!r} is not one of {', '.join(rules.RULES)}")
    return dataclasses.replace(found, learning_rate=factor * found.learning_rate)


@named_law("recipe")
@dataclasses.dataclass(frozen=True)
class OneOfRecipes(Law):
    """One of several recipes, equally likely, as a release states them; drawn by its place."""

    recipes: Sequence[Mapping[str, Any]]
    rates_are_for_epsilon: float

    whole = True

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(one["name"] for one in self.recipes)

    @property
    def values(self) -> Sequence[float]:  # type: ignore[override]  # Of laws nobody assigns.
        return range(len(self.recipes))

    @property
    def weights(self) -> tuple[float, ...]:
        return (1.0 / len(self.recipes),) * len(self.recipes)

    @property
    def lowest(self) -> float:
        return 0.0

    @property
    def highest(self) -> float:
        return len(self.recipes) - 1.0

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        return np.minimum(np.floor(np.asarray(unit) * len(self.recipes)), self.highest)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        return (np.clip(np.round(values), 0, self.highest) + 0.5) / len(self.recipes)

    def text(self, word: str | None = None) -> str:
        return f"one of the recipes {', '.join(self.labels)}"

    @classmethod
    def read(cls, arguments: str) -> dict[str, Any]:
        raise ValueError  # Recipes are no numbers: pass tuning.Recipes.

    def description(self, trained: Sequence[str], records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of `statements.written` that say what was trained."""
        return {
            "model": self.text(),
            "optimizer": {"name": "that of the recipe"},
            "trained_parameters": list(trained),
            "training_records": dict(records),
        }


def _of_all(task: Task, problems: Mapping[str, Problem]) -> Task:
    """Returns the task whose parameters are those of every recipe, by name; it has no loss.

    The arrays that are kept of a candidate then have one shape, whatever its recipe: those of the
    other recipes are zeros.
    """
    tasks = {name: one.task for name, one in problems.items() if one.task is not None}

    def initial(key: jax.Array) -> dict[str, Any]:
        return {name: one.initial(key) for name, one in tasks.items()}

    def loss(*_: Any) -> jax.Array:
        raise ValueError("candidates of several recipes have no one loss: train each as its own")

    return dataclasses.replace(
        task, initial=initial, loss=loss, trainable=None, average=None, loss_reads=(), of_model=None
    )


def names_of(problem: Problem) -> Sequence[str]:
    """Returns the names of a problem's recipes, in order."""
    found = problem.space.parameters[RECIPE].labels
    assert found is not None  # They are names of recipes.
    return found


def given_to_runs(recipe: Problem, drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns what a recipe's runs are given, name -> (candidates,), of what was drawn."""
    laws, factors = recipe.space.parameters.items(), drawn[FACTOR]
    given = {name: np.full(len(factors), law.lowest) for name, law in laws}
    return given | {RATE: given[RATE] * factors}


def rebuilt(problem: Problem) -> Problem:
    """Returns a statement's problem with its recipes made again from the rules that they name.

    Features are rebuilt from their numbers, rates from the public numbers. A ValueError, KeyError
    or TypeError for recipes that are none.
    """
    law, said = problem.space.parameters.get(RECIPE), problem.stated_training
    if not isinstance(law, OneOfRecipes):
        return problem
    assert said is not None  # It is a statement's.
    made = [_rebuilt(one, law.rates_are_for_epsilon, problem) for one in law.recipes]
    trained = said["trained_parameters"]
    if len({*law.labels}) < len(made) or {name.split("/")[0] for name in trained} != {*law.labels}:
        raise ValueError("the recipes' names are not those of the trained parameters")
    again = OneOfRecipes(made, law.rates_are_for_epsilon)
    space = Space({RECIPE: again, FACTOR: problem.space.parameters[FACTOR]})
    said = again.description(trained, said["training_records"])
    return dataclasses.replace(problem, space=space, stated_training=said)


def _rebuilt(one: Mapping[str, Any], epsilon: float, problem: Problem) -> dict[str, Any]:
    """Returns a recipe as it is stated, from its own words and a statement's public numbers."""
    outputs = one["outputs"]
    numbers = whole(one["inputs"]), None if outputs is None else whole(outputs)
    factor = checks.positive("factor", one["factor"])
    given = problem.train.public_size, numbers, epsilon, problem.delta, problem.run
    stated, rate = one[RATE], _default(one["rule"], *given, factor).learning_rate
    agree = is_number(stated) and abs(stated / rate - 1.0) <= SAME_RATE
    return {
        "name": Recipe(text(one["name"])).name,
        "model": text(one["model"]),
        "optimizer": {name: text(words) for name, words in one["optimizer"].items()},
        "features": _described(features_from(one["features"])),
        "clipping": rule_from_dict(one["clipping"]).describe(),
        "rule": one["rule"],
        "inputs": numbers[0],
        "outputs": numbers[1],
        "factor": one["factor"],
        RATE: stated if agree else rate,
    }
