"""``read_command_line.py ROOT COMMAND WORD...``: reads a command line as COMMAND does; prints the loaded modules."""

import sys

sys.path.insert(0, sys.argv[1])
from nvc.cli import options, settings
from nvc.cli.compat.getopt import parse

command, words = sys.argv[2], sys.argv[3:]
read = __import__(f"nvc.cli.compat.{command}", fromlist=["read"]).read
settings.read(parse("p", ["-k", "-u1:2"], options.GLOBAL, in_order=True), {})
parsed = parse("p", words, options.rows(command), in_order=False)
read(parsed, words) if command == "list" else read(parsed)
print(sorted(sys.modules))
