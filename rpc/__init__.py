"""Mechanism only: a helper process behind a socketpair, messages, descriptors. Knows nothing of GPUs."""
