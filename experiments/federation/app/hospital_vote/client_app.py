"""Runs at every hospital: reads the folder that its own node configuration names."""

from dpjax import federated

app = federated.make_client_app(federated.records_in_folder)
