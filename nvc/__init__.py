"""The library: what is installed on the host, what a container asks for, and putting the one into the other.

Nothing about OCI hooks belongs here (``hook``), nothing about process plumbing (``rpc``).
"""

__version__ = "0.9.0"
