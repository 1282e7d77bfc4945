"""One container: looked up, planned for, changed by the container service, undone on failure."""
