"""DPareto: privacy-utility Pareto fronts by Bayesian optimisation (Avent et al., PoPETs 2020).

`search` evaluates settings, `ask` and `SearchRecord.tell` leave that to the caller; `reevaluate`
measures a front afresh; `suggest` predicts the best setting for a wanted epsilon. None of their
results is private output, unless the data was public.
"""

from dpjax.pareto.domain import Domain, Log, Real, grid, parse_domain
from dpjax.pareto.fronts import check_anti_ideal, front, hypervolume, non_dominated
from dpjax.pareto.oracles import RunShapes, TrainedAccuracy, TrainingCost
from dpjax.pareto.record import Evaluation, SearchRecord, fitted
from dpjax.pareto.search import METHODS, FreshFront, ask, reevaluate, search
from dpjax.pareto.suggestion import Suggestion, suggest
from dpjax.tuning.problem.space import Category, Integer, LogInteger

__all__ = [
    "Category",
    "Domain",
    "Integer",
    "Log",
    "LogInteger",
    "Real",
    "RunShapes",
    "SearchRecord",
    "TrainedAccuracy",
    "TrainingCost",
    "ask",
    "front",
    "grid",
    "hypervolume",
    "search",
    "suggest",
]
