"""What the agent keeps on disk of its tenants, so that the next agent can take over."""
