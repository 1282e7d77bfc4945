"""The one place with ctypes: kernel interfaces, each wrapped in a few lines. Knows nothing of GPUs."""
