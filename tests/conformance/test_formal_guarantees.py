"""The sections "Formal guarantees" say what is enforced elsewhere; one cannot drift."""

import importlib
import inspect
import operator

import pytest

WORDS = {
    "accounting:Guarantee": (),
    "accounting:RepetitionLaw.sample": (),
    "accounting:best_of": (),
    "accounting:discrete_gaussian_vote": ("replace one client", "minimum_survivors"),
    "accounting:doubling_loop": ("whatever the data", "caps must be enforced", "2N - 1"),
    "accounting:dp_sgd": (),
    "accounting:dp_sgd_balls_in_bins": (
        "each may depend on those before",
        "one of its `steps_per_epoch` steps, uniformly random and independent of all other records",
        "kept for several epochs costs more",
        "Nothing is simulated",
    ),
    "accounting:dp_sgd_fixed_lots": (),
    "accounting:exponential_mechanism": ("bounded-range", "Gumbel", "adaptive"),
    "accounting:federated_averaging": (
        "replace one client",
        "after rounding",
        "Proposition 14",
        "tau",
    ),
    "accounting:output_perturbation": ("Euclidean", "final parameters"),
    "accounting:skellam_vote": ("replace one client", "tails charged"),
    "accounting:split": (
        "nobody learns",
        "never a hash",
        "same guarantee for every outcome",
        "Blackwell",
    ),
    "accounting:stop_at_threshold": (),
    "accounting:vote": ("replace one client", "standard deviation"),
    "auditing:audit": ("nothing is proved",),
    "auditing:epsilon_lower_bound": ("independent", "another adversary"),
    "auditing:executions": ("law of what", "no guarantee at all"),
    "auditing:refuted": ("failure_probability",),
    "data.dataset:split_train_validation": ("compose in parallel",),
    "federated.averaging:AveragingPlan": ("bound", "minimum_survivors"),
    "federated.averaging:noisy_update": ("bound", "minimum_survivors"),
    "federated.flower.client:make_client_app": (
        "noisy ballot",
        "noisy update",
        "reply to training is constant",
        "only after it is in the ledger",
        "whatever the records are",
        "own log",
    ),
    "federated.flower.client:secure_sum_only": (
        "at most once in each phase",
        "at most once in a run",
        "before they leave",
        "minimum_survivors",
        "masked",
    ),
    "federated.flower.noisy_vectors:prepare_ballot": (
        "whatever the records are",
        "does not depend on them",
    ),
    "federated.flower.noisy_vectors:prepare_update": (
        "whatever the records are",
        "nothing without noise is stored",
    ),
    "federated.flower.server:run_election": ("minimum_survivors", "masked votes"),
    "federated.flower.server:run_rounds": ("minimum_survivors", "masked updates"),
    "federated.flower.storage:charge": (
        "before the vote is sent",
        "before the first update",
        "one lock",
        "refused if epsilon or delta",
    ),
    "federated.flower.storage:note_unmasking": ("at most once", "only after"),
    "federated.voting:VotePlan": (),
    "federated.voting:noisy_ballot": (),
    "randomness.integer_laws:IntegerLaw": (),
    "randomness.keys:candidate_keys": ("64 bits of `os.urandom`", "32 bits", "All keys of one"),
    "randomness.noise:add_gaussian_noise": (
        "independent across leaves and entries",
        "equal keys give IDENTICAL noise",
        "does not depend on the values",
        "reaches to 9.1 standard deviations",
        "a function of the exact sum of x and v",
        "what a wider type than float32 has beyond it counts with the remainder",
        "standard_deviation, never less,",
        "the accounting does not charge it",
    ),
    "training:BallsInBinsLots": (
        "one of the `steps_per_epoch` lots of an epoch",
        "no other record, no other epoch, and not on how many records there are",
    ),
    "training:FixedLots": (
        "uniformly random `lot_size`-subset",
        "Neighbouring relation: replace one",
    ),
    "training:LotMesh": (
        "Every row of a lot that counts is in exactly one group",
        "Contributions are clipped for a sum of the whole lot's places",
        "A contribution is clipped as a whole, by its norm over all parameters",
        "Noise is one draw",
        "An entry's number follows from its place among all entries",
        "each from the one device that has it, the others add zeros",
    ),
    "training:PoissonLots": (
        "does not depend on n",
        "Truncation",
        "Quantisation",
        "(1 + e^epsilon)",
    ),
    "training:clipped_grad": (
        "each group's is at most its share of it, and the squares of shares add up",
        "`g * c / (norm + stability)`, strictly shorter than c",
        "proven for every order of summation",
        "a sum is taken in blocks, and what rounding can add to a row's influence is held back",
        "The batch's shape must be public",
        "not of `summed` alone",
    ),
    "training:make_train": (
        "`grad_fn.sensitivity(relation, C)`",
        "N(0, (noise_multiplier S)^2)",
        "public `expected_lot_size`",
        "an empty lot still gets noise",
        "no two draws share a key",
        "frozen leaves are returned unchanged",
        "a record's place depends on no other record",
        "no shape and no constant of it depends on their number",
    ),
    "training:public_scale": ("Those of `make_train`, at the same price", "must not be computed"),
    "training:scaled_gradient": (
        "by their own norms",
        "whatever the scale is",
        "It is not if the scale was computed from the records",
    ),
    "training.clipping.block_sums:influence_of_rounding": (
        "whatever the order of additions within a block",
        "the same rows at the same places",
        "2mk - 1 rows in all",
    ),
    "training.places:": (
        "in a uniformly random order",
        "a place of D' is empty where D has j",
        "whatever the others' places",
        "two blocks of the sum differ",
    ),
    "training.places:random_order": (
        "all orders are equally likely, exactly",
        "no other draw by it",
    ),
    "training:Stages": (
        "the steps, lots and noise of `of_run(steps, lots)[i]`",
        "the composition of its stages",
        "fixed before the first step",
        "scales gradients' bound and the noise's standard deviation alike",
    ),
    "training:mixed_sweep": (
        "as `make_train(configs[i])` trains it",
        "empty places never hold a record",
        "does not depend on the other candidates, their order, the slots",
        "A key given twice is refused",
    ),
    "training.micro_batches:sum_of_lot": (
        "Every row whose mask is True stands in exactly one micro-batch",
        "in the column of its place in the lot",
        "Contributions are clipped for a sum of all places of the lot, whatever `size`",
        "Nothing is rounded between turns",
        "An empty lot takes no turn",
    ),
    "tuning.runner:placed_to_be_scored": (
        "moves `total_units` by at most `Task.units`",
        "a place for each of the `size_bound` records",
        "depends on no record",
    ),
    "training.sweep.streaming:StreamedSlots": (
        "from the same keys and number of records",
        "each row stands at the place it was drawn for",
        "and does nothing else",
        "depends on how many rows the arrays have",
    ),
    "training.sweep.sweep:sweep": ("a key given twice is refused", "not on its position"),
    "tuning:Doubling": (
        "one partition by a keyed hash",
        "cap known beforehand",
        "not the number that happened",
        "exact discrete Laplace noise",
        "first candidate of the public list",
        "the loop and the final DP-SGD are composed",
        "stay with the curator",
    ),
    "tuning:Exponential": (
        "one partition by a keyed hash",
        "bounded-range",
        "pure, NOT as bounded-range",
        "The draw and the final DP-SGD are composed",
        "the conditions of `Doubling`",
    ),
    "leaderboard.extrapolation:Extrapolation": (
        "of every stage",
        "its own secret K, keys and noise",
        "reads the stages' winners only",
        "within the public law",
        "the stages and the final DP-SGD are composed",
        "no privacy rests on it",
    ),
    "leaderboard.extrapolation:Extrapolation.steps": (
        "share no key, no K and no noise",
        "not drawn again",
    ),
    "leaderboard.subset_tuning:SubsetTuning": (
        "by the operating system's randomness",
        "serves one release",
        "sees the other records alone",
        'with `final_on="all"`, all, and is priced for that',
        "capacities for the bound on all records",
        "a validation record is touched by the search alone",
        "parameters that do not depend on data",
    ),
}
"""module:name of what claims it, of a module itself without a name -> words of its section."""


@pytest.mark.parametrize("claimant", WORDS)
def test_the_section_says_what_tests_enforce(claimant):
    module, _, name = claimant.partition(":")
    package = "experiments.figures" if module.startswith("leaderboard.") else "dpjax"
    found = importlib.import_module(f"{package}.{module}")
    found = operator.attrgetter(name)(found) if name else found
    section = inspect.getdoc(found).split("Formal guarantees:")[1].split("Args:")[0]
    for words in WORDS[claimant]:
        assert words in " ".join(section.split())
