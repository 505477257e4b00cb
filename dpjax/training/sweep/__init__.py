"""Many runs at once: what shares a program, where it runs, and what is on disk."""
