"""Plants wiring mistakes, one at a time, and sees that the tests named beside each notice.

Not part of the suite: it takes some ten minutes.

  python tests/planted_mistakes.py                 # all of them
  python tests/planted_mistakes.py noise K=0       # those with one of these in their names
  python tests/planted_mistakes.py --list
  python tests/planted_mistakes.py --planted-only  # not first the tests of the tree as it is

A copy of the tree is made in a temporary folder; there each mistake replaces one text, which must
occur exactly once. Exit code 0: every mistake was noticed; 1: some were not, or could not be
planted because the code has changed (plant those anew, do not drop them).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPIED = ("dpjax", "experiments", "tests", "docs", "pyproject.toml", "README.md")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One planted mistake.

    Attributes:
      name: what is wrong.
      file: where.
      old, new: the text and what replaces it.
      tests: files, or tests, of which one must fail.
      needs: a library that they need, beside the extras of `make test`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    needs: str = ""


_T, _P, _F = "tests/tuning/", "dpjax/tuning/", "dpjax/federated/"
_ON_TRAINING = (f"{_T}test_training_scores.py",)
_WEIGHTS = (
    "tests/training/clipping/test_bounded.py::"
    "test_weights_go_by_norms_with_their_slack_and_by_what_is_added"
)
_CLIFFS = tuple(
    f"tests/accounting/selection/test_selection_exact.py::test_{name}"
    for name in ("very_many_runs_fall_off_no_cliff", "where_float64_ends_a_line_says_so")
)
_QUICK = (
    "tests/accounting/selection/test_selection_exact.py::"
    "test_what_is_left_out_at_small_deltas_changes_nothing_there",
)
_WHOLE = "tests/accounting/test_brute_force_procedures.py::test_no_case_is_above_what_is_stated"
_STOPPED = "dpjax/accounting/selection/threshold.py"
_STOPS = ("tests/accounting/selection/test_threshold.py",)
_CERTIFICATE, _PROOFS = "dpjax/certificate.py", ("tests/test_certificate.py",)
_OF_TUNERS = "tests/test_certificates_of_tuners.py"
_KINDS, _MENDS = (_OF_TUNERS,), "tests/test_certificate_mends.py"
_DECLARED = (f"{_OF_TUNERS}::test_a_declared_run_that_is_none_or_beyond_the_program_is_refused",)
_SCORES = (f"{_T}test_wiring_scores.py",)
_DPARETO = "experiments/figures/dpareto/"
_TRAINED = ("tests/experiments/figures/test_dpareto_trained.py",)
_RANDOM = (f"{_T}test_wiring_randomness.py",)
_ONCE = (f"{_T}test_wiring_failures.py",)
_PUBLIC = (f"{_T}test_wiring_public_numbers.py",)
_PARTITIONED = tuple(
    f"{_PUBLIC[0]}::test_{test}[exponential]"
    for test in (
        "a_release_is_a_function_of_the_winner_alone",
        "the_folder_holds_what_is_listed_here_and_public_numbers",
    )
)
_SEARCH = tuple(
    f"{_PUBLIC[0]}::test_{test}"
    for test in (
        "a_run_after_a_public_search_is_charged_and_trained_by_public_numbers",
        "a_searchs_privacy_oracle_charges_lots_that_overflow",
    )
)
_PERMUTED = (f"{_T}tuners/test_permute_and_flip.py",)
_EXTRAPOLATED = {
    word: (f"tests/tuning/tuners/test_extrapolation.py::test_{test}",)
    for word, test in {
        "charged": "everything_is_charged_stages_scores_selection_and_the_final_training",
        "trained": "each_part_is_trained_as_charged_and_the_final_one_with_what_the_line_says",
        "clamped": "what_leaves_the_law_is_clamped_to_it_and_stays_one_of_its_values",
        "nothing": "where_a_stage_finds_nothing_every_hyperparameter_is_the_middle_of_its_law",
        "redrawn": "an_interruption_redraws_nothing",
        "goes on": "a_final_training_goes_on_with_its_own_hyperparameters_only",
    }.items()
}
_STAGED_FILE = "experiments/figures/leaderboard/extrapolation.py"
_LAWS = (f"{_T}test_wiring_laws.py",)
_ANY_SCORE = (f"{_T}problem/test_any_score.py",)
_PART_FILE = f"{_P}tuners/subset_tuning.py"
_PART = f"{_T}tuners/test_subset_tuning.py::test_"
_WHO_SEES = (f"{_PART}every_record_is_seen_once_by_the_search_or_by_the_final_training",)
_PART_LOTS = (
    f"{_PART}lots_are_divided_by_public_expectations_and_the_rate_is_carried_over",
    f"{_PART}runs_are_given_their_expected_lot_size_and_a_rate_if_they_read_one",
)
_PART_PRICE = (f"{_PART}the_claim_is_the_split_and_validation_records_pay_for_the_search_alone",)
_PART_ONCE = (f"{_PART}a_job_that_goes_on_has_the_same_part_and_spends_it_once",)
_REPEATED = "tests/auditing/test_executions.py::test_"
_FEDERATION = ("tests/federated/test_wiring_federation.py",)
_TUNE = ("tests/experiments/test_tune.py::test_digits_end_to_end_and_the_claim_verifies",)
_UNREAD = (f"{_T}test_unread.py",)
_MICRO = ("tests/training/test_micro_batches.py",)
_USERS = ("tests/training/test_users.py",)
_READS = ("tests/tuning/problem/test_loss_reads.py",)
_USER_TASKS = (f"{_T}problem/test_user_tasks.py",)
_CLIP = ("tests/training/clipping/test_clip_rules.py",)
_CLIP_TUNED = (f"{_T}test_clipping.py",)
_MICRO_FILE = "dpjax/training/micro_batches.py"
_CLIP_FOLDER = "dpjax/training/clipping/"
_KERNELS = ("tests/training/clipping/test_kernel_functions.py",)
_MODELS = (
    "tests/training/clipping/test_clipped_grad_models.py::test_equals_clipp"
    "ed_per_example_gradients",
)
_MESH, _MESH_FILE = ("tests/training/test_mesh.py",), "dpjax/training/mesh.py"

_BRIDGES = "dpjax/bridges/"
_ANY_RUN = {
    word: (f"tests/bridges/test_any_run.py::test_{test}",)
    for word, test in {
        "ranked": "the_noisy_score_is_ranked_with_a_noise_of_each_candidates_own",
        "raises": "a_run_that_raises_counts_ranks_worst_and_is_not_retried",
        "priced": "the_price_is_that_of_run_and_count_selected_from",
        "counted": "a_count_is_a_whole_number_of_records_or_ranks_worst",
        "hidden": "the_release_is_the_same_whatever_k_was",
        "order": "the_earlier_of_equals_wins_whichever_ended_first",
        "secret": "what_is_drawn_is_secret_and_seeds_make_whole_keys",
    }.items()
}
_JOB = {
    word: (f"tests/bridges/test_job_folder.py::test_{test}",)
    for word, test in {
        "killed": "a_killed_process_is_followed_by_one_that_goes_on",
        "failed": "what_failed_is_not_tried_again_and_stays_worst",
        "spent": "a_draw_that_is_spent_is_no_more_and_its_release_is_found",
        "same": "a_folder_goes_on_with_the_same_arguments_only",
        "released": "an_interrupted_selection_releases_what_it_would_have",
    }.items()
}
_LEDGER = "tests/bridges/test_ledger.py"
_OPTUNA = {
    word: (f"tests/bridges/test_optuna.py::test_{test}",)
    for word, test in {
        "composed": "a_real_study_of_sqlite_costs_the_composition_of_its_trials",
        "stated": "what_was_not_independent_is_not_priced_as_such",
        "dearest": "trials_of_different_cost_are_each_charged_the_dearest",
        "refused": "a_study_that_cannot_be_priced_is_refused_in_one_line",
        "drawn": "everything_is_drawn_before_the_first_trial_and_ranked_with_noise",
        "nothing": "no_candidate_releases_the_default",
        "worst": "trials_that_raise_or_are_pruned_count_and_rank_worst",
        "samplers": "no_sampler_but_the_random_one_is_priced_as_independent",
        "marks": "one_mark_among_random_trials_refuses_independence",
        "intruder": "what_another_writes_into_the_storage_ends_a_private_study",
        "trained": "what_is_trained_with_is_what_was_drawn_and_what_is_released",
        "no study": "an_objectives_trial_leads_to_no_study_and_asking_for_it_ends_the_search",
        "stranger": "a_trial_of_another_study_is_refused_and_moves_nothing",
    }.items()
}
_PRICES = {
    "event": ("tests/bridges/test_dp_accounting.py",),
    "plan": ("tests/bridges/test_jax_privacy.py",),
    "history": ("tests/bridges/test_opacus.py",),
}
_OPACUS = {
    word: (f"tests/bridges/test_opacus_training.py::test_{test}",)
    for word, test in {
        "noise": "every_step_adds_the_declared_noise_and_candidates_have_their_own",
        "bits": "noise_and_lots_have_all_bits_of_the_seed",
        "lots": "lots_are_poisson_sampled_at_the_declared_rate",
        "refused": "a_run_that_contradicts_its_declaration_releases_nothing",
        "priced": "the_best_of_three_is_priced_released_and_verified",
        "fewer": "fewer_steps_than_declared_are_allowed",
        "norms": "noise_goes_by_the_norm_that_gradients_are_clipped_to",
        "within": "a_clip_norm_that_moves_within_a_lot_is_refused",
    }.items()
}
_ENGINE = f"{_BRIDGES}opacus_engine.py"
_PLANS = {
    word: (f"tests/bridges/test_jax_privacy_training.py::test_{test}",)
    for word, test in {
        "noise": "the_noise_has_the_plans_scale_and_each_candidate_its_own",
        "bits": "key_and_batches_have_all_bits_of_the_seed_and_nothing_else",
        "again": "noise_that_is_begun_again_is_other_noise",
        "refused": "a_run_that_is_not_its_plans_releases_nothing",
        "priced": "plans_train_candidates_of_their_own_at_the_plans_price",
    }.items()
}
_PLAN = f"{_BRIDGES}jax_privacy.py"
_LOST = (
    "tests/conformance/test_folders.py::"
    "test_whatever_is_lost_of_a_finished_folder_nothing_is_drawn_again"
)
_BOUND = "tests/conformance/test_identity.py::test_a_folder_is_bound_to_every_field"
_SWEEPS = "tests/training/sweep/test_checkpoints.py::test_"
_CHOOSE = (
    "tests/auditing/test_lower_bounds.py::"
    "test_events_are_counted_on_executions_that_did_not_choose_them"
)
_UNTUNED = (f"{_T}tuners/test_untuned.py",)
_SELECTION = f"{_P}selection.py"
_RANKS = "return scores, self._choice.rank(scores / self._public_size)"
_DRAWS = "    hyperparameters = space.sample(total, randomness.generator(_STREAM_OF_SPACE))\n"
MISTAKES = [
    Mistake(
        "shards' winners are compared by exact counts",
        f"{_P}selection.py",
        'owners, share["best_candidate"][owners], share["best_score"][owners], outputs',
        'owners, share["best_candidate"][owners],\n'
        '                units[share["best_candidate"][owners]].astype(np.float64), outputs',
        ("tests/auditing/test_executions.py", f"{_T}test_job.py"),
    ),
    # ---- jobs of other libraries' trainings
    Mistake(
        "jax-privacy: a job's folder is not handed on, and an interrupted tuning draws anew",
        "dpjax/bridges/jax_privacy.py",
        "space, base=base, **more)",
        "space, base=base, **more | {'job': None})",
        ("tests/bridges/test_jax_privacy_training.py",),
    ),
    Mistake(
        "jax-privacy: a job goes on with another training",
        "dpjax/bridges/jax_privacy.py",
        "return [*any_run.code(self.train), repr(self.event), words]",
        "return [repr(self.event), words]",
        ("tests/bridges/test_jax_privacy_training.py",),
    ),
    Mistake(
        "opacus: a job goes on with another training",
        "dpjax/bridges/opacus.py",
        "return any_run.code(self.train)",
        "return []",
        ("tests/bridges/test_opacus_training.py",),
        needs="opacus",
    ),
    Mistake(
        "class weights: a record of a rare class counts for more than one",
        "dpjax/tuning/problem/class_weights.py",
        "given / given.max()",
        "given",
        ("tests/tuning/problem/test_class_weights.py",),
    ),
    Mistake(
        "user tables: a user stands in both parts",
        "dpjax/commands/user_tables.py",
        "splitting.validation_members(ids, fraction, key)",
        "splitting.validation_members(np.arange(len(ids)), fraction, key)",
        ("tests/commands/test_user_tables.py",),
    ),
    Mistake(
        "user tables: the public size of rows is taken for that of users' parts",
        "dpjax/commands/user_tables.py",
        "most_records=most_records,\n            public_size=public,",
        "most_records=most_records,\n            public_size=size,",
        ("tests/commands/test_user_tables.py",),
    ),
    Mistake(
        "statement page: what tuning would have hidden is not rounded up",
        "dpjax/tuning/statement_page.py",
        "math.ceil(number * 100 - 1e-9) / 100",
        "math.floor(number * 100) / 100",
        ("tests/tuning/test_statement_page.py",),
    ),
    Mistake(
        "report: a seeded run is called publishable",
        "dpjax/commands/report.py",
        '.get("secret") is False:',
        '.get("secret") is None:',
        ("tests/commands/test_report.py",),
    ),
    Mistake(
        "report: others may read it",
        "dpjax/commands/report.py",
        "files.aside(path, 0o600)",
        "files.aside(path)",
        ("tests/commands/test_report.py",),
    ),
    Mistake(
        "compile cache: a folder that others may write in is used",
        "dpjax/commands/compile_cache.py",
        "        private_files.private_folder(path)\n",
        "        path.mkdir(exist_ok=True)\n",
        (
            "tests/commands/test_compile_cache.py::test_its_folder_is_the_users_alo"
            "ne_and_one_open_to_others_is_not_used",
        ),
    ),
    Mistake(
        "tables: a range that the records widen",
        "dpjax/data/tabular.py",
        "low, high = self.ranges[name]\n                missing",
        "low, high = self.ranges[name][0], max(self.ranges[name][1], np.nanmax(values))\n"
        "                missing",
        ("tests/data/test_own_tables.py",),
    ),
    Mistake(
        "tables: a record without a target goes where places count",
        "dpjax/data/tables.py",
        "if every and not np.all(kept):",
        "if False:",
        ("tests/data/test_own_tables.py",),
    ),
    Mistake(
        "tables: a missing category is what another value is",
        "dpjax/data/tables.py",
        "MISSING if text is None else tabular.OTHER",
        "tabular.OTHER if text is None else tabular.OTHER",
        ("tests/data/test_own_tables.py",),
    ),
    Mistake(
        "tables: writing a schema looks at the records",
        "dpjax/data/tabular.py",
        "            return _header(rows, str(table))",
        "            names = _header(rows, str(table))\n            list(rows)\n"
        "            return names",
        ("tests/data/test_own_tables.py",),
    ),
    Mistake(
        "read-outs: a chain of neighbours forgets that later steps multiply earlier deltas",
        "dpjax/accounting/numerics/tradeoff.py",
        "deltas = step.law.delta(safe) + np.exp(safe) * deltas",
        "deltas = step.law.delta(safe) + deltas",
        ("tests/accounting/test_readouts.py",),
    ),
    Mistake(
        "read-outs: a replaced record only goes",
        "dpjax/accounting/numerics/tradeoff.py",
        "steps = [_Step(pair.backward), _Step(pair.forward)]",
        "steps = [_Step(pair.backward), _Step(pair.backward)]",
        ("tests/accounting/test_readouts.py",),
    ),
    Mistake(
        "read-outs: a trade-off of one direction alone",
        "dpjax/accounting/guarantee.py",
        "for law in (self.pair.forward, self.pair.backward)}",
        "for law in (self.pair.forward,)}",
        ("tests/accounting/test_readouts.py",),
    ),
    Mistake(
        "read-outs: mu of what the slack hides",
        "dpjax/accounting/numerics/tradeoff.py",
        "h[:count] * (1.0 + 2.0**-52) - slack",
        "h[:count] * (1.0 - 1e-4) - slack",
        ("tests/accounting/test_readouts.py",),
    ),
    Mistake(
        "mechanisms: an (epsilon, delta) whose delta is forgotten",
        "dpjax/accounting/mechanisms/elementary.py",
        "pure_pair(epsilon).with_failure(delta)",
        "pure_pair(epsilon).with_failure(0.5 * delta)",
        ("tests/accounting/mechanisms/test_known_mechanisms.py",),
    ),
    Mistake(
        "audits: events are counted on the executions that chose them",
        "dpjax/auditing/lower_bounds.py",
        "samples = self._ordered(self.counting, event.likelier_with_record)",
        "samples = self._ordered(self.choosing, event.likelier_with_record)",
        ("tests/auditing/test_lower_bounds.py",),
    ),
    Mistake(
        "audits: each of the two bounds has the whole failure probability",
        "dpjax/auditing/lower_bounds.py",
        "special.betaincinv(p, n - p + 1.0, failure / 2)",
        "special.betaincinv(p, n - p + 1.0, failure)",
        ("tests/auditing/test_lower_bounds.py",),
    ),
    Mistake(
        "audits: delta is not taken off",
        "dpjax/auditing/lower_bounds.py",
        "np.maximum(low - delta, 0.0)",
        "np.maximum(low, 0.0)",
        ("tests/auditing/test_lower_bounds.py",),
    ),
    Mistake(
        "audits: the record is there in both data sets",
        "dpjax/auditing/audits.py",
        "canary.task(with_record, records)",
        "canary.task(True, records)",
        ("tests/auditing/test_audits.py",),
    ),
    Mistake(
        "audits: a final training is of the first execution's choice",
        f"{_P}tuners/subset_tuning.py",
        "{name: chosen[name][found] for name in chosen}",
        "{name: np.repeat(chosen[name][found][:1], found.sum()) for name in chosen}",
        ("tests/auditing/test_executions.py",),
    ),
    Mistake(
        "prices: composing an event again does not count it again",
        f"{_BRIDGES}dp_accounting.py",
        "self._counted[index] = (known, times + count)",
        "self._counted[index] = (known, count)",
        _PRICES["event"],
    ),
    Mistake(
        "prices: an accountant of replace-one prices add-or-remove",
        f"{_BRIDGES}dp_accounting.py",
        "(dp_events.SelfComposedDpEvent(event, count), self._relation)",
        "(dp_events.SelfComposedDpEvent(event, count))",
        _PRICES["event"],
    ),
    Mistake(
        "prices: a selection costs what one run does",
        "dpjax/accounting/interop.py",
        "return selection.best_of(from_dp_event(event.event, relation), law_of(event))",
        "return from_dp_event(event.event, relation)",
        _PRICES["event"],
    ),
    Mistake(
        "prices: noise of 0 inside an event is not noticed",
        f"{_BRIDGES}dp_accounting.py",
        "return any(_lacks_noise(getattr(event, field.name))",
        "return False and any(_lacks_noise(getattr(event, field.name))",
        _PRICES["event"],
    ),
    Mistake(
        "prices: of equal steps of a history the last entry counts",
        f"{_BRIDGES}opacus.py",
        "steps[known] = steps.get(known, 0) + number",
        "steps[known] = number",
        _PRICES["history"],
    ),
    Mistake(
        "prices: shuffled lots of a history are priced as Poisson-sampled",
        f"{_BRIDGES}opacus.py",
        'if not checks.flag("poisson_sampling", poisson_sampling):',
        "if False:",
        _PRICES["history"],
    ),
    Mistake(
        "prices: an event of fewer rounds than its plan",
        f"{_BRIDGES}jax_privacy.py",
        "rounds >= drawn",
        "rounds > 0",
        _PRICES["plan"],
    ),
    Mistake(
        "prices: equal groups are priced under add-or-remove",
        f"{_BRIDGES}jax_privacy.py",
        "lots.partition_type != batch_selection.PartitionType.INDEPENDENT",
        "False",
        _PRICES["plan"],
    ),
    # The selection is one for tuners and bridges: tests of both notice what is wrong with it.
    *(
        Mistake(f"{name}: seen by {who}", file, old, new, tests)
        for name, file, old, new, native, bridged in (
            (
                "the worst run is released",
                f"{_P}selection.py",
                "        return scores\n",
                "        return np.where(np.isfinite(scores), -scores, scores)\n",
                _SCORES,
                _ANY_RUN["ranked"],
            ),
            (
                "runs are ranked by exact counts, the noise is drawn and charged",
                _SELECTION,
                _RANKS,
                _RANKS.replace("rank(scores", "rank(np.where(finite, units, -np.inf)"),
                _SCORES,
                _ANY_RUN["ranked"],
            ),
            (
                "one score noise is shared by all candidates",
                _SELECTION,
                "self._noise[indices]",
                "self._noise[0]",
                _SCORES,
                _ANY_RUN["ranked"],
            ),
            (
                "a run that failed is ranked like others",
                _SELECTION,
                "scores = np.where(finite, noisy, -np.inf)",
                "scores = noisy",
                _ONCE,
                _ANY_RUN["raises"],
            ),
            (
                "the last of equals wins",
                f"{_P}selection.py",
                "(candidates[challengers] < held)",
                "(candidates[challengers] > held)",
                (f"{_T}test_selection.py",),
                _ANY_RUN["order"],
            ),
            (
                "K from a seed although none was given",
                _SELECTION,
                "source = None if randomness.secret else randomness.generator(_STREAM_OF_K)",
                "source = HostRandomness(randomness.seed or 0).generator(_STREAM_OF_K)",
                _RANDOM,
                _ANY_RUN["secret"],
            ),
            (
                "score noise from a seed although none was given",
                _SELECTION,
                "(score_noise, total, randomness, _STREAM_OF_SCORES",
                "(score_noise, total, HostRandomness(randomness.seed or 0), _STREAM_OF_SCORES",
                _RANDOM,
                _ANY_RUN["ranked"],
            ),
            (
                "candidates from a seed although none was given",
                _SELECTION,
                "randomness.generator(_STREAM_OF_SPACE)",
                "HostRandomness(randomness.seed or 0).generator(_STREAM_OF_SPACE)",
                _RANDOM,
                _ANY_RUN["secret"],
            ),
            (
                "K=0 becomes 1",
                _SELECTION,
                "counts = choice.draw(executions, source)",
                "counts = np.maximum(choice.draw(executions, source), 1)",
                (*_LAWS, *_ONCE),
                _OPTUNA["nothing"],
            ),
            (
                "a finished folder whose outcome is lost is drawn anew",
                f"{_P}job.py",
                "if path == drawn and os.path.lexists(self._path_of(CONSUMED_FILE)):",
                "if False:",
                (f"{_LOST}[random_repetitions]",),
                (f"{_LOST}[bridges.tune]",),
            ),
            (
                "noise and keys stay in the folder of a draw that is consumed",
                f"{_P}job.py",
                "            self._job._consume()\n",
                "",
                (f"{_LOST}[random_repetitions]",),
                (f"{_LOST}[bridges.tune]",),
            ),
        )
        for who, tests in (("a tuner's tests", native), ("a bridge's tests", bridged))
    ),
    Mistake(
        "bridges: seeds from a number although none was given",
        f"{_BRIDGES}selection.py",
        "randomness, space = HostRandomness(seed), procedure.candidates.space",
        "randomness, space = HostRandomness(seed or 0), procedure.candidates.space",
        _ANY_RUN["secret"],
    ),
    Mistake(
        "bridges: a run that raised is tried again",
        f"{_BRIDGES}any_run.py",
        '        return False, f"it raised {_named(error)}"\n',
        "        return True, run(seed, values)\n",
        _ANY_RUN["raises"],
    ),
    Mistake(
        "bridges: a count on training records is charged as on records of its own",
        f"{_BRIDGES}runs.py",
        "return accounting.compose(base, count)",
        "return accounting.parallel(base, count)",
        _ANY_RUN["priced"],
    ),
    Mistake(
        "bridges: a count may be above the number of records",
        f"{_BRIDGES}runs.py",
        "min(max(given, 0), self.public_size)",
        "max(given, 0)",
        _ANY_RUN["counted"],
    ),
    Mistake(
        "bridges: the statement names K",
        f"{_BRIDGES}selection.py",
        "statement=statement(procedure, secret=secret),",
        'statement={"runs": len(ran.units)} | statement(procedure, secret=secret),',
        _ANY_RUN["hidden"],
    ),
    Mistake(
        "bridges: the model of the last among equals leaves with another's hyperparameters",
        f"{_BRIDGES}selection.py",
        "if leads:  # The",
        "if self._selection.best.score[0] <= score:  # The",
        _ANY_RUN["order"],
    ),
    Mistake(
        "bridges: what was under way when a process ended goes on with another seed",
        f"{_BRIDGES}any_run.py",
        "        search = Search(procedure, draw",
        "        draw = draw | {'seeds': drawn(procedure, seed)['seeds']}\n"
        "        search = Search(procedure, draw",
        _JOB["killed"],
    ),
    Mistake(
        "bridges: a process that goes on draws noise anew",
        f"{_BRIDGES}any_run.py",
        "        search = Search(procedure, draw",
        "        draw = draw | {'noise': drawn(procedure, seed)['noise']}\n"
        "        search = Search(procedure, draw",
        _JOB["killed"],
    ),
    Mistake(
        "bridges: a process that goes on tries again what failed",
        f"{_BRIDGES}selection.py",
        "                files = _files_in(ended)\n",
        "                files = _files_in(ended)\n"
        "                if count == _NO_COUNT:\n"
        "                    continue\n",
        _JOB["failed"],
    ),
    Mistake(
        "bridges: a process that goes on forgets the model of an earlier one",
        f"{_BRIDGES}selection.py",
        "self._model_file.files(model) if leads and count is not None else {}",
        "{}",
        _JOB["released"],
    ),
    Mistake(
        "bridges: seeds and noise stay in the folder of a draw that is spent",
        f"{_BRIDGES}selection.py",
        "return written_executed(ran) | {",
        "return self._drawn | written_executed(ran) | {",
        _JOB["spent"],
    ),
    Mistake(
        "bridges: what each candidate gave stays in the folder of a draw that is spent",
        f"{_P}job.py",
        '    "ended_*.npz",\n',
        "",
        _JOB["spent"],
    ),
    Mistake(
        "bridges: a folder goes on with another guarantee of one run",
        f"{_BRIDGES}any_run.py",
        '        "base": procedure.base.provenance,\n',
        "",
        _JOB["same"],
    ),
    Mistake(
        "bridges: a folder goes on with a run that was edited",
        f"{_BRIDGES}any_run.py",
        '        "run": run.facts() if hasattr(run, "facts") else code(run),\n',
        "",
        _JOB["same"],
    ),
    Mistake(
        "optuna: a study in which each trial looked at the others is the best of a fixed number",
        f"{_BRIDGES}study_price.py",
        "guarantee = accounting.repeat(trial, most_trials)",
        "guarantee = accounting.best_of(trial, accounting.Fixed(most_trials))",
        _OPTUNA["composed"],
    ),
    Mistake(
        "optuna: trials that failed or were pruned cost nothing",
        f"{_BRIDGES}optuna.py",
        "if one.state != TrialState.WAITING]",
        "if one.state == TrialState.COMPLETE]",
        _OPTUNA["refused"],
    ),
    Mistake(
        "optuna: the trials that ran are charged, not those that could have",
        f"{_BRIDGES}optuna.py",
        "    trial = most_expensive(base,",
        "    most_trials = len(trials)\n    trial = most_expensive(base,",
        _OPTUNA["composed"],
    ),
    Mistake(
        "optuna: whatever sampled a study, its trials may be stated to be independent",
        f"{_BRIDGES}optuna.py",
        "if known and type(study.sampler) is not optuna.samplers.RandomSampler:",
        "if False:",
        _OPTUNA["stated"],
    ),
    Mistake(
        "optuna: trials of different cost are charged as the last setting",
        f"{_BRIDGES}study_price.py",
        "return accounting.parallel(*costs)",
        "return costs[-1]",
        _OPTUNA["dearest"],
    ),
    Mistake(
        "optuna: a private study has a result before all candidates are told",
        f"{_BRIDGES}selection.py",
        "        if self.left:\n",
        "        if len(self.left) == self.number > 0:\n",
        _OPTUNA["drawn"],
    ),
    Mistake(
        "optuna: a trial outside the public law is drawn by Optuna",
        f"{_BRIDGES}optuna.py",
        'raise ValueError(f"{name} is not in the public law: name it in distributions")',
        "return 0.5",
        _OPTUNA["worst"],
    ),
    *(
        Mistake(f"optuna: {name}", f"{_BRIDGES}optuna.py", old, new, _OPTUNA[test])
        for name, old, new, test in (
            (
                "what a sampler keeps in the study is not read",
                '- {"study:metric_names"}:',
                '- {"study:metric_names"} and False:',
                "marks",
            ),
            (
                "a storage alone is priced as independent draws",
                "    if not known:\n",
                "    if False:\n",
                "samplers",
            ),
            (
                "a foreign trial is noticed by the number of trials alone",
                "if [one.params for one in self._study.get_trials(deepcopy=False)] != drawn:",
                "if len(self._study.get_trials(deepcopy=False)) != len(drawn):",
                "intruder",
            ),
            (
                "what is written while a trial runs is not looked at when it is told",
                "            self._check_storage()\n            outcome = report(index)\n",
                "            outcome = report(index)\n",
                "intruder",
            ),
            (
                "an objective is given Optuna's own trial",
                "self._asked.append((_Candidate(index, values, self._distributions), written))",
                "self._asked.append((written, written))",
                "no study",
            ),
            (
                "an objective may overwrite the values of its trial",
                "return dict(self._params)",
                "return self._params",
                "trained",
            ),
            (
                "any study's trial of the same number is told",
                "if shown is trial:",
                'if index == getattr(trial, "number", None):',
                "stranger",
            ),
        )
    ),
    *(
        Mistake(f"bridges' ledger: {name}", f"{_BRIDGES}{file}.py", old, new, (_LEDGER,))
        for name, file, old, new in (
            ("nothing is noted", "selection", "if procedure.ledger is not None:", "if False:"),
            (
                "one candidate's price is noted",
                "selection",
                "procedure.ledger.note(procedure.guarantee.epsilon",
                "procedure.ledger.note(procedure.run_guarantee.epsilon",
            ),
            (
                "a folder goes on with other records",
                "any_run",
                "procedure.ledger and procedure.ledger.seen.fingerprint",
                "procedure.ledger is None",
            ),
        )
    ),
    Mistake(
        "bridges' ledger: a second draw takes the place of the first",
        f"{_P}ledger.py",
        "if os.path.lexists(os.path.join(place, LEDGER_FILE)):",
        "if False:",
        (_LEDGER,),
    ),
    Mistake(
        "opacus: noise by the norm of a schedule, gradients clipped to layers' own",
        _ENGINE,
        'getattr(noisy, "max_grad_norms", [noisy.max_grad_norm])',
        "[noisy.max_grad_norm]",
        _OPACUS["norms"],
        "opacus",
    ),
    Mistake(
        "opacus: parts of a lot are clipped to other norms than its noise goes by",
        _ENGINE,
        "norm if self._clip_norm is None else self._clip_norm",
        "norm",
        _OPACUS["within"],
        "opacus",
    ),
    Mistake(
        "bridges: a run that contradicts what is declared ranks worst",
        f"{_BRIDGES}any_run.py",
        "        raise  # What it was charged is not its price: nothing may be released.\n",
        '        return False, "it contradicted"\n',
        ("tests/bridges/test_any_run.py",),
    ),
    Mistake(
        "opacus: noise and lots from the 32 bits that PyTorch keeps of a seed",
        _ENGINE,
        "return torch.Generator().set_state(state(seed, purpose))",
        "return torch.Generator().manual_seed(seed)",
        _OPACUS["bits"],
        "opacus",
    ),
    Mistake(
        "opacus: all candidates share a noise",
        _ENGINE,
        'generator(self._seed, "noise", *devices)',
        'generator(0, "noise", *devices)',
        _OPACUS["noise"],
        "opacus",
    ),
    Mistake(
        "opacus: lots are drawn from the generator of a loader that all candidates share",
        _ENGINE,
        'lots.generator = loader.generator = generator(self._seed, "lots")',
        "",
        _OPACUS["lots"],
        "opacus",
    ),
    Mistake(
        "opacus: records are drawn with half the declared probability again",
        _ENGINE,
        "threshold = self.sample_rate - 2.0**-53",
        "threshold = 1.5 * self.sample_rate",
        _OPACUS["lots"],
        "opacus",
    ),
    Mistake(
        "opacus: noise of less than the declared multiplier",
        _ENGINE,
        "            noise_multiplier=self._declared.noise_multiplier,\n",
        "            noise_multiplier=self._declared.noise_multiplier * 2 / 3,\n",
        _OPACUS["priced"],
        "opacus",
    ),
    Mistake(
        "opacus: gradients are divided by a number that follows from the records",
        _ENGINE,
        "        noisy.expected_batch_size = data_loader.batch_size\n",
        "",
        _OPACUS["noise"],
        "opacus",
    ),
    Mistake(
        "opacus: steps beyond the declared ones are taken",
        _ENGINE,
        "if self._taken > self._declared.steps:",
        "if False:",
        _OPACUS["refused"],
        "opacus",
    ),
    Mistake(
        "opacus: a step without noise changes the weights",
        _ENGINE,
        "        if not self._noisy:\n",
        "        if False:\n",
        _OPACUS["refused"],
        "opacus",
    ),
    Mistake(
        "opacus: gradients of several lots are summed in one step",
        _ENGINE,
        "                self._summed(lots.drawn)\n",
        "                pass\n",
        _OPACUS["refused"],
        "opacus",
    ),
    Mistake(
        "opacus: what was refused and caught by the training is forgotten",
        _ENGINE,
        "            if self._contradiction is not None:\n                raise",
        "            if False:\n                raise",
        _OPACUS["refused"],
        "opacus",
    ),
    Mistake(
        "opacus: one epoch is charged",
        f"{_BRIDGES}opacus.py",
        "declared.sample_rate, declared.noise_multiplier, declared.steps)",
        "declared.sample_rate, declared.noise_multiplier, round(1 / declared.sample_rate))",
        _OPACUS["fewer"],
        "opacus",
    ),
    Mistake(
        "plans: the noise of every candidate has the key of the plan",
        _PLAN,
        "return jax.random.wrap_key_data(data, impl=keys.IMPLEMENTATION), state[1]",
        "return state",
        _PLANS["noise"],
    ),
    Mistake(
        "plans: the noise's key has 32 bits of the seed",
        _PLAN,
        'data = np.frombuffer(words, dtype=">u4").astype(np.uint32)',
        "data = np.array([1, seed % 2**32], dtype=np.uint32)",
        _PLANS["bits"],
    ),
    Mistake(
        "plans: batches are drawn by the generator that a training passes",
        _PLAN,
        "return super().batch_iterator(num_examples, own)",
        "return super().batch_iterator(num_examples, rng)",
        _PLANS["bits"],
    ),
    Mistake(
        "plans: noise that is begun again is the same",
        _PLAN,
        'f"noise of a plan, {self._begun_noise}"',
        '"noise of a plan"',
        _PLANS["again"],
    ),
    Mistake(
        "plans: batches may be drawn twice",
        _PLAN,
        "if self._begun_batches:",
        "if False:",
        _PLANS["refused"],
    ),
    Mistake(
        "plans: batches of a training's own are not noticed",
        f"{_BRIDGES}jax_privacy.py",
        "        candidate.check()\n",
        "",
        _PLANS["refused"],
    ),
    Mistake(
        "plans: truncated lots of more records than were priced",
        _PLAN,
        "if self._group_size is not None and number // groups != self._group_size:",
        "if False:",
        _PLANS["refused"],
    ),
    Mistake(
        "plans: all candidates draw the same batches",
        _PLAN,
        'words = expanded(self._seed, "batches of a plan", 32)',
        'words = expanded(0, "batches of a plan", 32)',
        _PLANS["priced"],
    ),
    Mistake(
        "the untuned run is one of two, and the one that did not fail",
        f"{_P}selection.py",
        "return np.ones(executions, dtype=np.int64)",
        "return np.full(executions, 2, dtype=np.int64)",
        _UNTUNED,
    ),
    Mistake(
        "the untuned run draws its hyperparameters unseen",
        f"{_P}tuners/untuned.py",
        "        if len(set(law.values or ())) != 1:\n",
        "        if False:\n",
        _UNTUNED,
    ),
    Mistake(
        "the untuned run that failed is released",
        f"{_P}private_runs.py",
        "    found = (best.candidate >= 0) & np.isfinite(best.score)\n",
        "    found = best.candidate >= 0\n",
        _UNTUNED,
    ),
    Mistake(
        "the public default knows the real number of records",
        f"{_P}problem/public_defaults.py",
        "    numbers = task.train.public_size, _inputs_of(task)\n    return public_defaults(",
        "    numbers = task.train.number, _inputs_of(task)\n    return public_defaults(",
        _UNTUNED,
    ),
    # ---- scores on training records
    Mistake(
        "training and scores of the same records are priced in parallel",
        f"{_P}private_runs.py",
        "return accounting.compose(train, count_guarantee(std, relation, units)), std",
        "return accounting.parallel(train, count_guarantee(std, relation, units)), std",
        _ON_TRAINING,
    ),
    Mistake(
        "scores on training records are on the validation records, not charged as such",
        f"{_P}private_runs.py",
        "        problem = problem.scored_on_training()\n",
        "        problem.scored_on_training()\n",
        _ON_TRAINING,
    ),
    Mistake(
        "a statement of scores on training records is rebuilt as one of scores apart",
        f"{_P}tuners/random_repetitions.py",
        'score_on_training=claim["score"].get("records") == statements.THE_TRAINING_RECORDS,',
        "score_on_training=False,",
        _ON_TRAINING,
    ),
    Mistake(
        "a law of K may draw otherwise than it is priced",
        "dpjax/accounting/selection/laws.py",
        "if type(law) not in _CLASSES.values():",
        "if not isinstance(law, RepetitionLaw):",
        ("tests/conformance/test_own_law.py::test_a_class_of_ones_own_is_refused",),
    ),
    # ---- what a certificate proves
    Mistake(
        "a certificate's lines are taken at their word",
        _CERTIFICATE,
        "if not np.all(high <= np.interp(flat, a, b) * (1.0 - 1e-12)):",
        "if False:",
        (f"{_MENDS}::test_lines_through_points_that_are_no_numbers_prove_nothing",),
    ),
    Mistake(
        "a hull of lines that falls at its end caps what a selection costs",
        _CERTIFICATE,
        "rising = np.append(True, b[1:] > np.maximum.accumulate(b)[:-1])",
        "rising = np.ones(b.size, bool)",
        (f"{_MENDS}::test_a_hull_that_falls_at_its_end_lowers_nothing",),
    ),
    Mistake(
        "a rule is known by its first words",
        _CERTIFICATE,
        "    if rule in PUBLIC:\n",
        "    if str(rule).startswith(PUBLIC):\n",
        (f"{_MENDS}::test_a_rule_with_other_words_beside_it_is_none",),
    ),
    Mistake(
        "a mechanism may have parameters beside its own",
        _CERTIFICATE,
        "good = values.keys() == set(names.split())",
        "good = values.keys() >= set(names.split())",
        (f"{_MENDS}::test_a_mechanism_has_its_parameters_and_no_others",),
    ),
    Mistake(
        "parts below a leaf are not looked at",
        _CERTIFICATE,
        "good &= len(parts) == number if number is not None else len(parts) > 0",
        "good &= len(parts) >= number if number is not None else len(parts) > 0",
        (f"{_MENDS}::test_a_mechanism_has_as_many_parts_as_it_takes",),
    ),
    Mistake(
        "public sizes of any size are summed over",
        _CERTIFICATE,
        'if not (is_whole(records["public_size"]) and is_whole(records["size_bound"])):',
        "if False:",
        (f"{_MENDS}::test_a_hostile_number_is_refused_at_once",),
    ),
    Mistake(
        "terms of a sum are no work",
        _CERTIFICATE,
        "            Work.spend(2000.0)\n",
        "",
        (f"{_MENDS}::test_work_is_counted_before_it_is_done",),
    ),
    Mistake(
        "names that a proof did not read are not printed",
        _CERTIFICATE,
        'found += unread(value, own + ".") if name in words.read else [own]',
        'found += unread(value, own + ".") if name in words.read else []',
        (f"{_MENDS}::test_what_is_not_read_is_said",),
    ),
    Mistake(
        "a law of K is proved by words beside its own",
        _CERTIFICATE,
        'good = LAWS.get(words["law"]) == words.keys() - {"law"}',
        'good = words["law"] in LAWS',
        (f"{_PROOFS[0]}::test_laws_that_are_none_are_refused",),
    ),
    Mistake(
        "the direction of adding a record is proved twice as that of removing one",
        _CERTIFICATE,
        "return [forward, gridded(slack - loss, q_mass, BEYOND, step)]",
        "return [forward, forward]",
        _PROOFS,
    ),
    Mistake(
        "a record that is validated on is no case",
        _CERTIFICATE,
        'return sum(below) if tree["mechanism"] == "parallel" else max(below)',
        "return max(below)",
        _PROOFS,
    ),
    Mistake(
        "a declared run's numbers need be none of its mechanism",
        _CERTIFICATE,
        "    if not good or (name",
        "    if False and (name",
        _DECLARED,
    ),
    Mistake(
        "a declared run may be under another neighbouring relation",
        _CERTIFICATE,
        'if relations_of(words["mechanism"]) != {words["neighbouring_relation"]}:',
        "if False:",
        _DECLARED,
    ),
    Mistake(
        "a count of the training records is proved as one of records apart",
        _CERTIFICATE,
        'if records == ("training" if declared else TRAINED):',
        "if records == TRAINED:",
        _KINDS,
    ),
    Mistake(
        "a vote is proved as if a client moved votes one way",
        _CERTIFICATE,
        'moved = 2 * min(values["votes"]',
        'moved = min(values["votes"]',
        (f"{_OF_TUNERS}::test_one_client_moves_as_many_votes_as_it_has_others",),
    ),
    Mistake(
        "a vote is proved with the noise of clients that are missing",
        _CERTIFICATE,
        "return math.ceil((1 - Fraction(repr(float(missing)))) * clients)",
        "return clients",
        (f"{_OF_TUNERS}::test_it_is_proved_in_seconds_and_hardly_more",),
    ),
    Mistake(
        "a sum of discrete Gaussians is proved as one of them",
        _CERTIFICATE,
        "if not eta < 1e-9:",
        "if False:",
        (f"{_OF_TUNERS}::test_a_sum_of_discrete_gaussians_is_none_itself",),
    ),
    Mistake(
        "the exact bound's columns earn what their last outcome does",
        _CERTIFICATE,
        "earned = 0.5 * (start + end) - price",
        "earned = end - price",
        (f"{_PROOFS[0]}::test_coarse_cells_and_columns_only_add_to_the_exact_bound",),
    ),
    Mistake(
        "the exact bound's cells cost what their far end does",
        _CERTIFICATE,
        "cost = (value[:, None] + (fall * half)[:, None] * sign).ravel()",
        "cost = (value[:, None] + 9.0 * (fall * half)[:, None]).repeat(2, axis=1).ravel()",
        (f"{_PROOFS[0]}::test_the_exact_bound_lies_between_an_order_and_what_is_stated",),
    ),
    Mistake(
        "the exact bound's cells on one straight piece are flat by a rounding",
        _CERTIFICATE,
        "(low * (1.0 + SLACK) >= near) & (high * (1.0 + SLACK) >= far)",
        "(low >= near) & (high >= far)",
        (f"{_PROOFS[0]}::test_noise_in_whole_numbers_is_bounded_on_any_grid_as_closely",),
    ),
    Mistake(
        "subset tuning: what is never seen under one neighbour is left out of a certificate",
        _CERTIFICATE,
        "np.append(other.masses, other.infinity)",
        "np.append(other.masses, 0.0)",
        (f"{_OF_TUNERS}::test_what_follows_may_reveal_all_with_a_small_probability",),
    ),
    Mistake(
        "subset tuning: a training on all records is proved as one on the rest",
        _CERTIFICATE,
        "    if on_all:\n        weight, at",
        "    if False:\n        weight, at",
        (f"{_OF_TUNERS}::test_a_secret_part_of_the_records_by_an_explicit_sum",),
    ),
    Mistake(
        "subset tuning: a secret part is proved under replace one",
        _CERTIFICATE,
        'if not good or (name == "split" and found != {"add_or_remove_one"}):',
        "if not good:",
        (f"{_OF_TUNERS}::test_a_part_that_is_secret_has_no_price_under_replace_one",),
    ),
    Mistake(
        "a selection inside another mechanism: the other direction is left out of a certificate",
        _CERTIFICATE,
        "* (1.0 - behind[:0:-1])",
        "* np.ones(behind.size - 1)",
        (f"{_OF_TUNERS}::test_bounds_on_divergences_become_a_measure_that_has_them",),
    ),
    Mistake(
        "a declared run's parts of the data are one",
        _CERTIFICATE,
        "        if case < cases_of(part):\n",
        "        if case < 1:\n",
        _KINDS,
    ),
    Mistake(
        "lots that overflow are taken at the statement's word",
        _CERTIFICATE,
        "same = meant <= stated <= meant * (1.0 + 1e-6) + 1e-13",
        "same = True",
        _PROOFS,
    ),
    Mistake(
        "the words of a statement need not mean its mechanism",
        _CERTIFICATE,
        'check_same(stated[key], meant[key], f"{place}.{key}")',
        "pass",
        _PROOFS,
    ),
    Mistake(
        "last bits: where one profile takes over from a larger one nothing is added",
        "dpjax/accounting/combine.py",
        "found[change + 1] += np.maximum(values[a, change] - values[b, change], 0.0)",
        "found[change + 1] += 0.0 * np.maximum(values[a, change] - values[b, change], 0.0)",
        (
            "tests/conformance/test_last_bits.py::test_where_profiles_cross_the_lar"
            "ger_is_never_undercut",
        ),
    ),
    Mistake(
        "last bits: round quotients are rounded as their last bit says",
        "dpjax/accounting/numerics/loss_distribution.py",
        "return math.ceil(quotient * (1.0 - WHOLE))",
        "return math.ceil(quotient * (1.0 + 1e-15))",
        ("tests/conformance/test_last_bits.py",),
    ),
    Mistake(
        "a claim one digit below the truth is verified",
        "dpjax/tuning/verification.py",
        "if not least <= claimed * (1.0 + TOLERANCE)",
        "if not least <= claimed * 1.0001",
        (
            "tests/tuning/test_statements_elsewhere.py::test_a_claim_one_digit_off_"
            "is_refused_either_way",
        ),
    ),
    Mistake(
        "a target is met by what is computed, not by what is stated",
        "dpjax/accounting/stated.py",
        'return float(f"{digits}e{exponent}") / (1.0 + 3.0 * MARGIN)',
        "return target",
        ("tests/accounting/test_stated.py",),
    ),
    Mistake(
        "a certificate serves another statement",
        _CERTIFICATE,
        'certificate["statement"] != digest(words)',
        "False",
        _PROOFS,
    ),
    # ---- which number is ranked
    Mistake(
        "ties are broken by the exact count",
        _SELECTION,
        _RANKS,
        _RANKS + " + 1e-9 * np.asarray(units)",
        _SCORES,
    ),
    Mistake(
        "runs are ranked with half of their noise",
        _SELECTION,
        _RANKS,
        _RANKS.replace("rank(scores", "rank((scores - self._noise[indices] // 2)"),
        _SCORES,
    ),
    Mistake(
        "the first candidate of a run has no noise",
        _SELECTION,
        _DRAWS,
        "    noise = np.array(noise)\n"
        "    noise[(np.cumsum(counts) - counts)[counts > 0]] = 0\n" + _DRAWS,
        _SCORES,
    ),
    Mistake(
        "the profile of very many runs ends where the bulk of it is still to come",
        "dpjax/accounting/selection/envelope.py",
        "FAR_LEAST, FAR_REACH = 1e-290, 600.0",
        "FAR_LEAST, FAR_REACH = 1e-290, 80.0",
        _CLIFFS,
    ),
    Mistake(
        "all runs together are never looked at where delta is small",
        "dpjax/accounting/selection/best_of.py",
        "found < HELPS * profile",
        "found < 0.0 * profile",
        _QUICK,
    ),
    Mistake(
        "what is looked at first where delta is small stays",
        "dpjax/accounting/selection/exact.py",
        "near &= np.exp(logs[knots]) <= FEW * upto",
        "near &= np.exp(logs[knots]) <= 1e-3 * upto",
        _QUICK,
    ),
    Mistake(
        "calibration ends where the rough bound does",
        "dpjax/accounting/calibration.py",
        "        start, factor = meeting, meeting / failing\n",
        "        return meeting\n",
        ("tests/accounting/test_calibrate_largest.py",),
    ),
    Mistake(
        "a price a hundred times too large says nothing",
        "dpjax/accounting/selection/best_of.py",
        "if far and left > max(WARNED_CUT, LOUD * revealed):",
        "if far and left > 1.0:",
        _CLIFFS,
    ),
    Mistake(
        "a choice by the exponential mechanism is charged for less than its range",
        "dpjax/accounting/mechanisms/exponential.py",
        "value = np.expm1((inside - epsilon) / 2.0) ** 2",
        "value = np.expm1((inside - epsilon) / 2.2) ** 2",
        (f"{_WHOLE}[exponential]",),
    ),
    Mistake(
        "the two parts of a split change places",
        "dpjax/accounting/selection/split.py",
        "[(_consistent(tuned), q), (_consistent(final), 1.0 - q)]",
        "[(_consistent(tuned), 1.0 - q), (_consistent(final), q)]",
        (f"{_WHOLE}[subset]",),
    ),
    Mistake(
        "a replaced ballot moves one count less",
        "dpjax/accounting/mechanisms/vote.py",
        "interval, shift), counts)])",
        "interval, shift), counts - 1)])",
        (f"{_WHOLE}[vote]",),
    ),
    Mistake(
        "threshold stopping: the tangent of the gain is taken at a cell's wrong end",
        _STOPPED,
        "gains = gain * (1.0 + 1e-13) - steps, gain * (1.0 + 1e-13) + steps",
        "gains = gain * (1.0 + 1e-13) + steps, gain * (1.0 + 1e-13) - steps",
        _STOPS,
    ),
    Mistake(
        "threshold stopping: what is counted is what the neighbour shows most",
        _STOPPED,
        "_least_masses(forward.kept_at(",
        "_least_masses(reverse.kept_at(",
        _STOPS,
    ),
    Mistake(
        "threshold stopping: that nothing was found tells nothing",
        _STOPPED,
        "    for c in (0.0, p):",
        "    for c in (0.0,):",
        _STOPS,
    ),
    Mistake(
        "threshold stopping compares exact counts",
        _SELECTION,
        _RANKS,
        _RANKS.replace("rank(scores", "rank((units if self._choice.in_order else scores)"),
        _SCORES,
    ),
    Mistake(
        "threshold stopping releases the best that passes, not the first",
        f"{_P}selection.py",
        "np.where(scores >= self.threshold, 0.0, -np.inf)",
        "np.where(scores >= self.threshold, scores, -np.inf)",
        _SCORES,
    ),
    Mistake(
        "the score is over the real number of records",
        f"{_P}private_runs.py",
        "drawn, task.validation.public_size, task.units)",
        "drawn, task.validation.number, task.units)",
        _SCORES,
    ),
    Mistake(
        "the released run is the one of the best exact count",
        f"{_P}private_runs.py",
        "    where = np.where(found, best.candidate, 0)\n",
        "    where = np.where(found, np.argmax(ran.units) if len(ran.units) else 0, 0)\n",
        (*_PUBLIC, *_SCORES),
    ),
    Mistake(
        "partitioned selections train the candidate of the best exact utility",
        f"{_P}tuners/partition_models.py",
        "        winning = members * plan.number + winner[members]\n",
        "        winner[members] = [int(np.argmax(scores[one])) for one in members]\n"
        "        winning = members * plan.number + winner[members]\n",
        _SCORES,
    ),
    Mistake(
        "without a hit the loop trains the candidate of the best exact utility",
        f"{_P}tuners/doubling.py",
        "(DEFAULT_CANDIDATE if ran.selected is None else ran.selected)",
        "(scores.index(max(scores)) if ran.selected is None else ran.selected)",
        (f"{_T}tuners/test_doubling.py::test_no_hit_at_all_trains_the_default_whatever_the_data",),
    ),
    Mistake(
        "the exponential mechanism breaks in favour of the best",
        f"{_P}tuners/exponential.py",
        "exponential_choice(scores, utility.exponential_rate(self.epsilon), below), {}",
        "max((exponential_choice(scores, utility.exponential_rate(self.epsilon), below)"
        " for _ in range(2)), key=scores.__getitem__), {}",
        _SCORES,
    ),
    Mistake(
        "permute-and-flip flips coins of twice the rate",
        "dpjax/randomness/exact_samplers.py",
        "index = waiting.pop()\n        if bernoulli_exp(rate *",
        "index = waiting.pop()\n        if bernoulli_exp(2 * rate *",
        _PERMUTED,
    ),
    Mistake(
        "permute-and-flip takes candidates in the order of their list",
        "dpjax/randomness/exact_samplers.py",
        "place = below(len(waiting))",
        "place = 0",
        _PERMUTED,
    ),
    Mistake(
        "permute-and-flip is charged as bounded-range",
        f"{_P}tuners/exponential.py",
        "return accounting.pure(self.epsilon, relation=relation)",
        "return accounting.exponential_mechanism(self.epsilon, relation=relation)",
        _PERMUTED,
    ),
    Mistake(
        "extrapolation: the line goes through the best exact counts",
        f"{_P}private_runs.py",
        "    where = np.where(found, best.candidate, 0)\n",
        "    where = np.where(found, np.argmax(ran.units) if len(ran.units) else 0, 0)\n",
        _EXTRAPOLATED["trained"],
    ),
    Mistake(
        "the server names the winner of counts without noise of their own",
        f"{_F}summed.py",
        "        return self._law.draw(self.entries, source, stream)",
        "        one = self._law.draw(self.entries, source, stream)\n"
        "        return np.full(self.entries, one[0]) if self.vector == 'ballot' else one",
        _FEDERATION,
    ),
    Mistake(
        "one noise for all entries of an update",
        f"{_F}summed.py",
        "        return self._law.draw(self.entries, source, stream)",
        "        one = self._law.draw(self.entries, source, stream)\n"
        "        return np.full(self.entries, one[0]) if self.vector == 'update' else one",
        _FEDERATION,
    ),
    Mistake(
        "the queries of one iteration share a noise",
        f"{_P}tuners/doubling.py",
        "    for index, score in enumerate(scores):\n"
        "        if score + discrete_laplace(query_scale, below) >= noisy_threshold:",
        "    shared = discrete_laplace(query_scale, below)\n"
        "    for index, score in enumerate(scores):\n"
        "        if score + shared >= noisy_threshold:",
        _RANDOM,
    ),
    # ---- which randomness is used
    Mistake(
        "permute-and-flip draws from a source of its own",
        f"{_P}tuners/exponential.py",
        "return permute_and_flip_choice(scores, utility.exponential_rate(self.epsilon), below)",
        "below = __import__('random').Random(0).randrange\n        "
        "return permute_and_flip_choice(scores, utility.exponential_rate(self.epsilon), below)",
        _RANDOM,
    ),
    Mistake(
        "keys from a seed although none was given",
        f"{_P}private_runs.py",
        "training.candidate_keys(total, seed=randomness.seed)",
        "training.candidate_keys(total, seed=randomness.seed or 0)",
        _RANDOM,
    ),
    Mistake(
        "the partitions' choice from a seed although none was given",
        f"{_P}tuners/partition_models.py",
        "own.uniform_integers(_STREAM_OF_SELECTION)",
        "HostRandomness(own.seed or 0).uniform_integers(_STREAM_OF_SELECTION)",
        _RANDOM,
    ),
    Mistake(
        "the partitions' key from a seed although none was given",
        f"{_P}tuners/partition_models.py",
        "randomness.words(4 * executions, _STREAM_OF_PARTITIONS)",
        "HostRandomness(randomness.seed or 0).words(4 * executions, _STREAM_OF_PARTITIONS)",
        _RANDOM,
    ),
    Mistake(
        "the partitions' models have keys of a seed although none was given",
        f"{_P}tuners/partition_models.py",
        "training.candidate_keys(models + 1, seed=randomness.seed)",
        "training.candidate_keys(models + 1, seed=randomness.seed or 0)",
        _RANDOM,
    ),
    Mistake(
        "the final training has a key of a seed although none was given",
        f"{_P}tuners/partition_models.py",
        "            randomness=own,\n",
        "            randomness=HostRandomness(own.seed or 0),\n",
        _RANDOM,
    ),
    Mistake(
        "the loop draws from a source of its own",
        f"{_P}tuners/doubling.py",
        "            variant=self.variant,\n            below=below,",
        "            variant=self.variant,\n"
        "            below=__import__('random').Random(0).randrange,",
        _RANDOM,
    ),
    Mistake(
        "the exponential mechanism draws from a source of its own",
        f"{_P}tuners/exponential.py",
        "return exponential_choice(scores, utility.exponential_rate(self.epsilon), below)",
        "below = __import__('random').Random(0).randrange\n"
        "        return exponential_choice(scores, utility.exponential_rate(self.epsilon), below)",
        _RANDOM,
    ),
    Mistake(
        "a run after a public search has a key of a seed although none was given",
        "dpjax/pareto/released_run.py",
        "training.candidate_keys(1, seed=seed)",
        "training.candidate_keys(1, seed=seed or 0)",
        _RANDOM,
    ),
    Mistake(
        "ballot noise from the public seed of the election",
        f"{_F}flower/noisy_vectors.py",
        "noisy_ballot(ballot, election.plan, HostRandomness())",
        "noisy_ballot(ballot, election.plan, HostRandomness(election.training.seed))",
        _FEDERATION,
    ),
    Mistake(
        "noise of an update from the number of the round",
        f"{_F}flower/noisy_vectors.py",
        "noisy_update(update, plan, HostRandomness())",
        "noisy_update(update, plan, HostRandomness(number))",
        _FEDERATION,
    ),
    Mistake(
        "every ballot has the noise of the first",
        f"{_F}summed.py",
        "self._law.draw(self.entries, source, stream)",
        "self._law.draw(self.entries, source, 0 if self.vector == 'ballot' else stream)",
        _FEDERATION,
    ),
    Mistake(
        "every update has the noise of the first",
        f"{_F}summed.py",
        "self._law.draw(self.entries, source, stream)",
        "self._law.draw(self.entries, source, 0 if self.vector == 'update' else stream)",
        _FEDERATION,
    ),
    # ---- how often, and from what law
    Mistake(
        "a run that failed is trained again under another key",
        f"{_P}runner.py",
        '        refuse_long(outputs.pop("longest", 0.0))\n',
        "        if not outputs['finite'].all() and run is not None:\n"
        "            again = training.candidate_keys(len(keys))\n"
        "            ((_, outputs),) = _alike(\n"
        "                procedure, hyperparameters, again, positions, placement, run\n"
        "            )\n",
        _ONCE,
    ),
    Mistake(
        "the selection is held again where no run could be released",
        f"{_P}tuners/random_repetitions.py",
        "        found, chosen = winners(executed)\n",
        "        if not winners(executed)[0].any():\n"
        "            executed = execute(plan, randomness=HostRandomness(), "
        "chunk_size=chunk_size)\n"
        "        found, chosen = winners(executed)\n",
        _ONCE,
    ),
    Mistake(
        "a final training that failed is done again",
        f"{_P}tuners/partition_models.py",
        "    utilities = np.asarray(scores, dtype=np.float64)",
        "    if not np.isfinite(final.best.score[0]):\n"
        "        final = execute(\n"
        "            _final_procedure(fixed, chosen),\n"
        "            randomness=HostRandomness(),\n"
        "            chunk_size=1,\n"
        "        )\n"
        "    utilities = np.asarray(scores, dtype=np.float64)",
        _ONCE,
    ),
    Mistake(
        "a run after a public search that failed is done again",
        "dpjax/pareto/released_run.py",
        "    if not finite:\n",
        "    if not finite:\n"
        "        (key,) = training.candidate_keys(1)\n"
        "        params, finite = whole_run(key, first, task.train.arrays)\n"
        "    if not finite:\n",
        _ONCE,
    ),
    Mistake(
        "a secret number of no rounds becomes one",
        f"{_P}selection.py",
        "return np.asarray(rounds.sample(executions, source=source)).reshape(executions) - 1",
        "return np.maximum(np.asarray(rounds.sample(executions, source=source)) - 1, 1)",
        _LAWS,
    ),
    Mistake(
        "few candidates are drawn without replacement",
        f"{_P}problem/space.py",
        "generator.choice(len(self.values), size=number, p=self.weights)",
        "generator.choice(len(self.values), size=number, p=self.weights,\n"
        "                             replace=number > len(self.values))",
        _LAWS,
    ),
    Mistake(
        "candidates drawn twice are drawn again",
        _SELECTION,
        _DRAWS,
        _DRAWS + "    for name, values in hyperparameters.items():\n"
        "        law = space.parameters[name]\n"
        "        for place in range(1, total):\n"
        "            if values[place] == values[place - 1] and law.describe()['law'] == 'choice':\n"
        "                values[place] = law.sample(1, np.random.default_rng())[0]\n",
        _LAWS,
    ),
    # ---- which public number is passed
    Mistake(
        "the real number of validation records is released",
        f"{_P}statements.py",
        '"public_size": problem.validation.public_size',
        '"public_size": (problem.task or problem).validation.number',
        _PUBLIC,
    ),
    Mistake(
        "the real number of training records is released",
        f"{_P}problem/inspection.py",
        '"size_bound": records.size_bound,',
        '"size_bound": records.number,',
        _PUBLIC,
    ),
    Mistake(
        "the capacity of a lot comes from the data",
        f"{_P}problem/problem.py",
        "            records.size_bound,\n            records.number if",
        "            records.number,\n            records.number if",
        _PUBLIC,
    ),
    Mistake(
        "the sampling rate is over the bound",
        f"{_P}problem/problem.py",
        "bound, rate = self.size_bound, self.lot_size / self.records",
        "bound, rate = self.size_bound, self.lot_size / self.size_bound",
        _PUBLIC,
    ),
    Mistake(
        "the sampling rate is over the real number of records",
        f"{_P}problem/problem.py",
        "            Sizes.of(task.train, run.sampling),\n",
        "            dataclasses.replace(\n"
        "                Sizes.of(task.train, run.sampling), public_size=task.train.number\n"
        "            ),\n",
        _PUBLIC,
    ),
    Mistake(
        "rate and steps come from the real number of records",
        f"{_P}problem/problem.py",
        "            records.public_size,\n            records.size_bound,",
        "            records.number,\n            records.size_bound,",
        _PUBLIC,
    ),
    Mistake(
        "overflow of lots is not charged",
        f"{_P}problem/problem.py",
        "return failure + accounting.truncation_probability(",
        "return failure + 0.0 * accounting.truncation_probability(",
        _PUBLIC,
    ),
    Mistake(
        "lots have a small capacity that is not charged",
        f"{_P}problem/problem.py",
        "failure_probability=TRUNCATION_PROBABILITY,",
        "failure_probability=1e-3,",
        _SEARCH,
    ),
    Mistake(
        "the failure of a run does not reach its guarantee",
        f"{_P}problem/problem.py",
        "            sampling_probability=lots.sampling_probability,\n"
        "            noise_multiplier=noise_multiplier,\n"
        "            steps=self.steps,\n"
        "            failure_probability=self.failure_probability,",
        "            sampling_probability=lots.sampling_probability,\n"
        "            noise_multiplier=noise_multiplier,\n"
        "            steps=self.steps,",
        _PUBLIC,
    ),
    Mistake(
        "a search's runs are of the nominal number of records",
        "dpjax/pareto/oracles.py",
        "shared = self.sampling, self.dataset_size, self.largest_size",
        "shared = self.sampling, self.dataset_size, self.dataset_size",
        _SEARCH,
    ),
    Mistake(
        "a search's lots are made for the nominal number of records",
        "dpjax/pareto/oracles.py",
        "return self.dataset_size if self.size_bound is None else self.size_bound",
        "return self.dataset_size",
        _SEARCH,
    ),
    Mistake(
        "a score in [0, 1] gets the noise of one unit, not of a record",
        f"{_P}private_runs.py",
        "score_noise=plan.score_noise * plan.task.units",
        "score_noise=plan.score_noise",
        _ANY_SCORE,
    ),
    Mistake(
        "a score in [0, 1] is charged as if a record moved the sum by one unit",
        f"{_P}problem/run_settings.py",
        "accounting.discrete_gaussian(std * units, units, relation=relation)",
        "accounting.discrete_gaussian(std * units, relation=relation)",
        _ANY_SCORE,
    ),
    Mistake(
        "scores are not clipped",
        f"{_P}problem/task.py",
        "jnp.clip(value, 0.0, 1.0)",
        "value",
        _ANY_SCORE,
    ),
    Mistake(
        "the sensitivity of averaged scores forgets their units",
        f"{_P}tuners/partitions.py",
        "of_training = self.units_of_a_model",
        "of_training = self.validation_size",
        _ANY_SCORE,
    ),
    Mistake(
        "utilities of partitions are over the real number of records",
        f"{_P}tuners/partition_models.py",
        "                problem.validation.public_size,\n"
        "                problem.validation_is_public,\n",
        "                (problem.task or problem).validation.number,\n"
        "                problem.validation_is_public,\n",
        (*_PUBLIC, *_SCORES),
    ),
    Mistake(
        "rows of padding count as records",
        f"{_P}tuners/partition_counts.py",
        "real = np.arange(records.size_bound) < records.number",
        "real = np.arange(records.size_bound) < records.size_bound",
        _SCORES,
    ),
    Mistake(
        "one survivor is enough in training rounds",
        f"{_F}flower/election.py",
        "minimum_survivors=plan.minimum_survivors,",
        "minimum_survivors=1 if plan.vector == 'update' else plan.minimum_survivors,",
        _FEDERATION,
    ),
    Mistake(
        "one survivor is enough in the vote",
        f"{_F}flower/election.py",
        "minimum_survivors=plan.minimum_survivors,",
        "minimum_survivors=1 if plan.vector == 'ballot' else plan.minimum_survivors,",
        _FEDERATION,
    ),
    Mistake(
        "a client's share of the noise is divided among all clients once more",
        f"{_F}summed.py",
        "return integer_laws.integer_law(self.noise, self.local_variance)",
        "return integer_laws.integer_law(self.noise, self.local_variance / self.settings.clients)",
        (f"{_REPEATED}a_vote_and_averaging_have_the_least_noise_that_their_plans_allow",),
    ),
    Mistake(
        "a run after a public search is trained with half of its noise",
        "dpjax/pareto/released_run.py",
        "values = hyperparameters_of_runs(given, [run])",
        "half = dataclasses.replace(run, noise_multiplier=run.noise_multiplier / 2)\n"
        "        values = hyperparameters_of_runs(given | {'noise_multiplier': np.array("
        "[half.noise_multiplier])}, [half])",
        (f"{_REPEATED}a_run_after_a_public_search_is_made_as_often_as_released",),
    ),
    Mistake(
        "one survivor is enough for an average",
        f"{_F}summed.py",
        "        return accounting.minimum_survivors(self.settings.clients, "
        "self.settings.missing_fraction)",
        "        return 1 if self.vector == 'update' else accounting.minimum_survivors("
        "self.settings.clients, self.settings.missing_fraction)",
        _FEDERATION,
    ),
    Mistake(
        "the noise of training counts on clients that may be missing",
        f"{_F}flower/election.py",
        "            missing_fraction=settings.missing_fraction,",
        "            missing_fraction=0.0,",
        _FEDERATION,
    ),
    # ---- what the folder holds
    Mistake(
        "the winner's index is released",
        f"{_P}tuner.py",
        "statement=tuner.statement(outcome.plan, secret=secret)",
        'statement=tuner.statement(outcome.plan, secret=secret) | {"winner": '
        "outcome.record.winner}",
        _PUBLIC,
    ),
    Mistake(
        "a selection releases K among its public words",
        f"{_P}tuner.py",
        "statement=tuner.statement(outcome.plan, secret=secret)",
        'statement=tuner.statement(outcome.plan, secret=secret) | {"runs": '
        "outcome.record.number_of_candidates}",
        _PUBLIC,
    ),
    Mistake(
        "a partitioned selection releases the accuracy of its final model",
        f"{_P}tuner.py",
        "statement=tuner.statement(outcome.plan, secret=secret)",
        "statement=tuner.statement(outcome.plan, secret=secret)\n"
        '        | {"correct": outcome.record.details.get("final_model_validation_accuracy")}',
        _PARTITIONED,
    ),
    Mistake(
        "a partitioned selection releases what its partitions held",
        f"{_P}tuners/partition_models.py",
        '"protection": _NO_PROTECTION',
        '"protection": f"{plan.problem.task and plan.task.train.number}: {_NO_PROTECTION}"',
        _PARTITIONED,
    ),
    Mistake(
        "a run after a public search releases the number of its records",
        "dpjax/pareto/released_run.py",
        '"public_data": public_data,',
        '"public_data": public_data, "records": records.number,',
        _SEARCH,
    ),
    Mistake(
        "a run after a public search releases its exact accuracy",
        "dpjax/pareto/released_run.py",
        "statements.rounded(setting), claim)",
        "statements.rounded(setting | {'seen': float(task.train.arrays.sum())}), claim)",
        _SEARCH,
    ),
    Mistake(
        "tune writes the exact test accuracy beside the release",
        "dpjax/commands/tune.py",
        '        result.release.save(os.path.join(partial, "release"))\n',
        '        result.release.save(os.path.join(partial, "release"))\n'
        '        with open(os.path.join(partial, "release", "test.json"), "w") as file:\n'
        "            file.write(str(test_accuracy))\n",
        _TUNE,
    ),
    Mistake(
        "tune writes the exact test accuracy into the claim",
        "dpjax/commands/tune.py",
        '        result.release.save(os.path.join(partial, "release"))\n',
        '        result.release.statement["test_accuracy"] = test_accuracy\n'
        '        result.release.save(os.path.join(partial, "release"))\n',
        _TUNE,
    ),
    Mistake(
        "tune writes the exact test accuracy among the hyperparameters",
        "dpjax/commands/tune.py",
        '        result.release.save(os.path.join(partial, "release"))\n',
        '        result.release.hyperparameters["test_accuracy"] = test_accuracy\n'
        '        result.release.save(os.path.join(partial, "release"))\n',
        _TUNE,
    ),
    Mistake(
        "a federation releases how many survived",
        f"{_F}flower/vote_release.py",
        "sealed(released, words)",
        'sealed(released, words | {"survivors": list(outcome.round_survivors)})',
        _FEDERATION,
    ),
    Mistake(
        "a release names what nothing read",
        f"{_P}problem/inspection.py",
        "        refuse_unread(self.task, self.optimizer, self.names)\n",
        "        pass\n",
        _UNREAD,
    ),
    # ---- a secret part of the records
    Mistake(
        "subset tuning: the part is drawn of a seed that everyone knows",
        _PART_FILE,
        "return randomness.words(number, _STREAM_OF_PART)",
        "return HostRandomness(0).words(number, _STREAM_OF_PART)",
        _WHO_SEES,
    ),
    Mistake(
        "subset tuning: the final training sees all records and is priced for the rest",
        _PART_FILE,
        "task = self.task if self.on_all else _task_of(self.task, ~in_part)",
        "task = self.task",
        _WHO_SEES,
    ),
    Mistake(
        "subset tuning: the final training sees the part",
        _PART_FILE,
        "task = self.task if self.on_all else _task_of(self.task, ~in_part)",
        "task = _task_of(self.task, in_part)",
        _WHO_SEES,
    ),
    Mistake(
        "subset tuning: a final training of all records is priced for the rest",
        _PART_FILE,
        "probability=self.probability, final_on=self.final_on",
        "probability=self.probability",
        (f"{_PART}a_final_training_of_all_records_is_priced_and_carried_out_as_such",),
    ),
    Mistake(
        "subset tuning: a lot in the space is released as that of all records",
        _PART_FILE,
        "named[LOT] = float(plan.settings[1].expected_lot_size)",
        "pass",
        (f"{_PART}a_lot_in_the_space_is_released_as_the_final_trainings_own",),
    ),
    Mistake(
        "subset tuning: the search sees all records",
        _PART_FILE,
        "task = _task_of(self.task, in_part)",
        "task = self.task",
        _WHO_SEES,
    ),
    Mistake(
        "subset tuning: lots of the part are divided by its real share of the records",
        _PART_FILE,
        "settings=self.settings[:1],",
        "settings=(dataclasses.replace(self.setting, share=float(in_part.mean())),),",
        _PART_LOTS,
    ),
    Mistake(
        "subset tuning: lots are divided by the size of lots of all records",
        "dpjax/tuning/runner.py",
        "lots, size = setting.lots, setting.expected_lot_size",
        "lots, size = setting.lots, setting.lot_size",
        _PART_LOTS,
    ),
    Mistake(
        "subset tuning: a job that goes on draws the part anew",
        _PART_FILE,
        'parts = drawn["in_part"].reshape(executions, -1)',
        "parts = drawn_part(plan.task.train.number, plan.probability, randomness)[None]",
        _PART_ONCE,
    ),
    Mistake(
        "subset tuning: the part stays in the folder when it is spent",
        _PART_FILE,
        '        arrays |= named(f"{_FINAL}{kind}", written_executed(final))\n',
        '        arrays |= named(f"{_FINAL}{kind}", written_executed(final))\n'
        '        arrays["in_part"] = in_part\n',
        _PART_ONCE,
    ),
    Mistake(
        "subset tuning: the selection is not charged to validation records",
        _PART_FILE,
        "            total = accounting.parallel(total, count)\n",
        "",
        _PART_PRICE,
    ),
    Mistake(
        "subset tuning: the final training is not charged",
        _PART_FILE,
        "        return accounting.split(\n",
        "        return choice.guarantee(train) or accounting.split(\n",
        _PART_PRICE,
    ),
    Mistake(
        "subset tuning: one run on the part is charged, not the best of K",
        _PART_FILE,
        "            choice.guarantee(train), train, probability",
        "            train, train, probability",
        _PART_PRICE,
    ),
    Mistake(
        "subset tuning: of a seed the final training has the first candidate's key",
        _PART_FILE,
        "randomness=_of_final_training(own),",
        "randomness=own,",
        (f"{_PART}of_a_seed_the_final_training_has_a_key_of_its_own",),
    ),
    # ---- micro-batches of a lot
    Mistake(
        "every micro-batch has noise of its own",
        _MICRO_FILE,
        "        return added(total, part)\n",
        "        key = jax.random.key(7)\n"
        "        part = jax.tree.map(lambda one: one + jax.random.normal(key, one.shape), part)\n"
        "        return added(total, part)\n",
        _MICRO,
    ),
    Mistake(
        "a last micro-batch that is part empty is dropped",
        _MICRO_FILE,
        "(count + np.uint32(size - 1)) // np.uint32(size)",
        "count // np.uint32(size)",
        _MICRO,
    ),
    Mistake(
        "a row's key is that of its place in the micro-batch",
        _MICRO_FILE,
        "else own(row_rngs)",
        "else row_rngs[:size]",
        _MICRO,
    ),
    Mistake(
        "the members of a lot are taken to stand first in it",
        _MICRO_FILE,
        "    places, live = compact(mask, -(-capacity // size) * size)\n",
        "    places = jnp.arange(-(-capacity // size) * size)\n"
        "    live = jnp.pad(mask, (0, len(places) - capacity))\n",
        _MICRO,
    ),
    Mistake(
        "contributions have an allowance for the rows of their micro-batch only",
        _MICRO_FILE,
        "keys, capacity, stored=True)",
        "keys, size, stored=True)",
        _MICRO,
    ),
    Mistake(
        "sums of micro-batches are rounded whenever one is added",
        _MICRO_FILE,
        "high, error = _two_sum(high, new)",
        "high, error = high + new, 0.0 * high",
        _MICRO,
    ),
    Mistake(
        "noise meets a total that was rounded",
        "dpjax/training/dp_sgd.py",
        "            lost,\n            draw=",
        "            None,\n            draw=",
        _MICRO,
    ),
    Mistake(
        "noise is added to what the total lacks, whole cells of it apart",
        "dpjax/randomness/noise.py",
        "parts + (exact_rest - whole_rest), whole_noise + whole_rest",
        "parts + (exact_rest - whole_rest), whole_noise",
        _MICRO,
    ),
    # ---- users
    Mistake(
        "a user's padding repeats a record of another user",
        "dpjax/training/users.py",
        "np.where(present, places, 0)",
        "np.where(present, places, -first[:, None])",
        _USERS,
    ),
    Mistake(
        "which records of a user count depends on where they stand among all",
        "dpjax/training/users.py",
        "place = np.arange(len(ids)) - np.repeat(first, counts)",
        "place = order",
        _USERS,
    ),
    Mistake(
        "a user's loss is the sum over its records",
        "dpjax/training/users.py",
        "        return mean_of_present(losses, user.present)\n",
        "        return jnp.sum(jnp.where(user.present, losses, 0))\n",
        _USERS,
    ),
    Mistake(
        "a user may stand in training and in validation",
        f"{_P}problem/task.py",
        " or len(np.intersect1d(ids[0], ids[1]))",
        "",
        _USER_TASKS,
    ),
    Mistake(
        "lots are of users, and losses of one record of them",
        f"{_P}problem/task.py",
        "        return grouping.per_user(self.loss, with_rng=self.with_rng)",
        "        return lambda params, user, *rest: self.loss(\n"
        "            params, jax.tree.map(lambda leaf: leaf[0], user.records), *rest)",
        _USER_TASKS,
    ),
    Mistake(
        "a release of users claims nothing but a record",
        f"{_P}problem/task.py",
        "    if users is not None:\n        one =",
        "    if False:\n        one =",
        _USER_TASKS,
    ),
    # ---- what the loss is given
    Mistake(
        "the loss is given every hyperparameter of a run",
        "dpjax/training/dp_sgd.py",
        "read = {name: hyperparameters[name] for name in config.loss_reads}",
        "read = dict(hyperparameters) if config.loss_reads else {}",
        _READS,
    ),
    Mistake(
        "the loss may read what is no hyperparameter of the space",
        f"{_P}problem/inspection.py",
        "missing = sorted(set(task.loss_reads) - own)",
        "missing = sorted(set(task.loss_reads) - own - set(values) - {'partition'})",
        _READS,
    ),
    # ---- what an optimiser is told
    Mistake(
        "an optimiser is told the noise multiplier for the noise",
        "dpjax/training/dp_sgd.py",
        "gradient_noise = noise_std / expected_lot_size",
        "gradient_noise = noise_multiplier * clip_norm / expected_lot_size",
        ("tests/training/test_optimizers.py",),
    ),
    # ---- norms and sums of kernels that are functions of parameters
    Mistake(
        "norm of a masked kernel's gradient, without the mask",
        f"{_CLIP_FOLDER}factored_norms.py",
        "matrix = jnp.broadcast_to(blocks[number] * blocks[other], shape)",
        "matrix = jnp.ones(shape, square.dtype)",
        _KERNELS,
    ),
    Mistake(
        "sum of a masked kernel's gradients, without the mask",
        f"{_CLIP_FOLDER}leaf_plans.py",
        "_weighted(term.weighted_sum(left, right, weights), entry)",
        "term.weighted_sum(left, right, weights)",
        _KERNELS,
    ),
    Mistake(
        "terms that cancel have no slack",
        f"{_CLIP_FOLDER}factored_norms.py",
        "slack = _PRODUCT_ROUNDING * jnp.square(added) + underflow(count, value.dtype)",
        "slack = jnp.full_like(value, underflow(count, value.dtype))",
        (
            "tests/training/clipping/test_bounded.py::test_a_norm_that_rounding_lef"
            "t_nothing_of_is_bounded_by_what_was_added",
        ),
    ),
    Mistake(
        "norms of patches leave out a tap",
        f"{_CLIP_FOLDER}convolution_rule.py",
        """        padded = self._padded(self._padded(inner, first), second)
        for tap in itertools.product(*map(range, self.taps)):""",
        """        padded = self._padded(self._padded(inner, first), second)
        for tap in list(itertools.product(*map(range, self.taps)))[1:]:""",
        _MODELS,
    ),
    Mistake(
        "the gradient of a branch not taken counts",
        f"{_CLIP_FOLDER}kernel_functions.py",
        "return jnp.clip(number.astype(jnp.int32), 0, cases - 1) == case",
        "return jnp.clip(number.astype(jnp.int32), 0, cases - 1) >= case",
        _KERNELS,
    ),
    Mistake(
        "the gradient of one expert goes to all",
        f"{_CLIP_FOLDER}kernel_functions.py",
        "return jnp.where(here, rows, 0).reshape(*rows.shape[:2], -1)",
        "return jnp.where(here | True, rows, 0).reshape(*rows.shape[:2], -1)",
        _KERNELS,
    ),
    Mistake(
        "sums of products forget a constant factor",
        f"{_CLIP_FOLDER}kernel_functions.py",
        "total += term.scale * _sum_over(",
        "total += _sum_over(",
        _KERNELS,
    ),
    # ---- one lot over several devices
    Mistake(
        "every device of a mesh has noise of its own",
        _MESH_FILE,
        "            return jax.lax.all_gather(piece, AXIS, tiled=True)\n",
        "            key = threefry.fold_in(key, jax.lax.axis_index(AXIS))\n"
        "            return threefry.dithered_normal(key, number, scale) + 0.0 * piece[0]\n",
        _MESH,
    ),
    Mistake(
        "every device of a mesh makes the same piece of the noise",
        _MESH_FILE,
        "threefry.dithered_normal(key, length, scale, start=start)",
        "threefry.dithered_normal(key, length, scale)",
        _MESH,
    ),
    Mistake(
        "noise is added to every device's sum",
        _MESH_FILE,
        "        if self.size == 1:\n            return own\n",
        "        if self.size == 1:\n            return own\n"
        "        key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index(AXIS))\n"
        "        own = jax.tree.map(lambda a: a + 0.3 * jax.random.normal(key, a.shape), own)\n",
        _MESH,
    ),
    Mistake(
        "every device of a mesh takes every micro-batch",
        _MESH_FILE,
        "share = jax.lax.axis_index(AXIS), self.size",
        "share = 0, 1",
        _MESH,
    ),
    Mistake(
        "contributions to a spread sum have an allowance for their device's rows only",
        _MESH_FILE,
        "            share = jax.lax.axis_index(AXIS), self.size\n",
        "            share = jax.lax.axis_index(AXIS), self.size\n"
        "            lot = tuple(part[: self.share_of(part.shape[0])] for part in lot)\n",
        _MESH,
    ),
    Mistake(
        "threads make some normal numbers twice",
        "dpjax/randomness/threefry.py",
        "start + row * np.uint32(_ROW) + column",
        "start + row * np.uint32(_ROW - 1) + column",
        ("tests/randomness/test_threefry.py",),
    ),
    # ---- stages at small epsilons, and the line through them
    Mistake(
        "extrapolation: one stage alone is charged",
        _STAGED_FILE,
        "accounting.compose(*(_paid(stage) for stage in stages))",
        "_paid(stages[-1])",
        _EXTRAPOLATED["charged"],
    ),
    Mistake(
        "extrapolation: stages are charged as one run",
        _STAGED_FILE,
        "    return stage.guarantee\n",
        "    return stage.run_guarantee\n",
        _EXTRAPOLATED["charged"],
    ),
    Mistake(
        "extrapolation: stages are trained with the final training's noise",
        _STAGED_FILE,
        "else plan.stages[number],",
        "else dataclasses.replace(plan.stages[number], settings=(plan.setting,)),",
        _EXTRAPOLATED["trained"],
    ),
    Mistake(
        "extrapolation: under a seed stages and final training share keys and noise",
        "dpjax/randomness/host_randomness.py",
        "(self.seed, stream, part)",
        "(self.seed, stream)",
        _EXTRAPOLATED["trained"],
    ),
    Mistake(
        "extrapolation: a value may leave the public law",
        "experiments/figures/leaderboard/extrapolation.py",
        "np.clip(reached / steps, law.lowest, law.highest)",
        "reached / steps",
        _EXTRAPOLATED["clamped"],
    ),
    Mistake(
        "extrapolation: a stage that found nothing is left out of the line",
        "experiments/figures/leaderboard/extrapolation.py",
        "found = np.all(np.isfinite(heights), axis=1)",
        "found = np.any(np.isfinite(heights), axis=1)",
        _EXTRAPOLATED["nothing"],
    ),
    Mistake(
        "extrapolation: a job that goes on draws its stages anew",
        _STAGED_FILE,
        "job=job.inner(part),",
        "job=job.inner(part) if part == _FINAL else Job(),",
        _EXTRAPOLATED["redrawn"],
    ),
    Mistake(
        "extrapolation: a final training's key serves whatever was extrapolated",
        f"{_P}problem/space.py",
        "return {name: given[name].tolist() for name in sorted(given)}",
        "return {name: None for name in sorted(given)}",
        _EXTRAPOLATED["goes on"],
    ),
    # ---- which rule clips
    Mistake(
        "clip rule: a sweep goes on from checkpoints of another rule",
        "dpjax/training/sweep/slots.py",
        "        for field in dataclasses.fields(TrainConfig):\n",
        "        for field in dataclasses.fields(TrainConfig):\n"
        "            if field.name == 'clipping':\n"
        "                continue\n",
        ("tests/training/sweep/test_checkpoints.py::test_another_sweep_is_refused",),
    ),
    Mistake(
        "clip rule: shares of groups are taken as they are given",
        "dpjax/training/clipping/clip_rules.py",
        "shares[name] / whole",
        "shares[name]",
        _CLIP,
    ),
    Mistake(
        "clip rule: groups that are finite of a row that fails still count",
        "dpjax/training/clipping/clipped_grad.py",
        "_clip_weights(square, allowed, live, held_back, stability)",
        "_clip_weights(square, allowed, mask & jnp.isfinite(square), held_back, stability)",
        _CLIP,
    ),
    Mistake(
        "clip rule: automatic clipping goes by norms without their rounding and underflow",
        "dpjax/training/clipping/clipped_grad.py",
        "square = sum(one.value + one.slack for one in own)",
        "square = sum(one.value for one in own)",
        (_WEIGHTS,),
    ),
    Mistake(
        "clip rule: candidates are trained by another rule than is stated",
        f"{_P}runner.py",
        "setting, job, problem.clipping",
        "setting, job, training.GlobalClipping()",
        _CLIP_TUNED,
    ),
    Mistake(
        "clip rule: a folder that was begun with another rule goes on",
        f"{_P}private_runs.py",
        '        "clipping": plan.problem.clipping.describe(),\n',
        "",
        _CLIP_TUNED,
    ),
    Mistake(
        "DPareto: processes side by side overwrite each other's rows",
        "experiments/figures/rows.py",
        "held.enter_context(private_files.locked(lock, self.path))",
        "pass",
        _TRAINED,
    ),
    Mistake(
        "DPareto: a search's rows take the place of others of its problem",
        f"{_DPARETO}trained_searches.py",
        "if any(row[column] != key[column] for column in key)",
        "if all(row[column] != key[column] for column in key)",
        _TRAINED,
    ),
    Mistake(
        "DPareto: rows of fewer records pass for the full size",
        f"{_DPARETO}trained_searches.py",
        "there = {column: row.get(column) for column in RAN_COLUMNS}",
        'there = due | {"data_set": row["data_set"]}',
        _TRAINED,
    ),
    Mistake(
        "DPareto: rows of digits say Adult",
        f"{_DPARETO}trained_searches.py",
        '"data_set": DATA_SETS[dataset],',
        '"data_set": DATA_SETS[problems.PROBLEMS[problem].dataset],',
        _TRAINED,
    ),
    Mistake(
        "DPareto: every round measures a front on the same repetitions",
        "dpjax/pareto/search.py",
        "(seed, _FRESH, turn, int(place))",
        "(seed, _FRESH, 0, int(place))",
        ("tests/pareto/test_search.py",),
    ),
    Mistake(
        "DPareto: a finer class of lots is too small for them",
        "dpjax/pareto/repeated_runs.py",
        "family, capacity=max(family.capacity, min(rounded, family.size // 2))",
        "family, capacity=min(rounded // 4 * 4, family.size // 2)",
        ("tests/pareto/test_oracles.py",),
    ),
    Mistake(
        "training: a negative clip norm gets hardly any noise",
        "dpjax/training/dp_sgd.py",
        "sound = (noise_multiplier >= 0.0) & (clip_norm >= 0.0)",
        "sound = True",
        ("tests/training/test_dp_sgd.py::test_what_is_negative_trains_nothing",),
    ),
    Mistake(
        "training: rows that are none are read as the last one, many times in a lot",
        "dpjax/training/dp_sgd.py",
        "found.append((first_record >= 0) & (first_record <= last))",
        "pass",
        (
            "tests/training/test_dp_sgd.py::test_a_traced_first_record_that_is_no_r"
            "ow_trains_nothing",
        ),
    ),
    Mistake(
        "training: every entry has a noise multiplier of its own",
        "dpjax/training/dp_sgd.py",
        "        if shape != ():\n            raise ValueError(\n",
        "        if False:\n            raise ValueError(\n",
        (
            "tests/training/test_dp_sgd.py::"
            "test_one_run_takes_one_clip_norm_and_one_noise_multiplier",
        ),
    ),
    Mistake(
        "training: automatic clipping overflows for some records alone",
        "dpjax/training/dp_sgd.py",
        "sound &= clip_norm <= LARGEST_SCALED",
        "pass",
        (
            "tests/training/test_dp_sgd.py::"
            "test_automatic_clipping_to_a_clip_norm_that_overflows_trains_nothing",
        ),
    ),
    Mistake(
        "a mixed sweep's fixed lots leave records out",
        "dpjax/training/dp_sgd.py",
        "        lots.check_number(int(number_of_records))\n",
        "        pass\n",
        ("tests/training/sweep/test_mixed.py::test_bad_input_is_refused_by_the_call",),
    ),
    Mistake(
        "clipping: the norm is of a gradient that is computed anew where it is added up",
        "dpjax/training/clipping/jaxpr_graph.py",
        "environment[value] = formed_once(result) if value in once else result",
        "environment[value] = result",
        (
            "tests/training/clipping/test_bounded.py::"
            "test_each_wanted_value_has_one_producer_in_the_compiled_program",
        ),
    ),
    Mistake(
        "clipping: rows that a program has just computed count as stored",
        "dpjax/training/clipping/clipped_grad.py",
        "            stored = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)\n",
        "            stored = True\n",
        ("tests/training/clipping/test_formed_once.py",),
    ),
    Mistake(
        "clipping: a barrier that the compiler drops",
        "dpjax/training/clipping/formed_once.py",
        "cpu=chosen, default=barred",
        "cpu=barred, default=barred",
        (
            "tests/training/clipping/test_bounded.py::"
            "test_each_wanted_value_has_one_producer_in_the_compiled_program",
        ),
    ),
    Mistake(
        "clipping: what a loop forms counts as standing in memory",
        "dpjax/training/clipping/jaxpr_graph.py",
        "    return False\n\n\ndef number_of",
        '    return operation.name == "scan"\n\n\ndef number_of',
        ("tests/training/clipping/test_formed_once.py",),
    ),
    Mistake(
        "clipping: what underflow takes from inner products is not counted",
        "dpjax/training/clipping/factored_norms.py",
        "jnp.maximum(squares, 0) + underflow(2.0**24 * features, squares.dtype)",
        "jnp.maximum(squares, 0)",
        (
            "tests/training/clipping/test_bounded.py::test_no_scale_of_the_factors_"
            "makes_a_contribution_exceed_the_clip_norm",
        ),
    ),
    Mistake(
        "clipping: clip norms beyond float32's reach are taken as they are",
        "dpjax/training/clipping/clipped_grad.py",
        "    most = jnp.where(most < held_back.least, most * 0.0, most)\n",
        "",
        ("tests/training/clipping/test_bounded.py::test_a_clip_norm_beyond_float32_is_zero",),
    ),
    Mistake(
        "clipping: constant factors far from one stay with their factors",
        "dpjax/training/clipping/leaf_plans.py",
        "if min(scales) < _LEAST_SCALE or max(scales) > 1 / _LEAST_SCALE:",
        "if False:",
        (
            "tests/training/clipping/test_bounded.py::test_a_constant_factor_far_fr"
            "om_one_leaves_no_factors",
        ),
    ),
    Mistake(
        "clipping: the rounding of a sum is bounded by the clip norm where terms cancel",
        "dpjax/training/clipping/clipped_grad.py",
        "return HeldBack(share, rounded / share if cancels else 0.0, least)",
        "return HeldBack(share, 0.0, least)",
        (_WEIGHTS,),
    ),
    Mistake(
        "clipping: a row is live whose bound on rounding is not finite",
        "dpjax/training/clipping/clipped_grad.py",
        "jnp.isfinite(sum(square.value + square.slack for square in squares))",
        "jnp.isfinite(sum(square.value for square in squares))",
        (
            "tests/training/clipping/test_bounded.py::test_a_row_whose_bound_overfl"
            "ows_counts_as_infinite",
        ),
    ),
    Mistake(
        "checked contributions: those above the clip norm are let through",
        "dpjax/training/contribution_check.py",
        "if not found <= 1.0:",
        "if found > 1.0 and not found:",
        ("tests/training/test_contribution_check.py",),
    ),
    Mistake(
        "checked contributions: the sum of a run that failed stays a number",
        "dpjax/training/contribution_check.py",
        "jnp.where(longest <= 1.0, leaf, jnp.nan)",
        "leaf",
        ("tests/training/test_contribution_check.py",),
    ),
    Mistake(
        "checked contributions: always of the same rows",
        "dpjax/training/contribution_check.py",
        "jax.random.uniform(key, mask.shape)",
        "jnp.linspace(0, 1, len(mask))",
        ("tests/training/test_contribution_check.py",),
    ),
    Mistake(
        "checked contributions: a job does not look at them",
        "dpjax/tuning/runner.py",
        '        refuse_long(outputs.pop("longest", 0.0))\n',
        '        outputs.pop("longest", None)\n',
        ("tests/training/test_contribution_check.py",),
    ),
    Mistake(
        "clipping: a negative clip norm bounds nothing",
        "dpjax/training/clipping/clipped_grad.py",
        "    most = jnp.where(most >= 0, most, jnp.nan)\n",
        "",
        ("tests/training/clipping/test_clipped_grad.py::test_limits_of_the_clip_norm",),
    ),
    Mistake(
        "clipping: groups of ones own may exceed the clip norm",
        "dpjax/training/clipping/clipped_grad.py",
        "        _check_bound(self.clipping, groups, len(names))\n",
        "",
        ("tests/training/clipping/test_clip_rules.py",),
    ),
    Mistake(
        "public search: a negative clip norm is run",
        "dpjax/pareto/oracles.py",
        'if not np.all(np.asarray(settings.get("clip_norm", 1.0)) > 0):',
        "if False:",
        (f"{_T}test_wiring_failures.py",),
    ),
    Mistake(
        "task: one set of records stands in both parts",
        f"{_P}problem/task.py",
        "        check_disjoint(self.train, self.validation)\n",
        "",
        (f"{_T}problem/test_task.py",),
    ),
    Mistake(
        "space: a law from elsewhere draws otherwise than it is priced",
        f"{_P}problem/space.py",
        "name: _as_priced(name, law).sample(number, generator)",
        "name: law.sample(number, generator)",
        (f"{_T}problem/test_space.py",),
    ),
    Mistake(
        "bridge to Optuna: what some trials lack is priced by the others",
        "dpjax/bridges/optuna.py",
        "if any(one.distributions.get(name) != first for one in trials):",
        "if False:",
        ("tests/bridges/test_optuna.py",),
    ),
    Mistake(
        "bridge to Optuna: others may read a private study's storage",
        "dpjax/bridges/optuna.py",
        "os.O_EXCL, 0o600)",
        "os.O_EXCL, 0o666)",
        ("tests/bridges/test_optuna.py::test_every_file_of_a_storage_is_closed_to_others",),
    ),
    Mistake(
        "bridge to Optuna: a private study's storage has a price, exact counts and all",
        "dpjax/bridges/optuna.py",
        "    if any(EXACT_COUNT in one.user_attrs for one in trials):\n",
        "    if False:\n",
        ("tests/bridges/test_optuna.py::test_a_private_study_releases_one_winner_that_verifies",),
    ),
    Mistake(
        "a warning of a loss depends on the records",
        f"{_P}problem/inspection.py",
        "    warn_unless_finite(tried, one_record(task.train.single))\n",
        "    own = jax.tree.map(lambda leaf: leaf[0], task.train.single)\n"
        "    if not np.isfinite(tried(own)[0]):\n"
        "        warnings.warn('not finite', UselessLossWarning, stacklevel=2)\n",
        ("tests/tuning/problem/test_loss_checks.py",),
    ),
    Mistake(
        "folders: the choice stays in a finished folder",
        f"{_P}job.py",
        '    "choice.npz",\n',
        "",
        (f"{_LOST}[exponential]",),
    ),
    Mistake(
        "folders: exact counts stay in a finished folder",
        f"{_P}job.py",
        '    "partition_counts_*.npz",\n',
        "",
        (f"{_LOST}[exponential]",),
    ),
    Mistake(
        "folders: folders within stay in a finished one",
        f"{_P}job.py",
        '    f"{_INNER}*",\n',
        "",
        (f"{_LOST}[extrapolation]",),
    ),
    Mistake(
        "folders: what a killed write left, keys in it, stays in a finished one",
        f"{_P}job.py",
        '    ".partial.*",',
        '    "partial.*",',
        (f"{_T}test_job.py::test_what_a_killed_write_left_goes_with_the_draw",),
    ),
    *(
        Mistake(
            f"folders: of {of} bound to no settings",
            f"{_P}{file}",
            f'        "settings": {settings},\n',
            "",
            tuple(f"{_BOUND}[run.{field}]" for field in ("steps", "noise_multiplier")),
        )
        for of, file, settings in (
            (
                "runs",
                "private_runs.py",
                "[dataclasses.astuple(setting) for setting in plan.settings]",
            ),
            ("partitions", "tuners/partition_models.py", "dataclasses.astuple(plan.setting)"),
            ("a part", "tuners/subset_tuning.py", "dataclasses.astuple(plan.setting)"),
        )
    ),
    *(
        Mistake(
            f"folders: of {of} bound to no noise of the score",
            f"{_P}{file}",
            f'        "score noise": {noise},\n',
            "",
            (f"{_BOUND}_of_its_tuner[{tuner}-score_noise]",),
        )
        for of, file, noise, tuner in (
            ("runs", "private_runs.py", "plan.score_noise", "random_repetitions"),
            ("a part", "tuners/subset_tuning.py", "plan.score_noise", "subset_tuning"),
        )
    ),
    Mistake(
        "folders: of runs elsewhere bound to no noise of the score",
        f"{_BRIDGES}any_run.py",
        "[score.records, score.public_size, score.noise]",
        "[score.records, score.public_size]",
        ("tests/conformance/test_identity.py::test_a_bridges_folder_is_bound_to_every_argument",),
    ),
    Mistake(
        "folders and checkpoints: a key that only one side has is no difference",
        "dpjax/checks.py",
        "if name not in one or one[name] != other.get(name)]",
        "if name in one and one[name] != other.get(name)]",
        (
            "tests/conformance/test_identity.py::test_a_folder_of_which_one_key_differs_is_refused",
            f"{_SWEEPS}a_sweep_of_which_one_key_differs_is_refused",
        ),
    ),
    Mistake(
        "checkpoints: a sweep goes on with other records",
        "dpjax/training/sweep/slots.py",
        '            "data": [jax.tree.structure(data), *jax.tree.leaves(data)],\n',
        "",
        (f"{_SWEEPS}another_sweep_is_refused[data]",),
    ),
    Mistake(
        "checkpoints: what finished counts, though the save with it was cut short",
        "dpjax/training/sweep/checkpoints.py",
        "                os.remove(self._path(_FINISHED, number))\n",
        "                self._next += 1\n",
        (f"{_SWEEPS}what_finished_after_the_last_complete_save_is_trained_again",),
    ),
    Mistake(
        "checkpoints: damage is not noticed",
        "dpjax/array_files.py",
        'raise ValueError("the hash does not match the arrays")',
        "pass",
        (f"{_T}test_job.py::test_no_damage_to_a_file_changes_an_array",),
    ),
    Mistake(
        "checkpoints: a candidate that is in a slot and has finished is no damage",
        "dpjax/training/sweep/sweep.py",
        "if sorted(kept + [index for index in in_slots if index >= 0]) != sorted(met):",
        "if set(kept) | {index for index in in_slots if index >= 0} != set(met):",
        (f"{_SWEEPS}saves_that_do_not_fit_together_are_damaged",),
    ),
    Mistake(
        "ledger: only the first 64 records are hashed",
        f"{_P}ledger.py",
        "for parts in zip(*rows)",
        "for parts in list(zip(*rows))[:64]",
        (f"{_T}test_ledger.py::test_kept_hashes_are_the_smallest_of_all_records_in_any_order",),
    ),
    Mistake(
        "ledger: only 64 hashes are kept",
        f"{_P}ledger.py",
        "_KEPT_HASHES = 256",
        "_KEPT_HASHES = 64",
        (
            f"{_T}test_ledger.py::test_each_single_record_of_a_small_data_set_is_known_wherever_it_stands",
        ),
    ),
    Mistake(
        "audits: a bound is read off the half that chose the event",
        "dpjax/auditing/lower_bounds.py",
        "    seen = halves.counted(halves.chosen(shown))\n",
        "    seen = halves.chosen(shown)\n",
        (_CHOOSE,),
    ),
    *(
        Mistake(
            f"price of a study: the setting that is listed {which} is charged",
            f"{_BRIDGES}study_price.py",
            "return accounting.parallel(*costs)",
            f"return costs[{place}]",
            ("tests/bridges/test_study_price.py",),
        )
        for which, place in (("first", 0), ("last", -1))
    ),
    *(
        Mistake(
            f"bridge to Optuna: a storage that {who} may come near is taken",
            f"{_BRIDGES}optuna.py",
            "if mode & (stat.S_IRWXG | stat.S_IRWXO):",
            f"if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.{bit}:",
            ("tests/bridges/test_storage_modes.py",),
            needs="optuna",
        )
        for who, bit in (("a reading group", "S_IRGRP"), ("a reader", "S_IROTH"))
    ),
    *(
        Mistake(
            f"private files: {what}",
            "dpjax/private_files.py",
            old,
            new,
            ("tests/test_private_files.py",),
        )
        for what, old, new in (
            (
                "a folder that its group may read",
                "_OTHERS = stat.S_IRWXG |",
                "_OTHERS = stat.S_IWGRP |",
            ),
            (
                "a folder that others may pass",
                "| stat.S_IRWXO\n",
                "| stat.S_IRWXO & ~stat.S_IXOTH\n",
            ),
            ("a file that others may write", "stat.S_IWGRP | stat.S_IWOTH)", "stat.S_IWGRP)"),
        )
    ),
    Mistake(
        "tables: rows that go by an identifier's column are said to stay under replace-one",
        "dpjax/data/tables.py",
        "stable_under_replacement=identified_by == user_arrays.SLOT",
        "stable_under_replacement=identified_by != user_arrays.CONTENT",
        ("tests/data/test_own_tables.py",),
    ),
    Mistake(
        "tables: rows that go by their content are said to stay under replace-one",
        "dpjax/data/tables.py",
        "stable_under_replacement=identified_by == user_arrays.SLOT",
        "stable_under_replacement=identified_by != user_arrays.GIVEN",
        ("tests/data/test_own_tables.py",),
    ),
]


def _of_several() -> list[Mistake]:
    """In refusals of one of several `any` for `all` or the reverse; see `helpers/any_of.py`."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import any_of

    test = (
        "tests/conformance/test_one_of_several.py::test_one_of_several_is_refused_whichever_it_is"
    )
    return [
        Mistake(
            f"any <-> all: {place.name}",
            place.file,
            place.text,
            place.mistaken,
            (f"{test}[{place.name}]",),
        )
        for place in any_of.places()
        if place.name not in any_of.FREE
    ]


MISTAKES += _of_several()


def copied(into: pathlib.Path) -> None:
    """Copies what tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
            shutil.copytree(source, into / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, into / name)


def run(mistake: Mistake, tree: pathlib.Path) -> str:
    """Plants, runs the tests, takes back; returns "noticed", "MISSED" or why not planted."""
    path = tree / mistake.file
    text = path.read_text()
    if text.count(mistake.old) != 1:
        return f"NOT PLANTED: its text occurs {text.count(mistake.old)} times in {mistake.file}"
    path.write_text(text.replace(mistake.old, mistake.new))
    try:
        code = _tested(mistake.tests, tree)
    finally:
        path.write_text(text)
    return {0: "MISSED", 1: "noticed"}.get(code, f"NOT RUN: pytest ended with {code}")


def _tested(tests: Sequence[str], tree: pathlib.Path) -> int:
    """Exit code of pytest on the tests of a tree.

    In a child of this process, which has imported what is slow to import and nothing of the tree.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        os.chdir(tree)
        sys.path[0] = str(tree)
        silent = os.open(os.path.join(tree, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(arguments: list[str]) -> int:
    """Plants the mistakes that are asked for; returns the exit code."""
    chosen = [
        mistake
        for mistake in MISTAKES
        if not [word for word in arguments if not word.startswith("-")]
        or any(word in mistake.name for word in arguments)
    ]
    if "--list" in arguments:
        print("\n".join(f"{mistake.file}: {mistake.name}" for mistake in chosen))
        return 0
    sys.dont_write_bytecode = True
    import flax.linen  # noqa: F401
    import jax  # noqa: F401
    import optax  # noqa: F401
    import scipy.stats  # noqa: F401

    failures = 0
    without = [one for one in chosen if one.needs and not importlib.util.find_spec(one.needs)]
    chosen = [mistake for mistake in chosen if mistake not in without]
    for mistake in without:
        print(f"left out, since it needs {mistake.needs}: {mistake.name}")
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        copied(tree)
        tests = {test for mistake in chosen for test in mistake.tests}
        once = [test for test in tests if "::" not in test or test.split("::")[0] not in tests]
        if "--planted-only" not in arguments and _tested(sorted(once), tree) != 0:
            print((tree / "log").read_text())
            print("the tests fail without any mistake: nothing was planted")
            return 1
        for mistake in chosen:
            found = run(mistake, tree)
            failures += found != "noticed"
            print(f"{found}: {mistake.name}", flush=True)
    print(f"{len(chosen) - failures} of {len(chosen)} mistakes were noticed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
