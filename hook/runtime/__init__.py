"""``nvc-runtime``: an OCI runtime that gives GPUs by editing config.json, and executes the real runtime."""
