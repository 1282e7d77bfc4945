"""Configuration files of container engines: what has to stand in them so that they use this program.

Here belong the edits, as functions from a file's text to its new text, and ``files``, the one module that reads and
writes. Nothing on a container's start-up path imports this package.
"""
