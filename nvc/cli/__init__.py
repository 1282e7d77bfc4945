"""The command line: one module a command; options are rows in options.py."""
