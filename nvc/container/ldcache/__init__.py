"""The container's loader cache: the host's ldconfig, run in a sandbox."""
