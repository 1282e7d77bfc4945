"""``nvc-py share`` and its sub-commands."""
