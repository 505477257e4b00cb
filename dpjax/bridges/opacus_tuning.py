"""Random repetitions over a training with Opacus.

Nicolas Papernot and Thomas Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR
2022, https://arxiv.org/abs/2110.03620, as in `bridges.tune`. PyTorch is imported when it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from dpjax import accounting, checks
from dpjax.bridges import any_run
from dpjax.bridges.candidates import Candidates, Label
from dpjax.bridges.counted_score import CountedScore
from dpjax.bridges.kept import code
from dpjax.bridges.outcomes import Callback
from dpjax.tuning.job import Job
from dpjax.tuning.ledger import Ledger
from dpjax.tuning.problem.space import Space
from dpjax.tuning.tuner import Result
from dpjax.tuning.tuners.random_repetitions import DEFAULT_REPETITIONS

if TYPE_CHECKING:
    from dpjax.bridges.opacus_engine import DeclaredSteps

Train = Callable[[Any, dict[str, Label]], tuple[Any, Any]]
"""(engine, hyperparameters) -> (private module, number of correct predictions)."""


def tune(
    train: Train,
    space: Space | Candidates,
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    score: CountedScore,
    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS,
    delta: float = 1e-5,
    model: str = "the caller's own",
    default: Any = None,
    executor: Executor | None = None,
    on_outcome: Callback | None = None,
    job: Job | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> Result:
    """Trains a secret random number of candidates with Opacus and releases the best one.

    Arguments that are not listed, and warnings, are as in `bridges.tune`.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      add-or-remove one, as `bridges.tune` has it with `accounting.dp_sgd(sample_rate,
      noise_multiplier, steps)` as the guarantee of one run, if the training is what it declares.
      Declared are three public numbers. Enforced for each candidate (`CandidateEngine`): its noise
      multiplier, Poisson-sampled lots at the sample rate, at most as many steps, a step a lot, no
      step without noise, the private module returned; noise and lots from two generators that hold
      all bits of the candidate's secret seed. A run that contradicts its declaration is not ranked
      worst: it ends the tuning with a RuntimeError, and nothing is released. Not seen from here: a
      training that reads private records beside its loader (to stop early, to choose weights), or
      the number of records, but for the number of lots, which is taken to be public; a record whose
      gradient depends on others (a loss that is not the mean or the sum over the lot, as
      loss_reduction says; layers that mix records); a weight set by hand. Noise is PyTorch's, in
      floating point, of the Mersenne Twister on a CPU and of Philox on CUDA, which are assumed to
      be indistinguishable from true randomness to whoever sees the released model. The rest is as
      `bridges.tune` says.

    Example:

    ```python
    def train(engine, hyperparameters):
        module = torch.nn.Linear(20, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=hyperparameters["rate"])
        module, optimizer, lots = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=DataLoader(records, batch_size=100),
            max_grad_norm=1.0,
        )
        for features, labels in lots:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
        return module, number_correct(module, validation)


    result = opacus.tune(
        train,
        tuning.Space(rate=tuning.LogUniform(0.01, 1.0)),
        noise_multiplier=1.0,
        sample_rate=1 / 50,
        steps=50,
        score=bridges.CountedScore("disjoint", public_size=1000),
    )
    ```

    Args:
      train: (engine, hyperparameters) -> (module, number of correct predictions). The engine is a
        `CandidateEngine`: its `make_private` is Opacus' without noise_multiplier,
        poisson_sampling and noise_generator, which are set here. For a pool of processes it must be
        a function at the top of a module.
      noise_multiplier: noise / clip norm, of every step of every candidate.
      sample_rate: 1 / number of lots of an epoch, as Opacus counts it, 1 / len(loader).
      steps: the most that any candidate takes.
      default: the module (or its state_dict) released where there is no winner; it must not depend
        on data.
      seed: for reproduction, on a CPU; the randomness is then not secret and the release says so.

    Returns:
      A `tuning` `Result`. `release.params` has the state_dict of the winner's module as NumPy
      arrays: `module.load_state_dict({name: torch.as_tensor(value) ...})`.

    Raises:
      ImportError: without Opacus.
      RuntimeError: if a run contradicts its declaration (`bridges.ContradictionError`), with one
        line naming what to pass instead, or a process of the pool died; nothing is released.
    """
    from dpjax.bridges import opacus_engine  # PyTorch, which nothing else here needs.

    checks.function("train", train, "(engine, hyperparameters) -> (module, count)")
    declared = opacus_engine.DeclaredSteps(
        checks.positive("noise_multiplier", noise_multiplier),
        checks.probability("sample_rate", sample_rate, one=True),
        checks.whole("steps", steps),
    )
    return any_run.tune(
        _Run(train, declared),
        space,
        base=accounting.dp_sgd(declared.sample_rate, declared.noise_multiplier, declared.steps),
        score=score,
        repetitions=repetitions,
        delta=delta,
        model=model,
        default=None if default is None else opacus_engine.arrays(default),
        executor=executor,
        on_outcome=on_outcome,
        job=job,
        ledger=ledger,
        seed=seed,
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """Trains one candidate for `bridges.tune`; it can be sent to another process."""

    train: Train
    declared: DeclaredSteps

    def facts(self) -> list[Any]:
        """Returns what a job's folder is bound to beside the guarantee of one run: the training."""
        return code(self.train)

    def __call__(self, seed: int, hyperparameters: dict[str, Label]) -> Any:
        from dpjax.bridges import opacus_engine

        engine = opacus_engine.CandidateEngine(self.declared, seed)
        with engine.watching():
            returned = self.train(engine, hyperparameters)
            if not (isinstance(returned, tuple) and len(returned) == 2):
                return returned  # Ranked worst.
            module, count = returned
            # A tensor would reach another process as memory that is shared.
            count = count.item() if getattr(count, "ndim", None) == 0 else count
            return engine.weights(module), count
