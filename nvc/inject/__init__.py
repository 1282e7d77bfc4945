"""From a request to a configured container: the Python API, and the order in which a request becomes a plan."""
