"""Prometheus metrics of the agent."""
