"""Everything this project takes from Flower, and the only module that imports it.

SecAgg+ lives in Flower's legacy namespaces, which may move in any release, so one version range is
accepted and every name that is not public API comes through here. Importing it neither reads the
network nor sets environment variables; Flower itself reads FLWR_TELEMETRY_ENABLED at import, so a
program that wants its telemetry off sets that before (`experiments.federation.offline` does).
"""

# ruff: noqa: F401 (what is imported here is used elsewhere)

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings

TESTED_VERSIONS = (1, 41)
"""Major and minor version of Flower whose secure aggregation this project was tested with."""

_INSTALL = "pip install -e '.[federated]' in dpjax's folder"

if importlib.util.find_spec("flwr") is None:
    raise ImportError(f"dpjax.federated.flower runs on Flower, which is not installed: {_INSTALL}")


def check_version(installed: str) -> None:
    """Raises an ImportError for a Flower, such as "1.41.0", whose private parts were not tested."""
    if tuple(installed.split(".")[:2]) != tuple(map(str, TESTED_VERSIONS)):
        wanted = ".".join(map(str, TESTED_VERSIONS))
        raise ImportError(
            "dpjax.federated.flower uses parts of Flower that change between versions: it was "
            f"tested with {wanted}, this is {installed}; {_INSTALL}"
        )


check_version(importlib.metadata.version("flwr"))

with warnings.catch_warnings():
    # Flower's command line subclasses what Click deprecates; nothing here uses it.
    warnings.filterwarnings(
        "ignore", message=r"'click\.utils\.\w+' is deprecated", category=DeprecationWarning
    )
    from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp
    from flwr.common import Code as StatusCode
    from flwr.common import (
        FitIns,
        FitRes,
        Parameters,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.common.secure_aggregation.secaggplus_constants import (
        RECORD_KEY_CONFIGS,
        RECORD_KEY_STATE,
        Key,
        Stage,
    )
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.compat.common.recorddict_compat import (
        fitres_to_recorddict,
        recorddict_to_fitins,
        recorddict_to_fitres,
    )
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.server.workflow.constant import Key as WorkflowKey
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import (
        SecAggPlusWorkflow,
        WorkflowState,
    )
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.task_identity import TaskIdentity
