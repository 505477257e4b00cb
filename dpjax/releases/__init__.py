"""What is published and what is not: a release, how it is verified, and the curator's folder."""
