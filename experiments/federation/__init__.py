"""A real federation on one machine: three hospitals, TLS, authenticated nodes."""
