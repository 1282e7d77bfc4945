"""``nvc-py top``."""
