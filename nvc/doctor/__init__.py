"""What may be wrong with a host: checks that look and change nothing.

Here belong the checks (a row in ``table``, a function that yields findings), how they are run and how they are told.
Not here: anything that mends. Every finding names the command that does. Nothing on a container's way imports this.
"""
