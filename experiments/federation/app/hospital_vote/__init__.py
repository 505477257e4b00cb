"""The hospitals' vote: a server and a client."""
