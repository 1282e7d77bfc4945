"""The Container Device Interface: specs that engines read, and what the hooks named in them do.

What belongs here: the spec as values, its text, its making from an inventory (all cold), and the hooks' work below a
container's root (hot: ``hooks``, ``links``, ``loaderconf``). Not here: reading an OCI state (``hook.cdi`` does).
"""
