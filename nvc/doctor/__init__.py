"""What may be wrong with a host: checks that look and change nothing.

Here belong the checks (a row in ``table``, a function that yields findings), their runner and the reports. Not here:
anything that fixes; every finding names the command that does. Nothing on a container's start-up path imports this.
"""
